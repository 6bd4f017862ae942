"""The runners of all feeds of a server: begun and ended as the definitions say; and looks at new sources.

Source: docs/design/sources.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress

from ...engine.catalog.feeds import RUNNING, Feed, Selection
from ...engine.database import Database
from ...engine.errors import DucktailError, DuplicateObject, SourceUnavailable
from ...engine.groups.feed_activity import Description
from .postgres import PostgresConnector
from .registry import connector_of, described_by, shown_address
from .runner import FeedRunner

log = logging.getLogger("ducktail.sources")

# Looks at sources, and removals from them, at the same time.
LOOKS_MAX = 4
# The time for runners to end in a shutdown: what they store may end.
ENDING_S = 10.0


class FeedRunners:
    """The running feeds of an open database; implements `feed_activity.Sources`.

    Args:
        loop: the running event loop, on which the methods without another word are called.
    """

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self._looks = ThreadPoolExecutor(LOOKS_MAX, thread_name_prefix="ducktail-source")
        self._runners: dict[int, FeedRunner] = {}
        self._ended: dict[int, asyncio.Event] = {}
        self._closing = False

    def start(self) -> None:
        """Begin to read."""
        self._database.feed_activity.on_change = self.changed
        self._database.feed_activity.sources = self
        self._look()

    def changed(self) -> None:
        """Follow a change of the definitions; from any thread."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        reads = self._database.settings.sources_max and not self._closing
        feeds = dict(self._database.catalog.feeds) if reads else {}
        wanted = {number: feed for number, feed in feeds.items() if feed.state == RUNNING}
        for number, runner in self._runners.items():
            if number not in wanted:
                runner.stop()
            elif wanted[number].changed_us != runner.changed_us:
                runner.changed_us = wanted[number].changed_us
                runner.resume()
        for number, feed in wanted.items():
            if number not in self._runners:
                self._ended[number] = asyncio.Event()
                self._runners[number] = runner = FeedRunner(self._database, feed, self._has_ended)
                runner.start()

    def _has_ended(self, runner: FeedRunner) -> None:
        """Follow the end of a runner; on its thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._remove, runner)

    def _remove(self, runner: FeedRunner) -> None:
        self._runners.pop(runner.stream_id, None)
        self._ended.pop(runner.stream_id).set()
        if not self._closing:
            self._look()  # It may have been resumed while it ended.

    async def close(self) -> None:
        """End all runners, for a bounded time."""
        self._closing = True
        self._database.feed_activity.on_change = lambda: None
        self._database.feed_activity.sources = None
        events = list(self._ended.values())
        self._look()
        if events:
            waits = [asyncio.ensure_future(event.wait()) for event in events]
            await asyncio.wait(waits, timeout=ENDING_S)
            for wait in waits:
                wait.cancel()
        self._looks.shutdown(wait=False, cancel_futures=True)

    # For statements, from any thread.

    def describe(
        self, kind: str, address: str, selection: Selection, options: Mapping[str, str | int | None]
    ) -> Future[Description]:
        """Look at a source."""

        def look() -> Description:
            shown = shown_address(kind, address)
            with closing(described_by(kind, address, selection, options)) as connector:
                tables = connector.describe()
                if isinstance(connector, PostgresConnector) and "slot" in options and connector.slot_exists():
                    raise DuplicateObject(
                        f'replication slot "{options["slot"]}" exists already at the source',
                        hint="Another consumer may read it: choose another name, or drop it there.",
                    )
                return Description(tables, connector.identity, shown)

        return self._looks.submit(look)

    def remove(self, feed: Feed) -> Future[None]:
        """End a feed's runner, and remove what it has made at its source."""
        done: Future[None] = Future()

        async def work() -> None:
            ended = self._ended.get(feed.stream_id)
            if ended is not None:
                self._runners[feed.stream_id].stop()
                await ended.wait()
            try:
                await self._loop.run_in_executor(self._looks, removed, feed)
            except DucktailError as error:
                done.set_exception(error)
            except Exception as error:
                log.exception("removing what stream %s has made at its source", feed.stream_id)
                done.set_exception(SourceUnavailable(f"{type(error).__name__}: {error}"))
            else:
                done.set_result(None)

        def removed(feed: Feed) -> None:
            with closing(connector_of(feed)) as connector:
                connector.remove()

        asyncio.run_coroutine_threadsafe(work(), self._loop)
        return done
