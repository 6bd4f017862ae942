"""PUBLISH, INSERT and COPY to a topic with partitions on other nodes: each owner stores its share.

The entry node evaluates the rows, determines the partition of each and sends every owner its share, which is
one transaction there. The statement is answered once all shares are stored. A share carries the name and
sequence of a producer: the publisher's own, or a name lent by this node. It can therefore be sent again if
its answer was lost, and is stored once. Source: docs/design/cluster.md, "Publishing".
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.catalog.streams import Stream
from ...engine.duck.duckdb_errors import translated
from ...engine.errors import (
    CannotConnect,
    ConnectionLost,
    DucktailError,
    NotSupported,
    ProgramLimitExceeded,
    ProtocolViolation,
)
from ...engine.partitioning import hash_of
from ...engine.placement.membership import PUBLISHED_REMOTELY
from ...engine.quoting import ident
from ...engine.topics import LENT, PLACE_COLUMNS, Named, Placed, Published
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Wait, Waiting, all_of
from ..peers.owners import Owners
from ..peers.requests import Part
from ..session_state.context import Context
from .shares import Row, ask_there, check_owned, first_failure, is_unknown, listed

# A share is one message between nodes, in a form that takes a third more: well below a message's bound.
SHARE_BYTES_MAX = 32 << 20
# For how long a share whose answer was lost is sent again, and how soon after.
AGAIN_S, PAUSE_S = 5.0, 0.1
# Names of producers that a node lends, at once: its sessions that publish at one time.
RESERVED_MAX = 10_000
# The rows of a publication as they are shared out.
ROWS_SQL = (
    "SELECT n, partition_hash::BIGINT AS partition_hash, key::VARCHAR AS key, payload::VARCHAR AS payload, "
    "headers::VARCHAR AS headers FROM ({}\n) ORDER BY n"
)
RELATION = "__ducktail_share"
_NAMES, _TYPES = zip(*PLACE_COLUMNS, strict=True)

Rows = Callable[[Stream, Transaction], pa.Table]


@dataclass(frozen=True, slots=True)
class PublishedShare:
    """The result of an INSERT into a topic: its row count, and rows with their names and types.

    Args:
        place: the only row of a PUBLISH, in place of a table.
    """

    count: int
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    table: pa.Table | None = None
    place: tuple[object, ...] | None = None


class ProducerNames:
    """This node's own producer names, each lent to one statement at a time, with an increasing sequence.

    A new process uses new names, because the last sequences of the previous process are unknown.
    """

    def __init__(self) -> None:
        self._begin()
        # A forked process is another one: under names that it got with the fork, its events would be taken
        # for repeated ones.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._process = uuid.uuid4().hex[:12]
        self._count = 0
        self._free: deque[Named] = deque()

    @contextmanager
    def reserved(self, node: str) -> Iterator[Named]:
        """A name and the next sequence, for one statement."""
        with self._mutex:
            if self._free:
                mine = self._free.popleft()
            else:
                self._count += 1
                mine = Named(f"{LENT}{node}.{self._process}.{self._count}", 1)
        try:
            yield mine
        finally:
            with self._mutex:
                # Whatever has become of it: what of it comes late is behind what comes next.
                if len(self._free) < RESERVED_MAX:
                    self._free.append(replace(mine, sequence=mine.sequence + 1))


PRODUCER_NAMES = ProducerNames()


def publish(
    session: Context, topic: Stream, owners: Owners, rows: Rows, named: Named | None, *, told: bool
) -> Waiting[PublishedShare]:
    """Publish rows to a topic with partitions on other nodes.

    Args:
        rows: returns the rows: n, partition_hash (NULL without a key), key, payload, headers.
        told: True to return the partition and LSN of each event.

    Raises:
        NotSupported: in a transaction block, for a partition of another node.
        CannotConnect, ConnectionLost: an owner is unavailable; DETAIL lists the partitions whose events are
            stored.
        DucktailError: the error of an owner, with the same DETAIL.
    """
    if session.block.begun and not _piped_alone(session) and session.collected is None:
        return (yield from _in_block(session, topic, owners, rows, named, told=told))

    def work(transaction: Transaction) -> Waiting[pa.Table]:
        return rows(topic, transaction)
        yield

    if session.collected is not None:
        table = yield from session.block.unit(work)
        session.collected.append(table)
        return PublishedShare(table.num_rows)
    piped = session.block.begun
    if piped:
        # To its client it is in no block; nothing has been done in this one.
        yield from session.block.commit()
    try:
        table = yield from session.block.unit(work)
        return (yield from send(session, topic, owners, table, named, told=told))
    finally:
        if piped:
            session.block.begin(implicit=True, piped=True)


def _piped_alone(session: Context) -> bool:
    return session.block.piped and session.block.transaction is None


def _in_block(
    session: Context, topic: Stream, owners: Owners, rows: Rows, named: Named | None, *, told: bool
) -> Waiting[PublishedShare]:
    """Publish within a transaction: events without a key are distributed over this node's partitions."""
    own = owners.partitions.get(owners.local, ())

    def work(transaction: Transaction) -> Waiting[PublishedShare]:
        table = rows(topic, transaction)
        placed = _placed(session, topic, table, named, own or range(topic.partitions))
        remote = sorted(set(placed.column("partition").to_pylist()) - set(own))
        if remote:
            raise NotSupported(
                f'partition {remote[0]} of topic "{topic.name}" is of node "{owners.of(remote[0])}": a '
                "transaction block cannot publish to it",
                detail="The two nodes could not commit together.",
                hint="Publish in autocommit, or on the node that owns the partition.",
            )
        published = yield from _store(session, transaction, topic, placed, named, told=told)
        return _answer(published, owners.local) if told else PublishedShare(published.events)

    return (yield from session.block.unit(work))


def send(
    session: Context, topic: Stream, owners: Owners, table: pa.Table, named: Named | None, *, told: bool
) -> Waiting[PublishedShare]:
    """Store rows at the owners of their partitions, in one transaction for each owner."""
    placed = _placed(session, topic, table, named, range(topic.partitions))
    partitions = placed.column("partition")
    shares = {}
    for node, own in owners.partitions.items():
        share = placed.filter(pc.is_in(partitions, pa.array(own, pa.int32())))
        if share.num_rows:
            shares[node] = share
    with PRODUCER_NAMES.reserved(owners.local) as reserved:
        identity = named or reserved
        works: dict[str, Waiting[list[Row]]] = {}
        for node, share in shares.items():
            if node == owners.local:
                works[node] = _stored_here(session, topic, share, named, told=told)
            else:
                works[node] = _stored_there(session, topic, owners, node, share, identity, told=told)
        found = yield from all_of(list(works.values()), session.database.clock.monotonic_s, told=True)
    outcomes = dict(zip(works, found, strict=True))
    _check(topic, owners.local, shares, outcomes)
    stored = {node: rows for node, rows in outcomes.items() if isinstance(rows, list)}
    if not told:
        return PublishedShare(sum(int(str(rows[0][0])) for rows in stored.values()))
    places = [(*row, node, node == owners.local) for node, rows in stored.items() for row in rows]
    if len(places) == table.num_rows:
        # In the order of the rows.
        numbers = [n for node in stored for n in shares[node].column("n").to_pylist()]
        places = [place for _, place in sorted(zip(numbers, places, strict=True))]
    return _with_places(places)


def _placed(
    session: Context, topic: Stream, table: pa.Table, named: Named | None, keyless: Sequence[int]
) -> pa.Table:
    """The rows with their partitions.

    Args:
        keyless: the partitions over which events without a key are distributed.
    """
    hashes = table.column("partition_hash").to_pylist()
    if named is None:
        turn = session.database.topics.turn(topic, len(hashes))
    else:
        # A repeat must find the events where they were stored at first.
        turn = hash_of([named.producer, named.sequence], ["VARCHAR", "BIGINT"])
    count = topic.partitions
    found = [
        keyless[(turn + place) % len(keyless)] if value is None else value % count
        for place, value in enumerate(hashes)
    ]
    columns = {name: table.column(name) for name in ("key", "payload", "headers")}
    numbers = pa.array(range(1, len(found) + 1), pa.int64())
    return pa.table({"n": numbers, **columns, "partition": pa.array(found, pa.int32())})


def _stored_here(
    session: Context, topic: Stream, share: pa.Table, named: Named | None, *, told: bool
) -> Waiting[list[Row]]:
    published = yield from _stored(session, topic, share, named, told=told)
    return _located(published) if told else [(published.events,)]


def _stored(
    session: Context, topic: Stream, share: pa.Table, named: Named | None, *, told: bool
) -> Waiting[Published]:
    """Store this node's share in a transaction of its own, or in the session's."""

    def work(transaction: Transaction) -> Waiting[Published]:
        return (yield from _store(session, transaction, topic, share, named, told=told))

    return (yield from session.block.unit(work))


def _store(
    session: Context,
    transaction: Transaction,
    topic: Stream,
    share: pa.Table,
    named: Named | None,
    *,
    told: bool,
) -> Waiting[Published]:
    """Store this node's share in a transaction."""
    topics = session.database.topics
    present = yield from topics.enter(transaction, topic, session.block.lock_timeout_ms)
    # Under the lock no placement comes into force, and nothing is given: what is this node's now stays so.
    check_owned(session, topic, sorted(set(share.column("partition").to_pylist())))
    transaction.annotate(session.variables.annotation)
    transaction.cursor.register(RELATION, share)
    try:
        published = topics.publish(transaction, Placed(present, RELATION), (), named, told=told)
    except duckdb.Error as error:
        raise translated(error) from error
    finally:
        transaction.cursor.unregister(RELATION)
    if published.repeated:
        tell_repeated(session, present, published, named)
    return published


def tell_repeated(session: Context, topic: Stream, published: Published, named: Named | None) -> None:
    """Notify a publisher that this publication is a repetition."""
    assert named is not None
    if named.producer.startswith(LENT):
        return  # It was this node that sent it again.
    known = "" if published.events else ", and its events are not known any more"
    session.notices.add(
        f'sequence {named.sequence} of producer "{named.producer}" has been published to '
        f'topic "{topic.name}" before{known}'
    )


def _located(published: Published) -> list[Row]:
    """Partition and LSN of each event that was stored."""
    assert published.places is not None
    columns = [published.places.column(name).to_pylist() for name in ("partition", "lsn")]
    return list(zip(*columns, strict=True))


def _stored_there(
    session: Context,
    topic: Stream,
    owners: Owners,
    node: str,
    share: pa.Table,
    identity: Named,
    *,
    told: bool,
) -> Waiting[list[Row]]:
    """Store a share at its owner; repeated if the answer is lost."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, share.schema) as writer:
        writer.write_table(share)
    data = sink.getvalue()
    if data.size > SHARE_BYTES_MAX:
        raise ProgramLimitExceeded(
            f'the events for node "{node}" are more than {SHARE_BYTES_MAX} bytes',
            hint="Publish them in several statements.",
        )
    part = Part(owners.epoch, producer=identity.producer, sequence=identity.sequence, told=told, events=True)
    text = part.text(f"PUBLISH TO {ident(topic.schema)}.{ident(topic.name)} VALUES ($1)")
    parameters = (data.to_pybytes(),)
    clock = session.database.clock
    began_s = clock.monotonic_s()
    lost: DucktailError | None = None
    while True:
        try:
            answer = yield from ask_there(session, node, text, parameters)
        except (ConnectionLost, CannotConnect) as error:
            if isinstance(error, CannotConnect) and lost is None:
                raise  # Nothing was sent.
            lost = lost or error
            if clock.monotonic_s() - began_s > AGAIN_S:
                raise lost from error
            never: Future[None] = Future()
            yield Wait(never, PAUSE_S)
        except DucktailError as error:
            if lost is None:
                raise
            # Of what was sent first it says nothing: that may be stored.
            raise lost from error
        else:
            session.database.cluster.count(PUBLISHED_REMOTELY, node, by=share.num_rows)
            return [(row[0], row[1]) for row in answer.rows] if told else answer.rows


def _check(topic: Stream, local: str, shares: Mapping[str, pa.Table], outcomes: Mapping[str, object]) -> None:
    """Raise the first error of a share, or the end of the statement, with the state of all shares."""
    failed = {node: e for node, e in outcomes.items() if isinstance(e, Exception)}
    if not failed:
        return
    node, error = first_failure(failed)
    if not isinstance(error, DucktailError):
        raise error
    of = {node: sorted(set(share.column("partition").to_pylist())) for node, share in shares.items()}
    standing = sorted(p for node in outcomes if node not in failed for p in of[node])
    doubtful = {node for node, e in failed.items() if is_unknown(e, here=node == local)}
    lost = sorted(p for node in failed.keys() - doubtful for p in of[node])
    unknown = sorted(p for node in doubtful for p in of[node])
    told = []
    if standing:
        told.append(f"The events of {_of_partitions(standing)} are stored.")
    if lost:
        told.append(f"Those of {_of_partitions(lost)} are not.")
    if unknown:
        told.append(f"Whether those of {_of_partitions(unknown)} are is unknown.")
    if error.detail:
        told.append(error.detail)
    raise type(error)(
        f'topic "{topic.name}", {_of_partitions(of[node])} on node "{node}": {error.message}',
        detail=" ".join(told),
        hint=error.hint
        or "WITH (producer = 'name', sequence = n) it may be repeated: what is stored is not stored again.",
    ) from error


def _of_partitions(partitions: Sequence[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {listed(partitions)}"


def _answer(published: Published, here: str) -> PublishedShare:
    """The places of events that this node has stored."""
    return _with_places([(*row, here, True) for row in _located(published)])


def _with_places(rows: Sequence[Row]) -> PublishedShare:
    columns = list(zip(*rows, strict=True)) or [()] * len(_NAMES)
    types = (pa.int32(), pa.int64(), pa.string(), pa.bool_())
    table = pa.table({n: pa.array(c, t) for n, c, t in zip(_NAMES, columns, types, strict=True)})
    return PublishedShare(len(rows), _NAMES, _TYPES, table)


def store_share(
    session: Context, part: Part, topic: Stream, parameters: Sequence[object]
) -> Waiting[PublishedShare]:
    """Store the share that another node has sent."""
    data = parameters[0] if parameters else None
    if not isinstance(data, bytes) or part.producer is None:
        raise ProtocolViolation("a share of events without events")
    try:
        with pa.ipc.open_stream(data) as reader:
            share = reader.read_all()
    except pa.ArrowException as error:
        raise ProtocolViolation(f"a share of events cannot be read: {error}") from None
    named = Named(part.producer, part.sequence)
    published = yield from _stored(session, topic, share, named, told=part.told)
    if part.told:
        return _answer(published, session.database.cluster.placement.local.name)
    table = pa.table({"partition": pa.array([published.events], pa.int32())})
    return PublishedShare(published.events, ("events",), ("INTEGER",), table)
