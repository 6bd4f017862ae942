"""Names and PostgreSQL types of a query's columns.

Names: a driver reads `row["version"]` of `SELECT version()` and `row["count"]` of `SELECT count(*)`, and a
query around a derived table uses `s.max`; DuckDB would name such a column by its whole text. Unquoted names
are folded to small letters. A catalog query gets the names in its text (`name_columns`). For an ordinary
query only the names sent to the client change (`shown_names`): inside it, and in a table or view made from
it, DuckDB's names remain. Its select list is analysed if DuckDB's names show that it matters.

Types: DuckDB has no oid, name or "char", and returns other integer types for some int4; clients decode a
column by the type that they receive. DuckDB's answer does not show the PostgreSQL type of a column of a
catalog query, so the type is followed through PostgreSQL's form of the query: a column of the catalog has its
relation's type, a function of ducktail its own (FUNCTION_TYPES), CASE and UNION that of their branches. A
column whose type cannot be determined has None, and then the type is that of DuckDB's answer.
Source: PostgreSQL's FigureColname (parse_target.c); PostgreSQL documentation, "UNION, CASE, and Related
Constructs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from ...engine.errors import DucktailError
from ...engine.quoting import fold
from ...sql.text.tokens import Token, tokenize
from .casts import pg_type_name
from .oids import MARK
from .scope import bare, column_of, shape_of, tables_of, wide_column
from .system_catalogs import TYPES_BY_NAME, read_rows

NO_NAME = "?column?"

# Kinds of expressions that PostgreSQL names after themselves.
_BY_KIND: dict[type[exp.Expr], str] = {
    exp.Coalesce: "coalesce",
    exp.Array: "array",
    exp.Exists: "exists",
    exp.Extract: "extract",
    exp.CurrentSchema: "current_schema",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentDate: "current_date",
    exp.GroupConcat: "string_agg",
    exp.Explode: "unnest",
    exp.ExplodingGenerateSeries: "generate_series",
    exp.TimestampTrunc: "date_trunc",
    exp.StrPosition: "position",
    exp.AtTimeZone: "timezone",
}
_TRIMS = {"LEADING": "ltrim", "TRAILING": "rtrim"}
# Operators and constants, which have no name although sqlglot treats some as functions.
_NAMELESS = (
    *(exp.Connector, exp.Binary, exp.Not, exp.Neg, exp.Literal, exp.Null, exp.Parameter),
    *(exp.RegexpLike, exp.RegexpILike),
)
# PostgreSQL's own names of types that have other names in SQL.
_TYPE_NAMES = {
    "int": "int4", "integer": "int4", "bigint": "int8", "smallint": "int2", "boolean": "bool",
    "double precision": "float8", "real": "float4", "decimal": "numeric", "character varying": "varchar",
}  # fmt: skip
# The strength of a name: none, the type of a cast or the kind of an expression, the expression's own.
NONE, WEAK, STRONG = range(3)


def name_columns(tree: exp.Expr) -> None:
    """Name the columns of the outermost query, and of those in FROM and WITH."""
    for select in list(tree.find_all(exp.Select)):
        if _is_named(select):
            for column in list(select.expressions):
                _name(column)


def _is_named(select: exp.Select) -> bool:
    """True if the names of this query's columns are visible to another query or the client."""
    node: exp.Expr = select
    while isinstance(node.parent, (exp.SetOperation, exp.Paren)):
        node = node.parent
    parent = node.parent
    if isinstance(parent, exp.Subquery):
        return isinstance(parent.parent, (exp.From, exp.Join)) or parent.parent is None
    return parent is None or isinstance(parent, exp.CTE)


def _name(column: exp.Expr) -> None:
    if isinstance(column, exp.Alias):
        alias = column.args.get("alias")
        if isinstance(alias, exp.Identifier) and not alias.quoted:
            alias.set("this", fold(alias.name))
        return
    if isinstance(column, (exp.Column, exp.Star)) or column.is_star:
        return
    column.replace(exp.alias_(column.copy(), column_name(column), quoted=True))


def column_name(node: exp.Expr) -> str:
    """PostgreSQL's name for an expression that has none."""
    return _figured(node)[1]


def _figured(node: exp.Expr) -> tuple[int, str]:
    """A name and its strength."""
    if isinstance(node, (exp.Paren, exp.Collate, exp.Bracket, exp.Filter, exp.Window)):
        return _figured(node.this)
    if isinstance(node, exp.Cast):
        sure, name = _figured(node.this)
        return (sure, name) if sure == STRONG else (WEAK, _type_name(node))
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        sure, name = _figured(default) if default is not None else (NONE, NO_NAME)
        return (sure, name) if sure == STRONG else (WEAK, "case")
    if isinstance(node, exp.Column):
        return STRONG, node.name if node.this.quoted else fold(node.name)
    if isinstance(node, exp.Dot):
        # A function with its schema, or a field of a struct.
        last = node.expression
        if isinstance(last, exp.Identifier):
            return STRONG, last.name if last.quoted else fold(last.name)
        return _figured(last)
    if isinstance(node, exp.Subquery):
        first = node.this.selects[0] if isinstance(node.this, exp.Query) else None
        if first is None:
            return NONE, NO_NAME
        return (STRONG, first.alias) if first.alias else _figured(first)
    if isinstance(node, exp.Interval):
        return WEAK, "interval"
    if isinstance(node, exp.WithinGroup):
        return _figured(node.this)
    if isinstance(node, exp.Trim):
        return STRONG, _TRIMS.get(str(node.args.get("position") or "").upper(), "btrim")
    for kind, name in _BY_KIND.items():
        if isinstance(node, kind):
            return STRONG, name
    if isinstance(node, exp.Anonymous):
        return STRONG, fold(str(node.this)).removeprefix(MARK)
    if isinstance(node, exp.Func) and not isinstance(node, _NAMELESS):
        return STRONG, fold(node.sql_name())
    return NONE, NO_NAME


def _type_name(node: exp.Cast) -> str:
    text = fold(node.to.sql("postgres")).replace('"', "").rpartition(".")[2].partition("(")[0]
    text = text.removesuffix("[]").strip()
    # sqlglot writes `interval 3`.
    return "interval" if text.startswith("interval ") else _TYPE_NAMES.get(text, text)


# A name that no user chooses: DuckDB's text of an expression.
_MADE = re.compile(r"[^\w \-#$.:/@%]|^\d|^$|^NULL$")
# An item of a select list that may be several columns, or has their names.
_SEVERAL = re.compile(r"unnest|columns\b", re.IGNORECASE)
TEXT_MAX = 64 * 1024
LISTS_KEPT = 512
# The maximum length of a kept select list.
KEPT_CHARS_MAX = 8 * 1024
_OPENINGS = frozenset({"SELECT", "WITH", "("})
_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_ENDS = frozenset(
    {"FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "FETCH"}
    | {"UNION", "EXCEPT", "INTERSECT", ";"}
)
# Words before a parenthesis that are part of the grammar; sqlglot reads every other one as a function, whose
# own name it would replace.
_GRAMMAR = frozenset(
    {"CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM", "OVERLAY", "EXISTS", "ARRAY", "IN"}
    | {"ANY", "PERCENTILE_CONT", "PERCENTILE_DISC"}
    | {"ALL", "SOME", "OVER", "FILTER", "GROUP", "BY", "AND", "OR", "NOT", "WHEN", "THEN", "ELSE", "CASE"}
    | {"DISTINCT", "SELECT", "FROM", "WHERE", "USING", "WITHIN", "VALUES", "IS", "LIKE", "ILIKE", "BETWEEN"}
    | {"AS", "INTERVAL", "ON", "UNION", "JOIN", "LATERAL", "ROW", "COALESCE"}
)
_BEFORE_A_TYPE = frozenset({"::", "AS"})


def shown_names(text: str, names: Sequence[str]) -> Sequence[str]:
    """The names of a query's columns as in PostgreSQL.

    Args:
        text: the query.
        names: DuckDB's names of its columns.

    >>> shown_names("SELECT count(*), a AS x, b || 'c', 1 FROM t", ["count_star()", "x", "(b || 'c')", "1"])
    ['count', 'x', '?column?', '?column?']
    """
    if len(text) > TEXT_MAX:
        return names
    if names and names[0] == _FIRST_VALUE and text.lstrip()[: len("VALUES")].upper() == "VALUES":
        return [f"column{place}" for place, _ in enumerate(names, 1)]
    if not any(map(_MADE.search, names)):
        return names
    items = _items(text)
    given = (_kept_given if len(items) <= KEPT_CHARS_MAX else _given)(items) if items else ()
    found = _spread_over(given, names)
    if _SEVERAL.search(items) is None:
        return found
    # An item that is several columns moves the others: a name that is no text of an expression stays.
    return [one if _MADE.search(name) else name for one, name in zip(found, names, strict=True)]


# DuckDB's name of the first column of VALUES.
_FIRST_VALUE = "col0"
# An item of a select list that stands for any number of columns.
_STAR = "*"


def _spread_over(given: Sequence[str | None], names: Sequence[str]) -> Sequence[str]:
    """The names with those of the items; the columns of a star keep theirs."""
    stars = given.count(_STAR)
    rest = len(names) - (len(given) - stars)
    if stars > 1 or rest < 0 or (not stars and rest):
        return names
    at = given.index(_STAR) if stars else len(given)
    ours = [*given[:at], *[None] * rest, *given[at + 1 :]] if stars else given
    return [one or name for one, name in zip(ours, names, strict=True)]


def _given(items: str) -> tuple[str | None, ...]:
    """For each item of a select list, PostgreSQL's name if it has none of its own; `*` for a star."""
    try:
        select = parse_one(f"SELECT {items}", read="postgres")
    except SqlglotError:
        return ()
    if not isinstance(select, exp.Select):
        return ()
    return tuple(map(_item_name, select.expressions))


def _item_name(item: exp.Expr) -> str | None:
    if item.is_star:
        return _STAR
    return None if isinstance(item, (exp.Alias, exp.Column, exp.Aliases)) else column_name(item)


_kept_given = lru_cache(LISTS_KEPT)(_given)


def _items(text: str) -> str:
    """The text of a query's own select list, or of RETURNING, with its functions marked; "" without one."""
    try:
        tokens = tokenize(text)
    except DucktailError:
        return ""
    if not tokens:
        return ""
    top = [at for at, token in enumerate(tokens) if not token.depth]
    begin = None
    if tokens[0].kind in _WRITES or tokens[0].kind == "WITH":
        begin = next((at for at in top if tokens[at].kind == "RETURNING"), None)
    if begin is None and tokens[0].kind in _OPENINGS:
        begin = next((at for at in top if tokens[at].kind == "SELECT"), None)
    if begin is None:
        return ""
    begin += 1
    if begin < len(tokens) and tokens[begin].kind in ("ALL", "DISTINCT"):
        begin += 1
    if begin < len(tokens) and tokens[begin].kind == "ON":
        return ""
    ends = (at for at in top if at >= begin and tokens[at].kind in _ENDS)
    end = next((at for at in ends if tokens[at - 1].kind != "DISTINCT"), len(tokens))  # IS DISTINCT FROM
    return _marked(text, tokens, begin, end)


def _marked(text: str, tokens: Sequence[Token], begin: int, end: int) -> str:
    """The text of some tokens, with the names of called functions marked."""
    if begin >= end:
        return ""
    parts, last = [], tokens[begin].start
    for at in range(begin, end - 1):
        token = tokens[at]
        called = tokens[at + 1].kind == "(" and token.is_name and token.kind not in _GRAMMAR
        if called and tokens[at - 1].kind not in _BEFORE_A_TYPE:
            parts += [text[last : token.start], MARK + token.name]
            last = token.end
    return "".join(parts) + text[last : tokens[end - 1].end]


# The PostgreSQL types of functions of the catalog, and of ordinary ones that clients use beside them; other
# functions have the type of DuckDB's answer. Source: PostgreSQL's pg_proc.dat.
FUNCTION_TYPES: dict[str, str] = {row[0]: row[1] for row in read_rows("function_types.tsv")}
# The type of a literal without a context that types it; it is sent as text.
UNKNOWN = "unknown"
# The pairs of a number and a value that _pg_expandarray returns.
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
    """Make `/` divide whole numbers as whole numbers, which DuckDB's does not."""
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
        # Each is converted to the others implicitly, except "char".
        return next((type_ for type_ in found if type_ != "char"), "char")
    if "oid" in kinds and kinds <= {"oid", "int2", "int4", "int8"}:
        return "oid"
    if kinds <= set(_INTEGERS):
        return max((str(type_) for type_ in found), key=_INTEGERS.index)
    return None


class _Reading:
    """One walk through a query."""

    def __init__(self) -> None:
        # Queries under examination: a recursive one refers to itself.
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
        """The type of a column of one of the queries around it."""
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
        """The type of a scalar subquery."""
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
    # PostgreSQL examines ELSE first.
    return unified(map(reading.type_of, [*([default] if default is not None else []), *branches]))


def _list(reading: _Reading, node: exp.Expr) -> Type:
    """coalesce, greatest and related functions."""
    return unified(map(reading.type_of, [node.this, *node.expressions]))


def _of_argument(reading: _Reading, node: exp.Expr) -> Type:
    """A function whose result has the type of its argument: max, nullif, a window, a filter."""
    found = reading.type_of(node.this)
    # PostgreSQL has max(text) only.
    return "text" if isinstance(node, (exp.Max, exp.Min)) and found in _TEXTS else found


def _array_of(type_: Type) -> Type:
    if type_ == UNKNOWN:
        return "_text"
    return f"_{type_}" if type_ and f"_{type_}" in TYPES_BY_NAME else None


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
    """`(information_schema._pg_expandarray(i.indkey)).n`; there are no other composite values."""
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


# The DuckDB types to which expressions, not columns, are cast if DuckDB's answer may have another type.
_HELD = {
    "bool": "BOOLEAN", "int2": "SMALLINT", "int4": "INTEGER", "int8": "BIGINT", "text": "VARCHAR",
    "name": "VARCHAR", "char": "VARCHAR", "varchar": "VARCHAR", "oid": "BIGINT", "float8": "DOUBLE",
    "float4": "FLOAT",
}  # fmt: skip
_AS_THEY_ARE = (exp.Cast, exp.Subquery)


def spread_stars(tree: exp.Expr) -> None:
    """Replace each visible `*` by its columns, because some are shown differently from their stored form."""
    for select in _outermost(tree):
        items: list[exp.Expr] = []
        for item in select.expressions:
            items += (_spread(select, item) if item.is_star else None) or [item]
        select.set("expressions", items)


def _spread(select: exp.Select, star: exp.Expr) -> list[exp.Expr] | None:
    """The columns of a star; None if they are not those of catalog tables alone."""
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
    """Cast expressions to the types that PostgreSQL gives them."""
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
