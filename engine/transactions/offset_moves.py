"""Committed LSNs that move with a transaction: the locks of its groups, and the check at COMMIT.

A group that a transaction commits is locked until the transaction ends. At its COMMIT each position
must be where the transaction found it. Source: docs/groups.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..catalog.streams import Group
from ..errors import LockNotAvailable, SerializationFailure
from ..groups.members import Members
from ..groups.offsets import Offsets
from ..waiting import Wait, Waiting
from .transaction import PendingOffset, Transaction


def lock_group(offsets: Offsets, transaction: Transaction, group: Group, timeout_ms: int) -> Waiting[None]:
    """Exclude other commits of a group's offsets until the transaction ends.

    Raises:
        LockNotAvailable: the group is not free within `timeout_ms`.
    """
    transaction.locked_groups.add(group.group_id)
    future = offsets.lock(group.group_id, transaction.session_id)
    if future is not None and not (yield Wait(future, timeout_ms / 1000)):
        raise LockNotAvailable(
            f'consumer group "{group.name}" is being committed for longer than {timeout_ms} ms'
        )


def lock_moves(
    offsets: Offsets, members: Members, transaction: Transaction, timeout_ms: int
) -> Waiting[list[tuple[int, dict[int, int]]]]:
    """Lock the groups that a transaction commits, in a fixed order, and check its moves.

    The moves are compared with the committed LSNs and the owners of the partitions. Until the transaction
    ends, a partition moved by a member's commit cannot be assigned to another member.

    Returns:
        Group id and partition -> LSN for each group that moves.

    Raises:
        LockNotAvailable: a group is not free within `timeout_ms`.
        SerializationFailure: a committed LSN has moved, or a member has lost a partition.
        WrongState: a group that is committed without MEMBER has members now.
    """
    moves: list[tuple[int, dict[int, int]]] = []
    for group_id in sorted(transaction.offsets):
        transaction.locked_groups.add(group_id)
        future = offsets.lock(group_id, transaction.session_id)
        if future is not None and not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f"could not lock a consumer group within {timeout_ms} ms")
        pending = transaction.offsets[group_id]
        claims = {partition: moved.claim for partition, moved in pending.items() if moved.claim is not None}
        if claims:
            transaction.pins.append(members.pin(group_id, claims))
        _compare(offsets, transaction, group_id, pending)
        if pending:
            lsns = {partition: moved.lsn for partition, moved in pending.items()}
            moves.append((group_id, lsns))
    return moves


def check_standing(
    offsets: Offsets, transaction: Transaction, group_id: int, partitions: Iterable[int]
) -> None:
    """Check a group's moves again while no other commit is written.

    Since `lock_moves` a partition may have moved to another node, or from it with its positions.

    Raises:
        SerializationFailure: a partition has moved to another node, or its committed LSN has moved.
    """
    offsets.check_sealed(group_id, partitions)
    _compare(offsets, transaction, group_id, transaction.offsets[group_id])


def _compare(
    offsets: Offsets, transaction: Transaction, group_id: int, pending: Mapping[int, PendingOffset]
) -> None:
    """Refuse moves of positions that are no longer where the transaction found them."""
    standing = offsets.positions(group_id)
    if not standing and not _is_new(transaction, group_id):
        raise SerializationFailure("the consumer group was dropped meanwhile")
    for partition, moved in pending.items():
        present = standing.get(partition)
        if present is not None and present.lsn != moved.expected:
            raise SerializationFailure(
                f"the committed LSN of partition {partition} moved from {moved.expected} "
                f"to {present.lsn} meanwhile",
                hint="Roll back, read again and retry.",
            )


def _is_new(transaction: Transaction, group_id: int) -> bool:
    return any(group.group_id == group_id for group in transaction.new_groups.values())
