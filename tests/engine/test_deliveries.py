"""Delivery counts: ranges, the reads that count, parking, members, restarts and kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hands import SECOND_US, Hands
from local_client import Client, raises
from reopening import QUIET
from server_process import ServerProcess

from ducktail.engine.database import Database
from ducktail.engine.groups import deliveries as counts
from ducktail.engine.groups.deliveries import DeliveryRange, delivered, events_at_once, without

READ = "select lsn from stream s consumer group g"
COUNTED = "select lsn, deliveries from stream s consumer group g with deliveries"
RANGES = "select partition, first_lsn, last_lsn, deliveries, together from ducktail.delivery_counts"
PARKED = "select lsn, deliveries, members from ducktail.parked order by lsn"
COMMIT = "commit offsets on s consumer group g"


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def client(tmp_path: Path, clock: Hands) -> Iterator[Client]:
    """A session on a stream of one partition with 1,000 events, and a group with five deliveries."""
    database = Database.open(str(tmp_path / "counted.duckdb"), QUIET, clock)
    found = Client(database)
    prepare(found)
    yield found
    found.close()
    database.close()


def prepare(client: Client) -> None:
    """The stream, its events, and the group."""
    client("create table t (id int primary key, v varchar)")
    client("create stream s on t with (partitions = 1)")
    client("create consumer group g on s with (max_deliveries = 5)")
    client("insert into t select i, i::varchar from range(1, 1001) r(i)")


def lsns(rows: list[Any]) -> list[int]:
    """The LSNs of rows."""
    return [row[0] for row in rows]


# Ranges.


def test_a_delivery_counts_what_it_covers_and_splits_the_rest() -> None:
    first = delivered((), 1, 100, 100, "a")
    assert first == (DeliveryRange(1, 100, 1, 100, ("a",)),)
    second = delivered(first, 1, 10, 10, "b")
    assert second == (DeliveryRange(1, 10, 2, 10, ("a", "b")), DeliveryRange(11, 100, 1, 100, ("a",)))
    third = delivered(second, 5, 120, 99, "a")
    assert third == (
        DeliveryRange(1, 4, 2, 10, ("a", "b")),
        DeliveryRange(5, 10, 3, 99, ("b", "a")),
        DeliveryRange(11, 100, 2, 99, ("a",)),
        DeliveryRange(101, 120, 1, 99, ("a",)),
    )
    assert without(third, [5, 120]) == (
        DeliveryRange(1, 4, 2, 10, ("a", "b")),
        DeliveryRange(6, 10, 3, 99, ("b", "a")),
        DeliveryRange(11, 100, 2, 99, ("a",)),
        DeliveryRange(101, 119, 1, 99, ("a",)),
    )


def test_equal_neighbours_are_one_range() -> None:
    found = delivered(delivered((), 1, 10, 20, None), 11, 20, 20, None)
    assert found == (DeliveryRange(1, 20, 1, 20),)


def test_ranges_are_bounded_and_never_count_too_much() -> None:
    ranges: tuple[DeliveryRange, ...] = ()
    for lsn in range(2 * counts.RANGES_MAX):
        ranges = delivered(ranges, 3 * lsn, 3 * lsn, 1, None)
        ranges = delivered(ranges, 3 * lsn, 3 * lsn, 1, None)
    assert len(ranges) == counts.RANGES_MAX
    assert {one.deliveries for one in ranges} == {2}
    # What was joined is never taken for an event that was delivered alone.
    assert [one for one in ranges if one.first_lsn < one.last_lsn and one.together == 1] == []


@pytest.mark.parametrize(
    ("max_deliveries", "together", "sizes"),
    [
        (5, 1000, [178, 32, 6, 1]),
        (2, 1000, [1]),
        (3, 9, [3, 1]),
        (5, 1, [1, 1, 1, 1]),
        (7, 1_000_000, [100_000, 10_000, 1_000, 100, 10, 1]),
    ],
)
def test_each_attempt_is_smaller_and_the_last_one_is_of_one_event(
    max_deliveries: int, together: int, sizes: list[int]
) -> None:
    found = []
    for done in range(1, max_deliveries):
        size = events_at_once(DeliveryRange(1, 9, done, together), max_deliveries)
        assert size is not None
        found.append(size)
        together = size
    assert found == sizes
    assert events_at_once(None, max_deliveries) is None
    assert events_at_once(None, 1) == 1


# One consumer.


def test_the_poisonous_event_alone_is_parked(client: Client) -> None:
    """A consumer that dies at LSN 700 loses that event, and receives each other one."""
    processed: list[int] = []
    reads = 0
    while rows := client(f"{COUNTED} limit 1000"):
        reads += 1
        assert all(1 <= deliveries <= 5 for _, deliveries in rows)
        if 700 in lsns(rows):
            continue
        processed += lsns(rows)
        client(COMMIT)
    assert processed == [lsn for lsn in range(1, 1001) if lsn != 700]
    assert client(PARKED) == [(700, 5, [])]
    assert client.one("select reason from ducktail.parked") == "delivered 5 times and not committed"
    # 1000, 178 and so on: fewer reads than one for each event.
    assert reads < 40
    assert client(RANGES) == []


def test_the_sizes_of_the_attempts(client: Client) -> None:
    found = [len(client(READ)) for _ in range(5)]
    assert found == [1000, 178, 32, 6, 1]
    client.session.notices.take()
    assert client(f"{COUNTED}") == [(2, 5)]
    [warning] = client.session.notices.take()
    assert (warning.severity, warning.sqlstate) == ("WARNING", "01000")
    assert warning.message == 'consumer group "g" has parked LSN 1 of partition 0'
    assert client(RANGES) == [
        (0, 2, 2, 5, 1),
        (0, 3, 6, 4, 6),
        (0, 7, 32, 3, 32),
        (0, 33, 178, 2, 178),
        (0, 179, 1000, 1, 1000),
    ]


def test_a_commit_of_a_part_ends_its_counts(client: Client) -> None:
    client(f"{READ} limit 10")
    client("commit offset partition 0 at 4 on s consumer group g")
    assert client(RANGES) == [(0, 1, 10, 1, 10)]
    # Six are left of the failed answer: 10 ** (3/4) of them at once, with those behind.
    assert client(f"{COUNTED} limit 8") == [(lsn, 2) for lsn in range(5, 11)]
    assert client(RANGES) == [(0, 5, 10, 2, 6)]


def test_what_is_no_delivery(client: Client) -> None:
    client(f"{READ} limit 0")
    client("select lsn from stream s consumer group g after 0 limit 3")
    client("select lsn from stream s limit 3")
    client(f"{READ} where false")
    client(f"explain {READ}")
    # It sets no read position, so nothing of it could be committed.
    client("select count(*) from stream s consumer group g limit 1")
    assert client(RANGES) == []
    assert client("select lsn, deliveries from stream s with deliveries limit 1") == [(1, None)]
    again = "select deliveries from stream s consumer group g after 0 with deliveries limit 1"
    assert client(again) == [(None,)]


def test_a_group_without_the_option_counts_nothing(client: Client) -> None:
    client("create consumer group plain on s")
    read = "select lsn, deliveries from stream s consumer group plain with deliveries limit 2"
    assert [client(read) for _ in range(3)] == [[(1, None), (2, None)]] * 3
    assert client(RANGES) == []
    assert client.one("select count(*) from ducktail.delivery_log") == 0


def test_rows_that_where_rejects_are_no_deliveries(client: Client) -> None:
    """A consumer of few events, which commits only when it has some, parks none of the others."""
    for _ in range(7):
        assert client(f"{READ} where after->>'v' = 'none'") == []
    assert client(RANGES) == []
    read = f"{READ} where (after->>'id')::int % 100 = 0 limit 3"
    assert client(read) == [(100,), (200,), (300,)]
    assert client(RANGES) == [(0, 100, 300, 1, 3)]
    found = [len(client(read)) for _ in range(4)]
    assert found == [3, 3, 2, 1]
    client(read)
    assert client(PARKED) == [(100, 5, [])]


def test_an_update_in_both_its_rows_is_one_event(client: Client) -> None:
    client(READ)
    client(COMMIT)
    client("update t set v = 'new' where id < 4")
    read = "select _change_type, id, _lsn from stream s consumer group g envelope changes"
    for size in (3, 3, 3, 2, 1):
        rows = client(f"{read} where id > 0")
        assert [row[0] for row in rows] == ["update_preimage", "update_postimage"] * size
    assert [row[1] for row in client(read)] == [2, 2]
    assert client(PARKED) == [(1001, 5, [])]


def test_a_statement_that_fails_on_an_event_counts(client: Client) -> None:
    """INSERT ... SELECT whose cast fails: nothing was sent, and the event is found and parked."""
    client("update t set v = 'poison' where id = 777")
    client("create table target (lsn bigint, v int)")
    done = failed = 0
    while client.one("select sum(lag_events)::int from ducktail.offsets"):
        client("begin")
        try:
            client(
                "insert into target select lsn, (after->>'v')::int from stream s consumer group g limit 500"
            )
            client(COMMIT)
            client("commit")
            done += 1
        except Exception:
            client("rollback")
            failed += 1
        assert done + failed < 60
    assert failed == 5
    assert client(PARKED) == [(1001, 5, [])]
    assert client("select count(*), count(distinct lsn), max(lsn) from target") == [(1000, 1000, 1000)]


def test_an_aggregate_delivers_all_that_it_reads(client: Client) -> None:
    read = "select count(*) from stream s consumer group g"
    assert [client.one(read) for _ in range(3)] == [1000, 178, 32]
    inner = "select max(lsn) from (select lsn from stream s consumer group g limit 4)"
    assert client.one(inner) == 4
    assert client(RANGES) == [
        (0, 1, 4, 4, 4),
        (0, 5, 32, 3, 32),
        (0, 33, 178, 2, 178),
        (0, 179, 1000, 1, 1000),
    ]


def test_a_portal_counts_what_it_has_handed_out(client: Client) -> None:
    client("begin")
    client(f"declare c cursor for {READ}")
    assert client("fetch 3 from c") == [(1,), (2,), (3,)]
    client("rollback")
    [(_, first, last, deliveries, _)] = client(RANGES)
    assert (first, deliveries) == (1, 1)
    assert last >= 3


def test_whole_transactions_are_refused(client: Client) -> None:
    with raises("0A000"):
        client(f"{READ} limit 1 transactions")
    client("alter consumer group g on s set (max_deliveries = 'none')")
    assert len(client(f"{READ} limit 1 transactions")) == 1000


def test_the_option_can_be_changed(client: Client) -> None:
    for _ in range(3):
        client(READ)
    client("alter consumer group g on s set (max_deliveries = 2)")
    # Delivered more often than allowed, but never alone: one more time.
    assert client(COUNTED) == [(1, 4)]
    assert client(COUNTED) == [(2, 4)]
    assert client(PARKED) == [(1, 4, [])]
    client("alter consumer group g on s set (session_timeout = '1 min')")
    assert client.one("select max_deliveries from ducktail.consumer_groups") == 2
    client("alter consumer group g on s set (max_deliveries = none)")
    assert client.one("select max_deliveries from ducktail.consumer_groups") is None
    assert client(RANGES) == []
    assert len(client(READ)) == 999
    for bad in ("0", "1001", "'many'", "-1"):
        with raises("22023"):
            client(f"alter consumer group g on s set (max_deliveries = {bad})")


def test_with_one_delivery_each_event_comes_alone_and_once(client: Client) -> None:
    client("alter consumer group g on s set (max_deliveries = 1)")
    assert client(f"{COUNTED} limit 5") == [(1, 1)]
    assert client(f"{COUNTED} limit 5") == [(2, 1)]
    client(COMMIT)
    assert client(f"{COUNTED} limit 5") == [(3, 1)]
    assert client(PARKED) == [(1, 1, [])]


def test_a_released_event_begins_anew(client: Client) -> None:
    while not client(PARKED):
        client(f"{READ} limit 1")
    assert client(READ)[0] == (2,)
    client("commit offset partition 0 at 1000 on s consumer group g")
    client("alter consumer group g on s release partition 0 at 1")
    assert client("select lsn, state, deliveries from ducktail.parked") == [(1, "released", 5)]
    assert [client(COUNTED) for _ in range(3)] == [[(1, 1)], [(1, 2)], [(1, 3)]]
    client(COMMIT)
    assert client("select count(*) from ducktail.parked_deliveries") == [(0,)]
    assert client(READ) == []


def test_seek_begins_the_counts_anew(client: Client) -> None:
    for _ in range(3):
        client(READ)
    client("alter consumer group g on s seek to earliest")
    assert client(RANGES) == []
    assert client.one("select count(*) from ducktail.delivery_log") == 0
    assert len(client(READ)) == 1000


def test_too_many_parked_events_are_an_error_of_the_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducktail.engine.definitions.parking.PARKED_MAX", 2)
    client("alter consumer group g on s set (max_deliveries = 1)")
    for _ in range(3):
        client(READ)
    with raises("54000"):
        client(READ)
    client("alter consumer group g on s release partition 0 at 1")
    assert client(READ) == [(1,)]


def test_a_block_with_the_writer_lock_receives_the_event_once_more(client: Client) -> None:
    client("alter consumer group g on s set (max_deliveries = 1)")
    assert client(READ) == [(1,)]
    client("begin")
    client("insert into t values (5000, 'x')")
    assert client(COUNTED) == [(1, 2)]
    client("commit")
    assert client(READ) == [(2,)]
    assert client(PARKED) == [(1, 2, [])]


def test_a_block_parks_apart_from_its_own_outcome(client: Client) -> None:
    client("alter consumer group g on s set (max_deliveries = 1)")
    assert client(READ) == [(1,)]
    client("begin")
    assert client(READ) == [(2,)]
    client("rollback")
    assert client(PARKED) == [(1, 1, [])]


def test_a_parked_key_holds_back_what_is_behind_it(client: Client) -> None:
    client("alter consumer group g on s set (max_deliveries = 1, on_park = 'key')")
    client("update t set v = 'later' where id = 1")
    assert client(READ) == [(1,)]
    client("commit offset partition 0 at 0 on s consumer group g")
    client(READ)
    client("commit offset partition 0 at 1000 on s consumer group g")
    assert client(READ) == []
    assert client("select lsn, behind, deliveries from ducktail.parked") == [(1, 1, 1)]


def test_a_dropped_group_leaves_no_counts(client: Client) -> None:
    for _ in range(6):
        client(f"{READ} limit 1")
    client("drop consumer group g on s")
    for table in ("delivery_log", "delivery_limits", "parked_deliveries"):
        assert client.one(f"select count(*) from ducktail.{table}") == 0
    client("create consumer group g on s with (max_deliveries = 5)")
    assert client(f"{COUNTED} limit 1") == [(1, 1)]
    client("drop stream s cascade")
    for table in ("delivery_log", "delivery_limits", "parked_deliveries"):
        assert client.one(f"select count(*) from ducktail.{table}") == 0


def reopened(client: Client, tmp_path: Path, clock: Hands) -> Client:
    """A session on the database after another opening."""
    client.close()
    client.session.database.close()
    return Client(Database.open(str(tmp_path / "counted.duckdb"), QUIET, clock))


@pytest.mark.parametrize(
    "begins_anew",
    [
        "alter consumer group g on s seek to earliest",
        "alter consumer group g on s set (max_deliveries = 'none')",
        "drop consumer group g on s",
    ],
)
def test_what_is_counted_while_counts_begin_anew_is_gone_after_an_opening(
    client: Client, tmp_path: Path, clock: Hands, begins_anew: str
) -> None:
    other = Client(client.session.database)
    client(f"{READ} limit 3")
    client("begin")
    client("select count(*) from t")
    assert other(f"{COUNTED} limit 3") == [(1, 2), (2, 2), (3, 2)]
    client(begins_anew)
    client("commit")
    other.close()
    assert client(RANGES) == []
    assert client.one("select count(*) from ducktail.delivery_log") == 0
    again = reopened(client, tmp_path, clock)
    assert again(RANGES) == []
    again.close()
    again.session.database.close()


def test_an_answer_of_before_a_seek_revives_no_count(client: Client) -> None:
    other = Client(client.session.database)
    for _ in range(2):
        client(f"{READ} limit 2")
    client("begin")
    client("declare c cursor for select lsn from stream s consumer group g")
    client("fetch 1 from c")
    other("alter consumer group g on s seek to earliest")
    client("fetch 1 from c")
    client("rollback")
    assert other(RANGES) == []
    other.close()


def test_a_released_event_begins_anew_after_an_opening_too(
    client: Client, tmp_path: Path, clock: Hands
) -> None:
    for _ in range(4):
        client(f"{READ} limit 1")
    client("alter consumer group g on s park partition 0 at 1")
    client("begin")
    client("alter consumer group g on s release partition 0 at 1")
    client("rollback")
    client("alter consumer group g on s release partition 0 at 1")
    again = reopened(client, tmp_path, clock)
    assert again(f"{COUNTED} limit 1") == [(1, 1)]
    again.close()
    again.session.database.close()


def test_a_park_that_is_rolled_back_leaves_its_count(client: Client) -> None:
    for _ in range(2):
        client(f"{READ} limit 1")
    client("begin")
    client("alter consumer group g on s park partition 0 at 1")
    client("alter consumer group g on s release partition 0 at 1")
    client("rollback")
    assert client(RANGES) == [(0, 1, 1, 2, 1)]


def test_overtaken_rows_are_deleted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "FOLD_ROWS", 8)
    client("alter consumer group g on s set (max_deliveries = 1000)")
    for _ in range(30):
        client(f"{READ} limit 2")
    assert client.one("select count(*) from ducktail.delivery_log") <= 10
    assert client(RANGES) == [(0, 1, 2, 30, 2)]


# Members.


def test_members_and_inspections(client: Client, clock: Hands) -> None:
    a, b = Client(client.session.database), Client(client.session.database)
    read = "select lsn, deliveries from stream s consumer group g member $1 with deliveries limit 3"
    try:
        assert a(read, "a") == [(1, 1), (2, 1), (3, 1)]
        # A read without MEMBER inspects: it shows the counts, and counts nothing.
        assert client(f"{COUNTED} limit 4") == [(1, 1), (2, 1), (3, 1), (4, 0)]
        clock.us += 31 * SECOND_US
        assert b(read, "b") == [(1, 2), (2, 2), (3, 2)]
        assert client("select members from ducktail.delivery_counts") == [(["a", "b"],)]
        clock.us += 31 * SECOND_US
        assert a(read, "a") == [(1, 3), (2, 3), (3, 3)]
        clock.us += 31 * SECOND_US
        assert b(read, "b") == [(1, 4), (2, 4)]
        clock.us += 31 * SECOND_US
        assert a(read, "a") == [(1, 5)]
        # Alone, but not yet over: only the next read of its partition parks it.
        assert client(PARKED) == []
        assert client(f"{COUNTED} limit 1") == [(1, 5)]
        assert client(PARKED) == []
        clock.us += 31 * SECOND_US
        assert b(read, "b") == [(2, 5)]
        assert client(PARKED) == [(1, 5, ["b", "a"])]
        reason = client.one("select reason from ducktail.parked")
        assert reason == "delivered 5 times and not committed, the last time to member 'a'"
    finally:
        a.close()
        b.close()


def test_a_member_parks_in_its_own_partitions_alone(client: Client) -> None:
    client("create table u (id int primary key)")
    client("create stream two on u with (partitions = 2)")
    client("create consumer group g on two with (max_deliveries = 1)")
    client("insert into u select range from range(20)")
    a, b = Client(client.session.database), Client(client.session.database)
    read = "select partition, lsn from stream two consumer group g member $1"
    try:
        [(first, _)] = a(read, "a")
        # The other partition is handed over, and the first one is still worked on.
        [(second, lsn)] = b(read, "b")
        assert second != first
        assert client("select * from ducktail.parked") == []
        assert b(read, "b")[0][0] == second
        assert client("select partition, lsn, members from ducktail.parked") == [(second, lsn, ["b"])]
    finally:
        a.close()
        b.close()


# Restarts, and kills.


def test_counts_outlive_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "restarted.duckdb")
    for start in range(3):
        database = Database.open(path, QUIET)
        client = Client(database)
        if not start:
            prepare(client)
        assert client(f"{COUNTED} limit 2") == [(1, start + 1), (2, start + 1)]
        client.close()
        database.close()


@pytest.mark.slow
def test_kills_of_the_server_lose_no_count(tmp_path: Path) -> None:
    """Each read is answered by a server that is killed straight after it."""
    path = tmp_path / "killed.duckdb"
    with ServerProcess(path) as server, server.connect(autocommit=True) as connection:
        connection.execute("create table t (id int primary key, v varchar)")
        connection.execute("create stream s on t with (partitions = 1)")
        connection.execute("create consumer group g on s with (max_deliveries = 3)")
        connection.execute("insert into t select i, '' from range(100) r(i)")
    for rows in ([(lsn, 1) for lsn in range(1, 101)], [(lsn, 2) for lsn in range(1, 11)], [(1, 3)], [(2, 3)]):
        with ServerProcess(path) as server, server.connect(autocommit=True) as connection:
            assert connection.execute(f"{COUNTED} limit 100").fetchall() == rows
            server.kill()
    with ServerProcess(path) as server, server.connect(autocommit=True) as connection:
        assert connection.execute(PARKED).fetchall() == [(1, 3, [])]
        assert connection.execute(f"{COUNTED} limit 100").fetchall() == [(3, 3)]
        assert connection.execute(PARKED).fetchall() == [(1, 3, []), (2, 3, [])]
