"""The tables of a stream with a source: added, dropped and copied again, with real databases and kills."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import amount, seed_of
from mariadb_process import MariadbServer
from postgres_source import PostgresSource, running_source
from server_process import ServerProcess
from source_load import Row, rows_of, state_of, until

pytestmark = pytest.mark.slow

Connection = psycopg.Connection[Any]
KILLS = amount("DUCKTAIL_SOURCE_TABLE_KILLS", 3, 20)
ROWS = amount("DUCKTAIL_SOURCE_TABLE_ROWS", 10_000, 500_000)


@pytest.fixture(scope="module")
def source() -> Iterator[PostgresSource]:
    with running_source() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sources") / "shop.duckdb", ("--port", "0")) as started:
        yield started


@pytest.fixture
def shop(server: ServerProcess, source: PostgresSource) -> Iterator[Connection]:
    """A connection to a server with a stream s of tables orders and lines."""
    source.run(
        "DROP TABLE IF EXISTS orders, lines, notes, loose, extra CASCADE",
        "CREATE TABLE orders (id int PRIMARY KEY, sku text)",
        "CREATE TABLE lines (id int PRIMARY KEY, qty int)",
        "CREATE TABLE notes (id int PRIMARY KEY, note text)",
        "CREATE TABLE loose (v int)",
        "INSERT INTO orders VALUES (1, 'tea'), (2, 'cup')",
        "INSERT INTO notes VALUES (1, 'there before'), (2, 'too')",
    )
    with server.connect(autocommit=True) as connection:
        create(connection, source)
        yield connection
        connection.execute("DROP STREAM s CASCADE")
        for (name,) in connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main'"
        ):
            connection.execute(f"DROP TABLE {name}".encode())


def create(connection: Connection, source: PostgresSource, selected: str = "TABLE orders, lines") -> None:
    connection.execute(f"CREATE STREAM s FROM POSTGRES '{source.conninfo}' {selected}".encode())
    streaming(connection)


def streaming(connection: Connection) -> None:
    until(lambda: state_of(connection)[1] == "streaming")
    assert asked(connection) == 0


def asked(connection: Connection) -> int:
    """The number of copies that are asked for and not stored."""
    [(found,)] = connection.execute("SELECT count(*) FROM ducktail.feed_copies").fetchall()
    return int(found)


def published(source: PostgresSource) -> set[str]:
    return {name for (name,) in source.run("SELECT tablename FROM pg_publication_tables")}


def events(connection: Connection, table: str) -> list[tuple[str, Any]]:
    sql = f"SELECT op, coalesce(after, before)::text FROM STREAM s WHERE table_name = 'public.{table}'"
    found = connection.execute(sql.encode()).fetchall()
    return [(op, json.loads(row)) for op, row in found if op != "schema"]


def test_an_added_table_is_copied_and_followed(shop: Connection, source: PostgresSource) -> None:
    shop.execute("ALTER STREAM s ADD TABLE notes")
    shop.execute("CREATE TABLE notes MIRROR OF STREAM s TABLE notes")
    streaming(shop)
    assert published(source) == {"orders", "lines", "notes"}
    source.run("UPDATE notes SET note = 'changed' WHERE id = 2", "INSERT INTO lines VALUES (1, 1)")
    until(lambda: events(shop, "lines") != [])
    assert events(shop, "notes") == [
        ("snapshot", {"id": 1, "note": "there before"}),
        ("snapshot", {"id": 2, "note": "too"}),
        ("update", {"id": 2, "note": "changed"}),
    ]
    assert rows_of(shop, "notes") == Counter([(1, "there before"), (2, "changed")])
    assert shop.execute("CHECK STREAM s").fetchall() == []
    [(tables, rows)] = shop.execute("SELECT tables, rows_copied FROM ducktail.sources").fetchall()
    assert tables == ["public.orders", "public.lines", "public.notes"] and rows == 4


@pytest.mark.parametrize(
    ("text", "sqlstate", "says"),
    [
        ("ADD TABLE nowhere", "42P01", "does not exist at the source"),
        ("ADD TABLE loose", "55000", "has no identity"),
        ("ADD TABLE notes, public.orders", "42710", "already"),
        ("ADD TABLE a.b.c", "0A000", "two qualifiers"),
        ("ADD notes", "42601", "ADD TABLE"),
        ("DROP TABLE notes", "42P01", "no table"),
        ("DROP TABLE orders, lines", "55000", "last table"),
        ("SNAPSHOT TABLE notes", "42P01", "no table"),
        ("SNAPSHOT TABLE orders WHERE sky = 'x'", "42703", "sky"),
        ("SNAPSHOT WHERE sku = 'x'", "42703", "sku"),
        ("SNAPSHOT TABLE orders WHERE random() < 0.5", "0A000", "random"),
    ],
)
def test_what_cannot_be_altered_is_refused(shop: Connection, text: str, sqlstate: str, says: str) -> None:
    with pytest.raises(psycopg.Error) as found:
        shop.execute(f"ALTER STREAM s {text}".encode())
    assert found.value.sqlstate == sqlstate, found.value
    assert says in str(found.value)
    assert asked(shop) == 0
    assert state_of(shop)[0] == "running"


def test_only_tables_that_were_named_are_added_and_dropped(shop: Connection, source: PostgresSource) -> None:
    shop.execute("DROP STREAM s CASCADE")
    source.run("CREATE PUBLICATION mine FOR TABLE orders, lines")
    try:
        create(shop, source, "PUBLICATION mine")
        for text in ("ADD TABLE notes", "DROP TABLE lines"):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match='publication "mine"'):
                shop.execute(f"ALTER STREAM s {text}".encode())
        # A copy needs none of that.
        shop.execute("ALTER STREAM s SNAPSHOT TABLE orders")
        until(lambda: len(events(shop, "orders")) == 4)
    finally:
        shop.execute("DROP STREAM s CASCADE")
        source.run("DROP PUBLICATION mine")
        create(shop, source)


def test_a_dropped_table_is_not_followed_and_its_events_stay(
    shop: Connection, source: PostgresSource
) -> None:
    shop.execute("CREATE TABLE mirror MIRROR OF STREAM s TABLE orders")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        shop.execute("ALTER STREAM s DROP TABLE orders")
    shop.execute("DROP TABLE mirror")
    shop.execute("ALTER STREAM s DROP TABLE orders")
    source.run("INSERT INTO orders VALUES (3, 'late')", "INSERT INTO lines VALUES (7, 7)")
    until(lambda: events(shop, "lines") != [])
    until(lambda: published(source) == {"lines"})
    assert [op for op, _ in events(shop, "orders")] == ["snapshot", "snapshot"]
    # A table that is gone at the source does not stop the stream any more.
    source.run("DROP TABLE orders", "INSERT INTO lines VALUES (8, 8)")
    until(lambda: len(events(shop, "lines")) == 2)
    source.run("CREATE TABLE orders (id int PRIMARY KEY, sku text)", "INSERT INTO orders VALUES (1, 'new')")
    shop.execute("ALTER STREAM s ADD TABLE orders")
    until(lambda: len(events(shop, "orders")) == 3)
    assert shop.execute("CHECK STREAM s").fetchall() == []


def test_a_copy_is_as_of_one_position_and_later_changes_win(shop: Connection, source: PostgresSource) -> None:
    shop.execute("CREATE TABLE mirror MIRROR OF STREAM s TABLE orders")
    source.run("ALTER TABLE orders ADD COLUMN added int DEFAULT 5")
    shop.execute("ALTER STREAM s SNAPSHOT TABLE orders WHERE sku = 'tea'")
    source.run("UPDATE orders SET sku = 'pot', added = 6 WHERE id = 2")
    until(lambda: ("update", {"id": 2, "sku": "pot", "added": 6}) in events(shop, "orders"))
    streaming(shop)
    assert rows_of(shop, "mirror") == Counter([(5, 1, "tea"), (6, 2, "pot")])
    shop.execute("ALTER STREAM s SNAPSHOT")
    streaming(shop)
    assert [row for op, row in events(shop, "orders") if op == "snapshot"][-2:] == [
        {"id": 1, "sku": "tea", "added": 5},
        {"id": 2, "sku": "pot", "added": 6},
    ]
    assert shop.execute("CHECK STREAM s").fetchall() == []


def test_a_paused_stream_is_altered_after_it_is_resumed(shop: Connection, source: PostgresSource) -> None:
    notices: list[str] = []
    shop.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    shop.execute("PAUSE STREAM s")
    shop.execute("ALTER STREAM s ADD TABLE notes")
    shop.execute("ALTER STREAM s SNAPSHOT TABLE orders")
    assert notices == ['stream "s" is paused: the rows are copied after RESUME STREAM'] * 2
    assert asked(shop) == 2
    source.run("INSERT INTO notes VALUES (3, 'in the pause')")
    shop.execute("RESUME STREAM s")
    streaming(shop)
    assert len(events(shop, "notes")) == 3
    assert [op for op, _ in events(shop, "orders")] == ["snapshot"] * 4


def test_a_renamed_table_is_dropped_from_a_stopped_stream(shop: Connection, source: PostgresSource) -> None:
    source.run("ALTER TABLE lines RENAME TO renamed", "INSERT INTO renamed VALUES (1, 1)")
    until(lambda: state_of(shop)[0] == "stopped")
    shop.execute("ALTER STREAM s DROP TABLE lines")
    source.run("INSERT INTO orders VALUES (3, 'after')")
    shop.execute("RESUME STREAM s")
    until(lambda: ("insert", {"id": 3, "sku": "after"}) in events(shop, "orders"))
    until(lambda: published(source) == {"orders"})
    source.run("DROP TABLE renamed")


def test_without_a_first_copy_there_are_only_changes(shop: Connection, source: PostgresSource) -> None:
    shop.execute("DROP STREAM s CASCADE")
    create(shop, source, "TABLE orders WITH (snapshot = 'none')")
    shop.execute("ALTER STREAM s ADD TABLE notes")
    streaming(shop)
    source.run("UPDATE notes SET note = 'changed' WHERE id = 2", "DELETE FROM orders WHERE id = 1")
    until(lambda: events(shop, "orders") != [])
    assert events(shop, "notes") == [("update", {"id": 2, "note": "changed"})]
    shop.execute("ALTER STREAM s SNAPSHOT TABLE notes")
    until(lambda: len(events(shop, "notes")) == 3)
    assert sorted(row["id"] for op, row in events(shop, "notes") if op == "snapshot") == [1, 2]
    streaming(shop)
    source.run("UPDATE notes SET note = 'again' WHERE id = 1")
    sql = "SELECT before->>'note' FROM STREAM s WHERE op = 'update' AND after->>'note' = 'again'"
    until(lambda: shop.execute(sql.encode()).fetchall() == [("there before",)])
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        shop.execute("CHECK STREAM s")


def folded(connection: Connection) -> dict[str, Counter[str]]:
    """The rows that a consumer has: by key, where a table has one."""
    keyed: dict[str, dict[str, str]] = {}
    others: dict[str, Counter[str]] = {}
    with connection.transaction(), connection.cursor("events") as cursor:
        cursor.execute(
            "SELECT op, table_name, key::text, before::text, after::text FROM STREAM shop "
            "WHERE op <> 'schema'"
        )
        for op, table, key, before, after in cursor:
            if key is not None:
                rows = keyed.setdefault(table, {})
                assert (op in ("update", "delete")) <= (key in rows), (table, op, key)
                if op == "delete":
                    del rows[key]
                else:
                    rows[key] = after
                continue
            loose = others.setdefault(table, Counter())
            if before is not None:
                assert loose[before] > 0, (table, op, before)
                loose[before] -= 1
            if after is not None:
                loose[after] += 1
    return {table: Counter(rows.values()) for table, rows in keyed.items()} | {
        table: +rows for table, rows in others.items()
    }


class Writers:
    """Sessions that write tables of a PostgreSQL until they are ended."""

    def __init__(self, source: PostgresSource, sessions: int, seed: int) -> None:
        self._source = source
        self._ending = threading.Event()
        self.committed = 0
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {n}"),), daemon=True)
            for n in range(sessions)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, chance: random.Random) -> None:
        with self._source.connect() as connection:
            while not self._ending.is_set():
                with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    with connection.transaction(force_rollback=chance.random() < 0.1):
                        for _ in range(chance.choice((1, 2, 9))):
                            connection.execute(self._statement(chance).encode())
                    self.committed += 1

    @staticmethod
    def _statement(chance: random.Random) -> str:
        number = chance.randrange(200)
        match chance.randrange(8):
            case 0 | 1:
                note = f"repeat(md5('{number}'), {chance.choice((1, 120))})"
                return (
                    f"INSERT INTO accounts VALUES ({number}, {note}, 1) ON CONFLICT (id) "
                    "DO UPDATE SET amount = accounts.amount + 1"
                )
            case 2:
                return f"UPDATE accounts SET id = id + 200 WHERE id = {number}"
            case 3:
                return f"DELETE FROM accounts WHERE id IN ({number}, {number + 200})"
            case 4:
                return f"UPDATE bulk SET v = v + 1 WHERE id % 97 = {number % 97} AND id < 5000"
            case 5:
                return f"INSERT INTO remarks VALUES ('{chance.choice('abc')}', {number % 3})"
            case 6:
                one = f"SELECT ctid FROM remarks WHERE what = {number % 3} LIMIT 1"
                return f"DELETE FROM remarks WHERE ctid IN ({one})"
            case _:
                if chance.random() < 0.03:
                    return "TRUNCATE scratch"
                return (
                    f"INSERT INTO scratch VALUES ({number}, '{{\"n\": {number}}}') "
                    "ON CONFLICT (id) DO UPDATE SET v = scratch.v || '{\"again\": true}'"
                )

    def stop(self) -> None:
        """End the sessions."""
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def altered_under_kills(
    server: ServerProcess, chance: random.Random, steps: list[str], count: Callable[[], int]
) -> None:
    """Run each statement, kill the server soon after it, and wait until its copy is stored."""
    for text in steps:
        with server.connect(autocommit=True) as connection:
            connection.execute(text.encode())
        begun, waited_s = count(), chance.uniform(0.0, 1.5)
        until(lambda begun=begun: count() > begun)  # type: ignore[misc]
        time.sleep(waited_s)
        server.kill()
        server.start()
        with server.connect(autocommit=True) as connection:

            def is_done(there: Connection = connection) -> bool:
                state, phase, *_, reason = state_of(there)
                assert state == "running", reason
                return bool(phase == "streaming")

            until(is_done)


def test_kills_while_tables_are_added_and_copied_again(tmp_path: Path) -> None:
    chance = random.Random(seed_of("DUCKTAIL_SOURCE_SEED"))
    with (
        running_source() as source,
        ServerProcess(tmp_path / "shop.duckdb", ("--port", "0")) as server,
    ):
        source.run(
            "CREATE TABLE accounts (id int PRIMARY KEY, note text, amount int)",
            "ALTER TABLE accounts ALTER COLUMN note SET STORAGE EXTERNAL",
            "CREATE TABLE remarks (who text, what int)",
            "ALTER TABLE remarks REPLICA IDENTITY FULL",
            "CREATE TABLE scratch (id int PRIMARY KEY, v jsonb)",
            "CREATE TABLE bulk (id int PRIMARY KEY, v int)",
            f"INSERT INTO bulk SELECT i, i FROM generate_series(1, {ROWS}) i",
        )
        with server.connect(autocommit=True) as connection:
            connection.execute(
                f"CREATE STREAM shop FROM POSTGRES '{source.conninfo}' TABLE accounts "
                "WITH (retention = 'none')".encode()
            )
        writers = Writers(source, 3, chance.randrange(1 << 30))
        again = ("ALTER STREAM shop SNAPSHOT", "ALTER STREAM shop SNAPSHOT TABLE bulk WHERE v % 2 = 1")
        steps = [
            "ALTER STREAM shop ADD TABLE remarks, bulk",
            "ALTER STREAM shop SNAPSHOT",
            "ALTER STREAM shop ADD TABLE scratch",
            *(chance.choice(again) for _ in range(KILLS - 3)),
        ]
        until(lambda: writers.committed > 20)
        altered_under_kills(server, chance, steps, lambda: writers.committed)
        names = ("accounts", "remarks", "scratch", "bulk")
        with server.connect(autocommit=True) as connection:
            for name in names:
                connection.execute(f"CREATE TABLE {name} MIRROR OF STREAM shop TABLE {name}".encode())
        writers.stop()
        source.run("INSERT INTO accounts (id) VALUES (-1)")
        with server.connect(autocommit=True) as connection:
            until(lambda: connection.execute("SELECT 1 FROM accounts WHERE id = -1").fetchall() != [])
            with source.connect() as there:
                for name in names:
                    assert rows_of(connection, name) == rows_of(there, name), name
            assert connection.execute("CHECK STREAM shop").fetchall() == []
            rows = folded(connection)
            for name in names:
                assert rows[f"public.{name}"].total() == rows_of(connection, name).total(), name
            connection.execute("DROP STREAM shop CASCADE")


def test_tables_of_mariadb_are_added_dropped_and_copied_again(tmp_path: Path) -> None:
    chance = random.Random(seed_of("DUCKTAIL_SOURCE_SEED"))
    with (
        MariadbServer(tmp_path / "source", {"binlog-row-metadata": "FULL"}) as source,
        ServerProcess(tmp_path / "shop.duckdb", ("--port", "0")) as server,
    ):
        source.ask(
            "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE b (id INT, v VARCHAR(9))",
            "CREATE TABLE c (id INT PRIMARY KEY, v DECIMAL(9,2))",
            "INSERT INTO a SELECT seq, seq FROM seq_1_to_5000",
            "INSERT INTO b VALUES (1, 'x'), (1, 'x')",
            "INSERT INTO c SELECT seq, seq FROM seq_1_to_3000",
        )
        written = Counter[str]()

        def write() -> int:
            number = chance.randrange(1, 5000)
            source.ask(
                f"UPDATE a SET v = v + 1 WHERE id = {number}",
                f"INSERT INTO b VALUES ({number}, 'y')",
                f"REPLACE INTO c (id, v) VALUES ({number}, {number}.25)",
            )
            written["transactions"] += 3
            return written["transactions"]

        with server.connect(autocommit=True) as connection:
            connection.execute(f"CREATE STREAM shop FROM MYSQL '{source.url}' TABLE a, b".encode())
            streaming(connection)
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute("ALTER STREAM shop ADD TABLE nowhere")
        altered_under_kills(
            server,
            chance,
            ["ALTER STREAM shop ADD TABLE shop.c", "ALTER STREAM shop SNAPSHOT"],
            write,
        )
        source.ask("ALTER TABLE c ADD COLUMN w INT DEFAULT 3", "UPDATE c SET w = 4 WHERE id = 1")
        with server.connect(autocommit=True) as connection:
            for name in ("a", "c"):
                connection.execute(f"CREATE TABLE {name} MIRROR OF STREAM shop TABLE {name}".encode())
            connection.execute("ALTER STREAM shop SNAPSHOT TABLE c WHERE id > 1000")
            connection.execute("ALTER STREAM shop DROP TABLE b")
            write()
            source.ask("INSERT INTO a VALUES (-1, -1)", "UPDATE c SET w = 5 WHERE id = 1")
            until(lambda: connection.execute("SELECT 1 FROM c WHERE w = 5").fetchall() != [])
            streaming(connection)
            for name in ("a", "c"):
                there: Counter[Row] = Counter(source.ask(f"SELECT * FROM {name}"))
                columns = "id, v" if name == "a" else "id, v, w"
                here = Counter(connection.execute(f"SELECT {columns} FROM {name}".encode()).fetchall())
                assert here == there, name
            assert connection.execute("CHECK STREAM shop").fetchall() == []
            rows = folded(connection)
            assert rows["shop.a"].total() == rows_of(connection, "a").total()
            assert rows["shop.c"].total() == rows_of(connection, "c").total()
            connection.execute("DROP STREAM shop CASCADE")
