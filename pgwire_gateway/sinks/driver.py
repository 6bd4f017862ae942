"""Work of the sql layer that may wait, driven on an event loop.

Each step of the work runs on a worker thread, as it may call DuckDB; a wait is awaited on the loop and
occupies no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

from ...engine.waiting import Wait, Waiting

T = TypeVar("T")


class WorkDriver:
    """Drives one piece of work at a time.

    Args:
        loop: the running event loop.
        workers: the threads on which the work runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: Executor) -> None:
        self._loop = loop
        self._workers = workers

    async def call(self, work: Callable[[], T]) -> T:
        """Run work that does not wait on a worker thread; a cancelled caller still waits for its end."""
        step = self._loop.run_in_executor(self._workers, work)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    async def drive(self, work: Waiting[T], until: asyncio.Event | None = None) -> T | None:
        """Drive work to its end.

        Args:
            until: ends a wait of the work, and with it the work; the result is then None.
        """
        sent: bool | None = None
        try:
            while True:
                ended, value = await self.call(lambda sent=sent: _advanced(work, sent))  # type: ignore[misc]
                if ended:
                    result: T = value
                    return result
                if not await self._waited(value, None if value.final else until):
                    await self.call(work.close)
                    return None
                sent = value.future.done()
        except asyncio.CancelledError:
            await self.call(work.close)
            raise

    async def _waited(self, wait: Wait, until: asyncio.Event | None) -> bool:
        """Wait until a wait is over; False if `until` was first."""
        own: asyncio.Future[None] = self._loop.create_future()

        def settle() -> None:
            if not own.done():
                own.set_result(None)

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # The loop is closed: nobody waits.
                self._loop.call_soon_threadsafe(settle)

        wait.future.add_done_callback(wake)
        if until is None:
            await asyncio.wait([own], timeout=wait.timeout_s)
            return True
        told = self._loop.create_task(until.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [own, told]
            await asyncio.wait(waiting, timeout=wait.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        return own.done() or not until.is_set()


def _advanced(work: Waiting[T], sent: bool | None) -> tuple[bool, Any]:
    """The next wait of work, or True and its result."""
    try:
        return False, next(work) if sent is None else work.send(sent)
    except StopIteration as stop:
        return True, stop.value
