"""Parked events: bounds, what retention and a kill leave of them, old snapshots, filters, topics."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_client import Client, raises
from reopening import QUIET
from server_process import ServerProcess

from ducktail.engine.database import Database
from ducktail.engine.definitions import parking
from ducktail.engine.log.log import side_log

READ = "select lsn from stream s consumer group g"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A session on a database with a stream of one partition and a group that parks by key."""
    database = Database.open(str(tmp_path / "parked.duckdb"), QUIET)
    found = Client(database)
    found("create table t (id int primary key, v int)")
    found("create stream s on t with (partitions = 1)")
    found("create consumer group g on s with (on_park = 'key')")
    found("insert into t select i, 0 from range(4) r(i)")
    yield found
    found.close()
    database.close()


def trim(client: Client, through_lsn: int) -> None:
    """Retention takes all up to an LSN away."""
    database = client.session.database
    [stream] = database.catalog.streams.values()
    database.retention.trim(stream, through_lsn)
    database.retention.look()


def test_retention_takes_nothing_of_a_parked_key(client: Client) -> None:
    client("alter consumer group g on s park partition 0 at 2")
    client('set ducktail.annotation = \'{"who": "me"}\'')
    for value in (1, 2):
        client(f"update t set v = {value}")
    assert client(READ) == [(lsn,) for lsn in (1, 3, 4, 5, 7, 8, 9, 11, 12)]
    client("commit offsets on s consumer group g")
    trim(client, 8)  # LSN 6 goes, LSN 10 stays: both are behind LSN 2.
    assert client("select lsn, behind, after::varchar from ducktail.parked") == [(2, 2, '{"id":1,"v":0}')]
    trim(client, 12)
    assert client("select count(*) from stream s") == [(0,)]
    client("alter consumer group g on s release partition 0 at 2")
    columns = "lsn, op, before::varchar, after::varchar, txid, tx_seq, tx_last"
    assert client(f"select {columns} from stream s consumer group g") == [
        (2, "insert", None, '{"id":1,"v":0}', 3, 1, False),
        (6, "update", '{"id":1,"v":0}', '{"id":1,"v":1}', 5, 1, False),
        (10, "update", '{"id":1,"v":1}', '{"id":1,"v":2}', 6, 1, False),
    ]
    # Their lines in `commits` have gone, and their times are known all the same.
    at = client.one("select commit_time::varchar from stream s consumer group g where lsn = 6")
    read_at = f"{READ} where commit_time {{}} '{at}'"
    assert client(read_at.format("<=")) == [(2,), (6,)]
    assert client(read_at.format("=")) == [(6,)]
    assert client(read_at.format(">=")) == [(6,), (10,)]
    notes = client("select headers->'annotation'->>'who' from stream s consumer group g")
    assert notes == [(None,), ("me",), ("me",)]
    typed = client("select _change_type, v, _lsn from stream s consumer group g envelope changes")
    assert [row[1:] for row in typed] == [(0, 2), (0, 6), (1, 6), (1, 10), (2, 10)]
    client("commit offsets on s consumer group g")
    assert client(READ) == []


def test_a_read_that_is_under_way_loses_nothing_by_a_release(client: Client) -> None:
    client("alter consumer group g on s park partition 0 at 2")
    client("update t set v = 1")
    assert client(READ) == [(1,), (3,), (4,), (5,), (7,), (8,)]
    other = Client(client.session.database)
    other("alter consumer group g on s release partition 0")
    client("commit offsets on s consumer group g")
    # Neither the event nor what was behind it had been given.
    assert client(READ) == [(2,), (6,)]
    # By number, only what the latest read of who commits has given is covered.
    assert client(f"{READ} limit 1") == [(2,)]
    client("commit offset partition 0 at 8 on s consumer group g")
    assert client(READ) == [(6,)]
    other.close()


def test_released_and_not_committed_yet_they_are_read_in_their_places(client: Client) -> None:
    client("alter consumer group g on s park partition 0 at 2")
    client("alter consumer group g on s release partition 0")
    assert client(READ) == [(1,), (2,), (3,), (4,)]
    assert client(f"{READ} limit 2") == [(1,), (2,)]
    client("commit offsets on s consumer group g")
    assert client("select * from ducktail.parked") == []
    assert client(READ) == [(3,), (4,)]


def test_events_of_a_key_stay_in_order(client: Client) -> None:
    client("update t set v = 1 where id = 1")
    client("alter consumer group g on s park partition 0 at 5")
    client("alter consumer group g on s park partition 0 at 2")
    client("update t set v = 2 where id = 1")
    with raises("42710"):
        client("alter consumer group g on s park partition 0 at 6")
    with raises("55000"):
        client("alter consumer group g on s release partition 0 at 5")
    client(READ)
    client("commit offsets on s consumer group g")
    client("alter consumer group g on s release partition 0 at 2")
    assert client(READ) == [(2,)]
    client("alter consumer group g on s release partition 0 at 5")
    assert client(READ) == [(2,), (5,), (6,)]


def test_a_release_of_nothing_is_told(client: Client) -> None:
    client("alter consumer group g on s park partition 0 at 2")
    client("alter consumer group g on s release partition 0")
    assert client.session.notices.take() == []
    client("alter consumer group g on s release partition 0")
    [notice] = client.session.notices.take()
    assert notice.message == 'consumer group "g" has no parked events in partition 0, skipping'
    with raises("42704"):
        client("alter consumer group g on s release partition 0 at 2")


def test_a_wait_is_ended_by_a_release_and_by_nothing_that_is_parked(client: Client) -> None:
    client("alter consumer group g on s park partition 0 at 2")
    client(READ)
    client("commit offsets on s consumer group g")
    database, answers = client.session.database, queue.Queue[object]()

    def waits() -> None:
        other = Client(database)
        answers.put(other(f"{READ} wait '60 s'"))
        other.close()

    thread = threading.Thread(target=waits)
    thread.start()
    while not database.polls.count:
        time.sleep(0.01)
    client("update t set v = 1 where id = 1")  # It stands behind LSN 2.
    client("select count(*) from stream s")
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.2)
    client("alter consumer group g on s release partition 0")
    assert answers.get(timeout=30) == [(2,), (5,)]
    thread.join()


def test_bounds(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "PARKED_MAX", 1)
    monkeypatch.setattr(parking, "RELEASED_MAX", 1)
    with raises("54000"):
        client(f"alter consumer group g on s park partition 0 at 1 reason '{'x' * 1001}'")
    client("alter consumer group g on s park partition 0 at 1")
    with raises("54000"):
        client("alter consumer group g on s park partition 0 at 2")
    client("update t set v = 1")
    with raises("54000"):
        client("alter consumer group g on s release partition 0")
    assert client("select state from ducktail.parked") == [("parked",)]


def test_a_transaction_of_an_old_snapshot(client: Client) -> None:
    old = Client(client.session.database)
    old("begin")
    old("select count(*) from t")
    client("insert into t values (10, 0)")
    with raises("40001"):
        old("alter consumer group g on s park partition 0 at 5")
    old("rollback")
    old("begin")
    old("select count(*) from t")
    client("alter consumer group g on s park partition 0 at 5")
    with raises("40001"):
        old("alter consumer group g on s release partition 0")
    old("rollback")
    old.close()


def test_a_topic_parks_as_well(client: Client) -> None:
    client("create topic jobs with (partitions = 1)")
    client("create consumer group w on jobs with (on_park = 'key')")
    for number in range(3):
        client(f"publish to jobs key 'a' '{{\"n\": {number}}}'")
    client("publish to jobs '{\"n\": 3}'")
    read = "select lsn, after::varchar from topic jobs consumer group w"
    lsns = [lsn for lsn, _ in client(read)]
    client(f"alter consumer group w on jobs park partition 0 at {lsns[0]}")
    assert [lsn for lsn, _ in client(read)] == lsns[3:]
    client("commit offsets on jobs consumer group w")
    client("alter consumer group w on jobs release partition 0")
    assert [lsn for lsn, _ in client(read)] == lsns[:3]
    client("drop topic jobs cascade")


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "killed.duckdb"
    with ServerProcess(path, ("--port", "0")) as server, server.connect(autocommit=True) as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("create stream s on t with (partitions = 1)")
        connection.execute("create consumer group g on s")
        connection.execute("insert into t select i from range(20) r(i)")
        for lsn in (3, 5, 7):
            connection.execute(f"alter consumer group g on s park partition 0 at {lsn} reason 'kept'")
        connection.execute("commit offset partition 0 at 20 on s consumer group g")
        for lsn in (3, 5):
            connection.execute(f"alter consumer group g on s release partition 0 at {lsn}")
        assert connection.execute(f"{READ} limit 1").fetchall() == [(3,)]
        connection.execute("commit offsets on s consumer group g")
        server.kill()
    with ServerProcess(path, ("--port", "0")) as server, server.connect() as connection:
        rows = connection.execute("select lsn, state, reason from ducktail.parked order by 1").fetchall()
        assert rows == [(5, "released", "kept"), (7, "parked", "kept")]
        assert connection.execute(READ).fetchall() == [(5,)]


def test_a_parked_event_of_a_topic_stays_as_well(client: Client) -> None:
    client("create topic p with (partitions = 1)")
    client("create consumer group g on p with (on_park = 'key')")
    client("publish to p select v, 'k' from (values ('poison'), ('behind')) r (v)")
    client("publish to p 'other'")
    first = client.one("select min(lsn) from topic p")
    client(f"alter consumer group g on p park partition 0 at {first}")
    read = "select lsn, after ->> '$' from topic p consumer group g"
    assert client(read) == [(first + 2, "other")]
    client("commit offsets on p consumer group g")
    database = client.session.database
    [topic] = [stream for stream in database.catalog.streams.values() if stream.topic]
    database.retention.trim(topic, first + 2)
    database.retention.look()
    assert client("select count(*) from topic p") == [(0,)]
    parked = "select lsn, after ->> '$', behind from ducktail.parked where stream_name = 'p'"
    assert client(parked) == [(first, "poison", 1)]
    client(f"alter consumer group g on p release partition 0 at {first}")
    assert client(read) == [(first, "poison"), (first + 1, "behind")]
    client("commit offsets on p consumer group g")
    assert client(read) == []
    database.retention.look()
    assert client("select count(*) from ducktail.parked_topic_" + str(topic.table_id)) == [(0,)]


def test_a_released_event_without_its_copy_is_damage(client: Client) -> None:
    client("alter consumer group g on s park partition 0 at 2")
    client(READ)
    client("commit offsets on s consumer group g")
    client("alter consumer group g on s release partition 0 at 2")
    cursor = client.session.database.cursor()
    [captured] = client.session.database.catalog.tables.values()
    cursor.execute(f"DELETE FROM {side_log(captured.table.log)}").fetchall()
    cursor.close()
    with raises("XX001"):
        client(READ)


def test_what_an_onlooker_was_given_is_not_covered_by_others(client: Client) -> None:
    assert client(READ) == [(1,), (2,), (3,), (4,)]
    other = Client(client.session.database)
    client("alter consumer group g on s park partition 0 at 2")
    client("commit offset partition 0 at 3 on s consumer group g")
    other("alter consumer group g on s release partition 0 at 2")
    assert other(READ) == [(2,), (4,)]
    client("commit offset partition 0 at 4 on s consumer group g")  # It has never had the released event.
    assert client(READ) == [(2,)]
    other("begin")
    assert other(READ) == [(2,)]
    other("rollback")
    other("commit offset partition 0 at 4 on s consumer group g")
    assert client(READ) == [(2,)]
    client("commit offset partition 0 at 4 on s consumer group g")
    assert client(READ) == []
    other.close()
