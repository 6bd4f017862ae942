"""Checkpoints in memory: for tests, and for jobs that may begin anew with the process.

Source: docs/design/checkpoints.md, "In memory".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import ProgramLimitExceeded
from .backend import KEEP, Report, report_to_log
from .kept import KeptBackend, Place
from .state import CheckpointState

# With `keep`, what bounds its memory: a process has some hundred consumers.
STREAMS_MAX = 10_000


class MemoryBackend(KeptBackend):
    """See the head of the file, and `Backend`. Nothing of it is durable.

    Further errors of `save`:
        ProgramLimitExceeded: 54000, there are `STREAMS_MAX` streams already.
    """

    def __init__(self, *, keep: int = KEEP, report: Report = report_to_log) -> None:
        super().__init__(keep, report)
        self._mutex = threading.Lock()
        self._states = _States({})

    @contextmanager
    def _reading(self) -> Iterator[Place]:
        with self._mutex:
            yield self._states

    _writing = _reading


class _States:
    """Stream -> sequence -> state."""

    def __init__(self, by_stream: dict[str, dict[int, CheckpointState]]) -> None:
        self._by_stream = by_stream

    def streams(self) -> Sequence[str]:
        return sorted(self._by_stream)

    def sequences(self, stream: str) -> Sequence[int]:
        return sorted(self._by_stream.get(stream, ()))

    def read(self, stream: str, sequence: int) -> CheckpointState | None:
        return self._by_stream.get(stream, {}).get(sequence)

    def put(self, state: CheckpointState, gone: Sequence[int]) -> None:
        if state.stream not in self._by_stream and len(self._by_stream) >= STREAMS_MAX:
            raise ProgramLimitExceeded(f"there are checkpoints of {STREAMS_MAX} streams in memory already")
        self._by_stream.setdefault(state.stream, {})[state.sequence] = state
        self.remove(state.stream, gone)

    def remove(self, stream: str, sequences: Sequence[int]) -> int:
        found = self._by_stream.get(stream, {})
        count = sum(found.pop(sequence, None) is not None for sequence in sequences)
        if stream in self._by_stream and not found:
            del self._by_stream[stream]
        return count
