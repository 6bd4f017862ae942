"""Whole copies of a stream's table for a consumer group: START SNAPSHOT, and on_gap = 'snapshot'.

The engine makes them (`engine/definitions/whole_copies.py`) in its own transactions, under a separate session
id: the session may be in a block, whose locks and MVCC snapshot must stay apart.
Source: docs/whole_copies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager

import duckdb

from ...engine.buffers.gaps import Gone
from ...engine.catalog.copies import Copy
from ...engine.catalog.streams import Group, Stream
from ...engine.definitions import groups
from ...engine.definitions.start_positions import SNAPSHOT, StartPosition
from ...engine.definitions.whole_copies import discard, give_copy, present_stream, take_copy
from ...engine.errors import Gap, InsufficientPrivilege, NotSupported, ReadOnlyTransaction
from ...engine.stream_reads import group_gaps
from ...engine.transactions.offset_moves import lock_group
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Wait, Waiting
from ..session_state.context import Context
from ..session_state.run_text import begun_read_only


def check_copies(session: Context, stream: Stream, what: str) -> None:
    """Refuse whole copies of a stream without a single table, or of a table that the session may not read.

    Args:
        what: the clause or option that asks for the copy, for messages.

    Raises:
        NotSupported: the stream is a topic, or over several tables.
        InsufficientPrivilege: the session may not read the table.
    """
    if stream.topic:
        raise NotSupported(
            f'{what} is not supported for topic "{stream.name}": it has no table to copy',
            hint="START EARLIEST begins at the first event that is retained.",
        )
    if stream.several is not None:
        raise NotSupported(
            f'{what} is not supported for stream "{stream.name}": it is over several tables',
            hint="Make the stream with snapshot = 'initial' and retention = 'none'; or one on each table.",
        )
    table = session.database.catalog.table_by_id(stream.table_id)
    if not session.access.may("select", table.key):
        raise InsufficientPrivilege(
            f'permission denied to copy the table of stream "{stream.name}"',
            hint=f"{what} wants SELECT on the table.",
        )


def create_with_copy(
    session: Context, stream: Stream, make: Callable[[Transaction, Stream, StartPosition, Copy], None]
) -> Waiting[None]:
    """Create a group that starts with a whole copy.

    Args:
        make: creates the group on the present stream, in a transaction that holds the writer lock.
    """
    copy = yield from _taken(session, stream, owner := session.database.sessions.new_id())

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        present = present_stream(session.database, stream)
        check_copies(session, present, "START SNAPSHOT")  # The right to the copy may have been revoked.
        place = StartPosition(SNAPSHOT, dict.fromkeys(range(present.partitions), copy.base_lsn))
        make(transaction, present, place, copy)

    yield from _given(session, copy, owner, work)


def pass_gaps(session: Context, stream: Stream, group: Group, partitions: Sequence[int]) -> Waiting[int]:
    """Make a whole copy for a group with on_gap = 'snapshot' in place of lost events, before a read.

    The group then begins at the copy in all partitions. In a block with an older MVCC snapshot the read
    returns nothing, and a read of the next transaction returns the copy.

    Returns:
        The last LSN of the copy; 0 if none was made.

    Raises:
        Gap: a block with locks of its own cannot wait for a copy; or events after the copy were gone before
            it was made.
        ReadOnlyTransaction: a read-only transaction makes no copy.
        InsufficientPrivilege: the session may not read the table.
        UndefinedObject: another session has dropped the group.
    """
    database, through_lsn = session.database, 0
    while group.on_gap == "snapshot" and (lost := _gaps(session, stream, group, partitions)):
        if through_lsn:
            raise _too_slow(lost)
        _check_free(session, group, lost)
        check_copies(session, stream, "on_gap = 'snapshot'")
        done: Future[None] = Future()
        under_way = database.copies_of_groups.setdefault(group.group_id, done)  # one step
        if under_way is not done:
            yield Wait(under_way)  # Another member makes the copy for both.
            group = _present(session, stream, group, session.block.transaction)
            continue
        try:
            copy = yield from _replaced(session, stream, group, partitions)
        finally:
            del database.copies_of_groups[group.group_id]
            done.set_result(None)
        group = _present(session, stream, group, session.block.transaction)
        if copy is None:
            continue
        through_lsn = copy.last_lsn
        yield from database.publisher.wait_published(through_lsn)
        for gap in lost:
            session.notices.add(
                gap.message,
                severity="WARNING",
                sqlstate=Gap.sqlstate,
                detail=f"{gap.detail} The group goes on with a whole copy of {copy.rows} rows, as of LSN "
                f"{copy.base_lsn}; what it had before and is not in the copy is gone.",
            )
    return through_lsn


def _gaps(session: Context, stream: Stream, group: Group, partitions: Sequence[int]) -> list[Gone]:
    return group_gaps(session.database, session.block.transaction, stream, group, partitions)


def _present(session: Context, stream: Stream, group: Group, transaction: Transaction | None) -> Group:
    """The group's state after a wait; an error if it was dropped, even if a new group has its name."""
    present = groups.find_group(session.database.catalog, stream, group.name, transaction)
    if present.group_id != group.group_id:
        raise groups.missing_group(stream, group.name)
    return present


def _too_slow(lost: list[Gone]) -> Gap:
    """The error for a read whose copy is followed by a gap: another copy would have one too."""
    error = lost[0].error()
    error.hint = "Retention is faster than copying the table: let the stream keep its events for longer."
    return error


def _check_free(session: Context, group: Group, lost: list[Gone]) -> None:
    """Refuse a copy in a read-only transaction, and in a block that holds locks that the copy needs.

    Such a block would wait for itself.
    """
    if begun_read_only(session):
        raise ReadOnlyTransaction(
            f'cannot take a whole copy for consumer group "{group.name}" in a read-only transaction',
            detail=f"{lost[0].message[0].upper()}{lost[0].message[1:]}.",
            hint="Read in a transaction that may write.",
        )
    block = session.block.transaction
    if block is not None and (block.has_writer_lock or group.group_id in block.locked_groups):
        error = lost[0].error()
        error.hint = "Read before the transaction writes: the group gets a whole copy then."
        raise error


class _NotWantedError(Exception):
    """The group needs no copy any more: SEEK has moved it away from the gap, or `on_gap` has changed."""


def _replaced(
    session: Context, stream: Stream, group: Group, partitions: Sequence[int]
) -> Waiting[Copy | None]:
    """Take a copy for an existing group, and move the group to the copy's beginning.

    Returns:
        The copy; None if the group is no longer at a gap in these partitions.
    """
    database = session.database
    copy = yield from _taken(session, stream, owner := database.sessions.new_id())
    given = copy

    def work(transaction: Transaction) -> Waiting[None]:
        nonlocal given
        timeout_ms = session.block.lock_timeout_ms
        yield from database.transactions.lock_for(transaction, timeout_ms)
        present = present_stream(database, stream)
        check_copies(session, present, "on_gap = 'snapshot'")  # The right to it may have been revoked.
        mine = _present(session, present, group, None)
        yield from lock_group(database.offsets, transaction, mine, timeout_ms)
        if mine.on_gap != "snapshot" or not _gaps(session, present, mine, partitions):
            raise _NotWantedError
        given = give_copy(database, transaction, copy, mine)
        standing = database.offsets.positions(mine.group_id)
        moved = [groups.Shift(n, at.lsn, copy.base_lsn, 0, 0) for n, at in standing.items()]
        groups.seek(database, transaction, mine, moved, lambda seeks: None)

    try:
        yield from _given(session, copy, owner, work)
    except _NotWantedError:
        return None
    return given


def _taken(session: Context, stream: Stream, owner: int) -> Waiting[Copy]:
    @contextmanager
    def interruptible(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
        interrupt = cursor.interrupt  # Each access to the attribute makes another object.
        session.guard.interrupts.add(interrupt)
        try:
            session.guard.check()
            # The statement's time-out applies by itself only to calls on the session's own cursor.
            cursor.execute(f"SET max_execution_time = {session.guard.left_ms}").fetchall()
            yield
        finally:
            session.guard.interrupts.discard(interrupt)

    timeout_ms = session.block.lock_timeout_ms
    return (yield from take_copy(session.database, owner, stream, timeout_ms, interruptible))


def _given(
    session: Context, copy: Copy, owner: int, work: Callable[[Transaction], Waiting[None]]
) -> Waiting[None]:
    """Do `work` in a transaction of the engine's own; if it fails the copy is dropped."""
    transactions = session.database.transactions
    try:
        with closing(session.database.cursor()) as cursor:
            transaction = transactions.begin(owner, cursor, session.user)
            try:
                yield from work(transaction)
            except BaseException:
                transactions.rollback(transaction)
                raise
            yield from transactions.commit(transaction, session.block.lock_timeout_ms)
    except BaseException:
        discard(session.database, copy)
        raise
