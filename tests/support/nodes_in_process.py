"""A cluster of databases in one process: real databases and sessions, and no sockets between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ducktail.engine.clock import Clock
from ducktail.engine.database import Database
from ducktail.engine.errors import CannotConnect, ConnectionLost, DucktailError
from ducktail.engine.placement.peer import Peer
from ducktail.engine.placement.placement import Node, Placement
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import Waiting, drive
from ducktail.sql.results.notices import Notice
from ducktail.sql.results.results import ResultBatch, ResultColumn
from ducktail.sql.session import Session

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


class OthersInProcess:
    """The sessions that one session has on other nodes."""

    def __init__(self, cluster: Cluster, entry: str, notices: Callable[[Notice], None]) -> None:
        self._cluster = cluster
        self._entry = entry
        self._notices = notices
        self._sessions: dict[str, Session] = {}

    def ask(
        self,
        node: str,
        text: str,
        parameters: Sequence[object] = (),
        take: Callable[[ResultBatch], None] | None = None,
        *,
        again: bool = False,
        changes: bool = False,
    ) -> Waiting[tuple[ResultColumn, ...]]:
        """See Peers."""
        if node in self._cluster.away:
            raise CannotConnect(f'node "{node}" cannot be reached')
        if node not in self._sessions:
            ours = self._cluster.databases[self._entry].placement
            peer = Peer(self._entry, ours.cluster, ours.epoch)
            self._sessions[node] = Session(self._cluster.databases[node], peer=peer, wire=True)
        session = self._sessions[node]
        statement = yield from session.parse(text)
        result = yield from session.execute(statement, parameters)
        while (batch := result.fetch(None)) is not None:
            if take is not None:
                take(batch)
        for notice in session.take_notices():
            self._notices(notice)
        if self._cluster.deaf.get(node, 0):
            self._cluster.deaf[node] -= 1
            self._cluster.on_loss()
            raise ConnectionLost(f'node "{node}" was lost on the way')
        return result.columns or ()

    def later(self, node: str, text: str) -> Future[object] | None:
        """See Peers."""
        with suppress(DucktailError):
            if node not in self._cluster.untold:
                drive(self.ask(node, text))
        return None

    def close(self) -> None:
        """End them all."""
        for session in self._sessions.values():
            drive(session.close())


class Client:
    """A client's session on one node, statement by statement."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.notices: list[str] = []
        self._others = OthersInProcess(cluster, node, lambda notice: self.notices.append(notice.message))
        self.session = Session(cluster.databases[node], wire=True, peers=self._others)

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
        self._others.close()


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
