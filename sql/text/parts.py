"""The parts of a statement that are queries or expressions of their own, found by its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .classified import Classified
from .tokens import STRING, Token, closing


def query_span(classified: Classified) -> tuple[int, int] | None:
    """Where the query of a definition begins and ends: CREATE TABLE ... AS, CREATE VIEW, ENUM (query)."""
    facts, tokens = classified.ddl, classified.tokens
    assert facts is not None
    if facts.verb != "CREATE":
        return None
    if facts.object_type == "VIEW":
        start = _query_of_view(tokens)
        return None if start is None else (start, len(classified.text))
    if facts.object_type == "TYPE":
        return _query_of_enum(tokens)
    return None if facts.query_offset is None else (facts.query_offset, len(classified.text))


def _query_of_view(tokens: Sequence[Token]) -> int | None:
    found = (at for at, token in enumerate(tokens[:-1]) if token.kind == "AS" and not token.depth)
    at = next(found, None)
    return None if at is None else tokens[at + 1].start


def enum_of(tokens: Sequence[Token]) -> int | None:
    """The index of ENUM in CREATE TYPE ... AS ENUM (...); the type and its schema may have that name too."""
    found = (
        at
        for at, (word, after) in enumerate(pairwise(tokens))
        if word.kind == "ENUM" and after.kind == "(" and not word.depth
    )
    return next(found, None)


def _query_of_enum(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """The query of CREATE TYPE name AS ENUM (query)."""
    at = enum_of(tokens)
    if at is None:
        return None
    end = closing(tokens, at + 1)
    labels = all(token.kind in (STRING, ",") for token in tokens[at + 2 : end])
    return None if labels else (tokens[at + 2].start, tokens[end].start)


def variable_value(tokens: Sequence[Token]) -> int | None:
    """Where the value of SET VARIABLE name = value begins."""
    at = next((i for i, t in enumerate(tokens) if t.kind in ("=", "TO")), None)
    return None if at is None or at + 1 >= len(tokens) else tokens[at + 1].start
