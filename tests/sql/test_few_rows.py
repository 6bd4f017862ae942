"""Short answers, taken without Arrow: the same bytes as with it, whatever the value."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.waiting import drive
from ducktail.sql.results.batches import PlainBatch
from ducktail.sql.results.results import ResultBatch
from ducktail.sql.session_state.queries import ROWS_MAX

# What is taken as Python values.
PLAIN = [
    "true", "(-128)::TINYINT", "32767::SMALLINT", "-2147483648", "9223372036854775807::BIGINT",
    "255::UTINYINT", "65535::USMALLINT", "4294967295::UINTEGER", "18446744073709551615::UBIGINT",
    "(-99999999999999999999999999999999999999)::HUGEINT", "1.50::DECIMAL(5,2)", "(-0.01)::DECIMAL(5,2)",
    "0.00000001::DECIMAL(18,8)", "10000::DECIMAL(18,8)", "100000000::DECIMAL(9,0)",
    "0.1::FLOAT", "1000000::FLOAT", "(-60520712)::FLOAT", "0.1::DOUBLE", "'-0.0'::DOUBLE", "1e16::DOUBLE",
    "5e-324::DOUBLE", "'nan'::DOUBLE", "'-infinity'::DOUBLE", "'é\"\\ 😀'", "''", "'{\"a\":  1.50}'::JSON",
    "'y'::ENUM('x', 'y')", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID", "'\\xDE\\x00'::BLOB",
    "DATE '2026-01-01'", "DATE '0001-01-02'", "DATE '9999-12-30'", "TIMESTAMP '2026-01-01 10:00:00.12'",
    "TIMESTAMP '1677-09-21 00:12:43'", "TIMESTAMPTZ '2026-07-01 10:00:00+05:30'", "TIMESTAMPTZ '1900-01-01'",
]  # fmt: skip
# Columns of a plain type whose value Python does not tell.
UNTOLD = [
    "DATE 'infinity'", "DATE '-infinity'", "DATE '9999-12-31'", "DATE '0044-03-15 (BC)'",
    "DATE '12345-06-07'", "(-170141183460469231731687303715884105727)::HUGEINT",
    "TIMESTAMP 'infinity'", "TIMESTAMP '-infinity'", "TIMESTAMP '0001-01-01'", "TIMESTAMP '20000-01-01'",
    "TIMESTAMPTZ 'infinity'", "TIMESTAMPTZ '-infinity'", "TIMESTAMPTZ '20000-01-01 00:00:00+00'",
]  # fmt: skip
# Of other types.
OTHERS = [
    "[1, 2]", "{'a': 1}", "INTERVAL 1 MONTH", "TIME '24:00:00'",
    "TIMESTAMP_NS '2026-01-01'", "'101'::BIT",
]  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database.open(str(tmp_path_factory.mktemp("few_rows") / "shop.duckdb"))
    yield database
    database.close()


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    client = Client(database, wire=True)
    yield client
    client("DROP TABLE IF EXISTS t")
    client.close()


def answer(client: Client, text: str, *parameters: object) -> tuple[list[ResultBatch], tuple[str, ...]]:
    """The batches of a statement's answer, and its columns' types."""
    result = drive(client.session.execute(drive(client.session.parse(text)), parameters))
    batches = list(iter(lambda: result.fetch(None), None))
    assert result.tag == f"SELECT {sum(batch.row_count for batch in batches)}"
    return batches, tuple(column.type for column in result.columns or ())


def values(batches: list[ResultBatch]) -> list[str]:
    """The rows, in an order of their own: some queries promise none."""
    return sorted(str(row) for batch in batches for row in batch.record_batch().to_pylist())


def is_plain(client: Client, text: str, *parameters: object) -> bool:
    """Whether a statement that has been run before is now answered without Arrow."""
    batches, _ = answer(client, text, *parameters)
    return all(isinstance(batch, PlainBatch) for batch in batches)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("value", [*PLAIN, *UNTOLD, *OTHERS])
def test_the_same_bytes(client: Client, value: str, zone: str) -> None:
    client(f"SET TimeZone = '{zone}'")
    text = f"SELECT * FROM (VALUES (1, {value}), (2, NULL), (3, {value})) AS t (i, v)"
    (first,), types = answer(client, text)
    (again,), same = answer(client, text)
    assert same == types
    assert isinstance(again, PlainBatch) is (value in PLAIN)
    if value in PLAIN:
        assert repr(first.record_batch().to_pylist()) == repr(again.record_batch().to_pylist())
    assert first.record_batch().schema == again.record_batch().schema
    formats = [(0,), (0, 1)] if "INTERVAL" not in value else [(0,)]
    for each in formats:
        assert bytes(first.datarows(types, each, zone)) == bytes(again.datarows(types, each, zone))
    parts = [bytes(batch.cut(1, 1).datarows(types, (0,), zone)) for batch in (first, again)]
    assert parts[0] == parts[1]


def test_a_clock_before_the_first_year(client: Client) -> None:
    text = "SELECT TIMESTAMPTZ '0001-01-01 00:00:00+00' AS t"
    client("SET TimeZone = 'America/New_York'")
    for _ in range(3):
        (batch,), types = answer(client, text)
        assert b"0001-12-31 19:03:58-04:56:02 BC" in bytes(batch.datarows(types, (0,), "America/New_York"))


def test_a_sequence_is_asked_once(client: Client) -> None:
    client("CREATE SEQUENCE ids")
    client("CREATE MACRO next_id() AS nextval('ids')")
    for text in ("SELECT nextval('ids') AS n, DATE '9999-12-31' AS d", "SELECT next_id() AS n, 1 AS d"):
        first = client(text)[0][0]
        assert [client(text)[0][0] for _ in range(4)] == [first + n for n in range(1, 5)]
    client("BEGIN")
    client("SELECT i, nextval('ids') AS n FROM range(100) AS r (i)")
    client("SELECT i, nextval('ids') AS n FROM range(100) AS r (i)")
    client("COMMIT")


def test_an_answer_that_has_become_long(client: Client) -> None:
    client("CREATE TABLE t AS SELECT range AS i FROM range(1000)")
    text = "SELECT i FROM t WHERE i < $1 ORDER BY i"
    assert [row for (row,) in client(text, 3)] == [0, 1, 2]
    assert is_plain(client, text, 3)
    assert is_plain(client, text, ROWS_MAX)
    assert not is_plain(client, text, ROWS_MAX + 1)
    assert [row for (row,) in client(text, 1000)] == list(range(1000))
    assert is_plain(client, text, 0)
    # What is often long is left to Arrow.
    assert not is_plain(client, text, 500)
    assert not is_plain(client, text, 3)
    assert client(text, 2) == [(0,), (1,)]


def test_a_table_that_has_become_another(client: Client) -> None:
    client("CREATE TABLE t (a INTEGER, b VARCHAR)")
    client("INSERT INTO t VALUES (1, 'x')")
    other = Client(client.session.database)
    for _ in range(3):
        assert client("SELECT * FROM t") == [(1, "x")]
    for change, row in [
        ("ALTER TABLE t ALTER a TYPE DOUBLE", (1.0, "x")),
        ("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7", (1.0, "x", 7)),
        ("ALTER TABLE t DROP COLUMN b", (1.0, 7)),
        ("ALTER TABLE t RENAME COLUMN c TO d", (1.0, 7)),
    ]:
        other(change)
        for _ in range(3):
            assert client("SELECT * FROM t") == [row]
    batches, _ = answer(client, "SELECT * FROM t")
    assert batches[0].record_batch().schema.names == ["a", "d"]
    other("DROP TABLE t")
    with pytest.raises(DucktailError, match="does not exist") as caught:
        client("SELECT * FROM t")
    assert (caught.value.sqlstate, caught.value.position) == ("42P01", 15)
    other.close()


def test_a_statement_that_is_held_while_its_table_becomes_another(client: Client) -> None:
    client("CREATE TABLE t (a INTEGER, b VARCHAR)")
    client("INSERT INTO t VALUES (1, 'x')")
    other = Client(client.session.database)
    statement = drive(client.session.parse("SELECT * FROM t"))
    for change, wanted in [
        ("SELECT 1", [("a", "INTEGER"), ("b", "VARCHAR")]),
        ("ALTER TABLE t ALTER a TYPE DOUBLE", [("a", "DOUBLE"), ("b", "VARCHAR")]),
        ("ALTER TABLE t RENAME COLUMN b TO c", [("a", "DOUBLE"), ("c", "VARCHAR")]),
    ]:
        other(change)
        for _ in range(3):
            result = drive(client.session.execute(statement))
            assert [(column.name, column.type) for column in result.columns or ()] == wanted
            batch = result.fetch(None)
            assert batch is not None and batch.record_batch().schema.names == [name for name, _ in wanted]
            assert result.fetch(None) is None
    other.close()


def test_a_snapshot_and_an_error_in_a_block(client: Client) -> None:
    client("CREATE TABLE t AS SELECT 1 AS i")
    other = Client(client.session.database)
    assert client("SELECT i FROM t") == client("SELECT i FROM t") == [(1,)]
    client("BEGIN")
    assert client("SELECT i FROM t") == [(1,)]
    other("INSERT INTO t VALUES (2)")
    assert client("SELECT i FROM t") == [(1,)]
    client("COMMIT")
    assert client("SELECT i FROM t") == [(1,), (2,)]
    assert client("SELECT 10 // i FROM t") == client("SELECT 10 // i FROM t") == [(10,), (5,)]
    text = "SELECT CAST($1 AS INTEGER) AS n"
    assert [client(text, word) for word in "12"] == [[(1,)], [(2,)]]
    client("BEGIN")
    for _ in range(2):
        with pytest.raises(DucktailError) as caught:
            client(text, "x")
        assert caught.value.sqlstate in ("22P02", "25P02")
    client("ROLLBACK")
    assert client(text, "3") == [(3,)]
    other.close()


def test_no_transaction_stays_open(client: Client) -> None:
    client("CREATE TABLE t AS SELECT 1 AS i")
    for _ in range(3):
        client("SELECT i FROM t")
    # DuckDB says no where one is.
    client.session.cursor.execute("BEGIN")
    client.session.cursor.execute("COMMIT")
    assert client.session.transaction_status == "I"
    assert not client.session.cursors.has_open_result


def test_literals_are_answered_without_duckdb(client: Client) -> None:
    for text, row in [
        ("SELECT 1", (1,)),
        ("SELECT 'x' AS a, -1.50 AS \"B\", NULL, TRUE;", ("x", Decimal("-1.50"), None, True)),
    ]:
        for _ in range(3):
            assert client(text) == [row]
        statement = drive(client.session.parse(text))
        assert statement.inline
        client.session.cursor.execute("SELECT * FROM range(5)")  # DuckDB would refuse the next one.
        assert client(text) == [row]
        client.session.cursor.fetchall()
    for text in ("SELECT random() AS r", "SELECT now() AS t", "SELECT 1 WHERE 1 = 0", "SELECT 1 + 1"):
        for _ in range(3):
            client(text)
        assert not drive(client.session.parse(text)).inline
    client("SELECT 1")
    client("BEGIN")
    assert not drive(client.session.parse("SELECT 1")).inline
    client("SELECT 1")
    # As the first time, and as with PostgreSQL: it fixes the transaction's snapshot.
    assert client.session.block.transaction is not None
    client("ROLLBACK")


def test_what_takes_no_duckdb_work(client: Client) -> None:
    for text, wanted in [
        ("SHOW TimeZone", True),
        ("SET application_name = 'x'", True),
        ("RESET application_name", True),
        ("SET TimeZone = 'UTC'", False),
        ("SET search_path = main", False),
        ("SHOW threads", False),
        ("SHOW ALL", False),
        ("COMMIT", True),
        ("ROLLBACK", True),
    ]:
        assert drive(client.session.parse(text)).inline is wanted, text
    client("BEGIN")
    assert drive(client.session.parse("COMMIT")).inline
    client("SELECT 1")
    assert not drive(client.session.parse("COMMIT")).inline
    client("COMMIT")


def test_every_kind_of_query(client: Client) -> None:
    client("CREATE TABLE t AS SELECT range % 3 AS k, range AS v FROM range(9)")
    for text in [
        "PIVOT t ON k USING sum(v)", "FROM (PIVOT t ON k USING sum(v))", "DESCRIBE t", "SUMMARIZE t",
        "SHOW TABLES", "FROM t ORDER BY v", "VALUES (1, 'x'), (2, 'y');", "TABLE t",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x", "SELECT * FROM t -- the end",
        "(SELECT 1 AS a) UNION ALL (SELECT 2)", "PRAGMA version",
        "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b", "SELECT v, v AS v FROM t ORDER BY v LIMIT 2",
    ]:  # fmt: skip
        first = answer(client, text)
        for _ in range(3):
            again = answer(client, text)
            assert again[1] == first[1], text
            assert values(first[0]) == values(again[0]), text
