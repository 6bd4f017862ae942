"""From log rows to buffered events: what the publisher does for one stream, and at open for all.

Events come from the stream's own SELECT (`log.EventQuery`) as Arrow batches in LSN order; each row
is encoded once. Only what fits the stream's byte bound is kept while a large transaction runs
through, the rest is counted. Source: docs/design/engine.md, "Publisher".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import datarow
from .arrow_results import arrow_batches, arrow_table
from .asking import ask_maybe
from .buffer import ROW_OVERHEAD_BYTES, Addition, StreamBuffer
from .changes import ChangesQuery
from .edges import read_edges
from .log import EVENT_LAYOUT, EVENT_NAMES, EVENT_TYPES, EventQuery, Layout
from .publisher import Note

logger = logging.getLogger(__name__)

# Rows of one Arrow batch: 8,192 encoded best of the sizes tried.
BATCH_ROWS = 8192
# Rows that are shared out, and dropped again, at once: a large transaction leaves its newest events
# buffered up to so many.
SHARE_ROWS = 512
# Up to this many LSNs a range is sorted by DuckDB; a larger one comes in LSN order by itself (the
# log is written in that order) and is only checked.
SORT_LSNS_MAX = 100_000
# What an event takes in a buffer at least, about. A round that cannot fit is made readable by counting
# it, a small part of the work of encoding it; what fits of it is encoded when readers are awake already.
EVENT_BYTES_MIN = 256
# Events at the tail that tell how large the others are.
SAMPLE_ROWS = 256
# Parts of a log's LSNs whose events are counted apart at open: retention by bytes is as exact as they.
SPREAD = 64

TEXT_FORMATS = (0,) * len(EVENT_NAMES)
LSN, TXID, TX_LAST = (EVENT_NAMES.index(n) for n in ("lsn", "txid", "tx_last"))


@dataclass(slots=True)
class Gathered:
    """Events of one stream on their way into its buffers: the newest ready, the others counted."""

    bytes_max: int
    layout: Layout = EVENT_LAYOUT
    additions: dict[int, Addition] = field(default_factory=dict)
    rows: int = 0  # events that came, dropped ones included
    size: int = 0  # their bytes
    _order: deque[tuple[int, int, int]] = field(default_factory=deque)
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, in LSN order, and share it out to its partitions."""
        rows = datarow.rows(batch, self.layout.types)
        self.rows += len(rows)
        self.size += sum(map(len, rows))
        lsns = batch.column(self.layout.lsn).to_numpy()
        partitions = batch.column(self.layout.partition).to_numpy()
        for start in range(0, len(rows), SHARE_ROWS):
            part = partitions[start : start + SHARE_ROWS]
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
        size = sum(map(len, mine)) + ROW_OVERHEAD_BYTES * len(mine)
        if not added.total:
            added.first_lsn = numbers[0]
        added.lsns += numbers
        added.rows += mine
        added.total += len(numbers)
        added.last_lsn = numbers[-1]
        self._order.append((number, len(mine), size))
        self._bytes += size
        while self._bytes > self.bytes_max and len(self._order) > 1:
            self._drop()

    def _drop(self) -> None:
        """Forget the oldest share: it does not fit any more."""
        number, count, size = self._order.popleft()
        added = self.additions[number]
        added.skipped_through_lsn = added.lsns[count - 1]
        del added.lsns[:count]
        del added.rows[:count]
        self._bytes -= size


def with_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Set tx_last on events that come in LSN order and in whole transactions."""
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


def in_order(cursor: duckdb.DuckDBPyConnection, sql: str, lsns: int) -> Iterator[pa.RecordBatch]:
    """Run an event query over `lsns` LSNs; its batches in LSN order."""
    if lsns <= SORT_LSNS_MAX:
        yield from arrow_batches(cursor, f"{sql} ORDER BY lsn", BATCH_ROWS)
        return
    through = 0
    for batch in arrow_batches(cursor, sql, BATCH_ROWS):
        if not batch.num_rows:
            continue
        numbers = batch.column(LSN).to_numpy()
        assert numbers[0] > through and bool((np.diff(numbers) > 0).all()), "the log is in LSN order"
        through = int(numbers[-1])
        yield batch


def publish(
    cursor: duckdb.DuckDBPyConnection, query: EventQuery, buffer: StreamBuffer, notes: Sequence[Note]
) -> Callable[[], None] | None:
    """Put what some transactions, in commit order, wrote in the stream's table into its buffers.

    Returns:
        None; or, where it was so much that it is only counted, and readable from the log, what puts the
        newest of it into the buffers.
    """
    with buffer.feeding:
        return _publish(cursor, query, buffer, notes)


def _publish(
    cursor: duckdb.DuckDBPyConnection, query: EventQuery, buffer: StreamBuffer, notes: Sequence[Note]
) -> Callable[[], None] | None:
    table_id = query.captured.table_id
    mine = [note for note in notes if table_id in note.tables]
    written = _Written(
        mine[0].tables[table_id][0],
        mine[-1].tables[table_id][1],
        (mine[0].txid, mine[-1].txid),
        (mine[0].first_lsn, mine[0].commit_us) if len(mine) == 1 else None,
    )
    commit_us = mine[-1].commit_us
    if written.lsns * EVENT_BYTES_MIN > buffer.bytes_max:
        counted = _counted(cursor, query, written)
        events = sum(added.total for added in counted.values())
        if events * EVENT_BYTES_MIN > buffer.bytes_max:
            sample = written.events_sql(query, written.last_lsn - SAMPLE_ROWS * written.lsns // events)
            size = _event_bytes(cursor, sample)
            buffer.append(counted, commit_us, events * size)
            buffer.drop_changes()
            newest = buffer.bytes_max // (size + ROW_OVERHEAD_BYTES) * written.lsns // events
            return lambda: _fill(cursor, query, buffer, written, newest)
    gathered = _gathered(cursor, query, buffer, written)
    if gathered.additions:
        buffer.append(gathered.additions, commit_us, gathered.size)
    if buffer.changes is not None:
        _publish_changes(cursor, ChangesQuery(query), buffer, written)
    return None


@dataclass(frozen=True, slots=True)
class _Written:
    """LSNs of a table's log that a round of transactions wrote; `commit` where it is only one."""

    first_lsn: int
    last_lsn: int
    txids: tuple[int, int]
    commit: tuple[int, int] | None

    @property
    def lsns(self) -> int:
        return self.last_lsn - self.first_lsn + 1

    def events_sql(self, query: EventQuery, after_lsn: int = 0) -> str:
        """The events, those after an LSN alone."""
        first = max(self.first_lsn, after_lsn + 1)
        sql = query.sql(f"lsn BETWEEN {first} AND {self.last_lsn}", "NULL::BOOLEAN", self.commit)
        if self.commit is None:
            sql += f" AND c.txid BETWEEN {self.txids[0]} AND {self.txids[1]}"
        return sql


def _gathered(
    cursor: duckdb.DuckDBPyConnection,
    query: EventQuery,
    buffer: StreamBuffer,
    written: _Written,
    after_lsn: int = 0,
) -> Gathered:
    gathered = Gathered(buffer.bytes_max)
    lsns = written.last_lsn - max(written.first_lsn - 1, after_lsn)
    for batch in with_last(in_order(cursor, written.events_sql(query, after_lsn), lsns)):
        gathered.add(batch)
    return gathered


def _counted(
    cursor: duckdb.DuckDBPyConnection, query: EventQuery, written: _Written
) -> dict[int, Addition]:
    """The events of each partition, counted alone: none of them ready."""
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
    query: EventQuery,
    buffer: StreamBuffer,
    written: _Written,
    newest: int,
) -> None:
    """Put the events of the newest LSNs of a round that has been counted into the buffers."""
    buffer.fill(_gathered(cursor, query, buffer, written, written.last_lsn - newest).additions)


def _publish_changes(
    cursor: duckdb.DuckDBPyConnection,
    query: ChangesQuery,
    buffer: StreamBuffer,
    written: _Written,
) -> None:
    """The same events once more, as rows of ENVELOPE CHANGES."""
    changes = buffer.changes
    assert changes is not None
    if written.lsns > SORT_LSNS_MAX:
        # They would push out all that is there: the next hot read makes the rows that it wants.
        buffer.drop_changes()
        return
    try:
        lsns = (written.first_lsn, written.last_lsn)
        gathered = gather_changes(cursor, query, changes.bytes_max, lsns, written.commit)
    except Exception:
        # Without them its readers go to the log, which tells them what is wrong.
        logger.exception('changes of stream "%s" cannot be kept ready', query.stream.name)
        buffer.drop_changes()
        return
    _add(changes, gathered)


def gather_changes(
    cursor: duckdb.DuckDBPyConnection,
    query: ChangesQuery,
    bytes_max: int,
    lsns: tuple[int, int],
    commit: tuple[int, int] | None = None,
) -> Gathered:
    """The changes from one LSN to another, both included, as rows for a buffer."""
    gathered = Gathered(bytes_max, query.layout)
    where = f"lsn BETWEEN {lsns[0]} AND {lsns[1]}"
    for batch in arrow_batches(cursor, query.wire_sql(where, commit), BATCH_ROWS):
        if batch.num_rows:
            gathered.add(batch)
    return gathered


def refill_changes(
    cursor: duckdb.DuckDBPyConnection, query: ChangesQuery, buffer: StreamBuffer, after_lsn: int
) -> None:
    """Make a stream's rows of ENVELOPE CHANGES, of its events after an LSN.

    One reader does it, others read the log meanwhile. Commits go on being published; only what was
    published while the log was read makes the publisher wait.
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
    with changes.mutex:
        for partition in changes.partitions:
            partition.unbuffered_through_lsn = after_lsn
    through = buffer.end_lsn
    _add(changes, gather_changes(cursor, query, changes.bytes_max, (after_lsn + 1, through)))
    with buffer.feeding:
        latest = buffer.end_lsn
        if latest - through >= SORT_LSNS_MAX or buffer.changes is not None:
            return  # Too much has come meanwhile, or it was made just before: the next read sees.
        if latest > through:
            _add(changes, gather_changes(cursor, query, changes.bytes_max, (through + 1, latest)))
        buffer.add_changes(changes)


def _add(changes: StreamBuffer, gathered: Gathered) -> None:
    if gathered.additions:
        changes.append(gathered.additions, 0, gathered.size)


def refill(
    cursor: duckdb.DuckDBPyConnection, query: EventQuery, buffer: StreamBuffer, through_lsn: int
) -> None:
    """Make a stream's empty buffers from its log: the counts of all events, the tail itself."""
    edges = read_edges(cursor, query.stream.stream_id)
    edge = edges.through_lsn
    where = f"lsn > {edge} AND lsn <= {through_lsn}"
    counts, spread = _count(cursor, query, where, edge, through_lsn)
    events = sum(count for count, *_ in counts.values())
    tail_after = _tail_after(cursor, query, where, buffer.bytes_max, events)
    gathered = Gathered(buffer.bytes_max)
    tail = f"lsn > {max(edge, tail_after)} AND lsn <= {through_lsn}"
    sql = query.sql(tail, query.last_of_transaction(tail))
    for batch in in_order(cursor, sql, 0):
        if batch.num_rows:
            gathered.add(batch)
    with buffer.mutex:
        buffer.edge_lsn = edge
        for number, gone in edges.partitions.items():
            partition = buffer.partitions[number]
            partition.events, partition.last_lsn = gone.events, gone.through_lsn
            partition.trim(gone)
        for last, count in spread:
            buffer.retained_bytes.add(last, count * gathered.size // max(1, gathered.rows))
    latest_us = 0
    for number, (count, first, last, commit_us) in counts.items():
        added = gathered.additions.setdefault(number, Addition())
        if count > len(added.lsns):
            added.skipped_through_lsn = max(added.skipped_through_lsn, min(tail_after, last), first)
            if not added.lsns:
                added.skipped_through_lsn = last
        added.total, added.first_lsn, added.last_lsn = count, first, last
        latest_us = max(latest_us, commit_us)
    buffer.append(gathered.additions, latest_us, 0)


def _count(
    cursor: duckdb.DuckDBPyConnection, query: EventQuery, where: str, first_lsn: int, last_lsn: int
) -> tuple[dict[int, tuple[int, int, int, int]], list[tuple[int, int]]]:
    """The retained events: by partition, and how they spread over the LSNs.

    Returns:
        partition -> (events, first and last LSN, commit time of the last, microseconds); and for some
        LSNs, rising, how many events lie between the one before and it.
    """
    width = max(1, (last_lsn - first_lsn) // SPREAD + 1)
    counts: dict[int, tuple[int, int, int, int]] = {}
    spread: dict[int, tuple[int, int]] = {}
    for number, place, count, first, last, commit_us in cursor.execute(
        f"SELECT partition, (lsn - {first_lsn}) // {width}, count(*), min(lsn), max(lsn), "
        f"max(epoch_us(commit_time)) FROM ({query.sql(where, 'NULL::BOOLEAN')}) GROUP BY ALL"
    ).fetchall():
        known = counts.get(number, (0, first, 0, 0))
        counts[number] = (
            known[0] + count,
            min(known[1], first),
            max(known[2], last),
            max(known[3], commit_us),
        )
        reached, events = spread.get(place, (0, 0))
        spread[place] = (max(reached, last), events + count)
    return counts, [spread[place] for place in sorted(spread)]


def _tail_after(
    cursor: duckdb.DuckDBPyConnection, query: EventQuery, where: str, bytes_max: int, events: int
) -> int:
    """The LSN after which the newest events fill the buffer's bytes about once."""
    if events <= SAMPLE_ROWS:
        return 0
    sql = query.sql(where, "false")
    fits = bytes_max // _event_bytes(cursor, sql)
    if fits >= events:
        return 0
    row = ask_maybe(cursor, f"SELECT lsn FROM ({sql}) ORDER BY lsn DESC LIMIT 1 OFFSET {fits}")
    assert row is not None
    return int(row[0])


def _event_bytes(cursor: duckdb.DuckDBPyConnection, sql: str) -> int:
    """The bytes of one event of a query, as it is sent: the mean over the newest ones."""
    sample = arrow_table(cursor.execute(f"{sql} ORDER BY lsn DESC LIMIT {SAMPLE_ROWS}"))
    sizes = [
        len(row)
        for batch in sample.to_batches()
        for row in datarow.rows(batch, EVENT_TYPES, TEXT_FORMATS)
    ]
    return sum(sizes) // max(1, len(sizes))
