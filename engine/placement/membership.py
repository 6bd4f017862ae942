"""The node's part in its cluster: the placement in force, the newest known epoch, and arriving partitions.

The highest epoch that was ever in force is stored in `ducktail.meta` with the cluster's name and the
placement's digest, before the placement takes effect: a node that restarts with an older file is refused,
because it would serve partitions that belong to other nodes. `Arrivals` has the waiters for partitions on
their way to this node, and the reasons for delays. Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import duckdb

from ..catalog.streams import Stream
from ..duck.cursors import in_one_transaction
from ..errors import ConnectionRefused, InvalidParameterValue, SerializationFailure, WrongState
from ..quoting import literal
from .cluster_file import ClusterSource
from .peer import Peer, older_epoch
from .placement import LocalPlacement, Node, Placement

# Facts in `ducktail.meta`.
EPOCH, CLUSTER, DIGEST = "placement_epoch", "placement_cluster", "placement_digest"
# All nodes that ever existed, a JSON list: former nodes may have partitions that others must still receive.
NODES = "placement_nodes"
# The identity of this database as a node, and those of all nodes that ever existed, JSON by name. They are
# part of the file, also in a backup.
IDENTITY, IDENTITIES = "placement_database", "placement_databases"

# A refused peer recognizes the reason by these words: libpq returns only the text.
OTHER_DATABASE = "has another database than before"

# A node's counters since its start. `forwarded`, `published_remotely` and `failed` are by peer.
ROUTED, DELIVERED = "routed", "delivered_locally"
FORWARDED, PUBLISHED_REMOTELY, FAILED = "forwarded", "published_remotely", "failed"
INSTALLED, REFUSED, MOVES = "placements_installed", "placements_refused", "moves"
JOINED, LEFT = "nodes_joined", "nodes_left"
# Counters of the node itself, and counters by peer; FAILED has causes.
OWN_COUNTS = (ROUTED, DELIVERED, INSTALLED, REFUSED, MOVES, JOINED, LEFT)
PEER_COUNTS = (FORWARDED, PUBLISHED_REMOTELY)


@dataclass(frozen=True, slots=True)
class PlacementFacts:
    """A placement that was in force, with the facts needed to recognize it and older ones."""

    epoch: int = 0
    cluster: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Installed:
    """The result of installing a placement: True if it is new here, and the number of moved partitions."""

    epoch: int
    new: bool
    moves: int = 0


class Membership:
    """The membership of this node in a cluster; safe to use from several threads.

    Args:
        cursor: returns a cursor of the engine.
    """

    def __init__(self, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._cursor = cursor
        self._mutex = threading.Lock()
        self._placement: Placement = LocalPlacement()
        self._source: ClusterSource | None = None
        self._heard: dict[str, int] = {}
        # Number of connections to a peer by its name, reported by the code that opens them.
        self.connections: Callable[[str], int] = lambda peer: 0
        # Former nodes, and the callbacks for each new placement in force.
        self.former: tuple[Node, ...] = ()
        self.installed: Callable[[], None] = lambda: None
        self._counts: Counter[tuple[str, str, str]] = Counter()
        # The epoch of the last query of the others' definitions, and its errors.
        self._learnt = 0
        self._lacking: tuple[str, ...] = ()
        # The identity of this database, once a placement is in force, and the known ones of other nodes.
        self.identity = ""
        self._identities: dict[str, str] = {}
        # Nodes to be informed of definitions that they lack (`owe`).
        self._owed: set[str] = set()
        # Names of streams that sessions here are creating.
        self._making: Counter[tuple[str, ...]] = Counter()

    @property
    def placement(self) -> Placement:
        """The placement in force."""
        return self._placement

    @property
    def newest_epoch(self) -> int:
        """The highest epoch known to this node: its own, or one reported by a peer."""
        return max(self._placement.epoch, self._heard_epoch())

    @property
    def stale(self) -> bool:
        """True if a peer has a newer placement than this node."""
        return self._heard_epoch() > self._placement.epoch

    def heard(self, epoch: int, peer: str = "") -> None:
        """Record the epoch of a peer's placement."""
        with self._mutex:
            self._heard[peer] = max(self._heard.get(peer, 0), epoch)

    def heard_from(self, peer: str) -> int | None:
        """The epoch last reported by a peer, or None."""
        return self._heard.get(peer)

    def _heard_epoch(self) -> int:
        return max(list(self._heard.values()), default=0)

    # Definitions.

    @property
    def has_left(self) -> bool:
        """True if the placement in force no longer names this node."""
        placement = self._placement
        return bool(placement.epoch) and all(node.name != placement.local.name for node in placement.nodes)

    @property
    def lacks(self) -> bool:
        """True if other nodes may have definitions that this one lacks: not all have been queried yet."""
        if not self._placement.epoch or self.has_left:
            return False
        return self._learnt != self._placement.epoch or bool(self._lacking)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The errors of the last query of the other nodes, a sentence each."""
        return self._lacking

    def learnt(self, epoch: int, lacking: tuple[str, ...] = ()) -> None:
        """Record that the other nodes' definitions were read under a placement of this epoch.

        Args:
            lacking: reasons why definitions may still be missing, a sentence each.
        """
        self._learnt, self._lacking = epoch, lacking

    def lacks_more(self) -> None:
        """Record that another node has created a topic while this one was unreachable."""
        self._learnt = 0

    def owe(self, nodes: Iterable[str]) -> None:
        """Note nodes that were unreachable when a topic was created and must be informed of it."""
        self._owed.update(nodes)

    def owes(self, node: str) -> bool:
        """True if a node must be informed; the caller then informs it."""
        if node not in self._owed:
            return False
        self._owed.discard(node)
        return True

    @contextmanager
    def making(self, key: tuple[str, ...]) -> Iterator[None]:
        """A context in which a session creates a stream with this key."""
        with self._mutex:
            self._making[key] += 1
        try:
            yield
        finally:
            with self._mutex:
                self._making[key] -= 1
                if not self._making[key]:
                    del self._making[key]

    def is_making(self, key: tuple[str, ...]) -> bool:
        """True if a session is creating a stream with this key."""
        return key in self._making

    # Peers.

    def check_peer(self, peer: Peer) -> None:
        """Check that a connecting node belongs to this cluster and is not behind.

        Raises:
            ConnectionRefused: the node is of another cluster, or not a node of this one.
            SerializationFailure: its placement is older.
        """
        ours = self._placement
        if peer.cluster != ours.cluster:
            here = f'this node is of cluster "{ours.cluster}"' if ours.cluster else "this server is of none"
            raise ConnectionRefused(
                f'node "{peer.node}" is of cluster "{peer.cluster}", and {here}',
                hint="Look at host and port of the nodes in cluster.toml.",
            )
        self.check_epoch(peer)
        self.meet(peer.node, peer.database)
        self.heard(peer.epoch, peer.node)
        # A newer placement may have nodes that this one does not know.
        if peer.epoch == ours.epoch and all(node.name != peer.node for node in ours.nodes):
            raise ConnectionRefused(f'cluster "{ours.cluster}" has no node "{peer.node}"')

    def knows(self, node: str, identity: str) -> bool:
        """True if the identity is the known one of a node's database; False for ""."""
        return not identity or self._identities.get(node) == identity

    def meet(self, node: str, identity: str) -> None:
        """Record the identity of a node's database; the first one is kept permanently.

        Raises:
            ConnectionRefused: the node had another database, whose contents it now lacks.
        """
        if self.knows(node, identity):
            return
        with self._mutex:
            if self.knows(node, identity):
                return  # Two connections were the first.
            if node in self._identities:
                raise ConnectionRefused(
                    f'node "{node}" {OTHER_DATABASE}',
                    detail="What was on the old one, and where groups are there, it does not know.",
                    hint="Start it with its own file. If that is lost: `ducktail cluster plan FILE --lost "
                    f"{node}`, and `--add` the new one under a name that was never used.",
                )
            known = {**self._identities, node: identity}
            self._keep({IDENTITIES: json.dumps(known)})
            self._identities = known

    def check_epoch(self, peer: Peer) -> None:
        """Check that the placement with which a peer connected is still current.

        Raises:
            SerializationFailure: a newer placement is in force here.
        """
        epoch = self._placement.epoch
        if peer.epoch < epoch:
            raise older_epoch(peer.node, peer.epoch, epoch)

    def check_current(self) -> None:
        """Check that this node's placement is current, before it serves partitions.

        Raises:
            SerializationFailure: a peer has reported a newer one.
        """
        if self.stale:
            raise SerializationFailure(
                f'node "{self._placement.local.name}" has a placement that is over',
                detail=f"Its placement is of epoch {self._placement.epoch}, and another node has one of "
                f"epoch {self.newest_epoch}.",
                hint="`ducktail cluster apply` brings the newer cluster.toml to all nodes.",
            )

    # Source of placements.

    @property
    def source(self) -> ClusterSource:
        """The source of this node's placements.

        Raises:
            WrongState: this is not a node of a cluster.
        """
        if self._source is None:
            raise WrongState(
                "this server is no node of a cluster", hint="Start it with --node NAME --cluster FILE."
            )
        return self._source

    @property
    def joined(self) -> bool:
        """True if this is a node of a cluster."""
        return self._source is not None

    def join(self, source: ClusterSource) -> None:
        """Make this a node of a cluster."""
        self._source = source

    def install(self, new: Placement, before: Callable[[], None] = lambda: None) -> Installed:
        """Put a placement in force.

        Args:
            before: called once the placement is known to be valid, before it takes effect.

        Raises:
            ConnectionRefused: the placement is of another cluster.
            SerializationFailure: its epoch is lower than one that was in force.
            InvalidParameterValue: the placement has the present epoch and other contents, or is another
                node's.
        """
        with self._mutex:
            try:
                seen = self._seen()
                self._check(new, seen)
                before()
            except Exception:
                self._counts[REFUSED, "", ""] += 1
                raise
            if new.epoch > seen.epoch:
                self._remember(new)
            if not self.identity:
                self._identify()
            self.former = tuple(
                node for node in self._read_nodes() if all(one.name != node.name for one in new.nodes)
            )
            old, self._placement = self._placement, new
            if old.epoch == new.epoch:
                self.installed()
                return Installed(new.epoch, new=False)
            self._counts[INSTALLED, "", ""] += 1
            moved = new.moves_from(old)
            if old.epoch:
                self._counts[MOVES, "", ""] += moved
                were, are = ({node.name for node in one.nodes} for one in (old, new))
                self._counts[JOINED, "", ""] += len(are - were)
                self._counts[LEFT, "", ""] += len(were - are)
            self.installed()
            return Installed(new.epoch, True, moved)

    def check(self, new: Placement) -> None:
        """Raise the errors of `install` for a placement.

        Raises:
            ConnectionRefused, SerializationFailure, InvalidParameterValue: as in `install`.
        """
        self._check(new, self._seen())

    def _check(self, new: Placement, seen: PlacementFacts) -> None:
        if seen.cluster and new.cluster != seen.cluster:
            raise ConnectionRefused(
                f'the placement is of cluster "{new.cluster}", and this database of cluster "{seen.cluster}"'
            )
        if new.epoch < seen.epoch:
            raise SerializationFailure(
                f"the placement's epoch {new.epoch} is older than {seen.epoch}, which was in force here",
                hint="Take the newest cluster.toml; `ducktail cluster apply` brings it to all nodes.",
            )
        if new.epoch == seen.epoch and new.digest != seen.digest:
            raise InvalidParameterValue(
                f"two placements of epoch {new.epoch} differ",
                hint="Raise the epoch with each change of the file.",
            )
        if self._placement.epoch and new.local.name != self._placement.local.name:
            raise InvalidParameterValue(
                f'this is node "{self._placement.local.name}", not "{new.local.name}"'
            )

    # Counting.

    def count(self, what: str, peer: str = "", cause: str = "", by: int = 1) -> None:
        """Increase a counter, optionally for a peer and a cause."""
        with self._mutex:
            self._counts[what, peer, cause] += by

    def counts(self) -> Counter[tuple[str, str, str]]:
        """The counters by name, peer and cause ("" for none)."""
        with self._mutex:
            return self._counts.copy()

    def glimpse(self) -> Counter[tuple[str, str, str]]:
        """The counters, without waiting for a lock."""
        return self._counts.copy()

    # Facts stored in the database.

    def _seen(self) -> PlacementFacts:
        """The newest placement that was in force on this database."""
        facts = self._facts(EPOCH, CLUSTER, DIGEST)
        return PlacementFacts(int(facts.get(EPOCH, 0)), facts.get(CLUSTER, ""), facts.get(DIGEST, ""))

    def _read_nodes(self) -> tuple[Node, ...]:
        return tuple(Node(**one) for one in json.loads(self._facts(NODES).get(NODES, "[]")))

    def _remember(self, new: Placement) -> None:
        known = {node.name: node for node in (*self._read_nodes(), *new.nodes)}
        nodes = json.dumps([asdict(node) for node in known.values()])
        self._keep({EPOCH: str(new.epoch), CLUSTER: new.cluster, DIGEST: new.digest, NODES: nodes})

    def _identify(self) -> None:
        """Load this database's identity, created with its first placement, and those of the others."""
        facts = self._facts(IDENTITY, IDENTITIES)
        if IDENTITY not in facts:
            facts[IDENTITY] = str(uuid.uuid4())
            self._keep({IDENTITY: facts[IDENTITY]})
        self.identity = facts[IDENTITY]
        self._identities = json.loads(facts.get(IDENTITIES, "{}"))

    def _facts(self, *names: str) -> dict[str, str]:
        cursor = self._cursor()
        try:
            listed = ", ".join(map(literal, names))
            sql = f"SELECT name, value FROM ducktail.meta WHERE name IN ({listed})"
            return dict(cursor.execute(sql).fetchall())
        finally:
            cursor.close()

    def _keep(self, facts: dict[str, str]) -> None:
        names = ", ".join(map(literal, facts))
        rows = ", ".join(f"({literal(name)}, {literal(value)})" for name, value in facts.items())
        cursor = self._cursor()
        try:
            with in_one_transaction(cursor):
                cursor.execute(f"DELETE FROM ducktail.meta WHERE name IN ({names})").fetchall()
                cursor.execute(f"INSERT INTO ducktail.meta VALUES {rows}").fetchall()
        finally:
            cursor.close()


class Arrivals:
    """The arrivals of partitions that a node's mover (pgwire_gateway/peers/synchronization.py) reports to
    sessions. Safe to use from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._changed: Future[None] = Future()
        self._reasons: dict[int, str] = {}
        self._stuck: set[int] = set()
        # Makes the mover look for partitions to receive at once; no effect without a mover.
        self.hurry: Callable[[], None] = lambda: None

    def changed(self) -> Future[None]:
        """A future that is done once the mover has finished with a topic, with or without success."""
        with self._mutex:
            return self._changed

    def tell(self, stream_id: int, reason: str | None, *, stuck: bool = False) -> None:
        """Report that the partitions of a topic have arrived, or the reason for a delay.

        Args:
            stuck: True if they will not arrive soon without intervention.
        """
        with self._mutex:
            (self._stuck.add if stuck else self._stuck.discard)(stream_id)
            if reason is None:
                self._reasons.pop(stream_id, None)
            else:
                self._reasons[stream_id] = reason
            changed, self._changed = self._changed, Future()
        changed.set_result(None)

    def reason(self, stream_id: int) -> str | None:
        """The last known reason why partitions of a topic have not arrived."""
        return self._reasons.get(stream_id)

    def stuck(self, stream_id: int) -> bool:
        """True if waiting for a topic's missing partitions is futile."""
        return stream_id in self._stuck

    def error(self, stream: Stream, partition: int, node: str) -> SerializationFailure:
        """The error for a statement on a partition that has not arrived."""
        return SerializationFailure(
            f'partition {partition} of topic "{stream.name}" is on its way to node "{node}"',
            detail=self.reason(stream.stream_id),
            hint="Try again.",
        )
