"""Promise 1: a change and its event commit together, or neither does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database


@pytest.fixture
def table(connect: Callable[..., Client]) -> Client:
    """A captured table."""
    client = connect()
    client("create table t (id int primary key, v int check (v < 100))")
    client("create stream s on t")
    return client


def events(client: Client) -> list[tuple[str, str]]:
    """op and after of each event."""
    return [(op, after) for op, after in client("select op, after from stream s")]


def test_a_rollback_leaves_neither(table: Client) -> None:
    table("begin")
    table("insert into t values (1, 1)")
    table("update t set v = 2")
    table("rollback")
    assert events(table) == []
    assert table("select * from t") == []


def test_a_failed_statement_leaves_neither(table: Client) -> None:
    table("insert into t values (1, 1)")
    with raises("23505"):
        table("insert into t values (2, 2), (1, 1)")
    with raises("23514"):
        table("update t set v = 500")
    assert events(table) == [("insert", '{"id":1,"v":1}')]


def test_a_failed_statement_fails_its_transaction(table: Client) -> None:
    table("begin")
    table("insert into t values (1, 1)")
    with raises("23505"):
        table("insert into t values (1, 1)")
    with raises("25P02"):
        table("insert into t values (2, 1)")
    table("commit")
    assert table.tag == "ROLLBACK"
    assert events(table) == []


def test_lsns_stay_dense_over_rollbacks(table: Client) -> None:
    for number in range(5):
        table("begin")
        table("insert into t values ($1, 1)", number)
        table("commit" if number % 2 else "rollback")
    assert [lsn for (lsn,) in table("select lsn from stream s")] == [1, 2]


def test_one_transaction_over_two_tables(table: Client) -> None:
    table("create table u (id int primary key)")
    table("create stream su on u")
    table("begin")
    table("insert into t values (1, 1)")
    table("insert into u values (5)")
    table("insert into t values (2, 2)")
    table("commit")
    rows = table(
        "select lsn, txid, tx_seq, tx_last, 't' from stream s union all "
        "select lsn, txid, tx_seq, tx_last, 'u' from stream su order by 1"
    )
    assert [(lsn, seq, last, name) for lsn, _, seq, last, name in rows] == [
        (1, 0, False, "t"),
        (2, 1, True, "u"),
        (3, 2, True, "t"),
    ]
    assert len({txid for _, txid, *_ in rows}) == 1


def test_an_error_under_returning_is_its_own(connect: Callable[..., Client], database: Database) -> None:
    """Over the wire, where columns that Arrow does not carry whole are read in a way of their own."""
    client = Client(database, wire=True)
    client("create table w (id int primary key, i interval)")
    client("create stream sw on w")
    for _ in range(2):
        client("insert into w values (1, interval '1 day') on conflict do nothing returning *")
        with raises("23505"):
            client("insert into w values (1, interval '1 day') returning *")
        assert client("insert into w values (2, interval '2 days') returning i") == [("2 days",)]
        client("delete from w where id = 2")
    assert client("select * from w") == [(1, "1 day")]
    client.close()
