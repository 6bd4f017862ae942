"""Moves of partitions: the wait for partitions that have not arrived, and the answers to a node that takes
some.

A statement about partitions that have not arrived waits for a while and then fails; it never returns an empty
answer (`shares.check_owned`). Nodes request partitions in sessions of their own, independently of users'
rights. `more` of the request has `act`, `stream` (schema and name), `uid` (the topic's identity), `epoch`,
and the arguments of the act. Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ...engine.catalog.streams import Stream, key_of
from ...engine.cluster import send_partition
from ...engine.errors import ProtocolViolation, SerializationFailure, WrongState
from ...engine.placement.holds import GIVEN
from ...engine.waiting import Wait, Waiting
from ..cluster.routing import names
from ..peers.peer_frames import batch_frame, facts_frame
from ..peers.requests import Part, Request
from ..results.results import ArrowBatch
from ..session_state.context import Context
from ..text.classified import Classified

# How long a statement waits: small logs have come by then.
ARRIVE_S = 5.0


def missing_partitions(session: Context, classified: Classified, node: object) -> list[Stream]:
    """The topics that a statement names and of which this node lacks partitions that it owns."""
    database = session.database
    placement = database.cluster.placement
    if not placement.epoch:
        return []
    found = [session.names.find_stream(name.parts) for name in names(session, classified, node)]
    return [one for one in found if one is not None and database.holds.missing(placement, one)]


def wait_for_partitions(session: Context, classified: Classified, node: object) -> Waiting[None]:
    """Wait until the partitions have arrived or an attempt to fetch them has failed, at most ARRIVE_S.

    Raises:
        SerializationFailure: the placement of another node's share is no longer in force.
    """
    streams = missing_partitions(session, classified, node)
    if not streams:
        return
    database, clock = session.database, session.database.clock
    ends_s = clock.monotonic_s() + ARRIVE_S
    for stream in streams:
        while database.holds.missing(database.cluster.placement, stream):
            left_s = ends_s - clock.monotonic_s()
            changed = database.arrivals.changed()
            if left_s <= 0 or not database.holds.missing(database.cluster.placement, stream):
                break
            database.arrivals.hurry()
            if (yield Wait(changed, left_s)) and database.arrivals.stuck(stream.stream_id):
                break
    if session.part is not None:
        # Who has sent the share takes it for one of the partitions that were this node's then.
        session.part.check(database.cluster.placement.epoch, database.cluster.placement.local.name)


LOOK, GIVE, PIECE = "look", "give", "piece"
Act = Callable[[Context, Stream, dict[str, Any]], Waiting[list[bytes]]]


def answer(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Execute one act of a node that takes partitions.

    Raises:
        SerializationFailure: the two nodes have different placements, or the requested partition is not on
            this node.
        WrongState: the two nodes have different topics of this name.
    """
    asked, database = dict(request.more), session.database
    if session.peer is None:
        raise ProtocolViolation("only nodes take partitions")
    Part(asked["epoch"]).check(database.cluster.placement.epoch, database.cluster.placement.local.name)
    stream = database.catalog.streams.get(key_of(*asked["stream"]))
    if stream is None or not stream.topic:
        if asked["act"] == LOOK:
            return [facts_frame({"holds": None, "former": _former(session)})]
        raise SerializationFailure(f'topic "{asked["stream"][1]}" is not here')
    if database.identities.of(stream.stream_id) != asked["uid"]:
        node = database.cluster.placement.local.name
        raise WrongState(
            f'nodes "{session.peer.node}" and "{node}" disagree about topic "{stream.name}"',
            hint="They are two of one name: DROP TOPIC ... CASCADE drops both.",
        )
    return (yield from ACTS[asked["act"]](session, stream, asked))


def _former(session: Context) -> list[dict[str, Any]]:
    return [asdict(node) for node in session.database.cluster.former]


def _look(session: Context, stream: Stream, asked: dict[str, Any]) -> Waiting[list[bytes]]:
    """This node's state of some partitions."""
    holds = session.database.holds
    found = {str(p): asdict(holds.of(stream.stream_id, p)) for p in asked["partitions"]}
    return [facts_frame({"holds": found, "former": _former(session)})]
    yield


def _give(session: Context, stream: Stream, asked: dict[str, Any]) -> Waiting[list[bytes]]:
    """Give partitions to the requesting node, which owns them under the placement of both nodes."""
    assert session.peer is not None
    placement, node = session.database.cluster.placement, session.peer.node
    for partition in asked["partitions"]:
        if placement.owner(stream.schema, stream.name, partition).name != node:
            raise SerializationFailure(
                f'partition {partition} of topic "{stream.name}" is not of node "{node}"'
            )
    facts = yield from send_partition.give(
        session.database, session.id, stream, asked["partitions"], node, force=asked["force"]
    )
    return [facts_frame({str(partition): told for partition, told in facts.items()})]


def _piece(session: Context, stream: Stream, asked: dict[str, Any]) -> Waiting[list[bytes]]:
    """The next events of a partition that this node has given to the requesting node."""
    assert session.peer is not None
    given = session.database.holds.of(stream.stream_id, asked["partition"])
    if given.state != GIVEN or given.node != session.peer.node:
        raise SerializationFailure(f"partition {asked['partition']} is not here to be given")
    table = send_partition.piece(session.database, stream, asked["partition"], asked["after"])
    return [batch_frame(ArrowBatch(batch), placed=False) for batch in table.combine_chunks().to_batches()]
    yield


ACTS: dict[str, Act] = {LOOK: _look, GIVE: _give, PIECE: _piece}
