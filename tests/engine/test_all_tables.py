"""Streams over all tables of a schema: others who make tables, opening, retention, tables past ducktail."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hands import HOUR_US, Hands
from local_client import Client, Row, raises, state_of
from reopening import Editable

from ducktail.engine.system_views.rows import streams

pytestmark = pytest.mark.slow

EVENTS = "select op, table_name, key, after from stream s where op <> 'schema'"


class Base(Editable):
    """A database that can be opened again, with a stream over all tables of schema n."""

    def alike(self) -> list[Row]:
        """The events, which the view has too."""
        rows = self("select * from stream s")
        assert rows == self("select * from s order by lsn")
        return rows


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    made = Base(tmp_path / "s.duckdb", Hands())
    made("create schema n")
    made("create stream s on all tables in schema n with (retention = '1 hour')")
    yield made
    made.close()


def test_it_is_the_same_when_it_is_opened_again(base: Base) -> None:
    base.again()
    base("create table n.a (id int primary key, v int)")
    base("insert into n.a values (1, 1)")
    base("create table n.b as select 'x' as t")
    base("create table n.empty (id int)")
    base("drop table n.b")
    before = base.alike()
    assert len(before) == 3 + 8  # A schema event in each partition.
    base.again()
    assert base.alike() == before
    assert base("select tables from ducktail.streams") == [(["n.a", "n.empty"],)]
    assert base("check stream s") == []
    base("create table n.b (id int)")
    base("insert into n.b values (1)")
    base("insert into n.empty values (2)")
    base("update n.a set v = 2")
    assert [row[:2] for row in base(EVENTS)[-3:]] == [
        ("insert", "n.b"),
        ("insert", "n.empty"),
        ("update", "n.a"),
    ]
    base.again()
    assert len(base.alike()) == len(before) + 3
    assert base("check stream s") == []


def test_a_dropped_table_is_forgotten_when_nothing_of_it_is_retained(base: Base) -> None:
    base("create consumer group g on s")
    base("create table n.a as select 1 as id")
    base("create table n.x (id int)")
    base("create table n.b (id int primary key)")
    base("create table n.c (id int)")
    base("drop table n.a")
    base("drop table n.x")
    ours = "select count(*) from duckdb_tables() where schema_name = 'ducktail' and table_name like '% %'"
    assert base(ours) == [(3,)]
    base.clock.us += 2 * HOUR_US
    base("insert into n.b values (1)")
    base.database.retention.look()
    assert base(ours) == [(1,)]
    assert [row[:2] for row in base.alike() and base(EVENTS)] == [("insert", "n.b")]
    with raises("72000"):
        base("select * from stream s consumer group g")
    base("create table n.a as select 2 as id")
    base.again()
    # As they came, where others are gone.
    assert base("select tables from ducktail.streams") == [(["n.b", "n.c", "n.a"],)]
    assert len(base.alike()) == 2


def test_a_table_made_past_ducktail_is_told_of_and_taken_in(base: Base) -> None:
    base("create table n.a (id int primary key)")
    base.again("create table n.past as select 7 as id", "create table main.other (id int)")
    with raises("55000") as told:
        base("select * from stream s")
    assert "n.past" in told.value.message
    base("insert into n.past values (8)")
    base("create table n.b as select 1 as id")
    with raises("55000"):
        base("select * from stream s")
    base("alter stream s resync")
    assert [row[1] for row in base(EVENTS)] == ["n.b", "n.past", "n.past"]
    base("insert into n.past values (9)")
    assert len(base.alike()) == 4
    assert base("check stream s") == []


def test_it_waits_for_those_who_make_tables(base: Base) -> None:
    base("drop stream s")
    other = Client(base.database)
    base("begin")
    base("create table n.mine (id int primary key)")
    base("insert into n.mine values (1)")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(other, "create stream s on all tables in schema n")
        while base.database.transactions.gate.mark_of(("n", "")) is None:
            assert not made.done()
        base("commit")
        made.result(30)
    base("insert into n.mine values (2)")
    assert [row[:3] for row in base(EVENTS)] == [("insert", "n.mine", '{"id":2}')]
    # Who began to read before the stream was there cannot make a table that it is to have.
    base("drop stream s")
    base("begin")
    base("select count(*) from n.mine")
    other("create stream s on all tables in schema n")
    with raises("40001"):
        base("create table n.late (id int)")
    base("rollback")
    other.close()


def test_others_see_a_table_with_its_stream(base: Base) -> None:
    other = Client(base.database)
    other("set lock_timeout = '100 ms'")
    base("begin")
    base("create table n.a (id int primary key)")
    base("insert into n.a values (1)")
    with raises("55P03"):
        other("create table n.a (id int)")
    with raises("55P03"):
        other("create table n.b (id int)")
    base("commit")
    other("insert into n.a values (2)")
    other("create table n.b as select 3 as id")
    assert [row[:2] for row in base(EVENTS)] == [("insert", "n.a"), ("insert", "n.a"), ("insert", "n.b")]
    other.close()


def test_options_hold_for_tables_that_come(base: Base) -> None:
    base("create schema m")
    options = "partition_by = 'tenant', before = 'key', partitions = 4"
    base(f"create stream t on all tables in schema m with ({options})")
    base("create table m.a (id int primary key, tenant int)")
    base("create table m.b (id int primary key, tenant int)")
    base("insert into m.a select i, i from range(20) r(i)")
    base("insert into m.b select i, i from range(20) r(i)")
    rows = base("select distinct after->>'tenant', partition from stream t")
    assert len(rows) == 20 and len({partition for _, partition in rows}) == 4
    assert base("select ducktail.partition_of('t', 3)") == [
        (next(partition for tenant, partition in rows if tenant == "3"),)
    ]
    for columns in ("id int primary key", "tenant int"):
        with raises("55000"):
            base(f"create table m.c ({columns})")
    base("alter table m.a rename tenant to customer")
    base.again()
    assert base("select partition_by from ducktail.streams where stream_name = 't'") == [("tenant",)]
    base("create table m.c (id int primary key, tenant int)")
    base("insert into m.c values (1, 3)")
    assert base("select count(*) from stream t") == [(41 + 4,)]


def test_two_of_one_schema_and_one_by_name(base: Base) -> None:
    base("create stream s2 on all tables in schema N with (partitions = 1, retention = 'none')")
    base("create table n.a as select 1 as id")
    base("create stream own on n.a")
    base("insert into n.a values (2)")
    assert base("select count(*) from stream s") == base("select count(*) from stream s2") == [(2,)]
    assert base("select count(*) from stream own") == [(1,)]
    base("drop stream s")
    base("create table n.b as select 1 as id")
    base("drop table n.b")
    base("alter stream s2 rename to s")
    base("create table n.c as select 1 as id")
    assert [row[:2] for row in base(EVENTS)][2:] == [("insert", "n.b"), ("delete", "n.b"), ("insert", "n.c")]
    assert len(base.alike()) == 6
    base("drop stream own")
    base("drop stream s")
    assert base("select count(*) from ducktail.table_catalog") == [(0,)]
    base.again()


def test_who_waits_gets_what_comes_of_new_tables(base: Base) -> None:
    base("create consumer group g on s")
    other = Client(base.database)
    read = "select table_name from stream s consumer group g wait '20 s' for 2"
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other, read)
        while not base.database.polls.count:
            assert not found.done()
        base("create table n.a as select 1 as id")
        base("create table n.b (id int)")
        base("insert into n.b values (1)")
        assert found.result(30) == [("n.a",), ("n.b",)]
    other("commit offsets on s consumer group g")
    base("insert into n.b values (2)")
    assert other("select table_name from stream s consumer group g") == [("n.b",)]
    other.close()


def test_a_table_dropped_past_ducktail_is_told_of(base: Base) -> None:
    base("create table n.a (id int primary key)")
    base("create table n.b (id int)")
    base.again("drop table n.a")
    base("create table n.a (id int primary key)")
    base("insert into n.a values (7)")
    for _ in range(2):
        with raises("55000"):
            base("select * from stream s")
        base.again()
    base("drop stream s")
    base("create stream s on all tables in schema n")
    base("insert into n.a values (8)")
    assert [row[:2] for row in base(EVENTS)] == [("insert", "n.a")]
    base.again()
    assert len(base.alike()) == 1


def test_a_table_that_another_has_made_meanwhile_is_not_replaced_past_its_stream(base: Base) -> None:
    other = Client(base.database)
    other("set lock_timeout = '20 s'")
    base("begin")
    base("create table n.a (id int primary key, v int)")
    base("insert into n.a values (1, 1)")
    with ThreadPoolExecutor(1) as pool:
        replaced = pool.submit(state_of, other, "create or replace table n.a (id int, z int)")
        base("insert into n.a values (2, 2)")
        base("commit")
        assert replaced.result(30) in ("ok", "55P03")
    base("insert into n.a values (3, 3)")
    assert base("check stream s") == []
    assert len(base.alike()) >= 3
    other.close()


def test_a_table_that_was_written_past_ducktail_is_not_dropped_before_it_is_mended(base: Base) -> None:
    base("create table n.a (id int primary key, v int)")
    base("insert into n.a values (1, 1)")
    base.again("insert into n.a values (2, 2)")
    with raises("55000"):
        base("drop table n.a")
    base("alter stream s resync")
    base("drop table n.a")
    assert base("check stream s") == []
    told = [("insert", '{"id":1}'), ("snapshot", '{"id":2}'), ("delete", '{"id":1}'), ("delete", '{"id":2}')]
    assert base("select op, key from stream s where op <> 'schema'") == told


def test_a_table_that_came_past_ducktail_is_told_by_check_and_gets_no_other_stream(base: Base) -> None:
    base.again('create table n."A a" as select 1 as id')
    told = "the table has come past ducktail: changes of it are not captured"
    assert base("check stream s") == [("table", None, None, None, None, told, 'n."A a"')]
    for made in ('on n."A a"', "on all tables in schema n"):
        with raises("55000"):
            base(f"create stream other {made}")
    base("alter stream s resync")
    assert base("check stream s") == []
    base('create stream other on n."A a"')
    base('insert into n."A a" values (2)')
    assert base("select after from stream s") == [('{"id":1}',), ('{"id":2}',)]


def test_streams_are_listed_while_one_is_dropped(base: Base) -> None:
    base("create stream z on all tables in schema n")
    rows = streams(base.database)
    assert next(rows)["stream_name"] == "s"
    base("drop stream z")
    assert not list(rows)


def test_a_table_that_left_the_stream_is_forgotten_when_it_is_gone(base: Base) -> None:
    for after in ("drop table n.a_old", "alter table n.a_old rename to a_third"):
        base("create or replace table n.a as select 1 as id")
        base("begin")
        base("alter table n.a rename to a_old")
        base("create table n.a as select 1 as id")
        base("commit")
        base(after)
        base.again("create table n.a_old as select 7 as id")
        with raises("55000"):
            base("select * from stream s")
        base("alter stream s resync")
        base("drop table n.a_old")
    assert base("select table_name, op from stream s where after->>'id' = 7")


def test_who_has_read_before_a_table_came_alters_none(base: Base) -> None:
    base("create table n.a (id int primary key)")
    base("begin")
    base("select * from n.a")
    other = Client(base.database)
    other("create table n.b as select 1 as id")
    other.close()
    with raises("40001") as found:
        base("alter table n.a add column v int")
    assert found.value.message.endswith("a concurrent change of tables, views or streams")
    base("rollback")
    assert [row[:2] for row in base.alike() and base(EVENTS)] == [("insert", "n.b")]
