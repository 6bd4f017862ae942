"""Batches: many executions of one INSERT run as one statement.

A driver's batch repeats the same prepared INSERT with other parameters, and DuckDB takes a millisecond for
each, capture more. `INSERT INTO t VALUES ($1, $2)` with a thousand sets of parameters is equal to `INSERT
INTO t SELECT p1, p2 FROM` the lists of their values: the same rows in the same order.

Only an INSERT of one row of parameters, literals and casts is combined like this, or a PUBLISH of one such
row: the rows of the answer are in order, so each execution gets its own. ON CONFLICT would find rows of its
own statement, and RETURNING returns rows to each execution. Values that cannot be in one list together (a
date and an infinity) end a run. Source: docs/design/sql.md, "Batches".
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from duckdb import Value

from ..session_state.statement import NUMERIC, ParsedStatement
from ..text.classified import Kind
from ..text.spans import Replacement, cut
from ..text.tokens import NUMBER, PARAMETER, STRING, Token, closing

# The maximum number of combined executions: their lists are the memory of one statement.
EXECUTIONS_MAX = 4096
# Words allowed in VALUES beside parameters, literals and types.
WORDS = frozenset({"NULL", "TRUE", "FALSE", "CAST", "AS"})
SIGNS = frozenset({",", "(", ")", "::"})
TYPE_BEGINS = frozenset({"::", "AS"})
TYPE_SIGNS = frozenset({",", "(", ")", "[", "]", ".", NUMBER})
QUERIES = frozenset({"SELECT", "FROM", "VALUES", "TABLE"})
# Python types whose values are the same in a list as alone.
LISTED = frozenset(
    {bool, int, float, str, bytes, Decimal, uuid.UUID, datetime.date, datetime.datetime, datetime.time, Value}
)
# Text types, in whose lists all numbers would get the digits of the longest.
WORDY = frozenset({"VARCHAR", "JSON", "BIT"})

NARROW = frozenset({"TINYINT", "SMALLINT", "INTEGER"})

Values = Sequence[object]


@dataclass(frozen=True, slots=True)
class Many:
    """One statement that runs many executions of another.

    Args:
        statement: the combined statement; each of its parameters is the list of values of one parameter.
        element_types: DuckDB's types of the lists' elements.
    """

    statement: ParsedStatement
    element_types: tuple[str, ...]


def text_of_many(statement: ParsedStatement) -> str | None:
    """The INSERT of many rows that equals a statement's executions; None if they cannot be combined.

    Each of its parameters is the list of values of one of the statement's. DuckDB's binder finds the types.

    Args:
        statement: a statement without declared types: each parameter has its column's type then. A topic's
            columns have no types: its parameters have the widest of their declared types.
    """
    found = _values_of(statement)
    if found is None:
        return None
    verb, row = found
    tokens = statement.classified.tokens
    places = [_number(token) for token in row if token.kind == PARAMETER]
    types = statement.parameter_types
    if not places or sorted(set(places)) != list(range(1, len(types) + 1)):
        return None
    pieces = [
        Replacement(token.start, token.end, f"batch.p{_number(token)}")
        for token in row
        if token.kind == PARAMETER
    ]
    start, end = tokens[verb].start, row[-1].end
    text = statement.text
    lists = ", ".join(f"unnest(${place}::{type_}[]) AS p{place}" for place, type_ in enumerate(types, 1))
    body = cut(
        text[:end], [*pieces, Replacement(start, row[0].end, "SELECT "), Replacement(row[-1].start, end, "")]
    )
    return f"{body} FROM (SELECT {lists}) AS batch"


def widest(types: Sequence[str]) -> tuple[str, ...]:
    """The types that hold the values of a batch: drivers declare the narrowest type of each integer.

    A numeric has as many digits as its value, and no list holds several numeric types.
    """
    wide = dict.fromkeys(NARROW, "BIGINT") | {NUMERIC: "VARCHAR"}
    return tuple(wide.get(type_, type_) for type_ in types)


def in_lists(executions: Sequence[Values]) -> list[list[object]]:
    """The parameters of executions as lists, one for each parameter."""
    return [list(column) for column in zip(*executions, strict=True)]


def kinds(values: Values, types: Sequence[str]) -> list[type | None] | None:
    """The Python types of an execution's values, None for NULL; None if one cannot be in a list.

    Args:
        types: the types of the lists' elements.
    """
    found = [None if value is None else type(value) for value in values]
    for kind, type_ in zip(found, types, strict=True):
        if kind is not None and (kind not in LISTED or (kind not in (str, Value) and type_ in WORDY)):
            return None
    return found


def agree(one: list[type | None], other: list[type | None]) -> bool:
    """True if values of both types can be in the same lists; `one` then has the types of both."""
    if any(a is not b and a is not None and b is not None for a, b in zip(one, other, strict=True)):
        return False
    for place, kind in enumerate(other):
        one[place] = one[place] or kind
    return True


def _values_of(statement: ParsedStatement) -> tuple[int, Sequence[Token]] | None:
    """The place of VALUES, and the tokens of its only row with its brackets."""
    classified, facts = statement.classified, statement.classified.dml
    if classified.kind is not Kind.DML or facts is None or statement.node is not None:
        return None
    if classified.verb != "INSERT" or facts.main != 0:
        return None
    if statement.published is not None and statement.published.producer is not None:
        return None  # Each execution has its own sequence number.
    tokens = classified.tokens
    verb = next((at for at, token in enumerate(tokens) if token.kind == "VALUES" and not token.depth), None)
    if verb is None or any(token.kind == "OR" for token in tokens[:verb]):
        return None
    if verb + 1 >= len(tokens) or tokens[verb + 1].kind != "(":
        return None
    end = closing(tokens, verb + 1)
    rest = tokens[end + 1 :]
    if any(token.kind != ";" for token in rest):
        return None
    row = tokens[verb + 1 : end + 1]
    return (verb, row) if _is_plain(row) else None


def _is_plain(row: Sequence[Token]) -> bool:
    """True if a row consists of parameters, literals and casts."""
    type_depth: int | None = None
    for token, following in zip(row, [*row[1:], None], strict=True):
        if type_depth is not None and (token.depth > type_depth or token.kind not in (",", ")", "::")):
            # A type: a name, perhaps of several words, with numbers in brackets.
            if not (token.is_name or token.kind in TYPE_SIGNS) or token.kind in QUERIES:
                return False
            continue
        type_depth = token.depth if token.kind in TYPE_BEGINS else None
        if token.kind == PARAMETER:
            if not _number(token):
                return False
        elif token.kind == "-":
            if following is None or following.kind != NUMBER:
                return False
        elif token.kind not in (STRING, NUMBER) and token.kind not in WORDS and token.kind not in SIGNS:
            return False
    return True


def _number(token: Token) -> int:
    """The number of a parameter; 0 for `?` or `$name`."""
    digits = token.text[1:]
    return int(digits) if token.text[0] == "$" and digits.isascii() and digits.isdigit() else 0
