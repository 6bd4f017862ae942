"""Making and dropping consumer groups, inside the transaction that asks for it.

A group begins at one place of the commit order, so the transaction holds the writer lock; its rows
are the transaction's own, and the catalog in memory follows at COMMIT. Source: docs/groups.md.
"""

from __future__ import annotations

from collections.abc import Callable

from .database import Database
from .definitions import new_id
from .errors import DuplicateObject
from .offsets import Move, insert_sql
from .quoting import literal
from .streams import Group, Stream
from .transaction import Transaction


def create_group(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    name: str,
    start: str,
    after_lsn: int,
    on_gap: str = "error",
) -> None:
    """Make a consumer group within a transaction that holds the writer lock; it is there at COMMIT.

    Args:
        start: 'earliest', 'latest' or 'after'; `after_lsn` is for the last.

    Raises:
        DuplicateObject: 42710. InvalidParameterValue: 22023, `after_lsn` past the stream's end.
    """
    assert transaction.has_writer_lock, "a group begins at one place of the commit order"
    key = (stream.stream_id, name.lower())
    if key in database.catalog.groups or key in transaction.new_groups:
        raise DuplicateObject(f'consumer group "{name}" of stream "{stream.name}" already exists')
    now_us = database.clock.now_us()
    group = Group(new_id(transaction.cursor), stream.stream_id, name, start, now_us, on_gap)
    transaction.cursor.execute(
        "INSERT INTO ducktail.group_catalog (group_id, stream_id, group_name, start, created_at, on_gap) "
        f"VALUES ({group.group_id}, {stream.stream_id}, {literal(name)}, {literal(start)}, "
        f"make_timestamptz({now_us}), {literal(on_gap)})"
    )
    lsns = _start_lsns(database, transaction, stream, start, after_lsn)
    move = database.offsets.move(group.group_id, lsns, transaction.committed_by)
    transaction.cursor.execute(insert_sql([move]))
    transaction.new_groups[key] = group
    transaction.new_positions[group.group_id] = lsns
    transaction.on_commit.append(_group_adder(database, group, move))


def _start_lsns(
    database: Database, transaction: Transaction, stream: Stream, start: str, after_lsn: int
) -> dict[int, int]:
    buffer = database.buffer(stream)
    with buffer.mutex:
        if start == "earliest":
            return {n: p.trimmed_through_lsn for n, p in enumerate(buffer.partitions)}
        if start == "latest":
            # What this transaction has already written comes before the group as well.
            own = transaction.next_lsn if stream.table_id in transaction.tables else 0
            return {n: max(own, p.last_lsn) for n, p in enumerate(buffer.partitions)}
    lsns = dict.fromkeys(range(stream.partitions), after_lsn)
    database.check_lsns(stream, lsns)
    return lsns


def _group_adder(database: Database, group: Group, move: Move) -> Callable[[], None]:
    def add() -> None:
        database.catalog.groups[group.key] = group
        database.catalog_version += 1
        database.offsets.add_group(move)

    return add


def drop_group(database: Database, transaction: Transaction, group: Group) -> None:
    """Drop a consumer group with its offsets within a transaction that holds the writer lock."""
    for table in ("group_catalog", "offset_log", "passed_positions"):
        transaction.cursor.execute(
            f"DELETE FROM ducktail.{table} WHERE group_id = {group.group_id}"
        ).fetchall()
    transaction.offsets.pop(group.group_id, None)
    made_here = transaction.new_groups.pop(group.key, None)
    transaction.dropped_groups.add(group.group_id)

    def forget() -> None:
        if made_here is None or database.catalog.groups.get(group.key) is group:
            database.catalog.groups.pop(group.key, None)
        database.catalog_version += 1
        database.offsets.drop_groups([group.group_id])

    transaction.on_commit.append(forget)
