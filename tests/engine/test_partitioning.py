"""The partition hash: the documented vectors, and SQL against Python over random values."""

from __future__ import annotations

import random
from collections.abc import Callable

import duckdb
import pytest

from ducktail.engine.errors import InvalidParameterValue, NotSupported
from ducktail.engine.partitioning import check_type, hash_of, hash_sql, key_text, partition_of

# (text to cast, type, Python value, key text): the table in docs/design/values.md.
# They never change: an event's partition is for ever.
VECTORS: list[tuple[str, str, object, str]] = [
    ("5", "BIGINT", 5, "[5]"),
    ("-7", "TINYINT", -7, "[-7]"),
    ("170141183460469231731687303715884105727", "HUGEINT", 2**127 - 1, f"[{2**127 - 1}]"),
    ("340282366920938463463374607431768211455", "UHUGEINT", 2**128 - 1, f"[{2**128 - 1}]"),
    ("123456789012345678901234567890123456789012345", "BIGNUM", int("1234567890" * 4 + "12345"), "["
     "123456789012345678901234567890123456789012345]"),
    ("true", "BOOLEAN", True, "[true]"),
    ("1.50", "DECIMAL(5,2)", "1.50", '["1.5"]'),
    ("100", "DECIMAL(5,0)", "100", '["100"]'),
    ("0.00", "DECIMAL(5,2)", "0", '["0"]'),
    ("1e16", "DOUBLE", 1e16, '["4341C37937E08000"]'),
    ("0.1", "FLOAT", 0.10000000149011612, '["3FB99999A0000000"]'),
    ("-0.0", "DOUBLE", -0.0, '["0000000000000000"]'),
    ("nan", "DOUBLE", float("nan"), '["7FF8000000000000"]'),
    ("inf", "FLOAT", float("inf"), '["7FF0000000000000"]'),
    ("ann", "VARCHAR", "ann", '["ann"]'),
    ('a"b\\c/é\U0001f600\x01\x1f\x7f\n', "VARCHAR", 'a"b\\c/é\U0001f600\x01\x1f\x7f\n',
     '["a\\"b\\\\c/é\U0001f600\\u0001\\u001F\x7f\\n"]'),
    ("", "VARCHAR", "", '[""]'),
    ("b", "ENUM('a', 'b')", "b", '["b"]'),
    ("\\xDE\\xAD", "BLOB", b"\xde\xad", '["DEAD"]'),
    ("0101", "BIT", "0101", '["0101"]'),
    ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
     '["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]'),
    ('{"a": 1.50}', "JSON", '{"a": 1.50}', '["{\\"a\\": 1.50}"]'),
    ("1970-01-02", "DATE", 1, "[1]"),
    ("9999-12-31", "DATE", 2932896, "[2932896]"),
    ("0044-03-15 (BC)", "DATE", -735160, "[-735160]"),
    ("-infinity", "DATE", "-infinity", "[-2147483647]"),
    ("10:00:00.5", "TIME", 36000500000, "[36000500000]"),
    ("24:00:00", "TIME", "24:00:00", "[86400000000]"),
    ("10:00:00.123456789", "TIME_NS", 36000123456789, "[36000123456789]"),
    ("2026-01-01 10:00:00.000001", "TIMESTAMP", 1767261600000001, "[1767261600000001]"),
    ("2026-01-01 10:00:00", "TIMESTAMP_S", 1767261600000000, "[1767261600000000]"),
    ("2026-01-01 10:00:00.5", "TIMESTAMP_MS", 1767261600500000, "[1767261600500000]"),
    ("2026-01-01 10:00:00.5", "TIMESTAMP_NS", 1767261600500000000, "[1767261600500000000]"),
    ("2026-01-01 10:00:00+02", "TIMESTAMP WITH TIME ZONE", 1767254400000000, "[1767254400000000]"),
    ("infinity", "TIMESTAMP", "infinity", "[9223372036854775807]"),
]  # fmt: skip


@pytest.fixture(params=["UTC", "America/Caracas"])
def connection(request: pytest.FixtureRequest) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"SET TimeZone = '{request.param}'")
    return connection


def test_vectors(connection: duckdb.DuckDBPyConnection) -> None:
    for text, type_, value, expected in VECTORS:
        assert key_text([value], [type_]) == expected, type_
        sql = hash_sql([("x", type_)])
        row = connection.execute(f"SELECT {sql} FROM (SELECT CAST(? AS {type_}) AS x)", [text]).fetchone()
        assert row == (hash_of([value], [type_]),), (type_, text)


def test_pinned_hashes() -> None:
    assert hash_of([5], ["BIGINT"]) == 279848087
    assert hash_of(["ann"], ["VARCHAR"]) == 417424393
    assert hash_of([5, "ann", None], ["INTEGER", "VARCHAR", "DATE"]) == 798543801
    assert [partition_of([i], ["INTEGER"], 8) for i in range(6)] == [0, 4, 3, 1, 6, 7]


# Random text of a value of each type, as DuckDB casts it.
def _digits(generator: random.Random, most: int) -> str:
    return generator.choice(["", "-"]) + str(generator.randrange(10 ** generator.randint(1, most)))


def _text(generator: random.Random) -> str:
    alphabet = "ab\"\\/ \t\n\r\b\f\x01\x1f\x7fé€\u2028\ufeff\U0001f600'{}[],:\x80\xad"
    return "".join(generator.choice(alphabet) for _ in range(generator.randint(0, 12)))


def _double(generator: random.Random) -> str:
    special = ["nan", "-nan", "inf", "-inf", "-0.0", "0", "5e-324", "1e16", "1.7976931348623157e308"]
    drawn = f"{generator.uniform(-1, 1) * 10.0 ** generator.randint(-30, 30)!r}"
    return generator.choice(special) if generator.random() < 0.2 else drawn


def _instant(generator: random.Random) -> str:
    clock = f"{generator.randrange(24):02}:{generator.randrange(60):02}:{generator.randrange(60):02}"
    day = f"{generator.randint(1, 9999):04}-{generator.randint(1, 12):02}-{generator.randint(1, 28):02}"
    return f"{day} {clock}.{generator.randrange(10**6):06}"


RANDOM: list[tuple[str, Callable[[random.Random], str]]] = [
    ("BIGINT", lambda g: str(g.randint(-(2**63), 2**63 - 1))),
    ("HUGEINT", lambda g: _digits(g, 38)),
    ("BIGNUM", lambda g: _digits(g, 60)),
    ("DECIMAL(4,0)", lambda g: str(g.randint(-9999, 9999))),
    ("DECIMAL(9,4)", lambda g: f"{g.choice(['', '-'])}{g.randrange(10**5)}.{g.randrange(10**4):04}"),
    ("DECIMAL(2,2)", lambda g: f"{g.choice(['', '-'])}0.{g.randrange(100):02}"),
    ("DECIMAL(38,10)", lambda g: f"{_digits(g, 28)}.{g.randrange(10**10):010}"),
    ("DOUBLE", _double),
    ("FLOAT", lambda g: f"{g.uniform(-1, 1) * 10.0 ** g.randint(-30, 30)!r}"),
    ("VARCHAR", _text),
    ("BIT", lambda g: "".join(g.choice("01") for _ in range(g.randint(1, 40)))),
    ("BLOB", lambda g: "".join(f"\\x{g.randrange(256):02X}" for _ in range(g.randint(0, 9)))),
    ("UUID", lambda g: f"{g.getrandbits(128):032x}"),
    ("DATE", lambda g: _instant(g)[:10]),
    ("TIME", lambda g: _instant(g)[11:]),
    ("TIMESTAMP", _instant),
    ("TIMESTAMP WITH TIME ZONE", lambda g: _instant(g).replace("9999", "9998")),
]


@pytest.mark.parametrize(("type_", "draw"), RANDOM, ids=[name for name, _ in RANDOM])
def test_sql_and_python_agree(
    connection: duckdb.DuckDBPyConnection, type_: str, draw: Callable[[random.Random], str]
) -> None:
    generator = random.Random(type_)
    texts = [draw(generator) for _ in range(400)]
    sql = hash_sql([("x", type_), ("t", "VARCHAR")])
    source = f"SELECT CAST(t AS {type_}) AS x, t FROM (SELECT unnest(?::VARCHAR[]) AS t)"
    rows = connection.execute(f"SELECT x, t, {sql} FROM ({source})", [[*texts, None]]).fetchall()
    assert len(rows) == 401
    for value, text, found in rows:
        assert hash_of([value, text], [type_, "VARCHAR"]) == found, (value, text)


def test_null_is_a_value() -> None:
    sql = hash_sql([("NULL::INTEGER", "INTEGER"), ("2", "INTEGER")])
    row = duckdb.connect().execute(f"SELECT {sql}").fetchone()
    assert row == (hash_of([None, 2], ["INTEGER", "INTEGER"]),)


@pytest.mark.parametrize("type_", ["INTEGER[]", "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)", "INTERVAL",
                                   "TIME WITH TIME ZONE", "VARIANT", "GEOMETRY", "INTEGER[3]"])  # fmt: skip
def test_refused_types(type_: str) -> None:
    with pytest.raises(NotSupported):
        check_type(type_)


BAD = [("x", "INTEGER"), (1.5, "INTEGER"), ("x", "UUID"), (0.1, "DECIMAL(2,1)"), ("yesterday", "DATE")]


@pytest.mark.parametrize(("value", "type_"), [*BAD, ([], "TIMESTAMP"), ("NaN", "DECIMAL(2,1)")])
def test_bad_values(value: object, type_: str) -> None:
    with pytest.raises(InvalidParameterValue):
        hash_of([value], [type_])
