"""Clauses that statements share, as SQL again."""

from __future__ import annotations

from collections.abc import Iterable

from ...engine.quoting import ident, literal
from ...engine.values.dates_times import duration_text
from .options import INTERVALS, RULES, Option, Options, Value
from .values import Name, Parameter, Scalar

# Options whose value is a length of time in milliseconds.
_INTERVALS = INTERVALS | {"session_timeout"}


def name_sql(name: Name) -> str:
    """A name, quoted, with its qualifiers."""
    return ".".join(ident(part) for part in name.parts)


def scalar_sql(value: Scalar) -> str:
    """A number, a string literal or a parameter."""
    if isinstance(value, Parameter):
        return f"${value.index}"
    return literal(value) if isinstance(value, str) else str(value)


def named(value: str | Parameter) -> str:
    """A group's or member's name, or a parameter."""
    return ident(value) if isinstance(value, str) else scalar_sql(value)


def words(*parts: str | None) -> str:
    """The parts that are not empty, with spaces between them."""
    return " ".join(part for part in parts if part)


def when(condition: bool, text: str) -> str:
    """The text, or nothing."""
    return text if condition else ""


def clause(word: str, value: Scalar | None) -> str:
    """A clause with a value; nothing without one."""
    return "" if value is None else f"{word} {scalar_sql(value)}"


def member_clause(member: str | Parameter | None) -> str:
    """[ MEMBER m ]"""
    return "" if member is None else f"MEMBER {named(member)}"


def of_group(stream: Name, group: str | Parameter) -> str:
    """ON s CONSUMER GROUP g"""
    return f"ON {name_sql(stream)} CONSUMER GROUP {named(group)}"


def group_on_stream(group: str | Parameter, stream: Name) -> str:
    """g ON s"""
    return f"{named(group)} ON {name_sql(stream)}"


def perhaps_on(verb: str, stream: Name | None) -> str:
    """A verb, and ON s where a stream is named."""
    return verb if stream is None else f"{verb} ON {name_sql(stream)}"


def drop(verb: str, exists: bool, what: str, cascade: bool = False) -> str:
    """DROP ... [IF EXISTS] what [CASCADE]"""
    return words(verb, when(exists, "IF EXISTS"), what, when(cascade, "CASCADE"))


def columns(names: Iterable[str]) -> str:
    """( column, ... )"""
    return f"({', '.join(ident(name) for name in names)})"


def options_clause(options: Options, word: str = "WITH") -> str:
    """WITH ( option = value, ... ); nothing without options."""
    assert all(option.name in RULES for option in options)
    return f"{word} ({', '.join(_option(option) for option in options)})" if options.given else ""


def _option(option: Option) -> str:
    return f"{option.name} = {_option_value(option.name, option.value)}"


def _option_value(name: str, value: Value) -> str:
    if isinstance(value, tuple):
        return columns(value)
    if value is None:
        return "'none'"
    if name in _INTERVALS:
        assert isinstance(value, int)
        return literal(duration_text(value * 1000))
    return literal(value) if isinstance(value, str) else str(value)
