"""A stream's WHERE: which predicates may decide, at any time later, what the stream shows.

The predicate is taken again whenever the log is read, so it must give the same answer for ever: no
subquery, no window, no parameter, and only functions that DuckDB itself calls CONSISTENT (a macro
or a Python function has no such word). DuckDB's own parse tree is asked, not a second parser.
Source: docs/streams.md, "Filters".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

from .asking import ask_maybe
from .duckdb_errors import translated
from .errors import InvalidParameterValue, NotSupported, SyntaxError_
from .quoting import ident, literal
from .table import TableShape

FILTER_CHARS_MAX = 10_000
# Functions that DuckDB calls CONSISTENT and that depend on the day.
MISLABELLED = frozenset({"age"})

# Node classes of DuckDB's parse tree that a filter may not hold -> how they are called.
REFUSED_CLASSES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "LAMBDA": "a lambda",
    "STAR": "a star",
    "DEFAULT": "DEFAULT",
}


def check_filter(cursor: duckdb.DuckDBPyConnection, shape: TableShape, text: str) -> None:
    """Refuse a predicate that could change its mind.

    Raises:
        NotSupported: 0A000, what it holds is not allowed in a filter.
        SyntaxError_: 42601. DucktailError: what DuckDB's binder says of it on the table's columns.
        InvalidParameterValue: 22023, longer than 10,000 characters, or not a boolean.
    """
    if len(text) > FILTER_CHARS_MAX:
        raise InvalidParameterValue(f"a filter has at most {FILTER_CHARS_MAX} characters")
    row = ask_maybe(cursor, f"SELECT json_serialize_sql({literal(f'SELECT ({text})')})")
    assert row is not None
    tree = json.loads(row[0])
    if tree.get("error"):
        raise SyntaxError_(f"syntax error in the stream's filter: {tree.get('error_message')}")
    for node in _nodes(tree["statements"]):
        kind = node.get("class")
        if kind in REFUSED_CLASSES:
            raise NotSupported(f"a stream's filter cannot hold {REFUSED_CLASSES[kind]}")
        if kind == "FUNCTION":
            _check_function(cursor, str(node["function_name"]))
    columns = ", ".join(f"NULL::{column.type} AS {ident(column.name)}" for column in shape.stored)
    try:
        table = ident(shape.name)
        cursor.execute(
            f"SELECT TRY(({text})::BOOLEAN) FROM (SELECT {columns}) AS {table} WHERE false"
        ).fetchall()
    except duckdb.Error as error:
        raise translated(error) from error


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node of a parse tree."""
    if isinstance(tree, dict):
        yield tree
        for child in tree.values():
            yield from _nodes(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from _nodes(child)


def _check_function(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    rows = cursor.execute(
        "SELECT DISTINCT stability, function_type FROM duckdb_functions() WHERE function_name = lower($1)",
        [name],
    ).fetchall()
    if (
        name.lower() not in MISLABELLED
        and rows
        and all(stability == "CONSISTENT" and kind == "scalar" for stability, kind in rows)
    ):
        return
    raise NotSupported(
        f'a stream\'s filter cannot call "{name}"',
        hint="Only functions that always give the same answer for the same row are allowed.",
    )
