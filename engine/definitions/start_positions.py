"""Named positions in a stream: the start of a group and the target of SEEK, as an LSN for each partition.

Reading continues after the LSN. Source: docs/groups.md, "The start of a group".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..catalog import segments
from ..catalog.copies import Copy
from ..catalog.streams import Group, Stream
from ..database import Database
from ..duck.cursors import ask
from ..errors import InvalidParameterValue
from ..groups.offsets import going_back
from ..transactions.transaction import Transaction

EARLIEST, LATEST, AFTER, TIMESTAMP = "earliest", "latest", "after", "timestamp"
# The beginning of a new whole copy.
SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A named position.

    Args:
        kind: 'earliest', 'latest', 'after', 'timestamp' or 'snapshot'.
        after: partition -> LSN, for 'after' and 'snapshot'; other partitions are unaffected.
        at_us: microseconds since 1970 UTC, for 'timestamp': the position after all earlier commits.
    """

    kind: str
    after: Mapping[int, int] = field(default_factory=dict)
    at_us: int = 0

    def __post_init__(self) -> None:
        assert self.kind in (EARLIEST, LATEST, AFTER, TIMESTAMP, SNAPSHOT)


def lsns_at(
    database: Database,
    transaction: Transaction | None,
    stream: Stream,
    place: StartPosition,
    copy: Copy | None = None,
) -> dict[int, int]:
    """Partition -> LSN of a position; all commits must be published.

    Args:
        transaction: the requesting transaction; its own writes are before its LATEST.
        copy: the group's whole copy, whose LSNs are valid as well.

    Raises:
        InvalidParameterValue: a partition does not exist, or an LSN is past the stream's end.
    """
    if place.kind == SNAPSHOT:
        return dict(place.after)
    if place.kind == AFTER:
        check_lsns(database, stream, place.after, copy)
        return dict(place.after)
    buffer = database.buffers.of(stream)
    kind, before_lsn = place.kind, 0
    if kind == TIMESTAMP:
        if place.at_us > database.commits.now_us():
            kind = LATEST
        else:
            before_lsn = last_lsn_before(database, place.at_us)
    own = 0
    if transaction is not None and stream.is_on(transaction.tables):
        database.transactions.settle(transaction)  # Assigns the LSNs of its events.
        own = transaction.next_lsn
    moved = _moved_before(database, stream, place.at_us) if before_lsn or kind == TIMESTAMP else {}
    with buffer.mutex:
        if kind == LATEST:
            return {n: max(own, p.last_lsn) for n, p in enumerate(buffer.partitions)}
        return {
            n: max(p.trimmed_through_lsn, moved.get(n, p.last_at(before_lsn) if before_lsn else 0))
            for n, p in enumerate(buffer.partitions)
        }


def _moved_before(database: Database, stream: Stream, at_us: int) -> dict[int, int]:
    """Partition -> the last LSN before a time, for partitions whose segments have later events."""
    if not database.catalog.segments.of(stream.stream_id):
        return {}
    cursor = database.cursor()
    try:
        return segments.last_before(cursor, stream.stream_id, at_us)
    finally:
        cursor.close()


def last_lsn_before(database: Database, at_us: int) -> int:
    """The last LSN that was committed before a time. Commit times never go back."""
    cursor = database.cursor(utc=True)
    try:
        row = ask(
            cursor,
            # Retention deletes rows of `commits`; whole copies and parked events remain readable without
            # them.
            "SELECT coalesce(max(last_lsn), 0) FROM (SELECT last_lsn, commit_time FROM ducktail.commits "
            "UNION ALL SELECT last_lsn, commit_time FROM ducktail.parked_commits "
            "UNION ALL SELECT last_lsn, made_at FROM ducktail.group_copies) WHERE epoch_us(commit_time) < $1",
            [at_us],
        )
    finally:
        cursor.close()
    return int(row[0])


def check_no_holes(database: Database, stream: Stream, lsns: Mapping[int, int]) -> None:
    """Refuse positions (partition -> LSN) of events lost by a restore or an accepted loss.

    Raises:
        InvalidParameterValue: an LSN is of lost events.
    """
    if not database.holes:
        return
    segments = database.catalog.segments.of(stream.stream_id)
    for partition, lsn in lsns.items():
        if partition in segments and lsn <= segments[partition].base_lsn:
            continue  # LSNs of another node, which has its own holes.
        for hole in database.holes:
            if hole.has(lsn):
                raise InvalidParameterValue(
                    f"LSN {lsn} is of events that the database has lost",
                    detail=f"It was restored, or opened without them: LSN {hole.after} is the last one "
                    f"before that, and what came afterwards begins at {hole.through + 1}.",
                    hint=f"Go on AFTER {hole.after}.",
                )


def check_partitions(stream: Stream, partitions: Iterable[int]) -> None:
    """Refuse partitions that a stream or topic does not have.

    Raises:
        InvalidParameterValue: a partition or an LSN is invalid.
    """
    for partition in partitions:
        if not 0 <= partition < stream.partitions:
            raise InvalidParameterValue(
                f'{stream.kind} "{stream.name}" has no partition {partition}',
                detail=f"Its partitions are 0 to {stream.partitions - 1}.",
            )


def check_lsns(database: Database, stream: Stream, lsns: Mapping[int, int], copy: Copy | None = None) -> None:
    """Refuse partitions that a stream does not have, and LSNs past its end.

    Args:
        copy: the group's whole copy, which may end behind the stream's last event.

    Raises:
        InvalidParameterValue: a partition or an LSN is invalid.
    """
    end_lsn = max(database.buffers.of(stream).end_lsn, 0 if copy is None else copy.last_lsn)
    check_partitions(stream, lsns)
    check_no_holes(database, stream, lsns)
    for partition, lsn in lsns.items():
        if lsn > end_lsn:
            raise InvalidParameterValue(
                f"LSN {lsn} of partition {partition} is past the end of {stream.kind} "
                f'"{stream.name}", {end_lsn}'
            )


def check_commit(database: Database, stream: Stream, group: Group, lsns: dict[int, int]) -> None:
    """Check an offset commit as far as possible without waiting.

    Raises:
        InvalidParameterValue: a partition does not exist, or an LSN is past the end or goes back.
    """
    standing = database.offsets.positions(group.group_id)
    check_lsns(database, stream, lsns, database.catalog.copies.get(group.group_id))
    for partition, lsn in lsns.items():
        present = standing.get(partition)
        if present is not None and lsn < present.lsn:
            raise going_back(group.name, partition, lsn, present.lsn)
