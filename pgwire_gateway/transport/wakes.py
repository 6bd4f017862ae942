"""What other threads tell an event loop: that a wait is over, that a worker has come to its end.

A batch of offset commits, or a published transaction, ends many waits at once. Each alone would write a
byte to the loop's own socket; here the first does, and what comes until the loop looks goes with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import Any


class Wakes:
    """Settles futures of one event loop, from any thread.

    Args:
        loop: of the thread that makes this; what comes when it has been closed is dropped: nobody waits
            any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._settled: deque[tuple[asyncio.Future[Any], object, BaseException | None]] = deque()
        self._told = False

    def settle(self, waiter: asyncio.Future[Any], value: object, error: BaseException | None = None) -> None:
        """Give a future its value, or its error, on its loop; one that has been settled keeps what it has."""
        if threading.get_ident() == self._thread:
            # The answer of another node, say: no need to wake a loop that is awake.
            _settle(waiter, value, error)
            return
        self._settled.append((waiter, value, error))
        # Who finds it told is seen: `_come` takes that back before it looks.
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # The loop has been closed: a lock is passed on later still.
                self._loop.call_soon_threadsafe(self._come)

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
