"""Casts to dates, times and intervals in a client's text: literals, and the digits of a second (`time(2)`).

DuckDB refuses some of PostgreSQL's texts: an offset of one digit (`12:00+2`), one of a time without seconds,
an interval with a plus sign or in ISO 8601's form; and it reads a timestamp before Christ as one after him. A
literal with a type is written in DuckDB's form here, and one whose type is that of its place in
sql/pipeline/placed_literals.py.

DuckDB's types keep six digits of a second, but for TIMESTAMP(0) and TIMESTAMP(3). A cast to fewer digits is
rounded by a macro (data/functions.sql); six and more are all that there are. Source: PostgreSQL
documentation, "Date/Time Types".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...engine.quoting import literal
from ...engine.values.temporal_input import UNREAD, in_duckdb_form
from ...sql.text.spans import Replacement
from ...sql.text.tokens import NUMBER, PARAMETER, RESERVED, STRING, Token, closing, occurs
from .float_type import opening_of
from .numeric_type import TEXT_MAX, select_list

_LITERAL = re.compile(rf"'(?:{UNREAD})'", re.ASCII)
# A number in parentheses, which is found in a hundredth of the time, and digits of a second.
_NUMBER = re.compile(r"\(\s*\d{1,4}\s*\)")
_DIGITS = re.compile(r"\b(?:time(?:stamp)?(?:tz)?|interval)\s*\(\s*\d{1,4}\s*\)", re.ASCII | re.IGNORECASE)
_WITH_ZONE = {"TIME": "TIMETZ", "TIMESTAMP": "TIMESTAMPTZ"}
_DUCKDB = {
    "DATE": "DATE", "TIME": "TIME", "TIMETZ": "TIME WITH TIME ZONE", "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "INTERVAL": "INTERVAL",
}  # fmt: skip
_UNITS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"})
_ROUNDED = {
    "TIME": "rounded_time", "TIMETZ": "rounded_timetz", "TIMESTAMP": "rounded_timestamp",
    "TIMESTAMPTZ": "rounded_timestamp", "INTERVAL": "rounded_interval",
}  # fmt: skip
# Words that are no names before an operand, although DuckDB does not reserve them.
_BEFORE_OPERAND = frozenset({"BY", "BETWEEN"})
MICROSECOND_DIGITS = 6
# Digits that a type of DuckDB's has.
_TIMESTAMP_DIGITS = (0, 3)


@dataclass(frozen=True, slots=True)
class TimeType:
    """A type of time in a text.

    Args:
        name: its short name: DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ or INTERVAL.
        end: the place behind its last token.
        digits: the digits of a second; None without them. They are the three tokens behind the first one.
    """

    name: str
    end: int
    digits: int | None


def has_digits(text: str) -> bool:
    """True if a text may have a type of time with digits of a second."""
    return occurs(_NUMBER, text) and occurs(_DIGITS, text)


def has_time_casts(text: str) -> bool:
    """True if a text may have a cast or a literal for `time_casts`."""
    return occurs(_LITERAL, text) or has_digits(text)


def type_at(tokens: Sequence[Token], at: int) -> TimeType | None:
    """The type of time that begins at a token."""
    name = tokens[at].kind
    if name not in _DUCKDB:
        return None
    end, digits = at + 1, None
    if [token.kind for token in tokens[end : end + 3]] == ["(", NUMBER, ")"]:
        if not tokens[end + 1].text.isdecimal():
            return None
        end, digits = end + 3, int(tokens[end + 1].text)
    words = [token.kind for token in tokens[end : end + 3]]
    if name in _WITH_ZONE and words[1:] == ["TIME", "ZONE"] and words[0] in ("WITH", "WITHOUT"):
        name, end = _WITH_ZONE[name] if words[0] == "WITH" else name, end + 3
    return TimeType(name, end, digits)


def written(type_: TimeType, text: str) -> str | None:
    """The literal of a value in DuckDB's form; None if the text is in it."""
    found = in_duckdb_form(text, _DUCKDB[type_.name])
    return None if found is None else literal(found)


def time_casts(
    tokens: Sequence[Token],
    precedes_type: Callable[[Sequence[Token], int], bool],
    value_before: Callable[[Sequence[Token], int], Token | None],
) -> Iterator[Replacement]:
    """The changes of casts to types of time, and of literals with such a type.

    Args:
        precedes_type: true for the place of a `::`, or of the AS of a CAST.
        value_before: the value before such a place.
    """
    for at in range(len(tokens)):
        type_ = type_at(tokens, at)
        if type_ is None:
            continue
        cast = at > 0 and precedes_type(tokens, at - 1)
        value: Token | None = None
        if cast:
            value = value_before(tokens, at - 1)
        elif type_.end < len(tokens) and not _has_unit(tokens, type_.end + 1):
            value = tokens[type_.end]
        if value is not None and value.kind == STRING:
            if (text := written(type_, value.value)) is not None:
                yield Replacement(value.start, value.end, text)
        if type_.digits is not None and (cast or (value is not None and value.kind == STRING)):
            yield from _digits(tokens, at, type_, type_.digits, value, cast)


def _has_unit(tokens: Sequence[Token], at: int) -> bool:
    """True for a unit behind an interval's number: `INTERVAL '+05:30' HOUR TO MINUTE`."""
    return at < len(tokens) and tokens[at].kind in _UNITS


def _digits(
    tokens: Sequence[Token], at: int, type_: TimeType, digits: int, value: Token | None, cast: bool
) -> Iterator[Replacement]:
    """A cast without the digits in its type, and its value rounded to these."""
    if type_.name == "TIMESTAMP" and digits in _TIMESTAMP_DIGITS:
        return
    rounds = digits < MICROSECOND_DIGITS and (value is None or value.kind != "NULL")
    first, last = at, type_.end - 1
    if rounds and type_.end < len(tokens) and tokens[type_.end].kind == "[":
        return  # DuckDB reports the digits in the type of an array.
    if rounds and not cast:
        last = type_.end
    elif rounds and tokens[at - 1].kind == "AS":
        opening = opening_of(tokens, at)
        assert opening is not None, "an AS of a CAST is in its parentheses"
        first, last = opening - 1, closing(tokens, opening)
    elif rounds:
        begin = operand_start(tokens, at - 1)
        if begin is None:
            return  # DuckDB reports the digits.
        first = begin
    yield Replacement(tokens[at + 1].start, tokens[at + 3].end, "")
    if rounds:
        start, end = tokens[first].start, tokens[last].end
        yield Replacement(start, start, f"{_ROUNDED[type_.name]}(")
        yield Replacement(end, end, f", {digits})")


def digits_of(column: Sequence[Token]) -> int | None:
    """The digits of the type to which a column of a query is cast; None without them."""
    kinds = [token.kind for token in column]
    ends = {len(column), len(column) - 2 if kinds[-2:-1] == ["AS"] else len(column) - 1}
    if kinds[:2] == ["CAST", "("]:
        end = closing(column, 1)
        starts = [at for at in range(end) if kinds[at] == "AS" and column[at].depth == column[1].depth + 1]
        ends = {end} if end + 1 in ends else set()
    else:
        starts = [at for at in range(len(column)) if kinds[at] == "::" and not column[at].depth]
    type_ = type_at(column, starts[-1] + 1) if starts and starts[-1] + 1 < len(column) else None
    return type_.digits if type_ is not None and type_.end in ends else None


def operand_start(tokens: Sequence[Token], end: int) -> int | None:
    """The place where the operand before a `::` begins; None if it is unknown.

    It is a literal, a column, an element, a call or a parenthesis, with casts to types of one word.
    """
    at = end - 1
    while at >= 0:
        token = tokens[at]
        if token.kind in (")", "]"):
            depth = token.depth
            at = next(place for place in range(at - 1, -1, -1) if tokens[place].depth == depth)
            if token.kind == "]":
                at -= 1
                continue
            if at and tokens[at - 1].is_name and tokens[at - 1].kind not in RESERVED:
                at -= 1
        elif not (token.kind in (STRING, NUMBER, PARAMETER) or token.is_name) or token.kind == "END":
            return None
        while at > 1 and tokens[at - 1].kind == "." and tokens[at - 2].is_name:
            at -= 2
        if at == 0 or tokens[at - 1].kind != "::":
            before = tokens[at - 1] if at else None
            if before is not None and token.kind == STRING and before.kind in _DUCKDB:
                return at - 1
            named = before is not None and before.is_name and before.kind not in RESERVED | _BEFORE_OPERAND
            return None if named else at
        at -= 2
    return None


def column_digits(text: str) -> tuple[int | None, ...]:
    """The digits of a second of each column of a query that is a cast to a type of time with these.

    >>> column_digits("SELECT a, b::time(2) AS c, CAST(d AS timestamp(0) with time zone) FROM t")
    (None, 2, 0)
    """
    if len(text) > TEXT_MAX or not has_digits(text):
        return ()
    return tuple(map(digits_of, select_list(text)[1]))
