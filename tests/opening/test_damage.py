"""A log that is short or unreadable is an error of its own streams, with what can be read; never silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.database import Database


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A closed database with two captured tables, 10 transactions of one event in each, by turns."""
    path = tmp_path / "shop.duckdb"
    client = Client(Database.open(str(path)))
    client("create table t (id int primary key)")
    client("create table u (id int primary key)")
    client("create stream st on t")
    client("create stream su on u")
    for key in range(1, 11):
        client(f"insert into t values ({key})")
        client(f"insert into u values ({key})")
    closed(client)
    yield path


def closed(client: Client) -> None:
    client.close()
    client.session.database.close()


def log_of(plain: duckdb.DuckDBPyConnection, table: str) -> str:
    found = plain.execute(
        "select 'ducktail.log_' || table_id || '_' || version from ducktail.table_catalog "
        f"where table_name = '{table}'"
    ).fetchone()
    assert found is not None
    return str(found[0])


def test_a_whole_database_has_no_damage(path: Path) -> None:
    client = Client(Database.open(str(path)))
    assert client.session.database.damage == {}
    assert client.one("select count(*) from stream st after 0") == 10
    client("drop stream su cascade")
    client("insert into t values (11)")
    closed(client)
    client = Client(Database.open(str(path)))
    assert client.session.database.damage == {}
    client.session.database.retention.trim(client.session.database.catalog.streams["main", "st"], 5)
    client("insert into t values (12)")
    closed(client)
    client = Client(Database.open(str(path)))
    assert client.session.database.damage == {}
    closed(client)


def test_missing_rows_name_their_streams(path: Path) -> None:
    with duckdb.connect(str(path)) as plain:
        plain.execute(f"delete from {log_of(plain, 't')} where lsn = 7")
    client = Client(Database.open(str(path)))
    # The transaction has no row left anywhere: its table cannot be told.
    for stream in ("st", "su"):
        with raises("XX001") as found:
            client(f"select * from stream {stream} after 0")
        assert found.value.message == f'stream "{stream}" is damaged'
        assert found.value.detail == (
            "Of the transaction with LSN 7 to 7 the logs have 0 events. "
            "Its events with LSN 1 to 6 are complete."
        )
    client("insert into t values (11)")  # it stays damaged when new events come
    with raises("XX001"):
        client("select * from stream st after 0")
    closed(client)


def test_of_a_transaction_that_is_half_there_only_its_table_suffers(path: Path) -> None:
    client = Client(Database.open(str(path)))
    client("insert into t select range from range(100, 110)")
    closed(client)
    with duckdb.connect(str(path)) as plain:
        plain.execute(f"delete from {log_of(plain, 't')} where lsn = 25")
    client = Client(Database.open(str(path)))
    with raises("XX001") as found:
        client("select * from stream st after 0")
    assert "LSN 21 to 30 the logs have 9 events" in (found.value.detail or "")
    assert client.one("select count(*) from stream su after 0") == 10
    closed(client)


def test_a_hole_in_the_commits(path: Path) -> None:
    with duckdb.connect(str(path)) as plain:
        plain.execute("delete from ducktail.commits where first_lsn in (9, 10)")
    client = Client(Database.open(str(path)))
    with raises("XX001") as found:
        client("select * from stream st after 0")
    assert "transaction 10 (last LSN 8) to 13 (first LSN 11)" in (found.value.detail or "")
    closed(client)


def test_a_log_that_is_gone(path: Path) -> None:
    with duckdb.connect(str(path)) as plain:
        plain.execute(f"drop table {log_of(plain, 'u')}")
    client = Client(Database.open(str(path)))
    with raises("XX001") as found:
        client("select * from stream su after 0")
    assert "None of its events" in (found.value.detail or "")
    assert client.one("select count(*) from stream st after 0") == 10
    closed(client)


def test_rows_that_no_commit_knows(path: Path) -> None:
    with duckdb.connect(str(path)) as plain:
        log = log_of(plain, "u")
        plain.execute(f"insert into {log} (lsn, txid, op) values (30, 30, 'i')")
    client = Client(Database.open(str(path)))
    with raises("XX001") as found:
        client("select * from stream su after 0")
    assert "has LSN 30, and the last commit ends with 20" in (found.value.detail or "")
    assert client.one("select count(*) from stream st after 0") == 10
    closed(client)


def test_damage_that_is_accepted_is_accepted_once(path: Path) -> None:
    with duckdb.connect(str(path)) as plain:
        plain.execute(f"delete from {log_of(plain, 't')} where lsn = 7")
        plain.execute("delete from ducktail.commits where first_lsn in (9, 10)")
    closed(Client(Database.open(str(path), accept_loss=True)))
    with duckdb.connect(str(path)) as plain:
        plain.execute("create table other (id int)")
    # The file was written since: but that the log has not led to the table is known, and accepted.
    client = Client(Database.open(str(path)))
    assert client.one("select count(commit_time) from stream st after 0") == 8
    client("insert into t values (11)")
    closed(client)
    with duckdb.connect(str(path)) as plain:
        plain.execute(f"delete from {log_of(plain, 't')} where lsn = 21")
    client = Client(Database.open(str(path)))
    with raises("XX001"):
        client("select * from stream st after 0")
    closed(client)
