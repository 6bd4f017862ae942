"""Rows from the gateway as Arrow batches: COPY ( query ) TO STDOUT (FORMAT arrow)."""

from __future__ import annotations

import io
from collections.abc import Generator

import psycopg
import pyarrow as pa
from psycopg import sql

from .connection import Connection, failure

# What is read from the socket's pieces at a time, for the small parts of Arrow's framing.
BUFFER_BYTES = 64 * 1024


class _Pieces(io.RawIOBase):
    """The CopyData of one COPY as a file."""

    def __init__(self, copy: psycopg.Copy) -> None:
        self._copy = copy
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """It is read."""
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        """The next bytes; 0 at the end."""
        if not self._piece:
            self._piece = memoryview(self._copy.read())
        count = min(len(into), len(self._piece))
        into[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count


def batches(
    connection: Connection, query: sql.Composable, doing: str, look_at: str
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a query, batch by batch as they come.

    Args:
        doing, look_at: as `failure` takes them.

    Raises:
        ConnectorError: the query failed, at its beginning or under way.
    """
    text = sql.SQL("COPY ({}) TO STDOUT (FORMAT arrow)").format(query)
    try:
        with connection.cursor().copy(text) as copy:
            with pa.ipc.open_stream(io.BufferedReader(_Pieces(copy), BUFFER_BYTES)) as reader:
                yield from reader
            while copy.read():
                pass
    except psycopg.Error as error:
        raise failure(error, doing, look_at) from None


def schema(connection: Connection, query: sql.Composable, doing: str, look_at: str) -> pa.Schema:
    """The schema of a query's answer, which is asked for without its rows.

    Raises:
        ConnectorError: as `batches`.
    """
    text = sql.SQL("COPY (SELECT * FROM ({}) AS probe LIMIT 0) TO STDOUT (FORMAT arrow)").format(query)
    try:
        with connection.cursor().copy(text) as copy:
            return pa.ipc.open_stream(b"".join(map(bytes, copy))).schema
    except psycopg.Error as error:
        raise failure(error, doing, look_at) from None
