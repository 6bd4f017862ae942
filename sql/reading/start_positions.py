"""Where a stream scan begins in each partition: by its group's committed LSNs, or by its AFTER."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...engine.buffers.scan import ScanRange, lost_events
from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.parking import parked_of
from ...engine.definitions.start_positions import check_no_hole, check_partitions
from ...engine.definitions.whole_copies import copy_of
from ...engine.groups.parked import RELEASED, Aside
from ...engine.offset_commits import committed_lsns
from ..language import statements as st
from ..language.position_text import parse_after
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text, value_of
from .narrowing import Pruning


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a scan begins; nothing is noted of it yet.

    Args:
        committed: as of Opened.
        seeks: how often SEEK has moved the group.
        past_gaps: it goes on behind what has been trimmed, instead of failing.
    """

    bounds: ScanRange
    committed: Mapping[int, int]
    seeks: int
    past_gaps: bool


def beginning(
    session: Context,
    stream: Stream,
    wanted: st.Scan,
    parameters: Values,
    pruning: Pruning,
    group: Group | None,
    partitions: list[int],
    through_lsn: int,
) -> Beginning:
    """Where a scan of these partitions begins now, by its group's committed LSNs or its AFTER."""
    committed: dict[int, int] = {}
    # Before the committed LSNs are looked up: a SEEK in between makes the position void, not wrong.
    seeks = 0 if group is None else session.database.offsets.seeks(group.group_id)
    from_start: frozenset[int] = frozenset()
    if wanted.after is not None:
        after = _after(stream, wanted.after, parameters, partitions)
        for partition, lsn in after.items():
            check_no_hole(session.database, stream, partition, lsn)
        # AFTER 0 is what is retained; a map is exact in each partition that it names.
        from_start = frozenset(partition for partition, lsn in after.items() if lsn == 0)
    elif group is not None:
        standing = committed_lsns(session.database, session.block.transaction, group)
        after = committed = {partition: standing[partition] for partition in partitions}
    else:
        after, from_start = dict.fromkeys(partitions, 0), frozenset(partitions)
    copy = None if group is None else copy_of(session.database, session.block.transaction, group)
    bounds = ScanRange(
        after,
        through_lsn,
        from_start,
        pruning.from_lsn,
        pruning.to_lsn,
        _passed(session, group, committed),
        None if group is None else group.name,
        copy=None if copy is None else copy.at(after),
    )
    past_gaps = group is not None and wanted.after is None and group.on_gap == "earliest"
    return Beginning(bounds, committed, seeks, past_gaps)


def aside_of(session: Context, group: Group, after: Mapping[int, int]) -> Aside | None:
    """What of a group's parked events a read from these LSNs has to know.

    What a transaction has released itself is given once it is committed: nobody sees the copies before.
    """
    committed = session.database.parked.get(group.group_id)
    transaction = session.block.transaction
    if committed is None and (transaction is None or not transaction.parked):
        return None
    parked = parked_of(session.database, transaction, group)
    there = committed.events if committed is not None else {}
    released = [lsn for lsn, event in there.items() if event.state == RELEASED]
    return parked.aside(after, released, copy_of(session.database, transaction, group))


def _passed(session: Context, group: Group | None, committed: Mapping[int, int]) -> dict[int, int]:
    """Exact places of the committed LSNs that retention has passed."""
    if group is None:
        return {}
    offsets = session.database.offsets
    places = {p: offsets.passed_position(group.group_id, p, lsn) for p, lsn in committed.items()}
    return {partition: place for partition, place in places.items() if place is not None}


def over_gaps(session: Context, stream: Stream, bounds: ScanRange) -> ScanRange:
    """The same read, from the first retained event where the next one is gone; told as a WARNING."""
    lost = lost_events(stream, session.database.buffers.of(stream), bounds, bounds.after)
    for gap in lost:
        session.notices.add(gap.message, severity="WARNING", sqlstate="72000", detail=gap.detail)
    return replace(bounds, after=bounds.after | {gap.partition: gap.edge.through_lsn for gap in lost})


def group_of(session: Context, stream: Stream, wanted: st.Scan, parameters: Values) -> Group | None:
    """The group as which a scan reads, if it does.

    Raises:
        UndefinedObject: 42704, there is none.
    """
    if wanted.group is None:
        return None
    return session.access.group(stream, text(wanted.group, parameters), session.block.transaction)


def partitions_of(stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning) -> list[int]:
    """The partitions that a scan names, and WHERE leaves.

    Raises:
        InvalidParameterValue: 22023, there is no such one.
    """
    if wanted.partitions is None:
        chosen = set(range(stream.partitions))
    else:
        chosen = {number(item, parameters, "PARTITION") for item in wanted.partitions}
    check_partitions(stream, sorted(chosen))
    if pruning.partitions is not None:
        chosen &= pruning.partitions
    return sorted(chosen)


def _after(stream: Stream, after: st.Scalar, parameters: Values, partitions: list[int]) -> dict[int, int]:
    parsed = parsed_after(stream, after, parameters)
    if isinstance(parsed, int):
        return dict.fromkeys(partitions, parsed)
    # A partition that the map does not name is read from what is retained.
    return {partition: parsed.get(partition, 0) for partition in partitions}


def parsed_after(stream: Stream, after: st.Scalar, parameters: Values) -> int | dict[int, int]:
    """The value of AFTER.

    Raises:
        InvalidParameterValue: 22023, it names a partition that is not there.
    """
    value = value_of(after, parameters)
    parsed = parse_after(value if isinstance(value, int) else str(value))
    if not isinstance(parsed, int):
        check_partitions(stream, parsed)
    return parsed


def moved_parts(session: Context, stream: Stream, bounds: ScanRange) -> dict[int, int]:
    """Of the partitions whose scan begins in their segment: the LSN up to which that goes."""
    segments = session.database.catalog.segments.of(stream.stream_id)
    buffer = session.database.buffers.of(stream)
    return {
        number: segments[number].base_lsn
        for number, lsn in bounds.after.items()
        if number in segments
        and max(lsn, buffer.partitions[number].trimmed_through_lsn) < segments[number].base_lsn
    }
