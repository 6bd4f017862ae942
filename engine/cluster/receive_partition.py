"""Receiving of partitions from another node: first the events, then everything else at once.

Events arrive in pieces, each in a transaction of its own, and are not readable yet. Then one transaction,
under the writer lock, transfers the partitions to this node: the segments, the groups' committed LSNs, the
producers' sequences, the row of `partition_holds`. A crash before it leaves events that the next attempt
deletes; after it nothing remains to be done. This database's LSNs continue after those of the received
events, so that the LSNs of a partition only rise; if they are behind, the incarnation is raised. Source:
docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from ..buffers.publisher import Note
from ..catalog import segments
from ..catalog.segments import NOTHING_CAME, Segment
from ..catalog.streams import Group, Stream
from ..database import Database
from ..definitions.catalog_rows import commit_sql
from ..duck.cursors import ask, rolled_back_on_error
from ..errors import SerializationFailure, WrongState
from ..groups.offsets import Move, insert_sql
from ..log.deleted_ranges import BY_LOSS, Edge, Edges, read_edges
from ..placement.holds import GIVEN, HELD, Hold, listed, owned, rows_sql
from ..quoting import literal
from ..storage.incarnation import BITS, Hole, incarnation_base
from ..waiting import drive

LOCK_MS = 60_000
RELATION = "__ducktail_piece"
# Number of incarnations that LSNs skip if a node is lost. Each restore and each received partition may raise
# the incarnation by 1, so the lost node may have been some ahead; there are eight million.
LOST_INCARNATIONS = 1024
# The row of `ducktail.meta` with the lost nodes for which that was done.
LOST = "lost_nodes"


@dataclass(frozen=True, slots=True)
class Came:
    """A partition that has arrived except for the last step.

    Args:
        facts: the facts sent by the giving node.
        node: the giving node.
        count, first_lsn: number and first LSN of the received events.
    """

    facts: Mapping[str, Any]
    node: str
    count: int = 0
    first_lsn: int | None = None


class PartitionReceiver:
    """Receives partitions of one topic; its cursor is used by one thread.

    Args:
        owner_id: its number as an owner of the writer lock.
        epoch: the epoch of the placement that assigns the partitions to this node.
    """

    def __init__(self, database: Database, owner_id: int, stream: Stream, epoch: int) -> None:
        self._database = database
        self._owner_id = owner_id
        self._stream = stream
        self._epoch = epoch
        self._cursor = database.cursor(utc=True)

    def close(self) -> None:
        """Free the cursor."""
        self._cursor.close()

    def clear(self, partition: int) -> None:
        """Delete the events of an earlier attempt, before the first piece."""
        self._cursor.execute(
            f"DELETE FROM {segments.EVENTS} WHERE stream_id = {self._stream.stream_id} "
            f"AND partition = {partition}"
        ).fetchall()

    def put(self, partition: int, events: pa.Table) -> None:
        """Store a piece of a partition's events."""
        self._cursor.register(RELATION, events)
        try:
            self._cursor.execute(
                f"INSERT INTO {segments.EVENTS} SELECT {self._stream.stream_id}, {partition}, lsn, "
                f"commit_us, event, producer, sequence FROM {RELATION} ORDER BY lsn"
            ).fetchall()
        finally:
            self._cursor.unregister(RELATION)

    def own(self, partitions: Sequence[int], *, lost: bool = False) -> None:
        """Take over partitions that no node has, or that this node has given and no other has received.

        Args:
            lost: True if the file of their node is lost: they begin anew, and their former readers get a gap.

        Raises:
            SerializationFailure: another placement is in force.
        """
        self._locked(partial(self._begin_anew if lost else self._own, partitions))

    def finish(self, came: Mapping[int, Came]) -> None:
        """Take over partitions whose events have arrived.

        Raises:
            SerializationFailure: another placement is in force.
            WrongState: one of their groups is not defined here.
        """
        self._locked(partial(self._finish, came))

    def _locked(self, work: Any) -> None:
        database = self._database
        drive(database.transactions.lock_writer(self._owner_id, LOCK_MS))
        try:
            drive(database.commits.wait_readable())
            work()
        finally:
            database.transactions.writer_lock.release(self._owner_id)

    def _check(self, partitions: Sequence[int]) -> None:
        placement = self._database.cluster.placement
        there = self._database.catalog.stream_by_id(self._stream.stream_id)
        if placement.epoch != self._epoch or there is None or set(partitions) - set(owned(placement, there)):
            raise SerializationFailure("another placement is in force")

    def _own(self, partitions: Sequence[int]) -> None:
        self._check(partitions)
        database, stream_id = self._database, self._stream.stream_id
        holds = database.holds.filled(self._stream, self._held(partitions))
        before = database.catalog.segments.of(stream_id)
        since = database.commits.last_lsn
        # Earlier publications here have no events in them.
        found = {p: replace(before.get(p, NOTHING_CAME), since_lsn=since) for p in partitions}

        def show() -> None:
            database.catalog.segments.put(stream_id, found)

        self._commit([*segments.put_sql(stream_id, found), *rows_sql(stream_id, holds)], show, 0, 0)
        self._unseal(partitions)
        database.holds.put(stream_id, holds)

    def _begin_anew(self, partitions: Sequence[int]) -> None:
        """Begin partitions with lost events anew: their LSNs continue far above any LSN that the lost node
        can have assigned, and the range below is a gap.
        """
        self._check(partitions)
        database, stream_id = self._database, self._stream.stream_id
        holds = database.holds.filled(self._stream, self._held(partitions))
        since = last_lsn = database.commits.last_lsn
        lost = json.dumps(database.cluster.placement.lost)
        jump = None
        if not ask(
            self._cursor, f"SELECT count(*) FROM ducktail.meta WHERE name = '{LOST}' AND value = $1", [lost]
        )[0]:
            # Once for all topics.
            jump = (last_lsn >> BITS) + LOST_INCARNATIONS
            since = incarnation_base(jump)
        buffer = database.buffers.of(self._stream)
        with buffer.mutex:
            events = {p: buffer.partitions[p].events for p in partitions}
        found = {p: Segment(since, since, events[p], "") for p in partitions}
        before = read_edges(self._cursor, stream_id)
        edges = {p: Edge(since, events[p], BY_LOSS) for p in partitions}
        statements = [
            f"DELETE FROM {segments.EVENTS} WHERE stream_id = {stream_id} "
            f"AND partition IN ({listed(partitions)})",
            *segments.put_sql(stream_id, found),
            *Edges(before.through_lsn, {**before.partitions, **edges}).rows(stream_id),
            *rows_sql(stream_id, holds),
        ]
        if jump is not None:
            statements += [
                *_raised_sql(last_lsn, jump),
                f"DELETE FROM ducktail.meta WHERE name = '{LOST}'",
                f"INSERT INTO ducktail.meta VALUES ('{LOST}', {literal(lost)})",
            ]

        def show() -> None:
            if jump is not None:
                database.raised(jump, Hole(last_lsn, since))
            # Earlier reads of sessions here must not be committed any more.
            for group in database.catalog.groups_of(stream_id):
                database.offsets.seeked(group.group_id)
            database.catalog.segments.put(stream_id, found)
            database.buffers.remake(database.catalog.stream_by_id(stream_id) or self._stream, since)

        self._commit(statements, show, since, 0)
        self._unseal(partitions)
        database.holds.put(stream_id, holds)
        database.polls.look_again(stream_id)

    def _held(self, partitions: Sequence[int]) -> dict[int, Hold]:
        return dict.fromkeys(partitions, Hold(HELD, self._database.cluster.placement.local.name, self._epoch))

    def _unseal(self, partitions: Sequence[int]) -> None:
        groups = self._database.catalog.groups_of(self._stream.stream_id)
        self._database.offsets.unseal(partitions, [group.group_id for group in groups])

    def _finish(self, came: Mapping[int, Came]) -> None:
        self._check(list(came))
        database, stream_id = self._database, self._stream.stream_id
        end = max(one.facts["end"] for one in came.values())
        commit_us = max(one.facts["commit_us"] for one in came.values())
        last_lsn = database.commits.last_lsn
        jump = (end >> BITS) + 1 if last_lsn < end else None
        since = last_lsn if jump is None else incarnation_base(jump)
        found = {
            partition: Segment(
                one.facts["end"], since, one.facts["events"], one.node, dict(one.facts["producers"])
            )
            for partition, one in came.items()
        }
        holds = database.holds.filled(self._stream, self._held(list(came)))
        groups = self._groups(came)
        back = self._moved_meanwhile(came, groups)
        with database.offsets.writing():
            moves: list[Move] = []
            passed: list[tuple[int, int, int, int]] = []
            for partition, one in came.items():
                self._positions(partition, one, groups, moves, passed)
            statements = [
                *segments.put_sql(stream_id, found),
                *self._edges(came).rows(stream_id),
                *rows_sql(stream_id, holds),
                *([insert_sql(moves)] if moves else []),
            ]
            for group_id, partition, lsn, place in passed:
                statements += [
                    f"DELETE FROM ducktail.passed_positions WHERE group_id = {group_id} "
                    f"AND partition = {partition}",
                    f"INSERT INTO ducktail.passed_positions VALUES ({group_id}, {partition}, {lsn}, {place})",
                ]
            if jump is not None:
                statements += _raised_sql(last_lsn, jump)

            def show() -> None:
                if jump is not None:
                    database.raised(jump, Hole(last_lsn, since))
                database.offsets.applied(moves)
                for group_id in back:
                    database.offsets.seeked(group_id)
                for place in passed:
                    database.offsets.passed(*place)
                database.catalog.segments.put(stream_id, found)
                database.buffers.remake(database.catalog.stream_by_id(stream_id) or self._stream, since)

            self._commit(statements, show, since, commit_us)
        self._unseal(list(came))
        # It is served from now on.
        database.holds.put(stream_id, holds)
        database.polls.look_again(stream_id)

    def _groups(self, came: Mapping[int, Came]) -> dict[str, Group]:
        """The topic's groups by identity."""
        database = self._database
        known = database.catalog.groups_of(self._stream.stream_id)
        groups = {database.identities.of(group.group_id): group for group in known}
        for one in came.values():
            for identity, (name, *_) in one.facts["groups"].items():
                if identity not in groups:
                    raise WrongState(
                        f'consumer group "{name}" of topic "{self._stream.name}" is not defined on node '
                        f'"{database.cluster.placement.local.name}"',
                        hint="CREATE CONSUMER GROUP IF NOT EXISTS gives it to the nodes that lack it.",
                    )
        return groups

    def _moved_meanwhile(self, came: Mapping[int, Came], groups: Mapping[str, Group]) -> set[int]:
        """The groups that have moved in a partition that was here before.

        Reads of sessions here from before, for example before a SEEK, must not be committed any more.
        """
        database, found = self._database, set()
        for partition, one in came.items():
            if database.holds.of(self._stream.stream_id, partition).state != GIVEN:
                continue
            for identity, group in groups.items():
                told = one.facts["groups"].get(identity)
                known = database.offsets.positions(group.group_id).get(partition)
                if told is not None and known is not None and known.lsn != told[1]:
                    found.add(group.group_id)
        return found

    def _positions(
        self,
        partition: int,
        one: Came,
        groups: Mapping[str, Group],
        moves: list[Move],
        passed: list[tuple[int, int, int, int]],
    ) -> None:
        """Append the moves that set the groups' positions in a partition."""
        facts, offsets = one.facts, self._database.offsets
        for identity, group in groups.items():
            told = facts["groups"].get(identity)
            if told is None:
                # It was created while the partition was on its way.
                lsn = facts["end"] if group.start == "latest" else self._trimmed(one).through_lsn
                moves.append(offsets.move(group.group_id, {partition: lsn}, ""))
                continue
            _, lsn, at_us, by, place, fence = told
            if fence:
                # An older member must not commit here what it could not commit there.
                self._database.member_epochs.keep(group.group_id, {partition: fence})
                self._database.members.came(group.group_id, partition, fence)
            made = offsets.move(group.group_id, {partition: lsn}, by)
            moves.append(replace(made, committed_at_us=at_us))
            if place is not None:
                passed.append((group.group_id, partition, lsn, place))

    def _trimmed(self, one: Came) -> Edge:
        """The partition's edge: the one sent by its giver, or the start of the received events."""
        through, events, reason = one.facts["trimmed"]
        gone = one.facts["events"] - one.count
        if gone > events:
            # Retention continued while they arrived.
            through, events = (one.first_lsn or one.facts["end"] + 1) - 1, gone
        return Edge(through, events, reason or "time")

    def _edges(self, came: Mapping[int, Came]) -> Edges:
        before = read_edges(self._cursor, self._stream.stream_id)
        partitions = dict(before.partitions)
        for partition, one in came.items():
            partitions.pop(partition, None)
            edge = self._trimmed(one)
            if edge.events:
                partitions[partition] = edge
        return Edges(before.through_lsn, partitions)

    def _commit(self, statements: Sequence[str], show: Any, lsn: int, commit_us: int) -> None:
        """Run all of these statements or none, as a numbered transaction without events.

        Args:
            lsn: the LSN after which LSNs continue, if they are not beyond it.
            commit_us: the time from which commit times continue, likewise.
        """
        database, cursor = self._database, self._cursor
        commits = database.commits
        txid, last = commits.last_txid + 1, max(lsn, commits.last_lsn)
        now_us = max(commits.now_us(), commit_us)
        with rolled_back_on_error(cursor):
            cursor.execute("BEGIN")
            for statement in [*statements, commit_sql(txid, last, 0, now_us)]:
                cursor.execute(statement).fetchall()
            commits.commit_own(cursor, nullcontext(), (txid, last, now_us), show)
        # Readers may be waiting for events up to here.
        database.publisher.put(Note(txid, last + 1, last, now_us, {}))

    def counted(self, partition: int) -> tuple[int, int | None]:
        """The number of a partition's received events, and the first one's LSN."""
        count, first = ask(
            self._cursor,
            f"SELECT count(*), min(lsn) FROM {segments.EVENTS} WHERE stream_id = {self._stream.stream_id} "
            f"AND partition = {partition}",
        )
        return int(count), first


def _raised_sql(last_lsn: int, incarnation: int) -> list[str]:
    """The statements that begin a new incarnation."""
    hole = literal(f"{last_lsn} {incarnation_base(incarnation)}")
    return [
        f"INSERT INTO ducktail.meta VALUES ('hole', {hole})",
        f"UPDATE ducktail.meta SET value = '{incarnation}' WHERE name = 'incarnation'",
    ]
