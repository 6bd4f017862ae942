"""The walk from a scan up through its query, one select at a time, to the shape.

The way begins row-wise: each select adds a level. The first aggregate, join or other order ends
that (what is below it may become the unit); from there on only the absence of LIMIT and the like
matters. What makes a read position impossible is noted once; the walk still goes on to the top, as a
constant false filter there means that nothing is read at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sqlglot import exp

from .dialect import LIST_END
from .nodes import StreamScan, Transactions
from .parse import Query
from .pruning import Fact, facts_of, is_all_partition, is_constant_false, parameter_of
from .shape import HIDDEN_LSN, Edit, Kind, Plain, Shape, Unit
from .shape_columns import (
    EVENT,
    Output,
    Source,
    has_aggregate,
    has_window,
    hidden_is_last,
    is_followed,
    is_in_lsn_order,
    makes_rows,
    outputs_of,
    stars,
)
from .spans import query_span
from .statements import Number, Scan


@dataclass(slots=True)
class Limit:
    """The LIMIT of a select: the number if it is one, else an expression."""

    number: Number | None


@dataclass(slots=True)
class Level:
    """A row-wise select on the way.

    Args:
        point: a place in the text inside its FROM clause.
        followed: whether the hidden column can be carried through it.
        source: what it reads; `given` what it gives.
    """

    select: exp.Select
    point: int
    followed: bool
    source: Source
    given: Source
    limit: Limit | None

    @property
    def list_end(self) -> int:
        """Where the select list ends in the text, from 0."""
        return int(self.select.meta[LIST_END])


@dataclass(slots=True)
class Way:
    """What was found on the way so far."""

    scan: Scan
    levels: list[Level] = field(default_factory=list)
    limits: list[Number] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    rowwise: bool = True
    followed: bool = True
    unchanged: bool = False
    unit: int | None = None  # how many of the levels are the unit
    limited: bool = False  # a LIMIT stood on the way
    reason: str = ""

    def none(self, reason: str) -> None:
        """There is no read position; the first reason is the one to tell."""
        self.reason = self.reason or reason
        self.rowwise = False

    def end_rows(self) -> None:
        """What comes is no longer row-wise; what a LIMIT cut below is the unit."""
        if self.rowwise and self.limited:
            cut = [index for index, level in enumerate(self.levels) if level.limit is not None]
            self.unit = cut[-1] + 1
        self.rowwise = False


def shape_of(query: Query, scan: Scan) -> Shape:
    """The shape of one scan of a query."""
    try:
        return _shape_of(query, scan)
    except RecursionError:
        way = Way(scan)
        way.none("the query is nested too deeply")
        return _result(query, scan, way)


def _shape_of(query: Query, scan: Scan) -> Shape:
    way = Way(scan)
    node = _node_of(query, scan)
    if node is None:
        way.none("the shape of the query is not known")
    else:
        source = _source_of(scan, node)
        if source is None:
            way.followed = False
        _climb(query, node, source or Source(scan.visible_name, None), scan.stream.position - 1, way)
    return _result(query, scan, way)


def _node_of(query: Query, scan: Scan) -> StreamScan | None:
    if query.tree is None:
        return None
    nodes = query.tree.find_all(StreamScan)
    return next((node for node in nodes if node.scan.start == scan.start), None)


def _source_of(scan: Scan, node: StreamScan) -> Source | None:
    outputs = EVENT if scan.envelope == "json" else None
    return Source(None, outputs).renamed(node.alias or scan.stream.last, list(scan.columns))


# From a source to its select.


def _climb(query: Query, node: exp.Expr, source: Source, point: int, way: Way) -> None:
    """Go from a relation in FROM to the top, level by level."""
    while True:
        place = _place_of(node, way)
        if place is None:
            return
        holder, alone, alias = place
        if alias is not None:
            source = _renamed(source, alias, way)
        if not isinstance(holder, exp.Select):
            _top(holder, node, way)
            return
        source = _select(holder, source, node, point, alone, way)
        following = _reference(query, holder, source, way)
        if following is None:
            return
        node, source, point = following


def _place_of(node: exp.Expr, way: Way) -> tuple[exp.Expr, bool, exp.Expr | None] | None:
    """The select that a relation stands in, whether it stands alone there, and an alias in between."""
    alone = not node.args.get("joins")
    alias: exp.Expr | None = None
    while True:
        if node.args.get("sample") or node.args.get("pivots"):
            way.none("SAMPLE or PIVOT stands over the scan")
        parent = node.parent
        if isinstance(parent, exp.Subquery) and not isinstance(node, exp.Query):
            alone = alone and not parent.args.get("joins")
            alias = parent.args.get("alias") or alias
            node = parent
        elif isinstance(parent, exp.From):
            holder = parent.parent
            assert holder is not None
            return holder, alone and _stands_alone(holder), alias
        elif isinstance(parent, exp.Join):
            if isinstance(parent.parent, exp.Select):
                return parent.parent, False, alias
            if parent.parent is None:
                return None
            alone, node = False, parent.parent
        elif isinstance(parent, exp.Lateral):
            way.none("the scan stands in a LATERAL join")
            node = parent
        elif parent is None:
            way.none("the shape of the query is not known")
            return None
        else:
            return parent, False, alias


def _stands_alone(select: exp.Expr) -> bool:
    return not select.args.get("joins") and not select.args.get("laterals")


def _renamed(source: Source, alias: exp.Expr, way: Way) -> Source:
    columns = [column.name for column in alias.args.get("columns") or ()]
    renamed = source.renamed(alias.name or None, columns)
    if renamed is None:
        way.followed = False
        return Source(alias.name or None, None)
    return renamed


# One select.


def _limit_of(node: exp.Expr, way: Way) -> Limit | None:
    """The LIMIT of a select; LIMIT ALL and LIMIT NULL are none."""
    limit = node.args.get("limit")
    if limit is None:
        return None
    options = limit.args.get("limit_options")
    if options is not None and not isinstance(options, Transactions):
        if options.args.get("percent") or options.args.get("with_ties"):
            way.none("LIMIT is a percentage")
    value = limit.args.get("count") if isinstance(limit, exp.Fetch) else limit.args.get("expression")
    if isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return None
    if isinstance(limit, exp.Fetch) and value is None:
        return Limit(1)
    number = _number(value)
    if number == 0:
        way.unchanged = True
    if number is not None:
        way.limits.append(number)
    return Limit(number)


def _number(value: exp.Expr | None) -> Number | None:
    value = value.unnest() if value is not None else None
    if isinstance(value, exp.Cast):
        value = value.this.unnest()
    if isinstance(value, exp.Literal) and value.is_int:
        return int(value.name)
    return parameter_of(value) if value is not None else None


def _has_offset(node: exp.Expr) -> bool:
    offset = node.args.get("offset")
    return offset is not None and _number(offset.expression) != 0


def _obstacles(select: exp.Select) -> Iterator[str]:
    """What makes a read position impossible in this select."""
    if select.args.get("distinct"):
        yield "DISTINCT stands over the scan"
    if has_window(select):
        yield "a window function stands over the scan"
    if makes_rows(select):
        yield "UNNEST stands in the select list"
    if _has_offset(select):
        yield "OFFSET stands over the scan"
    if select.args.get("sample") or select.args.get("pivots"):
        yield "SAMPLE or PIVOT stands over the scan"


_ODD_JOINS = frozenset({"ASOF", "POSITIONAL"})


def _select(
    select: exp.Select, source: Source, inside: exp.Expr, point: int, alone: bool, way: Way
) -> Source:
    """Take one select into the way; gives what it makes of its source."""
    where = select.args.get("where")
    if where is not None and is_constant_false(where):
        way.unchanged = True
    limited_below = way.limited
    if way.rowwise and not limited_below and not _is_odd(select):
        way.facts += facts_of(select, replace(source, joined=not alone))
    for reason in _obstacles(select):
        way.none(reason)
    limit = _limit_of(select, way)
    lsn = "lsn" if way.scan.envelope == "json" else "_lsn"
    ends = has_aggregate(select) or not alone or not is_in_lsn_order(select, source, lsn)
    if way.rowwise and where is not None and limited_below:
        # The filter rejects rows that the LIMIT below has counted: those below are what was read.
        ends = True
    if ends:
        way.end_rows()
    elif way.rowwise:
        return _add_level(select, source, inside, point, limit, way)
    if limit is not None:
        way.none("a LIMIT stands over more than selects and filters of the scan")
    return Source(None, None)


def _is_odd(select: exp.Select) -> bool:
    """Whether rows are picked before WHERE by what else is there: a filter below would change which."""
    if select.args.get("sample"):
        return True
    joins = select.args.get("joins") or ()
    return any(
        str(join.args.get("method") or "").upper() in _ODD_JOINS or join.args.get("nearest") for join in joins
    )


def _add_level(
    select: exp.Select, source: Source, inside: exp.Expr, point: int, limit: Limit | None, way: Way
) -> Source:
    outputs = outputs_of(select, source)
    given = Source(None, outputs, hidden_is_last(select, source))
    followed = way.followed and is_followed(select, source, inside)
    # Names that stand twice are fine at the top; below it DuckDB would rename one of them.
    way.followed = followed and not _has_twins(outputs)
    way.levels.append(Level(select, point, followed, source, given, limit))
    way.limited = way.limited or limit is not None
    return given


def _has_twins(outputs: tuple[Output, ...] | None) -> bool:
    names = [output.name.lower() for output in outputs or () if output.name]
    return len(set(names)) < len(names)


# From a select to where its rows go.


def _reference(query: Query, select: exp.Expr, given: Source, way: Way) -> tuple[exp.Expr, Source, int] | None:
    """The relation in FROM that a select is, one step up; None at the top."""
    node: exp.Expr = select
    while True:
        parent = node.parent
        if isinstance(parent, exp.SetOperation):
            way.none(f"{parent.key.upper()} stands over the scan")
            _modifiers(parent, way)
            given, node = Source(None, None), parent
        elif isinstance(parent, exp.Subquery):
            _modifiers(parent, way)
            node = parent
            if isinstance(parent.parent, exp.From | exp.Join | exp.Lateral):
                return _derived(query, parent, given, way)
        elif isinstance(parent, exp.CTE):
            return _cte(parent, given, way)
        else:
            _top(parent, node, way)
            return None


def _modifiers(node: exp.Expr, way: Way) -> None:
    """The LIMIT and the like that stand behind a bracketed query or a set operation."""
    if _has_offset(node):
        way.none("OFFSET stands over the scan")
    limit = _limit_of(node, way)
    if limit is not None or node.args.get("order") is not None:
        if limit is not None:
            way.none("a LIMIT stands behind a query in brackets")
        way.end_rows()


def _derived(query: Query, node: exp.Subquery, given: Source, way: Way) -> tuple[exp.Expr, Source, int]:
    alias = node.args.get("alias")
    source = _renamed(given, alias, way) if alias is not None else given
    if alias is None:
        # DuckDB calls it unnamed_subquery; no one names it so.
        source = Source(None, given.outputs, given.hidden_last)
    inner = way.levels[-1].point if way.levels else way.scan.start
    start, _ = query_span(query.tokens, inner)
    return node, source, max(0, start - 1)


def _cte(cte: exp.CTE, given: Source, way: Way) -> tuple[exp.Expr, Source, int] | None:
    """The one place where a common table expression is read."""
    name = cte.alias.lower()
    holder = cte.parent.parent if cte.parent is not None else None
    root = cte.root()
    if holder is None or sum(other.alias.lower() == name for other in root.find_all(exp.CTE)) > 1:
        way.none(f'two common table expressions are called "{cte.alias}"')
        return None
    references = [
        table
        for table in holder.find_all(exp.Table)
        if table.name.lower() == name and not (isinstance(table, StreamScan) or table.db or _is_target(table))
    ]
    if any(_is_inside(table, cte) for table in references):
        way.none("the scan stands in a recursive query")
        return None
    if len(references) != 1:
        how = "not read" if not references else "read more than once"
        way.none(f'the common table expression "{cte.alias}" is {how}')
        return None
    table = references[0]
    source = _renamed(given, cte.args["alias"], way)
    alias = table.args.get("alias")
    if alias is not None:
        source = _renamed(source, alias, way)
    return table, source, int(table.this.meta.get("start", way.scan.start))


def _is_target(table: exp.Table) -> bool:
    """Whether it is the table that INSERT writes."""
    holder = table.parent.parent if isinstance(table.parent, exp.Schema) else table.parent
    return isinstance(holder, exp.Insert) and table.find_ancestor(exp.From) is None


def _is_inside(node: exp.Expr, outer: exp.Expr) -> bool:
    above: exp.Expr | None = node
    while above is not None:
        if above is outer:
            return True
        above = above.parent
    return False


def _top(holder: exp.Expr | None, node: exp.Expr, way: Way) -> None:
    """What the rows of the outermost select become."""
    if holder is None:
        return
    if isinstance(holder, exp.Insert | exp.Create) and holder.expression is node:
        way.end_rows()
    elif isinstance(holder, exp.Describe):
        way.unchanged = True
    elif isinstance(holder, exp.Update | exp.Delete | exp.Merge | exp.Insert):
        way.none(f"{holder.key.upper()} reads the scan")
        _check_false(holder, way)
    else:
        other = _OTHER_HOLDERS.get(type(holder), "a subquery of an expression")
        way.none(f"the scan stands in {other}")
        _outer_filters(holder, way)


_OTHER_HOLDERS: dict[type[exp.Expr], str] = {exp.Pivot: "PIVOT", exp.Summarize: "SUMMARIZE"}


def _check_false(holder: exp.Expr, way: Way) -> None:
    if is_constant_false(holder.args.get("where")):
        way.unchanged = True


def _outer_filters(node: exp.Expr, way: Way) -> None:
    """A constant false filter or LIMIT 0 around a subquery of an expression: nothing is read there too."""
    above: exp.Expr | None = node
    while above is not None:
        if isinstance(above, exp.Select):
            _check_false(above, way)
            limit = above.args.get("limit")
            if isinstance(limit, exp.Limit) and _number(limit.expression) == 0:
                way.unchanged = True
        above = above.parent


# The shape.


def _result(query: Query, scan: Scan, way: Way) -> Shape:
    plain = None if query.copy or query.explain else _plain(way)
    facts, limits = tuple(way.facts), tuple(way.limits)
    if scan.group is None or scan.after is not None or query.explain or way.unchanged:
        return Shape(scan, Kind.UNCHANGED, plain=plain, facts=facts, limits=limits)
    if way.reason:
        return Shape(scan, Kind.NONE, way.reason, facts=facts, limits=limits)
    if query.copy:
        way.end_rows()
    if way.rowwise:
        if _can_be_edited(query, way.levels):
            edits = _edits(query, way.levels)
            return Shape(scan, Kind.ROWWISE, edits=edits, plain=plain, facts=facts, limits=limits)
        if way.limited:
            return Shape(scan, Kind.NONE, _NOT_FOLLOWED, facts=facts, limits=limits)
        return Shape(scan, Kind.WHOLE, facts=facts, limits=limits)
    unit = None
    if way.unit is not None:
        unit = _unit(query, way.levels[: way.unit])
        if unit is None:
            return Shape(scan, Kind.NONE, _NOT_FOLLOWED, facts=facts, limits=limits)
    return Shape(scan, Kind.WHOLE, facts=facts, unit=unit, limits=limits)


_NOT_FOLLOWED = "which events the rows under the LIMIT are cannot be told from the query's columns"


def _can_be_edited(query: Query, levels: list[Level]) -> bool:
    """Whether the hidden column gets to the top; sqlglot's places must be our own tokens' ends."""
    ends = {token.end for token in query.tokens}
    return all(
        level.followed and (stars(level.select, level.source) == 1 or level.list_end in ends)
        for level in levels
    )


def _edits(query: Query, levels: list[Level]) -> tuple[Edit, ...]:
    found: list[Edit] = []
    for level in levels:
        if stars(level.select, level.source) == 0:
            offset = level.list_end
            comma = "" if query.text[:offset].rstrip().endswith(",") else ","
            found.append(Edit(offset, f"{comma} {HIDDEN_LSN}"))
    return tuple(sorted(found, key=lambda edit: edit.offset))


def _unit(query: Query, levels: list[Level]) -> Unit | None:
    """The unit, if it stands by itself and its rows can be followed."""
    top = levels[-1]
    if not _can_be_edited(query, levels) or not _is_self_contained(top.select):
        return None
    start, end = query_span(query.tokens, top.point)
    limits = tuple(
        level.limit.number for level in levels if level.limit is not None and level.limit.number is not None
    )
    return Unit(start, end, _edits(query, levels), limits)


def _is_self_contained(select: exp.Select) -> bool:
    """Whether a select names no common table expression of a query around it."""
    names = {table.name.lower() for table in select.find_all(exp.Table) if not table.db}
    own = {cte.alias.lower() for cte in select.find_all(exp.CTE)}
    around = {cte.alias.lower() for cte in select.root().find_all(exp.CTE)} - own
    return not names & around


def _plain(way: Way) -> Plain | None:
    """Whether the answer's rows are events as they are."""
    if not way.rowwise or way.reason or not way.levels or way.unchanged:
        return None
    cut = [level.limit for level in way.levels if level.limit is not None]
    if len(cut) > 1 or any(limit.number is None for limit in cut):
        return None
    if not all(is_all_partition(level.select, level.source) for level in way.levels):
        return None
    outputs = way.levels[-1].given.outputs
    if outputs is None or not all(level.followed for level in way.levels):
        return None
    columns = [(output.event, output.name) for output in outputs]
    if any(event is None for event, _ in columns):
        return None
    limit = cut[0].number if cut else None
    if columns == [(output.event, output.name) for output in EVENT]:
        return Plain(None, limit)
    return Plain(tuple((event, name) for event, name in columns if event is not None), limit)
