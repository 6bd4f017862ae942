"""Where in the text the query around a place begins and ends, by its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Token, closing

_AFTER_ORDER = frozenset({"LIMIT", "OFFSET", "FETCH"})
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
    verb = _verb(tokens)
    first = verb or 0
    queries = (i for i in range(first, len(tokens)) if tokens[i].depth == 0 and tokens[i].kind in _QUERY)
    start = next(queries, first)
    end = len(tokens)
    if verb is not None:
        end = next((i for i in range(start, end) if _ends_query(tokens, i)), end)
    return tokens[start].start, tokens[end - 1].end


def _verb(tokens: Sequence[Token]) -> int | None:
    """Index of INSERT or CREATE, which may stand behind common table expressions."""
    if tokens[0].kind in ("INSERT", "CREATE"):
        return 0
    if tokens[0].kind != "WITH":
        return None
    behind = (i for i in range(1, len(tokens)) if tokens[i].kind == "INSERT" and tokens[i].depth == 0)
    return next((i for i in behind if tokens[i - 1].kind == ")"), None)


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


def limit_span(tokens: Sequence[Token], point: int) -> tuple[int, int] | None:
    """The LIMIT or FETCH clause of the innermost query around a character; None where it is not found.

    Returns:
        Start and end in characters from 0, half open.
    """
    start, end = query_span(tokens, point)
    inside = [token for token in tokens if start <= token.start < end]
    depth = inside[0].depth
    own = [
        (place, token)
        for place, token in enumerate(inside)
        if token.depth == depth
        and token.kind in _AFTER_ORDER
        and place
        and inside[place - 1].kind not in ("AS", ".")
    ]
    limits = [(place, token) for place, token in own if token.kind != "OFFSET"]
    if len(limits) != 1:
        return None
    place, token = limits[0]
    behind = next((other.start for at, other in own if at > place), None)
    clause = [inner for inner in inside[place:] if behind is None or inner.start < behind]
    return token.start, [inner.end for inner in clause if inner.kind != ";"][-1]


def order_place(tokens: Sequence[Token], point: int) -> int:
    """Where an ORDER BY would stand in the innermost query around a character, which has none.

    Returns:
        The end of the last token before its LIMIT, OFFSET or FETCH, or of its last token.
    """
    start, end = query_span(tokens, point)
    inside = [index for index, token in enumerate(tokens) if start <= token.start < end]
    depth = tokens[inside[0]].depth
    for index in inside[1:]:
        before = tokens[index - 1]
        if (
            tokens[index].depth == depth
            and tokens[index].kind in _AFTER_ORDER
            and before.kind not in ("AS", ".")
        ):
            return before.end
    return end
