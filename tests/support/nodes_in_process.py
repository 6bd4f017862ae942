"""A cluster of databases in one process: real databases and sessions, and no sockets between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ducktail.engine.clock import Clock
from ducktail.engine.database import Database
from ducktail.engine.errors import CannotConnect, ConnectionLost, DucktailError
from ducktail.engine.placement.peer import Peer
from ducktail.engine.placement.placement import Node, Placement
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import drive
from ducktail.sql.peers.remote import Key, Reply
from ducktail.sql.peers.requests import Request
from ducktail.sql.session import Session

BYTEA_OID = 17
NODES = tuple(Node(name, "127.0.0.1", place) for place, name in enumerate(("n1", "n2", "n3"), 1))


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Partition p of every topic is node p's, counted round; a topic called `alone` is all the last one's."""

    local: Node
    epoch: int = 1
    cluster: str = "test"
    nodes: tuple[Node, ...] = NODES
    lost: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """See Placement."""
        return str(self.epoch)

    def owner(self, schema: str, stream: str, partition: int) -> Node:
        """See Placement; with each epoch everything moves on by one node."""
        if stream == "alone":
            return self.nodes[-1]
        return self.nodes[(partition + self.epoch - 1) % len(self.nodes)]

    def home(self, schema: str, stream: str) -> Node:
        """See Placement."""
        return self.owner(schema, stream, 0)

    def moves_from(self, old: Placement) -> int:
        """See Placement."""
        return 0


@dataclass(slots=True)
class Cluster:
    """The nodes, and what is wrong with some of them.

    Args:
        away: nodes that cannot be reached.
        deaf: nodes that do what they are asked, and whose answer is lost; how often still.
        untold: nodes that do not get what they are told without an answer.
        on_loss: what happens when an answer is lost.
    """

    databases: dict[str, Database] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    deaf: dict[str, int] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    on_loss: Callable[[], None] = lambda: None

    def client(self, node: str) -> Client:
        """A client's session on a node."""
        return Client(self, node)

    def place(self, epoch: int) -> None:
        """Put another placement in force on all nodes."""
        for name, database in self.databases.items():
            local = next(node for node in NODES if node.name == name)
            database.install_placement(RoundRobin(local, epoch))
            database.cluster.learnt(epoch)


class LinkInProcess:
    """A session on another node; see Link. A request that waits is answered on a thread, others at once."""

    def __init__(self, cluster: Cluster, entry: str, node: Node) -> None:
        ours = cluster.databases[entry].placement
        self.node, self.epoch = node, ours.epoch
        self._cluster = cluster
        peer = Peer(entry, ours.cluster, ours.epoch)
        self._session = Session(cluster.databases[node.name], peer=peer, wire=True)
        self._thread: ThreadPoolExecutor | None = None
        self._broken = False

    @property
    def lost(self) -> bool:
        """See Link."""
        return self._broken or self.node.name in self._cluster.away

    def ask(self, request: bytes) -> Future[Reply]:
        """See Link."""
        if self._thread is None and b" WAIT " in request:
            self._thread = ThreadPoolExecutor(1)
        if self._thread is not None:
            return self._thread.submit(self._answer, request)
        future: Future[Reply] = Future()
        try:
            told = self.node.name in self._cluster.untold and Request.decode(request).portal
            future.set_result(Reply(()) if told else self._answer(request))
        except DucktailError as error:
            future.set_exception(error)
        return future

    def _answer(self, request: bytes) -> Reply:
        statement = drive(self._session.parse("FORWARD $1", (BYTEA_OID,)))
        result = drive(self._session.execute(statement, (request,)))
        frames: list[bytes] = []
        while (batch := result.fetch(None)) is not None:
            frames += batch.record_batch().column(0).to_pylist()
        name = self.node.name
        if self._cluster.deaf.get(name, 0):
            self._cluster.deaf[name] -= 1
            self._broken = True
            self._cluster.on_loss()
            raise ConnectionLost(f'node "{name}" was lost on the way')
        return Reply(tuple(frames), tuple(self._session.take_notices()))

    def cancel(self, reply: Future[Reply]) -> None:
        """See Link."""
        self._session.cancel()

    def release(self) -> None:
        """See Link."""
        self._broken = True
        if self._thread is not None:
            self._thread.shutdown()
        drive(self._session.close())


class NodesInProcess:
    """The other nodes, for the sessions of one; see Remote. Streams on tables are not looked for."""

    version = 0

    def __init__(self, cluster: Cluster, entry: str) -> None:
        self.cluster = cluster.databases[entry].cluster
        self._nodes = cluster
        self._entry = entry

    def link(self, node: Node, user: str | None) -> Future[Any]:
        """See Remote."""
        future: Future[Any] = Future()
        if node.name in self._nodes.away:
            future.set_exception(CannotConnect(f'node "{node.name}" cannot be reached'))
        else:
            future.set_result(LinkInProcess(self._nodes, self._entry, node))
        return future

    def known(self, key: Key) -> Node | None:
        """See Remote."""
        return None

    def look(self, keys: Iterable[Key]) -> Future[Mapping[Key, Node]]:
        """See Remote."""
        future: Future[Mapping[Key, Node]] = Future()
        future.set_result({})
        return future

    def forget(self, key: Key) -> None:
        """See Remote."""


class Client:
    """A client's session on one node, statement by statement."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.notices: list[str] = []
        self.session = Session(cluster.databases[node], wire=True)
        self.session.reach(NodesInProcess(cluster, node), "trace")

    def __call__(self, text: str, *parameters: object) -> list[tuple[object, ...]]:
        """The rows of a statement."""
        statement = drive(self.session.parse(text))
        result = drive(self.session.execute(statement, parameters))
        rows: list[tuple[object, ...]] = []
        while (batch := result.fetch(None)) is not None:
            columns = [column.to_pylist() for column in batch.record_batch().columns]
            rows.extend(zip(*columns, strict=True))
        self.notices += [notice.message for notice in self.session.take_notices()]
        return rows

    def close(self) -> None:
        """End it."""
        drive(self.session.close())


@contextmanager
def nodes_in_process(clock: Clock | None = None) -> Iterator[Cluster]:
    """Three nodes under one placement."""
    given = () if clock is None else (Settings(), clock)
    cluster = Cluster({node.name: Database.open(":memory:", *given) for node in NODES})
    cluster.place(1)
    try:
        yield cluster
    finally:
        for database in cluster.databases.values():
            database.close()
