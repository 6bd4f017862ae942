"""Who has which partitions of a topic, and a statement's shares: asked of all nodes at once.

Source: docs/design/cluster.md, "Topics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ...engine.catalog.streams import Stream
from ...engine.errors import (
    ConnectionLost,
    DucktailError,
    QueryCanceled,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ...engine.placement.membership import DELIVERED, ROUTED
from ...engine.waiting import Waiting, all_of
from ..peers.owners import Owners
from ..peers.part import Part
from ..peers.remote import Peers
from ..results.results import Result, ResultBatch
from ..session_state.context import Context
from .linked_peers import LinkedPeers

Row = tuple[object, ...]


def in_cluster(session: Context) -> bool:
    """Whether a statement that a client has given this session may concern other nodes."""
    return bool(session.database.cluster.placement.epoch) and session.peer is None and session.part is None


def spread(session: Context, stream: Stream) -> Owners | None:
    """Who owns a topic's partitions, where other nodes have some and the statement is not a share itself.

    Raises:
        WrongState: 55000, no node owns one of them. SerializationFailure: 40001, this node's placement is
            over.
    """
    placement = session.database.cluster.placement
    if not placement.epoch or not stream.topic or session.peer is not None or session.part is not None:
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
    """What is done here on a topic's partitions (None: all of them) wants them to be this node's.

    Raises:
        SerializationFailure: 40001, another node owns one: the node that asked has another placement.
    """
    placement = session.database.cluster.placement
    if not placement.epoch or not stream.topic:
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
    """What is done here on a topic's partitions (None: all that this node owns) wants them to have come.

    Raises:
        SerializationFailure: 40001, one is on its way.
    """
    database = session.database
    missing = database.holds.missing(database.cluster.placement, stream)
    wanted = missing if partitions is None else [p for p in missing if p in partitions]
    if wanted:
        raise database.arrivals.error(stream, wanted[0], database.cluster.placement.local.name)


def own_partitions(session: Context, stream: Stream, partitions: Sequence[int]) -> list[int]:
    """Those of a stream's partitions that are this node's."""
    placement = session.database.cluster.placement
    if not placement.epoch or not stream.topic:
        return list(partitions)
    here, key = placement.local.name, (stream.schema, stream.name)
    found = [partition for partition in partitions if placement.owner(*key, partition).name == here]
    check_held(session, stream, found)
    return found


def owners_of(session: Context, schema: str, name: str, partitions: int) -> Owners:
    """Who owns the partitions of a topic of this name.

    Raises:
        WrongState: 55000, no node owns one of them.
    """
    placement = session.database.cluster.placement
    kept, key = session.habits.under(placement), (schema, name, partitions)
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


@contextmanager
def own_share(session: Context, part: Part) -> Iterator[None]:
    """Within, the session's statement is this node's share.

    Raises:
        SerializationFailure: 40001, it was shared out by another placement.
    """
    session.database.cluster.check_current()
    placement = session.database.cluster.placement
    part.check(placement.epoch, placement.local.name)
    before, session.part = session.part, part
    try:
        yield
    finally:
        session.part = before


def ask_rows(
    session: Context,
    node: str,
    text: str,
    parameters: Sequence[object] = (),
    *,
    again: bool = False,
    changes: bool = False,
) -> Waiting[list[Row]]:
    """The rows that another node answers; they are few.

    Raises:
        DucktailError: as `Peers.ask`; WrongState, this session reaches no other nodes.
    """
    rows: list[Row] = []

    def take(batch: ResultBatch) -> None:
        rows.extend(_rows(batch))

    yield from ask_there(session, node, text, parameters, take, again=again, changes=changes)
    return rows


def ask_there(
    session: Context,
    node: str,
    text: str,
    parameters: Sequence[object],
    take: Callable[[ResultBatch], None],
    *,
    again: bool = False,
    changes: bool = False,
) -> Waiting[None]:
    """Have another node do a share; see `Peers.ask`.

    Raises:
        DucktailError: as `Peers.ask`; without a position, which would be one in the share.
    """
    try:
        yield from peers(session).ask(node, text, parameters, take, again=again, changes=changes)
    except DucktailError as error:
        error.position = None
        if isinstance(error, UndefinedObject) and session.access.limited:
            # What a user may not see is told as what is not there.
            error.hint = f'Rights are each node\'s own: on node "{node}" a GRANT may be missing.'
        raise


def peers(session: Context) -> Peers:
    """The session's sessions on other nodes."""
    if session.peers is not None:
        return session.peers
    if session.links is None:
        raise WrongState("this session reaches no other node of the cluster")
    return LinkedPeers(session, session.links)


def ask_all(
    session: Context,
    asked: Mapping[str, tuple[str, Sequence[object]]],
    *,
    again: bool = False,
    told: bool = False,
) -> Waiting[dict[str, list[Row] | Exception]]:
    """What several nodes answer, each to its own text, all at once.

    Args:
        told: see `all_of`.
    """
    works = [
        ask_rows(session, node, text, parameters, again=again) for node, (text, parameters) in asked.items()
    ]
    outcomes = yield from all_of(works, session.database.clock.monotonic_s, told=told)
    return dict(zip(asked, outcomes, strict=True))


def rows_of(result: Result) -> list[Row]:
    """The few rows of a result of this node's own."""
    rows: list[Row] = []
    while (batch := result.take(None)) is not None:
        rows.extend(_rows(batch))
    return rows


def _rows(batch: ResultBatch) -> list[Row]:
    columns = [column.to_pylist() for column in batch.record_batch().columns]
    return list(zip(*columns, strict=True))


def first_failure(failed: Mapping[str, Exception]) -> tuple[str, Exception]:
    """The node and the error that a statement of several nodes ends with: a cancel before other errors."""
    return min(failed.items(), key=lambda one: not isinstance(one[1], QueryCanceled))


def is_unknown(error: Exception, *, here: bool) -> bool:
    """Whether a share that failed so may be done, or be done yet: an answer was lost, or not waited for.

    Args:
        here: it was this node's own, which is done whole or not begun when its statement is ended.
    """
    return isinstance(error, ConnectionLost) or (isinstance(error, QueryCanceled) and not here)


def named(
    error: Exception, message: str, detail: str | None = None, hint: str | None = None
) -> DucktailError:
    """An error of a node's, told of the whole statement; what is no error of ours is raised as it is."""
    if not isinstance(error, DucktailError):
        raise error
    return type(error)(message, detail=detail, hint=hint)


def listed(names: Sequence[object]) -> str:
    """Names as they stand in a sentence."""
    words = [str(name) for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
