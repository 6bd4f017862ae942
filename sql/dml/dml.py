"""Cuts the user's DML into the description that engine.capture takes.

The pieces are slices of the user's own text: DML that is regenerated from a syntax tree changes its
meaning (`SET v = default` becomes a column). DuckDB has bound the text before, so a form that is
not known here is a form that capture does not support, and the answer is 0A000, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...engine.capture.capture import Conflict, Dml, Verb
from ...engine.errors import NotSupported
from ...engine.quoting import fold
from ..text.classified import Classified, Kind
from ..text.tokens import Token
from .cut import QUERY_WORDS, ColumnsOf, Cut
from .merge import merge

# Words that make a query pick, group, number or order its rows, wherever they stand in it.
_PICKING_WORDS = frozenset(
    {"DISTINCT", "GROUP", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "FETCH", "ORDER", "UNION", "INTERSECT"}
    | {"EXCEPT", "SAMPLE", "TABLESAMPLE", "OVER", "WINDOW", "PIVOT", "UNPIVOT"}
)
# The virtual column of DELETE ... RETURNING.
_ROWID = "rowid"


def slice_dml(statement: Classified, schema: str, columns_of: ColumnsOf | None = None) -> Dml:
    """Cut one INSERT, UPDATE, DELETE, TRUNCATE or MERGE on a captured table.

    Args:
        statement: what `classify` said of it; any kind that writes a captured table may be given.
        schema: the schema that the target's name resolves to, for RETURNING schema.table.column.
        columns_of: gives the names of a query's columns; without it the statements that go by them
            are not supported.

    Raises:
        NotSupported: 0A000 for what capture does not support, with what to write instead.
        SyntaxError_: 42601 where the text is not what DuckDB's parser lets through.
    """
    _refuse_what_is_not_captured(statement)
    assert statement.dml is not None
    cut = Cut(statement, statement.dml, schema)
    return _CUTTERS[statement.verb](cut, columns_of)


def _refuse_what_is_not_captured(statement: Classified) -> None:
    if statement.kind is not Kind.DML:
        raise NotSupported(
            f"{statement.verb} cannot write a table with a stream",
            hint="INSERT, UPDATE, DELETE, MERGE and TRUNCATE can.",
        )


def _insert(cut: Cut, columns_of: ColumnsOf | None) -> Dml:
    choice = cut.head("INTO")
    reader = cut.reader
    columns = column_list(cut)
    if reader.accept("OVERRIDING"):
        raise NotSupported("OVERRIDING is not supported on a table with a stream")
    by_name = reader.accept("BY", "NAME")
    reader.accept("BY", "POSITION")
    end = min(cut.returning_at, cut.end)
    first = reader.index
    at_conflict = conflict_at(cut, first, end)
    conflict = _conflict(cut, at_conflict, end)
    if choice == "REPLACE":
        conflict = Conflict(target=None, sets=(), where=None, replaces=True)
    ranges = _row_ranges(cut, first, at_conflict)
    rows: tuple[tuple[str | None, ...], ...] | None = None
    query: str | None = None
    query_from: tuple[str, ...] = ()
    if conflict is None and at_conflict == end and choice is None and not cut.with_text:
        query_from = _query_from(cut, first, end)
        query = cut.cut(first, end) if query_from else None
    if conflict is not None:
        if ranges is not None:
            rows = tuple(_row(cut, *each) for each in ranges)
        else:
            query = cut.cut(first, at_conflict)
            if by_name:
                columns = _columns_by_name(f"{cut.with_text} {query}", columns_of)
    return replace(
        cut.dml(Verb.INSERT, by_alias=conflict is not None),
        columns=columns,
        by_name=by_name,
        row_count=None if ranges is None else len(ranges),
        rows=rows,
        query=query,
        query_from=query_from,
        conflict=conflict,
        calls=cut.calls(first, end) - {"conflict"},
        has_subquery=cut.has_subquery(first + 1, end),
    )


def _query_from(cut: Cut, first: int, end: int) -> tuple[str, ...]:
    """The table of `SELECT ... FROM table [AS alias] [WHERE ...]`; () for any other query.

    Whatever could give other rows the second time, by picking or ordering them, is more.
    """
    tokens = cut.tokens
    if first >= end or tokens[first].kind != "SELECT" or cut.has_subquery(first + 1, end):
        return ()
    picking = (index for index in range(first, end) if tokens[index].kind in _PICKING_WORDS)
    if any(not cut.is_distinct_from(index + 1) for index in picking):
        return ()
    from_at = cut.find("FROM", first, end)
    where_at = cut.find("WHERE", from_at, end)
    at = from_at + 1
    name: list[str] = []
    while at < where_at and tokens[at].is_name:
        name.append(tokens[at].name)
        at += 2 if at + 1 < where_at and tokens[at + 1].kind == "." else 1
        if tokens[at - 1].kind != ".":
            break
    if at < where_at and tokens[at].kind == "AS":
        at += 1
    if at == where_at - 1 and tokens[at].is_name:
        at += 1
    return tuple(name) if name and at == where_at else ()


def _columns_by_name(query: str, columns_of: ColumnsOf | None) -> tuple[str, ...]:
    if columns_of is None:
        raise NotSupported(
            "INSERT BY NAME with ON CONFLICT DO UPDATE is not supported here",
            hint="Name the columns: INSERT INTO t (a, b) SELECT ...",
        )
    return columns_of(query)


def column_list(cut: Cut) -> tuple[str, ...] | None:
    """Read the column list, if the next parenthesis is one and not a query."""
    reader = cut.reader
    if reader.peek() != "(":
        return None
    inside = reader.index + 1
    while cut.tokens[inside].kind == "(" and inside + 1 < cut.end:
        inside += 1
    follows = cut.tokens[inside + 1].kind if inside + 1 < cut.end else ""
    if cut.tokens[inside].kind in QUERY_WORDS and follows not in (",", ")"):
        return None
    first, last = reader.brackets()
    return tuple(cut.tokens[a].name for a, _ in reader.slices(first, last))


def conflict_at(cut: Cut, first: int, end: int) -> int:
    """Index of the ON of ON CONFLICT, or the end."""
    at = cut.find("ON", first, end)
    while at < end and cut.tokens[at + 1].kind != "CONFLICT":
        at = cut.find("ON", at + 1, end)
    return at


def _row_ranges(cut: Cut, first: int, end: int) -> list[tuple[int, int]] | None:
    """The token ranges of the rows of VALUES, of DEFAULT VALUES an empty one.

    None where a query is the source, or where more than rows stands there (ORDER BY, UNION, ...).
    """
    kind = cut.tokens[first].kind if first < end else ""
    if kind == "DEFAULT":
        return [(first, first)]
    if kind != "VALUES":
        return None
    ranges = cut.reader.slices(first + 1, end)
    are_rows = all(a < b and cut.tokens[a].kind == "(" and cut.closes(a, b) for a, b in ranges)
    return ranges if are_rows else None


def _row(cut: Cut, first: int, end: int) -> tuple[str | None, ...]:
    parts = cut.reader.slices(first + 1, end - 1) if first < end else []
    return tuple(cut.value(a, b, proposed=False) for a, b in parts)


def _conflict(cut: Cut, at: int, end: int) -> Conflict | None:
    """Cut ON CONFLICT; DO NOTHING gives None, for nothing is updated."""
    if at >= end:
        return None
    reader = cut.reader
    reader.index = at + 2
    target: tuple[str, ...] | None = None
    if reader.peek() == "(":
        first, last = reader.brackets()
        target = tuple(cut.tokens[a].name for a, _ in reader.slices(first, last))
    if not reader.accept("DO"):
        raise NotSupported("this form of ON CONFLICT is not supported on a table with a stream")
    if reader.accept("NOTHING"):
        return None
    if not reader.accept("UPDATE", "SET"):
        raise reader.unexpected()
    where_at = cut.find("WHERE", reader.index, end)
    first, has_where = reader.index, where_at < end
    cut.refuse_positions(first, end)
    return Conflict(
        target=target,
        sets=cut.assignments(first, where_at, proposed=True),
        where=cut.expression(where_at + 1, end, proposed=True) if has_where else None,
        replaces=False,
        sets_as_written=cut.assignments(first, where_at, proposed=False),
        where_as_written=cut.cut(where_at + 1, end),
    )


def _update(cut: Cut, columns_of: ColumnsOf | None) -> Dml:
    cut.head()
    reader = cut.reader
    if not reader.accept("SET"):
        raise reader.unexpected()
    first = reader.index
    end = min(cut.returning_at, cut.end)
    where_at = cut.find("WHERE", first, end)
    from_at = cut.find("FROM", first, where_at)
    if from_at < where_at:
        cut.refuse_positions(first, from_at)
        cut.refuse_positions(where_at, end)
    return replace(
        cut.dml(Verb.UPDATE),
        sets=cut.assignments(first, from_at, proposed=False),
        source=cut.cut(from_at + 1, where_at),
        where=cut.cut(where_at + 1, end),
        equal_columns=_equal_columns(cut.tokens, where_at + 1, end),
        calls=cut.calls(first, end),
        has_subquery=cut.has_subquery(first, end),
    )


def _delete(cut: Cut, columns_of: ColumnsOf | None) -> Dml:
    cut.head("FROM")
    end = min(cut.returning_at, cut.end)
    where_at = cut.find("WHERE", cut.reader.index, end)
    return replace(
        cut.dml(Verb.DELETE, virtual=_ROWID),
        where=cut.cut(where_at + 1, end),
        equal_columns=_equal_columns(cut.tokens, where_at + 1, end),
    )


def _truncate(cut: Cut, columns_of: ColumnsOf | None) -> Dml:
    cut.head("TABLE")
    cut.reader.expect_end()
    return replace(cut.dml(Verb.DELETE), text=f"DELETE FROM {cut.target}")


def _equal_columns(tokens: Sequence[Token], first: int, end: int) -> frozenset[str]:
    """Lower-case names before a top-level `=` or IN; none where a top-level OR widens the predicate."""
    top = [i for i in range(first, end) if tokens[i].depth == 0]
    if any(tokens[i].kind == "OR" for i in top):
        return frozenset()
    return frozenset(
        fold(tokens[i - 1].name) for i in top if tokens[i].kind in ("=", "IN") and tokens[i - 1].is_name
    )


_CUTTERS = {"INSERT": _insert, "UPDATE": _update, "DELETE": _delete, "TRUNCATE": _truncate, "MERGE": merge}
