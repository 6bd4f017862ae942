"""The use that a query makes of its stream scans: the shape that decides the read position.

Each scan falls in one row of the read-position table of docs/sql.md, "Committing":

- ROWWISE: the answer's rows are the scan's events in LSN order, some rejected: selects, filters, LIMIT. The
  position follows the sent rows. To identify them, the session carries the hidden column `__ducktail_lsn`
  from the scan (its last column) to the answer: `edits` add it to select lists without a star, and the
  session removes it from the rows again. DuckDB keeps the order of rows through selects and filters, but not
  through the joins that it makes of subqueries, long lists and functions over lists (measured: `op NOT IN
  (eight words) LIMIT n` returns any n rows). For operators beyond those that surely keep it, `edits` have an
  ORDER BY, which is omitted if DuckDB's plan keeps the order after all (reading/row_order.py).
- WHOLE: the answer depends on all events of the scan (aggregate, join, other order, INSERT, COPY); once it is
  complete, all is read. If it contains a row-wise query with a LIMIT, that query is the `unit`: the position
  follows its rows. It runs by itself (it refers to nothing outside) and has its own hidden column from its
  scan; other scans of WHOLE have no hidden column, because `SELECT *` over a join would show it.
- UNCHANGED: nothing is read, or no group reads.
- NONE: any other shape. The events that were read cannot be determined; `reason` states the cause.

The tree is sqlglot's, the positions are those of the user's text. If they do not match, the shape falls back
to WHOLE without a LIMIT above, else to NONE: never to a position beyond the returned events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...engine.quoting import fold
from ..language.parse import KEPT_CHARACTERS_MAX, KEPT_QUERIES, Query
from ..language.statements import Parameter, Scan
from .shape_types import HIDDEN_LSN, Edit, Plain, ReadKind, RowCut, Shape, Unit
from .walk import shape_of

__all__ = ["HIDDEN_LSN", "Edit", "Plain", "ReadKind", "RowCut", "Shape", "Unit", "bound", "shapes_of"]


def shapes_of(query: Query, columns: tuple[tuple[str, ...] | None, ...] = ()) -> tuple[Shape, ...]:
    """The shape of each scan of a query, in the order of `query.scans`.

    Args:
        columns: the columns of each scan in ENVELOPE CHANGES, None for others; () if none is known.
    """
    # A kept shape would keep its query, with the whole tree of a long one.
    return (_kept_shapes if len(query.text) <= KEPT_CHARACTERS_MAX else _shapes)(query, columns)


def _shapes(query: Query, columns: tuple[tuple[str, ...] | None, ...]) -> tuple[Shape, ...]:
    of_each = columns or (None,) * len(query.scans)
    return _once([shape_of(query, scan, names) for scan, names in zip(query.scans, of_each, strict=True)], ())


_kept_shapes = lru_cache(KEPT_QUERIES)(_shapes)


TWICE = "the query reads the group twice"


def _once(shapes: Sequence[Shape], values: Sequence[object]) -> tuple[Shape, ...]:
    """The shapes, without a read position if two read one group, as far as text and parameters show."""
    if len(shapes) == 1:
        return tuple(shapes)
    read = [_group_of(shape.scan, values) for shape in shapes]
    return tuple(
        replace(shape, kind=ReadKind.NONE, reason=TWICE, edits=(), unit=None, cuts=())
        if shape.kind in (ReadKind.ROWWISE, ReadKind.WHOLE)
        and any(other is not group and _is_same(group, other) for other in read)
        else shape
        for shape, group in zip(shapes, read, strict=True)
    )


Group = tuple[object, list[str]]


def _group_of(scan: Scan, values: Sequence[object]) -> Group:
    """The name of the scan's group, None without one, and the parts of its stream's name."""
    name: object = scan.group
    if isinstance(name, Parameter) and name.index <= len(values):
        name = values[name.index - 1]
    return fold(name) if isinstance(name, str) else name, _parts(scan)


def _is_same(a: Group, b: Group) -> bool:
    shorter = min(len(a[1]), len(b[1]))
    return a[0] is not None and a[0] == b[0] and a[1][-shorter:] == b[1][-shorter:]


def _parts(scan: Scan) -> list[str]:
    return [fold(part) for part in scan.stream.parts]


def bound(shapes: Sequence[Shape], values: Sequence[object]) -> tuple[Shape, ...]:
    """The shapes for known parameters: a LIMIT of 0 reads nothing, and two scans may name one group.

    Args:
        values: the values of the parameters, `$1` first.
    """
    return _once([_bound(shape, values) for shape in shapes], values)


def _bound(shape: Shape, values: Sequence[object]) -> Shape:
    for limit in (*shape.limits, shape.transactions):
        if isinstance(limit, Parameter) and limit.index <= len(values):
            value = values[limit.index - 1]
            if isinstance(value, int | str) and str(value).strip() == "0":
                return replace(
                    shape, kind=ReadKind.UNCHANGED, reason="", edits=(), unit=None, cuts=(), empty=True
                )
    return shape
