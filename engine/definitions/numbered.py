"""A definition is a numbered transaction without events, so that an opening notices when the log lacks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb

from .. import rights_changes
from ..database import Database
from ..duckdb_errors import translated
from ..schema import COMMIT_COLUMNS
from ..streams.filters import plain_division
from ..whole import undone


def commit_sql(txid: int, base_lsn: int, events: int, commit_us: int) -> str:
    """A transaction's line in `commits`; one without events, as a definition is, takes no LSN."""
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
    """All of these statements or none, under the writer lock, as a numbered transaction without events.

    So an opening notices when the log lacks it.

    Args:
        show: what memory makes of it, once DuckDB has committed.
        changes: of users' rights that go with it.

    Raises:
        DucktailError: what DuckDB said, translated.
    """
    commits = database.commits
    txid, now_us = commits.last_txid + 1, commits.now_us()
    commit = commit_sql(txid, commits.last_lsn, 0, now_us)

    def show_all() -> None:
        database.rights = rights_changes.after(database.rights, changes)
        show()

    with plain_division(cursor):
        try:
            with undone(cursor):
                cursor.execute("BEGIN")
                for statement in [*statements, *rights_changes.statements_of(changes), commit]:
                    cursor.execute(statement).fetchall()
                shield = database.sessions.shield(session_id)
                commits.commit_own(cursor, shield, (txid, commits.last_lsn, now_us), show_all)
        except duckdb.Error as error:
            raise translated(error) from error
