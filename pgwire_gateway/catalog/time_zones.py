"""Offsets as time zones in a client's text: `AT TIME ZONE 'UTC+5'` is to the west in PostgreSQL, as in POSIX.

To DuckDB it is to the east. A literal gets the other sign; a parameter or an expression, whose value is not
known here, is put into an expression of DuckDB's that changes the sign of an offset, so that a view with it
needs no function of ducktail's. Source: PostgreSQL documentation, "POSIX Time Zone Specifications".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...sql.text.spans import Replacement
from ...sql.text.tokens import STRING, Token
from .like_escape import operand_end

_LITERAL = "'(?:utc|gmt)?[+<-]"
HINT = rf"\bat\s+time\s+zone\s+(?:[^'\s]|{_LITERAL})|\btimezone\s*\(\s*(?:[^'\s)]|{_LITERAL})"
_NAME, _HOURS = r"(?:utc|gmt|<[\w+-]+>)?", r"\d{1,2}(?::?[0-5]\d)?"
_OFFSET = re.compile(rf"{_NAME}([+-])(\d{{1,2}})(?::?([0-5]\d))?", re.IGNORECASE | re.ASCII)
# The text around an expression: `~` stands for the minus of a changed plus.
_BEFORE = "regexp_replace(regexp_replace(regexp_replace("
_BEHIND = (
    f", '(?i)^{_NAME}[+]({_HOURS})$', 'GMT~\\1'), '(?i)^{_NAME}-({_HOURS})$', 'GMT+\\1'), '^GMT~', 'GMT-')"
)
# What follows ZONE in the name of a type, and expressions that are no names of zones.
_OTHERS = frozenset({"INTERVAL", "NOT", "NULL", "DEFAULT", "PRIMARY", "UNIQUE", "CHECK", "REFERENCES", "AS"})


def offsets(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The replacements of zones in AT TIME ZONE and timezone(zone, time)."""
    for at, token in enumerate(tokens[:-1]):
        first = at + 1
        if token.kind == "ZONE":
            if [before.kind for before in tokens[max(at - 2, 0) : at]] != ["AT", "TIME"]:
                continue
        elif token.kind == "TIMEZONE" and tokens[first].kind == "(":
            first += 1
        else:
            continue
        end = operand_end(tokens, first)
        if end <= first or tokens[first].kind in _OTHERS:
            continue
        if token.kind == "TIMEZONE" and (end >= len(tokens) or tokens[end].kind != ","):
            continue
        if tokens[first].kind != STRING:
            yield Replacement(tokens[first].start, tokens[first].start, _BEFORE)
            yield Replacement(tokens[end - 1].end, tokens[end - 1].end, _BEHIND)
        elif found := _OFFSET.fullmatch(tokens[first].value):
            sign = "+" if found[1] == "-" else "-"
            turned = f"'GMT{sign}{found[2]:>02}:{found[3] or '00'}'"
            yield Replacement(tokens[first].start, tokens[first].end, turned)
