"""Locks of writers: the gate for tables without a stream, and the writer lock for captured tables.

The gate lets CREATE STREAM wait for the writers of a table. A transaction that wrote a table before it got
its first stream wrote it uncaptured. CREATE STREAM therefore marks the table first (new writers wait), waits
for the present writers, and only then takes its snapshot. DDL on a table counts as a write.
Source: docs/design/engine.md.

A transaction holds the database's writer lock from its first captured write to its end. DuckDB lets two
transactions change one row without noticing it, and assigns sequence numbers in another order than commits. A
single holder avoids both: LSNs are assigned under the lock, in commit order and without holes. The lock is
first come, first served; a waiter is a future, so it holds no thread.
Source: docs/design/engine.md, "One writer".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future

TableKey = tuple[str, ...]

# Tables for which the end of the last transaction that wrote them is kept.
ENDS_MAX = 4096


def shown_table(table: TableKey) -> str:
    """A key of the gate in messages: a table or a schema."""
    schema, name = table
    return f'table "{name}"' if name else f'schema "{schema}"'


class TableWriters:
    """Marks and writers per table. A writer is a session id, as it has one transaction at a time."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._marks: dict[TableKey, tuple[int, Future[None]]] = {}
        # Session id -> its marked tables, for sessions that mark several.
        self._several: dict[int, set[TableKey]] = {}
        self._writers: dict[TableKey, dict[int, Future[None]]] = {}
        # Session id -> the tables whose rows or columns it changes.
        self._changed: dict[int, set[TableKey]] = {}
        # Number of ended transactions that wrote tables; table -> the number at its latest one, oldest first.
        self._ends = 0
        self._ended: dict[TableKey, int] = {}
        self._forgotten = 0

    def enter(
        self, session_id: int, table: TableKey, *, past_mark: bool = False, drops: bool = False
    ) -> Future[None] | None:
        """Note that a session's transaction is about to write a table without a stream.

        Args:
            past_mark: enter although another session has marked the table.
            drops: the transaction drops the table or leaves it unchanged: `written_since` does not count it.

        Returns:
            None if it may write; else a future that is done when the CREATE STREAM that marked the table has
            ended, after which the table may be captured.
        """
        with self._mutex:
            writers = self._writers.setdefault(table, {})
            if session_id in writers:
                self._note_change(session_id, table, drops=drops)
                return None
            mark = self._marks.get(table)
            if mark is not None and not past_mark and not self._is_awaited(session_id, mark[0]):
                if not writers:
                    del self._writers[table]
                return mark[1]
            writers[session_id] = Future()
            self._note_change(session_id, table, drops=drops)
            return None

    def _note_change(self, session_id: int, table: TableKey, *, drops: bool) -> None:
        if not drops:
            self._changed.setdefault(session_id, set()).add(table)

    def _is_awaited(self, session_id: int, marking: int) -> bool:
        """True if a session holds a mark, or the holder of several marks waits for the session to end."""
        tables = self._several.get(marking, ())
        return session_id == marking or any(session_id in self._writers.get(table, ()) for table in tables)

    def leave(self, session_id: int, *, undone: bool = False) -> None:
        """Remove a session, whose transaction has ended, from all tables.

        Args:
            undone: the transaction was rolled back, and has changed nothing.
        """
        with self._mutex:
            gone: list[Future[None]] = []
            changed = self._changed.pop(session_id, set())
            if undone:
                changed = set()
            for table in [t for t, writers in self._writers.items() if session_id in writers]:
                gone.append(self._writers[table].pop(session_id))
                if table in changed:
                    self._note_end(table)
                if not self._writers[table]:
                    del self._writers[table]
        for future in gone:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _note_end(self, table: TableKey) -> None:
        self._ends += 1
        self._ended.pop(table, None)
        self._ended[table] = self._ends
        if len(self._ended) > ENDS_MAX:
            self._forgotten = self._ended.pop(next(iter(self._ended)))

    @property
    def ends(self) -> int:
        """The number of ended transactions that wrote tables without a stream, for `written_since`."""
        with self._mutex:
            return self._ends

    def written_since(self, table: TableKey, ends: int) -> bool:
        """True if a transaction that wrote the table may have ended since the count was `ends`."""
        with self._mutex:
            return self._ended.get(table, self._forgotten) > ends

    def mark(self, session_id: int, table: TableKey, *, several: bool = False) -> Future[None] | None:
        """Mark a table for a CREATE STREAM.

        Args:
            several: True if the statement marks several tables and waits for the writers of all of them.
                Until they have ended, a writer of one may write the others: otherwise each would wait for the
                other.

        Returns:
            None if the table is marked now; else a future that is done when the earlier mark ends.
        """
        with self._mutex:
            mark = self._marks.get(table)
            if mark is not None:
                return mark[1]
            self._marks[table] = (session_id, Future())
            if several:
                self._several.setdefault(session_id, set()).add(table)
            return None

    def writers(self, table: TableKey) -> list[tuple[int, Future[None]]]:
        """The open transactions that have written the table, each with the future of its end."""
        with self._mutex:
            return list(self._writers.get(table, {}).items())

    def is_written(self, session_id: int) -> bool:
        """True if the open transaction of another session has written a table."""
        with self._mutex:
            return any(other != session_id for writers in self._writers.values() for other in writers)

    def mark_of(self, table: TableKey) -> int | None:
        """The session whose CREATE STREAM has marked the table; None without a mark."""
        with self._mutex:
            mark = self._marks.get(table)
            return None if mark is None else mark[0]

    def unmark(self, table: TableKey) -> None:
        """Remove the mark of a CREATE STREAM that has ended or failed."""
        with self._mutex:
            session_id, future = self._marks.pop(table)
            rest = self._several.get(session_id, set()) - {table}
            if rest:
                self._several[session_id] = rest
            else:
                self._several.pop(session_id, None)
        if future.set_running_or_notify_cancel():
            future.set_result(None)


class WriterLock:
    """A fair lock whose owners are session ids and whose waiters are futures."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holder: int | None = None
        self._waiters: OrderedDict[int, Future[None]] = OrderedDict()
        self.waits = 0  # number of times that a session had to queue

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
        """Stop waiting; a lock that was granted at the same moment is passed on."""
        with self._mutex:
            if self._waiters.pop(owner, None) is None and self._holder == owner:
                self._pass_on()

    def release(self, owner: int) -> None:
        """Give the lock to the next waiter. The caller must hold it."""
        with self._mutex:
            assert self._holder == owner, "only its holder releases the writer lock"
            self._pass_on()

    def holder(self) -> int | None:
        """The session id that holds the lock, if any."""
        return self._holder

    @property
    def waiting_count(self) -> int:
        """The approximate length of the queue; takes no mutex."""
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
