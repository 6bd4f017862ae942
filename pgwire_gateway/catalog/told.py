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


_SCHEMA = f"{HOME}.folded(z_schema)"
_NAME = f"{_SCHEMA} || {SEPARATOR} || {HOME}.folded(z_name)"
_EVERYBODYS = f"z_database <> {HOME}.duck_database() OR z_schema = '{OUR_SCHEMA}'"

# Macro -> body. Scalar ones first: the lists use them.
SCALARS = {
    "told_all()": f"NOT {_LIMITED}",
    "told_schema(z_database, z_schema)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(SCHEMAS, _SCHEMA)}",
    "told(z_database, z_schema, z_name)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(SEEN, _NAME)} "
    f"OR {_in(WHOLE, _SCHEMA)} OR {_in(WHOLE, repr('*'))}",
    "told_text(z_database, z_schema, z_name)": f"NOT {_LIMITED} OR {_EVERYBODYS} OR {_in(OWNED, _NAME)}",
}


def _list(source: str, name: str | None = None) -> str:
    told = f"{HOME}.told_schema(database_name, schema_name)"
    if name is not None:
        told = f"{HOME}.told(database_name, schema_name, {name})"
    return f"SELECT * FROM system.main.duckdb_{source}() WHERE {told}"


LISTS = {
    "tables": _list("tables", "table_name"),
    # What a view is made of names what is under it.
    "views": "SELECT * REPLACE (if("
    f"{HOME}.told_text(database_name, schema_name, view_name), sql, 'CREATE VIEW v AS SELECT NULL;') AS sql) "
    f"FROM system.main.duckdb_views() WHERE {HOME}.told(database_name, schema_name, view_name)",
    "columns": _list("columns", "table_name"),
    "indexes": _list("indexes", "table_name"),
    "constraints": _list("constraints", "table_name"),
    "sequences": _list("sequences", "sequence_name"),
    "schemas": _list("schemas"),
    "types": _list("types"),
    # A macro's text names what it reads.
    "functions": f"SELECT * FROM system.main.duckdb_functions() WHERE internal OR NOT {_LIMITED}",
}


def statements() -> list[str]:
    """What makes them."""
    scalars = [f"CREATE MACRO {HOME}.{head} AS ({body})" for head, body in SCALARS.items()]
    return scalars + [f"CREATE MACRO {HOME}.{name}() AS TABLE {body}" for name, body in LISTS.items()]
