"""Name resolution in catalog queries: a column's relation, and the destination of its value."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from ...engine.quoting import fold
from .oids import MARK
from .system_catalogs import (
    INFORMATION_SCHEMA,
    INFORMATION_SHAPES,
    PG_SHAPES,
    SHAPES_BY_KEY,
    Shape,
    SystemColumn,
)
from .views import Use, branches_of, extra_of

# The key under which a table in the tree has its Shape's key (a text: copies of a tree copy it deeply).
SHAPE = "ducktail_shape"
# The key under which a table has True if its query returns no rows for any contents.
EMPTY = "ducktail_empty"
# The key under which a table has the values that its query requires of a column, by the column's name.
WANTED = "ducktail_wanted"


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A call of one of ducktail's functions."""
    return exp.Anonymous(this=MARK + name, expressions=list(arguments))


def called(node: exp.Expr) -> str:
    """The name of ducktail's function that a node calls, or ""."""
    name = str(node.this) if isinstance(node, exp.Anonymous) else ""
    return name.removeprefix(MARK) if name.startswith(MARK) else ""


def bare(node: exp.Expr) -> exp.Expr:
    """The expression without parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def string(node: exp.Expr) -> str | None:
    """The value of a string literal, else None."""
    node = bare(node)
    if isinstance(node, exp.Literal) and node.is_string:
        return node.name
    return node.name if isinstance(node, exp.ByteString) else None


def mark_tables(tree: exp.Expr) -> None:
    """Give each table of the catalog its shape, and an alias."""
    ctes = {fold(cte.alias) for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            continue
        name = fold(table.name)
        schema = fold(table.db)
        shape = None
        if schema == INFORMATION_SCHEMA:
            shape = INFORMATION_SHAPES.get(name)
        elif not schema and name not in ctes:
            shape = PG_SHAPES.get(name)
        if shape is not None:
            table.meta[SHAPE] = shape.key
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))


def shape_of(table: exp.Expr) -> Shape | None:
    """The catalog's relation that a table refers to."""
    return SHAPES_BY_KEY.get(table.meta.get(SHAPE, ""))


def tables_of(select: exp.Expr) -> Iterator[exp.Table]:
    """The tables in a query's own FROM."""
    start = select.args.get("from_")
    sources = [start.this] if start is not None else []
    sources += [join.this for join in select.args.get("joins") or []]
    for source in sources:
        inner = bare(source)
        if isinstance(inner, exp.Table):
            yield inner
            sources += [join.this for join in inner.args.get("joins") or []]


def table_of(column: exp.Expr) -> exp.Table | None:
    """The catalog's table that a column belongs to, in the nearest query that has one."""
    column = bare(column)
    if not isinstance(column, exp.Column):
        return None
    name, qualifier = fold(column.name), fold(column.table)
    select = column.find_ancestor(exp.Select)
    while select is not None:
        for table in tables_of(select):
            shape = shape_of(table)
            if qualifier and fold(table.alias_or_name) == qualifier:
                return table if shape else None
            if not qualifier and shape and any(found.name == name for found in shape.columns):
                return table
        select = select.find_ancestor(exp.Select)
    return None


def column_of(node: exp.Expr) -> SystemColumn | None:
    """The catalog's column that an expression refers to, or None."""
    table = table_of(node)
    shape = shape_of(table) if table is not None else None
    if shape is None:
        return None
    name = fold(bare(node).name)
    return next((found for found in shape.columns if found.name == name), None)


def wide_column(table: exp.Table, name: str) -> exp.Column:
    """A column that only the wide form of a table has."""
    qualifier = exp.to_identifier(table.alias_or_name, quoted=True)
    return exp.column(exp.to_identifier(name, quoted=True), qualifier)


def columns_used(tree: exp.Expr) -> dict[Use, list[str]]:
    """The columns of each relation that a query uses: too many rather than too few."""
    tables: list[tuple[Use, str]] = []
    by_qualifier: dict[str, set[str]] = {"": set()}
    everything = False
    for node in tree.walk():
        if isinstance(node, exp.Column):
            by_qualifier.setdefault(fold(node.table), set()).add(fold(node.name))
        elif isinstance(node, exp.Table):
            if use := use_of(node):
                tables.append((use, fold(node.alias_or_name)))
        elif isinstance(node, exp.Star):
            everything = everything or not isinstance(node.parent, exp.Count)
        elif isinstance(node, exp.Join):
            everything = everything or bool(node.args.get("method"))
            by_qualifier[""] |= {fold(found.name) for found in node.args.get("using") or []}
    bare_names = by_qualifier[""]
    wanted: dict[Use, list[str]] = {}
    for use, alias in tables:
        found = by_qualifier.get(alias, set()) | bare_names
        whole = everything or alias in bare_names  # SELECT c FROM pg_class c
        columns = wanted.setdefault(use, [])
        names = use.shape.names
        columns += [name for name in names if (whole or name in found) and name not in columns]
        columns += [name for name in extra_of(use.shape) if name in found and name not in columns]
    return {use: columns or [use.shape.names[0]] for use, columns in wanted.items()}


def use_of(table: exp.Expr) -> Use | None:
    """The catalog's relation that a table refers to, and its relevant branches."""
    shape = shape_of(table)
    if shape is None:
        return None
    if table.meta.get(EMPTY):
        return Use(shape, ())
    wanted = table.meta.get(WANTED) or {}
    found = [
        at
        for at, branch in enumerate(branches_of(shape))
        if all(branch.may_have(column, frozenset(values)) for column, values in wanted.items())
    ]
    return Use(shape, tuple(found))


def mark_wanted(tree: exp.Expr) -> None:
    """Note with each table the query's conditions on its columns: `relkind IN ('r', 'v')`."""
    for select in tree.find_all(exp.Select):
        tables = [table for table in tables_of(select) if shape_of(table)]
        where = select.args.get("where")
        for condition in _conjuncts(where.this) if where is not None else []:
            _note(condition, tables)
            _note_described(condition, tables, tables)
        for join in select.args.get("joins") or []:
            # The condition of an outer join restricts only the side that may be missing.
            own = [table for table in tables if table is join.this]
            for condition in _conjuncts(join.args["on"]) if join.args.get("on") else []:
                _note(condition, own if join.side in ("", "LEFT") else [])
                _note_described(condition, own if join.side in ("", "LEFT") else [], tables)


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    condition = bare(condition)
    if isinstance(condition, exp.And):
        yield from _conjuncts(condition.this)
        yield from _conjuncts(condition.expression)
    else:
        yield condition


def _note(condition: exp.Expr, tables: list[exp.Table]) -> None:
    values: list[exp.Expr]
    if isinstance(condition, exp.EQ):
        column, values = condition.this, [condition.expression]
    elif isinstance(condition, exp.In) and condition.expressions:
        column, values = condition.this, condition.expressions
    else:
        return
    column = bare(column)
    literals = [bare(value) for value in values]
    if not isinstance(column, exp.Column) or not all(isinstance(value, exp.Literal) for value in literals):
        return
    name, qualifier = fold(column.name), fold(column.table)
    for table in tables:
        shape = shape_of(table)
        if shape and (qualifier == fold(table.alias_or_name) or (not qualifier and name in shape.names)):
            noted = table.meta.setdefault(WANTED, {})
            noted[name] = [value.name for value in literals if value.name in noted.get(name, [value.name])]
            return


# Columns with oids of relations, beside pg_class.oid.
_RELATION_COLUMNS = frozenset({"attrelid", "conrelid", "indrelid", "indexrelid", "seqrelid", "adrelid"})


def _note_described(condition: exp.Expr, tables: list[exp.Table], all_tables: list[exp.Table]) -> None:
    """Note `pg_description.objoid = c.oid`: the descriptions are those of the other table's relation."""
    if not isinstance(condition, exp.EQ):
        return
    sides = [bare(condition.this), bare(condition.expression)]
    for column, other in (sides, sides[::-1]):
        if not isinstance(column, exp.Column) or fold(column.name) != "objoid":
            continue
        table, referred = _own_table(column, tables), _own_table(other, all_tables)
        shape = shape_of(referred) if referred is not None else None
        if table is None or shape is None or not isinstance(other, exp.Column):
            continue
        name = "pg_class" if fold(other.name) in _RELATION_COLUMNS else shape.name
        if fold(other.name) in _RELATION_COLUMNS | {"oid"} and name in PG_SHAPES:
            noted = table.meta.setdefault(WANTED, {})
            oid = str(PG_SHAPES[name].oid)
            noted["classoid"] = [value for value in noted.get("classoid", [oid]) if value == oid]


def _own_table(column: exp.Expr, tables: list[exp.Table]) -> exp.Table | None:
    """The one of these tables that a column belongs to."""
    found = table_of(column)
    return found if any(found is table for table in tables) else None


def mark_empty(tree: exp.Expr) -> None:
    """Mark the tables of queries that have no rows because one of their tables never has any.

    psql queries policies, triggers, publications and more for each table: as there are none, the tables that
    they are joined with need not be built.
    """
    for select in tree.find_all(exp.Select):
        if not _has_no_rows(select):
            continue
        aggregates = any(found.find_ancestor(exp.Select) is select for found in select.find_all(exp.AggFunc))
        # An aggregate returns a row for no rows, so expressions beside its FROM may be evaluated.
        for table in list(tables_of(select)) if aggregates else select.find_all(exp.Table):
            table.meta[EMPTY] = True


def _has_no_rows(select: exp.Select) -> bool:
    start = select.args.get("from_")
    joins = select.args.get("joins") or []
    if start is None or any(join.side in ("RIGHT", "FULL") for join in joins):
        return False
    inner = [start.this, *(join.this for join in joins if join.side != "LEFT")]
    found = [use_of(table) for table in inner if isinstance(table, exp.Table) and not table.args.get("joins")]
    return any(use is not None and not use.branches for use in found)


# Expressions that pass the value of one part on as their own.
_PASSES_ON = (exp.Paren, exp.Alias, exp.Case, exp.If, exp.Coalesce)


def goes_out(node: exp.Expr) -> bool:
    """True if a value is a column of the query's own rows, so that the client sees it."""
    parent = node.parent
    while isinstance(parent, _PASSES_ON):
        node, parent = parent, parent.parent
    if not isinstance(parent, exp.Select) or node.arg_key != "expressions":
        return False
    around: exp.Expr | None = parent.parent
    while isinstance(around, (exp.SetOperation, exp.Subquery, exp.Paren)):
        if isinstance(around, exp.Subquery) and isinstance(around.parent, (exp.Select, exp.Case, exp.If)):
            return goes_out(around)
        around = around.parent
    return around is None
