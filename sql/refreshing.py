"""CREATE OR REPLACE TABLE ... AS of a captured table: its rows are replaced, and what differs becomes events.

The table stays: with its primary key, which DuckDB's own CREATE OR REPLACE would drop, its other constraints
and indexes, and the rights on it. The query is evaluated once, into a temporary table.

Source: docs/refreshes.md.
"""

from __future__ import annotations

import duckdb

from ..engine.asking import ask, ask_maybe
from ..engine.capture.refresh import plan_refresh
from ..engine.difference import comparable
from ..engine.errors import LockNotAvailable, NotNullViolation, NotSupported, UniqueViolation
from ..engine.quoting import ident
from ..engine.streams import Captured
from ..engine.table import RESERVED_PREFIX, TableShape
from ..engine.transaction import Transaction
from ..engine.waiting import Waiting
from .context import Context
from .results import Result
from .running import count_of, placed
from .text.classified import Classified

NEW = f"{RESERVED_PREFIX}_new"


def replace(
    session: Context, classified: Classified, parameters: tuple[object, ...], captured: Captured
) -> Waiting[Result]:
    """Replace the rows of a captured table by a query's.

    Raises:
        NotSupported: 0A000, the query has other columns than the table, or the table no primary key.
        UniqueViolation, NotNullViolation: 23505, 23502, of the primary key. LockNotAvailable: 55P03.
        SerializationFailure: 40001.
    """
    facts = classified.ddl
    assert facts is not None and facts.query_offset is not None
    _refuse_unfit(captured)
    query = classified.text[facts.query_offset :]
    transactions = session.database.transactions

    def work(transaction: Transaction) -> Waiting[int]:
        timeout_ms = session.block.lock_timeout_ms
        present = yield from transactions.enter_captured(transaction, captured.key, timeout_ms)
        if present is None:
            gone = f'table "{captured.shape.name}" has just lost its streams'
            raise LockNotAvailable(gone, hint="Try again.")
        transaction.annotate(session.variables.annotation)
        cursor = session.cursor
        try:
            rows = count_of(session, f"CREATE TEMP TABLE {NEW} AS {query}", parameters)
        except duckdb.Error as error:
            told = placed(session, error, classified.text)
            told.position = None  # It would be of our text.
            raise told from error
        _check_columns(cursor, present.shape)
        _check_key(cursor, present.shape)
        minimal = present.minimal_changes != "none"
        plan = plan_refresh(present.table, f"temp.main.{NEW}", minimal=minimal)
        try:
            transactions.write_captured(transaction, present, plan, ())
        except duckdb.Error as error:
            raise placed(session, error, classified.text) from error
        cursor.execute(f"DROP TABLE temp.main.{NEW}").fetchall()
        return rows

    rows = yield from session.block.unit(work)
    session.notices.add(
        f'table "{captured.shape.name}" has streams: its rows are replaced, and what it is made of stays'
    )
    return Result.command(f"SELECT {rows}")


def _refuse_unfit(captured: Captured) -> None:
    name = captured.shape.name
    if not captured.shape.primary_key:
        raise NotSupported(
            f'table "{name}" has streams and no primary key: CREATE OR REPLACE cannot tell its rows apart',
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )
    if captured.shape.generated:
        raise NotSupported(
            f'CREATE OR REPLACE of table "{name}", which has streams and generated columns, is not supported',
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )


def _check_columns(cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> None:
    """The query's columns are the table's, in its order: names without case, and types."""
    found, wanted = (_columns(cursor, name) for name in (f"temp.main.{NEW}", shape.qualified))
    if found == wanted:
        return
    different = next((pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]), None)
    detail = f"The query has {len(found)} columns, and the table {len(wanted)}."
    if different is not None:
        (name, type_), (own_name, own_type) = different
        detail = f'Where the query has "{name}" {type_}, the table has "{own_name}" {own_type}.'
    raise NotSupported(
        f'CREATE OR REPLACE TABLE of table "{shape.name}" with other columns is not supported while it has a '
        "stream",
        detail=detail,
        hint="Cast the query's columns to the table's; or DROP STREAM first, and make the stream again.",
    )


def _columns(cursor: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """Name, in small letters, and type of each column."""
    cursor.execute(f"SELECT * FROM {table} LIMIT 0").fetchall()
    return [(str(column[0]).lower(), str(column[1])) for column in cursor.description or []]


def _check_key(cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> None:
    """Each new row has a key of its own.

    Raises:
        NotNullViolation: 23502. UniqueViolation: 23505.
    """
    names = [ident(name) for name in shape.primary_key]
    nulls = " OR ".join(f"{name} IS NULL" for name in names)
    (count,) = ask(cursor, f"SELECT count(*) FROM temp.main.{NEW} WHERE {nulls}")
    if count:
        raise NotNullViolation(
            f'NULL in the primary key of table "{shape.name}"', detail=f"{count} rows of the query have it."
        )
    keys = ",".join(comparable(ident(n), shape.stored[shape.place(n)].type) for n in shape.primary_key)
    twice = ask_maybe(
        cursor,
        f"SELECT any_value(concat_ws(', ',{','.join(f'{n}::VARCHAR' for n in names)})) "
        f"FROM temp.main.{NEW} GROUP BY {keys} HAVING count(*)>1 LIMIT 1",
    )
    if twice is not None:
        raise UniqueViolation(
            f'duplicate key in the new rows of table "{shape.name}"',
            detail=f"The query gives key ({twice[0]}) more than once.",
        )
