"""Spans of a statement's text, found by its tokens.

They are the spans of queries, clauses and expressions in a statement, and replacements of such spans, with
error positions converted to the user's own text. Long lists of literals can be removed from a text, because
they name nothing: its tree is then as small as its names require. Removed characters become spaces, so that
all positions are preserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

from ...engine.errors import DucktailError
from .classified import Classified
from .tokens import NUMBER, PARAMETER, STRING, Token, closing, tokenize

_AFTER_ORDER = frozenset({"LIMIT", "OFFSET", "FETCH"})
_QUERY = frozenset({"SELECT", "FROM", "WITH"})


def query_span(tokens: Sequence[Token], point: int) -> tuple[int, int]:
    """The span of the innermost query around a character, without its parentheses.

    At the top level of INSERT and CREATE TABLE AS, it is the query without the rest of the statement.

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
    """The query outside all parentheses."""
    verb = _verb(tokens)
    first = verb or 0
    queries = (i for i in range(first, len(tokens)) if tokens[i].depth == 0 and tokens[i].kind in _QUERY)
    start = next(queries, first)
    end = len(tokens)
    if verb is not None:
        end = next((i for i in range(start, end) if _ends_query(tokens, i)), end)
    return tokens[start].start, tokens[end - 1].end


def _verb(tokens: Sequence[Token]) -> int | None:
    """Index of INSERT or CREATE, which may follow common table expressions."""
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
    """The LIMIT or FETCH clause of the innermost query around a character; None if there is none.

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
    """The position for an ORDER BY in the innermost query around a character, which has none.

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


@dataclass(frozen=True, slots=True)
class Replacement:
    """A span of the user's text and its replacement."""

    start: int
    end: int
    text: str


def cut(text: str, pieces: Sequence[Replacement]) -> str:
    """The text with some spans replaced; insertions are spans without length."""
    parts, last = [], 0
    for piece in sorted(pieces, key=lambda p: (p.start, p.end)):
        parts += [text[last : piece.start], piece.text]
        last = piece.end
    return "".join(parts) + text[last:]


def user_position(position: int, pieces: Sequence[Replacement]) -> int:
    """The position in the user's text of a position (from 1) in the text that `cut` made."""
    shift = 0
    for piece in sorted(pieces, key=lambda p: (p.start, p.end)):
        begins = piece.start + shift
        if position - 1 < begins:
            break
        if position - 1 < begins + len(piece.text):
            return piece.start + 1
        shift += len(piece.text) - (piece.end - piece.start)
    return position - shift


def numbered(text: str, parameters: Sequence[object]) -> tuple[str, list[object]]:
    """The text with its parameters numbered from 1 without gaps, and their values.

    Parameters of ducktail's clauses are not in DuckDB's text any more, and DuckDB requires a value for
    exactly those that are.
    """
    if not parameters:
        return text, []
    order: dict[int, int] = {}
    parts, last = [], 0
    for token in tokenize(text):
        if token.text.startswith("$") and token.text[1:].isdigit():
            place = order.setdefault(int(token.text[1:]), len(order) + 1)
            parts += [text[last : token.start], f"${place}"]
            last = token.end
    values = [parameters[index - 1] if index <= len(parameters) else None for index in order]
    return "".join(parts) + text[last:], values


def defining_query_span(classified: Classified) -> tuple[int, int] | None:
    """The span of the query in a definition: CREATE TABLE ... AS, CREATE VIEW, ENUM (query)."""
    facts, tokens = classified.ddl, classified.tokens
    assert facts is not None
    if facts.verb != "CREATE":
        return None
    if facts.object_type == "VIEW":
        start = query_of_view(tokens)
        return None if start is None else (start, len(classified.text))
    if facts.object_type == "TYPE":
        return _query_of_enum(tokens)
    return None if facts.query_offset is None else (facts.query_offset, len(classified.text))


def query_of_view(tokens: Sequence[Token]) -> int | None:
    """The position of the query in CREATE VIEW name [(columns)] AS query."""
    found = (at for at, token in enumerate(tokens[:-1]) if token.kind == "AS" and not token.depth)
    at = next(found, None)
    return None if at is None else tokens[at + 1].start


def enum_of(tokens: Sequence[Token]) -> int | None:
    """The index of ENUM in CREATE TYPE ... AS ENUM (...); the type and its schema may also be called ENUM."""
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
    """The beginning of the value in SET VARIABLE name = value."""
    at = next((i for i, t in enumerate(tokens) if t.kind in ("=", "TO")), None)
    return None if at is None or at + 1 >= len(tokens) else tokens[at + 1].start


# Shorter texts are not examined.
KEPT_CHARS = 10_000
_PLAIN = frozenset({STRING, NUMBER, PARAMETER, "NULL", "TRUE", "FALSE", ",", "+", "-"})
_CLOSING = {"(": ")", "[": "]"}


def without_lists(text: str) -> str:
    """The text without the elements after the first of each list of literals or of rows of literals.

    >>> without_lists("SELECT 1 IN (" + ", ".join(["1"] * 10_000) + ")").split()
    ['SELECT', '1', 'IN', '(1', ')']
    """
    if len(text) < KEPT_CHARS:
        return text
    tokens = tokenize(text)
    parts: list[str] = []
    place = at = 0
    while at < len(tokens):
        cut = _cut(tokens, at)
        if cut is None:
            at += 1
            continue
        first, at = cut
        start, end = tokens[first].end, tokens[at].end
        parts += [text[place:start], " " * (end - start)]
        place = end
        at += 1
    return "".join([*parts, text[place:]])


def _cut(tokens: Sequence[Token], at: int) -> tuple[int, int] | None:
    """The span that can be omitted from here: after the first of these tokens, up to the second."""
    closing = _closing(tokens, at)
    if closing is None:
        return None
    if tokens[at].kind == "[" or (at and tokens[at - 1].kind == "IN"):
        # The first element remains, so that no list becomes empty, and no sign loses its number.
        comma = next((i for i in range(at, closing) if tokens[i].kind == ","), None)
        return None if comma is None else (comma - 1, closing - 1)
    if not _is_values(tokens, at):
        return None
    last = closing
    while last + 2 < len(tokens) and tokens[last + 1].kind == "," and tokens[last + 2].kind == "(":
        following = _closing(tokens, last + 2)
        if following is None:
            break
        last = following
    return None if last == closing else (closing, last)


def _is_values(tokens: Sequence[Token], at: int) -> bool:
    """True if the parenthesis here is the first row of a VALUES that cannot be the alias of a table.

    `FROM t values ('a'), ('b')` reads tables t and b: so VALUES must begin the text, follow a parenthesis, or
    follow the target of an INSERT and its columns.
    """
    at -= 1
    if at < 0 or tokens[at].kind != "VALUES":
        return False
    if at == 0 or tokens[at - 1].kind == "(":
        return True
    at -= 1
    if tokens[at].kind == ")":
        opening = (i for i in range(at - 1, 0, -1) if tokens[i].kind == "(")
        at = next((i for i in opening if tokens[i].depth == tokens[at].depth), 1) - 1
    while at > 1 and tokens[at].is_name and tokens[at - 1].kind == ".":
        at -= 2
    return at > 0 and tokens[at].is_name and tokens[at - 1].kind == "INTO"


def _closing(tokens: Sequence[Token], opening: int) -> int | None:
    """The closing parenthesis of the one that opens here, if it contains nothing but literals."""
    kind = _CLOSING.get(tokens[opening].kind)
    if kind is None:
        return None
    at = opening + 1
    while at < len(tokens) and tokens[at].kind in _PLAIN:
        at += 1
    return at if at < len(tokens) and tokens[at].kind == kind and at > opening + 1 else None


# The context in which positions stay as they are: one for all, as it keeps nothing.
AS_THEY_ARE = nullcontext()


def original_positions(pieces: Sequence[Replacement]) -> AbstractContextManager[None]:
    """Context in which error positions refer to the text before these replacements."""
    return _original_positions(pieces) if pieces else AS_THEY_ARE


@contextmanager
def _original_positions(pieces: Sequence[Replacement]) -> Iterator[None]:
    try:
        yield
    except DucktailError as error:
        if error.position is not None:
            error.position = user_position(error.position, pieces)
        raise
