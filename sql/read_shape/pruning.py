"""The conditions of a WHERE clause on a scan's own columns: facts that let the scan read less.

A fact is a conjunct that holds for every row that the query keeps: `partition = 2`, `lsn > $1`, `commit_time
>= '2024-05-01'`. Facts about `partition` choose partitions as the clause PARTITION does. The query's own
WHERE is still evaluated, so that an unused fact costs only time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from ..language.statements import Parameter, Scalar
from .columns import ColumnSource

PRUNING = ("partition", "lsn", "commit_time")
_NEVER_NULL = ("partition", "lsn")

_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A comparison of an event column with values.

    Args:
        column: 'partition', 'lsn' or 'commit_time'.
        operator: '=', '<>', '<', '<=', '>', '>=', 'in' or 'not in'.
        values: one value, or the list of IN. Integers for partition and lsn, text for commit_time (in the
            session's time zone), or parameters.
    """

    column: str
    operator: str
    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        assert self.column in PRUNING
        assert len(self.values) == 1 or self.operator in ("in", "not in")


def conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conjuncts of a predicate, in order."""
    left = [] if node is None else [node]
    while left:
        part = left.pop()
        if isinstance(part, exp.And):
            left += [part.expression, part.this]
        elif isinstance(part, exp.Paren | exp.Where):
            left.append(part.this)
        else:
            yield part


def facts_of(select: exp.Select, source: ColumnSource) -> tuple[Fact, ...]:
    """The facts of a select's WHERE about the columns of `source`."""
    found: list[Fact] = []
    for part in conjuncts(select.args.get("where")):
        found += _facts(part, source)
    return tuple(found)


def is_all_partition(select: exp.Select, source: ColumnSource) -> bool:
    """True if WHERE only selects partitions (or is absent)."""
    for part in conjuncts(select.args.get("where")):
        facts = _facts(part, source)
        if not facts or any(fact.column != "partition" for fact in facts):
            return False
    return True


def _facts(node: exp.Expr, source: ColumnSource) -> list[Fact]:
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        low = _compared(node.this, ">=", node.args.get("low"), source)
        high = _compared(node.this, "<=", node.args.get("high"), source)
        return [low, high] if low is not None and high is not None else []
    fact = _fact(node, source)
    return [fact] if fact is not None else []


def _fact(node: exp.Expr, source: ColumnSource) -> Fact | None:
    compares = _OPERATORS.get(type(node))
    if compares is not None:
        left, right = node.args["this"], node.args["expression"]
        return _compared(left, compares, right, source) or _compared(right, _FLIPPED[compares], left, source)
    if isinstance(node, exp.In):
        return _listed(node, "in", source)
    if isinstance(node, exp.Not) and isinstance(node.this, exp.In):
        return _listed(node.this, "not in", source)
    if isinstance(node, exp.Or):
        return _either(node, source)
    return None


def _compared(column: exp.Expr, compares: str, value: exp.Expr | None, source: ColumnSource) -> Fact | None:
    name = source.event_of(column)
    scalar = constant(value, name) if name in PRUNING and value is not None else None
    return Fact(name, compares, (scalar,)) if name is not None and scalar is not None else None


def _listed(node: exp.In, compares: str, source: ColumnSource) -> Fact | None:
    name = source.event_of(node.this)
    others = any(node.args.get(part) for part in ("query", "unnest", "field"))
    if name is None or name not in PRUNING or others or not node.expressions:
        return None
    values = [constant(value, name) for value in node.expressions]
    known = tuple(value for value in values if value is not None)
    return Fact(name, compares, known) if len(known) == len(values) else None


def _either(node: exp.Or, source: ColumnSource) -> Fact | None:
    """Read `partition = 1 OR partition = 2` as an IN, `partition < 1 OR partition IS NULL` without the NULL.

    Spark's JDBC source writes the latter for the first part of a partitioned read.
    """
    sides = (node.left.unnest(), node.right.unnest())
    facts = [_either(side, source) if isinstance(side, exp.Or) else _fact(side, source) for side in sides]
    left, right = facts
    for fact, other in ((left, sides[1]), (right, sides[0])):
        if fact is not None and fact.column in _NEVER_NULL and _is_null(other, fact.column, source):
            return fact
    if left is None or right is None or left.column != right.column:
        return None
    if {left.operator, right.operator} <= {"=", "in"}:
        return Fact(left.column, "in", left.values + right.values)
    return None


def _is_null(node: exp.Expr, column: str, source: ColumnSource) -> bool:
    """True for IS NULL of an event column, unless a join may have made it NULL."""
    if not isinstance(node, exp.Is) or not isinstance(node.expression, exp.Null) or source.joined:
        return False
    return source.event_of(node.this) == column


_INTEGERS = (
    exp.DType.BIGINT,
    exp.DType.INT,
    exp.DType.SMALLINT,
    exp.DType.TINYINT,
    exp.DType.UBIGINT,
    exp.DType.UINT,
)
# A cast to a date or a timestamp without zone reads a text differently.
_TIMES = (exp.DType.TIMESTAMPTZ,)


def constant(value: exp.Expr, column: str | None) -> Scalar | None:
    """A literal or parameter that can be compared with the column; None for anything else."""
    value = value.unnest()
    parameter = parameter_of(value)
    if parameter is not None:
        return parameter
    if isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
        types = _TIMES if column == "commit_time" else _INTEGERS
        if value.to.this not in types:
            return None
        return constant(value.this, column)
    if column == "commit_time":
        return value.name if isinstance(value, exp.Literal) and value.is_string else None
    negative = isinstance(value, exp.Neg)
    literal = value.this if negative else value
    if not isinstance(literal, exp.Literal):
        return None
    number = integer(literal.name)
    return None if number is None else -number if negative else number


def integer(text: str) -> int | None:
    """The number in a text of digits; None for other texts, and beyond an int8."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 19 else None


def parameter_of(value: exp.Expr) -> Parameter | None:
    """`$n` as a parameter; `?` has no number here (`number_question_marks` gives it one first)."""
    if not isinstance(value, exp.Placeholder):
        return None
    name = value.name
    number = integer(name)
    return Parameter(number) if number else None


def chosen_partitions(
    facts: Sequence[Fact], partitions: Collection[int], value_of: Callable[[Parameter], object]
) -> tuple[int, ...] | None:
    """The partitions that satisfy all facts, in order.

    Args:
        partitions: the existing partitions, or those in the clause PARTITION.
        value_of: returns a parameter's value, None for NULL.

    Returns:
        None if a value is no integer: then all partitions are scanned, WHERE is evaluated, and the read is
        not `Plain`.
    """
    kept = sorted(partitions)
    for fact in facts:
        if fact.column != "partition":
            continue
        values = [value_of(value) if isinstance(value, Parameter) else value for value in fact.values]
        numbers = [_number(value) for value in values if value is not None]
        if None in numbers:
            return None
        known = [number for number in numbers if number is not None]
        kept = [partition for partition in kept if _holds(partition, fact.operator, known, len(values))]
    return tuple(kept)


def _holds(partition: int, compares: str, known: Sequence[int], given: int) -> bool:
    """True if a comparison holds; NULLs are omitted from `known`, and `given` counts them."""
    if compares == "in":
        return partition in known
    if compares == "not in":
        return len(known) == given and partition not in known
    return bool(known) and _COMPARE[compares](partition, known[0])


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        sign = -1 if value.strip().startswith("-") else 1
        digits = integer(value.strip().lstrip("+-"))
        return None if digits is None else sign * digits
    return None


def is_constant_false(node: exp.Expr | None) -> bool:
    """True if a predicate keeps no row of any input: `1 = 0`, `false`, `x > 1 AND NULL`."""
    return any(_truth(part) in (False, "null") for part in conjuncts(node))


def _truth(node: exp.Expr) -> bool | str | None:
    """True, False or 'null' for a constant; None for another predicate."""
    node = node.unnest()
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Null):
        return "null"
    if isinstance(node, exp.Literal) and node.is_int:
        return integer(node.name) != 0
    if isinstance(node, exp.Not):
        inner = _truth(node.this)
        return not inner if isinstance(inner, bool) else inner
    if isinstance(node, exp.And | exp.Or):
        return _joined(node)
    compares = _OPERATORS.get(type(node))
    if compares is None:
        return None
    left, right = _literal(node.args["this"]), _literal(node.args["expression"])
    if left is None or right is None or isinstance(left, str) != isinstance(right, str):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return _COMPARE[compares](left, right)
    return {"=": left == right, "<>": left != right}.get(compares)


def _joined(node: exp.And | exp.Or) -> bool | str | None:
    sides = {_truth(node.left), _truth(node.right)}
    deciding = isinstance(node, exp.Or)
    if deciding in sides:
        return deciding
    if None in sides:
        return None
    return "null" if "null" in sides else not deciding


def _literal(node: exp.Expr) -> int | str | None:
    node = node.unnest()
    if isinstance(node, exp.Literal) and node.is_string:
        return node.name
    return integer(node.name) if isinstance(node, exp.Literal) else None
