"""Members: the named readers that share a consumer group, and which partition is whose.

The rules that it keeps:

- A read joins; a read, each look of a WAIT and a commit are heartbeats. Who is not heard from for the
  group's `session_timeout` is no member any more. That is seen when anybody next touches the group:
  nothing runs in between.
- A partition has one owner, and each change of owner gives it a higher epoch. What is committed is held
  against the epoch under which it was read: who has lost a partition, and who has lost it and got it back,
  is 40001. A commit by number outside a transaction tells no read: it is held against the present epoch.
- Where the assignment (`assignment.py`) takes a partition from a member, he keeps it until he holds
  nothing there: no read of his is open on it, no transaction of his has read or commits it, and what he
  was given is committed, or given up by reading again. Leaving and a time-out take all at once.
- A commit pins its partitions from the check of the epoch until it is written or refused: in between nobody
  gets them, whatever becomes of the member.

Members are known in memory alone: after a restart there are none, a commit is 40001, and reads join anew.
Epochs begin at the clock's milliseconds, so that they rise over a restart. Names are
case-sensitive. Nothing here waits or runs DuckDB; the mutex is taken last of all locks.
Source: docs/design/engine.md, "Members".

A group that members share: who they are, which partition is whose, and what is held against that.

The rules are in `members.py`, which alone changes it, under its mutex.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..catalog.streams import PARTITIONS_MAX, Group
from ..clock import Clock
from ..errors import InvalidParameterValue, ProgramLimitExceeded, SerializationFailure, WrongState
from ..quoting import literal
from .assignment import assign
from .member import Claim, CommitRight, Member, MemberHold, Pin, Shown
from .read_positions import ReadPosition, ReadPositions

# More than there can be partitions would all be idle; a read of each costs a look at all.
MEMBERS_MAX = PARTITIONS_MAX
# A name stands in views and messages; host, process and thread fit well.
NAME_CHARS_MAX = 256

# A statement that was under way when a group was dropped asks soon: fewer are dropped meanwhile.
FORGOTTEN_MAX = 1024

GIVEN_ANEW = "its partitions have been given out anew since it was read"

# Of released events, what most reads give.
_NOTHING_AGAIN: Mapping[int, frozenset[int]] = {}
# Whose partitions have changed, mostly.
NOBODY: Set[tuple[int, str]] = frozenset()


class Members:
    """See the head of the file; safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()  # guards all below
        self._groups: dict[int, Shared] = {}
        self._positions = ReadPositions()
        self._changed: list[tuple[int, str]] = []
        # Groups that are gone; whoever has begun before that still asks of one.
        self._forgotten: deque[int] = deque(maxlen=FORGOTTEN_MAX)
        # A group as it is committed, by one that a transaction may have made or changed; None for a new one.
        self.committed: Callable[[Group], Group | None] = lambda group: group
        # Told of a member whose partitions change, or are to: its read that waits for events looks again.
        self.on_change: Callable[[int, str], None] = lambda group_id, name: None
        # Told of a member that leaves, before it does: its read that waits does not join again.
        self.on_leave: Callable[[int, str], None] = lambda group_id, name: None

    # Reading.

    def begin_read(
        self,
        group: Group,
        partitions: int,
        name: str,
        user: str,
        wanted: Sequence[int],
        *,
        gives: bool,
        joins: bool = True,
    ) -> MemberHold:
        """A member reads, and is one from now on; its partitions among those that it wants.

        Args:
            partitions: how many the stream has.
            gives: whether the read can give events; what an earlier one gave is given up then, as this
                one gives it again.
            joins: False: who is no member stays none, and its hold is of nothing, ended already.

        Raises:
            InvalidParameterValue: 22023, a name that is none. ProgramLimitExceeded: 54000, there are too
            many members.
        """
        _check_name(name)
        with self._touched(group, partitions) as shared:
            if name not in shared.members and not joins:
                absent = Member(name, user, shared.epoch, 0, 0, 0.0)
                return MemberHold(group.group_id, absent, {}, self._positions.begin(), ended=True)
            member = shared.members.get(name) or self._join(shared, name, user)
            self._heard(member, user)
            member.last_read_us = member.heard_us
            if gives:
                for partition in wanted:
                    if shared.owners[partition] == name and not member.open[partition]:
                        member.given.pop(partition, None)
            self._settle(shared)
            epochs = {p: shared.epochs[p] for p in wanted if shared.owners[p] == name}
            return self._open(group.group_id, member, epochs, self._positions.begin())

    def keep(self, hold: MemberHold, kept: MemberHold | None) -> MemberHold:
        """What a transaction reads or commits it keeps until its own end.

        Args:
            kept: what it keeps already of this member's; its reads count as one.

        Returns:
            What it keeps now, to be ended with it.
        """
        with self._mutex:
            if kept is None or kept.member is not hold.member:
                return self._open(hold.group_id, hold.member, dict(hold.epochs), hold.read)
            hold.read = kept.read
            more = hold.epochs.keys() - kept.epochs.keys()
            kept.epochs.update((partition, hold.epochs[partition]) for partition in more)
            kept.member.open.update(more)
            return kept

    def set_position(
        self,
        hold: MemberHold,
        lsns: Mapping[int, int],
        began: Mapping[int, int],
        seeks: int,
        again: Mapping[int, frozenset[int]],
    ) -> None:
        """A read has given everything up to `lsns`: the member's read position."""
        with self._mutex:
            shared = self._live(hold)
            if shared is not None:
                if any(shared.epochs[p] != hold.epochs.get(p) for p in lsns):
                    # A commit of the rest would be one of less than was given, and nobody would be told.
                    self._positions.void(_key(hold), GIVEN_ANEW, hold.read)
                    return
                known = self._known_of(shared, hold, seeks)
                lsns = {p: max(lsn, known.get(p, 0)) for p, lsn in lsns.items()}
                self._positions.set(_key(hold), hold.read, lsns, began, seeks, again)
                self._gave(hold, lsns, began, again)

    def _known_of(self, shared: Shared, hold: MemberHold, seeks: int) -> Mapping[int, int]:
        """How far a read sets the member's position at least; nothing: as far as it has given itself."""
        return {}

    def seeked(self, hold: MemberHold, partitions: Set[int], seeks: int) -> None:
        """SEEK has moved the group in the transaction of a read: what that has read since stands."""
        with self._mutex:
            if self._live(hold) is not None:
                self._positions.seeked(_key(hold), seeks, (hold.read, partitions))

    def gave(self, hold: MemberHold, lsns: Mapping[int, int], began: Mapping[int, int]) -> None:
        """A read that leaves no position has given events up to `lsns`, or fewer."""
        with self._mutex:
            if self._live(hold) is not None:
                self._gave(hold, {p: lsn for p, lsn in lsns.items() if p in hold.epochs}, began)

    @staticmethod
    def _gave(
        hold: MemberHold,
        lsns: Mapping[int, int],
        began: Mapping[int, int],
        again: Mapping[int, frozenset[int]] = _NOTHING_AGAIN,
    ) -> None:
        """Events that a read gave are held; released ones stand before what is committed."""
        for partition, lsn in lsns.items():
            if lsn > began[partition] or again.get(partition):
                hold.member.given[partition] = (lsn, hold.read)

    def void(self, hold: MemberHold, reason: str) -> None:
        """A read leaves its member without a position: it failed, or its transaction was rolled back."""
        with self._settled(hold.group_id):
            if self._live(hold) is not None:
                self._positions.void(_key(hold), reason, hold.read)
                given = hold.member.given
                for partition in [p for p, (_, read) in given.items() if read == hold.read]:
                    del given[partition]

    def end(self, hold: MemberHold) -> None:
        """A read is over, its answer taken or given up; or a transaction is. A second time does nothing."""
        with self._settled(hold.group_id):
            if not hold.ended:
                hold.ended = True
                for partition in hold.epochs:
                    hold.member.open[partition] -= 1
                if self._live(hold) is not None:
                    self._heard(hold.member, hold.member.user)

    # Committing.

    def position(self, group: Group, partitions: int, name: str, seeks: int) -> ReadPosition:
        """A member's read position.

        Raises:
            WrongState: 55000, there is none.
        """
        with self._touched(group, partitions) as shared:
            if name not in shared.members:
                raise WrongState(f'{literal(name)} is not a member of consumer group "{group.name}"')
            return self._positions.get((group.group_id, name), group.name, seeks).copy()

    def check_none(self, group: Group, partitions: int) -> None:
        """A commit without MEMBER comes in: only while there are none.

        Raises:
            WrongState: 55000.
        """
        with self._touched(group, partitions) as shared:
            shared.check_no_members()

    def begin_commit(
        self,
        group: Group,
        partitions: int,
        name: str,
        user: str,
        lsns: Mapping[int, int] | None,
        seeks: int,
        since: Mapping[int, int],
    ) -> CommitRight:
        """A member's commit comes in; it must have all that it commits.

        Args:
            lsns: what it gives by number; None is its read position.
            seeks: how often SEEK has moved the group.
            since: partition -> the epoch under which the transaction has read it.

        Raises:
            SerializationFailure: 40001, no such member, or a partition is not its own (any more).
            WrongState: 55000, nothing has been read.
        """
        with self._touched(group, partitions) as shared:
            member = shared.members.get(name)
            if member is None:
                raise shared.gone(name)
            self._heard(member, user)
            began: Mapping[int, int] = {}
            again: frozenset[int] | None = None
            if lsns is None:
                position = self._positions.get((group.group_id, name), group.name, seeks)
                lsns, began, again = position.lsns, position.began, position.again
            claims = {p: Claim(name, since.get(p, shared.epochs[p])) for p in lsns}
            for partition, claim in claims.items():
                shared.check_claim(partition, claim)
            epochs = {partition: claim.epoch for partition, claim in claims.items()}
            hold = self._open(group.group_id, member, epochs, self._positions.begin())
            return CommitRight(lsns, began, claims, hold, again)

    def set_aside(self, group_id: int, lsn: int) -> None:
        """An event is parked: what members have read of it before counts no more."""
        with self._mutex:
            shared = self._groups.get(group_id)
            for name in () if shared is None else shared.members:
                self._positions.set_aside((group_id, name), lsn)

    def released(self, group_id: int, name: str) -> dict[int, frozenset[int]]:
        """Partition -> the released events that a member's latest reads have given."""
        with self._mutex:
            return self._positions.released((group_id, name))

    def given(self, group_id: int, name: str) -> dict[int, int]:
        """Partition -> how far a member's latest reads have given events, where that is known."""
        with self._mutex:
            return self._positions.lsns((group_id, name))

    def pin(self, group_id: int, claims: Mapping[int, Claim]) -> Pin:
        """Hold a commit that is about to be written against who has what now, and keep it so.

        Raises:
            SerializationFailure: 40001, a partition has been lost since it was read.
            WrongState: 55000, it is a commit without MEMBER, and the group has got members.
        """
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None:
                # None have come since the claim was made, or all members are of before a DROP.
                if any(claim.member is not None for claim in claims.values()):
                    raise SerializationFailure("the consumer group was dropped meanwhile")
                return Pin(group_id, {})
            self._expire(shared)
            self._settle(shared)
            for partition, claim in claims.items():
                self._check(shared, partition, claim)
            for partition in claims:
                shared.pins[partition] += 1
            changed = self._take_changed()
        self._tell(changed)
        return Pin(group_id, claims)

    def unpin(self, pin: Pin, committed: Mapping[int, int] | None) -> None:
        """The commit is durable, up to these LSNs, or it was refused (None)."""
        with self._settled(pin.group_id) as shared:
            if shared is None:
                return
            for partition in pin.claims:
                shared.pins[partition] -= 1
            self._committed(shared, pin.claims, committed or {})

    def _committed(self, shared: Shared, claims: Mapping[int, Claim], lsns: Mapping[int, int]) -> None:
        for partition, lsn in lsns.items():
            claim = claims.get(partition)
            member = None if claim is None else shared.members.get(claim.member or "")
            if member is None or shared.owners[partition] != member.name:
                continue
            member.last_commit_us = self._clock.now_us()
            if partition in member.given and member.given[partition][0] <= lsn:
                del member.given[partition]

    def _check(self, shared: Shared, partition: int, claim: Claim) -> None:
        """Hold a claim against who has what now.

        Raises:
            SerializationFailure: 40001. WrongState: 55000.
        """
        if claim.member is None:
            shared.check_no_members()
        else:
            shared.check_claim(partition, claim)

    # Leaving, and groups that end.

    def has(self, group: Group, partitions: int, name: str) -> bool:
        """Whether it is a member now."""
        with self._touched(group, partitions) as shared:
            return name in shared.members

    def remove(self, group_id: int, name: str) -> None:
        """A member leaves, if it is one: all that it has is free."""
        self.on_leave(group_id, name)
        with self._settled(group_id) as shared:
            if shared is not None and name in shared.members:
                self._remove(shared, {name})

    def altered(self, changed: Group) -> None:
        """A group's options are others, for everybody; who waits is told, to look by the new time."""
        with self._mutex:
            shared = self._groups.get(changed.group_id)
            if shared is not None:
                self._expire(shared)
                if changed.session_timeout_ms < shared.group.session_timeout_ms:
                    shared.lowered_s = self._clock.monotonic_s()
                shared.group = changed
                self._settle(shared)
                self._changed += [(changed.group_id, name) for name in shared.members]
            changed_members = self._take_changed()
        self._tell(changed_members)

    def forget(self, group_ids: Iterable[int]) -> None:
        """Groups are gone, with their members."""
        with self._mutex:
            for group_id in group_ids:
                shared = self._groups.pop(group_id, None)
                self._forgotten.append(group_id)
                for name in () if shared is None else shared.members:
                    self._positions.forget((group_id, name))
                    self._changed.append((group_id, name))
            changed = self._take_changed()
        self._tell(changed)

    # Looking.

    def shown(self, group: Group, partitions: int) -> list[Shown]:
        """The members of a group, by name."""
        with self._touched(group, partitions) as shared:
            return shared.shown()

    def owners(self, group: Group, partitions: int) -> list[str | None]:
        """Who has each partition of a group."""
        with self._touched(group, partitions) as shared:
            return list(shared.owners)

    def glimpse(self, group_id: int) -> int:
        """How many members of a group are alive; asks without the lock."""
        shared = self._groups.get(group_id)
        if shared is None:
            return 0
        now_s = self._clock.monotonic_s()
        return sum(shared.ends_s(member) > now_s for member in list(shared.members.values()))

    def next_expiry_s(self, group_id: int) -> float | None:
        """In how many seconds the first member of a group times out, if none of them is heard from."""
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None or not shared.members:
                return None
            return max(0.0, min(map(shared.ends_s, shared.members.values())) - self._clock.monotonic_s())

    # What all of it is made of. Under the mutex.

    @contextmanager
    def _touched(self, group: Group, partitions: int) -> Iterator[Shared]:
        """A group, made if it was not there, without those whose time is out."""
        changed: Set[tuple[int, str]] = NOBODY
        try:
            with self._mutex:
                shared = self._groups.get(group.group_id)
                if shared is None:
                    epoch = self._clock.now_us() // 1000
                    # What a transaction has changed and not committed is its own.
                    known = self.committed(group) or group
                    shared = Shared(known, epoch, [None] * partitions, [epoch] * partitions)
                    if group.group_id not in self._forgotten:
                        self._groups[group.group_id] = shared
                self._expire(shared)
                self._settle(shared)
                try:
                    yield shared
                finally:
                    self._settle(shared)
                    changed = self._take_changed()
        finally:
            self._tell(changed)

    @contextmanager
    def _settled(self, group_id: int) -> Iterator[Shared | None]:
        """A group, if it is there; what may be handed over afterwards is."""
        with self._mutex:
            shared = self._groups.get(group_id)
            yield shared
            if shared is not None:
                self._settle(shared)
            changed = self._take_changed()
        self._tell(changed)

    def _live(self, hold: MemberHold) -> Shared | None:
        """The group of a hold, where its member still is one."""
        shared = self._groups.get(hold.group_id)
        if shared is None or shared.members.get(hold.member.name) is not hold.member:
            return None
        return shared

    def _open(self, group_id: int, member: Member, epochs: dict[int, int], read: int) -> MemberHold:
        member.open.update(epochs.keys())
        return MemberHold(group_id, member, epochs, read)

    def _join(self, shared: Shared, name: str, user: str) -> Member:
        if len(shared.members) >= MEMBERS_MAX:
            raise ProgramLimitExceeded(
                f'consumer group "{shared.group.name}" has {MEMBERS_MAX} members, and takes no more',
                hint="LEAVE CONSUMER GROUP takes a member out; SHOW MEMBERS lists them.",
            )
        now_us = self._clock.now_us()
        member = Member(name, user, shared.epoch, now_us, now_us, self._clock.monotonic_s())
        shared.members[name] = member
        shared.plan()
        return member

    def _heard(self, member: Member, user: str) -> None:
        member.user = user
        member.heard_us, member.heard_s = self._clock.now_us(), self._clock.monotonic_s()

    def _expire(self, shared: Shared) -> None:
        """Take out those that have not been heard from for too long."""
        if not shared.members:
            return
        now_s = self._clock.monotonic_s()
        self._remove(shared, {n for n, member in shared.members.items() if shared.ends_s(member) <= now_s})

    def _remove(self, shared: Shared, names: Set[str]) -> None:
        if not names:
            return
        for name in names:
            del shared.members[name]
            self._positions.forget((shared.group.group_id, name))
            self._changed.append((shared.group.group_id, name))
        shared.owners = [None if owner in names else owner for owner in shared.owners]
        shared.plan()

    def _empty(self, shared: Shared) -> None:
        """All members are gone, and what they have read."""
        for name in shared.members:
            self._positions.forget((shared.group.group_id, name))
            self._changed.append((shared.group.group_id, name))
        shared.members.clear()
        shared.moving.clear()
        shared.owners = [None] * len(shared.owners)

    def _settle(self, shared: Shared) -> None:
        """Hand over what nobody holds. All that is handed over at once is so under one epoch."""
        if not shared.moving:
            return
        epoch = shared.epoch + 1
        for partition, name in list(shared.moving.items()):
            owner = shared.owners[partition]
            if shared.pins[partition] > 0:
                continue
            if owner is not None:
                member = shared.members[owner]
                if member.holds(partition):
                    continue
                member.epoch = epoch
                self._positions.lose((shared.group.group_id, owner), partition)
                self._changed.append((shared.group.group_id, owner))
            del shared.moving[partition]
            shared.epoch = epoch
            shared.owners[partition], shared.epochs[partition] = name, epoch
            shared.members[name].epoch = epoch
            self._changed.append((shared.group.group_id, name))

    def _take_changed(self) -> Set[tuple[int, str]]:
        if not self._changed:
            return NOBODY
        changed, self._changed = frozenset(self._changed), []
        return changed

    def _tell(self, changed: Set[tuple[int, str]]) -> None:
        """Outside the mutex: who waits may come back at once."""
        for group_id, name in changed:
            self.on_change(group_id, name)


def _key(hold: MemberHold) -> tuple[int, str]:
    return (hold.group_id, hold.member.name)


def _check_name(name: str) -> None:
    """Refuse a name that is none.

    Raises:
        InvalidParameterValue: 22023.
    """
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidParameterValue(
            f"a member's name must have 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
        )


STABLE, REVOKING, WAITING = "stable", "revoking", "waiting"


@dataclass(slots=True)
class Shared:
    """A group that has, or had, members: `owners` and `epochs` are by partition.

    Args:
        moving: partition -> the member who is to have it and does not yet.
        pins: partition -> how many commits of it are under way.
        lowered_s: when `session_timeout` was lowered, by the clock that never goes back: nobody's silence
            counts from earlier.
        remote_coordinator: another node says who has what (see `coordination.py`).
        placed: at a topic's home, the latest placement under which it was asked (see `coordination.py`).
    """

    group: Group
    epoch: int
    owners: list[str | None]
    epochs: list[int]
    members: dict[str, Member] = field(default_factory=dict)
    moving: dict[int, str] = field(default_factory=dict)
    pins: Counter[int] = field(default_factory=Counter)
    lowered_s: float = -math.inf
    remote_coordinator: bool = False
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
