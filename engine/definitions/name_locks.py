"""Locks on names of tables: no other session writes a table while it gets a stream or takes the name."""

from __future__ import annotations

from collections.abc import Iterable

from ..catalog.catalog import Catalog
from ..catalog.streams import Stream, key_of
from ..database import Database
from ..duck.cursors import ask_maybe
from ..duck.table_shape import RELATIONS
from ..errors import LockNotAvailable, NotSupported, WrongState
from ..quoting import fold, folded_sql
from ..transactions.locks import shown_table
from ..transactions.transaction import TableKey, Transaction
from ..waiting import Wait, Waiting

# The schema of DuckDB's temporary tables, which are in a database of their own.
TEMPORARY_SCHEMA = "main"


def anywhere(name: str) -> TableKey:
    """The gate's key for writers of a table of this name whose schema is unknown."""
    return key_of("", name)


def wait_for_writers(
    database: Database, session_id: int, key: tuple[str, ...], timeout_ms: int
) -> Waiting[None]:
    """Wait for the open transactions that have written a table without a stream.

    Raises:
        LockNotAvailable: a transaction did not end in time.
    """
    for writer, future in database.transactions.gate.writers(key):
        if writer == session_id:
            continue
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(
                f"{shown_table(key)} has uncommitted writes of session {writer}",
                detail="What is captured begins between transactions: it waits for those that have written "
                f"it, and this one has not ended within {timeout_ms} ms.",
                hint="SELECT * FROM ducktail.sessions shows it; lock_timeout is how long to wait.",
            )


def mark(
    database: Database,
    session_id: int,
    key: TableKey,
    marked: list[TableKey],
    timeout_ms: int,
    *,
    several: bool,
) -> Waiting[None]:
    """Mark a table for a CREATE STREAM; the caller must still wait for its present writers.

    Args:
        marked: the list to which the name is added as soon as it is marked.
        several: as in `Gate.mark`.

    Raises:
        LockNotAvailable: another transaction did not end in time.
    """
    while (future := database.transactions.gate.mark(session_id, key, several=several)) is not None:
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f"{shown_table(key)} is getting another stream")
    marked.append(key)


def claim_name(database: Database, transaction: Transaction, key: TableKey, timeout_ms: int) -> Waiting[None]:
    """Exclude other writers of a table of this name until the transaction ends.

    A write planned for an uncaptured table must not reach a captured table that takes its name.

    Raises:
        LockNotAvailable: another transaction did not end in time.
    """
    if key in transaction.marks:
        return
    while (future := database.transactions.gate.mark(transaction.session_id, key)) is not None:
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f'table "{key[-1]}" is getting a stream, or its name is being taken')
    transaction.marks.add(key)
    yield from wait_for_writers(database, transaction.session_id, key, timeout_ms)


def refuse_aside(catalog: Catalog, key: TableKey, what: str) -> None:
    """Refuse an operation on a table excluded from the streams over its schema because another table has its
    place: its changes would be missing from them.

    Args:
        key: schema and name in lower case.
        what: the refused operation, for the message.

    Raises:
        WrongState: the table is excluded from such streams.
    """
    if catalog.is_aside(key):
        raise WrongState(
            f'table "{key[-1]}" cannot {what}: it is in no stream on all tables of schema "{key[0]}"',
            detail="Another table has taken its place.",
            hint="DROP it, or ALTER TABLE ... RENAME TO another name: then it is in them, with its rows.",
        )


def refuse_missed(catalog: Catalog, key: TableKey) -> None:
    """Refuse a new stream on a table that the streams over its schema should include but do not: it would be
    captured and missing from them.

    Raises:
        WrongState: the table was created without ducktail, or another table has its place.
    """
    refuse_aside(catalog, key, "have a stream of its own")
    if key in catalog.mirrors:
        raise WrongState(
            f'table "{key[-1]}" cannot have a stream of its own: it mirrors a table of a source',
            hint="The stream with the source has its changes.",
        )
    over = catalog.over_schema(key[0])
    if key not in catalog.tables and any(stream.stream_id in catalog.behind for stream in over):
        raise WrongState(
            f'table "{key[-1]}" has come past ducktail into a schema of which a stream is on all tables',
            hint="ALTER STREAM ... RESYNC of that one takes it in.",
        )


def refuse_hidden(transaction: Transaction, keys: Iterable[TableKey], streams: Iterable[Stream]) -> None:
    """Refuse tables hidden by temporary tables or views, which DuckDB also names main.t and would read
    instead.

    Args:
        keys: keys of tables, in lower case.
        streams: streams whose views would be created.

    Raises:
        NotSupported: a temporary table or view hides one of them.
    """
    names = {key[1] for key in keys if key[0] == TEMPORARY_SCHEMA}
    for stream in streams:
        if fold(stream.schema) == TEMPORARY_SCHEMA:
            names |= {fold(view) for view in stream.views}
    found = ask_maybe(
        transaction.cursor,
        f"SELECT table_name FROM {RELATIONS} WHERE database_name = 'temp' "
        f"AND list_contains($1::VARCHAR[], {folded_sql('table_name')})",
        [sorted(names)],
    )
    if found is not None:
        raise NotSupported(
            f'"{found[0]}" is hidden by a temporary table or view of this session',
            hint="Drop that one, or give it another name.",
        )
