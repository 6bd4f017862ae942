"""SELECTs of events from logs: what all of them have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import duckdb

from ..quoting import literal
from ..schema import SCHEMA
from ..streams.captured import Captured, Source
from ..streams.streams import Stream
from .log import EVENT_LAYOUT, EVENT_NAMES, NO_COMMIT, ROW_NAMES, Commit, Layout, side_log


@dataclass(frozen=True, slots=True)
class Again:
    """Parked events that a page has besides its own: predicates on the copies' rows.

    Args:
        events: the SELECT of the copies' events.
        where: which they are.
        last: SQL boolean that is true on those which are their transaction's last.
    """

    events: Events
    where: str
    last: str


@dataclass(frozen=True, slots=True)
class Events(ABC):
    """The SELECT of one stream's events, to be narrowed to a range of LSNs.

    `sql(where, last)` gives its text; `where` is a predicate on the log's columns, and `last`
    says how tx_last is told. `whole_sql` tells it from the transaction's end in this stream (a query of its
    own).
    """

    stream: Stream
    copies: bool = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def parts(self) -> tuple[LogEvents, ...]:
        """The same of each log that is read, oldest first; never empty."""

    @property
    @abstractmethod
    def lsns(self) -> str:
        """What can be selected from for the LSNs of all log rows: a table, or a query in brackets."""

    @property
    def sizes(self) -> str:
        """What can be selected from for each log row's `lsn` and about how many `bytes` its event takes."""
        rows = (f"SELECT lsn, ({part.bytes_sql})::BIGINT AS bytes FROM {part.log}" for part in self.parts)
        return f"({' UNION ALL '.join(rows)})"

    @abstractmethod
    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """The same of the logs alone that may have LSNs of this range, both ends included."""

    def of(self, tables: Container[int]) -> Events:
        """The same of the logs of these tables alone, of which it has one at least."""
        return self

    @property
    @abstractmethod
    def newest(self) -> Events:
        """The same of the logs alone that are written."""

    @abstractmethod
    def holding(self, lsns: Collection[int]) -> Events:
        """The same of the logs alone that may have one of these LSNs."""

    @abstractmethod
    def parked(self) -> Events:
        """The same over the copies of log rows that groups have parked."""

    @abstractmethod
    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """The events of the log rows that satisfy `where`, in no particular order.

        Args:
            where: predicate on the log's columns (lsn, txid).
            last: SQL boolean on l.lsn and l.txid that is true on a transaction's last event.
            commit: of all rows, where they are of one transaction that the caller knows; None asks
                `commits`.
            txids: the first and the last transaction that is looked for there, where that is known.
        """

    @abstractmethod
    def whole_sql(self, where: str, whole: str) -> str:
        """The same, tx_last told from the rows of `whole`, in which the last transaction is whole."""

    def window(self, cursor: duckdb.DuckDBPyConnection, after_lsn: int, through_lsn: int) -> Events:
        """The same of the logs alone that a read of a range needs, up to the end of its last transaction."""
        return self.between(after_lsn + 1, through_lsn)

    @property
    def commits(self) -> str:
        """The table of the transactions' lines."""
        return f"{SCHEMA}.{'parked_commits' if self.copies else 'commits'}"

    @property
    def layout(self) -> Layout:
        """The columns of an event."""
        return EVENT_LAYOUT

    def page_sql(
        self, where: str, whole: str, starts: Sequence[int], limit: int, again: Again | None = None
    ) -> str:
        """The first events after an LSN of each partition's own, in LSN order.

        Args:
            where: predicate on the log's columns.
            whole: the same, so wide that the last transaction of `where` is whole: for tx_last.
            starts: the LSN after which each partition is read, partition 0 first.
            limit: most rows.
            again: parked events that are given as well, wherever they stand.
        """
        if len(set(starts)) == 1:
            after = f"lsn > {starts[0]}"
        else:
            after = f"lsn > [{', '.join(map(str, starts))}][partition + 1]"
        sql = self.whole_sql(where, whole)
        if again is not None:
            given = again.events.sql(again.where, again.last)
            sql, after = f"SELECT * FROM ({sql}) WHERE {after} UNION ALL {given}", "true"
        return f"SELECT * FROM ({sql}) WHERE {after} ORDER BY lsn LIMIT {limit}"

    def view_sql(self, name: str, *, replaces: bool = False) -> str:
        """CREATE VIEW of all retained events under the stream's own name."""
        edge, create = self.edge_sql(), "CREATE OR REPLACE VIEW" if replaces else "CREATE VIEW"
        return f"{create} {name} AS {self.whole_sql(edge, edge)}"

    def edge_sql(self) -> str:
        """SQL boolean on a log row: the stream still retains it."""
        return (
            f"lsn > coalesce((SELECT max(trimmed_through_lsn) FROM {SCHEMA}.stream_edges "
            f"WHERE stream_id = {self.stream.stream_id}), 0)"
        )


@dataclass(frozen=True, slots=True)
class LogEvents(Events):
    """The same of one log."""

    @property
    @abstractmethod
    def source(self) -> Source:
        """What has the log."""

    @property
    @abstractmethod
    def bytes_sql(self) -> str:
        """About how many bytes the event of a log row takes: an expression on its columns."""

    @abstractmethod
    def rows(self, where: str) -> str:
        """The log rows that are events of the stream."""

    @abstractmethod
    def _values(self, annotation: str | None) -> Mapping[str, str]:
        """The event's own columns, on a row `l` of `rows`: partition, op, key and so on.

        Args:
            annotation: SQL of the transaction's; None where it surely has none.
        """

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events."""
        return (self,)

    @property
    def first_lsn(self) -> int:
        """From which LSN on the log may have rows: the first of its version's."""
        return self.source.first_lsn if isinstance(self.source, Captured) else 0

    @property
    def log(self) -> str:
        """The table that is read."""
        return side_log(self.source.log) if self.copies else self.source.log

    @property
    def lsns(self) -> str:
        """See Events."""
        return self.log

    def between(self, first_lsn: int, last_lsn: int) -> Self:
        """See Events."""
        return self

    @property
    def newest(self) -> Self:
        """See Events."""
        return self

    def holding(self, lsns: Collection[int]) -> Self:
        """See Events."""
        return self

    def parked(self) -> Self:
        """See Events."""
        return replace(self, copies=True)

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        annotation = annotation_sql(commit)
        query = f"SELECT {head_sql(self._values(annotation), last, commit)} FROM ({self.rows(where)}) AS l"
        if commit is not None:
            return query
        looked_for = "" if txids is None else f" AND c.txid BETWEEN {txids[0]} AND {txids[1]}"
        return f"{query} JOIN {self.commits} AS c ON c.txid = l.txid{looked_for}"

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events."""
        ends = f"SELECT max(lsn) FROM ({self.rows(whole)}) GROUP BY txid"
        return self.sql(where, f"(l.lsn IN ({ends}))")

    def rows_sql(self, where: str, annotation: str | None, *, inserts: bool) -> str:
        """ROW_NAMES of the events of one transaction, in no particular order.

        Args:
            where: predicate on the log's columns.
            annotation: SQL of the transaction's; None where it has none.
            inserts: all of the log rows are inserts.
        """
        head = head_sql(self._values(annotation), "", NO_COMMIT, ROW_NAMES)
        return f"SELECT {head} FROM ({self.rows(where)}) AS l"


def annotation_sql(commit: Commit | None) -> str | None:
    """SQL of the annotation of an event's transaction; None where it is known to have none."""
    if commit is None:
        return "c.annotation"
    return None if commit.annotation is None else literal(commit.annotation)


def head_sql(
    values: Mapping[str, str], last: str, commit: Commit | None, names: Sequence[str] = EVENT_NAMES
) -> str:
    """The columns of an event; see `Events.sql`."""
    first_lsn = str(commit.first_lsn) if commit else "c.first_lsn"
    values = {
        "lsn": "l.lsn",
        "txid": "l.txid",
        "commit_time": f"make_timestamptz({commit.commit_us})" if commit else "c.commit_time",
        "tx_seq": f"(l.lsn - {first_lsn})::INTEGER",
        "tx_last": last,
        **values,
    }
    return ", ".join(f"{values[name]} AS {name}" for name in names)
