"""Rows as JSON: each field of a DataRow in text becomes a JSON value by the type of its column.

The wire's text of a value is the source, so that HTTP shows the digits that a client of the wire sees:

    integers, numeric, float                 numbers with all their digits; NaN and infinities are strings
    boolean                                  true, false
    json, structs, maps, lists of these      the JSON itself
    a list of scalars                        an array of such values
    timestamp, timestamptz                   ISO 8601; timestamptz in UTC, with Z
    all others                               a string

Source: docs/http.md, "Values".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache

from ...engine.values import value_types
from ...engine.values.arrays import read_array
from ...engine.values.duckdb_types import TYPES_CACHED

Field = bytes | memoryview | None
ToJson = Callable[[bytes], bytes]
NULL = b"null"
# Blanks of JSON that would end a line of NDJSON or of an event stream; in strings they are escaped anyway.
LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
# Texts of floats and numerics that are no JSON numbers.
NO_NUMBERS = frozenset({b"NaN", b"Infinity", b"-Infinity"})

NUMBERS = frozenset(
    {
        value_types.INT2,
        value_types.INT4,
        value_types.INT8,
        value_types.OID,
        value_types.FLOAT4,
        value_types.FLOAT8,
        value_types.NUMERIC,
    }
)
DOCUMENTS = frozenset({value_types.JSON, value_types.JSONB})


def _number(text: bytes) -> bytes:
    return b'"' + text + b'"' if text in NO_NUMBERS else text


def _boolean(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


def _document(text: bytes) -> bytes:
    return text.translate(LINE_ENDS)


def string(text: bytes) -> bytes:
    """A text as a JSON string.

    >>> string(b'a "b"')
    b'"a \\\\"b\\\\""'
    """
    return json.dumps(text.decode(), ensure_ascii=False).encode()


def _moment(text: bytes) -> bytes:
    """A timestamp in ISO 8601; infinities and years before Christ keep PostgreSQL's form."""
    if len(text) > 10 and text[10:11] == b" " and not text.endswith(b"BC"):
        text = text[:10] + b"T" + text[11:]
        if text.endswith(b"+00"):
            text = text[:-3] + b"Z"
    return b'"' + text + b'"'


def _list(element: ToJson) -> ToJson:
    def turn(text: bytes) -> bytes:
        return _items(read_array(text.decode(), lambda one: element(one.encode())))

    return turn


def _items(items: Sequence[object]) -> bytes:
    found = []
    for item in items:
        if isinstance(item, bytes):
            found.append(item)
        else:
            found.append(NULL if item is None else _items(item))  # type: ignore[arg-type]
    return b"[" + b",".join(found) + b"]"


SCALARS: dict[int, ToJson] = {
    **dict.fromkeys(NUMBERS, _number),
    **dict.fromkeys(DOCUMENTS, _document),
    value_types.BOOL: _boolean,
    value_types.TIMESTAMP: _moment,
    value_types.TIMESTAMPTZ: _moment,
}


@lru_cache(TYPES_CACHED)
def turn_of(type_: str) -> ToJson:
    """The function that turns a field of this DuckDB type, in the wire's text, to JSON."""
    oid = value_types.pg_type(type_).oid
    element = value_types.ELEMENT_OF.get(oid)
    return SCALARS.get(oid, string) if element is None else _list(SCALARS.get(element, string))


def as_array(fields: Sequence[Field], turns: Sequence[ToJson]) -> bytes:
    """A row as a JSON array."""
    found = [NULL if field is None else turn(bytes(field)) for field, turn in zip(fields, turns, strict=True)]
    return b"[" + b",".join(found) + b"]"


class RowObjects:
    """Rows of these columns as JSON objects.

    Args:
        names, types: the columns; of several with one name the last counts, as in JSON.
    """

    def __init__(self, names: Sequence[str], types: Sequence[str]) -> None:
        self._turns = tuple(map(turn_of, types))
        self._heads = tuple(
            (b"," if place else b"{") + string(name.encode()) + b":" for place, name in enumerate(names)
        )

    def of(self, fields: Sequence[Field]) -> bytes:
        """A row as a JSON object.

        >>> RowObjects(["lsn", "op"], ["BIGINT", "VARCHAR"]).of([b"7", None])
        b'{"lsn":7,"op":null}'
        """
        found = []
        for head, turn, field in zip(self._heads, self._turns, fields, strict=True):
            found.append(head)
            found.append(NULL if field is None else turn(bytes(field)))
        found.append(b"}" if found else b"{}")
        return b"".join(found)
