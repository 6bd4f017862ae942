"""The owners of a topic's partitions, and the shares of a statement: the part that each node executes.

A share is a statement with facts. This node's share runs in the session itself, another node's share in this
session's session there, over its link; `ask_node` answers both in the same way.
Source: docs/design/cluster.md, "Topics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from ...engine.catalog.streams import Stream
from ...engine.errors import (
    CannotConnect,
    ConnectionLost,
    DucktailError,
    QueryCanceled,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ...engine.placement.membership import DELIVERED, ROUTED
from ...engine.placement.placement import Node
from ...engine.waiting import Waiting, all_of
from ..language import statements as st
from ..language.statements import render_statement
from ..peers.links import Links
from ..peers.owners import Owners
from ..peers.peer_frames import batch_of, head_of, tail_of
from ..peers.remote import Reply
from ..peers.requests import FETCH, Part, Request
from ..results.results import Result, ResultBatch, ResultColumn
from ..session_state.context import Context

# The number of the answers to shares; those of relayed statements begin at 1. A session's shares are asked of
# a node one after the other, so one number does for them, and what is asked again is in the same words.
SHARES = 0

Row = tuple[object, ...]


def in_cluster(session: Context) -> bool:
    """True if a client's statement in this session may concern other nodes."""
    return bool(session.database.cluster.placement.epoch) and session.peer is None and session.part is None


def is_placed(session: Context, stream: Stream) -> bool:
    """True if a placement says which nodes own the stream's partitions."""
    return stream.topic and bool(session.database.cluster.placement.epoch)


def may_be_placed(session: Context, name: st.Name) -> bool:
    """True if a name may be that of a stream whose partitions have owners by a placement."""
    if not session.database.cluster.placement.epoch:
        return False
    stream = session.names.find_stream(name.parts)
    return stream is None or stream.topic


def remote_owners(session: Context, stream: Stream) -> Owners | None:
    """The owners of a topic's partitions, if other nodes have some and the statement is not a share itself.

    Raises:
        WrongState: no node owns one of them.
        SerializationFailure: this node's placement is no longer in force.
    """
    if not is_placed(session, stream) or session.peer is not None or session.part is not None:
        return None
    cluster = session.database.cluster
    cluster.check_current()
    owners = owners_of(session, stream.schema, stream.name, stream.partitions)
    cluster.count(ROUTED)
    if owners.remote:
        return owners
    cluster.count(DELIVERED)
    return None


def check_owned(session: Context, stream: Stream, partitions: Sequence[int] | None = None) -> None:
    """Check that partitions of a topic (None: all of them) are owned by this node.

    Raises:
        SerializationFailure: another node owns one, so the requesting node has another placement.
    """
    placement = session.database.cluster.placement
    if not is_placed(session, stream):
        return
    check_held(session, stream, partitions)
    for partition in range(stream.partitions) if partitions is None else partitions:
        owner = placement.owner(stream.schema, stream.name, partition)
        if owner.name != placement.local.name:
            raise SerializationFailure(
                f'partition {partition} of topic "{stream.name}" is not of node "{placement.local.name}"',
                detail=f'Node "{owner.name}" owns it.',
            )


def check_held(session: Context, stream: Stream, partitions: Iterable[int] | None = None) -> None:
    """Check that partitions of a topic (None: all that this node owns) have arrived.

    Raises:
        SerializationFailure: a partition has not arrived.
    """
    database = session.database
    missing = database.holds.missing(database.cluster.placement, stream)
    wanted = missing if partitions is None else [p for p in missing if p in partitions]
    if wanted:
        raise database.arrivals.error(stream, wanted[0], database.cluster.placement.local.name)


def own_partitions(session: Context, stream: Stream, partitions: Sequence[int]) -> list[int]:
    """The partitions of a stream that this node owns."""
    placement = session.database.cluster.placement
    if not is_placed(session, stream):
        return list(partitions)
    here, key = placement.local.name, (stream.schema, stream.name)
    found = [partition for partition in partitions if placement.owner(*key, partition).name == here]
    check_held(session, stream, found)
    return found


def owners_of(session: Context, schema: str, name: str, partitions: int) -> Owners:
    """The owners of the partitions of a topic of this name.

    Raises:
        WrongState: no node owns one of them.
    """
    placement = session.database.cluster.placement
    kept, key = session.owner_cache.under(placement), (schema, name, partitions)
    owners = kept.get(key)
    if owners is None:
        nodes = tuple(placement.owner(schema, name, partition).name for partition in range(partitions))
        own = {node: tuple(p for p, of in enumerate(nodes) if of == node) for node in dict.fromkeys(nodes)}
        home = placement.home(schema, name).name
        owners = kept[key] = Owners(placement.epoch, placement.local.name, home, own, nodes)
    return owners


def other_nodes(session: Context) -> list[str]:
    """The names of the cluster's other nodes."""
    placement = session.database.cluster.placement
    return [node.name for node in placement.nodes if node.name != placement.local.name]


def all_nodes(session: Context) -> list[str]:
    """The names of the cluster's nodes, this one's first."""
    return [session.database.cluster.placement.local.name, *other_nodes(session)]


def epoch(session: Context) -> int:
    """The epoch of the placement in force."""
    return session.database.cluster.placement.epoch


@contextmanager
def own_share(session: Context, part: Part) -> Iterator[None]:
    """A context in which the session's statement is this node's share.

    Raises:
        SerializationFailure: the share belongs to another placement.
    """
    session.database.cluster.check_current()
    placement = session.database.cluster.placement
    part.check(placement.epoch, placement.local.name)
    before, session.part = session.part, part
    try:
        yield
    finally:
        session.part = before


def ask_there(
    session: Context,
    node: str,
    text: str,
    parameters: Sequence[object] = (),
    take: Callable[[ResultBatch], None] | None = None,
    *,
    again: bool = False,
    changes: bool = False,
) -> Waiting[Answer]:
    """Execute a share on another node, in this session's session there.

    Args:
        take: receives the rows; without it they are in the answer.
        again: True if the share may be sent again after a broken connection, because it changes nothing or is
            idempotent.
        changes: True if the share changes something: a refusal of the second attempt may mean that the first
            succeeded.

    Raises:
        CannotConnect: the node cannot be reached.
        ConnectionLost: the connection was lost during the request; the outcome is unknown.
        ConnectionRefused: the node belongs to another cluster.
        WrongState: this session has no access to other nodes.
        DucktailError: the node's own error; it has no position, which would refer to the share's text.
    """
    rows: list[Row] = []

    def keep(batch: ResultBatch) -> None:
        rows.extend(_rows(batch))

    there, links = _node(session, node), _links(session)
    if there is None:
        # Where it owns something the statement has a placement that is over.
        raise SerializationFailure(f'node "{node}" has left the cluster meanwhile', hint="Try again.")
    request = Request("execute", text, (), parameters, portal=SHARES)
    try:
        reply = yield from links.ask(there, request, again=again, changes=changes)
        columns = head_of(reply.frames[0]).columns or ()
        frames = reply.frames[1:]
        links.goes_on(there, SHARES)
        while True:
            for frame in frames[:-1]:
                (take or keep)(batch_of(frame))
            if not tail_of(frames[-1]).more:
                return Answer(columns, rows)
            frames = (yield from links.ask(there, Request(FETCH, portal=SHARES))).frames
    except DucktailError as error:
        error.position = None
        if isinstance(error, CannotConnect | ConnectionLost) and f'"{node}"' not in error.message:
            error.message = f'node "{node}": {error.message}'
        if isinstance(error, UndefinedObject) and session.access.limited:
            # What a user may not see is told as what is not there.
            error.hint = f'Rights are each node\'s own: on node "{node}" a GRANT may be missing.'
        raise
    finally:
        links.ended(there, SHARES)


def tell_there(session: Context, node: str, text: str) -> Future[Reply] | None:
    """Send a share to another node, after earlier requests, without waiting for the answer.

    Returns:
        The future answer; None if this session has no session there.

    Raises:
        WrongState: this session reaches no other nodes.
    """
    there, links = _node(session, node), _links(session)
    return None if there is None else links.later(there, Request("execute", text, portal=links.number()))


def _node(session: Context, name: str) -> Node | None:
    return next((one for one in session.database.placement.nodes if one.name == name), None)


def _links(session: Context) -> Links:
    if session.links is None:
        raise WrongState("this session reaches no other node of the cluster")
    return session.links


@dataclass(frozen=True, slots=True)
class Share:
    """A node's share of a statement.

    Args:
        facts: the facts that are sent with its text.
        partitions: the partitions concerned.
        again, changes: as in `ask_there`.
    """

    statement: st.Statement
    facts: Part
    partitions: Sequence[int] = ()
    again: bool = False
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a node's answer; there are only a few."""

    columns: tuple[ResultColumn, ...]
    rows: list[Row]


def ask_node(session: Context, node: str, share: Share) -> Waiting[Answer]:
    """Execute a node's share: in this session for this node, else over the session's link.

    Raises:
        DucktailError: as in `ask_there`, or the statement's own error.
    """
    if node == session.database.cluster.placement.local.name:
        with own_share(session, share.facts):
            result = yield from session.handle(share.statement)
            return Answer(result.columns or (), rows_of(result))
    text = share.facts.text(render_statement(share.statement))
    return (yield from ask_there(session, node, text, again=share.again, changes=share.changes))


def ask_nodes(
    session: Context, shares: Mapping[str, Share], *, ended: bool = False
) -> Waiting[dict[str, Answer | Exception]]:
    """Send nodes their shares and collect the answers; this node executes its own share meanwhile.

    Args:
        ended: True to return a cancel as the outcome of the shares that it ends; see `told` of `all_of`.
    """
    local = session.database.cluster.placement.local.name
    nodes = sorted(shares, key=lambda node: node == local)
    works = [ask_node(session, node, shares[node]) for node in nodes]
    found = yield from all_of(works, session.database.clock.monotonic_s, told=ended)
    outcomes = dict(zip(nodes, found, strict=True))
    return {node: outcomes[node] for node in shares}


def do_on_nodes(
    session: Context, what: str, nodes: Sequence[str], home: str, share: Share, hint: str
) -> Waiting[None]:
    """Execute a statement on several nodes: first on the home, then on this node, then on the others.

    Args:
        what: the object concerned, for messages.
        hint: the hint of the error if only some nodes have executed it.

    Raises:
        DucktailError: the error of a node; it names the nodes that have executed the statement.
    """
    local = session.database.cluster.placement.local.name
    done: list[str] = []
    # What is wrong with it here is told before another node has done it.
    for stage in ([home], [local], nodes):
        left = [node for node in stage if node in nodes and node not in done]
        outcomes = yield from ask_nodes(session, dict.fromkeys(left, share), ended=True)
        failed = {node: error for node, error in outcomes.items() if isinstance(error, Exception)}
        done += [node for node in left if node not in failed]
        if failed:
            node, error = first_failure(failed)
            if not done:
                raise error
            missing = [one for one in nodes if one not in done]
            detail = f"It is done on {listed(done)} and not on {listed(missing)}."
            raise named(error, f'{what}: node "{node}": {error}', detail, hint) from error


def rows_of(result: Result) -> list[Row]:
    """The rows of one of this node's results, which are few."""
    rows: list[Row] = []
    while (batch := result.take(None)) is not None:
        rows.extend(_rows(batch))
    return rows


def _rows(batch: ResultBatch) -> list[Row]:
    columns = [column.to_pylist() for column in batch.record_batch().columns]
    return list(zip(*columns, strict=True))


def first_failure(failed: Mapping[str, Exception]) -> tuple[str, Exception]:
    """The node and the error with which a statement on several nodes ends; a cancel precedes other errors."""
    return min(failed.items(), key=lambda one: not isinstance(one[1], QueryCanceled))


def is_unknown(error: Exception, *, here: bool) -> bool:
    """True if the outcome of a failed share is unknown: its answer was lost, or not waited for.

    Args:
        here: True for this node's own share, which is either complete or not begun when its statement ends.
    """
    return isinstance(error, ConnectionLost) or (isinstance(error, QueryCanceled) and not here)


def named(
    error: Exception, message: str, detail: str | None = None, hint: str | None = None
) -> DucktailError:
    """A node's error as the error of the whole statement; other exceptions are raised unchanged."""
    if not isinstance(error, DucktailError):
        raise error
    return type(error)(message, detail=detail, hint=hint)


def listed(names: Sequence[object]) -> str:
    """A list of names for a sentence."""
    words = [str(name) for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
