"""The runners of all sinks of a server: begun, changed and ended as the definitions say.

Source: docs/design/pgwire_gateway.md, "Sinks".
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from contextlib import suppress

from ...engine.catalog.sinks import RUNNING, Sink
from ...engine.database import Database
from .runner import SinkRunner

# The time for runners to end by themselves in a shutdown, beyond that for their requests, and before their
# calls are cancelled.
ENDING_S, CANCEL_S = 8.0, 5.0

log = logging.getLogger("ducktail.sinks")


class Sinks:
    """The running sinks of an open database.

    Args:
        loop: the running event loop, on which all methods but `changed` are called.
        workers: the threads on which the work of sessions runs.
    """

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop, workers: Executor) -> None:
        self._database = database
        self._loop = loop
        self._workers = workers
        self._runners: dict[int, tuple[SinkRunner, asyncio.Task[None]]] = {}
        self._closing = False

    def start(self) -> None:
        """Begin to deliver."""
        self._database.sink_activity.on_change = self.changed
        self._look()

    def changed(self) -> None:
        """Follow a change of the definitions; from any thread."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        wanted = {} if self._closing else self._wanted()
        for group_id, (runner, _) in self._runners.items():
            if group_id in wanted:
                runner.redefine(wanted[group_id])
            else:
                runner.stop()
        for group_id, sink in wanted.items():
            if group_id not in self._runners:
                self._begin(sink)

    def _wanted(self) -> dict[int, Sink]:
        sinks = list(self._database.catalog.sinks.values()) if self._database.settings.sinks_max else []
        return {sink.group_id: sink for sink in sinks if sink.state == RUNNING}

    def _begin(self, sink: Sink) -> None:
        runner = SinkRunner(self._database, sink, self._loop, self._workers)
        task = self._loop.create_task(runner.work(), name=f"sink {sink.uid}")
        self._runners[sink.group_id] = (runner, task)
        task.add_done_callback(lambda _: self._ended(sink.group_id))

    def _ended(self, group_id: int) -> None:
        _, task = self._runners.pop(group_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a sink has ended with an error", exc_info=error)
        if group_id not in self._database.catalog.sinks:
            # Its requests have ended after the drop.
            self._database.sink_activity.forget([group_id])
        if not self._closing:
            # It may have been resumed while it ended.
            self._look()

    async def close(self) -> None:
        """End all runners: requests under way may end, for a bounded time."""
        self._closing = True
        self._database.sink_activity.on_change = lambda: None
        self._look()
        tasks = [task for _, task in self._runners.values()]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=ENDING_S)
        if late:
            for runner, _ in self._runners.values():
                runner.cancel()
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=CANCEL_S)
