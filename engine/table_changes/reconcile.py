"""Reconciliation: the events between the old rows of a captured table and its new ones.

Three changes replace rows without a statement that lists them: an ALTER TABLE that rewrites rows, a new
column with values that readers cannot derive, and a table that takes the place of another. The difference is
one FULL JOIN on the primary key (`capture/difference.py`), or, without a key, one EXCEPT ALL on each side.
Source: docs/design/schema_changes.md.
"""

from __future__ import annotations

from ..capture.difference import Difference, keyless_sql, table_rows
from ..capture.plan import numbers
from ..catalog.captured_tables import Captured
from ..checks.row_sums import ALTERED, take_statements
from ..duck.cursors import ask
from ..duck.table_shape import TableShape
from ..quoting import ident
from ..transactions.transaction import TableWrites, Transaction


def reconcile(transaction: Transaction, old: Captured, now: Captured, old_table: str) -> None:
    """Write the events that change a captured table's old rows to its new ones.

    Args:
        old: the table before the change.
        now: the table after it, with its columns and rows.
        old_table: the relation of the old rows, in the columns of `old`.
    """
    ids, shape, there = now.present.ids, now.shape, set(old.present.ids)
    columns = enumerate(zip(ids, shape.stored, strict=True))
    fresh = tuple(i for i, (number, column) in columns if number not in there and column.default is not None)
    events = _write_difference(transaction, now, _old_rows(old, shape, ids, old_table), fresh)
    # A transaction that began to read earlier conflicts with it, even without differences.
    writes = TableWrites(transaction.next_lsn + 1, transaction.next_lsn, None)
    transaction.tables.setdefault(old.table_id, writes).keys = None
    transaction.captured(old.table_id, events, None)
    if old.present.stored != now.present.stored:
        for statement in take_statements(now, transaction.next_lsn, ALTERED):
            transaction.cursor.execute(statement).fetchall()


def _write_difference(transaction: Transaction, now: Captured, old_rows: str, fresh: tuple[int, ...]) -> int:
    """Write the events of the difference to the log; return their number.

    Args:
        fresh: as in `Difference`.
    """
    cursor, table, whole = transaction.cursor, now.table, now.minimal_changes == "none"
    base_lsn, txid, new_rows = transaction.next_lsn, transaction.txid, table_rows(now.shape)
    if now.shape.primary_key:
        difference = Difference(now.shape, old_rows, new_rows, whole=whole, fresh=fresh)
        return int(ask(cursor, difference.log_sql(table), numbers(base_lsn, txid))[0])
    events = 0
    for op in "di":
        text = keyless_sql(table, old_rows, new_rows, op, base_lsn + events, txid, whole=whole)
        events += int(ask(cursor, text)[0])
    return events


def _old_rows(old: Captured, shape: TableShape, ids: tuple[int, ...], old_table: str) -> str:
    """A SELECT of the old rows in the new table's columns; new columns are NULL."""
    there = dict(zip(old.present.ids, old.shape.stored, strict=True))
    values = []
    for number, column in zip(ids, shape.stored, strict=True):
        before = there.get(number)
        if before is None:
            values.append(f"NULL::{column.type}")
        elif before.type == column.type:
            values.append(ident(before.name))
        else:
            values.append(f"TRY_CAST({ident(before.name)} AS {column.type})")
    named = ",".join(f"{value} AS o{place}" for place, value in enumerate(values, 1))
    return f"SELECT NULL::BIGINT AS rid,{named} FROM {old_table}"
