"""The parts of a statement that are queries or expressions of their own, found by its tokens."""

from __future__ import annotations

from collections.abc import Sequence

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


def _query_of_enum(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """The query of CREATE TYPE name AS ENUM (query); the name may be `enum` as well."""
    for at in range(len(tokens) - 2):
        if [token.kind for token in tokens[at : at + 3]] == ["AS", "ENUM", "("] and not tokens[at].depth:
            end = closing(tokens, at + 2)
            labels = all(token.kind in (STRING, ",") for token in tokens[at + 3 : end])
            return None if labels else (tokens[at + 3].start, tokens[end].start)
    return None


def variable_value(tokens: Sequence[Token]) -> int | None:
    """Where the value of SET VARIABLE name = value begins."""
    at = next((i for i, t in enumerate(tokens) if t.kind in ("=", "TO")), None)
    return None if at is None or at + 1 >= len(tokens) else tokens[at + 1].start
