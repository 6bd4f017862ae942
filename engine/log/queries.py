"""SELECTs of events from logs: of one version of a table, of a topic, of all logs of a stream.

A stream has several logs where its table has had several versions, or where it is on several tables. Log
rows that are kept outside the log (parked events, a group's whole copy of a table) are read by the same
SELECT, from a `SideTable`. All queries of events have the same columns; `event_query` and `newest_query` give
the one of a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import duckdb

from ..catalog.captured_tables import Captured, Source, TopicLog
from ..catalog.catalog import Catalog
from ..catalog.copies import Copy
from ..catalog.streams import Stream
from ..duck.table_shape import Column
from ..errors import WrongState
from ..partitioning import hash_sql
from ..quoting import ident, literal, shown_name
from ..schema import SCHEMA
from ..values.json_images import PLAIN_BYTES, object_sql, size_sql
from .log import (
    ANNOTATION,
    EVENT_LAYOUT,
    EVENT_NAMES,
    HEAD_BYTES,
    HIDDEN,
    NO_COMMIT,
    ROW_NAMES,
    Commit,
    Layout,
    end_of_transaction,
    schema_json,
    shown_table,
    side_log,
)
from .topic_rows import with_members


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

    @property
    @abstractmethod
    def parts(self) -> tuple[LogEvents, ...]:
        """The same of each log that is read, oldest first; never empty."""

    @property
    @abstractmethod
    def lsns(self) -> str:
        """The relation of the LSNs of all log rows: a table, or a query in brackets."""

    @property
    def sizes(self) -> str:
        """The relation of each log row's `lsn` and about how many `bytes` its event takes."""
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
class SideTable:
    """A table of log rows that are kept outside the log: what groups have parked, or a whole copy.

    Args:
        name: the table.
        commits: the relation of its rows' transactions.
        first_lsn: its first row's; None where it is the log's.
        where: SQL boolean on a row that is read; None where that is as in the log.
    """

    name: str
    commits: str
    first_lsn: int | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class LogEvents(Events):
    """The same of one log, or of rows in its form that are kept outside of it (`side`)."""

    side: SideTable | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def source(self) -> Source:
        """The owner of the log."""

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
        if self.side is not None and self.side.first_lsn is not None:
            return self.side.first_lsn
        return self.source.first_lsn if isinstance(self.source, Captured) else 0

    @property
    def log(self) -> str:
        """The table that is read."""
        return self.source.log if self.side is None else self.side.name

    @property
    def commits(self) -> str:
        """The relation of the transactions' lines."""
        return f"{SCHEMA}.commits" if self.side is None else self.side.commits

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
        return replace(self, side=SideTable(side_log(self.source.log), f"{SCHEMA}.parked_commits"))

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


@dataclass(frozen=True, slots=True)
class EventQuery(LogEvents):
    """The events of a stream on a table, in one version of the table.

    Args:
        next_txid: the transaction that made the next version, whose events here are not its last; 0 for none.
    """

    captured: Captured
    next_txid: int = field(default=0, kw_only=True)

    @property
    def source(self) -> Source:
        """The captured table, as it is in this version."""
        return self.captured

    @property
    def has_schema_events(self) -> bool:
        """True if the log begins with the events that say how the table became so."""
        return self.captured.version > 1

    def _values(self, annotation: str | None) -> Mapping[str, str]:
        shape = self.captured.shape
        return {
            "partition": self.partition_sql(),
            "op": "l.event_op",
            "table_name": literal(shown_table(shape)),
            "key": self._key(),
            "before": self._before(),
            "after": self._after(),
            "schema_version": str(self.captured.version),
            "headers": _table_headers(annotation),
        }

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events."""
        if not self.next_txid:
            return super(EventQuery, self).whole_sql(where, whole)
        # The next version begins with a schema event of that transaction, which every stream has.
        ends = f"SELECT max(lsn) FROM ({self.rows(whole)}) GROUP BY txid"
        return self.sql(where, f"(l.lsn IN ({ends}) AND l.txid <> {self.next_txid})")

    @property
    def bytes_sql(self) -> str:
        """See LogEvents: both images, whatever of them the stream shows."""
        plain, parts = HEAD_BYTES, []
        for place, column in enumerate(self.captured.shape.stored, 1):
            plain += len(column.name) + PLAIN_BYTES
            sizes = (size_sql(f"{side}{place}", column.type) for side in ("o", "n"))
            parts += [f"coalesce({size}, 0)" for size in sizes if size is not None]
        return " + ".join([str(plain), *parts])

    def inserts_sql(self, where: str, last: str, commit: Commit) -> str:
        """The same as `sql` of log rows that are all inserts, of a stream that shows all.

        DuckDB takes half the time to plan it, which is most of what a small commit costs the publisher.
        """
        assert self.stream.shows_all
        head = head_sql(self._inserted(annotation_sql(commit)), last, commit)
        return f"SELECT {head} FROM {self.log} AS l WHERE {self._mine(where)}"

    def rows_sql(self, where: str, annotation: str | None, *, inserts: bool) -> str:
        """See Events."""
        if not (inserts and self.stream.shows_all):
            return super(EventQuery, self).rows_sql(where, annotation, inserts=inserts)
        head = head_sql(self._inserted(annotation), "", NO_COMMIT, ROW_NAMES)
        return f"SELECT {head} FROM {self.log} AS l WHERE {self._mine(where)}"

    def _inserted(self, annotation: str | None) -> Mapping[str, str]:
        """`_values` of log rows that are inserts."""
        key = self.captured.shape.primary_key
        return {
            **self._values(annotation),
            "op": "'insert'",
            "key": self._image("n", key) if key else "NULL::JSON",
            "before": "NULL::JSON",
            "after": self._image("n", self.stream.columns),
        }

    def _mine(self, where: str) -> str:
        # A row of another stream's initial snapshot is passed over; what is older than this
        # stream is the older streams' alone.
        if self.side is not None and self.side.where is not None:
            return f"({where}) AND ({self.side.where})"
        stream = self.stream
        mine = (
            f"({where}) AND lsn > {stream.created_lsn} "
            f"AND (stream_id IS NULL OR stream_id = {stream.stream_id})"
        )
        # There are as many of these as the table's widest stream has partitions.
        return f"{mine} AND (op <> 'x' OR key_hash < {stream.partitions})" if self.has_schema_events else mine

    def rows(self, where: str) -> str:
        """The log rows that are events of the stream, with `event_op` worked out."""
        stream = self.stream
        base = f"SELECT * FROM {self.log} WHERE {self._mine(where)}"
        if stream.filter is None:
            schema = "WHEN 'x' THEN 'schema' " if self.has_schema_events else ""
            op = (
                "CASE op WHEN 'i' THEN 'insert' WHEN 'u' THEN 'update' WHEN 'd' THEN 'delete' "
                f"{schema}ELSE 'snapshot' END"
            )
            columns = "*" if self._has_pairs else "* REPLACE (NULL::INTEGER AS key_change)"
            rows = f"SELECT {columns}, {op} AS event_op FROM ({base})"
        else:
            rows = self._filtered(base)
        shown = [*sorted(stream.operations), "snapshot", *(["schema"] if self.has_schema_events else [])]
        if stream.shows_all:
            return rows
        wanted = ", ".join(literal(op) for op in shown)
        return f"SELECT * FROM ({rows}) WHERE event_op IN ({wanted})"

    @property
    def _has_pairs(self) -> bool:
        """True if the stream carries both events of a changed key."""
        return {"insert", "delete"} <= self.stream.operations

    def _filtered(self, base: str) -> str:
        """`base` with the predicate taken on the row before and the row after.

        Two plain projections: each gives the image's columns their own names for the predicate,
        while everything of the log travels under names that no user's column can have.
        """
        stored = self.captured.shape.stored
        places = range(1, len(stored) + 1)
        fixed = ("lsn", "txid", "op", "stream_id", "rid", "key_hash", "key_change")
        names = (*fixed, *(f"o{p}" for p in places), *(f"n{p}" for p in places))
        away = ", ".join(f"{name} AS {HIDDEN}{name}" for name in names)
        keep = ", ".join(f"{HIDDEN}{name}" for name in names)
        back = ", ".join(f"{HIDDEN}{name} AS {name}" for name in names)
        placed = list(zip(places, stored, strict=True))
        new = ", ".join(f"{c.collated(f'n{p}')} AS {ident(c.name)}" for p, c in placed)
        old = ", ".join(f"{c.collated(f'{HIDDEN}o{p}')} AS {ident(c.name)}" for p, c in placed)
        # A row on which the predicate fails (a cast of what is no number) does not match: an error
        # here would stop every reader of the stream at that event, for ever.
        predicate = f"coalesce(TRY(({self.stream.filter})::BOOLEAN), false)"
        name = ident(self.captured.shape.name)
        after = f"SELECT {away}, {new} FROM ({base})"
        after = f"SELECT {keep}, {predicate} AS {HIDDEN}after FROM ({after}) AS {name}"
        before = f"SELECT {keep}, {HIDDEN}after, {old} FROM ({after})"
        before = f"SELECT {keep}, {HIDDEN}after, {predicate} AS {HIDDEN}before FROM ({before}) AS {name}"
        schema = "WHEN 'x' THEN 'schema' " if self.has_schema_events else ""
        op = (
            f"CASE op {schema}WHEN 'i' THEN CASE WHEN a THEN 'insert' END "
            "WHEN 's' THEN CASE WHEN a THEN 'snapshot' END "
            "WHEN 'd' THEN CASE WHEN b THEN 'delete' END "
            "ELSE CASE WHEN a AND b THEN 'update' WHEN a THEN 'insert' WHEN b THEN 'delete' END END"
        )
        # Of a changed key the stream has both events where both rows match, and its filter judges each
        # of them by itself: the log's row of either has both images.
        both = "a AND b" if self._has_pairs else "false"
        pair = f"CASE WHEN {both} THEN key_change END AS key_change"
        return (
            f"SELECT * FROM (SELECT * REPLACE ({pair}), {op} AS event_op FROM (SELECT {back}, "
            f"{HIDDEN}after AS a, {HIDDEN}before AS b FROM ({before}))) WHERE event_op IS NOT NULL"
        )

    def partition_sql(self) -> str:
        """The event's partition, from the log row `l`."""
        stream, shape = self.stream, self.captured.shape
        if stream.partitions == 1:
            return "0::INTEGER"
        if not stream.partition_by:
            # Of several tables those without a key: their order is one of all their rows.
            return "(CASE l.op WHEN 'x' THEN l.key_hash ELSE 0 END)::INTEGER"
        if stream.partition_by == shape.primary_key:
            # A schema event's own partition stands there, and is less than their number.
            return f"(l.key_hash % {stream.partitions})::INTEGER"
        old = hash_sql([(f"l.o{p}", c.type) for p, c in self._placed(stream.partition_by)])
        new = hash_sql([(f"l.n{p}", c.type) for p, c in self._placed(stream.partition_by)])
        schema = "WHEN l.op = 'x' THEN l.key_hash " if self.has_schema_events else ""
        return f"((CASE {schema}WHEN l.op = 'd' THEN {old} ELSE {new} END) % {stream.partitions})::INTEGER"

    def _placed(self, names: Sequence[str]) -> list[tuple[int, Column]]:
        """The places in the log of these columns, in the order of `names`."""
        stored = self.captured.shape.stored
        by_name = {column.name: (place, column) for place, column in enumerate(stored, 1)}
        lost = next((name for name in names if name not in by_name), None)
        if lost is not None:
            raise lost_column(self.captured, self.stream, lost)
        return [by_name[name] for name in names]

    def _image(self, side: str, names: Sequence[str]) -> str:
        return object_sql([(c.name, f"l.{side}{p}", c.type) for p, c in self._placed(names)])

    def _key(self) -> str:
        key = self.captured.shape.primary_key
        if not key:
            return "NULL::JSON"
        placed = self._placed(key)
        # One object over CASE-picked values: half the text of two objects under one CASE.
        image = object_sql(
            [(c.name, f"(CASE WHEN l.op = 'd' THEN l.o{p} ELSE l.n{p} END)", c.type) for p, c in placed]
        )
        return f"CASE WHEN l.op <> 'x' THEN {image} END" if self.has_schema_events else image

    def _before(self) -> str:
        stream, shape = self.stream, self.captured.shape
        if stream.before == "none":
            return "NULL::JSON"
        names = stream.columns if stream.before == "full" else shape.primary_key
        image = self._image("o", names)
        return f"CASE WHEN l.event_op IN ('update', 'delete') THEN {image} END"

    def _after(self) -> str:
        image = self._image("n", self.stream.columns)
        if not self.has_schema_events:
            return f"CASE WHEN l.event_op <> 'delete' THEN {image} END"
        schema = literal(schema_json(self.captured.shape, self.stream.columns, self.captured.renamed_from))
        return f"CASE l.event_op WHEN 'schema' THEN {schema}::JSON WHEN 'delete' THEN NULL ELSE {image} END"


def _table_headers(annotation: str | None) -> str:
    """SQL of the headers of a table's event."""
    if annotation is None:
        return "CASE WHEN l.key_change IS NOT NULL THEN ('{\"key_change\":' || l.key_change || '}')::JSON END"
    members = f"'\"{ANNOTATION}\":' || {annotation}, '\"key_change\":' || l.key_change"
    return (
        f"CASE WHEN {annotation} IS NOT NULL OR l.key_change IS NOT NULL "
        f"THEN ('{{' || concat_ws(',', {members}) || '}}')::JSON END"
    )


def lost_column(captured: Captured, stream: Stream, name: str) -> WrongState:
    """The error where a stream's column has gone, or was renamed, while no ducktail had the file open."""
    return WrongState(
        f'table "{captured.shape.name}" has no column "{name}", which stream "{stream.name}" carries',
        detail="It was altered past ducktail.",
        hint="DROP STREAM and CREATE STREAM ... WITH (snapshot = 'initial').",
    )


def _topic_headers(annotation: str) -> str:
    """SQL of a publisher's headers with the annotation of his transaction."""
    merged = with_members({ANNOTATION: annotation}, "l.headers")
    return f"CASE WHEN {annotation} IS NULL THEN l.headers ELSE ({merged})::JSON END"


@dataclass(frozen=True, slots=True)
class TopicQuery(LogEvents):
    """The events of a topic, which its log holds ready but for what `commits` adds.

    Args:
        bases: by partition, the LSN up to which rows of the log are passed over: its segment has the events
            up to there (`segments.py`). Empty where no partition has come from another node.
    """

    bases: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def source(self) -> Source:
        """The topic's log."""
        return TopicLog(self.stream)

    @property
    def bytes_sql(self) -> str:
        """See LogEvents."""
        sizes = (f"coalesce(strlen({name}), 0)" for name in ("payload", "key", "headers"))
        return " + ".join([str(HEAD_BYTES), *sizes])

    def rows(self, where: str) -> str:
        """The log rows."""
        behind = f" AND lsn > [{', '.join(map(str, self.bases))}][partition + 1]" if self.bases else ""
        return f"SELECT * FROM {self.log} WHERE ({where}){behind}"

    def _values(self, annotation: str | None) -> Mapping[str, str]:
        name = f"{shown_name(self.stream.schema)}.{shown_name(self.stream.name)}"
        return {
            "partition": "l.partition",
            "op": "'publish'",
            "table_name": literal(name),
            "key": "l.key",
            "before": "NULL::JSON",
            "after": "l.payload",
            "schema_version": "1",
            "headers": "l.headers" if annotation is None else _topic_headers(annotation),
        }


@dataclass(frozen=True, slots=True)
class VersionsQuery(Events):
    """The events of a stream on a table that has several versions, each with a log of its own.

    A transaction that has changed the table has events in two of them, or in more.

    Args:
        versions: the query of each, oldest first.
    """

    versions: tuple[EventQuery, ...]

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events."""
        return self.versions

    @property
    def lsns(self) -> str:
        """See Events."""
        return f"({' UNION ALL '.join(f'SELECT lsn FROM {part.log}' for part in self.versions)})"

    def between(self, first_lsn: int, last_lsn: int) -> EventQuery | VersionsQuery:
        """See Events."""
        ends = [*(part.captured.first_lsn - 1 for part in self.versions[1:]), None]
        return self._of(
            [
                part
                for part, end in zip(self.versions, ends, strict=True)
                if part.captured.first_lsn <= last_lsn and (end is None or first_lsn <= end)
            ]
        )

    @property
    def newest(self) -> EventQuery:
        """See Events."""
        return self.versions[-1]

    def holding(self, lsns: Collection[int]) -> EventQuery | VersionsQuery:
        """See Events."""
        first_lsn = self.versions[0].first_lsn
        found = [self.between(lsn, lsn) for lsn in lsns if lsn >= first_lsn]
        return self._of([part for part in self.versions if part in found])

    def _of(self, versions: Sequence[EventQuery]) -> EventQuery | VersionsQuery:
        """Of some of the versions; of none, where the newest answers as well as any, of that one."""
        if len(versions) > 1:
            return replace(self, versions=tuple(versions))
        return versions[0] if versions else self.versions[-1]

    def parked(self) -> Self:
        """See Events."""
        return replace(self, versions=tuple(part.parked() for part in self.versions))

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        return _all(part.sql(where, last, commit, txids) for part in self.versions)

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events."""
        return _all(part.whole_sql(where, whole) for part in self.versions)


# The events of a stream on one table.
TableEvents = EventQuery | VersionsQuery


@dataclass(frozen=True, slots=True)
class TablesQuery(Events):
    """The events of a stream over several tables, each with logs of its own: all in one order of LSNs.

    Args:
        tables: the query of each table, in the order in which they were named; two at least, but where fewer
            are left of a stream.
    """

    tables: tuple[TableEvents, ...]

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events; oldest first within each table."""
        return tuple(part for table in self.tables for part in table.parts)

    @property
    def lsns(self) -> str:
        """See Events."""
        return f"({' UNION ALL '.join(f'SELECT lsn FROM {part.log}' for part in self.parts)})"

    def of(self, tables: Container[int]) -> Events:
        """See Events."""
        return self._of([table for table in self.tables if table.stream.table_id in tables])

    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """See Events."""
        made = [table for table in self.tables if table.stream.created_lsn < last_lsn]
        return self._of([table.between(first_lsn, last_lsn) for table in made or self.tables[:1]])

    @property
    def newest(self) -> Events:
        """See Events."""
        return self._of([table.newest for table in self.tables])

    def holding(self, lsns: Collection[int]) -> Events:
        """See Events."""
        last = max(lsns)
        # Of a table the versions that had them may have gone: nothing is parked of those that came after.
        made = [
            table
            for table in self.tables
            if table.stream.created_lsn < last and table.parts[0].first_lsn <= last
        ]
        return self._of([table.holding(lsns) for table in made or self.tables[:1]])

    def _of(self, tables: Sequence[TableEvents]) -> Events:
        if len(tables) == 1:
            return tables[0]
        return replace(self, tables=tuple(tables))

    def parked(self) -> Self:
        """See Events."""
        return replace(self, tables=tuple(table.parked() for table in self.tables))

    def window(self, cursor: duckdb.DuckDBPyConnection, after_lsn: int, through_lsn: int) -> Events:
        """See Events: a log without rows there makes the query dearer to plan, and asking is cheap."""
        row = cursor.execute(f"SELECT {end_of_transaction(through_lsn)}").fetchone()
        last_lsn = through_lsn if row is None else int(row[0])
        found = self.between(after_lsn + 1, last_lsn)
        if not isinstance(found, TablesQuery):
            return found
        asked = " UNION ALL ".join(
            f"SELECT {place} WHERE EXISTS "
            f"(SELECT 1 FROM {part.log} WHERE lsn > {after_lsn} AND lsn <= {last_lsn})"
            for place, table in enumerate(found.tables)
            for part in table.parts
        )
        places = {int(place) for (place,) in cursor.execute(asked).fetchall()}
        return self._of([found.tables[place] for place in sorted(places)] or found.tables[:1])

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        return _all(part.sql(where, last, commit, txids) for part in self.parts)

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events: a transaction's last event may be in any of the logs."""
        rows = " UNION ALL ".join(f"SELECT lsn, txid FROM ({part.rows(whole)})" for part in self.parts)
        last = f"lsn IN (SELECT max(lsn) FROM ({rows}) GROUP BY txid)"
        # What made a next version that is not among these has an event there, behind all that are.
        following = {table.newest.next_txid for table in self.tables} - {0}
        goes_on = ", ".join(str(txid) for txid in sorted(following))
        if goes_on:
            last += f" AND txid NOT IN ({goes_on})"
        return f"SELECT * REPLACE (({last}) AS tx_last) FROM ({self.sql(where, 'NULL::BOOLEAN')})"


@dataclass(frozen=True, slots=True)
class CopiedEvents(Events):
    """A stream's events with the rows of a whole copy, as snapshot events, among them.

    The copy's table has the form of a log of the table's version of then, so its rows are one more part of
    the stream's SELECT, with LSNs that no other part has. Source: docs/design/copies.md.
    """

    events: Events
    copied: EventQuery
    copy: Copy

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events; the copy's rows first."""
        return (self.copied, *self.events.parts)

    @property
    def lsns(self) -> str:
        """See Events."""
        return f"(SELECT lsn FROM {self.copied.log} UNION ALL SELECT lsn FROM {self.events.lsns})"

    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """See Events."""
        inner, copy = self.events.between(first_lsn, last_lsn), self.copy
        if first_lsn <= copy.last_lsn and copy.first_lsn <= last_lsn:
            return replace(self, events=inner)
        return inner

    @property
    def newest(self) -> Events:
        """See Events."""
        return self.events.newest

    def holding(self, lsns: Collection[int]) -> Events:
        """See Events."""
        inner, copy = self.events.holding(lsns), self.copy
        return replace(self, events=inner) if any(copy.has(lsn) for lsn in lsns) else inner

    def parked(self) -> Events:
        """See Events: copies of its rows are where those of its version's log are."""
        return self.events.parked()

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        return _all((self.copied.sql(where, last), self.events.sql(where, last, commit, txids)))

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events."""
        return _all((self.copied.whole_sql(where, whole), self.events.whole_sql(where, whole)))


def _all(queries: Iterable[str]) -> str:
    # A query of its own: what is put behind it is of all of them.
    return f"SELECT * FROM ({' UNION ALL '.join(queries)})"


def query_over(captured: Captured, stream: Stream) -> TableEvents:
    """The SELECT of the events of a stream, or of a part of one, on one table."""
    following = [*captured.versions[1:], None]
    queries = tuple(
        EventQuery(
            captured.stream_in(stream, version),
            captured.only(version),
            next_txid=0 if after is None else after.txid,
        )
        for version, after in zip(captured.versions, following, strict=True)
        if after is None or after.first_lsn - 1 > stream.created_lsn
    )
    return queries[0] if len(queries) == 1 else VersionsQuery(stream, queries)


def query_over_all(stream: Stream, tables: Sequence[Captured]) -> Events:
    """The SELECT of all events of a stream on tables, these; they need not be in the catalog yet."""
    if stream.several is None:
        (captured,) = tables
        return query_over(captured, stream)
    return TablesQuery(stream, tuple(query_over(table, table.part_of(stream)) for table in tables))


def event_query(catalog: Catalog, stream: Stream) -> Events:
    """The SELECT of a stream's events.

    Args:
        stream: as it is, or was when somebody got hold of it: its tables may have been altered since.

    Raises:
        UndefinedObject: it has been dropped.
    """
    with catalog.mutex:
        if stream.topic:
            return TopicQuery(stream, bases=catalog.segments.bases(stream.stream_id, stream.partitions))
        tables = catalog.tables_of(stream)
        if stream.several is None:
            # Its columns are found by the names that they have in the table as the catalog has it.
            stream = tables[0].part_of(stream)
        return query_over_all(stream, tables)


def newest_query(catalog: Catalog, stream: Stream) -> Events:
    """The same of the logs that are written."""
    return event_query(catalog, stream).newest


def with_copy(catalog: Catalog, stream: Stream, events: Events, copy: Copy) -> CopiedEvents:
    """A stream's events with the rows of a copy of its table, by the names that the columns had then."""
    with catalog.mutex:
        captured = catalog.table_by_id(stream.table_id)
    version = next(one for one in captured.versions if one.version == copy.version)
    part = captured.stream_in(captured.part_of(stream), version)
    return CopiedEvents(stream, events, copied_rows(part, captured.only(version), copy), copy)


def copied_rows(stream: Stream, captured: Captured, copy: Copy) -> EventQuery:
    """The rows of a copy, as events: those of the partitions in its `spans`.

    The lines of its chunks are there however long `commits` keeps them.

    Args:
        captured, stream: in the copy's version.
    """
    side = SideTable(copy.table, f"({copy.lines_sql})", copy.first_lsn, copy.spans_sql())
    return EventQuery(stream, captured, side=side)
