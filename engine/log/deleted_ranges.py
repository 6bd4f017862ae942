"""The parts of logs that are gone: edges of streams and partitions, and compacted ranges of tables.

A stream's edge is a pointer into its table's log: events at or before it are not the stream's any more,
whether the log still has them (for another stream) or not. A partition's edge is its own last removed
event, with the count of all that it has lost, so that loss is an exact number. Both are rows of
`stream_edges`; the stream's own has partition -1.

A table's compacted ranges lie side by side from LSN 1 on, each with the number of rows that compaction has
taken from it; a pass goes over all of them. They tell

- an opening, how many of the LSNs in `commits` no log has (`storage/audit.py`);
- compaction, since when the rows that a delete deletes have gone, and so when the delete may go too;
- CHECK STREAM, up to where an event's old row may be another than the event before it left.

A range is written before its first row goes, and each step that deletes rows counts them in it. Source:
docs/design/engine.md, "Retention"; docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import duckdb

from ..duck.cursors import ask
from ..quoting import literal
from ..schema import SCHEMA

# The row of stream_edges that is the stream's own.
WHOLE = -1

# Why events are gone: retention, or that the file of the node that had them is lost, which nobody can count.
BY_TIME, BY_BYTES, BY_LOSS = "time", "bytes", "loss"
# Ranges in a `tombstone_retention`: deletes are kept for up to that share of it longer, and so many rows are
# kept for a table.
SHARES = 32


@dataclass(frozen=True, slots=True)
class Edge:
    """One partition's: its last trimmed event, how many since the stream began, and why the last went."""

    through_lsn: int
    events: int
    reason: str


@dataclass(frozen=True, slots=True)
class Edges:
    """A stream's: its pointer into the log, and the edges of the partitions that have lost events."""

    through_lsn: int = 0
    partitions: Mapping[int, Edge] = field(default_factory=dict)

    def rows(self, stream_id: int) -> list[str]:
        """The statements that make these the stream's edges in the file."""
        rows = [f"({stream_id}, {WHOLE}, {self.through_lsn}, 0, NULL)"]
        rows += [
            f"({stream_id}, {number}, {edge.through_lsn}, {edge.events}, {literal(edge.reason)})"
            for number, edge in self.partitions.items()
        ]
        return [
            f"DELETE FROM {SCHEMA}.stream_edges WHERE stream_id = {stream_id}",
            f"INSERT INTO {SCHEMA}.stream_edges (stream_id, partition, trimmed_through_lsn, "
            f"trimmed_events, reason) VALUES {', '.join(rows)}",
        ]


def read_edges(cursor: duckdb.DuckDBPyConnection, stream_id: int) -> Edges:
    """A stream's edges, as the cursor's MVCC snapshot has them."""
    rows = cursor.execute(
        f"SELECT partition, trimmed_through_lsn, trimmed_events, coalesce(reason, '{BY_TIME}') "
        f"FROM {SCHEMA}.stream_edges WHERE stream_id = {stream_id}"
    ).fetchall()
    partitions = {row[0]: Edge(*row[1:]) for row in rows if row[0] != WHOLE}
    # A partition's edge may be an LSN of the node that it came from: it says nothing of the log here.
    return Edges(next((row[1] for row in rows if row[0] == WHOLE), 0), partitions)


@dataclass(frozen=True, slots=True)
class Range:
    """One range of LSNs, both ends included.

    Args:
        removed: how many rows of the table's logs compaction has deleted there.
        compacted_us: since when nothing is there that should have gone, microseconds since 1970; None while
            that is under way.
    """

    first_lsn: int
    last_lsn: int
    removed: int = 0
    compacted_us: int | None = None

    def has(self, lsn: int) -> bool:
        """True if an LSN lies in it."""
        return self.first_lsn <= lsn <= self.last_lsn


def read_ranges(cursor: duckdb.DuckDBPyConnection, table_id: int) -> tuple[Range, ...]:
    """A table's ranges, oldest first."""
    rows = cursor.execute(
        f"SELECT first_lsn, last_lsn, removed, epoch_us(compacted_at) FROM {SCHEMA}.compacted_ranges "
        f"WHERE table_id = {table_id} ORDER BY first_lsn"
    ).fetchall()
    return tuple(Range(*row) for row in rows)


def compacted_through(cursor: duckdb.DuckDBPyConnection, table_id: int) -> int:
    """Up to which LSN a table's log has been compacted, or is being; 0 where it was not."""
    return int(
        ask(
            cursor,
            f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.compacted_ranges WHERE table_id = {table_id}",
        )[0]
    )


def rows_sql(table_id: int, ranges: Sequence[Range]) -> list[str]:
    """The statements that make these a table's ranges."""
    rows = ", ".join(
        f"({table_id}, {r.first_lsn}, {r.last_lsn}, {r.removed}, "
        f"{'NULL' if r.compacted_us is None else f'make_timestamptz({r.compacted_us})'})"
        for r in ranges
    )
    return [drop_sql(table_id), *([f"INSERT INTO {SCHEMA}.compacted_ranges VALUES {rows}"] if rows else [])]


def drop_sql(table_id: int) -> str:
    """The statement that forgets a table's ranges."""
    return f"DELETE FROM {SCHEMA}.compacted_ranges WHERE table_id = {table_id}"


def through(ranges: Sequence[Range]) -> int:
    """The last LSN of a table's ranges, 0 without any."""
    return ranges[-1].last_lsn if ranges else 0


def expired_through(ranges: Sequence[Range], before_us: int) -> int:
    """Up to which LSN all was compacted by a time; 0 where nothing was."""
    last = 0
    for found in ranges:
        if found.compacted_us is None or found.compacted_us > before_us:
            break
        last = found.last_lsn
    return last


def extended(ranges: Sequence[Range], last_lsn: int) -> tuple[Range, ...]:
    """With a new range up to an LSN, where that is later than what is there."""
    first_lsn = through(ranges) + 1
    return (*ranges, *([Range(first_lsn, last_lsn)] if first_lsn <= last_lsn else []))


def counted(ranges: Sequence[Range], removed: Sequence[int]) -> tuple[Range, ...]:
    """With so many more rows removed from each."""
    return tuple(replace(r, removed=r.removed + n) for r, n in zip(ranges, removed, strict=True))


def begun_again(ranges: Sequence[Range], first_lsn: int) -> tuple[Range, ...]:
    """As if from an LSN on nothing had been compacted yet: some of what is deleted there goes only now."""
    return tuple(replace(r, compacted_us=None) if r.last_lsn >= first_lsn else r for r in ranges)


def finished(ranges: Sequence[Range], now_us: int, keep_us: int) -> tuple[Range, ...]:
    """Nothing is there any more that should have gone; ranges that need not be told apart become one.

    Args:
        keep_us: the longest `tombstone_retention` of the table's streams.
    """
    share_us = max(1, keep_us // SHARES)
    found: list[Range] = []
    for one in ranges:
        one = one if one.compacted_us is not None else replace(one, compacted_us=now_us)
        before = found[-1] if found else None
        if before is not None and _alike(before, one, now_us - keep_us, share_us):
            removed = before.removed + one.removed
            found[-1] = Range(before.first_lsn, one.last_lsn, removed, one.compacted_us)
        else:
            found.append(one)
    return tuple(found)


def _alike(before: Range, after: Range, expired_us: int, share_us: int) -> bool:
    assert before.compacted_us is not None and after.compacted_us is not None
    if after.compacted_us <= expired_us:
        return True
    return before.compacted_us // share_us == after.compacted_us // share_us
