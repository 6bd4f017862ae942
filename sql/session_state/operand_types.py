"""Types of parameters that DuckDB's binder does not determine, by PostgreSQL's rule of the other operand.

DuckDB determines a parameter's type where one is required (a comparison, a column of an INSERT, CASE). At an
operator it gives up on the whole statement: its result is one column `unknown`, and parameters that it has
not reached have no type. PostgreSQL takes the type of the operand beside the parameter: `n + $1` adds two
values of n's type, `id = ANY($1)` has an array of id's, a row of VALUES has the types of the other rows.

The binder itself is asked for that type, since only it knows the scope: it binds a text with `coalesce(n,
$1)` in the place of `$1`, and coalesce gives both arguments one type. An operand with a parameter of its own
(`n + $1 + $2`) has a type when that parameter has one, in the next round.
Source: PostgreSQL documentation, "Operator Type Resolution", "UNION, CASE, and Related Constructs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import duckdb
from sqlglot import exp, parse_one
from sqlglot.errors import ErrorLevel, SqlglotError

from ...engine.duck.binding import Bound
from ...engine.quoting import ident
from ..text.spans import Replacement, cut
from ..text.tokens import PARAMETER, Token, tokenize

# A longer text is not parsed: its parameters are texts, as before any rule.
TEXT_MAX = 64 * 1024
# Rounds, each of which binds: parameters in a chain of operators need one each.
ROUNDS_MAX = 64
# The expressions whose type is tried: the operand, and a difference: to a moment an interval is added.
FORMS = ("{operand}", "({operand}) - ({operand})")
# The types tried for parameters without an operand beside them (`SELECT n + $1, $2, abs($3)`).
ALONE = (None, "VARCHAR", "DECIMAL(38,10)")
# The name that stands for a parameter in the parsed text, by its place among the text's parameters.
_MARK = "__ducktail_parameter_{}_"
_MARKS = re.compile(_MARK.format(r"(\d+)"))
_OPERATORS = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Pow, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor,
)  # fmt: skip
_COMPARISONS = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.ILike, exp.NullSafeEQ, exp.NullSafeNEQ,
)  # fmt: skip
# ANY and ALL where sqlglot has no node of its own for them.
_QUANTIFIERS = frozenset({"ANY", "ALL", "SOME"})


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter at one place of the text.

    Args:
        name: "1", "2" and so on.
        operands: expressions whose type it takes, as SQL texts with marks for parameters, the first one
            with a type first.
    """

    token: Token
    name: str
    operands: tuple[str, ...]


def operand_types(bind: Callable[[str], Bound], text: str, known: Mapping[str, str]) -> dict[str, str]:
    """The types of parameters that have an operand beside them, and of those that have a type by then.

    Args:
        bind: binds a text.
        known: the types of parameters that the client has declared.
    """
    places = _places(text)
    settled = dict(known)
    if not any(place.operands and place.name not in settled for place in places):
        return {}
    for _ in range(ROUNDS_MAX):
        found = _round(bind, text, places, settled)
        if not found:
            break
        settled |= found
    return {name: type_ for name, type_ in settled.items() if name not in known}


def _round(
    bind: Callable[[str], Bound], text: str, places: list[_Parameter], settled: Mapping[str, str]
) -> dict[str, str]:
    """The types of the parameters beside operands that have a type now."""
    beside: dict[str, tuple[_Parameter, str]] = {}
    for place in places:
        if place.name not in settled and place.name not in beside:
            operand = next(filter(None, (_typed(sql, places, settled) for sql in place.operands)), None)
            if operand is not None:
                beside[place.name] = place, operand
    for form, alone in product(FORMS, ALONE) if beside else ():
        pieces = []
        for place in places:
            put = None if alone is None else f"(NULL::{alone})"
            if place.name in settled:
                put = f"(NULL::{settled[place.name]})"
            elif place.name in beside:
                # The first place determines the type, as in PostgreSQL.
                first, operand = beside[place.name]
                sql = form.format(operand=operand)
                put = f"coalesce({sql}, ${place.name})" if place is first else "(NULL)"
            if put is not None:
                pieces.append(Replacement(place.token.start, place.token.end, put))
        try:
            bound = bind(cut(text, pieces))
        except duckdb.Error:
            continue  # The operator needs another type, or so does a parameter alone.
        known = bound.parameters.keys() - bound.untyped - settled.keys()
        if known & beside.keys():
            return {name: bound.parameters[name] for name in known}
    return {}


def _typed(sql: str, places: list[_Parameter], settled: Mapping[str, str]) -> str | None:
    """An operand with NULLs in the places of its parameters; None if one of them has no type yet."""
    inside = {places[int(at)].name for at in _MARKS.findall(sql)}
    if not inside <= settled.keys():
        return None
    return _MARKS.sub(lambda mark: f"(NULL::{settled[places[int(mark[1])].name]})", sql)


def _places(text: str) -> list[_Parameter]:
    """The parameters of a text, in its order, with their operands; none if sqlglot cannot parse it."""
    if len(text) > TEXT_MAX:
        return []
    tokens = [token for token in tokenize(text) if token.kind == PARAMETER]
    marked = [Replacement(token.start, token.end, _MARK.format(at)) for at, token in enumerate(tokens)]
    try:
        tree = parse_one(cut(text, marked), read="duckdb")
    except SqlglotError:
        return []
    nodes = {
        int(found[1]): column
        for column in tree.find_all(exp.Column)
        if (found := _MARKS.fullmatch(column.name)) is not None
    }
    return [
        _Parameter(token, token.text[1:].strip(), tuple(_operands(nodes[at])) if at in nodes else ())
        for at, token in enumerate(tokens)
    ]


def _operands(node: exp.Expr) -> list[str]:
    """The expressions whose type a parameter takes, as SQL."""
    parent = node.parent
    while isinstance(parent, (exp.Paren, exp.Alias)):
        node, parent = parent, parent.parent
    if isinstance(parent, _OPERATORS):
        return [_sql(_other(parent, node))]
    if isinstance(parent, exp.Any) or (
        isinstance(parent, exp.Anonymous) and parent.name.upper() in _QUANTIFIERS
    ):
        comparison = parent.parent
        return [f"[{_sql(_other(comparison, parent))}]"] if isinstance(comparison, _COMPARISONS) else []
    if isinstance(parent, exp.Tuple):
        return _in_row(parent, _index(parent.expressions, node))
    if isinstance(parent, exp.GenerateSeries):
        return [_sql(other) for other in parent.iter_expressions() if other is not node]
    if isinstance(parent, exp.Select):
        return _in_select(parent, _index(parent.expressions, node))
    return []


def _in_row(row: exp.Tuple, at: int) -> list[str]:
    """The values beside one in a row: those of other rows of VALUES, or of the row it is compared with."""
    parent = row.parent
    rows: list[exp.Expr] = []
    if isinstance(parent, exp.Values):
        rows = parent.expressions
    elif isinstance(parent, _COMPARISONS):
        rows = [_other(parent, row)]
    elif isinstance(parent, exp.In):
        rows = [parent.this]
    values = [other.expressions[at] for other in rows if isinstance(other, exp.Tuple) and other is not row]
    return [_sql(value) for value in values]


def _in_select(select: exp.Select, at: int) -> list[str]:
    """The column that a select list fills in an INSERT or has in the other query of a UNION; else a text."""
    parent = select.parent
    if parent is None:
        return ["''"]
    if isinstance(parent, exp.SetOperation):
        return _in_query(_other(parent, select), at)
    if not isinstance(parent, exp.Insert) or parent.expression is not select:
        return []
    target = parent.this
    if not isinstance(target, exp.Schema):
        return [_column(_sql(target), at)]
    if at >= len(target.expressions):
        return []
    return [f"(SELECT {ident(target.expressions[at].name)} FROM {_sql(target.this)} LIMIT 0)"]


def _in_query(query: exp.Expr, at: int) -> list[str]:
    """One column of a query."""
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.this
    if not isinstance(query, exp.Select):
        return []
    if any(item.is_star for item in query.expressions):
        return [_column(f"({_sql(query)})", at)]
    if at >= len(query.expressions):
        return []
    alone = query.copy()
    alone.set("expressions", [alone.expressions[at]])
    return [_column(f"({_sql(alone)})", 0)]


def _column(relation: str, at: int) -> str:
    """A column of a relation by its place."""
    names = ", ".join(f"c{place}" for place in range(at + 1))
    return f"(SELECT c{at} FROM {relation} AS operand({names}) LIMIT 0)"


def _other(parent: exp.Expr, node: exp.Expr) -> exp.Expr:
    one, other = parent.this, parent.expression
    found: exp.Expr = other if one is node else one
    return found


def _index(nodes: list[exp.Expr], node: exp.Expr) -> int:
    return next((at for at, other in enumerate(nodes) if other is node), len(nodes))


def _sql(node: exp.Expr) -> str:
    return node.sql("duckdb", unsupported_level=ErrorLevel.IGNORE)
