"""The event loop: a measure of its longest step, and wake-ups from other threads.

A step is the work of the loop between two polls of its sockets: all that has become ready, one after the
other. During a step no other client is answered, so work without a small bound belongs on a worker thread
(conversation/statement_text.py). There are two clocks: the time that a client waits, which a busy machine and
other threads prolong, and the processor time of the loop's thread, which only the loop itself causes.

A batch of offset commits, or a published transaction, ends many waits at once. Each alone would write a byte
to the loop's own socket; with `Wakes` the first one does, and all later ones until the loop's next poll share
it.
Source: docs/operations.md, "Metrics and probes".
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ...engine.waiting import Wait

T = TypeVar("T")

# A longest step is reported for one to two of these periods.
SPAN_S = 60.0


@dataclass(slots=True)
class Longest:
    """The longest steps since some moment, in seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class TimedSelector(selectors.DefaultSelector):
    """A selector that measures the work of its loop between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self._span_began_s = self._wall_s = time.monotonic()
        self._cpu_s: float | None = None
        self._before, self._now = Longest(), Longest()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End a step; the next one begins with the ready events."""
        # The first step may have begun on another thread. A step's processor time is at most its duration, so
        # most steps need no more than this.
        now_s = time.monotonic()
        if self._cpu_s is not None and (
            now_s - self._wall_s > self._now.cpu_s or now_s - self._span_began_s > SPAN_S
        ):
            self._end(now_s, self._cpu_s)
        ready = super().select(timeout)
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()
        return ready

    def _end(self, wall_s: float, began_cpu_s: float) -> None:
        if wall_s - self._span_began_s > SPAN_S:
            self._before, self._now, self._span_began_s = self._now, Longest(), wall_s
        self._now.wall_s = max(self._now.wall_s, wall_s - self._wall_s)
        self._now.cpu_s = max(self._now.cpu_s, time.thread_time() - began_cpu_s)

    def longest(self) -> Longest:
        """The longest steps of the last SPAN_S, or of up to twice as long; from any thread."""
        both = self._before, self._now
        return Longest(max(one.wall_s for one in both), max(one.cpu_s for one in both))


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that knows its longest step."""

    def __init__(self) -> None:
        self._timed = TimedSelector()
        super().__init__(self._timed)

    def longest_step(self) -> Longest:
        """The longest steps of the last minute or two (`TimedSelector.longest`)."""
        return self._timed.longest()


class Wakes:
    """Settles futures of one event loop, from any thread; runs work on workers, and awaits waits.

    Args:
        loop: the loop of the creating thread; calls after its close are dropped, because nobody waits any
            more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._settled: deque[tuple[asyncio.Future[Any], object, BaseException | None]] = deque()
        self._told = False

    def settle(self, waiter: asyncio.Future[Any], value: object, error: BaseException | None = None) -> None:
        """Set a future's value or error, on its loop; a settled one is not changed."""
        if threading.get_ident() == self._thread:
            # The loop is awake, for example for another node's answer: no need to wake it.
            _settle(waiter, value, error)
            return
        self._settled.append((waiter, value, error))
        # A call that finds the flag set is processed: `_come` clears the flag before it looks.
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # The loop has been closed: a lock is passed on even later.
                self._loop.call_soon_threadsafe(self._come)

    async def run(self, workers: Executor, work: Callable[[], T]) -> T:
        """Run work on a worker thread; on the loop."""
        waiter: asyncio.Future[T] = self._loop.create_future()

        def step() -> None:
            try:
                self.settle(waiter, work())
            except BaseException as error:
                self.settle(waiter, None, error)

        workers.submit(step)
        return await waiter

    async def wait(self, wait: Wait) -> bool:
        """Await a wait of the engine's; False if its time is over first. On the loop."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        timer = None
        if wait.timeout_s is not None:
            timer = self._loop.call_later(wait.timeout_s, _settle, waiter, False, None)
        wait.future.add_done_callback(lambda _: self.settle(waiter, True))
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _come(self) -> None:
        self._told = False
        while self._settled:
            _settle(*self._settled.popleft())


def _settle(waiter: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(value)
    else:
        waiter.set_exception(error)
