"""DuckDB's lists of what there is, cut to what the session may know of: what the catalog is made of.

Macros, so that a query in which they stand cannot have been written by a user: he can name nothing of our
database, and DuckDB's own lists are refused to him who may not see all (sql/rights). What he may know of
stands in the variables of his session's cursors (sql/rights/visible.py); a session without them is the
database's owner's, or a superuser's.
"""

from __future__ import annotations

from ...sql.rights.visible import LIMITED, OWNED, SCHEMAS, SEEN, WHOLE
from .places import HOME, OUR_SCHEMA, SEPARATOR

_LIMITED = f"coalesce(getvariable('{LIMITED}')::BOOLEAN, false)"


def _in(variable: str, what: str) -> str:
    return f"list_contains(getvariable('{variable}')::VARCHAR[], {what})"


_NAME = f"lower(z_schema) || {SEPARATOR} || lower(z_name)"
_EVERYBODYS = f"z_database <> {HOME}.duck_database() OR z_schema = '{OUR_SCHEMA}'"

# Macro -> body. Scalar ones first: the lists use them.
SCALARS = {
    "told_all()": f"NOT {_LIMITED}",
    "told_schema(z_database, z_schema)": f"NOT {_LIMITED} OR {_EVERYBODYS} "
    f"OR {_in(SCHEMAS, 'lower(z_schema)')}",
    "told(z_database, z_schema, z_name)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(SEEN, _NAME)} "
    f"OR {_in(WHOLE, 'lower(z_schema)')} OR {_in(WHOLE, repr('*'))}",
    "told_text(z_database, z_schema, z_name)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(OWNED, _NAME)}",
}


def _list(source: str, name: str) -> str:
    return f"SELECT * FROM {source}() WHERE {HOME}.told(database_name, schema_name, {name})"


LISTS = {
    "tables": _list("duckdb_tables", "table_name"),
    # What a view is made of names what is under it.
    "views": "SELECT * REPLACE (if("
    f"{HOME}.told_text(database_name, schema_name, view_name), sql, 'CREATE VIEW v AS SELECT NULL;') AS sql) "
    f"FROM duckdb_views() WHERE {HOME}.told(database_name, schema_name, view_name)",
    "columns": _list("duckdb_columns", "table_name"),
    "indexes": _list("duckdb_indexes", "table_name"),
    "constraints": _list("duckdb_constraints", "table_name"),
    "sequences": _list("duckdb_sequences", "sequence_name"),
    "schemas": f"SELECT * FROM duckdb_schemas() WHERE {HOME}.told_schema(database_name, schema_name)",
    "types": f"SELECT * FROM duckdb_types() WHERE {HOME}.told_schema(database_name, schema_name)",
    # A macro's text names what it reads.
    "functions": f"SELECT * FROM duckdb_functions() WHERE internal OR NOT {_LIMITED}",
}


def statements() -> list[str]:
    """What makes them."""
    scalars = [f"CREATE MACRO {HOME}.{head} AS ({body})" for head, body in SCALARS.items()]
    return scalars + [f"CREATE MACRO {HOME}.{name}() AS TABLE {body}" for name, body in LISTS.items()]
