"""How rows come from Spark into a table or a topic: staged by the tasks, published by the driver at once.

    task     CREATE TABLE stage_<time>_<id> as the target is; COPY rows FROM STDIN      nobody sees them
    driver   BEGIN; is the batch done?; target <- the stages; mark the batch; COMMIT    all at once, or not
             DROP the stages

A stage belongs to one attempt of one task, so a task that is tried again has another, and only those count
whose messages came to the driver. The mark of a streaming query is a row of `sinks` in the same
transaction as its rows: the last batch that this query has written to this target. A batch that comes again
(Spark died after the COMMIT and before its own) finds the mark and is done. What a killed task or driver
leaves behind is dropped by a later write of anybody's, when it is older than `STAGE_KEPT_S`; what a streaming
query leaves, by its own next batch.
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

from . import sink_columns
from .connection import Connection, connect, failure, retrying
from .errors import ConnectorError, OptionError
from .options import Options

PREFIX = "stage_"
# No task writes for so long; a stage that is older was left by one that was killed.
STAGE_KEPT_S = 7 * 24 * 3600
# Rows that are kept to be sent again where a gateway restarts; of a task that has sent more, Spark starts
# another attempt.
KEPT_BYTES_MAX = 64 * 1024 * 1024
# Within a topic's rows.
PAYLOADS = ("value", "payload")
TOPIC_COLUMNS = ("key", *PAYLOADS, "headers")
_MARKS = "sinks"


@dataclass(frozen=True, slots=True)
class Column:
    """One column on its way.

    Args:
        name: the data frame's.
        target: the table's, or the topic's.
        nested: it travels as JSON.
        type: DuckDB's, of a topic's; of a table's the table says.
    """

    name: str
    target: str
    nested: bool = False
    type: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What is written to.

    Args:
        kind: table or topic: the option that names it.
        name: as the user wrote it, perhaps with its schema.
        mode: append, upsert or overwrite.
        order: the columns by which the last of a key's rows is found; of upsert.
    """

    kind: str
    name: str
    mode: str
    schema: str
    columns: tuple[Column, ...]
    order: tuple[str, ...] = ()

    @property
    def named(self) -> sql.Identifier:
        """Its name as SQL."""
        return sql.Identifier(*self.name.split("."))

    @property
    def names(self) -> list[str]:
        """The data frame's columns, in order."""
        return [column.name for column in self.columns]

    @property
    def targets(self) -> sql.Composed:
        """Its columns, as SQL."""
        return sql.SQL(", ").join(sql.Identifier(column.target) for column in self.columns)

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


@dataclass(frozen=True, slots=True)
class Batch:
    """A streaming query's batch: who marks what it has done."""

    query: str
    number: int


# Brings a stage into a target, within a transaction.
Merge = Callable[[Connection, Target, sql.Identifier], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one attempt of a task has left for the driver; no table where it had no rows."""

    table: str | None
    rows: int = 0


def target_of(options: Options, schema: pa.Schema, *, overwrite: bool) -> Target:
    """What these options and columns mean.

    Raises:
        OptionError: they do not go together; the option is named.
    """
    topic, table, mode = options["topic"], options["table"], options["writeMode"]
    if (topic is None) == (table is None):
        raise OptionError("one of the options topic and table says where to write")
    staging, order = options["stagingSchema"], tuple(options["orderBy"] or ())
    for field in schema:
        if not sink_columns.can_be_sent(field.type):
            raise OptionError(f'column "{field.name}" cannot be written as it is ({field.type}): cast it')
    if mode != "upsert" and order:
        raise OptionError("option orderBy goes with writeMode upsert")
    if topic is not None:
        if overwrite or mode != "append":
            what = "Spark's mode overwrite (complete)" if overwrite else f'option writeMode "{mode}"'
            raise OptionError(f"{what} cannot be of a topic, which is only appended to: option topic")
        return Target("topic", topic, "append", staging, _topic_columns(schema))
    for field in schema:
        if sink_columns.has_inner_bytes(field.type):
            raise OptionError(
                f'column "{field.name}" cannot be written to a table (option table): it has binary values '
                "within, which JSON has not: cast them, or write hex()"
            )
    columns = tuple(Column(field.name, field.name, sink_columns.is_nested(field.type)) for field in schema)
    if overwrite:
        if mode == "upsert":
            raise OptionError("option writeMode upsert and Spark's mode overwrite exclude each other")
        mode = "overwrite"
    missing = [name for name in order if name.lower() not in {field.name.lower() for field in schema}]
    if missing:
        raise OptionError(f'option orderBy names "{missing[0]}", which the data frame has not')
    return Target("table", table, mode, staging, columns, order)


def _topic_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Payload, key and headers among a data frame's columns."""
    found: dict[str, pa.DataType] = {}
    for field in schema:
        if field.name.lower() not in TOPIC_COLUMNS:
            raise OptionError(
                f'a topic takes the columns value, key and headers, not "{field.name}" (option topic): '
                "SELECT to_json(struct(*)) AS value"
            )
        found[field.name] = field.type
    payloads = [name for name in found if name.lower() in PAYLOADS]
    if len(payloads) != 1:
        raise OptionError("a topic wants one column value (or payload), the events' payload (option topic)")
    columns = []
    for name, type_ in found.items():
        nested = sink_columns.is_nested(type_)
        target, known = name.lower(), "VARCHAR"
        if name in payloads:
            target, known = "payload", sink_columns.payload_type(type_) or ""
        elif target == "key":
            known = sink_columns.key_type(type_) or ""
        elif not (nested or pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            known = ""
        if not known:
            raise OptionError(f'column "{name}" of a topic cannot be of type {type_} (option topic): cast it')
        columns.append(Column(name, target, nested, known))
    return tuple(columns)


def stage(options: Options, target: Target, batches: Iterator[pa.RecordBatch], owner: str = "") -> Stage:
    """Send the rows of a task into a table of its own.

    Args:
        owner: the streaming query and batch, or nothing; stands in the table's name.

    Raises:
        ConnectorError: they could not be sent.
    """
    kept: list[bytes] | None = []
    size = rows = 0
    table = f"{PREFIX}{int(time.time())}_{owner}{uuid.uuid4().hex}"
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Stage(None)

    def texts() -> Iterator[bytes]:
        """What was taken before, and then the rest, which is kept while it is small."""
        nonlocal kept, size, rows, first
        yield from list(kept or ())
        while True:
            batch, first = (first if first is not None else next(batches, None)), None
            if batch is None:
                return
            rows += batch.num_rows
            text = sink_columns.as_csv(batch, target.names)
            size += len(text)
            if kept is not None and size <= KEPT_BYTES_MAX:
                kept.append(text)
            else:
                kept = None
            yield text

    def send() -> None:
        try:
            with connect(options) as connection:
                _make_stage(connection, target, table)
                copy = sql.SQL("COPY {}.{} FROM STDIN (FORMAT csv)").format(
                    sql.Identifier(target.schema), sql.Identifier(table)
                )
                with connection.cursor().copy(copy) as sending:
                    for text in texts():
                        sending.write(text)
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


def _make_stage(connection: Connection, target: Target, table: str) -> None:
    """An empty table with the target's types, so that a value which does not fit is told by its column."""
    columns = sql.SQL(", ").join(_staged(target, column) for column in target.columns)
    source = sql.SQL("FROM {} ").format(target.named) if target.kind == "table" else sql.SQL("")
    name = sql.Identifier(target.schema, table)
    make = sql.SQL("CREATE TABLE {} AS SELECT {} {}WHERE false").format(name, columns, source)
    try:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
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


def marks(schema: str) -> sql.Identifier:
    """The table of what streaming queries have written."""
    return sql.Identifier(schema, _MARKS)


def make_schema(connection: Connection, schema: str) -> None:
    """Where stages and marks are, if it is not there."""
    name = sql.Identifier(schema)
    # Who may make tables in it needs no right to make schemas.
    there = "SELECT 1 FROM information_schema.schemata WHERE lower(schema_name) = lower(%s)"
    if connection.execute(there, (schema,)).fetchone() is None:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.{} (query VARCHAR, target VARCHAR, batch BIGINT, rows BIGINT, "
            "written_at TIMESTAMPTZ, PRIMARY KEY (query, target))"
        ).format(name, sql.Identifier(_MARKS))
    )


def publish(
    options: Options,
    target: Target,
    stages: Sequence[Stage],
    batch: Batch | None = None,
    merge: Merge | None = None,
) -> bool:
    """Bring what was staged into the target, in one transaction.

    Args:
        merge: brings one stage with all rows into the target; by itself, the target's mode says how.

    Returns:
        Whether it was done now; False: this batch had been written before.

    Raises:
        ConnectorError: nothing of it is there.
    """
    tables = [staged.table for staged in stages if staged.table is not None]
    # A job that is tried again here, where the answer to its COMMIT was lost, finds its own mark.
    marked = batch or Batch(f"job-{uuid.uuid4().hex}", 0)

    def work() -> bool:
        try:
            with connect(options) as connection:
                try:
                    done = _publish(connection, target, stages, marked, merge)
                except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                    # No task has had a row yet, so there are no marks.
                    make_schema(connection, target.schema)
                    done = _publish(connection, target, stages, marked, merge)
                # It is written, so nothing that follows may make Spark write it again: what cannot be
                # cleared away now is cleared by a later write.
                with contextlib.suppress(psycopg.Error):
                    _sweep(connection, target.schema, tables, batch)
                    if batch is None:
                        _unmark(connection, target.schema, marked)
                return done
        except psycopg.Error as error:
            raise failure(error, f"writing to {target}", target.kind) from None

    return retrying(work, options["retryTimeout"])


def discard(options: Options, target: Target, stages: Iterable[Stage]) -> None:
    """Drop what was staged and will not be published."""
    tables = [staged.table for staged in stages if staged.table is not None]
    if not tables:
        return
    try:
        with connect(options) as connection:
            _sweep(connection, target.schema, tables, None)
    except psycopg.Error as error:
        raise failure(error, f"dropping what was staged for {target}", "stagingSchema") from None


def _publish(
    connection: Connection,
    target: Target,
    stages: Sequence[Stage],
    batch: Batch,
    merge: Merge | None,
) -> bool:
    tables = [staged.table for staged in stages if staged.table is not None]
    with connection.transaction():
        if _is_done(connection, target, batch):
            return False
        if target.mode == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(target.named))
        if tables and (merge is not None or target.mode == "upsert"):
            together = _together(connection, target, tables)
            (merge or _upsert)(connection, target, together)
        else:
            for table in tables:
                connection.execute(_insert(connection, target, sql.Identifier(target.schema, table)))
        _mark(connection, target, batch, sum(staged.rows for staged in stages))
    return True


def _is_done(connection: Connection, target: Target, batch: Batch) -> bool:
    found = connection.execute(
        sql.SQL("SELECT max(batch) FROM {} WHERE query = %s AND target = %s").format(marks(target.schema)),
        (batch.query, str(target)),
    ).fetchone()
    return found is not None and found[0] is not None and found[0] >= batch.number


def _mark(connection: Connection, target: Target, batch: Batch, rows: int) -> None:
    connection.execute(
        sql.SQL(
            "INSERT INTO {} VALUES (%s, %s, %s, %s, now()) ON CONFLICT (query, target) DO UPDATE "
            "SET batch = excluded.batch, rows = excluded.rows, written_at = excluded.written_at"
        ).format(marks(target.schema)),
        (batch.query, str(target), batch.number, rows),
    )


def _unmark(connection: Connection, schema: str, job: Batch) -> None:
    """A batch job's mark, and those of jobs that died before they could take theirs away."""
    connection.execute(
        sql.SQL(
            "DELETE FROM {} WHERE query = %s OR (starts_with(query, 'job-') AND "
            "written_at < now() - INTERVAL '7 days')"
        ).format(marks(schema)),
        (job.query,),
    )


def _insert(
    connection: Connection, target: Target, table: sql.Identifier, after: sql.Composable | None = None
) -> sql.Composed:
    """The rows of a stage into the target, with what stands behind them."""
    types = _nested_types(connection, target)
    picked = []
    for column in target.columns:
        name: sql.Composable = sql.Identifier(column.name)
        if column.name in types:
            # Through JSON: DuckDB makes lists and structs of it.
            name = sql.SQL("{}::JSON::{}").format(name, sql.SQL(types[column.name]))
        picked.append(name)
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}{}").format(
        target.named, target.targets, sql.SQL(", ").join(picked),
        table, after or sql.SQL(""),
    )  # fmt: skip


def _nested_types(connection: Connection, target: Target) -> dict[str, str]:
    """DuckDB's types of the table's columns whose values travel as JSON."""
    nested = [column for column in target.columns if column.nested]
    if target.kind == "topic" or not nested:
        return {}
    described = connection.execute(sql.SQL("DESCRIBE {}").format(target.named)).fetchall()
    types = {str(row[0]).lower(): str(row[1]) for row in described}
    return {column.name: types[column.target.lower()] for column in nested}


def _together(connection: Connection, target: Target, tables: list[str]) -> sql.Identifier:
    """One stage with the rows of all: a key may have rows in several of them."""
    first, *others = (sql.Identifier(target.schema, table) for table in tables)
    for other in others:
        connection.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(first, other))
    return first


def _upsert(connection: Connection, target: Target, first: sql.Identifier) -> None:
    keys = _upsert_keys(connection, target)
    by = sql.SQL(", ").join(sql.Identifier(key) for key in keys)
    after: sql.Composable = sql.SQL(" ")
    if target.order:
        order = sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(name)) for name in target.order)
        after = sql.SQL(" QUALIFY row_number() OVER (PARTITION BY {} ORDER BY {}) = 1 ").format(by, order)
    else:
        twice = sql.SQL("SELECT {} FROM {} GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(by, first, by)
        found = connection.execute(twice).fetchone()
        if found is not None:
            values = ", ".join(map(str, found))
            raise OptionError(
                f"writing to {target} failed: key ({values}) has several rows in one batch; "
                "option orderBy names the columns by which the last one is found"
            )
    lower = {key.lower() for key in keys}
    rest = [column.target for column in target.columns if column.target.lower() not in lower]
    sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest)
    what = sql.SQL("DO UPDATE SET {}").format(sets) if rest else sql.SQL("DO NOTHING")
    behind = sql.SQL("{} ON CONFLICT ({}) {}").format(after, by, what)
    connection.execute(_insert(connection, target, first, behind))


def key_columns(connection: Connection, name: str) -> list[str]:
    """The columns of a table's primary key, in order; empty where there is none."""
    *schema, table = name.split(".")
    rows = connection.execute(
        "SELECT k.column_name FROM information_schema.table_constraints AS c "
        "JOIN information_schema.key_column_usage AS k USING (constraint_name, table_schema, table_name) "
        "WHERE c.constraint_type = 'PRIMARY KEY' AND lower(c.table_name) = lower(%s) "
        "AND lower(c.table_schema) = lower(coalesce(%s, current_schema())) ORDER BY k.ordinal_position",
        (table, schema[-1] if schema else None),
    ).fetchall()
    return [str(row[0]) for row in rows]


def _upsert_keys(connection: Connection, target: Target) -> list[str]:
    """The columns of the primary key, all of which the data frame must have.

    Raises:
        OptionError: there is none, or one is missing.
    """
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


def _sweep(connection: Connection, schema: str, tables: Iterable[str], batch: Batch | None) -> None:
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
