"""What members are made of: who is one, what he holds, by what right he commits, and what is shown of him.

The rules are in `members.py`, which alone changes a `Member` and a `Hold`, under its mutex.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claim:
    """By what right a partition is committed.

    Args:
        member: whose it must be; None is a commit without MEMBER, while the group has no members.
        epoch: since when it must have been his.
    """

    member: str | None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A live member of a group. The same name that comes back after a time-out is another one.

    Args:
        user: who read or committed last.
        epoch: of the group, when the member last got or lost a partition.
        heard_s: when it was heard from, by the clock that never goes back.
        given: partition -> last LSN that was given and is not committed, and by which read.
        open: partition -> how many reads and transactions hold it.
        untold: at a topic's home, its reads of which is not known what has become of them, by number.
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
    untold: dict[int, Hold] = field(default_factory=dict)

    def holds(self, partition: int) -> bool:
        """Whether it has something there that a hand-over would take from it."""
        return partition in self.given or self.open[partition] > 0


@dataclass(slots=True, eq=False)
class Hold:
    """A read under way, or what an open transaction has read or commits: these partitions stay.

    Args:
        epochs: partition -> the epoch under which the member has it.
        read: the read's number among those of all members.
    """

    group_id: int
    member: Member
    epochs: dict[int, int]
    read: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """What is to be committed.

    Args:
        lsns: partition -> LSN.
        began: of a read position, partition -> committed LSN from which it was read.
        claims: by what right, for each partition.
        hold: what the member holds for it, to be ended.
        again: of a read position, the released events that the read gave; None: it is by number.
    """

    lsns: Mapping[int, int]
    began: Mapping[int, int]
    claims: Mapping[int, Claim]
    hold: Hold | None = None
    again: frozenset[int] | None = None


@dataclass(slots=True, eq=False)
class Pin:
    """Partitions of a group that nobody else gets until a commit of theirs is over."""

    group_id: int
    claims: Mapping[int, Claim]


@dataclass(frozen=True, slots=True)
class Shown:
    """A member as the views tell of it; times in microseconds since 1970, 0 for never."""

    name: str
    user: str
    epoch: int
    partitions: tuple[int, ...]
    state: str
    joined_us: int
    heard_us: int
    last_read_us: int
    last_commit_us: int
