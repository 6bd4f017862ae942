"""What comes between two steps of the engine: retention, a change of a stream, a COMMIT nobody can judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.buffers import publishing
from ducktail.engine.buffers.buffer import StreamBuffer
from ducktail.engine.buffers.scan import Scan, ScanRange
from ducktail.engine.catalog.streams import Stream
from ducktail.engine.database import Database
from ducktail.sql.reading import scans


@pytest.fixture
def database() -> Iterator[Database]:
    opened = Database.open(":memory:")
    yield opened
    opened.close()


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    """A session; table t with stream s of one partition and 10 events."""
    made = Client(database)
    made("create table t (id integer primary key, v integer)")
    made("create stream s on t with (partitions = 1, buffer_bytes = '1 MiB')")
    for place in range(10):
        made(f"insert into t values ({place}, 0)")
    assert len(made("select * from stream s")) == 10
    yield made
    made.close()


def stream_of(database: Database) -> Stream:
    return database.catalog.streams["main", "s"]


def changes_after(database: Database, lsn: int) -> Scan:
    """A scan of the stream's changes that may not begin at an edge."""
    bounds = ScanRange({0: lsn}, database.commits.last_lsn)
    return database.buffers.scan(stream_of(database), bounds, changes=True)


def before_gathering(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The next time that rows of ENVELOPE CHANGES are made, `act` comes just before the log is read."""
    gather = publishing.gather_changes

    def later(*arguments: Any) -> publishing.Gathered:
        monkeypatch.setattr(publishing, "gather_changes", gather)
        act()
        return gather(*arguments)

    monkeypatch.setattr(publishing, "gather_changes", later)


def test_a_trim_while_changes_are_made_is_a_gap(
    database: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_gathering(monkeypatch, lambda: database.retention.trim(stream_of(database), 5))
    with raises("72000"):
        changes_after(database, 0).read(100)
    assert changes_after(database, 5).read(100).lsns == [6, 7, 8, 9, 10]
    database.retention.trim(stream_of(database), 7)
    with raises("72000"):
        changes_after(database, 5)
    assert changes_after(database, 7).read(100).lsns == [8, 9, 10]


@pytest.mark.parametrize("size", ["64 KiB", "2 MiB"])
def test_a_buffer_resized_while_changes_are_made_keeps_its_bound(
    database: Database, client: Client, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    before_gathering(monkeypatch, lambda: client(f"alter stream s set (buffer_bytes = '{size}')"))
    buffer = database.buffers[stream_of(database).stream_id]
    for last in (10, 11):
        assert changes_after(database, 0).read(100).lsns == list(range(1, last + 1))
        assert bytes_max(buffer) == stream_of(database).buffer_bytes
        client(f"insert into t values ({last}, 0)")
        assert len(client("select * from stream s")) == last + 1


def bytes_max(buffer: StreamBuffer) -> int:
    return buffer.bytes_max + (0 if buffer.changes is None else buffer.changes.bytes_max)


class Unreliable:
    """A cursor whose COMMIT fails, with its work done or not."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, *, commits: bool) -> None:
        self._cursor, self._commits = cursor, commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: str | duckdb.Statement, values: Any = None) -> duckdb.DuckDBPyConnection:
        if sql != "COMMIT":
            return self._cursor.execute(sql, values)
        if self._commits:
            self._cursor.execute(sql)
        raise duckdb.IOException("the disk has gone")


@pytest.mark.parametrize("commits", [True, False])
def test_a_commit_of_unknown_outcome_gives_no_number_twice(
    database: Database, client: Client, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    def no_cursor(**_: object) -> duckdb.DuckDBPyConnection:
        raise duckdb.IOException("the disk has gone")

    other = Client(database, lock_timeout="100")
    client("begin")
    client("insert into t values (10, 1)")
    transaction = client.session.block.opened()
    transaction.cursor = Unreliable(transaction.cursor, commits=commits)  # type: ignore[assignment]
    with monkeypatch.context() as patched:
        patched.setattr(database.commits, "cursor", no_cursor)
        with raises("58030"):
            client("commit")
        with raises("58030"):
            other("insert into t values (11, 2)")
    other("insert into t values (12, 3)")
    kept = ["10", "12"] if commits else ["12"]
    events = other("select lsn, key->>'id' from stream s after 10")
    assert events == [(11 + place, key) for place, key in enumerate(kept)]
    assert other("select id::varchar from t where id >= 10 order by id") == [(key,) for key in kept]
    other.close()


def test_a_change_of_columns_between_the_plan_of_a_read_and_its_run(
    database: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads by the columns that it was planned with; what is altered then comes after its end."""
    other, relation_of = Client(database), scans.relation_of

    def later(*arguments: Any) -> object:
        monkeypatch.setattr(scans, "relation_of", relation_of)
        other("alter table t drop column v")
        other("alter table t add column w varchar default 'x'")
        return relation_of(*arguments)

    read = "select * from stream s envelope changes where id < 2"
    before = client(read)
    monkeypatch.setattr(scans, "relation_of", later)
    assert client(read) == before
    assert [row[:2] for row in client(read)] == [(0, None), (1, None)]
    other.close()
