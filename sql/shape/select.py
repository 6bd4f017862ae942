"""One select on the way up from a scan: does it keep rows as they are, and what does it cut?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqlglot import exp

from ...engine.quoting import fold
from ..language.nodes import counts_transactions
from ..language.statements import Number
from .columns import (
    Output,
    Source,
    has_aggregate,
    has_window,
    hidden_is_last,
    is_followed,
    is_in_lsn_order,
    makes_rows,
    outputs_of,
)
from .pruning import facts_of, integer, is_constant_false, parameter_of
from .way import Level, Way


def renamed(source: Source, alias: exp.Expr, way: Way) -> Source:
    columns = [column.name for column in alias.args.get("columns") or ()]
    renamed = source.renamed(alias.name or None, columns)
    if renamed is None:
        way.followed = False
        return Source(alias.name or None, None)
    return renamed


def limit_of(node: exp.Expr, way: Way) -> Number | None:
    """The LIMIT of a select; LIMIT ALL and LIMIT NULL are none."""
    limit = node.args.get("limit")
    if limit is None:
        return None
    options = limit.args.get("limit_options")
    if counts_transactions(limit):
        _take_transactions(node, limit, way)
        return None
    if options is not None:
        if options.args.get("percent") or options.args.get("with_ties"):
            way.none("LIMIT is a percentage")
    value = limit.args.get("count") if isinstance(limit, exp.Fetch) else limit.args.get("expression")
    if isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return None
    if isinstance(limit, exp.Fetch) and value is None:
        return 1
    number = number_of(value)
    if number is None:
        way.none("LIMIT is neither a number nor a parameter")
        return None
    if number == 0:
        way.unchanged = True
    way.limits.append(number)
    return number


def _take_transactions(node: exp.Expr, limit: exp.Expr, way: Way) -> None:
    """LIMIT n TRANSACTIONS: no LIMIT of rows, but the end of the scan below it."""
    if not isinstance(node, exp.Select):
        way.misplaced = f"it stands behind {_HOLDERS.get(type(node), 'a set operation')}"
    elif way.limited or way.limits:
        way.misplaced = "another LIMIT stands below it"
    elif has_offset(node):
        way.misplaced = "OFFSET stands with it"
    way.transactions = True
    if number_of(limit.args.get("expression")) == 0:
        way.unchanged = True


_HOLDERS: dict[type[exp.Expr], str] = {exp.Subquery: "a query in brackets"}


_WHOLE_NUMBERS = frozenset({exp.DType.INT, exp.DType.BIGINT, exp.DType.INT128})


def number_of(value: exp.Expr | None) -> Number | None:
    value = value.unnest() if value is not None else None
    if isinstance(value, exp.Cast) and value.to.this in _WHOLE_NUMBERS:
        # To another type it may be another number: 3::BOOLEAN is 1.
        value = value.this.unnest()
    if isinstance(value, exp.Literal):
        return integer(value.name)  # a string too: LIMIT '5'
    return parameter_of(value) if value is not None else None


def has_offset(node: exp.Expr) -> bool:
    offset = node.args.get("offset")
    return offset is not None and number_of(offset.expression) != 0


UNNESTED = "UNNEST stands in the select list"
# The clauses of a select that are looked at here or by the walk.
_CLAUSES = frozenset({
    "with_", "expressions", "distinct", "from_", "joins", "laterals", "where", "group", "having", "qualify",
    "windows", "order", "limit", "offset", "sample", "pivots",
})  # fmt: skip


def _obstacles(select: exp.Select) -> Iterator[str]:
    """What makes a read position impossible in this select."""
    if select.args.get("distinct"):
        yield "DISTINCT stands over the scan"
    if has_window(select):
        yield "a window function stands over the scan"
    if makes_rows(select):
        yield UNNESTED
    if has_offset(select):
        yield "OFFSET stands over the scan"
    if select.args.get("sample") or select.args.get("pivots"):
        yield "SAMPLE or PIVOT stands over the scan"
    for name, value in select.args.items():
        if value and name not in _CLAUSES:
            yield f"{name.strip('_').replace('_', ' ').upper()} stands over the scan"


_ODD_JOINS = frozenset({"ASOF", "POSITIONAL"})


def take_select(
    select: exp.Select, source: Source, inside: exp.Expr, point: int, alone: bool, way: Way
) -> Source:
    """Take one select into the way; gives what it makes of its source."""
    where = select.args.get("where")
    if where is not None and is_constant_false(where):
        way.unchanged = True
    limited_below = way.limited
    if way.rowwise and not limited_below and not _is_odd(select):
        way.facts += facts_of(select, replace(source, joined=not alone))
    for reason in _obstacles(select):
        way.none(reason)
    limit = limit_of(select, way)
    ends = has_aggregate(select) or not alone or not is_in_lsn_order(select, source, way.pairs)
    if way.rowwise and where is not None and limited_below:
        # The filter rejects rows that the LIMIT below has counted: those below are what was read.
        ends = True
    if ends:
        way.end_rows()
    elif way.rowwise:
        return _add_level(select, source, inside, point, limit, way)
    if limit is not None:
        way.none("a LIMIT stands over more than selects and filters of the scan")
    return Source(None, None)


def _is_odd(select: exp.Select) -> bool:
    """Whether rows are picked before WHERE by what else is there: a filter below would change which."""
    if select.args.get("sample"):
        return True
    joins = select.args.get("joins") or ()
    return any(
        str(join.args.get("method") or "").upper() in _ODD_JOINS or join.args.get("nearest") for join in joins
    )


def _add_level(
    select: exp.Select, source: Source, inside: exp.Expr, point: int, limit: Number | None, way: Way
) -> Source:
    outputs = outputs_of(select, source)
    given = Source(None, outputs, hidden_is_last(select, source))
    followed = way.followed and is_followed(select, source, inside)
    # Names that stand twice are fine at the top; below it DuckDB would rename one of them.
    way.followed = followed and not _has_twins(outputs)
    way.levels.append(Level(select, point, followed, source, given, limit))
    way.limited = way.limited or limit is not None
    return given


def _has_twins(outputs: tuple[Output, ...] | None) -> bool:
    names = [fold(output.name) for output in outputs or () if output.name]
    return len(set(names)) < len(names)


def add_modifiers(node: exp.Expr, way: Way) -> None:
    """The LIMIT and the like that stand behind a bracketed query or a set operation."""
    if has_offset(node):
        way.none("OFFSET stands over the scan")
    limit = limit_of(node, way)
    if limit is not None or node.args.get("order") is not None:
        if limit is not None:
            way.none("a LIMIT stands behind a query in brackets")
        way.end_rows()
