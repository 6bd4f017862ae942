"""The activity of feeds, in memory since the opening of the database.

The runners of a server write it, the system views and metrics read it. It also reports changes of the
definitions to the runners, and has the connector with which CREATE STREAM looks at a source. Source:
docs/sources.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from ..catalog.feeds import Feed, Selection
from ..catalog.source_tables import SourceTable
from ..errors import NotSupported

# The phases of a feed that runs.
CONNECTING, COPYING, STREAMING, WAITING = "connecting", "copying", "streaming", "waiting"


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The present state of a feed that runs.

    Args:
        phase: CONNECTING, COPYING, STREAMING, or WAITING for the next attempt.
        behind_bytes: the bytes of the source's log that are not read yet; None if unknown.
        source_end: the end of the source's log, as text.
        commit_us: the commit time there of the last stored transaction; 0 without one.
        transactions, events: numbers of those stored.
        copied_rows: the number of rows read by the copy that is being taken; 0 without one.
        fault: the last error; None without one since the last success.
        fault_us, retry_us: its time, and that of the next attempt; 0 without one.
        level_us: the time of the last look at which nothing was missing here; 0 before that.
    """

    phase: str = CONNECTING
    behind_bytes: int | None = None
    source_end: str | None = None
    commit_us: int = 0
    transactions: int = 0
    events: int = 0
    copied_rows: int = 0
    fault: str | None = None
    fault_us: int = 0
    retry_us: int = 0
    level_us: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """A source as its connector has found it.

    Args:
        tables: the definitions of the selected tables.
        identity: identifies the source, where the connector can tell.
        shown: its address without secrets.
    """

    tables: Sequence[SourceTable]
    identity: str | None
    shown: str


class Sources(Protocol):
    """The clients of databases outside, as a server offers them to the statements about feeds."""

    def describe(
        self, kind: str, address: str, selection: Selection, options: Mapping[str, str | int | None]
    ) -> Future[Description]:
        """Look at a source."""

    def remove(self, feed: Feed) -> Future[None]:
        """End a feed's runner, and remove what it has made at its source."""


class FeedActivity:
    """The activity of all feeds by the numbers of their streams; for any thread.

    Attributes:
        on_change: called after each change of a definition, on any thread; a server sets it.
        sources: the connectors of the server; None in a process without one.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.sources: Sources | None = None
        self._mutex = threading.Lock()
        self._states: dict[int, FeedStatus] = {}

    def changed(self) -> None:
        """Report that a feed was created, changed or dropped."""
        self.on_change()

    def connected(self) -> Sources:
        """The connectors.

        Raises:
            NotSupported: no server runs in this process.
        """
        if self.sources is None:
            raise NotSupported(
                "a stream with a source needs a server",
                hint="ducktail serve runs it: connect to that, and create the stream there.",
            )
        return self.sources

    def status(self, stream_id: int) -> FeedStatus | None:
        """The state of a feed; None if it has not run since the opening."""
        with self._mutex:
            return self._states.get(stream_id)

    def set(self, stream_id: int, **facts: object) -> None:
        """Change facts of the state of a feed."""
        with self._mutex:
            known = self._states.get(stream_id, FeedStatus())
            self._states[stream_id] = replace(known, **facts)  # type: ignore[arg-type]

    def forget(self, stream_id: int) -> None:
        """Forget a dropped feed."""
        with self._mutex:
            self._states.pop(stream_id, None)
        self.changed()
