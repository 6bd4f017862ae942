"""The rules of `Backend` over any place that can list, read, put and remove: all that backends share.

Source: docs/design/checkpoints.md, "Backends".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Protocol

from ..errors import DataCorrupted, SerializationFailure
from .backend import KEEP, Report, check_forward, check_keep, report_to_log
from .bounds import check_key
from .state import CheckpointState

# How often what is listed is looked at before savers are told to be too fast. Each time means that somebody
# has saved as often as states are kept while one reader listed and read.
LOOKS_MAX = 1_000


class Place(Protocol):
    """Where states are, as one call sees it. Keys are checked before they come here."""

    def streams(self) -> Sequence[str]:
        """The keys, in order."""

    def sequences(self, stream: str) -> Sequence[int]:
        """What is there of a stream, lowest first; nothing of it is read."""

    def read(self, stream: str, sequence: int) -> CheckpointState | None:
        """One state; None where it is not there.

        Raises:
            DataCorrupted: XX001.
        """

    def put(self, state: CheckpointState, gone: Sequence[int]) -> None:
        """Keep a state in the place of one of the same sequence, as one step; then take others away."""

    def remove(self, stream: str, sequences: Sequence[int]) -> int:
        """Take states away, in this order; how many were there."""


class KeptBackend(ABC):
    """See the head of the file, and `Backend`.

    Args:
        keep: how many of each stream.
        report: told of each state that cannot be read, under the backend's lock: it must not call it.
    """

    def __init__(self, keep: int = KEEP, report: Report = report_to_log) -> None:
        self._keep = check_keep(keep)
        self._report = report

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Place]:
        """The place for a call that changes nothing."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Place]:
        """The place for a call that changes it; nobody else does meanwhile."""

    def save(self, state: CheckpointState, *, rewind: bool = False) -> None:
        """Keep a state, and let go of the oldest beyond `keep`. Unasked, a position never goes back.

        With `rewind`, what has a higher sequence is taken away once the state is there, highest first.
        """
        with self._writing() as place:
            self._save(place, state, rewind=rewind)

    def _save(self, place: Place, state: CheckpointState, *, rewind: bool) -> bool:
        """See `save`; whether it is the newest now."""
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
        """One state; None where there is none."""
        check_key(stream)
        with self._reading() as place:
            return place.read(stream, sequence) if sequence in self._kept(place, stream) else None

    def latest(self, stream: str) -> CheckpointState | None:
        """The newest that is intact."""
        check_key(stream)
        with self._reading() as place:
            return next(iter(self._found(place, stream, lambda: place.sequences(stream), 1)), None)

    def list(self, stream: str) -> Sequence[int]:
        """The sequences that are there, lowest first, damaged ones among them."""
        check_key(stream)
        with self._reading() as place:
            return self._kept(place, stream)

    def all(self, stream: str) -> Sequence[CheckpointState]:
        """All that are intact, lowest sequence first."""
        check_key(stream)
        with self._reading() as place:
            return [*reversed(self._found(place, stream, lambda: self._kept(place, stream)))]

    def streams(self) -> Sequence[str]:
        """The keys of which there are checkpoints, in order."""
        with self._reading() as place:
            return place.streams()

    def count(self, stream: str | None = None) -> int:
        """How many there are, of one stream or of all."""
        if stream is not None:
            check_key(stream)
        with self._reading() as place:
            streams = place.streams() if stream is None else [stream]
            return sum(len(self._kept(place, one)) for one in streams)

    def delete(self, stream: str, sequence: int) -> bool:
        """Take one away; False where it was not there."""
        check_key(stream)
        with self._writing() as place:
            stored = place.sequences(stream)
            if sequence not in stored[-self._keep :]:
                return False
            # What is too old must not come back into the place of what goes.
            place.remove(stream, [*stored[: -self._keep], sequence])
            return True

    def delete_before(self, stream: str, sequence: int) -> int:
        """Take away those with a lower sequence; how many they were."""
        return self._remove(stream, sequence)

    def clear(self, stream: str) -> int:
        """Take away all of a stream, so that it begins anew; how many they were."""
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

    def _kept(self, place: Place, stream: str) -> Sequence[int]:
        """The newest `keep`: a place may take what is older away some saves later."""
        return place.sequences(stream)[-self._keep :]

    def _found(
        self, place: Place, stream: str, listed: Callable[[], Sequence[int]], count: int | None = None
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

    def _intact(self, place: Place, stream: str, sequences: Iterable[int]) -> Iterator[CheckpointState]:
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
        DataCorrupted: XX001.
    """
    if (state.stream, state.sequence) != (stream, sequence):
        raise DataCorrupted(
            "a checkpoint is in the place of another one",
            detail=f'It says that it is number {state.sequence} of "{state.stream}".',
        )
    return state


def damaged_at(stream: str, sequence: int, damage: DataCorrupted) -> DataCorrupted:
    """What is told of a damaged state, with its place."""
    return DataCorrupted(f'checkpoint {sequence} of "{stream}" is damaged', detail=damage.detail)
