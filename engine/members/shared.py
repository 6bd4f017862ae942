"""A group that members share: who they are, which partition is whose, and what is held against that.

The rules are in `members.py`, which alone changes it, under its mutex.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ..errors import SerializationFailure, WrongState
from ..quoting import literal
from ..streams.streams import Group
from .assignment import assign
from .member import Claim, Member, Shown

STABLE, REVOKING, WAITING = "stable", "revoking", "waiting"


@dataclass(slots=True)
class Shared:
    """A group that has, or had, members: `owners` and `epochs` are by partition.

    Args:
        moving: partition -> the member who is to have it and does not yet.
        pins: partition -> how many commits of it are under way.
        lowered_s: when `session_timeout` was lowered, by the clock that never goes back: nobody's silence
            counts from earlier.
        elsewhere: another node says who has what (see `assigned.py`).
        placed: at a topic's home, the latest placement under which it was asked (see `coordinated.py`).
    """

    group: Group
    epoch: int
    owners: list[str | None]
    epochs: list[int]
    members: dict[str, Member] = field(default_factory=dict)
    moving: dict[int, str] = field(default_factory=dict)
    pins: Counter[int] = field(default_factory=Counter)
    lowered_s: float = -math.inf
    elsewhere: bool = False
    placed: int = 0

    def ends_s(self, member: Member) -> float:
        """When a member's time is out, if it is not heard from any more."""
        return max(member.heard_s, self.lowered_s) + self.group.session_timeout_ms / 1000

    def owned(self, name: str) -> tuple[int, ...]:
        """The partitions of a member."""
        return tuple(partition for partition, owner in enumerate(self.owners) if owner == name)

    def plan(self) -> None:
        """Members have come or gone: who is to have what."""
        owners = {p: owner for p, owner in enumerate(self.owners) if owner is not None}
        target = assign(len(self.owners), owners, self.members)
        self.moving = {p: name for p, name in target.items() if owners.get(p) != name}

    def check_no_members(self) -> None:
        """What is committed without MEMBER is refused while the group has some.

        Raises:
            WrongState: 55000.
        """
        if self.members:
            raise WrongState(
                f'consumer group "{self.group.name}" has members, and only they commit',
                detail=f"It has {len(self.members)}.",
                hint="Say MEMBER 'm' in the read and in the commit; SHOW MEMBERS lists them.",
            )

    def check_claim(self, partition: int, claim: Claim) -> None:
        """A partition must be the claim's, and have been since.

        Raises:
            SerializationFailure: 40001.
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
        """What is told to who is no member, or none any more."""
        seconds = self.group.session_timeout_ms / 1000
        return SerializationFailure(
            f'{literal(name)} is not a member of consumer group "{self.group.name}"',
            detail=f"A member that is not heard from for {seconds:g} s is none any more, nor is one of "
            "before a restart of the server; reads make one. Nothing was committed.",
            hint="Read again with MEMBER: what was not committed comes again, to who has its partition now.",
        )

    def shown(self) -> list[Shown]:
        """Its members, by name."""
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
