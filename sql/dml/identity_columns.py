"""Refusal of values for columns that are GENERATED ALWAYS AS IDENTITY, as in PostgreSQL.

The kind of a column is in its default (engine/duck/identities.py). A statement is examined only in a database
that has such a column, and then only if its table has one. COPY takes given values, as in PostgreSQL.
Source: PostgreSQL documentation, "INSERT", OVERRIDING.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.capture.capture import Action
from ...engine.duck.identities import ALWAYS, has_always, own_sequences
from ...engine.duck.objects import TABLE, Object
from ...engine.errors import GeneratedAlways
from ...engine.quoting import fold
from ..session_state.context import Context
from ..text.classified import Classified
from .cut import Cut
from .dml import column_list, conflict_at, row_ranges, slice_dml

_AFTER_SET = frozenset({"WHERE", "FROM", "RETURNING", "WHEN"})
_HINT = "Use OVERRIDING SYSTEM VALUE to override."


def refuse_given_values(session: Context, classified: Classified) -> None:
    """Refuse a write that gives a value for an identity column that is always generated.

    Raises:
        GeneratedAlways: the write gives such a value.
    """
    facts = classified.dml
    assert facts is not None
    if classified.verb in ("DELETE", "TRUNCATE"):
        return
    table = session.names.resolver.find(TABLE, facts.target)
    if table is None or not has_always(table):
        return
    cursor = session.cursor if table.temporary else session.names.cursor()
    always = {fold(name) for name, (kind, _) in own_sequences(cursor, table).items() if kind == ALWAYS}
    cut = Cut(classified, facts, session.names.schema)
    inserted = {
        "INSERT": lambda: _inserted(session, cut, table),
        "MERGE": lambda: _merged(session, classified, table),
    }
    for column in inserted.get(classified.verb, tuple)():
        if fold(column) in always:
            raise GeneratedAlways(
                f'cannot insert a non-DEFAULT value into column "{column}"',
                detail=_detail(column),
                hint=_HINT,
            )
    for column in _assigned(cut):
        if fold(column) in always:
            raise GeneratedAlways(f'column "{column}" can only be updated to DEFAULT', detail=_detail(column))


def _detail(column: str) -> str:
    return f'Column "{column}" is an identity column defined as GENERATED ALWAYS.'


def _columns(session: Context, table: Object) -> list[str]:
    cursor = session.cursor if table.temporary else session.names.cursor()
    return [str(found[0]) for found in cursor.execute(f"FROM {table.in_full} LIMIT 0").description or []]


def _inserted(session: Context, cut: Cut, table: Object) -> Iterator[str]:
    """The columns for which an INSERT gives values other than DEFAULT."""
    cut.head("INTO")
    listed, reader = column_list(cut), cut.reader
    if reader.accept("OVERRIDING", "SYSTEM", "VALUE"):
        return
    if reader.accept("BY", "NAME"):
        return
    reader.accept("BY", "POSITION")
    end = min(cut.returning_at, cut.end)
    first = reader.index
    ranges = row_ranges(cut, first, conflict_at(cut, first, end))
    columns: Sequence[str] = _columns(session, table) if listed is None else listed
    if ranges is None:
        yield from columns
        return
    for a, b in ranges:
        values = [] if a == b else reader.slices(a + 1, b - 1)
        for column, (x, y) in zip(columns, values, strict=False):
            if cut.value(x, y, proposed=False) is not None:
                yield column


def _assigned(cut: Cut) -> Iterator[str]:
    """The columns that an UPDATE, an upsert or a MERGE sets to other values than DEFAULT."""
    tokens = cut.tokens
    for at, token in enumerate(tokens[:-1]):
        if token.kind != "SET" or token.depth or tokens[at + 1].kind in ("*", "BY"):
            continue
        ends = (i for i in range(at, cut.end) if not tokens[i].depth and tokens[i].kind in _AFTER_SET)
        for a, b in cut.reader.slices(at + 1, next(ends, cut.end)):
            equals = cut.find("=", a, b)
            names = [tokens[equals - 1]] if tokens[a].kind != "(" else tokens[a + 1 : equals - 1]
            if equals + 1 < b and cut.value(equals + 1, b, proposed=False) is not None:
                yield from (name.name for name in names if name.is_name)


def _merged(session: Context, classified: Classified, table: Object) -> Iterator[str]:
    """The columns for which the INSERT clauses of a MERGE give values other than DEFAULT."""
    merge = slice_dml(classified, session.names.schema, lambda _: ("column",)).merge
    assert merge is not None
    for clause in merge.clauses:
        if clause.action is not Action.INSERT:
            continue
        columns = _columns(session, table) if clause.columns is None else clause.columns
        if clause.star is not None:
            yield from columns
        yield from (c for c, value in zip(columns, clause.values, strict=False) if value is not None)
