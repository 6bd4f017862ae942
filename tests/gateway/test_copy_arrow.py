"""COPY ... TO STDOUT (FORMAT arrow): every type as it went in, streams and groups, errors under way."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

# expression -> Arrow's type, the value as Python has it
TYPED: list[tuple[str, pa.DataType, object]] = [
    ("true", pa.bool_(), True),
    ("(-3)::TINYINT", pa.int8(), -3),
    ("(-300)::SMALLINT", pa.int16(), -300),
    ("7::INTEGER", pa.int32(), 7),
    ("(-9007199254740993)::BIGINT", pa.int64(), -9007199254740993),
    ("255::UTINYINT", pa.uint8(), 255),
    ("65535::USMALLINT", pa.uint16(), 65535),
    ("4294967295::UINTEGER", pa.uint32(), 4294967295),
    ("18446744073709551615::UBIGINT", pa.uint64(), 18446744073709551615),
    ("1.5::REAL", pa.float32(), 1.5),
    ("1e300::DOUBLE", pa.float64(), 1e300),
    ("12.34::DECIMAL(10, 2)", pa.decimal128(10, 2), Decimal("12.34")),
    ("'a\tb'::VARCHAR", pa.string(), "a\tb"),
    ("'\\x00\\xff'::BLOB", pa.binary(), b"\x00\xff"),
    ("DATE '0044-03-15'", pa.date32(), datetime.date(44, 3, 15)),
    ("TIME '12:34:56.5'", pa.time64("us"), datetime.time(12, 34, 56, 500000)),
    ("TIMESTAMP '2024-01-02 03:04:05.000006'", pa.timestamp("us"), datetime.datetime(2024, 1, 2, 3, 4, 5, 6)),
    (
        "TIMESTAMPTZ '2024-01-02 03:04:05+00'",
        pa.timestamp("us", tz="UTC"),
        datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    ),
    ("[1, NULL, 3]", pa.list_(pa.field("l", pa.int32())), [1, None, 3]),
    ("{'a': 1, 'b': 'x'}", pa.struct({"a": pa.int32(), "b": pa.string()}), {"a": 1, "b": "x"}),
    ("NULL::DECIMAL(38, 5)", pa.decimal128(38, 5), None),
    # As their texts.
    ("170141183460469231731687303715884105727::HUGEINT", pa.string(), str(2**127 - 1)),
    ("'00000000-0000-0000-0000-00000000002a'::UUID", pa.string(), "00000000-0000-0000-0000-00000000002a"),
    ("'{\"a\": 1}'::JSON", pa.string(), '{"a": 1}'),
    ("INTERVAL '1 month 2 days'", pa.string(), "1 month 2 days"),
    ("'b'::ENUM ('a', 'b')", pa.string(), "b"),
    ("'101'::BIT", pa.string(), "101"),
    ("['b'::ENUM ('a', 'b')]", pa.list_(pa.field("l", pa.string())), ["b"]),
    ("{'j': '[1]'::JSON, 'n': 2}", pa.struct({"j": pa.string(), "n": pa.int32()}), {"j": "[1]", "n": 2}),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all of these tests."""
    with ServerProcess(tmp_path_factory.mktemp("arrow") / "arrow.duckdb") as server:
        with server.connect() as setup:
            setup.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount DECIMAL(10, 2), u UUID)")
            setup.execute("CREATE STREAM s ON orders WITH (partitions = 2)")
            setup.execute("INSERT INTO orders SELECT i, i * 1.25, NULL FROM range(40000) AS n (i)")
            setup.execute("UPDATE orders SET amount = 0 WHERE id = 7")
            setup.execute("CREATE CONSUMER GROUP g ON s")
        yield server


@pytest.fixture
def connection(served: ServerProcess) -> Iterator[Connection]:
    with served.connect(options="-c TimeZone=UTC") as made:
        yield made


def copied(connection: Connection, query: str, options: str = "(FORMAT arrow)") -> pa.Table:
    """The answer, read as the IPC stream that it is."""
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT {options}") as copy:
        return pa.ipc.open_stream(b"".join(map(bytes, copy))).read_all()


@pytest.mark.parametrize(("expression", "type_", "value"), TYPED, ids=[item[0] for item in TYPED])
def test_a_type(connection: Connection, expression: str, type_: pa.DataType, value: object) -> None:
    table = copied(connection, f"SELECT {expression} AS v, 1 AS w")
    assert table.column("v").to_pylist() == [value]
    assert table.schema.field("v").type == type_ or str(table.schema.field("v").type) == str(type_)


def test_names_are_the_querys_own_and_no_rows_have_a_schema(connection: Connection) -> None:
    table = copied(connection, 'SELECT 1 AS "a b", 2 AS x, 3 AS x, gen_random_uuid() AS u WHERE false')
    assert table.num_rows == 0 and table.schema.names == ["a b", "x", "x", "u"]
    assert table.schema.field(3).type == pa.string()


def test_many_batches_and_a_table(connection: Connection) -> None:
    table = copied(connection, "SELECT id, amount FROM orders ORDER BY id")
    assert table.num_rows == 40000 and table.column("id").to_pylist() == list(range(40000))
    with connection.cursor().copy("COPY orders (amount, id) TO STDOUT WITH (FORMAT 'arrow')") as copy:
        whole = pa.ipc.open_stream(b"".join(map(bytes, copy))).read_all()
    assert whole.schema.names == ["amount", "id"] and whole.num_rows == 40000


def test_a_value_larger_than_a_message(connection: Connection) -> None:
    table = copied(connection, "SELECT repeat('x', 9000000) AS v FROM range(2)")
    assert [len(value) for value in table.column("v").to_pylist()] == [9000000, 9000000]


def test_the_command_tag_counts_rows(connection: Connection) -> None:
    cursor = connection.cursor()
    with cursor.copy("COPY (SELECT 1 FROM range(5)) TO STDOUT (FORMAT arrow)") as copy:
        b"".join(map(bytes, copy))
    assert cursor.rowcount == 5


def test_a_streams_changes_are_those_of_the_text_form(connection: Connection) -> None:
    query = "SELECT * FROM STREAM s PARTITION 1 AFTER 39000 ENVELOPE CHANGES"
    table = copied(connection, query)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows == connection.execute(query).fetchall() and len(rows) > 400
    view = copied(connection, "SELECT * FROM s_changes WHERE _partition = 1 AND _lsn > 39000 ORDER BY _lsn")
    assert view.schema.names == table.schema.names and view.num_rows == table.num_rows


def test_json_envelope_and_a_topic(connection: Connection) -> None:
    table = copied(connection, "SELECT * FROM STREAM s AFTER 40000")
    assert table.column("op").to_pylist() == ["update"]
    assert table.schema.field("after").type == pa.string()
    connection.execute("CREATE TOPIC t WITH (partitions = 1)")
    connection.execute("PUBLISH TO t VALUES ('one'), ('two')")
    assert copied(connection, "SELECT after FROM TOPIC t").column(0).to_pylist() == ['"one"', '"two"']
    connection.execute("DROP TOPIC t")


def test_a_groups_read_counts_once_all_is_sent(connection: Connection) -> None:
    copied(connection, "SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 10")
    connection.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
    first = connection.execute("SELECT min(lsn) FROM STREAM s CONSUMER GROUP g").fetchone()
    assert first == (11,)


def test_an_error_under_way_is_the_copys_error(connection: Connection) -> None:
    with pytest.raises(psycopg.Error, match="could not convert string 'x'"):
        copied(connection, "SELECT CASE WHEN i = 30000 THEN 'x' ELSE '1' END::INTEGER FROM range(40000) n(i)")
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_client_that_hangs_up_frees_its_query(served: ServerProcess, connection: Connection) -> None:
    leaver = served.connect(application_name="leaver")
    leaver.pgconn.exec_(b"COPY (SELECT i FROM range(100000000) n(i)) TO STDOUT (FORMAT arrow)")
    assert leaver.pgconn.get_copy_data(0)[0] > 0
    leaver.close()
    for _ in range(1000):
        left = connection.execute("SELECT count(*) FROM ducktail.sessions WHERE application_name = 'leaver'")
        if left.fetchone() == (0,):
            return
    pytest.fail("the session is still there")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COPY (SELECT 1) TO STDOUT (FORMAT arrow, DELIMITER ';')", "42601"),
        ("COPY (SELECT 1) TO STDOUT (FORMAT arrow, NULL 'x')", "42601"),
        ("COPY (SELECT 1) TO STDOUT (FORMAT arrow, HEADER)", "0A000"),
        ("COPY (SELECT 1) TO STDOUT (FORMAT arrow, QUOTE 'x')", "0A000"),
        ("COPY (INSERT INTO orders VALUES (-1, 0, NULL) RETURNING id) TO STDOUT (FORMAT arrow)", "0A000"),
        ("COPY (SELECT 1) TO STDOUT (FORMAT parquet)", "22023"),
    ],
)
def test_what_is_refused(connection: Connection, text: str, state: str) -> None:
    with pytest.raises(psycopg.Error) as caught, connection.cursor().copy(text) as copy:
        b"".join(map(bytes, copy))
    assert caught.value.sqlstate == state
    assert connection.execute("SELECT count(*) FROM orders WHERE id < 0").fetchone() == (0,)
