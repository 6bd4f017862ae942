"""The name of a captured table, which its streams follow: what it means is seen at COMMIT.

Within its transaction a table may be called otherwise, and another one may take its name: so tables are
built anew and swapped in. Only at COMMIT it is told which of them it was.

Source: docs/design/schema_changes.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from .database import Database
from .definitions import wait_for_writers
from .errors import LockNotAvailable
from .filters import plain_division
from .rights import relation
from .rights_changes import Rename, add
from .streams import Captured
from .table import TableShape
from .transaction import TableKey, Transaction
from .versions import put_version, show_altered
from .waiting import Wait, Waiting


def claim_name(
    database: Database, transaction: Transaction, key: TableKey, timeout_ms: int
) -> Waiting[None]:
    """Nobody else writes a table of this name until the transaction ends.

    Who has planned a write of one that is none of ours must not meet a captured table that takes its name.

    Raises:
        LockNotAvailable: 55P03.
    """
    if key in transaction.marks:
        return
    while (future := database.transactions.gate.mark(transaction.session_id, key)) is not None:
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f'table "{key[-1]}" is getting a stream, or its name is being taken')
    transaction.marks.add(key)
    yield from wait_for_writers(database, transaction.session_id, key, timeout_ms)


def rename(database: Database, transaction: Transaction, captured: Captured, shape: TableShape) -> None:
    """A captured table has another name.

    Args:
        shape: as it is now.
    """
    now = replace(captured, table=replace(captured.table, shape=shape))
    known = transaction.altered.get(captured.table_id)
    told = captured.shape.name if known is None else known.told
    show_altered(database, transaction, captured, now, told)
    number = captured.table_id
    transaction.before_commit[f"table {number}"] = partial(_settle, database, transaction, number)
    add(database, transaction, Rename(relation(*captured.key), relation(*now.key)))


def _settle(database: Database, transaction: Transaction, table_id: int) -> None:
    """At COMMIT: a table that is called otherwise than its newest version says gets another one."""
    altered = transaction.altered[table_id]
    if altered.now.shape.name == altered.told:
        return
    with plain_division(transaction.cursor):
        now = altered.now
        put_version(database, transaction, now, now.shape, now.present.ids)
