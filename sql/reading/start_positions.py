"""The start of a stream scan in each partition: by its group's committed LSNs, or by its AFTER."""

from __future__ import annotations

from ...engine import stream_reads
from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.start_positions import check_partitions
from ...engine.stream_reads import Beginning
from ..language import statements as st
from ..language.position_text import parse_after
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text, value_of
from .narrowing import Pruning


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
    """The start of a scan of these partitions now, by its group's committed LSNs or its AFTER."""
    after = None if wanted.after is None else _after(stream, wanted.after, parameters, partitions)
    return stream_reads.beginning(
        session.database,
        session.block.transaction,
        stream,
        group,
        partitions,
        after,
        through_lsn,
        (pruning.from_lsn, pruning.to_lsn),
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


def _after(stream: Stream, after: st.Scalar, parameters: Values, partitions: list[int]) -> dict[int, int]:
    parsed = parsed_after(stream, after, parameters)
    if isinstance(parsed, int):
        return dict.fromkeys(partitions, parsed)
    # A partition that the map does not name is read from its first retained event.
    return {partition: parsed.get(partition, 0) for partition in partitions}


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
