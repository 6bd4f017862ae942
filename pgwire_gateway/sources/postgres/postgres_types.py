"""PostgreSQL's types as a source sends them: the DuckDB type of each, and SQL that reads its text.

A value arrives as text and is kept in a type that has all its values; where DuckDB has no such type, it is
VARCHAR with PostgreSQL's text. So numeric without a precision is VARCHAR, because a DECIMAL would round it,
and an enum is VARCHAR, because values can be added to it later without a change of the table.

| PostgreSQL | DuckDB |
|---|---|
| boolean, smallint, integer, bigint, real, double precision, oid | BOOLEAN ... DOUBLE, UINTEGER |
| numeric(p,s) of at most 38 digits | DECIMAL(p,s); NaN is an error |
| date, time, timetz, timestamp, timestamptz, interval | the same; infinity and BC included |
| json, jsonb, uuid, bytea, bit(n) | JSON, UUID, BLOB, BIT |
| a domain | that of its base type |
| an array with one declared dimension | LIST of the element's type |
| any other type, varbit, arrays with several dimensions | VARCHAR |

Source: PostgreSQL, "Data Types", "Logical Streaming Replication Protocol"; docs/design/sources.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ....engine import errors
from ....engine.catalog.source_tables import SourceColumn
from ....engine.values import value_types as vt
from .libpq import Row

# pg_attribute.atttypmod of numeric has VARHDRSZ added, and the scale in eleven bits with a sign.
_MODIFIER_OFFSET = 4
_SCALE_BITS = 11
_DECIMAL_DIGITS_MAX = 38
# A domain over a domain over ...; the source allows more, and nobody has them.
_NESTING_MAX = 32
_LIST_OF_TEXT = pa.list_(pa.string())


class Mapped(NamedTuple):
    """A DuckDB type, and SQL of a value from its text `{0}`; "" for a plain cast."""

    type: str
    value: str = ""


TEXT = Mapped("VARCHAR", "{0}")
_DATE = Mapped("DATE", "CAST(replace({0}, ' BC', ' (BC)') AS DATE)")


def _moment(name: str) -> Mapped:
    # PostgreSQL has BC behind the time and the zone, DuckDB behind the date.
    moved = r"regexp_replace({0}, '^(\S+) (.*) BC$', '\1 (BC) \2')"
    moved = f"CASE WHEN ends_with({{0}}, ' BC') THEN {moved} ELSE {{0}} END"
    return Mapped(name, f"CAST({moved} AS {name})")


_SCALARS: Mapping[int, Mapped] = {
    vt.BOOL: Mapped("BOOLEAN"),
    vt.INT2: Mapped("SMALLINT"),
    vt.INT4: Mapped("INTEGER"),
    vt.INT8: Mapped("BIGINT"),
    vt.OID: Mapped("UINTEGER"),
    vt.FLOAT4: Mapped("FLOAT"),
    vt.FLOAT8: Mapped("DOUBLE"),
    vt.DATE: _DATE,
    vt.TIME: Mapped("TIME"),
    vt.TIMETZ: Mapped("TIME WITH TIME ZONE"),
    vt.TIMESTAMP: _moment("TIMESTAMP"),
    vt.TIMESTAMPTZ: _moment("TIMESTAMP WITH TIME ZONE"),
    # DuckDB does not know a plus sign, which PostgreSQL writes behind a negative part.
    vt.INTERVAL: Mapped("INTERVAL", "CAST(replace({0}, '+', '') AS INTERVAL)"),
    vt.BIT: Mapped("BIT"),
    # It may be empty, which BIT cannot.
    vt.VARBIT: TEXT,
    vt.UUID: Mapped("UUID"),
    vt.BYTEA: Mapped("BLOB", "from_hex(substr({0}, 3))"),
    vt.JSON: Mapped("JSON"),
    vt.JSONB: Mapped("JSON"),
    vt.INT2VECTOR: TEXT,
    vt.OIDVECTOR: TEXT,
    **dict.fromkeys((vt.TEXT, vt.VARCHAR, vt.BPCHAR, vt.CHAR, vt.NAME), TEXT),
}


@dataclass(frozen=True, slots=True)
class UserType:
    """The part of pg_type that decides how values are kept.

    Args:
        base: the oid of a domain's type; 0 if it is none.
        modifier: the domain's own modifier.
        element: the oid of an array's elements; 0 if it is none.
    """

    base: int
    modifier: int
    element: int


LOOKUP = """
SELECT t.oid, t.typbasetype, t.typtypmod,
       CASE WHEN e.typarray = t.oid AND t.typdelim = ',' THEN t.typelem ELSE 0 END
FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem
WHERE t.oid IN (SELECT value::pg_catalog.oid FROM pg_catalog.json_array_elements_text($1::pg_catalog.json))
"""


class PostgresTypes:
    """The types of one database; those that are not PostgreSQL's simple ones are looked up once.

    Args:
        query: runs SQL at the source.
    """

    def __init__(self, query: Callable[..., list[Row]]) -> None:
        self._query = query
        self._found: dict[int, UserType] = {}

    def load(self, oids: Iterable[int]) -> None:
        """Look up the types that are not known yet, with the types that they are made of."""
        wanted = set(oids)
        for _ in range(_NESTING_MAX):
            wanted -= _SCALARS.keys() | self._found.keys() | {0, vt.NUMERIC}
            if not wanted:
                return
            rows = self._query(LOOKUP, json.dumps(sorted(wanted)))
            for row in rows:
                oid, base, modifier, element = (int(part or 0) for part in row)
                self._found[oid] = UserType(base, modifier, element)
            # One that is gone: a text.
            self._found |= {oid: UserType(0, -1, 0) for oid in wanted - self._found.keys()}
            wanted = {part for oid in wanted for part in (self._found[oid].base, self._found[oid].element)}

    def column(self, name: str, oid: int, modifier: int, dimensions: int, not_null: bool) -> SourceColumn:
        """A column of a loaded type."""
        oid, modifier = self._base(oid, modifier)
        found = self._found.get(oid)
        if found is None or not found.element:
            type_, value = _scalar(oid, modifier)
            return SourceColumn(name, type_, not_null, pa.string(), value)
        if dimensions > 1:
            return SourceColumn(name, TEXT.type, not_null, pa.string(), TEXT.value)
        element = _scalar(*self._base(found.element, modifier))
        value = f"list_transform({{0}}, lambda v: {element.value.format('v')})" if element.value else ""
        if element == TEXT:
            value = "{0}"
        return SourceColumn(name, f"{element.type}[]", not_null, _LIST_OF_TEXT, value)

    def _base(self, oid: int, modifier: int) -> tuple[int, int]:
        """The type below a domain, with its modifier."""
        for _ in range(_NESTING_MAX):
            found = self._found.get(oid)
            if found is None or not found.base:
                break
            oid, modifier = found.base, found.modifier if found.modifier >= 0 else modifier
        return oid, modifier


def _scalar(oid: int, modifier: int) -> Mapped:
    if oid == vt.NUMERIC:
        return _numeric(modifier)
    return _SCALARS.get(oid, TEXT)


def _numeric(modifier: int) -> Mapped:
    """DECIMAL for numeric(p,s), if it has as many digits; the scale may be negative, or above the precision.

    >>> _numeric(((10 << 16) | 2) + 4).type, _numeric(-1).type, _numeric(((3 << 16) | 2046) + 4).type
    ('DECIMAL(10,2)', 'VARCHAR', 'DECIMAL(5,0)')
    """
    if modifier < _MODIFIER_OFFSET:
        return TEXT
    packed = modifier - _MODIFIER_OFFSET
    precision, scale = packed >> 16, packed & ((1 << _SCALE_BITS) - 1)
    if scale >= 1 << (_SCALE_BITS - 1):
        scale -= 1 << _SCALE_BITS
    digits, scale = max(precision, scale) - min(scale, 0), max(scale, 0)
    return Mapped(f"DECIMAL({digits},{scale})") if digits <= _DECIMAL_DIGITS_MAX else TEXT


def is_list(column: SourceColumn) -> bool:
    """True if a column's values are lists, not texts."""
    return bool(column.arrow == _LIST_OF_TEXT)


def read_array(text: str) -> list[str | None]:
    """The elements of an array with one dimension, from its text; bounds are not kept.

    >>> read_array('{1,NULL,"a \\\\"b\\\\"","NULL"}')
    ['1', None, 'a "b"', 'NULL']
    >>> read_array('[0:1]={x,y}'), read_array('{}')
    (['x', 'y'], [])

    Raises:
        DataError: it has several dimensions.
    """
    if text[0] == "[":
        text = text[text.index("=") + 1 :]
    if text == "{}":
        return []
    if '"' not in text:
        if text[1] == "{":
            raise errors.DataError(
                "an array of the source has several dimensions, and its column is a list",
                hint="Declare the dimensions of the column at the source: the values are kept as text then.",
            )
        return [None if part == "NULL" else part for part in text[1:-1].split(",")]
    return _quoted_elements(text)


def _quoted_elements(text: str) -> list[str | None]:
    if text[1] == "{":
        return read_array("{{")
    elements: list[str | None] = []
    at = 1
    while at < len(text):
        if text[at] == '"':
            at += 1
            parts = []
            while text[at] != '"':
                if text[at] == "\\":
                    at += 1
                    parts.append(text[at])
                    at += 1
                    continue
                end = at
                while text[end] not in '"\\':
                    end += 1
                parts.append(text[at:end])
                at = end
            elements.append("".join(parts))
            at += 2
        else:
            end = text.find(",", at)
            end = len(text) - 1 if end < 0 else end
            elements.append(None if text[at:end] == "NULL" else text[at:end])
            at = end + 1
    return elements
