"""The division of a user's DML into the description that engine.capture takes, with MERGE and its clauses.

The pieces are slices of the user's own text: DML that is regenerated from a syntax tree changes its meaning
(`SET v = default` becomes a column). DuckDB has bound the text before, so a form that is unknown here is one
that capture does not support, and the statement raises 0A000; there is no guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb

from ...engine.capture.capture import Action, Conflict, Dml, Match, Merge, MergeClause, Verb
from ...engine.errors import NotSupported
from ...engine.quoting import fold
from ..text.classified import Classified, Kind, TokenReader
from ..text.tokens import Token
from .cut import QUERY_WORDS, ColumnsOf, Cut

MERGE_ACTION = "merge_action"

# Words of a source whose rows may differ between two reads: choosing, numbering and aggregating rows follow
# no guaranteed order.
_UNSTEADY_WORDS = frozenset(
    {"DISTINCT", "LIMIT", "OFFSET", "FETCH", "SAMPLE", "TABLESAMPLE", "ORDER", "GROUP", "HAVING", "OVER"}
    | {"WINDOW", "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "PIVOT", "PIVOT_WIDER", "PIVOT_LONGER"}
    | {"UNPIVOT", "ASOF", "POSITIONAL", "RECURSIVE", "WITH", "SUMMARIZE", "DESCRIBE", "SHOW", "LATERAL"}
)
_NEEDS_ALIAS = "Give the source one: USING (SELECT ...) AS s."


def merge(cut: Cut, columns_of: ColumnsOf | None) -> Dml:
    """Divide a MERGE.

    Args:
        columns_of: returns the names of the source's columns, where a clause takes all of them.

    Raises:
        NotSupported: the names of those columns cannot be determined.
        SyntaxError_: DuckDB's parser does not accept the text.
    """
    cut.head("INTO")
    reader = cut.reader
    if not reader.accept("USING"):
        raise reader.unexpected()
    end = min(cut.returning_at, cut.end)
    starts = _clause_starts(cut, reader.index, end)
    first, on_at = reader.index, _join_at(cut, reader.index, starts[0])
    clauses = tuple(_clause(cut, a, b) for a, b in zip(starts, [*starts[1:], end], strict=True))
    source = reader.cut(first, on_at)
    name, alias_at = _source_name(cut, first, on_at)
    columns: tuple[str, ...] = ()
    if any(clause.star is not None for clause in clauses):
        columns = _source_columns(cut.with_text, source, name, columns_of)
    tokens = cut.tokens[first:on_at]
    # `s` in `AS s(a, b)` is no function.
    source_calls = cut.calls(first, alias_at) | cut.calls(alias_at + 1, on_at)
    return replace(
        cut.dml(Verb.MERGE, virtual=MERGE_ACTION),
        row_count=_row_count(reader, first),
        calls=source_calls | cut.calls(on_at, end),
        has_subquery=cut.has_subquery(on_at, end),
        merge=Merge(
            source=source,
            source_name=name,
            source_columns=columns,
            is_join=cut.find("JOIN", first, on_at) < on_at,
            on=reader.cut(on_at, starts[0]),
            clauses=clauses,
            plain_source=not any(token.kind in _UNSTEADY_WORDS for token in tokens),
            source_words=frozenset(fold(token.name) for token in tokens if token.is_name),
            source_calls=source_calls,
            on_calls=cut.calls(on_at, starts[0]),
        ),
    )


def _row_count(reader: TokenReader, first: int) -> int | None:
    """The number of rows of a literal source: VALUES in parentheses, or SELECT without FROM."""
    reader.index = first
    if reader.peek() != "(":
        return None
    inside, last = reader.brackets()
    tokens = reader.tokens[inside:last]
    if any(token.kind == "FROM" for token in tokens):
        return None
    return len(reader.slices(inside + 1, last)) if tokens and tokens[0].kind == "VALUES" else 1


def _clause_starts(cut: Cut, first: int, end: int) -> list[int]:
    starts = []
    at = cut.find("WHEN", first, end)
    while at < end:
        starts.append(at)
        at = cut.find("WHEN", at + 1, end)
    if not starts:
        cut.reader.index = end
        raise cut.reader.unexpected()
    cut.refuse_positions(starts[0], end)
    return starts


def _join_at(cut: Cut, first: int, end: int) -> int:
    """Index of the ON or USING of the MERGE itself: the last one, because the source may be a join."""
    tokens = cut.tokens
    for at in range(end - 1, first, -1):
        token = tokens[at]
        if token.depth == 0 and token.cases == 0 and token.kind in ("ON", "USING"):
            return at
    cut.reader.index = end
    raise cut.reader.unexpected()


def _source_name(cut: Cut, first: int, end: int) -> tuple[str | None, int]:
    """The name of a source of one table, function or subquery, as SQL, and the position of its alias."""
    reader = TokenReader(cut.text, cut.tokens[:end], first)
    if reader.peek(1) == ":":
        return reader.cut(first, first + 1), first
    name: int | None = None
    if reader.peek() == "(":
        reader.brackets()
    else:
        reader.qualified()
        name = reader.index - 1
        if reader.peek() == "(":
            reader.brackets()
    reader.accept("AS")
    alias = end
    if not reader.at_end and reader.tokens[reader.index].is_name:
        name = alias = reader.index
        reader.take()
        if reader.peek() == "(":
            reader.brackets()
    if not reader.at_end or name is None:
        return None, end
    return reader.cut(name, name + 1), alias


def _source_columns(
    with_text: str, source: str, name: str | None, columns_of: ColumnsOf | None
) -> tuple[str, ...]:
    """The names of the source's columns, each of them unique under the source's name."""
    names: tuple[str, ...] = ()
    if name is not None and columns_of is not None:
        try:
            names = columns_of(f"{with_text} SELECT {name}.* FROM {source}")
        except duckdb.Error:
            names = ()  # the columns are not known under this name
    if not names or len({fold(column) for column in names}) < len(names):
        raise NotSupported(
            "MERGE takes all columns only of a source with a name, none of whose columns share theirs",
            hint=_NEEDS_ALIAS,
        )
    return names


_MATCHES = (
    (("MATCHED",), Match.MATCHED),
    (("NOT", "MATCHED", "BY", "SOURCE"), Match.NOT_BY_SOURCE),
    (("NOT", "MATCHED", "BY", "TARGET"), Match.NOT_BY_TARGET),
    (("NOT", "MATCHED"), Match.NOT_BY_TARGET),
)


def _clause(cut: Cut, first: int, end: int) -> MergeClause:
    """Divide `WHEN ... THEN ...`."""
    reader = cut.reader
    reader.index = first + 1
    match = next((match for words, match in _MATCHES if reader.accept(*words)), None)
    then_at = cut.find("THEN", reader.index, end)
    if match is None or then_at >= end:
        raise reader.unexpected()
    condition, calls = None, frozenset[str]()
    if reader.accept("AND"):
        condition = reader.cut(reader.index, then_at)
        calls = cut.calls(reader.index, then_at)
    reader.index = then_at + 1
    verb = reader.take().kind
    action = next((action for action in Action if action.value.upper().split()[0] == verb), None)
    if action is None:
        reader.index -= 1
        raise reader.unexpected()
    return _ACTIONS[action](cut, end, MergeClause(match, action, condition, calls))


def _updates(cut: Cut, end: int, clause: MergeClause) -> MergeClause:
    reader = cut.reader
    if reader.accept("SET"):
        if reader.peek() != "*":
            return replace(clause, sets=cut.assignments(reader.index, end, proposed=False))
        reader.take()
    return replace(clause, star=_order(reader))


def _order(reader: TokenReader) -> str:
    """Read BY NAME or BY POSITION, and a star; the default is by position."""
    by_name = reader.accept("BY", "NAME")
    reader.accept("BY", "POSITION")
    reader.accept("*")
    return "name" if by_name else "position"


def _inserts(cut: Cut, end: int, clause: MergeClause) -> MergeClause:
    reader = cut.reader
    if reader.accept("DEFAULT", "VALUES"):
        return replace(clause, columns=())
    columns: tuple[str, ...] | None = None
    if reader.peek() == "(":
        first, last = reader.brackets()
        columns = tuple(cut.tokens[a].name for a, _ in reader.slices(first, last))
    if reader.accept("VALUES"):
        first, last = reader.brackets()
        values = tuple(cut.value(a, b, proposed=False) for a, b in reader.slices(first, last))
        return replace(clause, columns=columns, values=values)
    return replace(clause, star=_order(reader))


def _errors(cut: Cut, end: int, clause: MergeClause) -> MergeClause:
    return replace(clause, message=cut.cut(cut.reader.index, end))


def _as_it_is(cut: Cut, end: int, clause: MergeClause) -> MergeClause:
    return clause


_ACTIONS = {
    Action.UPDATE: _updates,
    Action.INSERT: _inserts,
    Action.DELETE: _as_it_is,
    Action.NOTHING: _as_it_is,
    Action.ERROR: _errors,
}


# Words that make a query choose, group, number or order its rows, anywhere in it.
_PICKING_WORDS = frozenset(
    {"DISTINCT", "GROUP", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "FETCH", "ORDER", "UNION", "INTERSECT"}
    | {"EXCEPT", "SAMPLE", "TABLESAMPLE", "OVER", "WINDOW", "PIVOT", "UNPIVOT"}
)
# The virtual column of DELETE ... RETURNING.
_ROWID = "rowid"


def slice_dml(statement: Classified, schema: str, columns_of: ColumnsOf | None = None) -> Dml:
    """Divide one INSERT, UPDATE, DELETE, TRUNCATE or MERGE on a captured table.

    Args:
        statement: the classified statement, of any kind that writes a captured table.
        schema: the schema that the target's name resolves to, for RETURNING schema.table.column.
        columns_of: returns the names of a query's columns; without it, statements that need them are not
            supported.

    Raises:
        NotSupported: capture does not support the statement; the message names an alternative.
        SyntaxError_: DuckDB's parser does not accept the text.
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
    reader.accept("OVERRIDING", "SYSTEM", "VALUE")
    by_name = reader.accept("BY", "NAME")
    reader.accept("BY", "POSITION")
    end = min(cut.returning_at, cut.end)
    first = reader.index
    at_conflict = conflict_at(cut, first, end)
    conflict = _conflict(cut, at_conflict, end)
    if choice == "REPLACE":
        conflict = Conflict(target=None, sets=(), where=None, replaces=True)
    ranges = row_ranges(cut, first, at_conflict)
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

    A query that may return other rows the second time, because it chooses or orders them, is excluded.
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


def row_ranges(cut: Cut, first: int, end: int) -> list[tuple[int, int]] | None:
    """The token ranges of the rows of VALUES; DEFAULT VALUES has one empty row.

    None if the source is a query, or has more than rows (ORDER BY, UNION, ...).
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
    """Divide ON CONFLICT; DO NOTHING returns None, because nothing is updated."""
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
    """Lower-case names before a top-level `=` or IN; empty if a top-level OR widens the predicate."""
    top = [i for i in range(first, end) if tokens[i].depth == 0]
    if any(tokens[i].kind == "OR" for i in top):
        return frozenset()
    return frozenset(
        fold(tokens[i - 1].name) for i in top if tokens[i].kind in ("=", "IN") and tokens[i - 1].is_name
    )


_CUTTERS = {"INSERT": _insert, "UPDATE": _update, "DELETE": _delete, "TRUNCATE": _truncate, "MERGE": merge}
