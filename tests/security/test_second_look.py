"""The second look: where the first one misses a table, DuckDB's plan tells of it.

The first look is made blind here; what a statement then reads must still be refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError, InsufficientPrivilege
from ducktail.engine.waiting import drive
from ducktail.sql.rights.reach import Reach
from ducktail.sql.session import Session

SETUP = (
    "CREATE USER ann PASSWORD 'x' SUPERUSER",
    "CREATE USER bob PASSWORD 'x'",
    "CREATE TABLE hidden (id INT PRIMARY KEY)",
    "CREATE VIEW over_hidden AS SELECT * FROM hidden",
    "CREATE MACRO of_hidden() AS (SELECT max(id) FROM hidden)",
    "CREATE STREAM hidden_stream ON hidden",
    "CREATE TABLE open (id INT PRIMARY KEY)",
    "GRANT ALL ON open TO bob",
    "CREATE SCHEMA bobs",
    "GRANT CREATE ON SCHEMA bobs TO bob",
)


def execute(session: Session, text: str) -> None:
    drive(session.execute(drive(session.parse(text))))


@pytest.fixture
def bob(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    database = Database.open(":memory:")
    root = Session(database)
    for statement in SETUP:
        execute(root, statement)
    session = Session(database, user="bob", account="bob")
    monkeypatch.setattr(Reach, "take", lambda self, named, start=0: None)
    yield session
    for one in (session, root):
        drive(one.close())
    database.close()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM hidden",
        "SELECT * FROM over_hidden",
        "SELECT of_hidden()",
        "SELECT 1 FROM hidden WHERE false",
        "SELECT * FROM hidden_stream",
        "SELECT * FROM ducktail.meta",
        "SELECT * FROM query_table('hidden')",
        "INSERT INTO open SELECT * FROM hidden",
        "UPDATE open SET id = (SELECT max(id) FROM hidden)",
        "DELETE FROM open WHERE id IN (FROM hidden)",
        "WITH w AS (DELETE FROM hidden RETURNING id) SELECT * FROM w",
        "CREATE TABLE bobs.t AS FROM hidden",
        "CREATE VIEW bobs.v AS FROM hidden",
        "PREPARE p AS SELECT * FROM hidden; EXECUTE p",
        "EXPLAIN SELECT * FROM hidden",
    ],
)
def test_what_the_first_look_misses_is_refused(bob: Session, text: str) -> None:
    *before, last = text.split("; ")
    for statement in before:
        execute(bob, statement)
    with pytest.raises(InsufficientPrivilege, match="cannot be told"):
        execute(bob, last)


def test_what_the_first_look_has_seen_is_not(bob: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for text in ("SELECT * FROM open", "INSERT INTO open VALUES (1)", "CREATE VIEW bobs.v AS FROM open"):
        execute(bob, text)
    with pytest.raises(DucktailError, match="does not exist"):
        execute(bob, "SELECT * FROM hidden")
