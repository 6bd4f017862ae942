"""A stream's WHERE: which predicates may decide, at any time later, what the stream shows.

The predicate is taken again whenever the log is read, so it must give the same answer for ever: no
subquery, no window, no parameter, and only functions that DuckDB itself calls CONSISTENT (a macro
or a Python function has no such word). It must give it in every session too, for the stream is read
on the engine's cursors and its views on the reader's: nothing that hangs on the session's TimeZone,
search_path or integer_division. DuckDB's own parse tree and plan are asked, not a second parser.
Source: docs/streams.md, "Filters".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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

# Node classes of DuckDB's parse tree that a filter may not hold -> how they are called.
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
# Functions on values of these types that give the same in every session.
ZONE_FREE = frozenset(
    {"epoch", "epoch_ms", "epoch_us", "epoch_ns", "isfinite", "isinf", "greatest", "least", "timezone"}
    | {"to_timestamp", "timetz_byte_comparable"}
    | {"list_value", "list_contains", "struct_pack", "struct_extract", "array_extract"}
)
# Two zones in which no time of day is the same: 25 hours lie between them.
ZONES = ("Pacific/Kiritimati", "Pacific/Pago_Pago")
ZONE_HINT = (
    "Compare with a text that has an offset ('2024-05-01 00:00:00+00'), or take the value in a zone: "
    "timezone('UTC', column)."
)


@contextmanager
def plain_division(cursor: duckdb.DuckDBPyConnection) -> Iterator[bool]:
    """Within it `/` is what it is on the engine's cursors; gives whether it was not before.

    DuckDB reads the setting where it parses: a view that a session makes would keep it for ever.
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
    """Refuse a predicate that could change its mind, or have two at once.

    Raises:
        NotSupported: what it holds is not allowed in a filter.
        SyntaxError_. DucktailError: what DuckDB's binder says of it on the table's columns.
        InvalidParameterValue: longer than 10,000 characters, or not a boolean.
    """
    if len(text) > FILTER_CHARS_MAX:
        raise InvalidParameterValue(f"a filter has at most {FILTER_CHARS_MAX} characters")
    with plain_division(cursor) as whole:
        tree = _parsed(cursor, f"SELECT ({text})")
        # What closes our bracket and opens it again does not fit one of another kind.
        _parsed(cursor, f"SELECT [{text}]")
        nodes = list(_nodes(tree["statements"]))
        for node in nodes:
            kind = node.get("class")
            if kind in REFUSED_CLASSES:
                raise NotSupported(f"a stream's filter cannot hold {REFUSED_CLASSES[kind]}")
            if kind == "TYPE" and not node["schema"]:
                _check_type(cursor, str(node["type_name"]))
            if kind == "FUNCTION":
                _check_function(cursor, str(node["function_name"]))
                if whole and node["function_name"] == "/":
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
        _check_words(nodes, shape)
        _check_zones(cursor, query)


def types_in(cursor: duckdb.DuckDBPyConnection, text: str) -> set[tuple[str, str]]:
    """Schema and name, in small letters, of the types that a stream's filter names; built-in ones as well."""
    nodes = (node for node in _nodes(_parsed(cursor, f"SELECT ({text})")) if node.get("class") == "TYPE")
    return {(fold(node["schema"] or "main"), fold(node["type_name"])) for node in nodes}


def _parsed(cursor: duckdb.DuckDBPyConnection, query: str) -> Any:
    (text,) = ask(cursor, f"SELECT json_serialize_sql({literal(query)})")
    tree = json.loads(text)
    if tree.get("error"):
        raise SyntaxError_(f"syntax error in the stream's filter: {tree.get('error_message')}")
    return tree


def _check_words(nodes: list[dict[str, Any]], shape: TableShape) -> None:
    """Refuse CURRENT_DATE, USER and the like: functions that are written as a column is."""
    names = {fold(column.name) for column in shape.stored}
    for node in nodes:
        if node.get("class") != "COLUMN_REF" or len(node["column_names"]) > 1:
            continue
        name = str(node["column_names"][0])
        if fold(name) not in names | {fold(shape.name)}:
            _refuse_function(name)


def _check_zones(cursor: duckdb.DuckDBPyConnection, query: str) -> None:
    """Refuse what the reader's TimeZone has a say in, as the bound plan shows it."""
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
    """True if a text is the same value of this type in every zone."""
    if type_["id"] not in ZONED_TYPES:
        return False
    plain = f"CAST({literal(text)} AS {type_['id']})"
    # An instant is shown in UTC: as it is, one would be two texts. A TIMETZ carries its offset.
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
    """Refuse a type that only the session finds by this name: the engine's cursors look in `main`."""
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
