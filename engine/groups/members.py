"""Members: the named readers that share a consumer group, and their partitions.

The rules:

- A read joins the group. A read, each look of a WAIT and a commit are heartbeats. A member without a
  heartbeat for the group's `session_timeout` is removed, at the next access to the group: there is no timer.
- A partition has one owner, and each change of owner gives it a higher epoch. A commit is compared with the
  epoch under which its partition was read: it fails with SerializationFailure if the member has lost the
  partition, even if it has got it back. A commit by number outside a transaction names no read: it is
  compared with the present epoch.
- A member from which the assignment (`assignment.py`) takes a partition keeps it while it holds anything
there: an open read of the partition, a transaction that has read or commits it, or returned events that are
neither committed nor given up by reading again. A member that leaves or times out
  loses all partitions at once.
- A commit pins its partitions from the check of the epoch until it is written or refused: meanwhile no other
member gets them, whether or not the member stays.

Members are in memory only: after a restart a group has none, commits fail with SerializationFailure, and
reads join anew. Epochs begin at the clock's milliseconds, so that they rise over a restart. Names are
case-sensitive. Nothing here waits or runs DuckDB; the mutex is taken last of all locks.
Source: docs/design/engine.md, "Members".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from ..catalog.streams import PARTITIONS_MAX, Group
from ..clock import Clock
from ..errors import InvalidParameterValue, ProgramLimitExceeded, SerializationFailure, WrongState
from ..quoting import literal
from .coordination import Fence
from .member import Claim, CommitRight, GroupMembers, Member, MemberHold, Pin, Shown
from .read_positions import ReadPosition, ReadPositions

# Members beyond the largest number of partitions would be idle, and each read examines all members.
MEMBERS_MAX = PARTITIONS_MAX
# Names appear in views and messages; a host, a process and a thread fit.
NAME_CHARS_MAX = 256

# A statement that was running when a group was dropped still asks for it soon: fewer groups are dropped until
# then.
FORGOTTEN_MAX = 1024

GIVEN_ANEW = "its partitions have been given out anew since it was read"

# The released events of most reads: none.
_NOTHING_AGAIN: Mapping[int, frozenset[int]] = {}
# The members whose partitions have changed: mostly none.
NOBODY: Set[tuple[int, str]] = frozenset()

S = TypeVar("S", bound=GroupMembers)
P = ParamSpec("P")


class Members:
    """The members of all groups; safe to use from several threads.

    A group whose partitions are all on this node has one entry, in `_groups`. Of a group on a topic of
    several nodes, `_groups` has the members that this node coordinates as the topic's home, and `_fences`
    the members that have come to this node's partitions. Statements on this node's own partitions use the
    fence if there is one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()  # guards all below
        self._groups: dict[int, GroupMembers] = {}
        self._fences: dict[int, Fence] = {}
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
        home: bool = False,
    ) -> MemberHold:
        """Begin a member's read; a reader that is not a member becomes one.

        Args:
            partitions: number of partitions of the stream.
            wanted: the partitions to be read.
            gives: True if the read can return events; the events of an earlier read are then given up,
                because this read returns them again.
            joins: False if a reader that is not a member must not become one; its hold then has no partitions
                and has ended.
            home: True for a request to the topic's home; False: all partitions are on this node.

        Returns:
            A hold on those of the wanted partitions that the member owns.

        Raises:
            InvalidParameterValue: the name is empty or too long.
            ProgramLimitExceeded: the group has too many members.
        """
        _check_name(name)
        with self._touched(self._assigned if home else self._alone, group, partitions) as shared:
            if name not in shared.members and not joins:
                absent = Member(name, user, shared.epoch, 0, 0, 0.0)
                return MemberHold(shared, absent, {}, shared.positions.begin(), ended=True)
            member = shared.members.get(name) or self._join(shared, name, user)
            self._heard(member, user)
            member.last_read_us = member.heard_us
            if gives:
                for partition in wanted:
                    if shared.owners[partition] == name and not member.open[partition]:
                        member.given.pop(partition, None)
            self._settle(shared)
            epochs = {p: shared.epochs[p] for p in wanted if shared.owners[p] == name}
            return shared.open(member, epochs)

    def keep(self, hold: MemberHold, kept: MemberHold | None) -> MemberHold:
        """Keep the partitions that a transaction reads or commits until its end.

        Args:
            kept: the transaction's hold for this member so far; its reads count as one.

        Returns:
            The transaction's hold, to be ended with it.
        """
        with self._mutex:
            if kept is None or kept.member is not hold.member:
                return hold.shared.open(hold.member, dict(hold.epochs), hold.read)
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
        """Set the member's read position: a read has returned everything up to `lsns`."""
        with self._mutex:
            shared = hold.shared
            if _is_live(hold):
                if any(shared.epochs[p] != hold.epochs.get(p) for p in lsns):
                    # A commit of the rest would silently cover less than the read has returned.
                    shared.positions.void(hold.member.name, GIVEN_ANEW, hold.read)
                    return
                known = shared.known_of(hold.member.name, seeks)
                lsns = {p: max(lsn, known.get(p, 0)) for p, lsn in lsns.items()}
                shared.positions.set(hold.member.name, hold.read, lsns, began, seeks, again)
                self._gave(hold, lsns, began, again)

    def seeked(self, hold: MemberHold, partitions: Set[int], seeks: int) -> None:
        """Note a SEEK of the group in the transaction of a read: the transaction's later reads stand."""
        with self._mutex:
            if _is_live(hold):
                hold.shared.positions.seeked(hold.member.name, seeks, (hold.read, partitions))

    def gave(self, hold: MemberHold, lsns: Mapping[int, int], began: Mapping[int, int]) -> None:
        """Note the events, at most up to `lsns`, that a read without a position has returned."""
        with self._mutex:
            if _is_live(hold):
                self._gave(hold, {p: lsn for p, lsn in lsns.items() if p in hold.epochs}, began)

    @staticmethod
    def _gave(
        hold: MemberHold,
        lsns: Mapping[int, int],
        began: Mapping[int, int],
        again: Mapping[int, frozenset[int]] = _NOTHING_AGAIN,
    ) -> None:
        """Hold the events that a read returned; released events are at or before the committed LSN."""
        for partition, lsn in lsns.items():
            if lsn > began[partition] or again.get(partition):
                hold.member.given[partition] = (lsn, hold.read)

    def void(self, hold: MemberHold, reason: str) -> None:
        """Void the position of a read that has failed, or whose transaction was rolled back."""
        with self._settled(hold.shared):
            if _is_live(hold):
                hold.shared.positions.void(hold.member.name, reason, hold.read)
                given = hold.member.given
                for partition in [p for p, (_, read) in given.items() if read == hold.read]:
                    del given[partition]

    def end(self, hold: MemberHold) -> None:
        """End the hold of a read, whose result was read or abandoned, or of a transaction. Idempotent."""
        with self._settled(hold.shared):
            if not hold.ended:
                hold.ended = True
                for partition in hold.epochs:
                    hold.member.open[partition] -= 1
                if _is_live(hold):
                    self._heard(hold.member, hold.member.user)

    # Committing.

    def position(
        self, group: Group, partitions: int, name: str, seeks: int, *, home: bool = False
    ) -> ReadPosition:
        """A member's read position.

        Args:
            home: True for a request to the topic's home.

        Raises:
            WrongState: there is no position, or the name is not a member.
        """
        with self._touched(self._assigned if home else self._present, group, partitions) as shared:
            if name not in shared.members:
                raise WrongState(f'{literal(name)} is not a member of consumer group "{group.name}"')
            return shared.positions.get(name, group.name, seeks).copy()

    def check_none(self, group: Group, partitions: int) -> None:
        """Check that a commit without MEMBER may proceed: the group has no members.

        Raises:
            WrongState: the group has members.
        """
        with self._touched(self._alone, group, partitions) as shared:
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
        *,
        own: Mapping[int, int] | None = None,
        home: bool = False,
    ) -> CommitRight:
        """Begin a member's commit; the member must own all partitions that it commits.

        Args:
            lsns: LSNs given by number; None for the member's read position.
            seeks: the number of SEEKs of the group.
            since: partition -> the epoch under which the transaction has read it.
            own: partition -> the LSN up to which the read position counts; None for all of it.
            home: True for a request to the topic's home.

        Raises:
            SerializationFailure: the member does not exist, does not own a partition, or has lost it since.
            WrongState: the member has no read position.
        """
        with self._touched(self._assigned if home else self._present, group, partitions) as shared:
            member = shared.members.get(name)
            if member is None:
                raise shared.gone(name)
            self._heard(member, user)
            began: Mapping[int, int] = {}
            again: frozenset[int] | None = None
            if lsns is None:
                position = shared.positions.get(name, group.name, seeks)
                if own is not None:
                    position = position.up_to(own)
                lsns, began, again = position.lsns, position.began, position.again
            claims = {p: Claim(name, since.get(p, shared.epochs[p])) for p in lsns}
            for partition, claim in claims.items():
                shared.check_claim(partition, claim)
            epochs = {partition: claim.epoch for partition, claim in claims.items()}
            return CommitRight(lsns, began, claims, shared.open(member, epochs), again)

    def set_aside(self, group_id: int, lsn: int) -> None:
        """Note a parked event: earlier reads of it by members no longer count."""
        with self._mutex:
            shared = self._known(group_id)
            if shared is not None:
                for name in shared.members:
                    shared.positions.set_aside(name, lsn)

    def released(self, group_id: int, name: str) -> dict[int, frozenset[int]]:
        """Partition -> the released events that a member's latest reads have returned."""
        with self._mutex:
            shared = self._known(group_id)
            return {} if shared is None else shared.positions.released(name)

    def given(self, hold: MemberHold) -> dict[int, int]:
        """Partition -> last LSN that the latest reads of a hold's member have given, where it is known."""
        with self._mutex:
            return hold.shared.positions.lsns(hold.member.name)

    def pin(self, group_id: int, claims: Mapping[int, Claim]) -> Pin:
        """Check a commit that is about to be written against the present owners, and keep them.

        Raises:
            SerializationFailure: a partition has been lost since it was read.
            WrongState: the commit is without MEMBER, and the group has members now.
        """
        with self._mutex:
            shared = self._known(group_id)
            if shared is None:
                # No members have come since the claim was made, or all of them are from before a DROP.
                if any(claim.member is not None for claim in claims.values()):
                    raise SerializationFailure("the consumer group was dropped meanwhile")
                return Pin(group_id, {}, None)
            self._expire(shared)
            self._settle(shared)
            for partition, claim in claims.items():
                shared.check(partition, claim)
            for partition in claims:
                shared.pins[partition] += 1
            changed = self._take_changed()
        self._tell(changed)
        return Pin(group_id, claims, shared)

    def unpin(self, pin: Pin, committed: Mapping[int, int] | None) -> None:
        """Release a pin: the commit is durable up to these LSNs, or was refused (None)."""
        if pin.shared is None:
            return
        with self._settled(pin.shared):
            for partition in pin.claims:
                pin.shared.pins[partition] -= 1
            self._committed(pin.shared, pin.claims, committed or {})

    def _committed(self, shared: GroupMembers, claims: Mapping[int, Claim], lsns: Mapping[int, int]) -> None:
        for partition, lsn in lsns.items():
            claim = claims.get(partition)
            member = None if claim is None else shared.members.get(claim.member or "")
            if member is None or shared.owners[partition] != member.name:
                continue
            member.last_commit_us = self._clock.now_us()
            if partition in member.given and member.given[partition][0] <= lsn:
                del member.given[partition]

    # Leaving, and groups that end.

    def has(self, group: Group, partitions: int, name: str) -> bool:
        """True if the name is a member now."""
        with self._touched(self._assigned, group, partitions) as shared:
            return name in shared.members

    def remove(self, group_id: int, name: str) -> None:
        """Remove a member, if it exists; all its partitions become free."""
        self.on_leave(group_id, name)
        shared = self._groups.get(group_id)
        if shared is not None:
            with self._settled(shared):
                if name in shared.members:
                    self._remove(shared, {name})

    def altered(self, changed: Group) -> None:
        """Put a group's changed options in force and wake waiting members, whose time-outs may differ."""
        with self._mutex:
            for shared in self._states(changed.group_id):
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
                for shared in self._states(group_id):
                    self._empty(shared)
                self._groups.pop(group_id, None)
                self._fences.pop(group_id, None)
                self._forgotten.append(group_id)
            changed = self._take_changed()
        self._tell(changed)

    # Looking. Of a topic of several nodes only the home knows the members.

    def shown(self, group: Group, partitions: int) -> list[Shown]:
        """The members of a group, by name."""
        with self._touched(self._assigned, group, partitions) as shared:
            return shared.shown()

    def owners(self, group: Group, partitions: int) -> list[str | None]:
        """The owner of each partition of a group."""
        with self._touched(self._assigned, group, partitions) as shared:
            return list(shared.owners)

    def glimpse(self, group_id: int) -> int:
        """The number of live members of a group; takes no lock."""
        shared = self._groups.get(group_id)
        if shared is None:
            return 0
        now_s = self._clock.monotonic_s()
        return sum(shared.ends_s(member) > now_s for member in list(shared.members.values()))

    def next_expiry_s(self, group_id: int) -> float | None:
        """Seconds until the first member of a group times out, without further heartbeats."""
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None or not shared.members:
                return None
            return max(0.0, min(map(shared.ends_s, shared.members.values())) - self._clock.monotonic_s())

    # Requests to a topic's home.

    def under(self, group: Group, partitions: int, placement: int) -> None:
        """Note the epoch of the placement under which requests to the home come now.

        Where a placement in between may have been in force, another node may have been the home: the members
        from before it and their read positions are dropped.
        """
        with self._touched(self._assigned, group, partitions) as shared:
            if not shared.placed or placement > shared.placed + 1:
                self._empty(shared)
                shared.epoch = max(self._clock.now_us() // 1000, shared.epoch + 1)
            shared.placed = max(placement, shared.placed)

    def reading(self, hold: MemberHold, before: Iterable[MemberHold]) -> None:
        """Note a read that can give events; their LSNs are unknown until the read is reported (`told`).

        Args:
            before: the holds of other reads of the same connection.
        """
        with self._mutex:
            # This read repeats the events of unreported reads that are earlier ones of its connection, or
            # have ended.
            earlier = {one.read for one in before}
            untold = hold.member.untold
            under_way = {n: one for n, one in untold.items() if n not in earlier and not one.ended}
            hold.member.untold = {**under_way, hold.read: hold}

    def told(self, hold: MemberHold) -> None:
        """Note that a read's outcome has been reported."""
        with self._mutex:
            hold.member.untold.pop(hold.read, None)

    def check_told(self, group: Group, partitions: int, name: str, own: int | None) -> None:
        """Check that the outcome of a member's latest reads is known before its read position is committed.

        A link or a placement may have ended before a read was reported: the position from before is then
        behind the events that the client was given. A later read that another connection of the member has
        under way does not prevent the commit.

        Args:
            own: number of the latest read of the committing connection; None if it is unknown.

        Raises:
            WrongState: the outcome of a read is unknown.
        """
        with self._touched(self._assigned, group, partitions) as shared:
            member = shared.members.get(name)
            untold = {} if member is None else member.untold
            if any(own is None or read == own or (read > own and it.ended) for read, it in untold.items()):
                raise WrongState(
                    f'the home of consumer group "{group.name}" does not know what the latest read of '
                    f"member {literal(name)} has given",
                    detail="Nothing was committed.",
                    hint="Read again: what was not committed comes again.",
                )

    def is_committed(self, commit: CommitRight, lsns: Mapping[int, int]) -> None:
        """Note the durable part of a commit that is over: its member no longer holds those events."""
        assert commit.hold is not None
        with self._settled(commit.hold.shared):
            if _is_live(commit.hold):
                self._committed(commit.hold.shared, commit.claims, lsns)

    def nobody(self, group: Group, partitions: int) -> int:
        """The epoch of a group without members; a later member gets partitions under a higher epoch.

        Raises:
            WrongState: the group has members.
        """
        with self._touched(self._assigned, group, partitions) as shared:
            shared.check_no_members()
            return shared.epoch

    def passed(self, group: Group, partitions: int, epoch: int) -> None:
        """Give all partitions a later epoch than one that an owner knows and this node has not issued.

        This occurs if another node was the home before, or if this node's clock was set back between two
        starts.
        """
        with self._touched(self._assigned, group, partitions) as shared:
            if epoch < shared.epoch:
                return
            shared.epoch = epoch + 1
            for partition, owner in enumerate(shared.owners):
                shared.epochs[partition] = shared.epoch
                if owner is not None:
                    member = shared.members[owner]
                    member.epoch = shared.epoch
                    member.given.pop(partition, None)
                    # Without this partition the position would cover less than the member was given.
                    shared.positions.void(owner, GIVEN_ANEW)

    # Requests to an owner, under the home's epochs.

    def take_over(
        self,
        group: Group,
        partitions: int,
        name: str,
        user: str,
        epochs: Mapping[int, int],
        kept: Mapping[int, int],
    ) -> dict[int, int]:
        """Register a member as the owner of the partitions that the home has assigned to it.

        Args:
            epochs: partition -> epoch of the assignment.
            kept: partition -> highest durable epoch.

        Returns:
            Partition -> epoch, for the epochs that are later than the durable ones.

        Raises:
            SerializationFailure: a later epoch of a partition is known, or another owner under the same one;
                nothing is taken over.
        """
        with self._touched(self._fenced, group, partitions, kept) as fence:
            fence.check_epochs(name, epochs)
            member = fence.members.get(name)
            if member is None:
                now_us = self._clock.now_us()
                member = Member(name, user, 0, now_us, now_us, self._clock.monotonic_s())
                fence.members[name] = member
            self._heard(member, user)
            fence.assign(member, epochs)
            return {p: epoch for p, epoch in epochs.items() if epoch > kept.get(p, 0)}

    def came(self, group_id: int, partition: int, epoch: int) -> None:
        """Note the epoch of a partition that has come from another node, which refused older epochs."""
        with self._mutex:
            fence = self._fences.get(group_id)
            # Without a fence the home's next assignment looks up the durable epochs.
            if fence is not None and epoch > fence.epochs[partition]:
                fence.lose(partition)
                fence.owners[partition], fence.epochs[partition] = None, epoch

    def is_pinned(self, group_id: int, partitions: Iterable[int]) -> bool:
        """True if a commit of one of these partitions is under way."""
        with self._mutex:
            shared = self._known(group_id)
            return shared is not None and any(shared.pins[partition] for partition in partitions)

    def begin_assigned(
        self, group: Group, partitions: int, name: str, epochs: Mapping[int, int]
    ) -> MemberHold:
        """Begin a member's read of partitions that it has taken over.

        Raises:
            SerializationFailure: a later epoch of a partition has come since.
        """
        with self._touched(self._present, group, partitions) as shared:
            if name not in shared.members:
                raise shared.gone(name)
            for partition, epoch in epochs.items():
                shared.check_claim(partition, Claim(name, epoch))
            return shared.open(shared.members[name], dict(epochs))

    def begin_unassigned(
        self, group: Group, partitions: int, lsns: Iterable[int], nobody: int, kept: Mapping[int, int]
    ) -> None:
        """Check a commit without MEMBER: the partitions have no epoch later than the home's answer.

        Args:
            nobody: the home's epoch when it answered that the group has no members; 0: it was not asked.

        Raises:
            SerializationFailure: the group has had members; the home must be asked.
        """
        with self._touched(self._fenced, group, partitions, kept) as fence:
            for partition in lsns:
                fence.check(partition, Claim(None, nobody))

    # A group's states, under the mutex.

    def _states(self, group_id: int) -> list[GroupMembers]:
        found = self._groups.get(group_id), self._fences.get(group_id)
        return [state for state in found if state is not None]

    def _known(self, group_id: int) -> GroupMembers | None:
        """The state by which this node's own partitions are read and committed."""
        return self._fences.get(group_id) or self._groups.get(group_id)

    def _present(self, group: Group, partitions: int) -> GroupMembers:
        """`_known`, made if it was not there."""
        return self._fences.get(group.group_id) or self._assigned(group, partitions)

    def _assigned(self, group: Group, partitions: int) -> GroupMembers:
        """The members whose partitions this node assigns: those of a topic's home, or of this node alone."""
        found = self._groups.get(group.group_id)
        if found is None:
            epoch = self._clock.now_us() // 1000
            found = self._shared(GroupMembers, group, epoch, [epoch] * partitions)
            if group.group_id not in self._forgotten:
                self._groups[group.group_id] = found
        return found

    def _alone(self, group: Group, partitions: int) -> GroupMembers:
        """`_assigned`, where all partitions are on this node; others may have been the home before."""
        shared, fence = self._assigned(group, partitions), self._fences.pop(group.group_id, None)
        if fence is not None or shared.placed:
            for state in (shared, fence):
                if state is not None:
                    self._empty(state)
                    shared.epoch = max(shared.epoch, *state.epochs)
            shared.epoch = max(self._clock.now_us() // 1000, shared.epoch) + 1
            shared.epochs = [shared.epoch] * partitions
            shared.placed = 0
        return shared

    def _fenced(self, group: Group, partitions: int, kept: Mapping[int, int]) -> Fence:
        """The fence of a group: a topic's home assigns its partitions.

        Args:
            kept: partition -> highest durable epoch.
        """
        fence = self._fences.get(group.group_id)
        if fence is None:
            alone = self._groups.get(group.group_id)
            if alone is not None and not alone.placed:
                self._empty(alone)
            epochs = [kept.get(partition, 0) for partition in range(partitions)]
            fence = self._shared(Fence, group, 0, epochs)
            if group.group_id not in self._forgotten:
                self._fences[group.group_id] = fence
        return fence

    def _shared(self, kind: type[S], group: Group, epoch: int, epochs: list[int]) -> S:
        # Uncommitted changes are visible to their transaction only.
        known = self.committed(group) or group
        # Read numbers begin at the clock's time, so that they rise over a restart, as epochs do.
        state = kind(known, epoch, [None] * len(epochs), epochs, ReadPositions(self._clock.now_us()))
        for other in self._states(group.group_id):
            # What commits keep of a partition stays kept when the group gets another coordinator.
            state.pins = other.pins
        return state

    # Shared steps, under the mutex.

    @contextmanager
    def _touched(self, find: Callable[P, S], *args: P.args, **kwargs: P.kwargs) -> Iterator[S]:
        """The state of a group that `find` returns, without members that have timed out."""
        changed: Set[tuple[int, str]] = NOBODY
        try:
            with self._mutex:
                shared = find(*args, **kwargs)
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
    def _settled(self, shared: GroupMembers) -> Iterator[None]:
        """Free partitions of the group are handed over afterwards."""
        with self._mutex:
            yield
            for state in [shared, *self._states(shared.group.group_id)]:
                self._settle(state)
            changed = self._take_changed()
        self._tell(changed)

    def _join(self, shared: GroupMembers, name: str, user: str) -> Member:
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

    def _expire(self, shared: GroupMembers) -> None:
        """Remove the members that have timed out."""
        if shared.members:
            self._remove(shared, shared.timed_out(self._clock.monotonic_s()))

    def _remove(self, shared: GroupMembers, names: Set[str]) -> None:
        if not names:
            return
        for name in names:
            del shared.members[name]
            shared.positions.forget(name)
            self._changed.append((shared.group.group_id, name))
        shared.owners = [None if owner in names else owner for owner in shared.owners]
        shared.plan()

    def _empty(self, shared: GroupMembers) -> None:
        """Drop all members and their read positions."""
        for name in shared.members:
            shared.positions.forget(name)
            self._changed.append((shared.group.group_id, name))
        shared.members.clear()
        shared.moving.clear()
        shared.owners = [None] * len(shared.owners)

    def _settle(self, shared: GroupMembers) -> None:
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
                shared.positions.lose(owner, partition)
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
        """Call `on_change` for each member, outside the mutex, because a waiting read may return at once."""
        for group_id, name in changed:
            self.on_change(group_id, name)


def _is_live(hold: MemberHold) -> bool:
    """False if the hold's member has been removed."""
    return hold.shared.members.get(hold.member.name) is hold.member


def _check_name(name: str) -> None:
    """Refuse a name that is empty or too long."""
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise InvalidParameterValue(
            f"a member's name must have 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
        )
