"""The read that a stream scan asks for: its clauses and the bounds of its WHERE, with their values."""

from __future__ import annotations

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.start_positions import check_partitions
from ...engine.stream_reads import ReadRequest
from ..language import statements as st
from ..language.position_text import parse_after
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text, value_of
from .narrowing import Pruning


def request_of(
    session: Context, stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning
) -> ReadRequest:
    """The read of a scan, by its group's committed LSNs or its AFTER; its end is not known yet.

    Raises:
        UndefinedObject: no such group.
        InvalidParameterValue: no such partition.
    """
    group = group_of(session, stream, wanted, parameters)
    partitions = partitions_of(stream, wanted, parameters, pruning)
    after = None
    if wanted.after is not None:
        parsed = parsed_after(stream, wanted.after, parameters)
        if isinstance(parsed, int):
            after = dict.fromkeys(partitions, parsed)
        else:
            # A partition that the map does not name is read from its first retained event.
            after = {partition: parsed.get(partition, 0) for partition in partitions}
    return ReadRequest(
        user=session.user,
        transaction=session.block.transaction,
        stream=stream,
        partitions=partitions,
        group=group,
        member=None if wanted.member is None else text(wanted.member, parameters),
        after=after,
        lsns=(pruning.from_lsn, pruning.to_lsn),
        changes=wanted.envelope != "json",
    )


def group_of(session: Context, stream: Stream, wanted: st.Scan, parameters: Values) -> Group | None:
    """The group as which a scan reads; None where it names none.

    Raises:
        UndefinedObject: no such group.
    """
    if wanted.group is None:
        return None
    return session.access.group(stream, text(wanted.group, parameters), session.block.transaction)


def partitions_of(stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning) -> list[int]:
    """The partitions that a scan names and its WHERE does not exclude.

    Raises:
        InvalidParameterValue: no such partition.
    """
    if wanted.partitions is None:
        chosen = set(range(stream.partitions))
    else:
        chosen = {number(item, parameters, "PARTITION") for item in wanted.partitions}
    check_partitions(stream, sorted(chosen))
    if pruning.partitions is not None:
        chosen &= pruning.partitions
    return sorted(chosen)


def parsed_after(stream: Stream, after: st.Scalar, parameters: Values) -> int | dict[int, int]:
    """The value of AFTER.

    Raises:
        InvalidParameterValue: it names a partition that does not exist.
    """
    value = value_of(after, parameters)
    parsed = parse_after(value if isinstance(value, int) else str(value))
    if not isinstance(parsed, int):
        check_partitions(stream, parsed)
    return parsed
