"""The user's objects as DuckDB lists them, each with its oid: what the relations of pg_catalog stand on.

One base view a kind of object, which a query brings along as a common table expression. All are filtered to the one database that is served and to the
session's temporary objects, and leave out what ducktail keeps for itself. They name the object as
DuckDB does; the PostgreSQL words come in system_views.py.
"""

from __future__ import annotations

from ...engine import pgtypes
from ...engine.duckdb_types import NESTED
from ...engine.quoting import literal
from .places import (
    HOME,
    INDEX,
    OTHER,
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


def base_views() -> dict[str, str]:
    """The base views by name, in an order in which they can be made."""
    ours = f"(schema_name <> {literal(OUR_SCHEMA)})"
    here = f"database_name IN ({SERVED}, 'temp')"
    shown = f"{here} AND {ours} AND NOT starts_with({{}}, {literal(OUR_PREFIX)})"
    return {
        "duck_schemas": f"""
            SELECT schema_name, comment, {namespace_sql("schema_name", "false")} AS oid
            FROM duckdb_schemas()
            WHERE database_name = {SERVED} AND parent_schema IS NULL
              AND schema_name NOT IN ('pg_catalog', 'information_schema')""",
        "duck_relations": numbered(RELATION, _relations(shown)),
        "duck_columns": f"""
            SELECT r.oid AS relation, r.kind, c.column_index::SMALLINT AS number, c.column_name, c.comment,
                   c.column_default, c.is_nullable, c.data_type, c.is_generated, c.generation_expression,
                   t.type_oid, {_modifier("c.data_type")} AS type_modifier
            FROM (SELECT *, {_head("data_type")} AS type_head FROM duckdb_columns()) AS c
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = c.table_oid AND r.database_name = c.database_name
            JOIN {HOME}.fixed_duck_types AS t ON t.head = c.type_head""",
        "duck_column_lists": """
            SELECT database_name, table_oid, list(column_name ORDER BY column_index) AS names
            FROM duckdb_columns() WHERE NOT internal GROUP BY database_name, table_oid""",
        "duck_keys": numbered(INDEX, _keys(shown), "path, constraint_index"),
        "duck_indexes": f"""
            SELECT k.*, r.oid AS relation
            FROM {HOME}.duck_keys AS k
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = k.table_oid AND r.database_name = k.database_name""",
        "duck_checks": numbered(OTHER, _checks(shown), "path, constraint_index"),
        "duck_sequences": numbered(SEQUENCE, _sequences(shown)),
        "duck_types": numbered(OTHER, _types()),
        "duck_roles": f"""
            SELECT {OWNER_OID} AS oid, {literal(OWNER)} AS name
            UNION ALL
            SELECT {HOME}.role_oid({HOME}.session_user()), {HOME}.session_user()
            WHERE {HOME}.session_user() <> {literal(OWNER)}""",
        "duck_macros": numbered(OTHER, _macros(), "path, parameters"),
    }


def _relations(shown: str) -> str:
    """Tables and views, which share their names."""
    path = path_sql(SPACE, "schema_name", "table_name")
    return f"""
        SELECT *, {path} AS path, {TEMPORARY} AS temporary,
               {namespace_sql("schema_name", TEMPORARY)} AS namespace
        FROM (
            SELECT 'r' AS kind, database_name, schema_name, table_name, table_oid, comment,
                   estimated_size AS row_count, column_count, has_primary_key OR index_count > 0 AS has_index,
                   check_constraint_count AS checks, '' AS definition
            FROM duckdb_tables() WHERE {shown.format("table_name")}
            UNION ALL
            SELECT 'v', database_name, schema_name, view_name, view_oid, comment, 0, column_count, false, 0, sql
            FROM duckdb_views()
            WHERE database_name IN ({SERVED}, 'temp') AND NOT internal
              AND NOT starts_with(view_name, {literal(OUR_PREFIX)}))"""


def _keys(shown: str) -> str:
    """Indexes: those that were made, and those behind PRIMARY KEY and UNIQUE.

    `keys` has a text for each part: the name of a column of a constraint; of an index its text, which
    is a name as SQL quotes it, or an expression.
    """
    path = path_sql(SPACE, "schema_name", "table_name", "index_name")
    return f"""
        SELECT *, {path} AS path, {TEMPORARY} AS temporary,
               {namespace_sql("schema_name", TEMPORARY)} AS namespace
        FROM (
            SELECT database_name, schema_name, table_name, table_oid, index_name, comment, is_unique,
                   false AS is_primary, NULL::BIGINT AS constraint_index,
                   NULL::BIGINT[] AS columns, expressions::VARCHAR[] AS keys
            FROM duckdb_indexes() WHERE {shown.format("table_name")}
            UNION ALL
            SELECT database_name, schema_name, table_name, table_oid, constraint_name, NULL, true,
                   constraint_type = 'PRIMARY KEY', constraint_index,
                   list_transform(constraint_column_indexes, LAMBDA z_at: z_at + 1),
                   constraint_column_names
            FROM duckdb_constraints()
            WHERE {shown.format("table_name")} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE'))"""


def _checks(shown: str) -> str:
    """CHECK and FOREIGN KEY constraints."""
    path = path_sql(SPACE, "schema_name", "table_name", "constraint_name")
    return f"""
        SELECT database_name, schema_name, table_name, table_oid, constraint_name, constraint_index,
               constraint_type, expression, constraint_column_names AS names, referenced_table,
               referenced_column_names AS referenced_names,
               list_transform(constraint_column_indexes, LAMBDA z_at: z_at + 1) AS columns, {path} AS path,
               {namespace_sql("schema_name", TEMPORARY)} AS namespace
        FROM duckdb_constraints()
        WHERE {shown.format("table_name")} AND constraint_type IN ('CHECK', 'FOREIGN KEY')"""


def _sequences(shown: str) -> str:
    path = path_sql(SPACE, "schema_name", "sequence_name")
    return f"""
        SELECT schema_name, sequence_name, comment, start_value, min_value, max_value, increment_by, cycle,
               last_value, {TEMPORARY} AS temporary, {path} AS path,
               {namespace_sql("schema_name", TEMPORARY)} AS namespace
        FROM duckdb_sequences() WHERE {shown.format("sequence_name")}"""


def _types() -> str:
    """Types that CREATE TYPE has made."""
    return f"""
        SELECT schema_name, type_name, logical_type, labels, comment,
               {path_sql("schema_name", "type_name")} AS path, {namespace_sql("schema_name", "false")} AS namespace
        FROM duckdb_types() WHERE database_name = {SERVED} AND NOT internal"""


def _macros() -> str:
    """Macros that the user has made."""
    return f"""
        SELECT schema_name, function_name, function_type, parameters, macro_definition, comment,
               {path_sql("schema_name", "function_name", "len(parameters)")} AS path,
               {namespace_sql("schema_name", "false")} AS namespace
        FROM duckdb_functions() WHERE database_name = {SERVED} AND NOT internal"""


def _head(text: str) -> str:
    """SQL of what decides a DuckDB type's PostgreSQL type: one of `type_heads`.

    That is the name before any arguments, with `[]` for a list or array; what is not known is text,
    and a list of lists or of structs is json, as engine/pgtypes.py has it.
    """
    element = rf"regexp_replace({text}, '\[\d*\]$', '')"
    name = f"split_part({element}, '(', 1)"
    known = ", ".join(map(literal, pgtypes.OIDS))
    return (
        f"CASE WHEN {name} NOT IN ({known}) THEN 'VARCHAR' WHEN ends_with({element}, ']') THEN 'JSON' "
        f"ELSE {name} END || if(ends_with({text}, ']') AND NOT ends_with({element}, ']'), '[]', '')"
    )


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
