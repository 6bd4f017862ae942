"""Promise 3: LSN order is commit order, and nothing appears behind a reader."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from amounts import amount
from local_client import Client, fold, raises

from ducktail.engine.errors import DucktailError

# The issue's own length; CI runs a share of it (`make test` sets nothing).
STRESS_SECONDS = amount("DUCKTAIL_STRESS_SECONDS", 3.0, 60.0)
WRITERS = 4


@pytest.mark.slow
def test_a_fast_reader_sees_every_committed_event_once_in_order_none_late(
    connect: Callable[..., Client],
) -> None:
    """Four writers commit and roll back at random while a reader polls as fast as it can."""
    setup = connect()
    setup("create table t (id int primary key, writer int, n int)")
    setup("create stream s on t with (partitions = 4)")
    setup("create consumer group g on s")
    stop = threading.Event()
    failures: list[BaseException] = []
    committed = [0] * WRITERS

    def write(number: int) -> None:
        rng, client = random.Random(number), connect()
        try:
            while not stop.is_set():
                try:
                    committed[number] += _write_once(client, rng, number)
                except DucktailError as error:
                    assert error.sqlstate in ("40001", "23505"), error
                    if client.session.transaction_status != "I":
                        client("rollback")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    seen: list[tuple[int, int]] = []
    reader = connect()
    deadline = time.monotonic() + STRESS_SECONDS
    while time.monotonic() < deadline:
        if random.random() < 0.1:
            # Inside a transaction with an old snapshot: what it sees is a prefix, never a hole.
            reader("begin")
            reader("select 1 from t limit 1")
            first = reader("select lsn from stream s after 0")
            again = reader("select lsn from stream s after 0")
            assert first == again
            assert [lsn for (lsn,) in first] == list(range(1, len(first) + 1))
            reader("rollback")
        rows = reader("select lsn, partition from stream s consumer group g limit 200")
        seen += rows
        if rows:
            reader("commit offsets on s consumer group g")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    while rows := reader("select lsn, partition from stream s consumer group g limit 200"):
        seen += rows
        reader("commit offsets on s consumer group g")
    lsns = [lsn for lsn, _ in seen]
    assert lsns == sorted(set(lsns)), "an event came twice, or behind the reader"
    assert lsns == list(range(1, len(lsns) + 1)), "an event is missing"
    assert min(committed) > 0
    folded = fold(setup("select op, key, before, after from s order by lsn"))
    rows_now = setup(
        "select json_object('id', id)::varchar, "
        "json_object('id', id, 'writer', writer, 'n', n)::varchar from t"
    )
    assert folded == dict(rows_now)


def _write_once(client: Client, rng: random.Random, number: int) -> int:
    """One transaction of random writes on few keys; 1 when it committed."""
    explicit = rng.random() < 0.5
    if explicit:
        client("begin")
        if rng.random() < 0.5:
            client("select count(*) from t")
    for _ in range(rng.randint(1, 3)):
        key, n = rng.randint(1, 12), rng.randint(0, 1000)
        kind = rng.randint(0, 3)
        if kind == 0:
            client(
                "insert into t values ($1, $2, $3) on conflict (id) do update set n = excluded.n",
                key,
                number,
                n,
            )
        elif kind == 1:
            client("update t set n = $1, writer = $2 where id = $3", n, number, key)
        elif kind == 2:
            client("delete from t where id = $1", key)
        else:
            client("insert into t values ($1, $2, $3)", key + 100 * rng.randint(1, 20), number, n)
    if explicit:
        if rng.random() < 0.3:
            client("rollback")
            return 0
        client("commit")
    return 1


def test_an_acknowledged_commit_is_in_every_read_that_starts_later(connect: Callable[..., Client]) -> None:
    writer, reader = connect(), connect()
    writer("create table t (id int primary key)")
    writer("create stream s on t")
    for number in range(100):
        writer("insert into t values ($1)", number)
        assert reader("select lsn from stream s after $1", number or 0)[-1][0] == number + 1


def test_create_stream_waits_for_an_open_writer(connect: Callable[..., Client]) -> None:
    maker, writer = connect(lock_timeout="150ms"), connect()
    maker("create table t (id int primary key)")
    writer("begin")
    writer("insert into t values (1)")
    with raises("55P03"):
        maker("create stream s on t")
    # It has given up its mark: the writer goes on, uncaptured, and so does another one.
    writer("insert into t values (2)")
    writer("commit")
    maker("create stream s on t with (snapshot = 'initial')")
    assert maker("select op, after from stream s") == [("snapshot", '{"id":1}'), ("snapshot", '{"id":2}')]


def test_create_stream_goes_on_when_the_writer_ends(connect: Callable[..., Client]) -> None:
    maker, writer, late = connect(), connect(), connect()
    maker("create table t (id int primary key)")
    writer("begin")
    writer("insert into t values (1)")
    made = threading.Thread(target=maker, args=("create stream s on t with (snapshot = 'initial')",))
    made.start()
    while not maker.session.database.transactions.gate.mark_of(("main", "t")):
        assert made.is_alive()
    # A new writer waits for the stream, and is captured by it.
    following = threading.Thread(target=late, args=("insert into t values (3)",))
    following.start()
    writer("insert into t values (2)")
    writer("commit")
    made.join(30)
    following.join(30)
    assert writer("select op, after from stream s") == [
        ("snapshot", '{"id":1}'),
        ("snapshot", '{"id":2}'),
        ("insert", '{"id":3}'),
    ]


def test_a_transaction_older_than_the_stream_cannot_write_its_table(connect: Callable[..., Client]) -> None:
    maker, reader = connect(), connect()
    maker("create table t (id int primary key)")
    reader("begin")
    assert reader("select * from t") == []
    maker("create stream s on t")
    with raises("40001"):
        reader("insert into t values (1)")
    reader("rollback")
    reader("insert into t values (1)")
    assert maker("select after from stream s") == [('{"id":1}',)]


@pytest.mark.parametrize("before", [(), ("select * from t",), ("insert into t values (1)",)])
def test_create_and_drop_stream_want_a_transaction_of_their_own(
    connect: Callable[..., Client], before: tuple[str, ...]
) -> None:
    client = connect()
    client("create table t (id int primary key)")
    client("create stream s on t")
    for statement in ("create stream s2 on t", "drop stream s"):
        client("begin")
        for text in before:
            client(text)
        with raises("25001"):
            client(statement)
        client("rollback")
    assert client("select * from stream s") == []


def test_commit_time_never_goes_back(connect: Callable[..., Client]) -> None:
    client = connect()
    client("create table t (id int primary key)")
    client("create stream s on t")
    for number in range(20):
        client("insert into t values ($1)", number)
    times = [at for (at,) in client("select commit_time from stream s")]
    assert times == sorted(times)
