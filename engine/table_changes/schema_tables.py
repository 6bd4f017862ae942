"""Tables that enter or leave a schema whose streams cover all of its tables, processed at COMMIT.

A transaction that has created or renamed tables checks at its end which of these names belong to tables
without a stream. Each such table becomes captured, and all of its rows become inserts, the net effect of the
transaction on its own table. So CREATE TABLE AS, COPY and renames need no code of their own. The transaction
holds the writer lock from the CREATE on, and no other session writes a table of that name.

A dropped table is reported as deletes of all of its rows and a schema event. Earlier events stay readable:
the log remains, over a table of ours without rows, until retention has emptied it (`Retention`). A table
created with its name continues it as its next version, so that a table that is dropped and recreated each
night is one table of the stream.

A table whose place another one has taken (`renames.py`) leaves its streams: it is an old copy, and usually
dropped. Writes of it are refused, so that no change is missed; under another name it is an ordinary table.

A table created without ducktail is in no stream until RESYNC adds it; until then the readers of the schema's
streams get an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import duckdb

from .. import rights_changes
from ..catalog.captured_tables import Captured
from ..catalog.filters import plain_division
from ..catalog.streams import Stream, key_of
from ..checks import row_sums
from ..database import Database
from ..definitions.catalog_rows import insert_tables_sql
from ..definitions.create import new_log
from ..definitions.name_locks import claim_name, refuse_hidden
from ..definitions.stream_spec import check_bound, create_sql, part_on
from ..duck.cursors import ask
from ..duck.duckdb_errors import depended_on
from ..duck.identities import drop_statements
from ..duck.table_shape import TableShape, read_shape, tables_in
from ..errors import DucktailError, SerializationFailure, WrongState
from ..log.envelope_changes import view_statements
from ..log.log import dropped_name, dropped_sql, made_sql, shown_table
from ..log.queries import query_over_all
from ..quoting import fold, ident, literal
from ..schema import SCHEMA
from ..storage.loading import came_past
from ..transactions.transaction import CommitStep, TableKey, Transaction
from ..waiting import Waiting
from .table_versions import VERSIONS_MAX, follows, ids_by_name, put_version


def enter_to_make(
    database: Database, transaction: Transaction, key: TableKey, annotation: str | None, timeout_ms: int
) -> Waiting[None]:
    """Prepare a transaction that creates or renames a table in a schema covered by streams.

    Args:
        key: the table's schema and name in lower case.
        annotation: the session's annotation, a JSON object as text, or None.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        SerializationFailure: such a stream was created since the transaction began to read.
    """
    # The lock first: a session waiting for it must not have claimed a name that its holder may need.
    yield from database.transactions.lock_for(transaction, timeout_ms)
    assert transaction.snapshot_counter is not None
    for stream in database.catalog.over_schema(key[0]):
        for captured in database.catalog.tables_of(stream):
            since = max(captured.changed_counter, captured.part_of(stream).created_counter)
            if transaction.snapshot_counter < since:
                raise SerializationFailure(
                    f'schema "{stream.of_schema}" got a stream or another table after this transaction began '
                    "to read",
                    hint="Roll back and try again.",
                )
    yield from claim_name(database, transaction, key, timeout_ms)
    transaction.annotate(annotation)
    look_at_last(database, transaction, key)


def look_at_last(database: Database, transaction: Transaction, key: TableKey) -> None:
    """Make the transaction check at COMMIT if the name is a table that must get streams.

    Args:
        key: schema and name in lower case.
    """
    transaction.makes.add(key)
    transaction.at(CommitStep.TABLES, partial(_settle, database, transaction), about="schemas")


def set_aside(database: Database, transaction: Transaction, key: TableKey) -> None:
    """Exclude a table from all streams over its schema, because another one has taken its place.

    Args:
        key: its schema and present name, in lower case.
    """
    if not database.catalog.over_schema(key[0]):
        return
    transaction.makes.discard(key)
    transaction.cursor.execute(_not_aside_sql(key)).fetchall()
    names = ", ".join(map(literal, key))
    transaction.cursor.execute(f"INSERT INTO {SCHEMA}.replaced_tables VALUES ({names})").fetchall()
    transaction.at(CommitStep.MEMORY, partial(database.catalog.aside.add, key))


def forget_aside(
    database: Database,
    cursor: duckdb.DuckDBPyConnection,
    keys: Iterable[TableKey],
    transaction: Transaction | None,
) -> None:
    """End the exclusion of dropped or renamed tables, so that it does not apply to later ones of their names.

    Args:
        keys: former schema and name of each, in lower case.
        transaction: the transaction of the change; None for a committed change in autocommit.
    """
    for key in keys:
        if not database.catalog.is_aside(key):
            continue
        cursor.execute(_not_aside_sql(key)).fetchall()
        if transaction is not None:
            transaction.at(CommitStep.MEMORY, partial(database.catalog.aside.discard, key))
        else:
            database.catalog.aside.discard(key)


def _not_aside_sql(key: TableKey) -> str:
    schema, name = map(literal, key)
    return f"DELETE FROM {SCHEMA}.replaced_tables WHERE schema_name = {schema} AND table_name = {name}"


def _settle(database: Database, transaction: Transaction) -> None:
    """Capture the new tables."""
    schemas = {key[0] for key in transaction.makes}
    with plain_division(transaction.cursor):
        for schema in sorted(schemas):
            _settle_in(database, transaction, schema)
    if not transaction.made:
        return
    transaction.defines = True

    def follow() -> None:
        for captured in transaction.made:
            database.catalog.put_new_table(captured)
            database.snapshots.stream_made(captured.table_id)
        database.catalog.version += 1

    transaction.at(CommitStep.MEMORY, follow)


def _settle_in(database: Database, transaction: Transaction, schema: str) -> None:
    cursor, catalog = transaction.cursor, database.catalog
    streams, known = catalog.over_schema(schema), transaction.captured_tables(catalog)
    names = tables_in(cursor, schema) if streams else []
    # Other tables existed before, and are not in these streams.
    fresh = [name for name in names if key_of(*name) in transaction.makes and key_of(*name) not in known]
    if not fresh:
        return
    refuse_hidden(transaction, [key_of(*name) for name in fresh], streams)
    made: list[Captured] = []
    for name in fresh:
        shape, key = read_shape(cursor, *name), key_of(*name)
        cursor.execute(_not_aside_sql(key)).fetchall()
        transaction.at(CommitStep.MEMORY, partial(catalog.aside.discard, key))
        left = _left_of(database, transaction, streams, shape)
        if left is None:
            made.append(_made(database, transaction, streams, shape))
        else:
            _take_up(database, transaction, left, shape)
    if not made:
        return
    transaction.made += made
    altered = {table_id: altered.now for table_id, altered in transaction.altered.items()}
    for stream in streams:
        there = [altered.get(table.table_id, table) for table in catalog.tables_of(stream)]
        check_bound(len(there) - 1 + len(made))
        for view in stream.views:
            cursor.execute(f"DROP VIEW IF EXISTS {ident(stream.schema)}.{ident(view)}").fetchall()
        for statement in view_statements(query_over_all(stream, [*there, *made])):
            cursor.execute(statement).fetchall()


def _left_of(
    database: Database, transaction: Transaction, streams: tuple[Stream, ...], shape: TableShape
) -> Captured | None:
    """The remains of a dropped table whose events a newly created one can continue."""
    numbers = {stream.stream_id for stream in streams}
    for captured in database.catalog.tables.values():
        if (
            captured.was_dropped
            and captured.table_id not in transaction.altered
            and captured.table_id not in database.unlike
            and fold(shown_table(captured.shape)) == fold(shown_table(shape))
            and {stream.stream_id for stream in captured.streams} == numbers
            # One version is reserved for the next DROP.
            and len(captured.versions) + 1 < VERSIONS_MAX
            and len(shape.primary_key) == len(captured.shape.primary_key)
            and follows(captured, shape)
        ):
            return captured
    return None


def _take_up(database: Database, transaction: Transaction, left: Captured, shape: TableShape) -> None:
    """Continue a dropped table by its new namesake: its next version, with its rows as inserts."""
    cursor = transaction.cursor
    put_version(database, transaction, left, shape, ids_by_name(left, shape), summed=False)
    now = transaction.altered[left.table_id].now
    rows = int(ask(cursor, made_sql(now, transaction.next_lsn, transaction.txid))[0])
    transaction.captured(now.table_id, rows, None)
    for statement in (
        *row_sums.take_statements(now, transaction.next_lsn, row_sums.CREATED),
        f"UPDATE {SCHEMA}.table_catalog SET schema_name = {literal(shape.schema)} "
        f"WHERE table_id = {now.table_id}",
        f"DROP TABLE {left.shape.qualified}",
    ):
        cursor.execute(statement).fetchall()


def take_in(
    database: Database, session_id: int, cursor: duckdb.DuckDBPyConnection, stream: Stream, timeout_ms: int
) -> Waiting[int]:
    """Add the tables created without ducktail in the schema of a stream, in a transaction of its own.

    Returns the number of events.

    Raises:
        LockNotAvailable: the writer lock was not free in time.
        WrongState: a stream cannot be on one of them.
        ProgramLimitExceeded: the stream would be on too many tables.
    """
    assert stream.of_schema is not None
    transaction = database.transactions.begin(session_id, cursor, "")
    try:
        for key in sorted(key_of(*name) for name in came_past(cursor, database.catalog, stream.of_schema)):
            yield from claim_name(database, transaction, key, timeout_ms)
    except BaseException:
        database.transactions.rollback(transaction)
        raise
    # Transactions that wrote them have committed: a new snapshot includes their rows.
    marks = set(transaction.marks)
    transaction.marks.clear()
    database.transactions.rollback(transaction)
    try:
        transaction = database.transactions.begin(session_id, cursor, "")
    except BaseException:
        for key in marks:
            database.transactions.gate.unmark(key)
        raise
    transaction.marks |= marks
    try:
        yield from database.transactions.lock_for(transaction, timeout_ms)
        for key in marks:
            look_at_last(database, transaction, key)

        def follow() -> None:
            for over in database.catalog.over_schema(stream.of_schema or ""):
                database.catalog.behind.pop(over.stream_id, None)

        transaction.at(CommitStep.MEMORY, follow)
    except BaseException:
        database.transactions.rollback(transaction)
        raise
    yield from database.transactions.commit(transaction, timeout_ms)
    return transaction.events


def _made(
    database: Database, transaction: Transaction, streams: tuple[Stream, ...], shape: TableShape
) -> Captured:
    """Make a table captured, with its rows as inserts."""
    cursor, base_lsn = transaction.cursor, transaction.next_lsn
    captured = new_log(cursor, shape)
    parts = []
    for stream in streams:
        try:
            part = part_on(stream, shape, captured.table_id)
        except DucktailError as error:
            raise WrongState(
                f'table "{shape.name}" does not fit a stream on all tables of schema "{shape.schema}"',
                detail=f"{error.message[0].upper()}{error.message[1:]}.",
                hint="Make it so that it fits, or in another schema.",
            ) from error
        part = replace(part, created_lsn=base_lsn, created_counter=database.snapshots.next_counter)
        # Behind all others, some of which may be removed: numbers only grow.
        cursor.execute(insert_tables_sql([part], captured.table_id)).fetchall()
        parts.append(part)
    captured = captured.with_streams(tuple(parts))
    rows = int(ask(cursor, made_sql(captured, base_lsn, transaction.txid))[0])
    transaction.captured(captured.table_id, rows, None, inserts=True)
    for statement in row_sums.take_statements(captured, transaction.next_lsn, row_sums.CREATED):
        cursor.execute(statement).fetchall()
    return captured


def _let_go(database: Database, table_id: int) -> None:
    database.unlike.pop(table_id, None)


def retire(database: Database, transaction: Transaction, captured: Captured) -> None:
    """Drop a captured table whose streams continue without it.

    Args:
        captured: the table in the transaction, which has renamed it.

    Raises:
        DependentObjects: an object depends on the table.
        ProgramLimitExceeded: too many of its versions are retained.
        WrongState: the table was written without ducktail.
        duckdb.Error: DuckDB failed.
    """
    cursor, was = transaction.cursor, captured.shape
    before = transaction.altered[captured.table_id].before.shape
    differs = database.unlike.get(captured.table_id)
    if differs is not None and was.primary_key:
        raise WrongState(
            f'cannot drop table "{before.name}" because it does not agree with its streams',
            detail=f"The table was written past ducktail: {differs}. Nothing could mend its deletes.",
            hint="ALTER STREAM ... RESYNC of one of them mends it.",
        )
    if differs is not None:
        # No other operation can remove it from its streams. Its events report the loss of all of its rows.
        transaction.at(CommitStep.MEMORY, partial(_let_go, database, captured.table_id))
    rows = int(ask(cursor, dropped_sql(captured, transaction.next_lsn, transaction.txid))[0])
    # A transaction that has read it before and writes one of its rows gets a conflict.
    transaction.captured(captured.table_id, rows, None)
    try:
        put_remains(
            database,
            transaction,
            captured,
            shown_table(before),
            drop_statements(cursor, was.schema, was.name),
        )
    except duckdb.DependencyException as error:
        raise depended_on("drop", before.name, error) from error
    for item in database.rights.of_stream(*captured.key):
        rights_changes.add(database, transaction, rights_changes.Forget(item))


def put_remains(
    database: Database, transaction: Transaction, captured: Captured, shown: str, drops: Iterable[str]
) -> None:
    """Replace a captured table by one of ours without rows, its next version, which keeps its log.

    Args:
        captured: the table in the transaction.
        shown: the name by which it was shown.
        drops: the statements that drop the table.

    Raises:
        ProgramLimitExceeded: too many of its versions are retained.
        duckdb.Error: DuckDB failed.
    """
    cursor, was = transaction.cursor, captured.shape
    name = dropped_name(captured.table_id, shown)
    left = replace(
        was,
        schema=SCHEMA,
        name=name,
        generated=(),
        column_order=tuple(column.name for column in was.stored),
        unique=(was.primary_key,) if was.primary_key else (),
        unique_expressions=False,
    )
    cursor.execute(create_sql(left)).fetchall()
    for statement in drops:
        cursor.execute(statement).fetchall()
    left = read_shape(cursor, SCHEMA, name)
    put_version(database, transaction, captured, left, captured.present.ids)
    cursor.execute(
        f"UPDATE {SCHEMA}.table_catalog SET schema_name = {literal(SCHEMA)} "
        f"WHERE table_id = {captured.table_id}"
    ).fetchall()
