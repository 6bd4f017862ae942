"""A stage: a table with the rows of one attempt of one task, which nobody sees until it is published."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from ..connection import Connection, connect, failure, lent, retrying
from ..errors import ConnectorError
from ..options import Options
from .batch_marks import Batch, make_schema
from .forms import Form, form_of
from .target import Column, Target

PREFIX = "stage_"
# No task writes for so long; a stage that is older was left by one that was killed.
STAGE_KEPT_S = 7 * 24 * 3600
# Rows that are kept to be sent again where a gateway restarts; of a task that has sent more, Spark starts
# another attempt.
KEPT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stage:
    """What one attempt of a task has left for the driver; no table where it had no rows."""

    table: str | None
    rows: int = 0


def stage(options: Options, target: Target, batches: Iterator[pa.RecordBatch], owner: str = "") -> Stage:
    """Send the rows of a task into a table of its own.

    Args:
        owner: the streaming query and batch, or nothing; stands in the table's name.

    Raises:
        ConnectorError: they could not be sent.
    """
    kept: list[pa.Buffer] | None = []
    size = rows = 0
    form: Form | None = None
    tried = False
    table = f"{PREFIX}{int(time.time())}_{owner}{uuid.uuid4().hex}"
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Stage(None)

    def messages(form: Form) -> Iterator[pa.Buffer]:
        """What was taken before, and then the rest, which is kept while it is small."""
        nonlocal kept, size, rows, first
        yield from list(kept or ())
        while True:
            batch, first = (first if first is not None else next(batches, None)), None
            if batch is None:
                return
            sent = list(form.messages(batch, first=not rows))
            rows += batch.num_rows
            size += sum(map(len, sent))
            if kept is not None and size <= KEPT_BYTES_MAX:
                kept += sent
            else:
                kept = None
            yield from sent

    def send() -> None:
        nonlocal form, tried
        name = sql.Identifier(target.schema, table)
        again, tried = tried, True
        try:
            with lent(options) as connection:
                _make_stage(connection, target, name, again=again)
                if form is None:
                    form = form_of(connection, name, target)
                copy = sql.SQL("COPY {} FROM STDIN (FORMAT {})").format(name, sql.SQL(form.name))
                with connection.cursor().copy(copy) as sending:
                    for message in messages(form):
                        sending.write(memoryview(message))
                    sending.write(form.end)
        except psycopg.Error as error:
            failed = failure(error, f"writing to {target}", target.kind)
            if kept is None:
                # What was sent is gone; another attempt of the task reads it again.
                failed = ConnectorError(failed.message, failed.sqlstate)
            raise failed from None

    try:
        retrying(send, options["retryTimeout"])
    except ConnectorError:
        # Nobody will publish it; what cannot be dropped now is dropped by a later write.
        with contextlib.suppress(ConnectorError):
            discard(options, target, [Stage(table)])
        raise
    return Stage(table, rows)


def _make_stage(connection: Connection, target: Target, name: sql.Identifier, *, again: bool) -> None:
    """An empty table with the target's types, so that a value which does not fit is told by its column.

    Args:
        again: it may be there, from a try that has failed.
    """
    columns = sql.SQL(", ").join(_staged(target, column) for column in target.columns)
    source = sql.SQL("FROM {} ").format(target.named) if target.kind == "table" else sql.SQL("")
    make = sql.SQL("CREATE TABLE {} AS SELECT {} {}WHERE false").format(name, columns, source)
    if again:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
    try:
        connection.execute(make)
    except psycopg.errors.InvalidSchemaName:
        make_schema(connection, target.schema)
        connection.execute(make)


def _staged(target: Target, column: Column) -> sql.Composable:
    if column.type:
        return sql.SQL("NULL::{} AS {}").format(sql.SQL(column.type), sql.Identifier(column.name))
    if column.nested:
        return sql.SQL("NULL::VARCHAR AS {}").format(sql.Identifier(column.name))
    return sql.Identifier(column.target)


def discard(options: Options, target: Target, stages: Iterable[Stage]) -> None:
    """Drop what was staged and will not be published."""
    tables = [staged.table for staged in stages if staged.table is not None]
    if not tables:
        return
    try:
        with connect(options) as connection:
            sweep(connection, target.schema, tables, None)
    except psycopg.Error as error:
        raise failure(error, f"dropping what was staged for {target}", "stagingSchema") from None


def sweep(connection: Connection, schema: str, tables: Iterable[str], batch: Batch | None) -> None:
    """Drop these stages, older ones of the same query, and those that nobody can want any more."""
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables WHERE lower(table_schema) = lower(%s) "
        "AND starts_with(table_name, %s)",
        (schema, PREFIX),
    ).fetchall()
    there = [str(name) for (name,) in found]
    drop = {*tables} & {*there}
    oldest = time.time() - STAGE_KEPT_S
    for name in there:
        parts = name.split("_")
        if parts[1].isdecimal() and int(parts[1]) < oldest:
            drop.add(name)
        if batch is not None and len(parts) == 5 and parts[2] == _owner(batch.query):
            if parts[3].isdecimal() and int(parts[3]) <= batch.number:
                drop.add(name)
    for name in sorted(drop):
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))


def _owner(query: str) -> str:
    return "".join(letter for letter in query if letter.isalnum())


def owner_of(batch: Batch) -> str:
    """What the names of its stages hold."""
    return f"{_owner(batch.query)}_{batch.number}_"
