"""The owners of a topic's partitions, the distribution of its reads over them, and members' holds.

An answer of n events comes from several owners, and their shares are not known in advance. Requesting all n
from each owner would multiply the cost by the number of owners. The next answer is usually distributed like
the last one, because the owners' partitions fill evenly, or because one owner's long transaction is being
read. Each owner is therefore first asked for its previous share.

The holds are those of a topic's home, for members' reads and commits that other nodes execute.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...engine.groups.member import CommitRight, MemberHold
from ...engine.groups.members import Members
from ...engine.placement.placement import Placement


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of a topic's partitions under the placement in force.

    Args:
        local: this node's name.
        partitions: node -> its partitions, for each node that has one.
        nodes: the owner of each partition, in their order.
    """

    epoch: int
    local: str
    home: str
    partitions: Mapping[str, tuple[int, ...]]
    nodes: tuple[str, ...]

    @property
    def remote(self) -> dict[str, tuple[int, ...]]:
        """The other owners."""
        return {node: own for node, own in self.partitions.items() if node != self.local}

    def of(self, partition: int) -> str:
        """The owner of a partition."""
        return self.nodes[partition]

    @property
    def single(self) -> bool:
        """True if one node has all partitions, so that LSNs increase over the whole topic."""
        return len(self.partitions) == 1


# Asked for beyond the last share, in parts of it and in events: an even load varies by less.
SPARE, SPARE_ROWS = 1.25, 16
# In steps of so many: what is asked again in the same words is read once.
STEP_ROWS = 32
# Topics of which a session remembers it.
TOPICS_MAX = 64


@dataclass(slots=True)
class ReadEstimate:
    """The distribution of a topic's reads over its owners.

    Args:
        shares: node -> its fraction of the end of the last answer, 0 to 1.
    """

    shares: dict[str, float] = field(default_factory=dict)

    def first(self, node: str, owners: int, limit: int) -> int:
        """The number of events that an owner is asked for at first."""
        share = self.shares.get(node, 1 / owners)
        rows = int(limit * share * SPARE) + SPARE_ROWS
        return min(limit, -(-rows // STEP_ROWS) * STEP_ROWS)

    def gave(self, latest: dict[str, int], events: int, limit: int) -> None:
        """Record how many of the last events of an answer each owner had, and the size of the answer."""
        if events == limit:
            every = sum(latest.values())
            self.shares = {node: count / every for node, count in latest.items()}


class OwnerCache:
    """The read history of a session's topics with several owners."""

    def __init__(self) -> None:
        self._estimates: dict[int, ReadEstimate] = {}
        self._placement: Placement | None = None
        self._owners: dict[tuple[str, str, int], Owners] = {}

    def under(self, placement: Placement) -> dict[tuple[str, str, int], Owners]:
        """The owners of topics (schema, name and partitions) that were looked up in a placement."""
        if self._placement is not placement or len(self._owners) >= TOPICS_MAX:
            self._placement, self._owners = placement, {}
        return self._owners

    def of(self, stream_id: int) -> ReadEstimate:
        """The read history of a topic."""
        while len(self._estimates) >= TOPICS_MAX and stream_id not in self._estimates:
            self._estimates.pop(next(iter(self._estimates)))
        return self._estimates.setdefault(stream_id, ReadEstimate())


# Over all sessions and restarts: what an ended connection was given means nothing on the next one.
_NUMBERS = itertools.count(secrets.randbits(48))


class Holds:
    """The holds of one session's reads and commits, by number; they end with the session."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._held: dict[int, tuple[MemberHold, CommitRight | None]] = {}

    def __iter__(self) -> Iterator[MemberHold]:
        """The present holds."""
        return iter([hold for hold, _ in self._held.values()])

    def add(self, hold: MemberHold, commit: CommitRight | None = None) -> int:
        """Add a hold at the beginning of a read or commit; returns its number."""
        number = next(_NUMBERS)
        self._held[number] = hold, commit
        return number

    def get(self, number: int) -> tuple[MemberHold, CommitRight | None] | None:
        """The hold with a number; None if it has ended."""
        return self._held.get(number)

    def end(self, number: int) -> None:
        """End a hold."""
        found = self._held.pop(number, None)
        if found is not None:
            self._members.end(found[0])

    def close(self) -> None:
        """End all holds."""
        for number in list(self._held):
            self.end(number)
