"""The order of the rows of a query over a scan: predicted from DuckDB's plan, and checked on the rows.

A group's read position is the LSN of the last returned row, so rows in another order would skip events.
DuckDB keeps the order of rows through projections, filters and limits, but not through joins; it turns
subqueries, lists of constants and functions over such lists into joins. If a query has operators beyond those
that surely keep the order (`read_shape/columns.py`), its plan is read (about a millisecond). With any plan,
the rows of a group are checked as they arrive.

`taken_whole` takes the rows of a query into memory, for another read by the same session. Arrow loses some of
DuckDB's types unless a setting prevents it, and a few even then (engine/values/arrow_types.py): these are
carried in another type and cast back where the rows are read.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...engine.duck.binding import type_text
from ...engine.errors import InternalError
from ...engine.quoting import ident
from ...engine.values.arrow_types import carrier_sql, restored_sql
from ..cluster.gathering import Gathered, Numbers
from ..session_state.context import Context
from ..session_state.run_text import LOSSY

# Operators of DuckDB's plans that keep the order of their input, and those of the user's own ORDER BY, which
# is by LSN where a shape is row-wise.
_KEEPING = frozenset({
    "EMPTY_RESULT", "FILTER", "LIMIT", "ORDER_BY", "PROJECTION", "PYTHON_ARROW_SCAN", "STREAMING_LIMIT",
    "TOP_N",
})  # fmt: skip


class Order(enum.Enum):
    """The effect of a plan on the order of a scan's rows."""

    KEPT = "kept"
    LOST = "lost"
    # Several rows come from one event, so that the returned events are unknown.
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
        gathered: the events, if they are from several nodes: their LSNs rise within each partition only.
    """

    def __init__(self, gathered: Gathered | None = None) -> None:
        self._gathered = gathered
        self._last: dict[int, int] = {}  # partition, or 0 for all -> the last row's

    def check(self, hidden: Numbers) -> None:
        """Check the next rows, by their hidden column.

        Raises:
            InternalError: a row is out of order or a duplicate.
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


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows with columns c0, c1, .., and the columns' names and types in the query."""

    table: pa.Table
    names: tuple[str, ...]
    types: tuple[str, ...]

    def query(self, relation: str, without: str) -> str:
        """The SELECT that reads the rows, registered as `relation`, under their names and types.

        Args:
            without: the name of an omitted column.
        """
        items = [
            f"{restored_sql(f'c{place}', type_)} AS {ident(name)}"
            for place, (name, type_) in enumerate(zip(self.names, self.types, strict=True))
            if name != without
        ]
        return f"SELECT {', '.join(items)} FROM {relation}"


def taken_whole(session: Context, text: str, values: Sequence[object]) -> Taken:
    """Run a query on the session's cursor and take all its rows."""
    parameters = list(values) or None
    relation = session.cursor.sql(text, params=parameters)
    names, types = tuple(relation.columns), tuple(map(type_text, relation.types))
    places = [f"c{place}" for place in range(len(names))]
    items = [f"{carrier_sql(place, type_)} AS {place}" for place, type_ in zip(places, types, strict=True)]
    session.cursor.execute("SET SESSION arrow_lossless_conversion = true")
    try:
        # The line break ends a comment at the text's end.
        wrapped = f"SELECT {', '.join(items)} FROM ({text}\n) AS taken({', '.join(places)})"
        table = session.cursor.sql(wrapped, params=parameters).to_arrow_table()
        session.cursor.execute(LOSSY)
    except BaseException:
        # A failed transaction takes no setting: it is put back before the next statement.
        session.cursors.later(LOSSY)
        raise
    return Taken(table, names, types)
