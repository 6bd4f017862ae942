"""The walk from a scan up through its query, one select at a time, to the shape.

The way begins row-wise: each select adds a level. The first aggregate, join or other order ends
that (what is below it may become the unit); from there on only the absence of LIMIT and the like
matters. What makes a read position impossible is noted once; the walk still goes on to the top, as a
constant false filter there means that nothing is read at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from ...engine.quoting import fold
from ..language.nodes import scan_of
from ..language.parse import Query
from ..language.statements import Scan
from ..text.spans import query_span
from .columns import Source, outputs_of_scan
from .pruning import is_constant_false
from .result import result_of
from .select import add_modifiers, number_of, renamed, take_select
from .values import Shape
from .way import Way


def shape_of(query: Query, scan: Scan, columns: Sequence[str] | None = None) -> Shape:
    """The shape of one scan of a query.

    Args:
        columns: of the scan in ENVELOPE CHANGES.
    """
    way = Way(scan, outputs_of_scan(scan.envelope, columns))
    try:
        _walk(query, scan, way)
    except RecursionError:
        way = Way(scan)
        way.none("the query is nested too deeply")
    found = result_of(query, scan, way)
    if query.transactions is None:
        return found
    misplaced = way.misplaced
    if not way.transactions:
        known = query.tree is not None and way.reason != "the query is nested too deeply"
        misplaced = "no scan stands in the FROM of its query" if known else "the query is not understood"
    return replace(found, transactions=query.transactions.limit, misplaced=misplaced)


def _walk(query: Query, scan: Scan, way: Way) -> None:
    node = _node_of(query, scan)
    if node is None:
        way.none("the shape of the query is not known")
    else:
        source = Source(None, way.base).renamed(node.alias or scan.stream.last, list(scan.columns))
        if source is None:
            way.followed = False
        _climb(query, node, source or Source(scan.visible_name, None), scan.stream.position - 1, way)


def _node_of(query: Query, scan: Scan) -> exp.Table | None:
    if query.tree is None:
        return None
    for node in query.tree.find_all(exp.Table):
        found = scan_of(node)
        if found is not None and found.start == scan.start:
            return node
    return None


# From a source to its select.


def _climb(query: Query, node: exp.Expr, source: Source, point: int, way: Way) -> None:
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


# From a select to where its rows go.


def _reference(
    query: Query, select: exp.Expr, given: Source, way: Way
) -> tuple[exp.Expr, Source, int] | None:
    """The relation in FROM that a select is, one step up; None at the top."""
    node: exp.Expr = select
    while True:
        parent = node.parent
        if isinstance(parent, exp.SetOperation):
            way.none(f"{parent.key.upper()} stands over the scan")
            add_modifiers(parent, way)
            given, node = Source(None, None), parent
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


def _derived(query: Query, node: exp.Subquery, given: Source, way: Way) -> tuple[exp.Expr, Source, int]:
    alias = node.args.get("alias")
    source = renamed(given, alias, way) if alias is not None else given
    if alias is None:
        # DuckDB calls it unnamed_subquery; no one names it so.
        source = Source(None, given.outputs, given.hidden_last)
    inner = way.levels[-1].point if way.levels else way.scan.start
    start, _ = query_span(query.tokens, inner)
    return node, source, max(0, start - 1)


def _cte(cte: exp.CTE, given: Source, way: Way) -> tuple[exp.Expr, Source, int] | None:
    """The one place where a common table expression is read."""
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
            if isinstance(limit, exp.Limit) and number_of(limit.expression) == 0:
                way.unchanged = True
        above = above.parent
