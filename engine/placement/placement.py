"""Who owns what: the small protocol that everything else asks, and the answer of a single node.

A topic's partitions lie where the placement says; a stream on a table has its partitions where the table
is, so nobody asks for them here. `file.py` has the placement that a cluster.toml says.
Source: docs/cluster.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .node import LOCAL, Node
from .rules import Rule


class Placement(Protocol):
    """A placement of all topics' partitions; never changes: a newer one takes its place."""

    @property
    def epoch(self) -> int:
        """Which placement it is: the higher one is the newer; 0 where there is no cluster."""

    @property
    def cluster(self) -> str:
        """The cluster's name; "" where there is none."""

    @property
    def local(self) -> Node:
        """This node."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, this one among them, by name."""

    @property
    def users(self) -> str | None:
        """The file that says who may come in on all nodes; None: each node's users are its own."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What it says, in the order in which it is asked."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Former nodes whose database files are lost: what they had is given up."""

    @property
    def digest(self) -> str:
        """A hash of what it says, the same on all nodes: two of one epoch must have one digest."""

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """The node that owns a partition of a topic.

        Raises:
            WrongState: 55000, no node owns it.
        """

    def home(self, schema: str, stream: str) -> Node:
        """The node where a topic's definition and its groups' coordination live: that of partition 0.

        Raises:
            WrongState: 55000, no node owns it.
        """

    def moves_from(self, old: Placement) -> int:
        """How many partitions that the placement names have another owner than in an older one."""


@dataclass(frozen=True, slots=True)
class LocalPlacement:
    """One node, which owns everything."""

    local: Node = LOCAL
    epoch: int = 0
    cluster: str = ""
    digest: str = ""
    users: str | None = None
    lost: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """See Placement."""
        return (self.local,)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """See Placement."""
        return (Rule("*", (self.local.name,)),)

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """See Placement."""
        return self.local

    def home(self, schema: str, stream: str) -> Node:
        """See Placement."""
        return self.local

    def moves_from(self, old: Placement) -> int:
        """See Placement."""
        return 0
