"""In which form a stage's rows go over the wire: Arrow to the gateway, CSV to a PostgreSQL."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from .. import sink_columns
from ..arrow_copy import schema
from ..connection import Connection
from ..errors import ConnectorError
from .target import Target

CSV = pyarrow.csv.WriteOptions(include_header=False)
# What PostgreSQL answers to FORMAT arrow.
UNKNOWN_FORMAT = "22023"


class Form(Protocol):
    """How batches become the bytes of one COPY ... FROM STDIN."""

    name: str
    end: bytes

    def messages(self, batch: pa.RecordBatch, *, first: bool) -> Iterator[pa.Buffer]:
        """The bytes of a batch."""


class ArrowForm:
    """An Arrow IPC stream.

    Args:
        wanted: the stage's columns, as COPY ... TO STDOUT (FORMAT arrow) gives them.
    """

    name = "arrow"
    end = sink_columns.END

    def __init__(self, names: list[str], wanted: pa.Schema) -> None:
        self._names, self._wanted = names, wanted

    def messages(self, batch: pa.RecordBatch, *, first: bool) -> Iterator[pa.Buffer]:
        """The batch's messages; before the first one, the schema's."""
        prepared = sink_columns.prepared(batch, self._names, self._wanted)
        if first:
            yield prepared.schema.serialize()
        for part in sink_columns.cut(prepared):
            yield part.serialize()


class CsvForm:
    """CSV, each value PostgreSQL's text of its type.

    NULL is an empty field without quotes, an empty text one with quotes, as pyarrow and COPY have it by
    themselves.
    """

    name = "csv"
    end = b""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def messages(self, batch: pa.RecordBatch, *, first: bool) -> Iterator[pa.Buffer]:
        """The batch's lines."""
        # Of no type: every column goes as text.
        texts = pa.schema([(name, pa.null()) for name in self._names])
        sink = io.BytesIO()
        pyarrow.csv.write_csv(sink_columns.prepared(batch, self._names, texts), sink, CSV)
        yield pa.py_buffer(sink.getvalue())


def form_of(connection: Connection, name: sql.Identifier, target: Target) -> Form:
    """The form that the server takes into a stage.

    Raises:
        ConnectorError: the stage cannot be looked at.
    """
    every = sql.SQL("SELECT * FROM {}").format(name)
    try:
        return ArrowForm(target.names, schema(connection, every, f"writing to {target}", target.kind))
    except ConnectorError as error:
        if error.sqlstate != UNKNOWN_FORMAT:
            raise
        return CsvForm(target.names)
