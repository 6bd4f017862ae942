"""The events that a topic's partition brought from another node, up to the LSN at which it moved.

They keep their LSNs, which are of the other node's count: so they are not rows of the log, whose LSNs are
this database's. A segment has them ready, as they are sent, and never changes but at its beginning, by
retention. What is published to the partition here has LSNs behind the segment's (`base_lsn`), and is in
the log; rows of the log at or before it are of a time before the partition was away, and are passed over.
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
    """One partition's.

    Args:
        base_lsn: what is at or before it is in the segment, the rest in the log.
        since_lsn: the database's last LSN when the partition came: what it has published since is later.
        events: how many events the partition ever had up to `base_lsn`.
        node: where it came from.
        producers: the last sequences that were published to it before it came.
    """

    base_lsn: int
    since_lsn: int
    events: int
    node: str
    producers: Mapping[str, int] = field(default_factory=dict)


# Of a partition that has come with nothing; and of one that is not this node's now: no LSN is later.
NOTHING_CAME = Segment(0, 0, 0, "")
NEVER = 2**62
NO_SEGMENTS: Mapping[int, Segment] = MappingProxyType({})


class Row(NamedTuple):
    """An event of a segment."""

    lsn: int
    partition: int
    event: bytes


class Segments:
    """The segments of all topics, by stream id and partition; memory follows the engine's commits."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, Segment]] = {}

    @classmethod
    def read(cls, cursor: duckdb.DuckDBPyConnection) -> Segments:
        """Those that the file has."""
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
        """A topic's, by partition."""
        return self._found.get(stream_id, NO_SEGMENTS)

    def put(self, stream_id: int, segments: Mapping[int, Segment]) -> None:
        """Partitions have come."""
        self._found[stream_id] = {**self._found.get(stream_id, {}), **segments}

    def drop(self, stream_id: int) -> None:
        """A topic is gone."""
        self._found.pop(stream_id, None)

    def bases(self, stream_id: int, partitions: int) -> tuple[int, ...]:
        """The LSN up to which each partition's rows of the log are passed over; empty where none are."""
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
    """Partition -> the last LSN that was committed before a time (0: none), where later ones follow."""
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
    """The time at which the first event of a segment after an LSN was committed; None where there is none."""
    (found,) = ask(
        cursor, f"SELECT min(commit_us) FROM {EVENTS} WHERE {_of(stream_id, partition)} AND lsn > {lsn}"
    )
    return None if found is None else int(found)


def read_rows(
    cursor: duckdb.DuckDBPyConnection, stream_id: int, after: Mapping[int, int], limit: int | None, where: str
) -> list[Row]:
    """Events of segments, each partition's in order: at most `limit`, the earliest by their commit.

    Args:
        after: partition -> LSN.
        where: SQL, which also holds for them.
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
    """The commit time before which events of segments must go for the rest to have at most so many bytes."""
    (found,) = ask(
        cursor,
        f"SELECT coalesce(max(commit_us) + 1, 0) FROM (SELECT commit_us, sum(octet_length(event)) OVER "
        f"(ORDER BY commit_us DESC, partition, lsn DESC ROWS UNBOUNDED PRECEDING) AS size FROM {EVENTS} "
        f"WHERE stream_id = {stream_id}) WHERE size > {bytes_}",
    )
    return int(found)


def older(cursor: duckdb.DuckDBPyConnection, stream_id: int, before_us: int) -> list[tuple[int, int, int]]:
    """Partition, last LSN and count of the events of segments that were committed before a time."""
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
    """The statements that make these a topic's segments; their events are there."""
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
