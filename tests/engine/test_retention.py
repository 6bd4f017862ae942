"""Retention by time and by bytes, with a clock of the test's own: what goes, what stays, what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hands import DAY_US, HOUR_US, Hands
from local_client import Client, raises
from reopening import Reopening

from ducktail.engine.buffers.buffer import MARKS_MAX, RetainedBytes
from ducktail.engine.log.deleted_ranges import Edge, Edges, read_edges


@pytest.fixture
def clock() -> Hands:
    """The test's clock."""
    return Hands()


@pytest.fixture
def reopen(tmp_path: Path, clock: Hands) -> Iterator[Callable[[], Client]]:
    """Opens the test's file (again); a session on it."""
    with Reopening(tmp_path / "kept.duckdb", clock) as again:
        yield again


@pytest.fixture
def client(reopen: Callable[[], Client]) -> Client:
    """A session on the test's database."""
    return reopen()


def look(client: Client) -> None:
    """A pass of retention."""
    client.session.database.retention.look()


def log_of(client: Client) -> tuple[int, int]:
    """How many rows the only log and `commits` have."""
    cursor = client.session.database.cursor()
    [[log]] = cursor.execute(
        "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'ducktail' AND table_name LIKE 'log_%'"
    ).fetchall()
    [[rows]] = cursor.execute(f"SELECT count(*) FROM ducktail.{log}").fetchall()
    [[commits]] = cursor.execute("SELECT count(*) FROM ducktail.commits").fetchall()
    return rows, commits


def test_events_go_by_age_in_whole_transactions(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 1, retention = '2 hours')")
    for hour in range(4):
        client("insert into t select i from range($1::int, $1::int + 10) r(i)", hour * 10)
        clock.us += HOUR_US
    look(client)
    # Written at 0, 1, 2, 3 h; it is 4 h: what is older than 2 hours went with its whole transaction,
    # what is exactly as old stays.
    assert client("select min(lsn), max(lsn), count(*) from stream s") == [(21, 40, 20)]
    assert log_of(client) == (20, 2)
    clock.us += DAY_US
    look(client)
    assert client("select * from stream s") == []
    assert log_of(client) == (0, 1)
    client("insert into t values (1000)")
    assert client("select lsn, txid from stream s") == [(41, 6)]


def test_never_and_the_default(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream kept on t with (retention = 'none')")
    client("create stream week on t")
    client("insert into t values (1)")
    assert client("select stream_name, retention from ducktail.streams order by 1") == [
        ("kept", None),
        ("week", "7 days"),
    ]
    clock.us += 7 * DAY_US
    look(client)
    assert client.one("select count(*) from stream week") == 1
    clock.us += 1
    look(client)
    assert client.one("select count(*) from stream week") == 0
    clock.us += 1000 * DAY_US
    look(client)
    assert client.one("select count(*) from stream kept") == 1
    assert log_of(client) == (1, 1)


def test_a_log_that_cannot_be_read_keeps_no_other_from_being_cut(client: Client, clock: Hands) -> None:
    logs = []
    for name in ("a", "b", "c"):
        client(f"create table {name} (id int primary key)")
        client(f"create stream s{name} on {name} with (partitions = 1, retention = '1 hour')")
        client(f"insert into {name} select i from range(10) r(i)")
        logs.append(client.session.database.catalog.tables["main", name].table.log)
    assert client.one("select count(*) from stream sc") == 10
    cursor = client.session.database.cursor()
    cursor.execute(f"DROP TABLE {logs[0]}")
    clock.us += DAY_US
    with raises("42P01"):
        look(client)
    for log in logs[1:]:
        assert cursor.execute(f"SELECT count(*) FROM {log}").fetchall() == [(0,)]


def test_each_stream_has_its_own_edge(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream short on t where id % 2 = 0 with (retention = '1 hour')")
    client("create stream long on t with (retention = '3 hours')")
    for hour in range(5):
        client("insert into t select i from range($1::int, $1::int + 10) r(i)", hour * 10)
        clock.us += HOUR_US
    look(client)
    assert client("select min(lsn), count(*) from stream short") == [(41, 5)]
    assert client("select min(lsn), count(*) from stream long") == [(21, 30)]
    assert log_of(client) == (30, 3)
    lost = "select stream_name, sum(trimmed_events) from ducktail.partitions group by 1 order by 1"
    assert client(lost) == [
        ("long", 20),
        ("short", 20),
    ]
    # Another stream's events do not hold the log back once its own edge has passed them.
    client("drop stream long")
    look(client)
    assert log_of(client) == (10, 2)  # the drop has a line of its own


def test_a_stream_without_events_holds_nothing_back(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream all_of_it on t with (retention = '1 hour')")
    client("create stream none_of_it on t where id < 0 with (retention = '1 hour')")
    client("insert into t select i from range(100) r(i)")
    clock.us += 2 * HOUR_US
    client("insert into t values (1000)")
    look(client)
    assert log_of(client) == (1, 1)


@pytest.mark.slow
def test_bytes_are_a_bound(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key, v text)")
    client("create stream s on t with (retention = 'none', retention_bytes = '100 kB')")
    sizes = []
    for batch in range(60):
        client("insert into t select i, repeat('x', 100) from range($1::int, $1::int + 20) r(i)", batch * 20)
        look(client)
        sizes.append(client.one("select bytes from ducktail.streams"))
    events = client.one("select count(*) from stream s")
    assert max(sizes) <= 100_000
    # A transaction is some 8 kB: less than two are given up too much.
    assert min(sizes[20:]) > 80_000
    assert events < 60 * 20
    assert client.one("select sum(events) from ducktail.partitions") == events
    assert log_of(client)[0] == events
    with raises("72000") as error:
        client("select * from stream s after 1")
    assert error.value.detail is not None
    assert "retention by bytes (retention_bytes = 100000)" in error.value.detail


def test_bytes_after_opening_again(client: Client, reopen: Callable[[], Client]) -> None:
    client("create table t (id int primary key, v text)")
    client("create stream s on t with (partitions = 3, retention = 'none', buffer_bytes = '64 KiB')")
    for batch in range(50):
        rows = f"range({batch * 100}, {batch * 100 + 100}) r(i)"
        client(f"insert into t select i, repeat('x', 100) from {rows}")
    before = client.one("select bytes from ducktail.streams")
    again = reopen()
    after = again.one("select bytes from ducktail.streams")
    assert 0.97 < after / before < 1.03
    stream = again.session.database.catalog.streams["main", "s"]
    with again.session.database.buffers[stream.stream_id].mutex:
        excess = again.session.database.buffers[stream.stream_id].retained_bytes.excess_through(before // 2)
    assert excess is not None and 2300 < excess < 2700


def test_a_group_is_told_exactly_what_it_lost(
    client: Client, clock: Hands, reopen: Callable[[], Client]
) -> None:
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 1, retention = '90 minutes')")
    client("create consumer group g on s")
    for hour in range(3):
        client("insert into t select i from range($1::int, $1::int + 10) r(i)", hour * 10)
        clock.us += HOUR_US
    client("select * from stream s consumer group g limit 4")
    client("commit offsets on s consumer group g")
    state = "select headroom_events, headroom_seconds, trimmed_unread, lag_events from ducktail.offsets"
    assert client(state) == [(4, 0.0, 0, 26)]
    look(client)
    now = client
    for _ in range(2):
        assert now(state) == [(0, 1800.0, 16, 10)]
        with raises("72000") as error:
            now("select * from stream s consumer group g")
        assert error.value.message == (
            'consumer group "g" is at a gap in partition 0 of stream "s": what follows LSN 4 has been trimmed'
        )
        assert error.value.detail == (
            "16 events after LSN 4, up to LSN 20, are gone: retention by time (retention = '01:30:00'). "
            "The first available one has LSN 21."
        )
        now = reopen()
    clock.us += DAY_US
    look(now)
    assert now(state) == [(0, None, 26, 0)]
    with raises("72000") as error:
        now("select * from stream s consumer group g")
    assert error.value.detail is not None and "No later one is there now." in error.value.detail


def test_on_gap_earliest_goes_on_with_a_warning(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 1, retention = '1 hour')")
    client("create consumer group g on s with (on_gap = 'earliest')")
    client("insert into t select i from range(10) r(i)")
    clock.us += 2 * HOUR_US
    client("insert into t select i from range(10, 15) r(i)")
    look(client)
    client.session.take_notices()
    for query in (
        "select lsn from stream s consumer group g",
        "select lsn from stream s consumer group g where op = 'insert' and (key->>'id')::int > 0",
    ):
        assert [lsn for (lsn,) in client(query)] == [11, 12, 13, 14, 15]
        [warning] = client.session.take_notices()
        assert (warning.severity, warning.sqlstate) == ("WARNING", "72000")
        assert warning.detail == (
            "10 events after LSN 0, up to LSN 10, are gone: retention by time (retention = '01:00:00'). "
            "The first available one has LSN 11."
        )
        # The committed LSN has not moved by itself.
        assert client("select committed_lsn, trimmed_unread from ducktail.offsets") == [(0, 10)]
    client("commit offsets on s consumer group g")
    assert client("select committed_lsn, trimmed_unread from ducktail.offsets") == [(15, 0)]
    assert client("select lsn from stream s consumer group g") == []
    assert client.session.take_notices() == []


def test_first_lsns_are_known_beyond_the_buffers(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key, v text)")
    client("create stream s on t with (partitions = 4, retention = '1 hour', buffer_bytes = '64 KiB')")
    client("insert into t select i, 'x' from range(5000) r(i)")
    clock.us += 2 * HOUR_US
    client("insert into t select i, 'x' from range(5000, 10000) r(i)")
    look(client)
    found = client("select partition, first_lsn from ducktail.partitions order by 1")
    assert found == client("select partition, min(lsn) from s group by 1 order by 1")
    [buffer] = client.session.database.buffers
    assert min(partition.unbuffered_through_lsn for partition in buffer.partitions) > 5010


def test_marks_stay_few_and_give_up_little() -> None:
    kept = RetainedBytes()
    for lsn in range(1, 200_001):
        kept.add(lsn, 10)
    assert kept.total == 2_000_000
    assert len(kept._lsns) <= MARKS_MAX
    through = kept.excess_through(1_000_000)
    assert through is not None and 100_000 <= through < 100_500
    kept.trim(through)
    assert kept.total <= 1_000_000
    assert kept.excess_through(1_000_000) is None
    kept.trim(200_000)
    assert kept.total == 0


def test_the_last_stream_takes_the_log_with_it(client: Client) -> None:
    client("create table t (id int primary key)")
    client("create stream s on t")
    client("drop stream s")
    cursor = client.session.database.cursor()
    assert cursor.execute("SELECT count(*) FROM ducktail.table_catalog").fetchall() == [(0,)]
    logs = "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'ducktail' AND table_name LIKE 'log_%'"
    assert cursor.execute(logs).fetchall() == [(0,)]


def test_places_by_time(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 2, retention = '5 hours')")
    for hour in range(4):
        client("insert into t select i from range($1::int, $1::int + 10) r(i)", hour * 10)
        clock.us += HOUR_US
    start_us = clock.us - 4 * HOUR_US

    def unread(at_us: int, zone: str = "UTC") -> int:
        client("set timezone = '" + zone + "'")
        shown = client.one("select make_timestamptz($1::bigint)::timestamp::varchar", at_us)
        client(f"create consumer group g on s start at timestamp '{shown}'")
        found = client.one("select count(*) from stream s consumer group g")
        assert client(f"alter consumer group g on s seek at timestamp '{shown}'") == [
            (number, lsn, lsn, 0, 0)
            for number, lsn in client("select partition, committed_lsn from ducktail.offsets order by 1")
        ]
        client("drop consumer group g on s")
        return int(found)

    assert unread(start_us - 1) == 40
    assert unread(start_us) == 40
    assert unread(start_us + 1) == 30
    assert unread(start_us + HOUR_US) == 30
    assert unread(start_us + HOUR_US, "America/New_York") == 30
    assert unread(start_us + 3 * HOUR_US) == 10
    assert unread(start_us + 3 * HOUR_US + 1) == 0
    assert unread(clock.us + DAY_US) == 0
    clock.us += int(2.5 * HOUR_US)
    look(client)
    assert unread(start_us) == 20
    assert unread(start_us + 3 * HOUR_US) == 10


def test_seek_leaves_a_gap_behind(client: Client, clock: Hands) -> None:
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 1, retention = '1 hour')")
    client("create consumer group g on s")
    client("insert into t select i from range(10) r(i)")
    clock.us += 2 * HOUR_US
    client("insert into t select i from range(10, 15) r(i)")
    look(client)
    with raises("72000"):
        client("select * from stream s consumer group g")
    assert client("alter consumer group g on s seek to earliest") == [(0, 0, 10, 0, 0)]
    assert client.one("select count(*) from stream s consumer group g") == 5
    assert client("alter consumer group g on s seek to after 3 dry run") == [(0, 10, 3, 0, 0)]
    client("alter consumer group g on s seek to after 3")
    with raises("72000") as error:
        client("select * from stream s consumer group g")
    # Where it never stood only the most that may be gone is known.
    assert error.value.detail is not None and error.value.detail.startswith("At most 10 events after LSN 3")


def test_an_edge_that_comes_with_a_partition_while_it_counts_stands(
    client: Client, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    client("create topic t with (partitions = 2, retention = '1 hour')")
    client("insert into t (key, payload) select i, i from range(20) r(i)")
    clock.us += 2 * HOUR_US
    database = client.session.database
    (topic,) = database.catalog.streams.values()
    locked, came = database.retention.steps.locked, Edges(0, {1: Edge(1, 7, "bytes")})

    @contextmanager
    def late() -> Iterator[None]:
        with locked():
            cursor = database.cursor()
            for statement in came.rows(topic.stream_id):
                cursor.execute(statement).fetchall()
            cursor.close()
            yield

    with monkeypatch.context() as patched:
        patched.setattr(database.retention.steps, "locked", late)
        look(client)
    cursor = database.cursor()
    assert read_edges(cursor, topic.stream_id) == came
    look(client)
    assert read_edges(cursor, topic.stream_id).partitions[1].events > 7
    cursor.close()
