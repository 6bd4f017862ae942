"""Comparisons of a schema's name with `public`, which is `main` here unless a schema has that name.

Tools that know PostgreSQL's first schema by its name ask for `nspname = 'public'`, `table_schema = $1`, or as
psql for `nspname ~ '^(public)$'`. A column of schemas' names has a second form beside it (views.py), in which
`main` is `public` if no schema is; a comparison reads that one. The answers show `main`.
"""

from __future__ import annotations

import re

from sqlglot import exp

from ...engine.quoting import fold
from .scope import bare, string, table_of, wide_column
from .views import MEANT, names_schema

# The whole of a regular expression that psql makes of `public.*`.
_PATTERN = re.compile(r"(?:\^\()?public(?:\)\$)?")


def compare(node: exp.Binary) -> exp.Expr:
    """A comparison, also with LIKE and a regular expression."""
    for key, other in (("this", "expression"), ("expression", "this")):
        column = _meant(node.args[key])
        if column is None:
            continue
        value = bare(node.args[other])
        text = string(value)
        if text is not None and _PATTERN.fullmatch(text):
            node.set(key, column)
        elif isinstance(node, (exp.EQ, exp.NEQ)) and value.find(exp.Parameter, exp.Placeholder):
            both = node.copy()
            both.set(key, column)
            joined = exp.And if isinstance(node, exp.NEQ) else exp.Or
            return exp.Paren(this=joined(this=node.copy(), expression=both))
        elif isinstance(value, exp.Any) and any(one.name == "public" for one in value.find_all(exp.Literal)):
            node.set(key, column)
        return node
    return node


def contained(node: exp.In) -> exp.Expr:
    """`nspname IN ('public', ...)`."""
    column = _meant(node.this)
    if column is not None and any(string(value) == "public" for value in node.expressions):
        node.set("this", column)
    return node


def _meant(node: exp.Expr) -> exp.Expr | None:
    """The second form of a column of schemas' names; None for another expression."""
    column = bare(node)
    table = table_of(column)
    if table is None or not names_schema(fold(column.name)):
        return None
    return wide_column(table, MEANT + fold(column.name))
