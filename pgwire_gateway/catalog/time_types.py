"""Literals of dates and times in a client's text, and the number of digits in a type of time: `time(2)`.

DuckDB refuses some of PostgreSQL's texts: an offset of one digit (`12:00+2`), one of a time without seconds,
an interval with a plus sign or in ISO 8601's form; and it reads a timestamp before Christ as one after him. A
literal with a type is written in DuckDB's form here, and one whose type is that of its place in
sql/pipeline/placed_literals.py. Source: PostgreSQL documentation, "Date/Time Types".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...engine.quoting import literal
from ...engine.values.temporal_input import UNREAD, in_duckdb_form
from ...sql.text.spans import Replacement
from ...sql.text.tokens import STRING, Token

HINT = re.compile(rf"'(?:{UNREAD})'", re.ASCII)
_WITH_ZONE = {"TIME": "TIMETZ", "TIMESTAMP": "TIMESTAMPTZ"}
_DUCKDB = {
    "DATE": "DATE", "TIME": "TIME", "TIMETZ": "TIME WITH TIME ZONE", "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "INTERVAL": "INTERVAL",
}  # fmt: skip

_UNITS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"})


@dataclass(frozen=True, slots=True)
class TimeType:
    """A type of time in a text.

    Args:
        name: its short name: DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ or INTERVAL.
        end: the place behind its last token.
    """

    name: str
    end: int


def type_at(tokens: Sequence[Token], at: int) -> TimeType | None:
    """The type of time that begins at a token."""
    name = tokens[at].kind
    if name not in _DUCKDB:
        return None
    words = [token.kind for token in tokens[at + 1 : at + 4]]
    if name in _WITH_ZONE and words[1:] == ["TIME", "ZONE"] and words[0] in ("WITH", "WITHOUT"):
        return TimeType(_WITH_ZONE[name] if words[0] == "WITH" else name, at + 4)
    return TimeType(name, at + 1)


def _has_unit(tokens: Sequence[Token], at: int) -> bool:
    """True for a unit behind an interval's number: `INTERVAL '+05:30' HOUR TO MINUTE`."""
    return at < len(tokens) and tokens[at].kind in _UNITS


def time_literals(
    tokens: Sequence[Token],
    precedes_type: Callable[[Sequence[Token], int], bool],
    value_before: Callable[[Sequence[Token], int], Token | None],
) -> Iterator[Replacement]:
    """The literals of types of time that DuckDB would not read as PostgreSQL does.

    Args:
        precedes_type: true for the place of a `::`, or of the AS of a CAST.
        value_before: the value before such a place.
    """
    for at in range(len(tokens)):
        type_ = type_at(tokens, at)
        if type_ is None:
            continue
        value: Token | None = None
        if at and precedes_type(tokens, at - 1):
            value = value_before(tokens, at - 1)
        elif type_.end < len(tokens) and not _has_unit(tokens, type_.end + 1):
            value = tokens[type_.end]
        if value is not None and value.kind == STRING:
            written = in_duckdb_form(value.value, _DUCKDB[type_.name])
            if written is not None:
                yield Replacement(value.start, value.end, literal(written))
