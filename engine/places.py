"""Places in a stream by name: where a group starts and where SEEK takes it, as an LSN per partition.

The LSN of a place is the one behind which reading goes on. Source: docs/groups.md, "Where a group
starts".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .asking import ask
from .database import Database
from .streams import Stream
from .transaction import Transaction

EARLIEST, LATEST, AFTER, TIMESTAMP = "earliest", "latest", "after", "timestamp"


@dataclass(frozen=True, slots=True)
class Place:
    """A place.

    Args:
        kind: 'earliest', 'latest', 'after' or 'timestamp'.
        after: partition -> LSN, for 'after'; a partition that is not in it is not meant.
        at_us: microseconds since 1970 UTC, for 'timestamp': behind all that was committed before.
    """

    kind: str
    after: Mapping[int, int] = field(default_factory=dict)
    at_us: int = 0

    def __post_init__(self) -> None:
        assert self.kind in (EARLIEST, LATEST, AFTER, TIMESTAMP)


def lsns_at(
    database: Database, transaction: Transaction | None, stream: Stream, place: Place
) -> dict[int, int]:
    """partition -> LSN of a place, once everything that is committed is published.

    Args:
        transaction: the one that asks; what it has written itself is before its LATEST.

    Raises:
        InvalidParameterValue: 22023, a partition that is not there, an LSN past the stream's end.
    """
    if place.kind == AFTER:
        database.check_lsns(stream, place.after)
        return dict(place.after)
    buffer = database.buffer(stream)
    kind, before_lsn = place.kind, 0
    if kind == TIMESTAMP:
        if place.at_us > max(database.clock.now_us(), database.last_commit_us):
            kind = LATEST
        else:
            before_lsn = last_lsn_before(database, place.at_us)
    own = 0
    if transaction is not None and stream.table_id in transaction.tables:
        own = transaction.next_lsn
    with buffer.mutex:
        if kind == LATEST:
            return {n: max(own, p.last_lsn) for n, p in enumerate(buffer.partitions)}
        return {
            n: max(p.trimmed_through_lsn, p.last_at(before_lsn) if before_lsn else 0)
            for n, p in enumerate(buffer.partitions)
        }


def last_lsn_before(database: Database, at_us: int) -> int:
    """The last LSN that was committed before a time. Commit times never go back."""
    cursor = database.cursor(utc=True)
    try:
        row = ask(
            cursor,
            "SELECT coalesce(max(last_lsn), 0) FROM ducktail.commits WHERE epoch_us(commit_time) < $1",
            [at_us],
        )
    finally:
        cursor.close()
    return int(row[0])
