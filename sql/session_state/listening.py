"""A session's part in LISTEN, UNLISTEN and NOTIFY, which take effect when the transaction commits.

Source: docs/sql.md, "Notifications".
"""

from __future__ import annotations

from collections.abc import Callable

from ...engine.catalog.rights import Rights
from ...engine.database import Database
from ...engine.notifications import Listener, Notification, Notifications
from .access import Access


class Listening:
    """The channels of a session, and the notifications that it sends once its transaction is committed.

    Args:
        overrun: called, from any thread, when the session has left too many notifications unread.
        access: returns the session's rights, which are checked at the delivery of a stream's notification.

    Attributes:
        on_news: called, from any thread, when notifications can be taken.
    """

    def __init__(self, database: Database, overrun: Callable[[], None], access: Callable[[], Access]) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self._database = database
        self._hub = database.notifications
        self._access = access
        # The rights with which the streams were last checked.
        self._judged: Rights | None = None
        self._listener = Listener(lambda: self.on_news(), overrun)
        self._later: list[Callable[[], None]] = []
        self._said: set[Notification] = set()

    def do(self, action: Callable[[Notifications, Listener], None], *, later: bool) -> None:
        """Perform an action now, or when the open transaction has been committed."""
        if later:
            self._later.append(lambda: action(self._hub, self._listener))
        else:
            action(self._hub, self._listener)

    @property
    def channels(self) -> list[str]:
        """The channels to which the session listens."""
        return sorted({*self._listener.channels.copy(), *self._listener.streams.copy()})

    def say(self, note: Notification, *, later: bool) -> None:
        """Send a notification; identical notifications of one transaction are sent once."""
        if not later:
            self._hub.notify(note)
        elif note not in self._said:
            self._said.add(note)
            self._later.append(lambda: self._hub.notify(note))

    def transaction_ended(self, *, committed: bool) -> None:
        """Execute or forget the changes and notifications that wait for a commit."""
        actions, self._later = self._later, []
        self._said.clear()
        for action in actions if committed else ():
            action()

    def take(self) -> list[Notification]:
        """Take the notifications since the last call; the session must be in no transaction."""
        found = self._hub.take(self._listener)
        # The rights are those of now, behind all that was taken: an event may arrive at any moment.
        if found and (lost := self._leave_lost()):
            found = [note for note in found if note.channel not in lost]
        return found

    def _leave_lost(self) -> set[str]:
        """Stop listening to streams on which the session has no right any more; return their channels."""
        access, lost = self._access(), set[str]()
        rights = access.rights
        if access.account is None or rights is self._judged:
            return lost
        there = self._database.catalog.stream_by_id
        for channel, stream_id in self._listener.streams.copy().items():
            stream = there(stream_id)
            if stream is not None and not access.hears(stream):
                self._hub.unlisten(self._listener, channel)
                lost.add(channel)
        self._judged = rights
        return lost

    def close(self) -> None:
        """Stop listening to all channels."""
        self._hub.unlisten(self._listener, None)
