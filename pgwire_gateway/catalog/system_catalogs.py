"""The types and relations of PostgreSQL 15's pg_catalog and information_schema, read from data files.

data/pg_type.tsv lists the types, one in each line. Its last column has the type's functions with their oids:
input, output, receive, send, and those of its modifier. Types without values in DuckDB are omitted, except
those of the catalog itself. Source: PostgreSQL's pg_type.dat.

data/relations.tsv and data/columns.tsv list the relations, as PostgreSQL's documentation does ("System
Catalogs", "System Views", "The Information Schema"); the domains of information_schema are given as their
base types. A relation of the catalog has exactly these columns, in this order and of these types, whether
DuckDB has values for them or not: a client that selects a column of PostgreSQL 15 finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files


def read_rows(name: str) -> Iterator[list[str]]:
    """The rows of a .tsv file of data/, as texts, without its header."""
    for line in read_text(name).splitlines()[1:]:
        yield line.split("\t")


def read_text(name: str) -> str:
    """The text of a file of data/."""
    return (files(__package__) / "data" / name).read_text("utf-8")


# The functions of all array types, by role, with their oids.
ARRAY_FUNCTIONS = {"in": 750, "out": 751, "recv": 2400, "send": 2401}
ARRAY_SUBSCRIPT_HANDLER = 6179
ROLES_OF_FUNCTIONS = ("in", "out", "recv", "send", "modin", "modout")
# The columns of pg_type with these oids.
FUNCTION_COLUMNS = ("typinput", "typoutput", "typreceive", "typsend", "typmodin", "typmodout")


@dataclass(frozen=True, slots=True)
class SystemType:
    """One row of pg_type.

    Args:
        oid, name, length, by_value, kind, category, preferred, align, storage, collation, element,
            array: the columns oid, typname, typlen, typbyval, typtype, typcategory, typispreferred,
            typalign, typstorage, typcollation, typelem, typarray.
        shown: the answer of format_type without a modifier.
        functions: oid by role (ROLES_OF_FUNCTIONS), for existing functions.
    """

    oid: int
    name: str
    length: int
    by_value: bool
    kind: str
    category: str
    preferred: bool
    align: str
    storage: str
    collation: int
    element: int
    array: int
    shown: str
    functions: dict[str, int]


def _read_types() -> Iterator[tuple[SystemType, dict[str, int]]]:
    """The types of the file, each with its functions by name."""
    for row in read_rows("pg_type.tsv"):
        name, oid, length, by_value, kind, category, preferred, align, storage = row[:9]
        collation, element, array, shown, functions = row[9:]
        pairs = [pair.rsplit(":", 1) for pair in functions.split(" ")]
        oids = [int(number) for _, number in pairs]
        # Types without receive and send have only the first two; those with a modifier have all six.
        yield (
            SystemType(
                int(oid), name, int(length), by_value == "t", kind, category, preferred == "t", align,
                storage, int(collation), int(element), int(array), shown,
                dict(zip(ROLES_OF_FUNCTIONS, oids, strict=False)),
            ),
            {function: int(number) for function, number in pairs},
        )  # fmt: skip


def _array_of(element: SystemType) -> SystemType:
    modifiers = {role: oid for role, oid in element.functions.items() if role.startswith("mod")}
    kind, category = ("p", "P") if element.name == "record" else ("b", "A")
    return SystemType(
        element.array, f"_{element.name}", -1, False, kind, category, False,
        "d" if element.align == "d" else "i", "x", element.collation, element.oid, 0,
        f"{element.shown}[]", ARRAY_FUNCTIONS | modifiers,
    )  # fmt: skip


SCALARS: tuple[SystemType, ...] = tuple(found for found, _ in _read_types())
ARRAYS: tuple[SystemType, ...] = tuple(_array_of(found) for found in SCALARS if found.array)
TYPES: tuple[SystemType, ...] = SCALARS + ARRAYS
TYPES_BY_NAME: dict[str, SystemType] = {found.name: found for found in TYPES}
# Other SQL names of types.
ALIASES: dict[str, int] = {
    "int": 23, "decimal": 1700, "dec": 1700, "float": 701, "char": 1042, "timestamp": 1114, "time": 1083,
    "string": 25,
}  # fmt: skip
# SQL names of a type: typname, the name that format_type shows, and others.
OID_OF_NAME: dict[str, int] = {
    name: found.oid for found in TYPES for name in (found.name, found.shown, found.shown.strip('"'))
} | ALIASES

# Input and output functions by name, for `'array_in'::regproc`.
FUNCTION_OIDS: dict[str, int] = {f"array_{role}": oid for role, oid in ARRAY_FUNCTIONS.items()} | {
    name: oid for _, functions in _read_types() for name, oid in functions.items()
}


PG_CATALOG, INFORMATION_SCHEMA = "pg_catalog", "information_schema"

# PostgreSQL type -> the DuckDB type that holds its values; VARCHAR for types without an entry. An oid is 64
# bits wide so that no arithmetic of a client overflows.
_DUCKDB_TYPES = {
    "bool": "BOOLEAN",
    "bytea": "BLOB",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "numeric": "DECIMAL(38,0)",
    "oid": "BIGINT",
    "regproc": "BIGINT",
    "regtype": "BIGINT",
    "xid": "BIGINT",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "int2vector": "SMALLINT[]",
    "oidvector": "BIGINT[]",
}

# The value of a NOT NULL column for which DuckDB has no value.
_EMPTY = {"BOOLEAN": "false", "VARCHAR": "''", "TIMESTAMP WITH TIME ZONE": "NULL", "INTERVAL": "NULL"}


@dataclass(frozen=True, slots=True)
class SystemColumn:
    """A column: its name, PostgreSQL type and whether it is NOT NULL."""

    name: str
    pg_type: str
    not_null: bool

    @property
    def duckdb_type(self) -> str:
        """The DuckDB type that holds its values."""
        if self.pg_type == "_regtype":
            return "VARCHAR[]"  # Names, because arrays are shown as they are stored.
        if self.pg_type.startswith("_"):
            return f"{_DUCKDB_TYPES.get(self.pg_type[1:], 'VARCHAR')}[]"
        return _DUCKDB_TYPES.get(self.pg_type, "VARCHAR")

    @property
    def type_oid(self) -> int:
        """pg_type.oid of its type; text for the few types that the catalog's pg_type lacks."""
        found = TYPES_BY_NAME.get(self.pg_type)
        return found.oid if found else TYPES_BY_NAME["text"].oid

    @property
    def empty(self) -> str:
        """SQL of the value for "no such objects"."""
        if not self.not_null:
            return "NULL"
        if self.duckdb_type.endswith("[]"):
            return "[]"
        return _EMPTY.get(self.duckdb_type, "0")


@dataclass(frozen=True, slots=True)
class Shape:
    """A relation: its schema, name, oid, relkind and columns."""

    schema: str
    name: str
    oid: int
    kind: str
    columns: tuple[SystemColumn, ...]

    @property
    def key(self) -> str:
        """A unique name of the relation."""
        return self.name if self.schema == PG_CATALOG else f"{self.schema}_{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return tuple(column.name for column in self.columns)


def _read_relations() -> Iterator[Shape]:
    columns: dict[tuple[str, str], list[SystemColumn]] = {}
    for schema, relation, name, pg_type, not_null in read_rows("columns.tsv"):
        columns.setdefault((schema, relation), []).append(SystemColumn(name, pg_type, not_null == "t"))
    for schema, relation, oid, kind in read_rows("relations.tsv"):
        yield Shape(schema, relation, int(oid), kind, tuple(columns[schema, relation]))


SHAPES: dict[tuple[str, str], Shape] = {(shape.schema, shape.name): shape for shape in _read_relations()}
PG_SHAPES: dict[str, Shape] = {
    name: shape for (schema, name), shape in SHAPES.items() if schema == PG_CATALOG
}
INFORMATION_SHAPES: dict[str, Shape] = {
    name: shape for (schema, name), shape in SHAPES.items() if schema == INFORMATION_SCHEMA
}
SHAPES_BY_KEY: dict[str, Shape] = {shape.key: shape for shape in SHAPES.values()}
