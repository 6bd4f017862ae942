r"""Literals that PostgreSQL reads by the type of their place, and DuckDB does not.

| literal | its place needs | DuckDB reads |
|---|---|---|
| `'{"a b",NULL}'` | a list | `['a b', NULL]` |
| `'\x00ff'` | BLOB | `'\x00\xff'` |
| `'(1,"a, b",)'` | a composite type | a struct by rules of its own (record_literals.py) |
| `'2026-01-02 03:04+2'`, `'0044-03-15 BC'`, `'10:20 -07'`, `'P1D'` | a type of time | its own form of them |

The binder is asked for the type of the place with a parameter there, so that `{a}` in a column of texts
remains a text. A literal with a cast needs none of it: the gateway has rewritten it. Source:
PostgreSQL documentation, "Array Value Input", "bytea Hex Format", "Date/Time Input".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import duckdb

from ...engine.duck.binding import bind
from ...engine.errors import DucktailError
from ...engine.quoting import blob_text, list_literal, literal
from ...engine.values.arrays import is_array, read_array
from ...engine.values.duckdb_types import read_type
from ...engine.values.temporal_input import UNREAD, UNREAD_RE, in_duckdb_form
from ..session_state.context import Context
from ..session_state.operand_types import operand_types
from ..session_state.run_text import binding_cursor
from ..session_state.statement import ParsedStatement
from ..text.classified import Kind
from ..text.spans import Replacement, cut
from ..text.tokens import PARAMETER, STRING, Token
from . import user_types
from .record_literals import record_sql

# A longer text is left to DuckDB, which refuses such a literal.
TEXT_MAX = 1024 * 1024
_MOMENT = re.compile(f"'(?:{UNREAD})'", re.ASCII)
# Bytes that DuckDB would read otherwise: it wants `\\x` before each pair of digits.
_BYTES = re.compile(r"\\x(?:[0-9A-Fa-f]{2}(?:[0-9A-Fa-f]{2})+)?")
# A statement that DuckDB would run to bind it, before its rights are checked.
PIVOTS = frozenset({"PIVOT", "PIVOT_WIDER"})
# What a text with other such literals contains.
_MARKS = ("'{", "]={", r"'\x", "'(")
# The key under which a statement keeps these literals.
KEPT = "placed literals"
# The type of a literal's place -> what is written there; None to leave the literal.
Reader = Callable[[str], str | None]
Literal = tuple[Token, Reader]
Literals = tuple[Literal, ...]


def placed_literals(session: Context, statement: ParsedStatement) -> Literals:
    """The literals of a statement whose meaning may depend on their place."""
    found = statement.plans.get(KEPT)
    if found is None:
        found = statement.plans[KEPT] = tuple(_literals(session, statement))
    return found  # type: ignore[return-value]


def _literals(session: Context, statement: ParsedStatement) -> Iterator[Literal]:
    classified = statement.classified
    if not session.wire or statement.node is not None or classified.kind not in (Kind.READ, Kind.DML):
        return
    text = classified.text
    if len(text) > TEXT_MAX or not (any(mark in text for mark in _MARKS) or _MOMENT.search(text)):
        return
    if not PIVOTS.isdisjoint(token.kind for token in classified.tokens):
        return
    for token in classified.tokens:
        if token.kind != STRING:
            continue
        if token.text.startswith("'{") or ("]={" in token.text and is_array(token.value)):
            try:
                yield token, partial(_list, read_array(token.value, literal))
            except DucktailError:
                continue  # A JSON object, for example.
        elif token.text.startswith(r"'\x") and _BYTES.fullmatch(token.value):
            yield token, partial(_bytes, bytes.fromhex(token.value[2:]))
        elif token.text.startswith("'(") and token.text.endswith(")'"):
            yield token, _as_it_is
        elif UNREAD_RE.fullmatch(token.value):
            yield token, partial(_moment, token.value)


def _list(items: list[object], type_: str) -> str | None:
    return f"({list_literal(items)}::{type_})" if type_.endswith("[]") else None


def _bytes(value: bytes, type_: str) -> str | None:
    return f"('{blob_text(value)}'::BLOB)" if type_ == "BLOB" else None


def _as_it_is(type_: str) -> None:
    """A literal that only a composite type reads otherwise."""


def _moment(text: str, type_: str) -> str | None:
    written = in_duckdb_form(text, type_)
    return None if written is None else literal(written)


def read_by_place(session: Context, statement: ParsedStatement) -> Iterator[Replacement]:
    """The replacements of the literals that their place needs in DuckDB's form."""
    found = placed_literals(session, statement)
    if not found:
        return
    text, tokens = statement.classified.text, statement.classified.tokens
    used = [int(token.text[1:]) for token in tokens if token.kind == PARAMETER and token.text[1:].isdigit()]
    first = max(used, default=0) + 1
    names = [str(number) for number in range(first, first + len(found))]
    places = (
        Replacement(token.start, token.end, f"${name}") for name, (token, _) in zip(names, found, strict=True)
    )
    asked = cut(text, list(places))
    try:
        bound = bind(binding_cursor(session, text), asked)
        types = {name: type_ for name, type_ in bound.parameters.items() if name not in bound.untyped}
        if bound.untyped:
            types |= operand_types(partial(bind, binding_cursor(session, text)), asked, {})
    except duckdb.Error:
        return  # The error is reported for the text as it is.
    for name, (token, read) in zip(names, found, strict=True):
        type_ = types.get(name, "")
        if "STRUCT(" in type_ and _is_composite(session, type_):
            written: str | None = f"({record_sql(token.value, read_type(type_))}::{type_})"
        else:
            written = read(type_)
        if written is not None:
            yield Replacement(token.start, token.end, written)


def _is_composite(session: Context, type_: str) -> bool:
    return session.object_oid is not None and user_types.known(session).is_composite(type_)
