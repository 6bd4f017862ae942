"""Bookmarks: named positions of whole streams, stored in the database.

A bookmark is an LSN for each partition, after which a reader continues. It is created and dropped inside the
requesting transaction, under the writer lock like every numbered transaction in `commits`; the catalog in
memory is updated at COMMIT. With each LSN it stores the number of the partition's events at or before it, so
that events removed by retention behind it are counted exactly. Source: docs/groups.md, "Bookmarks".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from ..catalog.catalog import Catalog
from ..catalog.streams import Bookmark, Stream
from ..database import Database
from ..duck.cursors import ask
from ..errors import (
    DuplicateObject,
    InvalidParameterValue,
    ProgramLimitExceeded,
    SerializationFailure,
    UndefinedObject,
)
from ..quoting import fold, ident, literal
from ..system_views.group_rows import lag_events
from ..transactions.transaction import CommitStep, Transaction
from .catalog_rows import new_id
from .start_positions import check_lsns

# Limit of one stream: SHOW BOOKMARKS reads each, and each takes some hundred bytes for 8 partitions.
BOOKMARKS_MAX = 1000


def find_bookmark(catalog: Catalog, stream: Stream, name: str, transaction: Transaction | None) -> Bookmark:
    """A stream's bookmark by name, as visible in a transaction.

    Raises:
        UndefinedObject: no such bookmark exists.
    """
    key = (stream.stream_id, fold(name))
    found = catalog.bookmarks.get(key)
    if transaction is not None and key in transaction.bookmarks:
        found = transaction.bookmarks[key]
    if found is None:
        raise missing_bookmark(stream, name)
    return found


def missing_bookmark(stream: Stream, name: str) -> UndefinedObject:
    """The error for a bookmark that does not exist."""
    return UndefinedObject(
        f'bookmark "{name}" of stream "{stream.name}" does not exist',
        hint=f"CREATE BOOKMARK {ident(name)} ON {ident(stream.name)} makes it.",
    )


def end_lsns(database: Database, stream: Stream) -> dict[int, int]:
    """Partition -> the LSN of its last readable event."""
    buffer = database.buffers.of(stream)
    with buffer.mutex:
        return {number: partition.last_lsn for number, partition in enumerate(buffer.partitions)}


def create_bookmark(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    name: str,
    lsns: Mapping[int, int],
    own: Collection[int],
) -> None:
    """Create a bookmark in a transaction that holds the writer lock; it exists from COMMIT on.

    Args:
        lsns: partition -> LSN, for every partition.
        own: the partitions whose events are on this node; LSNs of other partitions cannot be checked here.

    Raises:
        DuplicateObject: the name is taken.
        InvalidParameterValue: a partition does not exist or is missing, or an LSN is past the end.
        ProgramLimitExceeded: the stream has too many bookmarks.
    """
    assert transaction.has_writer_lock, "what is made has a number"
    check_lsns(database, stream, {n: lsn for n, lsn in lsns.items() if n in own or n >= stream.partitions})
    missing = sorted(set(range(stream.partitions)) - set(lsns))
    if missing:
        raise InvalidParameterValue(
            f'the position names {len(lsns)} of the {stream.partitions} partitions of stream "{stream.name}"',
            detail=f"Partition {missing[0]} is missing.",
            hint="A bookmark has an LSN for every partition; 0 is before its first event.",
        )
    key = (stream.stream_id, fold(name))
    present = {**database.catalog.bookmarks, **transaction.bookmarks}
    if present.get(key) is not None:
        raise DuplicateObject(f'bookmark "{name}" of stream "{stream.name}" already exists')
    if sum(found is not None and found.stream_id == key[0] for found in present.values()) >= BOOKMARKS_MAX:
        raise ProgramLimitExceeded(
            f'stream "{stream.name}" has {BOOKMARKS_MAX} bookmarks, and can have no more',
            hint="DROP BOOKMARK those that are no longer needed.",
        )
    positions = {number: _position(database, stream, number, lsns[number]) for number in own}
    known = {number: position for number, position in positions.items() if position is not None}
    now_us = database.clock.now_us()
    bookmark = Bookmark(new_id(transaction.cursor), stream.stream_id, name, dict(lsns), known, now_us)
    transaction.cursor.execute(
        "INSERT INTO ducktail.bookmark_catalog VALUES "
        f"({bookmark.bookmark_id}, {stream.stream_id}, {literal(name)}, "
        f"{literal(json.dumps(bookmark.lsns))}, {literal(json.dumps(bookmark.positions))}, "
        f"make_timestamptz({now_us}))"
    ).fetchall()
    _change(database, transaction, key, bookmark)


def _position(database: Database, stream: Stream, number: int, lsn: int) -> int | None:
    """The number of a partition's events at or before an LSN; None if retention has passed it."""
    partition = database.buffers.of(stream).partitions[number]
    if lsn <= stream.created_lsn:
        return 0
    if lsn < partition.trimmed_through_lsn:
        return None
    return partition.events - lag_events(database, stream, number, partition, lsn)


def drop_bookmark(database: Database, transaction: Transaction, bookmark: Bookmark) -> None:
    """Drop a bookmark within a transaction that holds the writer lock.

    Raises:
        SerializationFailure: the transaction's snapshot is older than the bookmark.
    """
    assert transaction.has_writer_lock, "what is dropped has a number"
    sql = f"DELETE FROM ducktail.bookmark_catalog WHERE bookmark_id = {bookmark.bookmark_id}"
    (count,) = ask(transaction.cursor, sql)
    if not count:
        raise SerializationFailure(
            f'bookmark "{bookmark.name}" was made after this transaction began to read',
            hint="Roll back and try again.",
        )
    _change(database, transaction, bookmark.key, None)


def _change(
    database: Database, transaction: Transaction, key: tuple[int, str], bookmark: Bookmark | None
) -> None:
    transaction.defines = True
    transaction.bookmarks[key] = bookmark

    def follow() -> None:
        if bookmark is None:
            database.catalog.bookmarks.pop(key, None)
        else:
            database.catalog.bookmarks[key] = bookmark

    transaction.at(CommitStep.MEMORY, follow)
