"""Several statements of the engine's own on one cursor, in one DuckDB transaction: all of them or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb


@contextmanager
def whole(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Commit what is done within; roll it back where that, or the COMMIT, raises."""
    with undone(cursor):
        cursor.execute("BEGIN")
        yield
        cursor.execute("COMMIT")


@contextmanager
def undone(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Roll back what is begun within where something raises; who begins commits."""
    try:
        yield
    except BaseException:
        with suppress(duckdb.Error):  # DuckDB may have ended it with the error that is told.
            cursor.execute("ROLLBACK")
        raise
