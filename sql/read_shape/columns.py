"""The event columns in a select, and the path of the hidden column through it.

Columns are followed by name from the scan upwards. Forms that cannot be followed (COLUMNS(), a whole row as a
value, two stars) are recorded, and the shape falls back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlglot import exp

from ...engine.log.envelope_changes import CHANGE_NAMES
from ...engine.log.log import DELIVERIES, EVENT_NAMES
from ...engine.quoting import fold
from ..language.scan import Scan

N = TypeVar("N", bound=exp.Expr)

# DuckDB's aggregates, and its macros over aggregates, of which sqlglot knows only some. A test compares this
# list with `duckdb_functions()`.
_AGGREGATES = """
any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null
arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and
bit_or bit_xor bitstring_agg bool_and bool_or combine_aggr corr count count_if count_star countif
covar_pop covar_samp decimal_average entropy favg first fsum geomean geometric_mean group_concat
histogram histogram_exact json_group_array json_group_object json_group_structure kahan_sum
kurtosis kurtosis_pop last list listagg lttb mad max max_by mean median min min_by mode product
quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2
regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop
stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance
variant_group_array variant_group_object wavg weighted_avg
"""
AGGREGATES = frozenset(_AGGREGATES.split())
_ROW_MAKING = frozenset({"unnest", "generate_subscripts", "unpack"})


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a relation: its name, and the event column that it equals, if any."""

    name: str
    event: str | None


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A relation in FROM.

    Args:
        alias: the name by which its columns may be qualified.
        outputs: its columns in order; None if unknown.
        hidden_last: the hidden column follows all of them.
        joined: other relations are beside it, so that only qualified names are surely its columns.
    """

    alias: str | None
    outputs: tuple[Output, ...] | None
    hidden_last: bool = True
    joined: bool = False

    def renamed(self, alias: str | None, columns: list[str]) -> ColumnSource | None:
        """The relation under a table alias and column names; None if they do not match its columns."""
        if not columns:
            return ColumnSource(alias, self.outputs, self.hidden_last)
        if self.outputs is None or not self.hidden_last or len(columns) > len(self.outputs):
            return None
        named = [Output(name, old.event) for name, old in zip(columns, self.outputs, strict=False)]
        return ColumnSource(alias, (*named, *self.outputs[len(columns) :]))

    def has(self, name: str) -> bool:
        """True if a column has that name."""
        return any(fold(output.name) == fold(name) for output in self.outputs or ())

    def event_of(self, column: exp.Expr | None) -> str | None:
        """The event column that an expression equals, unchanged."""
        if not isinstance(column, exp.Column) or isinstance(column.this, exp.Star):
            return None
        if column.db or (column.table and fold(column.table) != fold(self.alias or "")):
            return None
        if self.joined and not column.table:
            return None
        name = fold(column.name)
        return next((output.event for output in self.outputs or () if fold(output.name) == name), None)


EVENT = tuple(Output(name, name) for name in EVENT_NAMES)
COUNTED_EVENT = (*EVENT, Output(DELIVERIES[0], DELIVERIES[0]))
# Event columns by the names of ENVELOPE CHANGES. The table's own columns are distinguished from them by a
# blank, which no event column's name contains.
_CHANGES = dict(zip(CHANGE_NAMES, ("op", "txid", "commit_time", "lsn", "partition"), strict=True))


def outputs_of_scan(scan: Scan, columns: Sequence[str] | None) -> tuple[Output, ...] | None:
    """The columns that a scan returns; None if unknown.

    Args:
        columns: all columns in ENVELOPE CHANGES.
    """
    if scan.envelope == "json":
        return COUNTED_EVENT if scan.deliveries else EVENT
    if columns is None:
        return None
    return tuple(Output(name, _CHANGES.get(name, f" {name}")) for name in columns)


def own(node: exp.Expr | None, kinds: type[N] | tuple[type[N], ...]) -> Iterator[N]:
    """The nodes of some kinds in an expression, except in subqueries."""
    if node is None:
        return
    for found in node.walk(prune=lambda inner: inner is not node and isinstance(inner, exp.Query)):
        if isinstance(found, kinds):
            yield found


def values_of(select: exp.Select) -> Iterator[exp.Expr]:
    """The expressions of a select that may contain an aggregate or a window."""
    yield from select.expressions
    for part in ("order", "having", "qualify"):
        node = select.args.get(part)
        if node is not None:
            yield node


def has_aggregate(select: exp.Select) -> bool:
    """True if the select aggregates rows."""
    if select.args.get("group") or select.args.get("having"):
        return True
    return any(_folds(function) for value in values_of(select) for function in own(value, exp.Func))


def _folds(function: exp.Func) -> bool:
    if isinstance(function.parent, exp.Window):
        return False
    if isinstance(function, exp.Anonymous):
        return fold(function.name) in AGGREGATES
    return isinstance(function, exp.AggFunc)


def has_window(select: exp.Select) -> bool:
    """True if the select has window functions or QUALIFY."""
    if select.args.get("qualify") or select.args.get("windows"):
        return True
    return any(True for value in values_of(select) for _ in own(value, exp.Window))


def makes_rows(select: exp.Select) -> bool:
    """True if the select list makes several rows from one."""
    for value in select.expressions:
        for function in own(value, exp.Func):
            if isinstance(function, exp.Explode | exp.Unnest | exp.Posexplode | exp.Inline):
                return True
            if isinstance(function, exp.Anonymous) and fold(function.name) in _ROW_MAKING:
                return True
    return False


# DuckDB makes a join of a list with more constants (of five in 2.0; a test checks it).
_LISTED_MAX = 3
# Operators of DuckDB's grammar that make no join and no second row. Functions are not among them: any may be
# a macro, and DuckDB makes joins of some (`list_contains` of a constant list, in 2.0).
_ORDERLY = frozenset({
    exp.Add, exp.Alias, exp.And, exp.Between, exp.Boolean, exp.Case, exp.Cast, exp.Coalesce, exp.Column,
    exp.DPipe, exp.DataType, exp.DataTypeParam, exp.Div, exp.EQ, exp.Escape, exp.GT, exp.GTE, exp.Identifier,
    exp.If, exp.ILike, exp.In, exp.IntDiv, exp.Is, exp.JSONExtract, exp.JSONExtractScalar, exp.JSONPath,
    exp.JSONPathKey, exp.JSONPathRoot, exp.JSONPathSubscript, exp.LT, exp.LTE, exp.Like, exp.Literal, exp.Mod,
    exp.Mul, exp.NEQ, exp.Neg, exp.Not, exp.Null, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Or, exp.Parameter,
    exp.Paren, exp.Placeholder, exp.Star, exp.Sub, exp.TryCast, exp.Where,
})  # fmt: skip


def keeps_order(select: exp.Select) -> bool:
    """True if DuckDB is known to return the select's rows in the order in which it read them.

    It does so through projections and filters with the operators above. Other forms may become joins, which
    keep no order: `reading/row_order.py` reads the plan.
    """
    where = select.args.get("where")
    return all(
        type(node) in _ORDERLY and not (isinstance(node, exp.In) and not _is_short(node))
        for value in (*select.expressions, *([where] if where is not None else ()))
        for node in value.walk()
    )


def _is_short(listed: exp.In) -> bool:
    """True if IN has a short list and no other operand."""
    given = {name for name, value in listed.args.items() if value}
    return given == {"this", "expressions"} and len(listed.expressions) <= _LISTED_MAX


def is_star(value: exp.Expr, source: ColumnSource) -> bool:
    """True if an entry of a select list is a star over the source."""
    if isinstance(value, exp.Column) and isinstance(value.this, exp.Star):
        return not value.db and fold(value.table) == fold(source.alias or "")
    return isinstance(value, exp.Star)


def stars(select: exp.Select, source: ColumnSource) -> int:
    """The number of stars over the source in a select list."""
    return sum(is_star(value, source) for value in select.expressions)


def is_followed(select: exp.Select, source: ColumnSource, inside: exp.Expr) -> bool:
    """True if the hidden column passes through the select and is not visible anywhere else.

    Args:
        inside: the source's own tree, whose names are not those of this select.
    """
    if stars(select, source) > 1:
        return False
    for value in select.expressions:
        if any(True for _ in own(value, exp.Columns)):
            return False
        if not is_star(value, source) and any(True for _ in own(value, exp.Star)):
            return False
    return not _has_whole_row(select, source, inside)


def _has_whole_row(select: exp.Select, source: ColumnSource, inside: exp.Expr) -> bool:
    """True if the source's row is used as one value, as in `to_json(s)`, which would show the column."""
    if source.alias is None:
        return False
    alias = fold(source.alias)
    for node in select.walk(prune=lambda inner: inner is inside):
        if isinstance(node, exp.Column) and not node.table and fold(node.name) == alias:
            if not source.has(alias):
                return True
    return False


def outputs_of(select: exp.Select, source: ColumnSource) -> tuple[Output, ...] | None:
    """The columns of a select; None if they cannot be determined."""
    outputs: list[Output] = []
    for value in select.expressions:
        if is_star(value, source):
            if source.outputs is None:
                return None
            outputs += _starred(value.this if isinstance(value, exp.Column) else value, source.outputs)
        elif isinstance(value, exp.Alias):
            outputs.append(Output(value.alias, source.event_of(value.this)))
        elif isinstance(value, exp.Column) and not isinstance(value.this, exp.Star):
            event = source.event_of(value)
            outputs.append(Output(_written(value, source), event))
        else:
            outputs.append(Output(value.output_name, None))
    return tuple(outputs)


def _written(column: exp.Column, source: ColumnSource) -> str:
    """The column's name as its relation spells it, which DuckDB uses."""
    name = column.name
    found = (output.name for output in source.outputs or () if fold(output.name) == fold(name))
    return next(found, name)


def _starred(star: exp.Expr, outputs: tuple[Output, ...]) -> list[Output]:
    """The columns of `* EXCLUDE (...) REPLACE (...) RENAME (...)`."""
    out = {fold(node.name) for node in star.args.get("except_") or ()}
    new = {fold(node.alias) for node in star.args.get("replace") or ()}
    names = {fold(node.this.name): node.alias for node in star.args.get("rename") or ()}
    return [
        Output(names.get(fold(o.name), o.name), None if fold(o.name) in new else o.event)
        for o in outputs
        if fold(o.name) not in out
    ]


def hidden_is_last(select: exp.Select, source: ColumnSource) -> bool:
    """True if the hidden column is the select's last one."""
    if stars(select, source) == 0:
        return True
    return source.hidden_last and is_star(select.expressions[-1], source)


# An upper bound of the columns of a select list.
_ORDINAL_DIGITS_MAX = 6


def is_in_lsn_order(select: exp.Select, source: ColumnSource, pairs: bool) -> bool:
    """True if ORDER BY keeps the scan's order: it is absent, or begins with the LSN, ascending.

    Args:
        pairs: two rows may have one LSN, so that the order after the LSN matters too.
    """
    order = select.args.get("order")
    if order is None:
        return True
    if pairs and len(order.expressions) > 1:
        return False
    lsn = "lsn"
    first = order.expressions[0]
    if not isinstance(first, exp.Ordered) or first.args.get("desc") or first.args.get("with_fill"):
        return False
    value = first.this
    if isinstance(value, exp.Literal) and value.is_int and len(value.name) <= _ORDINAL_DIGITS_MAX:
        return _event_at(select, source, int(value.name) - 1) == lsn
    if isinstance(value, exp.Column) and not value.table:
        for entry in select.expressions:
            if isinstance(entry, exp.Alias) and fold(entry.alias) == fold(value.name):
                return source.event_of(entry.this) == lsn
    return source.event_of(value) == lsn


def _event_at(select: exp.Select, source: ColumnSource, index: int) -> str | None:
    """The event column at an index of the select list, from 0, that no hidden column has shifted."""
    for entry in select.expressions:
        if is_star(entry, source):
            starred = _starred(entry.this if isinstance(entry, exp.Column) else entry, source.outputs or ())
            # The hidden column follows the star and shifts the later columns.
            return starred[index].event if 0 <= index < len(starred) else None
        if index == 0:
            return source.event_of(entry.this if isinstance(entry, exp.Alias) else entry)
        index -= 1
    return None
