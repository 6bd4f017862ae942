"""Two threads that copy from other nodes to this node: definitions (`Learner`) and partitions (`Mover`).

The learner asks the other nodes for their definitions; one round serves all statements that wait.

The mover fetches the partitions that the placement gives to this node and other nodes still have. It runs
whenever a placement comes into force, a topic is made, or a statement finds a partition missing. It asks all
nodes, former ones included, for their state of each topic's partitions, takes those that are this node's, and
wakes the statements that wait. A failed attempt is repeated after a pause.
Source: docs/design/cluster.md, "Definitions", "Moving".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...engine.catalog.streams import Stream
from ...engine.cluster.receive_partition import Came, PartitionReceiver
from ...engine.database import Database
from ...engine.errors import CannotConnect, DucktailError, SerializationFailure, WrongState
from ...engine.placement.holds import GIVEN, NONE, Hold
from ...engine.placement.placement import Node
from ...engine.server_log import facts
from ...engine.waiting import drive
from ...sql.peer_requests.learning import learn
from ...sql.peer_requests.partition_moves import GIVE, LOOK, PIECE
from ...sql.peers.peer_frames import batch_of, facts_of
from ...sql.peers.remote import Learned, Link, Remote, Reply
from ...sql.peers.requests import Request
from ...sql.session import Session
from .pool import Peers

# What the session is called in the logs and views of the nodes that are asked.
NAME = "ducktail definitions"

log = logging.getLogger("ducktail.gateway")


class Learner:
    """Learns the definitions of the other nodes; may be used from any thread.

    It has a thread of its own: two nodes that ask each other would wait forever if the answering threads were
    the waiting ones.

    Args:
        trace: the trace identifier of its requests in the logs of the other nodes.
    """

    def __init__(self, database: Database, peers: Peers, trace: Callable[[], str]) -> None:
        self._database = database
        self._peers = peers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ducktail-learner")
        self._trace = trace
        self._mutex = threading.RLock()  # what is done at once is told at once
        self._running: Future[Learned] | None = None

    def learn(self) -> Future[Learned]:
        """See `sql.peer_requests.learning`."""
        with self._mutex:
            running = self._running
            if running is None:
                running = self._running = self._thread.submit(self._learn)
                running.add_done_callback(self._done)
            return running

    def close(self) -> None:
        """Wait for work in progress, which ends because the links are closed."""
        self._thread.shutdown(wait=True)

    def _done(self, running: Future[Learned]) -> None:
        with self._mutex:
            self._running = None
        if not running.cancelled() and (error := running.exception()) is not None:
            # Perhaps nobody waits for it.
            log.error("asking the other nodes for their definitions: %s", error)

    def _learn(self) -> Learned:
        session = Session(self._database, user=NAME, application_name=NAME, wire=True)
        try:
            session.reach(self._peers, self._trace())
            learned = drive(learn(session))
        finally:
            drive(session.close())
        for told in learned.told():
            log.warning("%s", told)
        if learned.made:
            log.info("%d definitions of the cluster were made here", learned.made)
        return learned


logger = logging.getLogger(__name__)

# How long after a try that failed the next one comes, unless somebody waits for it.
PAUSE_S = (0.1, 2.0)
# A node that is asked may wait for its writer lock.
ANSWER_S = 30.0


@dataclass(slots=True)
class Looked:
    """The state of a topic's partitions on the other nodes.

    Args:
        holds: node -> partition -> its row.
        away: node -> the error for which it cannot be asked.
        nodes: all nodes that were asked.
    """

    holds: dict[str, Mapping[int, Hold]] = field(default_factory=dict)
    away: dict[str, DucktailError] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The present location of a partition.

    Args:
        node: the other node that has the partition; None if this node or no node has it.
        given: True if the node has given it to another node, which has not taken it.
        lost: True if it was on a node whose file is lost.
    """

    node: str | None = None
    given: bool = False
    lost: bool = False


class Mover:
    """Moves partitions to this node."""

    def __init__(self, database: Database, remote: Remote) -> None:
        self._database = database
        self._remote = remote
        self._owner_id = database.sessions.new_id()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._links: dict[str, Link] = {}
        self._thread = threading.Thread(target=self._run, name="ducktail-mover", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._database.arrivals.hurry = self._database.cluster.installed = self._wanted.set
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """End the thread after the piece in progress."""
        self._database.arrivals.hurry = self._database.cluster.installed = lambda: None
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s: float | None = None
        while not self._closed.is_set():
            self._wanted.wait(pause_s)
            self._wanted.clear()
            failed = self._look()
            pause_s = min(PAUSE_S[1], 2 * (pause_s or PAUSE_S[0] / 2)) if failed else None
            if failed:
                self._closed.wait(PAUSE_S[0])

    def _look(self) -> bool:
        """Take the missing partitions of each topic; True if some have not arrived."""
        database, failed = self._database, False
        placement = database.cluster.placement
        with database.catalog.mutex:
            streams = [stream for stream in database.catalog.streams.values() if stream.topic]
        for stream in streams:
            missing = database.holds.missing(placement, stream)
            if self._closed.is_set() or not missing:
                continue
            try:
                self._take(stream, missing)
            except Exception as error:
                failed = True
                self._told(stream, error)
            else:
                left = database.holds.missing(database.cluster.placement, stream)
                failed = failed or bool(left)
                database.arrivals.tell(stream.stream_id, None)
        self._release()
        return failed

    def _told(self, stream: Stream, error: Exception) -> None:
        reason = f"{error.message}" if isinstance(error, DucktailError) else str(error)
        if self._database.arrivals.reason(stream.stream_id) != reason and not self._closed.is_set():
            about = facts(topic=f"{stream.schema}.{stream.name}", reason=reason)
            if isinstance(error, DucktailError):
                logger.warning("partitions have not come yet", extra=about)
            else:
                logger.exception("bringing partitions", extra=about)
        # Two nodes whose placements differ for a moment are not stuck.
        stuck = not isinstance(error, SerializationFailure)
        self._database.arrivals.tell(stream.stream_id, reason, stuck=stuck)

    def _take(self, stream: Stream, missing: Sequence[int]) -> None:
        """Take partitions from their present locations."""
        cluster = self._database.cluster
        cluster.check_current()
        epoch = cluster.placement.epoch
        looked = self._asked(stream, missing)
        sources: dict[PartitionSource, list[int]] = {}
        failure: DucktailError | None = None
        for partition in missing:
            try:
                sources.setdefault(self._source(stream, partition, looked), []).append(partition)
            except DucktailError as error:
                failure = error
        taker = PartitionReceiver(self._database, self._owner_id, stream, epoch)
        try:
            for source, partitions in sources.items():
                if source.node is None:
                    taker.own(partitions, lost=source.lost)
                    if source.lost:
                        self._begun_anew(stream, partitions)
                    continue
                node, force = source.node, source.given
                try:
                    self._bring(taker, stream, looked.nodes[node], partitions, force=force)
                except WrongState as error:
                    failure = error
                    # One of them cannot move: the others are not to wait for it.
                    for partition in partitions if len(partitions) > 1 else ():
                        with suppress(WrongState):
                            self._bring(taker, stream, looked.nodes[node], [partition], force=force)
                except DucktailError as error:
                    failure = error
        finally:
            taker.close()
        if failure is not None:
            raise failure

    def _begun_anew(self, stream: Stream, partitions: Sequence[int]) -> None:
        lost = ", ".join(self._database.cluster.placement.lost)
        about = facts(
            topic=f"{stream.schema}.{stream.name}", partitions=", ".join(map(str, partitions)), lost=lost
        )
        logger.warning("partitions begin anew: what they had is given up", extra=about)

    def _source(self, stream: Stream, partition: int, looked: Looked) -> PartitionSource:
        """The present location of a partition."""
        placement = self._database.cluster.placement
        local = placement.local.name
        rows = {node: holds[partition] for node, holds in looked.holds.items() if partition in holds}
        rows[local] = self._database.holds.of(stream.stream_id, partition)
        best = max(rows, key=lambda node: rows[node].rank)
        row = rows[best]
        given_up = row.state == GIVEN and row.node in placement.lost
        if row.state == NONE or given_up:
            for error in looked.away.values():
                raise error
            return PartitionSource(lost=bool(placement.lost))
        if row.here or row.node == local:
            return PartitionSource(None if best == local else best)
        if row.node not in rows:
            # It may have taken it.
            if row.node in looked.away:
                raise looked.away[row.node]
            if row.node not in looked.nodes:
                raise CannotConnect(
                    f'node "{row.node}" is not known any more',
                    detail=f'Node "{best}" has given partition {partition} to it.',
                )
        return PartitionSource(None if best == local else best, given=row.state == GIVEN)

    def _asked(self, stream: Stream, partitions: Sequence[int]) -> Looked:
        """Ask all other nodes, and those that they know to have been nodes."""
        placement = self._database.cluster.placement
        # What is lost is not waited for.
        looked, asked = Looked(), {placement.local.name, *placement.lost}
        nodes = [*placement.nodes, *self._database.cluster.former]
        while new := {node.name: node for node in nodes if node.name not in asked}:
            asked |= new.keys()
            looked.nodes |= new
            nodes = []
            more = {**self._about(stream), "act": LOOK, "partitions": list(partitions)}
            request = Request("hold", more=more).encode()
            # All at once: one that is away takes its time, and the others are not to add theirs.
            opening = {name: self._link(node) for name, node in new.items()}
            answers: dict[str, Future[Reply]] = {}
            for name, node in new.items():
                try:
                    link = self._links[name] = _come(opening[name], node)
                    answers[name] = link.ask(request)
                except DucktailError as error:
                    looked.away[name] = error
            for name, answer in answers.items():
                try:
                    told = facts_of(_come(answer, new[name]).frames[0])
                except DucktailError as error:
                    looked.away[name] = error
                    continue
                found = told["holds"] or {}
                looked.holds[name] = {int(p): Hold(**row) for p, row in found.items()}
                if told["holds"] is None:
                    looked.holds[name] = dict.fromkeys(partitions, Hold(NONE))
                nodes += [Node(**one) for one in told["former"]]
        return looked

    def _bring(
        self, taker: PartitionReceiver, stream: Stream, node: Node, partitions: Sequence[int], *, force: bool
    ) -> None:
        """Bring partitions from the node that has them."""
        about = self._about(stream)
        more = {**about, "act": GIVE, "partitions": list(partitions), "force": force}
        given = facts_of(self._ask(node, more)[0])
        came: dict[int, Came] = {}
        for partition in partitions:
            taker.clear(partition)
            after = 0
            while True:
                if self._closed.is_set():
                    raise CannotConnect("this node is shutting down")
                more = {**about, "act": PIECE, "partition": partition, "after": after}
                frames = self._ask(node, more)
                tables = [batch_of(frame).record_batch() for frame in frames]
                if not sum(batch.num_rows for batch in tables):
                    break
                for batch in tables:
                    taker.put(partition, batch)
                    after = max(after, batch.column("lsn")[-1].as_py())
            came[partition] = Came(given[str(partition)], node.name, *taker.counted(partition))
        taker.finish(came)
        events = sum(one.count for one in came.values())
        logger.info(
            "partitions have come",
            extra=facts(
                topic=f"{stream.schema}.{stream.name}", node=node.name, events=events,
                partitions=", ".join(map(str, partitions)),
            ),
        )  # fmt: skip

    def _about(self, stream: Stream) -> dict[str, Any]:
        return {
            "stream": [stream.schema, stream.name],
            "uid": self._database.identities.of(stream.stream_id),
            "epoch": self._database.cluster.placement.epoch,
        }

    # Asking.

    def _ask(self, node: Node, more: Mapping[str, Any]) -> Sequence[bytes]:
        """The frames of a node's answer."""
        link = self._links[node.name] = _come(self._link(node), node)
        frames: Sequence[bytes] = _come(link.ask(Request("hold", more=more).encode()), node).frames
        return frames

    def _link(self, node: Node) -> Future[Link]:
        """The link to a node, created if there is none for the placement in force."""
        link = self._links.pop(node.name, None)
        if link is not None and not link.lost and link.epoch == self._database.cluster.placement.epoch:
            known: Future[Link] = Future()
            known.set_result(link)
            return known
        if link is not None:
            link.release()
        return self._remote.link(node, None)

    def _release(self) -> None:
        for link in self._links.values():
            link.release()
        self._links.clear()


def _come(future: Future[Any], node: Node) -> Any:
    try:
        return future.result(ANSWER_S)
    except TimeoutError:
        raise CannotConnect(f'node "{node.name}" does not answer') from None
