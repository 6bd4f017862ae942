"""Folding: what a transaction has deleted and inserted again of one table becomes the smallest change.

The log's rows behind an LSN, all of one table, are replaced by what differs between the row that the first
of each key found and the row that the last one left (`difference.py`). It is for a refresh in several
statements, TRUNCATE and INSERTs: each is captured as it comes, since the transaction must see its own rows,
and at the end what differs is told. Source: docs/refreshes.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from ..asking import ask
from ..table import TableShape
from .description import CapturedTable, numbers
from .difference import Difference
from .rows import images


@dataclass(slots=True)
class Refresh:
    """What may be a refresh, under way in a transaction: nothing else has been captured since it began.

    Args:
        table_id, table: the captured table.
        after_lsn: the LSN before its first event.
        deleted, inserted: there was a DELETE, and something else than that.
        plain: that was nothing but inserts, each behind all deletes: no key is deleted or inserted twice.
    """

    table_id: int
    table: CapturedTable
    after_lsn: int
    deleted: bool = False
    inserted: bool = False
    plain: bool = True

    @property
    def may_shrink(self) -> bool:
        """Whether it has deleted and inserted."""
        return self.deleted and self.inserted

    def went_on(self, *, deletes: bool, inserts: bool) -> None:
        """A statement of the table has been captured."""
        self.plain = self.plain and (inserts or (deletes and not self.inserted))
        self.deleted = self.deleted or deletes
        self.inserted = self.inserted or not deletes


def fold(cursor: duckdb.DuckDBPyConnection, refresh: Refresh, last_lsn: int, txid: int) -> int:
    """Fold a refresh, up to the transaction's last LSN so far.

    Returns:
        The number of its events, which stand behind `refresh.after_lsn`.

    Raises:
        duckdb.Error: what DuckDB said; the transaction is to be rolled back.
    """
    shape, log = refresh.table.shape, refresh.table.log
    first, last = ("op='d'", "op='i'") if refresh.plain else (_ends("min", refresh), _ends("max", refresh))
    mine = f"{log} WHERE lsn>{refresh.after_lsn} AND lsn<={last_lsn}"
    difference = Difference(
        shape,
        f"SELECT rid,{images('o', shape)} FROM {mine} AND op<>'i' AND {first}",
        f"SELECT {images('n', shape)} FROM {mine} AND op<>'d' AND {last}",
    )
    events = int(ask(cursor, difference.log_sql(refresh.table), numbers(last_lsn, txid))[0])
    for statement in (
        f"DELETE FROM {mine}",
        f"UPDATE {log} SET lsn=lsn-{last_lsn - refresh.after_lsn} WHERE lsn>{last_lsn}",
    ):
        cursor.execute(statement).fetchall()
    return events


def _ends(which: str, refresh: Refresh) -> str:
    """SQL boolean: a row of the log is the first (`min`) or the last (`max`) one of its key."""
    shape = refresh.table.shape
    keys = ",".join(_keys(shape))
    return (
        f"lsn IN (SELECT {which}(lsn) FROM {refresh.table.log} WHERE lsn>{refresh.after_lsn} GROUP BY {keys})"
    )


def _keys(shape: TableShape) -> list[str]:
    places = [shape.place(name) + 1 for name in shape.primary_key]
    return [f"(CASE WHEN op='d' THEN o{place} ELSE n{place} END)" for place in places]
