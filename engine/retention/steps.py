"""Steps of removing events from the log: short transactions under the writer lock, on one cursor.

A writer waits for one step at most, because the lock is released after each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb

from ..duck.cursors import in_one_transaction
from ..transactions.transactions import Transactions

# Time that a step waits for the writer lock. If a transaction holds it for longer, the step is left to the
# next pass.
LOCK_WAIT_MS = 60_000


class Steps:
    """The steps of one thread.

    Args:
        cursor: the cursor of the steps; its user runs one pass at a time.
        owner: its number as an owner of the writer lock, like a session's.

    Attributes:
        stop: set when no further step may begin.
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
            LockNotAvailable: a transaction holds the lock for too long.
        """
        with self._transactions.hold_writer(self.owner, LOCK_WAIT_MS):
            yield

    def transaction(self, statements: Sequence[str]) -> list[int]:
        """Run all of these statements or none; returns the first number of each result, 0 without one."""
        with in_one_transaction(self.cursor):
            rows = [self.cursor.execute(statement).fetchall() for statement in statements]
        return [row[0][0] if row and isinstance(row[0][0], int) else 0 for row in rows]
