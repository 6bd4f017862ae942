"""Synchronous copies: the wait of a commit until enough targets have it.

A wait takes a ticket, and each copier is asked for a pass that begins after it: what was committed before the
pass is durable in its target when it ends. Commits that arrive during a pass share the next one. A wait that
ends without enough copies is an error, which says that the commit itself stands. Nobody is answered as if
copied. Source: docs/design/replication.md, "Synchronous copies".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from ..clock import Clock
from ..errors import CommitNotConfirmed, CopiesUnavailable
from ..waiting import Wait, Waiting
from .copier import FOLLOWING, Copier

# The error names the reasons of this many copies.
REASONS_MAX = 3


@dataclass(frozen=True, slots=True)
class CommitWaits:
    """The waits of commits since the database was opened.

    Args:
        waiting: the commits that wait now.
        waits: those that have ended, and `timeouts` those of them without enough copies.
        waited_s: the time of all that have ended.
    """

    waiting: int
    waits: int
    timeouts: int
    waited_s: float


class SynchronousCopies:
    """The waits for the copies of one database.

    Args:
        count: the number of copies that must have a commit.
        timeout_s: the longest wait of a commit.
    """

    def __init__(self, copiers: Sequence[Copier], count: int, timeout_s: float, clock: Clock) -> None:
        self._copiers = copiers
        self.count = count
        self.timeout_s = timeout_s
        self._clock = clock
        self._mutex = threading.Lock()  # guards all below
        self._ticket = 0
        # A session waits for one commit at a time, so that sessions bound them.
        self._waiters: deque[tuple[int, Future[bool]]] = deque()
        self._ending = False
        self._closed = threading.Event()
        self._waits = self._timeouts = 0
        self._waited_s = 0.0
        for copier in copiers:
            copier.on_confirmed = self._look

    def commit_waits(self) -> CommitWaits:
        """The waits of commits, without waiting for any."""
        return CommitWaits(len(self._waiters), self._waits, self._timeouts, self._waited_s)

    @property
    def confirmed_lsn(self) -> int:
        """The LSN up to which enough copies have all transactions."""
        return sorted((copier.status.lsn or 0 for copier in self._copiers), reverse=True)[self.count - 1]

    def confirm(self) -> Waiting[None]:
        """Wait until enough copies have everything that is committed now.

        Neither a cancel nor the time-out of a statement ends the wait: the commit stands in any case.

        Raises:
            CommitNotConfirmed: they do not have it within the time.
        """
        began_s = self._clock.monotonic_s()
        future = self._asked()
        if not future.done():
            yield Wait(future, self.timeout_s, final=True)
        self._forget(future)
        confirmed = future.done() and future.result()
        with self._mutex:
            self._waits += 1
            self._timeouts += not confirmed
            self._waited_s += self._clock.monotonic_s() - began_s
        if not confirmed:
            raise self.not_confirmed()

    def confirm_within(self, seconds: float) -> bool:
        """Block until enough copies have everything that is committed now; False if they do not in time.

        It is True when the copies are closed: no reader is left then.
        """
        future = self._asked()
        with suppress(TimeoutError):
            return future.result(seconds) or self._closed.wait(seconds)
        self._forget(future)
        return False

    def not_confirmed(self) -> CommitNotConfirmed:
        """The error of a commit's wait that has ended without enough copies."""
        return CommitNotConfirmed(
            "the statement is committed here, but not confirmed by the copies",
            detail=self._told(),
            hint="Do not repeat the statement: it stands, and is copied as soon as a target is available. "
            "SHOW CONTINUOUS COPIES tells their state.",
        )

    def not_readable(self) -> CopiesUnavailable:
        """The error of a statement that waits until earlier commits are readable."""
        return CopiesUnavailable(
            "earlier commits are not confirmed by the copies, and not readable yet",
            detail=self._told(),
            hint="The statement was not executed: repeat it when a target is available. "
            "SHOW CONTINUOUS COPIES tells their state.",
        )

    def _told(self) -> str:
        reasons = [
            f"{copier.target}: {copier.status.error or copier.status.state}"
            for copier in self._copiers
            if copier.status.state != FOLLOWING
        ]
        copies = "copy" if self.count == 1 else "copies"
        why = f" {'; '.join(reasons[:REASONS_MAX])}." if reasons else ""
        return f"{self.count} {copies} did not have it within {self.timeout_s * 1000:.0f} ms.{why}"

    def end_waits(self) -> None:
        """End the waits of commits, and of later ones, without a confirmation: the server is being ended."""
        with self._mutex:
            self._ending = True
            waiters, self._waiters = self._waiters, deque()
        for _, future in waiters:
            future.set_result(False)

    def close(self) -> None:
        """End all waits; the copiers and the sessions have ended."""
        self._closed.set()
        self.end_waits()

    def _asked(self) -> Future[bool]:
        future: Future[bool] = Future()
        with self._mutex:
            if self._ending:
                future.set_result(False)
                return future
            self._ticket += 1
            self._waiters.append((self._ticket, future))
            for copier in self._copiers:
                copier.confirm(self._ticket)
        return future

    def _forget(self, future: Future[bool]) -> None:
        if not future.done():
            with self._mutex:
                self._waiters = deque(item for item in self._waiters if item[1] is not future)

    def _look(self) -> None:
        """Complete the waits for which enough copies have what they wait for."""
        with self._mutex:
            confirmed = sorted((copier.confirmed for copier in self._copiers), reverse=True)[self.count - 1]
            done = []
            while self._waiters and self._waiters[0][0] <= confirmed:
                done.append(self._waiters.popleft()[1])
        for future in done:
            future.set_result(True)
