"""Names and oids of the catalog's own objects, and the rule that gives a user's object its oid.

Constant tables and macros live in a DuckDB database of their own, in memory, attached beside the user's
file when a server starts: the file is not touched, and every session sees them. There are no views:
DuckDB's duckdb_views() and duckdb_columns() would list them too, and write out the SQL of each, every
time that we read them for the user's. A query brings its relations along (views.py).

An oid must be the same after a reconnect and after a restart. DuckDB's own are not, so it is made
from the object's name: 16384 + 4 * (md5 of its path % SPAN) + its kind. The kind, in the last two
bits, keeps tables and views, indexes and sequences apart, which share pg_class; other catalogs
have one kind of object each. Where two of a kind fall on one number, the later in the order of
their paths is numbered by its path with its rank appended. So an oid changes with the object's name,
and where a colliding name comes that stands before it in that order. Source: docs/design/catalog.md.
"""

from __future__ import annotations

# Our own tables are no user's business; our views in the same schema are.
OUR_SCHEMA = "ducktail"
OUR_PREFIX = "__ducktail"

CATALOG = f"{OUR_PREFIX}_pg"
HOME = f"{CATALOG}.pg"

# Stands before the name of a function of ours until a query has been respelt.
MARK = f"{OUR_PREFIX}_f_"
# The same before the name of a type that sqlglot does not read everywhere.
TYPE_MARK = f"{OUR_PREFIX}_t_"

# PostgreSQL's first oid for a user's object; oids stay below 2^31 for clients that read an int4.
OID_FIRST = 16384
KINDS = 4
SPAN = (2**31 - OID_FIRST) // KINDS
RELATION, INDEX, SEQUENCE, OTHER = range(KINDS)
# The kind of oids that PostgreSQL has given.
FIXED = -1

# Parts a path's names: no name that a person types has it.
SEPARATOR = "chr(31)"

# The oid of namespaces, roles and the like that PostgreSQL fixes.
PG_CATALOG_OID, INFORMATION_SCHEMA_OID, MAIN_OID = 11, 13207, 2200
# PostgreSQL makes pg_temp_1 and so on as they are needed; ours is one, a session's own.
TEMPORARY_SCHEMA, TEMPORARY_OID = "pg_temp", 14000
OWNER, OWNER_OID = "ducktail", 10
DATABASE_OID, TABLESPACE_OID = 5, 1663
TABLE_METHOD_OID, INDEX_METHOD_OID = 2, 403
TABLE_METHOD, INDEX_METHOD = "duckdb", "art"


def path_sql(*parts: str) -> str:
    """SQL of a path: expressions joined by the separator."""
    return f" || {SEPARATOR} || ".join(parts)


def kind_of(oid: str) -> int:
    """The kind of the object with an oid.

    >>> kind_of("1259") == FIXED, kind_of("16385") == INDEX
    (True, True)
    """
    number = int(oid) if oid.isdigit() else 0
    return FIXED if number < OID_FIRST else number % KINDS


def place_sql(kind: int | str, path: str) -> str:
    """SQL of the oid of a path, before the rule for collisions."""
    return f"({OID_FIRST} + {KINDS} * (md5_number_lower({path}) % {SPAN})::BIGINT + {kind})"


def numbered(source: str, kind: str = str(OTHER), order: str = "path") -> str:
    """A SELECT of everything in `source`, which has a column `path`, and the column `oid`.

    Args:
        kind: SQL of the kind of each row.
        order: what decides who keeps the number where two paths fall on one.
    """
    rank = f"(row_number() OVER (PARTITION BY place ORDER BY {order}))"
    return (
        f"SELECT *, CASE {rank} WHEN 1 THEN place ELSE {place_sql(kind, path_sql('path', rank))} END AS oid "
        f"FROM (SELECT *, {place_sql(kind, 'path')} AS place FROM ({source}))"
    )


def namespace_sql(temporary: str) -> str:
    """SQL of the oid of the schema in `schema_name`; of so few schemas no rule for collisions is needed."""
    return (
        f"CASE WHEN {temporary} THEN {TEMPORARY_OID} WHEN schema_name = 'main' THEN {MAIN_OID} "
        f"ELSE {place_sql(OTHER, 'schema_name')} END"
    )
