"""Types that Arrow does not carry without loss, and the SQL casts that take their values through it.

Between two DuckDB cursors (`arrow_lossless_conversion`) most types survive unchanged. An INTERVAL overflows,
because Arrow counts nanoseconds; an ENUM comes back as text, and a list of it not at all; a TUPLE gets names.
Such values are sent in a carrier type and cast back. Arrow does not distinguish a UNION's NULL from the NULL
of one of its members: a UNION is sent as a struct of its tag and its members. Measured with DuckDB 2.0;
tests/engine/test_changes.py holds every type against it.

A program in process gets rows without that setting, in plain Arrow types. A type that would lose something
(TIME WITH TIME ZONE its zone, UHUGEINT its upper half) is sent as text, and is cast back where a program
takes Python values. tests/sql/test_dbapi_types.py holds every type against DuckDB's own client.

COPY (FORMAT arrow) sends DuckDB's own Arrow values, in the messages of an Arrow IPC stream: schema, batches,
END. Types that Arrow's readers do not have, or that would lose something, are sent as DuckDB's text, also
within lists, structs and maps. An incoming value is stored unchanged, or the COPY fails: a cast that would
round is refused by its types (a DOUBLE into a DECIMAL, nanoseconds into a TIMESTAMP), and a value that may be
too large is checked by itself (a BIGINT into an INTEGER). Text is accepted for a column of any type, and read
as in COPY's text format. Source: docs/sql.md, "COPY"; Arrow columnar format, "IPC Streaming Format".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from ..quoting import fold, ident, literal, select_from
from .copy_columns import ColumnLoader, column_loader
from .duckdb_types import INTEGERS, TYPES_CACHED, DuckType, read_type, with_members

HIDDEN = "__ducktail_x"
_AS_TEXT = frozenset({"INTERVAL", "ENUM"})
# Without lossless conversion; Arrow has no TYPE at all.
_LOST = frozenset({"INTERVAL", "ENUM", "TIME WITH TIME ZONE", "UHUGEINT", "BIT", "TYPE"})
_REFUSED = frozenset({"VARIANT", "TYPE"})
_NO_TYPES: frozenset[str] = frozenset()
# Types whose values DuckDB passes to Arrow unchanged; every other type is sent as text.
COPIED_AS_IS = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
    | {"FLOAT", "DOUBLE", "DECIMAL", "VARCHAR", "BLOB", "DATE", "TIME"}
    | {"TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"}
)
# Nested types, whose members are examined one by one.
COPIED_NESTED = frozenset({"LIST", "ARRAY", "STRUCT", "MAP"})
# The mark of the stream's end: a message without metadata.
END = b"\xff\xff\xff\xff\0\0\0\0"
# Arrow's types -> DuckDB's, as DuckDB reads them.
_NAMES: dict[pa.DataType, str] = {
    pa.null(): '"NULL"', pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR", pa.large_string(): "VARCHAR", pa.string_view(): "VARCHAR",
    pa.binary(): "BLOB", pa.large_binary(): "BLOB", pa.binary_view(): "BLOB",
    pa.date32(): "DATE",
    pa.time32("s"): "TIME", pa.time32("ms"): "TIME", pa.time64("us"): "TIME", pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S", pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP", pa.timestamp("ns"): "TIMESTAMP_NS",
}  # fmt: skip
# Bits of an integer that a floating point number holds exactly.
_EXACT_BITS = {"FLOAT": 24, "DOUBLE": 53}
_BITS = {
    "TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64,
    "UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64,
}  # fmt: skip
# From the coarsest unit to the finest.
_TIMESTAMPS = ("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS")
_FINER = frozenset(
    {(source, target) for at, source in enumerate(_TIMESTAMPS) for target in _TIMESTAMPS[at + 1 :]}
    | {("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"), ("TIME", "TIME_NS"), ("FLOAT", "DOUBLE")}
)
# Types for which DuckDB's cast from text refuses the same texts as COPY's decoder.
_CAST_FROM_TEXT = frozenset({"JSON", "UUID"})


# From one DuckDB cursor to another.


def carrier_sql(value: str, type_: str) -> str:
    """SQL that casts a value to the type that carries it.

    Args:
        value: SQL of a value of the type; it may occur in the result several times.
    """
    return _carried(value, _read(type_), 1)


def restored_sql(value: str, type_: str) -> str:
    """SQL of a value of the type, from the carried value that `carrier_sql` produces."""
    return _restored(value, _read(type_), 1)


@lru_cache(TYPES_CACHED)
def _read(type_: str) -> DuckType:
    return read_type(type_)


@lru_cache(TYPES_CACHED)
def _carrier(type_: DuckType) -> str | None:
    """The type that a value is cast to, for a type without a UNION; None where Arrow carries it unchanged."""
    if type_.name in _AS_TEXT:
        return "VARCHAR"
    if not type_.children:
        return None
    inner = [_carrier(child) for child in type_.children]
    if not any(inner) and type_.name != "TUPLE":
        return None
    return with_members(type_, [new or child.text for new, child in zip(inner, type_.children, strict=True)])


@lru_cache(TYPES_CACHED)
def _has_union(type_: DuckType) -> bool:
    return type_.name == "UNION" or any(map(_has_union, type_.children))


def _carried(value: str, type_: DuckType, depth: int) -> str:
    if not _has_union(type_):
        carrier = _carrier(type_)
        return value if carrier is None else f"{value}::{carrier}"
    each = f"{HIDDEN}{depth}"  # A lambda's argument: enclosing lambdas use other names.
    if type_.name == "UNION":
        members = [
            f"CASE WHEN union_tag({value})={literal(name)} "
            f"THEN {_carried(f'union_extract({value},{literal(name)})', child, depth)} END"
            for name, child in zip(type_.fields, type_.children, strict=True)
        ]
        return _struct(["tag", *_numbered(members)], [f"union_tag({value})::VARCHAR", *members])
    if type_.name == "MAP":
        key, held = (_carried(f"{each}.{part}", c, depth + 1) for part, c in _entries(type_))
        return f"list_transform(map_entries({value}),lambda {each}: {_struct(['key', 'value'], [key, held])})"
    if type_.name in ("LIST", "ARRAY"):
        (child,) = type_.children
        listed = value if type_.name == "LIST" else f"{value}::{child.text}[]"
        return f"list_transform({listed},lambda {each}: {_carried(each, child, depth + 1)})"
    parts = [_carried(part, child, depth) for part, child in _parts(value, type_)]
    return f"CASE WHEN {value} IS NOT NULL THEN {_struct(_numbered(parts), parts)} END"


def _restored(value: str, type_: DuckType, depth: int) -> str:
    if not _has_union(type_):
        return value if _carrier(type_) is None else f"{value}::{type_.text}"
    each = f"{HIDDEN}{depth}"
    if type_.name == "UNION":
        members = " ".join(
            f"WHEN {literal(name)} THEN union_value({ident(name)} := "
            f"{_restored(f'{value}.m{place}', child, depth)}::{child.text})::{type_.text}"
            for place, (name, child) in enumerate(zip(type_.fields, type_.children, strict=True), 1)
        )
        return f"CASE {value}.tag {members} END"
    if type_.name == "MAP":
        key, held = (_restored(f"{each}.{part}", c, depth + 1) for part, c in _entries(type_))
        entry = _struct(["key", "value"], [key, held])
        return f"map_from_entries(list_transform({value},lambda {each}: {entry}))::{type_.text}"
    if type_.name in ("LIST", "ARRAY"):
        (child,) = type_.children
        return f"list_transform({value},lambda {each}: {_restored(each, child, depth + 1)})::{type_.text}"
    parts = [_restored(f"{value}.m{place}", child, depth) for place, child in enumerate(type_.children, 1)]
    made = f"row({','.join(parts)})" if type_.name == "TUPLE" else _struct(type_.fields, parts)
    return f"CASE WHEN {value} IS NOT NULL THEN {made}::{type_.text} END"


def _struct(names: Sequence[str], values: Sequence[str]) -> str:
    return f"{{{','.join(f'{literal(name)}:{value}' for name, value in zip(names, values, strict=True))}}}"


def _numbered(values: Sequence[str]) -> list[str]:
    return [f"m{place}" for place, _ in enumerate(values, 1)]


def _entries(type_: DuckType) -> list[tuple[str, DuckType]]:
    return list(zip(("key", "value"), type_.children, strict=True))


def _parts(value: str, type_: DuckType) -> list[tuple[str, DuckType]]:
    """SQL of the parts of a STRUCT or TUPLE, with their types."""
    if type_.name == "TUPLE":
        named = [f"struct_extract_at({value},{place})" for place, _ in enumerate(type_.children, 1)]
    else:
        named = [f"struct_extract({value},{literal(name)})" for name in type_.fields]
    return list(zip(named, type_.children, strict=True))


# To a program in process.


def plain_query(query: str, types: Sequence[str]) -> str | None:
    """The query with its columns cast to their `plain_type`; None where no cast is needed.

    Args:
        query: one SELECT (or anything else allowed in FROM's parentheses), without a semicolon.
        types: the DuckDB types of its columns.
    """
    projection = select_plain(types)
    return None if projection is None else select_from(query, projection, len(types))


def select_plain(types: Sequence[str]) -> str | None:
    """The select list that casts columns c0, c1, ... to their `plain_type`; None without a cast."""
    return _casts(map(plain_type, types))


def _casts(types: Iterable[str | None]) -> str | None:
    """The select list that casts columns c0, c1, ... to types (None: no cast); None if all are None."""
    items = [f"c{at}" if new is None else f"c{at}::{new} AS c{at}" for at, new in enumerate(types)]
    return ", ".join(items) if any("::" in item for item in items) else None


@lru_cache(TYPES_CACHED)
def plain_type(type_: str) -> str | None:
    """The type in which plain Arrow carries a type's values; None where it is the type itself.

    >>> plain_type("TIME WITH TIME ZONE[]"), plain_type("TUPLE(BIT, DATE)"), plain_type("HUGEINT")
    ('VARCHAR[]', 'TUPLE(VARCHAR, DATE)', None)
    """
    read = read_type(type_)
    return None if read.name == "ENUM" else _as_text(read, _LOST)


@lru_cache(TYPES_CACHED)
def restored_type(type_: str, as_text: frozenset[str] = _NO_TYPES) -> str:
    """The type to which a value in its `plain_type` is cast back; a value of type TYPE stays text.

    Args:
        as_text: names of further types that stay text.
    """
    return _as_text(read_type(type_), as_text | {"TYPE"}) or type_


def _as_text(type_: DuckType, names: Set[str]) -> str | None:
    if type_.name in names:
        return "VARCHAR"
    inner = [_as_text(child, names) for child in type_.children]
    if not any(inner):
        return None
    members = [new or child.text for new, child in zip(inner, type_.children, strict=True)]
    return f"TUPLE({', '.join(members)})" if type_.name == "TUPLE" else with_members(type_, members)


@lru_cache(TYPES_CACHED)
def may_be_refused(type_: str) -> bool:
    """True if Arrow has no form for some values of a type: a VARIANT holding an INTERVAL, any TYPE."""
    read = read_type(type_)
    return read.name in _REFUSED or any(may_be_refused(child.text) for child in read.children)


def readable(table: pa.Table) -> pa.Table:
    """The rows in a form that DuckDB reads: it would take the enums in an ARRAY for their numbers."""
    fields = [field.with_type(_readable(field.type)) for field in table.schema]
    schema = pa.schema(fields)
    return table if schema.equals(table.schema) else table.cast(schema)


def _readable(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(type_):
        inner = type_.value_type
        element = inner.value_type if pa.types.is_dictionary(inner) else _readable(inner)
        return pa.list_(type_.value_field.with_type(element), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_readable(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(_readable(type_.key_type), _readable(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_readable(field.type)) for field in type_])
    return type_


# COPY ... TO STDOUT (FORMAT arrow).


def copy_query(query: str, types: Sequence[str]) -> str | None:
    """The query with its columns cast to their `copy_type`; None where no cast is needed.

    Args:
        query: one SELECT (or anything else allowed in FROM's parentheses), without a semicolon.
        types: the DuckDB types of its columns.
    """
    projection = _casts(map(copy_type, types))
    return None if projection is None else select_from(query, projection, len(types))


@lru_cache(TYPES_CACHED)
def copy_type(type_: str) -> str | None:
    """The type in which COPY sends values of a type; None where it is the type itself.

    >>> copy_type("HUGEINT"), copy_type("DECIMAL(18,3)[]"), copy_type('STRUCT(a JSON, b DATE)')
    ('VARCHAR', None, 'STRUCT("a" VARCHAR, "b" DATE)')
    """
    return _copy_type(read_type(type_))


def _copy_type(type_: DuckType) -> str | None:
    if type_.name in COPIED_AS_IS:
        return None
    if type_.name not in COPIED_NESTED or not type_.children:
        return None if type_.name == "NULL" else "VARCHAR"
    inner = [_copy_type(child) for child in type_.children]
    if not any(inner):
        return None
    return with_members(type_, [new or child.text for new, child in zip(inner, type_.children, strict=True)])


def schema_bytes(schema: pa.Schema, names: Sequence[str]) -> bytes:
    """The stream's first message.

    Args:
        names: the column names shown to the client; they may repeat.
    """
    fields = [pa.field(name, _known_zone(field.type)) for name, field in zip(names, schema, strict=True)]
    return bytes(pa.schema(fields).serialize())


def _known_zone(type_: pa.DataType) -> pa.DataType:
    """The type of a column; an offset as a time zone is `GMT+05:30` in DuckDB, and `+05:30` in Arrow."""
    if pa.types.is_timestamp(type_) and (type_.tz or "").startswith(("GMT+", "GMT-")):
        return pa.timestamp(type_.unit, type_.tz.removeprefix("GMT"))
    return type_


def rows_bytes(batch: pa.RecordBatch) -> memoryview:
    """A batch's message; column names occur in the schema's message only."""
    return memoryview(batch.serialize())


# COPY ... FROM STDIN (FORMAT arrow).


def arrow_loader(source: pa.DataType, target: str | None, timezone: str | None) -> ColumnLoader | None:
    """The loader of an Arrow column into a column of a DuckDB type; None where values could be lost.

    Args:
        source: a type that `arrow_stream` reads.
        target: the DuckDB type; None for a target that takes every type unchanged.
        timezone: the session's time zone, for texts without an offset.
    """
    if target is None:
        return ColumnLoader(source, str)
    found, wanted = read_type(duck_type(source)), read_type(target)
    if found.text == wanted.text:
        return ColumnLoader(source, str)
    if found.name == "VARCHAR":
        if wanted.name in _CAST_FROM_TEXT:
            return ColumnLoader(source, str, target)
        return column_loader(target, timezone)
    return ColumnLoader(source, str, target) if _is_kept(found, wanted) else None


def duck_type(type_: pa.DataType) -> str:
    """The DuckDB type that DuckDB reads an Arrow type as.

    >>> duck_type(pa.list_(pa.struct({"a": pa.decimal128(5, 2)})))
    'STRUCT("a" DECIMAL(5,2))[]'
    """
    name = _NAMES.get(type_)
    if name is not None:
        return name
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMPTZ_NS" if type_.unit == "ns" else "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_struct(type_):
        members = ", ".join(f"{ident(field.name)} {duck_type(field.type)}" for field in type_)
        return f"STRUCT({members})"
    if pa.types.is_map(type_):
        return f"MAP({duck_type(type_.key_type)}, {duck_type(type_.item_type)})"
    if pa.types.is_fixed_size_list(type_):
        return f"{duck_type(type_.value_type)}[{type_.list_size}]"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"{duck_type(type_.value_type)}[]"
    assert pa.types.is_fixed_size_binary(type_), type_
    return "BLOB"


def _is_kept(source: DuckType, target: DuckType) -> bool:
    """True if a cast keeps each value unchanged or fails."""
    if source.name == "NULL":
        return True
    if source.name in INTEGERS:
        exact = _EXACT_BITS.get(target.name)
        if exact is not None:
            return _BITS[source.name] <= exact
        return target.name in INTEGERS or target.name == "DECIMAL"
    if source.name == target.name == "DECIMAL":
        return target.scale >= source.scale
    if source.name in ("LIST", "ARRAY") and target.name in ("LIST", "ARRAY"):
        return _is_inner_kept(source, target)
    if source.name == target.name and source.name in ("STRUCT", "MAP"):
        names, wanted = ([fold(name) for name in type_.fields] for type_ in (source, target))
        return names == wanted and _is_inner_kept(source, target)
    if (source.name, target.name) in _FINER:
        return True
    return source.name == target.name and source.numbers == target.numbers and not source.children


def _is_inner_kept(source: DuckType, target: DuckType) -> bool:
    pairs = list(zip(source.children, target.children, strict=False))
    return len(source.children) == len(target.children) and all(
        _is_inner_text(one, other) or _is_kept(one, other) for one, other in pairs
    )


def _is_inner_text(source: DuckType, target: DuckType) -> bool:
    """True if the source is the text in which COPY TO sends a value of the target."""
    return source.name == "VARCHAR" and copy_type(target.text) == "VARCHAR"


def first_nul(column: pa.ChunkedArray) -> int | None:
    """The position of the first value with a NUL character in a text, which PostgreSQL does not allow."""
    if not _has_text(column.type) or not _any_nul(column):
        return None
    # The shortest prefix that contains one.
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _any_nul(column.slice(low, middle - low)) else (middle, high)
    return low


def _has_text(type_: pa.DataType) -> bool:
    """True if values of a type are texts or contain texts."""
    if pa.types.is_nested(type_):
        return any(_has_text(type_.field(place).type) for place in range(type_.num_fields))
    return type_ in (pa.string(), pa.large_string(), pa.string_view())


def _any_nul(values: pa.ChunkedArray | pa.Array) -> bool:
    if isinstance(values, pa.ChunkedArray):
        return any(map(_any_nul, values.chunks))
    if not _has_text(values.type):
        return False
    if isinstance(values, pa.StructArray):
        return any(map(_any_nul, values.flatten()))
    if isinstance(values, pa.MapArray):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return any(_any_nul(part.slice(first, last - first)) for part in (values.keys, values.items))
    if pa.types.is_nested(values.type):
        return _any_nul(values.flatten())
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    return bool(pc.any(pc.match_substring(values, "\0")).as_py())
