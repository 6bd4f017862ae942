"""Cuts MERGE: its source, its join and its WHEN clauses, each piece the user's own text."""

from __future__ import annotations

from dataclasses import replace

import duckdb

from ...engine.capture.capture import Action, Dml, Match, Merge, MergeClause, Verb
from ...engine.errors import NotSupported
from ...engine.quoting import fold
from ..text.classified import TokenReader
from .cut import ColumnsOf, Cut

MERGE_ACTION = "merge_action"

# Words of a source whose rows may differ from one reading to the next: what chooses rows, numbers
# them or folds many into one does so in no promised order.
_UNSTEADY_WORDS = frozenset(
    {"DISTINCT", "LIMIT", "OFFSET", "FETCH", "SAMPLE", "TABLESAMPLE", "ORDER", "GROUP", "HAVING", "OVER"}
    | {"WINDOW", "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "PIVOT", "PIVOT_WIDER", "PIVOT_LONGER"}
    | {"UNPIVOT", "ASOF", "POSITIONAL", "RECURSIVE", "WITH", "SUMMARIZE", "DESCRIBE", "SHOW", "LATERAL"}
)
_NEEDS_ALIAS = "Give the source one: USING (SELECT ...) AS s."


def merge(cut: Cut, columns_of: ColumnsOf | None) -> Dml:
    """Cut a MERGE.

    Args:
        columns_of: asked where a clause takes the source's columns as they are.

    Raises:
        NotSupported: those columns cannot be told.
        SyntaxError_.
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
    # `s` of `AS s(a, b)` is no function.
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
    """The rows of a source that is written out: VALUES in brackets, or SELECT without FROM."""
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
    """Index of the ON or USING of the MERGE itself: the last one, for the source may be a join."""
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
    """The names of the source's columns, each of them told apart by the source's name."""
    names: tuple[str, ...] = ()
    if name is not None and columns_of is not None:
        try:
            names = columns_of(f"{with_text} SELECT {name}.* FROM {source}")
        except duckdb.Error:
            names = ()  # the name is not what its columns are known by
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
    """Cut `WHEN ... THEN ...`."""
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
    """Read BY NAME or BY POSITION and a star; the default is by position."""
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
