"""Exactly-once writes: the tasks stage their rows, the driver publishes all stages in one transaction.

    driver   EXPLAIN INSERT INTO target ... WHERE false                                     mistakes end here
    task     CREATE TABLE stage_<time>_<id> with the target's types; COPY rows FROM STDIN   not visible yet
    driver   BEGIN; is the batch done?; target <- the stages; mark the batch; COMMIT        all or nothing
             DROP the stages

A stage belongs to one attempt of one task: a repeated task has a new stage, and only the stages in the
messages that reached the driver are published. The mark of a streaming query is its row in `sinks`, written
in the transaction of the batch's rows: the last batch that the query has written to the target. A batch that
comes again (Spark died after the COMMIT and before its own) finds the mark and is skipped. Stages of killed
tasks and drivers are dropped by any later write when they are older than `STAGE_KEPT_S`; those of a
streaming query are dropped by its next batch.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from ..connection import Connection, borrowed, connect, failure, retrying
from ..errors import ConnectorError, OptionError, listed
from ..options import Name, Options, quoted
from .target import Column, CopyFormat, Target, copy_format

PREFIX = "stage_"
# The maximum duration of a task's writes; an older stage was left by a killed task.
STAGE_KEPT_S = 7 * 24 * 3600
# Rows that are kept to be sent again if the gateway restarts; Spark repeats a task that has sent more.
KEPT_BYTES_MAX = 64 * 1024 * 1024

_MARKS = "sinks"

_NO_RELATION = "42P01"
_NAMED = "WHERE lower(table_name) = lower(%s) AND lower(table_schema) = lower(coalesce(%s, current_schema()))"
_TABLE_KIND = (
    "SELECT CASE table_type WHEN 'BASE TABLE' THEN 'table' ELSE 'view' END "
    f"FROM information_schema.tables {_NAMED}"
)
_COLUMNS = f"SELECT column_name, data_type FROM information_schema.columns {_NAMED} ORDER BY ordinal_position"
_STREAM_KIND = (
    "SELECT CASE WHEN table_name IS NULL THEN 'topic' ELSE 'stream' END FROM ducktail.streams "
    "WHERE lower(stream_name) = lower(%s) AND lower(schema_name) = lower(coalesce(%s, current_schema()))"
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A table with the rows of one attempt of a task; no table if it had no rows."""

    table: str | None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a streaming query, the key of its mark."""

    query: str
    number: int


# Merges a stage into a target, within a transaction.
Merge = Callable[[Connection, Target, sql.Identifier], None]


# Planning.


def check(options: Options, target: Target) -> None:
    """Check on the driver that the target can be written, before there is a task to fail.

    Raises:
        ConnectorError: the target does not exist or does not have a column; the user may not write it.
        OptionError: the primary key is missing, for writeMode upsert.
    """

    def look() -> None:
        try:
            with connect(options) as connection:
                _check_names(connection, target)
                if target.mode == "upsert":
                    _upsert_keys(connection, target)
        except psycopg.Error as error:
            raise failure(error, f"writing to {target}", target.kind) from None

    retrying(look, options["retryTimeout"])


def _check_names(connection: Connection, target: Target) -> None:
    """Let the server resolve the names of the INSERT, and check its rights, without running it."""
    values = [
        sql.SQL("NULL::{}").format(sql.SQL(column.type)) if column.type else sql.Identifier(column.target)
        for column in target.columns
    ]
    source = sql.SQL("FROM {} ").format(target.identifier) if target.kind == "table" else sql.SQL("")
    probe = sql.SQL("EXPLAIN INSERT INTO {} ({}) SELECT {} {}WHERE false").format(
        target.identifier, target.targets, sql.SQL(", ").join(values), source
    )
    try:
        connection.execute(probe)
    except psycopg.errors.FeatureNotSupported:
        pass  # Such an INSERT cannot be explained; the write itself reports its errors.
    except psycopg.Error as error:
        mistake = _mistake(connection, target)
        if mistake is None:
            raise
        hint = error.diag.message_hint if error.sqlstate == _NO_RELATION else None
        raise ConnectorError(f"{mistake}. {hint}" if hint else mistake, error.sqlstate) from None


def _mistake(connection: Connection, target: Target) -> str | None:
    """A sentence about a target that does not exist, is of another kind or lacks a column; None otherwise."""
    kind = _kind(connection, target.name)
    if kind is None:
        return (
            f'{target} does not exist, or user "{connection.info.user}" has no right on it (option '
            f"{target.kind}): create it first, as a write creates none"
        )
    if kind != target.kind:
        instead = f"name it with option {kind}" if kind in ("table", "topic") else "name the table behind it"
        return f'option {target.kind}: "{target.name}" is a {kind}: {instead}'
    if kind == "topic":
        return None
    found: dict[str, str] = dict(connection.execute(_COLUMNS, _place(target.name)).fetchall())
    known = {name.lower() for name in found}
    missing = next((column.name for column in target.columns if column.target.lower() not in known), None)
    if missing is None:
        return None
    shown = listed([f"{quoted(name)} {type_}" for name, type_ in found.items()])
    return f'{target} has no column "{missing}" of the data frame (option table): its columns are {shown}'


def _kind(connection: Connection, name: Name) -> str | None:
    """The kind of the object that a name denotes: table, topic, stream or view."""
    found = connection.execute(_TABLE_KIND, _place(name)).fetchall()
    # A PostgreSQL has no topics.
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        found = connection.execute(_STREAM_KIND, _place(name)).fetchall() or found
    return str(found[0][0]) if found else None


def _place(name: Name) -> tuple[str, str | None]:
    return name.name, name.schema


# Stages.


def stage(options: Options, target: Target, batches: Iterator[pa.RecordBatch], owner: str = "") -> Stage:
    """Send the rows of a task into a new stage.

    Args:
        owner: `owner_of` the batch of a streaming query, or ""; a part of the stage's name.

    Raises:
        ConnectorError: the rows could not be sent.
    """
    kept: list[pa.Buffer] | None = []
    size = rows = 0
    form: CopyFormat | None = None
    tried = False
    table = f"{PREFIX}{int(time.time())}_{owner}{uuid.uuid4().hex}"
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Stage(None)

    def messages(form: CopyFormat) -> Iterator[pa.Buffer]:
        """The kept messages of an earlier try, then those of the other rows, kept while they are small."""
        nonlocal kept, size, rows, first
        yield from list(kept or ())
        while True:
            batch, first = (first if first is not None else next(batches, None)), None
            if batch is None:
                return
            sent = list(form.encode(batch, first=not rows))
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
            with borrowed(options) as connection:
                _create_stage(connection, target, name, again=again)
                if form is None:
                    form = copy_format(connection, name, target)
                copy = sql.SQL("COPY {} FROM STDIN (FORMAT {})").format(name, sql.SQL(form.name))
                with connection.cursor().copy(copy) as sending:
                    for message in messages(form):
                        sending.write(memoryview(message))
                    sending.write(form.end)
        except psycopg.Error as error:
            failed = failure(error, f"writing to {target}", target.kind)
            if kept is None:
                # The rows that were sent are gone; another attempt of the task reads them again.
                failed = ConnectorError(failed.message, failed.sqlstate)
            raise failed from None

    try:
        retrying(send, options["retryTimeout"])
    except ConnectorError:
        # Nobody will publish it; if it cannot be dropped now, a later write drops it.
        with contextlib.suppress(ConnectorError):
            discard(options, target, [Stage(table)])
        raise
    return Stage(table, rows)


def _create_stage(connection: Connection, target: Target, name: sql.Identifier, *, again: bool) -> None:
    """Create an empty table with the target's types, so that the error of an invalid value names its column.

    Args:
        again: the table may exist, from a failed try.
    """
    columns = sql.SQL(", ").join(_stage_column(target, column) for column in target.columns)
    source = sql.SQL("FROM {} ").format(target.identifier) if target.kind == "table" else sql.SQL("")
    make = sql.SQL("CREATE TABLE {} AS SELECT {} {}WHERE false").format(name, columns, source)
    if again:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
    try:
        connection.execute(make)
    except psycopg.errors.InvalidSchemaName:
        make_schema(connection, target.schema)
        connection.execute(make)


def _stage_column(target: Target, column: Column) -> sql.Composable:
    if column.type:
        return sql.SQL("NULL::{} AS {}").format(sql.SQL(column.type), sql.Identifier(column.name))
    if column.nested:
        return sql.SQL("NULL::VARCHAR AS {}").format(sql.Identifier(column.name))
    return sql.Identifier(column.target)


def discard(options: Options, target: Target, stages: Iterable[Stage]) -> None:
    """Drop stages that will not be published."""
    tables = [staged.table for staged in stages if staged.table is not None]
    if not tables:
        return
    try:
        with connect(options) as connection:
            sweep(connection, target.schema, tables, None)
    except psycopg.Error as error:
        raise failure(error, f"dropping what was staged for {target}", "stagingSchema") from None


def sweep(connection: Connection, schema: str, tables: Iterable[str], batch: Batch | None) -> None:
    """Drop these stages, those of the same query's batches so far, and those older than STAGE_KEPT_S."""
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
        if batch is not None and len(parts) == 5 and parts[2] == _alphanumeric(batch.query):
            if parts[3].isdecimal() and int(parts[3]) <= batch.number:
                drop.add(name)
    for name in sorted(drop):
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))


def _alphanumeric(query: str) -> str:
    return "".join(letter for letter in query if letter.isalnum())


def owner_of(batch: Batch) -> str:
    """The part of a stage's name that identifies its batch."""
    return f"{_alphanumeric(batch.query)}_{batch.number}_"


# Publishing.


def publish(
    options: Options,
    target: Target,
    stages: Sequence[Stage],
    batch: Batch | None = None,
    merge: Merge | None = None,
) -> bool:
    """Bring all stages into the target in one transaction, and drop them.

    Args:
        batch: the batch of a streaming query; None for a batch job.
        merge: merges one stage with all rows into the target; without it the target's mode decides.

    Returns:
        False if this batch had been written before.

    Raises:
        ConnectorError: nothing was written.
    """
    tables = [staged.table for staged in stages if staged.table is not None]
    # A job whose answer to COMMIT was lost finds its own mark when it is tried again here.
    marked = batch or Batch(f"job-{uuid.uuid4().hex}", 0)

    def work() -> bool:
        try:
            with connect(options) as connection:
                try:
                    done = _publish(connection, target, stages, marked, merge)
                except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                    # No task has had a row yet, so there is no table of marks.
                    make_schema(connection, target.schema)
                    done = _publish(connection, target, stages, marked, merge)
                # The batch is written, so no later error may make Spark repeat it: a later write drops the
                # stages that cannot be dropped now.
                with contextlib.suppress(psycopg.Error):
                    sweep(connection, target.schema, tables, batch)
                    if batch is None:
                        unmark(connection, target.schema, marked)
                return done
        except psycopg.Error as error:
            raise failure(error, f"writing to {target}", target.kind) from None

    return retrying(work, options["retryTimeout"])


def _publish(
    connection: Connection, target: Target, stages: Sequence[Stage], batch: Batch, merge: Merge | None
) -> bool:
    tables = [sql.Identifier(target.schema, staged.table) for staged in stages if staged.table is not None]
    with connection.transaction():
        if is_done(connection, target, batch):
            return False
        if target.mode == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(target.identifier))
        if tables and (merge is not None or target.mode == "upsert"):
            # A key may have rows in several stages.
            first, *others = tables
            for other in others:
                connection.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(first, other))
            (merge or upsert)(connection, target, first)
        else:
            for table in tables:
                connection.execute(insert(connection, target, table))
        mark(connection, target, batch, sum(staged.rows for staged in stages))
    return True


def insert(
    connection: Connection, target: Target, stage: sql.Identifier, suffix: sql.Composable | None = None
) -> sql.Composed:
    """The INSERT of a stage's rows into the target, ended by `suffix`."""
    types = _nested_types(connection, target)
    picked = []
    for column in target.columns:
        name: sql.Composable = sql.Identifier(column.name)
        if column.name in types:
            # DuckDB casts JSON to lists and structs.
            name = sql.SQL("{}::JSON::{}").format(name, sql.SQL(types[column.name]))
        picked.append(name)
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}{}").format(
        target.identifier, target.targets, sql.SQL(", ").join(picked),
        stage, suffix or sql.SQL(""),
    )  # fmt: skip


def _nested_types(connection: Connection, target: Target) -> dict[str, str]:
    """DuckDB types of the table's columns that are sent as JSON."""
    nested = [column for column in target.columns if column.nested]
    if target.kind == "topic" or not nested:
        return {}
    described = connection.execute(sql.SQL("DESCRIBE {}").format(target.identifier)).fetchall()
    types = {str(row[0]).lower(): str(row[1]) for row in described}
    return {column.name: types[column.target.lower()] for column in nested}


def upsert(connection: Connection, target: Target, stage: sql.Identifier) -> None:
    """Insert the rows of a stage, or update those with the same primary key.

    Raises:
        OptionError: a key has several rows and no order, or the primary key is missing.
    """
    keys = _upsert_keys(connection, target)
    by = sql.SQL(", ").join(sql.Identifier(key) for key in keys)
    last: sql.Composable = sql.SQL(" ")
    if target.order:
        order = sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(name)) for name in target.order)
        last = sql.SQL(" QUALIFY row_number() OVER (PARTITION BY {} ORDER BY {}) = 1 ").format(by, order)
    else:
        twice = sql.SQL("SELECT {} FROM {} GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(by, stage, by)
        found = connection.execute(twice).fetchone()
        if found is not None:
            values = ", ".join(map(str, found))
            raise OptionError(
                f"writing to {target} failed: key ({values}) has several rows in one batch; "
                "option orderBy names the columns by which the last one is found"
            )
    lower = {key.lower() for key in keys}
    rest = [column.target for column in target.columns if column.target.lower() not in lower]
    suffix = sql.SQL("{} ON CONFLICT ({}) {}").format(last, by, do_update(rest))
    connection.execute(insert(connection, target, stage, suffix))


def do_update(columns: Sequence[str]) -> sql.Composable:
    """The action of ON CONFLICT that updates these columns."""
    sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in columns)
    return sql.SQL("DO UPDATE SET {}").format(sets) if columns else sql.SQL("DO NOTHING")


def key_columns(connection: Connection, name: Name) -> list[str]:
    """The columns of a table's primary key, in order; empty if it has none."""
    rows = connection.execute(
        "SELECT k.column_name FROM information_schema.table_constraints AS c "
        "JOIN information_schema.key_column_usage AS k USING (constraint_name, table_schema, table_name) "
        "WHERE c.constraint_type = 'PRIMARY KEY' AND lower(c.table_name) = lower(%s) "
        "AND lower(c.table_schema) = lower(coalesce(%s, current_schema())) ORDER BY k.ordinal_position",
        (name.name, name.schema),
    ).fetchall()
    return [str(row[0]) for row in rows]


def _upsert_keys(connection: Connection, target: Target) -> list[str]:
    """The columns of the primary key, all of which the data frame must have."""
    keys = key_columns(connection, target.name)
    given = {column.target.lower() for column in target.columns}
    missing = [key for key in keys if key.lower() not in given]
    if not keys:
        raise OptionError(f"{target} has no primary key, which option writeMode upsert wants")
    if missing:
        raise OptionError(
            f'the data frame has no column "{missing[0]}", of the primary key of {target}, '
            "which option writeMode upsert wants"
        )
    return keys


# Marks.


def marks(schema: str) -> sql.Identifier:
    """The table of marks: for each streaming query and target, the last batch written."""
    return sql.Identifier(schema, _MARKS)


def make_schema(connection: Connection, schema: str) -> None:
    """Create the schema of stages and the table of marks if they do not exist.

    Raises:
        ConnectorError: the table is another user's, and this one has no right on it.
    """
    name = sql.Identifier(schema)
    # A user who may create tables in it need not have the right to create schemas.
    there = "SELECT 1 FROM information_schema.schemata WHERE lower(schema_name) = lower(%s)"
    if connection.execute(there, (schema,)).fetchone() is None:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.{} (query VARCHAR, target VARCHAR, batch BIGINT, rows BIGINT, "
            "written_at TIMESTAMPTZ, PRIMARY KEY (query, target))"
        ).format(name, sql.Identifier(_MARKS))
    )
    try:
        connection.execute(sql.SQL("SELECT 1 FROM {} WHERE false").format(marks(schema)))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        # It exists, as it was not created; a table that a user may not see is undefined to that user.
        user = connection.info.user
        grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(
            marks(schema), sql.Identifier(user)
        )
        raise ConnectorError(
            f'option stagingSchema: user "{user}" has no right on table "{schema}.{_MARKS}", which another '
            f"user has made: give this one a stagingSchema of his own, or {grant.as_string(connection)}",
            error.sqlstate,
        ) from None


def is_done(connection: Connection, target: Target, batch: Batch) -> bool:
    """True if the batch is marked as written."""
    found = connection.execute(
        sql.SQL("SELECT max(batch) FROM {} WHERE query = %s AND target = %s").format(marks(target.schema)),
        (batch.query, str(target)),
    ).fetchone()
    return found is not None and found[0] is not None and found[0] >= batch.number


def mark(connection: Connection, target: Target, batch: Batch, rows: int) -> None:
    """Mark a batch as written."""
    connection.execute(
        sql.SQL(
            "INSERT INTO {} VALUES (%s, %s, %s, %s, now()) ON CONFLICT (query, target) DO UPDATE "
            "SET batch = excluded.batch, rows = excluded.rows, written_at = excluded.written_at"
        ).format(marks(target.schema)),
        (batch.query, str(target), batch.number, rows),
    )


def unmark(connection: Connection, schema: str, job: Batch) -> None:
    """Delete the mark of a batch job, and those of jobs that died before they could delete theirs."""
    connection.execute(
        sql.SQL(
            "DELETE FROM {} WHERE query = %s OR (starts_with(query, 'job-') AND "
            "written_at < now() - INTERVAL '7 days')"
        ).format(marks(schema)),
        (job.query,),
    )
