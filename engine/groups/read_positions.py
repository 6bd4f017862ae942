"""Read positions: what the latest read of a stream by a group has given, per partition.

COMMIT OFFSETS without AT commits it. It belongs to a session, or to a member of the group, whatever its
connections: each has a `ReadPositions`, and the rules are the same. It is set when a read's answer is
complete, voided by an error, a cancel and the ROLLBACK of the transaction that read, and says the last
LSN that was given and the committed LSN from which the read began.

Several reads of one reader may be under way. Of a partition what was given last counts. A read that
fails takes with it what it has given itself and what stood there when it began, as it was to be the
latest; what others gave meanwhile stays. Source: docs/sql.md, "Committing".
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field, replace

from ..errors import WrongState
from .offsets import moved_by_seek

# Why there is no position after a SEEK.
MOVED = "SEEK has moved the group"
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Given:
    """One partition of a read position.

    Args:
        lsn: the last LSN given.
        began: the committed LSN from which the read began.
        read: which read it was.
        at: when it was given, in the order of all reads and what they gave.
        done: its reader has committed it.
    """

    lsn: int
    began: int
    read: int
    at: int
    done: bool = False


@dataclass(slots=True)
class ReadPosition:
    """Where reads of one group stand.

    Args:
        seeks: how often SEEK had moved the group then.
        reason: why there is none, for the error; "" while there is one.
        released: partition -> the released events that the read gave (see `parked.py`).
    """

    given: dict[int, Given] = field(default_factory=dict)
    seeks: int = 0
    reason: str = ""
    released: dict[int, frozenset[int]] = field(default_factory=dict)

    @property
    def lsns(self) -> dict[int, int]:
        """partition -> last LSN given."""
        return {partition: given.lsn for partition, given in self.given.items()}

    @property
    def began(self) -> dict[int, int]:
        """partition -> committed LSN from which that read began."""
        return {partition: given.began for partition, given in self.given.items()}

    @property
    def again(self) -> frozenset[int]:
        """The released events that were given."""
        return _NOTHING.union(*(lsns for number, lsns in self.released.items() if number in self.given))

    def left(self) -> ReadPosition:
        """Without the partitions that its reader has committed; all of it, where that leaves nothing.

        So a commit is of what has been read since, and one of nothing new is told so.
        """
        left = {partition: given for partition, given in self.given.items() if not given.done}
        return ReadPosition(left or self.given, self.seeks, self.reason, self.released)

    def copy(self) -> ReadPosition:
        """The same, for who does not hold its owner's lock."""
        return ReadPosition(dict(self.given), self.seeks, self.reason, dict(self.released))


class ReadPositions:
    """The read positions of a session, or of members; who has them guards them.

    Args:
        first: the number of the first read.
    """

    def __init__(self, first: int = 1) -> None:
        self._positions: dict[Hashable, ReadPosition] = {}
        self._numbers = itertools.count(first)

    def begin(self) -> int:
        """A read begins: its number."""
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
        """A read has given everything up to `lsns` in the partitions that it scanned.

        Args:
            again: partition -> the released events that it gave.
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
        """There is none now, because of `reason`: the failure of a read, or what ends them all (None)."""
        stays = {}
        position = self._positions.get(key)
        if position is not None and read is not None:
            stays = {p: given for p, given in position.given.items() if given.read != read < given.at}
        if position is not None and stays:
            position.given = stays
        else:
            self._positions[key] = ReadPosition(reason=reason)

    def lsns(self, key: Hashable, seeks: int | None = None) -> dict[int, int]:
        """Partition -> last LSN given; empty without a position.

        Args:
            seeks: how often SEEK had moved the group then; None: it does not matter.
        """
        position = self._positions.get(key)
        if position is None or position.reason or seeks not in (None, position.seeks):
            return {}
        return position.lsns

    def released(self, key: Hashable) -> dict[int, frozenset[int]]:
        """Partition -> the released events that the position's reads gave; empty without a position."""
        position = self._positions.get(key)
        if position is None or position.reason:
            return {}
        return {number: lsns for number, lsns in position.released.items() if number in position.given}

    def set_aside(self, key: Hashable, lsn: int) -> None:
        """A released event is parked again: once it is released again, it has not been given yet."""
        position = self._positions.get(key)
        if position is not None and position.released:
            position.released = {number: lsns - {lsn} for number, lsns in position.released.items()}

    def committed(self, key: Hashable, lsns: Mapping[int, int]) -> None:
        """The reader's own commit of these LSNs stands."""
        position = self._positions.get(key)
        if position is not None:
            position.given = {
                partition: replace(given, done=given.done or lsns.get(partition) == given.lsn)
                for partition, given in position.given.items()
            }

    def get(self, key: Hashable, group_name: str, seeks: int) -> ReadPosition:
        """The position of a group.

        Args:
            seeks: how often SEEK has moved the group; what was read before the last one is void.

        Raises:
            WrongState: 55000, there is none, and why.
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
        """Of which partitions there is a position."""
        position = self._positions.get(key)
        return frozenset() if position is None else position.given.keys()

    def seeked(self, key: Hashable, seeks: int, mine: tuple[int, Set[int]] | None = None) -> None:
        """SEEK has moved the group in the reader's own transaction: what was read after it stands.

        Args:
            mine: that read, and its partitions; None where the position has nothing else.
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
        """A partition is no longer the reader's."""
        position = self._positions.get(key)
        if position is not None:
            position.given.pop(partition, None)

    def forget(self, key: Hashable) -> None:
        """There is nothing to remember of a group any more."""
        self._positions.pop(key, None)

    def clear(self) -> None:
        """Forget them all."""
        self._positions.clear()


def _no_position(group_name: str, reason: str) -> WrongState:
    return WrongState(
        f'consumer group "{group_name}" has no read position: {reason}',
        hint="Read with CONSUMER GROUP first, or give the positions: COMMIT OFFSETS AT '{...}'.",
    )
