"""Constant tables of the catalog: its relations, types and functions, which never change while a server runs.

They are created once, when the catalog is installed, beside its macros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import duckdb
import pyarrow as pa

from ...engine.values import value_types
from ...sql.settings import VARIABLES, Variable
from .oids import HOME, INFORMATION_SCHEMA_OID, OTHER, PG_CATALOG_OID, path_sql, place_sql
from .system_catalogs import (
    ARRAY_SUBSCRIPT_HANDLER,
    FUNCTION_COLUMNS,
    FUNCTION_OIDS,
    PG_CATALOG,
    ROLES_OF_FUNCTIONS,
    SHAPES,
    TYPES,
    Shape,
    SystemType,
)
from .views import type_heads

# Server settings that clients read besides the session's, with PostgreSQL 15's values.
SERVER_SETTINGS: dict[str, tuple[str, str]] = {"listen_addresses": ("localhost", "where the server listens")}
# The oids of pseudo-types for DuckDB types without a PostgreSQL type.
ANY_OID, RECORD_OID = 2276, 2249
# DuckDB's kinds of functions as pg_proc.prokind; pragmas and similar kinds cannot be called in a query.
_KINDS = {"scalar": "f", "macro": "f", "aggregate": "a", "table": "f", "table_macro": "f", "window": "w"}

_FUNCTION_COLUMNS = (
    "oid", "proname", "prokind", "provolatile", "proretset", "prorettype", "provariadic",
    "argument_oids", "arguments", "result", "description",
)  # fmt: skip

Rows = dict[str, Sequence[object]]


# Shared by all databases of a process, of which there may be many; includes DuckDB's own functions.
_made: dict[str, pa.Table] = {}


def make(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create all constant tables; one caller at a time."""
    if not _made:
        tables: dict[str, Rows] = {
            "fixed_relations": _relations(),
            "fixed_columns": _columns(),
            "fixed_types": _types(),
            "fixed_settings": _settings(),
            "fixed_duck_types": {"head": list(type_heads()), **_of_types(list(type_heads().values()))},
            "fixed_functions": _functions(cursor),
        }
        _made.update({name: pa.table(rows) for name, rows in tables.items()})
    oid = place_sql(OTHER, path_sql("proname", "arguments", "prokind"))
    for name, rows in _made.items():
        picked = f"* REPLACE (coalesce(oid, {oid}) AS oid)" if name == "fixed_functions" else "*"
        _create(cursor, name, rows, picked)


def _create(cursor: duckdb.DuckDBPyConnection, name: str, rows: pa.Table, picked: str) -> None:
    cursor.register("__ducktail_rows", rows)
    cursor.execute(f"CREATE TABLE {HOME}.{name} AS SELECT {picked} FROM __ducktail_rows")
    cursor.unregister("__ducktail_rows")


def _relations() -> Rows:
    shapes = list(SHAPES.values())
    return {
        "oid": [shape.oid for shape in shapes],
        "relname": [shape.name for shape in shapes],
        "schema_name": [shape.schema for shape in shapes],
        "relnamespace": [_namespace(shape) for shape in shapes],
        "relkind": [shape.kind for shape in shapes],
        "relnatts": [len(shape.columns) for shape in shapes],
    }


def _namespace(shape: Shape) -> int:
    return PG_CATALOG_OID if shape.schema == PG_CATALOG else INFORMATION_SCHEMA_OID


def _columns() -> Rows:
    found = [
        (shape.oid, column.name, at, column.not_null, column.type_oid)
        for shape in SHAPES.values()
        for at, column in enumerate(shape.columns, 1)
    ]
    names = ("attrelid", "attname", "attnum", "attnotnull")
    rows: Rows = {name: [row[at] for row in found] for at, name in enumerate(names)}
    return {**rows, **_of_types([row[-1] for row in found])}


def _of_types(oids: Sequence[int]) -> Rows:
    """The attributes that columns take from their types."""
    by_oid = {found.oid: found for found in TYPES}
    types = [by_oid[oid] for oid in oids]
    return {
        "type_oid": oids,
        "typname": [found.name for found in types],
        "shown": [found.shown for found in types],
        "typlen": [found.length for found in types],
        "typbyval": [found.by_value for found in types],
        "typalign": [found.align for found in types],
        "typstorage": [found.storage for found in types],
        "typcollation": [found.collation for found in types],
        "typcategory": [found.category for found in types],
    }


def _types() -> Rows:
    def functions(role: str) -> list[int]:
        return [found.functions.get(role, 0) for found in TYPES]

    def column(attribute: str) -> list[object]:
        return [getattr(found, attribute) for found in TYPES]

    return {
        "oid": column("oid"), "typname": column("name"), "typlen": column("length"),
        "typbyval": column("by_value"), "typtype": column("kind"), "typcategory": column("category"),
        "typispreferred": column("preferred"), "typalign": column("align"), "typstorage": column("storage"),
        "typcollation": column("collation"), "typelem": column("element"), "typarray": column("array"),
        "shown": column("shown"), "typsubscript": [_subscript(found) for found in TYPES],
        **dict(zip(FUNCTION_COLUMNS, map(functions, ROLES_OF_FUNCTIONS), strict=True)),
        **{
            f"__{column}": [_FUNCTION_NAMES.get(oid, "-") for oid in functions(role)]
            for column, role in zip(FUNCTION_COLUMNS, ROLES_OF_FUNCTIONS, strict=True)
        },
    }  # fmt: skip


_FUNCTION_NAMES = {oid: name for name, oid in FUNCTION_OIDS.items()}


def _subscript(found: SystemType) -> int:
    return ARRAY_SUBSCRIPT_HANDLER if found.category == "A" else 0


def _settings() -> Rows:
    session: list[Variable] = list(VARIABLES.values())
    fixed = list(SERVER_SETTINGS.items())
    return {
        "name": [variable.name for variable in session] + [name for name, _ in fixed],
        "boot_val": [variable.default or "" for variable in session] + [value for _, (value, _) in fixed],
        "short_desc": [variable.about for variable in session] + [about for _, (_, about) in fixed],
        "category": [*("Preset Options" if one.fixed else "Session" for one in session)]
        + ["Preset Options"] * len(fixed),
        "context": [*("internal" if one.fixed else "user" for one in session)] + ["internal"] * len(fixed),
        "vartype": ["string"] * (len(session) + len(fixed)),
    }


def _functions(cursor: duckdb.DuckDBPyConnection) -> Rows:
    """DuckDB's own functions, and the input and output functions of the types."""
    rows: list[tuple[object, ...]] = [
        (oid, name, "f", "i", False, 0, 0, [], "", "", "") for name, oid in FUNCTION_OIDS.items()
    ]
    found = cursor.execute(
        "SELECT function_name, function_type, return_type, parameters, parameter_types, varargs, "
        "description, stability FROM system.main.duckdb_functions() WHERE database_name = 'system' "
        "AND NOT starts_with(function_name, '__') AND regexp_full_match(function_name, '[a-z_][a-z0-9_]*')"
    ).fetchall()
    seen: set[tuple[str, str, str]] = set()
    for name, kind, result, parameters, given, varargs, description, stability in found:
        if kind not in _KINDS:
            continue
        types = [type_ or "ANY" for type_ in given or [None] * len(parameters)]
        arguments = ", ".join(map(_type_name, types))
        if varargs:
            arguments += f"{', ' if types else ''}VARIADIC {_type_name(varargs)}"
        if (name, kind, arguments) in seen:
            continue
        seen.add((name, kind, arguments))
        many = kind.startswith("table")
        shown = "SETOF record" if many else _type_name(result or "ANY")
        rows.append(
            (None, name, _KINDS[kind], "v" if stability == "VOLATILE" else "i", many,
             _type_oid(result) if result else RECORD_OID, _type_oid(varargs) if varargs else 0,
             list(map(_type_oid, types)), arguments, shown, description or "")
        )  # fmt: skip
    columns: Rows = {name: [row[at] for row in rows] for at, name in enumerate(_FUNCTION_COLUMNS)}
    return columns | {"argument_oids": pa.array(columns["argument_oids"], pa.list_(pa.int64()))}


# DuckDB's functions have some hundred types, each in many signatures.
@cache
def _type_oid(text: str) -> int:
    """The oid of a DuckDB type in a function's signature; ANY, T and LIST stand for several types."""
    head = text.partition("(")[0].rstrip("[]0123456789")
    return value_types.pg_type(text).oid if head in value_types.OIDS else ANY_OID


_SHOWN = {found.oid: found.shown for found in TYPES}


@cache
def _type_name(text: str) -> str:
    oid = _type_oid(text)
    return _SHOWN[oid] if oid != ANY_OID else '"any"'
