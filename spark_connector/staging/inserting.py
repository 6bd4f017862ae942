"""The statement that brings a stage's rows into the target."""

from __future__ import annotations

from psycopg import sql

from ..connection import Connection
from .target import Target


def insert(
    connection: Connection, target: Target, table: sql.Identifier, after: sql.Composable | None = None
) -> sql.Composed:
    """The rows of a stage into the target, with what stands behind them."""
    types = _nested_types(connection, target)
    picked = []
    for column in target.columns:
        name: sql.Composable = sql.Identifier(column.name)
        if column.name in types:
            # Through JSON: DuckDB makes lists and structs of it.
            name = sql.SQL("{}::JSON::{}").format(name, sql.SQL(types[column.name]))
        picked.append(name)
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}{}").format(
        target.named, target.targets, sql.SQL(", ").join(picked),
        table, after or sql.SQL(""),
    )  # fmt: skip


def _nested_types(connection: Connection, target: Target) -> dict[str, str]:
    """DuckDB's types of the table's columns whose values travel as JSON."""
    nested = [column for column in target.columns if column.nested]
    if target.kind == "topic" or not nested:
        return {}
    described = connection.execute(sql.SQL("DESCRIBE {}").format(target.named)).fetchall()
    types = {str(row[0]).lower(): str(row[1]) for row in described}
    return {column.name: types[column.target.lower()] for column in nested}
