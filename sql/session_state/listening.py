"""A session's part in LISTEN, UNLISTEN and NOTIFY, which a transaction's end makes hold.

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
        overrun: told, from any thread, that the session has left too much unread.
        access: gives the session's rights, by which a stream that it listens to is judged at delivery.

    Attributes:
        on_news: told, from any thread, that there is something to take.
    """

    def __init__(self, database: Database, overrun: Callable[[], None], access: Callable[[], Access]) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self._database = database
        self._hub = database.notifications
        self._access = access
        # The rights under which the streams were judged last.
        self._judged: Rights | None = None
        self._listener = Listener(lambda: self.on_news(), overrun)
        self._later: list[Callable[[], None]] = []
        self._said: set[Notification] = set()

    def do(self, action: Callable[[Notifications, Listener], None], *, later: bool) -> None:
        """Do it now, or when the transaction that is open has been committed."""
        if later:
            self._later.append(lambda: action(self._hub, self._listener))
        else:
            action(self._hub, self._listener)

    @property
    def channels(self) -> list[str]:
        """The channels to which the session listens."""
        return sorted({*self._listener.channels.copy(), *self._listener.streams.copy()})

    def say(self, note: Notification, *, later: bool) -> None:
        """NOTIFY; the same twice in a transaction is said once."""
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
        if self._listener.ends:
            self._leave_lost()
        return self._hub.take(self._listener)

    def _leave_lost(self) -> None:
        """Stop to listen to streams that the session has no right on any more."""
        access = self._access()
        rights = access.rights
        if access.account is None or rights is self._judged:
            return
        there = self._database.catalog.stream_by_id
        for channel, stream_id in self._listener.streams.copy().items():
            stream = there(stream_id)
            if stream is not None and not access.hears(stream):
                self._hub.unlisten(self._listener, channel)
        self._judged = rights

    def close(self) -> None:
        """Listen no more."""
        self._hub.unlisten(self._listener, None)
