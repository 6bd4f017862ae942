"""Literals of composite types in PostgreSQL's form, such as '(1,"a, b",)'::pair.

DuckDB casts such a text too, but by rules of its own: it drops doubled quotes, and does not know PostgreSQL's
arrays and bytes within. A literal that is cast to a composite type therefore becomes a row of its fields
before DuckDB sees it. Source: PostgreSQL documentation, section 8.16.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.duck.objects import TYPE
from ...engine.quoting import blob_text, literal
from ...engine.values.arrays import read_array
from ...engine.values.duckdb_types import DuckType, read_type
from ...engine.values.records import read_record
from ...engine.values.strings import read_bytea
from ..session_state.context import Context
from ..text.spans import Replacement
from ..text.tokens import STRING, Token
from . import user_types
from .postgres_schemas import parts_in_main

_CASTS = frozenset({"CAST", "TRY_CAST"})
# The tokens around an item of a list.
_BEFORE, _BEHIND = ("[", ","), ("]", ",")


def may_be_record(folded: str) -> bool:
    """True if a folded text may contain such a literal."""
    return "'(" in folded


def record_literals(session: Context, tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacements of literals that are cast to composite types.

    Raises:
        InvalidTextRepresentation: a literal is no record, or has another number of fields.
    """
    if session.object_oid is None:
        return
    for at in range(1, len(tokens) - 1):
        values = _cast_values(tokens, at) if tokens[at].kind in ("::", "AS") else []
        if not values:
            continue
        last = at + 1
        while last + 2 < len(tokens) and tokens[last + 1].kind == ".":
            last += 2
        parts = tuple(part.name for part in tokens[at + 1 : last + 1 : 2])
        found = session.names.resolver.find(TYPE, parts_in_main(session, parts))
        if found is not None and (text := user_types.known(session).text_of(found)):
            for value in values:
                yield Replacement(value.start, value.end, record_sql(value.value, read_type(text)))


def _cast_values(tokens: Sequence[Token], at: int) -> list[Token]:
    """The literals of records before a `::` or an AS of CAST: one, or the items of a list."""
    first = at - 1
    if tokens[first].kind == "]":
        depth = tokens[first].depth
        first = next((place for place in range(first - 1, -1, -1) if tokens[place].depth == depth), first)
    values = [
        token
        for place, token in enumerate(tokens[first:at], first)
        if token.kind == STRING
        and token.value.startswith("(")
        and (place == at - 1 or (tokens[place - 1].kind in _BEFORE and tokens[place + 1].kind in _BEHIND))
    ]
    if first and tokens[first - 1].kind == "ARRAY":
        first -= 1
    if tokens[at].kind == "AS" and not (first > 1 and tokens[first - 2].kind in _CASTS):
        return []
    return values


def record_sql(text: str | None, type_: DuckType) -> str:
    """SQL of a value from PostgreSQL's text of it; a cast to its type follows."""
    if text is None:
        return "NULL"
    if type_.name == user_types.STRUCT and text.lstrip().startswith("("):
        fields = zip(read_record(text, len(type_.children)), type_.children, strict=True)
        return f"row({', '.join(record_sql(field, child) for field, child in fields)})"
    if type_.name == "LIST" and text.lstrip().startswith("{"):
        return _list(read_array(text, lambda item: record_sql(item, type_.children[0])))
    if type_.name == "BLOB":
        data = read_bytea(text)
        assert isinstance(data, bytes), "it reads bytes"
        return literal(blob_text(data))
    return literal(text)


def _list(items: list[object]) -> str:
    shown = ("NULL" if one is None else _list(one) if isinstance(one, list) else str(one) for one in items)
    return f"[{', '.join(shown)}]"
