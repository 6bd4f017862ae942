"""How much of a stream a scan has to read, by what the query's WHERE says of its own columns.

The facts (pruning.py) get their values here. They only ever leave out what WHERE would reject: the
query's own WHERE judges each row all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb

from ...engine.asking import ask
from ...engine.errors import DucktailError
from ..arguments import Values, number
from ..context import Context
from ..language import statements as st
from ..shape.pruning import Fact, chosen_partitions
from .opening import Pruning


def pruning(facts: Sequence[Fact], partitions: int, parameters: Values) -> Pruning | None:
    """What WHERE says of a scan, with the parameters' values.

    Returns:
        None where a partition is compared with what is no whole number: DuckDB has to judge.
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
    """The same with what WHERE says of the commit time."""
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
    """A time in the session's zone as microseconds since 1970 UTC; None where DuckDB has to judge."""
    given = parameters[value.index - 1] if isinstance(value, st.Parameter) else value
    if given is None:
        return None
    try:
        row = ask(session.meta, "SELECT epoch_us(TRY_CAST($1 AS TIMESTAMPTZ))", [given])
    except duckdb.Error:
        return None
    return None if row[0] is None else int(row[0])
