"""Events made ready by their own transaction, before its COMMIT.

While a reader waits for a table's events, a small transaction reads its own log rows back with the stream's
SELECT and encodes them. When DuckDB has committed, publishing is an append in memory: the reader does not
wait for a query, which is most of the cost of a round. The rows are identical to those of the publisher;
streams with a filter, which depends on the session's settings, are left to the publisher.

The events belong to the transaction: they are not readable before COMMIT has returned, and are discarded if
it fails. The publisher's thread makes the events of a small round in the same way, on its own cursor. Source:
docs/design/engine.md, "Publisher".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import duckdb

from ..catalog.catalog import Catalog
from ..catalog.streams import Stream
from ..log.log import COMMIT_NAMES, EVENT_NAMES, EVENT_TYPES, ROW_NAMES, Commit
from ..log.queries import EventQuery, Events, LogEvents, newest_query
from ..log.windows import log_bytes
from ..quoting import literal
from ..values import datarow

# Number of events of a transaction up to which they are made before COMMIT: its writer waits for that.
READY_EVENTS_MAX = 256
# Bytes of a stream's events up to which they are made: COMMIT must not run out of memory because of it.
READY_BYTES_MAX = 4 << 20
# Factor by which they may exceed earlier events without being measured.
LARGER = 8
# Number of streams on its tables up to which they are made (one over several counts for each): each is a
# query.
READY_STREAMS_MAX = 4
# Statements kept prepared on one session's cursor.
PREPARED_MAX = 32
# Transactions of a round up to which each is read alone, by a prepared query: two such queries cost as much
# as a newly planned one that joins all with their commits.
READY_COMMITS_MAX = 2
PREFIX = "__ducktail_ready_"

LSN, PARTITION = ROW_NAMES.index("lsn"), ROW_NAMES.index("partition")
# An event's columns, computed from those of its row and its commit.
PICK = itemgetter(*((*ROW_NAMES, *COMMIT_NAMES).index(name) for name in EVENT_NAMES))


@dataclass(frozen=True, slots=True)
class Ready:
    """The events of one transaction in one stream, in LSN order.

    Args:
        query: the query that made them; they are void if the stream has another query now.
        rows: text-format DataRows.
    """

    query: Events
    lsns: list[int]
    partitions: list[int]
    rows: list[bytes]


@dataclass(frozen=True, slots=True)
class Written:
    """The rows that a transaction has written in one log.

    Args:
        inserts: True if all rows were inserted.
    """

    first_lsn: int
    last_lsn: int
    inserts: bool

    @property
    def events(self) -> int:
        """The number of log rows."""
        return self.last_lsn - self.first_lsn + 1


@dataclass(slots=True)
class ReadyQueries:
    """The queries of small transactions' events, prepared once on each cursor that runs them."""

    _prepared: WeakKeyDictionary[duckdb.DuckDBPyConnection, dict[str, str]] = field(
        default_factory=WeakKeyDictionary
    )

    def ready(
        self,
        cursor: duckdb.DuckDBPyConnection,
        query: Events,
        written: Mapping[int, Written],
        commit: Commit,
    ) -> Ready:
        """A stream's events of one transaction that is visible to the cursor.

        Args:
            query: the query of the logs that the transaction has written.
            written: table id -> the rows that it has written there.

        Raises:
            duckdb.Error: the query fails.
        """
        found: list[tuple[Any, ...]] = []
        for part in query.parts:
            found += self._rows(cursor, part, written[part.source.table_id], commit)
        found.sort(key=itemgetter(LSN))
        lsns = [row[LSN] for row in found]
        # In the form of the publisher's SELECT; the encoder takes a time in microseconds.
        commits = [(commit.commit_us, lsn - commit.first_lsn, lsn == lsns[-1]) for lsn in lsns]
        events = [PICK(row + of_commit) for row, of_commit in zip(found, commits, strict=True)]
        rows = datarow.raw_messages(events, EVENT_TYPES)
        return Ready(query, lsns, [row[PARTITION] for row in found], rows)

    def _rows(
        self, cursor: duckdb.DuckDBPyConnection, query: LogEvents, written: Written, commit: Commit
    ) -> list[tuple[Any, ...]]:
        """The ROW_NAMES columns of its events in one log."""
        annotated = commit.annotation is not None
        kind = f"{'i' if written.inserts else ''}{'a' if annotated else ''}"
        name = f"{PREFIX}{query.stream.stream_id}_{query.source.table_id}_{kind}"
        where, annotation = "lsn BETWEEN $1 AND $2", "$3::VARCHAR" if annotated else None
        self._prepare(cursor, name, query.rows_sql(where, annotation, inserts=written.inserts))
        values = [str(written.first_lsn), str(written.last_lsn)]
        if commit.annotation is not None:
            values.append(literal(commit.annotation))
        return cursor.execute(f"EXECUTE {name}({', '.join(values)})").fetchall()

    def _prepare(self, cursor: duckdb.DuckDBPyConnection, name: str, text: str) -> None:
        prepared = self._prepared.setdefault(cursor, {})
        if prepared.get(name) == text:
            return
        if len(prepared) >= PREPARED_MAX:
            while prepared:
                # Forgotten first: a cancel in between must not leave an entry for a missing statement.
                other, _ = prepared.popitem()
                cursor.execute(f"DEALLOCATE {other}")
        prepared.pop(name, None)
        cursor.execute(f"PREPARE {name} AS {text}")
        prepared[name] = text


@dataclass(frozen=True, slots=True)
class ReadyMaker:
    """Makes events on the cursor of the session that wrote them.

    Args:
        is_awaited: returns True if a reader waits for a table's events, or has done so recently.
        is_quiet: returns True if there is a single writer: a contended lock must not be held for longer.
        event_bytes: returns the approximate size of a stream's events; 0 if unknown.
    """

    catalog: Catalog
    queries: ReadyQueries
    is_awaited: Callable[[int], bool]
    is_quiet: Callable[[], bool]
    event_bytes: Callable[[Stream], int]
    # Tables whose events did not fit in memory: their size is measured from then on.
    _large: set[int] = field(default_factory=set)

    def made(
        self, cursor: duckdb.DuckDBPyConnection, written: Mapping[int, Written], commit: Commit
    ) -> dict[int, Ready]:
        """The events of the transaction that is open on a cursor, by stream.

        Args:
            written: table id -> the rows that the transaction has written in its log.

        Returns:
            The events of all streams of these tables; empty if they are left to the publisher.

        Raises:
            duckdb.Error: a query fails; the transaction must be rolled back.
        """
        events = sum(span.events for span in written.values())
        if events > READY_EVENTS_MAX or not any(map(self.is_awaited, written)) or not self.is_quiet():
            return {}
        with self.catalog.mutex:
            streams = [s for s in self.catalog.streams.values() if s.is_on(written)]
            if len(streams) > READY_STREAMS_MAX:
                return {}
            queries = [newest_query(self.catalog, stream).of(written) for stream in streams]
        if sum(len(query.parts) for query in queries) > READY_STREAMS_MAX:
            return {}
        if not all(map(_is_same_anywhere, queries)):
            return {}
        if not all(self._is_light(cursor, query, written, events) for query in queries):
            return {}
        try:
            return {
                query.stream.stream_id: self.queries.ready(cursor, query, written, commit)
                for query in queries
            }
        except duckdb.OutOfMemoryException:
            self._large.update(written)
            raise

    def _is_light(
        self, cursor: duckdb.DuckDBPyConnection, query: Events, written: Mapping[int, Written], events: int
    ) -> bool:
        """True if a stream's events of the transaction are small; measured if that is uncertain."""
        if is_light(self.event_bytes(query.stream), events) and self._large.isdisjoint(written):
            return True
        spans = written.values()
        lsns = min(span.first_lsn for span in spans), max(span.last_lsn for span in spans)
        return log_bytes(cursor, query, *lsns) <= READY_BYTES_MAX


def is_light(event_bytes: int, events: int) -> bool:
    """True if this many events are small, provided that they are not much larger than earlier ones."""
    return events * event_bytes * LARGER <= READY_BYTES_MAX


def _is_same_anywhere(query: Events) -> bool:
    """True if a stream's events do not depend on the settings of the session that reads them."""
    return not isinstance(query, EventQuery) or query.stream.filter is None
