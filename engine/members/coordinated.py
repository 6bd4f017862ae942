"""Members of groups on topics that are spread over nodes, at the topic's home: who is to have what.

The rules are those of `members.py`. What differs is that nothing is read or committed here: reads and
commits are told from outside, before and after. While one is under way its member holds the partitions, for
`session_timeout` at most: a node that tells of nothing any more keeps nobody waiting. That a member whose
time is out commits nothing, the owners of the partitions see to, by the epochs that are given out here
(`assigned.py`). Source: docs/design/cluster.md, "Members".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..clock import Clock
from ..errors import WrongState
from ..offsets.read_positions import ReadPositions
from ..quoting import literal
from ..streams.streams import Group
from .member import Commit, Hold, Shown
from .members import GIVEN_ANEW, Members


class Coordinated(Members):
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

    def reading(self, hold: Hold, before: Iterable[Hold]) -> None:
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

    def told(self, hold: Hold) -> None:
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

    def is_committed(self, group_id: int, commit: Commit, lsns: Mapping[int, int]) -> None:
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
