"""The interface of a session to the other nodes of a cluster: sessions there, the directory, definitions.

The gateway has the connections (pgwire_gateway/peers); a session in process has none, and all that it
reads is its own. Source: docs/design/cluster.md, "Forwarding".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ...engine.errors import ConnectionRefused, DucktailError, SerializationFailure
from ...engine.placement.membership import Membership
from ...engine.placement.placement import Node
from ..results.notices import Notice

# (schema, name) of a stream or topic, in small letters.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A peer's answer to one request.

    Args:
        frames: see `peer_frames.py`.
        notices: what its session was told meanwhile.
    """

    frames: tuple[bytes, ...]
    notices: tuple[Notice, ...] = ()


class Link(Protocol):
    """A session at another node; every method may be called from any thread.

    Requests are answered one after the other, in their order.
    """

    @property
    def node(self) -> Node:
        """The node of the link."""

    @property
    def epoch(self) -> int:
        """That of the placement in force here when the connection was made: the peer holds it to that."""

    @property
    def lost(self) -> bool:
        """True if the connection is lost: a new link is needed."""

    def ask(self, request: bytes) -> Future[Reply]:
        """Send a request.

        The future's error is a DucktailError: the peer's own, as it told it, or ConnectionLost (08006)
        where the connection broke or the peer fell silent.
        """

    def cancel(self, reply: Future[Reply]) -> None:
        """End the request that this reply is to; harmless where it has been answered."""

    def release(self) -> None:
        """Its session is over: the connection goes back to the pool, or ends."""


class Remote(Protocol):
    """The other nodes, for all sessions of a server; every method may be called from any thread."""

    @property
    def cluster(self) -> Membership:
        """The placement in force, and the counters."""

    @property
    def version(self) -> int:
        """Another number whenever the directory has changed."""

    def link(self, node: Node, user: str | None) -> Future[Link]:
        """A session at a node, for one that is open here.

        Args:
            user: whose rights it has there; None: the rights of the node's own user.

        The future's error is CannotConnect (08001), within the connect time-out, or ConnectionRefused
        (08004), the node is of another cluster.
        """

    def known(self, key: Key) -> Node | None:
        """The node that has a stream, as far as the directory knows."""

    def look(self, keys: Iterable[Key]) -> Future[Mapping[Key, Node]]:
        """Ask all other nodes which of them has these streams; unknown streams are omitted.

        The future's error is WrongState (55000), two nodes have streams of one name; CannotConnect (08001),
        none that answers has it, and one does not answer.
        """

    def forget(self, key: Key) -> None:
        """Forget the directory's entry for a stream."""


# (schema, topic) and, of a group, its name.
Path = tuple[str, ...]


@dataclass(slots=True)
class Learned:
    """The result of learning.

    Args:
        made: how many topics and groups.
        away: node -> why it has not told what it has.
        failed: definition -> why it could not be made here.
    """

    made: int = 0
    away: dict[str, DucktailError] = field(default_factory=dict)
    failed: dict[Path, DucktailError] = field(default_factory=dict)

    def told(self) -> Iterator[str]:
        """The failures, one sentence each."""
        for node, error in sorted(self.away.items()):
            yield f'Node "{node}" has not told what it has: {error.message}.'
        for path, error in sorted(self.failed.items()):
            yield f'"{path[-1]}" is not made here: {error.message}.'


def still_missing(cluster: Membership, error: DucktailError) -> DucktailError:
    """The error of a name that is not here even now: as long as not all have been asked, it may be there.

    Returns:
        SerializationFailure: 40001, tried again it may be here. ConnectionRefused: 08004, this node has left
        the cluster. Or the same error.
    """
    if cluster.has_left:
        return ConnectionRefused(
            f'node "{cluster.placement.local.name}" has left the cluster and does not have all of its '
            f"definitions: {error}",
            hint="Connect to a node of the cluster; SHOW NODES lists them.",
        )
    if not cluster.lacks:
        return error
    return SerializationFailure(
        f'node "{cluster.placement.local.name}" does not have all definitions of the cluster yet: {error}',
        detail=" ".join(cluster.lacking) or None,
        hint="Try again when all nodes are there; SHOW NODES lists them.",
    )
