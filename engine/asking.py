"""One row of one query, with nothing left open.

A DuckDB cursor with an unfinished result refuses other work, and in autocommit its transaction stays
open: `fetchone` alone leaves it so. Everything that wants one row asks here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb


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
