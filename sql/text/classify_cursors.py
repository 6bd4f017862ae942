"""DECLARE, FETCH, MOVE and CLOSE: what a first look tells of statements about cursors."""

from __future__ import annotations

from ...engine.quoting import fold
from .classified import Classified, CursorFacts, Kind, Reader
from .tokens import NUMBER, QUOTED

ALL = None
_WAYS = ("NEXT", "PRIOR", "FIRST", "LAST", "ABSOLUTE", "RELATIVE", "FORWARD", "BACKWARD", "ALL")

_SIMPLE_WAYS = {
    "NEXT": ("FORWARD", 1),
    "PRIOR": ("BACKWARD", 1),
    "FIRST": ("ABSOLUTE", 1),
    "LAST": ("ABSOLUTE", -1),
    "ALL": ("FORWARD", ALL),
}


def _name(reader: Reader) -> str:
    """A cursor's name: small letters unless it is quoted, as a driver's portal is called."""
    quoted = reader.peek() == QUOTED
    name = reader.identifier()
    return name if quoted else fold(name)


def _classified(reader: Reader, verb: str, facts: CursorFacts) -> Classified:
    reader.expect_end()
    return Classified(Kind.CURSOR, reader.text, tuple(reader.tokens), verb=verb, cursor=facts)


def declare(reader: Reader) -> Classified:
    """DECLARE name [BINARY] [INSENSITIVE] [[NO] SCROLL] CURSOR [WITH | WITHOUT HOLD] FOR query"""
    reader.take()
    name = _name(reader)
    binary = scroll = False
    while not reader.accept("CURSOR"):
        if reader.accept("BINARY"):
            binary = True
        elif reader.accept("SCROLL"):
            scroll = True
        elif not reader.accept("NO", "SCROLL") and not reader.accept_one("INSENSITIVE", "ASENSITIVE"):
            raise reader.unexpected()
    hold = reader.accept("WITH", "HOLD")
    if not hold:
        reader.accept("WITHOUT", "HOLD")
    if not reader.accept("FOR"):
        raise reader.unexpected()
    inner, offset = reader.rest()
    facts = CursorFacts(name, inner=inner, offset=offset, binary=binary, scroll=scroll, hold=hold)
    return _classified(reader, "DECLARE CURSOR", facts)


def _number(reader: Reader) -> int | None:
    sign = reader.accept_one("-", "+")
    if reader.peek() != NUMBER or not reader.tokens[reader.index].text.isdigit():
        if sign:
            raise reader.unexpected()
        return None
    number = int(reader.take().text)
    return -number if sign == "-" else number


def _taken(reader: Reader) -> tuple[str, int | None]:
    """The way a cursor goes and how far: ("FORWARD", None) is all that is left."""
    number = _number(reader)
    if number is not None:
        return "FORWARD", number
    # A cursor may be called as one of the words; then nothing stands behind it.
    way = reader.accept_one(*_WAYS) if reader.peek(1) else None
    if way is None:
        return "FORWARD", 1
    if way in ("ABSOLUTE", "RELATIVE"):
        number = _number(reader)
        if number is None:
            raise reader.unexpected()
        return way, number
    if way in ("FORWARD", "BACKWARD"):
        return way, ALL if reader.accept("ALL") else (1 if (given := _number(reader)) is None else given)
    return _SIMPLE_WAYS[way]


def fetch(reader: Reader) -> Classified:
    """{ FETCH | MOVE } [way] [FROM | IN] name"""
    verb = reader.take().kind
    way, count = _taken(reader)
    reader.accept_one("FROM", "IN")
    return _classified(reader, verb, CursorFacts(_name(reader), way=way, count=count))


def close(reader: Reader) -> Classified:
    """CLOSE { name | ALL }"""
    reader.take()
    name = None if reader.accept("ALL") else _name(reader)
    return _classified(reader, "CLOSE CURSOR", CursorFacts(name))
