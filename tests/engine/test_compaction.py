"""Compaction with a clock of the test's own: what goes, what stays, and what every reader makes of it."""

from __future__ import annotations

import pytest
from compacting import Compacting, lsns
from hands import DAY_US, HOUR_US, SECOND_US
from local_client import Client, raises

from ducktail.engine.buffers import scan
from ducktail.engine.retention import compaction
from ducktail.engine.waiting import drive

pytestmark = pytest.mark.slow


def test_the_last_event_of_each_key_stays(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 2, retention = 'none', compaction = 'key')")
    base("create consumer group early on s")
    base("insert into t values (1, 1), (2, 1), (3, 1)")  # 1 to 3
    base("update t set v = 2 where id < 3")  # 4, 5
    base("delete from t where id = 2")  # 6
    base("select * from stream s consumer group early limit 2")
    base("commit offsets on s consumer group early")
    base.look()
    assert lsns(base, "s") == [1, 2, 3, 4, 5, 6]  # Of the newest hour all is there.
    base.clock.us += HOUR_US
    base("update t set v = 3 where id = 1")  # 7
    base.look()
    assert lsns(base, "s") == [3, 4, 6, 7]
    assert base("select distinct compacted_through_lsn from ducktail.partitions") == [(6,)]
    # A gap is what retention takes: these events are just not there.
    assert base("select lsn from stream s consumer group early") == [(3,), (4,), (6,), (7,)]
    assert base("select lsn from stream s after 5") == [(6,), (7,)]
    assert base.one("select sum(lag_events) from ducktail.offsets") == 4
    assert base("select lsn, tx_last, tx_seq from stream s") == [
        (3, True, 2),
        (4, True, 0),
        (6, True, 0),
        (7, True, 0),
    ]
    base("alter consumer group early on s seek to after 5")
    assert base.one("select sum(lag_events) from ducktail.offsets") == 2
    assert base("check stream s") == []
    base.reopen()
    assert lsns(base, "s") == [3, 4, 6, 7]
    assert base.one("select sum(lag_events) from ducktail.offsets") == 2
    assert base("select distinct compacted_through_lsn from ducktail.partitions") == [(6,)]
    # The delete stays for a day since what it deletes has gone, and then goes too.
    base.clock.us += DAY_US
    base.look()
    assert lsns(base, "s") == [3, 6, 7]
    base.clock.us += HOUR_US
    base("insert into t values (9, 9), (10, 9)")  # 8, 9
    base.clock.us += HOUR_US
    base.look()
    assert lsns(base, "s") == [3, 7, 8, 9]
    assert base("check stream s") == []
    base.reopen()
    assert lsns(base, "s") == [3, 7, 8, 9]


def test_options(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create table plain (id int)")
    with raises("22023"):
        base("create stream p on plain with (compaction = 'key')")
    base("create stream p on plain")
    with raises("22023"):
        base("alter stream p set (compaction = 'key')")
    base("create stream s on t with (partitions = 1, compaction_lag = '0 s')")
    base("insert into t values (1, 1)")
    base("update t set v = 2")
    base.look()
    assert lsns(base, "s") == [1, 2]
    base("alter stream s set (compaction = 'key')")
    base.look()
    assert lsns(base, "s") == [2]
    base("update t set v = 3")
    base("alter stream s set (compaction = 'none')")
    base.look()
    assert lsns(base, "s") == [2, 3]
    base.reopen()
    base("alter stream s set (compaction = 'key', tombstone_retention = '0 s')")
    base.look()
    assert lsns(base, "s") == [3]
    shown = "select compaction, compaction_lag, tombstone_retention from ducktail.streams order by 1"
    assert base(shown) == [("key", "00:00:00", "00:00:00"), ("none", "01:00:00", "1 day")]


def test_what_another_stream_shows_stays(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream small on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("create stream whole on t with (partitions = 1, retention = '1 day')")
    base("insert into t values (1, 1)")
    for v in range(2, 5):
        base.clock.us += HOUR_US
        base(f"update t set v = {v}")
    base.look()
    # As long as the other one retains them, they are in the log, and the compacted stream shows them as well.
    assert lsns(base, "small") == lsns(base, "whole") == [1, 2, 3, 4]
    base.clock.us += DAY_US - 3 * HOUR_US + 1
    base.look()
    assert (lsns(base, "small"), lsns(base, "whole")) == ([1, 2, 3, 4], [2, 3, 4])
    base.clock.us += 2 * HOUR_US
    base.look()
    assert (lsns(base, "small"), lsns(base, "whole")) == ([3, 4], [4])
    assert base("check stream small") == base("check stream whole") == []
    # What is compacted has a range of its own, and trimmed is what retention took of each.
    assert base("select stream_name, trimmed_events from ducktail.partitions order by 1") == [
        ("small", 0),
        ("whole", 3),
    ]
    base("drop stream whole")
    base("update t set v = 9")
    base.clock.us += HOUR_US
    base.look()
    assert lsns(base, "small") == [5]


def test_a_stream_that_is_compacted_no_more_keeps_what_it_has(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    options = "partitions = 1, retention = 'none', compaction = 'key'"
    base(f"create stream every on t with ({options})")
    base(f"create stream small on t where v < 5 with ({options})")
    base("insert into t values (1, 1), (2, 2)")
    base("update t set v = 20 where id = 1")  # 3: a delete of small
    base("update t set v = 30 where id = 1")  # 4: of every alone
    base("insert into t values (3, 3)")
    base.clock.us += 2 * HOUR_US
    base.look()
    assert lsns(base, "small") == [2, 3, 5] and lsns(base, "every") == [2, 3, 4, 5]
    base("alter stream small set (compaction = 'none')")
    base.clock.us += 2 * DAY_US  # Its delete may go by now.
    base.look()
    base.reopen()
    base.look()
    assert lsns(base, "small") == [2, 3, 5]
    base("alter stream small set (compaction = 'key')")
    base.look()
    assert lsns(base, "small") == [2, 5] and lsns(base, "every") == [2, 4, 5]


def test_a_filter_and_operations_have_last_events_of_their_own(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    options = "with (partitions = 1, retention = 'none', compaction = 'key')"
    base(f"create stream odd on t where v % 2 = 1 {options}")
    base(f"create stream born on t operations insert {options}")
    base("insert into t values (1, 1), (2, 2), (3, 3)")  # 1, 2, 3
    base("update t set v = 2 where id = 1")  # 4: out of the predicate
    base("update t set v = 4 where id = 1")  # 5: nothing to it
    base("delete from t where id = 3")  # 6
    base.clock.us += 2 * HOUR_US
    base.look()
    # 5 stays in the log, as CHECK holds the table against it, and is no event of either stream.
    # What one needs, the other shows as well.
    assert base("select lsn, op from stream odd") == [
        (1, "insert"),
        (3, "insert"),
        (4, "delete"),
        (6, "delete"),
    ]
    assert base("select lsn, op from stream born") == [(1, "insert"), (2, "insert"), (3, "insert")]
    assert list(base.logs().values()) == [6]
    assert base("check stream odd") == base("check stream born") == []
    base("drop stream born")
    base("update t set v = 6 where id = 2")  # 7
    base.clock.us += DAY_US
    base.look()
    base.clock.us += DAY_US
    base.look()
    # A delete by the predicate: the row is there still, and nothing of it is an event.
    assert base("select lsn, op from stream odd") == [(6, "delete")]
    assert base("check stream odd") == []
    base.reopen()
    assert lsns(base, "odd") == [6]


def test_a_delete_stays_with_what_another_stream_keeps(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    options = "with (partitions = 1, retention = 'none', compaction = 'key')"
    base(f"create stream odd on t where v % 2 = 1 {options}")
    base(f"create stream born on t operations insert {options}")
    base("insert into t values (1, 1), (2, 2)")  # 1 and 2, which `born` keeps
    base("update t set v = 2 where id = 1")  # 3: out of the predicate
    base("update t set v = 4 where id = 1")  # 4: nothing to it
    for _ in range(3):
        base.clock.us += 2 * DAY_US
        base.look()
        assert base("select lsn, op from stream odd") == [(1, "insert"), (3, "delete")]
    base("drop stream born")
    base("insert into t values (3, 3), (4, 4), (5, 5)")
    for _ in range(2):
        base.clock.us += 2 * DAY_US
        base.look()
    assert base("select lsn, op from stream odd") == [(5, "insert"), (7, "insert")]
    assert base("check stream odd") == []


def test_the_time_of_a_delete_begins_when_what_it_deletes_goes(base: Compacting) -> None:
    options = "partitions = 1, retention = 'none', compaction = 'key'"
    base("create table t (id int primary key)")
    base(f"create stream s on t with ({options})")
    base(f"create stream born on t operations insert with ({options})")
    base("insert into t values (1)")
    base("delete from t where id = 1")
    base("insert into t values (2)")
    for _ in range(3):
        base.clock.us += DAY_US + HOUR_US
        base.look()
        assert lsns(base, "s") == [1, 2, 3]  # The insert is the other stream's.
    # A reader may just have been given it, and is to be given its delete.
    base("drop stream born")
    base("insert into t values (3)")
    base.clock.us += 2 * HOUR_US
    base.look()
    assert lsns(base, "s") == [2, 3, 4]
    base.reopen()
    base.clock.us += DAY_US - HOUR_US
    base.look()
    assert lsns(base, "s") == [2, 3, 4]
    base.clock.us += HOUR_US
    base.look()
    assert lsns(base, "s") == [3, 4]


def test_rows_of_snapshots(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("insert into t select i, 0 from range(4) r(i)")
    options = "with (partitions = 1, retention = 'none', compaction = 'key', snapshot = 'initial')"
    base(f"create stream a on t {options}")  # 1 to 4
    base("update t set v = 1 where id = 1")  # 5
    base(f"create stream b on t {options}")  # 6 to 9
    base("update t set v = 2 where id = 2")  # 10
    base("delete from t where id = 3")  # 11
    base.clock.us += 2 * HOUR_US
    base.look()
    assert base("select lsn, op from stream a") == [
        (1, "snapshot"),
        (5, "update"),
        (10, "update"),
        (11, "delete"),
    ]
    assert base("select lsn, op from stream b") == [
        (6, "snapshot"),
        (7, "snapshot"),
        (10, "update"),
        (11, "delete"),
    ]
    assert base("check stream a") == base("check stream b") == []
    base.clock.us += 2 * DAY_US
    base.look()
    base("insert into t values (7, 7)")  # 12
    base.clock.us += 2 * DAY_US
    base.look()
    assert lsns(base, "a") == [1, 5, 10, 12]
    assert lsns(base, "b") == [6, 7, 10, 12]
    assert base("check stream a") == base("check stream b") == []


def test_keys_and_partition_columns_that_change(base: Compacting) -> None:
    base("create table t (id int, k text, v int, primary key (k, id))")
    options = "partitions = 3, partition_by = 'v', retention = 'none', compaction = 'key'"
    base(f"create stream s on t with ({options})")
    base("insert into t values (1, 'a', 1), (2, 'b', 1)")  # 1, 2
    base("update t set id = id + 10")  # 3, 4 deletes; 5, 6 inserts
    base("update t set v = 2 where id = 11")  # 7 delete in one partition, 8 insert in another
    base.clock.us += 2 * HOUR_US
    base.look()
    # A reader of one partition alone is told that the key has left it.
    assert base("select lsn, op from stream s") == [
        (3, "delete"),
        (4, "delete"),
        (6, "insert"),
        (7, "delete"),
        (8, "insert"),
    ]
    assert base("check stream s") == []
    base("insert into t values (5, 'c', 1), (6, 'c', 2)")
    for _ in range(2):
        base.clock.us += 2 * DAY_US
        base.look()
    assert base("select lsn, op from stream s") == [(lsn, "insert") for lsn in (6, 8, 9, 10)]


def test_versions_of_a_table(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 2, retention = 'none', compaction = 'key')")
    base("insert into t values (1, 1), (2, 1), (3, 1)")  # 1 to 3
    base("alter table t add column w text")  # 4, 5
    base("update t set w = 'x' where id = 1")  # 6
    base("alter table t rename column id to number")  # 7, 8
    base("update t set w = 'y' where number in (1, 2)")  # 9, 10
    assert len(base.logs()) == 3
    base.clock.us += 2 * HOUR_US
    base.look()
    assert lsns(base, "s") == [3, 4, 5, 7, 8, 9, 10]
    base("update t set w = 'z' where number = 3")  # 11
    base.clock.us += 2 * HOUR_US
    base.look()
    # The log of the first version has nothing any more; schema events stay.
    assert lsns(base, "s") == [4, 5, 7, 8, 9, 10, 11]
    assert len(base.logs()) == 2
    assert base("check stream s") == []
    base.reopen()
    assert lsns(base, "s") == [4, 5, 7, 8, 9, 10, 11]


def test_what_is_set_aside_stays_until_it_is_released(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("create consumer group g on s with (on_park = 'key')")
    base("insert into t values (1, 1), (2, 1)")  # 1, 2
    base("alter consumer group g on s park partition 0 at 1")
    for v in range(2, 5):
        base(f"update t set v = {v}")  # 3 to 8
    base.clock.us += 2 * HOUR_US
    base.look()
    found = lsns(base, "s")
    assert len(found) == 5  # Of key 1 all that is set aside, of key 2 the last.
    assert [row[0] for row in base("select behind from ducktail.parked")] == [3]
    with raises("22023") as error:
        base("alter consumer group g on s park partition 0 at 2")
    assert "Compaction may have taken it" in str(error.value.hint)
    base("alter consumer group g on s release partition 0")
    assert base.one("select count(*) from stream s consumer group g") == 5
    base("update t set v = 9")
    base.clock.us += 2 * HOUR_US
    base.look()
    # What is released stays until it is committed.
    assert lsns(base, "s") == [1, 3, 5, 7, 9, 10]
    assert [row[0] for row in base("select lsn from stream s consumer group g")] == [1, 3, 5, 7, 9, 10]
    base("commit offsets on s consumer group g")
    base("update t set v = 10")
    base.clock.us += 2 * HOUR_US
    base.look()
    assert lsns(base, "s") == [11, 12]
    assert [row[0] for row in base("select lsn from stream s consumer group g")] == [11, 12]


def test_topics(base: Compacting) -> None:
    base("create topic t with (partitions = 2, retention = 'none', compaction = 'key')")
    base("create topic free with (partitions = 1, compaction_lag = '0 s')")
    for text in (
        "publish to t 'x'",
        "insert into t (key, payload) select nullif(i, 1), 'x' from range(3) r(i)",
        "insert into t (payload) values ($$1$$)",
        "insert into t (key, payload) values (null, 'x')",
    ):
        with raises("23502"):
            base(text)
    base("begin")
    base("publish to t key 'a' 'lost'")
    with raises("23502"):
        base("insert into t (key, payload) select null, 'x'")
    base("commit")
    assert base("select * from stream t") == []
    base("insert into t (key, payload) select i % 5, i from range(20) r(i)")  # 1 to 20
    base("publish to t key 'made' 'by one' with (producer = 'p', sequence = 7)")  # 21
    base("publish to t key 3 values (NULL)")  # 22
    base("publish to t key 'made' values (NULL)")  # 23
    base.clock.us += 2 * HOUR_US
    base.look()
    wanted = [16, 17, 18, 20, 21, 22, 23]
    assert lsns(base, "t") == wanted
    base.reopen()
    assert lsns(base, "t") == wanted
    [(_, made)] = base("show create stream t")
    assert made.endswith("(partitions = 2, retention = 'none', compaction = 'key')")
    # The producer's last is known, and its delete stays with it.
    base("publish to t key 'made' 'by one' with (producer = 'p', sequence = 7)")
    assert lsns(base, "t") == wanted
    base("publish to t key 'x' '1'")  # 24
    base("publish to t key 'y' '1'")  # 25
    base("publish to t key 'z' '1'")  # 26
    for _ in range(2):
        base.clock.us += 2 * DAY_US
        base.look()
    assert lsns(base, "t") == [16, 17, 18, 20, 21, 23, 24, 25, 26]
    base("insert into free (key, payload) values (1, 'a'), (null, 'b'), (1, 'c')")
    base("alter topic free set (compaction = 'key')")
    base.look()
    assert base("select after from stream free") == [('"b"',), ('"c"',)]
    base.reopen()
    with raises("23502"):
        base("publish to free 'x'")


def test_bookmarks_and_bytes_follow(base: Compacting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BOOKMARKS_AT_ONCE", 1)
    base("create table t (id int primary key, v text)")
    base("create stream s on t with (partitions = 1, retention = 'none', compaction = 'key')")
    base("insert into t select i, repeat('x', 1000) from range(100) r(i)")
    base("update t set v = v || 'y'")
    base("create bookmark b on s")
    base("create bookmark early on s at '{\"0\": 20}'")
    base("update t set v = v || 'z' where id < 50")
    before = base("select bytes from ducktail.streams")
    counts = "select events, trimmed_events from ducktail.bookmarks order by bookmark_name"
    assert base(counts) == [(50, 0), (230, 0)]
    base.clock.us += 2 * HOUR_US
    base.look()
    assert base(counts) == [(50, 0), (100, 0)]
    [(after,)] = base("select bytes from ducktail.streams")
    assert 0.3 < after / before[0][0] < 0.5
    base("alter stream s set (retention = '1 hour')")
    base.look()
    assert base("select events, trimmed_events, whole from ducktail.bookmarks where bookmark_name = 'b'") == [
        (0, 50, False)
    ]
    base.reopen()
    assert base("select events, trimmed_events, whole from ducktail.bookmarks where bookmark_name = 'b'") == [
        (0, 50, False)
    ]


def test_a_reader_that_waits_counts_what_is_left(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 1, compaction = 'key', compaction_lag = '0 s')")
    base("create consumer group g on s")
    base("insert into t select i, 0 from range(10) r(i)")
    base.clock.us += 2 * SECOND_US
    base("begin")
    assert base("select sum(v) from t") == [(0,)]
    other = Client(base.database)
    other("update t set v = 1")
    other.close()
    base.look()
    # An open transaction reads up to its snapshot, and agrees with its tables.
    assert base.one("select count(*) from stream s") == 10
    base("commit")
    base.look()
    assert len(base("select * from stream s consumer group g wait '10 s' for 10")) == 10
    assert base("select count(*) from stream s consumer group g limit 2 transactions") == [(10,)]
    base("commit offset partition 0 at 5 on s consumer group g")  # It has gone: it is a place all the same.
    assert base("select count(*) from stream s consumer group g limit 1 transactions") == [(10,)]


def test_what_a_read_under_way_is_still_to_give_stays(
    base: Compacting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rows that it has not read ahead.
    for constant, value in (("FIRST_ROWS", 1), ("NARROW_REACH", 10)):
        monkeypatch.setattr(scan, constant, value)
    base("create table t (id int primary key, v int)")
    options = "partitions = 1, retention = 'none', compaction = 'key', compaction_lag = '1 s'"
    base(f"create stream s on t with ({options}, tombstone_retention = '1 minute')")
    base("insert into t select i, 0 from range(3000) r(i)")
    for age_us, rest in ((10 * SECOND_US, 2990), (62 * SECOND_US, 0)):
        other, end_lsn = Client(base.database), base.database.commits.last_lsn
        result = drive(other.session.execute(drive(other.session.parse("select lsn from stream s")), ()))
        head = result.fetch(10)
        assert head is not None and head.record_batch().num_rows == 10
        base("update t set v = v + 1")
        base.clock.us += age_us
        base.look()
        # Who is so far behind that he may miss deletes is not waited for.
        through_lsn = end_lsn if rest else base.database.commits.last_lsn
        assert base("select compacted_through_lsn from ducktail.partitions") == [(through_lsn,)]
        given = 0
        while (batch := result.fetch(None)) is not None:
            given += batch.record_batch().num_rows
        assert given == rest
        # A read that is over holds nothing, though its client had no more of it than this.
        assert len(other("select lsn from stream s limit 10")) == 10
        base.look()
        through_lsn = base.database.commits.last_lsn
        assert base("select compacted_through_lsn from ducktail.partitions") == [(through_lsn,)]
        other.close()


def test_transactions_whose_last_event_has_gone(base: Compacting) -> None:
    base("create table t (id int primary key, v int)")
    base("create stream s on t with (partitions = 2, retention = 'none', compaction = 'key')")
    for first in range(0, 12, 4):
        base(f"insert into t select i, 0 from range({first}, {first + 4}) r(i)")
    base("update t set v = 1 where id % 4 >= 2")
    base.clock.us += 2 * HOUR_US
    base.look()
    assert lsns(base, "s") == [1, 2, 5, 6, 9, 10, *range(13, 19)]
    for reopened in range(2):
        after, seen = 0, []
        for _ in range(4):
            rows = base(f"select lsn, txid, tx_last from stream s after {after} limit 1 transactions")
            assert len({txid for _, txid, _ in rows}) == 1
            assert [last for *_, last in rows] == [False] * (len(rows) - 1) + [True]
            after = rows[-1][0]
            seen += [lsn for lsn, *_ in rows]
        assert seen == lsns(base, "s"), reopened
        base.reopen()
