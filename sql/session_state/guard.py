"""The guard of a session: one call at a time, cancellation, timeouts, and exclusion of the watchdog.

A driver owns its session and makes one call at a time. Other threads may cancel the call, end an idle session
(the watchdog), or warn that DuckDB has invalidated the database. A cancel and a warning end the running call:
a DuckDB call by an interrupt, a wait by a future of the session's own. `alone` gives exclusive access to a
session at rest. Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from ...engine.clock import Clock
from ...engine.errors import AdminShutdown, DucktailError, QueryCanceled
from ...engine.waiting import Wait, Waiting

T = TypeVar("T")

# The time for which a call waits while another thread has the session alone.
ENTER_S = 60.0


class Guard:
    """The guard of one session.

    Args:
        interrupt: interrupts the running DuckDB call on the session's cursor; callable from any thread.

    Attributes:
        interrupts: functions that end the running calls on other cursors.
        running: a call is running.
        cancelled: the call has been cancelled.
        warned: the error with which the call is to end, once the database has been invalidated.
    """

    def __init__(self, clock: Clock, interrupt: Callable[[], None]) -> None:
        self._clock = clock
        self._interrupt = interrupt
        self.interrupts: set[Callable[[], None]] = set()
        self.running = False
        self.cancelled = False
        self.warned: DucktailError | None = None
        self._busy = threading.Lock()
        self._cancel_lock = threading.Lock()
        self._waiting: Future[None] | None = None
        self._deadline: float | None = None
        self._closed: DucktailError | None = None

    # The call.

    def enter(self) -> None:
        """Begin a call.

        Raises:
            AdminShutdown: the session is being ended, or is closed.
            DucktailError: the error with which it was ended.
        """
        if not self._busy.acquire(timeout=ENTER_S):
            raise AdminShutdown("the session is being ended")
        if self._closed is not None:
            self._busy.release()
            raise self._closed
        with self._cancel_lock:
            self.running, self.cancelled, self.warned = True, False, None

    def leave(self) -> None:
        """End a call."""
        with self._cancel_lock:
            self.running = False
        self._busy.release()

    @contextmanager
    def alone(self, timeout_s: float = -1) -> Iterator[bool]:
        """Context in which no call is running; False if one still is after the given seconds."""
        alone = self._busy.acquire(timeout=timeout_s)
        try:
            yield alone
        finally:
            if alone:
                self._busy.release()

    @property
    def closed(self) -> bool:
        """True if no further calls are possible."""
        return self._closed is not None

    def close(self, error: DucktailError) -> None:
        """Answer every later call with this error."""
        self._closed = self._closed or error

    # Its waits.

    def cancellable(self, work: Waiting[T], limit_ms: int) -> Generator[Wait, bool, T]:
        """Pass on the waits of `work`, so that a cancel or a timeout ends them.

        Args:
            limit_ms: the statement's time-out in milliseconds; 0 means none.
        """
        self.limit(limit_ms)
        try:
            wait = next(work)
            while True:
                if wait.final:
                    yield wait
                    wait = work.send(wait.future.done())
                    continue
                yield from self._one_wait(wait, self._deadline)
                deadline = self._deadline
                if self.warned is not None:
                    wait = work.throw(self.warned)
                elif self.cancelled or (
                    deadline is not None and self._clock.monotonic_s() >= deadline and not wait.future.done()
                ):
                    wait = work.throw(self.cancel_error())
                else:
                    wait = work.send(wait.future.done())
        except StopIteration as stop:
            result: T = stop.value
            return result
        except GeneratorExit:
            work.close()
            raise

    def limit(self, limit_ms: int) -> None:
        """Set the statement's time-out from now on, in milliseconds; 0 means none."""
        self._deadline = self._clock.monotonic_s() + limit_ms / 1000 if limit_ms else None

    @property
    def ends_s(self) -> float | None:
        """The end of the statement's time, by the engine's clock; None without a timeout."""
        return self._deadline

    @property
    def left_ms(self) -> int:
        """The remaining time of the statement, at least 1; 0 without a timeout."""
        if self._deadline is None:
            return 0
        return max(1, round((self._deadline - self._clock.monotonic_s()) * 1000))

    def _one_wait(self, wait: Wait, deadline: float | None) -> Generator[Wait, bool, None]:
        """Wait on a future of the session's own, which ends with the other wait or with a cancel."""
        own: Future[None] = Future()
        with self._cancel_lock:
            if self.cancelled or self.warned is not None:
                return
            self._waiting = own
        wait.future.add_done_callback(lambda _: _finish(own))
        times = [] if wait.timeout_s is None else [wait.timeout_s]
        if deadline is not None:
            times.append(max(0.0, deadline - self._clock.monotonic_s()))
        yield Wait(own, min(times) if times else None, works=wait.works)
        self._waiting = None

    # From other threads.

    def cancel(self) -> None:
        """End the session's current operation with 57014; from any thread, at any time."""
        with self._cancel_lock:
            if not self.running:
                return
            self.cancelled = True
            waiting = self._end_call()
        if waiting is not None:
            _finish(waiting)

    def warn(self, error: DucktailError) -> None:
        """End the session's current operation because DuckDB has invalidated the database."""
        with self._cancel_lock:
            if not self.running or self.warned is not None:
                return
            self.warned = error
            waiting = self._end_call()
        if waiting is not None:
            _finish(waiting)

    def _end_call(self) -> Future[None] | None:
        """End the running DuckDB calls, and return the wait that must end as well."""
        self._interrupt()
        for interrupt in list(self.interrupts):
            interrupt()
        return self._waiting

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Context that delays a cancel: DuckDB's work in it is completed or not begun."""
        with self._cancel_lock:
            yield

    def check(self) -> None:
        """Raise if the call has been cancelled.

        Raises:
            QueryCanceled: the call has been cancelled.
        """
        if self.cancelled:
            raise self.cancel_error()

    def cancel_error(self) -> QueryCanceled:
        """The error for an interrupted DuckDB call or wait: a user's request, or else the statement's
        time-out."""
        if self.cancelled:
            return QueryCanceled("canceling statement due to user request")
        return QueryCanceled("canceling statement due to statement timeout")


def _finish(future: Future[None]) -> None:
    """Make a future done, once; from any thread."""
    with suppress(Exception):
        future.set_result(None)
