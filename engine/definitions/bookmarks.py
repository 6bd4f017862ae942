"""Bookmarks: positions of whole streams under a name, kept in the database.

A bookmark is an LSN for each partition, behind which a reader goes on. It is made and dropped inside the
transaction that asks for it, under the writer lock as all that has a number in `commits`; the catalog in
memory follows at COMMIT. Beside each LSN it keeps how many of the partition's events are at or before it,
so that what retention takes away behind it is an exact count. Source: docs/groups.md, "Bookmarks".
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

# Of one stream: each is looked at by SHOW BOOKMARKS, and is some hundred bytes for 8 partitions.
BOOKMARKS_MAX = 1000


def find_bookmark(catalog: Catalog, stream: Stream, name: str, transaction: Transaction | None) -> Bookmark:
    """A stream's bookmark by name, as a transaction sees it.

    Raises:
        UndefinedObject: there is none.
    """
    key = (stream.stream_id, fold(name))
    found = catalog.bookmarks.get(key)
    if transaction is not None and key in transaction.bookmarks:
        found = transaction.bookmarks[key]
    if found is None:
        raise missing_bookmark(stream, name)
    return found


def missing_bookmark(stream: Stream, name: str) -> UndefinedObject:
    """The error of a bookmark that is not there."""
    return UndefinedObject(
        f'bookmark "{name}" of stream "{stream.name}" does not exist',
        hint=f"CREATE BOOKMARK {ident(name)} ON {ident(stream.name)} makes it.",
    )


def end_lsns(database: Database, stream: Stream) -> dict[int, int]:
    """Partition -> its last LSN, of what is readable now."""
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
    """Make a bookmark within a transaction that holds the writer lock; it is there at COMMIT.

    Args:
        lsns: partition -> LSN, of every partition.
        own: the partitions whose events are on this node; nothing is known here of the LSNs of others.

    Raises:
        DuplicateObject. InvalidParameterValue: partitions that are not there or not named,
        LSNs past the end. ProgramLimitExceeded: the stream has too many.
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
    """The number of a partition's events at or before an LSN; None where retention has passed it."""
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
