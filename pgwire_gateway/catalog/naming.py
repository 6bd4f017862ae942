"""The names that PostgreSQL gives to the columns of a query, where the query gives none.

A driver reads `row["version"]` of `SELECT version()`, and a query around a derived table says
`s.max`; DuckDB would call them by their whole text. Names that are not quoted are folded to small
letters. Source: PostgreSQL's FigureColname (parse_target.c).
"""

from __future__ import annotations

from sqlglot import exp

from ...engine.quoting import fold
from .places import MARK

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
