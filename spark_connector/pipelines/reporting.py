"""How far a pipeline is: for the server (`ducktail.pipelines`) and for who stands before the screen.

A listener is told by Spark of each batch, in a thread of its own; it reports through the gateway. That a
report cannot be sent is told once on standard error and stops nothing: what the pipeline goes on from is its
checkpoint.
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
from ..names import Name
from ..options import Options

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

# Between two reports of a query that is quick: each is a row of the history, and a commit on the server.
REPORT_EVERY_S = 1.0
# Spark says so where there is no watermark.
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"


@dataclass(slots=True)
class Totals:
    """What a run has done.

    Args:
        events: rows read, those of runs before on the same checkpoint among them.
    """

    batch_id: int | None = None
    batches: int = 0
    run_events: int = 0
    events: int = 0


class Reporter(StreamingQueryListener):
    """Reports the batches of one query.

    Args:
        name: the pipeline's.
        stream, group: whose lag is shown.
        screen: where the line of progress goes.
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
        self._told = False
        self._reported = 0.0
        self._query: str | None = None
        # Batches that were done before `begin`.
        self._early: list[StreamingQueryProgress] = []
        self._state: dict[str, Any] = {}
        self._began = time.monotonic()
        self._line = ""
        self.totals = Totals()

    # Called by Spark.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Called before the query's `start` returns."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done."""
        with self._mutex:
            if self._query is None:
                self._early.append(event.progress)
                return
        if str(event.progress.id) == self._query:
            self.progress(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """There was nothing to read for a while."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The end is told by who has started the query (`finish`), which outlives this thread."""

    # Called by who runs the query.

    def begin(self, query: str) -> None:
        """Once it is known which query it is: go on counting where the checkpoint's last run ended."""
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
        """Take in a batch; the same one a second time is passed over."""
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
                # Spark says the next batch's number where there was nothing for one.
                del facts["batch_id"]
            for part, none in (("watermark", None), ("state_rows", 0)):
                # Spark does not say it where a run had no batch: it is as it was.
                if facts[part] is None:
                    facts[part] = self._state.get(part, none)
            self._state |= facts
            now = time.monotonic()
            if now - self._reported >= REPORT_EVERY_S:
                self._send("running")
            self._show(progress)

    def finish(self, status: str, last: StreamingQueryProgress | None, error: str | None = None) -> str:
        """The query has ended: report it, and say what it did.

        Returns:
            A sentence for people.
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
        """How many events are not read yet.

        Args:
            ends: by partition, the last LSN of the batch that is done. Spark commits it and tells us, and
                the group follows with the next trigger; so the events between are taken off.
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
        """One value, or None; None as well where the gateway cannot be asked, which is told."""
        rows = self._rows(query, *values)
        return rows[0][0] if rows else None

    def _rows(self, query: LiteralString | sql.Composed, *values: object) -> list[tuple[Any, ...]] | None:
        """What the gateway answers; None where it cannot be asked, which is told."""
        for fresh in (False, True):
            try:
                return self._asked(query, values, fresh)
            except ConnectorError as error:
                # A gateway that has restarted is there, and our connection to it is not.
                if fresh or not error.retryable:
                    self._tell(error)
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
        self._told = False
        return rows

    def _tell(self, error: ConnectorError) -> None:
        if not self._told:
            self._clear()
            print(f"{self._name}: cannot report, and goes on: {error}", file=self._screen, flush=True)
        self._told = True

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
    """What of a batch is reported; the parts are those of docs/sql.md, "REPORT PIPELINE"."""
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
    """The last LSN of a batch by partition; None where it is not of one stream of ours."""
    if len(progress.sources) != 1:
        return None
    found = _parsed(progress.sources[0].endOffset)
    if not isinstance(found, dict):
        return None
    return {int(key): int(lsn) for key, lsn in found.items() if key.isdecimal()}


def _parsed(text: Any) -> Any:
    """An offset: JSON of ours; another source's may be any text."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
