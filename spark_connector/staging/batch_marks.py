"""Who has written what: a row of `sinks` for each streaming query and target, with its last batch.

A mark is written in the transaction of the batch's rows, so it stands where they do.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from ..connection import Connection
from ..errors import ConnectorError
from .target import Target

_MARKS = "sinks"


@dataclass(frozen=True, slots=True)
class Batch:
    """A streaming query's batch: who marks what it has done."""

    query: str
    number: int


def marks(schema: str) -> sql.Identifier:
    """The table of what streaming queries have written."""
    return sql.Identifier(schema, _MARKS)


def make_schema(connection: Connection, schema: str) -> None:
    """Where stages and marks are, if it is not there.

    Raises:
        ConnectorError: it is another user's, and this one has no right on it.
    """
    name = sql.Identifier(schema)
    # Who may make tables in it needs no right to make schemas.
    there = "SELECT 1 FROM information_schema.schemata WHERE lower(schema_name) = lower(%s)"
    if connection.execute(there, (schema,)).fetchone() is None:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.{} (query VARCHAR, target VARCHAR, batch BIGINT, rows BIGINT, "
            "written_at TIMESTAMPTZ, PRIMARY KEY (query, target))"
        ).format(name, sql.Identifier(_MARKS))
    )
    try:
        connection.execute(sql.SQL("SELECT 1 FROM {} WHERE false").format(marks(schema)))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        # It is there, as it was not made; and nobody is told of what he may not see.
        user = connection.info.user
        grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(
            marks(schema), sql.Identifier(user)
        )
        raise ConnectorError(
            f'option stagingSchema: user "{user}" has no right on table "{schema}.{_MARKS}", which another '
            f"user has made: give this one a stagingSchema of his own, or {grant.as_string(connection)}",
            error.sqlstate,
        ) from None


def is_done(connection: Connection, target: Target, batch: Batch) -> bool:
    found = connection.execute(
        sql.SQL("SELECT max(batch) FROM {} WHERE query = %s AND target = %s").format(marks(target.schema)),
        (batch.query, str(target)),
    ).fetchone()
    return found is not None and found[0] is not None and found[0] >= batch.number


def mark(connection: Connection, target: Target, batch: Batch, rows: int) -> None:
    connection.execute(
        sql.SQL(
            "INSERT INTO {} VALUES (%s, %s, %s, %s, now()) ON CONFLICT (query, target) DO UPDATE "
            "SET batch = excluded.batch, rows = excluded.rows, written_at = excluded.written_at"
        ).format(marks(target.schema)),
        (batch.query, str(target), batch.number, rows),
    )


def unmark(connection: Connection, schema: str, job: Batch) -> None:
    """A batch job's mark, and those of jobs that died before they could take theirs away."""
    connection.execute(
        sql.SQL(
            "DELETE FROM {} WHERE query = %s OR (starts_with(query, 'job-') AND "
            "written_at < now() - INTERVAL '7 days')"
        ).format(marks(schema)),
        (job.query,),
    )
