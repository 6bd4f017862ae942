"""How the events of a topic's reads were shared among its owners: what each is asked for at first.

An answer of n events has them from several owners, and nobody knows beforehand how many from which. Asking
each for all n costs as many times more than is given as there are owners. What comes next is mostly as what
came last: owners fill evenly, or a long transaction of one of them is read through.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.placement.placement import Placement
from .owners import Owners

# Asked for beyond the last share, in parts of it and in events: an even load varies by less.
SPARE, SPARE_ROWS = 1.25, 16
# In steps of so many: what is asked again in the same words is read once.
STEP_ROWS = 32
# Topics of which a session remembers it.
TOPICS_MAX = 64


@dataclass(slots=True)
class Habit:
    """Of one topic.

    Args:
        shares: node -> its part of the end of the last answer, 0 to 1.
    """

    shares: dict[str, float] = field(default_factory=dict)

    def first(self, node: str, owners: int, limit: int) -> int:
        """How many events an owner is asked for at first."""
        share = self.shares.get(node, 1 / owners)
        rows = int(limit * share * SPARE) + SPARE_ROWS
        return min(limit, -(-rows // STEP_ROWS) * STEP_ROWS)

    def gave(self, latest: dict[str, int], events: int, limit: int) -> None:
        """How many of the last events of an answer were whose; and how many events it had."""
        if events == limit:
            every = sum(latest.values())
            self.shares = {node: count / every for node, count in latest.items()}


class Habits:
    """What a session remembers of the topics that have several owners."""

    def __init__(self) -> None:
        self._habits: dict[int, Habit] = {}
        self._placement: Placement | None = None
        self._owners: dict[tuple[str, str, int], Owners] = {}

    def under(self, placement: Placement) -> dict[tuple[str, str, int], Owners]:
        """The owners of topics (schema, name and partitions) that were looked up in a placement."""
        if self._placement is not placement or len(self._owners) >= TOPICS_MAX:
            self._placement, self._owners = placement, {}
        return self._owners

    def of(self, stream_id: int) -> Habit:
        """That of a topic."""
        while len(self._habits) >= TOPICS_MAX and stream_id not in self._habits:
            self._habits.pop(next(iter(self._habits)))
        return self._habits.setdefault(stream_id, Habit())
