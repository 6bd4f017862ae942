"""Errors of a limited session do not name what it is not told of, unless it said the name itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER bob PASSWORD 'x';
CREATE USER eve PASSWORD 'x';
CREATE SCHEMA shared;
GRANT CREATE ON SCHEMA shared TO bob;
GRANT CREATE ON SCHEMA shared TO eve;
GRANT CREATE ON DATABASE TO bob;
"""
# What bob has, and what the superuser puts beside it.
BOBS = """
CREATE SCHEMA bobs;
CREATE TABLE bobs.mine (id INT PRIMARY KEY, v INT);
CREATE INDEX bobs_index ON bobs.mine (v);
CREATE SEQUENCE bobs.numbers;
CREATE TABLE shared.numbered (i INT);
CREATE STREAM shared.feed ON shared.numbered;
CREATE TABLE shared.parent (id INT PRIMARY KEY, v INT);
"""
HIDDEN = """
CREATE TABLE bobs.hidden_table (i INT);
CREATE STREAM bobs.hidden_stream ON bobs.hidden_table;
CREATE TABLE bobs.hidden_numbered (i INT DEFAULT nextval('bobs.numbers'));
CREATE TABLE hidden_under (a INT);
CREATE VIEW hidden_view AS SELECT * FROM hidden_under;
CREATE VIEW open_view AS SELECT * FROM hidden_view;
GRANT SELECT ON open_view TO bob;
DROP TABLE hidden_under;
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Tests leave it as it was."""
    with ServerProcess(tmp_path_factory.mktemp("names") / "shop.duckdb") as started:
        with started.connect() as first:
            execute(first, SETUP)
        with started.connect(user="bob", password="x") as bob:
            execute(bob, BOBS)
        with started.connect(user="ann", password="x") as ann:
            execute(ann, HIDDEN)
        yield started


def execute(connection: Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        connection.execute(statement)


def error_of(connection: Connection, statement: str, *values: object) -> tuple[str | None, str]:
    """SQLSTATE of a statement's error, and all that is said."""
    with pytest.raises(psycopg.Error) as error:
        connection.execute(statement, values or None)
    diag = error.value.diag
    return diag.sqlstate, f"{diag.message_primary} {diag.message_detail} {diag.message_hint}"


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("DROP SCHEMA bobs", "2BP01"),
        ("DROP SCHEMA bobs CASCADE", "2BP01"),
        ("CREATE OR REPLACE SCHEMA bobs", "2BP01"),
        ("DROP SEQUENCE bobs.numbers", "2BP01"),
        ("SELECT * FROM open_view", "42P01"),
        ("SELECT absent FROM open_view", "42P01"),
        ("CREATE TABLE bobs.copied AS SELECT * FROM open_view", "42P01"),
    ],
)
def test_what_is_in_the_way_is_not_named(
    bob: Connection, ann: Connection, statement: str, state: str
) -> None:
    found, text = error_of(bob, statement)
    assert found == state
    assert "hidden" not in text
    if "open_view" not in statement:
        assert "hidden" in error_of(ann, statement)[1]


def test_what_one_is_told_of_is_named(bob: Connection) -> None:
    state, text = error_of(bob, "DROP TABLE shared.numbered")
    assert state == "2BP01"
    assert '"numbered"' in text
    bob.execute("CREATE CONSUMER GROUP readers ON shared.feed")
    bob.execute("CREATE SEQUENCE bobs.own")
    bob.execute("CREATE TABLE bobs.own_numbered (i INT DEFAULT nextval('bobs.own'))")
    assert 'table "own_numbered" depends on' in error_of(bob, "DROP SEQUENCE bobs.own")[1]
    bob.execute("DROP TABLE bobs.own_numbered")
    bob.execute("DROP SEQUENCE bobs.own")
    bob.execute("DROP CONSUMER GROUP readers ON shared.feed")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM {}",
        "SELECT * FROM bobs.{}",
        'SELECT * FROM "{}"',
        "SELECT * FROM STREAM {}",
        "DROP TABLE {}",
        "SELECT {}.id FROM bobs.mine",
        "SELECT {} FROM bobs.mine",
        "SELECT '{}'::regclass",
        "SELECT '{}'::regtype",
        "PREPARE p AS SELECT * FROM {}",
    ],
)
def test_what_was_said_is_answered_in_the_same_words(bob: Connection, statement: str) -> None:
    told = [error_of(bob, statement.format(name)) for name in ("hidden_table", "absent_table")]
    assert told[0][0] == told[1][0]
    assert told[0][1].replace("hidden_table", "absent_table") == told[1][1]
    assert "hidden_table" in told[0][1]


def test_a_parameter_was_said(bob: Connection) -> None:
    assert '"absent_table"' in error_of(bob, "SELECT %s::text::regclass", "absent_table")[1]


@pytest.mark.parametrize("name", ["hidden_table", "absent_table"])
def test_an_error_is_no_oracle(bob: Connection, name: str) -> None:
    """A name is left out whether or not there is a hidden thing of that name."""
    head, tail = name[:3], name[3:]
    statement = f"""SELECT error('relation "' || '{head}' || '{tail}' || '" does not exist')"""
    assert error_of(bob, statement) == ("42P01", 'relation "..." does not exist None None')


def test_values_stay_in_errors(bob: Connection) -> None:
    assert "'odd'" in error_of(bob, "SELECT CAST('o' || 'dd' AS INT)")[1].replace('"', "'")
    bob.execute("INSERT INTO bobs.mine VALUES (7, 8)")
    assert "(id)=(7)" in error_of(bob, "INSERT INTO bobs.mine VALUES (7, 9)")[1]
    bob.execute("DELETE FROM bobs.mine")
