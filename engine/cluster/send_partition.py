"""Giving of partitions to their new owner: their facts and events, and the end of their use here.

The gift is durable before any fact is sent: whatever happens to either node then, this one no longer serves
the partition, and sends the same facts to every later request. Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from ..buffers.scan import ScanRange
from ..catalog import segments
from ..catalog.captured_tables import TopicLog
from ..catalog.segments import NEVER, NOTHING_CAME
from ..catalog.streams import Stream
from ..database import Database
from ..duck.cursors import arrow_table, ask, in_one_transaction
from ..errors import SerializationFailure, WrongState
from ..log.events import time_us
from ..log.log import EVENT_COLUMNS
from ..placement.holds import GIVEN, HELD, KEPT, Hold, owned, rows_sql
from ..placement.placement import Placement
from ..quoting import literal
from ..topics import LENT
from ..values.datarow import columns as columns_of
from ..waiting import Waiting

# Events of one piece: a piece is held in memory on both nodes.
PIECE_ROWS, PIECE_BYTES = 4096, 8 << 20
# Number of events read first, before their size is known, and the factor of growth; a batch may be larger
# than all before it, so it is bounded by itself.
FIRST_ROWS, GROWTH, STEP_ROWS_MAX = 8, 8, 1024
LOCK_MS = 10_000
_TIME = [name for name, _ in EVENT_COLUMNS].index("commit_time")
PIECE_SCHEMA = pa.schema(
    [
        ("lsn", pa.int64()),
        ("commit_us", pa.int64()),
        ("event", pa.binary()),
        ("producer", pa.string()),
        ("sequence", pa.int64()),
    ]
)


def give(
    database: Database, owner_id: int, stream: Stream, partitions: Sequence[int], node: str, *, force: bool
) -> Waiting[dict[int, dict[str, Any]]]:
    """Give partitions to a node; a repeated request gets the same facts.

    Args:
        owner_id: its number as an owner of the writer lock.
        force: True if partitions given to another node before have not been received there.

    Returns:
        Partition -> its facts in the form of `receive_partition.py`.

    Raises:
        SerializationFailure: this node does not have one of them.
        WrongState: a group has parked events in one of them.
    """
    epoch = database.cluster.placement.epoch
    yield from database.transactions.lock_writer(owner_id, LOCK_MS)
    try:
        groups = database.catalog.groups_of(stream.stream_id)
        for partition in partitions:
            hold = database.holds.of(stream.stream_id, partition)
            if not (hold.here or (hold.state == GIVEN and (hold.node == node or force))):
                raise SerializationFailure(f"partition {partition} is not here to be given")
        # Once the lock was free, no transaction of an older placement writes any more.
        database.offsets.seal([group.group_id for group in groups], partitions)
        check_nothing_parked(database, stream, partitions)
        # Partitions of the placement in force; they are kept already unless that was this node's last
        # placement.
        held = [p for p in partitions if database.holds.of(stream.stream_id, p).state == HELD]
        keep(database, stream, held)
        given = dict.fromkeys(partitions, Hold(GIVEN, node, epoch))
        _write(database, stream, database.holds.filled(stream, given), {})
    finally:
        database.transactions.writer_lock.release(owner_id)
    yield from database.commits.wait_readable()
    return {partition: _facts(database, stream, partition) for partition in partitions}


def keep_all(database: Database, new: Placement) -> None:
    """Mark as kept the partitions that a new placement assigns to other nodes.

    The caller holds the writer lock, and the placement is not in force yet. Later publications do not reach
    those partitions, so the sequences of their producers are frozen (see `Topics`).
    """
    with database.catalog.mutex:
        streams = [stream for stream in database.catalog.streams.values() if stream.topic]
    for stream in streams:
        own = set(owned(new, stream))
        holds = database.holds
        held = [p for p in range(stream.partitions) if holds.of(stream.stream_id, p).state == HELD]
        keep(database, stream, [partition for partition in held if partition not in own])


def keep(database: Database, stream: Stream, partitions: Sequence[int]) -> None:
    """Mark partitions assigned to another node as kept; the caller holds the writer lock."""
    if not partitions:
        return
    found = database.catalog.segments.of(stream.stream_id)
    frozen = {
        partition: replace(
            found.get(partition, NOTHING_CAME),
            since_lsn=NEVER,
            producers=database.topics.producers_of(stream, partition),
        )
        for partition in partitions
    }
    holds = {p: replace(database.holds.of(stream.stream_id, p), state=KEPT) for p in partitions}
    _write(database, stream, database.holds.filled(stream, holds), frozen)


def _write(
    database: Database, stream: Stream, holds: Mapping[int, Hold], found: Mapping[int, segments.Segment]
) -> None:
    cursor = database.cursor()
    try:
        with in_one_transaction(cursor):
            came = segments.put_sql(stream.stream_id, found) if found else []
            for statement in [*rows_sql(stream.stream_id, holds), *came]:
                cursor.execute(statement).fetchall()
    finally:
        cursor.close()
    if found:
        database.catalog.segments.put(stream.stream_id, found)
    database.holds.put(stream.stream_id, holds)


def check_nothing_parked(database: Database, stream: Stream, partitions: Sequence[int]) -> None:
    """Refuse to move partitions with parked events, whose copies are in this node's log.

    Raises:
        WrongState: a group has parked events in one of them.
    """
    for group in database.catalog.groups_of(stream.stream_id):
        parked = database.parked.get(group.group_id)
        for event in [] if parked is None else parked.events.values():
            if event.partition in partitions:
                raise WrongState(
                    f'partition {event.partition} of topic "{stream.name}" has parked events of consumer '
                    f'group "{group.name}", which cannot move',
                    hint="RELEASE them, read them and commit, under the placement of before.",
                )


def _facts(database: Database, stream: Stream, partition: int) -> dict[str, Any]:
    """The facts that are sent with a partition's events."""
    buffer = database.buffers.of(stream)
    if buffer.failure is not None:
        raise buffer.failure
    with buffer.mutex:
        own = buffer.partitions[partition]
        end, events = own.last_lsn, own.events
        trimmed = [own.trimmed_through_lsn, own.trimmed_events, own.trimmed_by]
    groups: dict[str, list[Any]] = {}
    for group in database.catalog.groups_of(stream.stream_id):
        position = database.offsets.positions(group.group_id).get(partition)
        if position is None:
            continue
        passed = database.offsets.passed_positions(group.group_id, {partition: position.lsn}).get(partition)
        fence = database.member_epochs.of(group.group_id).get(partition, 0)
        told = [group.name, position.lsn, position.committed_at_us, position.committed_by, passed, fence]
        groups[database.identities.of(group.group_id)] = told
        # A position may be the LSN of another partition's event, after the last one here.
        end = max(end, position.lsn)
    return {
        "end": end,
        "events": events,
        "trimmed": trimmed,
        "commit_us": database.commits.times.last_us,
        "groups": groups,
        "producers": database.topics.producers_of(stream, partition),
    }


def piece(database: Database, stream: Stream, partition: int, after: int) -> pa.Table:
    """The next events of a partition that was given, in PIECE_SCHEMA; empty at its end."""
    cursor = database.cursor()
    try:
        found = _sized(partial(_of_segment, cursor, stream, partition), after)
        return found if found.num_rows else _sized(partial(_of_log, database, stream, partition), after)
    finally:
        cursor.close()


def _sized(read: Callable[[int, int], pa.Table], after: int) -> pa.Table:
    """The rows that `read` returns behind an LSN, about PIECE_BYTES of them.

    It reads a few events first, then as many as their size allows: otherwise all of them would be held in
    memory before they are cut.
    """
    parts = [PIECE_SCHEMA.empty_table()]
    rows, size, step = 0, 0, FIRST_ROWS
    while rows < PIECE_ROWS and size < PIECE_BYTES:
        found = read(after, min(step, PIECE_ROWS - rows))
        if not found.num_rows:
            break
        parts.append(found)
        after = found.column("lsn")[-1].as_py()
        rows, size = rows + found.num_rows, size + found.column("event").nbytes
        step = min(GROWTH * step, STEP_ROWS_MAX, max(1, (PIECE_BYTES - size) * rows // size))
    return pa.concat_tables(parts)


def _of_segment(
    cursor: duckdb.DuckDBPyConnection, stream: Stream, partition: int, after: int, rows: int
) -> pa.Table:
    """The events that the partition brought here from another node."""
    where = f"stream_id = {stream.stream_id} AND partition = {partition} AND lsn > {after}"
    # The LSNs first: sorting the events themselves would read them all.
    (last,) = ask(
        cursor,
        f"SELECT max(lsn) FROM (SELECT lsn FROM {segments.EVENTS} WHERE {where} ORDER BY lsn LIMIT {rows})",
    )
    if last is None:
        return PIECE_SCHEMA.empty_table()
    return arrow_table(
        cursor.execute(
            f"SELECT lsn, commit_us, event, producer, sequence FROM {segments.EVENTS} "
            f"WHERE {where} AND lsn <= {last} ORDER BY lsn"
        )
    ).cast(PIECE_SCHEMA)


def _of_log(database: Database, stream: Stream, partition: int, after: int, limit: int) -> pa.Table:
    """The events that were published here."""
    segment = database.catalog.segments.of(stream.stream_id).get(partition)
    start = after if segment is None else max(after, segment.base_lsn)
    bounds = ScanRange({partition: start}, database.commits.last_lsn, frozenset([partition]))
    scan = database.buffers.scan(stream, bounds)
    rows: list[bytes] = []
    lsns: list[int] = []
    try:
        while not scan.exhausted and not rows:
            found = scan.read(limit)
            rows, lsns = found.rows, found.lsns
    finally:
        scan.close()
    if not rows:
        return PIECE_SCHEMA.empty_table()
    of = _producers(database, stream, partition, lsns[0], lsns[-1])
    (column,) = columns_of(rows, (_TIME,))
    texts = column.to_pylist() if isinstance(column, pa.Array) else list(column)
    named = [of.get(lsn, (None, None)) for lsn in lsns]
    return pa.table(
        [
            pa.array(lsns, pa.int64()),
            pa.array([time_us(text) for text in texts], pa.int64()),
            pa.array(rows, pa.binary()),
            pa.array([name for name, _ in named], pa.string()),
            pa.array([sequence for _, sequence in named], pa.int64()),
        ],
        schema=PIECE_SCHEMA,
    )


def _producers(
    database: Database, stream: Stream, partition: int, first: int, last: int
) -> Mapping[int, tuple[str, int]]:
    """LSN -> producer and sequence, for events with a user's producer."""
    cursor = database.cursor()
    try:
        rows = cursor.execute(
            f"SELECT lsn, producer, sequence FROM {TopicLog(stream).log} WHERE partition = {partition} "
            f"AND lsn BETWEEN {first} AND {last} AND producer IS NOT NULL "
            f"AND NOT starts_with(producer, {literal(LENT)})"
        ).fetchall()
    finally:
        cursor.close()
    return {lsn: (producer, sequence) for lsn, producer, sequence in rows}
