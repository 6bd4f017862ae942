"""SQL of the catalog's rows of streams, topics and their tables, and the transactions that write them.

Streams, tables, groups and bookmarks get numbers that are never reused. A definition is a numbered
transaction without events, so that an opening detects its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb

from .. import rights_changes
from ..catalog.filters import plain_division
from ..catalog.streams import Stream
from ..database import Database
from ..duck.cursors import ask_maybe, rolled_back_on_error
from ..duck.duckdb_errors import translated
from ..duck.table_shape import TableShape
from ..quoting import fold, folded_sql, literal
from ..schema import COMMIT_COLUMNS, DROPPED


def new_id(cursor: duckdb.DuckDBPyConnection) -> int:
    """A new number for a table, stream, group or bookmark, never reused."""
    row = ask_maybe(cursor, "SELECT nextval('ducktail.object_id')")
    assert row is not None
    return int(row[0])


def leave_name_sql(shape: TableShape, table_id: int) -> str:
    """SQL that frees the name of a table dropped without ducktail, for the table that has it now."""
    return (
        f"UPDATE ducktail.table_catalog SET table_name = table_name || {literal(DROPPED)} "
        f"WHERE {folded_sql('schema_name')} = {literal(fold(shape.schema))} "
        f"AND {folded_sql('table_name')} = {literal(fold(shape.name))} AND table_id <> {table_id}"
    )


def names_sql(names: tuple[str, ...] | list[str]) -> str:
    """A list of names as SQL."""
    return f"[{', '.join(map(literal, names))}]::VARCHAR[]"


def insert_stream_sql(stream: Stream) -> str:
    """INSERT of the catalog row of a stream or topic."""
    values = (
        str(stream.stream_id),
        literal(stream.schema),
        literal(stream.name),
        str(stream.table_id),
        names_sql(sorted(stream.operations)),
        names_sql(stream.columns),
        "NULL" if stream.filter is None else literal(stream.filter),
        str(stream.partitions),
        names_sql(stream.partition_by),
        literal(stream.snapshot),
        literal(stream.before),
        str(stream.buffer_bytes),
        str(stream.created_lsn),
        f"make_timestamptz({stream.created_at_us})",
        _or_null(stream.retention_us),
        _or_null(stream.retention_bytes),
        str(stream.changes_view),
        str(stream.all_columns),
        literal(stream.minimal_changes),
        literal(stream.compaction),
        str(stream.compaction_lag_us),
        str(stream.tombstone_retention_us),
        "NULL" if stream.of_schema is None else literal(stream.of_schema),
    )
    return (
        "INSERT INTO ducktail.stream_catalog (stream_id, schema_name, stream_name, table_id, operations, "
        "columns, filter, partitions, partition_by, snapshot, before, buffer_bytes, created_lsn, "
        "created_at, retention_us, retention_bytes, changes_view, all_columns, minimal_changes, "
        "compaction, compaction_lag_us, tombstone_retention_us, of_schema) "
        f"VALUES ({', '.join(values)})"
    )


def insert_tables_sql(parts: Sequence[Stream], first: int = 0) -> str:
    """INSERT of the list of tables of a stream over several.

    Args:
        first: the position of the first of these tables.
    """
    rows = ", ".join(
        f"({part.stream_id}, {part.table_id}, {place}, {part.created_lsn}, {names_sql(part.partition_by)}, "
        f"{names_sql(part.columns)})"
        for place, part in enumerate(parts, first)
    )
    columns = "(stream_id, table_id, place, created_lsn, partition_by, columns)"
    return f"INSERT INTO ducktail.stream_tables {columns} VALUES {rows}"


def _or_null(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def commit_sql(txid: int, base_lsn: int, events: int, commit_us: int) -> str:
    """INSERT of a transaction's row in `commits`; one without events, such as a definition, uses no LSN."""
    return (
        f"INSERT INTO ducktail.commits {COMMIT_COLUMNS} VALUES ({txid}, {base_lsn + 1}, "
        f"{base_lsn + events}, make_timestamptz({commit_us}), NULL)"
    )


def run_numbered(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    statements: list[str],
    show: Callable[[], None],
    changes: Sequence[rights_changes.Change] = (),
) -> None:
    """Run the statements as one numbered transaction without events, under the writer lock.

    The number lets an opening detect the loss of the transaction.

    Args:
        show: updates the catalog in memory after DuckDB's COMMIT.
        changes: changes of users' rights in the same transaction.

    Raises:
        DucktailError: a translated error of DuckDB.
    """
    commits = database.commits
    txid, now_us = commits.last_txid + 1, commits.now_us()
    commit = commit_sql(txid, commits.last_lsn, 0, now_us)

    def show_all() -> None:
        database.rights = rights_changes.after(database.rights, changes)
        show()

    with plain_division(cursor):
        try:
            with rolled_back_on_error(cursor):
                cursor.execute("BEGIN")
                for statement in [*statements, *rights_changes.statements_of(changes), commit]:
                    cursor.execute(statement).fetchall()
                shield = database.sessions.shield(session_id)
                commits.commit_own(cursor, shield, (txid, commits.last_lsn, now_us), show_all)
        except duckdb.Error as error:
            raise translated(error) from error
