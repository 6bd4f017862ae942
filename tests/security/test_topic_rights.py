"""What a user may do with topics: PUBLISH, SELECT and CONSUME on them, and what he is told of others'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]
DENIED = psycopg.errors.InsufficientPrivilege

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER bob PASSWORD 'x';
CREATE USER eve PASSWORD 'x';
CREATE TOPIC open_topic WITH (partitions = 1);
CREATE TOPIC hidden_topic WITH (partitions = 1);
CREATE TABLE hidden (id INT PRIMARY KEY);
GRANT PUBLISH ON open_topic TO bob;
GRANT SELECT ON open_topic TO eve;
CREATE SCHEMA bobs;
GRANT CREATE ON SCHEMA bobs TO bob
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("topic_rights") / "t.duckdb"
    with ServerProcess(path, ("--port", "0")) as started:
        with started.connect() as first:
            for statement in SETUP.split(";"):
                first.execute(statement)
        yield started


PUBLISHING = (
    "PUBLISH TO {} 'x'",
    "PUBLISH TO {} KEY 'k' SELECT 'x'",
    "INSERT INTO {} VALUES ('x')",
    "INSERT INTO {} (payload, key) SELECT 'x', 'k'",
)


@pytest.mark.parametrize("statement", PUBLISHING)
def test_publish_is_a_right_of_its_own(bob: Connection, eve: Connection, statement: str) -> None:
    bob.execute(statement.format("open_topic"))
    with pytest.raises(DENIED, match="PUBLISH on it"):
        eve.execute(statement.format("open_topic"))
    with pytest.raises(DENIED):
        bob.execute("SELECT * FROM TOPIC open_topic")
    with pytest.raises(DENIED):
        bob.execute("SELECT * FROM open_topic")
    assert eve.execute("SELECT count(*) FROM TOPIC open_topic").fetchone()
    assert eve.execute("SELECT count(*) FROM open_topic").fetchone()
    with pytest.raises(DENIED):
        eve.execute("CREATE CONSUMER GROUP g ON open_topic")


@pytest.mark.parametrize(
    "statement",
    [
        *PUBLISHING, "SELECT * FROM TOPIC {}", "SELECT * FROM {}", "DROP TOPIC {}",
        "ALTER TOPIC {} RENAME TO z", "SHOW PARTITIONS ON {}", "COPY {} (payload) FROM STDIN",
        "SELECT ducktail.partition_of('{}', 1)",
        "GRANT PUBLISH ON {} TO eve", "EXPLAIN PUBLISH TO {} 'x'", "PREPARE p AS PUBLISH TO {} 'x'",
    ],
)  # fmt: skip
def test_a_hidden_topic_is_not_there(bob: Connection, statement: str) -> None:
    told = []
    for name in ("hidden_topic", "absent_topic"):
        with pytest.raises(psycopg.Error) as error:
            bob.execute(statement.format(name))
        diag = error.value.diag
        said = f"{diag.message_primary} {diag.message_detail} {diag.message_hint}".replace(name, "?")
        told.append((diag.sqlstate, said, diag.statement_position))
    assert told[0] == told[1]
    assert bob.execute("SHOW TOPICS LIKE 'hidden%'").fetchall() == []
    assert bob.execute("SELECT ducktail.partition_of('open_topic', 1)").fetchone() == (0,)


def test_what_is_published_is_read_with_the_publishers_rights(bob: Connection) -> None:
    for statement in ("PUBLISH TO open_topic SELECT id FROM hidden", "INSERT INTO open_topic FROM hidden"):
        with pytest.raises(psycopg.errors.UndefinedTable):
            bob.execute(statement)
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute("PUBLISH TO open_topic KEY (SELECT max(id) FROM hidden) 'x'")


def test_the_owner_of_a_topic_gives_rights_on_it(bob: Connection, eve: Connection) -> None:
    with pytest.raises(DENIED):
        bob.execute("CREATE TOPIC mine")
    bob.execute("CREATE TOPIC bobs.mine WITH (partitions = 1)")
    bob.execute("PUBLISH TO bobs.mine 'x'")
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute("PUBLISH TO bobs.mine 'x'")
    bob.execute("GRANT PUBLISH, SELECT ON bobs.mine TO eve")
    eve.execute("PUBLISH TO bobs.mine 'y'")
    assert eve.execute("SELECT after FROM TOPIC bobs.mine").fetchall() == [("x",), ("y",)]
    bob.execute("REVOKE PUBLISH ON bobs.mine FROM eve")
    with pytest.raises(DENIED):
        eve.execute("PUBLISH TO bobs.mine 'z'")
    with pytest.raises(DENIED, match="must be owner"):
        eve.execute("DROP TOPIC bobs.mine")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        bob.execute("GRANT INSERT ON bobs.mine TO eve")
    bob.execute("DROP TOPIC bobs.mine CASCADE")


def test_a_right_on_the_schema_is_one_on_its_topics(ann: Connection, eve: Connection) -> None:
    ann.execute("CREATE SCHEMA feeds")
    ann.execute("CREATE TOPIC feeds.a WITH (partitions = 1)")
    ann.execute("GRANT PUBLISH ON SCHEMA feeds TO eve")
    eve.execute("INSERT INTO feeds.a VALUES ('x')")
    ann.execute("REVOKE PUBLISH ON SCHEMA feeds FROM eve")
    with pytest.raises(psycopg.Error):
        eve.execute("INSERT INTO feeds.a VALUES ('x')")
