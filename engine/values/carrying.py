"""Which types Arrow does not carry from one DuckDB cursor to another, even without loss asked for.

With `arrow_lossless_conversion` most of DuckDB's types come back as they went. An INTERVAL overflows
(Arrow counts nanoseconds), an ENUM comes back as text (and a list of it not at all), a TUPLE gets
names: these go in a carrier's type and are cast back. A UNION's NULL and the NULL of one of its members are
one in Arrow: it goes as a struct of its tag and its members. Measured with DuckDB 2.0;
tests/engine/test_changes.py holds every type against it.

Rows for a program in process go without that setting, as Arrow has them; what loses something on its way
then (a TIME WITH TIME ZONE its zone, a UHUGEINT its upper half) goes as text, and is cast back where
somebody takes it (`ordinary`). tests/sql/test_dbapi_types.py holds every type against DuckDB's own client.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import lru_cache

import pyarrow as pa

from ..quoting import ident, literal
from .duckdb_types import TYPES_CACHED, DuckType, made_of, read_type

HIDDEN = "__ducktail_x"
_AS_TEXT = frozenset({"INTERVAL", "ENUM"})
# Without lossless conversion; Arrow has no TYPE at all.
_LOST = frozenset({"INTERVAL", "ENUM", "TIME WITH TIME ZONE", "UHUGEINT", "BIT", "TYPE"})
_REFUSED = frozenset({"VARIANT", "TYPE"})
_NO_TYPES: frozenset[str] = frozenset()


def sent(value: str, type_: str) -> str:
    """SQL of a value as it travels.

    Args:
        value: SQL of a value of the type; it may stand in the answer several times.
    """
    return _sent(value, _read(type_), 1)


def taken_back(value: str, type_: str) -> str:
    """SQL of a value of the type, of the one that has travelled."""
    return _back(value, _read(type_), 1)


@lru_cache(TYPES_CACHED)
def _read(type_: str) -> DuckType:
    return read_type(type_)


@lru_cache(TYPES_CACHED)
def _carrier(type_: DuckType) -> str | None:
    """The type that a value is cast to, of a type without a UNION; None where it travels as it is."""
    if type_.name in _AS_TEXT:
        return "VARCHAR"
    if not type_.children:
        return None
    inner = [_carrier(child) for child in type_.children]
    if not any(inner) and type_.name != "TUPLE":
        return None
    return made_of(type_, [new or child.text for new, child in zip(inner, type_.children, strict=True)])


@lru_cache(TYPES_CACHED)
def _has_union(type_: DuckType) -> bool:
    return type_.name == "UNION" or any(map(_has_union, type_.children))


def _sent(value: str, type_: DuckType, depth: int) -> str:
    if not _has_union(type_):
        carrier = _carrier(type_)
        return value if carrier is None else f"{value}::{carrier}"
    each = f"{HIDDEN}{depth}"  # What a lambda calls its argument: those around it have other names.
    if type_.name == "UNION":
        members = [
            f"CASE WHEN union_tag({value})={literal(name)} "
            f"THEN {_sent(f'union_extract({value},{literal(name)})', child, depth)} END"
            for name, child in zip(type_.fields, type_.children, strict=True)
        ]
        return _struct(["tag", *_numbered(members)], [f"union_tag({value})::VARCHAR", *members])
    if type_.name == "MAP":
        key, held = (_sent(f"{each}.{part}", c, depth + 1) for part, c in _entries(type_))
        return f"list_transform(map_entries({value}),lambda {each}: {_struct(['key', 'value'], [key, held])})"
    if type_.name in ("LIST", "ARRAY"):
        (child,) = type_.children
        listed = value if type_.name == "LIST" else f"{value}::{child.text}[]"
        return f"list_transform({listed},lambda {each}: {_sent(each, child, depth + 1)})"
    parts = [_sent(part, child, depth) for part, child in _parts(value, type_)]
    return f"CASE WHEN {value} IS NOT NULL THEN {_struct(_numbered(parts), parts)} END"


def _back(value: str, type_: DuckType, depth: int) -> str:
    if not _has_union(type_):
        return value if _carrier(type_) is None else f"{value}::{type_.text}"
    each = f"{HIDDEN}{depth}"
    if type_.name == "UNION":
        members = " ".join(
            f"WHEN {literal(name)} THEN union_value({ident(name)} := "
            f"{_back(f'{value}.m{place}', child, depth)}::{child.text})::{type_.text}"
            for place, (name, child) in enumerate(zip(type_.fields, type_.children, strict=True), 1)
        )
        return f"CASE {value}.tag {members} END"
    if type_.name == "MAP":
        key, held = (_back(f"{each}.{part}", c, depth + 1) for part, c in _entries(type_))
        entry = _struct(["key", "value"], [key, held])
        return f"map_from_entries(list_transform({value},lambda {each}: {entry}))::{type_.text}"
    if type_.name in ("LIST", "ARRAY"):
        (child,) = type_.children
        return f"list_transform({value},lambda {each}: {_back(each, child, depth + 1)})::{type_.text}"
    parts = [_back(f"{value}.m{place}", child, depth) for place, child in enumerate(type_.children, 1)]
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


@lru_cache(TYPES_CACHED)
def ordinary(type_: str) -> str | None:
    """The type in which values of a type go as Arrow has them by itself; None where it is the type itself.

    >>> ordinary("TIME WITH TIME ZONE[]"), ordinary("TUPLE(BIT, DATE)"), ordinary("HUGEINT")
    ('VARCHAR[]', 'TUPLE(VARCHAR, DATE)', None)
    """
    read = read_type(type_)
    return None if read.name == "ENUM" else _as_text(read, _LOST)


@lru_cache(TYPES_CACHED)
def taken(type_: str, as_text: frozenset[str] = _NO_TYPES) -> str:
    """The type to which a value that went as `ordinary` has it is cast back; one of a TYPE stays text.

    Args:
        as_text: names of types that stay text, too.
    """
    return _as_text(read_type(type_), as_text | {"TYPE"}) or type_


@lru_cache(TYPES_CACHED)
def may_be_refused(type_: str) -> bool:
    """Whether Arrow has no form of some values of a type: a VARIANT that holds an INTERVAL, any TYPE."""
    read = read_type(type_)
    return read.name in _REFUSED or any(may_be_refused(child.text) for child in read.children)


def _as_text(type_: DuckType, names: Set[str]) -> str | None:
    if type_.name in names:
        return "VARCHAR"
    inner = [_as_text(child, names) for child in type_.children]
    if not any(inner):
        return None
    members = [new or child.text for new, child in zip(inner, type_.children, strict=True)]
    return f"TUPLE({', '.join(members)})" if type_.name == "TUPLE" else made_of(type_, members)


def select_ordinary(types: Sequence[str]) -> str | None:
    """The select list over columns c0, c1, .. that makes them `ordinary`; None where they are."""
    carriers = [ordinary(type_) for type_ in types]
    if not any(carriers):
        return None
    return ", ".join(
        f"c{place}" if new is None else f"c{place}::{new} AS c{place}" for place, new in enumerate(carriers)
    )


def wrapped(query: str, types: Sequence[str]) -> str | None:
    """The query with its columns made `ordinary`, or None where it can be run as it is.

    Args:
        query: one SELECT (or what may stand in FROM's parentheses), without a semicolon.
        types: the DuckDB types of its columns.
    """
    projection = select_ordinary(types)
    if projection is None:
        return None
    names = ", ".join(f"c{place}" for place in range(len(types)))
    # The line break ends a comment at the query's end.
    return f"SELECT {projection} FROM ({query}\n) AS __ducktail_result({names})"


def readable(table: pa.Table) -> pa.Table:
    """The rows for DuckDB to read: it takes the enums in an ARRAY for their numbers."""
    fields = [field.with_type(_readable(field.type)) for field in table.schema]
    schema = pa.schema(fields)
    return table if schema.equals(table.schema) else table.cast(schema)


def _readable(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(type_):
        inner = type_.value_type
        told = inner.value_type if pa.types.is_dictionary(inner) else _readable(inner)
        return pa.list_(type_.value_field.with_type(told), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_readable(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(_readable(type_.key_type), _readable(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_readable(field.type)) for field in type_])
    return type_
