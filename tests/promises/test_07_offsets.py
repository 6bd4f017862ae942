"""Promise 7: a committed LSN never goes back and never becomes zero unasked, nor passes what was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A stream of one partition with events 1 to 10, and a group at its start."""
    made = connect()
    made("create table t (id int primary key)")
    made("create stream s on t with (partitions = 1)")
    made("create consumer group g on s")
    made("insert into t select i from range(10) r(i)")
    return made


def committed(client: Client) -> int:
    """The committed LSN of partition 0."""
    found: int = client.one("select committed_lsn from ducktail.offsets where group_name = 'g'")
    return found


def test_back_and_past_the_end_are_refused(client: Client) -> None:
    client("commit offset partition 0 at 5 on s consumer group g")
    for lsn in (4, 0, 11, 99):
        with raises("22023"):
            client("commit offset partition 0 at $1 on s consumer group g", lsn)
        with raises("22023"):
            client("commit offsets at $1 on s consumer group g", f'{{"0": {lsn}}}')
    assert committed(client) == 5


def test_the_same_again_is_accepted_outside_a_transaction(client: Client) -> None:
    for _ in range(3):
        client("commit offset partition 0 at 5 on s consumer group g")
    assert committed(client) == 5


def test_it_never_passes_what_the_reader_was_given(client: Client, connect: Callable[..., Client]) -> None:
    client("select * from stream s consumer group g limit 3")
    connect()("insert into t values (100)")
    client("commit offsets on s consumer group g")
    assert committed(client) == 3
    assert client("select lsn from stream s consumer group g limit 1") == [(4,)]


def test_a_second_reader_behind_cannot_pull_it_back(client: Client, connect: Callable[..., Client]) -> None:
    other = connect()
    client("select * from stream s consumer group g limit 3")
    other("select * from stream s consumer group g limit 7")
    other("commit offsets on s consumer group g")
    with raises("22023"):
        client("commit offsets on s consumer group g")
    assert committed(client) == 7


def test_it_stands_after_reopening(client: Client, database: Database, tmp_path: Path) -> None:
    client("commit offset partition 0 at 6 on s consumer group g")
    client.close()
    database.close()
    reopened = Database.open(str(tmp_path / "promises.duckdb"))
    again = Client(reopened)
    assert committed(again) == 6
    assert [lsn for (lsn,) in again("select lsn from stream s consumer group g")] == [7, 8, 9, 10]
    again.close()
    reopened.close()


def test_groups_begin_where_they_are_told(client: Client) -> None:
    client("create consumer group late on s start latest")
    client("create consumer group middle on s start after 4")
    with raises("22023"):
        client("create consumer group beyond on s start after 11")
    client("insert into t values (50)")
    assert client("select lsn from stream s consumer group late") == [(11,)]
    assert client("select lsn from stream s consumer group middle limit 1") == [(5,)]
    assert client("select lsn from stream s consumer group g limit 1") == [(1,)]


def test_a_stream_made_again_does_not_resume_at_old_offsets(client: Client) -> None:
    client("select * from stream s consumer group g")
    client("commit offsets on s consumer group g")
    client("drop stream s cascade")
    client("create stream s on t")
    with raises("42704"):
        client("select * from stream s consumer group g")
    client("create consumer group g on s")
    assert client("select * from stream s consumer group g") == []
    client("insert into t values (77)")
    assert client("select after from stream s consumer group g") == [('{"id":77}',)]


def test_many_offsets_fold(client: Client, database: Database) -> None:
    client("insert into t select i from range(1000, 3000) r(i)")
    for lsn in range(1, 400):
        client("commit offset partition 0 at $1 on s consumer group g", lsn)
    before = client.one("select count(*) from ducktail.offset_log")
    database.offsets.fold()
    assert before == 400
    assert client.one("select count(*) from ducktail.offset_log") == 1
    assert committed(client) == 399
