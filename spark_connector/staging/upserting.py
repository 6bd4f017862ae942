"""Rows of a stage over those of their primary key."""

from __future__ import annotations

from psycopg import sql

from ..connection import Connection
from ..errors import OptionError
from ..names import Name
from .inserting import insert
from .target import Target


def together(connection: Connection, target: Target, tables: list[str]) -> sql.Identifier:
    """One stage with the rows of all: a key may have rows in several of them."""
    first, *others = (sql.Identifier(target.schema, table) for table in tables)
    for other in others:
        connection.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(first, other))
    return first


def upsert(connection: Connection, target: Target, first: sql.Identifier) -> None:
    keys = _upsert_keys(connection, target)
    by = sql.SQL(", ").join(sql.Identifier(key) for key in keys)
    after: sql.Composable = sql.SQL(" ")
    if target.order:
        order = sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(name)) for name in target.order)
        after = sql.SQL(" QUALIFY row_number() OVER (PARTITION BY {} ORDER BY {}) = 1 ").format(by, order)
    else:
        twice = sql.SQL("SELECT {} FROM {} GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(by, first, by)
        found = connection.execute(twice).fetchone()
        if found is not None:
            values = ", ".join(map(str, found))
            raise OptionError(
                f"writing to {target} failed: key ({values}) has several rows in one batch; "
                "option orderBy names the columns by which the last one is found"
            )
    lower = {key.lower() for key in keys}
    rest = [column.target for column in target.columns if column.target.lower() not in lower]
    sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest)
    what = sql.SQL("DO UPDATE SET {}").format(sets) if rest else sql.SQL("DO NOTHING")
    behind = sql.SQL("{} ON CONFLICT ({}) {}").format(after, by, what)
    connection.execute(insert(connection, target, first, behind))


def key_columns(connection: Connection, name: Name) -> list[str]:
    """The columns of a table's primary key, in order; empty where there is none."""
    rows = connection.execute(
        "SELECT k.column_name FROM information_schema.table_constraints AS c "
        "JOIN information_schema.key_column_usage AS k USING (constraint_name, table_schema, table_name) "
        "WHERE c.constraint_type = 'PRIMARY KEY' AND lower(c.table_name) = lower(%s) "
        "AND lower(c.table_schema) = lower(coalesce(%s, current_schema())) ORDER BY k.ordinal_position",
        (name.name, name.schema),
    ).fetchall()
    return [str(row[0]) for row in rows]


def _upsert_keys(connection: Connection, target: Target) -> list[str]:
    """The columns of the primary key, all of which the data frame must have.

    Raises:
        OptionError: there is none, or one is missing.
    """
    keys = key_columns(connection, target.name)
    given = {column.target.lower() for column in target.columns}
    missing = [key for key in keys if key.lower() not in given]
    if not keys:
        raise OptionError(f"{target} has no primary key, which option writeMode upsert wants")
    if missing:
        raise OptionError(
            f'the data frame has no column "{missing[0]}", of the primary key of {target}, '
            "which option writeMode upsert wants"
        )
    return keys
