"""The database's writer lock: from its first captured write to its end a transaction holds it.

DuckDB lets two transactions change one row without noticing it, and hands out sequence numbers
in another order than it commits. One holder at a time answers both: while it is held, LSNs are
counted up and come out in commit order, without holes. The lock is first come, first served; a
waiter is a future, so it holds no thread. Source: docs/design/engine.md, "One writer".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future


class WriterLock:
    """A fair lock whose owners are session ids and whose waiters are futures."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holder: int | None = None
        self._waiters: OrderedDict[int, Future[None]] = OrderedDict()
        self.waits = 0  # how often somebody had to queue up

    def acquire(self, owner: int) -> Future[None] | None:
        """Take the lock for `owner`, or queue up for it.

        Returns:
            None when `owner` has it now; else a future that is done once it has.
        """
        with self._mutex:
            if self._holder is None or self._holder == owner:
                self._holder = owner
                return None
            assert owner not in self._waiters, "a session waits for the writer lock once"
            future: Future[None] = Future()
            self._waiters[owner] = future
            self.waits += 1
            return future

    def give_up(self, owner: int) -> None:
        """Stop waiting; where the lock came at the same moment it is passed on."""
        with self._mutex:
            if self._waiters.pop(owner, None) is None and self._holder == owner:
                self._pass_on()

    def release(self, owner: int) -> None:
        """Give the lock to the next waiter. The caller must hold it."""
        with self._mutex:
            assert self._holder == owner, "only its holder releases the writer lock"
            self._pass_on()

    def holder(self) -> int | None:
        """The session id that has the lock, if any."""
        return self._holder

    @property
    def waiting_count(self) -> int:
        """How many are in the queue, as far as can be told without the lock's own lock."""
        return len(self._waiters)

    def waiting(self) -> frozenset[int]:
        """The session ids in the queue."""
        with self._mutex:
            return frozenset(self._waiters)

    def _pass_on(self) -> None:
        while self._waiters:
            owner, future = self._waiters.popitem(last=False)
            self._holder = owner
            if future.set_running_or_notify_cancel():
                future.set_result(None)
                return
        self._holder = None
