"""Read positions: the last LSNs returned by a group's latest read of a stream, for each partition.

COMMIT OFFSETS without AT commits the read position. It belongs to a session, or to a member of the group
across all its connections: each has a `ReadPositions`, with the same rules. It is set when a read's answer is
complete, and voided by an error, a cancel and the ROLLBACK of the transaction that read. For each partition
it has the last LSN returned and the committed LSN from which the read began.

Several reads of one reader may run at once. In a partition the events returned last count. A failed read
removes its own entries and those that existed when it began, as it would have replaced them; later entries of
other reads stay. Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field, replace

from ..errors import WrongState
from .offsets import moved_by_seek

# The reason for a missing position after a SEEK.
MOVED = "SEEK has moved the group"
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Given:
    """One partition of a read position.

    Args:
        lsn: the last LSN returned.
        began: the committed LSN from which the read began.
        read: number of the read.
        at: position in the order of all reads and their results.
        done: True once the reader has committed it.
    """

    lsn: int
    began: int
    read: int
    at: int
    done: bool = False


@dataclass(slots=True)
class ReadPosition:
    """The read position of one group.

    Args:
        given: partition -> the last LSN returned.
        seeks: number of SEEKs of the group when it was set.
        reason: the reason for a missing position, for the error; "" if there is a position.
        released: partition -> the released events that the read returned (see `parked.py`).
    """

    given: dict[int, Given] = field(default_factory=dict)
    seeks: int = 0
    reason: str = ""
    released: dict[int, frozenset[int]] = field(default_factory=dict)

    @property
    def lsns(self) -> dict[int, int]:
        """Partition -> the last LSN returned."""
        return {partition: given.lsn for partition, given in self.given.items()}

    @property
    def began(self) -> dict[int, int]:
        """Partition -> committed LSN from which its read began."""
        return {partition: given.began for partition, given in self.given.items()}

    @property
    def again(self) -> frozenset[int]:
        """The released events that were returned."""
        return _NOTHING.union(*(lsns for number, lsns in self.released.items() if number in self.given))

    def left(self) -> ReadPosition:
        """The position without committed partitions, so that a commit covers later reads only.

        If every partition is committed it is the whole position, whose commit has no effect.
        """
        left = {partition: given for partition, given in self.given.items() if not given.done}
        return ReadPosition(left or self.given, self.seeks, self.reason, self.released)

    def up_to(self, lsns: Mapping[int, int]) -> ReadPosition:
        """The part of the position up to LSNs of some partitions.

        Raises:
            WrongState: there is none.
        """
        given = {
            number: replace(one, lsn=min(one.lsn, lsns[number]))
            for number, one in self.given.items()
            if number in lsns
        }
        if not given:
            raise WrongState("what the session has read as the member is not known any more")
        released = {
            number: frozenset(lsn for lsn in again if lsn <= lsns[number])
            for number, again in self.released.items()
            if number in lsns
        }
        return ReadPosition(given, self.seeks, self.reason, released)

    def copy(self) -> ReadPosition:
        """A copy, to be used without the owner's lock."""
        return ReadPosition(dict(self.given), self.seeks, self.reason, dict(self.released))


class ReadPositions:
    """The read positions of a session, or of members; guarded by the owner's lock.

    Args:
        first: the number of the first read.
    """

    def __init__(self, first: int = 1) -> None:
        self._positions: dict[Hashable, ReadPosition] = {}
        self._numbers = itertools.count(first)

    def begin(self) -> int:
        """The number of a new read."""
        return next(self._numbers)

    def set(
        self,
        key: Hashable,
        read: int,
        lsns: Mapping[int, int],
        began: Mapping[int, int],
        seeks: int,
        again: Mapping[int, frozenset[int]],
    ) -> None:
        """Set the position of a read that has returned everything up to `lsns` in its partitions.

        Args:
            again: partition -> the released events that it returned.
        """
        position = self._positions.get(key)
        if position is None or position.reason or position.seeks != seeks:
            position = self._positions[key] = ReadPosition(seeks=seeks)
        at = next(self._numbers)
        for partition, lsn in lsns.items():
            position.given[partition] = Given(lsn, began[partition], read, at)
        if again or position.released:
            position.released.update(dict.fromkeys(lsns, _NOTHING) | dict(again))

    def void(self, key: Hashable, reason: str, read: int | None = None) -> None:
        """Void a position.

        Args:
            reason: the reason, for the error of a later commit.
            read: number of a read that has failed; None voids the entries of all reads.
        """
        stays = {}
        position = self._positions.get(key)
        if position is not None and read is not None:
            stays = {p: given for p, given in position.given.items() if given.read != read < given.at}
        if position is not None and stays:
            position.given = stays
        else:
            self._positions[key] = ReadPosition(reason=reason)

    def lsns(self, key: Hashable, seeks: int | None = None) -> dict[int, int]:
        """Partition -> the last LSN returned; empty without a position.

        Args:
            seeks: the number of SEEKs that the position must have; None: any.
        """
        position = self._positions.get(key)
        if position is None or position.reason or seeks not in (None, position.seeks):
            return {}
        return position.lsns

    def released(self, key: Hashable) -> dict[int, frozenset[int]]:
        """Partition -> the released events that the position's reads returned; empty without a position."""
        position = self._positions.get(key)
        if position is None or position.reason:
            return {}
        return {number: lsns for number, lsns in position.released.items() if number in position.given}

    def set_aside(self, key: Hashable, lsn: int) -> None:
        """Forget that a released event was returned: it is parked again, and may be released again later."""
        position = self._positions.get(key)
        if position is not None and position.released:
            position.released = {number: lsns - {lsn} for number, lsns in position.released.items()}

    def committed(self, key: Hashable, lsns: Mapping[int, int]) -> None:
        """Mark the partitions that the reader has committed at these LSNs."""
        position = self._positions.get(key)
        if position is not None:
            position.given = {
                partition: replace(given, done=given.done or lsns.get(partition) == given.lsn)
                for partition, given in position.given.items()
            }

    def get(self, key: Hashable, group_name: str, seeks: int) -> ReadPosition:
        """The position of a group.

        Args:
            seeks: the number of SEEKs of the group; reads from before the last one are void.

        Raises:
            WrongState: there is no position; the message has the reason.
        """
        position = self._positions.get(key)
        if position is None or position.reason:
            raise _no_position(
                group_name, "nothing has been read yet" if position is None else position.reason
            )
        if position.seeks != seeks:
            raise moved_by_seek(group_name)
        return position

    def partitions(self, key: Hashable) -> Set[int]:
        """The partitions of a position."""
        position = self._positions.get(key)
        return frozenset() if position is None else position.given.keys()

    def seeked(self, key: Hashable, seeks: int, mine: tuple[int, Set[int]] | None = None) -> None:
        """Keep the part of a position that was read after a SEEK in the reader's own transaction.

        Args:
            seeks: the number of SEEKs of the group now.
            mine: the read and its partitions that stay; None if the position has no other entries.
        """
        position = self._positions.get(key)
        if position is None:
            return
        position.seeks = seeks
        if mine is not None:
            read, partitions = mine
            position.given = {
                p: given for p, given in position.given.items() if given.read == read and p in partitions
            }
            if not position.given:
                self._positions[key] = ReadPosition(reason=MOVED)

    def lose(self, key: Hashable, partition: int) -> None:
        """Remove a partition that the reader no longer owns."""
        position = self._positions.get(key)
        if position is not None:
            position.given.pop(partition, None)

    def forget(self, key: Hashable) -> None:
        """Remove the position of a group."""
        self._positions.pop(key, None)

    def clear(self) -> None:
        """Remove all positions."""
        self._positions.clear()


def _no_position(group_name: str, reason: str) -> WrongState:
    return WrongState(
        f'consumer group "{group_name}" has no read position: {reason}',
        hint="Read with CONSUMER GROUP first, or give the positions: COMMIT OFFSETS AT '{...}'.",
    )
