"""Members: the named readers that share a consumer group, and their partitions.

The rules:

- A read joins the group. A read, each look of a WAIT and a commit are heartbeats. A member without a
  heartbeat for the group's `session_timeout` is removed, at the next access to the group: there is no timer.
- A partition has one owner, and each change of owner gives it a higher epoch. A commit is compared with the
  epoch under which its partition was read: it fails with SerializationFailure if the member has lost the
  partition, even if it has got it back. A commit by number outside a transaction names no read: it is
  compared with the present epoch.
- A member from which the assignment (`assignment.py`) takes a partition keeps it until it holds nothing
  there: no read of it is open on the partition, no transaction of it has read or commits the partition, and
  the events that it was given are committed, or given up by reading again. A member that leaves or times out
  loses all partitions at once.
- A commit pins its partitions from the check of the epoch until it is written or refused: in between no other
  member gets them, whether or not the member stays.

Members are in memory only: after a restart a group has none, commits fail with SerializationFailure, and
reads join anew. Epochs begin at the clock's milliseconds, so that they rise over a restart. Names are
case-sensitive. Nothing here waits or runs DuckDB; the mutex is taken last of all locks.
Source: docs/design/engine.md, "Members".
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

# Members beyond the largest number of partitions would be idle, and each read looks at all members.
MEMBERS_MAX = PARTITIONS_MAX
# Names appear in views and messages; a host, a process and a thread fit.
NAME_CHARS_MAX = 256

# A statement that was under way when a group was dropped asks for it soon: fewer are dropped meanwhile.
FORGOTTEN_MAX = 1024

GIVEN_ANEW = "its partitions have been given out anew since it was read"

# The released events of most reads: none.
_NOTHING_AGAIN: Mapping[int, frozenset[int]] = {}
# The members whose partitions have changed: mostly none.
NOBODY: Set[tuple[int, str]] = frozenset()


class Members:
    """The members of all groups; safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()  # guards all below
        self._groups: dict[int, Shared] = {}
        self._positions = ReadPositions()
        self._changed: list[tuple[int, str]] = []
        # Dropped groups; statements that began before the drop still ask for them.
        self._forgotten: deque[int] = deque(maxlen=FORGOTTEN_MAX)
        # The committed form of a group that a transaction may have made or changed; None for a new one.
        self.committed: Callable[[Group], Group | None] = lambda group: group
        # Called with a member whose partitions change, or are about to: its waiting read looks again.
        self.on_change: Callable[[int, str], None] = lambda group_id, name: None
        # Called with a member before it leaves: its waiting read does not join again.
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
        """Begin a member's read, and make it a member if it is none.

        Args:
            partitions: number of partitions of the stream.
            wanted: the partitions to be read.
            gives: True if the read can give events; those of an earlier read are given up then, as this one
                gives them again.
            joins: False: a reader that is no member stays none; its hold has no partitions and has ended.

        Returns:
            A hold on those of the wanted partitions that the member owns.

        Raises:
            InvalidParameterValue: the name is empty or too long.
            ProgramLimitExceeded: the group has too many members.
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
        """Keep the partitions that a transaction reads or commits until its end.

        Args:
            kept: the transaction's hold for this member so far; its reads count as one.

        Returns:
            The transaction's hold, to be ended with it.
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
        """Set the member's read position: a read has given everything up to `lsns`."""
        with self._mutex:
            shared = self._live(hold)
            if shared is not None:
                if any(shared.epochs[p] != hold.epochs.get(p) for p in lsns):
                    # A commit of the rest would silently cover less than the read has given.
                    self._positions.void(_key(hold), GIVEN_ANEW, hold.read)
                    return
                known = self._known_of(shared, hold, seeks)
                lsns = {p: max(lsn, known.get(p, 0)) for p, lsn in lsns.items()}
                self._positions.set(_key(hold), hold.read, lsns, began, seeks, again)
                self._gave(hold, lsns, began, again)

    def _known_of(self, shared: Shared, hold: MemberHold, seeks: int) -> Mapping[int, int]:
        """Partition -> the least LSN to which a read sets the member's position; empty: its own LSNs."""
        return {}

    def seeked(self, hold: MemberHold, partitions: Set[int], seeks: int) -> None:
        """Note a SEEK of the group in the transaction of a read: the transaction's later reads stand."""
        with self._mutex:
            if self._live(hold) is not None:
                self._positions.seeked(_key(hold), seeks, (hold.read, partitions))

    def gave(self, hold: MemberHold, lsns: Mapping[int, int], began: Mapping[int, int]) -> None:
        """Note events up to `lsns`, or fewer, that a read without a position has given."""
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
        """Hold the events that a read gave; released ones stand at or before the committed LSN."""
        for partition, lsn in lsns.items():
            if lsn > began[partition] or again.get(partition):
                hold.member.given[partition] = (lsn, hold.read)

    def void(self, hold: MemberHold, reason: str) -> None:
        """Void the position of a read that has failed, or whose transaction was rolled back."""
        with self._settled(hold.group_id):
            if self._live(hold) is not None:
                self._positions.void(_key(hold), reason, hold.read)
                given = hold.member.given
                for partition in [p for p, (_, read) in given.items() if read == hold.read]:
                    del given[partition]

    def end(self, hold: MemberHold) -> None:
        """End the hold of a read, its answer taken or given up, or of a transaction. Idempotent."""
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
            WrongState: there is none, or the name is no member.
        """
        with self._touched(group, partitions) as shared:
            if name not in shared.members:
                raise WrongState(f'{literal(name)} is not a member of consumer group "{group.name}"')
            return self._positions.get((group.group_id, name), group.name, seeks).copy()

    def check_none(self, group: Group, partitions: int) -> None:
        """Check that a commit without MEMBER may proceed: the group has no members.

        Raises:
            WrongState: the group has members.
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
        """Begin a member's commit; the member must own all partitions that it commits.

        Args:
            lsns: LSNs that are given by number; None: the member's read position.
            seeks: the number of SEEKs of the group.
            since: partition -> the epoch under which the transaction has read it.

        Raises:
            SerializationFailure: no such member, or it does not own a partition, or has lost it since.
            WrongState: the member has no read position.
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
        """Note a parked event: earlier reads of it by members no longer count."""
        with self._mutex:
            shared = self._groups.get(group_id)
            for name in () if shared is None else shared.members:
                self._positions.set_aside((group_id, name), lsn)

    def released(self, group_id: int, name: str) -> dict[int, frozenset[int]]:
        """Partition -> the released events that a member's latest reads have given."""
        with self._mutex:
            return self._positions.released((group_id, name))

    def given(self, group_id: int, name: str) -> dict[int, int]:
        """Partition -> last LSN that a member's latest reads have given, where it is known."""
        with self._mutex:
            return self._positions.lsns((group_id, name))

    def pin(self, group_id: int, claims: Mapping[int, Claim]) -> Pin:
        """Check a commit that is about to be written against the present owners, and keep them.

        Raises:
            SerializationFailure: a partition has been lost since it was read.
            WrongState: it is a commit without MEMBER, and the group has got members.
        """
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None:
                # No members have come since the claim was made, or all of them are from before a DROP.
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
        """Release a pin: the commit is durable up to these LSNs, or was refused (None)."""
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
        """Check a claim against the present owners."""
        if claim.member is None:
            shared.check_no_members()
        else:
            shared.check_claim(partition, claim)

    # Leaving, and groups that end.

    def has(self, group: Group, partitions: int, name: str) -> bool:
        """True if the name is a member now."""
        with self._touched(group, partitions) as shared:
            return name in shared.members

    def remove(self, group_id: int, name: str) -> None:
        """Take a member out, if it is one; all its partitions are free."""
        self.on_leave(group_id, name)
        with self._settled(group_id) as shared:
            if shared is not None and name in shared.members:
                self._remove(shared, {name})

    def altered(self, changed: Group) -> None:
        """Put a group's changed options in force; waiting members look again, by the new time-out."""
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
        """Forget dropped groups and their members."""
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
        """The owner of each partition of a group."""
        with self._touched(group, partitions) as shared:
            return list(shared.owners)

    def glimpse(self, group_id: int) -> int:
        """The number of live members of a group; takes no lock."""
        shared = self._groups.get(group_id)
        if shared is None:
            return 0
        now_s = self._clock.monotonic_s()
        return sum(shared.ends_s(member) > now_s for member in list(shared.members.values()))

    def next_expiry_s(self, group_id: int) -> float | None:
        """Seconds until the first member of a group times out, if none has a heartbeat before."""
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None or not shared.members:
                return None
            return max(0.0, min(map(shared.ends_s, shared.members.values())) - self._clock.monotonic_s())

    # Shared steps, under the mutex.

    @contextmanager
    def _touched(self, group: Group, partitions: int) -> Iterator[Shared]:
        """A group, made if it was not there, without members that have timed out."""
        changed: Set[tuple[int, str]] = NOBODY
        try:
            with self._mutex:
                shared = self._groups.get(group.group_id)
                if shared is None:
                    epoch = self._clock.now_us() // 1000
                    # Uncommitted changes are visible to their transaction only.
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
        """A group, if it is there; free partitions are handed over afterwards."""
        with self._mutex:
            shared = self._groups.get(group_id)
            yield shared
            if shared is not None:
                self._settle(shared)
            changed = self._take_changed()
        self._tell(changed)

    def _live(self, hold: MemberHold) -> Shared | None:
        """The group of a hold; None where its member is none any more."""
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
        """Take out the members that have timed out."""
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
        """Drop all members and their read positions."""
        for name in shared.members:
            self._positions.forget((shared.group.group_id, name))
            self._changed.append((shared.group.group_id, name))
        shared.members.clear()
        shared.moving.clear()
        shared.owners = [None] * len(shared.owners)

    def _settle(self, shared: Shared) -> None:
        """Hand over the moving partitions that nobody holds, all under one new epoch."""
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
        """Call `on_change` for each member; outside the mutex, as a waiting read may come back at once."""
        for group_id, name in changed:
            self.on_change(group_id, name)


def _key(hold: MemberHold) -> tuple[int, str]:
    return (hold.group_id, hold.member.name)


def _check_name(name: str) -> None:
    """Refuse a name that is empty or too long."""
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidParameterValue(
            f"a member's name must have 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
        )


STABLE, REVOKING, WAITING = "stable", "revoking", "waiting"


@dataclass(slots=True)
class Shared:
    """A group that has, or had, members. `Members` alone changes it, under its mutex.

    Args:
        owners: the owner of each partition; None where it is free.
        epochs: the epoch of each partition.
        moving: partition -> the member that gets it once its owner holds nothing there.
        pins: partition -> number of commits of it under way.
        lowered_s: when `session_timeout` was lowered, by the clock that never goes back: no member's silence
            counts from earlier.
        remote_coordinator: True if another node assigns the partitions (see `coordination.py`).
        placed: at a topic's home, the epoch of the latest placement of a request (see `coordination.py`).
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
        """When a member times out, if it has no heartbeat before."""
        return max(member.heard_s, self.lowered_s) + self.group.session_timeout_ms / 1000

    def owned(self, name: str) -> tuple[int, ...]:
        """The partitions of a member."""
        return tuple(partition for partition, owner in enumerate(self.owners) if owner == name)

    def plan(self) -> None:
        """Plan the moves of partitions after members have come or gone."""
        owners = {p: owner for p, owner in enumerate(self.owners) if owner is not None}
        target = assign(len(self.owners), owners, self.members)
        self.moving = {p: name for p, name in target.items() if owners.get(p) != name}

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
            SerializationFailure: it has not, or is no member any more.
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
