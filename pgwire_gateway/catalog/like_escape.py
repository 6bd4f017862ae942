r"""LIKE and ILIKE in a client's text: a backslash escapes in PostgreSQL, and in DuckDB only with ESCAPE.

`~~`, `~~*` and their negations are operators of the same meaning, which take no ESCAPE and become the words.

ORMs escape `%` and `_` of a searched text with a backslash and rely on the default. Over the wire a pattern
therefore gets `ESCAPE '\'` if it can contain a backslash: a pattern made only of literals without one stays
as it is, because DuckDB searches such a pattern faster. In process LIKE remains DuckDB's.
Source: PostgreSQL documentation, "Pattern Matching".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...sql.text.spans import Replacement
from ...sql.text.tokens import NUMBER, PARAMETER, STRING, Token, closing

# A LIKE whose pattern is not simply a literal without a backslash.
HINT = r"(?:\bi?like\b|~~\*?)(?!\s*'(?:[^'\\]|'')*+'(?!\s*\|\|))"
ESCAPE = r" ESCAPE '\'"
_LIKE = frozenset({"LIKE", "ILIKE"})
# What follows LIKE without being a pattern.
_NO_PATTERN = frozenset({"ANY", "ALL", "SOME", "SELECT"})
# Operators that bind more closely than LIKE.
_JOINS = frozenset({"||", "+", "-"})
# Tokens of a pattern whose text is known from its literals.
_PLAIN = frozenset({"(", ")", "||", "UPPER", "LOWER", "::", "TEXT", "VARCHAR"})
# A definition without a query has no conditions outside of parentheses: `CREATE TABLE a LIKE b`.
_QUERY = frozenset({"AS", "SELECT", "WHERE"})


def like_escapes(tokens: Sequence[Token]) -> Iterator[Replacement]:
    """The insertions of ESCAPE behind patterns."""
    for at, token in enumerate(tokens):
        if token.kind in _LIKE and _is_condition(tokens, at):
            end = _pattern_end(tokens, at + 1)
            if end > at + 1 and _kind(tokens, end) != "ESCAPE" and not _is_plain(tokens[at + 1 : end]):
                place = tokens[end - 1].end
                yield Replacement(place, place, ESCAPE)
        elif token.kind == "~" and at and tokens[at - 1].kind != "~" and _kind(tokens, at + 1) == "~":
            yield from _operator(tokens, at)


def _operator(tokens: Sequence[Token], at: int) -> Iterator[Replacement]:
    """The operator `~~` as LIKE with ESCAPE; it binds as closely as `||`, so the pattern is one operand."""
    first, behind = at, at + 2
    if tokens[first - 1].kind == "!" and tokens[first - 1].end == tokens[first].start:
        first -= 1
    if _kind(tokens, behind) == "*" and tokens[behind].start == tokens[at + 1].end:
        behind += 1
    if _kind(tokens, behind) == "~":
        return  # DuckDB's `~~~` is GLOB.
    touching = all(tokens[i].end == tokens[i + 1].start for i in range(first, behind - 1))
    end = operand_end(tokens, behind)
    if not touching or end == behind or _kind(tokens, end) in _JOINS or _is_plain(tokens[behind:end]):
        return
    words = f"{'NOT ' if first < at else ''}{'ILIKE' if behind > at + 2 else 'LIKE'}"
    yield Replacement(tokens[first].start, tokens[behind - 1].end, f" {words} ")
    yield Replacement(tokens[end - 1].end, tokens[end - 1].end, ESCAPE)


def _is_condition(tokens: Sequence[Token], at: int) -> bool:
    before = at - 2 if at and tokens[at - 1].kind == "NOT" else at - 1
    if before < 0 or tokens[0].kind == "SHOW":
        return False
    left = tokens[before]
    if not (left.is_name or left.kind in (STRING, NUMBER, PARAMETER, ")", "]")):
        return False
    outside = tokens[0].kind == "CREATE" and not tokens[at].depth
    return not outside or not _QUERY.isdisjoint(token.kind for token in tokens[:at])


def _pattern_end(tokens: Sequence[Token], at: int) -> int:
    """The index behind a pattern that begins at a token; that token's own if it begins none."""
    end = operand_end(tokens, at)
    while end > at and end < len(tokens) and tokens[end].kind in _JOINS:
        behind = operand_end(tokens, end + 1)
        if behind == end + 1:
            return at  # It is no expression: DuckDB reports the error in it.
        end = behind
    return end


def operand_end(tokens: Sequence[Token], at: int) -> int:
    """The index behind a literal, a column, a call, a CASE or what parentheses contain, with its casts."""
    if at >= len(tokens) or tokens[at].kind in _NO_PATTERN:
        return at
    token, end = tokens[at], at
    if token.kind == "(":
        end = closing(tokens, at) + 1
    elif token.kind == "CASE":
        ends = (i for i in range(at + 1, len(tokens)) if tokens[i].kind == "END")
        end = next((i for i in ends if tokens[i].cases == token.cases), at - 1) + 1
    elif token.is_name:
        end = _name_end(tokens, at)
    elif token.kind in (STRING, PARAMETER, NUMBER):
        end = at + 1
    while at < end < len(tokens) and tokens[end].kind in ("::", "COLLATE", "["):
        if tokens[end].kind == "[":
            end = closing(tokens, end) + 1
        else:
            behind = _name_end(tokens, end + 1)
            if behind == end + 1:
                return at
            # `character varying(3)`
            end = _name_end(tokens, behind) if _kind(tokens, behind) == "VARYING" else behind
    return end


def _name_end(tokens: Sequence[Token], at: int) -> int:
    """The index behind a name with its qualifiers and arguments; `at` without a name."""
    if at >= len(tokens) or not tokens[at].is_name:
        return at
    end = at + 1
    while end + 1 < len(tokens) and tokens[end].kind == "." and tokens[end + 1].is_name:
        end += 2
    if end < len(tokens) and tokens[end].kind == "(":
        end = closing(tokens, end) + 1
    return end


def _kind(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].kind if at < len(tokens) else ""


def _is_plain(pattern: Sequence[Token]) -> bool:
    return all("\\" not in token.value if token.kind == STRING else token.kind in _PLAIN for token in pattern)
