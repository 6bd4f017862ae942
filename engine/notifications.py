"""Notifications: sessions that listen to streams and to channels that NOTIFY names.

Of a stream a listener has one note a partition, the newest LSN, however long it does not ask: a slow
listener costs no more memory than one that is quick. What NOTIFY sends is kept as it is, up to
NOTIFICATIONS_MAX; a listener that leaves more is let go of, and nobody waits for it.
Source: docs/design/engine.md, "Notifications".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import ProgramLimitExceeded

# Of NOTIFY, waiting for one listener; each has less than 8,000 bytes.
NOTIFICATIONS_MAX = 1_000
# Channels that one session may listen to.
CHANNELS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Notification:
    """One thing to tell.

    Args:
        pid: the session that has said NOTIFY; 0 for a stream.
    """

    pid: int
    channel: str
    payload: str


class Listener:
    """One session that listens.

    Args:
        news: told that there is something to take; from any thread, holds no lock of theirs.
        overrun: told that it has left too much, and is listened for no more.
    """

    def __init__(self, news: Callable[[], None], overrun: Callable[[], None]) -> None:
        self.news = news
        self.overrun = overrun
        self.streams: dict[str, int] = {}  # channel -> stream id
        self.channels: set[str] = set()
        self.ends: dict[tuple[str, int], int] = {}  # (channel, partition) -> newest LSN
        self.notes: list[Notification] = []


class Notifications:
    """The listeners of a database; safe to use from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._listeners: set[Listener] = set()

    def listen(self, listener: Listener, channel: str, stream_id: int | None) -> None:
        """Tell it of what comes from now on; of a stream where the channel is one's name.

        Raises:
            ProgramLimitExceeded: it listens to too many already.
        """
        with self._mutex:
            if len(listener.streams) + len(listener.channels) >= CHANNELS_MAX:
                raise ProgramLimitExceeded(f"a session cannot listen to more than {CHANNELS_MAX} channels")
            if stream_id is None:
                listener.channels.add(channel)
            else:
                listener.streams[channel] = stream_id
            self._listeners.add(listener)

    def unlisten(self, listener: Listener, channel: str | None) -> None:
        """Tell it no more of a channel; None is all. What waits of it is forgotten."""
        with self._mutex:
            for name in [channel] if channel is not None else [*listener.streams, *listener.channels]:
                listener.streams.pop(name, None)
                listener.channels.discard(name)
                for key in [key for key in listener.ends if key[0] == name]:
                    del listener.ends[key]
                listener.notes = [note for note in listener.notes if note.channel != name]
            if not listener.streams and not listener.channels:
                self._listeners.discard(listener)

    def watched(self) -> frozenset[int]:
        """The streams that somebody listens to."""
        with self._mutex:
            return frozenset(number for each in self._listeners for number in each.streams.values())

    def published(self, ends: Mapping[int, Mapping[int, int]]) -> None:
        """Events have become readable: stream id -> partition -> newest LSN."""
        told: list[Listener] = []
        with self._mutex:
            for listener in self._listeners:
                for channel, stream_id in listener.streams.items():
                    for partition, lsn in ends.get(stream_id, {}).items():
                        listener.ends[channel, partition] = lsn
                        if not told or told[-1] is not listener:
                            told.append(listener)
        for listener in told:
            listener.news()

    def notify(self, note: Notification) -> None:
        """Tell all who listen to the channel."""
        told: list[Listener] = []
        overrun: list[Listener] = []
        with self._mutex:
            for listener in self._listeners:
                if note.channel not in listener.channels:
                    continue
                if len(listener.notes) >= NOTIFICATIONS_MAX:
                    overrun.append(listener)
                else:
                    listener.notes.append(note)
                    told.append(listener)
            for listener in overrun:
                self._listeners.discard(listener)
        for listener in told:
            listener.news()
        for listener in overrun:
            listener.overrun()

    def take(self, listener: Listener) -> list[Notification]:
        """The notifications since the last call."""
        if not listener.ends and not listener.notes:
            return []
        with self._mutex:
            ends, listener.ends = listener.ends, {}
            notes, listener.notes = listener.notes, []
        found = [
            Notification(0, channel, json.dumps({"partition": partition, "lsn": lsn}))
            for (channel, partition), lsn in sorted(ends.items())
        ]
        return found + notes
