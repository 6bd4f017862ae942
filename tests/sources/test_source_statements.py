"""Statements about sources with a real PostgreSQL: errors, stops, rights, and secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from local_client import Client, raises
from postgres_source import PostgresSource, running_source
from server_process import ServerProcess
from source_load import state_of, until

from ducktail.engine.database import Database

pytestmark = pytest.mark.slow

Connection = psycopg.Connection[Any]
PASSWORD = "canary-of-the-source"
# What only the owner of a stream may do.
OWNERS = (
    "PAUSE STREAM s",
    "RESUME STREAM s",
    "ALTER STREAM s ADD TABLE other",
    "ALTER STREAM s DROP TABLE orders",
    "ALTER STREAM s SNAPSHOT",
    "ALTER STREAM s SNAPSHOT TABLE orders WHERE id > 5",
    "DROP STREAM s",
)


@pytest.fixture(scope="module")
def source() -> Iterator[PostgresSource]:
    with running_source() as started:
        started.run(
            "CREATE TABLE orders (id int PRIMARY KEY, sku text)",
            "CREATE TABLE other (id int PRIMARY KEY)",
            "CREATE TABLE loose (v int)",
            "CREATE VIEW shown AS SELECT * FROM orders",
            f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'",
            f"CREATE ROLE replica LOGIN REPLICATION PASSWORD '{PASSWORD}'",
        )
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--port", "0", "--log-min-duration-statement-ms", "0")
    with ServerProcess(tmp_path_factory.mktemp("sources") / "shop.duckdb", options) as started:
        with started.connect() as first:
            first.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
        with started.connect(user="ann", password="x") as ann:
            ann.execute("CREATE USER bob PASSWORD 'x'")
            ann.execute("GRANT CREATE ON DATABASE TO bob")
            ann.execute("GRANT CREATE ON SCHEMA main TO bob")
        yield started


@pytest.fixture
def ann(server: ServerProcess) -> Iterator[Connection]:
    with server.connect(user="ann", password="x", autocommit=True) as connection:
        yield connection
        for (name,) in connection.execute("SELECT stream_name FROM ducktail.sources").fetchall():
            connection.execute(f"DROP STREAM {name} CASCADE".encode())
    # Nothing of it remains at the source.


@pytest.fixture
def bob(server: ServerProcess) -> Iterator[Connection]:
    with server.connect(user="bob", password="x", autocommit=True) as connection:
        yield connection


def create(source: PostgresSource, tables: str = "TABLE orders", more: str = "", address: str = "") -> bytes:
    return f"CREATE STREAM s FROM POSTGRES '{address or source.conninfo}' {tables} {more}".encode()


def streaming(connection: Connection) -> None:
    until(lambda: state_of(connection)[1] == "streaming")


@pytest.mark.parametrize(
    ("tables", "more", "sqlstate", "says"),
    [
        ("TABLE nothing", "", "42P01", "does not exist at the source"),
        ("TABLE orders, orders2", "", "42P01", "orders2"),
        ("TABLE shown", "", "42809", "is a view"),
        ("TABLE loose", "", "55000", "has no identity"),
        ("SCHEMA nowhere", "", "3F000", "nowhere"),
        ("PUBLICATION nowhere", "", "42704", "nowhere"),
        ("TABLE orders", "WITH (slot = 'Upper')", "22023", "lower-case"),
        ("TABLE orders", "WITH (server_id = 5)", "22023", "unknown option"),
        ("TABLE orders", "WITH (minimal_changes = 'all')", "22023", "unknown option"),
        ("TABLE orders", "WITH (partition_by = (sku))", "0A000", "REPLICA IDENTITY FULL"),
        ("TABLE orders (sku, nothing)", "", "42703", "nothing"),
        ("TABLE orders, other (id)", "", "42601", "several tables"),
        ("TABLE orders, other", "WHERE id > 1", "42601", "several tables"),
        ("TABLE a.b.c", "", "0A000", "two qualifiers"),
        ("VIEW shown", "", "42601", "TABLE, SCHEMA or PUBLICATION"),
    ],
)
def test_what_cannot_be_read_is_refused(
    ann: Connection, source: PostgresSource, tables: str, more: str, sqlstate: str, says: str
) -> None:
    with pytest.raises(psycopg.Error) as found:
        ann.execute(create(source, tables, more))
    assert found.value.sqlstate == sqlstate, found.value
    assert says in str(found.value)
    assert ann.execute("SELECT * FROM ducktail.sources").fetchall() == []
    assert source.run("SELECT * FROM pg_replication_slots") == []


@pytest.mark.parametrize(
    ("address", "sqlstate"),
    [
        ("host=127.0.0.1 port=1 user=x password={0}", "08006"),
        ("host=127.0.0.1 port={1} user=nobody password={0} dbname=postgres", "28000"),
        ("host=127.0.0.1 port={1} user=reader password={0} dbname=postgres", "42501"),
        ("host=127.0.0.1 port={1} user=replica password={0} dbname=postgres", "42501"),
        ("host=127.0.0.1 port={1} user=replica password={0} dbname=absent", "3D000"),
        ("host=127.0.0.1 port={1} sslmode=require user=replica password={0} dbname=postgres", "08001"),
        ("host='127.0.0.1 password={0}", "22023"),
        ("nonsense={0}", "22023"),
    ],
)
def test_no_error_and_no_log_has_the_password(
    ann: Connection, server: ServerProcess, source: PostgresSource, address: str, sqlstate: str
) -> None:
    written = address.format(PASSWORD, source.port).replace("'", "''")
    with pytest.raises(psycopg.Error) as found:
        ann.execute(create(source, address=written))
    assert found.value.sqlstate == sqlstate, found.value
    diag = found.value.diag
    for text in (str(found.value), diag.message_detail, diag.message_hint):
        assert text is None or PASSWORD not in text
    assert PASSWORD not in "\n".join(server.lines)


def test_secrets_are_shown_nowhere(ann: Connection, bob: Connection, source: PostgresSource) -> None:
    # The server trusts every password.
    ann.execute(create(source, address=f"{source.conninfo} password={PASSWORD}"))
    streaming(ann)
    for text in (
        "SHOW SOURCES",
        "SHOW CREATE STREAM s",
        "SELECT * FROM ducktail.sources",
        "DESCRIBE STREAM s",
    ):
        shown = ann.execute(text.encode()).fetchall()
        assert shown and PASSWORD not in repr(shown)
    for connection in (ann, bob):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM ducktail.__ducktail_feeds")
    assert bob.execute("SELECT * FROM ducktail.sources").fetchall() == []
    [(number,)] = ann.execute("SELECT max(stream_id) FROM ducktail.stream_catalog").fetchall()
    rows = f'ducktail."source {number}.0 public.orders"'
    assert ann.execute(f"SELECT * FROM {rows}".encode()).fetchall() == []
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute(f"SELECT * FROM {rows}".encode())
    for verb in (
        "INSERT INTO {0} VALUES (1)",
        "DELETE FROM {0}",
        "DROP TABLE {0}",
        "ALTER TABLE {0} ADD x int",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ann.execute(verb.format(rows).encode())


def test_rights(ann: Connection, bob: Connection, source: PostgresSource) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute(create(source))
    ann.execute(create(source))
    for text in OWNERS:
        with pytest.raises(psycopg.errors.UndefinedObject):
            bob.execute(text.encode())
    with pytest.raises(psycopg.errors.UndefinedObject):
        bob.execute("CREATE TABLE orders MIRROR OF STREAM s TABLE orders")
    ann.execute("GRANT CONSUME ON s TO bob")
    for text in OWNERS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="owner"):
            bob.execute(text.encode())
    bob.execute("CREATE TABLE orders MIRROR OF STREAM s TABLE orders")
    assert bob.execute("SELECT count(*) FROM orders").fetchall() == [(0,)]
    with pytest.raises(psycopg.Error) as found:
        bob.execute("INSERT INTO orders VALUES (1, 'x')")
    assert found.value.sqlstate == "55000"
    bob.execute("DROP TABLE orders")


def test_outside_of_a_server_and_within_a_block(
    tmp_path: Path, ann: Connection, source: PostgresSource
) -> None:
    database = Database.open(str(tmp_path / "local.duckdb"))
    client = Client(database)
    with raises("0A000"):
        client(create(source).decode())
    client("CREATE TABLE t (id INT PRIMARY KEY)")
    client("CREATE STREAM own ON t")
    for text in OWNERS[:-1]:
        with raises("42809"):
            client(text.replace("STREAM s", "STREAM own"))
    client.close()
    database.close()
    ann.execute(create(source))
    for text in (create(source), *(text.encode() for text in OWNERS if text.startswith("ALTER"))):
        with pytest.raises(psycopg.Error) as found, ann.transaction():
            ann.execute(text)
        assert found.value.sqlstate == "25001"


def test_pause_and_resume(ann: Connection, source: PostgresSource) -> None:
    source.run("TRUNCATE orders")
    ann.execute(create(source))
    streaming(ann)
    ann.execute("PAUSE STREAM s")
    assert state_of(ann)[:2] == ("paused", None)
    until(lambda: source.run("SELECT active FROM pg_replication_slots") == [(False,)])
    source.run("INSERT INTO orders VALUES (1, 'while it pauses')")
    assert ann.execute("SELECT count(*) FROM STREAM s WHERE op = 'insert'").fetchall() == [(0,)]
    ann.execute("RESUME STREAM s")
    sql = "SELECT after->>'sku' FROM STREAM s WHERE op = 'insert'"
    until(lambda: ann.execute(sql.encode()).fetchall() == [("while it pauses",)])


@pytest.mark.parametrize(
    ("ruin", "mend", "says"),
    [
        (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
            "",
            "55000: replication slot",
        ),
        (
            "DO $$ BEGIN EXECUTE (SELECT format('ALTER PUBLICATION %I DROP TABLE orders', pubname) "
            "FROM pg_publication); END $$",
            "DO $$ BEGIN EXECUTE (SELECT format('ALTER PUBLICATION %I ADD TABLE orders', pubname) "
            "FROM pg_publication); END $$",
            '55000: table "public.orders" is no longer in publication',
        ),
        ("ALTER TABLE orders RENAME TO renamed", "ALTER TABLE renamed RENAME TO orders", "42P01: table"),
    ],
)
def test_a_source_that_has_lost_something_stops_the_stream(
    ann: Connection, source: PostgresSource, ruin: str, mend: str, says: str
) -> None:
    source.run("TRUNCATE orders, other")
    ann.execute(create(source, "TABLE orders, other"))
    streaming(ann)
    ann.execute("PAUSE STREAM s")
    until(lambda: source.run("SELECT active FROM pg_replication_slots") == [(False,)])
    source.run(ruin)
    ann.execute("RESUME STREAM s")
    until(lambda: state_of(ann)[0] == "stopped")
    assert str(state_of(ann)[4]).startswith(says), state_of(ann)
    if mend:
        source.run(mend, "INSERT INTO other VALUES (1)")
        ann.execute("RESUME STREAM s")
        sql = "SELECT table_name FROM STREAM s WHERE op = 'insert'"
        until(lambda: ann.execute(sql.encode()).fetchall() == [("public.other",)])


def test_a_dropped_stream_leaves_nothing_or_says_what(ann: Connection, server: ServerProcess) -> None:
    with running_source() as source:
        source.run("CREATE TABLE orders (id int PRIMARY KEY)")
        ann.execute(create(source))
        streaming(ann)
        ann.execute("DROP STREAM s")
        assert (
            source.run("SELECT * FROM pg_replication_slots")
            == source.run("SELECT * FROM pg_publication")
            == []
        )
        ann.execute(create(source, "TABLE orders", "WITH (slot = 'shop')"))
        streaming(ann)
        assert source.run("SELECT slot_name FROM pg_replication_slots") == [("shop",)]
        source.stop()
        notices: list[str] = []
        ann.add_notice_handler(lambda notice: notices.append(f"{notice.severity} {notice.message_hint}"))
        ann.execute("DROP STREAM s")
        assert len(notices) == 1
        assert notices[0].startswith("WARNING There: SELECT pg_drop_replication_slot('shop')")
        source.start()
        source.run("SELECT pg_drop_replication_slot('shop')")


def test_one_table_has_columns_a_filter_and_typed_changes(ann: Connection, source: PostgresSource) -> None:
    source.run("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    ann.execute(create(source, "TABLE orders (id)", "WHERE sku <> 'a' WITH (partitions = 2)"))
    streaming(ann)
    source.run("UPDATE orders SET sku = 'c' WHERE id = 1", "UPDATE orders SET sku = 'a' WHERE id = 2")
    sql = "SELECT op, key->>'id', after::text FROM STREAM s ORDER BY lsn"
    until(lambda: len(ann.execute(sql.encode()).fetchall()) == 3)
    assert ann.execute(sql.encode()).fetchall() == [
        ("snapshot", "2", '{"id":2}'),
        ("insert", "1", '{"id":1}'),
        ("delete", "2", None),
    ]
    sql = "SELECT id, _change_type FROM STREAM s ENVELOPE CHANGES WHERE _change_type <> 'snapshot'"
    assert ann.execute(sql.encode()).fetchall() == [(1, "insert"), (2, "delete")]
    ann.execute("CREATE CONSUMER GROUP g ON s START SNAPSHOT")
    assert ann.execute("SELECT op, key->>'id' FROM STREAM s CONSUMER GROUP g").fetchall() == [
        ("snapshot", "1")
    ]
