"""Members of groups on topics of several nodes: the coordinator at the topic's home, fencing at the owners.

The coordinator says who is a member and has which partitions, by the rules of `members.py`. Nothing is read
or committed there: reads and commits are told from outside, before and after. While one is under way its
member holds the partitions, for `session_timeout` at most: a node that tells of nothing any more keeps nobody
waiting.

An owner lets in what comes with the epochs that the coordinator has given out. It keeps the highest epoch of
each partition that it has seen: what comes under an older one is 40001, whatever has become of the home. A
later one is taken over in this order: from then on nobody is let in with an older one; the commits that were
let in before are waited for; the epoch is durable (`member.py`); and only then is the committed LSN
looked at from which its member reads. Time does not end such members at an owner: who is gone is known by
whom the partition comes to next. Of a stream of one node alone the node is its own coordinator.
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
    """See the head of the file; safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # Of groups on spread topics whose home this node is.
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
        """This node says who has what: all partitions have come to it."""
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
        """The home says who has what.

        Args:
            kept: partition -> the highest epoch that is durable.
        """
        if not shared.remote_coordinator:
            self._start_anew(shared, remote_coordinator=True)
            shared.epochs = [kept.get(partition, 0) for partition in range(len(shared.owners))]

    # What comes with the home's word.

    def take_over(
        self,
        group: Group,
        partitions: int,
        name: str,
        user: str,
        epochs: Mapping[int, int],
        kept: Mapping[int, int],
    ) -> dict[int, int]:
        """A member comes with partitions that the home has assigned to it.

        Args:
            kept: partition -> the highest epoch that is durable.

        Returns:
            Partition -> epoch of those whose epoch is later than the durable one.

        Raises:
            SerializationFailure: 40001, somebody has come with a later epoch; nothing is taken over.
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
        """A partition has come from another node, which let nobody in any more under an older epoch."""
        with self._mutex:
            shared = self._groups.get(group_id)
            if shared is None or not shared.remote_coordinator or epoch <= shared.epochs[partition]:
                return  # What is durable is looked up when the home next says who has what.
            before = shared.owners[partition]
            if before is not None:
                self._positions.lose((group_id, before), partition)
            shared.owners[partition], shared.epochs[partition] = None, epoch

    def is_pinned(self, group_id: int, partitions: Iterable[int]) -> bool:
        """Whether commits of some of these partitions are under way."""
        with self._mutex:
            shared = self._groups.get(group_id)
            return shared is not None and any(shared.pins[partition] for partition in partitions)

    def begin_assigned(
        self, group: Group, partitions: int, name: str, epochs: Mapping[int, int]
    ) -> MemberHold:
        """A member reads what it has taken over.

        Raises:
            SerializationFailure: 40001, somebody has come with a later epoch since.
        """
        with self._touched(group, partitions) as shared:
            for partition, epoch in epochs.items():
                self._check(shared, partition, Claim(name, epoch))
            member = shared.members[name]
            return self._open(group.group_id, member, dict(epochs), self._positions.begin())

    def begin_unassigned(
        self, group: Group, partitions: int, lsns: Iterable[int], nobody: int, kept: Mapping[int, int]
    ) -> None:
        """A commit without MEMBER comes in.

        Args:
            nobody: an epoch of the home's under which it has said that there are no members; 0: it was not
                asked.

        Raises:
            SerializationFailure: 40001, there have been members: the home is to be asked.
        """
        with self._touched(group, partitions) as shared:
            self._known(shared, kept)
            for partition in lsns:
                self._check(shared, partition, Claim(None, nobody))

    # What of the rules is another then.

    def _known_of(self, shared: Shared, hold: MemberHold, seeks: int) -> Mapping[int, int]:
        # Several connections of the member may read at once, and the home has heard of them in another order
        # than this node: it says how far a commit goes, and this node whether it has given so much.
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

    # Both.

    def shown(self, group: Group, partitions: int) -> list[Shown]:
        """See Members; of a spread topic's group, what its home knows."""
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
        # By this the home learns of epochs that another one has given out.
        detail=f"Epoch {shared.epochs[partition]} of it is known. Nothing was committed.",
        hint="Read again: what was not committed comes again, to who has its partition now.",
    )


def epoch_told(error: SerializationFailure) -> int | None:
    """The later epoch that an owner knows of, where that is why it has refused."""
    words = (error.detail or "").split()
    return int(words[1]) if words[:1] == ["Epoch"] and words[1].isdigit() else None


class Coordinator(Members):
    """See the head of the file; safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # So that numbers of reads rise over a restart, as epochs do.
        self._positions = ReadPositions(clock.now_us())

    def under(self, group: Group, partitions: int, placement: int) -> None:
        """What comes now is asked under the placement of this epoch.

        Where another may have been in force in between, another node may have been the home: members of
        before it are none any more, nor is what they had read then.
        """
        with self._touched(group, partitions) as shared:
            if shared.placed and placement > shared.placed + 1:
                self._empty(shared)
                shared.epoch = max(self._clock.now_us() // 1000, shared.epoch + 1)
            shared.placed = max(placement, shared.placed)

    def reading(self, hold: MemberHold, before: Iterable[MemberHold]) -> None:
        """A read that can give events is under way: what it has given is not known until it is told.

        Args:
            before: what is held by other reads of the same connection.
        """
        with self._mutex:
            # What it does not know of these, or of what has ended, comes again with this read.
            earlier = {one.read for one in before}
            untold = hold.member.untold
            under_way = {n: one for n, one in untold.items() if n not in earlier and not one.ended}
            hold.member.untold = {**under_way, hold.read: hold}

    def told(self, hold: MemberHold) -> None:
        """What has become of a read is known."""
        with self._mutex:
            hold.member.untold.pop(hold.read, None)

    def check_told(self, group: Group, partitions: int, name: str, own: int | None) -> None:
        """A member's read position is to be committed: what was given last is to be known.

        A link or a placement may have ended before it was told: the position of before is less than the
        client was given. Another connection of the member that reads meanwhile is in nobody's way.

        Args:
            own: the latest read of the connection that commits; None where that is not known.

        Raises:
            WrongState: 55000, it is not known.
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
        """A commit is over, and this much of it is durable: its member holds that no more."""
        with self._settled(group_id) as shared:
            if shared is not None and commit.hold is not None and self._live(commit.hold) is not None:
                self._committed(shared, commit.claims, lsns)

    def nobody(self, group: Group, partitions: int) -> int:
        """That the group has no members: whoever becomes one gets partitions under a higher epoch than this.

        Raises:
            WrongState: 55000, it has some.
        """
        with self._touched(group, partitions) as shared:
            shared.check_no_members()
            return shared.epoch

    def passed(self, group: Group, partitions: int, epoch: int) -> None:
        """An owner knows of a later epoch than this node has given out: all partitions get a later one still.

        So it is where another node was the home before, or this node's clock was set back between two starts.
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
                    # The rest of it alone would be less than its member was given.
                    self._positions.void((group.group_id, owner), GIVEN_ANEW)

    def everybody(self, group: Group, partitions: int) -> tuple[list[Shown], list[str | None]]:
        """The members of a group, by name, and who has each partition."""
        with self._touched(group, partitions) as shared:
            return shared.shown(), list(shared.owners)
