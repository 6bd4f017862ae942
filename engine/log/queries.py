"""SELECTs of events from logs: of one version of a table, of a topic, or of all logs of a stream.

A stream has several logs if its table has had several versions, or if it is on several tables. Log
rows that are kept outside the log (parked events, a group's whole copy of a table) are read by the same
SELECT, from a `SideTable`. All queries of events have the same columns; `event_query` and `newest_query`
return the query of a stream.
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
    COMMIT_COLUMNS,
    EVENT_LAYOUT,
    EVENT_NAMES,
    HEAD_BYTES,
    HIDDEN,
    NO_COMMIT,
    ROW_NAMES,
    SOURCE,
    Commit,
    Layout,
    bare_name,
    end_of_transaction,
    schema_json,
    shown_table,
    side_log,
)
from .topic_rows import with_members


@dataclass(frozen=True, slots=True)
class Again:
    """Parked events that a page returns besides its own: predicates on the rows of the copies.

    Args:
        events: the SELECT of the copies' events.
        where: predicate that selects them.
        last: SQL boolean that is true on the last event of a transaction.
    """

    events: Events
    where: str
    last: str


@dataclass(frozen=True, slots=True)
class Events(ABC):
    """The SELECT of one stream's events, which can be narrowed to a range of LSNs.

    `sql(where, last)` returns its text; `where` is a predicate on the log's columns, and `last` is the
    expression of tx_last. `whole_sql` computes tx_last from the transaction's last event in this stream (with
    a query of its own).
    """

    stream: Stream

    @property
    @abstractmethod
    def parts(self) -> tuple[LogEvents, ...]:
        """The query of each log that is read, oldest first; never empty."""

    @property
    @abstractmethod
    def lsns(self) -> str:
        """The relation of the LSNs of all log rows: a table, or a query in brackets."""

    @property
    def sizes(self) -> str:
        """The relation of each log row's `lsn` and the approximate size of its event in `bytes`."""
        rows = (f"SELECT lsn, ({part.bytes_sql})::BIGINT AS bytes FROM {part.log}" for part in self.parts)
        return f"({' UNION ALL '.join(rows)})"

    @abstractmethod
    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """The query restricted to the logs that may have LSNs of this range, including both ends."""

    @abstractmethod
    def standing(self, logs: Container[str]) -> Events:
        """The query without the logs of old versions that are not among these: retention has dropped them.

        Args:
            logs: the names of log tables, without their schema.
        """

    def of(self, tables: Container[int]) -> Events:
        """The query restricted to the logs of these tables; at least one is a table of the stream."""
        return self

    @property
    @abstractmethod
    def newest(self) -> Events:
        """The query restricted to the logs that are still written."""

    @abstractmethod
    def holding(self, lsns: Collection[int]) -> Events:
        """The query restricted to the logs that may have one of these LSNs."""

    @abstractmethod
    def parked(self) -> Events:
        """The query over the copies of log rows that groups have parked."""

    @abstractmethod
    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """The events of the log rows that satisfy `where`, in no particular order.

        Args:
            where: predicate on the log's columns (lsn, txid).
            last: SQL boolean on l.lsn and l.txid that is true on a transaction's last event.
            commit: the transaction of all rows, if the caller knows it; None reads `commits`.
            txids: the first and the last transaction to look for in `commits`, if known.
        """

    @abstractmethod
    def whole_sql(self, where: str, whole: str) -> str:
        """The events, with tx_last computed from `whole`, which contains the last transaction entirely."""

    def window(self, cursor: duckdb.DuckDBPyConnection, after_lsn: int, through_lsn: int) -> Events:
        """The query restricted to the logs that a read of a range needs, to its last transaction's end."""
        return self.between(after_lsn + 1, through_lsn)

    @property
    def layout(self) -> Layout:
        """The columns of an event."""
        return EVENT_LAYOUT

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of an event in a page."""
        return EVENT_NAMES

    def page_sql(
        self, columns: Sequence[str], where: str, whole: str, behind: str, again: Again | None = None
    ) -> str:
        """Columns of the events behind the starts of a scan, in LSN order.

        Args:
            columns: names of the columns of an event; the others are not computed.
            where: predicate on the log's columns.
            whole: a wider predicate that contains the last transaction of `where` entirely, for tx_last.
            behind: predicate on an event's lsn and partition (`unread_sql`).
            again: parked events that are returned as well, at any position.
        """
        if "tx_last" in columns:
            sql = self.whole_sql(where, whole)
        else:
            of_commits = not COMMIT_COLUMNS.isdisjoint(columns)
            sql = self.sql(where, "NULL::BOOLEAN", None if of_commits else NO_COMMIT)
        # The LSN is also that of the order: a hidden column may have it under another name.
        names = ", ".join(columns)
        sql = f"SELECT * FROM ({sql}) WHERE {behind}"
        if again is not None:
            sql += f" UNION ALL {again.events.sql(again.where, again.last)}"
        return f"SELECT {names} FROM ({sql}) ORDER BY lsn"

    def sized_sql(self, where: str, behind: str) -> str:
        """`lsn` and approximate `bytes` of the log rows behind the starts of a scan, in no particular order.

        Args:
            where, behind: as in `page_sql`.
        """
        parts = (
            f"SELECT l.lsn, {part.partition_sql()} AS partition, ({part.bytes_sql})::BIGINT AS bytes "
            f"FROM {part.log} AS l WHERE {where}"
            for part in self.parts
        )
        return f"SELECT lsn, bytes FROM ({' UNION ALL '.join(parts)}) WHERE {behind}"

    def view_sql(self, name: str, *, replaces: bool = False) -> str:
        """CREATE VIEW of all retained events with the stream's own name."""
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
    """A table of log rows outside the log: parked events, or a whole copy.

    Args:
        name: the table.
        commits: the relation of its rows' transactions.
        first_lsn: the LSN of its first row; None for that of the log.
        where: the SQL condition on the rows that are read; None for that of the log.
    """

    name: str
    commits: str
    first_lsn: int | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class LogEvents(Events):
    """The query of one log, or of rows in its form outside the log (`side`)."""

    side: SideTable | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def source(self) -> Source:
        """The owner of the log."""

    @property
    @abstractmethod
    def bytes_sql(self) -> str:
        """The approximate size of the event of a log row in bytes: an expression on its columns."""

    @abstractmethod
    def rows(self, where: str) -> str:
        """The log rows that are events of the stream."""

    @abstractmethod
    def partition_sql(self) -> str:
        """The event's partition, computed from the log row `l`."""

    @abstractmethod
    def _values(self, annotation: str | None) -> Mapping[str, str]:
        """The event's own columns, on a row `l` of `rows`: partition, op, key and so on.

        Args:
            annotation: SQL of the transaction's annotation; None if it certainly has none.
        """

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """This query alone."""
        return (self,)

    @property
    def first_lsn(self) -> int:
        """The LSN from which the log may have rows: the first of its version."""
        if self.side is not None and self.side.first_lsn is not None:
            return self.side.first_lsn
        return self.source.first_lsn if isinstance(self.source, Captured) else 0

    @property
    def log(self) -> str:
        """The table that is read: the log or its parked copies."""
        return self.source.log if self.side is None else self.side.name

    @property
    def commits(self) -> str:
        """The relation with the rows of the transactions."""
        return f"{SCHEMA}.commits" if self.side is None else self.side.commits

    @property
    def lsns(self) -> str:
        """The log itself."""
        return self.log

    def between(self, first_lsn: int, last_lsn: int) -> Self:
        """This query: its one log is always read."""
        return self

    @property
    def newest(self) -> Self:
        """This query."""
        return self

    def holding(self, lsns: Collection[int]) -> Self:
        """This query: its one log is always read."""
        return self

    def standing(self, logs: Container[str]) -> Self:
        """This query: its one log stands as long as the stream."""
        return self

    def parked(self) -> Self:
        """The query over the parked copies of the log's rows."""
        return replace(self, side=SideTable(side_log(self.source.log), f"{SCHEMA}.parked_commits"))

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """The events of the log rows that satisfy `where`; arguments as in `Events.sql`."""
        annotation = annotation_sql(commit)
        query = f"SELECT {head_sql(self._values(annotation), last, commit)} FROM ({self.rows(where)}) AS l"
        if commit is not None:
            return query
        looked_for = "" if txids is None else f" AND c.txid BETWEEN {txids[0]} AND {txids[1]}"
        return f"{query} JOIN {self.commits} AS c ON c.txid = l.txid{looked_for}"

    def whole_sql(self, where: str, whole: str) -> str:
        """The events, with tx_last from the rows of `whole`."""
        ends = f"SELECT max(lsn) FROM ({self.rows(whole)}) GROUP BY txid"
        return self.sql(where, f"(l.lsn IN ({ends}))")

    def rows_sql(self, where: str, annotation: str | None, *, inserts: bool) -> str:
        """ROW_NAMES of the events of one transaction, in no particular order.

        Args:
            where: predicate on the log's columns.
            annotation: SQL of the transaction's annotation; None if it has none.
            inserts: all of the log rows are inserts.
        """
        head = head_sql(self._values(annotation), "", NO_COMMIT, ROW_NAMES)
        return f"SELECT {head} FROM ({self.rows(where)}) AS l"


def unread_sql(
    starts: Mapping[int, int], partitions: int, lsn: str = "lsn", partition: str = "partition"
) -> str:
    """SQL boolean on an event: it is in a scanned partition, behind the partition's start.

    Args:
        starts: scanned partition -> the LSN behind which it is read.
        partitions: the number of the stream's partitions.
        lsn, partition: SQL of these two columns.
    """
    if len(set(starts.values())) == 1:
        after = f"{lsn} > {next(iter(starts.values()))}"
    else:
        bounds = ", ".join(str(starts.get(number, 0)) for number in range(partitions))
        after = f"{lsn} > [{bounds}][{partition} + 1]"
    if len(starts) == partitions:
        return after
    return f"{partition} IN ({', '.join(map(str, starts))}) AND {after}"


def annotation_sql(commit: Commit | None) -> str | None:
    """SQL of the annotation of an event's transaction; None if it certainly has none."""
    if commit is None:
        return "c.annotation"
    return None if commit.annotation is None else literal(commit.annotation)


def head_sql(
    values: Mapping[str, str], last: str, commit: Commit | None, names: Sequence[str] = EVENT_NAMES
) -> str:
    """The select list of an event's columns; arguments as in `Events.sql`."""
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
        next_txid: the transaction that made the next version: its events in this log are not its last; 0 for
            none.
    """

    captured: Captured
    next_txid: int = field(default=0, kw_only=True)

    @property
    def source(self) -> Source:
        """The captured table in this version."""
        return self.captured

    @property
    def has_schema_events(self) -> bool:
        """True if the log begins with the schema events of its version."""
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
            "headers": _table_headers(annotation, SOURCE if self.captured.is_fed else ANNOTATION),
        }

    def whole_sql(self, where: str, whole: str) -> str:
        """The events, with tx_last from the rows of `whole`; false in the transaction of the next version."""
        if not self.next_txid:
            return super(EventQuery, self).whole_sql(where, whole)
        # The next version begins with a schema event of that transaction, which every stream has.
        ends = f"SELECT max(lsn) FROM ({self.rows(whole)}) GROUP BY txid"
        return self.sql(where, f"(l.lsn IN ({ends}) AND l.txid <> {self.next_txid})")

    @property
    def bytes_sql(self) -> str:
        """The approximate size of an event: both images, even if the stream shows one."""
        plain, parts = HEAD_BYTES, []
        for place, column in enumerate(self.captured.shape.stored, 1):
            plain += len(column.name) + PLAIN_BYTES
            sizes = (size_sql(f"{side}{place}", column.type) for side in ("o", "n"))
            parts += [f"coalesce({size}, 0)" for size in sizes if size is not None]
        return " + ".join([str(plain), *parts])

    def inserts_sql(self, where: str, last: str, commit: Commit) -> str:
        """The result of `sql` if all log rows are inserts and the stream shows them all.

        DuckDB plans it in half the time, and planning is most of the publisher's cost of a small commit.
        """
        assert self.stream.shows_all
        head = head_sql(self._inserted(annotation_sql(commit)), last, commit)
        return f"SELECT {head} FROM {self.log} AS l WHERE {self._mine(where)}"

    def rows_sql(self, where: str, annotation: str | None, *, inserts: bool) -> str:
        """ROW_NAMES of the events of one transaction; a shorter query if all are inserts."""
        if not (inserts and self.stream.shows_all):
            return super(EventQuery, self).rows_sql(where, annotation, inserts=inserts)
        head = head_sql(self._inserted(annotation), "", NO_COMMIT, ROW_NAMES)
        return f"SELECT {head} FROM {self.log} AS l WHERE {self._mine(where)}"

    def _inserted(self, annotation: str | None) -> Mapping[str, str]:
        """The result of `_values` for log rows that are inserts."""
        key = self.captured.shape.primary_key
        return {
            **self._values(annotation),
            "op": "'insert'",
            "key": self._image("n", key) if key else "NULL::JSON",
            "before": "NULL::JSON",
            "after": self._image("n", self.stream.columns),
        }

    def _mine(self, where: str) -> str:
        # A row of another stream's initial snapshot is skipped; rows older than this stream belong to older
        # streams only.
        if self.side is not None and self.side.where is not None:
            return f"({where}) AND ({self.side.where})"
        stream = self.stream
        mine = (
            f"({where}) AND lsn > {stream.created_lsn} "
            f"AND (stream_id IS NULL OR stream_id = {stream.stream_id})"
        )
        # The log has one of these for each partition of the table's widest stream.
        return f"{mine} AND (op <> 'x' OR key_hash < {stream.partitions})" if self.has_schema_events else mine

    def rows(self, where: str) -> str:
        """The log rows that are events of the stream, with their `event_op`."""
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
        """True if the stream has both events of a changed key."""
        return {"insert", "delete"} <= self.stream.operations

    def _filtered(self, base: str) -> str:
        """`base` with the predicate evaluated on the row before and the row after.

        Two plain projections: each gives the image's columns their own names for the predicate, while the
        log's columns keep names that no user's column can have.
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
        # A row on which the predicate fails (such as a cast of a text that is not a number) does not match:
        # an error here would stop every reader of the stream at that event for ever.
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
        # The stream has both events of a changed key if both rows match. The filter judges each by itself:
        # both log rows have both images.
        both = "a AND b" if self._has_pairs else "false"
        pair = f"CASE WHEN {both} THEN key_change END AS key_change"
        return (
            f"SELECT * FROM (SELECT * REPLACE ({pair}), {op} AS event_op FROM (SELECT {back}, "
            f"{HIDDEN}after AS a, {HIDDEN}before AS b FROM ({before}))) WHERE event_op IS NOT NULL"
        )

    def partition_sql(self) -> str:
        """The event's partition, computed from the log row `l`."""
        stream, shape = self.stream, self.captured.shape
        if stream.partitions == 1:
            return "0::INTEGER"
        if not stream.partition_by:
            # Tables without a key, in a stream over several: all rows of a table are in one partition.
            return "(CASE l.op WHEN 'x' THEN l.key_hash ELSE 0 END)::INTEGER"
        if stream.partition_by == shape.primary_key:
            # A schema event has its partition here, which is less than their number.
            return f"(l.key_hash % {stream.partitions})::INTEGER"
        old = hash_sql([(f"l.o{p}", c.type) for p, c in self._placed(stream.partition_by)])
        new = hash_sql([(f"l.n{p}", c.type) for p, c in self._placed(stream.partition_by)])
        schema = "WHEN l.op = 'x' THEN l.key_hash " if self.has_schema_events else ""
        return f"((CASE {schema}WHEN l.op = 'd' THEN {old} ELSE {new} END) % {stream.partitions})::INTEGER"

    def _placed(self, names: Sequence[str]) -> list[tuple[int, Column]]:
        """The positions of these columns in the log, in the order of `names`."""
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


def _table_headers(annotation: str | None, member: str) -> str:
    """SQL of the headers of a table's event.

    Args:
        member: the name of the annotation among them.
    """
    if annotation is None:
        return "CASE WHEN l.key_change IS NOT NULL THEN ('{\"key_change\":' || l.key_change || '}')::JSON END"
    members = f"'\"{member}\":' || {annotation}, '\"key_change\":' || l.key_change"
    return (
        f"CASE WHEN {annotation} IS NOT NULL OR l.key_change IS NOT NULL "
        f"THEN ('{{' || concat_ws(',', {members}) || '}}')::JSON END"
    )


def lost_column(captured: Captured, stream: Stream, name: str) -> WrongState:
    """The error for a stream's column that was dropped or renamed without ducktail."""
    return WrongState(
        f'table "{captured.shape.name}" has no column "{name}", which stream "{stream.name}" carries',
        detail="It was altered past ducktail.",
        hint="DROP STREAM and CREATE STREAM ... WITH (snapshot = 'initial').",
    )


def _topic_headers(annotation: str) -> str:
    """SQL of a publisher's headers with the annotation of the transaction."""
    merged = with_members({ANNOTATION: annotation}, "l.headers")
    return f"CASE WHEN {annotation} IS NULL THEN l.headers ELSE ({merged})::JSON END"


@dataclass(frozen=True, slots=True)
class TopicQuery(LogEvents):
    """The events of a topic: complete in its log except for the columns from `commits`.

    Args:
        bases: by partition, the LSN up to which rows of the log are skipped, because the partition's segment
            has these events (`segments.py`). Empty if no partition has come from another node.
    """

    bases: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def source(self) -> Source:
        """The topic."""
        return TopicLog(self.stream)

    @property
    def bytes_sql(self) -> str:
        """The approximate size of an event: key, payload and headers."""
        sizes = (f"coalesce(strlen({name}), 0)" for name in ("payload", "key", "headers"))
        return " + ".join([str(HEAD_BYTES), *sizes])

    def rows(self, where: str) -> str:
        """The log rows that are events of the topic."""
        behind = f" AND lsn > [{', '.join(map(str, self.bases))}][partition + 1]" if self.bases else ""
        return f"SELECT * FROM {self.log} WHERE ({where}){behind}"

    def partition_sql(self) -> str:
        """The event's partition, which the log row `l` has."""
        return "l.partition"

    def _values(self, annotation: str | None) -> Mapping[str, str]:
        name = f"{shown_name(self.stream.schema)}.{shown_name(self.stream.name)}"
        return {
            "partition": self.partition_sql(),
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
    """The events of a stream on a table with several versions, each with its own log.

    A transaction that has altered the table has events in two or more logs.

    Args:
        versions: the query of each version, oldest first.
    """

    versions: tuple[EventQuery, ...]

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """The query of each version, oldest first."""
        return self.versions

    @property
    def lsns(self) -> str:
        """The LSNs of all versions' logs."""
        return f"({' UNION ALL '.join(f'SELECT lsn FROM {part.log}' for part in self.versions)})"

    def between(self, first_lsn: int, last_lsn: int) -> EventQuery | VersionsQuery:
        """The query of the versions whose range of LSNs overlaps this one."""
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
        """The query of the newest version, the only one that is written."""
        return self.versions[-1]

    def holding(self, lsns: Collection[int]) -> EventQuery | VersionsQuery:
        """The query of the versions whose ranges contain one of these LSNs."""
        first_lsn = self.versions[0].first_lsn
        found = [self.between(lsn, lsn) for lsn in lsns if lsn >= first_lsn]
        return self._of([part for part in self.versions if part in found])

    def standing(self, logs: Container[str]) -> EventQuery | VersionsQuery:
        """The query of the versions whose logs are there."""
        return self._of([part for part in self.versions if bare_name(part.captured.log) in logs])

    def _of(self, versions: Sequence[EventQuery]) -> EventQuery | VersionsQuery:
        """The query of some of the versions; of the newest if there are none."""
        if len(versions) > 1:
            return replace(self, versions=tuple(versions))
        return versions[0] if versions else self.versions[-1]

    def parked(self) -> Self:
        """The query over the parked copies of all versions."""
        return replace(self, versions=tuple(part.parked() for part in self.versions))

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """The events of all versions; arguments as in `Events.sql`."""
        return _all(part.sql(where, last, commit, txids) for part in self.versions)

    def whole_sql(self, where: str, whole: str) -> str:
        """The events of all versions, each with its own tx_last."""
        return _all(part.whole_sql(where, whole) for part in self.versions)


# The events of a stream on one table.
TableEvents = EventQuery | VersionsQuery


@dataclass(frozen=True, slots=True)
class TablesQuery(Events):
    """The events of a stream over several tables, each with logs of its own, in one order of LSNs.

    Args:
        tables: the query of each table, in the order of the stream's definition; usually two or more, but
            fewer if tables were dropped.
    """

    tables: tuple[TableEvents, ...]

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """The query of each log; oldest first within each table."""
        return tuple(part for table in self.tables for part in table.parts)

    @property
    def lsns(self) -> str:
        """The LSNs of all logs."""
        return f"({' UNION ALL '.join(f'SELECT lsn FROM {part.log}' for part in self.parts)})"

    def of(self, tables: Container[int]) -> Events:
        """The query of these tables alone."""
        return self._of([table for table in self.tables if table.stream.table_id in tables])

    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """The query of the logs that may have LSNs of this range."""
        made = [table for table in self.tables if table.stream.created_lsn < last_lsn]
        return self._of([table.between(first_lsn, last_lsn) for table in made or self.tables[:1]])

    @property
    def newest(self) -> Events:
        """The query of the newest version of each table."""
        return self._of([table.newest for table in self.tables])

    def holding(self, lsns: Collection[int]) -> Events:
        """The query of the logs that may have one of these LSNs."""
        last = max(lsns)
        # The versions of a table that had these LSNs may be deleted: later versions have no parked copies of
        # them.
        made = [
            table
            for table in self.tables
            if table.stream.created_lsn < last and table.parts[0].first_lsn <= last
        ]
        return self._of([table.holding(lsns) for table in made or self.tables[:1]])

    def standing(self, logs: Container[str]) -> Events:
        """The query of the versions of each table whose logs are there."""
        return self._of([table.standing(logs) for table in self.tables])

    def _of(self, tables: Sequence[TableEvents]) -> Events:
        if len(tables) == 1:
            return tables[0]
        return replace(self, tables=tuple(tables))

    def parked(self) -> Self:
        """The query over the parked copies of all tables."""
        return replace(self, tables=tuple(table.parked() for table in self.tables))

    def window(self, cursor: duckdb.DuckDBPyConnection, after_lsn: int, through_lsn: int) -> Events:
        """The query of the tables that have rows in the range.

        Each further log costs planning time; the test for rows is cheap.
        """
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
        """The events of all logs; arguments as in `Events.sql`."""
        return _all(part.sql(where, last, commit, txids) for part in self.parts)

    def whole_sql(self, where: str, whole: str) -> str:
        """The events of all logs; a transaction's last event may be in any of them."""
        rows = " UNION ALL ".join(f"SELECT lsn, txid FROM ({part.rows(whole)})" for part in self.parts)
        last = f"lsn IN (SELECT max(lsn) FROM ({rows}) GROUP BY txid)"
        # A transaction that made a next version outside this query has an event there, behind all events
        # here.
        following = {table.newest.next_txid for table in self.tables} - {0}
        goes_on = ", ".join(str(txid) for txid in sorted(following))
        if goes_on:
            last += f" AND txid NOT IN ({goes_on})"
        return f"SELECT * REPLACE (({last}) AS tx_last) FROM ({self.sql(where, 'NULL::BOOLEAN')})"


@dataclass(frozen=True, slots=True)
class CopiedEvents(Events):
    """A stream's events with the rows of a whole copy, as snapshot events, among them.

    The copy's table has the form of a log of the table's version at that time, so its rows are one more part
    of the stream's SELECT, with LSNs that no other part has. Source: docs/design/copies.md.
    """

    events: Events
    copied: EventQuery
    copy: Copy

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """The query of each log; the copy's rows first."""
        return (self.copied, *self.events.parts)

    @property
    def lsns(self) -> str:
        """The LSNs of the copy and of the stream's logs."""
        return f"(SELECT lsn FROM {self.copied.log} UNION ALL SELECT lsn FROM {self.events.lsns})"

    def standing(self, logs: Container[str]) -> Events:
        """The query without the logs of old versions that retention has dropped."""
        return replace(self, events=self.events.standing(logs))

    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """The query of the parts that may have LSNs of this range."""
        inner, copy = self.events.between(first_lsn, last_lsn), self.copy
        if first_lsn <= copy.last_lsn and copy.first_lsn <= last_lsn:
            return replace(self, events=inner)
        return inner

    @property
    def newest(self) -> Events:
        """The query of the stream's logs that are still written."""
        return self.events.newest

    def holding(self, lsns: Collection[int]) -> Events:
        """The query of the parts that may have one of these LSNs."""
        inner, copy = self.events.holding(lsns), self.copy
        return replace(self, events=inner) if any(copy.has(lsn) for lsn in lsns) else inner

    def parked(self) -> Events:
        """The query over parked copies: rows of the copy are stored with those of its version's log."""
        return self.events.parked()

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """The events of the copy and of the stream; arguments as in `Events.sql`."""
        return _all((self.copied.sql(where, last), self.events.sql(where, last, commit, txids)))

    def whole_sql(self, where: str, whole: str) -> str:
        """The events of the copy and of the stream, each with its own tx_last."""
        return _all((self.copied.whole_sql(where, whole), self.events.whole_sql(where, whole)))


def _all(queries: Iterable[str]) -> str:
    # A query of its own, so that a clause appended to it applies to all parts.
    return f"SELECT * FROM ({' UNION ALL '.join(queries)})"


def query_over(captured: Captured, stream: Stream) -> TableEvents:
    """The SELECT of the events of a stream, or of its part, on one table."""
    if not captured.older:
        return EventQuery(stream, captured)
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
    """The SELECT of all events of a stream on these tables, which need not be in the catalog yet."""
    if stream.several is None:
        (captured,) = tables
        return query_over(captured, stream)
    return TablesQuery(stream, tuple(query_over(table, table.part_of(stream)) for table in tables))


def event_query(catalog: Catalog, stream: Stream) -> Events:
    """The SELECT of a stream's events.

    Args:
        stream: in its present or an earlier state: its tables may have been altered since.

    Raises:
        UndefinedObject: the stream has been dropped.
    """
    with catalog.mutex:
        if stream.topic:
            return TopicQuery(stream, bases=catalog.segments.bases(stream.stream_id, stream.partitions))
        # It may have been on one table when the caller got it.
        stream = catalog.present(stream) or stream
        tables = catalog.tables_of(stream)
        if stream.several is None:
            # Its columns are found by their names in the catalog's present table.
            stream = tables[0].part_of(stream)
        return query_over_all(stream, tables)


def newest_query(catalog: Catalog, stream: Stream) -> Events:
    """The SELECT of a stream's events from the logs that are still written."""
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
