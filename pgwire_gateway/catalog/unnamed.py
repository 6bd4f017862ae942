"""What PostgreSQL calls the columns of an ordinary query that have no name of their own.

DuckDB calls `count(*)` "count_star()" and `max(a)` "max(a)"; clients of PostgreSQL read row["count"]
and row["max"]. Only what the client is told changes: inside a query, and in a table made from one,
DuckDB's names stay. The select list is looked at where DuckDB's names show that it matters, and where
each item is one column. Source: PostgreSQL's FigureColname (parse_target.c).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from ...engine.errors import DucktailError
from ...sql.text.tokens import Token, tokenize
from .naming import column_name

# What no one calls a column: DuckDB's text of an expression.
_MADE = re.compile(r"[^\w \-#$.:/@%]|^\d|^$|^NULL$")
TEXT_MAX = 64 * 1024
TEXTS_KEPT = 512
# The longest of them.
KEPT_CHARS_MAX = 8 * 1024
_OPENINGS = frozenset({"SELECT", "WITH", "("})
_ENDS = frozenset(
    {"FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "FETCH"}
    | {"UNION", "EXCEPT", "INTERSECT", ";"}
)


def shown_names(text: str, names: Sequence[str]) -> Sequence[str]:
    """The names of a query's columns as PostgreSQL has them.

    Args:
        text: the query.
        names: of its columns, as DuckDB has them.

    >>> shown_names("SELECT count(*), a AS x, b || 'c', 1 FROM t", ["count_star()", "x", "(b || 'c')", "1"])
    ['count', 'x', '?column?', '?column?']
    """
    if len(text) > TEXT_MAX or not any(map(_MADE.search, names)):
        return names
    given = (_kept_given if len(text) <= KEPT_CHARS_MAX else _given)(text)
    if len(given) != len(names):
        return names
    return [ours or name for ours, name in zip(given, names, strict=True)]


def _given(text: str) -> tuple[str | None, ...]:
    """For each item of the select list, PostgreSQL's name of it where it has none; none: it has a star."""
    try:
        tokens = tokenize(text)
    except DucktailError:
        return ()
    items = _select_list(text, tokens)
    if not items:
        return ()
    try:
        select = parse_one(f"SELECT {items}", read="postgres")
    except SqlglotError:
        return ()
    if not isinstance(select, exp.Select) or any(item.is_star for item in select.expressions):
        return ()
    named = (exp.Alias, exp.Column, exp.Aliases)
    return tuple(None if isinstance(item, named) else column_name(item) for item in select.expressions)


_kept_given = lru_cache(TEXTS_KEPT)(_given)


def _select_list(text: str, tokens: Sequence[Token]) -> str:
    """The text between the first SELECT that is the query's own and what follows its list."""
    if not tokens or tokens[0].kind not in _OPENINGS:
        return ""
    first = next((at for at, token in enumerate(tokens) if token.kind == "SELECT" and not token.depth), None)
    if first is None:
        return ""
    begin = first + 1
    if begin < len(tokens) and tokens[begin].kind in ("ALL", "DISTINCT"):
        begin += 1
    if begin < len(tokens) and tokens[begin].kind == "ON":
        return ""
    rest = (token for token in tokens[begin:] if not token.depth and token.kind in _ENDS)
    end = next(rest, None)
    return text[tokens[begin - 1].end : end.start if end else len(text)]
