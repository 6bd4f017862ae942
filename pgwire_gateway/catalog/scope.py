"""What a name in a catalog query means: which relation a column belongs to, and where its value goes."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from .relations import extra_of
from .shapes import INFORMATION_SCHEMA, INFORMATION_SHAPES, PG_SHAPES, Column, Shape

# What stands before the name of a function that is ours, once the tokens have been gone through.
MARK = "__ducktail_f_"
# The key under which a table in the tree knows its Shape.
SHAPE = "ducktail_shape"


def call(name: str, *arguments: exp.Expression) -> exp.Anonymous:
    """A call of one of our functions."""
    return exp.Anonymous(this=MARK + name, expressions=list(arguments))


def called(node: exp.Expression) -> str:
    """The name of our function that a node calls, or ""."""
    name = str(node.this) if isinstance(node, exp.Anonymous) else ""
    return name.removeprefix(MARK) if name.startswith(MARK) else ""


def bare(node: exp.Expression) -> exp.Expression:
    """The expression without brackets around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def string(node: exp.Expression) -> str | None:
    """The value of a string literal, else None."""
    node = bare(node)
    if isinstance(node, exp.Literal) and node.is_string:
        return node.name
    return node.name if isinstance(node, exp.ByteString) else None


def mark_tables(tree: exp.Expression) -> None:
    """Let each table of the catalog know its shape, and have an alias."""
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            continue
        name = table.name.lower()
        schema = table.db.lower()
        shape = None
        if schema == INFORMATION_SCHEMA:
            shape = INFORMATION_SHAPES.get(name)
        elif not schema and name not in ctes:
            shape = PG_SHAPES.get(name)
        if shape is not None:
            table.meta[SHAPE] = shape
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))


def tables_of(select: exp.Expression) -> Iterator[exp.Table]:
    """The tables in a query's own FROM."""
    start = select.args.get("from_")
    sources = [start.this] if start is not None else []
    sources += [join.this for join in select.args.get("joins") or []]
    for source in sources:
        inner = bare(source)
        if isinstance(inner, exp.Table):
            yield inner
            sources += [join.this for join in inner.args.get("joins") or []]


def table_of(column: exp.Expression) -> exp.Table | None:
    """The catalog's table that a column belongs to, in the nearest query that has one."""
    column = bare(column)
    if not isinstance(column, exp.Column):
        return None
    name, qualifier = column.name.lower(), column.table.lower()
    select = column.find_ancestor(exp.Select)
    while select is not None:
        for table in tables_of(select):
            shape: Shape | None = table.meta.get(SHAPE)
            if qualifier and table.alias_or_name.lower() == qualifier:
                return table if shape else None
            if not qualifier and shape and any(found.name == name for found in shape.columns):
                return table
        select = select.find_ancestor(exp.Select)
    return None


def column_of(node: exp.Expression) -> Column | None:
    """What a column of the catalog is."""
    table = table_of(node)
    if table is None:
        return None
    name = bare(node).name.lower()
    return next((found for found in table.meta[SHAPE].columns if found.name == name), None)


def wide_column(table: exp.Table, name: str) -> exp.Column:
    """A column that only the wide form of a table has."""
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(table.alias_or_name, quoted=True))


def columns_used(tree: exp.Expression) -> dict[Shape, list[str]]:
    """The columns that a query wants of each relation: too many rather than too few."""
    names = [(column.table.lower(), column.name.lower()) for column in tree.find_all(exp.Column)]
    names += [("", found.name.lower()) for join in tree.find_all(exp.Join) for found in join.args.get("using") or []]
    by_name = {name for _, name in names}
    everything = any(
        not isinstance(star.parent, exp.Count) and star.find_ancestor(exp.Count) is None
        for star in tree.find_all(exp.Star)
    ) or any(join.args.get("method") for join in tree.find_all(exp.Join))
    wanted: dict[Shape, list[str]] = {}
    for table in tree.find_all(exp.Table):
        shape: Shape | None = table.meta.get(SHAPE)
        if shape is None:
            continue
        alias = table.alias_or_name.lower()
        found = {name for qualifier, name in names if qualifier in ("", alias)}
        columns = wanted.setdefault(shape, [])
        for name in (*shape.names, *extra_of(shape)):
            whole = name in shape.names and (everything or ("", alias) in names)
            if name not in columns and (whole or (name in found and name in by_name)):
                columns.append(name)
    for shape, columns in wanted.items():
        if not columns:
            columns.append(shape.names[0])
    return wanted


# What passes the value of one of its parts on as its own.
_PASSES_ON = (exp.Paren, exp.Alias, exp.Case, exp.If, exp.Coalesce)


def goes_out(node: exp.Expression) -> bool:
    """Whether a value is a column of the query's own rows, so that the client sees it."""
    parent = node.parent
    while isinstance(parent, _PASSES_ON):
        node, parent = parent, parent.parent
    if not isinstance(parent, exp.Select) or node.arg_key != "expressions":
        return False
    around: exp.Expression | None = parent.parent
    while isinstance(around, (exp.SetOperation, exp.Subquery, exp.Paren)):
        if isinstance(around, exp.Subquery) and isinstance(around.parent, (exp.Select, exp.Case, exp.If)):
            return goes_out(around)
        around = around.parent
    return around is None
