"""A stream and whose it is are one transaction: a kill right behind its COMMIT leaves both, or neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ducktail.engine.catalog.rights import Rights, group_item, relation
from ducktail.engine.database import Database
from ducktail.engine.waiting import drive
from ducktail.sql.session import Session

pytestmark = pytest.mark.slow

CHILD = """
import os, sys
from ducktail.engine.transactions.commits import Commits
from ducktail.engine.database import Database
from ducktail.engine.waiting import drive
from ducktail.sql.session import Session

path, account, statement = sys.argv[1:]
database = Database.open(path)
session = Session(database, user="bob", account=account or None)
committed = Commits.commit_own

def commit_and_die(*arguments):
    committed(*arguments)
    os._exit(9)

Commits.commit_own = commit_and_die
drive(session.execute(drive(session.parse(statement))))
"""


def killed(path: Path, account: str, statement: str) -> Rights:
    """The rights after a process that died as soon as this statement's first COMMIT was done."""
    command = [sys.executable, "-c", CHILD, str(path), account, statement]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 9, child.stderr
    database = Database.open(str(path))
    try:
        return database.rights
    finally:
        database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.duckdb"
    database = Database.open(str(made))

    def execute(account: str | None, *statements: str) -> None:
        session = Session(database, user=account or "ducktail", account=account)
        for statement in statements:
            drive(session.execute(drive(session.parse(statement))))
        drive(session.close())

    execute(None, "CREATE USER ann PASSWORD 'x' SUPERUSER", "CREATE USER bob PASSWORD 'x'",
            "CREATE SCHEMA bobs", "GRANT CREATE ON SCHEMA bobs TO bob")  # fmt: skip
    execute("bob", "CREATE TABLE bobs.t (id INT PRIMARY KEY)", "CREATE STREAM bobs.there ON bobs.t",
            "CREATE CONSUMER GROUP g ON bobs.there")  # fmt: skip
    database.close()
    return made


def test_a_stream_has_its_owner_from_its_first_moment(path: Path) -> None:
    found = killed(path, "bob", "CREATE STREAM bobs.s ON bobs.t")
    assert found.owners[relation("bobs", "s")] == "bob"


def test_a_renamed_stream_keeps_it(path: Path) -> None:
    found = killed(path, "bob", "ALTER STREAM bobs.there RENAME TO there_now")
    assert found.owners[relation("bobs", "there_now")] == "bob"
    assert found.owners[group_item("bobs", "there_now", "g")] == "bob"
    assert relation("bobs", "there") not in found.owners


def test_of_a_dropped_stream_nothing_is_left(path: Path) -> None:
    found = killed(path, "bob", "DROP STREAM bobs.there CASCADE")
    assert found.of_stream("bobs", "there") == []
    again = killed(path, "", "CREATE STREAM bobs.there ON bobs.t")
    assert again.of_stream("bobs", "there") == []


def test_of_a_dropped_table_and_its_streams_nothing_is_left(path: Path) -> None:
    found = killed(path, "bob", "DROP TABLE bobs.t CASCADE")
    assert found.of_stream("bobs", "there") == []
    assert found.of_stream("bobs", "t") == []
    again = killed(path, "", "CREATE TOPIC bobs.there")
    assert again.of_stream("bobs", "there") == []
