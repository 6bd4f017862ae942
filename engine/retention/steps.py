"""Steps of removing events from the log: short transactions under the writer lock, on one cursor.

A writer waits for one step at most, as the lock is let go of behind each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb

from ..duck.cursors import in_one_transaction
from ..transactions.transactions import Transactions
from ..waiting import drive

# How long a step waits for the writer lock. A transaction may hold it for longer: then the step is
# left for the next pass.
LOCK_WAIT_MS = 60_000


class Steps:
    """The steps of one thread.

    Args:
        cursor: whoever has it runs one pass at a time.
        owner: under which number it waits for the writer lock, as a session does.

    Attributes:
        stop: set where no further step is to begin.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, transactions: Transactions, owner: int) -> None:
        self.cursor = cursor
        self.stop = threading.Event()
        self._transactions = transactions
        self.owner = owner

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writer lock.

        Raises:
            LockNotAvailable: a transaction holds it for too long.
        """
        drive(self._transactions.lock_writer(self.owner, LOCK_WAIT_MS))
        try:
            yield
        finally:
            self._transactions.writer_lock.release(self.owner)

    def transaction(self, statements: Sequence[str]) -> list[int]:
        """All of these statements or none; the first number that each answers, 0 where it answers none."""
        with in_one_transaction(self.cursor):
            rows = [self.cursor.execute(statement).fetchall() for statement in statements]
        return [row[0][0] if row and isinstance(row[0][0], int) else 0 for row in rows]
