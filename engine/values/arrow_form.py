"""An answer as an Arrow IPC stream, which COPY ... TO STDOUT (FORMAT arrow) sends.

    schema message, a record batch message for each batch, END

Each message is Arrow's encapsulated one. The rows are DuckDB's own Arrow values, and nothing is turned to
text and read again on the other side.

What Arrow and its readers have no type for, or a type that loses something, goes as DuckDB's text of it
(`select_text`), within lists, structs and maps too. Source: docs/sql.md, "COPY"; Arrow columnar format,
"IPC Streaming Format".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from ..quoting import ident
from .duckdb_types import TYPES_CACHED, DuckType, made_of, read_type

# Whose values DuckDB gives to Arrow as they are; every other type goes as text.
AS_THEY_ARE = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
    | {"FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "BLOB", "DATE", "TIME"}
    | {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"}
)
# Made of other values, which are looked at one by one.
NESTED = frozenset({"LIST", "ARRAY", "STRUCT", "MAP"})
# The mark of the stream's end: a message without metadata.
END = b"\xff\xff\xff\xff\0\0\0\0"


def wrapped(query: str, types: Sequence[str]) -> str | None:
    """The query with what goes as text made to text, or None where it can be run as it is.

    Args:
        query: one SELECT (or what may stand in FROM's parentheses), without a semicolon.
        types: the DuckDB types of its columns.
    """
    carriers = [carrier(type_) for type_ in types]
    if not any(carriers):
        return None
    names = [ident(f"c{place}") for place in range(len(types))]
    items = ", ".join(
        name if new is None else f"{name}::{new} AS {name}" for name, new in zip(names, carriers, strict=True)
    )
    # The line break ends a comment at the query's end.
    return f"SELECT {items} FROM ({query}\n) AS __ducktail_result({', '.join(names)})"


@lru_cache(TYPES_CACHED)
def carrier(type_: str) -> str | None:
    """The type as which values of a type go; None where it is the type itself.

    >>> carrier("HUGEINT"), carrier("DECIMAL(18,3)[]"), carrier('STRUCT(a JSON, b DATE)')
    ('VARCHAR', None, 'STRUCT("a" VARCHAR, "b" DATE)')
    """
    return _carrier(read_type(type_))


def _carrier(type_: DuckType) -> str | None:
    if type_.name in AS_THEY_ARE:
        return None
    if type_.name not in NESTED or not type_.children:
        return None if type_.name == "NULL" else "VARCHAR"
    inner = [_carrier(child) for child in type_.children]
    if not any(inner):
        return None
    return made_of(type_, [new or child.text for new, child in zip(inner, type_.children, strict=True)])


def schema_bytes(schema: pa.Schema, names: Sequence[str]) -> bytes:
    """The stream's first message.

    Args:
        names: of the columns, as the client knows them; two may be the same.
    """
    fields = [pa.field(name, field.type) for name, field in zip(names, schema, strict=True)]
    return bytes(pa.schema(fields).serialize())


def rows_bytes(batch: pa.RecordBatch) -> memoryview:
    """A batch's message; names are in the schema alone."""
    return memoryview(batch.serialize())
