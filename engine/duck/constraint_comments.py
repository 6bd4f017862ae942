"""Comments on constraints, which DuckDB does not have: they follow the comment of the table.

DuckDB's comment of a table with such comments is the table's own comment, a mark, and an object of JSON with
the comments by the constraints' names. So they follow the table through renames, copies of the file and
restores, are part of its transactions, and go with the table. The catalog shows both parts in their places.
"""

from __future__ import annotations

import json

import duckdb

from ..quoting import literal
from .constraint_names import listed_sql
from .cursors import ask_maybe
from .objects import Object

# A character that no one types begins the mark.
_MARK = "\x1fconstraints"
_HERE = "database_name = $1 AND schema_name = $2 AND table_name = $3"


def own_sql(comment: str) -> str:
    """SQL of a table's own comment, given SQL of DuckDB's."""
    own = f"nullif(split_part({comment}, {literal(_MARK)}, 1), '')"
    return f"if(contains({comment}, {literal(_MARK)}), {own}, {comment})"


def on_constraints_sql(comment: str) -> str:
    """SQL of the comments on constraints as an object of JSON, given SQL of DuckDB's comment of the table."""
    return f"nullif(split_part({comment}, {literal(_MARK)}, 2), '')"


def split(comment: str | None) -> tuple[str | None, dict[str, str]]:
    """The table's own comment, and the comments on constraints by name.

    >>> split(None), split("sold") == ("sold", {})
    ((None, {}), True)
    >>> split(joined("sold", {"positive": "no debts"}))
    ('sold', {'positive': 'no debts'})
    >>> split(joined(None, {"positive": "no debts"}))
    (None, {'positive': 'no debts'})
    """
    if comment is None or _MARK not in comment:
        return comment, {}
    own, _, others = comment.partition(_MARK)
    return own or None, json.loads(others)


def joined(own: str | None, on_constraints: dict[str, str]) -> str | None:
    """DuckDB's comment of a table with these comments."""
    if not on_constraints:
        return own
    return f"{own or ''}{_MARK}{json.dumps(on_constraints, ensure_ascii=False)}"


def read(cursor: duckdb.DuckDBPyConnection, table: Object) -> str | None:
    """DuckDB's comment of a table."""
    sql = f"SELECT comment FROM system.main.duckdb_tables() WHERE {_HERE}"
    found = ask_maybe(cursor, sql, _place(table))
    return None if found is None else found[0]


def statement(table: Object, comment: str | None) -> str:
    """The statement that sets DuckDB's comment of a table."""
    return f"COMMENT ON TABLE {table.in_full} IS {'NULL' if comment is None else literal(comment)}"


def names_of(cursor: duckdb.DuckDBPyConnection, table: Object) -> list[str]:
    """The names of a table's constraints, as the catalog shows them."""
    sql = (
        f"SELECT constraint_name FROM ({listed_sql('system.main.duckdb_constraints()')}) "
        f"WHERE {_HERE} AND constraint_type <> 'NOT NULL'"
    )
    return [str(name) for (name,) in cursor.execute(sql, _place(table)).fetchall()]


def _place(table: Object) -> list[object]:
    return [table.catalog, table.schema, table.name]
