"""Who follows what in one open database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...engine.errors import AdminShutdown, ObjectInUse
from .follower import Follower, end_all

# A consumer: of a stream, of a group (0 without one), by its name.
Key = tuple[int, int, str]


class Following:
    """A consumer has one place at a time: two follows of it would store theirs by turns."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._followers: dict[Key, Follower | None] = {}
        self._closed = False

    def enter(self, key: Key, stream: str) -> None:
        """A consumer begins to follow, or somebody changes its checkpoint.

        Raises:
            ObjectInUse: 55006, it follows already. AdminShutdown: 57P01, the database is being closed.
        """
        with self._mutex:
            if self._closed:
                raise AdminShutdown("the database is being closed")
            if key in self._followers:
                raise ObjectInUse(
                    f'consumer "{key[2]}" follows stream "{stream}" already',
                    hint="Stop it first, or give each its own consumer_id.",
                )
            self._followers[key] = None

    def began(self, key: Key, follower: Follower) -> None:
        """It follows from now on."""
        with self._mutex:
            self._followers[key] = follower

    def leave(self, key: Key) -> None:
        """It is over."""
        with self._mutex:
            self._followers.pop(key, None)

    @contextmanager
    def alone(self, key: Key, stream: str) -> Iterator[None]:
        """Within, the consumer does not follow; as `enter`."""
        self.enter(key, stream)
        try:
            yield
        finally:
            self.leave(key)

    def close(self) -> None:
        """The database is being closed: each follow ends with an error, and what is done is stored."""
        with self._mutex:
            self._closed = True
            followers = [follower for follower in self._followers.values() if follower is not None]
        end_all(followers, AdminShutdown("the database is being closed"))
