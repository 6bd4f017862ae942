"""The rows of the live view `sources`: what feeds streams, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator

from ..catalog.feeds import POSTGRES, RUNNING, Feed
from ..groups.feed_activity import COPYING, STREAMING, WAITING, FeedStatus
from ..parts import Parts
from .group_rows import Row, time_text


def sources(database: Parts) -> Iterator[Row]:
    """The rows of ducktail.sources."""
    for stream in list(database.catalog.streams.values()):
        feed = database.catalog.feeds.get(stream.stream_id)
        if feed is None:
            continue
        status = database.feed_activity.status(stream.stream_id) or FeedStatus(phase=WAITING)
        yield {
            "schema_name": stream.schema,
            "stream_name": stream.name,
            "kind": feed.kind,
            "source": feed.shown,
            "state": feed.state,
            "phase": _phase(feed, status) if feed.state == RUNNING else None,
            "reason": feed.reason,
            "position": feed.position,
            "source_position": status.source_end,
            "lag_bytes": status.behind_bytes,
            "lag_seconds": lag_seconds(database, feed, status),
            "rows_copied": status.copied_rows or sum(table.rows or 0 for table in feed.tables),
            "transactions": status.transactions,
            "events": status.events,
            "fault": status.fault,
            "fault_at": time_text(status.fault_us),
            "next_attempt_at": time_text(status.retry_us),
            "slot": feed.slot if feed.kind == POSTGRES else None,
            "tables": [table.table.shown for table in feed.tables],
            "changed_at": time_text(feed.changed_us),
        }


def _phase(feed: Feed, status: FeedStatus) -> str:
    """The phase of a feed that runs: a copy that is asked for begins within a second."""
    asked = any(table.asked is not None for table in feed.tables)
    return COPYING if asked and status.phase == STREAMING else status.phase


def lag_seconds(database: Parts, feed: Feed, status: FeedStatus) -> float | None:
    """The time for which the source has had something that is not stored here; None if unknown.

    Zero if nothing was missing at the last look; else the time since the commit there that was stored last,
    or, before the first one, since the last look at which nothing was missing.
    """
    if status.behind_bytes == 0:
        return 0.0
    since_us = max(status.commit_us, status.level_us)
    return (database.clock.now_us() - since_us) / 1_000_000 if since_us else None
