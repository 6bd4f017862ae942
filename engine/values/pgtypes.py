"""DuckDB types as PostgreSQL types, and back.

The PostgreSQL type is what a client is told in RowDescription and ParameterDescription, and what
it then decodes: so a DuckDB type goes to the PostgreSQL type that holds all of its values (UBIGINT
to numeric, not to int8), and what PostgreSQL has no type for (STRUCT, MAP, UNION, VARIANT, lists
of these and lists of lists, which may be ragged) goes as json, in the form of engine/json_images.
A list of scalars is the PostgreSQL array of its element type. Source: docs/design/values.md,
"PostgreSQL types"; OIDs: PostgreSQL's pg_type.dat.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .duckdb_types import TYPES_CACHED, DuckType, read_type

# The type modifier of a type that has none.
NO_MODIFIER = -1
# PostgreSQL's VARHDRSZ, which is added to the packed modifier of varchar, numeric and bit.
MODIFIER_OFFSET = 4


@dataclass(frozen=True, slots=True)
class PgType:
    """A PostgreSQL type as RowDescription tells it.

    Args:
        oid: pg_type.oid.
        length: pg_type.typlen in bytes, -1 where the size varies.
        modifier: pg_attribute.atttypmod, -1 without one.
        name: pg_type.typname.
    """

    oid: int
    length: int
    modifier: int
    name: str


BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26
JSON, FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR = 114, 700, 701, 705, 1042, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ = 1082, 1083, 1114, 1184, 1186, 1266
BIT, VARBIT, NUMERIC, UUID, JSONB = 1560, 1562, 1700, 2950, 3802
INT2VECTOR, OIDVECTOR, XID = 22, 30, 28

# oid -> (name, length, oid of its array type).
SCALARS: dict[int, tuple[str, int, int]] = {
    BOOL: ("bool", 1, 1000),
    BYTEA: ("bytea", -1, 1001),
    CHAR: ("char", 1, 1002),
    NAME: ("name", 64, 1003),
    INT8: ("int8", 8, 1016),
    INT2: ("int2", 2, 1005),
    INT4: ("int4", 4, 1007),
    TEXT: ("text", -1, 1009),
    OID: ("oid", 4, 1028),
    JSON: ("json", -1, 199),
    FLOAT4: ("float4", 4, 1021),
    FLOAT8: ("float8", 8, 1022),
    BPCHAR: ("bpchar", -1, 1014),
    VARCHAR: ("varchar", -1, 1015),
    DATE: ("date", 4, 1182),
    TIME: ("time", 8, 1183),
    TIMESTAMP: ("timestamp", 8, 1115),
    TIMESTAMPTZ: ("timestamptz", 8, 1185),
    INTERVAL: ("interval", 16, 1187),
    TIMETZ: ("timetz", 12, 1270),
    BIT: ("bit", -1, 1561),
    VARBIT: ("varbit", -1, 1563),
    NUMERIC: ("numeric", -1, 1231),
    UUID: ("uuid", 16, 2951),
    JSONB: ("jsonb", -1, 3807),
}
# The types of the catalog's own columns, which no DuckDB value has: (name, oid, length, array's oid).
# A value of int2vector, oidvector and what reads names is the text that PostgreSQL shows.
_CATALOG = (
    ("oid", OID, 4, 1028), ("xid", XID, 4, 1011), ("name", NAME, 64, 1003), ("char", CHAR, 1, 1002),
    ("varchar", VARCHAR, -1, 1015), ("bpchar", BPCHAR, -1, 1014), ("regproc", 24, 4, 1008),
    ("regclass", 2205, 4, 2210), ("regtype", 2206, 4, 2211), ("regprocedure", 2202, 4, 2207),
    ("regnamespace", 4089, 4, 4090), ("regrole", 4096, 4, 4097), ("int2vector", INT2VECTOR, -1, 1006),
    ("oidvector", OIDVECTOR, -1, 1013), ("pg_node_tree", 194, -1, 0), ("aclitem", 1033, 12, 1034),
    ("inet", 869, -1, 1041), ("pg_lsn", 3220, 8, 3221), ("anyarray", 2277, -1, 0),
)  # fmt: skip
# PostgreSQL's name of such a type, and of its array's -> what it is called among the types here.
CATALOG_TYPES: dict[str, str] = {name: f"PG_{name.upper()}" for name, *_ in _CATALOG} | {
    f"_{name}": f"PG_{name.upper()}[]" for name, *_, array in _CATALOG if array
}
# Parameters come as arrays of the types above only.
ELEMENT_OF: dict[int, int] = {row[2]: oid for oid, row in SCALARS.items()}
SCALARS |= {oid: (name, length, array) for name, oid, length, array in _CATALOG}
ARRAY_OF: dict[int, int] = {oid: row[2] for oid, row in SCALARS.items()}

# DuckDB type -> oid of the PostgreSQL type that its values are sent as.
OIDS: dict[str, int] = {
    "NULL": TEXT,
    "BOOLEAN": BOOL,
    "TINYINT": INT2,
    "SMALLINT": INT2,
    "INTEGER": INT4,
    "BIGINT": INT8,
    "HUGEINT": NUMERIC,
    "UTINYINT": INT2,
    "USMALLINT": INT4,
    "UINTEGER": INT8,
    "UBIGINT": NUMERIC,
    "UHUGEINT": NUMERIC,
    "BIGNUM": NUMERIC,
    "DECIMAL": NUMERIC,
    "FLOAT": FLOAT4,
    "DOUBLE": FLOAT8,
    "VARCHAR": TEXT,
    "ENUM": TEXT,
    "TYPE": TEXT,
    "BLOB": BYTEA,
    "GEOMETRY": BYTEA,
    "BIT": VARBIT,
    "UUID": UUID,
    "JSON": JSON,
    "DATE": DATE,
    "TIME": TIME,
    "TIME_NS": TIME,
    "TIME WITH TIME ZONE": TIMETZ,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_S": TIMESTAMP,
    "TIMESTAMP_MS": TIMESTAMP,
    "TIMESTAMP_NS": TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ,
    "TIMESTAMPTZ_NS": TIMESTAMPTZ,
    "INTERVAL": INTERVAL,
    "STRUCT": JSON,
    "TUPLE": JSON,
    "MAP": JSON,
    "UNION": JSON,
    "VARIANT": JSON,
}
_CATALOG_OIDS: dict[str, int] = {f"PG_{name.upper()}": oid for name, oid, *_ in _CATALOG}
_ALL_OIDS = OIDS | _CATALOG_OIDS

# oid -> the DuckDB type that a value declared with it becomes. numeric is not here: DECIMAL without
# digits is DECIMAL(18,3) to DuckDB and would round; a Decimal value carries its own digits.
DUCKDB_TYPES: dict[int, str] = {
    BOOL: "BOOLEAN",
    BYTEA: "BLOB",
    CHAR: "VARCHAR",
    NAME: "VARCHAR",
    INT8: "BIGINT",
    INT2: "SMALLINT",
    INT4: "INTEGER",
    TEXT: "VARCHAR",
    OID: "UINTEGER",
    JSON: "JSON",
    FLOAT4: "FLOAT",
    FLOAT8: "DOUBLE",
    BPCHAR: "VARCHAR",
    VARCHAR: "VARCHAR",
    DATE: "DATE",
    TIME: "TIME",
    TIMESTAMP: "TIMESTAMP",
    TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
    INTERVAL: "INTERVAL",
    TIMETZ: "TIME WITH TIME ZONE",
    BIT: "BIT",
    VARBIT: "BIT",
    UUID: "UUID",
    JSONB: "JSON",
}


@lru_cache(TYPES_CACHED)
def pg_type(duckdb_type: str) -> PgType:
    """The PostgreSQL type of a DuckDB type; text for one that is unknown.

    Raises:
        InvalidParameterValue: the text is not a type (22023).

    >>> pg_type("DECIMAL(18,3)")
    PgType(oid=1700, length=-1, modifier=1179655, name='numeric')
    >>> pg_type("INTEGER[]").name
    '_int4'
    """
    return pg_type_of(read_type(duckdb_type))


def pg_type_of(read: DuckType) -> PgType:
    """The PostgreSQL type of a DuckDB type that has been read already."""
    oid = element_oid(read)
    modifier = _modifier(read)
    if read.name in ("LIST", "ARRAY") and oid != JSON_OF_LIST:
        name = SCALARS[oid][0]
        return PgType(ARRAY_OF[oid], -1, _modifier(read.children[0]), f"_{name}")
    if oid == JSON_OF_LIST:
        oid = JSON
    name, length, _ = SCALARS[oid]
    return PgType(oid, length, modifier, name)


# Marks a list that is sent as one json document, since json[] is a type of its own.
JSON_OF_LIST = -1


def element_oid(read: DuckType) -> int:
    """The oid of a scalar type, of a list's elements, or JSON_OF_LIST for a list of nested values."""
    if read.name not in ("LIST", "ARRAY"):
        return _ALL_OIDS.get(read.name, TEXT)
    element = read.children[0]
    return JSON_OF_LIST if element.nested else _ALL_OIDS.get(element.name, TEXT)


def is_array(read: DuckType) -> bool:
    """Whether values of the type are sent as a PostgreSQL array."""
    return read.name in ("LIST", "ARRAY") and not read.children[0].nested


def _modifier(read: DuckType) -> int:
    if read.name != "DECIMAL":
        return NO_MODIFIER
    precision, scale = read.numbers
    return ((precision << 16) | scale) + MODIFIER_OFFSET


def duckdb_type(oid: int) -> str | None:
    """The DuckDB type of a parameter declared with this oid; None for 0, numeric and foreign ones.

    >>> duckdb_type(1007)
    'INTEGER[]'
    """
    if oid in ELEMENT_OF:
        element = DUCKDB_TYPES.get(ELEMENT_OF[oid])
        return None if element is None else f"{element}[]"
    return DUCKDB_TYPES.get(oid)
