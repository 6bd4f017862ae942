"""Publishing into topics, and the last publications of their producers.

PUBLISH is a captured write without a table: under the writer lock, with LSNs from the one counter and a
line in `commits`. An append conflicts with nothing.

A producer that numbers its statements (`producer`, `sequence`) may repeat one: stored events are acknowledged
again and not stored twice. The log itself records the producer of each event, in the same transaction; memory
holds each producer's last sequence. A producer is therefore known as long as the topic retains one of its
events.

In a cluster the entry node determines key, payload, headers and partition of each event; here this node's
share (`Placed`) becomes rows of the log. Source: docs/topics.md, "Repeated publications".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import duckdb
import pyarrow as pa

from .buffers.buffers import Buffers
from .catalog import segments
from .catalog.captured_tables import TopicLog
from .catalog.catalog import Catalog
from .catalog.streams import Stream
from .duck.binding import Parsed
from .duck.cursors import arrow_table
from .duck.duckdb_errors import translated
from .errors import NotNullViolation, ProgramLimitExceeded, SerializationFailure, UndefinedObject
from .log.topic_rows import Publication, Single, check_error
from .placement.placement import Placement
from .quoting import ident, literal
from .transactions.transaction import CommitStep, Transaction
from .transactions.transactions import Transactions
from .waiting import Waiting


@dataclass(frozen=True, slots=True)
class Placed:
    """This node's share of a publication: events with known partitions.

    Args:
        relation: a relation registered on the transaction's cursor: n (in order), partition, key, payload,
            headers.
        but: the partitions whose events are omitted.
    """

    topic: Stream
    relation: str
    but: frozenset[int] = frozenset()

    def sql(self, base_lsn: int, txid: int, turn: int, producer: tuple[str, int] | None, told: bool) -> str:
        """The INSERT; arguments as of `topic_rows.Publication.sql`."""
        name, sequence = ("NULL", "NULL") if producer is None else (literal(producer[0]), str(producer[1]))
        returning = " RETURNING partition, lsn" if told else ""
        return (
            f"INSERT INTO {TopicLog(self.topic).log} "
            f"SELECT {base_lsn} + row_number() OVER (ORDER BY n), {txid}, partition, key::JSON, "
            f"payload::JSON, headers::JSON, {name}, {sequence} FROM {ident(self.relation)}{self._where} "
            f"ORDER BY n{returning}"
        )

    @property
    def _where(self) -> str:
        return f" WHERE partition NOT IN ({', '.join(map(str, self.but))})" if self.but else ""


# Producers that are known of one topic: some 200 bytes each in memory.
PRODUCERS_MAX = 100_000

# How the names begin that nodes lend to statements which name no producer; a user's own have other names.
LENT = "ducktail.lent."

# What PUBLISH answers of each event.
PLACE_COLUMNS = (("partition", "INTEGER"), ("lsn", "BIGINT"), ("node", "VARCHAR"), ("local", "BOOLEAN"))


# The INSERT of several events: the LSN and the txid before the first, then a list for each column.
GROUP_INSERT = (
    "INSERT INTO {log} SELECT $1::BIGINT + i, $2::BIGINT + i, partition, key::JSON, payload::JSON, "
    "headers::JSON, NULL, NULL FROM (SELECT unnest(range(1, len($3::INTEGER[]) + 1)) AS i, "
    "unnest($3::INTEGER[]) AS partition, unnest($4::VARCHAR[]) AS key, unnest($5::VARCHAR[]) AS payload, "
    "unnest($6::VARCHAR[]) AS headers)"
)


@dataclass(frozen=True, slots=True)
class Named:
    """A repeatable publication: its producer, and its sequence number."""

    producer: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication.

    Args:
        events: the number of events; for a repetition, the number that is still known of the first time.
        first_lsn: the first LSN stored by this publication; None if none was stored.
        places: PLACE_COLUMNS of each event, in order, on request.
        repeated: True if it had been published before.
    """

    events: int
    first_lsn: int | None = None
    places: pa.Table | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class _Last:
    """The last publication of a producer."""

    sequence: int
    last_lsn: int


@dataclass(slots=True)
class _State:
    """The state of a topic: the next partition for events without a key, and its producers."""

    turn: int = 0
    producers: dict[str, _Last] = field(default_factory=dict)


class Topics:
    """Publishing into topics, and the last publications of their producers.

    Args:
        cursor: creates a cursor of the engine.
        placement: returns the placement in force.
    """

    def __init__(
        self,
        catalog: Catalog,
        buffers: Buffers,
        transactions: Transactions,
        cursor: Callable[[], duckdb.DuckDBPyConnection],
        placement: Callable[[], Placement],
    ) -> None:
        self._catalog = catalog
        self._placement = placement
        self._buffers = buffers
        self._transactions = transactions
        self._cursor = cursor
        self._states: dict[int, _State] = {}
        self._group_inserts: dict[int, Parsed] = {}  # by the number of the topic's log
        own = cursor()
        try:
            for topic in list(catalog.streams.values()):
                if topic.topic and buffers[topic.stream_id].failure is None:
                    self._states[topic.stream_id] = _State(0, _producers(own, topic))
        finally:
            own.close()

    def enter(self, transaction: Transaction, topic: Stream, timeout_ms: int) -> Waiting[Stream]:
        """Give a transaction the writer lock and its numbers before it publishes.

        Returns:
            The topic's state under the lock.

        Raises:
            LockNotAvailable: the writer lock was not free in time.
            UndefinedObject: the topic has been dropped.
            SerializationFailure: the transaction's snapshot is older than the topic.
        """
        self.keep_epoch(transaction)
        yield from self._transactions.lock_for(transaction, timeout_ms)
        self._transactions.settle(transaction)
        present = self._catalog.stream_by_id(topic.stream_id)
        if present is None:
            raise UndefinedObject(f'topic "{topic.name}" does not exist')
        self._buffers.check_log(present)
        assert transaction.snapshot_counter is not None
        if transaction.snapshot_counter < present.created_counter:
            raise SerializationFailure(
                f'topic "{present.name}" was made after this transaction began to read',
                hint="Roll back and try again.",
            )
        return present

    def keep_epoch(self, transaction: Transaction) -> None:
        """Refuse a transaction's changes of topics at COMMIT if this placement is no longer in force."""
        epoch = self._placement().epoch
        if epoch:
            # The first one counts: nothing of an older one may stand beside it.
            check = partial(self._check_epoch, epoch)
            transaction.at(CommitStep.CHECKS, check, about="placement", first=True)

    def publish(
        self,
        transaction: Transaction,
        publication: Publication | Single | Placed,
        parameters: Sequence[object],
        named: Named | None,
        *,
        told: bool,
    ) -> Published:
        """Store the rows of a publication; the transaction holds the writer lock (`enter`).

        Args:
            told: True to return the partition and LSN of each event.

        Raises:
            ProgramLimitExceeded: an event is too large, or there are too many producers.
            InvalidParameterValue, InvalidTextRepresentation: the headers are not a JSON object.
            NotNullViolation: an event of a compacted topic has no key.
            duckdb.Error: the query fails.
        """
        assert transaction.has_writer_lock
        topic = publication.topic
        if named is not None:
            self._make_room(topic, named.producer)
        if named is not None and self._catalog.segments.of(topic.stream_id):
            assert isinstance(publication, Placed), "whose partitions are known is asked of each"
            return self._publish_moved(transaction, publication, named)
        if named is not None:
            known = self._repeated(transaction, topic, named)
            if known is not None:
                return known
        if isinstance(publication, Single) and publication.key is None:
            _check_keys(topic, 1)
        state = self._states.setdefault(topic.stream_id, _State())
        base_lsn = transaction.next_lsn
        sql = publication.sql(
            base_lsn,
            transaction.txid,
            state.turn,
            None if named is None else (named.producer, named.sequence),
            told,
        )
        places = None
        try:
            cursor = transaction.cursor.execute(sql, list(parameters) or None)
            if told:
                places = self._with_node(arrow_table(cursor))
                events = places.num_rows
            else:
                events = int(cursor.fetchall()[0][0])
        except duckdb.InvalidInputException as error:
            failed = check_error(str(error))
            if failed is None:
                raise
            raise failed from error
        if topic.compaction == "key" and not isinstance(publication, Single):
            keyless = f"SELECT count(*) FROM {TopicLog(topic).log} WHERE lsn > {base_lsn} AND key IS NULL"
            _check_keys(topic, transaction.cursor.execute(keyless).fetchall()[0][0])
        if not isinstance(publication, Placed):
            state.turn = (state.turn + events) % topic.partitions
        transaction.captured(topic.table_id, events, frozenset())
        if named is not None and events:
            self._note(transaction, topic, named)
        return Published(events, base_lsn + 1 if events else None, places)

    def publish_group(
        self, transaction: Transaction, topic: Stream, events: Sequence[Single]
    ) -> list[tuple[int, int]]:
        """Store events of several users' transactions (`group_commit.py`), in order.

        The transaction holds the writer lock (`enter`).

        Returns:
            The partition and LSN of each event.
        """
        state = self._states.setdefault(topic.stream_id, _State())
        base_lsn, log = transaction.next_lsn, TopicLog(topic).log
        partitions = [event.partition(state.turn + place) for place, event in enumerate(events)]
        insert = self._group_inserts.get(topic.table_id)
        if insert is None:
            insert = self._group_inserts[topic.table_id] = Parsed(GROUP_INSERT.format(log=log))
        texts = ([event.key for event in events], [event.payload for event in events])
        headers = [event.headers for event in events]
        values = (base_lsn, transaction.next_txid - 1, partitions, *texts, headers)
        insert.run(transaction.cursor, values).fetchall()
        state.turn = (state.turn + len(events)) % topic.partitions
        transaction.captured(topic.table_id, len(events), frozenset())
        return [(partition, base_lsn + place) for place, partition in enumerate(partitions, 1)]

    # Partitions that came from other nodes, with what their producers had published there.

    def _publish_moved(self, transaction: Transaction, publication: Placed, named: Named) -> Published:
        """Store the events that were not published before, by partition; always returns their partitions and
        LSNs."""
        topic, cursor = publication.topic, transaction.cursor
        rows = cursor.execute(f"SELECT partition FROM {publication.relation} ORDER BY n").fetchall()
        order = [partition for (partition,) in rows]
        known = {p for p in set(order) if self._knows(transaction, topic, named, p)}
        found: dict[int, deque[int]] = {}
        for partition, lsn in self._places_of(topic, named, known):
            found.setdefault(partition, deque()).append(lsn)
        base_lsn = transaction.next_lsn
        if known != set(order):
            rest = replace(publication, but=frozenset(known))
            sql = rest.sql(base_lsn, transaction.txid, 0, (named.producer, named.sequence), True)
            stored = cursor.execute(sql).fetchall()
            for partition, lsn in sorted(stored, key=lambda row: row[1]):
                found.setdefault(partition, deque()).append(lsn)
            transaction.captured(topic.table_id, len(stored), frozenset())
            self._note(transaction, topic, named)
        places = [(p, found[p].popleft()) for p in order if found.get(p)]
        table = pa.table(
            {
                "partition": pa.array([p for p, _ in places], pa.int32()),
                "lsn": pa.array([lsn for _, lsn in places], pa.int64()),
            }
        )
        first = base_lsn + 1 if transaction.next_lsn > base_lsn else None
        return Published(len(places), first, self._with_node(table), repeated=first is None)

    def _knows(self, transaction: Transaction, topic: Stream, named: Named, partition: int) -> bool:
        """True if a publication, or a later one of its producer, has been here for a partition."""
        own = transaction.producers.get((topic.stream_id, named.producer), 0)
        if named.sequence <= own:
            return True
        segment = self._catalog.segments.of(topic.stream_id).get(partition)
        last = self._last(topic, named.producer)
        if last is not None:
            # What was published here before the partition came had none of its events.
            covers = segment is None or last.last_lsn > segment.since_lsn
            if named.sequence < last.sequence or (covers and named.sequence == last.sequence):
                return True
        return segment is not None and named.sequence <= segment.producers.get(named.producer, 0)

    def _places_of(self, topic: Stream, named: Named, partitions: set[int]) -> list[tuple[int, int]]:
        """The (partition, LSN) of a publication's stored events in some partitions, by LSN."""
        if not partitions:
            return []
        where = (
            f"producer = {literal(named.producer)} AND sequence = {named.sequence} "
            f"AND partition IN ({', '.join(map(str, partitions))})"
        )
        cursor = self._cursor()
        try:
            return cursor.execute(
                f"SELECT partition, lsn FROM {segments.EVENTS} "
                f"WHERE stream_id = {topic.stream_id} AND {where} "
                f"UNION SELECT partition, lsn FROM {TopicLog(topic).log} WHERE {where} ORDER BY lsn"
            ).fetchall()
        finally:
            cursor.close()

    def producers_of(self, topic: Stream, partition: int) -> dict[str, int]:
        """The last sequence of each producer in a partition, on this node and on its earlier nodes."""
        segment = self._catalog.segments.of(topic.stream_id).get(partition)
        found = {} if segment is None else dict(segment.producers)
        state = self._states.get(topic.stream_id)
        for name, last in list(state.producers.items()) if state is not None else ():
            if name.startswith(LENT):
                continue
            if segment is None or last.last_lsn > segment.since_lsn:
                found[name] = max(last.sequence, found.get(name, 0))
        return found

    def _check_epoch(self, began: int) -> None:
        """Refuse a publication under an outdated placement: another node may own its partitions."""
        present = self._placement().epoch
        if present != began:
            raise SerializationFailure(
                f"placement {present} took the place of {began}, by which this was published",
                hint="Try again: the partitions may be another node's now.",
            )

    def turn(self, topic: Stream, events: int) -> int:
        """The partition, modulo their number, of the first of `events` events without a key."""
        state = self._states.setdefault(topic.stream_id, _State())
        turn, state.turn = state.turn, (state.turn + events) % topic.partitions
        return turn

    # Producers.

    def _repeated(self, transaction: Transaction, topic: Stream, named: Named) -> Published | None:
        """The result for a repeated publication; None if it was not published before."""
        own = transaction.producers.get((topic.stream_id, named.producer))
        if own is not None and named.sequence <= own:
            return self._first_time(transaction.cursor, topic, named)
        last = self._last(topic, named.producer)
        if last is None or named.sequence > last.sequence:
            return None
        # The session's own snapshot may be older than the first time.
        cursor = self._cursor()
        try:
            return self._first_time(cursor, topic, named)
        finally:
            cursor.close()

    def _last(self, topic: Stream, producer: str) -> _Last | None:
        """A producer's last publication, if one of its events is retained, else None."""
        state = self._states.get(topic.stream_id)
        last = None if state is None else state.producers.get(producer)
        return None if last is None or last.last_lsn <= self._buffers.of(topic).edge_lsn else last

    def _make_room(self, topic: Stream, producer: str) -> None:
        """Make room for the last publication of a producer: forget those without an event, if need be."""
        state = self._states.setdefault(topic.stream_id, _State())
        if producer in state.producers or len(state.producers) < PRODUCERS_MAX:
            return
        edge_lsn = self._buffers.of(topic).edge_lsn
        state.producers = {name: last for name, last in state.producers.items() if last.last_lsn > edge_lsn}
        if len(state.producers) >= PRODUCERS_MAX:
            raise ProgramLimitExceeded(
                f'topic "{topic.name}" has {PRODUCERS_MAX} producers',
                hint="A producer keeps its name when it starts again.",
            )

    def _note(self, transaction: Transaction, topic: Stream, named: Named) -> None:
        """Record a publication as the producer's last one, once it is committed."""
        transaction.producers[topic.stream_id, named.producer] = named.sequence
        last = _Last(named.sequence, transaction.next_lsn)

        def show() -> None:
            self._states.setdefault(topic.stream_id, _State()).producers[named.producer] = last

        transaction.at(CommitStep.MEMORY, show)

    def _first_time(self, cursor: duckdb.DuckDBPyConnection, topic: Stream, named: Named) -> Published:
        """The places where the events of a publication were stored."""
        table = arrow_table(
            cursor.execute(
                f"SELECT partition, lsn FROM {TopicLog(topic).log} "
                f"WHERE producer = {literal(named.producer)} AND sequence = {named.sequence} ORDER BY lsn"
            )
        )
        return Published(table.num_rows, None, self._with_node(table), repeated=True)

    def _with_node(self, table: pa.Table) -> pa.Table:
        """Partition and LSN of events, with the node of the partition."""
        node = pa.array([self._placement().local.name] * table.num_rows, pa.string())
        local = pa.array([True] * table.num_rows, pa.bool_())
        return table.append_column("node", node).append_column("local", local)

    def dropped(self, topic: Stream) -> None:
        """Remove the state of a dropped topic."""
        self._states.pop(topic.stream_id, None)


def _check_keys(topic: Stream, keyless: int) -> None:
    """Refuse events without a key in a compacted topic, as they could never be superseded."""
    if topic.compaction == "key" and keyless:
        raise NotNullViolation(
            f'an event of compacted topic "{topic.name}" has no key',
            hint="PUBLISH TO ... KEY gives it one, and so does a column key of INSERT.",
        )


def _producers(cursor: duckdb.DuckDBPyConnection, topic: Stream) -> dict[str, _Last]:
    try:
        rows = cursor.execute(
            f"SELECT producer, max(sequence), max(lsn) FROM {TopicLog(topic).log} "
            "WHERE producer IS NOT NULL GROUP BY producer"
        ).fetchall()
    except duckdb.Error as error:
        raise translated(error) from error
    return {name: _Last(sequence, lsn) for name, sequence, lsn in rows}
