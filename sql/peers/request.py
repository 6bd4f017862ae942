"""A request from one node to another: one operation, as JSON in UTF-8.

    op          what is wanted: see serving.py
    text        of the statement; types: DuckDB's of its parameters, "" where one is open; values: theirs
    rows        so many rows at most, now; null for as many as a reply takes
    portal      the number of the answer that is taken further
    apart       what it reads is no read position yet: an operation of its own says what counts of it
    settings    those of the session that asks, where they have changed
    more        what an operation of its own needs besides

A value that JSON does not have is an object with one member, whose name is its type.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from duckdb import Value

from ...engine.errors import NotSupported, ProtocolViolation
from ...engine.values.strings import typed

# Operations on an answer that is under way: they go on whatever placement has come into force meanwhile.
FETCH, CLOSE, FAILED = "fetch", "close", "failed"
UNDER_WAY = frozenset({FETCH, CLOSE, FAILED})
# What a node is told that was away when a topic was made.
LACKS = "lacks"

_WRITER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Request:
    """See the head of the file."""

    op: str
    text: str = ""
    types: tuple[str, ...] = ()
    values: Sequence[object] = ()
    rows: int | None = None
    portal: int = 0
    arrow: bool = False
    apart: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As it is sent.

        Raises:
            NotSupported: a parameter of a type that cannot be sent.
        """
        found: dict[str, Any] = {"op": self.op}
        for name in ("text", "portal", "arrow", "apart", "settings", "more", "types"):
            if value := getattr(self, name):
                found[name] = value
        if self.rows is not None:
            found["rows"] = self.rows
        if self.values:
            found["values"] = [_plain(value) for value in self.values]
        return _WRITER.encode(found).encode()

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Decode a request.

        Raises:
            ProtocolViolation: it is no request.
        """
        try:
            found = json.loads(data)
            values = tuple(map(_value, found.pop("values", ())))
            types = tuple(found.pop("types", ()))
            return cls(**found, values=values, types=types)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProtocolViolation("malformed request of another node") from error


# Type -> its name, and how its values are written.
_WRITTEN: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Decimal: ("decimal", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    datetime.datetime: ("timestamp", datetime.datetime.isoformat),
    datetime.date: ("date", datetime.date.isoformat),
    datetime.time: ("time", datetime.time.isoformat),
    datetime.timedelta: ("interval", lambda value: [value.days, value.seconds, value.microseconds]),
    uuid.UUID: ("uuid", str),
    # What Python has no value for: intervals with months, infinity, years before 1.
    Value: ("typed", lambda value: [_plain(value.object), str(value.type)]),
    list: ("list", lambda value: [_plain(item) for item in value]),
    tuple: ("tuple", lambda value: [_plain(item) for item in value]),
    dict: ("dict", lambda value: [[_plain(key), _plain(item)] for key, item in value.items()]),
}
_READ: dict[str, Callable[[Any], object]] = {
    "decimal": Decimal,
    "bytes": base64.b64decode,
    "timestamp": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "interval": lambda value: datetime.timedelta(*value),
    "uuid": uuid.UUID,
    "typed": lambda value: typed(_value(value[0]), value[1]),
    "float": float,
    "list": lambda value: [_value(item) for item in value],
    "tuple": lambda value: tuple(_value(item) for item in value),
    "dict": lambda value: {_value(key): _value(item) for key, item in value},
}


def _plain(value: object) -> Any:
    """A parameter's value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    for kind in type(value).__mro__:
        if kind in _WRITTEN:
            name, write = _WRITTEN[kind]
            return {name: write(value)}
    raise NotSupported(f"a parameter of type {type(value).__name__} cannot be sent to another node")


def _value(plain: Any) -> object:
    if not isinstance(plain, dict):
        return plain
    ((name, written),) = plain.items()
    return _READ[name](written)
