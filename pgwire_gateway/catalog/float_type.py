"""The type FLOAT in a client's text: eight bytes to PostgreSQL and its clients, four to DuckDB.

A tool that creates a column of its own floating-point type (SQLAlchemy's Float, Spark's, ODBC's SQL_FLOAT)
writes FLOAT and relies on fifteen digits. Over the wire it is therefore FLOAT8; `FLOAT(n)` is the same in
both, and FLOAT4 and REAL have four bytes. In process FLOAT remains DuckDB's. FLOAT is no reserved word, so
only the places of a type count: a cast, a literal, the definition of a column, and types inside of these.
Source: PostgreSQL documentation, "Floating-Point Types".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...sql.text.spans import Replacement
from ...sql.text.tokens import STRING, Token

FLOAT = "FLOAT"
_CASTS = frozenset({"CAST", "TRY_CAST"})
# Types that contain types, with names in front of these or without.
_NAMED = frozenset({"STRUCT", "ROW", "UNION"})
_UNNAMED = frozenset({"MAP", "TUPLE"})
_ITEM = frozenset({"(", ","})
_BEFORE_ADDED = frozenset({"ADD", "COLUMN", "EXISTS"})
# The end of a definition's head: a query follows, or the arguments of another clause.
_HEAD_ENDS = frozenset({"AS", "SELECT", "FROM", "WITH"})


def wide_floats(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacements of FLOAT where it is a type."""
    places = [at for at, token in enumerate(tokens) if token.kind == FLOAT]
    if not places:
        return
    columns = column_list(tokens)
    for at in places:
        following = tokens[at + 1].kind if at + 1 < len(tokens) else ""
        if following != "(" and is_type(tokens, at, columns):
            yield Replacement(tokens[at].start, tokens[at].end, "FLOAT8")


def is_type(tokens: Sequence[Token], at: int, columns: int | None) -> bool:
    """True if a type begins at a place.

    Args:
        columns: the place of the parenthesis before a list of columns or types.
    """
    before = tokens[at - 1].kind if at else ""
    if before == "::" or (before == "TYPE" and tokens[0].kind == "ALTER"):
        return True
    if before != "." and at + 1 < len(tokens) and tokens[at + 1].kind == STRING:
        return True
    opening = opening_of(tokens, at)
    if before == "AS":
        return in_cast(tokens, at) or [token.kind for token in tokens[:2]] == ["CREATE", "TYPE"]
    if opening is None:
        return tokens[0].kind == "ALTER" and _is_added(tokens, at)
    named = at > 1 and tokens[at - 1].is_name and tokens[at - 2].kind in _ITEM
    if opening == columns:
        return named or (tokens[0].kind == "PREPARE" and before in _ITEM)
    container = tokens[opening - 1].kind if opening else ""
    inside = (container in _NAMED and named) or (container in _UNNAMED and before in _ITEM)
    return inside and is_type(tokens, opening - 1, columns)


def in_cast(tokens: Sequence[Token], at: int) -> bool:
    """True if the innermost parenthesis around a place is that of a CAST."""
    opening = opening_of(tokens, at)
    return opening is not None and opening > 0 and tokens[opening - 1].kind in _CASTS


def _is_added(tokens: Sequence[Token], at: int) -> bool:
    """True if the name before a place is that of a column, or of a field, which ALTER TABLE adds."""
    name = at - 1
    while name > 1 and tokens[name].is_name and tokens[name - 1].kind == ".":
        name -= 2
    return name > 0 and tokens[name].is_name and tokens[name - 1].kind in _BEFORE_ADDED


def column_list(tokens: Sequence[Token]) -> int | None:
    """The place of the parenthesis before the columns of CREATE TABLE, the attributes of CREATE TYPE, or the
    types of PREPARE."""
    words = {token.kind for token in tokens[:5]}
    made = words & {"TABLE", "TYPE"} if tokens[0].kind == "CREATE" else frozenset()
    if not (tokens[0].kind == "PREPARE" or made):
        return None
    for at, token in enumerate(tokens):
        if token.kind == "(":
            return at
        if token.kind in _HEAD_ENDS and "TYPE" not in made:
            return None
    return None


def opening_of(tokens: Sequence[Token], at: int) -> int | None:
    """The place of the innermost parenthesis around a place; None if there is none."""
    depth = tokens[at].depth
    if not depth:
        return None
    return next(place for place in range(at - 1, -1, -1) if tokens[place].depth < depth)
