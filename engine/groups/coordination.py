"""Members of groups on topics of several nodes: the coordinator at the topic's home, fencing at the owners.

The coordinator keeps the members and their partitions, by the rules of `members.py`. It neither reads nor
commits: nodes report each read and each commit before it begins and after it ends. While one is under way its
member holds the partitions, for `session_timeout` at most, so a node that stops reporting blocks nobody.

An owner accepts requests under the epochs that the coordinator has given out. It keeps the highest epoch that
it has seen of each partition, and refuses a request under an older one with SerializationFailure, whatever
the state of the home. It takes over a later epoch in this order: it refuses older epochs from then on; it
waits for the commits that it has accepted before; it makes the epoch durable (`member.py`); and only then it
looks up the committed LSN from which the member reads. Members do not time out at an owner: it learns that a
member is gone when the partition comes to the next one. The node of a stream that is on one node alone is its
own coordinator.
Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..catalog.streams import Group
from ..clock import Clock
from ..errors import SerializationFailure, WrongState
from ..quoting import literal
from .member import Claim, CommitRight, Member, MemberHold, Shown
from .members import GIVEN_ANEW, Members, Shared
from .read_positions import ReadPositions


class FencedMembers(Members):
    """The members of groups at an owner; safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # For groups on the spread topics whose home is this node.
        self.coordinator = Coordinator(clock)

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
        """See Members."""
        self._by_itself(group, partitions)
        return super().begin_read(group, partitions, name, user, wanted, gives=gives, joins=joins)

    def check_none(self, group: Group, partitions: int) -> None:
        """See Members."""
        self._by_itself(group, partitions)
        super().check_none(group, partitions)

    def _by_itself(self, group: Group, partitions: int) -> None:
        """Make this node the coordinator of a group: all its partitions have come to it."""
        shared = self._groups.get(group.group_id)
        if shared is None or not shared.remote_coordinator:
            return
        with self._touched(group, partitions) as shared:
            self._start_anew(shared, remote_coordinator=False)
            shared.epoch = max(self._clock.now_us() // 1000, *shared.epochs) + 1
            shared.epochs = [shared.epoch] * partitions

    def _start_anew(self, shared: Shared, *, remote_coordinator: bool) -> None:
        self._empty(shared)
        shared.remote_coordinator = remote_coordinator

    def _known(self, shared: Shared, kept: Mapping[int, int]) -> None:
        """Make the topic's home the coordinator of a group.

        Args:
            kept: partition -> highest durable epoch.
        """
        if not shared.remote_coordinator:
            self._start_anew(shared, remote_coordinator=True)
            shared.epochs = [kept.get(partition, 0) for partition in range(len(shared.owners))]

    # Requests under the home's epochs.

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
        with self._touched(group, partitions) as shared:
            self._known(shared, kept)
            for partition, epoch in epochs.items():
                known, owner = shared.epochs[partition], shared.owners[partition]
                if epoch < known or (epoch == known and owner not in (None, name)):
                    raise _stale(shared, name, partition)
            member = shared.members.get(name)
            if member is None:
                now_us = self._clock.now_us()
                member = Member(name, user, 0, now_us, now_us, self._clock.monotonic_s())
                shared.members[name] = member
            self._heard(member, user)
            for partition, epoch in epochs.items():
                before = shared.owners[partition]
                if before is not None and (before != name or shared.epochs[partition] != epoch):
                    self._positions.lose((group.group_id, before), partition)
                shared.owners[partition], shared.epochs[partition] = name, epoch
                member.epoch = max(member.epoch, epoch)
            for other in [other for other in shared.members if other not in shared.owners]:
                del shared.members[other]
                self._positions.forget((group.group_id, other))
            return {p: epoch for p, epoch in epochs.items() if epoch > kept.get(p, 0)}

    def came(self, group_id: int, partition: int, epoch: int) -> None:
        """Note the epoch of a partition that has come from another node, which refused older epochs."""
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None or not shared.remote_coordinator or epoch <= shared.epochs[partition]:
                return  # The home's next assignment looks up the durable epochs.
            before = shared.owners[partition]
            if before is not None:
                self._positions.lose((group_id, before), partition)
            shared.owners[partition], shared.epochs[partition] = None, epoch

    def is_pinned(self, group_id: int, partitions: Iterable[int]) -> bool:
        """True if a commit of one of these partitions is under way."""
        with self._mutex:
            shared = self._groups.get(group_id)
            return shared is not None and any(shared.pins[partition] for partition in partitions)

    def begin_assigned(
        self, group: Group, partitions: int, name: str, epochs: Mapping[int, int]
    ) -> MemberHold:
        """Begin a member's read of partitions that it has taken over.

        Raises:
            SerializationFailure: a later epoch of a partition has come since.
        """
        with self._touched(group, partitions) as shared:
            for partition, epoch in epochs.items():
                self._check(shared, partition, Claim(name, epoch))
            member = shared.members[name]
            return self._open(group.group_id, member, dict(epochs), self._positions.begin())

    def begin_unassigned(
        self, group: Group, partitions: int, lsns: Iterable[int], nobody: int, kept: Mapping[int, int]
    ) -> None:
        """Check a commit without MEMBER: the partitions have no epoch later than the home's answer.

        Args:
            nobody: the home's epoch when it answered that the group has no members; 0: it was not asked.

        Raises:
            SerializationFailure: the group has had members; the home must be asked.
        """
        with self._touched(group, partitions) as shared:
            self._known(shared, kept)
            for partition in lsns:
                self._check(shared, partition, Claim(None, nobody))

    # Rules that differ at an owner.

    def _known_of(self, shared: Shared, hold: MemberHold, seeks: int) -> Mapping[int, int]:
        # Several connections of the member may read at once, and their reads may reach the home in another
        # order than this node. The home decides how far a commit goes; this node checks that it has given as
        # much.
        return (
            self._positions.lsns((hold.group_id, hold.member.name), seeks)
            if shared.remote_coordinator
            else {}
        )

    def _check(self, shared: Shared, partition: int, claim: Claim) -> None:
        if not shared.remote_coordinator:
            super()._check(shared, partition, claim)
        elif claim.member is not None:
            shared.check_claim(partition, claim)
        elif shared.epochs[partition] > claim.epoch:
            raise SerializationFailure(
                f'consumer group "{shared.group.name}" has got members since',
                detail=f"Epoch {shared.epochs[partition]} of it is known. Nothing was committed.",
                hint="Say MEMBER 'm' in the read and in the commit; SHOW MEMBERS lists them.",
            )

    def _expire(self, shared: Shared) -> None:
        if not shared.remote_coordinator:
            super()._expire(shared)

    def _remove(self, shared: Shared, names: Iterable[str]) -> None:
        if not shared.remote_coordinator:
            super()._remove(shared, frozenset(names))

    # Views of both coordinators.

    def shown(self, group: Group, partitions: int) -> list[Shown]:
        """See Members; of a spread topic's group, the members at its home."""
        there = self.coordinator.shown(group, partitions)
        return (
            there
            if there or self._has_remote_coordinator(group.group_id)
            else super().shown(group, partitions)
        )

    def owners(self, group: Group, partitions: int) -> list[str | None]:
        """See Members; as `shown`."""
        there = self.coordinator.owners(group, partitions)
        return (
            there
            if any(there) or self._has_remote_coordinator(group.group_id)
            else super().owners(group, partitions)
        )

    def glimpse(self, group_id: int) -> int:
        """See Members; as `shown`."""
        there = self.coordinator.glimpse(group_id)
        return there if there or self._has_remote_coordinator(group_id) else super().glimpse(group_id)

    def _has_remote_coordinator(self, group_id: int) -> bool:
        shared = self._groups.get(group_id)
        return shared is not None and shared.remote_coordinator

    def altered(self, changed: Group) -> None:
        """See Members."""
        super().altered(changed)
        self.coordinator.altered(changed)

    def forget(self, group_ids: Iterable[int]) -> None:
        """See Members."""
        gone = list(group_ids)
        super().forget(gone)
        self.coordinator.forget(gone)


def _stale(shared: Shared, name: str, partition: int) -> SerializationFailure:
    return SerializationFailure(
        f'member {literal(name)} of consumer group "{shared.group.name}" does not own partition {partition}',
        # The home reads the detail (`epoch_told`): it learns of epochs that another home has given out.
        detail=f"Epoch {shared.epochs[partition]} of it is known. Nothing was committed.",
        hint="Read again: what was not committed comes again, to who has its partition now.",
    )


def epoch_told(error: SerializationFailure) -> int | None:
    """The later epoch because of which an owner has refused a request; None for another error."""
    words = (error.detail or "").split()
    return int(words[1]) if words[:1] == ["Epoch"] and words[1].isdigit() else None


class Coordinator(Members):
    """The members of groups at a topic's home; safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # Read numbers begin at the clock's time, so that they rise over a restart, as epochs do.
        self._positions = ReadPositions(clock.now_us())

    def under(self, group: Group, partitions: int, placement: int) -> None:
        """Note the epoch of the placement under which requests come now.

        Where a placement in between may have been in force, another node may have been the home: the members
        from before it and their read positions are dropped.
        """
        with self._touched(group, partitions) as shared:
            if shared.placed and placement > shared.placed + 1:
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
            own: number of the latest read of the committing connection; None where it is unknown.

        Raises:
            WrongState: the outcome of a read is unknown.
        """
        with self._touched(group, partitions) as shared:
            member = shared.members.get(name)
            untold = {} if member is None else member.untold
            if any(own is None or read == own or (read > own and it.ended) for read, it in untold.items()):
                raise WrongState(
                    f'the home of consumer group "{group.name}" does not know what the latest read of '
                    f"member {literal(name)} has given",
                    detail="Nothing was committed.",
                    hint="Read again: what was not committed comes again.",
                )

    def is_committed(self, group_id: int, commit: CommitRight, lsns: Mapping[int, int]) -> None:
        """Note the durable part of a commit that is over: its member no longer holds those events."""
        with self._settled(group_id) as shared:
            if shared is not None and commit.hold is not None and self._live(commit.hold) is not None:
                self._committed(shared, commit.claims, lsns)

    def nobody(self, group: Group, partitions: int) -> int:
        """The epoch of a group without members; a later member gets partitions under a higher epoch.

        Raises:
            WrongState: the group has members.
        """
        with self._touched(group, partitions) as shared:
            shared.check_no_members()
            return shared.epoch

    def passed(self, group: Group, partitions: int, epoch: int) -> None:
        """Give all partitions a later epoch than one that an owner knows and this node has not given out.

        That occurs where another node was the home before, or this node's clock was set back between two
        starts.
        """
        with self._touched(group, partitions) as shared:
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
                    self._positions.void((group.group_id, owner), GIVEN_ANEW)

    def everybody(self, group: Group, partitions: int) -> tuple[list[Shown], list[str | None]]:
        """The members of a group, by name, and the owner of each partition."""
        with self._touched(group, partitions) as shared:
            return shared.shown(), list(shared.owners)
