"""Triggers: which tables they may write, whoever made or fires them, and beside a CREATE STREAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg
import pytest
from local_client import Client, raises
from server_process import ServerProcess

from ducktail.engine.catalog.triggers import ANY, Target, target_of
from ducktail.engine.database import Database

HEAD = "CREATE TRIGGER t AFTER INSERT ON a FOR EACH STATEMENT "


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ("INSERT INTO lg (VALUES (1));", Target(None, "lg")),
        ("INSERT OR REPLACE INTO s.Lg SELECT 1;", Target("s", "lg")),
        ("UPDATE memory.main.lg AS l SET i = 3 FROM s.lg AS q;", Target("main", "lg")),
        ("DELETE FROM memory.lg USING s.lg AS q;", Target(None, "lg")),
        ('DELETE FROM "S x"."a ""b"" INSERT INTO c";', Target("s x", 'a "b" insert into c')),
        ("MERGE INTO lg USING (SELECT 1 AS k) ON (lg.i = k) WHEN MATCHED THEN DELETE;", Target(None, "lg")),
        (
            "WITH \"insert\" AS (SELECT 'x) DELETE FROM y' AS i), q AS (SELECT 1) INSERT INTO s.x SELECT 4;",
            Target("s", "x"),
        ),
        ("SELECT 1", ANY),
        ("INSERT INTO ", ANY),
        ("", ANY),
    ],
)
def test_what_a_trigger_writes(body: str, target: Target) -> None:
    assert target_of(HEAD + body, "memory") == target
    odd = 'CREATE TRIGGER "x FOR EACH ROW INSERT INTO y" AFTER UPDATE OF "FOR" ON "FOR EACH" FOR EACH ROW '
    assert target_of(odd + body, "memory") == target


def test_duckdb_tells_it_so() -> None:
    """The texts above are what DuckDB makes of such triggers."""
    with duckdb.connect() as plain:
        plain.execute('create schema s; create table s.x(i int); create table "select"(i int)')
        plain.execute("create table a(i int)")
        for text in (
            '"for each" after insert on a for each statement insert into "select" values (1)',
            "w after delete on a for each statement with insert as (select ')' i) insert into s.x select 4",
        ):
            plain.execute(f"create trigger {text}")
        rows = plain.execute("select sql from duckdb_triggers() order by sql").fetchall()
    assert [target_of(text, "memory") for (text,) in rows] == [Target(None, "select"), Target("s", "x")]


def closed(client: Client) -> None:
    client.close()
    client.session.database.close()


def test_those_made_past_ducktail(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.duckdb")
    client = Client(Database.open(path))
    for text in (
        "create table captured (id int)",
        "create stream s on captured with (partitions = 1)",
        *(f"create table {name} (id int)" for name in ("a", "b", "c", "d", "e", "f")),
        "create schema app",
        "create table app.captured (id int)",
    ):
        client(text)
    closed(client)
    with duckdb.connect(path) as plain:
        for table, body in (
            ("a", "insert into b values (1)"),
            ("b", "insert into captured values (1)"),
            ("c", "insert into d select count(*) from captured"),
            ("e", "insert into app.captured values (1)"),
            ("f", "insert into ducktail.meta values ('a', 'b')"),
            ("captured", "insert into d values (3)"),
        ):
            plain.execute(f"create trigger t after insert on {table} for each statement {body}")
    client = Client(Database.open(path))
    for table in ("a", "b", "f", "captured"):
        with raises("0A000"):
            client(f"insert into {table} values (1)")
        with raises("0A000"):
            client(f"with x as (insert into {table} values (1) returning id) select * from x")
    client("insert into c values (1)")
    client("insert into e values (1)")
    # Unnamed, a schema is that of the search path: here it would be app.captured that b's trigger writes.
    client("set search_path = 'app,main'")
    with raises("0A000"):
        client("insert into main.b values (1)")
    client("set search_path = 'main'")
    assert client("select * from d") == [(0,)] and client("select * from app.captured") == [(1,)]
    with raises("0A000"):
        client("create stream more on app.captured")
    client("drop trigger t on captured")
    client("drop trigger t on b")
    client("insert into a values (1)")
    client("insert into captured values (1)")
    assert client("select lsn from stream s") == [(1,)]
    closed(client)


def test_a_table_that_comes_under_a_stream(tmp_path: Path) -> None:
    client = Client(Database.open(str(tmp_path / "shop.duckdb")))
    client("create table a (id int)")
    client("create table lg (id int)")
    client("create schema app")
    client("create stream s on all tables in schema app")
    client("create trigger t after insert on a for each statement insert into lg values (1)")
    client("insert into a values (1)")
    for within in (False, True):
        if within:
            client("begin")
        client("create table app.lg (id int)")
        client("set search_path = 'app,main'")
        with raises("0A000"):
            client("insert into main.a values (2)")
        if within:
            client("rollback")
        else:
            client("drop table app.lg")
            client("set search_path = 'main'")
            client("insert into a values (2)")
    closed(client)


def test_create_stream_waits_for_what_a_trigger_has_written(tmp_path: Path) -> None:
    database = Database.open(str(tmp_path / "shop.duckdb"))
    writer, maker = Client(database), Client(database)
    for text in ("create table a (id int)", "create table b (id int)", "create table c (id int)"):
        writer(text)
    writer("create trigger t after insert on a for each statement insert into b values (1)")
    writer("create trigger u after insert on b for each statement insert into main.c values (1)")
    writer("begin")
    writer("insert into a values (1)")
    maker("drop trigger t on a")
    maker("drop trigger u on b")
    maker("set lock_timeout = '100ms'")
    for table in ("b", "c"):
        with raises("55P03"):
            maker(f"create stream s{table} on {table} with (snapshot = 'initial', partitions = 1)")
    writer("commit")
    for table in ("b", "c"):
        maker(f"create stream s{table} on {table} with (snapshot = 'initial', partitions = 1)")
        assert maker(f"select op from stream s{table}") == [("snapshot",)]
    maker.close()
    closed(writer)


def test_what_a_limited_user_may(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    with server.connect() as first:
        for text in (
            "CREATE USER ann PASSWORD 'x' SUPERUSER",
            "CREATE USER bob PASSWORD 'x'",
        ):
            first.execute(text)
    with server.connect(user="ann", password="x") as ann, server.connect(user="bob", password="x") as bob:
        for text in (
            "CREATE TABLE a (id INT)",
            "CREATE TABLE lg (id INT)",
            "CREATE SCHEMA bobs",
            "GRANT CREATE ON SCHEMA bobs TO bob",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON a TO bob",
        ):
            ann.execute(text)
        bob.execute("CREATE TABLE bobs.own (id INT)")
        bob.execute("INSERT INTO a VALUES (1)")
        for text in (
            "CREATE TRIGGER t AFTER INSERT ON bobs.own FOR EACH STATEMENT INSERT INTO bobs.own VALUES (1)",
            "CREATE TRIGGER t AFTER INSERT ON a FOR EACH STATEMENT DELETE FROM bobs.own",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bob.execute(text)
        ann.execute("CREATE TRIGGER t AFTER INSERT ON a FOR EACH STATEMENT INSERT INTO lg VALUES (7)")
        for text in (
            "INSERT INTO a VALUES (2)",
            "DELETE FROM a",
            "UPDATE a SET id = 3",
            "TRUNCATE a",
            "WITH x AS (INSERT INTO a VALUES (2) RETURNING id) SELECT * FROM x",
            "DROP TRIGGER t ON a",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bob.execute(text)
        copying = bob.cursor().copy("COPY a FROM STDIN")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), copying as copy:
            copy.write("5\n")
        assert bob.execute("SELECT * FROM a").fetchall() == [(1,)]
        ann.execute("INSERT INTO a VALUES (2)")
        assert ann.execute("SELECT * FROM lg").fetchall() == [(7,)]
        ann.execute("DROP TRIGGER t ON a")
        bob.execute("INSERT INTO a VALUES (3)")
