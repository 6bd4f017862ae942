"""Names of tables that nobody else writes for a while: a stream is made on them, or a table gets one."""

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

# The schema that DuckDB's temporary tables have, in a database of their own.
TEMPORARY_SCHEMA = "main"


def anywhere(name: str) -> TableKey:
    """Under which the gate knows who writes a table of this name in a schema that cannot be told."""
    return key_of("", name)


def wait_for_writers(
    database: Database, session_id: int, key: tuple[str, ...], timeout_ms: int
) -> Waiting[None]:
    """Wait for the open transactions that have written a table without a stream.

    Raises:
        LockNotAvailable: one did not end in time.
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
    """Mark a table for a CREATE STREAM; those that are writing it are still to be waited for.

    Args:
        marked: gets the name as soon as it is marked.
        several: see `Gate.mark`.

    Raises:
        LockNotAvailable.
    """
    while (future := database.transactions.gate.mark(session_id, key, several=several)) is not None:
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f"{shown_table(key)} is getting another stream")
    marked.append(key)


def claim_name(database: Database, transaction: Transaction, key: TableKey, timeout_ms: int) -> Waiting[None]:
    """Nobody else writes a table of this name until the transaction ends.

    Who has planned a write of one that is none of ours must not meet a captured table that takes its name.

    Raises:
        LockNotAvailable.
    """
    if key in transaction.marks:
        return
    while (future := database.transactions.gate.mark(transaction.session_id, key)) is not None:
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f'table "{key[-1]}" is getting a stream, or its name is being taken')
    transaction.marks.add(key)
    yield from wait_for_writers(database, transaction.session_id, key, timeout_ms)


def refuse_aside(catalog: Catalog, key: TableKey, what: str) -> None:
    """A table whose place another one has taken is in none of the streams over all tables of its schema, and
    nothing of it is to be missed there.

    Args:
        key: schema and name in small letters.
        what: what it cannot do.

    Raises:
        WrongState.
    """
    if catalog.is_aside(key):
        raise WrongState(
            f'table "{key[-1]}" cannot {what}: it is in no stream on all tables of schema "{key[0]}"',
            detail="Another table has taken its place.",
            hint="DROP it, or ALTER TABLE ... RENAME TO another name: then it is in them, with its rows.",
        )


def refuse_missed(catalog: Catalog, key: TableKey) -> None:
    """A table that the streams over all tables of its schema should be on, and are not, gets no other stream:
    it would be a captured one that they miss.

    Raises:
        WrongState: it has come past ducktail, or another table has taken its place.
    """
    refuse_aside(catalog, key, "have a stream of its own")
    over = catalog.over_schema(key[0])
    if key not in catalog.tables and any(stream.stream_id in catalog.behind for stream in over):
        raise WrongState(
            f'table "{key[-1]}" has come past ducktail into a schema of which a stream is on all tables',
            hint="ALTER STREAM ... RESYNC of that one takes it in.",
        )


def refuse_hidden(transaction: Transaction, keys: Iterable[TableKey], streams: Iterable[Stream]) -> None:
    """Temporary tables and views, which to DuckDB are called main.t as well, would be read in place of these.

    Args:
        keys: of tables, in small letters.
        streams: whose views would be others.

    Raises:
        NotSupported.
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
