"""The types that CREATE TYPE has made, as clients know them: by their OIDs in pg_type.

DuckDB keeps no name of a type in a column or an expression, only the labels of an enum and the fields of a
struct. A result's column has the type with these labels or fields; of several ones that which a cast in the
select list names, otherwise the first, as in pg_attribute. A tuple is PostgreSQL's record.
Source: docs/design/catalog.md, "Deviations from PostgreSQL".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import duckdb

from ...engine.duck.binding import bind
from ...engine.duck.objects import DEFAULT_SCHEMA, EMPTY, TYPE, Object, Objects
from ...engine.quoting import literal
from ...engine.values import value_types
from ...engine.values.duckdb_types import RECORD, TYPES_CACHED, USER_ENUM, DuckType, read_type
from ..session_state.context import Context

ENUM, STRUCT, TUPLE = "ENUM", "STRUCT", "TUPLE"
# What occurs in the text of each type that contains one of these.
_MARKS = re.compile(r"ENUM\(|STRUCT\(|TUPLE")
# A type whose JSON is not the text that a client receives (docs/design/values.md).
_NO_FIELD = "GEOMETRY"

ObjectOid = Callable[[Object, Objects, Objects], int]


@dataclass(frozen=True, slots=True)
class UserType:
    """A type that CREATE TYPE has made.

    Args:
        oid: pg_type.oid.
        text: DuckDB's text of it.
    """

    oid: int
    schema: str
    name: str
    text: str


class UserTypes:
    """The types of one list of objects.

    Args:
        texts: DuckDB's text of each struct, by its full name.

    Attributes:
        types: by their OIDs, in the order in which they are taken for a column.
        ambiguous: several types have the same labels or fields.
    """

    def __init__(self, objects: Objects, texts: Mapping[str, str], oid: ObjectOid) -> None:
        self.types: dict[int, UserType] = {}
        self._oids: dict[str, list[int]] = {}
        for one in _in_order(objects):
            name, *labels = one.definition.split("\x1f")
            text = texts.get(one.in_full, "")
            if name == ENUM:
                text = f"{ENUM}({', '.join(map(literal, labels))})"
            number = oid(one, objects, EMPTY)
            if text and number:
                self.types[number] = UserType(number, one.schema, one.name, text)
                self._oids.setdefault(text, []).append(number)
        self.ambiguous = any(len(oids) > 1 for oids in self._oids.values())

    def of(self, oid: int) -> UserType | None:
        """The type with an OID, or the type of the elements of an array type with it."""
        return self.types.get(value_types.element_of(oid))

    def text_of(self, found: Object) -> str:
        """DuckDB's text of a composite type; "" for another type."""
        named = (one for one in self.types.values() if (one.schema, one.name) == (found.schema, found.name))
        return next((one.text for one in named if one.text.startswith(STRUCT)), "")

    def is_composite(self, type_: str) -> bool:
        """True if a DuckDB type is that of a composite type, or an array of it."""
        element = type_.removesuffix("[]")
        return element.startswith(f"{STRUCT}(") and element in self._oids

    def duckdb_type(self, oid: int) -> str:
        """The DuckDB type of a parameter declared with an OID; "" for one that is not known."""
        found = self.of(oid)
        return "" if found is None else found.text if found.oid == oid else f"{found.text}[]"

    def shown(self, type_: str, named: int = 0) -> str:
        """A DuckDB type with the OIDs that clients know.

        Args:
            named: the OID of the type that the value is cast to; 0 without a cast.
        """
        return self._shown(read_type(type_), named) if may_have(type_) else type_

    def _shown(self, read: DuckType, named: int = 0) -> str:
        if read.name in ("LIST", "ARRAY"):
            (element,) = read.children
            shown = self._shown(element, named)
            # An array of arrays, or of structs that are no records, is JSON.
            is_one = element.name not in ("LIST", "ARRAY") and not read_type(shown).nested
            return shown + read.text[len(element.text) :] if is_one else read.text
        oids = self._oids.get(read.text, [])
        oid = named if named in oids else next(iter(oids), 0)
        if read.name == ENUM and oid:
            return f"{USER_ENUM}({oid})"
        oid = value_types.ANY_RECORD if read.name == TUPLE else oid
        if read.name in (STRUCT, TUPLE) and oid and _NO_FIELD not in read.text:
            return f"{RECORD}({', '.join([str(oid), *map(self._shown, read.children)])})"
        return read.text


def _in_order(objects: Objects) -> list[Object]:
    """The types; of those with equal labels or fields a column has the first."""
    found = [one for one in objects if one.kind == TYPE]
    return sorted(found, key=lambda one: (one.schema != DEFAULT_SCHEMA, one.schema, one.name))


_KNOWN: WeakKeyDictionary[Objects, UserTypes] = WeakKeyDictionary()


def known(session: Context, cursor: duckdb.DuckDBPyConnection | None = None) -> UserTypes:
    """The types of the session's present state.

    In a transaction with definitions of its own the first call takes the open results from DuckDB's cursor.

    Args:
        cursor: a cursor for lookups; None for the session's.
    """
    assert session.object_oid is not None, "only clients of the wire have OIDs"
    cursor = cursor or session.meta
    if session.block.ddl:
        objects, cursor = session.names.objects(), session.cursor
    else:
        objects = session.database.objects.latest(cursor)[1]
    found = _KNOWN.get(objects)
    if found is None:
        found = _KNOWN[objects] = UserTypes(objects, _structs(objects, cursor), session.object_oid)
    return found


def _structs(objects: Objects, cursor: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """DuckDB's text of each type that is a struct, by its full name."""
    names = [one.in_full for one in objects if one.kind == TYPE and one.definition == STRUCT]
    if not names:
        return {}
    try:
        types = bind(cursor, f"SELECT {', '.join(f'NULL::{name}' for name in names)}").types
    except duckdb.Error:
        return {}  # One has been dropped meanwhile.
    return dict(zip(names, types, strict=True))


def element_oids(oids: Sequence[int]) -> tuple[int, ...]:
    """The OIDs of users' types among those of parameters, in place of their array types; 0 for others."""
    if max(oids, default=0) < value_types.USER_OID_FIRST:
        return ()
    return tuple(value_types.element_of(oid) if oid >= value_types.USER_OID_FIRST else 0 for oid in oids)


@lru_cache(TYPES_CACHED)
def may_have(type_: str) -> bool:
    """True if a DuckDB type may be one of a user or a record, or contain one."""
    return bool(_MARKS.search(type_))


def has_any(session: Context, types: Iterable[str]) -> bool:
    """True if some of a result's or of parameters' types may have an OID of their own for the session's
    client."""
    if session.object_oid is None or session.peer is not None:
        return False
    return any(may_have(type_) for type_ in types)


def of_parameters(session: Context, types: tuple[str, ...]) -> tuple[str, ...]:
    """The types of parameters for a client; none if they have no OIDs of their own."""
    return tuple(map(known(session).shown, types)) if has_any(session, types) else ()
