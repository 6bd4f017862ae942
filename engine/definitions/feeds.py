"""Changes of a feed's state: it is paused, resumed, or stopped for a reason that needs a user."""

from __future__ import annotations

from dataclasses import replace

from ..catalog.feeds import RUNNING, Feed
from ..catalog.streams import Stream
from ..database import Database
from ..errors import SerializationFailure, WrongObjectType
from ..quoting import ident
from ..transactions.transaction import CommitStep, Transaction


def feed_of(database: Database, stream: Stream) -> Feed:
    """The feed of a stream.

    Raises:
        WrongObjectType: the stream has none.
    """
    found = database.catalog.feeds.get(stream.stream_id)
    if found is None:
        raise WrongObjectType(
            f'{stream.kind} "{stream.name}" has no source',
            hint=f"It carries what is written here. CREATE STREAM {ident(stream.name)} FROM ... has one.",
        )
    return found


def set_state(
    database: Database, transaction: Transaction, stream_id: int, state: str, reason: str | None = None
) -> None:
    """Set the state of a feed, in a transaction that holds the writer lock; its runner follows at COMMIT.

    Raises:
        SerializationFailure: the stream was dropped meanwhile.
    """
    assert transaction.has_writer_lock, "a change has a number"
    present = database.catalog.feeds.get(stream_id)
    if present is None:
        raise SerializationFailure("the stream was dropped meanwhile")
    if present.state == state and state != RUNNING:
        return  # RESUME of one that runs makes its next attempt at once.
    changed_us = database.clock.now_us()
    sql = replace(present, state=state, reason=reason, changed_us=changed_us).set_state_sql()
    transaction.cursor.execute(sql).fetchall()
    transaction.defines = True

    def follow() -> None:
        # Its position may have moved since.
        now = database.catalog.feeds.get(stream_id)
        if now is not None:
            changed = replace(now, state=state, reason=reason, changed_us=changed_us)
            database.catalog.feeds[stream_id] = changed

    transaction.at(CommitStep.MEMORY, follow)
    transaction.at(CommitStep.WAKE, database.feed_activity.changed, about="feeds")
