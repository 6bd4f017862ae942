r"""PostgreSQL's forms of a query that DuckDB writes differently: functions in FROM, rows in a select list.

| PostgreSQL | DuckDB |
|---|---|
| `FROM unnest(a, b) AS x(p, q)` | `FROM (SELECT unnest(a), unnest(b)) AS x(p, q)` |
| `FROM now()` | `FROM (SELECT now() AS now) AS now` |
| `SELECT generate_series(1, 3)` | `SELECT unnest(generate_series(1, 3)) AS generate_series` |
| `EXISTS (SELECT FROM t)` | `EXISTS (SELECT NULL FROM t)` |
| `FROM ONLY t` | `FROM t`: a table has no children |

DuckDB's generate_series is a list in an expression; it becomes rows only as a whole column or before an
operator, so that a list as an argument stays one. `range` is always a list. Source: PostgreSQL documentation,
"Table Functions", "SQL Functions Returning Sets".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

import duckdb

from ...engine.errors import DucktailError
from ...engine.quoting import fold, ident
from ...sql.text.spans import Replacement, cut
from ...sql.text.tokens import Token, closing, occurs, tokenize
from . import functions
from .oids import HOME

_HINT = re.compile(
    r"\b(?:from|join|lateral)\s+(?:pg_catalog\s*\.\s*|__ducktail_pg\.pg\.)?(?!unnest\s*\([^,]*\)|generate_series\b|range\b|read_)[a-z_]\w*\s*\("
    r"|\bgenerate_series\b|\b(?:from|join)\s+only\b",
    re.IGNORECASE | re.ASCII,
)
_NO_LIST = re.compile(r"\bselect\s*(?:\b(?:from|where|union|limit)\b|[;)]|\Z)", re.IGNORECASE)
# What may follow a SELECT without columns.
_BEHIND_NO_LIST = frozenset({"", ")", ";", "FROM", "WHERE", "UNION", "EXCEPT", "INTERSECT", "LIMIT", "ORDER"})
# The name of the column that DuckDB computes for a query without columns; its client gets none.
NO_COLUMNS = "ducktail: no columns"
# Statements that give a query's rows to a client: in them its outermost SELECT may have no columns.
_ANSWERING = frozenset({"SELECT", "WITH", "PREPARE", "DECLARE", "EXPLAIN"})
_HINT_WORDS = ("from", "join", "lateral", "generate_series")
# Bounds of the texts that are examined, and of those that are kept.
TEXT_MAX, KEPT_CHARS_MAX, TEXTS_KEPT = 64 * 1024, 8 * 1024, 512

_BEFORE_SOURCE = frozenset({"FROM", "JOIN", "LATERAL"})
_OPENS_QUERY = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM", "("})
# Words after a function in FROM that are no alias.
_CLAUSES = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH", "UNION", "EXCEPT", "INTERSECT", "JOIN"}
    | {"CROSS", "INNER", "LEFT", "RIGHT", "FULL", "NATURAL", "ON", "USING", "WINDOW", "FOR", "RETURNING"}
    | {"QUALIFY", "WITH", "SEMI", "ANTI", "ASOF", "POSITIONAL", "SET", "TABLESAMPLE"}
)
_ENDS_LIST = _CLAUSES | {"FROM", "INTO", "SELECT"}
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "::", "||"})
_SERIES = "GENERATE_SERIES"


def respell_forms(text: str) -> str:
    """The text with these forms in DuckDB's spelling.

    >>> respell_forms("SELECT * FROM unnest($1::int[], $2::text[]) AS x(a, b)")
    'SELECT * FROM (SELECT unnest($1::int[]) AS unnest, unnest($2::text[]) AS unnest) AS x(a, b)'
    >>> respell_forms("SELECT generate_series(1, 3), len(generate_series(1, 3))")
    'SELECT unnest(generate_series(1, 3)) AS generate_series, len(generate_series(1, 3))'
    """
    if (
        ("(" not in text and "only" not in fold(text))
        or len(text) > TEXT_MAX
        or not occurs(_HINT, text, _HINT_WORDS)
    ):
        return text
    return (_kept_respelt if len(text) <= KEPT_CHARS_MAX else _respelt)(text)


def fill_lists(text: str) -> str:
    """The text with a NULL in each SELECT without columns; at the outermost one it has the name NO_COLUMNS.

    >>> fill_lists("SELECT EXISTS (SELECT FROM t)")
    'SELECT EXISTS (SELECT NULL FROM t)'
    >>> fill_lists("SELECT FROM t")
    'SELECT NULL AS "ducktail: no columns" FROM t'
    """
    if len(text) > TEXT_MAX or not occurs(_NO_LIST, text):
        return text
    try:
        return cut(text, list(_fillings(tokenize(text))))
    except DucktailError:
        return text  # The session reports the error in it.


def _respelt(text: str) -> str:
    try:
        tokens = tokenize(text)
        pieces = sorted(_pieces(text, tokens), key=lambda piece: (piece.start, piece.end))
    except DucktailError:
        return text  # The session reports the error in it.
    return cut(text, pieces)


_kept_respelt = lru_cache(TEXTS_KEPT)(_respelt)


def _pieces(text: str, tokens: Sequence[Token]) -> Iterator[Replacement]:
    if tokens and tokens[0].kind == "CREATE" and all(token.kind != "TABLE" for token in tokens[:5]):
        return  # A stored text is DuckDB's.
    behind = -1
    # The last word of a clause at each depth, within the parentheses that are open.
    clauses: dict[int, str] = {}
    for at, token in enumerate(tokens):
        if token.kind == "(":
            clauses.pop(token.depth + 1, None)
        elif token.kind in _ENDS_LIST:
            clauses[token.depth] = token.kind
        if at <= behind:
            continue
        if token.kind == "ONLY" and _kind(tokens, at - 1) in ("FROM", "JOIN") and at + 1 < len(tokens):
            if tokens[at + 1].is_name and tokens[at + 1].kind not in _CLAUSES:
                yield Replacement(token.start, tokens[at + 1].start, "")
            continue
        listed = token.kind == "," and clauses.get(token.depth) == "FROM"
        if listed or (token.kind in _BEFORE_SOURCE and _is_source(tokens, at)):
            found = _source(text, tokens, at + 1)
            if found is not None:
                behind, pieces = found
                yield from pieces
        elif token.kind == _SERIES and clauses.get(token.depth) == "SELECT":
            yield from _series(tokens, at)


def _fillings(tokens: Sequence[Token]) -> Iterator[Replacement]:
    answers = bool(tokens) and tokens[0].kind in _ANSWERING
    if answers and any(token.kind == "INSERT" and not token.depth for token in tokens):
        answers = False  # The rows are inserted.
    for at, token in enumerate(tokens):
        if token.kind != "SELECT" or _kind(tokens, at - 1) in ("AS", "."):
            continue
        if _kind(tokens, at + 1) in _BEHIND_NO_LIST:
            if token.depth:
                yield Replacement(token.end, token.end, " NULL")
            elif answers:
                yield Replacement(token.end, token.end, f' NULL AS "{NO_COLUMNS}"')


def _kind(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].kind if 0 <= at < len(tokens) else ""


def _opening(tokens: Sequence[Token], at: int) -> int:
    """The index of the parenthesis around a token; -1 without one."""
    depth = tokens[at].depth
    return next((i for i in range(at, -1, -1) if tokens[i].depth < depth), -1) if depth else -1


def _is_source(tokens: Sequence[Token], at: int) -> bool:
    """True if FROM, JOIN or LATERAL precedes a source of a query, unlike in trim(both FROM f(x))."""
    if _kind(tokens, at + 1) == "LATERAL" or _kind(tokens, at - 1) == "DISTINCT":
        return False
    opening = _opening(tokens, at)
    if opening >= 0:
        return tokens[opening].kind == "(" and tokens[opening + 1].kind in _OPENS_QUERY
    return tokens[0].kind not in ("DELETE", "COPY", "SHOW", "FETCH", "MOVE", "SET", "COMMENT", "CREATE")


def _source(text: str, tokens: Sequence[Token], at: int) -> tuple[int, list[Replacement]] | None:
    """The replacements for a function in FROM, and the index of its last token; None for another source."""
    start = tokens[at].start if at < len(tokens) else 0
    if _kind(tokens, at) == "PG_CATALOG" and _kind(tokens, at + 1) == ".":
        at += 2
    elif text.startswith(f"{HOME}.", start):  # A function of the catalog, respelt before.
        at += 2 * HOME.count(".") + 2
    if at >= len(tokens) or not tokens[at].is_name or _kind(tokens, at + 1) != "(":
        return None
    name, last = fold(tokens[at].name), closing(tokens, at + 1)
    arguments = _arguments(text, tokens, at + 1, last)
    several = name == "unnest" and len(arguments) > 1
    if not several and name not in _scalar_functions():
        return None
    if several:
        columns = [f"unnest({argument}) AS unnest" for argument in arguments]
        numbers = f"unnest(range(1, greatest({', '.join(f'len({one})' for one in arguments)}) + 1))"
    else:
        columns, numbers = [f"{text[start : tokens[last].end]} AS {ident(name)}"], "1::BIGINT"
    end = last
    if _kind(tokens, last + 1) == "WITH" and _kind(tokens, last + 2) == "ORDINALITY":
        columns.append(f"{numbers} AS ordinality")
        end = last + 2
    query = f"(SELECT {', '.join(columns)})"
    alias = _alias(tokens, end + 1)
    if alias is None:
        query += f" AS {ident(name)}"
    pieces = [Replacement(start, tokens[end].end, query)]
    if alias is not None and not several and _kind(tokens, alias + 1) != "(":
        # The column of `now() AS n` is also called n.
        written = text[tokens[alias].start : tokens[alias].end]
        columns_named = f"({written})" if len(columns) == 1 else f"({written}, ordinality)"
        pieces.append(Replacement(tokens[alias].end, tokens[alias].end, columns_named))
    return end, pieces


def _arguments(text: str, tokens: Sequence[Token], opening: int, last: int) -> list[str]:
    """The texts of a call's arguments."""
    depth = tokens[opening].depth + 1
    cuts = [i for i in range(opening + 1, last) if tokens[i].kind == "," and tokens[i].depth == depth]
    if last == opening + 1:
        return []
    spans = zip([opening, *cuts], [*cuts, last], strict=True)
    return [text[tokens[first + 1].start : tokens[end - 1].end] for first, end in spans]


def _alias(tokens: Sequence[Token], at: int) -> int | None:
    """The index of the alias that begins at a token; None without one."""
    if _kind(tokens, at) == "AS":
        return at + 1
    if at < len(tokens) and tokens[at].is_name and tokens[at].kind not in _CLAUSES:
        return at
    return None


def _series(tokens: Sequence[Token], at: int) -> Sequence[Replacement]:
    """The replacements for generate_series in a select list, if it is a column."""
    first = at - 2 if _kind(tokens, at - 1) == "." and _kind(tokens, at - 2) == "PG_CATALOG" else at
    if _kind(tokens, at + 1) != "(" or _kind(tokens, first - 1) not in ("SELECT", ",", "ALL"):
        return ()
    last = closing(tokens, at + 1)
    following = _kind(tokens, last + 1)
    if following == "::" and _is_array_type(tokens, last + 2):
        return ()
    ends = following in ("", ",", ")", ";") or following in _ENDS_LIST
    named = following == "AS" or (last + 1 < len(tokens) and tokens[last + 1].is_name)
    if not ends and not named and following not in _OPERATORS:
        return ()
    closed = ") AS generate_series" if ends else ")"
    return [
        Replacement(tokens[first].start, tokens[first].start, "unnest("),
        Replacement(tokens[last].end, tokens[last].end, closed),
    ]


def _is_array_type(tokens: Sequence[Token], at: int) -> bool:
    while at < len(tokens) and (tokens[at].is_name or tokens[at].kind == "."):
        at += 1
    return _kind(tokens, at) == "["


@cache
def _scalar_functions() -> frozenset[str]:
    """The functions that return one value: DuckDB's that are no table functions, and the catalog's."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT function_name, bool_or(function_type NOT IN ('scalar', 'macro')) "
            "FROM system.main.duckdb_functions() GROUP BY function_name"
        ).fetchall()
    found = {name for name, others in rows if not others}
    return frozenset((found | functions.names()) - functions.ROWS - {"unnest", "generate_series", "range"})
