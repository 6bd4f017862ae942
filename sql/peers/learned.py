"""The result of learning definitions from the other nodes, and the interface of the learner."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ...engine.errors import ConnectionRefused, DucktailError, SerializationFailure
from ...engine.placement.membership import Membership

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


class Learner(Protocol):
    """The learner of a node, for all its sessions; may be called from any thread."""

    def learn(self) -> Future[Learned]:
        """Learn now; whoever asks meanwhile is answered as well."""


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
