"""Fencing of groups' members at the owners of a topic's partitions, and the durable epochs.

A topic of several nodes has a home, which keeps the members and their partitions, by the rules of
`members.py`. It neither reads nor commits: nodes report each read and each commit before it begins and after
it ends. While one is under way its member holds the partitions, for `session_timeout` at most, so a node that
stops reporting blocks nobody.

An owner accepts requests under the epochs that the home has given out. It keeps the highest epoch that it has
seen of each partition, and refuses a request under an older one with SerializationFailure, whatever the state
of the home. It takes over a later epoch in this order: it refuses older epochs from then on; it waits for the
commits that it has accepted before; it makes the epoch durable; and only then it looks up the committed LSN
from which the member reads. Members do not time out at an owner: it learns that a member is gone when the
partition comes to the next one.

`MemberEpochs` keeps the highest epoch under which a member has come with a partition, over a restart. Rows
are only added, as they are rare: one for each partition that has come to another member. An opening deletes
all but the highest epoch of each partition. Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb

from ..duck.duckdb_errors import translated
from ..errors import SerializationFailure
from ..quoting import literal
from .member import Claim, GroupMembers, Member


@dataclass(slots=True, eq=False)
class Fence(GroupMembers):
    """A group whose partitions another coordinator assigns, as an owner of some of them knows it."""

    def timed_out(self, now_s: float) -> frozenset[str]:
        """None: the home decides."""
        return frozenset()

    def known_of(self, name: str, seeks: int) -> Mapping[int, int]:
        """The last LSNs that the member was given.

        Several connections of the member may read at once, and their reads may reach the home in another
        order than this node. The home decides how far a commit goes; this node checks that it has given as
        much.
        """
        return self.positions.lsns(name, seeks)

    def check(self, partition: int, claim: Claim) -> None:
        """Check a claim as a group's members do; one without a member has the epoch of the home."""
        if claim.member is not None:
            self.check_claim(partition, claim)
        elif self.epochs[partition] > claim.epoch:
            raise SerializationFailure(
                f'consumer group "{self.group.name}" has got members since',
                detail=f"Epoch {self.epochs[partition]} of it is known. Nothing was committed.",
                hint="Say MEMBER 'm' in the read and in the commit; SHOW MEMBERS lists them.",
            )

    def check_epochs(self, name: str, epochs: Mapping[int, int]) -> None:
        """Check that a member may take over partitions under these epochs.

        Raises:
            SerializationFailure: a later epoch of one is known, or another owner under the same one.
        """
        for partition, epoch in epochs.items():
            known, owner = self.epochs[partition], self.owners[partition]
            if epoch < known or (epoch == known and owner not in (None, name)):
                raise _stale(self, name, partition)

    def assign(self, member: Member, epochs: Mapping[int, int]) -> None:
        """Make a member the owner of partitions; members without a partition are forgotten."""
        for partition, epoch in epochs.items():
            if self.owners[partition] != member.name or self.epochs[partition] != epoch:
                self.lose(partition)
            self.owners[partition], self.epochs[partition] = member.name, epoch
            member.epoch = max(member.epoch, epoch)
        for other in [other for other in self.members if other not in self.owners]:
            del self.members[other]
            self.positions.forget(other)

    def lose(self, partition: int) -> None:
        """Take a partition out of its owner's read position."""
        owner = self.owners[partition]
        if owner is not None:
            self.positions.lose(owner, partition)


def _stale(shared: Fence, name: str, partition: int) -> SerializationFailure:
    return SerializationFailure(
        f'member {literal(name)} of consumer group "{shared.group.name}" does not own partition {partition}',
        # The home reads the detail (`epoch_told`): it learns of epochs that another home has assigned.
        detail=f"Epoch {shared.epochs[partition]} of it is known. Nothing was committed.",
        hint="Read again: what was not committed comes again, to who has its partition now.",
    )


def epoch_told(error: SerializationFailure) -> int | None:
    """The later epoch for which an owner has refused a request; None for another error."""
    words = (error.detail or "").split()
    return int(words[1]) if words[:1] == ["Epoch"] and words[1].isdigit() else None


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
