"""An event's JSON read back by a reader of its own: the SQL that makes a type's value of it again.

`parsed` keeps each number as the text that it is, so that nothing is rounded on the way; `literal_of`
follows docs/design/values.md, "JSON", and knows nothing of the code that wrote it.
"""

from __future__ import annotations

import json
from typing import Any

from ducktail.engine.quoting import ident, literal
from ducktail.engine.values.duckdb_types import DuckType

# Types whose JSON is a string or a number that a cast reads.
WORDS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def parsed(text: str) -> Any:
    """Strict JSON with its numbers as texts; objects as lists of pairs, which keeps equal keys apart."""
    return json.loads(
        text, parse_float=str, parse_int=str, parse_constant=refuse, object_pairs_hook=lambda pairs: pairs
    )


def refuse(word: str) -> None:
    """NaN and Infinity are no JSON."""
    raise AssertionError(f"{word} is no JSON")


def literal_of(value: Any, type_: DuckType, text: str) -> str:
    """SQL that makes the value again.

    Args:
        value: what `parsed` gives.
        type_: the type as a tree; text: the same as DuckDB prints it.
    """
    return f"CAST({_expression(value, type_)} AS {text})"


def _expression(value: Any, type_: DuckType) -> str:
    if value is None:
        return "NULL"
    if type_.name in ("LIST", "ARRAY"):
        return f"[{', '.join(_expression(item, type_.children[0]) for item in value)}]"
    if type_.name == "STRUCT":
        named = zip(value, type_.children, strict=True)
        pairs = (f"{literal(name)}: {_expression(item, kind)}" for (name, item), kind in named)
        return f"{{{', '.join(pairs)}}}"
    if type_.name == "TUPLE":
        items = zip(value, type_.children, strict=True)
        return f"row({', '.join(_expression(item, kind) for item, kind in items)})"
    if type_.name == "MAP":
        return _map(value, type_)
    if type_.name == "UNION":
        [(name, item)] = value
        return f"union_value({ident(name)} := {_expression(item, type_.children[type_.fields.index(name)])})"
    return _leaf(value, type_)


def _map(value: Any, type_: DuckType) -> str:
    key, item = type_.children
    keys = [literal(k) if key.name == "VARCHAR" else _expression(k, key) for k, _ in value]
    items = [_expression(v, item) for _, v in value]
    return f"map([{', '.join(keys)}], [{', '.join(items)}])"


def _leaf(value: Any, type_: DuckType) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if type_.name == "BLOB":
        assert value.startswith("\\x")
        return f"unhex({literal(value[2:])})"
    if type_.name in ("FLOAT", "DOUBLE"):
        value = WORDS.get(value, value)
    name = type_.name
    if name == "DECIMAL":
        name = f"DECIMAL({type_.numbers[0]}, {type_.numbers[1]})"
    elif name == "ENUM":
        name = "VARCHAR"
    return f"CAST({_text(value)} AS {name})"


def _text(value: str) -> str:
    """A text as SQL; the character 0 cannot stand in a literal."""
    return " || chr(0) || ".join(literal(part) for part in value.split("\0"))
