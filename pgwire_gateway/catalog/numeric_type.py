"""The type numeric in a client's text: without a precision it has the digits of its value.

DuckDB's numeric without digits is DECIMAL(18,3): it would make 1.235 of `'1.23456'::numeric`, and a client of
PostgreSQL would read a wrong number without an error. A cast of a literal therefore has the literal's own
digits, as DuckDB's literal 1.23456 has. The value of a parameter determines its digits: `$1::numeric` is `$1`
declared as numeric, whatever type the client declares. The same holds for numeric[]. A cast of another
expression is DuckDB's, and so is the type where it lasts longer than the value: in definitions, but not those
of views, and in a WITH RECURSIVE, whose first rows determine the columns of all. Source: PostgreSQL
documentation, "Arbitrary Precision Numbers".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from ...engine.errors import DucktailError, NumericOutOfRange
from ...engine.quoting import fold
from ...engine.values import value_types
from ...engine.values.arrays import is_array, read_array
from ...sql.text.spans import Replacement, cut
from ...sql.text.tokens import NUMBER, PARAMETER, QUOTED, RESERVED, STRING, Token, closing, tokenize
from .float_type import in_cast

# Digits of a numeric in DuckDB; PostgreSQL's has up to 1000.
PRECISION_MAX = 38
# The digits of DECIMAL(18,3) before and behind the point.
_WHOLE_DIGITS, _DECIMALS = 15, 3
# Bounds of the texts that are examined, and of those whose parameters are kept.
TEXT_MAX, KEPT_CHARS_MAX, TEXTS_KEPT = 64 * 1024, 8 * 1024, 512
# A text with casts to numeric whose digits are determined here.
HINT = r"['\d.)\]]\s*(?:::|\bas\b)\s*\"?(?:numeric|decimal|dec)\b|\b(?:numeric|decimal|dec)\s*e?'"
_PARAMETER_HINT = re.compile(
    r"\$\d+\s*(?:::|\bas\b)\s*\"?(?:numeric|decimal|dec)\b", re.IGNORECASE | re.ASCII
)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_TYPES = frozenset({"numeric", "decimal"})
_DEFINES = frozenset({"CREATE", "ALTER"})
_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_SET_OPERATIONS = frozenset({"UNION", "INTERSECT", "EXCEPT"})
_NUMERICS = value_types.ARRAY_OF[value_types.NUMERIC]
_NUMBERS = frozenset(
    {value_types.INT2, value_types.INT4, value_types.INT8, value_types.FLOAT4, value_types.FLOAT8}
    | {value_types.TEXT, value_types.VARCHAR, value_types.BPCHAR}
)
# The types of parameters whose values become numerics, if each of their places is a cast. A parameter that is
# declared as numeric, or not at all, is a numeric at all of its places.
_CONVERTED = {
    value_types.NUMERIC: _NUMBERS, _NUMERICS: frozenset(value_types.ARRAY_OF[oid] for oid in _NUMBERS),
}  # fmt: skip


# Casts of literals.


def exact_literals(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The type of each cast of literals to numeric or numeric[], with the literals' digits.

    Raises:
        NumericOutOfRange: a literal has more digits than DuckDB's widest type.
    """
    if _lasts(tokens):
        return
    plain: set[int] = set()
    for at, token in enumerate(tokens):
        end = _type_end(tokens, at)
        values = _literals_of(tokens, at, end) if end else ()
        texts = _numbers(values, listed=end > at + 1)
        if not texts:
            continue
        digits = [_digits(text) for text in texts]
        whole, decimals = max(pair[0] for pair in digits), max(pair[1] for pair in digits)
        if tokens[0].kind in _WRITES and whole <= _WHOLE_DIGITS and decimals <= _DECIMALS:
            continue  # The column determines the type, and texts of one form share a plan (dml/literals.py).
        if whole + decimals > PRECISION_MAX:
            raise NumericOutOfRange(f"a numeric has at most {PRECISION_MAX} digits here")
        # DuckDB's text of a number without a digit before the point begins with the point.
        width = min(max(whole, 1) + decimals, PRECISION_MAX)
        if len(values) < len(texts) and any("e" in fold(text) for text in texts):
            width = PRECISION_MAX  # DuckDB reads exponents into a type with room for them only.
        yield Replacement(token.start, token.end, f"DECIMAL({width},{decimals})")
        for value in values:
            # DuckDB's number with an exponent is a DOUBLE; a string in a list has its neighbours' type.
            exponent, in_list = "e" in fold(value.value), value.kind == STRING and len(values) > 1
            if (exponent or in_list) and value.start not in plain and not is_array(value.value):
                plain.add(value.start)
                number = f"{Decimal(value.value.strip()):f}"
                quoted = value.kind == STRING and not in_list
                yield Replacement(value.start, value.end, f"'{number}'" if quoted else number)


def _numbers(values: Sequence[Token], *, listed: bool) -> list[str]:
    """The texts of literals, which may be one of an array; an empty list unless all are numbers."""
    texts = [value.value.strip() for value in values]
    if listed and len(values) == 1 and is_array(texts[0]):
        try:
            texts = list(_flat(read_array(values[0].value, str.strip)))
        except DucktailError:
            return []  # DuckDB reports it.
    return texts if all(map(_NUMBER.fullmatch, texts)) else []


def _flat(items: Sequence[Any]) -> Iterator[str]:
    for item in items:
        if isinstance(item, list):
            yield from _flat(item)
        elif item is not None:
            yield item


def precision(tokens: Sequence[Token], at: int) -> Iterator[Replacement]:
    """The precision of a cast to numeric, if it is more than DuckDB's: greater values are then an error."""
    kinds = [token.kind for token in tokens[at : at + 5]]
    if kinds != ["(", NUMBER, ",", NUMBER, ")"]:
        return
    whole, scale = tokens[at + 1], tokens[at + 3]
    if whole.text.isdecimal() and scale.text.isdecimal():
        if int(whole.text) > PRECISION_MAX >= int(scale.text):
            yield Replacement(whole.start, whole.end, str(PRECISION_MAX))


def _lasts(tokens: Sequence[Token]) -> bool:
    """True if the type of a value determines the type of other values."""
    if not tokens or any(token.kind == "RECURSIVE" for token in tokens):
        return True
    return tokens[0].kind in _DEFINES and all(token.kind != "VIEW" for token in tokens[1:4])


def _digits(text: str) -> tuple[int, int]:
    """The digits of a number before and behind the point, without zeros at its end that do not fit."""
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int), "the pattern has no NaN"
    shown = "".join(map(str, digits))
    whole, decimals = max(len(shown.lstrip("0")) + exponent, 0), max(-exponent, 0)
    needed = decimals - (len(shown) - len(shown.rstrip("0"))) if int(shown) else 0
    return whole, max(needed, min(decimals, PRECISION_MAX - whole))


def _type_end(tokens: Sequence[Token], at: int) -> int:
    """The place behind the type that is numeric or numeric[], without a precision; 0 for another."""
    token = tokens[at]
    if token.kind not in ("NUMERIC", "DECIMAL", "DEC") and not (
        token.kind == QUOTED and token.name in _TYPES
    ):
        return 0
    following = [one.kind for one in tokens[at + 1 : at + 4]]
    if following[:1] in (["("], ["."]) or (at and tokens[at - 1].kind == "."):
        return 0
    if following[:1] != ["["]:
        return at + 1
    return at + 3 if following[1:2] == ["]"] and following[2:] != ["["] else 0


def _literals_of(tokens: Sequence[Token], at: int, end: int) -> Sequence[Token]:
    """The literals that a type is given: one, or those of a list; none for another expression."""
    before = tokens[at - 1].kind if at else ""
    if before == "::":
        first = _operand(tokens, at - 2)
        return () if first is None else _literals(tokens, first, at - 2)
    if before == "AS":
        if not in_cast(tokens, at - 1):
            return ()
        opening = next(place for place in range(at - 1, -1, -1) if tokens[place].depth < tokens[at].depth)
        return _literals(tokens, opening + 1, at - 2)
    return tokens[end : end + 1] if [one.kind for one in tokens[end : end + 1]] == [STRING] else ()


def _operand(tokens: Sequence[Token], last: int) -> int | None:
    """The first token of the operand before a `::`; None if it is no literal."""
    if last < 0:
        return None
    if tokens[last].kind in (STRING, NUMBER):
        return last
    if last > 1 and tokens[last - 1].kind == "::":
        return _operand(tokens, last - 2)
    if tokens[last].kind not in (")", "]"):
        return None
    opening = next((at for at in range(last - 1, -1, -1) if tokens[at].depth == tokens[last].depth), None)
    if opening is None or not opening:
        return opening
    before = tokens[opening - 1]
    if before.kind == ("CAST" if tokens[last].kind == ")" else "ARRAY"):
        return opening - 1
    return None if before.is_name and before.kind not in RESERVED else opening


def _literals(tokens: Sequence[Token], first: int, last: int) -> Sequence[Token]:
    """The literals that the tokens [first, last] are: in brackets, signed, cast to numeric, or a list."""
    if first > last:
        return ()
    kinds = tokens[first].kind, tokens[last].kind
    if first == last:
        return (tokens[first],) if kinds[0] in (STRING, NUMBER) else ()
    if kinds[0] in ("-", "+") and last == first + 1:
        return (tokens[last],) if kinds[1] == NUMBER else ()
    if kinds == ("(", ")") and closing(tokens, first) == last:
        return _literals(tokens, first + 1, last - 1)
    opening = first + 1 if kinds[0] == "ARRAY" else first
    if kinds[1] == "]" and tokens[opening].kind == "[" and closing(tokens, opening) == last:
        return _items(tokens, opening + 1, last)
    if kinds == ("CAST", ")") and tokens[first + 1].kind == "(" and closing(tokens, first + 1) == last:
        first, last = first + 2, last - 1
    if last > first and tokens[last - 1].kind in ("::", "AS") and _type_end(tokens, last) == last + 1:
        return _literals(tokens, first, last - 2)
    return ()


def _items(tokens: Sequence[Token], first: int, end: int) -> Sequence[Token]:
    """The literals of a list; none if an item is no literal. NULLs are left out."""
    found: list[Token] = []
    for at in range(first, end):
        if tokens[at].depth == tokens[first].depth and (at == first or tokens[at - 1].kind == ","):
            ends = (
                i for i in range(at, end) if tokens[i].kind == "," and tokens[i].depth == tokens[at].depth
            )
            last = next(ends, end) - 1
            if last == at and tokens[at].kind == "NULL":
                continue
            item = _literals(tokens, at, last)
            if len(item) != 1:
                return ()
            found += item
    return found


# Parameters.


def numeric_parameters(text: str, oids: Sequence[int]) -> tuple[str, Mapping[int, int]]:
    """The text without its casts of parameters to numeric and numeric[], and the types of these parameters.

    Args:
        oids: the types that the client declares.

    >>> numeric_parameters("SELECT $1::numeric, CAST($2 AS numeric[]), $3::numeric(4, 1)", [23])
    ('SELECT $1, $2, $3::numeric(4, 1)', {1: 1700, 2: 1231})
    """
    if len(text) > TEXT_MAX or _PARAMETER_HINT.search(text) is None:
        return text, {}
    places, everywhere = (_kept_places if len(text) <= KEPT_CHARS_MAX else _places)(text)
    found = {number: type_ for number, type_, _ in places if _is_converted(number, type_, oids, everywhere)}
    return cut(text, [piece for number, type_, piece in places if found.get(number) == type_]), found


def _is_converted(number: int, type_: int, oids: Sequence[int], everywhere: frozenset[int]) -> bool:
    oid = oids[number - 1] if number <= len(oids) else 0
    return oid in (0, value_types.UNKNOWN, type_) or (oid in _CONVERTED[type_] and number in everywhere)


def _places(text: str) -> tuple[tuple[tuple[int, int, Replacement], ...], frozenset[int]]:
    """The casts of parameters, with their types and replacements, and the parameters that are cast at each
    place."""
    try:
        tokens = tokenize(text)
    except DucktailError:
        return (), frozenset()  # The session reports the error in it.
    found: list[tuple[int, int, Replacement]] = []
    bare: set[int] = set()
    for at, token in enumerate(() if _lasts(tokens) else tokens):
        if token.kind != PARAMETER or not token.text[1:].isdecimal():
            continue
        number, follows = int(token.text[1:]), tokens[at + 1].kind if at + 2 < len(tokens) else ""
        end = _type_end(tokens, at + 2) if follows in ("::", "AS") else 0
        type_ = value_types.NUMERIC if end == at + 3 else _NUMERICS
        if end and follows == "::" and _is_sort_key(tokens, at, end):
            continue  # DuckDB has no parameter there, and a constant orders nothing.
        if end and follows == "::":
            found.append((number, type_, Replacement(token.end, tokens[end - 1].end, "")))
        elif (
            end
            and at > 1
            and tokens[at - 2].kind == "CAST"
            and tokens[end : end + 1]
            and tokens[end].kind == ")"
        ):
            found.append((number, type_, Replacement(tokens[at - 2].start, tokens[end].end, token.text)))
        else:
            bare.add(number)
    return tuple(found), frozenset(number for number, _, _ in found if number not in bare)


def _is_sort_key(tokens: Sequence[Token], at: int, end: int) -> bool:
    """True if a cast of a parameter is a whole item of ORDER BY or GROUP BY."""
    following = tokens[end] if end < len(tokens) else None
    if following is not None and not (following.is_word or following.kind in (",", ")", ";")):
        return False
    for before in reversed(tokens[:at]):
        if before.depth < tokens[at].depth or before.kind in ("SELECT", "SET", "VALUES", "FROM"):
            return False
        if before.depth == tokens[at].depth and before.kind == "BY":
            return True
        if before is tokens[at - 1] and before.kind != ",":
            return False
    return False


_kept_places = lru_cache(TEXTS_KEPT)(_places)


def numeric_columns(text: str, oids: Sequence[int]) -> tuple[int, ...]:
    """The columns of a query that are only a parameter declared as numeric by the client.

    DuckDB has no numeric without a fixed scale: such a parameter, if it occurs nowhere else, passes through
    it as text with all its digits.

    Returns:
        For each column the number of the parameter, 0 for another expression.

    >>> numeric_columns("SELECT $1, $2 AS n, $3, $3 + 1 FROM t", [25, 1700, 1700])
    (0, 2, 0, 0)
    """
    if value_types.NUMERIC not in oids or len(text) > TEXT_MAX:
        return ()
    tokens, columns = select_list(text)
    named = Counter(token.text for token in tokens if token.kind == PARAMETER)
    numbers = [_numeric(column, oids) for column in columns]
    found = tuple(number if named[f"${number}"] == 1 else 0 for number in numbers)
    return found if any(found) else ()


def select_list(text: str) -> tuple[list[Token], list[list[Token]]]:
    """The tokens of a query, and those of each of its columns; nothing for another statement."""
    try:
        tokens = [token for token in tokenize(text) if token.kind != ";"]
    except DucktailError:
        return [], []
    top = [token.kind for token in tokens if not token.depth]
    if top[:1] != ["SELECT"] or not _SET_OPERATIONS.isdisjoint(top):
        return [], []
    ends = (at for at, token in enumerate(tokens) if token.kind == "FROM" and not token.depth)
    columns: list[list[Token]] = [[]]
    for token in tokens[1 : next(ends, len(tokens))]:
        if token.kind == "," and not token.depth:
            columns.append([])
        else:
            columns[-1].append(token)
    return tokens, columns


def _numeric(column: Sequence[Token], oids: Sequence[int]) -> int:
    """The n of a column that is `$n`, `$n name` or `$n AS name`, of a parameter that is a numeric; else 0."""
    if not column or column[0].kind != PARAMETER or not column[0].text[1:].isdigit():
        return 0
    name, number = column[1:], int(column[0].text[1:])
    named = not name or (name[-1].is_name and [token.kind for token in name[:-1]] in ([], ["AS"]))
    return number if named and 0 < number <= len(oids) and oids[number - 1] == value_types.NUMERIC else 0
