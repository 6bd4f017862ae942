"""Queries of the engine on DuckDB cursors: one row, one transaction, a result as Arrow.

A DuckDB cursor with an unfinished result refuses other work, and in autocommit its transaction stays open,
for example after `fetchone`. Queries for one row use `ask`, which leaves nothing open. `in_one_transaction`
runs several statements, all of them or none; `with_memory` repeats small work of the engine while memory is
short.

`arrow_table` and `arrow_batches` return the result of a statement as Arrow without binding its text twice.
DuckDB's public way, `cursor.sql(text)`, parses and binds the text once for the relation and once more to run
it: 1.6 ms of a one-row INSERT ... RETURNING, and as much of a publisher's query. The result of `execute` is
converted to Arrow by the call that the public `to_arrow_table` of a cursor makes after a warning; if a later
DuckDB lacks that call, the public way is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ..errors import OutOfMemory
from .duckdb_errors import translated

T = TypeVar("T")

# Number of attempts of the engine to get a little memory while it is short, and the pauses between them.
MEMORY_TRIES = 40
MEMORY_AGAIN_S = 0.05
# Rows of an Arrow batch: DuckDB's own row group.
ARROW_BATCH_ROWS = 122_880


def ask(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
) -> tuple[Any, ...]:
    """The first row of a query that returns one.

    Raises:
        duckdb.Error: the query fails.
    """
    row = ask_maybe(cursor, sql, parameters)
    assert row is not None, "the query answers a row"
    return row


def ask_maybe(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
) -> tuple[Any, ...] | None:
    """The first row of a query, or None."""
    rows = cursor.execute(sql, parameters or None).fetchall()
    return tuple(rows[0]) if rows else None


def with_memory(work: Callable[[], T]) -> T:
    """Run a small piece of the engine's own work; repeat it for about two seconds while memory is short.

    Raises:
        duckdb.Error: the work fails.
    """
    for _ in range(MEMORY_TRIES - 1):
        try:
            return work()
        except duckdb.Error as error:
            if not isinstance(translated(error), OutOfMemory):
                raise
            time.sleep(MEMORY_AGAIN_S)
    return work()


def run_known(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Run statements without parameters whose text is constant: a process that opens many databases parses
    them once.

    Raises:
        duckdb.Error: a statement fails.
    """
    if sql not in _parsed:
        _parsed[sql] = cursor.extract_statements(sql)
    for statement in _parsed[sql]:
        cursor.execute(statement)


_parsed: dict[str, list[duckdb.Statement]] = {}


@contextmanager
def in_one_transaction(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """A context that commits its work, and rolls it back if the work or the COMMIT raises."""
    with rolled_back_on_error(cursor):
        cursor.execute("BEGIN")
        yield
        cursor.execute("COMMIT")


@contextmanager
def rolled_back_on_error(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """A context that rolls back its work if it raises; the caller begins and commits."""
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):  # The reported error may have ended the transaction.
            cursor.execute("ROLLBACK")
        raise


def arrow_table(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
    """The rows of the statement that was run last, as Arrow."""
    result_as_arrow = getattr(cursor, "_result_as_arrow", None)
    if result_as_arrow is None:
        return cursor.to_arrow_table()
    return result_as_arrow(ARROW_BATCH_ROWS, reader=False)


def arrow_batches(cursor: duckdb.DuckDBPyConnection, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Run a query and return its rows in batches of about `rows` rows while they are computed.

    The cursor is in use until the last batch is read.
    """
    result_as_arrow = getattr(cursor, "_result_as_arrow", None)
    if result_as_arrow is None:
        yield from cursor.sql(sql).to_arrow_reader(rows)
        return
    cursor.execute(sql)
    yield from result_as_arrow(rows, reader=True)
