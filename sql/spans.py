"""Where in the text the query around a place begins and ends, by its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Token, closing

_QUERY = frozenset({"SELECT", "FROM", "WITH"})


def query_span(tokens: Sequence[Token], point: int) -> tuple[int, int]:
    """The span of the innermost query around a character, without its brackets.

    At the top, that is the query of INSERT and CREATE TABLE AS without what stands around it.

    Returns:
        Start and end in characters from 0, half open.
    """
    index = next(i for i, token in enumerate(tokens) if token.end > point)
    depth = tokens[index].depth
    for opening in range(index - 1, -1, -1):
        if tokens[opening].depth >= depth:
            continue
        depth = tokens[opening].depth
        if tokens[opening].kind == "(" and tokens[opening + 1].kind in _QUERY:
            return tokens[opening + 1].start, tokens[closing(tokens, opening) - 1].end
    return _outermost(tokens)


def _outermost(tokens: Sequence[Token]) -> tuple[int, int]:
    """The query that no bracket holds."""
    verbs = [i for i, token in enumerate(tokens) if token.depth == 0 and token.kind in ("INSERT", "CREATE")]
    first = verbs[0] if verbs else 0
    start = next(i for i in range(first, len(tokens)) if tokens[i].depth == 0 and tokens[i].kind in _QUERY)
    end = len(tokens)
    if verbs:
        end = next((i for i in range(start, end) if _ends_query(tokens, i)), end)
    return tokens[start].start, tokens[end - 1].end


def _ends_query(tokens: Sequence[Token], index: int) -> bool:
    token = tokens[index]
    following = tokens[index + 1].kind if index + 1 < len(tokens) else ""
    if token.depth != 0:
        return False
    return (
        token.kind == "RETURNING"
        or (token.kind == "ON" and following == "CONFLICT")
        or (token.kind == "WITH" and following in ("DATA", "NO"))
    )
