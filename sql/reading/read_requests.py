"""The read that a stream scan asks for: its clauses, and the bounds of the query's WHERE, with their values.

Conditions on the scan's own columns (read_shape/pruning.py) get their values here. They exclude only events
that WHERE would reject: the query's own WHERE is still evaluated on each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb

from ...engine.catalog.streams import Group, Stream
from ...engine.definitions.start_positions import check_partitions, last_lsn_before
from ...engine.duck.cursors import ask
from ...engine.errors import DucktailError
from ...engine.stream_reads import ReadRequest
from ..language import statements as st
from ..language.position_text import parse_after
from ..read_shape.pruning import Fact, chosen_partitions
from ..session_state.context import Context
from ..session_state.run_text import Values, number, text, value_of


@dataclass(frozen=True, slots=True)
class Pruning:
    """The bounds that a query's WHERE sets for a scan, beyond the scan's own clauses.

    Args:
        partitions: the only partitions that can pass; None for all.
        from_lsn, to_lsn: bounds of the LSNs that can pass, both inclusive.
        from_us, to_us: bounds of the commit times, both inclusive, in microseconds since 1970; each owner
            converts them to LSNs, as both rise together.
    """

    partitions: frozenset[int] | None = None
    from_lsn: int = 0
    to_lsn: int | None = None
    from_us: int | None = None
    to_us: int | None = None

    @property
    def within(self) -> tuple[int | None, ...] | None:
        """The bounds in the form of a share; None without bounds."""
        bounds = (self.from_lsn or None, self.to_lsn, self.from_us, self.to_us)
        return None if bounds == (None,) * len(bounds) else bounds


def pruning(facts: Sequence[Fact], partitions: int, parameters: Values) -> Pruning | None:
    """The bounds that WHERE sets for a scan, with the parameters' values.

    Returns:
        None if a partition is compared with a value that is no whole number: DuckDB has to evaluate it.
    """
    chosen = chosen_partitions(facts, range(partitions), lambda p: parameters[p.index - 1])
    if chosen is None:
        return None
    low, high = 0, None
    for fact in facts:
        if fact.column != "lsn" or fact.operator in ("in", "not in", "<>"):
            continue
        try:
            value = number(fact.values[0], parameters, "lsn")
        except DucktailError:
            continue  # Not a whole number: DuckDB's own filter decides.
        if fact.operator in ("=", ">", ">="):
            low = max(low, value + (fact.operator == ">"))
        if fact.operator in ("=", "<", "<="):
            bound = value - (fact.operator == "<")
            high = bound if high is None else min(high, bound)
    return Pruning(frozenset(chosen), low, high)


def within_times(session: Context, facts: Sequence[Fact], narrowed: Pruning, parameters: Values) -> Pruning:
    """Add the bounds that WHERE sets for the commit time."""
    low, high = narrowed.from_us, narrowed.to_us
    for fact in facts:
        if fact.column != "commit_time" or fact.operator in ("in", "not in", "<>"):
            continue
        at_us = _time_us(session, fact.values[0], parameters)
        if at_us is None:
            continue
        if fact.operator in ("=", ">", ">="):
            low = at_us if low is None else max(low, at_us)
        if fact.operator in ("=", "<", "<="):
            high = at_us if high is None else min(high, at_us)
    return replace(narrowed, from_us=low, to_us=high)


def _time_us(session: Context, value: st.Scalar, parameters: Values) -> int | None:
    """A time in the session's zone as microseconds since 1970 UTC; None if DuckDB has to evaluate it."""
    given = parameters[value.index - 1] if isinstance(value, st.Parameter) else value
    if given is None:
        return None
    try:
        row = ask(session.meta, "SELECT epoch_us(TRY_CAST($1 AS TIMESTAMPTZ))", [given])
    except duckdb.Error:
        return None
    return None if row[0] is None else int(row[0])


def lsn_before(session: Context, at_us: int) -> int:
    """The last LSN that was committed before a time; for a future time, the last LSN so far."""
    last = session.database.commits.last_lsn_if_past(at_us)
    return last_lsn_before(session.database, at_us) if last is None else last


def in_lsns(session: Context, pruning: Pruning) -> Pruning:
    """Bounds of commit times as bounds of this database's LSNs."""
    low, high = pruning.from_lsn, pruning.to_lsn
    if pruning.from_us is not None:
        low = max(low, lsn_before(session, pruning.from_us) + 1)
    # Future events may pass.
    if pruning.to_us is not None and pruning.to_us < session.database.commits.now_us():
        bound = last_lsn_before(session.database, pruning.to_us + 1)
        high = bound if high is None else min(high, bound)
    return Pruning(pruning.partitions, low, high)


def narrowed_here(session: Context, stream: Stream, pruning: Pruning) -> Pruning:
    """Bounds for this node's own partitions: those of a query here, or of a share's query."""
    part = session.part
    if part is not None and part.within is not None:
        low, high, from_us, to_us = part.within
        pruning = Pruning(pruning.partitions, low or 0, high, from_us, to_us)
    if session.database.catalog.segments.of(stream.stream_id):
        # The commit times of events that came from another node are not known here by LSN.
        return replace(pruning, from_us=None, to_us=None)
    return in_lsns(session, pruning)


def request_of(
    session: Context, stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning
) -> ReadRequest:
    """The read of a scan, from its group's committed LSNs or its AFTER; its end is set later.

    Raises:
        UndefinedObject: the group does not exist.
        InvalidParameterValue: the partition does not exist.
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
    """The group as which a scan reads; None if it names none.

    Raises:
        UndefinedObject: the group does not exist.
    """
    if wanted.group is None:
        return None
    return session.access.group(stream, text(wanted.group, parameters), session.block.transaction)


def partitions_of(stream: Stream, wanted: st.Scan, parameters: Values, pruning: Pruning) -> list[int]:
    """The partitions that a scan names and its WHERE does not exclude.

    Raises:
        InvalidParameterValue: the partition does not exist.
    """
    passing = pruning.partitions
    if wanted.partitions is None:
        return [number for number in range(stream.partitions) if passing is None or number in passing]
    chosen = sorted({number(item, parameters, "PARTITION") for item in wanted.partitions})
    check_partitions(stream, chosen)
    return [number for number in chosen if passing is None or number in passing]


def parsed_after(stream: Stream, after: st.Scalar, parameters: Values) -> int | dict[int, int]:
    """The value of AFTER.

    Raises:
        InvalidParameterValue: AFTER names a partition that does not exist.
    """
    value = value_of(after, parameters)
    parsed = parse_after(value if isinstance(value, int) else str(value))
    if not isinstance(parsed, int):
        check_partitions(stream, parsed)
    return parsed
