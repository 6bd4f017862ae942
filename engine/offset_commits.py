"""The commit of a group's offsets: alone, with released events that it covers, or within a transaction.

`submit` hands a commit to the committer, which writes those of many sessions together. A commit that covers
released events deletes their rows, so it is a transaction of its own (`commit_covering`). Within a
transaction a commit is noted (`commit_within`), and COMMIT writes it if each position still stands.
Source: docs/groups.md; docs/design/engine.md, "Offsets".
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from .catalog.streams import Group, Stream
from .database import Database
from .definitions.parking import cover, parked_of
from .definitions.start_positions import check_commit
from .errors import SerializationFailure
from .groups.member import CommitRight, MemberHold
from .groups.offsets import Request, going_back, moved_by_seek
from .groups.parked import RELEASED
from .transactions.offset_moves import lock_group
from .transactions.transaction import PendingOffset, Transaction
from .waiting import Wait, Waiting

# Runs work in the session's open transaction, or in a transaction of its own, which then commits.
Unit = Callable[[Callable[[Transaction], Waiting[None]]], Waiting[None]]


def committed_lsns(database: Database, transaction: Transaction | None, group: Group) -> dict[int, int]:
    """Partition -> the LSN after which a read of a group begins, including an open transaction's commits."""
    positions = database.offsets.positions(group.group_id)
    lsns = {partition: position.lsn for partition, position in positions.items()}
    if transaction is None:
        return lsns
    lsns.update(transaction.new_positions.get(group.group_id, {}))
    for partition, pending in transaction.offsets.get(group.group_id, {}).items():
        lsns[partition] = pending.lsn
    return lsns


def submit(
    database: Database, group: Group, right: CommitRight, user: str, seeks: int | None, *, hop: bool
) -> Waiting[None]:
    """Have offsets written by the committer, and wait until they are durable.

    The member keeps the partitions until then, even if the session ends.

    Args:
        seeks: the group's number of SEEKs when its position was read; None for LSNs given by number.
        hop: True if only the committer's thread may write; False if the calling thread may write.

    Raises:
        SerializationFailure: the member has lost a partition.
        DucktailError: the committer's error, such as WrongState after a SEEK.
    """
    done: Future[None] = Future()
    pin = database.members.pin(group.group_id, right.claims)
    # The future is handed to its own callback: a callback that kept it would be a cycle to collect.
    done.add_done_callback(lambda it: database.members.unpin(pin, None if it.exception() else right.lsns))
    request = Request(group.group_id, group.name, right.lsns, user, done, seeks)
    if hop:
        database.offsets.enqueue(request)
    else:
        database.offsets.submit(request)
    if not done.done():
        yield Wait(done)
    done.result()


def commit_covering(
    database: Database,
    stream: Stream,
    group: Group,
    right: CommitRight,
    covered: frozenset[int],
    unit: Unit,
    timeout_ms: int,
    seeks: int | None,
) -> Waiting[None]:
    """Commit offsets and the released events that they cover, in one transaction.

    Raises:
        LockNotAvailable: another transaction commits the group.
        SerializationFailure: as in `submit`.
        WrongState: SEEK has moved the group since its position was read.
    """
    offsets, members = database.offsets, database.members

    def work(transaction: Transaction) -> Waiting[None]:
        yield from lock_group(offsets, transaction, group, timeout_ms)
        check_commit(database, stream, group, dict(right.lsns))
        if seeks is not None and seeks != offsets.seeks(group.group_id):
            raise moved_by_seek(group.name)
        # Another session may have covered some of them meanwhile: outside a transaction that is no conflict.
        left = covered & {event.lsn for event in parked_of(database, None, group).of(RELEASED)}
        cover(database, transaction, group, left)
        standing = offsets.positions(group.group_id)
        transaction.offsets[group.group_id] = {
            partition: PendingOffset(standing[partition].lsn, lsn, right.claims[partition])
            for partition, lsn in right.lsns.items()
            if lsn > standing[partition].lsn
        }

    pin, done = members.pin(group.group_id, right.claims), False
    try:
        yield from unit(work)
        done = True
    finally:
        members.unpin(pin, right.lsns if done else None)


def commit_within(
    database: Database,
    transaction: Transaction,
    group: Group,
    right: CommitRight,
    covered: frozenset[int],
    timeout_ms: int,
) -> Waiting[None]:
    """Note in a transaction the committed LSNs that its COMMIT moves, with their present values and claims.

    Raises:
        LockNotAvailable: another transaction commits the group.
        SerializationFailure: a position has moved already.
        InvalidParameterValue: the commit would go back.
    """
    if covered:
        yield from lock_group(database.offsets, transaction, group, timeout_ms)
        cover(database, transaction, group, covered)
    standing = database.offsets.positions(group.group_id)
    read = transaction.first_reads.get(group.group_id, {})
    made_here = transaction.new_positions.get(group.group_id, {})
    pending = transaction.offsets.setdefault(group.group_id, {})
    if right.hold is not None:
        hold_in_transaction(database, transaction, right.hold)
    for partition, lsn in right.lsns.items():
        claim = right.claims[partition]
        earlier = pending.get(partition)
        if earlier is not None:
            if lsn < earlier.lsn:
                raise going_back(group.name, partition, lsn, earlier.lsn)
            earlier.lsn, earlier.claim = lsn, claim
            continue
        expected = read.get(partition, right.began.get(partition))
        found = standing[partition].lsn if partition in standing else made_here.get(partition, 0)
        if expected is None:
            if lsn == found and not covered:
                raise SerializationFailure(
                    f"partition {partition} is already committed at LSN {lsn}",
                    hint="Another transaction has committed it: read again.",
                )
            expected = found
        if lsn < expected:
            raise going_back(group.name, partition, lsn, expected)
        if lsn > expected:
            pending[partition] = PendingOffset(expected, lsn, claim)


def hold_in_transaction(database: Database, transaction: Transaction, hold: MemberHold) -> None:
    """Keep for a member, until the transaction ends, the partitions that it reads or commits there."""
    reading = (hold.group_id, hold.member.name)
    transaction.holds[reading] = database.members.keep(hold, transaction.holds.get(reading))
    epochs = transaction.epochs.setdefault(reading, {})
    for partition, epoch in hold.epochs.items():
        epochs.setdefault(partition, epoch)
