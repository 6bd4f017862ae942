"""The relations of PostgreSQL 15's pg_catalog and information_schema: names, oids, columns and their types.

data/relations.tsv and data/columns.tsv list them, as PostgreSQL's documentation does ("System Catalogs",
"System Views", "The Information Schema"); the domains of information_schema are given as their base types. A
relation of the catalog has exactly these columns, in this order and of these types, whether DuckDB has values
for them or not: a client that selects a column of PostgreSQL 15 finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .data import read_rows
from .pg_types import BY_NAME

PG_CATALOG, INFORMATION_SCHEMA = "pg_catalog", "information_schema"

# PostgreSQL type -> the DuckDB type that holds its values; what is not here is VARCHAR. An oid is
# 64 bits wide so that no arithmetic of a client overflows.
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

# The value of a column that is NOT NULL and that DuckDB has no value for.
_EMPTY = {"BOOLEAN": "false", "VARCHAR": "''", "TIMESTAMP WITH TIME ZONE": "NULL", "INTERVAL": "NULL"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, PostgreSQL type and whether it is NOT NULL."""

    name: str
    pg_type: str
    not_null: bool

    @property
    def duckdb_type(self) -> str:
        """The DuckDB type that holds its values."""
        if self.pg_type.startswith("_"):
            return f"{_DUCKDB_TYPES.get(self.pg_type[1:], 'VARCHAR')}[]"
        return _DUCKDB_TYPES.get(self.pg_type, "VARCHAR")

    @property
    def type_oid(self) -> int:
        """pg_type.oid of its type; text for the few types that are not in our pg_type."""
        found = BY_NAME.get(self.pg_type)
        return found.oid if found else BY_NAME["text"].oid

    @property
    def empty(self) -> str:
        """SQL of the value that stands for "nothing of that kind here"."""
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
    columns: tuple[Column, ...]

    @property
    def key(self) -> str:
        """A name that no other relation has."""
        return self.name if self.schema == PG_CATALOG else f"{self.schema}_{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return tuple(column.name for column in self.columns)


def _read() -> Iterator[Shape]:
    columns: dict[tuple[str, str], list[Column]] = {}
    for schema, relation, name, pg_type, not_null in read_rows("columns.tsv"):
        columns.setdefault((schema, relation), []).append(Column(name, pg_type, not_null == "t"))
    for schema, relation, oid, kind in read_rows("relations.tsv"):
        yield Shape(schema, relation, int(oid), kind, tuple(columns[schema, relation]))


SHAPES: dict[tuple[str, str], Shape] = {(shape.schema, shape.name): shape for shape in _read()}
PG_SHAPES: dict[str, Shape] = {
    name: shape for (schema, name), shape in SHAPES.items() if schema == PG_CATALOG
}
INFORMATION_SHAPES: dict[str, Shape] = {
    name: shape for (schema, name), shape in SHAPES.items() if schema == INFORMATION_SCHEMA
}
BY_KEY: dict[str, Shape] = {shape.key: shape for shape in SHAPES.values()}
