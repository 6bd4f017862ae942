r"""What PostgreSQL's clients write into a statement's text that DuckDB would read as something else.

`'\x00ff'::bytea` is two bytes to PostgreSQL, which reads pairs of digits, and three to DuckDB,
where `\x` stands before each: drivers that write their values into the text (psycopg2, pgjdbc with
preferQueryMode=simple) would store other bytes than they were given. `::jsonb` is DuckDB's JSON,
and `'{a,NULL}'::text[]` a list. Only bytes under PostgreSQL's own name of the type are touched: `BLOB`
is DuckDB's word. And Spark truncates `ONLY` a table, which here has no others below it. Source:
PostgreSQL documentation, "bytea Hex Format", "Array Value Input", "TRUNCATE".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...engine.errors import DucktailError
from ...engine.quoting import literal
from ...engine.values.array_text import read_array
from ...sql.text.replacing import Piece, cut
from ...sql.text.tokens import STRING, Token, tokenize

_HINT = re.compile(r"\bbytea\b|\bjsonb\b|\btruncate\b|\}'\s*::[^']*\[", re.IGNORECASE)
_HEX = re.compile(r"\\x((?:[0-9A-Fa-f]{2})+)")
_BEFORE_A_TYPE = frozenset({"::", "AS"})


def respell_literals(text: str) -> str:
    r"""The text with bytea and array literals as DuckDB writes them, JSON for jsonb, and without ONLY.

    >>> print(respell_literals(r"SELECT '\x00ff'::bytea, x::jsonb, '{a,NULL}'::text[]"))
    SELECT '\x00\xff'::bytea, x::JSON, ['a', NULL]::text[]
    """
    if _HINT.search(text) is None:
        return text
    try:
        tokens = tokenize(text)
    except DucktailError:
        return text  # The session will say what is wrong with it.
    return cut(text, [*_pieces(tokens), *_only(tokens)])


def _only(tokens: Sequence[Token]) -> Iterator[Piece]:
    """The ONLY of `TRUNCATE [TABLE] ONLY t`."""
    kinds = [token.kind for token in tokens[:4]]
    place = 2 if kinds[1:2] == ["TABLE"] else 1
    if kinds[:1] == ["TRUNCATE"] and kinds[place : place + 1] == ["ONLY"] and len(tokens) > place + 1:
        if tokens[place + 1].is_name:
            yield Piece(tokens[place].start, tokens[place + 1].start, "")


def _pieces(tokens: Sequence[Token]) -> Iterator[Piece]:
    for at, token in enumerate(tokens):
        before = tokens[at - 1].kind if at else ""
        if token.kind == "JSONB" and before in _BEFORE_A_TYPE:
            yield Piece(token.start, token.end, "JSON")
        if token.kind == "::" and tokens[at - 1].kind == STRING and _is_array(tokens, at + 1):
            yield from _array(tokens[at - 1])
        if token.kind != "BYTEA":
            continue
        value = tokens[at - 2] if before in _BEFORE_A_TYPE and at > 1 else None
        if value is None and at + 1 < len(tokens):
            value = tokens[at + 1]
        if value is not None and value.kind == STRING and (found := _HEX.fullmatch(value.value)):
            digits = found[1]
            pairs = (f"\\x{digits[place : place + 2]}" for place in range(0, len(digits), 2))
            yield Piece(value.start, value.end, f"'{''.join(pairs)}'")


def _is_array(tokens: Sequence[Token], at: int) -> bool:
    """Whether the type that begins at `at` is an array: a name, its numbers, `[`."""
    depth = tokens[at].depth if at < len(tokens) else 0
    for token in tokens[at:]:
        if token.kind == "[":
            return True
        if token.depth <= depth and not token.is_word and token.kind not in ("(", ")", "."):
            return False
    return False


def _array(token: Token) -> Iterator[Piece]:
    if not token.value.lstrip().startswith("{"):
        return
    try:
        items = read_array(token.value, literal)
    except DucktailError:
        return
    yield Piece(token.start, token.end, _list(items))


def _list(items: Sequence[object]) -> str:
    """DuckDB's list of SQL literals, nested ones for more than one dimension."""
    written = (
        _list(item) if isinstance(item, list) else "NULL" if item is None else str(item) for item in items
    )
    return f"[{', '.join(written)}]"
