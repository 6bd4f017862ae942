"""What a query does with its stream scans: the shape that decides the read position.

Each scan falls in one row of the read-position table of docs/sql.md, "Committing":

- ROWWISE: the answer's rows are the scan's events in LSN order, some rejected: selects, filters,
  LIMIT. The position follows the rows that were sent. To see which they are, the session carries
  the hidden column `__ducktail_lsn` from the scan (its last column) to the answer: `edits` put it
  into select lists without a star, and the session takes it off the rows again. DuckDB keeps the
  order of rows through selects and filters, but not through the joins that it makes of subqueries
  and long IN lists (measured: `op NOT IN (eight words) LIMIT n` gives any n rows): there `edits`
  put an ORDER BY.
- WHOLE: the answer is made of all that the scan gave (aggregate, join, other order, INSERT, COPY);
  once it is complete, all is read. Where a row-wise query with a LIMIT stands inside, that query is
  the `unit`: the position follows its rows. It is run by itself (it names nothing outside itself)
  and takes its own hidden column from its scan; other scans of WHOLE give no hidden column, as
  `SELECT *` over a join would show it.
- UNCHANGED: nothing is read, or no group reads.
- NONE: any other shape. What was read cannot be told, and `reason` says why.

The tree is sqlglot's, the places are the user's text's. Where the two views cannot be brought
together, the shape falls to WHOLE without a LIMIT above, else to NONE: never to a position that
passes what the reader was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...engine.quoting import fold
from ..language.parse import KEPT_QUERIES, Query
from ..language.statements import Parameter, Scan, Text
from .values import HIDDEN_LSN, Cut, Edit, Kind, Plain, Shape, Unit
from .walk import shape_of

__all__ = ["HIDDEN_LSN", "Cut", "Edit", "Kind", "Plain", "Shape", "Unit", "bound", "shapes_of"]


@lru_cache(KEPT_QUERIES)
def shapes_of(query: Query, columns: tuple[tuple[str, ...] | None, ...] = ()) -> tuple[Shape, ...]:
    """The shape of each scan of a query, in the order of `query.scans`.

    Args:
        columns: of each scan in ENVELOPE CHANGES, None for others; () where none is known.
    """
    of_each = columns or (None,) * len(query.scans)
    shapes = [shape_of(query, scan, names) for scan, names in zip(query.scans, of_each, strict=True)]
    twice = [_read_twice(scan, query.scans) for scan in query.scans]
    return tuple(
        replace_by_none(shape, TWICE) if again and shape.kind in (Kind.ROWWISE, Kind.WHOLE) else shape
        for shape, again in zip(shapes, twice, strict=True)
    )


TWICE = "the query reads the group twice"


def replace_by_none(shape: Shape, reason: str) -> Shape:
    """The same scan with no read position."""
    return replace(shape, kind=Kind.NONE, reason=reason, edits=(), unit=None, cuts=())


def _read_twice(scan: Scan, scans: Sequence[Scan]) -> bool:
    return any(other is not scan and _same_group(scan, other) for other in scans)


def _same_group(a: Scan, b: Scan) -> bool:
    """Whether two scans read one group, as far as the text says."""
    if a.group is None or b.group is None or _folded(a.group) != _folded(b.group):
        return False
    shorter = min(len(a.stream.parts), len(b.stream.parts))
    return _parts(a)[-shorter:] == _parts(b)[-shorter:]


def _folded(name: Text) -> object:
    return name if isinstance(name, Parameter) else fold(name)


def _parts(scan: Scan) -> list[str]:
    return [fold(part) for part in scan.stream.parts]


def bound(shape: Shape, values: Sequence[object]) -> Shape:
    """The shape once the parameters are known: a LIMIT of 0 reads nothing.

    Args:
        values: of the parameters, `$1` first.
    """
    for limit in (*shape.limits, shape.transactions):
        if isinstance(limit, Parameter) and limit.index <= len(values):
            value = values[limit.index - 1]
            if isinstance(value, int | str) and str(value).strip() == "0":
                return replace(
                    shape, kind=Kind.UNCHANGED, reason="", edits=(), unit=None, cuts=(), empty=True
                )
    return shape
