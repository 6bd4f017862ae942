"""Requests of one node to another, as JSON in UTF-8, and the facts of a share, which precede its statement.

    op          the operation: see serving.py
    text        the statement; types: DuckDB types of its parameters, "" for an open one; values: their values
    rows        the maximum number of rows to return now; null for as many as fit a reply
    portal      the number of the answer to continue
    pending     true if the read sets no read position yet: a later operation determines which rows count
    settings    the changed settings of the requesting session
    more        the arguments of operations other than statements

A value without an equivalent in JSON is an object with one member, whose name is the type.

    PART '<facts>' <statement>

is a node's share of a statement that a client sent to another node. It is accepted only in a session that
another node has opened. The statement is executed on this node only; for a topic, on the partitions that this
node owns. The facts are a JSON object. Source: docs/design/cluster.md, "Shares".
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
        epoch: the epoch of the placement by which the shares were determined.
        uid: the identity of the topic or group in the cluster, when the share creates it.
        owner: the owner of the object, if this is not the user that creates it.
        fresh: True if no node has it yet.
        without: the nodes that are unavailable during the creation, to be informed later.
        makes: True if the requesting node is about to create the name.
        producer, sequence: the producer of a share of events, and the sequence of the publication.
        told: True to return the partition and LSN of each event.
        through: a commit of the session's read position, up to these LSNs: partition -> LSN.
        given: in a commit by number, the last LSNs that the committing session or member has received:
            partition -> LSN.
        epochs: partition -> the epoch under which the reading or committing member owns it.
        nobody: an epoch of the group's home under which the group has no members.
        asked: the request to the home about members (membership.py).
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
        """The text of a share, as it is sent."""
        return f"PART {literal(json.dumps(self._facts()))} {statement}"

    def _facts(self) -> dict[str, Any]:
        """The facts with other values than their defaults."""
        said = {name: getattr(self, name) for name in _NAMES}
        return {name: value for name, value in said.items() if value not in (None, False, 0, ())}

    def check(self, epoch: int, node: str) -> None:
        """Refuse a share of a placement that is not in force on this node.

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
    """Split a share into facts and statement; the facts are None for any other text.

    Raises:
        ProtocolViolation: this version does not know some of the facts.
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
    """One request; the module describes its fields."""

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
        """Encode the request.

        Raises:
            NotSupported: the type of a parameter cannot be sent.
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
            ProtocolViolation: the bytes are not a request.
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
    """The JSON form of a parameter's value."""
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
