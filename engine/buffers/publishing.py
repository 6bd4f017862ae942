"""From log rows to buffered events: the publisher's work for one stream, and the opening's for all.

Events come from the stream's own SELECT (`log.Events`) as Arrow batches in LSN order; each row is encoded
once. Of a large transaction only the events within the stream's byte bound are kept; the others are counted.
Source: docs/design/engine.md, "Publisher".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..catalog.segments import NO_SEGMENTS, Segment, first_lsns
from ..duck.cursors import arrow_batches, ask, ask_maybe
from ..log.deleted_ranges import compacted_through, read_edges
from ..log.envelope_changes import ChangesQuery
from ..log.log import EVENT_LAYOUT, EVENT_NAMES, EVENT_TYPES, NO_COMMIT, Commit, Layout
from ..log.queries import EventQuery, Events, LogEvents
from ..log.windows import UNASKED_ROWS, WINDOW_BYTES_MAX, cuts, log_bytes, windows
from ..schema import SCHEMA
from ..values import datarow
from .buffer import ROW_OVERHEAD_BYTES, Addition, StreamBuffer, bytes_of
from .publisher import Note
from .ready import LARGER, READY_COMMITS_MAX, READY_EVENTS_MAX, Ready, ReadyQueries, Written, is_light

logger = logging.getLogger(__name__)

# Rows of one Arrow batch: 8,192 was the fastest of the sizes tried.
BATCH_ROWS = 8192
# Rows that are distributed, and dropped again, at once: a large transaction leaves its newest events buffered
# to this granularity.
SHARE_ROWS = 512
# A buffer holds at least this many such shares.
SHARES = 32
# Changes of more LSNs than this at once are not made ready together with the events.
CHANGES_LSNS_MAX = 100_000
# Approximate minimum size of an event in a buffer. A round that cannot fit is made readable by counting it, a
# small part of the work of encoding it; the part that fits is encoded after readers are awake.
EVENT_BYTES_MIN = 256
# Events of a round up to which their size is not measured if earlier events were small: the two queries cost
# a tenth of publishing a thousand events. DuckDB unpacks as many rows at once anyway.
SMALL_EVENTS_MAX = 2048
# Events at the tail from which the size of the others is estimated.
SAMPLE_ROWS = 256
# Number of parts of a log's LSNs whose events are counted separately at open: the precision of retention by
# bytes.
SPREAD = 64

TEXT_FORMATS = (0,) * len(EVENT_NAMES)
LSN, TXID, TX_LAST = (EVENT_NAMES.index(n) for n in ("lsn", "txid", "tx_last"))


@dataclass(slots=True)
class Gathered:
    """The events to add to the buffers of one stream: the newest ones encoded, the others counted."""

    bytes_max: int
    layout: Layout = EVENT_LAYOUT
    additions: dict[int, Addition] = field(default_factory=dict)
    rows: int = 0  # all events, including dropped ones
    size: int = 0  # their bytes
    _order: deque[tuple[int, int, int]] = field(default_factory=deque)
    kept_bytes: int = 0  # size of the kept ones in a buffer

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, in LSN order, and distribute it to its partitions."""
        self.add_rows(
            datarow.messages(batch, self.layout.types),
            batch.column(self.layout.lsn).to_numpy(),
            batch.column(self.layout.partition).to_numpy(),
        )

    def add_rows(
        self, rows: Sequence[bytes], lsns: npt.NDArray[np.int64], partitions: npt.NDArray[np.int32]
    ) -> None:
        """Distribute encoded rows, in LSN order, to their partitions."""
        size = sum(map(len, rows))
        self.rows += len(rows)
        self.size += size
        # Large rows are dropped a few at a time: dropping all rows of a partition at once would include its
        # newest.
        step = min(SHARE_ROWS, max(1, self.bytes_max // SHARES * len(rows) // max(1, size)))
        for start in range(0, len(rows), step):
            part = partitions[start : start + step]
            for number in np.unique(part).tolist():
                places = np.flatnonzero(part == number) + start
                self._share(number, lsns[places], rows, places)

    def _share(
        self,
        number: int,
        lsns: npt.NDArray[np.int64],
        rows: Sequence[bytes],
        places: npt.NDArray[np.intp],
    ) -> None:
        added = self.additions.setdefault(number, Addition())
        mine = [rows[place] for place in places.tolist()]
        numbers = lsns.tolist()
        size = bytes_of(mine)
        if not added.total:
            added.first_lsn = numbers[0]
        added.lsns += numbers
        added.rows += mine
        added.total += len(numbers)
        added.last_lsn = numbers[-1]
        self._order.append((number, len(mine), size))
        self.kept_bytes += size
        while self.kept_bytes > self.bytes_max and len(self._order) > 1:
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest share, which no longer fits."""
        number, count, size = self._order.popleft()
        added = self.additions[number]
        added.skipped_through_lsn = added.lsns[count - 1]
        del added.lsns[:count]
        del added.rows[:count]
        self.kept_bytes -= size


def with_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Set tx_last on events that arrive in LSN order and in whole transactions."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if held is not None:
            yield _marked(held, batch.column(TXID)[0].as_py())
        held = batch
    if held is not None:
        yield _marked(held, None)


def _marked(batch: pa.RecordBatch, next_txid: int | None) -> pa.RecordBatch:
    txids = batch.column(TXID).to_numpy()
    last = np.empty(len(txids), dtype=bool)
    last[:-1] = txids[:-1] != txids[1:]
    last[-1] = next_txid != txids[-1]
    return batch.set_column(TX_LAST, EVENT_NAMES[TX_LAST], pa.array(last))


def in_order(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    sql: Callable[[int, int], str],
    first: int,
    last: int,
    unasked: int = UNASKED_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Run an event query over a range of LSNs, including both ends; its batches are in LSN order.

    DuckDB does not keep order through a join when memory is short, and sorting a large range takes as much
    memory as the range: so the range is read in windows of bounded bytes, each sorted by itself.

    Args:
        query: the query of the logs that have the LSNs.
        sql: returns the query's text for a first and a last LSN.
        unasked: number of LSNs up to which a range is read without measuring its size.
    """
    for start, end in windows(cursor, query, first, last, unasked):
        yield from arrow_batches(cursor, f"{sql(start, end)} ORDER BY lsn", BATCH_ROWS)


def publish(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    buffer: StreamBuffer,
    notes: Sequence[Note],
    queries: ReadyQueries,
) -> Callable[[], None] | None:
    """Add the events of transactions, in commit order, to a stream's buffers.

    Returns:
        None; or, if the events were so many that they are only counted and readable from the log, a function
        that puts the newest of them into the buffers.
    """
    with buffer.feeding:
        return _publish(cursor, query, buffer, notes, queries)


def _publish(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    buffer: StreamBuffer,
    notes: Sequence[Note],
    queries: ReadyQueries,
) -> Callable[[], None] | None:
    tables = query.stream.tables
    mine = [note for note in notes if query.stream.is_on(note.tables)]
    touched = {table_id for note in mine for table_id in note.tables}
    written = _Written(
        mine[0].span(tables)[0],
        mine[-1].span(tables)[1],
        (mine[0].txid, mine[-1].txid),
        Commit(mine[0].first_lsn, mine[0].commit_us, mine[0].annotation) if len(mine) == 1 else None,
        len(mine) == 1 and all(t in mine[0].inserts for t in tables if t in touched),
    )
    commit_us = mine[-1].commit_us
    every, query = query, query.of(touched).between(written.first_lsn, written.last_lsn)
    least = written.lsns * EVENT_BYTES_MIN
    is_small = _is_small(buffer, written.lsns)
    if least <= buffer.bytes_max and written.lsns > READY_EVENTS_MAX and not is_small:
        least = log_bytes(cursor, query, written.first_lsn, written.last_lsn)
    if least > buffer.bytes_max:
        counted = _counted(cursor, query, written)
        events = sum(added.total for added in counted.values())
        if events * least > buffer.bytes_max * written.lsns:
            last_lsn = max(added.last_lsn for added in counted.values())
            after_lsn = last_lsn - SAMPLE_ROWS * written.lsns // events
            after_lsn = _sample_after(cursor, query, max(after_lsn, written.first_lsn - 1), last_lsn)
            size = _event_bytes(cursor, written.events_sql(query, after_lsn + 1, last_lsn))
            buffer.append(counted, commit_us, events * size)
            buffer.drop_changes()
            newest = buffer.bytes_max // (size + ROW_OVERHEAD_BYTES) * written.lsns // events
            return lambda: _fill(cursor, query, buffer, written, last_lsn - 1 - newest)
    ready = ready_of(every, mine)
    light = written.lsns <= READY_EVENTS_MAX and is_light(buffer.event_bytes, written.lsns)
    if ready is None and len(mine) <= READY_COMMITS_MAX and light:
        ready = _made_ready(cursor, every, mine, queries)
    if ready is None:
        unasked = SMALL_EVENTS_MAX if is_small else READY_EVENTS_MAX if light else UNASKED_ROWS
        gathered = _gathered(cursor, query, buffer, written, unasked=unasked)
    else:
        gathered = _gathered_ready(buffer, ready)
    if gathered.additions:
        buffer.append(gathered.additions, commit_us, gathered.size)
    changes = buffer.changes
    if changes is not None and every.stream.several is not None:
        buffer.drop_changes()  # The stream has got a second table.
    elif changes is not None:
        _publish_changes(cursor, ChangesQuery(every), buffer, changes, written)
    return None


def _is_small(buffer: StreamBuffer, events: int) -> bool:
    """True if a round's events are few, and small if they are not much larger than earlier ones."""
    known = buffer.event_bytes
    bound = min(WINDOW_BYTES_MAX, buffer.bytes_max)
    return known > 0 and events <= SMALL_EVENTS_MAX and events * known * LARGER <= bound


def ready_of(query: Events, notes: Sequence[Note]) -> list[Ready] | None:
    """The events of these transactions in a stream, if all were made before COMMIT with its present query."""
    ready = []
    for note in notes:
        made = note.ready.get(query.stream.stream_id)
        if made is None or made.query != written_by(query, note):
            return None
        ready.append(made)
    return ready


def written_by(query: Events, note: Note) -> Events:
    """The SELECT of a stream's events restricted to the logs that a transaction has written."""
    if isinstance(query, LogEvents):
        return query
    return query.of(note.tables).between(*note.span(query.stream.tables))


def _made_ready(
    cursor: duckdb.DuckDBPyConnection, query: Events, notes: Sequence[Note], queries: ReadyQueries
) -> list[Ready] | None:
    """The events of these transactions; None if one has events in two versions of a table."""
    made = []
    for note in notes:
        mine = written_by(query, note)
        written = {
            part.source.table_id: Written(
                *note.tables[part.source.table_id], part.source.table_id in note.inserts
            )
            for part in mine.parts
        }
        if len(mine.parts) > len(written):
            return None
        commit = Commit(note.first_lsn, note.commit_us, note.annotation)
        made.append(queries.ready(cursor, mine, written, commit))
    return made


def _gathered_ready(buffer: StreamBuffer, ready: Sequence[Ready]) -> Gathered:
    gathered = Gathered(buffer.bytes_max)
    for made in ready:
        if made.rows:
            gathered.add_rows(made.rows, np.array(made.lsns), np.array(made.partitions, np.int32))
    buffer.make_room(gathered.kept_bytes)
    return gathered


@dataclass(frozen=True, slots=True)
class _Written:
    """LSNs of a stream's logs that a round has written; `commit` is set for a single transaction.

    Args:
        inserts: True for a single transaction with inserted rows only.
    """

    first_lsn: int
    last_lsn: int
    txids: tuple[int, int]
    commit: Commit | None
    inserts: bool

    @property
    def lsns(self) -> int:
        return self.last_lsn - self.first_lsn + 1

    def events_sql(self, query: Events, first_lsn: int = 0, last_lsn: int | None = None) -> str:
        """SQL of the events, restricted to those from an LSN on and up to another."""
        first = max(self.first_lsn, first_lsn)
        last = self.last_lsn if last_lsn is None else last_lsn
        where = f"lsn BETWEEN {first} AND {last}"
        if self.inserts and isinstance(query, EventQuery) and query.stream.shows_all:
            assert self.commit is not None, "of one transaction"
            return query.inserts_sql(where, "NULL::BOOLEAN", self.commit)
        return query.sql(where, "NULL::BOOLEAN", self.commit, self.txids)


def _gathered(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    buffer: StreamBuffer,
    written: _Written,
    after_lsn: int = 0,
    unasked: int = UNASKED_ROWS,
) -> Gathered:
    gathered = Gathered(buffer.bytes_max)
    first = max(written.first_lsn, after_lsn + 1)
    parts = in_order(cursor, query, partial(written.events_sql, query), first, written.last_lsn, unasked)
    for batch in with_last(parts):
        gathered.add(batch)
        # Old and new events together stay within the bound, in this round too.
        buffer.make_room(gathered.kept_bytes)
    return gathered


def _counted(cursor: duckdb.DuckDBPyConnection, query: Events, written: _Written) -> dict[int, Addition]:
    """The events of each partition, only counted, none of them ready."""
    events = written.events_sql(query)
    counts = cursor.execute(
        f"SELECT partition, count(*), min(lsn), max(lsn) FROM ({events}) GROUP BY partition"
    ).fetchall()
    return {
        number: Addition(total=count, first_lsn=first, last_lsn=last, skipped_through_lsn=last)
        for number, count, first, last in counts
    }


def _fill(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    buffer: StreamBuffer,
    written: _Written,
    after_lsn: int,
) -> None:
    """Fill the buffers with the newest events of a round whose events have been counted."""
    buffer.fill(_gathered(cursor, query, buffer, written, after_lsn).additions)


def _publish_changes(
    cursor: duckdb.DuckDBPyConnection,
    query: ChangesQuery,
    buffer: StreamBuffer,
    changes: StreamBuffer,
    written: _Written,
) -> None:
    """Add the round's events as rows of ENVELOPE CHANGES."""
    if written.lsns > CHANGES_LSNS_MAX or changes.table_version != query.captured.version:
        # They would displace all present rows, or have other columns: the next hot read builds the rows that
        # it needs.
        buffer.drop_changes()
        return
    try:
        lsns = (written.first_lsn, written.last_lsn)
        gathered = gather_changes(cursor, query, changes.bytes_max, lsns, written.commit)
    except Exception:
        # Without them its readers use the log, which reports the error.
        logger.exception('changes of stream "%s" cannot be kept ready', query.stream.name)
        buffer.drop_changes()
        return
    _add(changes, gathered)


def gather_changes(
    cursor: duckdb.DuckDBPyConnection,
    query: ChangesQuery,
    bytes_max: int,
    lsns: tuple[int, int],
    commit: Commit | None = None,
) -> Gathered:
    """The changes in a range of LSNs, including both ends, as rows for a buffer."""
    gathered = Gathered(bytes_max, query.layout)
    for start, end in windows(cursor, query.events, *lsns):
        where = f"lsn BETWEEN {start} AND {end}"
        for batch in arrow_batches(cursor, query.between(start, end).wire_sql(where, commit), BATCH_ROWS):
            if batch.num_rows:
                gathered.add(batch)
    return gathered


def refill_changes(
    cursor: duckdb.DuckDBPyConnection, query: ChangesQuery, buffer: StreamBuffer, after_lsn: int
) -> None:
    """Build a stream's rows of ENVELOPE CHANGES from its events after an LSN.

    One reader does it while others read the log. Commits continue to be published; the publisher waits only
    while the events published during that read are added.
    """
    if not buffer.making_changes.acquire(blocking=False):
        return
    try:
        _refill_changes(cursor, query, buffer, after_lsn)
    finally:
        buffer.making_changes.release()


def _refill_changes(
    cursor: duckdb.DuckDBPyConnection, query: ChangesQuery, buffer: StreamBuffer, after_lsn: int
) -> None:
    changes = StreamBuffer(len(buffer.partitions), buffer.bytes_max // 2)
    changes.table_version = query.captured.version
    with changes.mutex:
        for partition in changes.partitions:
            partition.unbuffered_through_lsn = after_lsn
    through = buffer.end_lsn
    _add(changes, gather_changes(cursor, query, changes.bytes_max, (after_lsn + 1, through)))
    with buffer.feeding:
        latest = buffer.end_lsn
        if latest - through >= CHANGES_LSNS_MAX or buffer.changes is not None:
            return  # Too many events arrived meanwhile, or the rows exist already: the next read decides.
        if latest > through:
            _add(changes, gather_changes(cursor, query, changes.bytes_max, (through + 1, latest)))
        buffer.add_changes(changes)


def _add(changes: StreamBuffer, gathered: Gathered) -> None:
    if gathered.additions:
        changes.append(gathered.additions, 0, gathered.size)


def refill(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    buffer: StreamBuffer,
    through_lsn: int,
    bytes_max: int,
    segments: Mapping[int, Segment] = NO_SEGMENTS,
) -> None:
    """Build a stream's empty buffers from its log: the counts of all events, and `bytes_max` of its tail.

    Args:
        segments: the earlier events of partitions that came from another node.
    """
    edges = read_edges(cursor, query.stream.stream_id)
    edge = edges.through_lsn
    firsts = first_lsns(cursor, query.stream.stream_id) if segments else {}
    where = f"lsn > {edge} AND lsn <= {through_lsn}"
    counts, spread = _count(cursor, query, where, edge, through_lsn)
    events = sum(count for count, *_ in counts.values())
    # Only the log knows the remaining events of a compacted range.
    compacted_lsn = compacted_through(cursor, query.stream.table_id)
    tail_after = max(compacted_lsn, _tail_after(cursor, query, where, bytes_max, events))
    gathered = Gathered(bytes_max)

    def part(first: int, last: int) -> str:
        return query.between(first, last).sql(f"lsn BETWEEN {first} AND {last}", "NULL::BOOLEAN")

    for batch in with_last(in_order(cursor, query, part, max(edge, tail_after) + 1, through_lsn)):
        gathered.add(batch)
    with buffer.mutex:
        buffer.edge_lsn = edge
        buffer.compacted_lsn = compacted_lsn if compacted_lsn > max(edge, query.stream.created_lsn) else 0
        for number, gone in edges.partitions.items():
            partition = buffer.partitions[number]
            partition.events, partition.last_lsn = gone.events, gone.through_lsn
            partition.trim(gone)
        for number, segment in segments.items():
            buffer.partitions[number].came(segment, firsts.get(number))
        for last, count in spread:
            buffer.retained_bytes.add(last, count * gathered.size // max(1, gathered.rows))
    for number, (count, first, last) in counts.items():
        added = gathered.additions.setdefault(number, Addition())
        if count > len(added.lsns):
            added.skipped_through_lsn = max(added.skipped_through_lsn, min(tail_after, last), first)
            if not added.lsns:
                added.skipped_through_lsn = last
        added.total, added.first_lsn, added.last_lsn = count, first, last
    latest = max((last for _, _, last in counts.values()), default=0)
    buffer.append(gathered.additions, _commit_us(cursor, latest), 0)


def _commit_us(cursor: duckdb.DuckDBPyConnection, lsn: int) -> int:
    """The commit time of an LSN, in microseconds; 0 if no commit has it."""
    sql = f"SELECT epoch_us(commit_time) FROM {SCHEMA}.commits WHERE {lsn} BETWEEN first_lsn AND last_lsn"
    row = ask_maybe(cursor, sql)
    return 0 if row is None else int(row[0])


def _count(
    cursor: duckdb.DuckDBPyConnection, query: Events, where: str, first_lsn: int, last_lsn: int
) -> tuple[dict[int, tuple[int, int, int]], list[tuple[int, int]]]:
    """The retained events by partition, and their distribution over the LSNs.

    Returns:
        partition -> (events, first and last LSN); and, for some LSNs in rising order, the number of events
        since the previous one.
    """
    width = max(1, (last_lsn - first_lsn) // SPREAD + 1)
    # A query of all events must not join them with their commits, nor compute their JSON.
    sql = query.sql(where, "NULL::BOOLEAN", NO_COMMIT)
    counts: dict[int, tuple[int, int, int]] = {}
    spread: dict[int, tuple[int, int]] = {}
    for number, place, count, first, last in cursor.execute(
        f"SELECT partition, (lsn - {first_lsn}) // {width}, count(*), min(lsn), max(lsn) "
        f"FROM ({sql}) GROUP BY ALL"
    ).fetchall():
        known = counts.get(number, (0, first, 0))
        counts[number] = (known[0] + count, min(known[1], first), max(known[2], last))
        reached, events = spread.get(place, (0, 0))
        spread[place] = (max(reached, last), events + count)
    return counts, [spread[place] for place in sorted(spread)]


def _tail_after(
    cursor: duckdb.DuckDBPyConnection, query: Events, where: str, bytes_max: int, events: int
) -> int:
    """The LSN after which the newest events approximately fill the buffer's bytes."""
    if events <= SAMPLE_ROWS:
        return 0
    lsns = f"SELECT lsn FROM ({query.sql(where, 'false', NO_COMMIT)}) ORDER BY lsn DESC"
    # JSON is computed for the sample only: its first LSN is found before.
    first, last = ask(cursor, f"SELECT min(lsn), max(lsn) FROM ({lsns} LIMIT {SAMPLE_ROWS})")
    first = _sample_after(cursor, query, first - 1, last) + 1
    size = _event_bytes(cursor, query.between(first, last).sql(f"lsn BETWEEN {first} AND {last}", "false"))
    fits = bytes_max // (size + ROW_OVERHEAD_BYTES)
    if fits >= events:
        return 0
    return int(ask(cursor, f"{lsns} LIMIT 1 OFFSET {fits}")[0])


def _sample_after(cursor: duckdb.DuckDBPyConnection, query: Events, after_lsn: int, through_lsn: int) -> int:
    """The LSN after which a range's newest events are few enough to be examined together."""
    parts = cuts(cursor, query.between(after_lsn + 1, through_lsn), after_lsn, through_lsn)
    return parts[-2] if len(parts) > 1 else after_lsn


def _event_bytes(cursor: duckdb.DuckDBPyConnection, sql: str) -> int:
    """The mean size in bytes of the newest encoded events of a query."""
    count = size = 0
    for batch in arrow_batches(cursor, f"{sql} ORDER BY lsn DESC LIMIT {SAMPLE_ROWS}", BATCH_ROWS):
        rows = datarow.messages(batch, EVENT_TYPES, TEXT_FORMATS)
        count, size = count + len(rows), size + sum(map(len, rows))
    return size // max(1, count)
