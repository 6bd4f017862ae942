"""The client of PostgreSQL as a source, with a real PostgreSQL: copies, changes, types, and each error."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from postgres_source import PostgresSource, running_source

from ducktail.engine import errors
from ducktail.engine.catalog.source_tables import (
    DEFINE,
    DELETE,
    INSERT,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    Piece,
    SourceTable,
)
from ducktail.engine.checkpoints.positions import PostgresLsn
from ducktail.pgwire_gateway.sources.connector import Changes, Copy
from ducktail.pgwire_gateway.sources.postgres import (
    PostgresConnector,
    PostgresSelection,
    postgres_connector,
    postgres_types,
)

pytestmark = pytest.mark.postgres

# A wait for something that does happen; a test fails when it is over.
WAIT_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresSource]:
    with running_source() as source:
        yield source


@pytest.fixture
def source(server: PostgresSource) -> Iterator[PostgresSource]:
    """The server, without what an earlier test has left."""
    yield server
    with server.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )
    deadline = time.monotonic() + WAIT_S
    while server.run("SELECT count(*) FROM pg_replication_slots WHERE active")[0][0]:
        assert time.monotonic() < deadline
    server.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    for (name,) in server.run("SELECT pubname FROM pg_publication"):
        server.run(f'DROP PUBLICATION "{name}"')
    server.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT USAGE ON SCHEMA public TO public")


@pytest.fixture
def connect(source: PostgresSource) -> Iterator[Callable[..., PostgresConnector]]:
    """Makes connectors; a selection is names of tables, or a `PostgresSelection`."""
    made: list[PostgresConnector] = []

    def make(*tables: str, conninfo: str = "", **options: Any) -> PostgresConnector:
        selection = options.pop("selection", None)
        selection = selection or PostgresSelection(tables=tuple((None, name) for name in tables))
        slot = options.pop("slot", f"slot_{next(_numbers)}")
        made.append(PostgresConnector(f"{source.conninfo} {conninfo}", selection, slot, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Following:
    """The changes of a connector, read from a copy's position on."""

    def __init__(self, connector: PostgresConnector, tables: Sequence[SourceTable], position: str) -> None:
        self.connector = connector
        self.tables = tables
        self.changes = connector.changes(tables, position)
        self.position = position
        self.confirms = True

    def piece(self) -> Piece:
        deadline = time.monotonic() + WAIT_S
        while (found := self.changes.next(1.0)) is None:
            assert time.monotonic() < deadline, "no piece arrives"
        if found.commit is not None:
            self.position = found.commit.position
            if self.confirms:
                self.changes.confirm(self.position)
        return found

    def transaction(self) -> list[Change]:
        """The changes of the next transaction that has any."""
        changes: list[Change] = []
        while True:
            found = self.piece()
            changes += found.changes
            if found.commit is not None and changes:
                return changes

    def until(self, change: Callable[[Change], bool]) -> list[list[Change]]:
        """The transactions up to one with such a change."""
        found: list[list[Change]] = []
        while not found or not any(map(change, found[-1])):
            found.append(self.transaction())
        return found


def begin(connector: PostgresConnector, rows: bool = False) -> tuple[Following, list[Any]]:
    tables = connector.describe()
    with connector.begin() as copy:
        copied = [row for table in tables for block in copy.rows(table) for row in block] if rows else []
        position = copy.position
    return Following(connector, tables, position), copied


# --- Changes ---


def test_each_kind_of_change(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, name text, n int)", "INSERT INTO t VALUES (1, 'a', 1)")
    following, copied = begin(connect("t"), rows=True)
    assert copied == [("1", "a", "1")]
    source.run("INSERT INTO t VALUES (2, 'ä\t\\ \"', NULL)")
    source.run("UPDATE t SET name = 'b' WHERE id = 1")
    source.run("UPDATE t SET id = 3 WHERE id = 1")
    source.run("DELETE FROM t WHERE id = 3")
    t, U = ("public", "t"), UNCHANGED
    assert following.transaction() == [Change(INSERT, t, None, ("2", 'ä\t\\ "', None))]
    assert following.transaction() == [Change(UPDATE, t, None, ("1", "b", "1"))]
    assert following.transaction() == [Change(UPDATE, t, ("1", U, U), ("3", "b", "1"))]
    assert following.transaction() == [Change(DELETE, t, ("3", U, U), None)]


def test_commits_have_number_time_and_position(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    following, _ = begin(connect("t"))
    before_us = time.time_ns() // 1000
    with source.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO t VALUES (1), (2)")
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    piece = following.piece()
    assert [change.new for change in piece.changes] == [("1",), ("2",)]
    assert piece.commit is not None and row is not None
    assert piece.commit.txid == row[0]
    assert before_us <= piece.commit.commit_us <= time.time_ns() // 1000
    end = source.run("SELECT pg_current_wal_flush_lsn()")[0][0]
    assert source.run(f"SELECT '{following.position}'::pg_lsn <= '{end}'::pg_lsn")[0][0]


def test_a_position_is_read_from_once_only(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t")
    tables = connector.describe()
    with connector.begin() as copy:
        positions = [copy.position]
    source.run(*(f"INSERT INTO t VALUES ({number})" for number in range(5)))
    changes = connector.changes(tables, positions[0])
    while len(positions) < 6:
        piece = changes.next(1.0)
        if piece is not None and piece.commit is not None:
            positions.append(piece.commit.position)
    changes.close()
    source.run("INSERT INTO t VALUES (5)")
    for number, position in enumerate(positions):
        changes = connector.changes(tables, position)
        assert _transaction(changes)[0].new == (str(number),)
        changes.close()


def _transaction(changes: Changes) -> list[Change]:
    deadline = time.monotonic() + WAIT_S
    while True:
        piece = changes.next(1.0)
        if piece is not None and piece.changes:
            return list(piece.changes)
        assert time.monotonic() < deadline


def test_old_rows_and_toast(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run(
        "CREATE TABLE k (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE k ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE f (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE f ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE TABLE i (id int, code text NOT NULL, big text)",
        "ALTER TABLE i ALTER big SET STORAGE EXTERNAL",
        "CREATE UNIQUE INDEX i_code ON i (code)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX i_code",
        "CREATE TABLE n (id int, n int)",
        "ALTER TABLE n REPLICA IDENTITY FULL",
    )
    big = "x" * 10_000
    for table in ("k", "f"):
        source.run(f"INSERT INTO {table} VALUES (1, '{big}', 1)")
    source.run(f"INSERT INTO i VALUES (1, 'a', '{big}')", "INSERT INTO n VALUES (1, NULL), (1, NULL)")
    following, _ = begin(connect("k", "f", "i", "n"))
    known = {table.name: table for table in following.tables}
    assert {name: table.key for name, table in known.items()} == {
        "k": ("id",), "f": ("id",), "i": ("code",), "n": (),
    }  # fmt: skip
    assert known["k"].identity == (True, False, False)
    assert known["f"].identity == (True, True, True)
    assert known["i"].identity == (False, True, False)
    assert [column.not_null for column in known["i"].columns] == [False, True, False]
    U = UNCHANGED
    for statement, expected in (
        ("UPDATE k SET n = 2", Change(UPDATE, ("public", "k"), None, ("1", U, "2"))),
        ("UPDATE k SET id = 2", Change(UPDATE, ("public", "k"), ("1", U, U), ("2", U, "2"))),
        ("UPDATE f SET n = 2", Change(UPDATE, ("public", "f"), ("1", big, "1"), ("1", big, "2"))),
        ("DELETE FROM f", Change(DELETE, ("public", "f"), ("1", big, "2"), None)),
        ("UPDATE i SET id = 2", Change(UPDATE, ("public", "i"), None, ("2", "a", U))),
        ("UPDATE i SET code = 'b'", Change(UPDATE, ("public", "i"), (U, "a", U), ("2", "b", U))),
        ("DELETE FROM i", Change(DELETE, ("public", "i"), (U, "b", U), None)),
    ):
        source.run(statement)
        assert following.transaction() == [expected], statement
    source.run("DELETE FROM n")
    assert following.transaction() == [Change(DELETE, ("public", "n"), ("1", None), None)] * 2


def test_truncate_of_several_tables(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY REFERENCES a)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    following, _ = begin(connect("a", "b"))
    source.transaction(["INSERT INTO a VALUES (1)", "TRUNCATE a, other CASCADE", "INSERT INTO a VALUES (2)"])
    found = following.transaction()
    assert [(change.op, change.table[1], change.new) for change in found] == [
        (INSERT, "a", ("1",)), (TRUNCATE, "a", None), (TRUNCATE, "b", None), (INSERT, "a", ("2",)),
    ]  # fmt: skip


# The server streams transactions that do not fit in its logical_decoding_work_mem, which is 64 kB here.
NOT_STREAMED = "options='-c logical_decoding_work_mem=64MB'"


@pytest.mark.parametrize("conninfo", ["", NOT_STREAMED], ids=["streamed", "not streamed"])
def test_a_large_transaction_comes_in_pieces(
    source: PostgresSource, connect: Callable[..., PostgresConnector], conninfo: str
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, name text)")
    following, _ = begin(connect("t", conninfo=conninfo))
    source.run("INSERT INTO t SELECT n, 'name ' || n FROM generate_series(1, 50000) n")
    pieces = [following.piece()]
    while pieces[-1].commit is None:
        pieces.append(following.piece())
    assert [len(piece.changes) for piece in pieces] == [10_000] * 5
    found = [change.new for piece in pieces for change in piece.changes]
    assert found == [(str(n), f"name {n}") for n in range(1, 50_001)]
    assert all(piece.bytes > 10_000 * 20 for piece in pieces)
    source.run("INSERT INTO t SELECT n, repeat('y', 100000) FROM generate_series(60001, 60200) n")
    pieces = [following.piece()]
    while pieces[-1].commit is None:
        pieces.append(following.piece())
    assert [piece.bytes < 9 << 20 for piece in pieces] == [True] * len(pieces) and len(pieces) == 3


def test_transactions_that_are_streamed_together(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, name text)", "CREATE TABLE u (id int PRIMARY KEY)")
    following, _ = begin(connect("t", "u"))
    insert = "INSERT INTO t SELECT n, repeat('z', 50) FROM generate_series(%s::int, %s::int) n"
    with source.connect() as one, source.connect() as two, source.connect() as three:
        for connection in (one, two, three):
            connection.execute("BEGIN")
        one.execute(insert, (1, 3000))
        two.execute(insert, (10_001, 13_000))
        three.execute(insert, (20_001, 23_000))
        # A subtransaction that is rolled back after a part of it was sent, with another within it.
        two.execute("SAVEPOINT a")
        two.execute(insert, (13_001, 16_000))
        two.execute("SAVEPOINT b")
        two.execute(insert, (16_001, 17_000))
        two.execute("RELEASE b")
        two.execute("INSERT INTO u VALUES (1)")
        two.execute("ROLLBACK TO a")
        one.execute("SAVEPOINT c")
        one.execute(insert, (3001, 6000))
        one.execute("RELEASE c")
        two.execute(insert, (17_001, 19_000))
        two.execute("INSERT INTO u VALUES (2)")
        source.run("INSERT INTO u VALUES (100)")
        # What is streamed is kept, and nothing is given before its end is known.
        assert [change.new for change in following.transaction()] == [("100",)]
        decoder = following.changes._decoder  # type: ignore[attr-defined]
        assert len(decoder.in_progress) >= 2 and sum(decoder.in_progress.values()) > 300_000
        two.execute("COMMIT")
        three.execute("ROLLBACK")
        one.execute("DELETE FROM t WHERE id = 5")
        one.execute("COMMIT")
    second, first = following.transaction(), following.transaction()
    expected = [*range(10_001, 13_001), *range(17_001, 19_001)]
    assert [int(change.new[0]) for change in second if change.table[1] == "t"] == expected  # type: ignore[index]
    assert [change.new for change in second if change.table[1] == "u"] == [("2",)]
    assert [int(change.new[0]) for change in first[:-1]] == list(range(1, 6001))  # type: ignore[index]
    assert first[-1].op == DELETE
    source.run("INSERT INTO u VALUES (101)")
    assert [change.new for change in following.transaction()] == [("101",)]
    assert decoder.in_progress == {}


def test_a_rolled_back_definition_in_a_streamed_transaction(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, name text)")
    following, _ = begin(connect("t"))
    insert = "INSERT INTO t SELECT n, repeat('z', 50) FROM generate_series({}, {}) n"
    source.transaction(
        [
            "SAVEPOINT a",
            insert.format(1, 3000),
            "ALTER TABLE t ADD COLUMN more int",
            insert.format(3001, 6000),
            "ROLLBACK TO a",
            insert.format(10_001, 13_000),
        ]
    )
    found = following.transaction()
    assert {change.op for change in found} == {INSERT}
    assert [change.new for change in found] == [(str(n), "z" * 50) for n in range(10_001, 13_001)]


# --- Definitions ---


def test_changed_definitions_are_given_before_their_rows(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, name varchar(5), gone int)")
    following, _ = begin(connect("t"))

    def next_definition(*statements: str) -> tuple[SourceTable, list[Change]]:
        source.run(*statements)
        found = following.transaction()
        assert found[0].op == DEFINE and isinstance(found[0].new, SourceTable)
        assert DEFINE not in {change.op for change in found[1:]}
        return found[0].new, found[1:]

    table, rows = next_definition(
        "ALTER TABLE t ADD COLUMN n numeric(6,2)", "INSERT INTO t VALUES (1,'a',2,3)"
    )
    assert [(column.name, column.type) for column in table.columns] == [
        ("id", "INTEGER"), ("name", "VARCHAR"), ("gone", "INTEGER"), ("n", "DECIMAL(6,2)"),
    ]  # fmt: skip
    assert rows[0].new == ("1", "a", "2", "3.00")
    table, rows = next_definition("ALTER TABLE t DROP COLUMN gone", "INSERT INTO t VALUES (2, 'b', 4)")
    assert [column.name for column in table.columns] == ["id", "name", "n"]
    assert rows[0].new == ("2", "b", "4.00")
    table, _ = next_definition("ALTER TABLE t RENAME n TO m", "INSERT INTO t VALUES (3, 'b', 4)")
    assert [column.name for column in table.columns] == ["id", "name", "m"]
    table, _ = next_definition("ALTER TABLE t ALTER m TYPE numeric(8,4)", "INSERT INTO t VALUES (4, 'b', 4)")
    assert table.columns[2].type == "DECIMAL(8,4)"
    table, _ = next_definition("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET m = 5 WHERE id = 4")
    assert table.identity == (True, True, True) and table.key == ("id",)
    source.run("ALTER TABLE t ALTER name SET DEFAULT 'x'", "INSERT INTO t VALUES (5, 'b', 4)")
    assert [change.op for change in following.transaction()] == [INSERT]
    # What was given is what a description says now, so nothing is given again after a reconnect.
    assert following.connector.describe() == [table]
    source.run(
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "INSERT INTO t VALUES (6, 'b', 4)",
        "ALTER TABLE t ADD PRIMARY KEY (id, m)",
        "INSERT INTO t VALUES (7, 'b', 4)",
    )
    keys = [change.new.key for _ in range(2) for change in following.transaction() if change.op == DEFINE]  # type: ignore[attr-defined]
    assert keys == [(), ("id", "m")]


def test_an_added_column_has_the_value_of_earlier_rows(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    following, _ = begin(connect("t"))
    source.run(
        "ALTER TABLE t ADD n int DEFAULT 7, ADD d date DEFAULT '0044-03-15 BC'", "INSERT INTO t VALUES (2)"
    )
    define, insert = following.transaction()
    assert isinstance(define.new, SourceTable) and insert.new == ("2", "7", "0044-03-15 BC")
    fills = [column.fill for column in define.new.columns]
    assert fills[0] == ""
    assert duckdb.sql(f"SELECT {fills[1]}, {fills[2]}::VARCHAR").fetchall() == [(7, "0044-03-15 (BC)")]
    assert [column.number for column in define.new.columns] == [1, 2, 3]
    # The definition is known then, and is not given again by another reader.
    following.changes.close()
    following = Following(following.connector, following.connector.describe(), following.position)
    source.run("INSERT INTO t VALUES (3)")
    assert [change.op for change in following.transaction()] == [INSERT]


def test_a_definition_within_a_transaction(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    following, _ = begin(connect("t"))
    source.transaction(
        ["INSERT INTO t VALUES (1)", "ALTER TABLE t ADD name text", "INSERT INTO t VALUES (2, 'b')"]
    )
    found = following.transaction()
    assert [change.op for change in found] == [INSERT, DEFINE, INSERT]
    assert found[0].new == ("1",) and found[2].new == ("2", "b")


def test_a_renamed_table_is_refused(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t")
    following, _ = begin(connector)
    source.run("INSERT INTO t VALUES (1)", "ALTER TABLE t RENAME TO s", "INSERT INTO s VALUES (2)")
    assert following.transaction()[0].new == ("1",)
    with pytest.raises(errors.WrongState, match=r'"public.t" of the source is now named "public.s"'):
        following.transaction()
    following.changes.close()
    with pytest.raises(errors.UndefinedTable, match=r'"public.t"') as caught:
        connector.changes(following.tables, following.position)
    assert "public.s" in (caught.value.detail or "")
    with pytest.raises(errors.UndefinedTable, match='"t"'):
        connector.describe()


# --- Types ---

# The type at the source, a literal, the type here, and the text of the value in DuckDB.
TYPES = [
    ("bool", "true", "BOOLEAN", "true"),
    ("int2", "-32768", "SMALLINT", "-32768"),
    ("int4", "7", "INTEGER", "7"),
    ("int8", "9223372036854775807", "BIGINT", "9223372036854775807"),
    ("oid", "4294967295", "UINTEGER", "4294967295"),
    ("float4", "'3.4028235e38'", "FLOAT", "3.4028235e+38"),
    ("float4", "'NaN'", "FLOAT", "nan"),
    ("float8", "0.1", "DOUBLE", "0.1"),
    ("float8", "'-Infinity'", "DOUBLE", "-inf"),
    ("numeric(10,2)", "12345678.9", "DECIMAL(10,2)", "12345678.90"),
    ("numeric(38,0)", "99999999999999999999999999999999999999", "DECIMAL(38,0)", "9" * 38),
    ("numeric(39,1)", "1.5", "VARCHAR", "1.5"),
    ("numeric", "1.2300000000000000000000000000000000000000000001", "VARCHAR", f"1.23{'0' * 43}1"),
    ("numeric", "'NaN'", "VARCHAR", "NaN"),
    ("numeric(3,-2)", "12345", "DECIMAL(5,0)", "12300"),
    ("numeric(3,5)", "0.00123", "DECIMAL(5,5)", ".00123"),
    ("text", "E'a\\tb\\\\c\\nd'", "VARCHAR", "a\tb\\c\nd"),
    ("text", "''", "VARCHAR", ""),
    ("text", r"'\N'", "VARCHAR", r"\N"),
    ("varchar(10)", "'ä€😀'", "VARCHAR", "ä€😀"),
    ("char(5)", "'ab'", "VARCHAR", "ab   "),
    ('"char"', "'x'", "VARCHAR", "x"),
    ("name", "'n'", "VARCHAR", "n"),
    ("bytea", r"'\x00ff5c'", "BLOB", r"\x00\xFF\x5C"),
    ("bytea", "''", "BLOB", ""),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", """'{"a": 1,  "a": "\\u00e4"}'""", "JSON", '{"a": 1,  "a": "\\u00e4"}'),
    ("jsonb", """'{"b":[1e2,null]}'""", "JSON", '{"b": [100, null]}'),
    ("date", "'2024-02-29'", "DATE", "2024-02-29"),
    ("date", "'infinity'", "DATE", "infinity"),
    ("date", "'0044-03-15 BC'", "DATE", "0044-03-15 (BC)"),
    ("date", "'12345-01-01'", "DATE", "12345-01-01"),
    ("time", "'23:59:59.999999'", "TIME", "23:59:59.999999"),
    ("time", "'24:00'", "TIME", "24:00:00"),
    ("timetz", "'12:00:00.5+05:30'", "TIME WITH TIME ZONE", "12:00:00.5+05:30"),
    ("timestamp", "'2024-02-29 12:34:56.789012'", "TIMESTAMP", "2024-02-29 12:34:56.789012"),
    ("timestamp", "'-infinity'", "TIMESTAMP", "-infinity"),
    ("timestamp", "'0044-03-15 01:02:03.5 BC'", "TIMESTAMP", "0044-03-15 (BC) 01:02:03.5"),
    ("timestamptz", "'2024-02-29 12:34:56+02'", "TIMESTAMP WITH TIME ZONE", "2024-02-29 10:34:56+00"),
    ("timestamptz", "'0044-03-15 01:02:03+00 BC'", "TIMESTAMP WITH TIME ZONE", "0044-03-15 (BC) 01:02:03+00"),
    ("timestamptz(0)", "'infinity'", "TIMESTAMP WITH TIME ZONE", "infinity"),
    ("interval", "'1 year 2 mons -3 days 04:05:06.789'", "INTERVAL", "1 year 2 months -3 days 04:05:06.789"),
    ("interval", "'-1 days +02:03:00'", "INTERVAL", "-1 day 02:03:00"),
    ("interval", "'0'", "INTERVAL", "00:00:00"),
    ("bit(3)", "'101'", "BIT", "101"),
    ("varbit", "''", "VARCHAR", ""),
    ("varbit(5)", "'0101'", "VARCHAR", "0101"),
    ("money", "12.5", "VARCHAR", "$12.50"),
    ("inet", "'10.0.0.1/8'", "VARCHAR", "10.0.0.1/8"),
    ("macaddr", "'08:00:2b:01:02:03'", "VARCHAR", "08:00:2b:01:02:03"),
    ("xml", "'<a/>'", "VARCHAR", "<a/>"),
    ("point", "'(1,2)'", "VARCHAR", "(1,2)"),
    ("tsvector", "'a b'", "VARCHAR", "'a' 'b'"),
    ("int4range", "'[1,5)'", "VARCHAR", "[1,5)"),
    ("int4multirange", "'{[1,5)}'", "VARCHAR", "{[1,5)}"),
    ("pg_lsn", "'16/B374D848'", "VARCHAR", "16/B374D848"),
    ("regclass", "'pg_class'", "VARCHAR", "pg_class"),
    ("int2vector", "'1 2'", "VARCHAR", "1 2"),
    ("mood", "'so so'", "VARCHAR", "so so"),
    ("pair", "ROW(1, 'a b')::pair", "VARCHAR", '(1,"a b")'),
    ("positive", "7", "INTEGER", "7"),
    ("price", "1.5", "DECIMAL(8,3)", "1.500"),
    ("prices", "'{1.5,NULL}'", "DECIMAL(8,3)[]", "[1.500, NULL]"),
    ("int4[]", "'{1,NULL,3}'", "INTEGER[]", "[1, NULL, 3]"),
    ("int4[]", "'[5:6]={1,2}'", "INTEGER[]", "[1, 2]"),
    ("int4[]", "'{}'", "INTEGER[]", "[]"),
    ("int4[][]", "'{{1,2},{3,4}}'", "VARCHAR", "{{1,2},{3,4}}"),
    ("bool[]", "'{t,f}'", "BOOLEAN[]", "[true, false]"),
    ("numeric(4,1)[]", "'{1.25}'", "DECIMAL(4,1)[]", "[1.3]"),
    ("date[]", "'{0044-03-15 BC,2024-01-01}'", "DATE[]", "['0044-03-15 (BC)', 2024-01-01]"),
    ("timestamptz[]", "'{2024-01-01 00:00+01}'", "TIMESTAMP WITH TIME ZONE[]", "['2023-12-31 23:00:00+00']"),
    ("bytea[]", r"array['\x01', '\x']::bytea[]", "BLOB[]", r"['\\x01', '']"),
    ("interval[]", "'{-1 days +02:03:00}'", "INTERVAL[]", "['-1 day 02:03:00']"),
    ("mood[]", "array['so so']::mood[]", "VARCHAR[]", "[so so]"),
    ("pair[]", "array[ROW(1, 'a,b')::pair]", "VARCHAR[]", """['(1,"a,b")']"""),
    ("box[]", "array[box '(1,1),(0,0)']", "VARCHAR", "{(1,1),(0,0)}"),
    ("jsonb[]", """array['{"a":1}'::jsonb]""", "JSON[]", '[{"a": 1}]'),
]  # fmt: skip


def in_duckdb(table: SourceTable, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The texts of rows in DuckDB, as the columns' SQL reads them, and the types."""
    arrays = [
        pa.array([row[place] for row in rows], column.arrow) for place, column in enumerate(table.columns)
    ]
    given = pa.table(arrays, [f"c{place}" for place in range(len(arrays))])  # noqa: F841
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        listed = ", ".join(
            f"{column.sql(f'c{place}')}::VARCHAR, typeof({column.sql(f'c{place}')})"
            for place, column in enumerate(table.columns)
        )
        return connection.execute(f"SELECT {listed} FROM given").fetchall()


def test_each_type(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    columns = ", ".join(f"c{number} {type_}" for number, (type_, *_) in enumerate(TYPES))
    values = ", ".join(literal for _, literal, *_ in TYPES)
    source.run(
        "CREATE TYPE mood AS ENUM ('sad', 'so so')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE DOMAIN price AS numeric(8,3)",
        "CREATE DOMAIN prices AS price[]",
        # What the user's role has set makes no difference.
        "ALTER ROLE postgres SET datestyle = 'SQL, DMY'",
        "ALTER ROLE postgres SET timezone = 'Asia/Tokyo'",
        "ALTER ROLE postgres SET intervalstyle = 'iso_8601'",
        "ALTER ROLE postgres SET bytea_output = 'escape'",
        "ALTER ROLE postgres SET extra_float_digits = 0",
    )
    try:
        source.run(
            f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
            "SET datestyle = iso",
            f"INSERT INTO t VALUES (0, {values})",
            "INSERT INTO t VALUES (1)",
        )
        following, copied = begin(connect("t"), rows=True)
        source.run(f"INSERT INTO t VALUES (2, {values})", "INSERT INTO t VALUES (3)")
        sent = [following.transaction(), following.transaction()]
    finally:
        source.run("ALTER ROLE postgres RESET ALL")
    assert [len(changes) for changes in sent] == [1, 1]
    rows = [*copied, *(changes[0].new for changes in sent)]
    (table,) = following.tables
    assert [column.name for column in table.columns] == ["id", *(f"c{n}" for n in range(len(TYPES)))]
    assert [column.type for column in table.columns[1:]] == [type_ for _, _, type_, _ in TYPES]
    first, empty, changed, empty_too = in_duckdb(table, rows)
    for number, (type_, literal, here, text) in enumerate(TYPES):
        at = 2 * (number + 1)
        shown = f"{type_} {literal}"
        assert (first[at], changed[at]) == (text, text), shown
        assert duckdb.type(first[at + 1]) == duckdb.type(here), shown
        assert (empty[at], empty_too[at]) == (None, None), shown


def test_a_value_that_its_column_cannot_have(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    """PostgreSQL does not bind an array to its declared dimensions; nothing is kept instead of the value."""
    source.run("CREATE TABLE t (id int PRIMARY KEY, a int[])")
    following, _ = begin(connect("t"))
    source.run("INSERT INTO t VALUES (1, '{{1,2},{3,4}}')")
    with pytest.raises(errors.DataError, match="several dimensions"):
        following.transaction()


def test_types_that_come_later(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    following, _ = begin(connect("t"))
    source.run(
        "CREATE DOMAIN short AS numeric(4,1)",
        "ALTER TABLE t ADD a short, ADD b short[], ADD c int[][]",
        "INSERT INTO t VALUES (1, 1.5, '{2.5}', '{{1}}')",
    )
    define, insert = following.transaction()
    assert isinstance(define.new, SourceTable)
    assert [column.type for column in define.new.columns] == [
        "INTEGER", "DECIMAL(4,1)", "DECIMAL(4,1)[]", "VARCHAR",
    ]  # fmt: skip
    assert insert.new == ("1", "1.5", ["2.5"], "{{1}}")
    assert following.connector.describe() == [define.new]


def test_texts_that_are_not_utf8(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE DATABASE ascii ENCODING SQL_ASCII TEMPLATE template0")
    try:
        with source.connect(dbname="ascii") as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
            connection.execute(r"INSERT INTO t VALUES (1, convert_from('\x41', 'SQL_ASCII'))")
            connector = connect("t", conninfo="dbname=ascii")
            following, copied = begin(connector, rows=True)
            assert copied == [("1", "A")]
            connection.execute(r"INSERT INTO t VALUES (2, convert_from('\xe4', 'SQL_ASCII'))")
            with pytest.raises(errors.CharacterNotInRepertoire, match="invalid byte sequence"):
                following.transaction()
            following.changes.close()
            with connector.copy() as copy, pytest.raises(errors.CharacterNotInRepertoire):
                list(copy.rows(following.tables[0]))
            connector.remove()
            connector.close()
    finally:
        source.run("DROP DATABASE ascii WITH (FORCE)")


def test_arrays_are_read_as_psycopg_reads_them(source: PostgresSource) -> None:
    made = random.Random(5)
    texts = ["", "NULL", "null", 'a"b', "a\\b", "{x}", "a,b", " a ", "ä", "\n"]
    with source.connect() as connection:
        for _ in range(200):
            given = [made.choice([*texts, None]) for _ in range(made.randrange(6))]
            row = connection.execute("SELECT %s::text[]::text", (given,)).fetchone()
            assert row is not None and postgres_types.read_array(row[0]) == given


# --- Copies ---


def test_a_copy_and_the_changes_behind_it_are_the_table(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    """Writers do not wait: there is neither a gap nor an overlap between the copy and the changes."""
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT n, 0 FROM generate_series(1, 20000) n",
    )
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        made = random.Random(seed)
        try:
            with source.connect() as connection:
                number = 100_000 * seed
                while not stop.is_set():
                    number += 1
                    with connection.transaction():
                        connection.execute("INSERT INTO t VALUES (%s, 0)", (number,))
                        connection.execute(
                            "UPDATE t SET n = n + 1 WHERE id %% 5 = %s AND id = %s",
                            (seed, made.randrange(20_000)),
                        )
                        connection.execute("DELETE FROM t WHERE id = %s", (number - made.randrange(3),))
        except BaseException as error:
            failures.append(error)

    connector = connect("t")
    tables = connector.describe()
    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        with connector.begin() as copy:
            first = _rows(copy, tables[0])
            with connector.copy() as another:
                second = _rows(another, tables[0])
            position, other_position = copy.position, another.position
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failures
    source.run("INSERT INTO t VALUES (0, 0)")
    following = Following(connector, tables, position)
    transactions: list[tuple[str, list[Change]]] = []
    while not transactions or transactions[-1][1][-1].new != ("0", "0"):
        changes = following.transaction()
        transactions.append((following.position, changes))
    table = dict(source.run("SELECT id::text, n::text FROM t"))
    assert _folded(first, [changes for _, changes in transactions]) == table
    later = [
        changes
        for place, changes in transactions
        if PostgresLsn.parse(place) > PostgresLsn.parse(other_position)
    ]
    assert 0 < len(later) <= len(transactions)
    assert _folded(second, later) == table
    # The copy's own slot is gone.
    assert source.run("SELECT count(*) FROM pg_replication_slots")[0][0] == 1


def _rows(copy: Copy, table: SourceTable) -> dict[Any, Any]:
    rows = [row for block in copy.rows(table) for row in block]
    found = dict(rows)
    assert len(found) == len(rows)
    return found


def _folded(rows: dict[Any, Any], transactions: Sequence[Sequence[Change]]) -> dict[Any, Any]:
    found = dict(rows)
    for change in itertools.chain.from_iterable(transactions):
        if change.op == INSERT:
            assert change.new[0] not in found  # type: ignore[index]
        else:
            old = change.old or change.new
            assert old[0] in found  # type: ignore[index]
            del found[old[0]]  # type: ignore[index]
        if change.op != DELETE:
            found[change.new[0]] = change.new[1]  # type: ignore[index]
    return found


def test_a_truncate_waits_for_the_copy(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = connect("t")
    (table,) = connector.describe()
    with connector.begin() as copy:
        truncate = threading.Thread(target=source.run, args=("TRUNCATE t",))
        truncate.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        deadline = time.monotonic() + WAIT_S
        while not source.run(waiting)[0][0]:
            assert time.monotonic() < deadline
        assert [row for block in copy.rows(table) for row in block] == [("1",)]
    truncate.join()
    following = Following(connector, [table], copy.position)
    assert [change.op for change in following.transaction()] == [TRUNCATE]


def test_rows_of_a_copy_are_read_whatever_they_contain() -> None:
    made = random.Random(3)
    letters = ["\\", "\t", "\n", "\r", "N", "a", "ä", "\\N", "", "\b\f\v"]
    escaped = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
    for _ in range(300):
        rows = [
            tuple(
                None if made.random() < 0.2 else "".join(made.choices(letters, k=made.randrange(4)))
                for _ in range(3)
            )
            for _ in range(made.randrange(4))
        ]
        lines = (
            "\t".join(
                "\\N" if value is None else "".join(escaped.get(letter, letter) for letter in value)
                for value in row
            )
            + "\n"
            for row in rows
        )
        assert postgres_connector.copy_rows("".join(lines).encode(), 3) == rows


# --- Selections ---


def test_a_publication_with_columns_and_a_filter(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, n int, m int GENERATED ALWAYS AS (n * 2) STORED)",
        "INSERT INTO t VALUES (1, 's', 1), (-1, 's', 1)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t (n, id) WHERE (id > 0)",
    )
    connector = connect(selection=PostgresSelection(publication="p"))
    following, copied = begin(connector, rows=True)
    (table,) = following.tables
    assert [column.name for column in table.columns] == ["id", "n"]
    assert copied == [("1", "1")]
    source.run("INSERT INTO t VALUES (2, 's', 2), (-2, 's', 2)", "UPDATE t SET id = 3 * id")
    assert [change.new for change in following.transaction()] == [("2", "2")]
    assert [(change.op, change.new) for change in following.transaction()] == [
        (UPDATE, ("3", "1")), (UPDATE, ("6", "2")),
    ]  # fmt: skip
    source.run("UPDATE t SET id = -100 WHERE id = 6")
    assert following.transaction() == [Change(DELETE, ("public", "t"), ("6", UNCHANGED), None)]
    following.changes.close()
    connector.remove()
    # It is the user's.
    assert source.run("SELECT pubname FROM pg_publication") == [("p",)]
    assert source.run("SELECT count(*) FROM pg_replication_slots")[0][0] == 0


def test_generated_columns_are_left_out(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, n int)")
    source.run("INSERT INTO t VALUES (1, DEFAULT, 3)")
    following, copied = begin(connect("t"), rows=True)
    assert copied == [("1", "3")]
    source.run("INSERT INTO t VALUES (2, DEFAULT, 4)")
    assert following.transaction() == [Change(INSERT, ("public", "t"), None, ("2", "4"))]


def test_partitioned_and_inherited_tables(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run(
        "CREATE TABLE p (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
        # Its columns have another order.
        "CREATE TABLE p2 (day date NOT NULL, id int NOT NULL)",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO p VALUES (1, '2024-05-01'), (2, '2025-05-01')",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
    )
    connector = connect("p", "parent")
    following, copied = begin(connector, rows=True)
    assert sorted(copied) == [("1",), ("1", "2024-05-01"), ("2", "2025-05-01")]
    assert following.tables[0].key == ("id", "day")
    source.run(
        "INSERT INTO child VALUES (3)",
        "INSERT INTO p VALUES (3, '2025-06-01')",
        "UPDATE p SET day = '2024-06-01' WHERE id = 3",
        "TRUNCATE p",
    )
    p = ("public", "p")
    assert following.transaction() == [Change(INSERT, p, None, ("3", "2025-06-01"))]
    # A row that moves to another partition is deleted there.
    assert following.transaction() == [
        Change(DELETE, p, ("3", "2025-06-01"), None), Change(INSERT, p, None, ("3", "2024-06-01")),
    ]  # fmt: skip
    assert following.transaction() == [Change(TRUNCATE, p, None, None)]
    with pytest.raises(errors.WrongObjectType, match=r'"public.p1" of the source is a partition'):
        connect("p", "p1").describe()
    source.run("ALTER TABLE p2 REPLICA IDENTITY NOTHING")
    with pytest.raises(errors.WrongState, match="no identity") as caught:
        connector.describe()
    assert "p2" in (caught.value.detail or "")


def test_a_schema(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run(
        'CREATE SCHEMA "My shop"',
        'CREATE TABLE "My shop"."Order" (id int PRIMARY KEY, "a ""b" text)',
        'CREATE TABLE "My shop".item (id int PRIMARY KEY)',
        'CREATE UNLOGGED TABLE "My shop".cache (id int)',
        'CREATE VIEW "My shop".v AS SELECT 1',
    )
    try:
        connector = connect(selection=PostgresSelection(schema="My shop"))
        following, _ = begin(connector)
        assert [table.name for table in following.tables] == ["Order", "item"]
        source.run('INSERT INTO "My shop"."Order" VALUES (1, \'x\')')
        assert following.transaction() == [Change(INSERT, ("My shop", "Order"), None, ("1", "x"))]
        with connector.copy() as copy:
            assert _rows(copy, following.tables[0]) == {"1": "x"}
        with pytest.raises(errors.InvalidSchemaName):
            connect(selection=PostgresSelection(schema="nowhere")).describe()
    finally:
        source.run('DROP SCHEMA "My shop" CASCADE')


@pytest.mark.parametrize("conninfo", ["", NOT_STREAMED], ids=["streamed", "not streamed"])
def test_tables_are_added_and_dropped(
    source: PostgresSource, connect: Callable[..., PostgresConnector], conninfo: str
) -> None:
    source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    following, _ = begin(connect("a", slot="added"))
    following.changes.close()
    both = connect("a", "b", slot="added", conninfo=conninfo)
    tables = both.describe()
    both.publish()
    source.run("INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (1)")
    with both.copy() as copy:
        assert [row for block in copy.rows(tables[1]) for row in block] == [("1",)]
    # The stream that does not have the table yet gets none of its rows, however many these are.
    source.transaction(
        [
            "INSERT INTO b SELECT n FROM generate_series(10, 30000) n",
            "INSERT INTO a SELECT n FROM generate_series(2, 10001) n",
            "INSERT INTO b SELECT n FROM generate_series(30001, 60000) n",
        ]
    )
    old = Following(both, tables[:1], following.position)
    old.confirms = False  # Its changes are read again, whether a status was due meanwhile or not.
    assert [change.new for change in old.transaction()] == [("1",)]
    piece = old.piece()
    assert piece.commit is not None
    assert [(change.table[1], change.new) for change in piece.changes] == [
        ("a", (str(number),)) for number in range(2, 10_002)
    ]
    both.close()
    again = Following(connect("a", "b", slot="added", conninfo=conninfo), tables, following.position)
    assert [again.transaction()[0].table[1], again.transaction()[0].table[1]] == ["b", "a"]
    again.changes.close()
    one = connect("b", slot="added")
    one.publish()
    assert source.run("SELECT tablename FROM pg_publication_tables") == [("b",)]


# --- Positions, connections, restarts ---


def test_an_idle_database_retains_no_log(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    connector = connect("t", progress_s=0.1)
    following, _ = begin(connector)
    source.run("INSERT INTO other SELECT n FROM generate_series(1, 10000) n")
    end = source.run("SELECT pg_current_wal_lsn()")[0][0]
    deadline = time.monotonic() + WAIT_S
    moved = "SELECT confirmed_flush_lsn >= '{}'::pg_lsn FROM pg_replication_slots"
    while not source.run(moved.format(end))[0][0]:
        assert time.monotonic() < deadline
        piece = following.changes.next(0.2)
        if piece is not None:
            assert piece.changes == () and piece.commit is not None and piece.commit.txid == ""
            assert abs(piece.commit.commit_us - time.time_ns() // 1000) < 60_000_000
            following.position = piece.commit.position
            following.changes.confirm(following.position)
    # Reading goes on from such a position.
    source.run("INSERT INTO t VALUES (1)")
    following.changes.close()
    following = Following(connector, following.tables, following.position)
    assert following.transaction() == [Change(INSERT, ("public", "t"), None, ("1",))]


def test_what_is_not_confirmed_is_read_again(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t")
    tables = connector.describe()
    with connector.begin() as copy:
        position = copy.position
    source.run("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    for _ in range(2):
        changes = connector.changes(tables, position)
        assert [_transaction(changes)[0].new, _transaction(changes)[0].new] == [("1",), ("2",)]
        changes.close()


def test_the_distance_to_the_end(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, name text)")
    following, _ = begin(connect("t"))
    source.run("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n")
    behind, end = following.changes.behind()
    assert behind is not None and behind > 1_000_000
    assert source.run(f"SELECT '{end}'::pg_lsn <= pg_current_wal_lsn()")[0][0]
    following.transaction()
    deadline = time.monotonic() + WAIT_S
    while (following.changes.behind()[0] or 0) > 10_000:
        assert time.monotonic() < deadline
        following.changes.next(0.1)


def test_close_ends_a_wait(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t")
    following, _ = begin(connector)
    caught: list[BaseException] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except errors.SourceUnavailable as error:
            caught.append(error)

    for close in (following.changes.close, connector.close):
        reader = threading.Thread(target=wait, args=(lambda: following.changes.next(600.0),))
        reader.start()
        close()
        reader.join(WAIT_S)
        assert not reader.is_alive()
    assert len(caught) == 2
    # A slot waits for the end of open transactions.
    another = connect("t")
    another.describe()
    with source.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO t VALUES (1)")
        maker = threading.Thread(target=wait, args=(another.begin,))
        maker.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        deadline = time.monotonic() + WAIT_S
        while not source.run(waiting)[0][0]:
            assert time.monotonic() < deadline
        another.close()
        maker.join(WAIT_S)
        assert not maker.is_alive()
    assert len(caught) == 3 and "closed" in str(caught[-1])


def test_begin_and_remove(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t", slot="mine")
    connector.remove()
    assert connector.slot_exists() is False
    for _ in range(2):
        connector.begin().close()
        assert connector.slot_exists() is True
        assert source.run("SELECT slot_name, plugin, temporary FROM pg_replication_slots") == [
            ("mine", "pgoutput", False)
        ]
        assert source.run("SELECT pubname, pubviaroot, pubtruncate FROM pg_publication") == [
            ("mine", True, True)
        ]
    connector.remove()
    connector.remove()
    assert source.run("SELECT slot_name FROM pg_replication_slots") == []
    assert source.run("SELECT pubname FROM pg_publication") == []


def test_a_killed_server(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    """Each transaction that was committed is given once, from the confirmed position on."""
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    following, _ = begin(connect("t"))
    found: list[int] = []
    for round_ in range(3):
        first = 100 * round_
        source.run(*(f"INSERT INTO t VALUES ({first + number})" for number in range(20)))
        source.run(f"INSERT INTO t SELECT n FROM generate_series({first + 20}, {first + 29}) n")
        for _ in range(5):
            found += [int(change.new[0]) for change in following.transaction()]  # type: ignore[index]
        if round_ == 1:
            source.stop("immediate")
        else:
            source.kill()
        with pytest.raises(errors.SourceUnavailable):
            while True:
                found += [int(change.new[0]) for change in following.transaction()]  # type: ignore[index]
        with pytest.raises(errors.SourceUnavailable):
            following.connector.changes(following.tables, following.position)
        source.start()
        assert following.connector.describe() == following.tables
        following = Following(following.connector, following.tables, following.position)
    source.run("INSERT INTO t VALUES (1000)")
    while 1000 not in found:
        found += [int(change.new[0]) for change in following.transaction()]  # type: ignore[index]
    assert found == sorted(row[0] for row in source.run("SELECT id FROM t"))


def test_a_server_that_is_stopped_waits_for_no_reader(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    """At its end the server waits until all of its log is confirmed; the position moves at once then."""
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)")
    following, _ = begin(connect("t", progress_s=3600.0))
    source.run("INSERT INTO t VALUES (0)")
    assert following.transaction()[0].new == ("0",)
    source.run("INSERT INTO t VALUES (1)", "INSERT INTO other VALUES (1)")
    stopping = threading.Thread(target=source.stop, args=("fast",))
    stopping.start()
    found: list[Change] = []
    try:
        with pytest.raises(errors.SourceUnavailable):
            while True:
                found += following.piece().changes
    finally:
        stopping.join()
        source.start()
    assert [change.new for change in found] == [("1",)]
    following = Following(following.connector, following.tables, following.position)
    source.run("INSERT INTO t VALUES (2)")
    assert following.transaction()[0].new == ("2",)


# --- Errors ---


def test_connections_that_are_refused(source: PostgresSource, server: PostgresSource) -> None:
    secret = "s3cret-word"
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    source.run(f"CREATE ROLE bob LOGIN PASSWORD '{secret}'", "CREATE ROLE carol LOGIN REPLICATION")
    source.hba(
        "host postgres,nowhere bob 127.0.0.1/32 scram-sha-256",
        "hostssl postgres carol 127.0.0.1/32 trust",
        "host all postgres 127.0.0.1/32 trust",
    )

    def refused(parameters: str) -> errors.DucktailError:
        selection = PostgresSelection(tables=((None, "t"),))
        connector = PostgresConnector(f"{source.conninfo} {parameters}", selection, "refused")
        try:
            with pytest.raises(errors.DucktailError) as caught:
                connector.describe()
        finally:
            connector.close()
        assert secret not in str(caught.value) + str(caught.value.detail) + str(caught.value.hint)
        return caught.value

    try:
        for parameters, kind, text in (
            ("user=bob password=wrong-s3cret", errors.InvalidPassword, "password authentication failed"),
            ("user=bob", errors.InvalidPassword, "no password supplied"),
            (f"user=bob password={secret}", errors.InsufficientPrivilege, "replication role"),
            ("user=carol", errors.InvalidAuthorization, "no encryption"),
            ("user=nobody", errors.InvalidAuthorization, "pg_hba.conf"),
            (f"user=bob password={secret} dbname=nowhere", errors.UndefinedDatabase, "nowhere"),
            ("sslmode=require", errors.CannotConnect, "SSL"),
            ("port=1", errors.SourceUnavailable, "Connection refused"),
            ("host=nowhere.invalid", errors.SourceUnavailable, "nowhere.invalid"),
        ):
            error = refused(parameters)
            assert type(error) is kind and text in str(error), (parameters, error)
        assert "sslmode=require" in (refused("user=carol").hint or "")
    finally:
        source.hba("host all all 127.0.0.1/32 trust")
        source.run("DROP ROLE bob", "DROP ROLE carol")
    for text in (
        f"host=localhost password={secret} oops",
        f"postgresql://u:{secret}%zz@localhost/",
        "replication=1",
    ):
        with pytest.raises(errors.InvalidParameterValue) as caught:
            PostgresConnector(text, PostgresSelection(schema="public"), "slot")
        assert secret not in str(caught.value) + str(caught.value.hint)


def test_a_server_that_does_not_answer(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        connector = connect("t", conninfo=f"port={port} connect_timeout=1")
        with pytest.raises(errors.SourceUnavailable, match="timed out after 1 second"):
            connector.describe()
        # Another host is tried then.
        source.run("CREATE TABLE t (id int PRIMARY KEY)")
        both = f"host=127.0.0.1,127.0.0.1 port={port},{source.port} connect_timeout=1"
        assert [table.name for table in connect("t", conninfo=both).describe()] == ["t"]


@pytest.mark.parametrize("slot", ["", "Upper", "a-b", "x" * 64])
def test_names_of_slots(slot: str) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        PostgresConnector("", PostgresSelection(schema="public"), slot)
    with pytest.raises(errors.InvalidParameterValue):
        PostgresSelection()


def test_tables_that_cannot_be_read(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run(
        "CREATE TABLE keyed (id int PRIMARY KEY, n int)",
        "CREATE TABLE keyless (id int)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT 1 AS id",
        "CREATE SEQUENCE s",
        "CREATE SCHEMA empty",
        "CREATE PUBLICATION none",
        "CREATE PUBLICATION inserts FOR TABLE keyless WITH (publish = 'insert')",
        "CREATE PUBLICATION updates FOR TABLE keyless",
        "CREATE ROLE dave LOGIN REPLICATION",
        "GRANT SELECT (id) ON keyed TO dave",
        "GRANT SELECT ON keyless TO dave",
        "CREATE PUBLICATION readable FOR TABLE keyed (id)",
    )
    try:
        for tables, kind, text in (
            (("missing",), errors.UndefinedTable, "missing"),
            (("v",), errors.WrongObjectType, "a view"),
            (("s",), errors.WrongObjectType, "a sequence"),
            (("unlogged",), errors.WrongObjectType, "unlogged"),
            (("keyed", "keyless"), errors.WrongState, "no identity"),
            (("nothing",), errors.WrongState, "no identity"),
            (("deferred",), errors.WrongState, "no identity"),
        ):
            connector = connect(*tables)
            for call in (connector.describe, connector.begin):
                with pytest.raises(kind, match=text) as caught:
                    call()
            if text == "no identity":
                assert "REPLICA IDENTITY FULL" in (caught.value.hint or "")
        for selection, kind, text in (
            (PostgresSelection(schema="empty"), errors.UndefinedTable, "no tables"),
            (PostgresSelection(publication="none"), errors.UndefinedTable, "no tables"),
            (PostgresSelection(publication="missing"), errors.UndefinedObject, "missing"),
            (PostgresSelection(publication="updates"), errors.WrongState, "no identity"),
        ):
            with pytest.raises(kind, match=text):
                connect(selection=selection).describe()
        # The source refuses neither updates nor deletes of a table of which only inserts are published.
        (table,) = connect(selection=PostgresSelection(publication="inserts")).describe()
        assert table.key == ()
        # Nothing was published, so the source's own writers are not harmed.
        assert source.run("SELECT count(*) FROM pg_publication") == [(4,)]
        source.run("INSERT INTO keyless VALUES (1)")
        dave = "user=dave"
        with pytest.raises(errors.InsufficientPrivilege, match=r'denied for table "public\.keyed"') as caught:
            connect("keyed", conninfo=dave).describe()
        assert "n" in (caught.value.detail or "")
        source.run("GRANT SELECT ON keyed TO dave")
        with pytest.raises(errors.InsufficientPrivilege, match="must own"):
            connect("keyed", conninfo=dave).describe()
        source.run("ALTER TABLE keyed OWNER TO dave")
        with pytest.raises(errors.InsufficientPrivilege, match="may not make a publication"):
            connect("keyed", conninfo=dave).describe()
        source.run("GRANT CREATE ON DATABASE postgres TO dave")
        connector = connect("keyed", conninfo=dave)
        connector.describe()
        connector.begin().close()
        connector.remove()
        # A publication of another user is read without a right on it.
        source.run("REVOKE CREATE ON DATABASE postgres FROM dave", "ALTER TABLE keyed OWNER TO postgres")
        source.run("REVOKE ALL ON keyed FROM dave", "GRANT SELECT (id) ON keyed TO dave")
        connector = connect(selection=PostgresSelection(publication="readable"), conninfo=dave)
        following, _ = begin(connector)
        source.run("INSERT INTO keyed VALUES (1, 2)")
        assert following.transaction()[0].new == ("1",)
        with connector.copy() as copy:
            assert [row for block in copy.rows(following.tables[0]) for row in block] == [("1",)]
    finally:
        source.run("DROP SCHEMA empty", "DROP OWNED BY dave", "DROP ROLE dave")


def test_rows_hidden_by_a_policy_are_an_error(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE ROLE erin LOGIN REPLICATION",
        "GRANT SELECT ON t TO erin",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    try:
        connector = connect(selection=PostgresSelection(publication="p"), conninfo="user=erin")
        for call in (connector.describe, connector.begin):
            with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
                call()
        source.run("ALTER ROLE erin BYPASSRLS")
        (table,) = connector.describe()
        with connector.begin() as copy:
            source.run("ALTER ROLE erin NOBYPASSRLS")
            with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
                list(copy.rows(table))
    finally:
        source.run("DROP OWNED BY erin", "DROP ROLE erin")


def test_a_slot_that_no_longer_has_the_changes(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    connector = connect("t", slot="lost")
    following, _ = begin(connector)
    first = following.position
    source.run("INSERT INTO t VALUES (1)")
    following.transaction()
    following.changes.close()

    def lost(position: str, text: str) -> errors.SourceLost:
        with pytest.raises(errors.SourceLost, match=text) as caught:
            connector.changes(following.tables, position)
        assert caught.value.sqlstate == "55000" and "create it again" in (caught.value.hint or "")
        return caught.value

    ahead = source.run("SELECT pg_current_wal_lsn() + 1000000000")[0][0]
    lost(ahead, "log ends at")
    source.run("INSERT INTO t VALUES (2)")
    source.run("SELECT pg_replication_slot_advance('lost', pg_current_wal_lsn())")
    lost(first, "beyond the stream's position")
    # The source removes what was not read.
    with connector.begin() as copy:
        position = copy.position
    source.run(
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "ALTER SYSTEM SET min_wal_size = '32MB'",
        "ALTER SYSTEM SET max_wal_size = '32MB'", "SELECT pg_reload_conf()",
    )  # fmt: skip
    try:
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'lost'"
        deadline = time.monotonic() + WAIT_S
        while source.run(status)[0][0] != "lost":
            assert time.monotonic() < deadline
            source.run("CREATE TABLE IF NOT EXISTS x ()", "SELECT pg_switch_wal()", "CHECKPOINT")
        lost(position, "was invalidated")
    finally:
        source.run("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
    source.run("SELECT pg_drop_replication_slot('lost')")
    assert "dropped" in (lost(position, "does not exist").detail or "")
    # Another server.
    again = connect("t", slot="lost", identity="1/postgres")
    with pytest.raises(errors.SourceLost, match="another database") as caught:
        again.describe()
    assert "1/postgres" in (caught.value.detail or "")
    assert connector.identity is not None and connector.identity.endswith("/postgres")
    connect("t", slot="lost", identity=connector.identity).describe()


def test_a_changed_publication(source: PostgresSource, connect: Callable[..., PostgresConnector]) -> None:
    source.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    own = connect("a", "b", slot="own")
    following, _ = begin(own)
    following.changes.close()
    source.run("ALTER PUBLICATION own DROP TABLE b")
    with pytest.raises(errors.SourceLost, match=r'"public\.b" is no longer in publication "own"'):
        own.changes(following.tables, following.position)
    source.run("DROP PUBLICATION own")
    with pytest.raises(errors.SourceLost, match='publication "own" does not exist'):
        own.changes(following.tables, following.position)
    source.run("CREATE PUBLICATION p FOR TABLE a")
    connector = connect(selection=PostgresSelection(publication="p"))
    following, _ = begin(connector)
    source.run("INSERT INTO a VALUES (1)")
    assert following.transaction()[0].new == ("1",)
    source.run("ALTER PUBLICATION p ADD TABLE b", "INSERT INTO b VALUES (1)")
    with pytest.raises(errors.WrongState, match=r"that the stream does not have: public\.b"):
        following.transaction()
    following.changes.close()
    with pytest.raises(errors.WrongState, match=r"that the stream does not have: public\.b"):
        connector.changes(following.tables, following.position)


def test_slots_in_use(
    source: PostgresSource, connect: Callable[..., PostgresConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connector, "ACTIVE_TRIES", 1)
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t", slot="used")
    following, _ = begin(connector)
    another = connect("t", slot="used")
    for call in (
        lambda: another.changes(following.tables, following.position), another.begin, another.remove
    ):  # fmt: skip
        with pytest.raises(errors.ObjectInUse, match="is active for PID"):
            call()
    following.changes.close()
    another.begin().close()
    source.run("SELECT pg_create_physical_replication_slot('other_use')")
    with pytest.raises(errors.DuplicateObject, match="has another use"):
        connect("t", slot="other_use").begin()
    free = 12 - source.run("SELECT count(*) FROM pg_replication_slots")[0][0]
    source.run(*(f"SELECT pg_create_physical_replication_slot('full_{number}')" for number in range(free)))
    for call in (connect("t").begin, another.copy):
        with pytest.raises(errors.ConfigurationLimit) as caught:
            call()
        assert "max_replication_slots" in (caught.value.hint or "")


def test_servers_that_cannot_be_a_source(
    source: PostgresSource, connect: Callable[..., PostgresConnector]
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    connector = connect("t")
    source.stop()
    source.start("wal_level=replica")
    try:
        with pytest.raises(errors.WrongState, match="wal_level is replica") as caught:
            connector.describe()
        assert "restart" in (caught.value.hint or "")
        with pytest.raises(errors.WrongState, match="wal_level"):
            connector.begin()
        source.stop()
        source.start("max_wal_senders=0")
        with pytest.raises(errors.ConfigurationLimit, match="max_wal_senders"):
            connector.describe()
        source.stop()
        source.standby(True)
        source.start()
        with pytest.raises(errors.WrongState, match="standby"):
            connector.describe()
    finally:
        source.stop()
        source.standby(False)
        source.start()
    connector.describe()
