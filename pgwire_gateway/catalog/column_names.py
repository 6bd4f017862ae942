"""PostgreSQL's names for the columns of a query that have no name of their own.

A driver reads `row["version"]` of `SELECT version()` and `row["count"]` of `SELECT count(*)`, and a query
around a derived table says `s.max`; DuckDB would name such a column by its whole text. Names that are not
quoted are folded to small letters.

A catalog query gets the names in its text (`name_columns`). For an ordinary query only the names sent to the
client change (`shown_names`): inside it, and in a table made from it, DuckDB's names stay. Its select list is
analysed where DuckDB's names show that it matters, and where each item is one column.
Source: PostgreSQL's FigureColname (parse_target.c).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from ...engine.errors import DucktailError
from ...engine.quoting import fold
from ...sql.text.tokens import Token, tokenize
from .oids import MARK

UNKNOWN = "?column?"

# Kinds of expressions that PostgreSQL names after themselves.
_BY_KIND: dict[type[exp.Expr], str] = {
    exp.Coalesce: "coalesce",
    exp.Array: "array",
    exp.Exists: "exists",
    exp.Extract: "extract",
    exp.CurrentSchema: "current_schema",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentDate: "current_date",
    exp.GroupConcat: "string_agg",
    exp.Explode: "unnest",
}
_TRIMS = {"LEADING": "ltrim", "TRAILING": "rtrim"}
# Operators and constants, which have no name although some are functions to sqlglot.
_NAMELESS = (exp.Connector, exp.Binary, exp.Not, exp.Neg, exp.Literal, exp.Null, exp.Parameter)
# PostgreSQL's own names of types that have others in SQL.
_TYPE_NAMES = {
    "int": "int4", "integer": "int4", "bigint": "int8", "smallint": "int2", "boolean": "bool",
    "double precision": "float8", "real": "float4", "decimal": "numeric", "character varying": "varchar",
}  # fmt: skip
# How sure a name is: none, the type of a cast or the kind of an expression, the expression's own.
NONE, WEAK, STRONG = range(3)


def name_columns(tree: exp.Expr) -> None:
    """Name the columns of the outermost query, and of those in FROM and WITH."""
    for select in list(tree.find_all(exp.Select)):
        if _is_named(select):
            for column in list(select.expressions):
                _name(column)


def _is_named(select: exp.Select) -> bool:
    """Whether anything sees the names of this query's columns."""
    node: exp.Expr = select
    while isinstance(node.parent, (exp.SetOperation, exp.Paren)):
        node = node.parent
    parent = node.parent
    if isinstance(parent, exp.Subquery):
        return isinstance(parent.parent, (exp.From, exp.Join)) or parent.parent is None
    return parent is None or isinstance(parent, exp.CTE)


def _name(column: exp.Expr) -> None:
    if isinstance(column, exp.Alias):
        alias = column.args.get("alias")
        if isinstance(alias, exp.Identifier) and not alias.quoted:
            alias.set("this", fold(alias.name))
        return
    if isinstance(column, (exp.Column, exp.Star)) or column.is_star:
        return
    column.replace(exp.alias_(column.copy(), column_name(column), quoted=True))


def column_name(node: exp.Expr) -> str:
    """PostgreSQL's name for an expression that has none."""
    return _figured(node)[1]


def _figured(node: exp.Expr) -> tuple[int, str]:
    """A name and how sure it is."""
    if isinstance(node, (exp.Paren, exp.Collate, exp.Bracket, exp.Filter, exp.Window)):
        return _figured(node.this)
    if isinstance(node, exp.Cast):
        sure, name = _figured(node.this)
        return (sure, name) if sure == STRONG else (WEAK, _type_name(node))
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        sure, name = _figured(default) if default is not None else (NONE, UNKNOWN)
        return (sure, name) if sure == STRONG else (WEAK, "case")
    if isinstance(node, exp.Column):
        return STRONG, node.name if node.this.quoted else fold(node.name)
    if isinstance(node, exp.Dot):
        # A function with its schema, or a field of a struct.
        last = node.expression
        if isinstance(last, exp.Identifier):
            return STRONG, last.name if last.quoted else fold(last.name)
        return _figured(last)
    if isinstance(node, exp.Subquery):
        first = node.this.selects[0] if isinstance(node.this, exp.Query) else None
        if first is None:
            return NONE, UNKNOWN
        return (STRONG, first.alias) if first.alias else _figured(first)
    if isinstance(node, exp.Boolean):
        return WEAK, "bool"
    if isinstance(node, exp.Trim):
        return STRONG, _TRIMS.get(str(node.args.get("position") or "").upper(), "btrim")
    for kind, name in _BY_KIND.items():
        if isinstance(node, kind):
            return STRONG, name
    if isinstance(node, exp.Anonymous):
        return STRONG, fold(str(node.this)).removeprefix(MARK)
    if isinstance(node, exp.Func) and not isinstance(node, _NAMELESS):
        return STRONG, fold(node.sql_name())
    return NONE, UNKNOWN


def _type_name(node: exp.Cast) -> str:
    text = fold(node.to.sql("postgres")).replace('"', "").rpartition(".")[2].partition("(")[0]
    text = text.removesuffix("[]").strip()
    return _TYPE_NAMES.get(text, text)


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
