"""Checkpoint backends: the rules that every place for checkpoints follows, and the one in memory.

- The newest `keep` of each stream are kept, by sequence.
- A sequence that is saved again replaces the older state.
- A position never goes back unasked: a new sequence below the newest, and a state whose position or
  offsets are behind those of the newest (or of the one that it replaces), are refused. With `rewind=True`
  they are saved, and states of higher sequences are removed.
- A state that cannot be read is reported (`report`), and `latest` and `all` pass over it; `load` of it is an
  error. It counts among the newest `keep` as any other.

The rules need a place that can list, read, put and remove (`CheckpointStore`); duckdb_backend.py and
file_backend.py are the durable ones. Source: docs/design/checkpoints.md, "Backends".
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
# Streams of a MemoryBackend: with `keep` the bound of its memory. A process has some hundred consumers.
STREAMS_MAX = 10_000
# The list of states is read anew so often before savers count as too fast. Each time means that as many
# states as are kept were saved while one reader listed and read.
LOOKS_MAX = 1_000

Report = Callable[[DataCorrupted], None]


def report_to_log(damage: DataCorrupted) -> None:
    """Log damage: the default of `report`."""
    logger.error("%s: %s", damage.message, damage.detail)


def check_keep(keep: int) -> int:
    """The number of states that a backend keeps of each stream, checked.

    Raises:
        InvalidParameterValue.
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
        stored: the sequences that are there, damaged ones among them.
        newest: what is intact and has the highest sequence.
        present: what is intact and has the state's own sequence.

    Raises:
        InvalidParameterValue.
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
    """The states of a backend, as one call sees them. Keys are checked before they come here."""

    @abstractmethod
    def streams(self) -> Sequence[str]:
        """The keys, in order."""

    @abstractmethod
    def sequences(self, stream: str) -> Sequence[int]:
        """The sequences of a stream that are there, lowest first; no state is read."""

    @abstractmethod
    def read(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state; None where it is not there.

        Raises:
            DataCorrupted.
        """

    @abstractmethod
    def put(self, state: CheckpointState, gone: Sequence[int]) -> None:
        """Keep a state in the place of one of the same sequence, as one step; then take others away."""

    @abstractmethod
    def remove(self, stream: str, sequences: Sequence[int]) -> int:
        """Take states away, in this order; how many were there."""


class Backend(ABC):
    """A place for checkpoints, by the rules at the head of the file. Safe to use from several threads.

    All calls raise InvalidParameterValue for a key that `check_key` refuses, and IoError where the place
    itself fails.

    Args:
        keep: how many of each stream.
        report: called with each state that cannot be read, under the backend's lock: it must not call the
            backend.
    """

    def __init__(self, keep: int = KEEP, report: Report = report_to_log) -> None:
        self._keep = check_keep(keep)
        self._report = report

    @abstractmethod
    def _reading(self) -> AbstractContextManager[CheckpointStore]:
        """The place for a call that changes nothing."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[CheckpointStore]:
        """The place for a call that changes it; nobody else does meanwhile."""

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Keep a state, and remove the oldest beyond `keep`.

        The state is durable once this returns, where the backend is. With `rewind`, states of higher
        sequences are removed once the state is there, highest first.

        Raises:
            InvalidParameterValue: it would go back, and not with `rewind`.
        """
        with self._writing() as place:
            self._save(place, state, rewind=rewind)

    def _save(self, place: CheckpointStore, state: CheckpointState, *, rewind: bool) -> bool:
        """See `save`; True if the state is the newest now."""
        stream, sequence = state.stream, state.sequence
        stored = place.sequences(stream)
        if not rewind:
            present = self._intact(place, stream, [sequence] if sequence in stored else ())
            newest = self._intact(place, stream, reversed(stored))
            check_forward(state, stored, next(newest, None), next(present, None))
        gone = [one for one in reversed(stored) if rewind and one > sequence]
        kept = sorted({*stored, sequence} - set(gone))
        place.put(state, gone + [one for one in kept[: -self._keep] if one != sequence])
        return kept[-1] == sequence

    def load(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state; None where there is none.

        Raises:
            DataCorrupted: it is damaged.
        """
        check_key(stream)
        with self._reading() as place:
            return place.read(stream, sequence) if sequence in self._kept(place, stream) else None

    def latest(self, stream: str) -> CheckpointState | None:
        """The newest that is intact; None without any.

        Raises:
            SerializationFailure: savers have removed all that was listed, a thousand times over.
        """
        check_key(stream)
        with self._reading() as place:
            return next(iter(self._found(place, stream, lambda: place.sequences(stream), 1)), None)

    def list(self, stream: str) -> Sequence[int]:
        """The sequences that are there, lowest first, damaged ones among them."""
        check_key(stream)
        with self._reading() as place:
            return self._kept(place, stream)

    def all(self, stream: str) -> Sequence[CheckpointState]:
        """All that are intact, lowest sequence first.

        Raises:
            SerializationFailure: as of `latest`.
        """
        check_key(stream)
        with self._reading() as place:
            return [*reversed(self._found(place, stream, lambda: self._kept(place, stream)))]

    def streams(self) -> Sequence[str]:
        """The keys of which there are checkpoints, in order."""
        with self._reading() as place:
            return place.streams()

    def count(self, stream: str | None = None) -> int:
        """The number of checkpoints, of one stream or of all."""
        if stream is not None:
            check_key(stream)
        with self._reading() as place:
            streams = place.streams() if stream is None else [stream]
            return sum(len(self._kept(place, one)) for one in streams)

    def delete(self, stream: str, sequence: int) -> bool:
        """Remove one; False where it was not there."""
        check_key(stream)
        with self._writing() as place:
            stored = place.sequences(stream)
            if sequence not in stored[-self._keep :]:
                return False
            # What is too old must not come back into the place of what goes.
            place.remove(stream, [*stored[: -self._keep], sequence])
            return True

    def delete_before(self, stream: str, sequence: int) -> int:
        """Remove those with a lower sequence; their number."""
        return self._remove(stream, sequence)

    def clear(self, stream: str) -> int:
        """Remove all of a stream, so that it begins anew; their number."""
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
        """The newest `keep`: a place may take what is older away some saves later."""
        return place.sequences(stream)[-self._keep :]

    def _found(
        self,
        place: CheckpointStore,
        stream: str,
        listed: Callable[[], Sequence[int]],
        count: int | None = None,
    ) -> tuple[CheckpointState, ...]:
        """The newest intact ones of those that are listed, highest sequence first.

        Savers may let go of what is listed before it is read, of all of it even: then it is listed anew.
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
        """Those that can be read, one in memory at a time; the others are reported."""
        for sequence in sequences:
            try:
                state = place.read(stream, sequence)
            except DataCorrupted as damage:
                self._report(damage)
            else:
                if state is not None:
                    yield state


def check_place(state: CheckpointState, stream: str, sequence: int) -> CheckpointState:
    """A state must be of the place where it was found.

    Raises:
        DataCorrupted.
    """
    if (state.stream, state.sequence) != (stream, sequence):
        raise DataCorrupted(
            "a checkpoint is in the place of another one",
            detail=f'It says that it is number {state.sequence} of "{state.stream}".',
        )
    return state


def damaged_at(stream: str, sequence: int, damage: DataCorrupted) -> DataCorrupted:
    """The error of a damaged state, with its place."""
    return DataCorrupted(f'checkpoint {sequence} of "{stream}" is damaged', detail=damage.detail)


class MemoryBackend(Backend):
    """Checkpoints in memory, for tests and for jobs that may begin anew with the process; none is durable.

    `save` raises ProgramLimitExceeded for one more than `STREAMS_MAX` streams. Source:
    docs/design/checkpoints.md, "In memory".
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
