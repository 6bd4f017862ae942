"""The request of one node to another, as JSON in UTF-8; and the facts of a share, in front of its statement.

    op          the operation: see serving.py
    text        of the statement; types: DuckDB's of its parameters, "" where one is open; values: theirs
    rows        so many rows at most, now; null for as many as a reply takes
    portal      the number of the answer that is taken further
    pending     what it reads is no read position yet: an operation of its own says what counts of it
    settings    those of the session that asks, where they have changed
    more        what an operation of its own needs besides

A value that JSON does not have is an object with one member, whose name is its type.

    PART '<facts>' <statement>

is a node's share of a statement that another node was given. Only a session that another node has opened
knows it. The statement is done here and nowhere else: of a topic, on the partitions that this node owns. The
facts are an object of JSON. Source: docs/design/cluster.md, "Shares".
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from duckdb import Value

from ...engine.errors import NotSupported, ProtocolViolation, SerializationFailure
from ...engine.quoting import literal
from ...engine.values.strings import typed

_PART = re.compile(r"PART '((?:[^']|'')*)' (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """The facts of a share.

    Args:
        epoch: of the placement by which the statement was shared out.
        uid: which definition of the cluster the topic or the group is, where it is made here.
        owner: whose it is, where that is not who makes it here.
        fresh: no node has it yet.
        without: nodes that are away while it is made, and are to be told when they are back.
        makes: the name is asked for by a node that is about to make it.
        producer, sequence: whose publication a share of events is, and its number there.
        told: the places of its events are asked for.
        through: what is committed is the session's read position, no further than this.
        given: what is committed by number, and how far who commits has been given events: partition -> LSN.
        epochs: partition -> the epoch under which it is the member's that reads or commits.
        nobody: an epoch of the group's home under which it has no members.
        asked: what is asked of the home about members (membership.py).
        within: the least and the greatest LSN, and the earliest and the latest commit time in microseconds
            since 1970, that the query's WHERE lets pass; None for no bound.
    """

    epoch: int
    uid: str | None = None
    owner: str | None = None
    fresh: bool = False
    without: Sequence[str] = ()
    makes: bool = False
    producer: str | None = None
    sequence: int = 0
    told: bool = False
    events: bool = False
    through: Mapping[int, int] | None = None
    given: Mapping[int, int] | None = None
    epochs: Mapping[int, int] | None = None
    nobody: int = 0
    asked: Mapping[str, Any] | None = None
    within: Sequence[int | None] | None = None

    def text(self, statement: str) -> str:
        """A share of a statement as it is sent."""
        return f"PART {literal(json.dumps(self._facts()))} {statement}"

    def _facts(self) -> dict[str, Any]:
        """Those that say something."""
        said = {name: getattr(self, name) for name in _NAMES}
        return {name: value for name, value in said.items() if value not in (None, False, 0, ())}

    def check(self, epoch: int, node: str) -> None:
        """Refuse a share of another placement than the one in force here.

        Raises:
            SerializationFailure.
        """
        if self.epoch != epoch:
            stale = "The node that was asked" if self.epoch < epoch else f'Node "{node}"'
            raise SerializationFailure(
                f'placement {epoch} is in force on node "{node}", not {self.epoch}',
                detail=f"{stale} has an older one.",
                hint="Try again; SHOW NODES shows which placement each node has.",
            )


_NAMES = tuple(field.name for field in fields(Part))
# JSON's names of members are texts.
_BY_PARTITION = frozenset({"through", "given", "epochs"})


def split(text: str) -> tuple[Part | None, str]:
    """The facts and the statement of a share; no facts where the text is none.

    Raises:
        ProtocolViolation: facts that this version does not know.
    """
    found = _PART.match(text)
    if found is None:
        return None, text
    try:
        facts = json.loads(found[1].replace("''", "'"))
        for name in _BY_PARTITION & facts.keys():
            facts[name] = {int(partition): number for partition, number in facts[name].items()}
        return Part(**facts), found[2]
    except (ValueError, TypeError, AttributeError) as error:
        raise ProtocolViolation(f"a share with unknown facts: {error}") from None


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
    pending: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As it is sent.

        Raises:
            NotSupported: a parameter of a type that cannot be sent.
        """
        found: dict[str, Any] = {"op": self.op}
        for name in ("text", "portal", "arrow", "pending", "settings", "more", "types"):
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
