"""Deletion of rows behind the edges: rows of logs and of `commits`, copies of parked events, whole logs.

These rows are no longer read. They are deleted in steps, and only behind durable edges; if a pass is killed,
the next one continues. Source: docs/design/engine.md, "Retention".
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ..catalog.captured_tables import Captured, TableVersion
from ..catalog.streams import Stream
from ..checks.row_sums import fold_statement
from ..duck.cursors import ask, ask_maybe
from ..log.deleted_ranges import drop_sql
from ..log.envelope_changes import views_anew
from ..log.log import bare_name, side_log
from ..parts import Parts
from ..schema import SCHEMA
from ..server_log import facts
from .steps import Steps

logger = logging.getLogger(__name__)

# Number of LSNs, and of rows of `commits`, that one step deletes: 3 to 16 ms under the writer lock, on two
# busy cores.
STEP_LSNS = 100_000


class RowsBehind:
    """The deletion of rows behind the edges; one pass at a time."""

    def __init__(self, database: Parts, steps: Steps) -> None:
        self._database = database
        self._steps = steps

    def cut_log(self, table_id: int) -> None:
        """Delete the rows behind the edges of all streams of a table."""
        while not self._steps.stop.is_set():
            row = self._first_behind(table_id)
            if row is None:
                return
            log, first, through = row
            with self._steps.locked():
                if not self._database.catalog.streams_over(table_id):
                    return  # Its last stream was dropped, and the log with it.
                source = self._database.catalog.source_by_id(table_id)
                kept = [fold_statement(source, through)] if isinstance(source, Captured) else []
                self._steps.transaction(
                    [*kept, f"DELETE FROM {log} WHERE lsn >= {first} AND lsn <= {through}"]
                )

    def _first_behind(self, table_id: int) -> tuple[str, int, int] | None:
        """The log and the next range of its LSNs that no stream retains."""
        source = self._database.catalog.source_by_id(table_id)
        if source is None:
            return None
        edge = min(self._edge(stream) for stream in source.streams)
        for log in source.logs:
            # Rows are in LSN order; this only finds the bounds of a step.
            row = ask_maybe(self._steps.cursor, f"SELECT lsn FROM {log} LIMIT 1")
            if row is not None and int(row[0]) <= edge:
                return log, int(row[0]), min(edge, int(row[0]) + STEP_LSNS - 1)
        return None

    def drop_emptied(self, table_id: int) -> None:
        """Drop the empty logs of earlier versions of a table."""
        while not self._steps.stop.is_set():
            source = self._database.catalog.source_by_id(table_id)
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
            with self._steps.locked():
                present = self._database.catalog.source_by_id(table_id)
                # A stream may have been created or dropped, or the table altered; a PARK also copies under
                # the lock.
                if not isinstance(present, Captured) or emptied not in present.older:
                    return
                if not self._is_empty(emptied):
                    return
                if emptied.version in self._database.catalog.copied_versions(present):
                    return
                self._drop_version(present, emptied)

    def _is_empty(self, version: TableVersion) -> bool:
        """True if an earlier version's log has neither rows nor copies of parked rows."""
        log = version.table.log
        side = side_log(log)
        there = ask(
            self._steps.cursor,
            "SELECT count(*) FROM system.main.duckdb_tables() WHERE database_name = current_database() "
            f"AND schema_name = '{SCHEMA}' AND table_name = '{bare_name(side)}'",
        )
        copies = f" + (SELECT count(*) FROM {side})" if there[0] else ""
        return not ask(self._steps.cursor, f"SELECT (SELECT count(*) FROM {log}){copies}")[0]

    def _drop_version(self, captured: Captured, version: TableVersion) -> None:
        """Drop a version's log and recreate the views without it, under the writer lock."""
        log, catalog = version.table.log, self._database.catalog
        after = replace(captured, older=tuple(v for v in captured.older if v.version != version.version))
        # A rebuild of buffers from the logs must not use it.
        with self._database.buffers.edges_lock:
            self._steps.transaction(
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
        """Drop the remains of a dropped table, once none of its events are retained."""
        catalog, number = self._database.catalog, captured.table_id
        with self._steps.locked():
            if catalog.source_by_id(number) != captured or not self._is_empty(captured.present):
                return
            with self._database.buffers.edges_lock:
                self._steps.transaction(
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

    def cut_commits(self) -> None:
        """Delete the rows of `commits` that no log needs, except the last one."""
        while not self._steps.stop.is_set():
            with self._steps.locked():
                edge = self._needed_after()
                row = ask_maybe(self._steps.cursor, f"SELECT txid, last_lsn FROM {SCHEMA}.commits LIMIT 1")
                if row is None or int(row[1]) > edge:
                    return
                first = int(row[0])
                where = (
                    f"txid >= {first} AND txid < {first + STEP_LSNS} AND last_lsn <= {edge} "
                    f"AND txid < (SELECT max(txid) FROM {SCHEMA}.commits)"
                )
                gone = ask(self._steps.cursor, f"SELECT count(*) FROM {SCHEMA}.commits WHERE {where}")
                if not gone[0]:
                    return
                self._steps.transaction([f"DELETE FROM {SCHEMA}.commits WHERE {where}"])

    def _needed_after(self) -> int:
        """The LSN up to which no log has events; 0 if some streams of the file are not served."""
        with self._database.catalog.mutex:
            streams = list(self._database.catalog.streams.values())
        row = ask(self._steps.cursor, f"SELECT count(*) FROM {SCHEMA}.stream_catalog")
        if int(row[0]) != len(streams):
            return 0
        return min(map(self._edge, streams), default=self._database.commits.last_lsn)

    def drop_copies(self) -> None:
        """Delete the copies of parked events that no group has any longer."""
        sides = self._steps.cursor.execute(
            "SELECT table_name FROM system.main.duckdb_tables() WHERE database_name = current_database() "
            f"AND schema_name = '{SCHEMA}' "
            "AND regexp_matches(table_name, '^parked_([0-9]+_[0-9]+|topic_[0-9]+)$')"
        ).fetchall()
        if not sides:
            return
        names = [f'{SCHEMA}."{name}"' for (name,) in sides]
        unused = f"lsn NOT IN (SELECT lsn FROM {SCHEMA}.parked_events)"
        counts = " + ".join(f"(SELECT count(*) FROM {name} WHERE {unused})" for name in names)
        if not ask(self._steps.cursor, f"SELECT {counts}")[0]:
            return
        used = " UNION ALL ".join(f"SELECT txid FROM {name}" for name in names)
        with self._steps.locked():
            self._steps.transaction(
                [
                    *(f"DELETE FROM {name} WHERE {unused}" for name in names),
                    f"DELETE FROM {SCHEMA}.parked_commits WHERE txid NOT IN ({used})",
                ]
            )
