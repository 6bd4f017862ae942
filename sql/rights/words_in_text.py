"""The names in a text without a syntax tree from DuckDB's parser: calls, sequences, schemas.

A definition contains expressions (DEFAULT, CHECK, USING, generated columns, indexes) that run later, for
any user who writes the table. Every name before a parenthesis is therefore checked as a function name,
which may find too many names but never too few. Source: docs/security.md, "Enforcement".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.quoting import fold
from ..text.reserved_words import RESERVED
from ..text.tokens import STRING, Token
from .analysis import SEQUENCES, TYPE_TEXTS, Named, Path
from .functions import SESSION_FUNCTIONS


def chains(tokens: Sequence[Token]) -> Iterator[tuple[int, Path]]:
    """Each name with its qualifiers: the index of its last token, and its parts."""
    at = 0
    while at < len(tokens):
        if not tokens[at].is_name:
            at += 1
            continue
        parts = [tokens[at].name]
        while at + 2 < len(tokens) and tokens[at + 1].kind == "." and tokens[at + 2].is_name:
            at += 2
            parts.append(tokens[at].name)
        yield at, tuple(parts)
        at += 1


def named_in_words(tokens: Sequence[Token], depth: int) -> Named:
    """The names that may be called in a definition.

    Args:
        depth: brackets at fewer open ones are of names and columns: `t (a INT)`.
    """
    found = Named()
    for at, path in chains(tokens):
        if at + 1 >= len(tokens) or tokens[at + 1].kind != "(" or tokens[at].depth < depth:
            continue
        first = at - 2 * (len(path) - 1)
        if first and tokens[first - 1].kind == "REFERENCES":
            continue
        found.functions.add(path)
        name = fold(path[-1])
        if name in SEQUENCES:
            found.sequences.append(_string(tokens, at + 2))
        if name in TYPE_TEXTS:
            found.type_texts.append(None)
    found.functions |= {(name,) for name in _called_without_bracket(tokens)}
    return found


# At DEFAULT's own depth, these end its expression.
_AFTER_DEFAULT = frozenset({"CHECK", "GENERATED", "AS", "REFERENCES", "CONSTRAINT", "PRIMARY", "UNIQUE"})


def _called_without_bracket(tokens: Sequence[Token]) -> Iterator[str]:
    """The functions in DEFAULT that are called by name alone: current_user; no column can stand there."""
    within: int | None = None
    for token in tokens:
        if within is not None:
            ends = token.depth == within and (token.kind == "," or token.kind in _AFTER_DEFAULT)
            if ends or token.depth < within:
                within = None
            elif token.is_name and fold(token.name) in SESSION_FUNCTIONS:
                yield fold(token.name)
        if token.kind == "DEFAULT":
            within = token.depth


# Types of types, whose parts stand behind a bracket or a comma.
_OF_TYPES = frozenset({"MAP", "STRUCT", "UNION", "ROW", "TUPLE", "LIST", "ARRAY"})


def named_types(tokens: Sequence[Token]) -> Iterator[tuple[int, Path]]:
    """Each name with its qualifiers that may be a type's: the index of its first token, and its parts.

    A type stands behind a column's name, `::`, AS, TYPE, or inside a type, or before a string.
    """
    for at, path in chains(tokens):
        first = at - 2 * (len(path) - 1)
        if len(path) == 1 or not first:
            continue
        before = tokens[first - 1]
        literal = at + 1 < len(tokens) and tokens[at + 1].kind == STRING
        column = before.is_name and before.kind not in RESERVED
        inside = before.kind in ("(", ",") and _opener(tokens, first) in _OF_TYPES
        if literal or column or inside or before.kind in ("::", "AS"):
            yield first, path


def _opener(tokens: Sequence[Token], at: int) -> str:
    """The word before the bracket around a token."""
    depth = tokens[at].depth - 1
    opening = next((i for i in range(at - 1, 0, -1) if tokens[i].kind == "(" and tokens[i].depth == depth), 0)
    return tokens[opening - 1].name.upper() if opening else ""


def _string(tokens: Sequence[Token], at: int) -> str | None:
    """The string that is a call's only argument."""
    whole = at + 1 < len(tokens) and tokens[at].kind == STRING and tokens[at + 1].kind == ")"
    return tokens[at].value if whole else None
