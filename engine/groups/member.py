"""The members of one group, their partitions, holds, claims and commits.

The rules are in `members.py`, which alone changes these objects, under its mutex.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..catalog.streams import Group
from ..errors import SerializationFailure, WrongState
from ..quoting import literal
from .assignment import assign
from .read_positions import ReadPositions


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to commit a partition.

    Args:
        member: the member that must own the partition; None for a commit without MEMBER, while the group has
            no members.
        epoch: the epoch since which it must own it.
    """

    member: str | None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A live member of a group. A name that returns after a time-out is a new member.

    Args:
        user: the user of its last read or commit.
        epoch: the group's epoch when the member last got or lost a partition.
        heard_s: time of its last heartbeat, by the monotonic clock.
        given: partition -> last LSN that was returned and is not committed, and the number of the read.
        open: partition -> number of reads and transactions that hold it.
        untold: at a topic's home, the reads without a reported outcome, by number.
    """

    name: str
    user: str
    epoch: int
    joined_us: int
    heard_us: int
    heard_s: float
    last_read_us: int = 0
    last_commit_us: int = 0
    given: dict[int, tuple[int, int]] = field(default_factory=dict)
    open: Counter[int] = field(default_factory=Counter)
    untold: dict[int, MemberHold] = field(default_factory=dict)

    def holds(self, partition: int) -> bool:
        """True if moving the partition would take uncommitted events or a hold from the member."""
        return partition in self.given or self.open[partition] > 0


@dataclass(slots=True, eq=False)
class MemberHold:
    """Partitions that stay with a member during a read, or a transaction that has read or commits them.

    Args:
        shared: the group.
        epochs: partition -> the epoch under which the member owns it.
        read: the read's number among those of all members of the group.
    """

    shared: GroupMembers
    member: Member
    epochs: dict[int, int]
    read: int
    ended: bool = False

    @property
    def group_id(self) -> int:
        """The group's id."""
        return self.shared.group.group_id


@dataclass(frozen=True, slots=True)
class CommitRight:
    """A commit of offsets, and the right to it.

    Args:
        lsns: partition -> LSN.
        began: for a read position: partition -> committed LSN from which it was read.
        claims: partition -> the claim to it.
        hold: the member's hold for the commit, to be ended after it.
        again: for a read position: the released events that the read returned; None for a commit by number.
    """

    lsns: Mapping[int, int]
    began: Mapping[int, int]
    claims: Mapping[int, Claim]
    hold: MemberHold | None = None
    again: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class Pin:
    """Partitions of a group that cannot move to another member until a commit of them is finished.

    Args:
        shared: the group; None if it has never had members.
    """

    group_id: int
    claims: Mapping[int, Claim]
    shared: GroupMembers | None


@dataclass(frozen=True, slots=True)
class Shown:
    """A member as the views show it; times in microseconds since 1970, 0 for never."""

    name: str
    user: str
    epoch: int
    partitions: tuple[int, ...]
    state: str
    joined_us: int
    heard_us: int
    last_read_us: int
    last_commit_us: int


STABLE, REVOKING, WAITING = "stable", "revoking", "waiting"


@dataclass(slots=True, eq=False)
class GroupMembers:
    """A group that has, or had, members, whose partitions this node assigns.

    Args:
        owners: the owner of each partition; None if it is free.
        epochs: the epoch of each partition.
        positions: the members' read positions, by name.
        moving: partition -> the member that gets it once its owner holds nothing there.
        pins: partition -> number of commits of it under way.
        lowered_s: when `session_timeout` was lowered, by the clock that never goes back: no member's silence
            counts from earlier.
        placed: at a topic's home, the epoch of the latest placement of a request; 0: this node has all
            partitions.
    """

    group: Group
    epoch: int
    owners: list[str | None]
    epochs: list[int]
    positions: ReadPositions
    members: dict[str, Member] = field(default_factory=dict)
    moving: dict[int, str] = field(default_factory=dict)
    pins: Counter[int] = field(default_factory=Counter)
    lowered_s: float = -math.inf
    placed: int = 0

    def ends_s(self, member: Member) -> float:
        """When a member times out, if it has no heartbeat before."""
        return max(member.heard_s, self.lowered_s) + self.group.session_timeout_ms / 1000

    def timed_out(self, now_s: float) -> frozenset[str]:
        """The members without a heartbeat for too long."""
        return frozenset(name for name, member in self.members.items() if self.ends_s(member) <= now_s)

    def open(self, member: Member, epochs: dict[int, int], read: int | None = None) -> MemberHold:
        """A hold of a member on partitions, for a read that has a number or begins."""
        member.open.update(epochs.keys())
        return MemberHold(self, member, epochs, self.positions.begin() if read is None else read)

    def known_of(self, name: str, seeks: int) -> Mapping[int, int]:
        """Partition -> the least LSN to which a read sets a member's position; empty: its own LSNs."""
        return {}

    def owned(self, name: str) -> tuple[int, ...]:
        """The partitions of a member."""
        return tuple(partition for partition, owner in enumerate(self.owners) if owner == name)

    def plan(self) -> None:
        """Plan the moves of partitions after members have come or gone."""
        owners = {p: owner for p, owner in enumerate(self.owners) if owner is not None}
        target = assign(len(self.owners), owners, self.members)
        self.moving = {p: name for p, name in target.items() if owners.get(p) != name}

    def check(self, partition: int, claim: Claim) -> None:
        """Check a claim against the present owners.

        Raises:
            WrongState: the claim has no member, but the group has members.
            SerializationFailure: its member does not own the partition, or not since the claim's epoch.
        """
        if claim.member is None:
            self.check_no_members()
        else:
            self.check_claim(partition, claim)

    def check_no_members(self) -> None:
        """Refuse a commit without MEMBER while the group has members.

        Raises:
            WrongState: the group has members.
        """
        if self.members:
            raise WrongState(
                f'consumer group "{self.group.name}" has members, and only they commit',
                detail=f"It has {len(self.members)}.",
                hint="Say MEMBER 'm' in the read and in the commit; SHOW MEMBERS lists them.",
            )

    def check_claim(self, partition: int, claim: Claim) -> None:
        """Check that the claim's member has owned the partition since the claim's epoch.

        Raises:
            SerializationFailure: it has not, or is no longer a member.
        """
        assert claim.member is not None
        if claim.member not in self.members:
            raise self.gone(claim.member)
        owner = self.owners[partition]
        if owner == claim.member and self.epochs[partition] == claim.epoch:
            return
        lost = "has lost" if owner == claim.member else "does not own"
        raise SerializationFailure(
            f'member {literal(claim.member)} of consumer group "{self.group.name}" {lost} '
            f"partition {partition}",
            detail="Nothing was committed.",
            hint="Read again: what was not committed comes again, to who has its partition now.",
        )

    def gone(self, name: str) -> SerializationFailure:
        """The error for a name that is not a member, or not any more."""
        seconds = self.group.session_timeout_ms / 1000
        return SerializationFailure(
            f'{literal(name)} is not a member of consumer group "{self.group.name}"',
            detail=f"A member that is not heard from for {seconds:g} s is none any more, nor is one of "
            "before a restart of the server; reads make one. Nothing was committed.",
            hint="Read again with MEMBER: what was not committed comes again, to who has its partition now.",
        )

    def shown(self) -> list[Shown]:
        """The group's members, by name."""
        return [self._shown(self.members[name]) for name in sorted(self.members)]

    def _shown(self, member: Member) -> Shown:
        owned = self.owned(member.name)
        state = STABLE
        if any(partition in self.moving for partition in owned):
            state = REVOKING
        elif member.name in self.moving.values():
            state = WAITING
        return Shown(
            member.name,
            member.user,
            member.epoch,
            owned,
            state,
            member.joined_us,
            member.heard_us,
            member.last_read_us,
            member.last_commit_us,
        )
