"""SQL that computes a row or a value as JSON text, equal for hot, cold and view reads, and SQL of its size.

DuckDB's to_json is used wherever its text is exact, so that an ordinary row is one vectorised
to_json(struct_pack(..)). Other types get an expression around it: values that to_json rounds are widened (a
DECIMAL of up to 15 digits passes through a double), values that JSON does not have (NaN, Infinity, bytes)
become strings, values that depend on the session's time zone are printed in UTC, and texts that to_json would
reformat (the numbers inside a JSON column) are inserted unchanged. Texts are those of PostgreSQL's to_json
wherever PostgreSQL has the type. A JSON column may hold text that is JSON for DuckDB only ([1,], NaN), which
would break the result: it becomes a JSON string.

Source: docs/design/values.md, "JSON".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..quoting import ident, literal
from .duckdb_types import DuckType, read_type
from .value_types import value_type

# From this number of digits DuckDB prints a DECIMAL exactly in JSON; below it, as a double.
EXACT_DIGITS = 16
DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class Value:
    """SQL of one value and its kind.

    Args:
        sql: the expression; NULL where the value is NULL.
        raw: True for JSON text (VARCHAR) that is inserted unchanged, False for a value that to_json prints.
    """

    sql: str
    raw: bool = False

    @property
    def text(self) -> str:
        """SQL of the value's JSON text, 'null' for NULL."""
        return f"coalesce({self.sql if self.raw else f'to_json({self.sql})'}, 'null')"


def object_sql(columns: Sequence[tuple[str, str, str]]) -> str:
    """SQL of a row's JSON object, type JSON: keys in the order of the columns, no blanks.

    Args:
        columns: (name, SQL expression, DuckDB type) of each column; at least one. An expression is a name, a
            call or in parentheses.
    """
    return f"{_json(_object([(name, _value(x, read_type(type_), 0)) for name, x, type_ in columns]))}"


def value_sql(x: str, type_: str) -> str:
    """SQL of one value's JSON, type JSON; NULL where the value is NULL.

    Args:
        x: SQL expression: a name, a call or in parentheses.
        type_: its DuckDB type.
    """
    return _json(_value(x, read_type(type_), 0))


def _json(value: Value) -> str:
    return f"({value.sql})::JSON" if value.raw else f"to_json({value.sql})"


def _object(members: Sequence[tuple[str, Value]]) -> Value:
    if not any(value.raw for _, value in members):
        return Value(f"struct_pack({', '.join(f'{ident(name)} := {v.sql}' for name, v in members)})")
    parts = []
    for place, (name, value) in enumerate(members):
        key = f"{',' if place else '{'}{_json_string(name)}:"
        parts.append(f"{literal(key)}, {value.text}")
    return Value(f"concat({', '.join(parts)}, '}}')", raw=True)


def _json_string(text: str) -> str:
    """A name as a JSON string, escaped as DuckDB escapes it."""
    return f'"{text.translate(ESCAPES)}"'


JSON_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
ESCAPES = str.maketrans(
    {
        **{chr(code): f"\\u00{code:02X}" for code in range(0x20)},
        **JSON_SHORT,
    }
)


def _value(x: str, type_: DuckType, depth: int) -> Value:
    """SQL of a value of this type; `depth` numbers the lambdas' variables."""
    nested = NESTED.get(type_.name)
    if nested is not None:
        # If to_json prints every part correctly, it prints the whole value correctly.
        return nested(x, type_, depth) if _is_odd(type_) else Value(x)
    if type_.name == "DECIMAL":
        return _decimal(x, type_)
    if type_.name == "JSON":
        return Value(_strict(f"{x}::VARCHAR"), raw=True)
    return Value(value_type(type_).json.format(x=x))


def _is_odd(type_: DuckType) -> bool:
    """True if to_json prints a part of a nested value differently from `_value`."""
    if type_.name == "VARIANT":
        return True
    if type_.name == "MAP" and type_.children[0].name != "VARCHAR":
        return True
    return any(
        _is_odd(child) if child.nested else _value("x", child, 0) != Value("x") for child in type_.children
    )


def _decimal(x: str, type_: DuckType) -> Value:
    precision, scale = type_.numbers
    # One digit before the point: DuckDB would print .50, which is not JSON.
    wanted = max(EXACT_DIGITS, precision, scale + 1)
    if wanted > DIGITS_MAX:
        return Value(f"CASE WHEN {x} < 0 THEN '-0' ELSE '0' END || ltrim({x}::VARCHAR, '-')", raw=True)
    return Value(x if wanted == precision else f"{x}::DECIMAL({wanted},{scale})")


def _list(x: str, type_: DuckType, depth: int) -> Value:
    item = f"e{depth}"
    value = _value(item, type_.children[0], depth + 1)
    # list_transform takes a LIST, and accepts an ARRAY as one.
    items = f"list_transform({x}, lambda {item}: {value.text if value.raw else value.sql})"
    if not value.raw:
        return Value(items)
    return Value(f"'[' || array_to_string({items}, ',') || ']'", raw=True)


def _struct(x: str, type_: DuckType, depth: int) -> Value:
    members = [
        (name, _value(f"struct_extract({x}, {literal(name)})", child, depth))
        for name, child in zip(type_.fields, type_.children, strict=True)
    ]
    made = _object(members)
    return Value(f"CASE WHEN {x} IS NOT NULL THEN {made.sql} END", made.raw)


def _tuple(x: str, type_: DuckType, depth: int) -> Value:
    items = [
        _value(f"struct_extract({x}, {place})", child, depth) for place, child in enumerate(type_.children, 1)
    ]
    texts = ", ',', ".join(item.text for item in items)
    return Value(f"CASE WHEN {x} IS NOT NULL THEN concat('[', {texts}, ']') END", raw=True)


def _map(x: str, type_: DuckType, depth: int) -> Value:
    """SQL of a map: an object if its keys are text, else an array of [key, value]."""
    item = f"e{depth}"
    key = _value(f"{item}.key", type_.children[0], depth + 1)
    value = _value(f"{item}.value", type_.children[1], depth + 1)
    if type_.children[0].name == "VARCHAR":
        pair, opening, closing = f"concat({key.text}, ':', {value.text})", "{", "}"
    else:
        pair, opening, closing = f"concat('[', {key.text}, ',', {value.text}, ']')", "[", "]"
    pairs = f"list_transform(map_entries({x}), lambda {item}: {pair})"
    return Value(f"'{opening}' || array_to_string({pairs}, ',') || '{closing}'", raw=True)


def _union(x: str, type_: DuckType, depth: int) -> Value:
    """SQL of a union: an object with one key, the member's name."""
    cases = []
    for name, child in zip(type_.fields, type_.children, strict=True):
        value = _value(f"union_extract({x}, {literal(name)})", child, depth)
        made = f"concat({literal(f'{{{_json_string(name)}:')}, {value.text}, '}}')"
        cases.append(f"WHEN {literal(name)} THEN {made}")
    return Value(f"CASE union_tag({x})::VARCHAR {' '.join(cases)} END", raw=True)


def _variant(x: str, type_: DuckType, depth: int) -> Value:
    # Through JSON, which keeps a decimal's digits: to_json would treat it as a double.
    return Value(_strict(f"{x}::JSON::VARCHAR"), raw=True)


# JSON for DuckDB's reader only: NaN and Infinity, a comma before the end.
LENIENT = r"(?i)\b(nan|inf|infinity)\b|,\s*[\]}]"
STRING = r'"(?:[^"\\]|\\.)*"'


def lenient_sql(text: str) -> str:
    """SQL boolean on a text that is JSON to DuckDB: true if it is not JSON by the standard.

    A second test, without the strings, is made for the few texts that the first one suspects.
    """
    suspect = f"regexp_matches({text}, '{LENIENT}')"
    sure = f"regexp_matches(regexp_replace({text}, '{STRING}', '', 'g'), '{LENIENT}')"
    return f"({suspect} AND {sure})"


def _strict(text: str) -> str:
    """SQL of a JSON text unchanged, or as a JSON string where it is JSON for DuckDB only."""
    return f"CASE WHEN {lenient_sql(text)} THEN to_json({text})::VARCHAR ELSE {text} END"


NESTED: dict[str, Callable[[str, DuckType, int], Value]] = {
    "LIST": _list,
    "ARRAY": _list,
    "STRUCT": _struct,
    "TUPLE": _tuple,
    "MAP": _map,
    "UNION": _union,
    "VARIANT": _variant,
}


# A number, time, UUID or ENUM label as text, with its quotes.
PLAIN_BYTES = 24
_SIZED_AS_TEXT = frozenset({"STRUCT", "TUPLE", "MAP", "UNION", "VARIANT", "BIGNUM", "GEOMETRY"})


def size_sql(name: str, type_: str) -> str | None:
    """SQL of the approximate size of a column's value as text in bytes; None for types of one width.

    A reader of a log reads as many rows at once as fit, and needs their size before their JSON.

    >>> size_sql("n1", "BIGINT")
    >>> size_sql("n1", "VARCHAR")
    'strlen(n1)'
    >>> size_sql("n1", "FLOAT[]")
    'len(n1) * 24'
    """
    read = read_type(type_)
    if read.name in ("VARCHAR", "JSON"):
        return f"strlen({name})"
    if read.name == "BLOB":
        return f"octet_length({name}) * 2"
    if read.name == "BIT":
        return f"bit_length({name})"
    if read.name == "LIST" and size_sql("", read.children[0].text) is None:
        return f"len({name}) * {PLAIN_BYTES}"
    is_text = read.name in _SIZED_AS_TEXT or read.name in ("LIST", "ARRAY")
    return f"strlen({name}::VARCHAR)" if is_text else None
