"""Respells a PostgreSQL catalog query, as a tree, for DuckDB.

Each rule is a function from a node to the node that stands in its place; RULES says which rule a
kind of node has. The tree is walked from the leaves up, so a rule sees children that are respelt
already and parents that are not. What a column means is looked up in the FROM of the queries around
it, whose tables know the relation that they are (scope.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError

from ...engine.quoting import fold
from ...engine.values import pgtypes
from . import privileges
from .casts import array, name_of, parameter_oid, respell_cast, respell_column
from .functions import ROW_FUNCTIONS
from .lookups import inline
from .naming import name_columns
from .places import HOME, OUR_PREFIX
from .relations import ctes
from .result_types import column_types, divide_whole, hold_types, spread_stars
from .scope import (
    bare,
    call,
    called,
    column_of,
    columns_used,
    mark_empty,
    mark_tables,
    mark_wanted,
    shape_of,
    string,
    table_of,
    use_of,
    wide_column,
)
from .shapes import PG_SHAPES

Rule = Callable[[Any], exp.Expr]

# The common table expression that keeps parameters which the respelt query has no use for.
PARAMETERS = f"{OUR_PREFIX}_parameters"
# Functions that DuckDB has under another name.
_RENAMED = {"json_build_object": "json_object"}
# Functions in FROM that are queries here.
_SOURCES = {
    "pg_partition_ancestors": "(SELECT NULL::BIGINT AS relid, 1 AS depth WHERE false)",
    "pg_get_keywords": "(SELECT keyword_name AS word, upper(keyword_category[:1]) AS catcode, "
    "keyword_category AS catdesc FROM system.main.duckdb_keywords())",
    "pg_listening_channels": f"(SELECT unnest({HOME}.channels()) AS pg_listening_channels)",
}
# Functions in a select list that have many rows.
_EXPANDED = {
    "pg_partition_ancestors": "unnest([]::BIGINT[])",
    "pg_listening_channels": f"unnest({HOME}.channels())",
}

# Columns whose arrays begin at 0.
_VECTORS = ("int2vector", "oidvector")
_FORMAT_PART = re.compile(r"%(\d+\$)?([sIL%])")
# Functions that a relation's wide form answers from two columns of one row.
_PAIRS = {
    "format_type": (("atttypid", "atttypmod"), "__type"),
    "col_description": (("attrelid", "attnum"), "__description"),
}


@dataclass(frozen=True, slots=True)
class Respelt:
    """A query in DuckDB's spelling.

    Args:
        types: the PostgreSQL types of its columns, None where they are those of DuckDB's answer.
        parameters: the OIDs of the types that the query casts `$1`, `$2`, ... to, else 0.
        reads_catalog: whether it asks for a relation of the catalog, or what must look into one.
    """

    text: str
    types: tuple[str | None, ...] = ()
    parameters: tuple[int, ...] = ()
    reads_catalog: bool = False


def respell(text: str) -> Respelt:
    """The query in DuckDB's spelling.

    Args:
        text: one query, its functions marked and without `pg_catalog.`.

    Raises:
        SqlglotError: it is not a query that sqlglot can read.
    """
    tree = parse_one(text, read="postgres")
    if not isinstance(tree, exp.Query):
        raise ParseError("not a query")
    parameters = _parameters(tree)
    name_columns(tree)
    mark_tables(tree)
    spread_stars(tree)
    divide_whole(tree)
    types = column_types(tree)
    tree = _walked(tree)
    hold_types(tree, types)
    waiting = list(tree.find_all(exp.Anonymous))
    while waiting:
        found = waiting.pop()
        body = inline(found)
        if body is not found:
            # A call within the arguments was copied with them.
            waiting = [other for other in waiting if all(node is not found for node in _above(other))]
            waiting += body.find_all(exp.Anonymous)
            found.replace(body)
        elif name := called(found):
            found.set("this", f"{HOME}.{name}")
    mark_wanted(tree)
    mark_empty(tree)
    wanted = columns_used(tree)
    for table in tree.find_all(exp.Table):
        if use := use_of(table):
            # A database may be named before it, as dbt does: there is one, whatever it is called there.
            table.set("catalog", None)
            table.set("db", None)
            table.set("this", exp.to_identifier(use.cte))
    common = ctes(wanted)
    if lost := sorted(parameters.keys() - _parameters(tree).keys()):
        # An argument that says nothing here is still a parameter that the client sends.
        kept = ", ".join(f"${n}::{pgtypes.duckdb_type(parameters[n]) or 'VARCHAR'}" for n in lost)
        common.append(f"{PARAMETERS} AS (SELECT {kept})")
    return Respelt(
        _with(", ".join(common), tree.sql("duckdb", normalize_functions=False)),
        tuple(types),
        tuple(parameters.get(number, 0) for number in range(1, max(parameters, default=0) + 1)),
    )


def _above(node: exp.Expr) -> list[exp.Expr]:
    """The node and everything around it."""
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found


def _parameters(tree: exp.Expr) -> dict[int, int]:
    """The parameters by number, with the OID of the type that the query casts them to, else 0."""
    types: dict[int, int] = {}
    for found in tree.find_all(exp.Parameter):
        if found.name.isdigit():
            cast = found.find_ancestor(exp.Cast, exp.Query)
            direct = cast if isinstance(cast, exp.Cast) and bare(cast.this) is found else None
            types[int(found.name)] = parameter_oid(direct.args["to"]) if direct is not None else 0
    return types


def _with(ctes: str, query: str) -> str:
    """The query with our common table expressions before its own."""
    if not ctes:
        return query
    for opening in ("WITH RECURSIVE ", "WITH "):
        if query.startswith(opening):
            return f"{opening}{ctes}, {query.removeprefix(opening)}"
    return f"WITH {ctes} {query}"


def _walked(node: exp.Expr) -> exp.Expr:
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expr):
            new = _walked(value)
            if new is not value:
                node.set(key, new)
        elif isinstance(value, list):
            items = [_walked(item) if isinstance(item, exp.Expr) else item for item in value]
            if any(one is not other for one, other in zip(items, value, strict=True)):
                node.set(key, items)
    for kind, rule in RULES.items():
        if isinstance(node, kind):
            return rule(node)
    return node


def _table(node: exp.Table) -> exp.Expr:
    """A function in FROM: `unnest(x) a` calls its column `a` too."""
    if isinstance(node.this, exp.Identifier):
        return node
    alias = node.args.get("alias")
    if source := _SOURCES.get(called(node.this)):
        query = parse_one(source, read="duckdb")
        query.set("alias", alias or exp.TableAlias(this=exp.to_identifier(called(node.this))))
        return query
    if isinstance(alias, exp.TableAlias) and alias.this and not alias.columns:
        alias.set("columns", [exp.to_identifier(alias.name)])
    return node


def _like(node: exp.Expr) -> exp.Expr:
    """LIKE has a backslash as its escape in PostgreSQL, and none in DuckDB."""
    if isinstance(node.parent, exp.Escape):
        return node
    return exp.Escape(this=node, expression=exp.Literal.string("\\"))


def _equal(node: exp.Binary) -> exp.Expr:
    """An array column beside the text of an array."""
    for key, other in (("this", "expression"), ("expression", "this")):
        text = string(node.args[key])
        column = column_of(node.args[other])
        if text is not None and column is not None and column.duckdb_type.endswith("[]"):
            node.set(key, exp.cast(array(text), column.duckdb_type, dialect="duckdb"))
    return node


def _any(node: exp.Any) -> exp.Expr:
    text = string(node.this)
    if text is not None and text.startswith("{"):
        node.set("this", exp.Paren(this=array(text)))
    elif isinstance(bare(node.this), exp.Parameter) and isinstance(node.parent, exp.Binary):
        column = column_of(node.parent.this)
        if column is not None:
            kept = exp.cast(bare(node.this), f"{column.duckdb_type}[]", dialect="duckdb")
            node.set("this", exp.Paren(this=kept))
    return node


def _coalesce(node: exp.Coalesce) -> exp.Expr:
    """`coalesce(list, '{}')`."""
    for item in node.expressions:
        if string(item) == "{}":
            item.replace(exp.Array(expressions=[]))
    return node


def _joined(node: exp.DPipe) -> exp.Expr:
    """`||` of arrays: with NULL the other one, where DuckDB answers NULL."""
    for side in (node.this, node.expression):
        column = column_of(side)
        if isinstance(bare(side), exp.Array) or (column and column.duckdb_type.endswith("[]")):
            return exp.Anonymous(this="list_concat", expressions=[node.this, node.expression])
    return node


def _bracket(node: exp.Bracket) -> exp.Expr:
    """Elements of a vector are counted from 0; sqlglot keeps a literal index less one."""
    column = column_of(node.this)
    if column is None or column.pg_type not in _VECTORS or len(node.expressions) != 1:
        return node
    index = node.expressions[0]
    more = 2 if isinstance(index, (exp.Literal, exp.Neg)) else 1
    place = exp.Add(this=exp.Paren(this=index), expression=exp.Literal.number(more))
    return exp.Anonymous(this="list_extract", expressions=[node.this, place])


def _function(node: exp.Anonymous) -> exp.Expr:
    name = called(node)
    arguments = node.expressions
    if name in _PAIRS and len(arguments) == 2:
        return _pair(node, *_PAIRS[name])
    if name == "format_type" and isinstance(arguments[1], exp.Null):
        return node
    if name == "obj_description" and len(arguments) == 2 and (catalog := string(arguments[1])):
        shape = PG_SHAPES.get(catalog)
        return call(name, arguments[0], exp.Literal.number(shape.oid if shape else 0))
    if name in privileges.FUNCTIONS:
        return _privilege(node, name)
    if name in ROW_FUNCTIONS and arguments:
        return _row_function(node, *ROW_FUNCTIONS[name])
    if name in _EXPANDED:
        return parse_one(_EXPANDED[name], read="duckdb")
    if name == "_pg_expandarray":
        return exp.Anonymous(this="unnest", expressions=[node])
    if fold(str(node.this)) in _RENAMED:
        node.set("this", _RENAMED[fold(str(node.this))])
    return node


def _privilege(node: exp.Anonymous, name: str) -> exp.Expr:
    """A question about a thing whose oid stands in a column: it is looked up by that alone."""
    at = len(node.expressions) - privileges.FUNCTIONS[name]
    column = column_of(node.expressions[at]) if 0 <= at <= 1 else None
    if column is not None and column.pg_type == "oid":
        return call(privileges.by_oid(name), *node.expressions)
    return node


def _pair(node: exp.Anonymous, keys: tuple[str, str], answer: str) -> exp.Expr:
    """A function of two columns of one row of pg_attribute; format_type of a row of pg_type."""
    first, second = node.expressions
    table = table_of(first)
    if table is None:
        return node
    shape = shape_of(table)
    assert shape, "table_of finds tables of the catalog"
    names = (fold(bare(first).name), fold(bare(second).name))
    if shape.name == "pg_attribute" and names == keys and table_of(second) is table:
        return wide_column(table, answer)
    if called(node) == "format_type" and isinstance(bare(second), exp.Null) and names[0] == "oid":
        return name_of(first, "regtype") if shape.name == "pg_type" else node
    return node


def _row_function(node: exp.Anonymous, relation: str, key: str, answer: str) -> exp.Expr:
    first, *rest = node.expressions
    table = table_of(first)
    shape = shape_of(table) if table is not None else None
    if table is None or shape is None or shape.name != relation or fold(bare(first).name) != key:
        return node
    if relation == "pg_index" and rest and bare(rest[0]).sql() != "0":
        return node  # pg_get_indexdef of one column of the index.
    return wide_column(table, answer)


def _format(node: exp.Format) -> exp.Expr:
    """format('%s.%I', a, b) as the parts that it is made of."""
    text = string(node.this)
    if text is None:
        return node
    parts: list[exp.Expr] = []
    arguments = list(node.expressions)
    last = taken = 0
    for found in _FORMAT_PART.finditer(text):
        if found.start() > last:
            parts.append(exp.Literal.string(text[last : found.start()]))
        last = found.end()
        if found[2] == "%":
            parts.append(exp.Literal.string("%"))
            continue
        at = int(found[1][:-1]) - 1 if found[1] else taken
        taken = at + 1
        if at >= len(arguments):
            return node
        parts.append(_formatted(arguments[at].copy(), found[2]))
    if last < len(text):
        parts.append(exp.Literal.string(text[last:]))
    return exp.Anonymous(this="concat", expressions=parts or [exp.Literal.string("")])


def _formatted(value: exp.Expr, how: str) -> exp.Expr:
    if how == "I":
        return call("quote_ident", exp.cast(value, "VARCHAR", dialect="duckdb"))
    return call("quote_nullable", value) if how == "L" else value


RULES: dict[type[exp.Expr], Rule] = {
    exp.Cast: respell_cast,
    exp.Column: respell_column,
    exp.Table: _table,
    exp.Like: _like,
    exp.ILike: _like,
    exp.EQ: _equal,
    exp.NEQ: _equal,
    exp.Any: _any,
    exp.Coalesce: _coalesce,
    exp.DPipe: _joined,
    exp.Bracket: _bracket,
    exp.Anonymous: _function,
    exp.Format: _format,
}
