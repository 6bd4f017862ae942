"""The events of one version of a table, as one stream of it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import WrongState
from ..partitioning import hash_sql
from ..quoting import ident, literal
from ..streams.captured import Captured, Source
from ..streams.streams import Stream
from ..table import Column
from ..values.json_images import object_sql
from ..values.text_sizes import PLAIN_BYTES, size_sql
from .log import ANNOTATION, HEAD_BYTES, HIDDEN, NO_COMMIT, ROW_NAMES, Commit
from .queries import LogEvents, annotation_sql, head_sql
from .schema_json import schema_json, shown_table


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
        """Whether the stream carries both events of a changed key."""
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
        """The places in the log of these columns, in the order of `names`.

        Raises:
            WrongState: 55000, the table has none of such a name: it was altered past ducktail.
        """
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
    """What is said where a stream's column has gone, or was renamed, while no ducktail had the file open."""
    return WrongState(
        f'table "{captured.shape.name}" has no column "{name}", which stream "{stream.name}" carries',
        detail="It was altered past ducktail.",
        hint="DROP STREAM and CREATE STREAM ... WITH (snapshot = 'initial').",
    )
