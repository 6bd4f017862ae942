"""Promise 6: reading moves nothing. And each row of the read-position table of docs/sql.md."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from local_client import Client, raises

from ducktail.engine.errors import DucktailError
from ducktail.engine.waiting import drive


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A stream of four partitions with events 1 to 12, and a group at its start."""
    made = connect()
    made("create table t (id int primary key, v int)")
    made("create stream s on t with (partitions = 4)")
    made("create consumer group g on s")
    made("insert into t select i, i * 10 from range(1, 11) r(i)")
    made("update t set v = 0 where id = 1")
    made("delete from t where id = 2")
    return made


def ends(client: Client, through: int = 10**9) -> dict[str, int]:
    """The last LSN of each partition, up to one LSN."""
    rows = client("select partition, max(lsn) from s where lsn <= $1 group by 1", through)
    return {str(p): 0 for p in range(4)} | {str(p): lsn for p, lsn in rows}


def position(client: Client) -> dict[str, int]:
    """What COMMIT OFFSETS would commit."""
    found: dict[str, int] = json.loads(client.one("show read position on s consumer group g"))
    return found


def test_the_same_read_gives_the_same_events(client: Client) -> None:
    first = client("select * from stream s consumer group g limit 100")
    assert len(first) == 12
    assert client("select * from stream s consumer group g limit 100") == first
    assert client("select * from stream s consumer group g limit 5") == first[:5]
    assert client("select lsn from stream s partition 2 consumer group g") == [
        (row[0],) for row in first if row[1] == 2
    ]


@pytest.mark.parametrize(
    "query",
    [
        "select * from stream s consumer group g",
        "select * from stream s consumer group g order by lsn",
        "select * from stream s consumer group g limit 100",
        "select lsn, op from stream s consumer group g",
        "select after->>'v' as v from stream s consumer group g where op = 'insert'",
        "select * from stream s consumer group g where false or op = 'nothing'",
        "select * from (select * from stream s consumer group g limit 1000) t",
        "with w as (select * from stream s consumer group g) select op from w where lsn > 3",
    ],
)
def test_a_scan_that_ran_to_its_end_counts_whole(client: Client, query: str) -> None:
    client(query)
    assert position(client) == ends(client)


@pytest.mark.parametrize(
    ("query", "last"),
    [
        ("select * from stream s consumer group g limit 5", 5),
        ("select lsn from stream s consumer group g order by lsn limit 5", 5),
        ("select op from stream s consumer group g where v_or_op(op) limit 4", 4),
        ("select * from (select * from stream s consumer group g limit 7) t", 7),
    ],
)
def test_where_limit_stopped_it_the_last_row_sent_counts(client: Client, query: str, last: int) -> None:
    client(query.replace("v_or_op(op)", "op in ('insert', 'update')"))
    assert position(client) == ends(client, last)


def test_a_read_fetched_in_part_counts_what_was_fetched(client: Client) -> None:
    statement = drive(client.session.parse("select * from stream s consumer group g"))
    result = drive(client.session.execute(statement))
    batch = result.fetch(3)
    assert batch is not None and batch.row_count == 3
    result.suspend()
    result.close()
    assert position(client) == ends(client, 3)


def test_a_read_that_is_given_up_in_the_middle_of_an_answer_sets_none(client: Client) -> None:
    read = drive(client.session.parse("select * from stream s consumer group g"))
    result = drive(client.session.execute(read))
    assert result.fetch(3) is not None
    result.close()
    with raises("55000"):
        position(client)


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from stream s consumer group g",
        "select op, count(*) from stream s consumer group g group by op",
        "select * from stream s consumer group g order by op",
        "select x.lsn from stream s consumer group g as x join t on t.id = (x.key->>'id')::int",
        "insert into copy_of select lsn from stream s consumer group g",
        "create table other as select lsn from stream s consumer group g",
    ],
)
def test_all_that_the_scan_gave_counts_once_the_answer_is_complete(client: Client, query: str) -> None:
    client("create table copy_of (lsn bigint)")
    client(query)
    assert position(client) == ends(client)


@pytest.mark.parametrize(
    ("query", "last"),
    [
        ("select count(*) from (select * from stream s consumer group g limit 6) t", 6),
        ("insert into copy_of select lsn from (select * from stream s consumer group g limit 6) t", 6),
    ],
)
def test_a_limit_inside_is_what_was_given(client: Client, query: str, last: int) -> None:
    client("create table copy_of (lsn bigint)")
    client(query)
    assert position(client) == ends(client, last)


def test_an_aggregate_fetched_in_part_sets_none(client: Client) -> None:
    text = "select lsn, count(*) from stream s consumer group g group by lsn"
    result = drive(client.session.execute(drive(client.session.parse(text))))
    result.fetch(2)
    result.close()
    with raises("55000"):
        position(client)


@pytest.mark.parametrize(
    "query",
    [
        "explain select * from stream s consumer group g",
        "select * from stream s consumer group g where 1 = 0",
        "select t.* from (select * from stream s consumer group g limit 1000) t where 1 = 0",
        "select * from stream s consumer group g limit 0",
        "select * from stream s after 0",
        "select * from s",
    ],
)
def test_these_leave_it_as_it_was(client: Client, query: str) -> None:
    client("select * from stream s consumer group g limit 5")
    before = position(client)
    client(query)
    assert position(client) == before


def test_a_group_read_with_after_leaves_none(client: Client) -> None:
    client("select * from stream s consumer group g limit 5")
    client("select * from stream s consumer group g after 3")
    with raises("55000"):
        position(client)


def test_describe_leaves_it_as_it_was(client: Client) -> None:
    client("select * from stream s consumer group g limit 5")
    before = position(client)
    statement = drive(client.session.parse("select * from stream s consumer group g"))
    assert statement.columns is not None and len(statement.columns) == 13
    assert position(client) == before


@pytest.mark.parametrize(
    "query",
    [
        "select * from stream s consumer group g limit 5 offset 2",
        "select distinct op from stream s consumer group g limit 1",
        "select count(*) from stream s consumer group g limit 1",
        "select * from stream s consumer group g order by op limit 3",
        "select a.lsn from stream s consumer group g a, stream s consumer group g b limit 3",
        "select 1 where exists (select 1 from stream s consumer group g)",
    ],
)
def test_every_other_shape_has_none_and_says_why(client: Client, query: str) -> None:
    client("select * from stream s consumer group g limit 5")
    client(query)
    with raises("55000") as error:
        client("commit offsets on s consumer group g")
    assert "no read position" in error.value.message


def test_a_partition_that_was_not_scanned_keeps_its_position(client: Client) -> None:
    client("select * from stream s consumer group g limit 5")
    before = position(client)
    client("select * from stream s consumer group g where partition = 2")
    after = position(client)
    assert after == before | {"2": ends(client)["2"]}
    client("select * from stream s consumer group g where partition in ($1)", 1)
    assert position(client) == after | {"1": ends(client)["1"]}


def test_a_failed_read_voids_it(client: Client) -> None:
    client("select * from stream s consumer group g limit 5")
    with raises("22P02"):
        client("select op::int from stream s consumer group g")
    with raises("55000"):
        client("commit offsets on s consumer group g")


def test_a_rolled_back_read_voids_it(client: Client) -> None:
    client("begin")
    client("select * from stream s consumer group g limit 5")
    client("rollback")
    with raises("55000"):
        client("commit offsets on s consumer group g")


def test_a_session_that_has_read_nothing_has_none(client: Client, connect: Callable[..., Client]) -> None:
    with raises("55000"):
        connect()("commit offsets on s consumer group g")


def test_the_shown_position_commits_from_any_connection(
    client: Client, connect: Callable[..., Client]
) -> None:
    client("select * from stream s consumer group g limit 5")
    shown: Any = client.one("show read position on s consumer group g")
    other = connect()
    other("commit offsets at $1 on s consumer group g", shown)
    assert [lsn for (lsn,) in other("select lsn from stream s consumer group g")] == list(range(6, 13))


def test_an_empty_answer_can_be_committed(client: Client) -> None:
    client("select * from stream s consumer group g")
    client("commit offsets on s consumer group g")
    assert client("select * from stream s consumer group g") == []
    client("commit offsets on s consumer group g")


def test_a_cancelled_read_loses_nothing(client: Client, connect: Callable[..., Client]) -> None:
    reader = connect()
    found: list[str] = []

    def read() -> None:
        try:
            reader("select count(*) from stream s consumer group g, range(1000000000000) r")
        except DucktailError as error:
            found.append(error.sqlstate)

    thread = threading.Thread(target=read)
    thread.start()
    while thread.is_alive():
        reader.session.cancel()
        thread.join(0.01)
    assert found == ["57014"]
    with raises("55000"):
        reader("commit offsets on s consumer group g")
    assert len(reader("select * from stream s consumer group g")) == 12


@pytest.mark.parametrize(
    "query",
    [
        "select * from stream s consumer group g limit 20000",
        "select lsn + 1 from stream s consumer group g limit 20000",
    ],
)
def test_a_read_whose_stream_is_dropped_meanwhile_says_so(connect: Callable[..., Client], query: str) -> None:
    reader, other = connect(), connect()
    reader("create table t (id int primary key)")
    reader("create stream s on t")
    reader("create consumer group g on s")
    reader("insert into t from range(20000)")
    result = drive(reader.session.execute(drive(reader.session.parse(query))))
    assert result.fetch(10) is not None
    other("drop stream s cascade")
    with raises("42704"):
        while result.fetch(None) is not None:
            pass
    with raises("42704"):
        reader("show read position on s consumer group g")
