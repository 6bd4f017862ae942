"""POST /v1/topics/{t}: events of a topic from JSON, each as {"payload": ..., "key": ..., "headers": {...}}.

The JSON of a payload is published as it is written, with the digits of its numbers: the members of an event
are cut out of the body and not written anew. Repeated publications are recognized by the headers
Ducktail-Producer and Ducktail-Sequence, as those of PUBLISH are by its options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import WHITESPACE  # type: ignore[attr-defined]
from typing import TYPE_CHECKING

from aiohttp import web

from ...engine.errors import InvalidParameterValue, InvalidTextRepresentation, ProgramLimitExceeded
from ...sql.language.clauses import name_sql
from .failures import json_answer
from .requests import JSON, NDJSON, body_in, check_known, name_in

if TYPE_CHECKING:
    from .http_port import HttpPort

EVENTS_MAX = 10_000
PRODUCER, SEQUENCE = "Ducktail-Producer", "Ducktail-Sequence"
SEQUENCE_DIGITS_MAX = 18
# The members of an event, in the order of PUBLISH's columns.
MEMBERS = ("payload", "key", "headers")


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refused)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """The JSON texts of an event's members; None for an absent one, or NULL."""

    payload: str | None
    key: str | None
    headers: str | None


async def publish(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """POST /v1/topics/{t}: publish an event, or several in one transaction."""
    check_known(request, ())
    client = await port.client(request)
    topic = name_in(request.match_info["topic"], "the name of a topic")
    options, named = _producer(request)
    body = await body_in(request, (JSON, NDJSON))
    lines = request.content_type == NDJSON
    events = await port.encoded(lambda: list(events_in(body, lines=lines)), len(body) // 100)
    values: list[object] = [value for event in events for value in (event.payload, event.key, event.headers)]
    rows = ", ".join(
        f"(${at}::JSON, ${at + 1}::JSON, ${at + 2}::JSON)" for at in range(1, len(values) + 1, len(MEMBERS))
    )
    if options:
        options = f"WITH (producer = ${len(values) + 1}, sequence = ${len(values) + 2})"
        values += named
    async with port.sessions.borrowed(client) as session:
        answer = await session.statement(f"PUBLISH TO {name_sql(topic)} VALUES {rows} {options}", values)
        notices = [notice.message for notice in session.notices]
    places = [
        {"partition": int(row["partition"] or 0), "lsn": int(row["lsn"] or 0)} for row in answer.texts()
    ]
    return json_answer({"events": places, "notices": notices})


def _producer(request: web.Request) -> tuple[str, list[object]]:
    """The options of PUBLISH and their values; none without both headers."""
    producer, sequence = request.headers.get(PRODUCER), request.headers.get(SEQUENCE)
    if producer is None and sequence is None:
        return "", []
    if not producer or not sequence:
        raise InvalidParameterValue(f"headers {PRODUCER} and {SEQUENCE} go together")
    if not (sequence.isascii() and sequence.isdecimal() and len(sequence) <= SEQUENCE_DIGITS_MAX):
        raise InvalidParameterValue(f"header {SEQUENCE} wants a whole number of at most 18 digits")
    return "WITH", [producer, int(sequence)]


def events_in(text: str, *, lines: bool) -> Iterator[NewEvent]:
    """The events of a body: an object, an array of objects, or one object a line.

    >>> list(events_in('[{"payload": {"price": 1.50}, "key": "a"}]', lines=False))
    [NewEvent(payload='{"price": 1.50}', key='"a"', headers=None)]

    Raises:
        InvalidTextRepresentation: the text is no JSON.
        InvalidParameterValue: a value is no event.
        ProgramLimitExceeded: there are too many.
    """
    count = 0
    for event in _lines(text) if lines else _values(text):
        count += 1
        if count > EVENTS_MAX:
            raise ProgramLimitExceeded(f"a request publishes at most {EVENTS_MAX} events")
        yield event
    if not count:
        raise InvalidParameterValue("the body has no event")


def _lines(text: str) -> Iterator[NewEvent]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                event, at = _event(line, _blanks(line, 0))
                if _blanks(line, at) != len(line):
                    raise ValueError("text after the object")
            except (ValueError, RecursionError) as error:
                raise InvalidTextRepresentation(f"line {number} of the body is not JSON: {error}") from None
            yield event


def _values(text: str) -> Iterator[NewEvent]:
    try:
        at = _blanks(text, 0)
        if text[at : at + 1] != "[":
            event, at = _event(text, at)
            yield event
        else:
            at = _blanks(text, at + 1)
            first = True
            while first or text[at : at + 1] == ",":
                if first and text[at : at + 1] == "]":
                    break
                event, at = _event(text, _blanks(text, at if first else at + 1))
                first, at = False, _blanks(text, at)
                yield event
            if text[at : at + 1] != "]":
                raise ValueError(f"expected , or ] at character {at + 1}")
            at += 1
        if _blanks(text, at) != len(text):
            raise ValueError(f"text after the value at character {at + 1}")
    except (ValueError, RecursionError) as error:
        raise InvalidTextRepresentation(f"the body is not JSON: {error}") from None


def _blanks(text: str, at: int) -> int:
    found = WHITESPACE.match(text, at)
    return at if found is None else int(found.end())


def _event(text: str, at: int) -> tuple[NewEvent, int]:
    """The event that begins at a place, and its end; ValueError if it is no JSON."""
    if text[at : at + 1] != "{":
        _, end = _DECODER.raw_decode(text, at)
        raise InvalidParameterValue(
            f"an event is an object, not {text[at : min(end, at + 40)]}",
            hint='Such as {"payload": {"page": "/start"}, "key": "ada"}.',
        )
    found: dict[str, str | None] = {}
    at = _blanks(text, at + 1)
    while text[at : at + 1] != "}" or found:
        name, at = _DECODER.raw_decode(text, at)
        at = _blanks(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            raise ValueError(f"expected the name of a member at character {at + 1}")
        start = _blanks(text, at + 1)
        _, at = _DECODER.raw_decode(text, start)
        if name not in MEMBERS or name in found:
            known = ", ".join(MEMBERS)
            raise InvalidParameterValue(f'an event has each of {known} once at most, and not "{name[:40]}"')
        value = text[start:at]
        found[name] = None if value == "null" else value
        at = _blanks(text, at)
        if text[at : at + 1] != ",":
            break
        at = _blanks(text, at + 1)
    if text[at : at + 1] != "}":
        raise ValueError(f"expected , or }} at character {at + 1}")
    if "payload" not in found:
        raise InvalidParameterValue("an event wants a payload", hint="null publishes the end of a key.")
    return NewEvent(found["payload"], found.get("key"), found.get("headers")), at + 1
