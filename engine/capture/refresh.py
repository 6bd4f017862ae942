"""A refresh: new contents of a captured table, of which only what differs is written and logged.

In shape C: the log from the difference (`difference.py`: one FULL JOIN of the table and its new contents on
the primary key), then the table from the log, by row id. So a row that is as it was costs a look, and the
table keeps its constraints, its indexes and its defaults. Source: docs/refreshes.md.
"""

from __future__ import annotations

from ..quoting import ident
from ..table import TableShape
from .description import CapturedTable, Plan, Shape
from .determinism import compares_inexactly
from .difference import Difference
from .log_first import apply_delete, apply_insert, apply_update, split_deletes, touches_unique
from .rows import conflict_hash, images, logged


def plan_refresh(table: CapturedTable, source: str, *, minimal: bool) -> Plan:
    """Plan the replacement of a table's rows.

    Args:
        table: it has a primary key, and no generated columns.
        source: a table with the new rows, in columns of the same names and types.
        minimal: only what differs is an event; else each old row is a delete and each new one an insert.
    """
    shape = table.shape
    difference = Difference(
        shape,
        f"SELECT rowid AS rid,{_as('o', shape)} FROM {shape.qualified}",
        f"SELECT {_as('n', shape)} FROM {source}",
        whole=not minimal,
    )
    key = set(shape.primary_key)
    places = [i for i, column in enumerate(shape.stored) if column.name not in key]
    inexact = [i for i in places if compares_inexactly(shape.stored[i])] if minimal else []
    deletes, inserts = ("d", apply_delete(table)), ("i", apply_insert(table))
    updates = (("u", apply_update(table, places)),) if places and minimal else ()
    return Plan(
        shape=Shape.STAGED,
        log=difference.log_sql(table, inexact),
        lists_entries=False,
        entries=f"SELECT op,rid IS NULL,{conflict_hash('', shape)} FROM {logged(table)}",
        steps=(deletes, *updates, inserts),
        split_deletes=split_deletes(table),
        sliceable=not shape.unique_expressions and not touches_unique(shape, places),
    )


def _as(side: str, shape: TableShape) -> str:
    """The stored columns under the names of an image."""
    named = zip(shape.stored, images(side, shape).split(","), strict=True)
    return ",".join(f"{ident(column.name)} AS {name}" for column, name in named)
