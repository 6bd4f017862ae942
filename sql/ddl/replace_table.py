"""CREATE OR REPLACE TABLE ... AS of a captured table: its rows are replaced, and what differs becomes events.

The table stays: with its primary key, which DuckDB's own CREATE OR REPLACE would drop, its other constraints
and indexes, and the rights on it. The query is evaluated once, into a temporary table. Where its columns are
others, a new table takes the place of the one before (`engine/table_changes/renames.py`), with its key and
the rights on it.

Source: docs/refreshes.md.
"""

from __future__ import annotations

import duckdb

from ...engine.capture.difference import check_key, plan_refresh
from ...engine.catalog.captured_tables import Captured
from ...engine.duck.duckdb_errors import translated
from ...engine.duck.table_shape import RESERVED_PREFIX
from ...engine.errors import LockNotAvailable, NotSupported
from ...engine.quoting import fold, ident
from ...engine.table_changes import renames
from ...engine.transactions.transaction import Transaction
from ...engine.transactions.transactions import stale
from ...engine.waiting import Waiting
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import count_of, placed
from ..text.classified import Classified

NEW = f"{RESERVED_PREFIX}_new"


def replace(
    session: Context, classified: Classified, parameters: tuple[object, ...], captured: Captured
) -> Waiting[Result]:
    """Replace the rows of a captured table by a query's.

    Raises:
        NotSupported: the table has no primary key, or the query none of its columns.
        UniqueViolation, NotNullViolation: of the primary key. LockNotAvailable.
        SerializationFailure: it was written since the transaction began to read.
    """
    facts = classified.ddl
    assert facts is not None and facts.list_offset is not None
    _refuse_unfit(captured)
    # With the names of its columns, where they stand behind the table's.
    query = classified.text[facts.list_offset :]
    transactions = session.database.transactions

    anew = False

    def work(transaction: Transaction) -> Waiting[int]:
        nonlocal anew
        timeout_ms = session.block.lock_timeout_ms
        present = yield from transactions.enter_captured(transaction, captured.key, timeout_ms)
        if present is None:
            gone = f'table "{captured.shape.name}" has just lost its streams'
            raise LockNotAvailable(gone, hint="Try again.")
        transaction.ddl = True
        session.judge(classified)
        if session.database.snapshots.has_newer(transaction, present):
            raise stale(present)  # Rows that it does not see would stay beside the query's.
        transaction.annotate(session.variables.annotation)
        cursor = session.cursor
        try:
            rows = count_of(session, f"CREATE TEMP TABLE {NEW} {query}", parameters)
        except duckdb.Error as error:
            told = placed(session, error, classified.text)
            told.position = None  # It would be of our text.
            raise told from error
        columns = _columns(cursor, present.shape.qualified)
        if not present.shape.primary_key or _columns(cursor, f"temp.main.{NEW}") != columns:
            anew = True
            yield from _swap(session, transaction, present)
            return rows
        check_key(cursor, f"temp.main.{NEW}", present.shape)
        minimal = present.minimal_changes != "none"
        plan = plan_refresh(present.table, f"temp.main.{NEW}", minimal=minimal)
        try:
            transactions.write_captured(transaction, present, plan, ())
        except duckdb.Error as error:
            raise placed(session, error, classified.text) from error
        cursor.execute(f"DROP TABLE temp.main.{NEW}").fetchall()
        return rows

    rows = yield from session.block.unit(work)
    if captured.shape.primary_key or not anew:
        other = "it has other columns now, and the primary key that it had"
        stays = "its rows are replaced, and what it is made of stays"
        session.notices.add(f'table "{captured.shape.name}" has streams: {other if anew else stays}')
    return Result.command(f"SELECT {rows}")


def _refuse_unfit(captured: Captured) -> None:
    name = captured.shape.name
    if not captured.shape.primary_key and not captured.may_go:
        raise NotSupported(
            f'table "{name}" has streams and no primary key: CREATE OR REPLACE cannot tell its rows apart',
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )
    if captured.shape.generated:
        raise NotSupported(
            f'CREATE OR REPLACE of table "{name}", which has streams and generated columns, is not supported',
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )


def _swap(session: Context, transaction: Transaction, present: Captured) -> Waiting[None]:
    """Put a table of the query's columns in the place of the one before."""
    database, annotation = session.database, session.variables.annotation
    timeout_ms = session.block.lock_timeout_ms
    yield from renames.drop(database, transaction, present.key, annotation, timeout_ms)
    columns = session.cursor.execute(
        "SELECT column_name, data_type FROM system.main.duckdb_columns() WHERE database_name = 'temp' "
        f"AND table_name = '{NEW}' ORDER BY column_index"
    ).fetchall()
    table, key = present.shape.qualified, present.shape.primary_key
    parts = [f"{ident(name)} {type_}" for name, type_ in columns]
    if key and {fold(name) for name in key} <= {fold(name) for name, _ in columns}:
        # Made with the table it is held from the first row on; added, DuckDB would look at COMMIT only.
        parts.append(f"PRIMARY KEY ({', '.join(map(ident, key))})")
        check_key(session.cursor, f"temp.main.{NEW}", present.shape)
    try:
        for statement in (
            f"CREATE TABLE {table} ({', '.join(parts)})",
            f"INSERT INTO {table} FROM temp.main.{NEW}",
            f"DROP TABLE temp.main.{NEW}",
        ):
            session.cursor.execute(statement).fetchall()
        renames.settle(database, transaction, present.table_id)
    except duckdb.Error as error:
        raise translated(error) from error
    session.block.defined()


def _columns(cursor: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """Name, in small letters, and type of each column."""
    cursor.execute(f"SELECT * FROM {table} LIMIT 0").fetchall()
    return [(fold(str(column[0])), str(column[1])) for column in cursor.description or []]
