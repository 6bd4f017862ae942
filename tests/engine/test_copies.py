"""Whole copies for one group, START SNAPSHOT and on_gap = 'snapshot', whatever comes in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import duckdb
import pytest
from hands import DAY_US, Hands
from local_client import Client, state_of
from reopening import Reopening

from ducktail.engine.catalog.copies import CHUNK_ROWS, Copy
from ducktail.engine.definitions import whole_copies
from ducktail.engine.log.events import Event
from ducktail.sql.python.follower import Following
from ducktail.sql.python.stream_manager import StreamManager
from ducktail.sql.session import Session

pytestmark = pytest.mark.slow

ROWS = 2500


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
    """A session on a database with a table of `ROWS` rows and a stream without retained events of them."""
    client = reopen()
    client("create table t (id int primary key, v text)")
    client(f"insert into t select i, 'old' from range({ROWS}) r(i)")
    client("create stream s on t with (partitions = 3, retention = '1 day')")
    return client


def look(client: Client) -> None:
    """A pass of retention."""
    client.session.database.retention.look()


def refused(client: Client, sqlstate: str, text: str) -> None:
    """A statement fails with this SQLSTATE."""
    assert state_of(client, text) == sqlstate


def copy_tables(client: Client) -> int:
    """How many tables of copies there are."""
    sql = "select count(*) from duckdb_tables() where schema_name = 'ducktail' and table_name like 'copy%'"
    cursor = client.session.database.cursor()
    [[count]] = cursor.execute(sql).fetchall()
    return int(count)


def mirror(client: Client, rows: dict[int, str] | None = None) -> dict[int, str]:
    """What a consumer makes of all that group g reads, committed batch by batch."""
    rows = {} if rows is None else rows
    columns = "op, partition, lsn, key, after"
    last: dict[int, int] = {}
    while batch := client(f"select {columns} from stream s consumer group g limit 700"):
        for op, partition, lsn, key, after in batch:
            assert lsn > last.get(partition, 0), "LSNs rise in each partition"
            last[partition] = lsn
            if op == "delete":
                del rows[json.loads(key)["id"]]
            elif op != "schema":
                rows[json.loads(key)["id"]] = json.loads(after)["v"]
        client("commit offsets on s consumer group g")
    return rows


def table(client: Client) -> dict[int, str]:
    """The table."""
    return dict(client("select id, v from t"))


def test_a_group_gets_the_table_and_then_every_event(client: Client) -> None:
    client("create consumer group g on s start snapshot")
    client("update t set v = 'new' where id < 10")
    client("delete from t where id = 20")
    client("insert into t values (9999, 'late')")
    [[rows, left, lag]] = client(
        "select rows, rows_left, (select sum(lag_events) from ducktail.offsets) from ducktail.copies"
    )
    assert (rows, left, lag) == (ROWS, ROWS, ROWS + 12)
    assert mirror(client) == table(client)
    assert client("select rows_left from ducktail.copies") == [(0,)]
    assert client("select sum(lag_events) from ducktail.offsets") == [(0,)]
    # Nobody else has it.
    assert client("select count(*) from stream s") == [(12,)]
    assert client("select count(*) from s") == [(12,)]
    look(client)
    assert copy_tables(client) == 0
    assert client("select rows, rows_left from ducktail.copies") == [(ROWS, 0)]
    assert client("check stream s") == []


def test_it_goes_on_after_a_restart_without_commits_lines(
    client: Client, reopen: Callable[[], Client], clock: Hands
) -> None:
    client("create consumer group g on s start snapshot")
    rows = {}
    for op, key, after in client("select op, key, after from stream s consumer group g limit 900"):
        assert op == "snapshot"
        rows[json.loads(key)["id"]] = json.loads(after)["v"]
    client("commit offsets on s consumer group g")
    client("update t set v = 'newer' where id % 7 = 0")
    clock.us += 2 * DAY_US
    client("update t set v = 'newest' where id % 11 = 0")
    # Retention has passed the copy, and the events of then: those are a gap, as ever, and behind the copy.
    look(client)
    again = reopen()
    assert again("select rows_left from ducktail.copies") == [(ROWS - 900,)]
    refused(again, "72000", "select lsn from stream s consumer group g")
    assert again("select count(*) from (select * from stream s consumer group g after 0)") == [(228,)]


def test_retention_takes_its_lines_and_not_its_rows(
    client: Client, reopen: Callable[[], Client], clock: Hands
) -> None:
    client("create consumer group g on s start snapshot")
    clock.us += 2 * DAY_US
    client("insert into t values (9999, 'late')")
    look(client)
    cursor = client.session.database.cursor()
    assert cursor.execute("select min(first_lsn) from ducktail.commits").fetchall() == [(ROWS + 1,)]
    again = reopen()
    sql = "select count(*), count_if(tx_last) from stream s consumer group g group by txid order by txid"
    assert again(sql) == [(CHUNK_ROWS, 1), (CHUNK_ROWS, 1), (ROWS - 2 * CHUNK_ROWS, 1), (1, 1)]
    [[made_at]] = again("select made_at from ducktail.copies")
    count = "select count(*) from stream s consumer group g where commit_time"
    assert (again(f"{count} <= '{made_at}'"), again(f"{count} > '{made_at}'")) == ([(ROWS,)], [(1,)])
    assert len(again("select lsn from stream s consumer group g limit 1 transactions")) == CHUNK_ROWS
    assert len(again("select lsn from stream s consumer group g limit 3 transactions")) == ROWS
    assert mirror(again) == table(again)


def test_each_envelope_each_partition_and_each_member(client: Client) -> None:
    client("create consumer group g on s start snapshot")
    client("update t set v = 'new' where id = 5")
    columns = "id, v, _change_type, _lsn, _partition"
    typed = client(f"select {columns} from stream s consumer group g envelope changes")
    assert len(typed) == ROWS + 2
    assert {row[2] for row in typed[:ROWS]} == {"snapshot"}
    assert [row[1:3] for row in typed[ROWS:]] == [("old", "update_preimage"), ("new", "update_postimage")]
    for partition in range(3):
        scan = f"stream s partition {partition} consumer group g"
        found = client(f"select lsn from {scan} where op = 'snapshot'")
        assert found == [(row[3],) for row in typed[:ROWS] if row[4] == partition]
    # As a group's look elsewhere: behind any of its LSNs.
    [[middle]] = client("select min(lsn) + 100 from stream s partition 1 consumer group g")
    found = client(f"select min(lsn) from stream s partition 1 consumer group g after {middle}")
    assert found == [(middle + 1,)]
    seen: list[tuple[object, ...]] = []
    for _ in range(3):
        for member in ("a", "b"):
            scan = f"stream s consumer group g member '{member}'"
            while batch := client(f"select lsn, partition from {scan} limit 400"):
                seen += batch
                client(f"commit offsets on s consumer group g member '{member}'")
    assert sorted(seen) == sorted([(row[3], row[4]) for row in typed[:-1]])


def test_what_is_waited_for_is_what_a_filter_takes(client: Client) -> None:
    client("create consumer group g on s start snapshot")
    [[last_lsn]] = client("select last_lsn from ducktail.copies")
    found: list[tuple[object, ...]] = []

    def wait() -> None:
        other = Client(client.session.database)
        found.extend(other(f"select lsn from stream s consumer group g wait '1 h' where lsn > {last_lsn}"))
        other.close()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive() and not client.session.database.polls.count:
        pass
    client("insert into t values (9999, 'late')")
    waiting.join()
    assert found == [(last_lsn + 1,)]


def test_where_a_filter_and_columns_leave_something_out(client: Client) -> None:
    client("create table w (id int, v text, secret text, n int)")
    client("insert into w select i, 'v' || i, 'x', i % 5 from range(100) r(i)")
    client("create stream f on w (v, n) where n > 2 with (partitions = 4, partition_by = 'n')")
    client("create consumer group g on f start snapshot")
    client("insert into w values (1000, 'v1000', 'x', 4), (1001, 'v1001', 'x', 1)")
    rows = client("select partition, op, key, after from stream f consumer group g")
    assert sorted(json.loads(row[3])["v"] for row in rows) == sorted(
        ["v1000", *(f"v{i}" for i in range(100) if i % 5 > 2)]
    )
    assert all(row[2] is None and "secret" not in row[3] for row in rows)
    by_number: dict[int, set[int]] = {}
    for partition, _, _, after in rows:
        by_number.setdefault(json.loads(after)["n"], set()).add(partition)
    assert all(len(partitions) == 1 for partitions in by_number.values())
    client("create consumer group h on f start snapshot")
    assert client("select rows from ducktail.copies where group_name = 'h'") == [(41,)]


def test_an_empty_table_and_a_dropped_group(client: Client) -> None:
    client("truncate t")
    client("create consumer group g on s start snapshot")
    assert client("select lsn from stream s consumer group g") == []
    assert client("select rows, rows_left, last_lsn < first_lsn from ducktail.copies") == [(0, 0, True)]
    client("insert into t values (1, 'first')")
    assert mirror(client) == {1: "first"}
    client("create consumer group h on s start snapshot")
    assert copy_tables(client) == 2
    client("drop consumer group h on s")
    client("drop consumer group g on s")
    assert client("select * from ducktail.copies") == []
    look(client)
    assert copy_tables(client) == 0
    client("create consumer group h on s start snapshot")
    refused(client, "2BP01", "drop stream s")
    client("drop stream s cascade")
    look(client)
    assert copy_tables(client) == 0


def test_the_table_may_change_its_columns_before_it_is_read(
    client: Client, reopen: Callable[[], Client], clock: Hands
) -> None:
    client("create consumer group g on s start snapshot")
    client("alter table t add column w int default 7")
    client("update t set w = 8 where id = 3")
    client("alter table t rename column v to name")
    clock.us += 2 * DAY_US
    look(client)  # The log of the first version is empty, and its columns are still wanted.
    again = reopen()
    refused(again, "72000", "select lsn from stream s consumer group g")
    again("create consumer group h on s start snapshot")
    again("alter table t drop column w")
    scan = "stream s consumer group h envelope changes"
    rows = again(f"select id, name, _change_type from {scan} where id in (3, 4)")
    assert sorted(rows) == [(3, "old", "snapshot"), (4, "old", "snapshot")]
    [[version, after]] = again(
        "select schema_version, after from stream s consumer group h where key::varchar = '{\"id\":3}'"
    )
    assert (version, json.loads(after)) == (3, {"id": 3, "name": "old", "w": 8})
    refused(again, "40001", "commit offset partition 0 at 1 on s consumer group h member 'm'")
    while again("select lsn from stream s consumer group h limit 1000"):
        again("commit offsets on s consumer group h")
    look(again)
    assert copy_tables(again) == 1  # g's


def test_seek_leaves_it_and_may_stay_within_it(client: Client) -> None:
    client("insert into t values (9000, 'a'), (9001, 'b'), (9002, 'c'), (9003, 'd'), (9004, 'e')")
    client("create consumer group g on s start snapshot")
    [[first]] = client("select first_lsn from ducktail.copies")
    moved = client(f"alter consumer group g on s seek after {first + 9}")
    assert sum(row[4] for row in moved) == 10 and sum(row[3] for row in moved) == 0
    assert client("select min(lsn) from stream s consumer group g") == [(first + 10,)]
    moved = client(f"alter consumer group g on s seek after {first - 1} dry run")
    assert sum(row[3] for row in moved) == 10
    moved = client("alter consumer group g on s seek to partition 0 earliest")
    assert client("select distinct op from stream s partition 0 consumer group g") in ([("insert",)], [])
    assert client("select distinct op from stream s partition 1 consumer group g") == [("snapshot",)]
    refused(client, "55000", "create bookmark b on s consumer group g")
    client("begin")
    client("alter consumer group g on s seek latest")
    assert client("select lsn from stream s consumer group g") == []
    client("rollback")
    assert client("select count(*) > 1000 from stream s consumer group g") == [(True,)]
    client("alter consumer group g on s seek latest")
    assert client("select lsn from stream s consumer group g") == []
    assert client("select rows_left from ducktail.copies") == [(0,)]
    client("create bookmark b on s consumer group g")
    client("insert into t values (9999, 'late')")
    assert len(client("select lsn from stream s consumer group g")) == 1


def test_a_row_of_it_can_be_parked(client: Client, clock: Hands) -> None:
    client("create consumer group g on s start snapshot")
    [[lsn]] = client("select max(lsn) - 3 from stream s partition 1 consumer group g")
    clock.us += 2 * DAY_US
    client("insert into t values (9999, 'late')")
    look(client)
    client(f"alter consumer group g on s park partition 1 at {lsn} reason 'no'")
    [[shown, op]] = client("select lsn, op from ducktail.parked")
    assert (shown, op) == (lsn, "snapshot")
    rows = mirror(client)
    assert len(rows) == ROWS  # All but one, and the late one.
    look(client)
    client("alter consumer group g on s release partition 1")
    assert mirror(client, rows) == table(client)
    # Where SEEK has left the copy for what is before it, a read does not come by the row any more.
    client("create consumer group h on s start snapshot")
    [[lsn]] = client("select max(lsn) - 3 from stream s partition 1 consumer group h")
    client(f"alter consumer group h on s park partition 1 at {lsn}")
    client("alter consumer group h on s seek latest")
    client("alter consumer group h on s release partition 1")
    client("insert into t values (10000, 'last')")
    assert len(client("select lsn from stream s consumer group h")) == 2
    client("commit offsets on s consumer group h")
    assert client("select * from ducktail.parked") == []


def test_a_gap_gives_a_new_copy_once_for_all_members(client: Client, clock: Hands) -> None:
    client("create consumer group g on s with (on_gap = 'snapshot')")
    client("update t set v = 'new' where id < 30")
    rows = mirror(client)
    assert len(rows) == 30
    client("delete from t where id < 10")
    clock.us += 2 * DAY_US
    client("insert into t values (9999, 'late')")
    look(client)
    # Who asks for the columns gets them, as JDBC does before it reads.
    for probe in ("limit 0", "where false"):
        assert client(f"select * from stream s consumer group g {probe}") == []
    assert copy_tables(client) == 0 and client.session.take_notices()
    found = client("select * from stream s consumer group g wait '1 h'")
    assert len(found) == ROWS - 10 + 1
    told = client.session.take_notices()
    assert told and {(one.severity, one.sqlstate) for one in told} == {("WARNING", "72000")}
    assert f"a whole copy of {ROWS - 9} rows" in (told[0].detail or "")
    assert client("select first_lsn - 1, rows from ducktail.copies")[0][1] == ROWS - 9
    # What is not in the copy has an LSN before it.
    [[first]] = client("select first_lsn from ducktail.copies")
    lsns = dict(client("select key->>'id', lsn from stream s consumer group g"))
    assert min(lsns.values()) == first and "3" not in lsns
    assert mirror(client) == table(client)
    # A second one takes the place of the first.
    client("update t set v = 'again' where id = 50")
    clock.us += 2 * DAY_US
    client("insert into t values (10000, 'last')")
    look(client)
    assert mirror(client) == table(client)
    look(client)
    assert copy_tables(client) == 0


def test_a_block_gets_it_in_its_next_transaction(client: Client, clock: Hands) -> None:
    client("create consumer group g on s with (on_gap = 'snapshot')")
    client("update t set v = 'new' where id < 30")
    clock.us += 2 * DAY_US
    client("insert into t values (9999, 'late')")
    look(client)
    client("create table seen (lsn bigint)")
    client("begin")
    client("select count(*) from t")
    client("insert into seen select lsn from stream s consumer group g")
    client("commit offsets on s consumer group g")
    client("commit")
    assert client("select count(*) from seen") == [(0,)]
    for _ in range(2):
        client("begin")
        client("insert into seen select lsn from stream s consumer group g limit 2000")
        client("commit offsets on s consumer group g")
        client("commit")
    assert client("select count(*), count(distinct lsn) from seen") == [(ROWS + 1, ROWS + 1)]
    client("update t set v = 'new' where id < 30")
    clock.us += 2 * DAY_US
    client("insert into t values (10000, 'late')")
    look(client)
    client("begin")
    client("insert into t values (10001, 'mine')")
    refused(client, "72000", "select lsn from stream s consumer group g")
    client("rollback")


def trimmed(client: Client, clock: Hands, key: int) -> None:
    """Retention takes all but the row with this key, which comes now."""
    clock.us += 2 * DAY_US
    client(f"insert into t values ({key}, 'late')")
    look(client)


def test_members_at_a_gap(client: Client, clock: Hands) -> None:
    """One finds it: another who waits is woken, what a third had read is void, and all go on in the copy."""
    client("create consumer group g on s with (on_gap = 'snapshot', session_timeout = '9 days')")

    def read(member: str, more: str = "", by: Client = client) -> list[tuple[object, ...]]:
        return by(f"select op, partition, key->>'id' from stream s consumer group g member '{member}' {more}")

    def commit(member: str) -> None:
        client(f"commit offsets on s consumer group g member '{member}'")

    for member in "abab":
        read(member)
        commit(member)
    client("update t set v = 'new' where id < 60")
    assert read("a") and read("b")
    commit("b")
    other = Client(client.session.database)
    found: list[tuple[object, ...]] = []
    waiting = threading.Thread(target=lambda: found.extend(read("b", "wait '1 h'", other)))
    waiting.start()
    while waiting.is_alive() and not client.session.database.polls.count:
        pass
    [[mine]] = client("select min(partition) from ducktail.offsets where member = 'a'")
    [[key]] = client(
        f"select min(i) from range(9000, 9999) r(i) where ducktail.partition_of('s', i) = {mine}"
    )
    trimmed(client, clock, key)
    rows = read("a")
    waiting.join()
    other.close()
    assert {row[0] for row in found} == {"snapshot"} and {row[0] for row in rows} == {"snapshot"}
    assert sorted(int(str(row[2])) for row in rows + found) == [*range(ROWS), key]
    commit("a")
    refused(client, "55000", "commit offsets on s consumer group g")
    assert read("b") == found
    commit("b")
    client("update t set v = 'newer' where id < 60")
    assert read("a") and read("b")
    trimmed(client, clock, key + 1000)
    assert len(read("a")) > 100
    refused(client, "55000", "commit offsets on s consumer group g member 'b'")
    assert {row[0] for row in read("b")} == {"snapshot"}


def test_who_follows_in_process(client: Client, clock: Hands) -> None:
    """ReplicationStream.follow as a member of the group: through the copy, killed in it, and at a gap."""
    client("create consumer group g on s start snapshot with (on_gap = 'snapshot')")
    client("update t set v = 'new' where id < 10")
    told: list[object] = []
    streams = StreamManager(client.session.database, Following(), "u", told.extend)
    rows: dict[int, str] = {}

    def take(events: Iterable[Event]) -> None:
        for event in events:
            assert event.key is not None and event.after is not None and event.op != "delete"
            rows[json.loads(event.key)["id"]] = json.loads(event.after)["v"]

    for batch in streams.open("s").follow("one", group="g"):
        take(batch)
        if batch.number == 3:
            break  # The third is not done: it comes again.
    assert client("select rows_left from ducktail.copies") == [(ROWS - 200,)]
    count = ROWS + 10 - 200
    stream = streams.open("s")
    follow = stream.follow("one", group="g", batch_size=700, checkpoint_every=None)
    while count:
        batch = next(follow)
        take(batch)
        count -= len(batch)
        stream.checkpoint(batch)
    assert rows == table(client) and client("select sum(lag_events) from ducktail.offsets") == [(0,)]
    # What was given and is not committed does not come again: as many are not waited for.
    client("update t set v = 'newer' where id < 100")
    given = 0
    while given < 100:
        given += len(next(follow))
    client("delete from t where id >= 20")
    trimmed(client, clock, 9999)
    rows.clear()
    while len(rows) < 21:
        take(batch := next(follow))
    assert rows == table(client) and told
    stream.checkpoint(batch)
    assert client("select rows, rows_left from ducktail.copies") == [(21, 0)]
    client("update t set v = 'newest' where id < 5")
    assert len(next(follow)) == 5
    client("alter consumer group g on s seek latest")
    client("insert into t values (10000, 'last')")
    assert [event.key for event in next(follow)] == ['{"id":10000}']
    streams.close()


def test_no_second_copy_for_one_read(client: Client, clock: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where retention is faster than copying, a read ends instead of taking copies for ever."""
    client("create consumer group g on s with (on_gap = 'snapshot')")
    client("update t set v = 'new' where id < 30")
    clock.us += 2 * DAY_US
    client("insert into t values (9999, 'late')")
    look(client)
    client("begin read only")
    refused(client, "25006", "select lsn from stream s consumer group g")
    client("rollback")
    fill = whole_copies.fill_sql
    fills: list[object] = []

    def filling(*args: object) -> str:
        fills.append(args)
        assert len(fills) < 3, "one read takes one copy"
        other = Client(client.session.database)
        other("update t set v = 'newer' where id < 20")
        clock.us += 2 * DAY_US
        other(f"insert into t values ({10_000 + len(fills)}, 'later')")
        other.close()
        look(client)
        return fill(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(whole_copies, "fill_sql", filling)
        refused(client, "72000", "select lsn from stream s consumer group g")
    assert len(fills) == 1
    assert mirror(client) == table(client)


def test_what_comes_to_the_group_while_its_copy_is_taken(
    client: Client, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who moves the group meanwhile is right; a group that is dropped is not the next one of its name."""
    make = "create consumer group g on s with (on_gap = 'snapshot')"
    client(make)
    client("update t set v = 'new' where id < 30")
    clock.us += 2 * DAY_US
    client("insert into t values (9999, 'late')")
    look(client)
    fill = whole_copies.fill_sql
    meanwhile = ["drop consumer group g on s", f"{make} start earliest"]

    def filling(*args: object) -> str:
        other = Client(client.session.database)
        for statement in meanwhile:
            other(statement)
        other.close()
        return fill(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(whole_copies, "fill_sql", filling)
    client("drop consumer group g on s")
    client(f"{make} start after 0")
    refused(client, "42704", "select lsn from stream s consumer group g")
    assert len(client("select lsn from stream s consumer group g")) == 1
    client("alter consumer group g on s seek after 0")
    meanwhile[:] = ["alter consumer group g on s seek latest"]
    assert client("select lsn from stream s consumer group g") == []
    assert client("select * from ducktail.copies") == []
    assert copy_tables(client) == 0


def test_writers_and_ddl_go_on_while_it_is_taken(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copy has is as of its LSN, whatever is committed before its rows are read."""
    fill = whole_copies.fill_sql
    before = table(client)
    meanwhile: list[str] = [
        "update t set v = 'changed' where id % 2 = 0",
        "delete from t where id % 5 = 0",
        "insert into t values (9999, 'late')",
        "alter table t add column w int",
        "alter table t rename to t2",
    ]

    def filling(*args: object) -> str:
        other = Client(client.session.database)
        try:
            for statement in meanwhile:
                other(statement)
        finally:
            other.close()
        return fill(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(whole_copies, "fill_sql", filling)
    client("create consumer group g on s start snapshot")
    copied = client("select key, after, lsn from stream s consumer group g where op = 'snapshot'")
    assert {json.loads(key)["id"]: json.loads(after)["v"] for key, after, _ in copied} == before
    assert mirror(client) == dict(client("select id, v from t2"))


def test_what_fails_leaves_nothing(
    client: Client, reopen: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> str:
        return "SELECT error('disk full')"

    with monkeypatch.context() as patch:
        patch.setattr(whole_copies, "fill_sql", failing)
        with pytest.raises(Exception, match="disk full"):
            client("create consumer group g on s start snapshot")
    assert copy_tables(client) == 0
    assert client("show consumer groups on s") == []
    client("insert into t values (9999, 'late')")
    assert client("select lsn from stream s") == [(ROWS + 1,)]

    endless = "SELECT count(*) FROM range(100000000000) AS a(i), range(1000) AS b(j)"
    over = threading.Event()

    def cancel_until_over() -> None:
        while not over.wait(0.1):  # It must be under way to be cancelled.
            client.session.cancel()

    def cancelling(*args: object) -> str:
        threading.Thread(target=cancel_until_over, daemon=True).start()
        return endless

    with monkeypatch.context() as patch:
        patch.setattr(whole_copies, "fill_sql", cancelling)
        refused(client, "57014", "create consumer group g on s start snapshot")
    over.set()
    with monkeypatch.context() as patch:
        patch.setattr(whole_copies, "fill_sql", lambda *args: endless)
        client("set statement_timeout = '300 ms'")
        refused(client, "57014", "create consumer group g on s start snapshot")
        client("set statement_timeout = 0")
    assert copy_tables(client) == 0

    def stopped(self: object, *args: object) -> None:
        raise RuntimeError("killed")

    # As a kill between the copy's rows and its group.
    with monkeypatch.context() as patch:
        patch.setattr(whole_copies, "discard", lambda *args: None)
        patch.setattr("ducktail.sql.reading.whole_copies.discard", lambda *args: None)
        patch.setattr("ducktail.sql.reading.whole_copies.present_stream", stopped)
        with pytest.raises(RuntimeError):
            client("create consumer group g on s start snapshot")
    assert copy_tables(client) == 1
    again = reopen()
    look(again)
    assert copy_tables(again) == 0
    again("create consumer group g on s start snapshot")
    assert mirror(again) == table(again)


def test_who_may_not_have_it(client: Client) -> None:
    client("create topic p")
    refused(client, "0A000", "create consumer group g on p start snapshot")
    refused(client, "0A000", "create consumer group g on p with (on_gap = 'snapshot')")
    refused(client, "0A000", "create consumer group g on s with (on_gap = 'snapshot', on_park = 'key')")
    client("create consumer group h on s with (on_park = 'key')")
    refused(client, "0A000", "alter consumer group h on s set (on_gap = 'snapshot')")
    client("begin")
    refused(client, "25001", "create consumer group g on s start snapshot")
    client("rollback")
    refused(client, "42710", "create consumer group h on s start snapshot")
    client("create consumer group if not exists h on s start snapshot")
    assert copy_tables(client) == 0


def test_rights(client: Client, clock: Hands) -> None:
    """A copy wants SELECT on the table and CONSUME on the stream when it is taken; then it is the group's."""
    client("create user root password 'x' superuser")
    users = {}
    for name, rights in {
        "ann": ("select on t", "consume on s"),
        "bob": ("select on t",),
        "eve": ("consume on s",),
    }.items():
        client(f"create user {name} password 'x'")
        for right in rights:
            client(f"grant {right} to {name}")
        users[name] = Client(client.session.database)
        users[name].session = Session(client.session.database, user=name, account=name)
    ann, bob, eve = users.values()
    make = "create consumer group {} on s {}"
    for options in ("start snapshot", "with (on_gap = 'snapshot')"):
        refused(eve, "42501", make.format("e", options))
        refused(bob, "42704", make.format("b", options))  # He is not told of the stream.
    eve(make.format("e", ""))
    refused(eve, "42501", "alter consumer group e on s set (on_gap = 'snapshot')")
    ann(make.format("a", "start snapshot with (on_gap = 'snapshot')"))
    read = "select lsn from stream s consumer group a"
    refused(eve, "42704", read)
    assert eve("select * from ducktail.copies") == []
    # Whom its owner lets use the group.
    ann("grant consume on consumer group a on s to eve")
    assert len(eve(read)) == ROWS and eve("select rows from ducktail.copies") == [(ROWS,)]
    # A right that is taken away leaves the copy that is there, and gives no other one.
    client("revoke select on t from ann")
    assert len(ann(read)) == ROWS
    ann("alter consumer group a on s seek latest")
    client("update t set v = 'new' where id < 60")
    trimmed(client, clock, 9999)
    refused(ann, "42501", read)
    refused(eve, "42501", read)
    client("grant select on t to ann")
    refused(eve, "42501", read)
    assert len(ann(read)) == len(eve(read)) == ROWS + 1
    for user in users.values():
        user.close()


def test_what_is_renamed_or_revoked_while_it_is_taken(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group is of the stream by its name of then, and of who may still read the table."""
    client("create user root password 'x' superuser")
    client("create user ann password 'x'")
    for right in ("select on t", "consume on s"):
        client(f"grant {right} to ann")
    ann = Client(client.session.database)
    ann.session = Session(client.session.database, user="ann", account="ann")
    fill = whole_copies.fill_sql
    meanwhile = ["alter stream s rename to s2"]

    def filling(*args: object) -> str:
        for statement in meanwhile:
            client(statement)
        return fill(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(whole_copies, "fill_sql", filling)
    ann("create consumer group g on s start snapshot")
    assert len(ann("select lsn from stream s2 consumer group g")) == ROWS
    meanwhile[:] = ["revoke select on t from ann"]
    refused(ann, "42501", "create consumer group h on s2 start snapshot")
    assert ann("select group_name from ducktail.consumer_groups") == [("g",)]
    assert copy_tables(client) == 1
    ann.close()


def test_no_copy_of_a_table_that_was_written_past_ducktail(
    client: Client, reopen: Callable[[], Client], tmp_path: Path
) -> None:
    client.close()
    client.session.database.close()
    with duckdb.connect(str(tmp_path / "kept.duckdb")) as past:
        past.execute("INSERT INTO t VALUES (9999, 'past')")
    again = reopen()
    again("check stream s")
    refused(again, "55000", "create consumer group g on s start snapshot")
    again("alter stream s resync")
    again("create consumer group g on s start snapshot")
    assert mirror(again) == table(again)


def test_lsns_of_a_copy() -> None:
    copy = Copy(1, 2, 3, 1, 101, 2600, 7, 0, 2500, {0: (101, 900), 2: (901, 2600)})
    assert (copy.base_lsn, copy.chunks, copy.last_txid) == (100, 3, 9)
    assert [copy.chunk_end(lsn) for lsn in (100, 101, 1100, 1101, 2600, 2601)] == [
        None, 1100, 1100, 2100, 2600, None
    ]  # fmt: skip
    assert [copy.left(0, lsn) for lsn in (99, 100, 101, 899, 900, 2000)] == [0, 800, 799, 1, 0, 0]
    assert [copy.left(1, 100), copy.left(2, 100), copy.left(2, 950)] == [0, 1700, 1650]
    assert [copy.start(0, lsn) for lsn in (99, 150, 900)] == [99, 150, 2600]
    assert [copy.start(1, 100), copy.start(2, 100)] == [2600, 900]
    assert copy.spans_sql() == "lsn BETWEEN 101 AND 2600"
    at = copy.at({0: 900, 1: 100, 2: 100})
    assert at is not None and at.spans == {2: (901, 2600)}
    assert copy.at({0: 3000, 2: 50}) is None
