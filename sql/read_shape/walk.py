"""The walk from a scan up through its query, one select at a time, to the shape.

The walk begins row-wise: each select adds a level. The first aggregate, join or other order ends this state
(the part below may become the unit); from there on only the absence of LIMIT and similar clauses matters.
An obstacle to a read position is recorded once; the walk still continues to the top, because a constant
false filter there means that nothing is read at all. At the top the findings become the shape: the edits,
the unit, and whether ready rows are sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from ...engine.quoting import fold
from ..language.dialect import counts_transactions, scan_of
from ..language.parse import Query
from ..language.statements import Number, Scan
from ..text.spans import limit_span, order_place, query_span
from .columns import (
    ColumnSource,
    Output,
    has_aggregate,
    has_window,
    hidden_is_last,
    is_followed,
    is_in_lsn_order,
    keeps_order,
    makes_rows,
    outputs_of,
    outputs_of_scan,
    stars,
)
from .pruning import facts_of, integer, is_all_partition, is_constant_false, parameter_of
from .shape_types import HIDDEN_LSN, Edit, Level, Plain, ReadKind, RowCut, Shape, Unit, WalkState


def result_of(query: Query, scan: Scan, way: WalkState) -> Shape:
    """The shape of a scan after its walk."""
    found = _result_of(query, scan, way)
    return replace(found, empty=True) if way.unchanged else found


def _result_of(query: Query, scan: Scan, way: WalkState) -> Shape:
    plain = None if query.copy or query.explain else _plain(way)
    facts, limits = tuple(way.facts), tuple(way.limits)
    if scan.group is None or scan.after is not None or query.explain or way.unchanged:
        edits = _order_edits(query, way)
        unit, cuts = None, _cuts(query, way, way.levels) if edits else ()
        if way.pairs and way.unit is not None and not (way.reason or query.explain or way.unchanged):
            unit = _unit(query, way, way.levels[: way.unit])
        return Shape(scan, ReadKind.UNCHANGED, "", edits, plain, facts, unit, limits, cuts)
    if way.reason:
        return Shape(scan, ReadKind.NONE, way.reason, facts=facts, limits=limits)
    if query.copy:
        way.end_rows()
    if way.rowwise:
        if _can_be_edited(query, way, way.levels):
            edits, cuts = _edits(query, way, way.levels), _cuts(query, way, way.levels)
            return Shape(scan, ReadKind.ROWWISE, "", edits, plain, facts, None, limits, cuts)
        if way.limited:
            return Shape(scan, ReadKind.NONE, _NOT_FOLLOWED, facts=facts, limits=limits)
        return Shape(scan, ReadKind.WHOLE, facts=facts, limits=limits)
    unit = None
    if way.unit is not None:
        unit = _unit(query, way, way.levels[: way.unit])
        if unit is None:
            return Shape(scan, ReadKind.NONE, _NOT_FOLLOWED, facts=facts, limits=limits)
    return Shape(scan, ReadKind.WHOLE, facts=facts, unit=unit, limits=limits)


_NOT_FOLLOWED = "which events the rows under the LIMIT are cannot be told from the query's columns"


def _can_be_edited(query: Query, way: WalkState, levels: list[Level]) -> bool:
    """True if the hidden column can reach the top; sqlglot's positions must be token ends."""
    ends = {token.end for token in query.tokens}
    limited = [level for level in levels if way.pairs and level.limit is not None]
    if any(limit_span(query.tokens, level.point) is None for level in limited):
        return False
    return all(
        level.followed and (stars(level.select, level.source) == 1 or level.list_end in ends)
        for level in levels
    )


def _edits(query: Query, way: WalkState, levels: list[Level]) -> tuple[Edit, ...]:
    """The edits that carry the hidden column to the top, and keep or restore the order of the LSNs."""
    found: list[Edit] = []
    disturbed = False
    for level in levels:
        disturbed = disturbed or not keeps_order(level.select)
        if stars(level.select, level.source) == 0:
            offset = level.list_end
            comma = "" if query.text[:offset].rstrip().endswith(",") else ","
            found.append(Edit(offset, f"{comma} {HIDDEN_LSN}"))
        if disturbed and not level.select.args.get("order"):
            # A LIMIT over rows in another order would skip events that were never returned.
            place = order_place(query.tokens, level.point)
            found.append(Edit(place, f" ORDER BY {HIDDEN_LSN}", sorts=True))
        elif way.pairs and level.select.args.get("order"):
            # Of the two rows under one LSN the old one comes first.
            found.append(Edit(order_place(query.tokens, level.point), f", {HIDDEN_LSN}"))
    return tuple(sorted(found, key=lambda edit: edit.offset))


def _cuts(query: Query, way: WalkState, levels: list[Level]) -> tuple[RowCut, ...]:
    """The LIMITs that would part an update's two rows."""
    found = []
    for level in levels if way.pairs else ():
        span = limit_span(query.tokens, level.point) if level.limit is not None else None
        if span is not None and level.limit is not None:
            found.append(RowCut(*span, level.limit))
    return tuple(found)


def _order_edits(query: Query, way: WalkState) -> tuple[Edit, ...]:
    """Edits for a read without a position, which also returns its events in LSN order and parts no update."""
    orderly = not way.rowwise or way.reason or query.copy or query.explain or way.unchanged
    if orderly or (not way.pairs and all(keeps_order(level.select) for level in way.levels)):
        return ()
    return _edits(query, way, way.levels) if _can_be_edited(query, way, way.levels) else ()


def _unit(query: Query, way: WalkState, levels: list[Level]) -> Unit | None:
    """The unit, if it is self-contained and its rows can be followed."""
    top = levels[-1]
    if not _can_be_edited(query, way, levels) or not _is_self_contained(top.select):
        return None
    start, end = query_span(query.tokens, top.point)
    limits = tuple(level.limit for level in levels if level.limit is not None)
    return Unit(start, end, _edits(query, way, levels), limits, _cuts(query, way, levels))


def _is_self_contained(select: exp.Select) -> bool:
    """True if a select names no common table expression of a query around it."""
    names = {fold(table.name) for table in select.find_all(exp.Table) if not table.db}
    own = {fold(cte.alias) for cte in select.find_all(exp.CTE)}
    around = {fold(cte.alias) for cte in select.root().find_all(exp.CTE)} - own
    return not names & around


def _plain(way: WalkState) -> Plain | None:
    """The plain read, if the answer's rows are events unchanged."""
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


def renamed(source: ColumnSource, alias: exp.Expr, way: WalkState) -> ColumnSource:
    columns = [column.name for column in alias.args.get("columns") or ()]
    renamed = source.renamed(alias.name or None, columns)
    if renamed is None:
        way.followed = False
        return ColumnSource(alias.name or None, None)
    return renamed


def limit_of(node: exp.Expr, way: WalkState) -> Number | None:
    """The LIMIT of a select; None for LIMIT ALL and LIMIT NULL."""
    limit = node.args.get("limit")
    if limit is None:
        return None
    options = limit.args.get("limit_options")
    if counts_transactions(limit):
        _take_transactions(node, limit, way)
        return None
    if options is not None:
        if options.args.get("percent") or options.args.get("with_ties"):
            way.none("LIMIT is a percentage")
    value = limit.args.get("count") if isinstance(limit, exp.Fetch) else limit.args.get("expression")
    if isinstance(value, exp.Null) or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return None
    if isinstance(limit, exp.Fetch) and value is None:
        return 1
    number = number_of(value)
    if number is None:
        way.none("LIMIT is neither a number nor a parameter")
        return None
    if number == 0:
        way.unchanged = True
    way.limits.append(number)
    return number


def _take_transactions(node: exp.Expr, limit: exp.Expr, way: WalkState) -> None:
    """Read LIMIT n TRANSACTIONS, which does not limit rows but ends the scan below it."""
    if not isinstance(node, exp.Select):
        way.misplaced = f"it stands behind {_HOLDERS.get(type(node), 'a set operation')}"
    elif way.limited or way.limits:
        way.misplaced = "another LIMIT stands below it"
    elif has_offset(node):
        way.misplaced = "OFFSET stands with it"
    way.transactions = True
    if number_of(limit.args.get("expression")) == 0:
        way.unchanged = True


_HOLDERS: dict[type[exp.Expr], str] = {exp.Subquery: "a query in brackets"}


_WHOLE_NUMBERS = frozenset({exp.DType.INT, exp.DType.BIGINT, exp.DType.INT128})


def number_of(value: exp.Expr | None) -> Number | None:
    value = value.unnest() if value is not None else None
    if isinstance(value, exp.Cast) and value.to.this in _WHOLE_NUMBERS:
        # A cast to another type may change the number: 3::BOOLEAN is 1.
        value = value.this.unnest()
    if isinstance(value, exp.Literal):
        return integer(value.name)  # a string too: LIMIT '5'
    return parameter_of(value) if value is not None else None


def has_offset(node: exp.Expr) -> bool:
    offset = node.args.get("offset")
    return offset is not None and number_of(offset.expression) != 0


UNNESTED = "UNNEST stands in the select list"
# The clauses of a select that this module examines.
_CLAUSES = frozenset({
    "with_", "expressions", "distinct", "from_", "joins", "laterals", "where", "group", "having", "qualify",
    "windows", "order", "limit", "offset", "sample", "pivots",
})  # fmt: skip


def _obstacles(select: exp.Select) -> Iterator[str]:
    """The parts of this select that make a read position impossible."""
    if select.args.get("distinct"):
        yield "DISTINCT stands over the scan"
    if has_window(select):
        yield "a window function stands over the scan"
    if makes_rows(select):
        yield UNNESTED
    if has_offset(select):
        yield "OFFSET stands over the scan"
    if select.args.get("sample") or select.args.get("pivots"):
        yield "SAMPLE or PIVOT stands over the scan"
    for name, value in select.args.items():
        if value and name not in _CLAUSES:
            yield f"{name.strip('_').replace('_', ' ').upper()} stands over the scan"


_ODD_JOINS = frozenset({"ASOF", "POSITIONAL"})


def take_select(
    select: exp.Select, source: ColumnSource, inside: exp.Expr, point: int, alone: bool, way: WalkState
) -> ColumnSource:
    """Add one select to the walk, and return its transformation of the source."""
    where = select.args.get("where")
    if where is not None and is_constant_false(where):
        way.unchanged = True
    limited_below = way.limited
    if way.rowwise and not limited_below and not _is_odd(select):
        way.facts += facts_of(select, replace(source, joined=not alone))
    for reason in _obstacles(select):
        way.none(reason)
    limit = limit_of(select, way)
    ends = has_aggregate(select) or not alone or not is_in_lsn_order(select, source, way.pairs)
    if way.rowwise and where is not None and limited_below:
        # The filter rejects rows that the LIMIT below has counted: the rows below it are the ones that were
        # read.
        ends = True
    if ends:
        way.end_rows()
    elif way.rowwise:
        return _add_level(select, source, inside, point, limit, way)
    if limit is not None:
        way.none("a LIMIT stands over more than selects and filters of the scan")
    return ColumnSource(None, None)


def _is_odd(select: exp.Select) -> bool:
    """True if rows are selected before WHERE in a way that a filter below would change."""
    if select.args.get("sample"):
        return True
    joins = select.args.get("joins") or ()
    return any(
        str(join.args.get("method") or "").upper() in _ODD_JOINS or join.args.get("nearest") for join in joins
    )


def _add_level(
    select: exp.Select,
    source: ColumnSource,
    inside: exp.Expr,
    point: int,
    limit: Number | None,
    way: WalkState,
) -> ColumnSource:
    outputs = outputs_of(select, source)
    given = ColumnSource(None, outputs, hidden_is_last(select, source))
    followed = way.followed and is_followed(select, source, inside)
    # Duplicate names are allowed at the top; below it DuckDB would rename one of them.
    way.followed = followed and not _has_twins(outputs)
    way.levels.append(Level(select, point, followed, source, given, limit))
    way.limited = way.limited or limit is not None
    return given


def _has_twins(outputs: tuple[Output, ...] | None) -> bool:
    names = [fold(output.name) for output in outputs or () if output.name]
    return len(set(names)) < len(names)


def add_modifiers(node: exp.Expr, way: WalkState) -> None:
    """Add the LIMIT and similar clauses behind a parenthesized query or a set operation."""
    if has_offset(node):
        way.none("OFFSET stands over the scan")
    limit = limit_of(node, way)
    if limit is not None or node.args.get("order") is not None:
        if limit is not None:
            way.none("a LIMIT stands behind a query in brackets")
        way.end_rows()


def shape_of(query: Query, scan: Scan, columns: Sequence[str] | None = None) -> Shape:
    """The shape of one scan of a query.

    Args:
        columns: the columns of the scan in ENVELOPE CHANGES.
    """
    way = WalkState(scan, outputs_of_scan(scan, columns))
    try:
        _walk(query, scan, way)
    except RecursionError:
        way = WalkState(scan)
        way.none("the query is nested too deeply")
    found = result_of(query, scan, way)
    if query.transactions is None:
        return found
    misplaced = way.misplaced
    if not way.transactions:
        known = query.tree is not None and way.reason != "the query is nested too deeply"
        misplaced = "no scan stands in the FROM of its query" if known else "the query is not understood"
    return replace(found, transactions=query.transactions.limit, misplaced=misplaced)


def _walk(query: Query, scan: Scan, way: WalkState) -> None:
    node = _node_of(query, scan)
    if node is None:
        way.none("the shape of the query is not known")
    else:
        source = ColumnSource(None, way.base).renamed(node.alias or scan.stream.last, list(scan.columns))
        if source is None:
            way.followed = False
        _climb(query, node, source or ColumnSource(scan.visible_name, None), scan.stream.position - 1, way)


def _node_of(query: Query, scan: Scan) -> exp.Table | None:
    if query.tree is None:
        return None
    for node in query.tree.find_all(exp.Table):
        found = scan_of(node)
        if found is not None and found.start == scan.start:
            return node
    return None


# From a source to its select.


def _climb(query: Query, node: exp.Expr, source: ColumnSource, point: int, way: WalkState) -> None:
    """Go from a relation in FROM to the top, level by level."""
    while True:
        place = _place_of(node, way)
        if place is None:
            return
        holder, alone, alias = place
        if alias is not None:
            source = renamed(source, alias, way)
        if not isinstance(holder, exp.Select):
            _top(holder, node, way)
            return
        source = take_select(holder, source, node, point, alone, way)
        following = _reference(query, holder, source, way)
        if following is None:
            return
        node, source, point = following


def _place_of(node: exp.Expr, way: WalkState) -> tuple[exp.Expr, bool, exp.Expr | None] | None:
    """The select that reads a relation, True if it reads nothing else, and the alias of parentheses in
    between."""
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


# From a select to the place that reads its rows.


def _reference(
    query: Query, select: exp.Expr, given: ColumnSource, way: WalkState
) -> tuple[exp.Expr, ColumnSource, int] | None:
    """The relation in FROM that a select is, one level up; None at the top."""
    node: exp.Expr = select
    while True:
        parent = node.parent
        if isinstance(parent, exp.SetOperation):
            way.none(f"{parent.key.upper()} stands over the scan")
            add_modifiers(parent, way)
            given, node = ColumnSource(None, None), parent
        elif isinstance(parent, exp.Subquery):
            add_modifiers(parent, way)
            node = parent
            if isinstance(parent.parent, exp.From | exp.Join | exp.Lateral):
                return _derived(query, parent, given, way)
        elif isinstance(parent, exp.CTE):
            return _cte(parent, given, way)
        else:
            _top(parent, node, way)
            return None


def _derived(
    query: Query, node: exp.Subquery, given: ColumnSource, way: WalkState
) -> tuple[exp.Expr, ColumnSource, int]:
    alias = node.args.get("alias")
    source = renamed(given, alias, way) if alias is not None else given
    if alias is None:
        # DuckDB names it unnamed_subquery; no query uses that name.
        source = ColumnSource(None, given.outputs, given.hidden_last)
    inner = way.levels[-1].point if way.levels else way.scan.start
    start, _ = query_span(query.tokens, inner)
    return node, source, max(0, start - 1)


def _cte(cte: exp.CTE, given: ColumnSource, way: WalkState) -> tuple[exp.Expr, ColumnSource, int] | None:
    """The only place that reads a common table expression."""
    name = fold(cte.alias)
    holder = cte.parent.parent if cte.parent is not None else None
    root = cte.root()
    if holder is None or sum(fold(other.alias) == name for other in root.find_all(exp.CTE)) > 1:
        way.none(f'two common table expressions are called "{cte.alias}"')
        return None
    references = [
        table
        for table in holder.find_all(exp.Table)
        if fold(table.name) == name and not (scan_of(table) or table.db or _is_target(table))
    ]
    if any(_is_inside(table, cte) for table in references):
        way.none("the scan stands in a recursive query")
        return None
    if len(references) != 1:
        how = "not read" if not references else "read more than once"
        way.none(f'the common table expression "{cte.alias}" is {how}')
        return None
    table = references[0]
    source = renamed(given, cte.args["alias"], way)
    alias = table.args.get("alias")
    if alias is not None:
        source = renamed(source, alias, way)
    return table, source, int(table.this.meta.get("start", way.scan.start))


def _is_target(table: exp.Table) -> bool:
    """True if it is the target table of INSERT."""
    holder = table.parent.parent if isinstance(table.parent, exp.Schema) else table.parent
    return isinstance(holder, exp.Insert) and table.find_ancestor(exp.From) is None


def _is_inside(node: exp.Expr, outer: exp.Expr) -> bool:
    above: exp.Expr | None = node
    while above is not None:
        if above is outer:
            return True
        above = above.parent
    return False


def _top(holder: exp.Expr | None, node: exp.Expr, way: WalkState) -> None:
    """Classify the rows of the outermost select."""
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


def _check_false(holder: exp.Expr, way: WalkState) -> None:
    if is_constant_false(holder.args.get("where")):
        way.unchanged = True


def _outer_filters(node: exp.Expr, way: WalkState) -> None:
    """Find a constant false filter or LIMIT 0 around a subquery of an expression: nothing is read there
    too."""
    above: exp.Expr | None = node
    while above is not None:
        if isinstance(above, exp.Select):
            _check_false(above, way)
            limit = above.args.get("limit")
            if isinstance(limit, exp.Limit) and number_of(limit.expression) == 0:
                way.unchanged = True
        above = above.parent
