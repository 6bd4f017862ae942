"""The start of a read: its bounds in each partition, its parked and released events, and its gaps.

A read of a group begins behind its committed LSNs, including those of an open transaction; any other read
begins at the LSNs that it names. Parked events of a group are left out, and released ones are given again.
A partition that came from another node begins in its segment there.
Source: docs/sql.md, "Reading"; docs/groups.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from .buffers.gaps import Gone
from .buffers.scan import ScanRange, lost_events
from .catalog.streams import Group, Stream
from .database import Database
from .definitions.parking import parked_of
from .definitions.start_positions import check_no_hole
from .definitions.whole_copies import copy_of
from .groups.parked import RELEASED, Aside
from .offset_commits import committed_lsns
from .transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Beginning:
    """The start of a scan; no state has been changed for it yet.

    Args:
        committed: partition -> committed LSN of the group as which it reads; empty where it names LSNs.
        seeks: number of SEEKs of the group.
        past_gaps: True if it goes on behind trimmed events, instead of failing.
    """

    bounds: ScanRange
    committed: Mapping[int, int]
    seeks: int
    past_gaps: bool


def beginning(
    database: Database,
    transaction: Transaction | None,
    stream: Stream,
    group: Group | None,
    partitions: list[int],
    after: dict[int, int] | None,
    through_lsn: int,
    lsns: tuple[int, int | None],
) -> Beginning:
    """The start of a scan of these partitions now.

    Args:
        transaction: the reader's open transaction, whose commits of offsets count.
        after: partition -> the LSN behind which to begin, 0 for all that is retained; None: the group's
            committed LSNs, or all that is retained where there is no group.
        through_lsn: the end.
        lsns: bounds that the reader's filter sets, the first and the last LSN.

    Raises:
        InvalidParameterValue: an LSN of `after` is one of lost events.
    """
    committed: dict[int, int] = {}
    # Before the committed LSNs are looked up: a SEEK in between makes the position void, not wrong.
    seeks = 0 if group is None else database.offsets.seeks(group.group_id)
    from_start: frozenset[int] = frozenset()
    past_gaps = group is not None and after is None and group.on_gap == "earliest"
    if after is not None:
        for partition, lsn in after.items():
            check_no_hole(database, stream, partition, lsn)
        from_start = frozenset(partition for partition, lsn in after.items() if lsn == 0)
    elif group is not None:
        standing = committed_lsns(database, transaction, group)
        after = committed = {partition: standing[partition] for partition in partitions}
    else:
        after, from_start = dict.fromkeys(partitions, 0), frozenset(partitions)
    copy = None if group is None else copy_of(database, transaction, group)
    bounds = ScanRange(
        after,
        through_lsn,
        from_start,
        *lsns,
        _passed_positions(database, group, committed),
        None if group is None else group.name,
        copy=None if copy is None else copy.at(after),
    )
    return Beginning(bounds, committed, seeks, past_gaps)


def _passed_positions(database: Database, group: Group | None, lsns: Mapping[int, int]) -> dict[int, int]:
    """Exact positions of the committed LSNs that retention has passed."""
    if group is None:
        return {}
    passed = database.offsets.passed_position
    places = {partition: passed(group.group_id, partition, lsn) for partition, lsn in lsns.items()}
    return {partition: place for partition, place in places.items() if place is not None}


def aside_of(
    database: Database, transaction: Transaction | None, group: Group, after: Mapping[int, int]
) -> Aside | None:
    """The parked and released events of a group that a read behind these LSNs meets.

    Events that the transaction itself has released are given once it is committed: until then no other
    session sees their copies.
    """
    committed = database.parked.get(group.group_id)
    if committed is None and (transaction is None or not transaction.parked):
        return None
    parked = parked_of(database, transaction, group)
    there = committed.events if committed is not None else {}
    released = [lsn for lsn, event in there.items() if event.state == RELEASED]
    return parked.aside(after, released, copy_of(database, transaction, group))


def past_gaps(database: Database, stream: Stream, bounds: ScanRange) -> tuple[ScanRange, list[Gone]]:
    """The bounds of a read moved to the first retained events where the next ones are gone; and the gaps."""
    lost = lost_events(stream, database.buffers.of(stream), bounds, bounds.after)
    return replace(bounds, after=bounds.after | {gap.partition: gap.edge.through_lsn for gap in lost}), lost


def group_gaps(
    database: Database,
    transaction: Transaction | None,
    stream: Stream,
    group: Group,
    partitions: Collection[int],
) -> list[Gone]:
    """The gaps of a group: the next events of these partitions that are no longer retained."""
    standing, buffer = committed_lsns(database, transaction, group), database.buffers.of(stream)
    edges = buffer.edges(partitions)
    behind = {number: standing[number] for number, edge in edges.items() if standing[number] < edge}
    known = _passed_positions(database, group, behind)
    return lost_events(stream, buffer, ScanRange(behind, 0, positions=known, group=group.name), behind)


def moved_parts(database: Database, stream: Stream, bounds: ScanRange) -> dict[int, int]:
    """Partition -> end of its segment from another node, for partitions whose scan begins in the segment."""
    segments = database.catalog.segments.of(stream.stream_id)
    buffer = database.buffers.of(stream)
    return {
        number: segments[number].base_lsn
        for number, lsn in bounds.after.items()
        if number in segments
        and max(lsn, buffer.partitions[number].trimmed_through_lsn) < segments[number].base_lsn
    }
