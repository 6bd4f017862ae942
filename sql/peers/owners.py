"""Who owns the partitions of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owners:
    """Who owns a topic's partitions under the placement in force.

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
        """Those of the other nodes."""
        return {node: own for node, own in self.partitions.items() if node != self.local}

    def of(self, partition: int) -> str:
        """Who owns a partition."""
        return self.nodes[partition]

    @property
    def single(self) -> bool:
        """Whether one node has them all: its LSNs rise over the whole topic."""
        return len(self.partitions) == 1
