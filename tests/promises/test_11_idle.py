"""Locks and snapshots of idle sessions (promise 11): others time out, the idle one is ended, they go on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import drive


@pytest.fixture
def bounds() -> Settings:
    """A small WAL bound, so that a test can pass it."""
    return Settings(wal_bytes_max=4 << 20)


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A captured table with one row."""
    made = connect()
    made("create table t (id int primary key, v text)")
    made("create stream s on t")
    made("insert into t values (1, 'x')")
    return made


def ended(client: Client) -> threading.Event:
    """Set when the server ends the session."""
    event = threading.Event()
    client.session.on_ended = lambda error: event.set()
    return event


def test_an_idle_holder_of_the_writer_lock(client: Client, connect: Callable[..., Client]) -> None:
    holder = connect(idle_in_transaction_session_timeout="600ms")
    waiter = connect(lock_timeout="100ms")
    over = ended(holder)
    holder("begin")
    holder("insert into t values (2, 'held')")
    assert client("select writer_lock from ducktail.sessions where session_id = $1", holder.session.id) == [
        ("holds",)
    ]
    with raises("55P03"):
        waiter("insert into t values (3, 'waits')")
    assert over.wait(20)
    with raises("25P03"):
        holder("commit")
    waiter("insert into t values (3, 'goes on')")
    assert client("select id from t order by id") == [(1,), (3,)]
    assert client("select key from stream s") == [('{"id":1}',), ('{"id":3}',)]


def test_waiters_get_the_lock_in_the_order_in_which_they_came(
    client: Client, connect: Callable[..., Client]
) -> None:
    client("begin")
    client("update t set v = 'held'")
    lock = client.session.database.transactions.writer_lock
    threads = []
    for number in range(10, 15):
        waiter = connect()
        thread = threading.Thread(target=waiter, args=("insert into t values ($1, 'w')", number))
        threads.append(thread)
        thread.start()
        while waiter.session.id not in lock.waiting():
            assert thread.is_alive()
    client("commit")
    for thread in threads:
        thread.join()
    keys = client("select (key->>'id')::int from stream s where op = 'insert' and lsn > 1")
    assert [key for (key,) in keys] == [10, 11, 12, 13, 14]


def test_a_waiting_writer_can_be_cancelled(client: Client, connect: Callable[..., Client]) -> None:
    client("begin")
    client("update t set v = 'held'")
    waiter, found = connect(), []

    def wait() -> None:
        try:
            waiter("insert into t values (5, 'w')")
        except DucktailError as error:
            found.append(error.sqlstate)

    thread = threading.Thread(target=wait)
    thread.start()
    while waiter.session.id not in client.session.database.transactions.writer_lock.waiting():
        assert thread.is_alive()
    waiter.session.cancel()
    thread.join(20)
    assert found == ["57014"]
    assert waiter.session.id not in client.session.database.transactions.writer_lock.waiting()
    client("commit")


def test_statement_timeout_ends_a_wait_and_a_query(client: Client, connect: Callable[..., Client]) -> None:
    client("begin")
    client("update t set v = 'held'")
    hasty = connect(statement_timeout="150ms")
    with raises("57014") as error:
        hasty("insert into t values (5, 'w')")
    assert "statement timeout" in error.value.message
    with raises("57014"):
        hasty("select count(*) from range(1000000000000)")
    client("commit")


def test_an_idle_reader_is_ended_and_checkpoints_go_on(
    client: Client, connect: Callable[..., Client], tmp_path: Path
) -> None:
    reader = connect(idle_in_transaction_session_timeout="700ms")
    over = ended(reader)
    reader("begin")
    reader("select * from t")
    client("update t set v = 'changed'")
    with raises("55006"):
        client("checkpoint")
    assert over.wait(20)
    with raises("25P03"):
        reader("select * from t")
    client("checkpoint")
    wal = tmp_path / "promises.duckdb.wal"
    assert not wal.exists() or os.path.getsize(wal) < 10_000


def test_a_large_wal_ends_the_oldest_idle_reader_first(
    client: Client, connect: Callable[..., Client], tmp_path: Path, database: Database
) -> None:
    oldest, younger = connect(), connect()
    first = ended(oldest)
    oldest("begin")
    oldest("select * from t")
    younger("begin")
    younger("select * from t")
    text = "z" * 1000
    deadline = time.monotonic() + 60
    while not first.is_set():
        client("update t set v = $1 where id = 1", text)
        client("insert into t select i, repeat('q', 500) from range(1000, 3000) r(i) on conflict do nothing")
        client("update t set v = v || 'x'")
        assert time.monotonic() < deadline
    with raises("25P03") as error:
        oldest("select 1")
    assert "write-ahead log" in error.value.message


def test_a_suspended_read_of_a_stream_is_in_no_checkpoints_way(
    client: Client, connect: Callable[..., Client]
) -> None:
    client("create stream cold on t with (buffer_bytes = '64 KiB', partitions = 1)")
    for start in range(1000, 5000, 500):
        client(f"insert into t select i, repeat('q', 50) from range({start}, {start + 500}) r(i)")
    slow = connect()
    read = drive(slow.session.execute(drive(slow.session.parse("select * from stream cold"))))
    first = read.fetch(10)
    assert first is not None
    client("update t set v = 'changed'")
    client("checkpoint")
    stream = client.session.database.catalog.streams["main", "cold"]
    client.session.database.retention.trim(stream, 4000)
    client("checkpoint")
    # It is told that what was to come is gone, or it would have been given whole.
    with raises("72000"):
        while read.fetch(100) is not None:
            pass
