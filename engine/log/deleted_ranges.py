"""Deleted parts of logs: edges of streams and partitions, and compacted ranges of tables.

A stream's edge is a pointer into its table's log: events at or before it no longer belong to the stream, even
if the log still holds them for another stream. A partition's edge is its last removed event, with the number
of all its removed events, so that a loss is reported exactly. Both are rows of `stream_edges`; the stream's
own row has partition -1.

A table's compacted ranges are contiguous from LSN 1 on. Each has the number of rows that compaction has
deleted from it; a pass processes all of them. The ranges are used by

- the opening, to know how many of the LSNs in `commits` are in no log (`storage/audit.py`);
- compaction, to know when the rows before a delete were removed, and so when the delete may be removed;
- CHECK STREAM, to know up to which LSN an event's old row may differ from the row of the event before it.

A range is written before its first row is deleted, and each step that deletes rows counts them in it. Source:
docs/design/engine.md, "Retention"; docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import duckdb

from ..duck.cursors import ask
from ..quoting import literal
from ..schema import SCHEMA

# The partition number of the stream's own row in stream_edges.
WHOLE = -1

# Reasons for removed events: retention, or the loss of the node's file, whose events cannot be counted.
BY_TIME, BY_BYTES, BY_LOSS = "time", "bytes", "loss"
# Number of ranges in one `tombstone_retention`: deletes are kept for up to that fraction of it longer, and a
# table has that many ranges.
SHARES = 32


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge of a partition: its last removed event, the number removed over its life, and the reason."""

    through_lsn: int
    events: int
    reason: str


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of a stream: its pointer into the log, and the edges of partitions that have lost events."""

    through_lsn: int = 0
    partitions: Mapping[int, Edge] = field(default_factory=dict)

    def rows(self, stream_id: int) -> list[str]:
        """The statements that store these edges of a stream in the file."""
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
    """A stream's edges in the cursor's MVCC snapshot."""
    rows = cursor.execute(
        f"SELECT partition, trimmed_through_lsn, trimmed_events, coalesce(reason, '{BY_TIME}') "
        f"FROM {SCHEMA}.stream_edges WHERE stream_id = {stream_id}"
    ).fetchall()
    partitions = {row[0]: Edge(*row[1:]) for row in rows if row[0] != WHOLE}
    # A partition's edge may be an LSN of the node that it came from, which has no meaning in the log here.
    return Edges(next((row[1] for row in rows if row[0] == WHOLE), 0), partitions)


@dataclass(frozen=True, slots=True)
class Range:
    """One range of LSNs, including both ends.

    Args:
        removed: the number of rows of the table's logs that compaction has deleted in the range.
        compacted_us: the time at which compaction of the range was complete, microseconds since 1970; None
            while it is in progress.
    """

    first_lsn: int
    last_lsn: int
    removed: int = 0
    compacted_us: int | None = None

    def has(self, lsn: int) -> bool:
        """True if the range contains an LSN."""
        return self.first_lsn <= lsn <= self.last_lsn


def read_ranges(cursor: duckdb.DuckDBPyConnection, table_id: int) -> tuple[Range, ...]:
    """A table's ranges, oldest first."""
    rows = cursor.execute(
        f"SELECT first_lsn, last_lsn, removed, epoch_us(compacted_at) FROM {SCHEMA}.compacted_ranges "
        f"WHERE table_id = {table_id} ORDER BY first_lsn"
    ).fetchall()
    return tuple(Range(*row) for row in rows)


def compacted_through(cursor: duckdb.DuckDBPyConnection, table_id: int) -> int:
    """The LSN up to which a table's log is compacted, or being compacted; 0 if it never was."""
    return int(
        ask(
            cursor,
            f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.compacted_ranges WHERE table_id = {table_id}",
        )[0]
    )


def rows_sql(table_id: int, ranges: Sequence[Range]) -> list[str]:
    """The statements that store a table's ranges."""
    rows = ", ".join(
        f"({table_id}, {r.first_lsn}, {r.last_lsn}, {r.removed}, "
        f"{'NULL' if r.compacted_us is None else f'make_timestamptz({r.compacted_us})'})"
        for r in ranges
    )
    return [drop_sql(table_id), *([f"INSERT INTO {SCHEMA}.compacted_ranges VALUES {rows}"] if rows else [])]


def drop_sql(table_id: int) -> str:
    """The statement that deletes a table's ranges."""
    return f"DELETE FROM {SCHEMA}.compacted_ranges WHERE table_id = {table_id}"


def through(ranges: Sequence[Range]) -> int:
    """The last LSN of a table's ranges, 0 without any."""
    return ranges[-1].last_lsn if ranges else 0


def expired_through(ranges: Sequence[Range], before_us: int) -> int:
    """The LSN up to which compaction was complete at a time; 0 for none."""
    last = 0
    for found in ranges:
        if found.compacted_us is None or found.compacted_us > before_us:
            break
        last = found.last_lsn
    return last


def extended(ranges: Sequence[Range], last_lsn: int) -> tuple[Range, ...]:
    """The ranges, with a new one up to an LSN if that is beyond the last."""
    first_lsn = through(ranges) + 1
    return (*ranges, *([Range(first_lsn, last_lsn)] if first_lsn <= last_lsn else []))


def counted(ranges: Sequence[Range], removed: Sequence[int]) -> tuple[Range, ...]:
    """The ranges, each with a number of removed rows added."""
    return tuple(replace(r, removed=r.removed + n) for r, n in zip(ranges, removed, strict=True))


def begun_again(ranges: Sequence[Range], first_lsn: int) -> tuple[Range, ...]:
    """The ranges with compaction from an LSN on incomplete again: newly expired deletes are to be removed."""
    return tuple(replace(r, compacted_us=None) if r.last_lsn >= first_lsn else r for r in ranges)


def finished(ranges: Sequence[Range], now_us: int, keep_us: int) -> tuple[Range, ...]:
    """The ranges with compaction complete; ranges whose times need not be distinguished are merged.

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
