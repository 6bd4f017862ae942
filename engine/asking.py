"""One row of one query, with nothing left open; the engine's small work while memory is short.

A DuckDB cursor with an unfinished result refuses other work, and in autocommit its transaction stays
open: `fetchone` alone leaves it so. Everything that wants one row asks here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import duckdb

from .duckdb_errors import translated
from .errors import OutOfMemory

T = TypeVar("T")

# How often the engine asks for a little memory where others have all of it, and how long it waits between.
MEMORY_TRIES = 40
MEMORY_AGAIN_S = 0.05


def ask(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
) -> tuple[Any, ...]:
    """The first row of a query that has one.

    Raises:
        duckdb.Error: the query's own.
    """
    row = ask_maybe(cursor, sql, parameters)
    assert row is not None, "the query answers a row"
    return row


def ask_maybe(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
) -> tuple[Any, ...] | None:
    """The first row of a query, None where it has none."""
    rows = cursor.execute(sql, parameters or None).fetchall()
    return tuple(rows[0]) if rows else None


def with_memory(work: Callable[[], T]) -> T:
    """Do a small piece of the engine's own work; again, for some two seconds, while others have the memory.

    Raises:
        duckdb.Error: the work's own.
    """
    for _ in range(MEMORY_TRIES - 1):
        try:
            return work()
        except duckdb.Error as error:
            if not isinstance(translated(error), OutOfMemory):
                raise
            time.sleep(MEMORY_AGAIN_S)
    return work()
