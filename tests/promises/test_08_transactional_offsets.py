"""Promise 8: an offset commit inside a transaction is atomic with its writes, and succeeds once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from local_client import Client, raises, state_of


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A stream with events 1 to 20 over two partitions, a group, and a table to copy them to."""
    made = connect()
    made("create table t (id int primary key)")
    made("create stream s on t with (partitions = 2)")
    made("create consumer group g on s")
    made("insert into t select i from range(20) r(i)")
    made("create table target (lsn bigint)")
    return made


COMMIT = "commit offsets on s consumer group g"


def test_the_pattern_moves_data_and_offset_together(client: Client) -> None:
    for _ in range(2):
        client("begin")
        client("insert into target select lsn from (select lsn from stream s consumer group g limit 5) t")
        client(COMMIT)
        (notice,) = client.session.take_notices()
        assert notice.severity == "NOTICE"
        client("commit")
    assert [lsn for (lsn,) in client("select lsn from target order by lsn")] == list(range(1, 11))
    assert [lsn for (lsn,) in client("select lsn from stream s consumer group g")] == list(range(11, 21))


def test_a_rollback_moves_neither(client: Client) -> None:
    client("begin")
    client("insert into target select lsn from stream s consumer group g")
    client(COMMIT)
    client("rollback")
    assert client("select * from target") == []
    assert len(client("select * from stream s consumer group g")) == 20


def test_the_transaction_reads_on_from_its_own_commit(client: Client) -> None:
    client("begin")
    client("select * from stream s consumer group g limit 4")
    client(COMMIT)
    assert client("select lsn from stream s consumer group g limit 1") == [(5,)]
    client(COMMIT)
    client("commit")
    assert client("select lsn from stream s consumer group g limit 1") == [(6,)]


def test_of_two_transactions_with_the_same_events_one_succeeds(
    client: Client, connect: Callable[..., Client]
) -> None:
    one, other = connect(), connect()
    for session in (one, other):
        session("begin")
        session("insert into target select lsn from stream s consumer group g")
        session(COMMIT)
    one("commit")
    with raises("40001"):
        other("commit")
    assert [lsn for (lsn,) in client("select lsn from target order by lsn")] == list(range(1, 21))


def test_an_autocommitted_offset_beats_a_transaction(client: Client, connect: Callable[..., Client]) -> None:
    one, other = connect(), connect()
    one("begin")
    one("insert into target select lsn from stream s consumer group g")
    one(COMMIT)
    other("select * from stream s consumer group g limit 3")
    other(COMMIT)
    with raises("40001"):
        one("commit")
    assert client("select * from target") == []
    assert client("select lsn from stream s consumer group g limit 1") == [(4,)]


def test_a_read_before_begin_is_what_the_commit_is_held_against(
    client: Client, connect: Callable[..., Client]
) -> None:
    one, other = connect(), connect()
    one("select * from stream s consumer group g limit 5")
    other("select * from stream s consumer group g limit 2")
    other(COMMIT)
    one("begin")
    one(COMMIT)
    with raises("40001"):
        one("commit")


def test_at_without_a_read_is_held_against_what_it_found(
    client: Client, connect: Callable[..., Client]
) -> None:
    client("commit offsets at '{\"0\": 7}' on s consumer group g")
    client("begin")
    with raises("40001"):
        client("commit offset partition 0 at 7 on s consumer group g")
    client("rollback")
    client("begin")
    with raises("22023"):
        client("commit offset partition 0 at 6 on s consumer group g")
    client("rollback")
    client("begin")
    client("commit offset partition 0 at 9 on s consumer group g")
    connect()("commit offset partition 0 at 8 on s consumer group g")
    with raises("40001"):
        client("commit")


def test_racing_workers_move_each_event_once(client: Client, connect: Callable[..., Client]) -> None:
    """Six workers, no member between them: only the compare-and-set keeps them apart."""
    client("insert into t select i from range(1000, 1200) r(i)")
    failures: list[BaseException] = []

    def work() -> None:
        worker = connect()
        try:
            while True:
                worker("begin")
                found = worker("select lsn from stream s consumer group g limit 10")
                for (lsn,) in found:
                    worker("insert into target values ($1)", lsn)
                if found:
                    worker(COMMIT)
                state = state_of(worker, "commit")
                assert state in ("ok", "40001"), state
                if not found and state == "ok":
                    return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert client("select count(*), count(distinct lsn) from target") == [(220, 220)]
