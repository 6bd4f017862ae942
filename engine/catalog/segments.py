"""Segments: the events that a topic's partition brought from another node, up to the LSN of its move.

They keep their LSNs, which the other node assigned, so they are not rows of the log, whose LSNs belong to
this database. A segment has them in encoded form, and only retention changes it, at its beginning. Events
published to the partition here have LSNs after the segment's (`base_lsn`), and are in the log; rows of the
log at or before it are from a time before the partition left, and are skipped.
Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import duckdb

from ..duck.cursors import ask
from ..quoting import literal

SEGMENTS, EVENTS, PRODUCERS = "ducktail.segments", "ducktail.segment_events", "ducktail.segment_producers"


@dataclass(frozen=True, slots=True)
class Segment:
    """The segment of one partition.

    Args:
        base_lsn: events at or before it are in the segment, later ones in the log.
        since_lsn: the database's last LSN when the partition arrived: later publications have higher LSNs.
        events: the number of the partition's events over its life up to `base_lsn`.
        node: the node from which it came.
        producers: the last sequences published to it before it came.
    """

    base_lsn: int
    since_lsn: int
    events: int
    node: str
    producers: Mapping[str, int] = field(default_factory=dict)


# For a partition that has arrived without events, and for one not on this node: no LSN is later.
NOTHING_CAME = Segment(0, 0, 0, "")
NEVER = 2**62
NO_SEGMENTS: Mapping[int, Segment] = MappingProxyType({})


class Row(NamedTuple):
    """An event of a segment."""

    lsn: int
    partition: int
    event: bytes


class Segments:
    """The segments of all topics by stream id and partition, updated by the engine's commits."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, Segment]] = {}

    @classmethod
    def read(cls, cursor: duckdb.DuckDBPyConnection) -> Segments:
        """The segments stored in the file."""
        made = cls()
        producers: dict[tuple[int, int], dict[str, int]] = {}
        for stream_id, partition, producer, sequence in cursor.execute(
            f"SELECT stream_id, partition, producer, sequence FROM {PRODUCERS}"
        ).fetchall():
            producers.setdefault((stream_id, partition), {})[producer] = sequence
        for stream_id, partition, base_lsn, since_lsn, events, node in cursor.execute(
            f"SELECT stream_id, partition, base_lsn, since_lsn, events, node FROM {SEGMENTS}"
        ).fetchall():
            own = producers.get((stream_id, partition), {})
            segment = Segment(base_lsn, since_lsn, events, node, own)
            made._found.setdefault(stream_id, {})[partition] = segment
        return made

    def of(self, stream_id: int) -> Mapping[int, Segment]:
        """A topic's segments by partition."""
        return self._found.get(stream_id, NO_SEGMENTS)

    def put(self, stream_id: int, segments: Mapping[int, Segment]) -> None:
        """Set the segments of partitions that have arrived."""
        self._found[stream_id] = {**self._found.get(stream_id, {}), **segments}

    def drop(self, stream_id: int) -> None:
        """Remove the segments of a dropped topic."""
        self._found.pop(stream_id, None)

    def bases(self, stream_id: int, partitions: int) -> tuple[int, ...]:
        """The LSN up to which each partition's rows of the log are skipped; empty without segments."""
        found = self.of(stream_id)
        if not any(one.base_lsn for one in found.values()):
            return ()
        return tuple(found[p].base_lsn if p in found else 0 for p in range(partitions))


def first_lsns(cursor: duckdb.DuckDBPyConnection, stream_id: int) -> dict[int, int]:
    """Partition -> the first retained LSN of its segment."""
    rows = cursor.execute(
        f"SELECT partition, min(lsn) FROM {EVENTS} WHERE stream_id = {stream_id} GROUP BY partition"
    ).fetchall()
    return dict(rows)


def last_before(cursor: duckdb.DuckDBPyConnection, stream_id: int, at_us: int) -> dict[int, int]:
    """Partition -> the last LSN committed before a time (0: none), for partitions with later events."""
    rows = cursor.execute(
        f"SELECT partition, coalesce(max(lsn) FILTER (commit_us < {at_us}), 0) FROM {EVENTS} "
        f"WHERE stream_id = {stream_id} GROUP BY partition HAVING max(commit_us) >= {at_us}"
    ).fetchall()
    return dict(rows)


def count_after(cursor: duckdb.DuckDBPyConnection, stream_id: int, partition: int, lsn: int) -> int:
    """The number of events of a segment after an LSN."""
    sql = f"SELECT count(*) FROM {EVENTS} WHERE {_of(stream_id, partition)} AND lsn > {lsn}"
    return int(ask(cursor, sql)[0])


def first_us(cursor: duckdb.DuckDBPyConnection, stream_id: int, partition: int, lsn: int) -> int | None:
    """The commit time of a segment's first event after an LSN, or None."""
    (found,) = ask(
        cursor, f"SELECT min(commit_us) FROM {EVENTS} WHERE {_of(stream_id, partition)} AND lsn > {lsn}"
    )
    return None if found is None else int(found)


def read_rows(
    cursor: duckdb.DuckDBPyConnection, stream_id: int, after: Mapping[int, int], limit: int | None, where: str
) -> list[Row]:
    """Events of segments, each partition in order: at most `limit`, the earliest by commit time.

    Args:
        after: partition -> LSN.
        where: an SQL condition that they must also satisfy.
    """
    starts = " OR ".join(f"(partition = {p} AND lsn > {lsn})" for p, lsn in after.items())
    bound = "" if limit is None else f" LIMIT {limit}"
    rows = cursor.execute(
        f"SELECT lsn, partition, event FROM {EVENTS} WHERE stream_id = {stream_id} AND ({starts}){where} "
        f"ORDER BY commit_us, partition, lsn{bound}"
    ).fetchall()
    return [Row(*row) for row in rows]


def count_through(cursor: duckdb.DuckDBPyConnection, stream_id: int, partition: int, lsn: int) -> int:
    """The number of retained events of a segment at or before an LSN."""
    sql = f"SELECT count(*) FROM {EVENTS} WHERE {_of(stream_id, partition)} AND lsn <= {lsn}"
    return int(ask(cursor, sql)[0])


def beyond(cursor: duckdb.DuckDBPyConnection, stream_id: int, bytes_: int) -> int:
    """The commit time before which events of segments must be removed for the rest to fit `bytes_`."""
    (found,) = ask(
        cursor,
        f"SELECT coalesce(max(commit_us) + 1, 0) FROM (SELECT commit_us, sum(octet_length(event)) OVER "
        f"(ORDER BY commit_us DESC, partition, lsn DESC ROWS UNBOUNDED PRECEDING) AS size FROM {EVENTS} "
        f"WHERE stream_id = {stream_id}) WHERE size > {bytes_}",
    )
    return int(found)


def older(cursor: duckdb.DuckDBPyConnection, stream_id: int, before_us: int) -> list[tuple[int, int, int]]:
    """Partition, last LSN and count of the events of segments committed before a time."""
    return cursor.execute(
        f"SELECT partition, max(lsn), count(*) FROM {EVENTS} "
        f"WHERE stream_id = {stream_id} AND commit_us < {before_us} GROUP BY partition"
    ).fetchall()


def cut_sql(stream_id: int, going: Sequence[tuple[int, int, int]]) -> list[str]:
    """The statements that delete events of segments up to an LSN of each partition."""
    return [
        f"DELETE FROM {EVENTS} WHERE {_of(stream_id, partition)} AND lsn <= {lsn}"
        for partition, lsn, _ in going
    ]


def put_sql(stream_id: int, found: Mapping[int, Segment]) -> list[str]:
    """The statements that store a topic's segments; their events must have been stored before."""
    numbers = ", ".join(map(str, found))
    rows = ", ".join(
        f"({stream_id}, {p}, {s.base_lsn}, {s.since_lsn}, {s.events}, {literal(s.node)})"
        for p, s in found.items()
    )
    names = ", ".join(
        f"({stream_id}, {p}, {literal(name)}, {sequence})"
        for p, s in found.items()
        for name, sequence in s.producers.items()
    )
    return [
        *(
            f"DELETE FROM {table} WHERE stream_id = {stream_id} AND partition IN ({numbers})"
            for table in (SEGMENTS, PRODUCERS)
        ),
        f"INSERT INTO {SEGMENTS} VALUES {rows}",
        *([f"INSERT INTO {PRODUCERS} VALUES {names}"] if names else []),
    ]


def _of(stream_id: int, partition: int) -> str:
    return f"stream_id = {stream_id} AND partition = {partition}"
