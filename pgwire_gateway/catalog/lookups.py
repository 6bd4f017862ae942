"""Functions that look into the catalog, put into a query as the subqueries that they are.

Put into the tree, their tables are tables of the query like others, and come from its common table
expressions, which DuckDB binds once however many calls there are.
"""

from __future__ import annotations

from functools import cache

from sqlglot import exp, parse_one

from .functions import lookups
from .scope import SHAPE, called
from .shapes import PG_SHAPES


def inline(call: exp.Anonymous) -> exp.Expr:
    """The body of the function that is called, with the arguments in it; other calls as they are."""
    found = _bodies().get((called(call), len(call.expressions)))
    if found is None:
        return call
    parameters, body = found
    arguments = dict(zip(parameters, call.expressions, strict=True))
    copy = body.copy()
    for column in list(copy.find_all(exp.Column)):
        argument = None if column.table else arguments.get(column.name)
        if argument is not None:
            column.replace(exp.Paren(this=argument.copy()))
    return copy


@cache
def _bodies() -> dict[tuple[str, int], tuple[tuple[str, ...], exp.Expr]]:
    """Each function's parameters and body, by name and number of arguments."""
    found = {}
    for head, sql in lookups().items():
        name, _, rest = head.partition("(")
        parameters = tuple(part.strip() for part in rest.rstrip(")").split(",") if part)
        body = parse_one(f"({sql})", read="duckdb")
        for table in body.find_all(exp.Table):
            table.meta[SHAPE] = PG_SHAPES[table.name].key
        found[name, len(parameters)] = (parameters, body)
    return found
