"""A stream's WHERE: the predicates that give the same answer at any time and in any session.

The predicate is evaluated whenever the log is read, so its answer must never change: no subquery, no window,
no parameter, and only functions that DuckDB marks CONSISTENT (macros and Python functions have no such mark).
The answer must not depend on the session either, because the stream is read on the engine's cursors and its
views on the reader's: nothing may depend on the session's TimeZone, search_path or integer_division. DuckDB's
parse tree and plan are examined, not those of a second parser.
Source: docs/streams.md, "Filters".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

from ..duck.cursors import ask, ask_maybe
from ..duck.duckdb_errors import translated
from ..duck.table_shape import TableShape
from ..errors import InvalidParameterValue, NotSupported, SyntaxError_
from ..quoting import fold, folded_sql, ident, literal

FILTER_CHARS_MAX = 10_000
# Functions that DuckDB calls CONSISTENT and that depend on the day.
MISLABELLED = frozenset({"age"})

# Node classes of DuckDB's parse tree that a filter may not contain -> their names in messages.
REFUSED_CLASSES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "LAMBDA": "a lambda",
    "STAR": "a star",
    "DEFAULT": "DEFAULT",
}


# Types whose values mean a day and an hour only in a time zone.
ZONED_TYPES = frozenset({"TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE"})
# Functions on values of these types with the same result in every session.
ZONE_FREE = frozenset(
    {"epoch", "epoch_ms", "epoch_us", "epoch_ns", "isfinite", "isinf", "greatest", "least", "timezone"}
    | {"to_timestamp", "timetz_byte_comparable"}
    | {"list_value", "list_contains", "struct_pack", "struct_extract", "array_extract"}
)
# Two zones without a common time of day: their difference is 25 hours.
ZONES = ("Pacific/Kiritimati", "Pacific/Pago_Pago")
ZONE_HINT = (
    "Compare with a text that has an offset ('2024-05-01 00:00:00+00'), or take the value in a zone: "
    "timezone('UTC', column)."
)


@contextmanager
def plain_division(cursor: duckdb.DuckDBPyConnection) -> Iterator[bool]:
    """A context in which `/` is that of the engine's cursors; yields True if it was changed.

    DuckDB reads the setting when it parses: a view created by a session would keep it permanently.
    """
    (whole,) = ask(cursor, "SELECT current_setting('integer_division')")
    if whole:
        ask_maybe(cursor, "SET SESSION integer_division = false")
    try:
        yield bool(whole)
    finally:
        if whole:
            ask_maybe(cursor, "SET SESSION integer_division = true")


def check_filter(cursor: duckdb.DuckDBPyConnection, shape: TableShape, text: str) -> None:
    """Refuse a predicate whose answer may change or depend on the session.

    Raises:
        NotSupported: the text contains an element that is not allowed in a filter.
        SyntaxError_: the text is malformed.
        DucktailError: DuckDB cannot bind it to the table's columns.
        InvalidParameterValue: the text is longer than 10,000 characters, or not a boolean.
    """
    with plain_division(cursor) as whole:
        nodes = expression_nodes(cursor, text)
        if whole and any(node.get("function_name") == "/" for node in nodes):
            raise NotSupported(
                "a stream's filter cannot hold / while integer_division is on",
                hint="Write // for whole numbers, or SET integer_division = off.",
            )
        columns = ", ".join(f"NULL::{column.type} AS {ident(column.name)}" for column in shape.stored)
        query = f"SELECT TRY(({text})::BOOLEAN) FROM (SELECT {columns}) AS {ident(shape.name)} WHERE false"
        try:
            cursor.execute(query).fetchall()
        except duckdb.Error as error:
            raise translated(error) from error
        check_words(nodes, [column.name for column in shape.stored], shape.name)
        _check_zones(cursor, query)


def expression_nodes(cursor: duckdb.DuckDBPyConnection, text: str) -> list[dict[str, Any]]:
    """The nodes of a filter's parse tree: one expression, of elements that are allowed in a filter.

    Raises:
        NotSupported: the text contains an element that is not allowed.
        SyntaxError_: the text is no expression.
        InvalidParameterValue: the text is longer than 10,000 characters.
    """
    if len(text) > FILTER_CHARS_MAX:
        raise InvalidParameterValue(f"a filter has at most {FILTER_CHARS_MAX} characters")
    tree = _parsed(cursor, f"SELECT ({text})")
    # A text that closes our bracket and reopens it does not fit a bracket of another kind.
    _parsed(cursor, f"SELECT [{text}]")
    # Brackets also hold a list of several.
    _parsed(cursor, f"SELECT CASE WHEN {text} THEN true END")
    nodes = list(_nodes(tree["statements"]))
    for node in nodes:
        kind = node.get("class")
        if kind in REFUSED_CLASSES:
            raise NotSupported(f"a stream's filter cannot hold {REFUSED_CLASSES[kind]}")
        if kind == "TYPE" and not node["schema"]:
            _check_type(cursor, str(node["type_name"]))
        if kind == "FUNCTION":
            _check_function(cursor, str(node["function_name"]))
    return nodes


def types_in(cursor: duckdb.DuckDBPyConnection, text: str) -> set[tuple[str, str]]:
    """Schema and name, in lower case, of the types in a stream's filter, including built-in ones."""
    nodes = (node for node in _nodes(_parsed(cursor, f"SELECT ({text})")) if node.get("class") == "TYPE")
    return {(fold(node["schema"] or "main"), fold(node["type_name"])) for node in nodes}


def _parsed(cursor: duckdb.DuckDBPyConnection, query: str) -> Any:
    (text,) = ask(cursor, f"SELECT json_serialize_sql({literal(query)})")
    tree = json.loads(text)
    if tree.get("error"):
        raise SyntaxError_(f"syntax error in the stream's filter: {tree.get('error_message')}")
    return tree


def check_words(nodes: list[dict[str, Any]], columns: Iterable[str], table: str) -> None:
    """Refuse CURRENT_DATE, USER and other functions written like columns.

    Args:
        columns, table: the names to which the expression may refer.
    """
    names = {fold(name) for name in (*columns, table)}
    for node in nodes:
        if node.get("class") != "COLUMN_REF" or len(node["column_names"]) > 1:
            continue
        name = str(node["column_names"][0])
        if fold(name) not in names:
            _refuse_function(name)


def _check_zones(cursor: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse expressions of the bound plan that depend on the reader's TimeZone."""
    (text,) = ask(cursor, f"SELECT json_serialize_plan({literal(query)})")
    plan = json.loads(text)
    if plan.get("error"):
        raise NotSupported(
            "a stream's filter cannot hold this expression", detail=str(plan.get("error_message"))
        )
    for node in _nodes(plan["plans"][0]["expressions"]):
        if node.get("expression_class") != "BOUND_FUNCTION" or node["type"].startswith("COMPARE_"):
            continue
        name = str(node["qname"]["path"][-1])
        children = node["children"]
        zoned = [_is_zoned(type_) for type_ in (node["return_type"], *map(_type_of, children))]
        if not any(zoned) or name in ZONE_FREE:
            continue
        if name != "__cast":
            message = f'a stream\'s filter cannot call "{name}" on a value with a time zone'
            raise NotSupported(message, hint=ZONE_HINT)
        value = children[0].get("value", {}).get("value")
        same_type = node["return_type"] == _type_of(children[0])
        if not same_type and not (isinstance(value, str) and _has_offset(cursor, value, node["return_type"])):
            raise NotSupported("a stream's filter cannot hang on the session's time zone", hint=ZONE_HINT)


def _type_of(node: dict[str, Any]) -> Any:
    return node["value"]["type"] if "value" in node else node.get("return_type")


def _is_zoned(type_: Any) -> bool:
    return any(node.get("id") in ZONED_TYPES for node in _nodes(type_))


def _has_offset(cursor: duckdb.DuckDBPyConnection, text: str, type_: Any) -> bool:
    """True if a text is the same value of this type in every time zone."""
    if type_["id"] not in ZONED_TYPES:
        return False
    plain = f"CAST({literal(text)} AS {type_['id']})"
    # An instant is compared in UTC: otherwise it would have two texts. A TIMETZ has its offset.
    shown = f"timezone('UTC', {plain})" if type_["id"] == "TIMESTAMP WITH TIME ZONE" else plain
    (zone,) = ask(cursor, "SELECT current_setting('TimeZone')")
    found = set()
    try:
        for other in ZONES:
            ask_maybe(cursor, f"SET SESSION TimeZone = {literal(other)}")
            found.add(ask(cursor, f"SELECT ({shown})::VARCHAR"))
    except duckdb.Error as error:
        raise translated(error) from error
    finally:
        ask_maybe(cursor, f"SET SESSION TimeZone = {literal(zone)}")
    return len(found) == 1


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
        "SELECT DISTINCT stability, function_type FROM system.main.duckdb_functions() "
        "WHERE function_name = $1",
        [fold(name)],
    ).fetchall()
    if (
        fold(name) not in MISLABELLED
        and rows
        and all(stability == "CONSISTENT" and kind == "scalar" for stability, kind in rows)
    ):
        return
    _refuse_function(name)


def _check_type(cursor: duckdb.DuckDBPyConnection, name: str) -> None:
    """Refuse a type that only the session finds by this name: the engine's cursors search `main`."""
    rows = cursor.execute(
        "SELECT database_name, schema_name FROM system.main.duckdb_types() WHERE NOT internal "
        f"AND {folded_sql('type_name')} = $1 AND database_name IN (current_database(), 'temp')",
        [fold(name)],
    ).fetchall()
    schemas = {fold(schema): schema for database, schema in rows if database != "temp"}
    if len(schemas) < len(rows):
        raise NotSupported(
            f'a stream\'s filter cannot name the temporary type "{name}"',
            hint="CREATE TYPE makes one that stays.",
        )
    (path,) = ask(cursor, "SELECT current_schemas(false)")
    found = next((schemas[fold(one)] for one in path if fold(one) in schemas), "main")
    if fold(found) != "main":
        raise NotSupported(
            f'a stream\'s filter cannot name type "{name}" without its schema',
            detail="The search_path of a session finds it; other readers have another one.",
            hint=f"Write {ident(found)}.{ident(name)}.",
        )


def _refuse_function(name: str) -> None:
    raise NotSupported(
        f'a stream\'s filter cannot call "{name}"',
        hint="Only functions that always give the same answer for the same row are allowed.",
    )
