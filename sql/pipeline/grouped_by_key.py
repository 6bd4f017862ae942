"""Columns that a query may select because it groups by the primary key of their table.

In PostgreSQL a column of a table depends on the table's primary key: `SELECT a.id, a.name, count(*) FROM a
JOIN b ... GROUP BY a.id` is valid, and object-relational mappers group so. DuckDB requires each column in the
list. The missing ones are appended to it: as they depend on the key, the groups are the same.

Source: PostgreSQL documentation, "SELECT", "GROUP BY Clause"; docs/sql.md, "Grouping by a key".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.duck.objects import TABLE
from ...engine.duck.table_shape import key_and_columns
from ...engine.quoting import fold, ident
from ..session_state.context import Context
from ..text.spans import Replacement
from ..text.tokens import NUMBER, Token, closing

_ENDS_LIST = frozenset({"HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR"})
_ENDS_SELECT = frozenset({"UNION", "EXCEPT", "INTERSECT", "LIMIT", "OFFSET", "FETCH", "FOR", ";"})
_BETWEEN = frozenset({"UNION", "EXCEPT", "INTERSECT", ";"})
# Lists that are no list of columns.
_OTHER_LISTS = frozenset({"ALL", "ROLLUP", "CUBE", "GROUPING"})
# What may follow the name of a table in FROM and is no alias.
_NO_ALIAS = frozenset(
    {"ON", "USING", "WHERE", "GROUP", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "LATERAL"}
    | {"OUTER", "ANTI", "SEMI", "ASOF", "POSITIONAL", "TABLESAMPLE", "PIVOT", "UNPIVOT", "STREAM"}
)
# Columns inside calls of these need not be in the list.
_AGGREGATES = frozenset(
    {"count", "sum", "min", "max", "avg", "array_agg", "string_agg", "bool_and", "bool_or", "every", "list"}
    | {"json_agg", "jsonb_agg", "any_value", "first", "last", "stddev", "variance", "stddev_pop", "var_pop"}
    | {"stddev_samp", "var_samp", "median", "mode", "corr", "arg_min", "arg_max", "json_object_agg"}
)

Reference = tuple[str, str]  # The table's alias, or "" without one, and the column; both folded.


def may_group(folded: str) -> bool:
    """True if a folded text may have a GROUP BY."""
    return "group" in folded and "select" in folded


def grouped_columns(session: Context, tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The insertions that complete the GROUP BY lists of a text."""
    for at in range(len(tokens) - 2):
        if tokens[at].kind == "GROUP" and tokens[at + 1].kind == "BY":
            yield from _completed(session, tokens, at)


def _completed(session: Context, tokens: Sequence[Token], group: int) -> Iterator[Replacement]:
    """The insertion for one GROUP BY, if it lacks columns."""
    depth = tokens[group].depth
    select = _select_of(tokens, group, depth)
    if select is None:
        return
    end = _first(tokens, group + 2, depth, _ENDS_LIST | _BETWEEN)
    if any(tokens[i].kind in _OTHER_LISTS for i in _own(tokens, group + 2, end, depth)):
        return
    start = next(
        (
            i
            for i in _own(tokens, select, group, depth)
            if tokens[i].kind == "FROM" and tokens[i - 1].kind != "DISTINCT"
        ),
        None,
    )
    if start is None:
        return
    selected = [_reference(tokens[a:b]) for a, b in _items(tokens, select + 1, start, depth)]
    listed = set()
    for a, b in _items(tokens, group + 2, end, depth):
        if b - a == 1 and tokens[a].kind == NUMBER:
            place = tokens[a].text
            found = selected[int(place) - 1] if place.isdigit() and 0 < int(place) <= len(selected) else None
        else:
            found = _reference(tokens[a:b])
        listed.add(found)
    tables = dict(
        _tables(tokens, start, _first(tokens, start + 1, depth, frozenset({"WHERE", "GROUP"})), depth)
    )
    queries = set(_queries(tokens))
    tables = {
        alias: () if len(parts) == 1 and fold(parts[0]) in queries else parts
        for alias, parts in tables.items()
    }
    used = list(_used(tokens, select + 1, start))
    used += _used(tokens, end, _first(tokens, end, depth, _ENDS_SELECT))
    missing = [found for found in dict.fromkeys(used) if found not in listed]
    if missing and (names := _dependent(session, tables, listed, missing)):
        last = tokens[end - 1].end
        yield Replacement(last, last, ", " + ", ".join(names))


def _dependent(
    session: Context,
    tables: dict[str, tuple[str, ...]],
    listed: set[Reference | None],
    missing: Sequence[Reference],
) -> list[str]:
    """Those of the missing columns, as SQL, whose table's primary key is in the list."""
    names: list[str] = []
    for alias, parts in tables.items():
        mine = [found for found in missing if found[0] == alias or (not found[0] and len(tables) == 1)]
        table = session.names.resolver.find(TABLE, parts) if mine else None
        if table is None:
            continue
        cursor = session.cursor if table.temporary else session.names.cursor()
        key, columns = key_and_columns(cursor, table)
        prefixes = (alias, "") if len(tables) == 1 else (alias,)
        if not key or not all(any((prefix, column) in listed for prefix in prefixes) for column in key):
            continue
        names += (
            f"{ident(alias)}.{ident(column)}"
            for column in dict.fromkeys(column for _, column in mine)
            if column in columns and not any((prefix, column) in listed for prefix in prefixes)
        )
    return names


def _queries(tokens: Sequence[Token]) -> Iterator[str]:
    """The names that WITH gives to queries, which hide tables."""
    for at, token in enumerate(tokens):
        if token.is_name and at and tokens[at - 1].kind in ("WITH", "RECURSIVE", ","):
            behind = at + 1
            if behind < len(tokens) and tokens[behind].kind == "(":
                behind = closing(tokens, behind) + 1
            if behind < len(tokens) and tokens[behind].kind in ("AS", "USING"):
                yield fold(token.name)


def _own(tokens: Sequence[Token], first: int, end: int, depth: int) -> Iterator[int]:
    """The places of a span that are at this depth."""
    return (i for i in range(first, end) if tokens[i].depth == depth)


def _first(tokens: Sequence[Token], at: int, depth: int, kinds: frozenset[str]) -> int:
    """The first place from here at this depth with one of these kinds, or the end of the query."""
    for i in range(at, len(tokens)):
        if tokens[i].depth < depth or (tokens[i].depth == depth and tokens[i].kind in kinds):
            return i
    return len(tokens)


def _select_of(tokens: Sequence[Token], group: int, depth: int) -> int | None:
    """The place of the SELECT to which a GROUP BY belongs; None for one behind another, which is an error."""
    for i in range(group - 1, -1, -1):
        if tokens[i].depth < depth or (tokens[i].depth == depth and tokens[i].kind in _BETWEEN):
            return None
        if tokens[i].depth == depth and tokens[i].kind == "GROUP" and tokens[i + 1].kind == "BY":
            return None
        if tokens[i].depth == depth and tokens[i].kind == "SELECT":
            return i
    return None


def _items(tokens: Sequence[Token], first: int, end: int, depth: int) -> Iterator[tuple[int, int]]:
    """The spans between the commas of a list."""
    for i in _own(tokens, first, end, depth):
        if tokens[i].kind == ",":
            yield first, i
            first = i + 1
    if first < end:
        yield first, end


def _reference(item: Sequence[Token]) -> Reference | None:
    """The column that an item of a list is, with or without an alias; None if it is another expression."""
    if not item or not item[0].is_name:
        return None
    width = 3 if len(item) > 2 and item[1].kind == "." and item[2].is_name else 1
    rest = item[width:]
    if rest and rest[0].kind == "AS":
        rest = rest[1:]
    if len(rest) > 1 or any(not token.is_name for token in rest):
        return None
    return ("" if width == 1 else fold(item[0].name), fold(item[width - 1].name))


def _tables(
    tokens: Sequence[Token], start: int, end: int, depth: int
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Alias and name of each table in a FROM clause; a name of () stands for anything else."""
    for i in range(start, end):
        token = tokens[i]
        if token.depth != depth or token.kind not in ("FROM", "JOIN", ","):
            continue
        at = i + 1
        parts = []
        while at < end and tokens[at].is_name and tokens[at].kind not in _NO_ALIAS:
            parts.append(tokens[at].name)
            if at + 2 >= end or tokens[at + 1].kind != ".":
                break
            at += 2
        if not parts or (at + 1 < end and tokens[at + 1].kind == "("):
            yield f"\0{i}", ()
            continue
        at += 2 if at + 1 < end and tokens[at + 1].kind == "AS" else 1
        aliased = at < end and tokens[at].is_name and tokens[at].kind not in _NO_ALIAS
        yield fold(tokens[at].name if aliased else parts[-1]), tuple(parts)


def _used(tokens: Sequence[Token], first: int, end: int) -> Iterator[Reference]:
    """The columns that a span may name outside of aggregates and queries."""
    at = first
    while at < end:
        token = tokens[at]
        behind = tokens[at + 1].kind if at + 1 < len(tokens) else ""
        if token.is_name and behind == "(" and fold(token.name) in _AGGREGATES:
            at = closing(tokens, at + 1)
        elif token.kind == "(" and behind in ("SELECT", "WITH", "FROM"):
            at = closing(tokens, at)
        elif token.is_name and behind == "." and at + 2 < end and tokens[at + 2].is_name:
            yield fold(token.name), fold(tokens[at + 2].name)
            at += 2
        elif token.is_name and behind not in ("(", ".") and tokens[at - 1].kind not in ("AS", ".", "::"):
            yield "", fold(token.name)
        at += 1
