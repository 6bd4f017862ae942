"""Names and oids of the catalog's own objects, and the rule for the oids of a user's objects.

Constant tables and macros are in a separate DuckDB database, in memory, attached beside the user's file when
a server starts: the file is not touched, and every session sees them. There are no views: DuckDB's
duckdb_views() and duckdb_columns() would also list them, and format the SQL of each, at every read for the
user's views. A query contains its relations itself (views.py).

An oid must be the same after a reconnect and after a restart. DuckDB's own are not, so it is computed from
the object's name: 16384 + 4 * (md5 of its path % SPAN) + its kind. The kind, in the last two bits,
distinguishes tables and views, indexes and sequences, which share pg_class; other catalogs have one kind of
object each. If two objects of a kind have the same number, the later one in the order of their paths gets the
number of its path with its rank appended. So an oid changes with the object's name, and when an object with a
colliding name is created that precedes it in that order. Source: docs/design/catalog.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from weakref import WeakKeyDictionary

from ...engine.duck.objects import RELATIONS, TABLE, TYPE, Object, Objects
from ...engine.values import value_types

# ducktail's own tables are hidden from users; its views in the same schema are not.
OUR_SCHEMA = "ducktail"
OUR_PREFIX = "__ducktail"

CATALOG = f"{OUR_PREFIX}_pg"
HOME = f"{CATALOG}.pg"

# The prefix of the name of a function of ducktail in a query before its rewriting.
MARK = f"{OUR_PREFIX}_f_"
# The same prefix for names of types that sqlglot does not read everywhere.
TYPE_MARK = f"{OUR_PREFIX}_t_"

# PostgreSQL's first oid for a user's object; oids stay below 2^31 for clients that read an int4.
OID_FIRST = value_types.USER_OID_FIRST
KINDS = value_types.USER_OID_KINDS
SPAN = (2**31 - OID_FIRST) // KINDS
RELATION, INDEX, SEQUENCE, OTHER = range(KINDS)
# An array type has the oid of its element type, with another kind: both are in pg_type.
ARRAY = value_types.USER_ARRAY
assert OTHER == value_types.USER_TYPE
_PLACED = RELATIONS | {TYPE}
_PLACES: WeakKeyDictionary[Objects, Counter[int]] = WeakKeyDictionary()
# The kind of oids that PostgreSQL has assigned.
FIXED = -1

# Separates the names in a path: no typed name contains it.
SEPARATOR = "chr(31)"

# Oids of namespaces, roles and similar objects that PostgreSQL fixes.
PG_CATALOG_OID, INFORMATION_SCHEMA_OID, MAIN_OID = 11, 13207, 2200
# PostgreSQL creates pg_temp_1 and so on as they are needed; here a session has exactly one.
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


def object_oid(found: Object, objects: Objects, temporary: Objects) -> int:
    """The oid of a table, view or type; 0 for one that is not shown, or if another one has the same number.

    Args:
        objects: all objects of the database.
        temporary: the objects of the session.
    """
    if found.kind == TYPE and found.temporary:
        return 0
    if found.name.startswith(OUR_PREFIX) or (found.schema == OUR_SCHEMA and found.kind == TABLE):
        return 0
    place = _place(found)
    return place if _places(objects)[place] + _places(temporary)[place] == 1 else 0


def _place(found: Object) -> int:
    """The oid of a relation or type, before the rule for collisions."""
    is_type = found.kind == TYPE
    of_relation = ("temp" if found.temporary else "", found.schema, "", found.name)
    path = "\x1f".join((found.schema, found.name) if is_type else of_relation)
    number = int.from_bytes(hashlib.md5(path.encode(), usedforsecurity=False).digest()[8:], "little")
    return OID_FIRST + KINDS * (number % SPAN) + (OTHER if is_type else RELATION)


def _places(objects: Objects) -> Counter[int]:
    """The number of relations or types for each oid; counted once for each list of objects."""
    known = _PLACES.get(objects)
    if known is None:
        known = _PLACES[objects] = Counter(_place(one) for one in objects if one.kind in _PLACED)
    return known


def numbered(source: str, kind: str = str(OTHER), order: str = "path") -> str:
    """A SELECT of all rows of `source`, which has a column `path`, with an added column `oid`.

    Args:
        kind: SQL of the kind of each row.
        order: decides which of two paths with the same number keeps it.
    """
    ranked = (
        f"SELECT *, row_number() OVER (PARTITION BY place ORDER BY {order}) AS rank "
        f"FROM (SELECT *, {place_sql(kind, 'path')} AS place FROM ({source}))"
    )
    other = place_sql(kind, path_sql("path", "rank"))
    return f"SELECT *, if(rank = 1, place, {other}) AS oid FROM ({ranked})"


def namespace_sql(temporary: str) -> str:
    """SQL of the oid of the schema in `schema_name`; of so few schemas no rule for collisions is needed."""
    return (
        f"CASE WHEN {temporary} THEN {TEMPORARY_OID} WHEN schema_name = 'main' THEN {MAIN_OID} "
        f"ELSE {place_sql(OTHER, 'schema_name')} END"
    )
