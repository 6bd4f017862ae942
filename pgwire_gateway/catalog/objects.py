"""The user's objects as DuckDB lists them, each with its oid: what the views of pg_catalog stand on.

One base view a kind of object. All are filtered to the one database that is served and to the
session's temporary objects, and leave out what ducktail keeps for itself. They name the object as
DuckDB does; the PostgreSQL words come in system_views.py.
"""

from __future__ import annotations

from ...engine import pgtypes
from ...engine.quoting import literal
from .places import (
    HOME,
    INDEX,
    OTHER,
    OUR_PREFIX,
    OUR_SCHEMA,
    RELATION,
    SEQUENCE,
    namespace_sql,
    numbered,
    path_sql,
)

TEMPORARY = "(database_name = 'temp')"
# Parts a session's temporary objects from others of their names in a path.
SPACE = f"if({TEMPORARY}, 'temp', '')"


def base_views(database: str) -> dict[str, str]:
    """The base views by name, in an order in which they can be made.

    Args:
        database: DuckDB's name of the database that is served.
    """
    ours = f"(schema_name <> {literal(OUR_SCHEMA)})"
    here = f"database_name IN ({literal(database)}, 'temp')"
    shown = f"{here} AND {ours} AND NOT starts_with({{}}, {literal(OUR_PREFIX)})"
    return {
        "duck_schemas": f"""
            SELECT schema_name, comment, {namespace_sql("schema_name", "false")} AS oid
            FROM duckdb_schemas()
            WHERE database_name = {literal(database)} AND parent_schema IS NULL
              AND schema_name NOT IN ('pg_catalog', 'information_schema')""",
        "duck_relations": numbered(RELATION, _relations(database, shown)),
        "duck_columns": f"""
            SELECT r.oid AS relation, r.kind, r.schema_name, r.table_name, c.column_index::SMALLINT AS number,
                   c.column_name, c.comment, c.column_default, c.is_nullable, c.data_type, c.is_generated,
                   c.generation_expression, {HOME}.duck_type_oid(c.data_type) AS type_oid,
                   {HOME}.duck_type_modifier(c.data_type) AS type_modifier
            FROM duckdb_columns() AS c
            JOIN {HOME}.duck_relations AS r
              ON r.table_oid = c.table_oid AND r.database_name = c.database_name""",
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
        "duck_types": numbered(OTHER, _types(database)),
        "duck_macros": numbered(OTHER, _macros(database), "path, parameters"),
    }


def _relations(database: str, shown: str) -> str:
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
            WHERE database_name IN ({literal(database)}, 'temp') AND NOT internal
              AND NOT starts_with(view_name, {literal(OUR_PREFIX)}))"""


def _keys(shown: str) -> str:
    """Indexes: those that were made, and those behind PRIMARY KEY and UNIQUE.

    `keys` has a text for each part: a column's name, quoted where it must be, or an expression.
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
                   list_transform(constraint_column_indexes, LAMBDA at: at + 1),
                   list_transform(constraint_column_names, LAMBDA part: {HOME}.quote_ident(part))
            FROM duckdb_constraints()
            WHERE {shown.format("table_name")} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE'))"""


def _checks(shown: str) -> str:
    """CHECK and FOREIGN KEY constraints."""
    path = path_sql(SPACE, "schema_name", "table_name", "constraint_name")
    return f"""
        SELECT database_name, schema_name, table_name, table_oid, constraint_name, constraint_index,
               constraint_type, expression, constraint_column_names AS names, referenced_table,
               referenced_column_names AS referenced_names,
               list_transform(constraint_column_indexes, LAMBDA at: at + 1) AS columns, {path} AS path,
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


def _types(database: str) -> str:
    """Types that CREATE TYPE has made."""
    return f"""
        SELECT schema_name, type_name, logical_type, labels, comment,
               {path_sql("schema_name", "type_name")} AS path, {namespace_sql("schema_name", "false")} AS namespace
        FROM duckdb_types() WHERE database_name = {literal(database)} AND NOT internal"""


def _macros(database: str) -> str:
    """Macros that the user has made."""
    return f"""
        SELECT schema_name, function_name, function_type, parameters, macro_definition, comment,
               {path_sql("schema_name", "function_name", "len(parameters)")} AS path,
               {namespace_sql("schema_name", "false")} AS namespace
        FROM duckdb_functions() WHERE database_name = {literal(database)} AND NOT internal"""


def type_macros() -> dict[str, str]:
    """The macros that say which PostgreSQL type a DuckDB type is sent as: engine/pgtypes.py in SQL.

    `INTEGER[3]` is an array of int4, a list of lists or of structs is json, as there.
    """
    scalars = ", ".join(f"{literal(name)}: {oid}" for name, oid in pgtypes.OIDS.items())
    arrays = ", ".join(f"{oid}: {array}" for oid, array in pgtypes.ARRAY_OF.items())
    element = r"regexp_replace(duck_text, '\[\d*\]$', '')"
    head = f"split_part({element}, '(', 1)"
    nested = "'STRUCT', 'TUPLE', 'MAP', 'UNION', 'VARIANT'"
    scalar = f"coalesce(MAP {{{scalars}}}[{head}], {pgtypes.TEXT})::BIGINT"
    return {
        "duck_type_oid(duck_text)": f"""
            CASE WHEN NOT ends_with(duck_text, ']') THEN {scalar}
                 WHEN ends_with({element}, ']') OR {head} IN ({nested}) THEN {pgtypes.JSON}
                 ELSE MAP {{{arrays}}}[{scalar}] END::BIGINT""",
        "duck_type_modifier(duck_text)": f"""
            CASE WHEN starts_with(duck_text, 'DECIMAL(') AND NOT ends_with({element}, ']') THEN
                 (regexp_extract(duck_text, '\\((\\d+),', 1)::INTEGER << 16)
                 + regexp_extract(duck_text, ',\\s*(\\d+)\\)', 1)::INTEGER + {pgtypes.MODIFIER_OFFSET}
                 ELSE {pgtypes.NO_MODIFIER} END""",
    }
