"""Each type's edge values through a stream and back from JSON: the same hot, cold and in the view."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from json_back import literal_of, parsed
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.quoting import ident
from ducktail.engine.settings import Settings
from ducktail.engine.values.duckdb_types import read_type

pytestmark = pytest.mark.slow

BIG = "170141183460469231731687303715884105727"
# DuckDB type -> SQL of its edge values, NULL besides.
EDGES: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127", "0"],
    "UTINYINT": ["255"],
    "SMALLINT": ["-32768", "32767"],
    "USMALLINT": ["65535"],
    "INTEGER": ["-2147483648", "2147483647"],
    "UINTEGER": ["4294967295"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807", "9007199254740993"],
    "UBIGINT": ["18446744073709551615", "9007199254740993"],
    "HUGEINT": [f"'{BIG}'", f"'-{BIG}'", "'-170141183460469231731687303715884105728'"],
    "UHUGEINT": ["'340282366920938463463374607431768211455'"],
    "BIGNUM": [f"'{BIG * 4}'", f"'-{BIG * 4}'", "0"],
    "DECIMAL(1,0)": ["9", "-9", "0"],
    "DECIMAL(4,4)": ["'0.0001'", "'-0.9999'"],
    "DECIMAL(18,3)": ["'999999999999999.999'", "'-999999999999999.999'", "'0.100'"],
    "DECIMAL(38,0)": [f"'{'9' * 38}'", f"'-{'9' * 38}'"],
    "DECIMAL(38,10)": [f"'{'9' * 28}.{'9' * 10}'", "'0.0000000001'"],
    "DECIMAL(38,38)": [f"'0.{'9' * 38}'", f"'-0.{'0' * 37}1'"],
    "FLOAT": ["'nan'", "'inf'", "'-inf'", "'-0.0'", "0.1", "3.4028234663852886e38", "1.4e-45", "16777217"],
    "DOUBLE": [
        "'nan'", "'inf'", "'-inf'", "'-0.0'", "0.1", "1.7976931348623157e308", "'5e-324'", "1e15", "1e16",
        "1e22", "1e23", "9007199254740993", "2.2250738585072014e-308",
    ],
    "VARCHAR": ["''", "'null'", "'a\"\\/é😀' || chr(10) || chr(31) || chr(127) || chr(8232)", "'{\"a\":1}'"],
    "ENUM('a', 'null', 'q\"')": ["'a'", "'null'", "'q\"'"],
    "BLOB": ["''", "'\\x00\\xFF\\x22'", "'abc'"],
    "BIT": ["'0'", "'1'", "'000000001'", "'1010101010101010101'"],
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
    "DATE": ["'infinity'", "'-infinity'", "'0001-01-01'", "'0044-03-15 (BC)'", "'5881580-07-10'"],
    "TIME": ["'00:00:00'", "'23:59:59.999999'", "'24:00:00'", "'12:00:00.1'"],
    "TIME_NS": ["'23:59:59.999999999'", "'00:00:00.000000001'"],
    "TIME WITH TIME ZONE": ["'00:00:00+15:59:59'", "'23:59:59.999999-15:59:59'", "'12:30:00+05:30'"],
    "TIMESTAMP": [
        "'infinity'", "'-infinity'", "'1970-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'",
        "'0044-03-15 (BC) 01:02:03.000001'", "'290308-12-22 (BC) 00:00:00'", "'294247-01-10 04:00:54.775806'",
    ],
    "TIMESTAMP_S": ["'2026-01-01 10:00:00'", "'infinity'"],
    "TIMESTAMP_MS": ["'2026-01-01 10:00:00.001'", "'-infinity'"],
    "TIMESTAMP_NS": ["'2026-01-01 10:00:00.000000001'", "'1678-01-01 00:00:00.000000001'", "'infinity'"],
    "TIMESTAMP WITH TIME ZONE": [
        "'infinity'", "'-infinity'", "'2026-03-29 01:00:00.000001+00'", "'0044-03-15 (BC) 01:02:03+00'",
        "'294247-01-10 04:00:54.775806+00'",
    ],
    "INTERVAL": [
        "'1 month'", "'30 days'", "'-1 year 2 months -3 days 04:05:06.5'", "'0 seconds'",
        "'-00:00:00.000001'", "'178956970 years 7 months 2147483647 days'",
    ],
    "INTEGER[]": ["[]", "[NULL]", "[1, NULL, 2]"],
    "INTEGER[2]": ["[1, NULL]"],
    "DOUBLE[][]": ["[['nan', '-0.0'], NULL, []]"],
    "DECIMAL(38,10)[]": [f"['{'9' * 28}.1', NULL]"],
    "BLOB[]": ["['\\x00\\xFF', NULL]"],
    "STRUCT(a INTEGER, \"q\"\"u\" VARCHAR)": ["{'a': NULL, 'q\"u': 'x'}", "{'a': 1, 'q\"u': NULL}"],
    "STRUCT(s STRUCT(t TIMESTAMP WITH TIME ZONE[]), i INTERVAL)": [
        "{'s': {'t': ['2026-01-01 00:00:00+02', NULL]}, 'i': '1 month'}", "{'s': NULL, 'i': NULL}",
    ],
    "MAP(VARCHAR, INTEGER)": ["map {}", "map {'': NULL, 'a\"b': 2, 'null': 3}"],
    "MAP(INTEGER, VARCHAR)": ["map {}", "map {-1: 'x', 2: NULL}"],
    "MAP(TIMESTAMP, DOUBLE)": ["map {'2026-01-01 00:00:00.000001': 'nan', 'infinity': '-0.0'}"],
    "MAP(DOUBLE, BLOB)": ["map {'nan': '\\x00', 'inf': NULL}"],
    "MAP(INTEGER[], STRUCT(a DECIMAL(38,10)))": ["map {[1, NULL]: {'a': 1.5}, []: NULL}"],
    "UNION(num INTEGER, str VARCHAR)": [
        "union_value(num := 1)", "union_value(str := 'x')", "union_value(num := NULL)",
    ],
    "UNION(a DOUBLE, b BLOB[])": ["union_value(a := 'inf'::DOUBLE)", "union_value(b := ['\\xFF'::BLOB])"],
}  # fmt: skip


NESTED = ("LIST", "ARRAY", "STRUCT", "MAP", "UNION")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database for all of them: each takes its table and its stream away."""
    opened = Database.open(str(tmp_path_factory.mktemp("json") / "t.duckdb"), Settings())
    yield opened
    opened.close()


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    """A session on a database that has no table."""
    made = Client(database)
    yield made
    for text in ("drop stream if exists s", "drop table if exists t"):
        made(text)
    made.close()


def images(client: Client, stream: str) -> dict[int, Any]:
    """The rows' images by id: text as it was sent, alike from buffer, log and view."""
    hot = client(f"select key, after from stream {stream}")
    assert hot == client(f"select key, after from stream {stream} where lsn + 0 > 0")
    assert hot == client(f"select key, after from {stream} order by lsn")
    return {int(dict(parsed(key))["id"]): dict(parsed(after))["x"] for key, after in hot}


def check(client: Client, type_: str, values: list[str]) -> None:
    """Write the values, read them from the stream, make them again, and compare."""
    client(f"create table t (id int primary key, x {type_})")
    client("create stream s on t")
    for place, value in enumerate([*values, "NULL"]):
        client(f"insert into t values ({place}, CAST({value} AS {type_}))")
    client("set timezone = 'America/Caracas'")
    found = images(client, "s")
    assert len(found) == len(values) + 1
    tree = read_type(type_)
    for place, value in found.items():
        again = literal_of(value, tree, type_)
        # Equal, and equal as text: -0.0 is not 0.0, one month not 30 days.
        same = client.one(
            f"select x IS NOT DISTINCT FROM y AND x::VARCHAR IS NOT DISTINCT FROM y::VARCHAR "
            f"from (select x, {again} AS y from t where id = {place})"
        )
        assert same, (type_, [*values, "NULL"][place], value, again)


@pytest.mark.parametrize("type_", EDGES)
def test_edges_come_back(client: Client, type_: str) -> None:
    check(client, type_, EDGES[type_])


def generated(draw: random.Random, depth: int) -> tuple[str, Any]:
    """A random type, and what makes values of it: a callable that gives SQL."""
    simple = [name for name in EDGES if read_type(name).name not in NESTED]
    kind = draw.choice(NESTED) if depth else "LEAF"
    if kind == "LEAF":
        name = draw.choice(simple)
        return name, lambda: draw.choice([*(f"CAST({v} AS {name})" for v in EDGES[name]), "NULL"])
    if kind in ("LIST", "ARRAY"):
        inner, make = generated(draw, depth - 1)
        count = draw.randint(1, 3)
        name = f"{inner}[]" if kind == "LIST" else f"{inner}[{count}]"

        def items() -> str:
            size = draw.randint(0, 3) if kind == "LIST" else count
            return f"CAST([{', '.join(make() for _ in range(size))}] AS {name})"

        return name, items
    if kind == "MAP":
        key, make_key = generated(draw, draw.randint(0, depth - 1))
        inner, make = generated(draw, depth - 1)
        name = f"MAP({key}, {inner})"

        def pairs() -> str:
            found = next((text for text in (make_key() for _ in range(20)) if text != "NULL"), None)
            keys, values = ([found], [make()]) if found else ([], [])
            return f"CAST(map([{', '.join(keys)}], [{', '.join(values)}]) AS {name})"

        return name, pairs
    parts = [generated(draw, depth - 1) for _ in range(2)]
    names = ['a"b', "c d"]
    spelled = zip(map(ident, names), parts, strict=True)
    name = f"{kind}({', '.join(f'{field} {inner}' for field, (inner, _) in spelled)})"

    def row() -> str:
        pairs = ", ".join(f"'{field}': {make()}" for field, (_, make) in zip(names, parts, strict=True))
        return f"CAST({{{pairs}}} AS {name})"

    def member() -> str:
        place = draw.randint(0, 1)
        inner, make = parts[place]
        return f"CAST(union_value({ident(names[place])} := CAST({make()} AS {inner})) AS {name})"

    return name, row if kind == "STRUCT" else member


@pytest.mark.parametrize("seed", range(8))
def test_nested_values_come_back(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    type_, make = generated(draw, 1 + seed % 3)
    check(client, type_, [make() for _ in range(4)])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("12345678901234567.12::DECIMAL(19,2)", "12345678901234567.12"),
        ("{'a': 1.50::DECIMAL(5,2)}", '{"a":1.50}'),
        ("'2026-01-01 10:00:00+02'::TIMESTAMPTZ", '"2026-01-01 08:00:00+00"'),
        ("'-0.0'::DOUBLE", "-0.0"),
        ("170141183460469231731687303715884105727::HUGEINT", "170141183460469231731687303715884105727"),
    ],
)
def test_a_variant_keeps_its_digits(client: Client, value: str, wanted: str) -> None:
    client("create table t (id int primary key, x variant)")
    client("create stream s on t")
    client("set timezone = 'America/Caracas'")
    client(f"insert into t select 1, ({value})::VARIANT")
    image = f'{{"id":1,"x":{wanted}}}'
    assert client("select after from stream s") == client("select after from s") == [(image,)]
