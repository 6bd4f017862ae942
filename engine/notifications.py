"""Notifications: sessions that listen to streams and to channels of NOTIFY.

For a stream a listener has one notification for each partition, with the newest LSN: a slow listener costs no
more memory than a fast one. Notifications of NOTIFY are queued up to NOTIFICATIONS_MAX; a listener with more
is removed, so that no sender waits for it.
Source: docs/design/engine.md, "Notifications".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import ProgramLimitExceeded

# Most notifications of NOTIFY queued for one listener; each has less than 8,000 bytes.
NOTIFICATIONS_MAX = 1_000
# Channels that one session may listen to.
CHANNELS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification.

    Args:
        pid: the session that has sent NOTIFY; 0 for a stream.
    """

    pid: int
    channel: str
    payload: str


class Listener:
    """A listening session.

    Args:
        news: called when there are notifications, from any thread and without their lock.
        overrun: called when the queue has overflowed and the listener was removed.
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
        """Register a listener for a channel; if it is the name of a stream, for the stream's events.

        Raises:
            ProgramLimitExceeded: the listener listens to too many channels.
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
        """Remove a listener from a channel, or from all for None, with its queued notifications."""
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
        """The streams with listeners."""
        with self._mutex:
            return frozenset(number for each in self._listeners for number in each.streams.values())

    def published(self, ends: Mapping[int, Mapping[int, int]]) -> None:
        """Notify listeners of readable events: stream id -> partition -> newest LSN."""
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
        """Notify all listeners of the channel."""
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
