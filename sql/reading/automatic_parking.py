"""Automatic parking: events that were delivered too often are parked before a read of their group begins.

It is done in a transaction of the engine's own, under a separate session id: the reading session may be in a
block, whose locks and MVCC snapshot must stay apart. A block that holds a lock that this transaction needs
would wait for itself: its reads deliver the event once more, alone.
Source: docs/groups.md, "Delivery counts".
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions import groups
from ...engine.definitions.parking import exhausted_of, park_exhausted
from ...engine.definitions.whole_copies import present_stream
from ...engine.errors import NotSupported
from ...engine.transactions.offset_moves import lock_group
from ...engine.waiting import Waiting
from ..cluster.shares import is_placed
from ..session_state.context import Context


def check_one_owner(session: Context, stream: Stream, max_deliveries: int | None) -> None:
    """Refuse delivery counts of a topic whose partitions have owners by a placement.

    Raises:
        NotSupported: the node that answers a read does not have the counts of the other owners.
    """
    if max_deliveries is not None and is_placed(session, stream):
        raise NotSupported(
            f'max_deliveries is not supported for topic "{stream.name}": it is in a cluster, where its '
            "partitions may be on several nodes",
            hint="SET (max_deliveries = 'none'), and PARK what cannot be processed.",
        )


def park_before(session: Context, stream: Stream, group: Group, partitions: Collection[int]) -> Waiting[None]:
    """Park the events of these partitions that were delivered too often, with a WARNING for each.

    Raises:
        LockNotAvailable: the writer lock, or the group, is not free within `lock_timeout`.
        ProgramLimitExceeded: the group has too many parked events.
    """
    database, block = session.database, session.block.transaction
    if not exhausted_of(database, group, partitions):
        return
    if block is not None and (block.has_writer_lock or group.group_id in block.locked_groups):
        return
    transactions, timeout_ms = database.transactions, session.block.lock_timeout_ms
    with closing(database.cursor()) as cursor:
        transaction = transactions.begin(database.sessions.new_id(), cursor, session.user)
        try:
            yield from transactions.lock_for(transaction, timeout_ms)
            present = present_stream(database, stream)
            mine = groups.find_group(database.catalog, present, group.name, transaction)
            yield from lock_group(database.offsets, transaction, mine, timeout_ms)
            done = park_exhausted(database, transaction, present, mine, partitions)
        except BaseException:
            transactions.rollback(transaction)
            raise
        if not done:
            transactions.rollback(transaction)
            return
        yield from transactions.commit(transaction, timeout_ms)
    database.deliveries.clear(group.group_id, {partition: [one.first_lsn] for partition, one in done})
    for partition, one in done:
        session.positions.set_aside((stream.stream_id, group.group_id), one.first_lsn)
        to = f", to {', '.join(one.members)}" if one.members else ""
        session.notices.add(
            f'consumer group "{group.name}" has parked LSN {one.first_lsn} of partition {partition}',
            severity="WARNING",
            sqlstate="01000",
            detail=f"It was delivered {one.deliveries} times{to}, and not committed.",
            hint="SHOW PARKED has it. RELEASE returns it to the group.",
        )
