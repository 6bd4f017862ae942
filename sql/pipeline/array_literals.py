r"""Arrays and bytes in PostgreSQL's text form where needed: `INSERT INTO t VALUES ('{a,NULL}', '\x00ff')`.

DuckDB reads a list only from its own form, `['a b', NULL]`, and `'\x00ff'` as three bytes. In PostgreSQL a
literal without a cast has the type of its place. The binder is asked for that type with a parameter in the
place of the literal, so that `{a}` in a column of texts remains a text. A literal with a cast needs none: the
gateway has rewritten it. Source: PostgreSQL documentation, "Array Value Input", "bytea Hex Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import duckdb

from ...engine.duck.binding import bind
from ...engine.errors import DucktailError
from ...engine.quoting import list_literal, literal
from ...engine.values.arrays import read_array
from ..session_state.context import Context
from ..session_state.operand_types import operand_types
from ..session_state.run_text import binding_cursor
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from ..text.spans import Replacement, cut
from ..text.tokens import PARAMETER, STRING, Token

# A longer text is left to DuckDB, which refuses such a literal.
TEXT_MAX = 64 * 1024
# A statement that DuckDB would run to bind it, before its rights are checked.
PIVOTS = frozenset({"PIVOT", "PIVOT_WIDER"})
# The key under which a statement keeps its literals of arrays.
KEPT = "array literals"
Literals = tuple[tuple[Token, list[object] | bytes], ...]
# Bytes that DuckDB would read otherwise: it wants `\\x` before each pair of digits.
_BYTES = re.compile(r"\\x(?:[0-9A-Fa-f]{2}(?:[0-9A-Fa-f]{2})+)?")


def array_literals(session: Context, statement: ParsedStatement) -> Literals:
    """The literals of a statement that may be arrays, with their elements as SQL, or bytes."""
    found = statement.plans.get(KEPT)
    if found is None:
        found = statement.plans[KEPT] = tuple(_literals(session, statement))
    return found  # type: ignore[return-value]


def _literals(session: Context, statement: ParsedStatement) -> Iterator[tuple[Token, list[object] | bytes]]:
    classified = statement.classified
    if not session.wire or statement.node is not None or classified.kind not in (Kind.READ, Kind.DML):
        return
    text = classified.text
    if len(text) > TEXT_MAX or not ("'{" in text or r"'\x" in text):
        return
    if not PIVOTS.isdisjoint(token.kind for token in classified.tokens):
        return
    for token in classified.tokens:
        if token.kind == STRING and token.text.startswith("'{"):
            try:
                yield token, read_array(token.value, literal)
            except DucktailError:
                continue  # A JSON object, for example.
        elif token.kind == STRING and token.text.startswith(r"'\x") and _BYTES.fullmatch(token.value):
            yield token, bytes.fromhex(token.value[2:])


def listed(session: Context, statement: ParsedStatement) -> Iterator[Replacement]:
    """The replacements of the literals whose place needs a list, or bytes."""
    found = array_literals(session, statement)
    if not found:
        return
    text, tokens = statement.classified.text, statement.classified.tokens
    used = [int(token.text[1:]) for token in tokens if token.kind == PARAMETER and token.text[1:].isdigit()]
    first = max(used, default=0) + 1
    names = [str(number) for number in range(first, first + len(found))]
    asked = cut(
        text,
        [
            Replacement(token.start, token.end, f"${name}")
            for name, (token, _) in zip(names, found, strict=True)
        ],
    )
    try:
        bound = bind(binding_cursor(session, text), asked)
        types = {name: type_ for name, type_ in bound.parameters.items() if name not in bound.untyped}
        if bound.untyped:
            types |= operand_types(partial(bind, binding_cursor(session, text)), asked, {})
    except duckdb.Error:
        return  # The error is reported for the text as it is.
    for name, (token, items) in zip(names, found, strict=True):
        type_ = types.get(name, "")
        if isinstance(items, bytes):
            if type_ == "BLOB":
                shown = "".join(f"\\x{byte:02X}" for byte in items)
                yield Replacement(token.start, token.end, f"('{shown}'::BLOB)")
        elif type_.endswith("[]"):
            yield Replacement(token.start, token.end, f"({list_literal(items)}::{type_})")
