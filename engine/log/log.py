"""The log of a captured table, and the SQL that turns its rows into a stream's events.

The log holds each change once, typed and flat, however many streams are on the table:

    lsn, txid, op ('i','u','d','s'), stream_id (of an initial snapshot's row), rid, key_hash,
    key_change (pair number of an update that was split), o1..on the old row, n1..nn the new one

A table has a log for each version of its columns, and each owns a range of LSNs (`versions.py`). The
first rows of every version but the first are its schema events: op 'x', one a partition, whose number is
the row's key_hash.

A stream is a cursor over it. Everything that a stream adds (operations, filter, columns, before,
partition, JSON) is worked out by one SELECT, built here: the publisher runs it for what has just
been committed, a cold read for a range, and the stream's own view for all. So hot, cold and view
give the same bytes. Source: docs/design/engine.md, "The log".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import duckdb

from ..partitioning import hash_sql
from ..quoting import ident, literal, shown_name
from ..schema import SCHEMA
from ..streams.streams import Captured, Catalog, Source, Stream, TopicLog
from ..table import Column, TableShape
from ..values.json_images import object_sql
from .schema_json import schema_json, shown_table
from .topic_rows import with_members

EVENT_COLUMNS: tuple[tuple[str, str], ...] = (
    ("lsn", "BIGINT"),
    ("partition", "INTEGER"),
    ("op", "VARCHAR"),
    ("table_name", "VARCHAR"),
    ("key", "JSON"),
    ("before", "JSON"),
    ("after", "JSON"),
    ("commit_time", "TIMESTAMP WITH TIME ZONE"),
    ("txid", "BIGINT"),
    ("tx_seq", "INTEGER"),
    ("tx_last", "BOOLEAN"),
    ("schema_version", "INTEGER"),
    ("headers", "JSON"),
)
EVENT_NAMES = tuple(name for name, _ in EVENT_COLUMNS)
EVENT_TYPES = tuple(type_ for _, type_ in EVENT_COLUMNS)
# What an event has of its transaction's line in `commits`, and what it has of its own log row.
COMMIT_NAMES = ("commit_time", "tx_seq", "tx_last")
ROW_NAMES = tuple(name for name in EVENT_NAMES if name not in COMMIT_NAMES)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of rows that are read from a stream.

    Args:
        types: of all of them, as a client gets them.
        lsn, partition: the places of these two.
    """

    types: tuple[str, ...]
    lsn: int
    partition: int


EVENT_LAYOUT = Layout(EVENT_TYPES, EVENT_NAMES.index("lsn"), EVENT_NAMES.index("partition"))


class Commit(NamedTuple):
    """A transaction's line in `commits`, where all rows of a query are of that one and it is known.

    Args:
        commit_us: its time, microseconds since 1970.
        annotation: a JSON object as text, or None.
    """

    first_lsn: int
    commit_us: int
    annotation: str | None = None


# Of a query that asks for nothing of it.
NO_COMMIT = Commit(0, 0)
# Member of an event's headers that has its transaction's annotation.
ANNOTATION = "annotation"

HIDDEN = "__ducktail_"


def end_of_transaction(lsn: int) -> str:
    """SQL of the last LSN of the transaction that an LSN is in."""
    return (
        f"coalesce((SELECT max(last_lsn) FROM {SCHEMA}.commits "
        f"WHERE {lsn} BETWEEN first_lsn AND last_lsn), {lsn})"
    )


def log_name(table_id: int, version: int) -> str:
    """The qualified, quoted name of a log."""
    return f"{SCHEMA}.{ident(f'log_{table_id}_{version}')}"


def bare_name(log: str) -> str:
    """The name of a log as DuckDB's catalog has it."""
    return log.partition(".")[2].strip('"')


def side_log(log: str) -> str:
    """The qualified, quoted name of the table of parked copies of a log's rows."""
    return f"{SCHEMA}.{ident('parked_' + bare_name(log).removeprefix('log_'))}"


def create_log_sql(name: str, shape: TableShape) -> str:
    """The DDL of a log for a table of this shape."""
    images = [
        f"{side}{place} {column.type}" for side in ("o", "n") for place, column in enumerate(shape.stored, 1)
    ]
    head = (
        "lsn BIGINT, txid BIGINT, op VARCHAR, stream_id INTEGER, rid BIGINT, "
        "key_hash UINTEGER, key_change INTEGER"
    )
    return f"CREATE TABLE {name} ({head}, {', '.join(images)})"


def snapshot_sql(captured: Captured, stream_id: int, base_lsn: int, txid: int) -> str:
    """Insert the table's present rows as a stream's first events, from LSN base_lsn + 1 on."""
    shape = captured.shape
    key_types = {column.name: column.type for column in shape.stored}
    key = [(ident(name), key_types[name]) for name in shape.primary_key]
    key_hash = hash_sql(key) if key else "NULL"
    new = ", ".join(f"n{place}" for place in range(1, len(shape.stored) + 1))
    values = ", ".join(ident(column.name) for column in shape.stored)
    return (
        f"INSERT INTO {captured.table.log} (lsn, txid, op, stream_id, key_hash, {new}) "
        f"SELECT {base_lsn} + row_number() OVER (), {txid}, 's', {stream_id}, {key_hash}, {values} "
        f"FROM {shape.qualified}"
    )


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
        annotation = _annotation_sql(commit)
        query = f"SELECT {_head(self._values(annotation), last, commit)} FROM ({self.rows(where)}) AS l"
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
        head = _head(self._values(annotation), "", NO_COMMIT, ROW_NAMES)
        return f"SELECT {head} FROM ({self.rows(where)}) AS l"


def _annotation_sql(commit: Commit | None) -> str | None:
    """SQL of the annotation of an event's transaction; None where it is known to have none."""
    if commit is None:
        return "c.annotation"
    return None if commit.annotation is None else literal(commit.annotation)


def _head(
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
        """Whether the log begins with the events that say how the table became so."""
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

    def inserts_sql(self, where: str, last: str, commit: Commit) -> str:
        """The same as `sql` of log rows that are all inserts, of a stream that shows all.

        DuckDB takes half the time to plan it, which is most of what a small commit costs the publisher.
        """
        assert self.stream.shows_all
        head = _head(self._inserted(_annotation_sql(commit)), last, commit)
        return f"SELECT {head} FROM {self.log} AS l WHERE {self._mine(where)}"

    def rows_sql(self, where: str, annotation: str | None, *, inserts: bool) -> str:
        """See Events."""
        if not (inserts and self.stream.shows_all):
            return super(EventQuery, self).rows_sql(where, annotation, inserts=inserts)
        head = _head(self._inserted(annotation), "", NO_COMMIT, ROW_NAMES)
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
            rows = f"SELECT *, {op} AS event_op FROM ({base})"
        else:
            rows = self._filtered(base)
        shown = [*sorted(stream.operations), "snapshot", *(["schema"] if self.has_schema_events else [])]
        if stream.shows_all:
            return rows
        wanted = ", ".join(literal(op) for op in shown)
        return f"SELECT * FROM ({rows}) WHERE event_op IN ({wanted})"

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
        new = ", ".join(f"n{p} AS {ident(c.name)}" for p, c in zip(places, stored, strict=True))
        old = ", ".join(f"{HIDDEN}o{p} AS {ident(c.name)}" for p, c in zip(places, stored, strict=True))
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
        return (
            f"SELECT * FROM (SELECT *, {op} AS event_op FROM (SELECT {back}, {HIDDEN}after AS a, "
            f"{HIDDEN}before AS b FROM ({before}))) WHERE event_op IS NOT NULL"
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
        schema = literal(schema_json(self.captured.shape, self.stream.columns))
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
        found = [self.between(lsn, lsn) for lsn in lsns]
        return self._of([part for part in self.versions if part in found])

    def _of(self, versions: Sequence[EventQuery]) -> EventQuery | VersionsQuery:
        """Of some of the versions; of none, where the newest answers as well as any, of that one."""
        if len(versions) > 1:
            return replace(self, versions=tuple(versions))
        return versions[0] if versions else self.versions[-1]

    def parked(self) -> Self:
        """See Events."""
        return replace(self, copies=True, versions=tuple(part.parked() for part in self.versions))

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
        made = [table for table in self.tables if table.stream.created_lsn < last]
        return self._of([table.holding(lsns) for table in made or self.tables[:1]])

    def _of(self, tables: Sequence[TableEvents]) -> Events:
        if len(tables) == 1:
            return tables[0]
        return replace(self, tables=tuple(tables))

    def parked(self) -> Self:
        """See Events."""
        return replace(self, copies=True, tables=tuple(table.parked() for table in self.tables))

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
    """The SELECT of a stream's events."""
    with catalog.mutex:
        if stream.topic:
            return TopicQuery(stream, bases=catalog.segments.bases(stream.stream_id, stream.partitions))
        return query_over_all(stream, catalog.tables_of(stream))


def newest_query(catalog: Catalog, stream: Stream) -> Events:
    """The same of the logs that are written."""
    return event_query(catalog, stream).newest
