"""Where a stream's retained events begin: the edge of the stream, and of each of its partitions.

The stream's edge is a pointer into its table's log: what is at or before it is not the stream's any
more, whether the log still has it (for another stream) or not. A partition's edge is its own last
trimmed event, with the count of all that it has lost, so that loss is an exact number. Both are rows
of `stream_edges`; the stream's own has partition -1. Source: docs/design/engine.md, "Retention".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import duckdb

from ..quoting import literal
from ..schema import SCHEMA

# The row of stream_edges that is the stream's own.
WHOLE = -1

# Why events are gone: retention, or that the file of the node that had them is lost, which nobody can count.
BY_TIME, BY_BYTES, BY_LOSS = "time", "bytes", "loss"


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
