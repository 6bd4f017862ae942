"""The literals of a one-row write as the values of parameters.

`INSERT INTO t VALUES (17, 'x')` has the form `INSERT INTO t VALUES ( $1 , $2 )`: all texts of one form share
its plan (group_writes.py). A literal becomes a value of its parameter's type only if DuckDB certainly makes
the same value of it in that place; any other text runs as it was sent. Source: docs/design/small_writes.md,
"Texts with literals".
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ...engine.quoting import fold
from ..text.classified import Classified
from ..text.tokens import NUMBER, PARAMETER, STRING, Token, string_value

# Texts with more tokens than a row of a very wide table has, or with more characters, run alone.
TOKENS_MAX = 1024
CHARS_MAX = 64 * 1024
_VERBS = frozenset({"INSERT", "UPDATE", "DELETE"})
_WORDS = frozenset({"NULL", "TRUE", "FALSE"})
_LITERALS = _WORDS | {STRING, NUMBER}
# The tokens between which a literal is a whole value.
_BEFORE = frozenset({"(", ",", "="})
_AFTER = frozenset({",", ")", ";", "::", "AND", "WHERE", "RETURNING"})
# Tokens of texts that run alone in any case: most of them are recognized here, before all is read.
_ALONE = frozenset({PARAMETER, "SELECT", "OR", "IN", "DEFAULT", "OVERRIDING", "||", "+", "*", "/"})


@dataclass(frozen=True, slots=True)
class LiteralForm:
    """A text of a small write without its literals.

    Args:
        text: its tokens, with a parameter in the place of each literal.
        literals: the kind and the text of each of them, with its sign.
    """

    text: str
    literals: tuple[tuple[str, str], ...]

    def values(self, types: Sequence[str]) -> Sequence[object] | None:
        """The values of the parameters; None if one of them is not certain.

        Args:
            types: DuckDB's types of the parameters.
        """
        if len(types) != len(self.literals):
            return None
        found: list[object] = []
        for (kind, text), type_ in zip(self.literals, types, strict=True):
            if kind == "NULL":
                found.append(None)
                continue
            read = _READERS.get((kind, type_.partition("(")[0]))
            try:
                value = None if read is None else read(text, type_)
            except ValueError:
                value = None  # No such day, for example.
            if value is None:
                return None
            found.append(value)
        return found


def literal_form(classified: Classified) -> LiteralForm | None:
    """The form of a write; None for a text with parameters, without literals, or that runs alone anyway."""
    tokens, text = classified.tokens, classified.text
    if classified.verb not in _VERBS or len(tokens) > TOKENS_MAX or len(text) > CHARS_MAX or "\0" in text:
        return None
    return form_of(tokens)


def form_of(tokens: Sequence[Token]) -> LiteralForm | None:
    """The form of a write with these tokens; see `literal_form`."""
    words: list[str] = []
    literals: list[tuple[str, str]] = []
    previous = sign = type_ = ""
    is_insert = tokens[0].kind == "INSERT"
    for token in tokens:
        kind = token.kind
        if previous in ("literal", "signed") and kind not in _AFTER:
            return None
        if kind in _LITERALS and (previous in _BEFORE or sign):
            if sign and kind != NUMBER:
                return None
            literals.append((kind, sign + token.text))
            words.append(f"${len(literals)}")
            # A cast binds more tightly than a sign.
            previous, sign = "signed" if sign else "literal", ""
            continue
        if sign or kind in (STRING, NUMBER) or kind in _ALONE or (previous == "signed" and kind == "::"):
            return None
        if kind == "-":
            if previous not in _BEFORE:
                return None
            sign = kind
            continue
        if kind == "," and is_insert and previous == ")" and not token.depth:
            return None  # Another row.
        if kind == "(" and type_ == "::":
            return None  # The width of a type is no parameter.
        if kind != ";":
            words.append(token.text)
        type_, previous = previous, kind
    return LiteralForm(" ".join(words), tuple(literals)) if literals and not sign else None


# Literals as values: a reader returns None if it is not certain of the value.

_Reader = Callable[[str, str], object]
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(?:\.[0-9]{1,38})?")
_EXPONENT = re.compile(r"-?[0-9]{1,17}(?:\.[0-9]{1,17})?[eE][+-]?[0-9]{1,3}")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
    r"(?:(Z)|([+-])([0-9]{2})(?::?([0-9]{2}))?)?"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The only escapes that are read here: DuckDB knows fewer than PostgreSQL.
_ESCAPED = re.compile(r"[eE]'(?:[^'\\]|''|\\[\\'nrt])*+'", re.DOTALL)
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
_BOOLEANS = {"true": True, "t": True, "false": False, "f": False}
# The width of DuckDB's widest DECIMAL.
_DIGITS_MAX = 38


def _text(text: str) -> str | None:
    """The value of a string literal."""
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return string_value(text) if _ESCAPED.fullmatch(text) else None


def _of_string(read: _Reader) -> _Reader:
    """The reader of a string literal, from that of its value."""

    def found(text: str, type_: str) -> object:
        value = _text(text)
        return None if value is None else read(value, type_)

    return found


def _integer(text: str, type_: str) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    value, bound = int(text), 1 << (_BITS[type_] - 1)
    return value if -bound <= value < bound else None


def _double(text: str, type_: str) -> float | None:
    """A number as DOUBLE: a BIGINT, a DECIMAL or a DOUBLE, from each of which DuckDB makes the nearest one.

    Not from a HUGEINT. Only a number with an exponent is a DOUBLE before its sign is applied, and has a
    negative zero.
    """
    if text.lstrip("-").isdigit() and _integer(text, "BIGINT") is None:
        return None
    value = _double_text(text, type_)
    return 0.0 if value is None and not text.strip("-0.") else value


def _double_text(text: str, type_: str) -> float | None:
    """A string as DOUBLE: the nearest one, if it is neither zero nor close to overflow or underflow."""
    is_short = len(text) <= _DIGITS_MAX
    if not is_short or not (_DECIMAL.fullmatch(text) or _EXPONENT.fullmatch(text)):
        return None
    value = float(text)
    return value if 1e-300 < abs(value) < 1e300 else None


def _decimal(text: str, type_: str) -> Decimal | None:
    if not _DECIMAL.fullmatch(text):
        return None
    return fitting(Decimal(text), type_)


def fitting(value: Decimal, type_: str) -> Decimal | None:
    """A value, if a DECIMAL of that type holds all of its digits; else None.

    Args:
        type_: `DECIMAL(width,scale)`.
    """
    width, scale = map(int, type_[len("DECIMAL(") : -1].split(","))
    parts = value.as_tuple()
    if not isinstance(parts.exponent, int) or -parts.exponent > scale:
        return None
    return value if len(parts.digits) + parts.exponent <= width - scale else None


def _boolean(text: str, type_: str) -> bool | None:
    return _BOOLEANS.get(fold(text))


def _date(text: str, type_: str) -> datetime.date | None:
    found = _DATE.fullmatch(text)
    return datetime.date(*map(int, found.groups())) if found else None


def _moment(text: str, type_: str) -> datetime.datetime | None:
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    *given, fraction, utc, sign, hours, minutes = found.groups()
    zone = None
    if utc or sign:
        offset = datetime.timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        zone = datetime.timezone(-offset if sign == "-" else offset)
    if (zone is None) is (type_ != "TIMESTAMP"):
        return None
    year, month, day, hour, minute, second = map(int, given)
    micros = int((fraction or "").ljust(6, "0"))
    return datetime.datetime(year, month, day, hour, minute, second, micros, zone)


def _uuid(text: str, type_: str) -> uuid.UUID | None:
    return uuid.UUID(text) if _UUID.fullmatch(text) else None


def _same(text: str, type_: str) -> str:
    return text


_READERS: Mapping[tuple[str, str], _Reader] = {
    **{(NUMBER, type_): _integer for type_ in _BITS},
    **{(STRING, type_): _of_string(_integer) for type_ in _BITS},
    (NUMBER, "DOUBLE"): _double,
    (STRING, "DOUBLE"): _of_string(_double_text),
    (NUMBER, "DECIMAL"): _decimal,
    (STRING, "DECIMAL"): _of_string(_decimal),
    ("TRUE", "BOOLEAN"): _boolean,
    ("FALSE", "BOOLEAN"): _boolean,
    (STRING, "BOOLEAN"): _of_string(_boolean),
    (STRING, "VARCHAR"): _of_string(_same),
    (STRING, "JSON"): _of_string(_same),
    (STRING, "UUID"): _of_string(_uuid),
    (STRING, "DATE"): _of_string(_date),
    (STRING, "TIMESTAMP"): _of_string(_moment),
    (STRING, "TIMESTAMP WITH TIME ZONE"): _of_string(_moment),
}
