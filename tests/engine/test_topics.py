"""A topic's log: what retention takes from it, what a restart finds, what damage of it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
from hands import DAY_US, Hands
from local_client import Client, raises
from reopening import Reopening

from ducktail.engine.system_views.group_rows import offsets


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def reopen(tmp_path: Path, clock: Hands) -> Iterator[Callable[[], Client]]:
    """Opens the test's file (again), after a change past ducktail if there is one; a session on it."""
    with Reopening(tmp_path / "topics.duckdb", clock) as opening:

        def again(change: str | None = None) -> Client:
            if change is not None:
                opening.close()
                with duckdb.connect(str(opening.path)) as plain:
                    [[log]] = plain.execute(
                        "select table_name from duckdb_tables() where table_name like 'topic_%' limit 1"
                    ).fetchall()
                    plain.execute(change.format(f"ducktail.{log}"))
            return opening()

        yield again


NAMED = "publish to s '{}' with (producer = 'p', sequence = {})"


def test_a_producer_is_known_while_an_event_of_his_is_retained(
    reopen: Callable[[], Client], clock: Hands
) -> None:
    client = reopen()
    client("create topic s with (partitions = 2, retention = '1 day')")
    client("create consumer group g on s")
    client(NAMED.format("a", 1))
    clock.us += DAY_US // 2
    client(NAMED.format("b", 2))
    clock.us += DAY_US // 2 + 1
    client.session.database.retention.look()
    assert client("select lsn from topic s") == [(2,)]
    with raises("72000"):
        client("select * from topic s consumer group g")
    assert client(NAMED.format("b", 2))[0][1] == 2
    assert client(NAMED.format("a", 1)) == []  # repeated, and gone
    clock.us += DAY_US
    client.session.database.retention.look()
    assert client(NAMED.format("c", 1))[0][1] == 3
    client = reopen()
    assert client(NAMED.format("c", 1))[0][1] == 3
    assert client("select lsn, after::varchar from topic s") == [(3, '"c"')]
    assert client.one("select sum(trimmed_events) from ducktail.partitions") == 2


def test_topics_and_tables_share_their_numbers_over_a_restart(reopen: Callable[[], Client]) -> None:
    client = reopen()
    client("create table t (id int primary key)")
    client("create topic s with (partitions = 1)")
    client("create stream st on t")
    for n in range(3):
        client("begin")
        client(f"insert into t values ({n})")
        client(f"publish to s '{n}'")
        client("commit")
    for _ in range(2):
        assert client("select lsn, txid from topic s") == [(2, 3), (4, 4), (6, 5)]
        assert client("select lsn, txid from stream st") == [(1, 3), (3, 4), (5, 5)]
        client = reopen()
    assert client.one("publish to s 'x'") == 0
    assert client.one("select max(lsn) from s") == 7


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("delete from {} where lsn = 2", "of the transaction with LSN 2 to 2 the logs have 0 events"),
        ("drop table {} cascade", "the log of topic"),
        ("insert into {} (lsn, txid) values (9, 9)", "has LSN 9, and the last commit ends with 3"),
    ],
)
def test_damage_of_a_topics_log_is_told(reopen: Callable[..., Client], change: str, told: str) -> None:
    client = reopen()
    client("create topic s with (partitions = 1)")
    for n in range(3):
        client(f"publish to s '{n}'")
    client = reopen(change)
    for statement in ("select * from topic s", "publish to s 'x'", "insert into s select 'x'"):
        with raises("XX001") as found:
            client(statement)
        assert told in f"{found.value.detail}".replace("The log", "the log").replace("Of the", "of the")


def test_a_rollback_leaves_nothing(reopen: Callable[[], Client]) -> None:
    client = reopen()
    client("create topic s with (partitions = 1)")
    client("begin")
    client(NAMED.format("a", 1))
    client("rollback")
    cursor = client.session.database.cursor()
    [[log]] = cursor.execute(
        "select table_name from duckdb_tables() where table_name like 'topic_%'"
    ).fetchall()
    assert cursor.execute(f"select count(*) from ducktail.{log}").fetchall() == [(0,)]
    assert client.one(NAMED.format("b", 1)) == 0
    assert client("select lsn, after::varchar from topic s") == [(1, '"b"')]


def test_a_view_that_is_read_while_a_topic_is_dropped_passes_it_over(reopen: Callable[[], Client]) -> None:
    client = reopen()
    for name in ("going", "kept"):
        client(f"create topic {name} with (partitions = 2, buffer_bytes = 65536)")
        client(f"create consumer group g on {name}")
        client(f"insert into {name} (payload) select repeat('x', 1000) from range(1000)")
    rows = offsets(client.session.database)
    assert next(rows)["stream_name"] == "going"
    client("drop topic going cascade")
    assert [row["stream_name"] for row in rows] == ["kept", "kept"]
