"""Which types Arrow does not carry from one DuckDB cursor to another, even without loss asked for.

With `arrow_lossless_conversion` most of DuckDB's types come back as they went. An INTERVAL overflows
(Arrow counts nanoseconds), an ENUM comes back as text (and a list of it not at all), a TUPLE gets
names: these go in a carrier's type and are cast back. Measured with DuckDB 2.0;
tests/engine/test_changes.py holds every type against it.
"""

from __future__ import annotations

from functools import lru_cache

from .duckdb_types import TYPES_CACHED, DuckType, made_of, read_type

_AS_TEXT = frozenset({"INTERVAL", "ENUM"})


@lru_cache(TYPES_CACHED)
def carried(type_: str) -> str | None:
    """The type in which values of a type travel; None where it is the type itself."""
    return _carrier(read_type(type_))


def _carrier(type_: DuckType) -> str | None:
    if type_.name in _AS_TEXT:
        return "VARCHAR"
    if not type_.children:
        return None
    inner = [_carrier(child) for child in type_.children]
    if not any(inner) and type_.name != "TUPLE":
        return None
    return made_of(type_, [new or child.text for new, child in zip(inner, type_.children, strict=True)])
