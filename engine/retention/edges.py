"""New edges of streams: the removed events are counted, recorded, and reported to buffers and groups.

Events to be removed are counted first, from the log and without any lock; under the writer lock only the few
rows of the edges are written, and the buffers follow. A group whose committed LSN is passed keeps its exact
position.
Source: docs/design/engine.md, "Retention".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..buffers.buffer import StreamBuffer
from ..catalog import segments
from ..catalog.streams import Stream
from ..counter import ThreadSafeCounter
from ..duck.cursors import ask
from ..groups.parked import kept_behind_sql
from ..log.deleted_ranges import BY_BYTES, BY_TIME, Edge, Edges, read_edges
from ..log.queries import event_query
from ..parts import Parts
from ..placement.holds import GIVEN
from ..schema import SCHEMA
from ..server_log import facts
from ..waiting import drive
from .steps import Steps

logger = logging.getLogger(__name__)

# LSNs in which the first retained event of a partition is searched first; doubled as needed.
WINDOW_LSNS = 16_384


@dataclass(frozen=True, slots=True)
class Goal:
    """The LSN up to which a stream's events are removed, and the reason."""

    through_lsn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A group's committed LSN passed by an edge, and the number of the partition's events up to it."""

    group_id: int
    partition: int
    lsn: int
    position: int


@dataclass(frozen=True, slots=True)
class Cut:
    """New edges of one stream, the numbers of removed events, and the groups that are passed by them.

    Args:
        before: the edges from which the events were counted.
    """

    stream: Stream
    edges: Edges
    before: Edges
    passed: tuple[Passed, ...]
    events: int
    reason: str


class Cuts:
    """The moves of edges; one pass at a time."""

    def __init__(self, database: Parts, steps: Steps) -> None:
        self._database = database
        self._steps = steps
        self.released = ThreadSafeCounter()  # removed events, summed over the streams

    def move(self, table_id: int, goals: Mapping[int, Goal | None]) -> None:
        """Move the edges of one table's streams, all in one transaction."""
        cuts = [
            cut
            for stream in self._database.catalog.streams_over(table_id)
            if (goal := goals.get(stream.stream_id)) is not None
            and (cut := self._counted(stream, goal)) is not None
        ]
        if not cuts:
            return
        with self._steps.locked():
            # A stream may have been dropped since, or the table altered: its streams then have other columns.
            there = {stream.stream_id: stream for stream in self._database.catalog.streams_over(table_id)}
            present = [(cut, there.get(cut.stream.stream_id)) for cut in cuts if self._stands(cut)]
            self._write_edges([replace(cut, stream=stream) for cut, stream in present if stream is not None])
        for cut in cuts:
            self.find_first(cut.stream)

    def _stands(self, cut: Cut) -> bool:
        """True if no partition has come from another node, with its own edge, since the count.

        The caller holds the writer lock. If one has come, the next pass counts again.
        """
        return read_edges(self._steps.cursor, cut.stream.stream_id) == cut.before

    def _counted(self, stream: Stream, goal: Goal) -> Cut | None:
        """The edges that reach a goal, with the removed events counted from the log without a lock."""
        before = read_edges(self._steps.cursor, stream.stream_id)
        if goal.through_lsn <= max(before.through_lsn, stream.created_lsn):
            return None
        row = ask(
            self._steps.cursor,
            f"SELECT min(last_lsn) FROM {SCHEMA}.commits WHERE last_lsn >= {goal.through_lsn}",
        )
        through_lsn = int(row[0])
        if through_lsn > self._database.commits.last_lsn:
            return None  # Its COMMIT has not returned yet: the next pass decides.
        # The buffers must hold the counted events before they drop them.
        drive(self._database.publisher.wait_published(through_lsn))
        query = event_query(self._database.catalog, stream)
        query = query.between(before.through_lsn + 1, through_lsn)
        going = query.sql(f"lsn > {before.through_lsn} AND lsn <= {through_lsn}", "false")
        partitions = dict(before.partitions)
        came = self._database.catalog.segments.of(stream.stream_id)
        for number, last, count in self._steps.cursor.execute(
            f"SELECT partition, max(lsn), count(*) FROM ({going}) GROUP BY partition"
        ).fetchall():
            known = partitions.get(number, Edge(0, 0, goal.reason))
            segment = came.get(number)
            gone = known.events
            if segment is not None and known.through_lsn < segment.base_lsn:
                gone = segment.events  # All earlier events are before it.
            partitions[number] = Edge(last, gone + count, goal.reason)
        edges = Edges(through_lsn, partitions)
        events = sum(_lost(edges, number) - _lost(before, number) for number in partitions)
        passed = self._passed(stream, before, edges, going)
        return Cut(stream, edges, before, passed, events, goal.reason)

    def _passed(self, stream: Stream, before: Edges, after: Edges, going: str) -> tuple[Passed, ...]:
        """The groups whose committed LSN is among the removed events, with their exact positions."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(stream.stream_id)
        behind = [
            (group.group_id, number, position.lsn)
            for group in groups
            for number, position in self._database.offsets.positions(group.group_id).items()
            if _begins(before, number) <= position.lsn < _begins(after, number)
        ]
        if not behind:
            return ()
        places = ", ".join(f"({group_id}, {number}, {lsn})" for group_id, number, lsn in behind)
        rows = self._steps.cursor.execute(
            f"SELECT g, p, any_value(until), count(e.lsn) FROM (VALUES {places}) AS behind (g, p, until) "
            f"LEFT JOIN ({going}) AS e ON e.partition = p AND e.lsn <= until GROUP BY g, p"
        ).fetchall()
        return tuple(
            Passed(group_id, number, lsn, _lost(before, number) + count)
            for group_id, number, lsn, count in rows
        )

    def _write_edges(self, cuts: Sequence[Cut], more: Sequence[str] = ()) -> None:
        statements = list(more)
        for cut in cuts:
            statements += self._kept_behind(cut)
            statements += cut.edges.rows(cut.stream.stream_id)
            for passed in cut.passed:
                statements += [
                    f"DELETE FROM {SCHEMA}.passed_positions WHERE group_id = {passed.group_id} "
                    f"AND partition = {passed.partition}",
                    f"INSERT INTO {SCHEMA}.passed_positions VALUES ({passed.group_id}, "
                    f"{passed.partition}, {passed.lsn}, {passed.position})",
                ]
        # A refill must not read the old edges and install its buffers afterwards.
        with self._database.buffers.edges_lock:
            self._steps.transaction(statements)
            for cut in cuts:
                self._database.buffers[cut.stream.stream_id].trim(cut.edges)
        for cut in cuts:
            stream = cut.stream
            if cut.events:
                self.released.add(cut.events)
                about = facts(
                    stream=f"{stream.schema}.{stream.name}", events=cut.events, reason=cut.reason,
                    through_lsn=cut.edges.through_lsn, groups_passed=len(cut.passed),
                )  # fmt: skip
                logger.info("events are no longer retained", extra=about)
            for passed in cut.passed:
                self._database.offsets.passed(passed.group_id, passed.partition, passed.lsn, passed.position)

    def _kept_behind(self, cut: Cut) -> list[str]:
        """The conditions that keep the events behind parked keys of groups."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(cut.stream.stream_id)
        window = f"lsn > {cut.before.through_lsn} AND lsn <= {cut.edges.through_lsn}"
        query = event_query(self._database.catalog, cut.stream).between(
            cut.before.through_lsn + 1, cut.edges.through_lsn
        )
        events = query.whole_sql(window, window)
        logs = [(part.log, part.parked().log) for part in query.parts]
        return list(kept_behind_sql(groups, self._database.parked, events, logs))

    def cut_segments(self, stream: Stream) -> None:
        """Remove the oldest events that partitions brought from other nodes."""
        found = self._database.catalog.segments.of(stream.stream_id)
        buffer = self._database.buffers.get(stream.stream_id)
        if not found or buffer is None or (stream.retention_us is None and stream.retention_bytes is None):
            return
        before_us, reason = 0, BY_TIME
        if stream.retention_us is not None:
            before_us = self._database.commits.times.expired_before_us(stream.retention_us)
        if stream.retention_bytes is not None:
            with buffer.mutex:
                left = stream.retention_bytes - buffer.retained_bytes.total
            bytes_us = segments.beyond(self._steps.cursor, stream.stream_id, left)
            if bytes_us > before_us:
                before_us, reason = bytes_us, BY_BYTES
        going = [
            row
            for row in segments.older(self._steps.cursor, stream.stream_id, before_us)
            if self._keeps_segment(stream, row[0])
        ]
        if not going:
            return
        before = read_edges(self._steps.cursor, stream.stream_id)
        partitions = dict(before.partitions)
        passed = []
        for number, last, count in going:
            if last > _begins(before, number):
                partitions[number] = Edge(last, _lost(before, number) + count, reason)
                passed += self._passed_in_segment(stream, before, number, last)
        edges = Edges(before.through_lsn, partitions)
        events = sum(_lost(edges, number) - _lost(before, number) for number in partitions)
        cut = Cut(stream, edges, before, tuple(passed), events, reason)
        with self._steps.locked():
            if self._database.catalog.stream_by_id(stream.stream_id) is None or not self._stands(cut):
                return
            if not all(self._keeps_segment(stream, number) for number, *_ in going):
                return  # By a newer placement the partition will come (back) here.
            self._write_edges([cut], segments.cut_sql(stream.stream_id, going))
        firsts = segments.first_lsns(self._steps.cursor, stream.stream_id)
        with buffer.mutex:
            for number, first in firsts.items():
                buffer.partitions[number].first_lsn = first

    def _keeps_segment(self, stream: Stream, number: int) -> bool:
        """True if a partition's segment is complete: the partition is here, or was given to another node.

        A segment on its way here is not touched, because it is counted when all of it has arrived.
        """
        database = self._database
        hold = database.holds.of(stream.stream_id, number)
        if hold.here:
            return True
        return hold.state == GIVEN and number not in database.holds.missing(
            database.cluster.placement, stream
        )

    def _passed_in_segment(self, stream: Stream, before: Edges, number: int, through: int) -> list[Passed]:
        """The groups whose committed LSN is among the removed events of a segment."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(stream.stream_id)
        found = []
        for group in groups:
            position = self._database.offsets.positions(group.group_id).get(number)
            if position is not None and _begins(before, number) <= position.lsn < through:
                count = segments.count_through(self._steps.cursor, stream.stream_id, number, position.lsn)
                place = _lost(before, number) + count
                found.append(Passed(group.group_id, number, position.lsn, place))
        return found

    def find_first(self, stream: Stream) -> None:
        """Find the first retained events in the log for partitions whose buffers do not know them."""
        buffer = self._database.buffers.get(stream.stream_id)
        if buffer is None:
            return
        after, width = buffer.edge_lsn, WINDOW_LSNS
        while (missing := _without_first(buffer)) and after < buffer.end_lsn:
            window = f"lsn > {after} AND lsn <= {after + width}"
            query = event_query(self._database.catalog, stream).between(after + 1, after + width)
            sql = query.sql(window, "false")
            found = self._steps.cursor.execute(
                f"SELECT partition, min(lsn) FROM ({sql}) GROUP BY partition"
            ).fetchall()
            with buffer.mutex:
                for number, lsn in found:
                    if number in missing:
                        buffer.partitions[number].first_lsn = lsn
            after, width = after + width, 2 * width


def _begins(edges: Edges, number: int) -> int:
    edge = edges.partitions.get(number)
    return 0 if edge is None else edge.through_lsn


def _lost(edges: Edges, number: int) -> int:
    edge = edges.partitions.get(number)
    return 0 if edge is None else edge.events


def _without_first(buffer: StreamBuffer) -> set[int]:
    with buffer.mutex:
        return {
            number
            for number, partition in enumerate(buffer.partitions)
            if partition.retained and partition.first_lsn is None
        }
