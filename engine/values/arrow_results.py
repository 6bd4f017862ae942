"""The result of a statement as Arrow, without binding its text twice.

DuckDB's public way, `cursor.sql(text)`, parses and binds the text once for the relation and once more to
run it: 1.6 ms of a one-row INSERT ... RETURNING, and as much of a publisher's query. What `execute` has
run gives its Arrow by a call that the public `to_arrow_table` of a cursor makes behind a warning; where a
later DuckDB has it no longer, the public way is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa

# Rows of an Arrow batch: DuckDB's own row group.
ARROW_BATCH_ROWS = 122_880


def arrow_table(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
    """The rows of the statement that has just run."""
    result_as_arrow = getattr(cursor, "_result_as_arrow", None)
    if result_as_arrow is None:
        return cursor.to_arrow_table()
    return result_as_arrow(ARROW_BATCH_ROWS, reader=False)


def arrow_batches(cursor: duckdb.DuckDBPyConnection, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Run a query; its rows in batches of about so many, while they are computed.

    The cursor is held until the last one is taken.
    """
    result_as_arrow = getattr(cursor, "_result_as_arrow", None)
    if result_as_arrow is None:
        yield from cursor.sql(sql).to_arrow_reader(rows)
        return
    cursor.execute(sql)
    yield from result_as_arrow(rows, reader=True)
