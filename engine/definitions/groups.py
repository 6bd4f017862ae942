"""Creating, altering and dropping consumer groups inside the requesting transaction.

A group begins at one position of the commit order, so the transaction holds the writer lock. The transaction
writes the group's rows; the catalog in memory is updated at COMMIT. Source: docs/groups.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..catalog.catalog import Catalog
from ..catalog.copies import Copy, forget_sql
from ..catalog.streams import Group, Stream
from ..database import Database
from ..duck.cursors import ask
from ..errors import DuplicateObject, SerializationFailure, UndefinedGroup, UndefinedObject
from ..groups.offsets import Move, insert_sql
from ..groups.parked import NOTHING
from ..placement import holds
from ..quoting import fold, ident, literal
from ..system_views.group_rows import lag_events, rows_left
from ..transactions.transaction import CommitStep, PendingOffset, Transaction
from .catalog_rows import new_id
from .start_positions import StartPosition, lsns_at
from .whole_copies import give_copy

# The tables with rows of a group by its id, besides the catalog's.
TABLES_OF_GROUPS = (
    "offset_log",
    "passed_positions",
    "parked_events",
    "parked_deliveries",
    "delivery_limits",
    "delivery_log",
    "checkpoint_states",
    "member_epochs",
)


def find_group(catalog: Catalog, stream: Stream, name: str, transaction: Transaction | None) -> Group:
    """A stream's group by name, including groups created in this transaction.

    Raises:
        UndefinedGroup: no such group exists.
    """
    key = (stream.stream_id, fold(name))
    group = catalog.groups.get(key)
    if transaction is not None:
        group = transaction.new_groups.get(key, group)
        if group is not None and group.group_id in transaction.dropped_groups:
            group = None
    if group is None:
        raise missing_group(stream, name)
    return group


def missing_group(stream: Stream, name: str) -> UndefinedGroup:
    """The error for a group that does not exist."""
    return UndefinedGroup(
        f'consumer group "{name}" of stream "{stream.name}" does not exist',
        hint=f"CREATE CONSUMER GROUP {ident(name)} ON {ident(stream.name)} makes it.",
    )


def create_group(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    name: str,
    start: StartPosition,
    on_gap: str,
    session_timeout_ms: int,
    on_park: str,
    max_deliveries: int | None,
    uid: str | None = None,
    copy: Copy | None = None,
) -> None:
    """Create a consumer group in a transaction that holds the writer lock; it exists from COMMIT on.

    Args:
        copy: the whole copy at whose beginning it starts.
        on_gap, session_timeout_ms, on_park, max_deliveries: as in `Group`.
        uid: the identity of its definition in the cluster, if another node created it first.

    Raises:
        DuplicateObject: the name is taken.
        InvalidParameterValue: the start is past the stream's end.
    """
    assert transaction.has_writer_lock, "a group begins at one place of the commit order"
    key = (stream.stream_id, fold(name))
    check_new(database, transaction, stream, name)
    now_us = database.clock.now_us()
    group_id, since = new_id(transaction.cursor), (start.kind, now_us)
    group = Group(
        group_id, stream.stream_id, name, *since, on_gap, session_timeout_ms, on_park, max_deliveries
    )
    transaction.cursor.execute(
        "INSERT INTO ducktail.group_catalog (group_id, stream_id, group_name, start, created_at, on_gap, "
        "session_timeout_ms, on_park) "
        f"VALUES ({group.group_id}, {stream.stream_id}, {literal(name)}, {literal(start.kind)}, "
        f"make_timestamptz({now_us}), {literal(group.on_gap)}, {group.session_timeout_ms}, "
        f"{literal(group.on_park)})"
    )
    if max_deliveries is not None:
        transaction.cursor.execute(_limit_sql(group)).fetchall()
    lsns = lsns_at(database, transaction, stream, start)
    if copy is not None:
        give_copy(database, transaction, copy, group)
    move = database.offsets.move(group.group_id, lsns, transaction.committed_by)
    transaction.cursor.execute(insert_sql([move]))
    if uid is not None:
        transaction.cursor.execute(holds.insert_sql(group_id, uid)).fetchall()
        transaction.at(CommitStep.MEMORY, lambda: database.identities.told(group_id, uid))
    transaction.defines = True
    transaction.new_groups[key] = group
    transaction.new_positions[group.group_id] = lsns
    transaction.at(CommitStep.MEMORY, _group_adder(database, group, move))


def check_new(database: Database, transaction: Transaction | None, stream: Stream, name: str) -> None:
    """Check that the stream has no group of this name.

    Raises:
        DuplicateObject: the name is taken.
    """
    try:
        find_group(database.catalog, stream, name, transaction)
    except UndefinedObject:
        return
    raise DuplicateObject(f'consumer group "{name}" of stream "{stream.name}" already exists')


def _group_adder(database: Database, group: Group, move: Move) -> Callable[[], None]:
    def add() -> None:
        database.catalog.groups[group.key] = group
        database.catalog.version += 1
        database.offsets.add_group(move)

    return add


def drop_group(database: Database, transaction: Transaction, group: Group) -> None:
    """Drop a consumer group with its offsets within a transaction that holds the writer lock.

    Raises:
        SerializationFailure: the transaction's snapshot is older than the group.
    """
    assert transaction.has_writer_lock, "a group ends at one place of the commit order"
    _write_row(transaction, group, f"DELETE FROM ducktail.group_catalog WHERE group_id = {group.group_id}")
    for table in TABLES_OF_GROUPS:
        _delete(transaction, table, group)
    transaction.cursor.execute(forget_sql(str(group.group_id))).fetchall()
    tombstone = database.offsets.tombstone()
    transaction.cursor.execute(insert_sql([tombstone])).fetchall()
    transaction.defines = True
    transaction.offsets.pop(group.group_id, None)
    transaction.parked[group.group_id] = NOTHING
    transaction.new_groups.pop(group.key, None)
    transaction.dropped_groups.add(group.group_id)

    def forget() -> None:
        known = database.catalog.groups.get(group.key)
        if known is not None and known.group_id == group.group_id:
            del database.catalog.groups[group.key]
            database.catalog.copies.pop(group.group_id, None)
        database.catalog.version += 1
        # Before its members are removed, which would wake their reads without the reason.
        database.polls.group_dropped(group)
        database.offsets.drop_groups([group.group_id], tombstone)
        database.members.forget([group.group_id])
        database.forget_reads([group.group_id])
        database.parked.put(group.group_id, NOTHING)
        database.deliveries.forget([group.group_id])

    transaction.at(CommitStep.MEMORY, forget)
    transaction.at(CommitStep.WAKE, lambda: database.deliveries.sweep([group.group_id]))


def set_group(database: Database, transaction: Transaction, group: Group, changed: Group) -> None:
    """Change a group's options: `changed` is the group with its new options.

    The transaction holds the writer lock and has locked the group.

    Raises:
        SerializationFailure: the transaction's snapshot is older than the group.
    """
    assert transaction.has_writer_lock, "what a group is told to do has a number"
    assert changed.group_id == group.group_id
    _write_row(
        transaction,
        group,
        f"UPDATE ducktail.group_catalog SET on_gap = {literal(changed.on_gap)}, "
        f"on_park = {literal(changed.on_park)}, session_timeout_ms = {changed.session_timeout_ms} "
        f"WHERE group_id = {group.group_id}",
    )
    if changed.max_deliveries != group.max_deliveries:
        _delete(transaction, "delivery_limits", group)
        if changed.max_deliveries is None:
            _delete(transaction, "delivery_log", group)
        else:
            transaction.cursor.execute(_limit_sql(changed)).fetchall()
    transaction.defines = True
    transaction.new_groups[group.key] = changed

    def show() -> None:
        database.catalog.groups[group.key] = changed
        database.members.altered(changed)
        if changed.max_deliveries is None:
            database.deliveries.forget([group.group_id])

    transaction.at(CommitStep.MEMORY, show)
    if changed.max_deliveries is None:
        transaction.at(CommitStep.WAKE, lambda: database.deliveries.sweep([group.group_id]))


def _limit_sql(group: Group) -> str:
    """The INSERT of a group's option `max_deliveries`."""
    return f"INSERT INTO ducktail.delivery_limits VALUES ({group.group_id}, {group.max_deliveries})"


def _delete(transaction: Transaction, table: str, group: Group) -> None:
    transaction.cursor.execute(f"DELETE FROM ducktail.{table} WHERE group_id = {group.group_id}").fetchall()


def _write_row(transaction: Transaction, group: Group, sql: str) -> None:
    """Change or delete a group's row, which the transaction's snapshot may lack."""
    (count,) = ask(transaction.cursor, sql)
    if not count:
        raise SerializationFailure(
            f'consumer group "{group.name}" was made after this transaction began to read',
            hint="Roll back and try again.",
        )


@dataclass(frozen=True, slots=True)
class Shift:
    """The effect of SEEK on one partition.

    Args:
        events_again: number of retained events that are read a second time.
        events_skipped: number of events that are not read.
    """

    partition: int
    from_lsn: int
    to_lsn: int
    events_again: int
    events_skipped: int


def shifts(
    database: Database,
    stream: Stream,
    present: dict[int, int],
    to: dict[int, int],
    copies: tuple[Copy | None, Copy | None] = (None, None),
) -> list[Shift]:
    """The effects of moving a group's committed LSNs from `present` to `to`, by partition.

    Args:
        copies: the group's whole copy before and after the move, None without one.
    """
    buffer = database.buffers.of(stream)
    found = []
    for number in sorted(to):
        partition = buffer.partitions[number]
        before = lag_events(database, stream, number, partition, present[number])
        after = lag_events(database, stream, number, partition, to[number])
        before += rows_left(copies[0], number, present[number])
        after += rows_left(copies[1], number, to[number])
        again, skipped = max(0, after - before), max(0, before - after)
        found.append(Shift(number, present[number], to[number], again, skipped))
    return found


def seek(
    database: Database,
    transaction: Transaction,
    group: Group,
    moved: list[Shift],
    done: Callable[[int], None],
) -> None:
    """Move a group's committed LSNs at the COMMIT of a transaction that has locked the group.

    Args:
        done: called after the commit with the number of the group's SEEKs: earlier read positions are void.
    """
    standing = database.offsets.positions(group.group_id)
    pending = transaction.offsets.setdefault(group.group_id, {})
    for shift in moved:
        earlier = pending.get(shift.partition)
        if earlier is not None:
            earlier.lsn = shift.to_lsn
        elif shift.to_lsn != shift.from_lsn:
            found = standing.get(shift.partition)
            expected = shift.from_lsn if found is None else found.lsn
            pending[shift.partition] = PendingOffset(expected, shift.to_lsn)

    if group.max_deliveries is not None:
        # What is read again by request begins anew.
        _delete(transaction, "delivery_log", group)

    def count() -> None:
        database.deliveries.forget([group.group_id])
        done(database.offsets.seeked(group.group_id))

    transaction.at(CommitStep.MEMORY, count)
    transaction.at(CommitStep.WAKE, lambda: database.deliveries.sweep([group.group_id]))
    # Waiting readers of the group count events from another position now.
    transaction.at(CommitStep.WAKE, lambda: database.polls.look_again(group.stream_id, group.group_id))
