"""The user's objects as DuckDB lists them, each with its oid: what the relations of pg_catalog stand on.

One base view a kind of object, which a query brings along as a common table expression. All are
filtered to the one database that is served and to the session's temporary objects, and leave out
what ducktail keeps for itself. They name the object as DuckDB does; the PostgreSQL words come in
system_views.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.quoting import literal
from ...engine.values import pgtypes
from ...engine.values.duckdb_types import NESTED
from .oids import (
    HOME,
    INDEX,
    OUR_PREFIX,
    OUR_SCHEMA,
    OWNER,
    OWNER_OID,
    RELATION,
    SEQUENCE,
    namespace_sql,
    numbered,
    path_sql,
)

TEMPORARY = "(database_name = 'temp')"
# DuckDB's name of the database that is served.
SERVED = f"{HOME}.duck_database()"
# Parts a session's temporary objects from others of their names in a path.
SPACE = f"if({TEMPORARY}, 'temp', '')"


# Which of the objects that share pg_class a row is, by relkind: the last bits of its oid.
KIND = f"CASE kind WHEN 'i' THEN {INDEX} WHEN 'S' THEN {SEQUENCE} ELSE {RELATION} END"


def base_views() -> dict[str, str]:
    """The base views by name, each after those that it uses."""
    here = f"database_name IN ({SERVED}, 'temp')"
    shown = (
        f"{here} AND schema_name <> {literal(OUR_SCHEMA)} AND NOT starts_with({{}}, {literal(OUR_PREFIX)})"
    )
    relations = [_tables(shown), _views(here)]
    keys = [_indexes(shown), _unique_constraints(shown)]
    return {
        "duck_schemas": f"""
            SELECT schema_name, comment, {namespace_sql("schema_name", "false")} AS oid
            FROM {HOME}.schemas()
            WHERE database_name = {SERVED} AND parent_schema IS NULL
              AND schema_name NOT IN ('pg_catalog', 'information_schema')""",
        "duck_objects": numbered(
            _objects([*relations, *keys, _sequences(shown)]), KIND, "path, place_in_list"
        ),
        "duck_relations": numbered(_objects(relations), str(RELATION)),
        "duck_columns": f"""
            SELECT r.oid AS relation, r.kind, r.schema_name, r.name AS table_name, r.temporary,
                   c.column_index::SMALLINT AS number, c.column_name, c.comment, c.column_default,
                   c.is_nullable, c.data_type, c.is_generated, c.generation_expression,
                   t.* EXCLUDE (head), {_modifier("c.data_type")} AS type_modifier
            FROM (SELECT *, {HEAD} AS type_head FROM {HOME}.columns()) AS c
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = c.table_oid AND r.database_name = c.database_name
            JOIN {HOME}.fixed_duck_types AS t ON t.head = c.type_head
            ORDER BY relation, number""",
        "duck_column_lists": f"""
            SELECT database_name, table_oid, list(column_name ORDER BY column_index) AS names
            FROM {HOME}.columns() WHERE NOT internal GROUP BY database_name, table_oid""",
        "duck_keys": numbered(_objects(keys), str(INDEX), "path, place_in_list"),
        "duck_indexes": f"""
            SELECT k.*, r.oid AS relation
            FROM {HOME}.duck_keys AS k
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = k.table_oid AND r.database_name = k.database_name""",
        "duck_checks": numbered(_checks(shown), order="path, constraint_index"),
        "duck_sequences": f"""
            SELECT o.*, s.start_value, s.min_value, s.max_value, s.increment_by, s.cycle, s.last_value
            FROM (SELECT * FROM ({numbered(_objects([_sequences(shown)]), str(SEQUENCE))})) AS o
            JOIN {HOME}.sequences() AS s
              ON s.sequence_oid = o.table_oid AND s.database_name = o.database_name""",
        "duck_types": numbered(_types()),
        "duck_roles": f"""
            SELECT {OWNER_OID} AS oid, {literal(OWNER)} AS name
            UNION ALL
            SELECT {HOME}.role_oid({HOME}.session_user()), {HOME}.session_user()
            WHERE {HOME}.session_user() <> {literal(OWNER)}""",
        "duck_macros": numbered(_macros(), order="path, parameters"),
    }


# What a branch of `_objects` says of an object, and what it is where the branch does not say.
_OBJECT = {
    "kind": "", "database_name": "database_name", "schema_name": "schema_name", "table_name": "''",
    "name": "", "table_oid": "table_oid", "comment": "comment", "row_count": "0", "column_count": "0",
    "has_index": "false", "checks": "0", "definition": "''", "is_unique": "false", "is_primary": "false",
    "place_in_list": "NULL::BIGINT", "columns": "NULL::BIGINT[]", "keys": "NULL::VARCHAR[]",
}  # fmt: skip


def _objects(branches: Sequence[str]) -> str:
    """What shares pg_class."""
    return f"""
        SELECT *, {path_sql(SPACE, "schema_name", "table_name", "name")} AS path,
               {TEMPORARY} AS temporary, {namespace_sql("schema_name", TEMPORARY)} AS namespace
        FROM ({" UNION ALL ".join(branches)})"""


def _branch(source: str, **values: str) -> str:
    columns = ", ".join(f"{sql} AS {name}" for name, sql in {**_OBJECT, **values}.items())
    return f"SELECT {columns} FROM {source}"


def _tables(shown: str) -> str:
    return _branch(
        f"{HOME}.tables() WHERE {shown.format('table_name')}",
        kind="'r'", name="table_name", row_count="estimated_size", column_count="column_count",
        has_index="has_primary_key OR index_count > 0", checks="check_constraint_count",
    )  # fmt: skip


def _views(here: str) -> str:
    return _branch(
        f"{HOME}.views() WHERE {here} AND NOT internal AND NOT starts_with(view_name, {literal(OUR_PREFIX)})",
        kind="'v'", name="view_name", table_oid="view_oid", column_count="column_count", definition="sql",
    )  # fmt: skip


def _indexes(shown: str) -> str:
    """Indexes that were made; `keys` are texts of columns (as SQL quotes them) or of expressions."""
    return _branch(
        f"{HOME}.indexes() WHERE {shown.format('table_name')}",
        kind="'i'", table_name="table_name", name="index_name", is_unique="is_unique",
        keys="expressions::VARCHAR[]",
    )  # fmt: skip


def _unique_constraints(shown: str) -> str:
    """The indexes behind PRIMARY KEY and UNIQUE; `keys` are names of columns."""
    return _branch(
        f"{HOME}.constraints() WHERE {shown.format('table_name')} "
        "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
        kind="'i'", table_name="table_name", name="constraint_name", comment="NULL::VARCHAR",
        is_unique="true", is_primary="constraint_type = 'PRIMARY KEY'", place_in_list="constraint_index",
        columns="list_transform(constraint_column_indexes, LAMBDA z_at: z_at + 1)",
        keys="constraint_column_names",
    )  # fmt: skip


def _sequences(shown: str) -> str:
    return _branch(
        f"{HOME}.sequences() WHERE {shown.format('sequence_name')}",
        kind="'S'", name="sequence_name", table_oid="sequence_oid", row_count="1", column_count="3",
    )  # fmt: skip


def _checks(shown: str) -> str:
    """CHECK and FOREIGN KEY constraints."""
    path = path_sql(SPACE, "schema_name", "table_name", "constraint_name")
    return f"""
        SELECT database_name, schema_name, table_name, table_oid, constraint_name, constraint_index,
               constraint_type, expression, constraint_column_names AS names, referenced_table,
               referenced_column_names AS referenced_names,
               list_transform(constraint_column_indexes, LAMBDA z_at: z_at + 1) AS columns, {path} AS path,
               {namespace_sql("schema_name", TEMPORARY)} AS namespace
        FROM {HOME}.constraints()
        WHERE {shown.format("table_name")} AND constraint_type IN ('CHECK', 'FOREIGN KEY')"""


def _types() -> str:
    """Types that CREATE TYPE has made."""
    return f"""
        SELECT schema_name, type_name, logical_type, labels, comment,
               {path_sql("schema_name", "type_name")} AS path,
               {namespace_sql("schema_name", "false")} AS namespace
        FROM {HOME}.types() WHERE database_name = {SERVED} AND NOT internal"""


def _macros() -> str:
    """Macros that the user has made."""
    return f"""
        SELECT schema_name, function_name, function_type, parameters, macro_definition, comment,
               {path_sql("schema_name", "function_name", "len(parameters)")} AS path,
               {namespace_sql("schema_name", "false")} AS namespace
        FROM {HOME}.functions() WHERE database_name = {SERVED} AND NOT internal"""


def _head(text: str) -> str:
    """SQL of what decides a DuckDB type's PostgreSQL type: one of `type_heads`.

    That is the name before any arguments, with `[]` for a list or array; what is not known is text,
    and a list of lists or of structs is json, as engine/values/pgtypes.py has it.
    """
    element = rf"regexp_replace({text}, '\[\d*\]$', '')"
    name = f"split_part({element}, '(', 1)"
    known = ", ".join(map(literal, pgtypes.OIDS))
    return (
        f"CASE WHEN ends_with({element}, ']') THEN 'JSON' WHEN {name} NOT IN ({known}) THEN 'VARCHAR' "
        f"ELSE {name} END || if(ends_with({text}, ']') AND NOT ends_with({element}, ']'), '[]', '')"
    )


HEAD = _head("data_type")


def type_heads() -> dict[str, int]:
    """The oid of each head that `_head` can answer."""
    lists = {f"{name}[]": pgtypes.pg_type(f"{name}[]").oid for name in pgtypes.OIDS if name not in NESTED}
    return pgtypes.OIDS | lists | {f"{name}[]": pgtypes.JSON for name in NESTED & pgtypes.OIDS.keys()}


def _modifier(text: str) -> str:
    """SQL of pg_attribute.atttypmod of a DuckDB type: DECIMAL(p,s) has one, and a list of it."""
    return f"""
        CASE WHEN starts_with({text}, 'DECIMAL(') AND NOT contains({text}, '][') THEN
             (regexp_extract({text}, '(\\d+),', 1)::INTEGER << 16)
             + regexp_extract({text}, ',\\s*(\\d+)', 1)::INTEGER + {pgtypes.MODIFIER_OFFSET}
             ELSE {pgtypes.NO_MODIFIER} END"""
