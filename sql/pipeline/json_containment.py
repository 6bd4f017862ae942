"""`@>` and `<@` of json columns, as clients of PostgreSQL write them: `WHERE doc @> $1`.

DuckDB's operators are for lists. That an operand is json can be read from the text where it is cast or is a
literal (`pgwire_gateway/catalog/operators.py`); where it is a column, only the binder knows: its error names
the types, and the operator becomes the macro of PostgreSQL's meaning. So a statement that DuckDB understands
keeps DuckDB's meaning. Sessions without such macros, in process, have DuckDB's error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import duckdb

from ...engine.duck.binding import bind
from ..session_state.context import Context
from ..session_state.run_text import binding_cursor, placed
from ..text.spans import Replacement, cut
from ..text.tokens import Token

_MACROS = {"@>": "@>&", "<@": "<@&"}
_JSON_OPERAND = re.compile(r"'(@>|<@)\((?:JSON, |[^()]*, JSON\))")
_OPERATOR_CHARS = frozenset("+-*/<>=~!@#%^&|?")
# The most operators of a statement that are tried.
OPERATORS_MAX = 16


def may_contain(folded: str) -> bool:
    """True if a folded text may have such an operator."""
    return "@>" in folded or "<@" in folded


def contained(session: Context, tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacements of the operators that the binder finds between values of which one is json."""
    if _MACROS["@>"] not in session.path_functions:
        return
    text = _blanked(tokens)
    pieces: list[Replacement] = []
    for _ in range(OPERATORS_MAX):
        place = _refused(session, cut(text, pieces))
        if place is None:
            break
        operator, before = place
        # Those replaced before it are one character longer.
        before -= sum(piece.start < before for piece in pieces)
        found = next((start for start in _operators(tokens, operator) if start >= before), None)
        if found is None:
            break
        pieces.append(Replacement(found, found + 2, _MACROS[operator]))
    yield from pieces


def _refused(session: Context, text: str) -> tuple[str, int] | None:
    """The operator that the binder refuses for json, and the position at which its expression begins."""
    try:
        bind(binding_cursor(session, text), text)
    except duckdb.Error as error:
        found = _JSON_OPERAND.search(str(error))
        if found is None:
            return None
        position = placed(session, error, text).position
        return None if position is None else (found[1], position - 1)
    return None


def _operators(tokens: Sequence[Token], operator: str) -> Iterator[int]:
    """The positions of an operator."""
    for at, token in enumerate(tokens[:-1]):
        following = tokens[at + 1]
        behind = tokens[at + 2] if at + 2 < len(tokens) else None
        if behind is not None and behind.start == following.end and behind.text[0] in _OPERATOR_CHARS:
            continue  # It is a part of a longer one.
        if token.text + following.text == operator and token.end == following.start:
            yield token.start


def _blanked(tokens: Sequence[Token]) -> str:
    """The text, with blanks in place of its comments."""
    parts, last = [], 0
    for token in tokens:
        parts += [" " * (token.start - last), token.text]
        last = token.end
    return "".join(parts)
