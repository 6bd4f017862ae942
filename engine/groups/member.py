"""Members of a group: their holds, claims and commits, and the durable epochs of their partitions.

The rules are in `members.py`, which alone changes a `Member` and a `MemberHold`, under its mutex.

`MemberEpochs` keeps the highest epoch under which a member has come with a partition, over a restart. Rows
are only added, as they are rare: one for each partition that has come to another member. An opening deletes
all but the highest epoch of each partition. Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import duckdb

from ..duck.duckdb_errors import translated


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to commit a partition.

    Args:
        member: the member that must own the partition; None: a commit without MEMBER, while the group has no
            members.
        epoch: the epoch since which it must own it.
    """

    member: str | None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A live member of a group. A name that comes back after a time-out is a new member.

    Args:
        user: the user of its last read or commit.
        epoch: the group's epoch when the member last got or lost a partition.
        heard_s: time of its last heartbeat, by the clock that never goes back.
        given: partition -> last LSN that was given and is not committed, and the number of the read.
        open: partition -> number of reads and transactions that hold it.
        untold: at a topic's home, its reads whose outcome has not been reported, by number.
    """

    name: str
    user: str
    epoch: int
    joined_us: int
    heard_us: int
    heard_s: float
    last_read_us: int = 0
    last_commit_us: int = 0
    given: dict[int, tuple[int, int]] = field(default_factory=dict)
    open: Counter[int] = field(default_factory=Counter)
    untold: dict[int, MemberHold] = field(default_factory=dict)

    def holds(self, partition: int) -> bool:
        """True if a hand-over of the partition would take given events or a hold from the member."""
        return partition in self.given or self.open[partition] > 0


@dataclass(slots=True, eq=False)
class MemberHold:
    """Partitions that stay with a member during a read, or a transaction that has read or commits them.

    Args:
        epochs: partition -> the epoch under which the member owns it.
        read: the read's number among those of all members.
    """

    group_id: int
    member: Member
    epochs: dict[int, int]
    read: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class CommitRight:
    """A commit of offsets, and the right to it.

    Args:
        lsns: partition -> LSN.
        began: of a read position, partition -> committed LSN from which it was read.
        claims: partition -> the claim to it.
        hold: the member's hold for the commit, to be ended after it.
        again: of a read position, the released events that the read gave; None: a commit by number.
    """

    lsns: Mapping[int, int]
    began: Mapping[int, int]
    claims: Mapping[int, Claim]
    hold: MemberHold | None = None
    again: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class Pin:
    """Partitions of a group that no other member gets until a commit of them is over."""

    group_id: int
    claims: Mapping[int, Claim]


@dataclass(frozen=True, slots=True)
class Shown:
    """A member as the views show it; times in microseconds since 1970, 0 for never."""

    name: str
    user: str
    epoch: int
    partitions: tuple[int, ...]
    state: str
    joined_us: int
    heard_us: int
    last_read_us: int
    last_commit_us: int


TABLE = "ducktail.member_epochs"


class MemberEpochs:
    """The durable epochs of members' partitions; safe to use from several threads.

    Args:
        cursor: a cursor of the engine's own, used here only.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._mutex = threading.Lock()
        self._kept: dict[int, dict[int, int]] = {}
        rows = cursor.execute(f"SELECT group_id, partition, epoch FROM {TABLE}").fetchall()
        for group_id, partition, epoch in rows:
            of_group = self._kept.setdefault(group_id, {})
            of_group[partition] = max(epoch, of_group.get(partition, 0))
        if len(rows) > sum(map(len, self._kept.values())):
            cursor.execute(
                f"DELETE FROM {TABLE} AS a WHERE EXISTS (FROM {TABLE} AS b WHERE b.group_id = a.group_id "
                "AND b.partition = a.partition AND b.epoch > a.epoch)"
            ).fetchall()

    def of(self, group_id: int) -> Mapping[int, int]:
        """Partition -> highest durable epoch in a group."""
        with self._mutex:
            return dict(self._kept.get(group_id, {}))

    def keep(self, group_id: int, epochs: Mapping[int, int]) -> None:
        """Write later epochs; they are durable when this returns. Runs DuckDB.

        Raises:
            DucktailError: DuckDB cannot write them.
        """
        with self._mutex:
            rows = ", ".join(f"({group_id}, {partition}, {epoch})" for partition, epoch in epochs.items())
            try:
                self._cursor.execute(f"INSERT INTO {TABLE} VALUES {rows}").fetchall()
            except duckdb.Error as error:
                raise translated(error) from error
            kept = self._kept.setdefault(group_id, {})
            for partition, epoch in epochs.items():
                kept[partition] = max(epoch, kept.get(partition, 0))
