"""Leaves out of a text the long lists of literals, which name nothing: its tree is as small as what it names.

What is left out becomes spaces, so that every place stays where it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import NUMBER, PARAMETER, STRING, Token, tokenize

# Shorter texts are not worth the look.
KEPT_CHARS = 10_000
_PLAIN = frozenset({STRING, NUMBER, PARAMETER, "NULL", "TRUE", "FALSE", ",", "+", "-"})
_CLOSING = {"(": ")", "[": "]"}


def without_lists(text: str) -> str:
    """The text without what follows the first literal of a list, and the first of a list of rows of literals.

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
    """What can be left out from here on: behind the first of these tokens, up to the second."""
    closing = _closing(tokens, at)
    if closing is None:
        return None
    if tokens[at].kind == "[" or (at and tokens[at - 1].kind == "IN"):
        # Its first element stays: no list becomes an empty one, nor a sign one without a number.
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
    """Whether the bracket here is the first row of a VALUES that cannot be the alias of a table.

    `FROM t values ('a'), ('b')` reads tables t and b: so it must begin the text or stand behind a bracket, or
    behind the target of an INSERT and its columns.
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
    """Where the bracket that opens here is closed, if nothing but literals stands in it."""
    kind = _CLOSING.get(tokens[opening].kind)
    if kind is None:
        return None
    at = opening + 1
    while at < len(tokens) and tokens[at].kind in _PLAIN:
        at += 1
    return at if at < len(tokens) and tokens[at].kind == kind and at > opening + 1 else None
