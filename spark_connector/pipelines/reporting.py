"""The progress of a pipeline, reported to the server (`ducktail.pipelines`) and on the screen.

Spark calls a listener after each batch, in a thread of its own; the listener reports through the gateway. A
report that cannot be sent is mentioned once on standard error and stops nothing: the pipeline continues from
its checkpoint, not from its reports.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, TextIO

import psycopg
from psycopg import sql
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ..connection import Connection, connect, failure
from ..errors import ConnectorError
from ..options import Name, Options

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

# The least interval of reports: each is a row of the history, and a commit on the server.
REPORT_EVERY_S = 1.0
# Spark's text for no watermark.
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"


@dataclass(slots=True)
class Totals:
    """The counts of a run.

    Args:
        events: rows read, including those of earlier runs with the same checkpoint.
    """

    batch_id: int | None = None
    batches: int = 0
    run_events: int = 0
    events: int = 0


class Reporter(StreamingQueryListener):
    """Reports the batches of one query.

    Args:
        name: the pipeline's name.
        stream, group: the stream and the group whose lag is shown.
        screen: the output for the line of progress.
    """

    def __init__(
        self, options: Options, name: str, stream: Name | None, group: str | None, screen: TextIO = sys.stderr
    ) -> None:
        self._options = options
        self._name = name
        self._stream = stream
        self._group = group
        self._screen = screen
        self._mutex = threading.Lock()
        self._connection: Connection | None = None
        self._mentioned = False
        self._reported = 0.0
        self._query: str | None = None
        # Batches that ended before `begin`.
        self._early: list[StreamingQueryProgress] = []
        self._state: dict[str, Any] = {}
        self._began = time.monotonic()
        self._line = ""
        self.totals = Totals()

    # Called by Spark.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: called before the query's `start` returns."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a batch."""
        with self._mutex:
            if self._query is None:
                self._early.append(event.progress)
                return
        if str(event.progress.id) == self._query:
            self.progress(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the runner, which outlives this thread, calls `finish`."""

    # Called by the runner.

    def begin(self, query: str) -> None:
        """Set the query, and continue the counts of its checkpoint's last run."""
        with self._mutex:
            self._query = query
            self._state = {"query": query}
            query_sql = "SELECT state FROM ducktail.pipelines WHERE lower(pipeline_name) = lower(%s)"
            found = self._ask(query_sql, self._name)
            state = found if isinstance(found, dict) else json.loads(found) if found else {}
            if state.get("query") == query:
                self.totals.events = int(state.get("events") or 0)
                self._state = state
            self._send("running")
            early, self._early = self._early, []
        for progress in early:
            if str(progress.id) == query:
                self.progress(progress)

    def progress(self, progress: StreamingQueryProgress) -> None:
        """Count and report a batch, unless it has been counted."""
        with self._mutex:
            totals = self.totals
            if totals.batch_id is not None and progress.batchId <= totals.batch_id:
                return
            rows = max(0, progress.numInputRows)
            totals.events += rows
            totals.run_events += rows
            if rows:
                totals.batches += 1
                totals.batch_id = progress.batchId
            facts = _facts(progress, self._stream)
            if not rows:
                # Without new rows Spark gives the number of the next batch.
                del facts["batch_id"]
            for part, none in (("watermark", None), ("state_rows", 0)):
                # Spark omits it in a run without a batch: it has not changed.
                if facts[part] is None:
                    facts[part] = self._state.get(part, none)
            self._state |= facts
            now = time.monotonic()
            if now - self._reported >= REPORT_EVERY_S:
                self._send("running")
            self._show(progress)

    def finish(self, status: str, last: StreamingQueryProgress | None, error: str | None = None) -> str:
        """Report the end of the query.

        Returns:
            A summary of the run.
        """
        if last is not None:
            self.progress(last)
        with self._mutex:
            if error is not None:
                self._state["error"] = error[:2000]
            else:
                self._state.pop("error", None)
            self._send(status)
            lag = self._lag()
            self._clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        seconds = time.monotonic() - self._began
        totals = self.totals
        at = "" if totals.batch_id is None else f", last batch {totals.batch_id}"
        behind = "" if lag is None else f", {lag:,} events behind"
        return (
            f"{self._name}: {status}, {totals.run_events:,} events in {totals.batches:,} batches "
            f"and {seconds:.1f} s{at}{behind}"
        )

    def _send(self, status: str) -> None:
        self._state |= {"status": status, "events": self.totals.events}
        self._reported = time.monotonic()
        self._ask("REPORT PIPELINE %s AS %s", self._name, json.dumps(self._state))

    def _lag(self, ends: Mapping[int, int] | None = None) -> int | None:
        """The number of events that have not been read.

        Args:
            ends: by partition, the last LSN of the finished batch. The group follows it only with the next
                trigger, so the events between are subtracted.
        """
        if self._stream is None or self._group is None:
            return None
        rows = self._rows(
            "SELECT partition, committed_lsn, lag_events FROM ducktail.offsets "
            "WHERE lower(group_name) = lower(%s) AND lower(stream_name) = lower(%s) "
            "AND lower(schema_name) = lower(%s)",
            self._group, self._stream.name, self._stream.schema or "main",
        )  # fmt: skip
        if not rows:
            return None
        lag = sum(int(events) for _, _, events in rows)
        standing = {partition: committed for partition, committed, _ in rows}
        if ends is None or standing.keys() != ends.keys() or all(standing[at] >= ends[at] for at in ends):
            return lag
        between = sql.SQL(
            "SELECT count(*) FROM {} WHERE lsn > {} AND lsn <= {} AND lsn > [{}][partition + 1] "
            "AND lsn <= [{}][partition + 1]"
        ).format(
            self._stream.identifier, sql.Literal(min(standing.values())), sql.Literal(max(ends.values())),
            sql.SQL(", ").join(sql.Literal(standing[at]) for at in sorted(standing)),
            sql.SQL(", ").join(sql.Literal(ends[at]) for at in sorted(ends)),
        )  # fmt: skip
        [(done,)] = self._rows(between) or [(0,)]
        return max(0, lag - int(done))

    def _ask(self, query: LiteralString, *values: object) -> Any:
        """One value; None if there is none, or if the gateway cannot be asked, which is mentioned."""
        rows = self._rows(query, *values)
        return rows[0][0] if rows else None

    def _rows(self, query: LiteralString | sql.Composed, *values: object) -> list[tuple[Any, ...]] | None:
        """The rows of a query; None if the gateway cannot be asked, which is mentioned."""
        for fresh in (False, True):
            try:
                return self._asked(query, values, fresh)
            except ConnectorError as error:
                # After a restart of the gateway the connection is broken.
                if fresh or not error.retryable:
                    self._mention(error)
                    break
        return None

    def _asked(
        self, query: LiteralString | sql.Composed, values: tuple[object, ...], fresh: bool
    ) -> list[tuple[Any, ...]]:
        if self._connection is not None and (fresh or self._connection.closed):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = connect(self._options)
        try:
            cursor = self._connection.execute(query, values or None)
            rows = cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            raise failure(error, "reporting") from None
        self._mentioned = False
        return rows

    def _mention(self, error: ConnectorError) -> None:
        if not self._mentioned:
            self._clear()
            print(f"{self._name}: cannot report, and goes on: {error}", file=self._screen, flush=True)
        self._mentioned = True

    def _show(self, progress: StreamingQueryProgress) -> None:
        lag = self._lag(_ends(progress))
        behind = "" if lag is None else f"  {lag:,} behind"
        line = (
            f"{self._name}  batch {progress.batchId}  {self.totals.run_events:,} events  "
            f"{progress.processedRowsPerSecond:,.0f}/s{behind}"
        )
        if self._screen.isatty():
            print(f"\r{line:<{len(self._line)}}", end="", file=self._screen, flush=True)
            self._line = line
        elif progress.numInputRows > 0:
            print(line, file=self._screen, flush=True)

    def _clear(self) -> None:
        if self._line:
            print(file=self._screen)
            self._line = ""


def _facts(progress: StreamingQueryProgress, stream: Name | None) -> dict[str, Any]:
    """The report of a batch; its parts are described in docs/sql.md, "REPORT PIPELINE"."""
    offsets = {}
    for at, source in enumerate(progress.sources):
        name = str(stream) if stream is not None and len(progress.sources) == 1 else f"source {at}"
        offsets[name] = _parsed(source.endOffset)
    watermark = progress.eventTime.get("watermark")
    rate = progress.processedRowsPerSecond
    operators = progress.stateOperators
    return {
        "batch_id": progress.batchId,
        "run": str(progress.runId),
        "events_per_second": round(rate, 1) if rate == rate and rate >= 0 else None,
        "state_rows": sum(operator.numRowsTotal for operator in operators) if operators else None,
        "watermark": None if watermark == _NO_WATERMARK else watermark,
        "offsets": offsets,
        "batch_at": progress.timestamp,
    }


def _ends(progress: StreamingQueryProgress) -> dict[int, int] | None:
    """The last LSN of a batch by partition; None if its source is not one stream."""
    if len(progress.sources) != 1:
        return None
    found = _parsed(progress.sources[0].endOffset)
    if not isinstance(found, dict):
        return None
    return {int(key): int(lsn) for key, lsn in found.items() if key.isdecimal()}


def _parsed(text: Any) -> Any:
    """An offset parsed as JSON; another source's may be any text."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
