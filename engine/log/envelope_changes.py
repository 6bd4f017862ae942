"""ENVELOPE CHANGES: a stream's events as typed rows of its table, and their SQL.

Each event is one row of the table's columns followed by five of our own; an update is two rows, the old one
and then the new one, with one LSN. The stream's query selects the events (`log.EventQuery.rows`); the SELECTs
here give them another form:

- `sql`: the columns in the table's types, for the view `s_changes`;
- `wire_sql`: ready for DataRows: types that Arrow does not carry fully are text, as in any query's result;
- `typed_sql`: for a relation that DuckDB reads again (`arrow_types.py`).

Source: docs/streams.md, "Typed rows".
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from ..catalog.streams import CHANGES_SUFFIX, Stream
from ..duck.table_shape import Column
from ..quoting import fold, ident, literal
from ..values import datarow
from ..values.arrow_types import carrier_sql, restored_sql
from .log import Commit, Layout
from .queries import Again, EventQuery, Events, LogEvents, query_over_all

CHANGE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("_change_type", "VARCHAR"),
    ("_commit_version", "BIGINT"),
    ("_commit_timestamp", "TIMESTAMP WITH TIME ZONE"),
    ("_lsn", "BIGINT"),
    ("_partition", "INTEGER"),
)
CHANGE_NAMES = tuple(name for name, _ in CHANGE_COLUMNS)
# The last column, if a query needs to know a row's event: twice the LSN, plus one on every row except the
# first of an update's two. Rows sort by it, and it distinguishes a pair from a single row.
HIDDEN_PLACE = "__ducktail_lsn"


def clashing(columns: Sequence[str]) -> str | None:
    """The first column whose name is reserved in the CHANGES envelope, or None."""
    return next((name for name in columns if fold(name) in CHANGE_NAMES), None)


def view_name(stream: Stream) -> str:
    """The name of the view of the stream's retained changes."""
    return f"{stream.name}{CHANGES_SUFFIX}"


def view_statements(events: Events) -> list[str]:
    """The statements that create a stream's views: of its events, and of its changes if it has any."""
    stream = events.stream
    schema = ident(stream.schema)
    statements = [events.view_sql(f"{schema}.{ident(stream.name)}")]
    if stream.changes_view:
        statements.append(ChangesQuery(events).view_sql(f"{schema}.{ident(view_name(stream))}"))
    if stream.comment is not None:
        statements.append(comment_sql(stream, stream.comment))
    return statements


def views_anew(
    catalog: Catalog,
    captured: Captured,
    altered: Sequence[Captured] = (),
    without: Captured | None = None,
) -> list[str]:
    """The statements that recreate the views of all streams on a table, in the table's present form.

    Args:
        catalog: the source of the other tables of streams over several.
        altered: those of them that this transaction has altered.
        without: a table that is removed from the streams.
    """
    now = {table.table_id: table for table in (*altered, captured)}
    statements = []
    for own in captured.streams:
        stream = catalog.streams[own.key] if own.is_part else own
        tables = [now.get(table.table_id, table) for table in catalog.tables_of(stream) if table != without]
        statements += [f"DROP VIEW IF EXISTS {ident(stream.schema)}.{ident(view)}" for view in stream.views]
        statements += view_statements(query_over_all(stream, tables))
    return statements


def comment_sql(stream: Stream, comment: str | None) -> str:
    """Set the comment of the view of a stream's events, for tools that read a catalog."""
    text = "NULL" if comment is None else literal(comment)
    return f"COMMENT ON VIEW {ident(stream.schema)}.{ident(stream.name)} IS {text}"


@dataclass(frozen=True, slots=True)
class ChangesQuery:
    """The SELECT of one stream's changes, which can be narrowed to a range of LSNs.

    Its stream has no column with a reserved name (`clashing`). Changes of all versions of the table have the
    columns of the present version. Events that are not changes of rows, such as schema events, yield no row.

    Args:
        events: the query of the stream's events on its table.
        shown: the query of the version whose columns are shown; None for the newest version of `events`.
    """

    events: Events
    shown: EventQuery | None = None

    @property
    def stream(self) -> Stream:
        """The stream, in the version whose columns are shown."""
        return self._shown.stream

    @property
    def captured(self) -> Captured:
        """The stream's table, in the version whose columns are shown."""
        return self._shown.captured

    @property
    def _shown(self) -> EventQuery:
        shown = self.shown or self.events.parts[-1]
        assert isinstance(shown, EventQuery), "a topic has no ENVELOPE CHANGES"
        return shown

    def between(self, first_lsn: int, last_lsn: int) -> ChangesQuery:
        """The query restricted to the logs that may have LSNs of this range, including both ends."""
        return ChangesQuery(self.events.between(first_lsn, last_lsn), self._shown)

    def standing(self, logs: Container[str]) -> ChangesQuery:
        """The query without the logs of old versions that retention has dropped (`Events.standing`)."""
        return ChangesQuery(self.events.standing(logs), self._shown)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Name and type of each column: the stream's columns of the table, then ours."""
        return (*((column.name, column.type) for column in self._carried()), *CHANGE_COLUMNS)

    @property
    def layout(self) -> Layout:
        """The column types on the wire, and the positions of LSN and partition."""
        names = [name for name, _ in self.columns]
        types = tuple(type_ for _, type_ in self.columns)
        return Layout(types, len(names) - 2, len(names) - 1)

    def sql(self, where: str, commit: Commit | None = None, extra: str = "") -> str:
        """The changes of the log rows that satisfy `where`, in no particular order.

        Args:
            where: predicate on the log's columns (lsn, txid).
            commit: the transaction of all rows, if the caller knows it; None reads `commits`.
            extra: further columns, over `l`.
        """
        queries = [self._part_sql(part, where, commit, extra) for part in self.events.parts]
        return queries[0] if len(queries) == 1 else f"SELECT * FROM ({' UNION ALL '.join(queries)})"

    def _part_sql(self, part: LogEvents, where: str, commit: Commit | None, extra: str) -> str:
        """The changes of one version."""
        assert isinstance(part, EventQuery)
        commit_time = f"make_timestamptz({commit.commit_us})" if commit else "c.commit_time"
        change = (
            "CASE WHEN l.event_op <> 'update' THEN l.event_op WHEN l.after_side "
            "THEN 'update_postimage' ELSE 'update_preimage' END"
        )
        values = (
            *(
                f"{column.collated(self._value(part, column))} AS {ident(column.name)}"
                for column in self._carried()
            ),
            f"{change} AS _change_type",
            "l.txid AS _commit_version",
            f"{commit_time} AS _commit_timestamp",
            "l.lsn AS _lsn",
            f"{part.partition_sql()} AS _partition",
        )
        rows = part.rows(where)
        if part.has_schema_events:
            rows = f"SELECT * FROM ({rows}) WHERE event_op <> 'schema'"
        query = (
            f"SELECT {', '.join(values)}{extra} FROM (SELECT *, unnest({self._sides()}) AS after_side "
            f"FROM ({rows})) AS l"
        )
        return query if commit else f"{query} JOIN {part.commits} AS c ON c.txid = l.txid"

    def wire_sql(self, where: str, commit: Commit | None = None) -> str:
        """The changes as columns c0, c1, .. in the form that `datarow` encodes, in order."""
        names = self._numbered()
        projection = datarow.select_text(self.layout.types) or ", ".join(names)
        return self._ordered(projection, self.sql(where, commit), names)

    def page_sql(
        self, columns: Sequence[str], where: str, whole: str, behind: str, again: Again | None = None
    ) -> str:
        """Columns of the rows behind the starts of a scan, for the wire, in order; as `Events.page_sql`."""
        names = self._numbered()
        projection = datarow.select_text(self.layout.types) or ", ".join(names)
        besides = "" if again is None else self._given(again).sql(again.where)
        return self._page(columns, projection, self.sql(where), names, behind, besides)

    def typed_sql(self, columns: Sequence[str], where: str, behind: str, again: Again | None = None) -> str:
        """The rows of `page_sql` in types that Arrow carries; they also have the hidden column."""
        hidden = (
            f", (2 * l.lsn + CASE WHEN l.event_op = 'update' AND NOT l.after_side THEN 0 ELSE 1 END)"
            f"::BIGINT AS {HIDDEN_PLACE}"
        )
        names = [*self._numbered(), HIDDEN_PLACE]
        items = [
            f"{carrier_sql(name, type_)} AS {name}"
            for name, (_, type_) in zip(names, self.columns, strict=False)
        ]
        projection = ", ".join([*items, HIDDEN_PLACE])
        besides = "" if again is None else self._given(again).sql(again.where, None, hidden)
        return self._page(columns, projection, self.sql(where, None, hidden), names, behind, besides)

    def _given(self, again: Again) -> ChangesQuery:
        return ChangesQuery(again.events, self._shown)

    def relation_sql(self, relation: str, *, hidden: bool) -> str:
        """A relation over rows of `typed_sql` with the table's names and types."""
        columns = zip(self._numbered(), self.columns, strict=True)
        values = [restored_sql(place, type_) for place, (_, type_) in columns]
        items = [f"{value} AS {ident(name)}" for value, name in self._collated(values)]
        if hidden:
            items.append(HIDDEN_PLACE)
        return f"(SELECT {', '.join(items)} FROM {relation})"

    def empty_sql(self) -> str:
        """A relation without rows, for DuckDB's binder."""
        nulls = [f"NULL::{type_}" for _, type_ in self.columns]
        items = ", ".join(f"{value} AS {ident(name)}" for value, name in self._collated(nulls))
        return f"(SELECT {items} WHERE false)"

    def _collated(self, values: Sequence[str]) -> list[tuple[str, str]]:
        """The values of all columns in the table's collations, and the columns' names."""
        carried = [
            (column.collated(value), column.name)
            for value, column in zip(values, self._carried(), strict=False)
        ]
        own = zip(values[len(carried) :], (name for name, _ in CHANGE_COLUMNS), strict=True)
        return [*carried, *own]

    def view_sql(self, name: str) -> str:
        """CREATE VIEW of all retained changes."""
        return f"CREATE VIEW {name} AS {self.sql(self.events.edge_sql())}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in a page."""
        return tuple(self._numbered())

    def _numbered(self) -> list[str]:
        return [f"c{place}" for place in range(len(self.columns))]

    def _page(
        self,
        columns: Sequence[str],
        projection: str,
        sql: str,
        names: Sequence[str],
        behind: str,
        besides: str,
    ) -> str:
        where = f" WHERE {behind}"
        if besides:
            sql, where = f"SELECT * FROM ({sql}) AS r({', '.join(names)}){where} UNION ALL {besides}", ""
        return f"SELECT {', '.join(columns)} FROM ({self._ordered(projection, sql, names, where)})"

    def _ordered(self, projection: str, sql: str, names: Sequence[str], where: str = "") -> str:
        lsn, change_type = names[self.layout.lsn], names[self.layout.lsn - 3]
        # 'update_preimage' sorts behind 'update_postimage'.
        return (
            f"SELECT {projection} FROM ({sql}) AS r({', '.join(names)}){where} "
            f"ORDER BY r.{lsn}, r.{change_type} DESC"
        )

    def _carried(self) -> list[Column]:
        """The columns that are shown."""
        carried_names = set(self.stream.columns)
        return [column for column in self.captured.shape.stored if column.name in carried_names]

    def _value(self, part: EventQuery, column: Column) -> str:
        """A shown column in the log row of one version; NULL if that version did not have it."""
        shape, ids = self.captured.shape, part.captured.present.ids
        number = self.captured.present.ids[shape.place(column.name)]
        if number not in ids:
            return f"NULL::{column.type}"
        place = ids.index(number) + 1
        if self.stream.before == "full" or column.name in shape.primary_key:
            value = f"CASE WHEN l.after_side THEN l.n{place} ELSE l.o{place} END"
        else:
            value = f"CASE WHEN l.after_side THEN l.n{place} END"
        if part.captured.shape.stored[place - 1].type == column.type:
            return value
        return f"TRY_CAST({value} AS {column.type})"

    def _sides(self) -> str:
        """The images that an event shows, in order: false for the old row, true for the new one."""
        update = "[true]" if self.stream.before == "none" else "[false, true]"
        return f"CASE event_op WHEN 'update' THEN {update} WHEN 'delete' THEN [false] ELSE [true] END"
