"""How many sessions there are, whose they are, and whether there is room for one more.

Nodes of the cluster come with sessions for their own clients. Without a bound one node could take all
connections here, and without a reserve the clients here could keep every other node out. So each other node
has some that nobody else gets, and at most so many in all:

    clients + the sum over the nodes of max(its sessions, its reserve) <= max_connections

Source: docs/cluster.md, "Statements about another node's streams".
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection

from ...engine.errors import TooManyConnections
from ...engine.settings import Settings


class Admission:
    """See the head of the file; safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mutex = threading.Lock()
        self._clients = 0
        self._of_node: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many sessions there are."""
        return self._clients + self._of_node.total()

    def enter(self, node: str | None, others: Collection[str]) -> None:
        """Count a session more.

        Args:
            node: the node that comes; None: a client.
            others: the other nodes of the cluster.

        Raises:
            TooManyConnections: 53300, there is no room.
        """
        with self._mutex:
            self._check(node, others)
            if node is None:
                self._clients += 1
            else:
                self._of_node[node] += 1

    def _check(self, node: str | None, others: Collection[str]) -> None:
        most, mine = self._settings.max_connections, 0 if node is None else self._of_node[node]
        if node is not None and mine >= self._settings.peer_connections_max:
            raise TooManyConnections(
                f'node "{node}" has {mine} connections here already',
                hint="peer_connections_max says how many a node may have.",
            )
        # Half of all are the clients' at least, however many are reserved.
        reserve = min(self._settings.peer_connections_reserved, most // 2) // max(1, len(others))
        if node in others and mine < reserve:
            return
        held = sum(max(self._of_node[other], reserve) for other in others)
        held += sum(count for other, count in self._of_node.items() if other not in others)
        if self._clients + held < most:
            return
        if self.count < most:
            raise TooManyConnections(
                "remaining connection slots are reserved for the nodes of the cluster",
                hint="peer_connections_reserved says how many.",
            )
        raise TooManyConnections("sorry, too many clients already")

    def leave(self, node: str | None) -> None:
        """A session that was counted is over."""
        with self._mutex:
            if node is None:
                self._clients -= 1
            else:
                self._of_node[node] -= 1
                if not self._of_node[node]:
                    del self._of_node[node]
