"""SHOW CHANGES FOR a table: which events, of which of its streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hands import DAY_US, Hands
from reopening import Reopening

import ducktail


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[ducktail.Connection]:
    """A table with three streams and four events."""
    with ducktail.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.autocommit = True
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
        connection.execute("CREATE STREAM narrow ON t (id) WITH (partitions = 3)")
        connection.execute("CREATE STREAM filtered ON t WHERE id > 1 WITH (partitions = 3)")
        connection.execute("CREATE STREAM wide ON t WITH (partitions = 1)")
        connection.execute("CREATE STREAM later ON t WITH (partitions = 3)")
        connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        connection.execute("UPDATE t SET v = 'c' WHERE id = 1")
        connection.execute("DELETE FROM t WHERE id = 2")
        yield connection


def test_it_reads_the_widest_stream_and_the_older_of_two(connection: ducktail.Connection) -> None:
    shown = connection.execute("SHOW CHANGES FOR t").fetchall()
    assert shown == connection.execute("SELECT * FROM STREAM wide").fetchall()
    assert [row[2] for row in shown] == ["insert", "insert", "update", "delete"]
    connection.execute("DROP STREAM wide")
    shown = connection.execute("SHOW CHANGES FOR t").fetchall()
    assert shown == connection.execute("SELECT * FROM STREAM later").fetchall()


def test_of_two_that_tell_as_much_the_one_that_goes_back_further(tmp_path: Path) -> None:
    with Reopening(tmp_path / "t.duckdb", clock := Hands()) as again:
        client = again()
        client("create table t (id int primary key)")
        for name, kept in (("short", "1 hour"), ("long", "2 days")):
            client(f"create stream {name} on t with (partitions = 1, retention = '{kept}')")
        client("insert into t values (1)")
        clock.us += DAY_US
        client("insert into t values (2)")
        client.session.database.retention.look()
        assert [len(client(f"select lsn from stream {name}")) for name in ("short", "long")] == [1, 2]
        assert len(client("show changes for t")) == 2


def test_since_and_limit(connection: ducktail.Connection) -> None:
    rows = connection.execute("SELECT lsn, commit_time FROM STREAM wide").fetchall()
    third, at = rows[2]
    since = connection.execute("SHOW CHANGES FOR t SINCE $1 LIMIT $2", [str(at), 1]).fetchall()
    assert [row[0] for row in since] == [third]
    milliseconds = int(at.timestamp() * 1000) + 1
    assert {row[0] for row in connection.execute(f"SHOW CHANGES FOR t SINCE {milliseconds}").fetchall()} == {
        lsn for lsn, time in rows if time.timestamp() * 1000 >= milliseconds
    }
    assert connection.execute("SHOW CHANGES FOR t SINCE '2999-01-01'").fetchall() == []
    assert len(connection.execute("SHOW CHANGES FOR t SINCE '1999-01-01'").fetchall()) == 4
    assert len(connection.execute("SHOW CHANGES FOR t LIMIT 2").fetchall()) == 2


def test_it_wants_a_stream_that_has_every_change(connection: ducktail.Connection) -> None:
    for stream in ("narrow", "wide", "later"):
        connection.execute(f"DROP STREAM {stream}")
    with pytest.raises(ducktail.Error, match="no stream of all its changes"):
        connection.execute("SHOW CHANGES FOR t")
