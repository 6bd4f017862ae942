"""Checkpoint backends: the rules common to all stores of checkpoints, and the backend in memory.

- The newest `keep` of each stream are kept, by sequence.
- Saving a sequence again replaces the older state.
- A position goes back only on request: a new sequence below the newest, and a state whose position or offsets
  are behind those of the newest (or of the replaced one), are refused. With `rewind=True` they are saved, and
  states of higher sequences are removed.
- An unreadable state is reported (`report`), and skipped by `latest` and `all`; `load` raises an error for
  it. It counts among the newest `keep` like any other.

The rules need a store that can list, read, put and remove (`CheckpointStore`); duckdb_backend.py and
file_backend.py have the durable ones. Source: docs/design/checkpoints.md, "Backends".
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

from ..errors import DataCorrupted, InvalidParameterValue, ProgramLimitExceeded, SerializationFailure
from .state import CheckpointState, check_key

logger = logging.getLogger(__name__)

# Several, so that damage to the newest costs one interval and not the job.
KEEP = 10
KEEP_MAX = 10_000
# Limit of streams of a MemoryBackend: with `keep` it bounds the memory. A process has some hundred consumers.
STREAMS_MAX = 10_000
# Number of times that the list of states is read before an error. Each time, as many states as are kept were
# saved while one reader listed and read.
LOOKS_MAX = 1_000

Report = Callable[[DataCorrupted], None]


def report_to_log(damage: DataCorrupted) -> None:
    """Log the damage: the default of `report`."""
    logger.error("%s: %s", damage.message, damage.detail)


def check_keep(keep: int) -> int:
    """Check the number of states that a backend keeps of each stream.

    Raises:
        InvalidParameterValue: the value is refused.
    """
    if not 1 <= keep <= KEEP_MAX:
        raise InvalidParameterValue(f"a checkpoint backend keeps 1 to {KEEP_MAX} of each stream, not {keep}")
    return keep


def check_forward(
    state: CheckpointState,
    stored: Sequence[int],
    newest: CheckpointState | None,
    present: CheckpointState | None,
) -> None:
    """Refuse a state that would go back.

    Args:
        stored: the stored sequences, including damaged ones.
        newest: the intact state with the highest sequence.
        present: the intact state with the new state's sequence.

    Raises:
        InvalidParameterValue: the value is refused.
    """
    if stored and state.sequence < max(stored) and state.sequence not in stored:
        raise _back(state, f"Sequence {max(stored)} is there.")
    earlier = present or newest
    wrong = None if earlier is None else state.behind(earlier)
    if wrong is not None:
        raise _back(state, wrong)


def _back(state: CheckpointState, wrong: str) -> InvalidParameterValue:
    return InvalidParameterValue(
        f'checkpoint {state.sequence} of "{state.stream}" would go back',
        detail=wrong,
        hint="A checkpoint goes back only where that is asked for: rewind=True.",
    )


class CheckpointStore(ABC):
    """The states of a backend during one call. Keys are checked by the caller."""

    @abstractmethod
    def streams(self) -> Sequence[str]:
        """The keys, in order."""

    @abstractmethod
    def sequences(self, stream: str) -> Sequence[int]:
        """The stored sequences of a stream, lowest first; states are not read."""

    @abstractmethod
    def read(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state; None if it does not exist.

        Raises:
            DataCorrupted: the state is damaged.
        """

    @abstractmethod
    def put(self, state: CheckpointState, gone: Sequence[int]) -> None:
        """Store a state, replacing one of the same sequence, in one step; then remove others."""

    @abstractmethod
    def remove(self, stream: str, sequences: Sequence[int]) -> int:
        """Remove states in this order; returns the number of those that existed."""


class Backend(ABC):
    """A store of checkpoints by the rules of this module. Safe to use from several threads.

    All calls raise InvalidParameterValue for a key that `check_key` refuses, and IoError if the store itself
    fails.

    Args:
        keep: the number of states kept of each stream.
        report: called with each unreadable state, under the backend's lock: it must not call the backend.
    """

    def __init__(self, keep: int = KEEP, report: Report = report_to_log) -> None:
        self._keep = check_keep(keep)
        self._report = report

    @abstractmethod
    def _reading(self) -> AbstractContextManager[CheckpointStore]:
        """The store for a read-only call."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[CheckpointStore]:
        """The store for a call that changes it, with exclusive access."""

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Save a state, and remove the oldest beyond `keep`.

        The state is durable once this returns, if the backend is. With `rewind`, states of higher sequences
        are removed once the state is saved, highest first.

        Raises:
            InvalidParameterValue: the state would go back without `rewind`.
        """
        with self._writing() as place:
            self._save(place, state, rewind=rewind)

    def _save(self, place: CheckpointStore, state: CheckpointState, *, rewind: bool) -> bool:
        """Save a state as in `save`; returns True if it is the newest now."""
        stream, sequence = state.stream, state.sequence
        rows = place.sequences(stream)
        # Rows of states that earlier saves have removed may still be there.
        stored = rows[-self._keep :]
        if not rewind:
            present = self._intact(place, stream, [sequence] if sequence in stored else ())
            newest = self._intact(place, stream, reversed(stored))
            check_forward(state, stored, next(newest, None), next(present, None))
        gone = [one for one in reversed(stored) if rewind and one > sequence]
        kept = sorted({*stored, sequence} - set(gone))
        oldest = [*rows[: -self._keep], *kept[: -self._keep]]
        place.put(state, gone + [one for one in oldest if one != sequence])
        return kept[-1] == sequence

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state; None if it does not exist.

        Raises:
            DataCorrupted: the state is damaged.
        """
        check_key(stream)
        with self._reading() as place:
            return place.read(stream, sequence) if sequence in self._kept(place, stream) else None

    def latest(self, stream: str) -> CheckpointState | None:
        """The newest intact state; None without any.

        Raises:
            SerializationFailure: other saves have removed all listed states, a thousand times in a row.
        """
        check_key(stream)
        with self._reading() as place:
            return next(iter(self._found(place, stream, lambda: place.sequences(stream), 1)), None)

    def list(self, stream: str) -> Sequence[int]:
        """The stored sequences, lowest first, including damaged ones."""
        check_key(stream)
        with self._reading() as place:
            return self._kept(place, stream)

    def all(self, stream: str) -> Sequence[CheckpointState]:
        """All intact states, lowest sequence first.

        Raises:
            SerializationFailure: as in `latest`.
        """
        check_key(stream)
        with self._reading() as place:
            return [*reversed(self._found(place, stream, lambda: self._kept(place, stream)))]

    def streams(self) -> Sequence[str]:
        """The keys with checkpoints, in order."""
        with self._reading() as place:
            return place.streams()

    def count(self, stream: str | None = None) -> int:
        """The number of checkpoints of one stream or of all."""
        if stream is not None:
            check_key(stream)
        with self._reading() as place:
            streams = place.streams() if stream is None else [stream]
            return sum(len(self._kept(place, one)) for one in streams)

    def delete(self, stream: str, sequence: int) -> bool:
        """Remove one state; returns False if it did not exist."""
        check_key(stream)
        with self._writing() as place:
            stored = place.sequences(stream)
            if sequence not in stored[-self._keep :]:
                return False
            # States that are too old must not replace the removed ones.
            place.remove(stream, [*stored[: -self._keep], sequence])
            return True

    def delete_before(self, stream: str, sequence: int) -> int:
        """Remove states with a lower sequence; returns their number."""
        return self._remove(stream, sequence)

    def clear(self, stream: str) -> int:
        """Remove all states of a stream, so that it begins anew; returns their number."""
        return self._remove(stream, None)

    def _remove(self, stream: str, before: int | None) -> int:
        check_key(stream)
        with self._writing() as place:
            stored = place.sequences(stream)
            gone = [one for one in stored if before is None or one < before]
            beyond = set(stored[: -self._keep])
            if gone:
                place.remove(stream, gone)
            return sum(one not in beyond for one in gone)

    def _kept(self, place: CheckpointStore, stream: str) -> Sequence[int]:
        """The newest `keep` sequences: a store may remove older states some saves later."""
        return place.sequences(stream)[-self._keep :]

    def _found(
        self,
        place: CheckpointStore,
        stream: str,
        listed: Callable[[], Sequence[int]],
        count: int | None = None,
    ) -> tuple[CheckpointState, ...]:
        """The newest intact states among the listed ones, highest sequence first.

        Other saves may remove listed states before they are read; if all were removed, they are listed again.
        """
        for _ in range(LOOKS_MAX):
            sequences = listed()
            found = tuple(islice(self._intact(place, stream, reversed(sequences)), count))
            wanted = len(sequences) if count is None else min(count, len(sequences))
            if len(found) == wanted or set(sequences) <= set(listed()):
                return found
        raise SerializationFailure(
            f'the checkpoints of "{stream}" change faster than they can be read', hint="Try again."
        )

    def _intact(
        self, place: CheckpointStore, stream: str, sequences: Iterable[int]
    ) -> Iterator[CheckpointState]:
        """The readable states, one in memory at a time; unreadable ones are reported."""
        for sequence in sequences:
            try:
                state = place.read(stream, sequence)
            except DataCorrupted as damage:
                self._report(damage)
            else:
                if state is not None:
                    yield state


def check_place(state: CheckpointState, stream: str, sequence: int) -> CheckpointState:
    """Check that a state belongs to the key and sequence under which it was found.

    Raises:
        DataCorrupted: the state is damaged.
    """
    if (state.stream, state.sequence) != (stream, sequence):
        raise DataCorrupted(
            "a checkpoint is in the place of another one",
            detail=f'It says that it is number {state.sequence} of "{state.stream}".',
        )
    return state


def damaged_at(stream: str, sequence: int, damage: DataCorrupted) -> DataCorrupted:
    """The error for a damaged state, with its key and sequence."""
    return DataCorrupted(f'checkpoint {sequence} of "{stream}" is damaged', detail=damage.detail)


class MemoryBackend(Backend):
    """Checkpoints in memory, for tests and for jobs that may restart with the process; they are not durable.

    `save` raises ProgramLimitExceeded beyond `STREAMS_MAX` streams. Source: docs/design/checkpoints.md, "In
    memory".
    """

    def __init__(self, *, keep: int = KEEP, report: Report = report_to_log) -> None:
        super().__init__(keep, report)
        self._mutex = threading.Lock()
        self._states = _States({})

    @contextmanager
    def _reading(self) -> Iterator[CheckpointStore]:
        with self._mutex:
            yield self._states

    _writing = _reading


class _States(CheckpointStore):
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
