"""The PostgreSQL types of a catalog query's columns, worked out from the text before it is respelt.

DuckDB has no oid, name or "char", and counts where PostgreSQL has an int4; clients look at the type
that a column is told with and decode by it. What a column is cannot be seen in DuckDB's answer, so it
is followed through the query as PostgreSQL wrote it: a column of the catalog has its relation's type,
a function of ours its own (FUNCTIONS), CASE and UNION that of their branches. What cannot be told is
None, and then the type is that of DuckDB's answer. Source: PostgreSQL documentation, "UNION, CASE,
and Related Constructs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlglot import exp

from ...engine.quoting import fold
from .casts import pg_type_name
from .data import read_rows
from .oids import MARK
from .pg_types import BY_NAME
from .scope import bare, column_of, shape_of, tables_of, wide_column

# The PostgreSQL types of functions of the catalog, and of ordinary ones that clients use beside them; other
# functions have the type of DuckDB's answer. Source: PostgreSQL's pg_proc.dat.
FUNCTION_TYPES: dict[str, str] = {row[0]: row[1] for row in read_rows("function_types.tsv")}
# The type of a literal that nothing around it has given one; it goes out as text.
UNKNOWN = "unknown"
# The pairs of a number and a value that _pg_expandarray gives.
EXPANDED = "expanded"
Type = str | None
Columns = list[tuple[str, Type]]

_INTEGERS = ("int2", "int4", "int8", "numeric", "float4", "float8")
_TEXTS = frozenset({"text", "name", "varchar", "bpchar", "char"})
_ELEMENTS = {"int2vector": "int2", "oidvector": "oid"}


def column_types(tree: exp.Expr) -> list[Type]:
    """The types of a query's columns; its tables know their shapes (scope.mark_tables)."""
    sent = {UNKNOWN: "text", EXPANDED: None}
    return [sent.get(type_, type_) if type_ else None for _, type_ in _Reading().query(tree)]


def divide_whole(tree: exp.Expr) -> None:
    """Let whole numbers be divided as whole ones, which DuckDB's `/` does not."""
    reading = _Reading()
    for node in list(tree.find_all(exp.Div)):
        if {reading.type_of(node.this), reading.type_of(node.expression)} <= {"int2", "int4", "int8"}:
            node.replace(exp.IntDiv(this=node.this.copy(), expression=node.expression.copy()))


def unified(types: Iterable[Type]) -> Type:
    """The type of a CASE, a coalesce or a UNION of these.

    >>> unified(["unknown", "name", "text"]), unified(["int2", "int4"]), unified(["int4", "oid"])
    ('name', 'int4', 'oid')
    """
    found = list(dict.fromkeys(type_ for type_ in types if type_ != UNKNOWN))
    if not found:
        return UNKNOWN
    if len(found) == 1 or None in found:
        return found[0] if len(found) == 1 else None
    kinds = {str(type_) for type_ in found}
    if kinds <= _TEXTS:
        # Each is turned to each without being asked, but for "char".
        return next((type_ for type_ in found if type_ != "char"), "char")
    if "oid" in kinds and kinds <= {"oid", "int2", "int4", "int8"}:
        return "oid"
    if kinds <= set(_INTEGERS):
        return max((str(type_) for type_ in found), key=_INTEGERS.index)
    return None


class _Reading:
    """One look through one query."""

    def __init__(self) -> None:
        # Queries that are being looked at: a recursive one refers to itself.
        self._open: set[int] = set()

    def query(self, query: exp.Expr) -> Columns:
        """The names and types of a query's columns."""
        query = _unwrapped(query)
        if id(query) in self._open:
            return []
        self._open.add(id(query))
        try:
            if isinstance(query, exp.SetOperation):
                return self._united(self.query(query.this), self.query(query.expression))
            if isinstance(query, exp.Select):
                return self._select(query)
            if isinstance(query, exp.Values):
                rows = [row.expressions for row in query.expressions if isinstance(row, exp.Tuple)]
                cells = [unified(map(self.type_of, column)) for column in zip(*rows, strict=False)]
                return [(f"column{at}", type_) for at, type_ in enumerate(cells, 1)]
            return []
        finally:
            self._open.discard(id(query))

    def type_of(self, node: exp.Expr) -> Type:
        """The type of an expression."""
        node = bare(node)
        for kind, rule in _RULES.items():
            if isinstance(node, kind):
                return rule(self, node)
        if isinstance(node, (exp.Predicate, exp.Connector)):
            return "bool"
        return self._function(node) if isinstance(node, exp.Func) else None

    @staticmethod
    def _united(one: Columns, other: Columns) -> Columns:
        if not one or not other:
            return one or other
        return [(name, unified((a, b)) or a or b) for (name, a), (_, b) in zip(one, other, strict=False)]

    def _select(self, select: exp.Select) -> Columns:
        found: Columns = []
        for item in select.expressions:
            if isinstance(item, exp.Star) or item.is_star:
                wanted = fold(item.table) if isinstance(item, exp.Column) else ""
                for alias, columns in self._sources(select):
                    found += columns if wanted in ("", alias) else []
            else:
                found.append((fold(item.alias_or_name), self.type_of(item.unalias())))
        return found

    def _sources(self, select: exp.Expr) -> list[tuple[str, Columns]]:
        start = select.args.get("from_")
        nodes = [start.this] if start is not None else []
        nodes += [join.this for join in select.args.get("joins") or []]
        nodes += select.args.get("laterals") or []
        found = []
        for node in nodes:
            inner = bare(node)
            nodes += [join.this for join in inner.args.get("joins") or []]
            found.append((fold(inner.alias_or_name), self._renamed(inner, self._source(inner))))
        return found

    def _source(self, node: exp.Expr) -> Columns:
        if isinstance(node, exp.Lateral):
            return self._source(node.this)
        if isinstance(node, (exp.Subquery, exp.Values)):
            return self.query(node)
        shape = shape_of(node)
        if shape is not None:
            return [(column.name, column.pg_type) for column in shape.columns]
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            cte = _cte(node)
            return self._renamed(cte, self.query(cte.this)) if cte is not None else []
        call = node.this if isinstance(node, exp.Table) else node
        return [(fold(node.alias_or_name), self.type_of(call))]

    @staticmethod
    def _renamed(node: exp.Expr, columns: Columns) -> Columns:
        alias = node.args.get("alias")
        names = [fold(found.name) for found in alias.columns] if isinstance(alias, exp.TableAlias) else []
        return [(names[at] if at < len(names) else name, type_) for at, (name, type_) in enumerate(columns)]

    def column(self, node: exp.Column) -> Type:
        """What a column of one of the queries around it is."""
        name, qualifier = fold(node.name), fold(node.table)
        if name == "tableoid":
            return "oid"
        select = node.find_ancestor(exp.Select)
        while select is not None:
            for alias, columns in self._sources(select):
                if qualifier in ("", alias):
                    for found, type_ in columns:
                        if found == name:
                            return type_
            select = select.find_ancestor(exp.Select)
        return None

    def first(self, node: exp.Expr) -> Type:
        """What a scalar subquery gives."""
        columns = self.query(node)
        return columns[0][1] if columns else None

    def _function(self, node: exp.Expr) -> Type:
        name = str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name()  # type: ignore[attr-defined]
        return FUNCTION_TYPES.get(fold(name.removeprefix(MARK)))


def _unwrapped(query: exp.Expr) -> exp.Expr:
    while isinstance(query, (exp.Subquery, exp.Paren)):
        query = query.this
    return query


def _cte(table: exp.Table) -> exp.CTE | None:
    name = fold(table.name)
    node: exp.Expr | None = table
    while node is not None:
        found = node.args.get("with_")
        for cte in found.expressions if found is not None else ():
            if fold(cte.alias) == name and isinstance(cte, exp.CTE):
                return cte
        node = node.parent
    return None


def _literal(reading: _Reading, node: exp.Literal) -> Type:
    if node.is_string:
        return UNKNOWN
    if not node.name.isdigit():
        return "numeric"
    return "int4" if int(node.name) < 2**31 else "int8"


def _case(reading: _Reading, node: exp.Case) -> Type:
    branches = [branch.args["true"] for branch in node.args["ifs"]]
    default = node.args.get("default")
    # PostgreSQL looks at ELSE first.
    return unified(map(reading.type_of, [*([default] if default is not None else []), *branches]))


def _list(reading: _Reading, node: exp.Expr) -> Type:
    """coalesce, greatest and the like."""
    return unified(map(reading.type_of, [node.this, *node.expressions]))


def _of_argument(reading: _Reading, node: exp.Expr) -> Type:
    """A function whose result is what it is asked of: max, nullif, a window, a filter."""
    found = reading.type_of(node.this)
    # PostgreSQL has max(text) only.
    return "text" if isinstance(node, (exp.Max, exp.Min)) and found in _TEXTS else found


def _array_of(type_: Type) -> Type:
    if type_ == UNKNOWN:
        return "_text"
    return f"_{type_}" if type_ and f"_{type_}" in BY_NAME else None


def _array(reading: _Reading, node: exp.Array) -> Type:
    items = node.expressions
    if len(items) == 1 and isinstance(items[0], exp.Query):
        return _array_of(reading.first(items[0]))
    return _array_of(unified(map(reading.type_of, items)))


def _array_agg(reading: _Reading, node: exp.ArrayAgg) -> Type:
    item = node.this.this if isinstance(node.this, exp.Order) else node.this
    return _array_of(reading.type_of(item.this if isinstance(item, exp.Distinct) else item))


def _element(reading: _Reading, node: exp.Expr) -> Type:
    found = reading.type_of(node.this)
    if found in _ELEMENTS:
        return _ELEMENTS[found]
    return found[1:] if found and found.startswith("_") else None


def _field(reading: _Reading, node: exp.Dot) -> Type:
    """`(information_schema._pg_expandarray(i.indkey)).n`; other composite values there are not."""
    if reading.type_of(node.this) != EXPANDED:
        return None
    return {"n": "int4", "x": "int2"}.get(fold(node.expression.name))


def _joined(reading: _Reading, node: exp.DPipe) -> Type:
    sides = [reading.type_of(node.this), reading.type_of(node.expression)]
    return next((type_ for type_ in sides if type_ and type_.startswith("_")), "text")


def _arithmetic(reading: _Reading, node: exp.Binary) -> Type:
    found = unified((reading.type_of(node.this), reading.type_of(node.expression)))
    return found if found in _INTEGERS else None


_RULES: dict[type[exp.Expr], Callable[[_Reading, Any], Type]] = {
    exp.Alias: lambda reading, node: reading.type_of(node.this),
    exp.Column: _Reading.column,
    exp.Cast: lambda reading, node: pg_type_name(node.to),
    exp.Literal: _literal,
    exp.Null: lambda reading, node: UNKNOWN,
    exp.Boolean: lambda reading, node: "bool",
    exp.Not: lambda reading, node: "bool",
    exp.Case: _case,
    exp.Coalesce: _list,
    exp.Greatest: _list,
    exp.Least: _list,
    exp.Subquery: _Reading.first,
    exp.Array: _array,
    exp.ArrayAgg: _array_agg,
    exp.Bracket: _element,
    exp.Explode: _element,
    exp.DPipe: _joined,
    exp.Dot: _field,
    exp.Max: _of_argument,
    exp.Min: _of_argument,
    exp.Nullif: _of_argument,
    exp.Window: _of_argument,
    exp.Filter: _of_argument,
    exp.Neg: _of_argument,
    exp.Collate: _of_argument,
    exp.Add: _arithmetic,
    exp.Sub: _arithmetic,
    exp.Mul: _arithmetic,
    exp.Div: _arithmetic,
    exp.IntDiv: _arithmetic,
    exp.BitwiseAnd: _arithmetic,
    exp.BitwiseOr: _arithmetic,
}


# What DuckDB's answer is turned to where it may be of another type: an expression's, not a column's.
_HELD = {
    "bool": "BOOLEAN", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "text": "VARCHAR",
    "name": "VARCHAR", "char": "VARCHAR", "varchar": "VARCHAR", "oid": "BIGINT", "float8": "DOUBLE",
    "float4": "FLOAT",
}  # fmt: skip
_AS_THEY_ARE = (exp.Cast, exp.Subquery)


def spread_stars(tree: exp.Expr) -> None:
    """Name the columns of `*` where the client sees them: some are shown otherwise than they are kept."""
    for select in _outermost(tree):
        items: list[exp.Expr] = []
        for item in select.expressions:
            items += (_spread(select, item) if item.is_star else None) or [item]
        select.set("expressions", items)


def _spread(select: exp.Select, star: exp.Expr) -> list[exp.Expr] | None:
    """The columns that a star stands for; None where they are not those of catalog tables alone."""
    alias = fold(star.table) if isinstance(star, exp.Column) else ""
    joins = select.args.get("joins") or []
    tables = list(tables_of(select))
    if not alias and (len(tables) != 1 + len(joins) or any(join.args.get("using") for join in joins)):
        return None
    found: list[exp.Expr] = []
    for table in tables:
        if alias in ("", fold(table.alias_or_name)):
            shape = shape_of(table)
            if shape is None:
                return None
            found += [wide_column(table, name) for name in shape.names]
    return found


def hold_types(tree: exp.Expr, types: list[Type]) -> None:
    """Let DuckDB answer expressions as the types that PostgreSQL gives them."""
    for select in _outermost(tree):
        if len(select.expressions) != len(types):
            continue
        for item, type_ in zip(list(select.expressions), types, strict=True):
            value = item.unalias()
            if type_ not in _HELD or isinstance(value, _AS_THEY_ARE):
                continue
            if isinstance(value, exp.Column) and (column_of(value) or type_ not in _INTEGERS):
                continue
            held = exp.cast(value.copy(), _HELD[type_], dialect="duckdb")
            name = item.alias_or_name
            value.replace(held) if isinstance(item, exp.Alias) else item.replace(
                exp.alias_(held, name, quoted=True) if name else held
            )


def _outermost(tree: exp.Expr) -> list[exp.Select]:
    """The SELECTs whose rows are the query's own."""
    tree = _unwrapped(tree)
    if isinstance(tree, exp.SetOperation):
        return [*_outermost(tree.this), *_outermost(tree.expression)]
    return [tree] if isinstance(tree, exp.Select) else []
