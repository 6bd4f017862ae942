"""What a name in a catalog query means: which relation a column belongs to, and where its value goes."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from .relations import extra_of
from .shapes import BY_KEY, INFORMATION_SCHEMA, INFORMATION_SHAPES, PG_SHAPES, Column, Shape

# What stands before the name of a function that is ours, once the tokens have been gone through.
MARK = "__ducktail_f_"
# Under it a table in the tree has the key of its Shape (a text: copies of a tree copy it deeply).
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
            table.meta[SHAPE] = shape.key
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))


def shape_of(table: exp.Expression) -> Shape | None:
    """The catalog's relation that a table is."""
    return BY_KEY.get(table.meta.get(SHAPE, ""))


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
            shape = shape_of(table)
            if qualifier and table.alias_or_name.lower() == qualifier:
                return table if shape else None
            if not qualifier and shape and any(found.name == name for found in shape.columns):
                return table
        select = select.find_ancestor(exp.Select)
    return None


def column_of(node: exp.Expression) -> Column | None:
    """What a column of the catalog is."""
    table = table_of(node)
    shape = shape_of(table) if table is not None else None
    if shape is None:
        return None
    name = bare(node).name.lower()
    return next((found for found in shape.columns if found.name == name), None)


def wide_column(table: exp.Table, name: str) -> exp.Column:
    """A column that only the wide form of a table has."""
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(table.alias_or_name, quoted=True))


def columns_used(tree: exp.Expression) -> dict[Shape, list[str]]:
    """The columns that a query wants of each relation: too many rather than too few."""
    tables: list[tuple[Shape, str]] = []
    by_qualifier: dict[str, set[str]] = {"": set()}
    everything = False
    for node in tree.walk():
        if isinstance(node, exp.Column):
            by_qualifier.setdefault(node.table.lower(), set()).add(node.name.lower())
        elif isinstance(node, exp.Table):
            if shape := shape_of(node):
                tables.append((shape, node.alias_or_name.lower()))
        elif isinstance(node, exp.Star):
            everything = everything or not isinstance(node.parent, exp.Count)
        elif isinstance(node, exp.Join):
            everything = everything or bool(node.args.get("method"))
            by_qualifier[""] |= {found.name.lower() for found in node.args.get("using") or []}
    bare_names = by_qualifier[""]
    wanted: dict[Shape, list[str]] = {}
    for shape, alias in tables:
        found = by_qualifier.get(alias, set()) | bare_names
        whole = everything or alias in bare_names  # SELECT c FROM pg_class c
        columns = wanted.setdefault(shape, [])
        columns += [name for name in shape.names if (whole or name in found) and name not in columns]
        columns += [name for name in extra_of(shape) if name in found and name not in columns]
    return {shape: columns or [shape.names[0]] for shape, columns in wanted.items()}


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
