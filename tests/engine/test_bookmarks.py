"""Bookmarks: what retention leaves of them, what a restart and kill -9 do, how many there may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hands import HOUR_US, Hands
from local_client import Client, raises
from reopening import QUIET
from server_process import ServerProcess

from ducktail.engine.database import Database
from ducktail.engine.definitions import bookmarks
from ducktail.engine.storage.backup import restore

LEFT = "select whole, events, trimmed_events, trimmed from ducktail.bookmarks where bookmark_name = $1"


@pytest.fixture
def clock() -> Hands:
    """The test's clock."""
    return Hands()


@pytest.fixture
def client(tmp_path: Path, clock: Hands) -> Iterator[Client]:
    """A session on a database with a stream of two partitions that keeps two hours."""
    database = Database.open(str(tmp_path / "marks.duckdb"), QUIET, clock)
    found = Client(database)
    found("create table t (id int primary key)")
    found("create stream s on t with (partitions = 2, retention = '2 hours')")
    yield found
    found.close()
    database.close()


def test_what_retention_has_left_is_told_exactly(client: Client, clock: Hands) -> None:
    client("create bookmark first on s")
    for hour in range(4):
        client("insert into t select i from range($1::int, $1::int + 10) r(i)", hour * 10)
        client(f"create bookmark after_{hour} on s")
        clock.us += HOUR_US
    assert client(LEFT, "first") == [(True, 40, 0, None)]
    client.session.database.retention.look()
    left = {n: json.loads(client(LEFT, n)[0][3] or "{}") for n in ("first", "after_0", "after_1", "after_2")}
    gone = client("select partition, trimmed_events from ducktail.partitions order by 1")
    assert left["first"] == {str(number): count for number, count in gone}
    assert sum(count for _, count in gone) == 20
    assert client(LEFT, "first")[0][:3] == (False, 20, 20)
    assert client(LEFT, "after_0")[0][:3] == (False, 20, 10)
    assert client(LEFT, "after_1")[0][:3] == (True, 20, 0)
    assert client(LEFT, "after_2")[0][:3] == (True, 10, 0)
    # Made again of what is shown, it is the same position; what went before it was made is a bound.
    shown = client.one("select position from ducktail.bookmarks where bookmark_name = 'after_0'")
    client("create bookmark again on s at $1", shown)
    assert client.one("select position from ducktail.bookmarks where bookmark_name = 'again'") == shown
    assert client(LEFT, "again")[0][:3] == (False, 20, 20)
    client("create consumer group g on s")
    client("alter consumer group g on s seek to bookmark after_0")
    with raises("72000"):
        client("select * from stream s consumer group g")
    client("alter consumer group g on s seek to bookmark after_1")
    assert client.one("select count(*) from stream s consumer group g") == 20


def test_a_position_that_only_the_log_can_count(client: Client) -> None:
    client("create stream small on t with (partitions = 1, buffer_bytes = '64 KiB')")
    client("insert into t select i from range(5000) r(i)")
    client("create bookmark middle on small at '{\"0\": 1234}'")
    assert client(LEFT, "middle")[0][:3] == (True, 3766, 0)


def test_there_is_a_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookmarks, "BOOKMARKS_MAX", 3)
    for name in "abc":
        client(f"create bookmark {name} on s")
    with raises("54000"):
        client("create bookmark d on s")
    client("drop bookmark a on s")
    client("create bookmark d on s")


def test_a_position_that_was_lost_with_its_events(tmp_path: Path) -> None:
    path, copy = tmp_path / "shop.duckdb", tmp_path / "copy.duckdb"
    database = Database.open(str(path))
    client = Client(database)
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 1)")
    client("insert into t select i from range(5) r(i)")
    client("create bookmark kept on s")
    client.close()
    database.close()
    restore(path, copy)
    database = Database.open(str(copy))
    client = Client(database)
    client("insert into t values (100)")
    with raises("22023") as found:
        client("create bookmark lost on s at '{\"0\": 6}'")
    assert "lost" in found.value.message
    client("create consumer group g on s start latest")
    client("alter consumer group g on s seek to bookmark kept")
    assert client.one("select count(*) from stream s consumer group g") == 1
    client.close()
    database.close()


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "killed.duckdb"
    with ServerProcess(path, ("--port", "0")) as server, server.connect(autocommit=True) as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("create stream s on t")
        connection.execute("insert into t select i from range(100) r(i)")
        for number in range(20):
            connection.execute(f"create bookmark b{number} on s")
        connection.execute("drop bookmark b7 on s")
        server.kill()
    with ServerProcess(path, ("--port", "0")) as server, server.connect() as connection:
        rows = connection.execute("select bookmark_name from ducktail.bookmarks").fetchall()
        assert [name for (name,) in rows] == [f"b{number}" for number in range(20) if number != 7]
