"""The open sessions: their locks, their idle times, and their termination.

A session in `sql` registers one entry here and keeps its state up to date. The watchdog ends a session that
idles in a transaction: its MVCC snapshot blocks DuckDB's checkpoints, and its locks block other sessions.
Source: docs/operations.md, "Idle transactions".
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from .clock import Clock
from .errors import DucktailError, IdleInTransactionTimeout, IoError

logger = logging.getLogger(__name__)

# Longest interval of the watchdog's checks; a shorter time-out makes it check more often.
TICK_S = 0.5
IDLE, ACTIVE, IN_TRANSACTION, FAILED = (
    "idle",
    "active",
    "idle in transaction",
    "idle in transaction (aborted)",
)


@dataclass(slots=True)
class SessionEntry:
    """One session.

    Args:
        end: ends the session with an error unless it is working; returns True if it did. Called from the
            watchdog's thread.
        warn: ends the session's statement with an error, because the database was invalidated.
        let_go: closes its cursors once it is idle; returns False if it is not in time.
        shield: a context in which a cancel of the session does not interrupt DuckDB.
        idle_timeout_ms: its idle_in_transaction_session_timeout; 0 for never.
        node: the node that is the client, or None.
        trace: an id of the client, "" for none.
    """

    session_id: int
    user_name: str
    application_name: str
    end: Callable[[DucktailError], bool]
    warn: Callable[[DucktailError], None]
    let_go: Callable[[DucktailError], bool]
    shield: Callable[[], AbstractContextManager[None]]
    idle_timeout_ms: int
    node: str | None = None
    trace: str = ""
    state: str = IDLE
    since_us: int = 0
    since_s: float = 0.0
    transaction_us: int | None = None
    has_snapshot: bool = False


class Sessions:
    """The open sessions, by number; safe to use from several threads.

    Args:
        fallen: returns the error while DuckDB has invalidated the database, else None.
    """

    def __init__(self, fallen: Callable[[], DucktailError | None]) -> None:
        self._fallen = fallen
        self._mutex = threading.Lock()
        self._entries: dict[int, SessionEntry] = {}
        self._last_id = 0

    def new_id(self) -> int:
        """A number for a session, from 1, not reused while the database is open."""
        with self._mutex:
            self._last_id += 1
            return self._last_id

    def register(self, entry: SessionEntry) -> None:
        """Register a session before it has a cursor; its id comes from `new_id`.

        Raises:
            IoError: DuckDB has invalidated the database, and its file is not reopened yet.
        """
        with self._mutex:
            fallen = self._fallen()
            if fallen is not None:
                raise fallen
            self._entries[entry.session_id] = entry

    def unregister(self, session_id: int) -> None:
        """Remove a session that has ended."""
        with self._mutex:
            self._entries.pop(session_id, None)

    def entries(self) -> list[SessionEntry]:
        """The open sessions."""
        with self._mutex:
            return list(self._entries.values())

    def glimpse(self) -> list[SessionEntry]:
        """The open sessions, without waiting for a lock."""
        return list(self._entries.values())

    def shield(self, session_id: int) -> AbstractContextManager[None]:
        """A context in which a cancel of the session does not interrupt DuckDB: a COMMIT stays atomic."""
        entry = self._entries.get(session_id)
        return nullcontext() if entry is None else entry.shield()

    def let_go(self, error: DucktailError) -> None:
        """Make all sessions close their cursors.

        Raises:
            IoError: some sessions are still working.
        """
        entries = self.entries()
        for entry in entries:
            entry.warn(error)
        late = [entry.session_id for entry in entries if not entry.let_go(error)]
        if late:
            raise IoError(f"sessions {late} are still at work on what has been given up")


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of the database file, and of its file system: what is free for this process, and all."""

    file_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(slots=True)
class Watchdog:
    """The thread that ends sessions which idle in a transaction too long, or block checkpoints."""

    sessions: Sessions
    clock: Clock
    path: str | None
    wal_path: str | None
    wal_bytes_max: int
    checkpoint: Callable[[], bool]
    look_at_side: Callable[[], None]
    # At the last check.
    wal_bytes: int = 0
    disk: DiskSpace | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="ducktail-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s()):
            try:
                self.look()
            except Exception:  # An error of one session must not end the watchdog.
                logger.exception("looking after idle sessions")

    def _tick_s(self) -> float:
        waits = [
            entry.idle_timeout_ms / 1000
            for entry in self.sessions.entries()
            if entry.idle_timeout_ms and entry.state in (IN_TRANSACTION, FAILED)
        ]
        return min(TICK_S, *(wait / 4 for wait in waits)) if waits else TICK_S

    def look(self) -> None:
        """End the sessions that are due now."""
        now = self.clock.monotonic_s()
        idle = [e for e in self.sessions.entries() if e.state in (IN_TRANSACTION, FAILED)]
        for entry in idle:
            if entry.idle_timeout_ms and now - entry.since_s >= entry.idle_timeout_ms / 1000:
                self._end(
                    entry,
                    IdleInTransactionTimeout(
                        "terminating connection due to idle-in-transaction timeout",
                        hint="Commit or roll back sooner, or raise idle_in_transaction_session_timeout.",
                    ),
                )
        self.look_at_side()
        self.wal_bytes = _size(self.wal_path)
        self.disk = None if self.path is None else _disk_space(self.path)
        if self.wal_bytes > self.wal_bytes_max:
            # An unfinished result outside a transaction has a snapshot as well.
            entries = self.sessions.entries()
            self._end_oldest([e for e in entries if e.state != ACTIVE and e.has_snapshot])

    def _end(self, entry: SessionEntry, error: DucktailError) -> bool:
        try:
            return entry.end(error)
        except Exception:
            logger.exception("ending session %d", entry.session_id)
            return False

    def _end_oldest(self, resting: list[SessionEntry]) -> None:
        for entry in sorted(resting, key=lambda e: e.transaction_us or e.since_us):
            ended = self._end(
                entry,
                IdleInTransactionTimeout(
                    "terminating connection because its idle transaction keeps the write-ahead log "
                    "from being checkpointed",
                    detail=f"The log is larger than wal_bytes_max, {self.wal_bytes_max} bytes, and "
                    "this transaction has the oldest snapshot.",
                ),
            )
            if ended:
                self.checkpoint()
                return


def _size(path: str | None) -> int:
    """The size of a file; 0 where there is none: DuckDB has just checkpointed its log."""
    try:
        return 0 if path is None else os.path.getsize(path)
    except OSError:
        return 0


def _disk_space(path: str) -> DiskSpace | None:
    """The space of the database file and around it; None if the system does not answer."""
    try:
        around = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return None
    return DiskSpace(_size(path), around.f_bavail * around.f_frsize, around.f_blocks * around.f_frsize)
