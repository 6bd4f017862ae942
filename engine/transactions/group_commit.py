"""Group commit: one-row writes of several sessions in one transaction of DuckDB.

A one-row write on a captured table, outside a transaction block, costs some milliseconds of DuckDB's planning
and one sync, and holds the writer lock for that time. A batch of them costs hardly more. Sessions therefore
offer such writes here, and one thread runs everything that was offered while it wrote the batch before. After
a batch it waits a little for as many writes; a session that writes alone waits for nobody.

The rules:

- Each write is a transaction of its own to everybody: it has its own txid, LSN and row in `commits`. The
  batch is atomic for DuckDB alone, and is not visible as such.
- A session is answered after DuckDB's COMMIT has returned.
- A batch that fails for any reason before COMMIT is rolled back, and each of its writes is returned to its
  session, which then runs it alone: only the guilty one fails, with its own error.
- Until a batch takes a write, its session may withdraw it: a cancel, a time-out or `lock_timeout` ends the
  wait as it ends one for the writer lock. After that the write's outcome is awaited.
- The thread takes the writer lock like a session: first come, first served.

The plan of a write knows how many writes are run as one statement (`GroupPlan`). Source:
docs/design/small_writes.md.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field

import duckdb

from ..errors import DucktailError, LockNotAvailable
from ..waiting import Wait, Waiting, drive
from .commits import UNKNOWN
from .transaction import Part, Transaction
from .transactions import Transactions

logger = logging.getLogger("ducktail.engine")

# The writes of a batch: their parameters are held in memory twice. With more, sessions would wait longer for
# a batch than its share of a sync is worth.
WRITES_MAX = 512
# The bytes of a batch's values, approximately; one write may have more.
BYTES_MAX = 4 << 20
# The interval in which the thread looks whether it must end while another session holds the writer lock.
LOOK_S = 0.5
# The time that the thread waits after a batch for as many writes as that had: less than half of what a batch
# takes. Without it eight sessions write in batches of one and seven in turn.
COMPANY_S = 0.002
# The thread's own number among the owners of the writer lock: sessions count from 1.
WRITER = 0
# Plans kept for all sessions together.
PLANS_MAX = 1024


class PlanChanged(Exception):
    """The table, its streams or the rights on it have changed since a write was planned."""


class GroupPlan(ABC):
    """The plan of one statement, by which many executions of it run as one."""

    @abstractmethod
    def run(self, transaction: Transaction, writes: Sequence[Write]) -> tuple[Sequence[Part], list[object]]:
        """Run writes in the open transaction, which holds the writer lock; each makes one event, in order.

        Returns:
            The part of each write, and the answer for its session.

        Raises:
            PlanChanged: the plan does not apply any more.
            DucktailError, duckdb.Error: one of the writes fails.
        """


@dataclass(slots=True, eq=False)
class Write:
    """One write that a session has offered.

    Args:
        values: the values of its parameters, possibly converted by the plan.
        size: their approximate bytes.
        annotation: the annotation of its event.
        key: the key of the row that it changes; None if any two writes of the plan can be in one batch.
        generation: the state of the catalog in which its rights were checked; None if they need no check.
        done: done when the outcome is known.
        taken: a batch has taken it.
        answer: the answer of its plan, once it is committed.
        error: the error with which it ends.
        alone: its session is to run it.
    """

    plan: GroupPlan
    session_id: int
    values: Sequence[object]
    size: int
    annotation: str | None
    key: Hashable = None
    generation: int | None = None
    done: Future[None] = field(default_factory=Future)
    taken: bool = False
    answer: object = None
    error: BaseException | None = None
    alone: bool = False


class GroupCommit:
    """The queue of offered writes, and the thread that runs them.

    Args:
        cursor: returns a new cursor of the engine.
    """

    def __init__(self, transactions: Transactions, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._transactions = transactions
        self._cursor = cursor()
        self._condition = threading.Condition()  # guards all below
        self._queue: deque[Write] = deque()
        self._closing = False
        self._last = 0  # the number of writes in the last batch
        self._writes_max = WRITES_MAX
        self.plans: dict[object, object] = {}  # by the text of their statement
        self.enabled = True  # a test compares with the same load without it
        self.waits = 0  # number of times that a write had to queue while another had the lock
        self.batches = self.writes = self.returned = 0
        self._thread = threading.Thread(target=self._run, name="ducktail-writer", daemon=True)
        self._thread.start()

    def keep(self, key: object, plan: object) -> None:
        """Keep a plan for all sessions."""
        while len(self.plans) >= PLANS_MAX:
            with suppress(KeyError, StopIteration):
                del self.plans[next(iter(self.plans))]
        self.plans[key] = plan

    # A session's side.

    def write(self, write: Write, timeout_ms: int) -> Waiting[bool]:
        """Offer a write and wait for its outcome.

        Returns:
            True if it is committed; False if the session is to run it alone, because its batch has failed.

        Raises:
            LockNotAvailable: no batch has taken it within `timeout_ms`.
            IoError: the outcome is unknown.
        """
        self._offer(write)
        try:
            done = yield Wait(write.done, timeout_ms / 1000)
        except GeneratorExit:
            self._withdraw(write)
            raise
        except BaseException:
            if self._withdraw(write):
                raise
            yield Wait(write.done, final=True)
            if write.alone:
                raise
            done = True
        if not done:
            if not self._withdraw(write):
                yield Wait(write.done, final=True)
            if write.alone or not write.done.done():
                raise self._not_available(timeout_ms)
        if write.error is not None:
            raise copy(write.error)  # Each session completes its own.
        return not write.alone

    def _not_available(self, timeout_ms: int) -> LockNotAvailable:
        holder = self._transactions.writer_lock.holder()
        return LockNotAvailable(
            f"could not obtain the writer lock within {timeout_ms} ms",
            detail=f"Session {holder} holds it." if holder else None,
            hint="SELECT * FROM ducktail.sessions shows who holds it; lock_timeout is how long "
            "a writer waits.",
        )

    def _offer(self, write: Write) -> None:
        with self._condition:
            if not self._closing:
                self._queue.append(write)
                if self._transactions.writer_lock.holder() is not None:
                    self.waits += 1
                if len(self._queue) == 1 or len(self._queue) == self._last:
                    self._condition.notify_all()
                return
        self._return([write])

    def _withdraw(self, write: Write) -> bool:
        """Take an offered write back; False if a batch has taken it, and decides its outcome."""
        with self._condition:
            if write.taken:
                return False
            with suppress(ValueError):
                self._queue.remove(write)
            return True

    def waiting(self) -> frozenset[int]:
        """The sessions whose writes wait for the writer lock."""
        with self._condition:
            return frozenset(write.session_id for write in self._queue)

    @property
    def waiting_count(self) -> int:
        """The approximate number of offered writes; takes no mutex."""
        return len(self._queue)

    def close(self) -> None:
        """Return the offered writes to their sessions, and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        self._cursor.close()

    # The thread.

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._queue or self._closing):
                    self._condition.wait()
                self._wait_for_company()
                if self._closing:
                    break
            try:
                self._turn()
            except Exception:  # The writes have been answered; the thread goes on.
                logger.exception("writing a batch of small writes")
        self._return(self._taken(all_of=True))

    def _wait_for_company(self) -> None:
        """Wait until as many writes are offered as the last batch had, COMPANY_S at most.

        The sessions of a batch come back together; the first of them alone would cost as much as all. A
        session that writes alone waits for nobody.
        """
        self._condition.wait_for(lambda: self._closing or len(self._queue) >= self._last, COMPANY_S)

    def _turn(self) -> None:
        """Take the writer lock and write one batch."""
        lock = self._transactions.writer_lock
        try:
            if not self._locked():
                return
            try:
                drive(self._transactions.lock_writer(WRITER, 0))
            except DucktailError:
                # The database is invalidated, or an earlier outcome is unknown: each session gets the error.
                self._return(self._taken(all_of=True))
                return
            batch = self._taken()
            self._last = len(batch)
            if batch:
                self._write(batch)
        finally:
            if lock.holder() == WRITER:
                lock.release(WRITER)

    def _locked(self) -> bool:
        """Wait for the writer lock; False if the thread must end before it has it."""
        lock = self._transactions.writer_lock
        future = lock.acquire(WRITER)
        while future is not None:
            with suppress(TimeoutError):
                future.result(LOOK_S)
                return True
            if self._closing:
                lock.give_up(WRITER)
                return False
        return True

    def _taken(self, *, all_of: bool = False) -> list[Write]:
        """Take the writes of a batch off the queue, in order; at most one for each changed row.

        Args:
            all_of: take the whole queue, not to be written.
        """
        with self._condition:
            if all_of:
                batch = list(self._queue)
                self._queue.clear()
            else:
                batch = self._next()
            for write in batch:
                write.taken = True
            return batch

    def _next(self) -> list[Write]:
        batch: list[Write] = []
        left: list[Write] = []
        keys: set[tuple[int, Hashable]] = set()
        size = 0
        while self._queue and len(batch) < self._writes_max:
            write = self._queue.popleft()
            known = (id(write.plan), write.key)
            if (write.key is not None and known in keys) or (batch and size + write.size > BYTES_MAX):
                left.append(write)
                continue
            keys.add(known)
            batch.append(write)
            size += write.size
        self._queue.extendleft(reversed(left))
        return batch

    def _write(self, batch: Sequence[Write]) -> None:
        """Run a batch in one transaction, and answer each of its writes."""
        try:
            transaction = self._transactions.begin(WRITER, self._cursor, "")
        except Exception:
            self._return(batch)
            return
        try:
            drive(self._transactions.lock_for(transaction, 0))
            self._run_plans(transaction, batch)
        except BaseException:
            self._transactions.rollback(transaction)
            self._failed(batch)
            return
        try:
            drive(self._transactions.commit(transaction, 0))
        except BaseException as error:
            if isinstance(error, DucktailError) and not error.message.startswith(UNKNOWN):
                self._failed(batch)  # It has been rolled back.
            else:
                self._answer(batch, error)
            return
        self.batches += 1
        self.writes += len(batch)
        self._writes_max = min(2 * self._writes_max, WRITES_MAX)
        self._answer(batch)

    def _run_plans(self, transaction: Transaction, batch: Sequence[Write]) -> None:
        """Run the writes of each plan as one statement."""
        by_plan: dict[int, list[Write]] = {}
        for write in batch:
            by_plan.setdefault(id(write.plan), []).append(write)
        if len(batch) == 1:
            transaction.annotate(batch[0].annotation)
        parts: list[Part] = []
        for writes in by_plan.values():
            transaction.parts = parts  # Their numbers precede those of the next plan.
            made, answers = writes[0].plan.run(transaction, writes)
            # A transaction of one statement has nothing to fold.
            transaction.refresh = None
            assert len(made) == len(answers) == len(writes), "each write has one event"
            parts = [*parts, *made]
            for write, answer in zip(writes, answers, strict=True):
                write.answer = answer
        assert transaction.events == len(parts), "each write has one event"
        # As for a write that is checked and runs in one transaction: no change was committed in between.
        if {write.generation for write in batch} - {None, self._transactions.catalog.changes.stable}:
            raise PlanChanged
        transaction.parts = parts if len(parts) > 1 else ()

    def _failed(self, batch: Sequence[Write]) -> None:
        """Return the writes of a failed batch to their sessions; the next batches are smaller for a while."""
        self._writes_max = max(len(batch) // 2, 1)
        self._return(batch)

    def _return(self, writes: Sequence[Write]) -> None:
        """Let sessions run their writes alone."""
        self.returned += len(writes)
        for write in writes:
            write.alone = True
        self._answer(writes)

    @staticmethod
    def _answer(writes: Sequence[Write], error: BaseException | None = None) -> None:
        for write in writes:
            write.error = error
            with suppress(Exception):
                write.done.set_result(None)
