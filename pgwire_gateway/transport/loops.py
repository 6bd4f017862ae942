"""An event loop that measures how long it is kept from its clients: the longest of its steps.

A step is what the loop does between two looks at its sockets: whatever has become ready, one after the other.
For as long as a step takes nobody else is answered, so work without a small bound belongs on a worker thread
(conversation/sizes.py). Two clocks: the time that a client waits, which a busy machine and other threads make
longer, and the processor's time of the loop's thread alone, which is the loop's own doing.
Source: docs/operations.md, "Metrics".
"""

from __future__ import annotations

import asyncio
import selectors
import time
from dataclasses import dataclass

# A longest step is told for one to two of these.
SPAN_S = 60.0


@dataclass(slots=True)
class Longest:
    """The longest steps since some moment, in seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class TimedSelector(selectors.DefaultSelector):
    """A selector that measures what its loop does between two calls of it."""

    def __init__(self) -> None:
        super().__init__()
        self._span_began_s = self._wall_s = time.monotonic()
        self._cpu_s: float | None = None
        self._before, self._now = Longest(), Longest()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """A step has ended; the next one begins with what has become ready."""
        # The first step began on a thread that may be another one.
        if self._cpu_s is not None:
            self._end(time.monotonic(), self._cpu_s)
        ready = super().select(timeout)
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()
        return ready

    def _end(self, wall_s: float, began_cpu_s: float) -> None:
        if wall_s - self._span_began_s > SPAN_S:
            self._before, self._now, self._span_began_s = self._now, Longest(), wall_s
        step_s = wall_s - self._wall_s
        # A step has no more of the processor than it lasts: of most, that clock need not be asked again.
        if step_s > self._now.cpu_s:
            self._now.wall_s = max(self._now.wall_s, step_s)
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
        """See TimedSelector."""
        return self._timed.longest()
