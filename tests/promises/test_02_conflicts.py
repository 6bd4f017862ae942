"""Promises 1 and 2, the part about two transactions: no update is lost, and the feed folds to the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from amounts import paired
from local_client import Client, fold, fold_without_key, state_of

WRITES = {
    "update": "update t set v = v + 10 where id = 1",
    "delete": "delete from t where id = 1",
    "insert": "insert into t values (9, 90)",
    "upsert": "insert into t values (1, 77) on conflict (id) do update set v = excluded.v",
    "upsert new": "insert into t values (9, 77) on conflict (id) do update set v = excluded.v",
    "key change": "update t set id = 9 where id = 1",
}
TOUCHES = {
    "update": {1},
    "delete": {1},
    "insert": {9},
    "upsert": {1},
    "upsert new": {9},
    "key change": {1, 9},
}
# The gate has one partner of each.
AFTER_READ = paired(list(WRITES), 1, "a write after an older read")
WITHOUT_READ = paired(list(WRITES), 1, "writes without an older read")


def folded(client: Client) -> dict[str, str]:
    """The stream, folded; it holds the table from its first row on."""
    return fold(client("select op, key, before, after from stream s"))


def rows_of(client: Client) -> dict[str, str]:
    """The table, in the same form."""
    return dict(
        client("select json_object('id', id)::varchar, json_object('id', id, 'v', v)::varchar from t")
    )


@pytest.fixture
def table(connect: Callable[..., Client]) -> Client:
    """A captured table with rows 1 to 3."""
    client = connect()
    client("create table t (id int primary key, v int)")
    client("create stream s on t with (partitions = 3)")
    client("create stream filtered on t where v > 1000")
    client("insert into t values (1, 10), (2, 20), (3, 30)")
    return client


@pytest.mark.parametrize(("first", "second"), AFTER_READ)
def test_a_write_after_an_older_read_meets_a_committed_one(
    table: Client, connect: Callable[..., Client], first: str, second: str
) -> None:
    reader, writer = connect(), connect()
    reader("begin")
    assert reader.one("select count(*) from t") == 3
    writer(WRITES[first])
    state = state_of(reader, WRITES[second])
    expected = "40001" if TOUCHES[first] & TOUCHES[second] else "ok"
    assert state == expected
    reader("commit" if state == "ok" else "rollback")
    assert folded(table) == rows_of(table)


@pytest.mark.parametrize(("first", "second"), WITHOUT_READ)
def test_writes_without_an_older_read_wait_for_each_other(
    table: Client, connect: Callable[..., Client], first: str, second: str
) -> None:
    one, other = connect(), connect(lock_timeout="200ms")
    one("begin")
    one(WRITES[first])
    assert state_of(other, WRITES[second]) == "55P03"
    one("commit")
    # Now it is alone: it fails only where its own constraint says so, and nothing is lost.
    assert state_of(other, WRITES[second]) in ("ok", "23505")
    assert folded(table) == rows_of(table)


def test_other_rows_do_not_conflict(table: Client, connect: Callable[..., Client]) -> None:
    reader, writer = connect(), connect()
    reader("begin")
    reader("select * from t")
    writer("update t set v = 0 where id = 2")
    reader("update t set v = 1 where id = 3")
    reader("commit")
    assert folded(table) == rows_of(table)


def test_a_table_without_a_primary_key_conflicts_by_its_whole_row(connect: Callable[..., Client]) -> None:
    client, reader, writer = connect(), connect(), connect()
    client("create table n (a int, b text)")
    client("create stream s on n")
    client("insert into n values (1, 'x'), (2, 'y'), (2, 'y')")
    for first, second in itertools.product(
        ("update n set b = b || '!' where a = 1", "delete from n where a = 1"), repeat=2
    ):
        reader("begin")
        reader("select * from n")
        writer(first)
        assert state_of(reader, second) == "40001"
        reader("rollback")
        client("delete from n")
        client("insert into n values (1, 'x'), (2, 'y'), (2, 'y')")
    images = [row[0] for row in client("select json_object('a', a, 'b', b)::varchar from n")]
    found = fold_without_key(client("select op, before, after from stream s"))
    assert sorted(found.elements()) == sorted(images)


def test_a_read_of_another_table_fixes_the_snapshot_too(
    table: Client, connect: Callable[..., Client]
) -> None:
    table("create table plain (a int)")
    reader, writer = connect(), connect()
    reader("begin")
    reader("select * from plain")
    writer("delete from t where id = 1")
    assert state_of(reader, "update t set v = 5 where id = 1") == "40001"
    reader("rollback")
    assert folded(table) == rows_of(table)


def test_begin_alone_takes_no_snapshot(table: Client, connect: Callable[..., Client]) -> None:
    reader, writer = connect(), connect()
    reader("begin")
    reader("set application_name = 'x'")
    writer("update t set v = 11 where id = 1")
    reader("update t set v = v + 1 where id = 1")
    reader("commit")
    assert table("select v from t where id = 1") == [(12,)]
    assert folded(table) == rows_of(table)


def test_a_bulk_write_counts_as_every_key(table: Client, connect: Callable[..., Client]) -> None:
    reader, writer = connect(), connect()
    reader("begin")
    reader("select * from t")
    writer("insert into t select i, i from range(1000, 150000) r(i)")
    assert state_of(reader, "update t set v = 1 where id = 3") == "40001"
    reader("rollback")


def test_shifted_and_swapped_keys_fold(table: Client) -> None:
    table("update t set id = id + 1")
    assert folded(table) == rows_of(table)
    table("update t set id = 7 - id where id in (3, 4)")
    assert folded(table) == rows_of(table)
    pairs = table("select headers->>'key_change' from stream s where op in ('insert', 'delete') and lsn > 3")
    assert None not in {pair for (pair,) in pairs}
