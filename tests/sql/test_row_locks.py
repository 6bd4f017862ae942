"""SELECT ... FOR UPDATE beside other sessions: waits, rights, and DML of its own transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from heard import OK, Heard
from local_client import Client, raises, settings

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive, in_thread


@pytest.fixture
def database(tmp_path: Path):  # type: ignore[no-untyped-def]
    found = Database.open(str(tmp_path / "shop.duckdb"), settings(lock_timeout_ms=5000))
    client = Client(found)
    for text in (
        "create table t (id int primary key, v int)", "create table plain (id int primary key, v int)",
        "create stream s on t", "insert into t values (1, 1)", "insert into plain values (1, 1)",
    ):  # fmt: skip
        client(text)
    client.close()
    yield found
    found.close()


@pytest.mark.parametrize("table", ["t", "plain"])
def test_the_second_reads_what_the_first_has_written(database: Database, table: str) -> None:
    """The classic: read, compute, write. No update is lost and none fails."""
    a, b = Client(database), Client(database)
    a("begin")
    assert a.one(f"select v from {table} where id = 1 for update") == 1
    b("begin")
    waiting = in_thread(lambda: b.one(f"select v from {table} where id = 1 for update"))
    a(f"update {table} set v = v + 1 where id = 1")
    assert not waiting.done()
    a("commit")
    assert waiting.result(10) == 2
    b(f"update {table} set v = 3 where id = 1")
    b("commit")
    assert a.one(f"select v from {table}") == 3
    for client in (a, b):
        client.close()


def test_a_writer_without_the_clause_waits(database: Database) -> None:
    a, b = Client(database), Client(database)
    a("begin")
    a("select * from plain for share")
    waiting = in_thread(lambda: b("update plain set v = 9"))
    a("select 1")
    assert not waiting.done()
    a("rollback")
    waiting.result(10)
    assert a.one("select v from plain") == 9
    for client in (a, b):
        client.close()


def test_in_autocommit_the_lock_ends_with_the_statement(database: Database) -> None:
    a, b = Client(database), Client(database)
    a("select * from plain for update")
    a("select * from t for update")
    b("select * from plain for update nowait")
    b("update t set v = 4")
    for client in (a, b):
        client.close()


def test_the_clause_wants_the_right_to_update(database: Database) -> None:
    owner = Client(database)
    owner("create user boss password 'a long secret' superuser")
    owner("create user ann password 'a long secret'")
    owner("grant select on plain to ann")
    owner("grant select, update on t to ann")
    ann = Heard(database, account="ann")
    refused = ann.ask("select * from plain for update")
    assert refused.sqlstate == "42501"
    assert ann.ask("select * from plain").sqlstate == OK
    assert ann("select v from t for update") == (("1",),)
    drive(ann.session.close())
    owner.close()


def test_a_prepared_statement_and_a_cursor_lock(database: Database) -> None:
    a, b = Client(database), Client(database)
    a("prepare p as select * from plain where id = $1 for update")
    a("begin")
    a("execute p(1)")
    with raises("55P03"):
        b("select * from plain for update nowait")
    a("commit")
    a("begin")
    a("declare c cursor for select * from plain for update")
    a("fetch 1 from c")
    with raises("55P03"):
        b("select * from plain for update nowait")
    a("commit")
    b("select * from plain for update nowait")
    for client in (a, b):
        client.close()
