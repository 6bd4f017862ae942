"""DuckDB has given the database up: what each session had, and what it is told.

That the engine sees it is what tests/crash/test_disk_full.py shows; here the engine is told.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from local_client import Client, raises, state_of

from ducktail.engine.checkpoints.state import CheckpointState
from ducktail.engine.clock import SystemClock
from ducktail.engine.database import Database
from ducktail.engine.errors import DataCorrupted, DucktailError, IoError
from ducktail.engine.settings import Settings
from ducktail.engine.storage.reopening import Reopener
from ducktail.engine.waiting import drive
from ducktail.sql.python.stream_manager import checkpoints_of

IO_ERROR, FAILED_BLOCK = "58030", "25P02"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(str(tmp_path / "shop.duckdb"))
    client = Client(opened)
    client("create table t (id int primary key, v text)")
    client("create stream s on t with (partitions = 1)")
    client("create consumer group g on s")
    client("insert into t select i, 'first' from range(10) r(i)")
    client.close()
    yield opened
    opened.close()


def fall(database: Database) -> None:
    """DuckDB gives the database up, and the engine has come back."""
    before = database.generation
    database._reopener.fell("a test")
    while database.generation == before:
        with suppress(IoError):  # A second fall is answered before the file is opened, a little later.
            drive(database.standing())
    drive(database.standing())
    assert database.generation == before + 1


def test_memory_is_made_anew_from_the_file(database: Database) -> None:
    client = Client(database)
    client("select lsn from stream s consumer group g limit 4")
    client("commit offsets on s consumer group g")
    for number in range(3):
        fall(database)
        client("insert into t values ($1, 'later')", 100 + number)
        lsns = [lsn for (lsn,) in client("select lsn from stream s after 0")]
        assert lsns == list(range(1, 12 + number))
    assert (database.commits.last_lsn, database.commits.last_txid) == (13, 6)
    assert client.one("select committed_lsn from ducktail.offsets") == 4
    client.close()


def test_checkpoints_go_on(database: Database) -> None:
    backend = checkpoints_of(database, database.catalog.streams["main", "s"])
    for sequence in range(3):
        backend.save(CheckpointState("c", sequence, 1))
        fall(database)
        assert list(backend.list("c")) == list(range(sequence + 1))


def test_an_open_block_has_failed(database: Database) -> None:
    client, other = Client(database), Client(database)
    client("begin")
    client("insert into t values (20, 'not committed')")
    fall(database)
    assert state_of(client, "select 1") == FAILED_BLOCK
    # Its locks are gone with it.
    other("insert into t values (21, 'committed')")
    client("commit")
    assert client.tag == "ROLLBACK"
    assert client("select id from t where id >= 20") == [(21,)]
    client.close()
    other.close()


def test_what_a_session_keeps(database: Database) -> None:
    client = Client(database)
    client("set timezone = 'Asia/Tokyo'")
    client("create schema other")
    client("set search_path = other, main")
    client("prepare p as select v from t where id = $1")
    client("create temp table mine as select 1 as x")
    drive(client.session.with_frames(lambda frames: frames.register("df", pa.table({"x": [5, 6]}))))
    assert client("select sum(x) from df") == [(11,)]
    assert client("select lsn from stream s consumer group g limit 3") == [(1,), (2,), (3,)]
    fall(database)
    assert client("select '2026-01-01 00:00+00'::timestamptz::text") == [("2026-01-01 09:00:00+09",)]
    assert client("select current_schema()") == [("other",)]
    assert client("execute p (3)") == [("first",)]
    assert client("select sum(x) from df") == [(11,)]
    assert state_of(client, "select * from mine") == "42P01"
    client("create table mine (y int)")  # It hides nothing any more.
    client("insert into mine values (1)")
    assert client("select y from mine") == [(1,)]
    client("commit offsets on s consumer group g")
    assert client.one("select committed_lsn from ducktail.offsets") == 3
    client.close()


def test_a_position_from_before_a_seek_stays_void(database: Database) -> None:
    client, other = Client(database), Client(database)
    client("select lsn from stream s consumer group g limit 5")
    other("alter consumer group g on s seek to earliest")
    fall(database)
    assert state_of(client, "commit offsets on s consumer group g") == "55000"
    client.close()
    other.close()


def test_a_result_under_way_does_not_end_as_if_it_were_whole(database: Database) -> None:
    client = Client(database)
    drive(client.session.begin_implicit())
    result = drive(client.session.execute(drive(client.session.parse("select * from range(100000)"))))
    assert result.fetch(10) is not None
    fall(database)
    with raises(IO_ERROR):
        result.fetch(10)
    # The transaction that the message of the client was: nothing of it stands, and that is told.
    with raises(IO_ERROR):
        drive(client.session.commit_implicit())
    drive(client.session.abort_implicit())
    assert client("select count(*) from t") == [(10,)]
    client.close()


def test_rows_of_a_copy_are_not_taken_for_loaded(database: Database) -> None:
    client = Client(database, wire=True)
    result = drive(client.session.execute(drive(client.session.parse("copy t from stdin"))))
    assert result.copy_in is not None
    drive(client.session.copy_data(result.copy_in, b"30\tx\n"))
    fall(database)
    with raises(IO_ERROR):
        drive(client.session.copy_done(result.copy_in))
    drive(client.session.abort_implicit())
    assert client("select count(*) from t where id = 30") == [(0,)]
    client.close()


def test_who_waits_for_the_writer_lock_is_told(database: Database) -> None:
    holder, writer = Client(database), Client(database)
    holder("begin")
    holder("insert into t values (40, 'held')")
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(state_of(writer, "insert into t values (41, '')")))
    thread.start()
    while writer.session.id not in database.transactions.writer_lock.waiting():
        pass
    fall(database)
    thread.join(20)
    assert told == [IO_ERROR]
    holder("rollback")
    writer("insert into t values (42, 'again')")
    assert writer("select lsn, after::json ->> 'id' from stream s after 10") == [(11, "42")]
    holder.close()
    writer.close()


def test_everybody_lets_go_of_the_old_instance(database: Database) -> None:
    clients = [Client(database) for _ in range(3)]
    for client in clients:
        client("select * from t")
    old = database._file
    fall(database)
    with pytest.raises(duckdb.ConnectionException):
        old.connection.execute("select 1")
    assert not [cursor for cursor in old._cursors if _is_open(cursor)]
    for client in clients:
        assert client("select count(*) from t") == [(10,)]
        client.close()


def _is_open(cursor: duckdb.DuckDBPyConnection) -> bool:
    try:
        cursor.execute("select 1").fetchall()
    except duckdb.ConnectionException:
        return False
    return True


def test_in_memory_it_is_gone() -> None:
    database = Database.open(":memory:", Settings())
    client = Client(database)
    database._reopener.fell("a test")
    with raises(IO_ERROR) as found:
        client("select 1")
    assert found.value.hint == "A database in memory cannot be opened again: open a new one."
    with raises(IO_ERROR):
        Client(database)
    client.close()
    database.close()


class Opens:
    """What a Reopener calls: each opening ends with the next of `ends`."""

    def __init__(self, *ends: DucktailError | None) -> None:
        self.ends = list(ends)
        self.told: list[str] = []
        self.clock = SystemClock()
        self.reopener = Reopener(self.let_go, self.come_back, self.clock, has_file=True)

    def let_go(self, error: DucktailError) -> None:
        self.told.append(error.sqlstate)

    def come_back(self) -> None:
        end = self.ends.pop(0)
        if end is not None:
            raise end


def test_it_is_tried_again_until_there_is_room() -> None:
    opens = Opens(IoError("no space"), IoError("no space"), None)
    opens.reopener.fell("no space")
    refused = 0
    while True:
        try:
            drive(opens.reopener.standing())
            break
        except IoError:
            refused += 1
    assert refused and not opens.ends and opens.reopener.error is None
    opens.reopener.close()


def test_what_was_lost_stays_an_error() -> None:
    opens = Opens(DataCorrupted("commits are missing", detail="Lost: transaction 7."), None)
    opens.reopener.fell("no space")
    for _ in range(3):
        with raises("XX001") as found:
            drive(opens.reopener.standing())
        assert found.value.detail == "Lost: transaction 7."
    opens.reopener.close()
    assert opens.ends == [None]
