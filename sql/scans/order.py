"""In which order DuckDB gives the rows of a query over a scan: asked of its plan, and checked on the rows.

A group's read position is the LSN of the last row that was given, so rows in another order would pass events
over. DuckDB keeps the order of rows through projections, filters and limits; it does not through joins, and
makes them of subqueries, of lists of constants and of functions over such lists. Where a query has more than
operators that surely keep the order (`shape/columns.py`), its plan is looked at (about a millisecond); and
whatever the plan says, the rows of a group are checked as they come.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence

import numpy as np

from ...engine.errors import InternalError
from ..context import Context
from ..spread.gathering import Gathered, Numbers

# Operators of DuckDB's plans that give rows in the order in which they take them, and those of the user's own
# ORDER BY, which is by LSN where a shape is row-wise.
_KEEPING = frozenset({
    "EMPTY_RESULT", "FILTER", "LIMIT", "ORDER_BY", "PROJECTION", "PYTHON_ARROW_SCAN", "STREAMING_LIMIT",
    "TOP_N",
})  # fmt: skip


class Order(enum.Enum):
    """What a plan does with the order of a scan's rows."""

    KEPT = "kept"
    LOST = "lost"
    # Several rows are made of one: which of them were given cannot be told.
    MULTIPLIED = "multiplied"


def order_of(session: Context, text: str, values: Sequence[object]) -> Order:
    """The order of a query's rows, by its plan with these parameters.

    Raises:
        duckdb.Error: the query cannot be bound.
    """
    explained = session.cursor.execute(f"EXPLAIN (FORMAT json) {text}", list(values) or None).fetchall()
    nodes = next((json.loads(plan) for name, plan in explained if name == "physical_plan"), [{"name": ""}])
    while len(nodes) == 1:
        name = nodes[0]["name"].strip()
        if name == "UNNEST":
            return Order.MULTIPLIED
        if name not in _KEEPING:
            return Order.LOST
        nodes = nodes[0]["children"]
    return Order.LOST if nodes else Order.KEPT


class Rising:
    """The check that rows come in the order of the scan, each event once.

    Args:
        gathered: the events, where they are of several nodes: their LSNs rise within each partition.
    """

    def __init__(self, gathered: Gathered | None = None) -> None:
        self._gathered = gathered
        self._last: dict[int, int] = {}  # partition, or 0 for all -> the last row's

    def check(self, hidden: Numbers) -> None:
        """The next rows, by their hidden column.

        Raises:
            InternalError: XX000, one stands before an earlier one, or has come already.
        """
        lsns, partitions = hidden, np.zeros(len(hidden), np.int64)
        if self._gathered is not None:
            lsns, partitions = self._gathered.lsns[hidden - 1], self._gathered.partitions[hidden - 1]
        for partition in np.unique(partitions).tolist():
            rows = lsns[partitions == partition]
            if rows[0] <= self._last.get(partition, -1) or not (rows[1:] > rows[:-1]).all():
                raise InternalError(
                    "the query gave its events out of the order of their LSNs",
                    hint="The read counts for nothing. Add ORDER BY lsn to the query that reads the stream.",
                )
            self._last[partition] = int(rows[-1])
