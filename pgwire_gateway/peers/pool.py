"""Connections to the other nodes, pooled for all sessions of this server, and the directory.

A link belongs to one session from its first use to the session's end; then it is wiped (DISCARD ALL) and kept
for a while, for another session of the same user. Source: docs/design/cluster.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import psycopg
from psycopg import generators
from psycopg.abc import PQGen

from ...engine.errors import (
    CannotConnect,
    ConnectionLost,
    ConnectionRefused,
    DucktailError,
    InvalidParameterValue,
    SerializationFailure,
    WrongState,
)
from ...engine.placement.membership import OTHER_DATABASE, Membership
from ...engine.placement.peer import DATABASE, DIGEST, EPOCH, NODE, Peer, epoch_told
from ...engine.placement.placement import Node, Placement
from ...engine.server_log import facts
from ...sql.peers.peer_frames import facts_of
from ...sql.peers.remote import Key, Link, Reply
from ...sql.peers.requests import LACKS, Request
from .peer_link import BYTEA_OID, PREPARED, TEXT, PeerLink

# How long a connection may take to be there: TCP, TLS, SCRAM and the first answer.
CONNECT_S = 5.0
# Connections to one node that wait for a session, for one user, and how long the last of them does.
IDLE_MAX, IDLE_S = 8, 60.0
# How long a node that starts waits for the others to tell which placement they have: what they say then stops
# it before it has acknowledged anything.
GREETING_S = 1.0
# How soon a node that has left, or is lost, is told of the placement in force, if it is there; and how seldom
# it is looked for at last.
GONE_S = (1.0, 30.0)
# How long the other nodes are waited for once a stream is found on one: they may have one of its name.
OTHERS_S = 0.5
# Names of streams that the directory keeps; those that were looked for first go first.
KNOWN_MAX = 10_000

# How a node says that this one is none of its cluster: `Membership.check_peer`.
OTHER_CLUSTER = re.compile(r"is of cluster|has no node")

Connection = psycopg.AsyncConnection[Any]

log = logging.getLogger("ducktail.gateway")


class Peers:
    """The pool of connections to the other nodes; implements `Remote`.

    Args:
        loop: the server's event loop; the pool is created on its thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: Membership) -> None:
        self.cluster = cluster
        self.version = 0
        self._loop = loop
        self._idle: dict[tuple[Node, str | None], deque[PeerLink]] = {}
        self._links: set[PeerLink] = set()
        self._known: dict[Key, str] = {}
        self._closed = False
        self._greetings: set[asyncio.Task[Any]] = set()
        cluster.connections = self._connections

    def _connections(self, peer: str) -> int:
        """The number of connections to a node; may be called on any thread."""
        return sum(link.node.name == peer for link in list(self._links))

    # Links.

    def link(self, node: Node, user: str | None) -> Future[Link]:
        """See Remote."""
        return asyncio.run_coroutine_threadsafe(self._link(node, user), self._loop)

    async def _link(self, node: Node, user: str | None) -> Link:
        link = await self._linked(node, user)
        if self.cluster.owes(node.name):

            def told(future: Future[Reply]) -> None:
                if future.exception() is not None:
                    self.cluster.owe([node.name])

            link.ask(Request(LACKS).encode()).add_done_callback(told)
        return link

    async def _linked(self, node: Node, user: str | None) -> Link:
        """A link that waited for a session, or a new one."""
        idle = self._idle.get((node, user))
        while idle:
            link = idle.pop()
            if not link.lost and link.epoch == self.cluster.placement.epoch:
                return link
            link.close()
        placement = self.cluster.placement
        try:
            connection = await asyncio.wait_for(self._connect(node, user, placement), CONNECT_S)
        except TimeoutError:
            raise _unreachable(node, f"it did not answer within {CONNECT_S:.0f} seconds") from None
        except psycopg.Error as error:
            raise self._refused(node, error) from error
        if self._closed:
            await connection.close()
            raise _unreachable(node, "this node is shutting down")
        link = PeerLink(
            self._loop, node, placement.epoch, connection, partial(self._released, user), self._links.discard
        )  # fmt: skip
        self._links.add(link)
        return link

    async def _connect(self, node: Node, user: str | None, placement: Placement) -> Connection:
        identity = self.cluster.identity
        ours = Peer(placement.local.name, placement.cluster, placement.epoch, user or "", identity)
        connection = await psycopg.AsyncConnection.connect(
            **node.conninfo(),
            application_name=f"ducktail node {ours.node}",
            options=" ".join(f"-c {name}={_escaped(value)}" for name, value in ours.settings().items()),
            autocommit=True,
        )
        try:
            self._check_reached(node, connection, placement)
            theirs = connection.info.parameter_status(DATABASE) or ""
            if not self.cluster.knows(node.name, theirs):
                # It is written down, or refused.
                await self._loop.run_in_executor(None, self.cluster.meet, node.name, theirs)
            await connection.wait(_prepared(connection.pgconn))
        except BaseException:
            await connection.close()
            raise
        return connection

    def _check_reached(self, node: Node, connection: Connection, placement: Placement) -> None:
        """Check the identity and placement of the node that was reached."""
        name = connection.info.parameter_status(NODE)
        if name != node.name:
            raise ConnectionRefused(
                f'node "{node.name}" is not at {node.host}:{node.port}',
                detail=f'There is node "{name}".',
                hint="Look at host and port of the nodes in cluster.toml.",
            )
        epoch = int(connection.info.parameter_status(EPOCH) or 0)
        self.cluster.heard(epoch, name)
        digest = connection.info.parameter_status(DIGEST)
        if epoch == placement.epoch and digest not in (None, placement.digest):
            raise InvalidParameterValue(
                f'nodes "{placement.local.name}" and "{name}" have two placements of epoch {epoch}',
                detail="Their copies of cluster.toml differ.",
                hint="Raise the epoch of the right one, and `ducktail cluster apply` it.",
            )

    def _refused(self, node: Node, error: psycopg.Error) -> DucktailError:
        """The error for a refused connection; libpq provides its text, but not its SQLSTATE."""
        words = " ".join(str(error).rpartition("FATAL:")[2].split())
        told, _, hint = words.partition(" HINT: ")
        told, _, more = told.partition(" DETAIL: ")
        detail = f"Node {node.name} says: {told}. {more}".rstrip()
        if (epoch := epoch_told(words)) is not None:
            self.cluster.heard(epoch)
            return SerializationFailure(f'node "{node.name}" has a newer placement', detail=detail)
        if OTHER_DATABASE in words:
            ours = self.cluster.placement.local.name
            message = f'node "{node.name}" refuses this one: "{ours}" {OTHER_DATABASE}'
            return ConnectionRefused(message, detail=detail, hint=hint or None)
        if OTHER_CLUSTER.search(words):
            return ConnectionRefused(f'node "{node.name}" is not of this cluster', detail=detail)
        return _unreachable(node, words)

    def _released(self, user: str | None, link: PeerLink) -> None:
        """Keep the link of an ended session for another one, if it has no open requests and the pool has
        room."""
        idle = self._idle.setdefault((link.node, user), deque())
        if link.busy or self._closed or len(idle) >= IDLE_MAX:
            link.close()
            return
        wiped = link.ask(Request("wipe").encode())

        def done(future: Future[Reply]) -> None:
            # Many sessions may have ended at once, and each link found room before it was wiped.
            full = len(idle) >= IDLE_MAX
            if future.exception() is not None or self._closed or link.lost or full:
                link.close()
                return
            idle.append(link)
            self._loop.call_later(IDLE_S, self._expire, idle, link)

        wiped.add_done_callback(done)

    def _expire(self, idle: deque[PeerLink], link: PeerLink) -> None:
        if link in idle:
            idle.remove(link)
            link.close()

    # Who is there.

    async def greet(self) -> None:
        """At the start of this node ask the others for their placement, and inform nodes that have left.

        A node that was unavailable may no longer own its partitions, and would acknowledge events that no
        client will read.
        """
        tasks = [asyncio.ensure_future(self._greeted(node)) for node in self._others()]
        # One that takes longer tells it all the same.
        self._greetings.update(tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=GREETING_S)
        self._greetings.add(asyncio.ensure_future(self._tell_those_that_have_left()))

    async def _greeted(self, node: Node) -> bool:
        """Exchange placements with a node; True if it is available."""
        try:
            (await self._link(node, None)).release()
        except (ConnectionRefused, InvalidParameterValue) as error:
            log.warning("%s", error.message, extra=facts(detail=error.detail))
        except CannotConnect:
            return False
        except DucktailError:
            pass  # Its placement is newer, and this node knows it now.
        return True

    async def _tell_those_that_have_left(self) -> None:
        """Inform nodes that have left, so that they acknowledge nothing more; no other node asks them."""
        told: dict[str, int] = {}
        pause_s = GONE_S[0]
        while True:
            await asyncio.sleep(pause_s)
            epoch = self.cluster.placement.epoch
            left = [node for node in self.cluster.former if told.get(node.name) != epoch]
            pause_s = min(2 * pause_s, GONE_S[1]) if left else GONE_S[0]
            for node in left:
                if await self._greeted(node):
                    told[node.name], pause_s = epoch, GONE_S[0]

    def close(self) -> None:
        """Close all links when the server ends; called on its loop."""
        self._closed = True
        for task in self._greetings:
            task.cancel()
        for link in list(self._links):
            link.close()

    # The directory.

    def known(self, key: Key) -> Node | None:
        """See Remote."""
        name = self._known.get(key)
        if name is None:
            return None
        return next((node for node in self._others() if node.name == name), None)

    def forget(self, key: Key) -> None:
        """See Remote."""
        if self._known.pop(key, None) is not None:
            self.version += 1

    def look(self, keys: Iterable[Key]) -> Future[Mapping[Key, Node]]:
        """See Remote."""
        return asyncio.run_coroutine_threadsafe(self._look(tuple(keys)), self._loop)

    async def _look(self, keys: tuple[Key, ...]) -> Mapping[Key, Node]:
        others = self._others()
        answers = await self._answers(others, keys)
        places: dict[Key, list[Node]] = {key: [] for key in keys}
        silent: list[DucktailError] = []
        for node, answer in zip(others, answers, strict=True):
            if isinstance(answer, DucktailError):
                silent.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for key in answer:
                    places[key].append(node)
        found: dict[Key, Node] = {}
        for key, nodes in places.items():
            name = ".".join(key)
            if len(nodes) > 1:
                raise WrongState(
                    f'stream "{name}" is on several nodes',
                    detail=f"It is on nodes {', '.join(node.name for node in nodes)}.",
                    hint="Connect to one of them and rename its stream.",
                )
            if nodes:
                found[key] = nodes[0]
        if silent and len(found) < len(keys):
            missing = next(".".join(key) for key in keys if key not in found)
            first = silent[0]
            if not isinstance(first, CannotConnect | ConnectionLost):
                raise first  # It is of another cluster, say.
            raise CannotConnect(
                f'cannot tell whether another node has stream "{missing}": {first.message}',
                detail=first.detail,
            )
        for key, node in found.items():
            if self._known.get(key) != node.name:
                while len(self._known) >= KNOWN_MAX:
                    self._known.pop(next(iter(self._known)))
                self._known[key] = node.name
                self.version += 1
        return found

    async def _answers(
        self, others: Sequence[Node], keys: tuple[Key, ...]
    ) -> list[list[Key] | BaseException]:
        """The answer of each node; nodes that stay silent are left out once everything has been found."""
        tasks = [asyncio.ensure_future(self._where(node, keys)) for node in others]
        found: set[Key] = set()
        waiting = set(tasks)
        while waiting:
            patience_s = OTHERS_S if found >= set(keys) else None
            done, waiting = await asyncio.wait(
                waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            found.update(key for task in done if task.exception() is None for key in task.result())
        for task in waiting:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        late = "it did not answer in time"
        return [
            _unreachable(node, late) if isinstance(one, asyncio.CancelledError) else one
            for node, one in zip(others, answers, strict=True)
        ]

    async def _where(self, node: Node, keys: tuple[Key, ...]) -> list[Key]:
        link = await self._link(node, None)
        try:
            reply = await asyncio.wrap_future(link.ask(Request("where", more={"keys": keys}).encode()))
        finally:
            link.release()
        told = facts_of(reply.frames[0])
        if told["lacks"]:
            self.cluster.lacks_more()
        return [tuple(key) for key in told["streams"]]

    def _others(self) -> list[Node]:
        placement = self.cluster.placement
        return [node for node in placement.nodes if node.name != placement.local.name]


def _prepared(libpq: psycopg.pq.abc.PGconn) -> PQGen[None]:
    """Prepare the statement of a link; psycopg's own kind of generator."""
    libpq.send_prepare(PREPARED, TEXT, [BYTEA_OID])
    for result in (yield from generators.execute(libpq)):
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)


def _escaped(value: str) -> str:
    """A value in libpq's `options`: blanks and backslashes are preceded by a backslash."""
    return re.sub(r"([\\\s])", r"\\\1", value)


def _unreachable(node: Node, why: str) -> CannotConnect:
    return CannotConnect(
        f'cannot connect to node "{node.name}"',
        detail=f"{why[:1].upper()}{why[1:].rstrip('.')}.",
        hint="SHOW NODES lists the nodes of the cluster.",
    )
