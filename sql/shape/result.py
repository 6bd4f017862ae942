"""From what the walk has found to the shape: edits, the unit, whether ready rows will do."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from ...engine.quoting import fold
from ..language.parse import Query
from ..language.statements import Scan
from ..text.spans import limit_span, order_place, query_span
from .columns import keeps_order, stars
from .pruning import is_all_partition
from .values import HIDDEN_LSN, Cut, Edit, Kind, Plain, Shape, Unit
from .way import Level, Way


def result_of(query: Query, scan: Scan, way: Way) -> Shape:
    """The shape of a scan whose way is known."""
    found = _result_of(query, scan, way)
    return replace(found, empty=True) if way.unchanged else found


def _result_of(query: Query, scan: Scan, way: Way) -> Shape:
    plain = None if query.copy or query.explain else _plain(way)
    facts, limits = tuple(way.facts), tuple(way.limits)
    if scan.group is None or scan.after is not None or query.explain or way.unchanged:
        edits = _order_edits(query, way)
        unit, cuts = None, _cuts(query, way, way.levels) if edits else ()
        if way.pairs and way.unit is not None and not (way.reason or query.explain or way.unchanged):
            unit = _unit(query, way, way.levels[: way.unit])
        return Shape(scan, Kind.UNCHANGED, "", edits, plain, facts, unit, limits, cuts)
    if way.reason:
        return Shape(scan, Kind.NONE, way.reason, facts=facts, limits=limits)
    if query.copy:
        way.end_rows()
    if way.rowwise:
        if _can_be_edited(query, way, way.levels):
            edits, cuts = _edits(query, way, way.levels), _cuts(query, way, way.levels)
            return Shape(scan, Kind.ROWWISE, "", edits, plain, facts, None, limits, cuts)
        if way.limited:
            return Shape(scan, Kind.NONE, _NOT_FOLLOWED, facts=facts, limits=limits)
        return Shape(scan, Kind.WHOLE, facts=facts, limits=limits)
    unit = None
    if way.unit is not None:
        unit = _unit(query, way, way.levels[: way.unit])
        if unit is None:
            return Shape(scan, Kind.NONE, _NOT_FOLLOWED, facts=facts, limits=limits)
    return Shape(scan, Kind.WHOLE, facts=facts, unit=unit, limits=limits)


_NOT_FOLLOWED = "which events the rows under the LIMIT are cannot be told from the query's columns"


def _can_be_edited(query: Query, way: Way, levels: list[Level]) -> bool:
    """Whether the hidden column gets to the top; sqlglot's places must be our own tokens' ends."""
    ends = {token.end for token in query.tokens}
    limited = [level for level in levels if way.pairs and level.limit is not None]
    if any(limit_span(query.tokens, level.point) is None for level in limited):
        return False
    return all(
        level.followed and (stars(level.select, level.source) == 1 or level.list_end in ends)
        for level in levels
    )


def _edits(query: Query, way: Way, levels: list[Level]) -> tuple[Edit, ...]:
    """What carries the hidden column to the top, and keeps or restores the order of the LSNs."""
    found: list[Edit] = []
    disturbed = False
    for level in levels:
        disturbed = disturbed or not keeps_order(level.select)
        if stars(level.select, level.source) == 0:
            offset = level.list_end
            comma = "" if query.text[:offset].rstrip().endswith(",") else ","
            found.append(Edit(offset, f"{comma} {HIDDEN_LSN}"))
        if disturbed and not level.select.args.get("order"):
            # A LIMIT over rows in another order would pass events that were never given.
            place = order_place(query.tokens, level.point)
            found.append(Edit(place, f" ORDER BY {HIDDEN_LSN}", sorts=True))
        elif way.pairs and level.select.args.get("order"):
            # Of the two rows under one LSN the old one comes first.
            found.append(Edit(order_place(query.tokens, level.point), f", {HIDDEN_LSN}"))
    return tuple(sorted(found, key=lambda edit: edit.offset))


def _cuts(query: Query, way: Way, levels: list[Level]) -> tuple[Cut, ...]:
    """The LIMITs that would part an update's two rows."""
    found = []
    for level in levels if way.pairs else ():
        span = limit_span(query.tokens, level.point) if level.limit is not None else None
        if span is not None and level.limit is not None:
            found.append(Cut(*span, level.limit))
    return tuple(found)


def _order_edits(query: Query, way: Way) -> tuple[Edit, ...]:
    """A read without a position gives its events in LSN order too, and parts no update."""
    orderly = not way.rowwise or way.reason or query.copy or query.explain or way.unchanged
    if orderly or (not way.pairs and all(keeps_order(level.select) for level in way.levels)):
        return ()
    return _edits(query, way, way.levels) if _can_be_edited(query, way, way.levels) else ()


def _unit(query: Query, way: Way, levels: list[Level]) -> Unit | None:
    """The unit, if it stands by itself and its rows can be followed."""
    top = levels[-1]
    if not _can_be_edited(query, way, levels) or not _is_self_contained(top.select):
        return None
    start, end = query_span(query.tokens, top.point)
    limits = tuple(level.limit for level in levels if level.limit is not None)
    return Unit(start, end, _edits(query, way, levels), limits, _cuts(query, way, levels))


def _is_self_contained(select: exp.Select) -> bool:
    """Whether a select names no common table expression of a query around it."""
    names = {fold(table.name) for table in select.find_all(exp.Table) if not table.db}
    own = {fold(cte.alias) for cte in select.find_all(exp.CTE)}
    around = {fold(cte.alias) for cte in select.root().find_all(exp.CTE)} - own
    return not names & around


def _plain(way: Way) -> Plain | None:
    """Whether the answer's rows are events as they are."""
    if not way.rowwise or way.reason or not way.levels or way.unchanged:
        return None
    cut = [level.limit for level in way.levels if level.limit is not None]
    if len(cut) > 1:
        return None
    if not all(is_all_partition(level.select, level.source) for level in way.levels):
        return None
    outputs = way.levels[-1].given.outputs
    if outputs is None or not all(level.followed for level in way.levels):
        return None
    columns = [(output.event, output.name) for output in outputs]
    if way.base is None or any(event is None for event, _ in columns):
        return None
    limit = cut[0] if cut else None
    if columns == [(output.event, output.name) for output in way.base]:
        return Plain(None, limit)
    return Plain(tuple((event, name) for event, name in columns if event is not None), limit)
