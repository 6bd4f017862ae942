"""What members are made of: who is one, what he holds, by what right he commits, and what is shown of him.

The rules are in `members.py`, which alone changes a `Member` and a `Hold`, under its mutex.

The highest epoch under which a member has come with a partition, by group: kept over a restart.

Rows are only added, as they come seldom: one a partition that has come to another member. An opening leaves
the highest of each. Source: docs/design/cluster.md, "Members".
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
    """By what right a partition is committed.

    Args:
        member: whose it must be; None is a commit without MEMBER, while the group has no members.
        epoch: since when it must have been his.
    """

    member: str | None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A live member of a group. The same name that comes back after a time-out is another one.

    Args:
        user: who read or committed last.
        epoch: of the group, when the member last got or lost a partition.
        heard_s: when it was heard from, by the clock that never goes back.
        given: partition -> last LSN that was given and is not committed, and by which read.
        open: partition -> how many reads and transactions hold it.
        untold: at a topic's home, its reads of which is not known what has become of them, by number.
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
        """Whether it has something there that a hand-over would take from it."""
        return partition in self.given or self.open[partition] > 0


@dataclass(slots=True, eq=False)
class MemberHold:
    """A read under way, or what an open transaction has read or commits: these partitions stay.

    Args:
        epochs: partition -> the epoch under which the member has it.
        read: the read's number among those of all members.
    """

    group_id: int
    member: Member
    epochs: dict[int, int]
    read: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class CommitRight:
    """What is to be committed.

    Args:
        lsns: partition -> LSN.
        began: of a read position, partition -> committed LSN from which it was read.
        claims: by what right, for each partition.
        hold: what the member holds for it, to be ended.
        again: of a read position, the released events that the read gave; None: it is by number.
    """

    lsns: Mapping[int, int]
    began: Mapping[int, int]
    claims: Mapping[int, Claim]
    hold: MemberHold | None = None
    again: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class Pin:
    """Partitions of a group that nobody else gets until a commit of theirs is over."""

    group_id: int
    claims: Mapping[int, Claim]


@dataclass(frozen=True, slots=True)
class Shown:
    """A member as the views tell of it; times in microseconds since 1970, 0 for never."""

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
    """See the head of the file; safe to use from several threads.

    Args:
        cursor: one of the engine's own; it is used here only.
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
        """Partition -> epoch."""
        with self._mutex:
            return dict(self._kept.get(group_id, {}))

    def keep(self, group_id: int, epochs: Mapping[int, int]) -> None:
        """Keep later ones; they are durable when this returns. Runs DuckDB.

        Raises:
            DucktailError: they cannot be written.
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
