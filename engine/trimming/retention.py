"""Retention: letting go of the oldest events, so that the log stays bounded.

One thread looks every `retention_interval_ms`. For each stream it works out up to which LSN its events
must go (by time, by bytes), always to the end of a transaction, and then does three things, each in
transactions of its own:

1. The edges move. What goes is counted first, without any lock; under the writer lock only the few
   rows that say so are written, and the buffers follow.
2. The log loses what is behind the edges of all of its table's streams, `STEP_LSNS` at a time, and what
   compaction takes (`compaction.py`). The log of an earlier version of the table that has lost all goes.
3. `commits` loses the rows that no log needs any more, but for the last one (counters come from it).

A pass that is killed anywhere leaves edges that are true and rows behind them that nobody reads; the
next pass takes them away. The log is only cut behind edges that are durable. The writer lock is let go
of after each step, so a writer waits for one step at most. Source: docs/design/engine.md, "Retention".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import duckdb

from ..asking import ask, ask_maybe
from ..buffers.buffer import StreamBuffer
from ..buffers.buffers import Buffers
from ..buffers.publisher import Publisher
from ..checks.row_sums import fold_statement
from ..clock import Clock
from ..duckdb_errors import translated
from ..errors import LockNotAvailable
from ..log.changes import views_anew
from ..log.compacted import drop_sql
from ..log.edges import BY_BYTES, BY_TIME, Edge, Edges, read_edges
from ..log.log import bare_name, side_log
from ..log.logs import facts
from ..log.several_logs import event_query
from ..offsets.offsets import Offsets
from ..offsets.parked import Parked, kept_behind_sql
from ..offsets.polls import Polls
from ..placement.holds import GIVEN, Holds
from ..placement.membership import Membership
from ..schema import SCHEMA
from ..sessions import Sessions
from ..streams import segments
from ..streams.captured import Captured, Source, TableVersion
from ..streams.catalog import Catalog
from ..streams.streams import Stream
from ..tally import Tally
from ..transactions.commits import Commits
from ..transactions.transactions import Transactions
from ..waiting import run
from .compaction import Compaction
from .copies_over import CopiesOver
from .steps import Steps

logger = logging.getLogger(__name__)

# LSNs, and rows of `commits`, that one step deletes: 3 to 16 ms under the writer lock, on two busy cores.
STEP_LSNS = 100_000
# LSNs in which the first retained event of a partition is looked for at first; doubled as needed.
WINDOW_LSNS = 16_384


class Retaining(Protocol):
    """What retention needs of an open database (`database.Database`)."""

    catalog: Catalog
    buffers: Buffers
    offsets: Offsets
    parked: Parked
    publisher: Publisher
    commits: Commits
    transactions: Transactions
    polls: Polls
    sessions: Sessions
    clock: Clock
    holds: Holds
    cluster: Membership
    unlike: dict[int, str]

    def has_fallen(self) -> bool:
        """Whether DuckDB has given the database up."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Up to which LSN a stream's events go, and why."""

    through_lsn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A group's committed LSN that an edge passes: so many of the partition's events are at or before it."""

    group_id: int
    partition: int
    lsn: int
    position: int


@dataclass(frozen=True, slots=True)
class Cut:
    """New edges of one stream, how many events go with them, and the groups that are left behind them.

    Args:
        before: the edges from which it was counted.
    """

    stream: Stream
    edges: Edges
    before: Edges
    passed: tuple[Passed, ...]
    events: int
    reason: str


class Retention:
    """The thread, and the steps of a pass; see the head of the file.

    Args:
        owner: under which number it waits for the writer lock, as a session does.
    """

    def __init__(
        self, database: Retaining, cursor: duckdb.DuckDBPyConnection, owner: int, interval_ms: int
    ) -> None:
        self._database = database
        self.steps = Steps(cursor, database.transactions, owner)
        self._interval_s = interval_ms / 1000
        self.released = Tally()  # events, of each stream that let go of them
        self.compaction = Compaction(database, self.steps, self._find_first)
        self.copies_over = CopiesOver(database.catalog, database.offsets, self.steps)
        self._passing = threading.Lock()  # one pass at a time has the cursor
        self._thread = threading.Thread(target=self._run, name="ducktail-retention", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after the step that it is at."""
        self.steps.stop.set()
        self.steps.cursor.interrupt()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self.steps.stop.wait(self._interval_s):
            try:
                self.look()
            except LockNotAvailable as busy:
                logger.info("retention waits for the next pass: %s", busy)
            except Exception:  # Whatever it is, the next pass tries again, and nothing is half done.
                if not self.steps.stop.is_set() and not self._database.has_fallen():
                    logger.exception("letting go of old events")

    def look(self) -> None:
        """One pass over all streams.

        Raises:
            LockNotAvailable: 55P03, a transaction holds the writer lock for too long. DucktailError:
            what DuckDB said.
        """
        with self._passing:
            try:
                # Bytes are counted when events are published.
                run(self._database.commits.wait_readable())
                failure: duckdb.Error | None = None
                for source in self._sources():
                    if self.steps.stop.is_set():
                        return
                    try:
                        self._look_at(source)
                    except duckdb.Error as error:
                        failure = failure or error  # One log that is damaged keeps no other from being cut.
                self._cut_commits()
                self._drop_copies()
                self.copies_over.look()
                for source in self._sources():
                    self._drop_emptied(source.table_id)
                if failure is not None:
                    raise failure
            except duckdb.Error as error:
                raise translated(error) from error

    def _look_at(self, source: Source) -> None:
        streams = self._streams(source.table_id)
        goals = {stream.stream_id: self._goal(stream) for stream in streams}
        for stream in streams:
            # After the goals: what is older than an event that goes, goes as well.
            self._cut_segments(stream)
        self._move_edges(source.table_id, goals)
        self._cut_log(source.table_id)
        present = self._source(source.table_id)
        if present is not None:
            self.compaction.look(present)

    def trim(self, stream: Stream, through_lsn: int, reason: str = BY_TIME) -> None:
        """Let one stream go of everything up to the transaction that `through_lsn` is in.

        Raises:
            LockNotAvailable: 55P03. DucktailError: what DuckDB said.
        """
        with self._passing:
            try:
                for table_id in stream.tables:
                    # The edge of a stream over several tables is one: it moves with the first of them.
                    self._move_edges(table_id, {stream.stream_id: Goal(through_lsn, reason)})
                    self._cut_log(table_id)
                    self._drop_emptied(table_id)
                self._cut_commits()
            except duckdb.Error as error:
                raise translated(error) from error

    def _sources(self) -> list[Source]:
        with self._database.catalog.mutex:
            return self._database.catalog.sources

    def _source(self, table_id: int) -> Source | None:
        return next((source for source in self._sources() if source.table_id == table_id), None)

    # What must go.

    def _goal(self, stream: Stream) -> Goal | None:
        """What goes of a stream now."""
        goals = []
        if stream.retention_us is not None:
            before_us = self._database.clock.now_us() - stream.retention_us
            row = ask(
                self.steps.cursor,
                f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.commits "
                f"WHERE commit_time < make_timestamptz({max(0, before_us)})",
            )
            goals.append(Goal(int(row[0]), BY_TIME))
        buffer = self._database.buffers.get(stream.stream_id)
        if stream.retention_bytes is not None and buffer is not None:
            with buffer.mutex:
                excess = buffer.retained_bytes.excess_through(stream.retention_bytes)
            if excess is not None:
                goals.append(Goal(excess, BY_BYTES))
        return max(goals, key=lambda goal: goal.through_lsn, default=None)

    # Edges.

    def _move_edges(self, table_id: int, goals: Mapping[int, Goal | None]) -> None:
        """Move the edges of one table's streams, all in one transaction."""
        cuts = [
            cut
            for stream in self._streams(table_id)
            if (goal := goals.get(stream.stream_id)) is not None
            and (cut := self._counted(stream, goal)) is not None
        ]
        if not cuts:
            return
        with self.steps.locked():
            # One may have been dropped since, and the table altered: its streams have other columns then.
            there = {stream.stream_id: stream for stream in self._streams(table_id)}
            present = [(cut, there.get(cut.stream.stream_id)) for cut in cuts if self._stands(cut)]
            self._write_edges([replace(cut, stream=stream) for cut, stream in present if stream is not None])
        for cut in cuts:
            self._find_first(cut.stream)

    def _stands(self, cut: Cut) -> bool:
        """Under the writer lock: whether no partition has come from another node, with an edge of its own,
        since it was counted. Where one has, the next pass counts again."""
        return read_edges(self.steps.cursor, cut.stream.stream_id) == cut.before

    def _streams(self, table_id: int) -> tuple[Stream, ...]:
        """The streams over a log, whole; what is over several is met with each of its tables."""
        source, catalog = self._source(table_id), self._database.catalog
        if source is None:
            return ()
        with catalog.mutex:
            found = (catalog.streams.get(own.key) if own.is_part else own for own in source.streams)
            return tuple(stream for stream in found if stream is not None)

    def _counted(self, stream: Stream, goal: Goal) -> Cut | None:
        """The edges that reach a goal; what goes is counted from the log, under no lock."""
        before = read_edges(self.steps.cursor, stream.stream_id)
        if goal.through_lsn <= max(before.through_lsn, stream.created_lsn):
            return None
        row = ask(
            self.steps.cursor,
            f"SELECT min(last_lsn) FROM {SCHEMA}.commits WHERE last_lsn >= {goal.through_lsn}",
        )
        through_lsn = int(row[0])
        if through_lsn > self._database.commits.last_lsn:
            return None  # Its COMMIT has not returned yet: the next pass sees.
        # The buffers must hold what is counted before they let go of it.
        run(self._database.publisher.wait_published(through_lsn))
        query = event_query(self._database.catalog, stream)
        query = query.between(before.through_lsn + 1, through_lsn)
        going = query.sql(f"lsn > {before.through_lsn} AND lsn <= {through_lsn}", "false")
        partitions = dict(before.partitions)
        came = self._database.catalog.segments.of(stream.stream_id)
        for number, last, count in self.steps.cursor.execute(
            f"SELECT partition, max(lsn), count(*) FROM ({going}) GROUP BY partition"
        ).fetchall():
            known = partitions.get(number, Edge(0, 0, goal.reason))
            segment = came.get(number)
            gone = known.events
            if segment is not None and known.through_lsn < segment.base_lsn:
                gone = segment.events  # All that came before is behind it.
            partitions[number] = Edge(last, gone + count, goal.reason)
        edges = Edges(through_lsn, partitions)
        events = sum(_lost(edges, number) - _lost(before, number) for number in partitions)
        passed = self._passed(stream, before, edges, going)
        return Cut(stream, edges, before, passed, events, goal.reason)

    def _passed(self, stream: Stream, before: Edges, after: Edges, going: str) -> tuple[Passed, ...]:
        """The groups whose committed LSN is among what goes, with their exact places there."""
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
        rows = self.steps.cursor.execute(
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
        # A refill must not read the edges from before, and put its buffers up after.
        with self._database.buffers.edges_lock:
            self.steps.transaction(statements)
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

    def _cut_segments(self, stream: Stream) -> None:
        """Let go of the oldest events that partitions brought from other nodes."""
        found = self._database.catalog.segments.of(stream.stream_id)
        buffer = self._database.buffers.get(stream.stream_id)
        if not found or buffer is None or (stream.retention_us is None and stream.retention_bytes is None):
            return
        now_us = self._database.clock.now_us()
        before_us, reason = 0, BY_TIME
        if stream.retention_us is not None:
            before_us = now_us - stream.retention_us
        if stream.retention_bytes is not None:
            with buffer.mutex:
                left = stream.retention_bytes - buffer.retained_bytes.total
            bytes_us = segments.beyond(self.steps.cursor, stream.stream_id, left)
            if bytes_us > before_us:
                before_us, reason = bytes_us, BY_BYTES
        going = [
            row
            for row in segments.older(self.steps.cursor, stream.stream_id, before_us)
            if self._keeps_segment(stream, row[0])
        ]
        if not going:
            return
        before = read_edges(self.steps.cursor, stream.stream_id)
        partitions = dict(before.partitions)
        passed = []
        for number, last, count in going:
            if last > _begins(before, number):
                partitions[number] = Edge(last, _lost(before, number) + count, reason)
                passed += self._passed_in_segment(stream, before, number, last)
        edges = Edges(before.through_lsn, partitions)
        events = sum(_lost(edges, number) - _lost(before, number) for number in partitions)
        cut = Cut(stream, edges, before, tuple(passed), events, reason)
        with self.steps.locked():
            if self._database.catalog.stream_by_id(stream.stream_id) is None or not self._stands(cut):
                return
            if not all(self._keeps_segment(stream, number) for number, *_ in going):
                return  # One is to come (back) by a placement that is in force since.
            self._write_edges([cut], segments.cut_sql(stream.stream_id, going))
        firsts = segments.first_lsns(self.steps.cursor, stream.stream_id)
        with buffer.mutex:
            for number, first in firsts.items():
                buffer.partitions[number].first_lsn = first

    def _keeps_segment(self, stream: Stream, number: int) -> bool:
        """Whether what a partition has brought is only ever let go of: it is here, or was given on. What is
        on its way here is not touched, as it is counted when all of it has come."""
        database = self._database
        hold = database.holds.of(stream.stream_id, number)
        if hold.here:
            return True
        return hold.state == GIVEN and number not in database.holds.missing(
            database.cluster.placement, stream
        )

    def _passed_in_segment(self, stream: Stream, before: Edges, number: int, through: int) -> list[Passed]:
        """The groups whose committed LSN is among what goes of a segment."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(stream.stream_id)
        found = []
        for group in groups:
            position = self._database.offsets.positions(group.group_id).get(number)
            if position is not None and _begins(before, number) <= position.lsn < through:
                count = segments.count_through(self.steps.cursor, stream.stream_id, number, position.lsn)
                place = _lost(before, number) + count
                found.append(Passed(group.group_id, number, position.lsn, place))
        return found

    def _kept_behind(self, cut: Cut) -> list[str]:
        """What keeps the events that stand behind parked keys of groups."""
        with self._database.catalog.mutex:
            groups = self._database.catalog.groups_of(cut.stream.stream_id)
        window = f"lsn > {cut.before.through_lsn} AND lsn <= {cut.edges.through_lsn}"
        query = event_query(self._database.catalog, cut.stream).between(
            cut.before.through_lsn + 1, cut.edges.through_lsn
        )
        events = query.whole_sql(window, window)
        logs = [(part.log, part.parked().log) for part in query.parts]
        return list(kept_behind_sql(groups, self._database.parked, events, logs))

    def _drop_copies(self) -> None:
        """Delete the copies of parked events that no group has any more."""
        sides = self.steps.cursor.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() "
            f"AND schema_name = '{SCHEMA}' "
            "AND regexp_matches(table_name, '^parked_([0-9]+_[0-9]+|topic_[0-9]+)$')"
        ).fetchall()
        if not sides:
            return
        names = [f'{SCHEMA}."{name}"' for (name,) in sides]
        unused = f"lsn NOT IN (SELECT lsn FROM {SCHEMA}.parked_events)"
        counts = " + ".join(f"(SELECT count(*) FROM {name} WHERE {unused})" for name in names)
        if not ask(self.steps.cursor, f"SELECT {counts}")[0]:
            return
        used = " UNION ALL ".join(f"SELECT txid FROM {name}" for name in names)
        with self.steps.locked():
            self.steps.transaction(
                [
                    *(f"DELETE FROM {name} WHERE {unused}" for name in names),
                    f"DELETE FROM {SCHEMA}.parked_commits WHERE txid NOT IN ({used})",
                ]
            )

    def _find_first(self, stream: Stream) -> None:
        """Look in the log for the first retained events of the partitions whose buffers cannot tell."""
        buffer = self._database.buffers.get(stream.stream_id)
        if buffer is None:
            return
        after, width = buffer.edge_lsn, WINDOW_LSNS
        while (missing := _without_first(buffer)) and after < buffer.end_lsn:
            window = f"lsn > {after} AND lsn <= {after + width}"
            query = event_query(self._database.catalog, stream).between(after + 1, after + width)
            sql = query.sql(window, "false")
            found = self.steps.cursor.execute(
                f"SELECT partition, min(lsn) FROM ({sql}) GROUP BY partition"
            ).fetchall()
            with buffer.mutex:
                for number, lsn in found:
                    if number in missing:
                        buffer.partitions[number].first_lsn = lsn
            after, width = after + width, 2 * width

    # The log and the commits.

    def _cut_log(self, table_id: int) -> None:
        """Delete what is behind the edges of all streams of a table."""
        while not self.steps.stop.is_set():
            row = self._first_behind(table_id)
            if row is None:
                return
            log, first, through = row
            with self.steps.locked():
                if not self._streams(table_id):
                    return  # Its last stream is dropped, and the log with it.
                source = self._source(table_id)
                kept = [fold_statement(source, through)] if isinstance(source, Captured) else []
                self.steps.transaction(
                    [*kept, f"DELETE FROM {log} WHERE lsn >= {first} AND lsn <= {through}"]
                )

    def _first_behind(self, table_id: int) -> tuple[str, int, int] | None:
        """The log, and the next range of its LSNs that nobody retains."""
        source = self._source(table_id)
        if source is None:
            return None
        edge = min(self._edge(stream) for stream in source.streams)
        for log in source.logs:
            # Rows are in LSN order; this only says where a step begins and ends.
            row = ask_maybe(self.steps.cursor, f"SELECT lsn FROM {log} LIMIT 1")
            if row is not None and int(row[0]) <= edge:
                return log, int(row[0]), min(edge, int(row[0]) + STEP_LSNS - 1)
        return None

    def _drop_emptied(self, table_id: int) -> None:
        """Drop the logs of earlier versions of a table of which nothing is kept any more."""
        while not self.steps.stop.is_set():
            source = self._source(table_id)
            if not isinstance(source, Captured):
                return
            with self._database.catalog.mutex:
                kept = self._database.catalog.copied_versions(source)
            older = (version for version in source.older if version.version not in kept)
            emptied = next((version for version in older if self._is_empty(version)), None)
            if emptied is None:
                if source.was_dropped and not source.older and self._is_empty(source.present):
                    self._drop_left(source)
                return
            with self.steps.locked():
                present = self._source(table_id)
                # A stream may have been made or dropped, the table altered; a PARK copies under the lock too.
                if not isinstance(present, Captured) or emptied not in present.older:
                    return
                if not self._is_empty(emptied):
                    return
                if emptied.version in self._database.catalog.copied_versions(present):
                    return
                self._drop_version(present, emptied)

    def _is_empty(self, version: TableVersion) -> bool:
        """Whether an earlier version's log has no rows, nor copies of parked ones."""
        log = version.table.log
        side = side_log(log)
        there = ask(
            self.steps.cursor,
            "SELECT count(*) FROM duckdb_tables() WHERE database_name = current_database() "
            f"AND schema_name = '{SCHEMA}' AND table_name = '{bare_name(side)}'",
        )
        copies = f" + (SELECT count(*) FROM {side})" if there[0] else ""
        return not ask(self.steps.cursor, f"SELECT (SELECT count(*) FROM {log}){copies}")[0]

    def _drop_version(self, captured: Captured, version: TableVersion) -> None:
        """Drop a version's log, under the writer lock, and make the views without it."""
        log, catalog = version.table.log, self._database.catalog
        after = replace(captured, older=tuple(v for v in captured.older if v.version != version.version))
        # Who makes buffers anew from the logs must not have it in mind.
        with self._database.buffers.edges_lock:
            self.steps.transaction(
                [
                    *views_anew(catalog, after),
                    f"DELETE FROM {SCHEMA}.schema_catalog WHERE table_id = {captured.table_id} "
                    f"AND version = {version.version}",
                    f"DROP TABLE {log}",
                    f"DROP TABLE IF EXISTS {side_log(log)}",
                ]
            )
            with catalog.mutex:
                catalog.put_table(captured, after)
        about = facts(table=after.shown_name, version=version.version)
        logger.info("the log of an earlier version is dropped", extra=about)

    def _drop_left(self, captured: Captured) -> None:
        """Drop what was left of a dropped table, as nothing that was told of it is retained any more."""
        catalog, number = self._database.catalog, captured.table_id
        with self.steps.locked():
            if self._source(number) != captured or not self._is_empty(captured.present):
                return
            with self._database.buffers.edges_lock:
                self.steps.transaction(
                    [
                        *views_anew(catalog, captured, without=captured),
                        *(
                            f"DELETE FROM {SCHEMA}.{name} WHERE table_id = {number}"
                            for name in ("table_catalog", "stream_tables", "schema_catalog", "row_sums")
                        ),
                        drop_sql(number),
                        f"DROP TABLE {captured.log}",
                        f"DROP TABLE IF EXISTS {side_log(captured.log)}",
                        f"DROP TABLE {captured.shape.qualified}",
                    ]
                )
                with catalog.mutex:
                    catalog.take_table(captured)
                    self._database.unlike.pop(number, None)
                self._database.transactions.snapshots.stream_dropped(number, last=True)
        logger.info("a dropped table is forgotten", extra=facts(table=captured.shown_name))

    def _edge(self, stream: Stream) -> int:
        buffer = self._database.buffers.get(stream.stream_id)
        return max(stream.created_lsn, 0 if buffer is None else buffer.edge_lsn)

    def _cut_commits(self) -> None:
        """Delete the rows of `commits` that no log needs, but for the last one."""
        while not self.steps.stop.is_set():
            with self.steps.locked():
                edge = self._needed_after()
                row = ask_maybe(self.steps.cursor, f"SELECT txid, last_lsn FROM {SCHEMA}.commits LIMIT 1")
                if row is None or int(row[1]) > edge:
                    return
                first = int(row[0])
                where = (
                    f"txid >= {first} AND txid < {first + STEP_LSNS} AND last_lsn <= {edge} "
                    f"AND txid < (SELECT max(txid) FROM {SCHEMA}.commits)"
                )
                gone = ask(self.steps.cursor, f"SELECT count(*) FROM {SCHEMA}.commits WHERE {where}")
                if not gone[0]:
                    return
                self.steps.transaction([f"DELETE FROM {SCHEMA}.commits WHERE {where}"])

    def _needed_after(self) -> int:
        """The LSN up to which no log has events: of captured tables that are not served, all are kept."""
        with self._database.catalog.mutex:
            streams = list(self._database.catalog.streams.values())
        row = ask(self.steps.cursor, f"SELECT count(*) FROM {SCHEMA}.stream_catalog")
        if int(row[0]) != len(streams):
            return 0
        return min(map(self._edge, streams), default=self._database.commits.last_lsn)


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
