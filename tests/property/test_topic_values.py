"""What a topic makes of payloads, keys and headers: the same in Python, in SQL and by the formula.

Single events are made in Python (`engine/log/topic_rows.py`), others by DuckDB
(`engine/log/topic_rows.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from local_client import Client

from ducktail.engine.catalog.streams import PUBLISHED, Stream
from ducktail.engine.database import Database
from ducktail.engine.log.topic_rows import Rows, create_topic_log_sql, publication, single

TOPIC = Stream(
    stream_id=1, schema="main", name="s", table_id=1, operations=PUBLISHED, columns=(), filter=None,
    partitions=7, partition_by=(), snapshot="none", before="none", buffer_bytes=1 << 20, created_lsn=0,
)  # fmt: skip

WORDS = ["NaN", "Infinity", "-Infinity", "[1,]", "{}", "[]", "null", "true", "1.50", "1e5", "01", "-0", "+1",
         '"a"', '"', "'", "\\", '"\\u00e9"', '"\\ud800"', '{"a":1,"a":2}', "{'a':1}", "// x", "\ufeff{}",
         "[" * 40 + "]" * 40, "1" * 400, "1_000", '"\x7f"', '"\t"', "\u2028", " \t\n 5 \r", ".5", "5.",
         "nan", "Nan", '{"a" : NaN}', '["NaN"]', "\x01", "é", "😀", ",", "[,]", '{"a":}', "0x10"]  # fmt: skip
documents = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
plain = some.text(max_size=12).filter(lambda text: "\0" not in text)
indented = documents.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1))
texts = some.one_of(
    plain,
    some.sampled_from(WORDS),
    documents.map(json.dumps),
    indented.filter(lambda text: "\0" not in text),
    some.tuples(some.sampled_from(WORDS), plain).map("".join),
)


@pytest.fixture(scope="module")
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("create schema ducktail")
        connection.execute(create_topic_log_sql(TOPIC))
        yield connection


def stored(cursor: duckdb.DuckDBPyConnection, sql: str, parameters: list[object]) -> tuple[object, ...]:
    """What a statement puts into the log."""
    cursor.execute("delete from ducktail.topic_1")
    cursor.execute(sql, parameters or None).fetchall()
    found = cursor.execute("select partition, key, payload, headers from ducktail.topic_1").fetchall()
    return tuple(found[0])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=texts | some.binary(max_size=9) | some.none(), key=texts | some.integers(-(2**63), 2**63 - 1))
def test_one_event_is_what_sql_makes_of_it(
    cursor: duckdb.DuckDBPyConnection, payload: str | bytes | None, key: str | int
) -> None:
    types = {
        "payload": "BLOB" if isinstance(payload, bytes) else "VARCHAR",
        "key": "BIGINT" if isinstance(key, int) else "VARCHAR",
    }
    made = single(TOPIC, {"payload": payload, "key": key}, types)
    if made is None:
        return
    rows = Rows(
        f"SELECT $1::{types['payload']}, $2::{types['key']}",
        [("payload", types["payload"]), ("key", types["key"])],
    )
    by_sql = stored(cursor, publication(TOPIC, rows).sql(0, 1, 0, None, False), [payload, key])
    assert stored(cursor, made.sql(0, 1, 0, None, False), []) == by_sql
    after, headers = by_sql[2], json.loads(str(by_sql[3])) if by_sql[3] else {}
    assert came_back(after, headers) == payload


def came_back(after: object, headers: dict[str, str]) -> str | bytes | None:
    """What was published, by what docs/topics.md says."""
    if after is None:
        return None
    encoding = headers.get("payload_encoding")
    if encoding == "base64":
        return bytes(duckdb.execute("select from_base64($1)", [json.loads(str(after))]).fetchall()[0][0])
    if encoding is None and str(after).startswith('"'):
        return str(json.loads(str(after)))
    return str(after)


def formula(text: str, partitions: int) -> int:
    """docs/topics.md, "Keys and partitions"."""
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) % partitions


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=some.lists(plain | some.integers(-(2**63), 2**63 - 1) | some.booleans(), min_size=1, max_size=8))
def test_events_are_where_partition_of_and_the_formula_say(
    client: Client, keys: list[str | int | bool]
) -> None:
    for key in keys:
        text = json.dumps([key], ensure_ascii=False, separators=(",", ":"))
        one = client.one("publish to s key $1 'x'", key)
        (listed,) = client("publish to s key k select 'x', k from (values ($1)) as v(k)", key)
        assert one == listed[0] == client.one("select ducktail.partition_of('s', $1)", key)
        if isinstance(key, str) and any(ord(c) < 32 for c in key):
            continue  # Control characters: `\u001F`, by DuckDB's habit.
        assert one == formula(text, 7)


@pytest.mark.parametrize(
    "key",
    [Decimal("1.50"), date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), UUID(int=7), b"\x00\xff", 1.5],
    ids=repr,
)
def test_partition_of_agrees_with_events_for_other_types(client: Client, key: object) -> None:
    one = client.one("publish to s key $1 'x'", key)
    assert one == client.one("select ducktail.partition_of('s', $1)", key)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path: Path = tmp_path_factory.mktemp("topics") / "t.duckdb"
    database = Database.open(str(path))
    client = Client(database)
    client("create topic s with (partitions = 7)")
    yield client
    client.close()
    database.close()
