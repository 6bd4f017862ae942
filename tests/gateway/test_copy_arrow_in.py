"""COPY ... FROM STDIN (FORMAT arrow): every type back as it went out, wrong types and broken streams."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from server_process import ServerProcess

from ducktail.engine.errors import DucktailError
from ducktail.engine.values.arrow_stream import (
    BATCH_ROWS_MAX,
    BODY_BYTES_MAX,
    METADATA_BYTES_MAX,
    ArrowStreamReader,
)
from ducktail.engine.values.arrow_types import arrow_loader, first_nul

Connection = psycopg.Connection[Any]
SEED = 20_261_122
FUZZED = 6_000
# DuckDB type -> an expression of it.
VALUES = {
    "BOOLEAN": "true", "TINYINT": "-3", "SMALLINT": "-300", "INTEGER": "7", "BIGINT": "-9007199254740993",
    "UTINYINT": "255", "USMALLINT": "65535", "UINTEGER": "4294967295", "UBIGINT": "18446744073709551615",
    "HUGEINT": "170141183460469231731687303715884105727", "FLOAT": "1.5", "DOUBLE": "'nan'",
    "DECIMAL(10, 2)": "12.34", "DECIMAL(38, 5)": "-1.5", "VARCHAR": "'a\tb'", "BLOB": "'\\x00\\xff'::BLOB",
    "DATE": "'-infinity'", "TIME": "'12:34:56.5'", "TIMESTAMP": "'infinity'", "TIMESTAMP_S": "'2024-01-02'",
    "TIMESTAMP_MS": "'2024-01-02 03:04:05.6'", "TIMESTAMP_NS": "'2024-01-02 03:04:05.000000001'",
    "TIMESTAMPTZ": "'2024-01-02 03:04:05+02'", "UUID": "'00000000-0000-0000-0000-00000000002a'",
    "JSON": "'{\"a\": [1]}'", "INTERVAL": "'1 month 2 days'", "ENUM ('a', 'b')": "'b'", "BIT": "'101'",
    "TIMETZ": "'12:00:00+02'", "INTEGER[]": "[1, NULL, 3]", "INTEGER[2]": "[1, 2]", "DATE[][]": "[[], NULL]",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': 1, 'b': 'x'}", "MAP(VARCHAR, INTEGER)": "MAP {'k': 1}",
    "STRUCT(j JSON, u UUID[])": "{'j': '[1]', 'u': ['00000000-0000-0000-0000-00000000002a']}",
    "ENUM ('a', 'b')[]": "['b', NULL]",
}  # fmt: skip


@pytest.fixture
def con(shared: ServerProcess) -> Iterator[Connection]:
    """A captured table t and a plain one p, empty."""
    with shared.connect(options="-c TimeZone=UTC") as made:
        for text in (
            "DROP STREAM IF EXISTS s",
            "DROP TABLE IF EXISTS t",
            "DROP TABLE IF EXISTS p",
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR DEFAULT 'none', n DECIMAL(10, 2))",
            "CREATE TABLE p (id INTEGER NOT NULL, v VARCHAR)",
            "CREATE STREAM s ON t WITH (partitions = 1)",
        ):
            made.execute(text)
        yield made


def stream(table: pa.Table | pa.RecordBatch, rows: int | None = None, **options: Any) -> bytes:
    """A table as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        if isinstance(table, pa.RecordBatch):
            writer.write_batch(table)
        else:
            writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def load(con: Connection, what: str, data: bytes, size: int | None = None) -> str:
    """Run a COPY with these bytes, in pieces of a size; its command tag."""
    with con.cursor() as cursor:
        with cursor.copy(f"COPY {what} FROM STDIN (FORMAT arrow)") as copy:  # type: ignore[arg-type]
            for start in range(0, len(data), size or max(1, len(data))):
                copy.write(data[start : start + size] if size else data)
        return cursor.statusmessage or ""


def rows(con: Connection, text: str) -> list[Any]:
    return con.execute(text).fetchall()  # type: ignore[arg-type]


def failed(con: Connection, what: str, data: bytes) -> psycopg.Error:
    """The error of a COPY, after which nothing is there."""
    with pytest.raises(psycopg.Error) as found:
        load(con, what, data)
    assert rows(con, "SELECT count(*) FROM t") == rows(con, "SELECT count(*) FROM p") == [(0,)]
    assert rows(con, "SELECT count(*) FROM STREAM s") == [(0,)]
    return found.value


@pytest.mark.parametrize("type_", VALUES)
def test_what_goes_out_comes_in(con: Connection, type_: str) -> None:
    con.execute(f"CREATE OR REPLACE TABLE odd (v {type_}, w INTEGER)")
    con.execute(f"INSERT INTO odd VALUES ({VALUES[type_]}, 1), (NULL, 2)")
    with con.cursor().copy("COPY odd TO STDOUT (FORMAT arrow)") as copy:
        data = b"".join(map(bytes, copy))
    before = rows(con, "SELECT v::VARCHAR, w FROM odd ORDER BY w")
    con.execute("TRUNCATE odd")
    assert load(con, "odd", data) == "COPY 2"
    assert rows(con, "SELECT v::VARCHAR, w FROM odd ORDER BY w") == before
    assert before[1] == (None, 2) and before[0][0] is not None


def test_a_captured_table_has_an_event_a_row(con: Connection) -> None:
    table = pa.table({"N": [1, None], "id": pa.array([1, 2], pa.int64()), "v": ["x", None]})
    assert load(con, "t", stream(table)) == "COPY 2"
    assert rows(con, "SELECT op, after::TEXT FROM STREAM s") == [
        ("insert", '{"id":1,"v":"x","n":1.00}'),
        ("insert", '{"id":2,"v":null,"n":null}'),
    ]


def test_columns_that_do_not_come_have_their_defaults(con: Connection) -> None:
    assert load(con, "t (n, id)", stream(pa.table({"id": [7], "n": [Decimal("1.5")]}))) == "COPY 1"
    assert rows(con, "SELECT id, v, n::TEXT FROM t") == [(7, "none", "1.50")]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_any_pieces_give_the_same_rows(con: Connection, size: int) -> None:
    table = pa.table({"id": range(300), "v": [f"é{number}" for number in range(300)]})
    assert load(con, "p", stream(table, 100), size) == "COPY 300"
    assert rows(con, "SELECT count(*), sum(id), max(v) FROM p") == [(300, 44850, "é99")]


def test_many_batches_and_large_ones(con: Connection) -> None:
    numbers = pa.array(range(400_000), pa.int32())
    table = pa.table({"id": numbers, "v": pa.array(["x" * 50] * 400_000)})
    assert load(con, "p", stream(table, 1_000), 65_536) == "COPY 400000"
    assert load(con, "p", stream(table)) == "COPY 400000"
    assert rows(con, "SELECT count(*), count(DISTINCT id) FROM p") == [(800_000, 400_000)]
    assert load(con, "t (id, v)", stream(table.slice(0, 200_000))) == "COPY 200000"
    assert rows(con, "SELECT count(*), max(lsn) - min(lsn) FROM STREAM s") == [(200_000, 199_999)]


def test_no_rows_and_no_mark_of_the_end(con: Connection) -> None:
    assert load(con, "p", stream(pa.table({"id": pa.array([], pa.int8()), "v": pa.nulls(0)}))) == "COPY 0"
    whole = stream(pa.table({"id": [1], "v": pa.nulls(1)}))
    assert load(con, "p", whole[:-8]) == "COPY 1"
    assert rows(con, "SELECT * FROM p") == [(1, None)]


def test_a_topic(con: Connection) -> None:
    con.execute("DROP STREAM IF EXISTS o")
    con.execute("CREATE TOPIC o WITH (partitions = 1)")
    table = pa.table({"payload": ['{"a": 1}', "plain"], "key": pa.array([1, 2], pa.int32()),
                      "headers": ['{"h": 1}', None]})  # fmt: skip
    assert load(con, "o", stream(table)) == "COPY 2"
    assert load(con, "o (payload)", stream(pa.table({"payload": pa.array([b"\0\1"])}))) == "COPY 1"
    assert load(con, "o (payload)", stream(pa.table({"payload": [{"x": 1}]}))) == "COPY 1"
    assert rows(con, "SELECT key::TEXT, after::TEXT, headers::TEXT FROM TOPIC o") == [
        ("1", '{"a": 1}', '{"h": 1}'),
        ("2", '"plain"', None),
        (None, '"AAE="', '{"payload_encoding":"base64"}'),
        (None, '{"x":1}', None),
    ]
    with pytest.raises(psycopg.Error) as found:
        load(con, "o (payload, headers)", stream(pa.table({"payload": ["x", "y"], "headers": ["{}", "no"]})))
    assert found.value.sqlstate == "22P02"
    assert rows(con, "SELECT count(*) FROM TOPIC o") == [(4,)]
    con.execute("DROP TOPIC o")


def test_text_is_read_as_the_text_format_reads_it(con: Connection) -> None:
    assert load(con, "t", stream(pa.table({"id": ["1", "2"], "v": ["x", ""], "n": [" 1.5", None]})))
    assert rows(con, "SELECT id, v, n::TEXT FROM t ORDER BY id") == [(1, "x", "1.50"), (2, "", None)]


@pytest.mark.parametrize(
    ("data", "state", "context"),
    [
        ({"id": ["1", "x"], "v": ["", ""]}, "22P02", "COPY p, row 2, column id"),
        ({"id": [1, 2**31], "v": ["", ""]}, "22003", "COPY p, row 2, column id"),
        ({"id": [1, None], "v": ["", ""]}, "23502", "COPY p, rows 1 to 2"),
        ({"id": [1, 2, 3], "v": [None, "a", "b\0"]}, "22021", "COPY p, row 3, column v"),
        ({"id": ["1", "2\0"], "v": ["", "\0"]}, "22021", "COPY p, row 2, column id"),
        ({"id": [1.0], "v": [""]}, "42804", "COPY p"),
        ({"id": [1], "v": [1]}, "42804", "COPY p"),
        ({"id": [1], "v": [b"x"]}, "42804", "COPY p"),
        ({"id": [1]}, "22P04", "COPY p"),
        ({"id": [1], "v": [""], "w": [1]}, "22P04", "COPY p"),
        ({"id": [1], "v": [""], "V": [""]}, "42701", "COPY p"),
    ],
)  # fmt: skip
def test_wrong_columns_and_values(con: Connection, data: dict[str, Any], state: str, context: str) -> None:
    error = failed(con, "p", stream(pa.table(data)))
    assert (error.sqlstate, error.diag.context) == (state, context)
    if state == "42804":
        assert f'"{"id" if data["v"] == [""] else "v"}"' in str(error)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.list_(pa.string()), ["a", "b\0"]),
        (pa.list_(pa.large_string(), 1), ["\0"]),
        (pa.struct({"a": pa.int8(), "b": pa.list_(pa.string_view())}), {"a": 1, "b": ["x", "\0"]}),
        (pa.map_(pa.string(), pa.int8()), [("\0", 1)]),
    ],
)
def test_a_nul_is_found_wherever_it_is(type_: pa.DataType, value: object) -> None:
    without = pa.array([None, value], type_).slice(0, 1)
    assert first_nul(pa.chunked_array([without])) is None
    assert first_nul(pa.chunked_array([without, pa.array([None, None, value, value], type_)])) == 3


def test_an_error_in_mid_stream_leaves_nothing(con: Connection) -> None:
    table = pa.table({"id": [*range(300_000), 7], "v": ["x" * 60] * 300_001})
    error = failed(con, "t (id, v)", stream(table, 50_000))
    assert error.sqlstate == "23505"
    broken = stream(pa.table({"id": range(300_000), "v": ["x" * 60] * 300_000}), 50_000)
    assert failed(con, "t (id, v)", broken[:-2_000_000]).sqlstate == "22P04"


def test_within_a_transaction(con: Connection) -> None:
    data = stream(pa.table({"id": [1], "v": ["x"]}))
    con.execute("BEGIN")
    load(con, "p", data)
    load(con, "p", data)
    con.execute("ROLLBACK")
    assert rows(con, "SELECT count(*) FROM p") == [(0,)]
    con.execute("BEGIN READ ONLY")
    with pytest.raises(psycopg.Error) as found:
        load(con, "p", data)
    assert found.value.sqlstate == "25006"
    con.execute("ROLLBACK")


def test_extended_protocol(con: Connection, shared_raw: Callable[[], Any]) -> None:
    raw = shared_raw()
    raw.enter()
    raw.message("P", b"\0copy p from stdin (format arrow)\0\0\0")
    raw.message("B", b"\0\0\0\0\0\0\0\0")
    raw.message("E", b"\0\0\0\0\0")
    raw.message("S")
    [kind, (name, body)] = raw.until("G")[-2:]
    assert (kind[0], name, body) == ("2", "G", b"\x01\0\x02\0\x01\0\x01")
    raw.message("d", stream(pa.table({"id": [5], "v": ["five"]})))
    raw.message("c")
    raw.message("S")
    assert ("C", b"COPY 1\0") in raw.until("Z")
    assert rows(con, "SELECT * FROM p") == [(5, "five")]


# What is refused before it is unpacked.


def read(data: bytes) -> pa.Table:
    """A stream as the server reads it."""
    reader = ArrowStreamReader("COPY p")
    batches = list(reader.feed(data))
    reader.finish()
    return pa.Table.from_batches(batches, reader.schema)


def state(data: bytes) -> str | None:
    """The SQLSTATE with which a stream is refused."""
    with pytest.raises(DucktailError) as found:
        read(data)
    return found.value.sqlstate


ONE = pa.table({"a": pa.array([1, 2, 3], pa.int32())})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "22P04"),
        (b"id,v\n1,x\n", "22P04"),
        (b"\xff\xff\xff\xff\0\0\0\0", "22P04"),
        (stream(ONE) + b"x", "22P04"),
        (stream(ONE)[:-8] + stream(ONE), "22P04"),
        (stream(ONE, compression="lz4"), "0A000"),
        (stream(ONE, compression="zstd"), "0A000"),
        (stream(pa.table({"a": pa.array(["x"]).dictionary_encode()})), "0A000"),
        (stream(pa.table({"a": pa.array([1], pa.duration("s"))})), "0A000"),
        (stream(pa.table({"a": pa.array([1], pa.date64())})), "0A000"),
        (stream(pa.table({"a": pa.array([[1]], pa.list_view(pa.int8()))})), "0A000"),
        (stream(pa.table({"a": [{}]})), "0A000"),
        (stream(pa.table({"a": pa.array([None], pa.decimal128(5, -2))})), "0A000"),
        (stream(pa.table({"a": pa.array([None], pa.decimal128(5, 6))})), "0A000"),
        (stream(pa.table({"a": pa.array([None], pa.list_(pa.int8(), 0))})), "0A000"),
        (stream(pa.table({"a": pa.array([None], pa.binary(0))})), "0A000"),
        (b"\xff\xff\xff\xff\x08\0\0\x40", "54000"),
        (b"\xff\xff\xff\xff\x09\0\0\0", "22P04"),
        (b"\xff\xff\xff\xff\xf8\xff\xff\xff", "22P04"),
        (b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8, "22P04"),
        (stream(pa.RecordBatch.from_arrays([pa.nulls(BATCH_ROWS_MAX + 1)], ["a"])), "54000"),
        (stream(pa.record_batch({"a": pa.array([bytes(BODY_BYTES_MAX)])})), "54000"),
        (stream(pa.table({"a" * METADATA_BYTES_MAX: [1]})), "54000"),
        (stream(pa.table({"a": pa.array([-(2**63)]).cast(pa.timestamp("us"))})), "22P03"),
        (stream(pa.table({"a": pa.array([2**62]).cast(pa.timestamp("s", "UTC"))})), "22P03"),
        (stream(pa.table({"a": [[pa.scalar(-(2**63)).cast(pa.timestamp("ms"))]]})), "22P03"),
        (stream(pa.table({"a": pa.array([-(2**31)], pa.int32()).cast(pa.date32())})), "22P03"),
    ],
)  # fmt: skip
def test_what_a_stream_may_not_be(data: bytes, expected: str) -> None:
    assert state(data) == expected


def test_an_extension_type_is_its_storage() -> None:
    value = uuid.UUID(int=42)
    inner = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value.bytes], pa.binary(16)))
    named = pa.field("s", pa.string(), metadata={"ARROW:extension:name": "duckdb.bignum"})
    table = pa.table([inner, pa.array(["x"])], schema=pa.schema([pa.field("u", pa.uuid()), named]))
    found = read(stream(table))
    assert found.column("u").to_pylist() == [value.bytes]
    assert found.schema.field("s").metadata is None and found.schema.field("u").type == pa.binary(16)


@pytest.mark.parametrize(
    ("source", "target", "taken"),
    [
        (pa.int64(), "TINYINT", True), (pa.int64(), "DECIMAL(5,2)", True), (pa.int64(), "HUGEINT", True),
        (pa.int32(), "DOUBLE", True), (pa.int64(), "DOUBLE", False), (pa.int32(), "FLOAT", False),
        (pa.float32(), "DOUBLE", True), (pa.float64(), "FLOAT", False), (pa.float64(), "DECIMAL(9,2)", False),
        (pa.decimal128(5, 2), "DECIMAL(9,2)", True), (pa.decimal128(9, 2), "DECIMAL(5,3)", True),
        (pa.decimal128(9, 2), "DECIMAL(9,1)", False), (pa.decimal128(9, 0), "INTEGER", False),
        (pa.timestamp("s"), "TIMESTAMP", True), (pa.timestamp("ns"), "TIMESTAMP", False),
        (pa.timestamp("us"), "TIMESTAMP WITH TIME ZONE", False),
        (pa.timestamp("us", "UTC"), "TIMESTAMP", False),
        (pa.timestamp("ms", "UTC"), "TIMESTAMP WITH TIME ZONE", True), (pa.date32(), "TIMESTAMP", False),
        (pa.timestamp("ns", "UTC"), "TIMESTAMP WITH TIME ZONE", False), (pa.bool_(), "INTEGER", False),
        (pa.time64("ns"), "TIME", False), (pa.time32("s"), "TIME", True), (pa.string(), "INTEGER", True),
        (pa.int32(), "VARCHAR", False), (pa.binary(), "VARCHAR", False), (pa.null(), "UUID", True),
        (pa.list_(pa.int8()), "INTEGER[]", True), (pa.list_(pa.float64()), "FLOAT[]", False),
        (pa.struct({"A": pa.int8()}), "STRUCT(a INTEGER)", True),
        (pa.struct({"b": pa.int8()}), "STRUCT(a INTEGER)", False),
        (pa.struct({"a": pa.string()}), "STRUCT(a UUID)", True),
        (pa.struct({"a": pa.string()}), "STRUCT(a INTEGER)", False),
        (pa.map_(pa.string(), pa.int8()), "MAP(VARCHAR, BIGINT)", True),
        (pa.list_(pa.int8(), 3), "TINYINT[]", True), (pa.struct({"a": pa.int8()}), "JSON", False),
    ],
)  # fmt: skip
def test_which_types_are_taken(source: pa.DataType, target: str, taken: bool) -> None:
    assert (arrow_loader(source, target, "UTC") is not None) == taken


def typed_table() -> pa.Table:
    """Of all kinds of columns."""
    noon = datetime.datetime(2024, 1, 2, 12)
    return pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "s": ["one", None, "three and some"],
            "v": pa.array(["short", "a longer one than twelve", None], pa.string_view()),
            "b": [b"\0", b"", None],
            "f": [1.5, None, 2.5],
            "d": [Decimal("1.25"), None, Decimal("-3.50")],
            "t": pa.array([noon, None, noon], pa.timestamp("us")),
            "z": pa.array([noon, None, noon], pa.timestamp("ms", "UTC")),
            "y": pa.array([noon.date(), None, noon.date()], pa.date32()),
            "h": pa.array([noon.time(), None, noon.time()], pa.time64("us")),
            "n": pa.nulls(3),
            "o": [True, None, False],
            "l": [[1, None], None, []],
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "r": [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
            "x": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        }
    )


def broken_streams(count: int) -> Iterator[bytes]:
    """Bytes flipped, cut out, doubled, cut off."""
    chance = random.Random(SEED)
    whole = stream(typed_table(), 2)
    for number in range(count):
        data = bytearray(whole)
        if number % 8 == 0:
            del data[chance.randrange(len(data)) :]
        elif number % 8 == 1:
            begin = chance.randrange(len(data))
            data[begin:begin] = data[begin : begin + chance.randrange(1, 64)]
        elif number % 8 == 2:
            begin = chance.randrange(len(data))
            del data[begin : begin + chance.randrange(1, 64)]
        else:
            for _ in range(chance.choice((1, 1, 2, 8))):
                byte = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
                data[chance.randrange(len(data))] = byte
        yield bytes(data)


def test_broken_streams_are_errors_or_other_values() -> None:
    """Whatever DuckDB gets to see it can read and write."""
    import duckdb

    database = duckdb.connect()
    seen: dict[str, int] = {}
    whole = read(stream(typed_table()))
    database.register("whole", whole)
    database.execute("CREATE TABLE kept AS SELECT * FROM whole LIMIT 0")
    for data in broken_streams(FUZZED):
        try:
            table = read(data)
        except DucktailError as error:
            seen[error.sqlstate] = seen.get(error.sqlstate, 0) + 1
            continue
        seen[""] = seen.get("", 0) + 1
        if table.schema.types != whole.schema.types:
            continue
        listed = pa.Table.from_arrays(table.columns, whole.schema.names)
        database.register("found", listed)
        database.execute("INSERT INTO kept SELECT * FROM found")
        database.unregister("found")
    assert {"22P04", "0A000", "54000", ""} <= seen.keys() <= {"22P04", "0A000", "54000", "22P03", ""}
    count = database.execute("SELECT count(*), count(to_json(kept)::VARCHAR) FROM kept").fetchone()
    assert count is not None and count[0] == count[1] > FUZZED // 10


def test_a_server_outlives_broken_streams(con: Connection) -> None:
    types = (
        "i INTEGER, s VARCHAR, v VARCHAR, b BLOB, f DOUBLE, d DECIMAL(9, 2), t TIMESTAMP, z TIMESTAMPTZ, "
        "y DATE, h TIME, n INTEGER, o BOOLEAN, l BIGINT[], m MAP(VARCHAR, BIGINT), "
        "r STRUCT(a BIGINT, b VARCHAR[]), x SMALLINT[2]"
    )
    con.execute(f"CREATE OR REPLACE TABLE wide ({types})")
    con.execute("CREATE STREAM w ON wide WITH (partitions = 1)")
    states = set()
    for data in broken_streams(300):
        try:
            load(con, "wide", data)
        except psycopg.Error as error:
            states.add(error.sqlstate)
    assert "22P04" in states and not {state[:2] for state in states if state} & {"XX", "58", "57", "08"}
    written = rows(con, "SELECT count(*) FROM wide")
    assert rows(con, "SELECT count(after::TEXT) FROM STREAM w") == written
    con.execute("DROP STREAM w")
    con.execute("DROP TABLE wide")
