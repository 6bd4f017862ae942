"""Requests: names, parameters and bodies, each checked before it is used.

A name in a path is a name of SQL, `orders`, `sales.orders` or `"My Stream"`, read by the language's grammar
and written back in quotes; values are parameters of the statement. So no part of a request becomes a part of
a statement's text, except a `where`, which `checked_where` (statements.py) reads as one expression.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ...engine.errors import (
    DucktailError,
    InvalidParameterValue,
    InvalidTextRepresentation,
    NotSupported,
    ProgramLimitExceeded,
    ProtocolViolation,
    SyntaxError_,
)
from ...sql.language.clauses import Name
from ...sql.language.grammar import Grammar
from ...sql.text.tokens import tokenize

# The time for a request's body.
BODY_S = 30.0
NAME_CHARS_MAX = 1024
JSON, NDJSON = "application/json", "application/x-ndjson"
# The begin of the escape of a surrogate in JSON; only pairs of them are a character.
SURROGATE = "\\ud"


@dataclass(frozen=True, slots=True)
class Digits:
    """A number of JSON with a fraction or an exponent, as it is written: a float would lose digits."""

    text: str


def check_head(request: web.BaseRequest) -> None:
    """Refuse a head that is not UTF-8, whose bytes aiohttp turns into halves of surrogate pairs.

    Raises:
        InvalidTextRepresentation: it is not.
    """
    try:
        for text in (request.path_qs, request.path, *request.headers.values()):
            text.encode()
        for name, text in request.query.items():
            name.encode(), text.encode()
    except UnicodeEncodeError:
        raise InvalidTextRepresentation("the head of the request is not UTF-8") from None


def name_in(text: str, what: str) -> Name:
    """A name in a path.

    Raises:
        SyntaxError_: the text is no name.
    """
    if len(text) > NAME_CHARS_MAX:
        raise SyntaxError_(f"{what} has at most {NAME_CHARS_MAX} characters")
    grammar = Grammar(text, tokenize(text), 0)
    name = grammar.full_name(what)
    if not grammar.at_end:
        raise grammar.expected(f"only {what}")
    return name


def check_known(request: web.Request, known: Collection[str]) -> None:
    """Refuse parameters of the query that a route does not have, and those that are given twice.

    Raises:
        InvalidParameterValue: there is one.
    """
    for name in request.query:
        if name not in known:
            shown = ", ".join(sorted(known)) or "none"
            raise InvalidParameterValue(f'unknown parameter "{name}": known are {shown}')
        if len(request.query.getall(name)) > 1:
            raise InvalidParameterValue(f'parameter "{name}" is given twice')


def number_in(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query.

    Raises:
        InvalidParameterValue: the text is none, or out of its bounds.
    """
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and low <= int(text) <= high):
        raise InvalidParameterValue(f'parameter "{name}" wants a whole number from {low} to {high}')
    return int(text)


def word_in(request: web.Request, name: str, known: Collection[str], default: str) -> str:
    """A word of the query.

    Raises:
        InvalidParameterValue: the word is unknown.
    """
    text = request.query.get(name, default)
    if text not in known:
        raise InvalidParameterValue(f'parameter "{name}" is one of {", ".join(sorted(known))}')
    return text


def text_in(request: web.Request, name: str) -> str | None:
    """A text of the query; None without one.

    Raises:
        InvalidParameterValue: it is empty, or has a zero byte.
    """
    text = request.query.get(name)
    if text is not None and (not text or "\0" in text):
        raise InvalidParameterValue(f'parameter "{name}" is empty or has a zero byte')
    return text


async def body_in(request: web.Request, kinds: Collection[str] = (JSON,)) -> str:
    """The text of a request's body.

    Only bodies of these types are accepted: a form of another site's page, which a browser sends without
    asking, has none of them.

    Raises:
        ProtocolViolation: the type is another, or the body does not arrive in time.
        ProgramLimitExceeded: the body is too long.
        InvalidTextRepresentation: it is not UTF-8.
    """
    if request.content_type not in kinds:
        raise ProtocolViolation(f"the body of this request is {' or '.join(sorted(kinds))}")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise NotSupported("compressed bodies are not supported")
    try:
        async with asyncio.timeout(BODY_S):
            data = await request.read()
    except TimeoutError:
        raise ProtocolViolation(f"the body did not arrive within {BODY_S:.0f} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise ProgramLimitExceeded("the body is too long", hint="message_bytes_max is the maximum.") from None
    except web.RequestPayloadError:
        raise ProtocolViolation("the body is cut or malformed") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidTextRepresentation("the body is not UTF-8") from None


def object_of(text: str, known: Collection[str]) -> dict[str, Any]:
    """A JSON object with these members at most.

    Raises:
        InvalidTextRepresentation: the text is no JSON.
        InvalidParameterValue: it is no object, or has an unknown member.
    """
    try:
        found = json.loads(
            text, parse_constant=_no_constant, parse_float=Digits, object_pairs_hook=_without_doubles
        )
        if SURROGATE in text.lower():
            json_text(found).encode()
    except UnicodeEncodeError:
        raise InvalidTextRepresentation("a string of the body has half of a surrogate pair") from None
    except DucktailError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidTextRepresentation("the body is not JSON", detail=str(error)[:200]) from None
    if not isinstance(found, dict):
        raise InvalidParameterValue("the body is not a JSON object")
    for name in found:
        if name not in known:
            raise InvalidParameterValue(f'unknown member "{name}": known are {", ".join(sorted(known))}')
    return found


def json_text(value: Any) -> str:
    """A value of `object_of` as JSON; its numbers keep their digits.

    >>> json_text({"price": Digits("1.50")})
    '{"price": 1.50}'
    """
    if isinstance(value, Digits):
        return value.text
    if isinstance(value, list):
        return f"[{', '.join(map(json_text, value))}]"
    if isinstance(value, dict):
        members = (f"{json_text(name)}: {json_text(item)}" for name, item in value.items())
        return f"{{{', '.join(members)}}}"
    return json.dumps(value, ensure_ascii=False)


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidParameterValue("a member of an object is given twice")
    return found


def member_of(found: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A member of an object, of this type.

    Raises:
        InvalidParameterValue: it has another type.
    """
    value = found.get(name, default)
    if value is None and default is None:
        return None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {str: "a string", int: "a whole number", list: "an array", dict: "an object"}
        raise InvalidParameterValue(f'member "{name}" is not {words[kind]}')
    return value
