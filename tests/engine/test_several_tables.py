"""Streams over several tables: the merge of their logs however it is read, retention, parking, damage."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from hands import HOUR_US, Hands
from local_client import Client, Row, raises
from reopening import Editable

from ducktail.engine.buffers import scan

pytestmark = pytest.mark.slow

TABLES = {
    "a": "id int primary key, v int",
    "b": "x int, y text, v int, primary key (y, x)",
    "c": "v int",
}
EVENT = "lsn, partition, op, table_name, key, before, after, commit_time, txid, tx_seq, headers"


class Base(Editable):
    """A database that can be opened again, with streams on three tables: one on each, and one on all."""

    def cold(self, text: str) -> list[Row]:
        """A read that finds nothing in the buffers."""
        stream = next(s for s in self.database.catalog.streams.values() if s.name == "s")
        stand, self.database.buffers._bytes_max = self.database.buffers._bytes_max, 0
        try:
            self.database.buffers.resize(stream)
            return self(text)
        finally:
            self.database.buffers._bytes_max = stand
            self.database.buffers.remake(stream, self.database.commits.last_lsn)

    def check(self) -> None:
        """The stream is the merge of the tables' own ones, with whole transactions, however it is read."""
        own: list[Row] = []
        for table in TABLES:
            # A schema event stands once in each partition, and they have more and fewer of these.
            own += self(f"select {EVENT} from stream {table}_stream where op <> 'schema'")
        own.sort()
        [(first,)] = self("select min(lsn) from stream s")
        expected = [row for row in own if first is not None and row[0] >= first]
        ends = {row[8]: row[0] for row in expected}
        columns = f"{EVENT}, tx_last"
        wanted = [(*row, ends[row[8]] == row[0]) for row in expected]
        rows = f"select {columns} from {{}} where op <> 'schema' order by lsn"
        assert self(rows.format("stream s")) == wanted
        assert self(rows.format("s")) == wanted
        assert self.cold(rows.format("stream s")) == wanted
        plain = self("select * from stream s")
        assert plain == self("select * from s order by lsn") == self.cold("select * from stream s")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    made = Base(tmp_path / "s.duckdb", Hands())
    for table, columns in TABLES.items():
        made(f"create table {table} ({columns})")
    made("create stream s on a, b, c with (retention = '1 hour')")
    for table in TABLES:
        partitions = 1 if table == "c" else 8
        made(f"create stream {table}_stream on {table} with (partitions = {partitions}, retention = 'none')")
    yield made
    made.close()


def write(base: Base, random_: random.Random) -> None:
    """A transaction of one to four statements on any of the tables."""
    count = random_.randint(1, 4)
    if count > 1:
        base("begin")
    for _ in range(count):
        i, v = random_.randrange(20), random_.randrange(100)
        base(
            random_.choice(
                [
                    f"insert into a (id, v) values ({i}, {v}) on conflict (id) do update set v = {v}",
                    f"update a set id = id + 20, v = {v} where id = {i}",
                    f"delete from a where id >= {i + 10}",
                    f"insert into b (x, y, v) select {i} + i, 'y' || {v}, i from range({i % 4}) r(i) "
                    "on conflict do nothing",
                    f"update b set v = {v} where x = {i}",
                    f"insert into c (v) select i from range({i % 5}) r(i)",
                    f"delete from c where v = {v % 5}",
                ]
            )
        )
    if count > 1:
        base(random_.choice(["commit", "commit", "commit", "rollback"]))


def test_it_is_the_merge_of_its_tables(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in (("FIRST_ROWS", 8), ("ROWS_MAX", 16), ("BLOCK_LSNS", 4)):
        monkeypatch.setattr(scan, constant, value)
    monkeypatch.setattr(scan, "VERSIONS_AT_ONCE", 2)
    random_ = random.Random(2)
    for number in range(24):
        write(base, random_)
        if number % 8 == 3:
            table = random_.choice(list(TABLES))
            base(f"alter table {table} add column more{number} int default {number}")
        if number % 13 == 0:
            base.check()
    base.check()
    count = base("select count(distinct txid) from stream s")[0][0]
    for limit in (1, 3, count - 1, count, count + 1):
        text = f"select txid, tx_last from stream s limit {limit} transactions"
        for rows in (base(text), base.cold(text)):
            assert len({txid for txid, _ in rows}) == min(limit, count) and rows[-1][1]
    base.again()
    base.check()


def test_a_transaction_that_alters_them_is_whole(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """tx_last is on its last event of all tables, also where a read's window ends before that."""
    for constant, value in (("FIRST_ROWS", 1), ("ROWS_MAX", 2), ("BLOCK_LSNS", 1)):
        monkeypatch.setattr(scan, constant, value)
    base("create consumer group g on s")
    base("insert into a values (0, 0)")
    for text in (
        "begin",
        "insert into a values (1, 1)",
        "alter table b add column more int",
        "insert into b values (1, 'y', 1, 2)",
        "alter table a rename to a2",
        "alter table c rename column v to w",
        "insert into a2 values (2, 2)",
        "commit",
    ):
        base(text)
    rows = "select lsn, op, table_name, tx_last from stream s"
    expected = base(rows)
    assert [row[0] for row in expected if row[3]] == [1, expected[-1][0]]
    assert base(rows.replace("stream s", "s order by lsn")) == expected == base.cold(rows)
    assert {row[2] for row in expected if row[1] == "schema"} == {"main.a2", "main.b", "main.c"}
    [(lsn, partition)] = base("select lsn, partition from stream s where lsn > 1 and op = 'insert' limit 1")
    base(f"alter consumer group g on s park partition {partition} at {lsn} reason 'x'")
    base(f"alter consumer group g on s release partition {partition}")
    parked = base.client.session.database.parked
    assert all(not event.tx_last for group in parked._groups.values() for event in group.events.values())
    base.again()
    assert base(rows) == expected == base.cold(rows)


def test_retention_cuts_each_log_behind_all_of_its_streams(base: Base) -> None:
    base("create consumer group g on s")
    for hour in range(4):
        base(f"insert into a values ({hour}, 0)")
        base(f"insert into c values ({hour})")
        base.clock.us += HOUR_US
    base("drop stream c_stream cascade")
    base.database.retention.look()
    assert base("select lsn, table_name from stream s") == [(7, "main.a"), (8, "main.c")]
    assert base("select count(*) from stream a_stream") == [(4,)]
    with raises("72000") as gap:
        base("select * from stream s consumer group g")
    assert "events after LSN 0, up to LSN 6, are gone" in str(gap.value.detail)
    base("alter consumer group g on s set (on_gap = 'earliest')")
    assert base("select lsn from stream s consumer group g") == [(7,), (8,)]
    logs = {
        captured.shape.name: base.database.cursor().execute(f"select count(*) from {captured.log}").fetchall()
        for captured in base.database.catalog.tables.values()
    }
    assert logs == {"a": [(4,)], "b": [(0,)], "c": [(1,)]}
    base.again()
    assert base("select lsn, table_name from stream s") == [(7, "main.a"), (8, "main.c")]
    assert base("select sum(trimmed_events)::int from ducktail.partitions where stream_name = 's'") == [(6,)]


def test_retention_by_bytes_counts_all_tables(base: Base) -> None:
    base("alter stream s set (retention = 'none', retention_bytes = 1500)")
    for number in range(30):
        base(f"insert into {'ac'[number % 2]} select {number} {', 1' if number % 2 == 0 else ''}")
        base("select count(*) from stream s")  # It is published, and its bytes counted, by itself.
    base.database.retention.look()
    [(count, tables, size)] = base(
        "select count(*), count(distinct table_name), (select max(bytes) from ducktail.streams where "
        "stream_name = 's') from stream s"
    )
    assert 5 < count < 30 and tables == 2 and size <= 1500
    base.check()


def test_a_parked_event_when_the_versions_of_another_table_of_its_time_have_gone(base: Base) -> None:
    base("drop stream b_stream cascade")
    base("create consumer group g on s with (on_gap = 'earliest')")
    base("insert into a values (1, 1)")
    [(partition, lsn)] = base("select partition, lsn from stream s")
    base(f"alter consumer group g on s park partition {partition} at {lsn}")
    base("insert into b values (1, 'y', 1)")
    base("alter table b add column more int")
    base.clock.us += 2 * HOUR_US
    base("insert into b values (2, 'y', 2, 2)")
    base.database.retention.look()
    [b] = [one for one in base.database.catalog.tables.values() if one.shape.name == "b"]
    assert len(b.versions) == 1, "its first version's log has been dropped"
    assert base("select lsn, after from ducktail.parked") == [(lsn, '{"id":1,"v":1}')]
    base(f"alter consumer group g on s release partition {partition} at {lsn}")
    given = base("select lsn, table_name from stream s consumer group g where op = 'insert' order by lsn")
    assert given[0] == (lsn, "main.a")


def test_parked_events_of_two_tables(base: Base) -> None:
    base("create consumer group g on s")
    base("insert into a values (1, 1), (2, 2)")
    base("insert into c values (1), (2)")
    base("insert into b values (1, 'y', 1)")
    places = dict(base("select lsn, partition from stream s"))
    for lsn in (2, 3):
        base(f"alter consumer group g on s park partition {places[lsn]} at {lsn}")
    assert base("select lsn from stream s consumer group g") == [(1,), (4,), (5,)]
    base("commit offsets on s consumer group g")
    base.clock.us += 2 * HOUR_US
    base.database.retention.look()
    base.again()
    assert base("select count(*) from stream s") == [(0,)]
    assert base("select lsn, after from ducktail.parked") == [(2, '{"id":2,"v":2}'), (3, '{"v":1}')]
    for partition in {places[2], places[3]}:
        base(f"alter consumer group g on s release partition {partition}")
    again = base("select lsn, table_name, tx_last from stream s consumer group g")
    assert again == [(2, "main.a", True), (3, "main.c", False)]
    base("commit offsets on s consumer group g")
    assert base("select * from stream s consumer group g") == []


def test_a_table_that_was_edited_past_ducktail(base: Base) -> None:
    base("insert into a values (1, 1), (2, 2)")
    base("insert into b values (1, 'y', 1)")
    base.again("update a set v = 9 where id = 2", "delete from b")
    found = base("check stream s")
    assert [(row[0], row[6]) for row in found] == [("changed", "main.a"), ("missing", "main.b")]
    for name in ("s", "a_stream"):
        with raises("55000"):
            base(f"select * from stream {name}")
    assert base("select count(*) from stream c_stream") == [(0,)]
    base("alter stream s resync")
    told = base("select op, table_name, after from stream s where lsn > 3")
    assert told == [("update", "main.a", '{"id":2,"v":9}'), ("delete", "main.b", None)]
    assert base("check stream s") == []


def test_a_table_that_was_dropped_past_ducktail(base: Base) -> None:
    base("insert into a values (1, 1)")
    base("insert into c values (1)")
    base.again("drop table b")
    with raises("55000") as error:
        base("select * from stream s")
    assert 'table "b" of stream "s"' in str(error.value)
    base("insert into a values (2, 1)")
    assert base("select count(*) from stream a_stream") == [(2,)]
    base("drop stream s")
    base.again()
    base("create stream s on a, c with (snapshot = 'initial')")
    assert base("select op, table_name from stream s") == [
        *[("snapshot", "main.a")] * 2,
        ("snapshot", "main.c"),
    ]


def test_it_waits_for_who_has_written_one_of_the_tables(base: Base) -> None:
    base("create table d (v int)")
    other = Client(base.database, lock_timeout="50ms")
    base("begin")
    base("insert into d values (1)")
    with raises("55P03"):
        other("create stream s2 on a, d with (snapshot = 'initial')")
    base("rollback")
    other("create stream s2 on a, d with (snapshot = 'initial')")
    base("insert into d values (2)")
    assert other("select op, after from stream s2") == [("insert", '{"v":2}')]
    other.close()


def test_a_column_that_was_renamed_past_ducktail(base: Base) -> None:
    base("drop stream a_stream")
    base("create stream by_v on a, b with (partition_by = 'v')")
    base("insert into a values (1, 1)")
    base.again("alter table a rename column v to w")
    for text in ("select * from stream s", "select * from stream by_v", "alter table a add column z int"):
        with raises("55000") as error:
            base(text)
        # Who reads is told what the opening has seen.
        assert 'has no column "v", which stream' in f"{error.value} {error.value.detail}"
    for name in ("s", "by_v"):
        [(kind, *_, table)] = base(f"check stream {name}")
        assert (kind, table) == ("columns", "main.a")
    base("insert into b values (1, 'y', 1)")
    assert base("select count(*) from stream b_stream") == [(1,)]


def test_the_name_of_a_table_that_was_dropped_past_ducktail_is_taken(base: Base) -> None:
    """By a new table, and by one that is renamed: each is served, and what was there before is not."""
    base("drop stream b_stream")
    base.again("drop table b", "drop table c")
    for text in ("check {}", "alter {} resync", "alter {} rename to r", "show create {}"):
        with raises("55000"):
            base(text.format("stream s"))
    base("create table b (id int primary key)")
    base("create stream b_stream on b")
    base("insert into b values (1)")
    base("alter table a rename to c")
    base.again()
    base("insert into b values (2)")
    base("insert into c values (3, 3)")
    found = "select stream_name, tables from ducktail.streams where stream_name <> 's' order by 1"
    assert base(found) == [("a_stream", ["main.c"]), ("b_stream", ["main.b"])]
    assert base("select after from stream b_stream") == [('{"id":1}',), ('{"id":2}',)]
    assert base("select after from stream a_stream where op <> 'schema'") == [('{"id":3,"v":3}',)]
    with raises("55000") as error:
        base("select * from stream s")
    assert 'table "b" of stream "s"' in str(error.value)
    base("drop stream s")
    # What c_stream is on stays, as that does; of the table b that is gone nothing does.
    kept = base.database.cursor().execute("select table_name from ducktail.table_catalog order by all")
    assert kept.fetchall() == [("b",), ("c",), ("c (dropped)",)]


def test_changes_are_shown_of_a_table_whose_name_another_has_had(base: Base) -> None:
    for name in TABLES:
        base(f"drop stream {name}_stream")
    for text in (
        "insert into a values (1, 1)",
        "insert into c values (2)",
        "alter table a rename to a2",
        "alter table c rename to a",
        "insert into a values (3)",
        "insert into a2 values (4, 4)",
    ):
        base(text)
    for table, expected in (("a", [2, 3]), ("a2", [1, 4])):
        rows = base(f"show changes for {table}")
        assert [json.loads(row[6])["v"] for row in rows if row[2] != "schema"] == expected


def test_who_has_written_one_of_the_tables_may_write_the_others_before_it(base: Base) -> None:
    """Else the writer would wait for CREATE STREAM, and CREATE STREAM for the writer."""
    writer, others = Client(base.database, lock_timeout="50ms"), Client(base.database, lock_timeout="50ms")
    for text in ("create table d (v int)", "create table e (v int)"):
        base(text)
    for text in ("begin", "insert into e values (1)"):
        writer(text)
    made = Thread(target=lambda: base("create stream s2 on d, e with (snapshot = 'initial')"))
    made.start()
    gate = base.database.transactions.gate
    while gate.mark_of(("main", "e")) is None:
        made.join(0.005)
    with raises("55P03"):
        others("insert into d values (0)")
    for text in ("insert into d values (2)", "commit"):
        writer(text)
    made.join()
    told = others("select table_name, op, after from stream s2")
    assert told == [("main.d", "snapshot", '{"v":2}'), ("main.e", "snapshot", '{"v":1}')]
    others("insert into d values (3)")
    assert others("select count(*) from stream s2") == [(3,)]
    writer.close()
    others.close()
