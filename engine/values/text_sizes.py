"""About how many bytes a value takes in an event, told by SQL that makes nothing of it.

What reads a log takes as many rows at once as have room, and has to know that beforehand: of values of one
width by their type, of texts by their length. Source: docs/design/engine.md, "Memory".
"""

from __future__ import annotations

from .duckdb_types import DuckType, read_type

# A number, time, UUID or ENUM label as text, with its marks.
PLAIN_BYTES = 24
_TEXTS = frozenset({"VARCHAR", "JSON"})
# Types of which DuckDB's text tells how long they are.
_CAST = frozenset({"LIST", "ARRAY", "STRUCT", "TUPLE", "MAP", "UNION", "VARIANT", "BIGNUM", "GEOMETRY"})


def size_sql(name: str, type_: str) -> str | None:
    """SQL of how many bytes a column's value takes as text, about; None for those of one width.

    >>> size_sql("n1", "BIGINT")
    >>> size_sql("n1", "VARCHAR")
    'strlen(n1)'
    >>> size_sql("n1", "FLOAT[]")
    'len(n1) * 24'
    """
    found = read_type(type_)
    if found.name in _TEXTS:
        return f"strlen({name})"
    if found.name == "BLOB":
        return f"octet_length({name}) * 2"
    if found.name == "BIT":
        return f"bit_length({name})"
    if found.name == "LIST" and _is_plain(found.children[0]):
        return f"len({name}) * {PLAIN_BYTES}"
    return f"strlen({name}::VARCHAR)" if found.name in _CAST else None


def _is_plain(type_: DuckType) -> bool:
    """Whether its values have one width, about."""
    return size_sql("", type_.text) is None
