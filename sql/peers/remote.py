"""The interface of a session to the other nodes of a cluster: sessions there, the directory, definitions.

The gateway has the connections (pgwire_gateway/peers). A session in process has none, and reads only its own
database. Source: docs/design/cluster.md, "Forwarding".
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
        frames: the frames of the reply, see `peer_frames.py`.
        notices: the notices that its session received meanwhile.
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
        """The epoch of the placement in force on this node when the connection was opened, by which the peer
        judges its requests."""

    @property
    def lost(self) -> bool:
        """True if the connection is lost: a new link is needed."""

    def ask(self, request: bytes) -> Future[Reply]:
        """Send a request.

        The future's error is a DucktailError: the peer's own error, or ConnectionLost if the connection broke
        or the peer stopped answering.
        """

    def cancel(self, reply: Future[Reply]) -> None:
        """Cancel the request of this reply; no effect after the answer."""

    def release(self) -> None:
        """Return the connection to the pool, or close it, because the session ends."""


class Remote(Protocol):
    """The other nodes, for all sessions of a server; every method may be called from any thread."""

    @property
    def cluster(self) -> Membership:
        """The placement in force, and the counters."""

    @property
    def version(self) -> int:
        """A number that changes whenever the directory changes."""

    def link(self, node: Node, user: str | None) -> Future[Link]:
        """Open a session at a node, for a session of this node.

        Args:
            user: the user whose rights it has there; None for the rights of the node's own user.

        The future's error is CannotConnect, at the latest after the connect timeout, or ConnectionRefused if
        the node belongs to another cluster.
        """

    def known(self, key: Key) -> Node | None:
        """The node that has a stream, as far as the directory knows."""

    def look(self, keys: Iterable[Key]) -> Future[Mapping[Key, Node]]:
        """Ask all other nodes which of them has these streams; unknown streams are omitted.

        The future's error is WrongState if two nodes have streams of one name, or CannotConnect if no node
        that answers has a stream and some node does not answer.
        """

    def forget(self, key: Key) -> None:
        """Forget the directory's entry for a stream."""


# (schema, topic) and, of a group, its name.
Path = tuple[str, ...]


@dataclass(slots=True)
class Learned:
    """The result of learning.

    Args:
        made: the number of created topics and groups.
        away: node -> the error for which its definitions are unknown.
        failed: definition -> the error for which it could not be created on this node.
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
    """The error for a name that is still missing: until all nodes have been asked, the name may exist.

    Returns:
        SerializationFailure if a retry may find the name, ConnectionRefused if this node has left the
        cluster, otherwise the same error.
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
