"""The open sessions, as the engine needs them: who holds what, who idles, whom to end.

A session in `sql` registers one entry here and keeps its state true. The watchdog ends a session
that idles in a transaction: its MVCC snapshot keeps DuckDB's checkpoints from going on, and its
locks keep others waiting. Source: docs/operations.md, "Idle transactions".
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

# How often the watchdog looks, at least; a shorter time-out makes it look more often.
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
        end: ends the session with an error unless it is at work; True when it did. Called from
            the watchdog's thread.
        warn: ends what the session is doing with an error, since the database has fallen.
        let_go: closes its cursors, once it is at rest; False where it is not in time.
        shield: within, a cancel of the session does not interrupt DuckDB.
        idle_timeout_ms: its idle_in_transaction_session_timeout; 0 is never.
        node: the node that is the client, None where it is none.
        trace: an id of the client's, "" is none.
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
        fallen: what is answered while DuckDB has given the database up, None while it has not.
    """

    def __init__(self, fallen: Callable[[], DucktailError | None]) -> None:
        self._fallen = fallen
        self._mutex = threading.Lock()
        self._entries: dict[int, SessionEntry] = {}
        self._last_id = 0

    def new_id(self) -> int:
        """A number for a session, from 1, not used again while the database is open."""
        with self._mutex:
            self._last_id += 1
            return self._last_id

    def register(self, entry: SessionEntry) -> None:
        """Make a session known, before it has a cursor; its id comes from `new_id`.

        Raises:
            IoError: DuckDB has given the database up, and its file is not open again yet.
        """
        with self._mutex:
            fallen = self._fallen()
            if fallen is not None:
                raise fallen
            self._entries[entry.session_id] = entry

    def unregister(self, session_id: int) -> None:
        """A session has ended."""
        with self._mutex:
            self._entries.pop(session_id, None)

    def entries(self) -> list[SessionEntry]:
        """Those that are open now."""
        with self._mutex:
            return list(self._entries.values())

    def glimpse(self) -> list[SessionEntry]:
        """The same without waiting for anybody."""
        return list(self._entries.values())

    def shield(self, session_id: int) -> AbstractContextManager[None]:
        """Within, a cancel of the session does not interrupt DuckDB: a COMMIT is all or nothing."""
        entry = self._entries.get(session_id)
        return nullcontext() if entry is None else entry.shield()

    def let_go(self, error: DucktailError) -> None:
        """Make all of them close their cursors.

        Raises:
            IoError: some are still at work.
        """
        entries = self.entries()
        for entry in entries:
            entry.warn(error)
        late = [entry.session_id for entry in entries if not entry.let_go(error)]
        if late:
            raise IoError(f"sessions {late} are still at work on what has been given up")


@dataclass(slots=True)
class Watchdog:
    """The thread that ends sessions which idle in a transaction for too long, or in the WAL's way."""

    sessions: Sessions
    clock: Clock
    wal_path: str | None
    wal_bytes_max: int
    checkpoint: Callable[[], None]
    look_at_side: Callable[[], None]
    wal_bytes: int = 0  # at the last look
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
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
            except Exception:  # One session's trouble must not end the watch over the others.
                logger.exception("looking after idle sessions")

    def _tick_s(self) -> float:
        waits = [
            entry.idle_timeout_ms / 1000
            for entry in self.sessions.entries()
            if entry.idle_timeout_ms and entry.state in (IN_TRANSACTION, FAILED)
        ]
        return min(TICK_S, *(wait / 4 for wait in waits)) if waits else TICK_S

    def look(self) -> None:
        """End what is due now."""
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
        self.wal_bytes = self._wal_bytes()
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

    def _wal_bytes(self) -> int:
        if self.wal_path is None:
            return 0
        try:
            return os.path.getsize(self.wal_path)
        except OSError:
            return 0  # No WAL: DuckDB has just checkpointed.
