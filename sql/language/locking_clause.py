"""FOR UPDATE and FOR SHARE: the clauses of a query that lock its rows.

DuckDB has no such clause. It is read by tokens and replaced by blanks, so that positions in the text stay.
Source: docs/sql.md, "Locking rows"; PostgreSQL documentation, "SELECT".
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.quoting import fold
from ..text.classified import LockingFacts, TokenReader
from ..text.tokens import QUOTED, Token

_STRENGTHS = (("UPDATE",), ("NO", "KEY", "UPDATE"), ("SHARE",), ("KEY", "SHARE"), ("READ", "ONLY"))
# The tokens that may follow the clause; after another one the words are names.
_BEHIND = frozenset({"", ")", "FOR", "LIMIT", "OFFSET", "FETCH", "ON", "RETURNING", "UNION", "WITH"})
_OPENS_QUERY = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM", "("})


def without_locking(
    text: str, tokens: tuple[Token, ...]
) -> tuple[str, tuple[Token, ...], tuple[LockingFacts, ...]]:
    """A text with blanks for its locking clauses, its tokens without them, and the clauses.

    FOR READ ONLY locks nothing.
    """
    found: list[LockingFacts] = []
    kept: list[Token] = []
    reader, end = TokenReader(text, tokens), 0
    parts: list[str] = []
    while not reader.at_end:
        at = reader.index
        clause = _clause(reader, tokens) if tokens[at].kind == "FOR" else None
        if clause is None:
            reader.index = at + 1
            kept.append(tokens[at])
            continue
        if clause.strength != "READ ONLY":
            found.append(clause)
        last = tokens[reader.index - 1].end
        parts += [text[end : clause.position], " " * (last - clause.position)]
        end = last
    return "".join(parts) + text[end:], tuple(kept), tuple(found)


def _clause(reader: TokenReader, tokens: Sequence[Token]) -> LockingFacts | None:
    """Read the clause at FOR; None if FOR belongs to something else, such as substring(x FOR 2)."""
    at, depth = reader.index, tokens[reader.index].depth
    if at == 0 or not _is_in_query(tokens, at):
        return None
    reader.index += 1
    strength = next((words for words in _STRENGTHS if reader.accept(*words)), None)
    if strength is None:
        return None
    names: list[str] = []
    if reader.peek() == "OF":
        reader.index += 1
        while True:
            quoted = reader.peek() == QUOTED
            name = reader.qualified()[-1]
            names.append(name if quoted else fold(name))
            if not reader.accept(","):
                break
    wait = "NOWAIT" if reader.accept("NOWAIT") else "SKIP LOCKED" if reader.accept("SKIP", "LOCKED") else ""
    if reader.peek() not in _BEHIND:
        return None
    return LockingFacts(" ".join(strength), tuple(names), wait, tokens[at].start, outermost=depth == 0)


def _is_in_query(tokens: Sequence[Token], at: int) -> bool:
    """True if the parenthesis around a token contains a query."""
    depth = tokens[at].depth
    if depth == 0:
        return True
    opening = next(i for i in range(at, -1, -1) if tokens[i].depth < depth)
    return tokens[opening].kind == "(" and tokens[opening + 1].kind in _OPENS_QUERY
