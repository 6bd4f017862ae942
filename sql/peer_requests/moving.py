"""The answers to a node that takes over partitions: this node's state of them, and their events.

Nodes ask it of each other with sessions of their own; no user's right has a part in it. `more` of the request
says what: `act`, `stream` (schema and name), `uid` (the topic's identity), `epoch`, and what the act needs.
Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ...engine.catalog.streams import Stream, key_of
from ...engine.cluster import send_partition
from ...engine.errors import ProtocolViolation, SerializationFailure, WrongState
from ...engine.placement.holds import GIVEN
from ...engine.waiting import Waiting
from ..peers.part import Part
from ..peers.peer_frames import batch_frame, facts_frame
from ..peers.request import Request
from ..results.results import ArrowBatch
from ..session_state.context import Context

LOOK, GIVE, PIECE = "look", "give", "piece"
Act = Callable[[Context, Stream, dict[str, Any]], Waiting[list[bytes]]]


def hold(session: Context, request: Request) -> Waiting[list[bytes]]:
    """Answer one act.

    Raises:
        SerializationFailure: the two nodes have not the same placement, or what is asked for is not
            here. WrongState: the two know two topics of this name.
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
    """Give partitions to the node that asks: they are its under the placement of both."""
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
    """The next events of a partition that this node has given to the one that asks."""
    assert session.peer is not None
    given = session.database.holds.of(stream.stream_id, asked["partition"])
    if given.state != GIVEN or given.node != session.peer.node:
        raise SerializationFailure(f"partition {asked['partition']} is not here to be given")
    table = send_partition.piece(session.database, stream, asked["partition"], asked["after"])
    return [batch_frame(ArrowBatch(batch), placed=False) for batch in table.combine_chunks().to_batches()]
    yield


ACTS: dict[str, Act] = {LOOK: _look, GIVE: _give, PIECE: _piece}
