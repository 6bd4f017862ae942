"""Casts to PostgreSQL's types: what has another name in DuckDB, and the types that read names.

A value of regclass and the like is an oid that reads and shows itself as a name. Here it is the oid,
and becomes the name where PostgreSQL would write it out: in a column that the client sees, and where
it is made a text.
"""

from __future__ import annotations

import re

from sqlglot import exp

from ...engine.quoting import fold
from ...engine.values import pgtypes
from .pg_types import BY_NAME, FUNCTION_COLUMNS, FUNCTION_OIDS, OID_OF_NAME, TYPES
from .places import TYPE_MARK
from .scope import (
    bare,
    call,
    called,
    column_of,
    goes_out,
    shape_of,
    string,
    table_of,
    tables_of,
    wide_column,
)
from .shapes import SHAPES

# Type -> the family of macros that reads and writes it.
_REG_TYPES = {
    "regclass": "regclass", "regtype": "regtype", "regproc": "regproc", "regprocedure": "regproc",
    "regnamespace": "regnamespace", "regrole": "regrole",
}  # fmt: skip
# PostgreSQL's type -> DuckDB's, where sqlglot does not know it.
_TYPES = {
    "name": "VARCHAR", "char": "VARCHAR", "bpchar": "VARCHAR", "text": "VARCHAR", "cstring": "VARCHAR",
    "varchar": "VARCHAR", "pg_node_tree": "VARCHAR", "aclitem": "VARCHAR", "pg_lsn": "VARCHAR",
    "sql_identifier": "VARCHAR", "character_data": "VARCHAR", "yes_or_no": "VARCHAR", "unknown": "VARCHAR",
    "cardinal_number": "INTEGER", "oid": "BIGINT", "xid": "BIGINT", "cid": "BIGINT", "xid8": "BIGINT",
    "int2vector": "SMALLINT[]", "oidvector": "BIGINT[]", "int2": "SMALLINT", "int4": "INTEGER",
    "int8": "BIGINT",
    **dict.fromkeys(_REG_TYPES, "BIGINT"),
    **dict.fromkeys(("regoper", "regoperator", "regcollation", "regconfig", "regdictionary"), "VARCHAR"),
}  # fmt: skip
TEXTS = frozenset(name for name, type_ in _TYPES.items() if type_ == "VARCHAR")
# Names of the catalog's own things, which need no look into it.
_KNOWN: dict[str, dict[str, int]] = {
    "regclass": {
        name: shape.oid
        for (schema, relation), shape in SHAPES.items()
        for name in (relation if schema == "pg_catalog" else f"{schema}.{relation}",)
    },
    "regtype": OID_OF_NAME,
    "regproc": FUNCTION_OIDS,
}
# The column that shows the name of a row, by relation and key.
_NAMES = {("pg_class", "oid"): "regclass", ("pg_type", "oid"): "regtype", ("pg_proc", "oid"): "regproc"}
_TEXT_FUNCTIONS = frozenset({"quote_ident", "quote_literal", "format", "current_setting"})
_TYPNAMES = {found.oid: found.name for found in TYPES}
_ARRAY = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)')


def type_name(to: exp.Expr) -> str:
    """A type's name in small letters, without schema, quotes and length."""
    text = fold(to.sql("postgres")).replace('"', "")
    brackets = "[]" if text.endswith("[]") else ""
    name = text.removesuffix("[]").rpartition(".")[2].partition("(")[0].strip()
    return name.removeprefix(TYPE_MARK) + brackets


def pg_type_name(to: exp.Expr) -> str | None:
    """pg_type.typname of a type; None for one that is not in the catalog."""
    name = type_name(to)
    element = name.removesuffix("[]")
    if element == "char" and not (isinstance(to, exp.DataType) and to.this == exp.DType.USERDEFINED):
        element = "bpchar"
    oid = BY_NAME[element].oid if element in BY_NAME else OID_OF_NAME.get(element)
    if oid is None:
        return None
    return f"_{_TYPNAMES[oid]}" if name.endswith("[]") else _TYPNAMES[oid]


def parameter_oid(to: exp.Expr) -> int:
    """The type to tell for a parameter that is cast to this one; what reads names takes a text."""
    name = pg_type_name(to)
    oid = BY_NAME[name].oid if name in BY_NAME else pgtypes.TEXT
    return oid if oid == pgtypes.NUMERIC or pgtypes.duckdb_type(oid) else pgtypes.TEXT


def respell_cast(node: exp.Cast) -> exp.Expr:
    """A cast as DuckDB knows it."""
    name = type_name(node.to)
    if name in _REG_TYPES:
        return _reg(node, _REG_TYPES[name])
    if name.endswith("[]"):
        element = _TYPES.get(name.removesuffix("[]"))
        text = string(node.this)
        if text is not None and text.startswith("{"):
            node.set("this", array(text))
        return exp.cast(node.this, f"{element}[]", dialect="duckdb") if element else node
    if name in TEXTS and (shown := _shown_column(bare(node.this))) is not None:
        return shown
    if name in _TYPES:
        return exp.cast(node.this, _TYPES[name], dialect="duckdb")
    return node


def array(text: str) -> exp.Array:
    """An array from PostgreSQL's text of one.

    >>> array('{a,"b c"}').sql("duckdb")
    "['a', 'b c']"
    """
    parts = [
        re.sub(r"\\(.)", r"\1", found[1]) if found[1] is not None else found[2].strip()
        for found in _ARRAY.finditer(text)
    ]
    return exp.Array(expressions=[exp.Literal.string(part) for part in parts])


def _reg(node: exp.Cast, family: str) -> exp.Expr:
    value = node.this
    shown = _is_shown(node)
    text = string(value)
    if text is None and not _is_text(value):
        return name_of(value, family) if shown else value
    oid = _known(text, family) if text is not None else None
    found: exp.Expr = exp.Literal.number(oid) if oid is not None else call(f"{family}_in", value)
    return call(f"{family}_out", found) if shown else found


def name_of(value: exp.Expr, family: str) -> exp.Expr:
    """The name that an oid is shown as: a column where its row is at hand."""
    table = table_of(value)
    if table is not None:
        key = (fold(table.name), fold(bare(value).name))
        if _NAMES.get(key) == family:
            return wide_column(table, "__name")
    return call(f"{family}_out", value)


def _known(text: str, family: str) -> int | None:
    if text.isdigit():
        return int(text)
    return _KNOWN.get(family, {}).get(fold(text.strip()).removeprefix("pg_catalog."))


def _is_text(value: exp.Expr) -> bool:
    """Whether a value that is cast to regclass is a name rather than an oid."""
    value = bare(value)
    if isinstance(value, (exp.DPipe, exp.Concat, exp.Parameter, exp.Placeholder, exp.Format)):
        return True
    if isinstance(value, exp.Cast):
        return type_name(value.to) in TEXTS | {"varchar", "text"}
    if called(value):
        return called(value) in _TEXT_FUNCTIONS
    if isinstance(value, exp.Column):
        column = column_of(value)
        return column.duckdb_type == "VARCHAR" if column else fold(value.name).endswith("name")
    return False


def _is_shown(node: exp.Expr) -> bool:
    """Whether the name of a reg value is wanted, not its oid."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Cast):
        return type_name(parent.to) in TEXTS
    if isinstance(parent, (exp.DPipe, exp.Concat, exp.Format)):
        return True
    if isinstance(parent, exp.Expr) and called(parent) in _TEXT_FUNCTIONS:
        return True
    return goes_out(node)


def respell_column(node: exp.Column) -> exp.Expr:
    """A column whose value PostgreSQL writes otherwise than DuckDB, and `tableoid`."""
    name = fold(node.name)
    if name == "tableoid":
        return _tableoid(node)
    column = column_of(node)
    if column is None or not goes_out(node):
        return node
    shown = _shown_column(node)
    if shown is None:
        return node
    return exp.alias_(shown, name, quoted=True) if isinstance(node.parent, exp.Select) else shown


def _shown_column(node: exp.Expr) -> exp.Expr | None:
    """The text of a column that PostgreSQL shows otherwise than it holds it, else None."""
    column, table = column_of(node), table_of(node)
    if column is None or table is None:
        return None
    if column.name in FUNCTION_COLUMNS:
        return wide_column(table, f"__{column.name}")
    if column.pg_type in ("regproc", "regtype"):
        return call(f"{column.pg_type}_out", node.copy())
    if column.pg_type in ("int2vector", "oidvector"):
        return call("array_to_string", node.copy(), exp.Literal.string(" "))
    return None


def _tableoid(node: exp.Column) -> exp.Expr:
    """The oid of the relation that a row is from, which is the same for all of its rows."""
    qualifier = fold(node.table)
    select = node.find_ancestor(exp.Select)
    while select is not None:
        for table in tables_of(select):
            shape = shape_of(table)
            if shape and qualifier in ("", fold(table.alias_or_name)):
                return exp.Literal.number(shape.oid)
        select = select.find_ancestor(exp.Select)
    return node
