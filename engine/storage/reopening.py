"""Reopening of the file after DuckDB has invalidated its database.

An error while DuckDB writes the file itself (a checkpoint on a full disk) invalidates its instance: every
later call fails. Committed data is in the file and its log, so the instance is closed and the file is opened
again in the same process, with all the checks of a start. Three rules apply:

- From the failure until the file is open again, DuckDB is not called: sessions are notified, close their
  cursors, and fail with 58030; then the engine's own threads end. A cursor is closed only by its exclusive
  user.
- The old instance is closed completely before the file is opened: POSIX locks belong to the process, and
  closing a descriptor of the file later would release the lock of the new instance.
- A file that lacks acknowledged commits is a permanent error (XX001), as at a start.

If opening fails (the disk is still full), it is tried again after growing delays.
Source: docs/design/engine.md, "Coming back".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ..clock import Clock
from ..errors import DataCorrupted, DucktailError, IoError
from ..waiting import Wait, Waiting

logger = logging.getLogger(__name__)

# Seconds before the first, second, ... attempt; later attempts use the last value.
PACE_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
# An instance that lasted for less than this many seconds is opened again at the pace of the one before.
LASTED_S = 60.0
# Seconds that a statement waits for the file to be opened before it fails with 58030.
WAIT_S = 10.0

HINT = "Make room if the disk is full, and try again: the server need not be started again."
HINT_GONE = "A database in memory cannot be opened again: open a new one."


class Reopener:
    """The state of a database that DuckDB may invalidate, and the thread that reopens it.

    Args:
        let_go: releases all uses of the old instance and closes it; gets the reason. May be called again.
        come_back: opens the file.
        has_file: False for a database in memory, which stays lost.
    """

    def __init__(
        self,
        let_go: Callable[[DucktailError], None],
        come_back: Callable[[], None],
        clock: Clock,
        *,
        has_file: bool,
    ) -> None:
        self._let_go = let_go
        self._come_back = come_back
        self._clock = clock
        self._has_file = has_file
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fallen: DucktailError | None = None
        self._attempt: Future[None] | None = None  # the running attempt
        self._attempts = 0
        self._opened_s: float | None = None

    @property
    def error(self) -> DucktailError | None:
        """The error of a statement while the database is not open; None while it is."""
        fallen = self._fallen
        if fallen is None:
            return None
        # A new error for each: one raised in two threads would mix their tracebacks.
        return type(fallen)(fallen.message, detail=fallen.detail, hint=fallen.hint)

    def fell(self, reason: str) -> None:
        """Record that DuckDB has invalidated the database; may be repeated. Returns at once."""
        with self._mutex:
            if self._fallen is not None or self._stop.is_set():
                return
            hint = HINT if self._has_file else HINT_GONE
            self._fallen = IoError("DuckDB has given its database up", detail=reason, hint=hint)
            logger.error("DuckDB has given its database up: %s", reason)
            if not self._has_file:
                return
            if self._opened_s is not None and self._clock.monotonic_s() - self._opened_s > LASTED_S:
                self._attempts = 0
            self._attempt = Future()
            self._thread = threading.Thread(target=self._run, name="ducktail-reopener", daemon=True)
            self._thread.start()

    def standing(self) -> Waiting[None]:
        """Wait while the file is being opened again.

        Raises:
            IoError: the file is not open yet.
            DataCorrupted: acknowledged commits are missing.
        """
        if self._fallen is None:
            return
        attempt = self._attempt
        if attempt is not None:
            own: Future[None] = Future()
            attempt.add_done_callback(lambda _: own.set_result(None))
            yield Wait(own, WAIT_S)
        error = self.error
        if error is not None:
            raise error

    def close(self) -> None:
        """Stop reopening; a running attempt is completed."""
        with self._mutex:
            self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        delay_s = PACE_S[min(self._attempts, len(PACE_S) - 1)]
        while not self._stop.is_set():
            if delay_s and self._pause(delay_s):
                return
            self._attempts += 1
            delay_s = PACE_S[min(self._attempts, len(PACE_S) - 1)]
            if self._try():
                return

    def _pause(self, delay_s: float) -> bool:
        """Wait for the next attempt; sessions that ask meanwhile are answered at once. True if closed."""
        fallen = self._fallen
        assert fallen is not None
        self._finish_attempt()
        try:
            self._let_go(fallen)
        except Exception:  # It is repeated with the next attempt.
            logger.exception("letting go of the database")
        stopped = self._stop.wait(delay_s)
        self._attempt = Future()
        return stopped

    def _try(self) -> bool:
        """Make one attempt; returns True if no other is needed."""
        fallen = self._fallen
        assert fallen is not None
        try:
            self._let_go(fallen)
            self._come_back()
        except DataCorrupted as refused:
            logger.error("the database is not opened again: %s %s", refused, refused.detail)
            self._fallen = refused
            self._finish_attempt()
            return True
        except Exception as error:
            logger.error("the database cannot be opened again yet: %s", error)
            self._finish_attempt()
            return False
        with self._mutex:
            self._fallen = None
            self._opened_s = self._clock.monotonic_s()
        logger.warning("the database is open again")
        self._finish_attempt()
        return True

    def _finish_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.set_result(None)
