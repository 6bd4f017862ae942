"""Texts that DuckDB parses once: what is kept, and what it is run with."""

from __future__ import annotations

import duckdb
import pytest
from local_client import Client

from ducktail.engine.capture.plan import USER_PARAMETERS_MAX
from ducktail.engine.database import Database
from ducktail.engine.duck import binding
from ducktail.engine.duck.binding import Parsed


@pytest.fixture
def cursor() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def test_each_run_has_its_own_values_and_its_own_tables(cursor: duckdb.DuckDBPyConnection) -> None:
    cursor.execute("CREATE TABLE t AS SELECT 1 AS a")
    text = Parsed("SELECT a + $1::BIGINT, $65536::BIGINT FROM t")
    assert text.run(cursor, {"1": 1, "65536": 7, "65537": 8}).fetchall() == [(2, 7)]
    cursor.execute("CREATE OR REPLACE TABLE t AS SELECT 10::DOUBLE AS a UNION ALL SELECT 20")
    other = cursor.cursor()
    assert text.run(other, {"1": 2, "65536": 8}).fetchall() == [(12.0, 8), (22.0, 8)]
    assert Parsed("SELECT $2::VARCHAR, $1::INTEGER").run(cursor, (1, None)).fetchall() == [(None, 1)]


def test_a_text_is_kept_from_its_second_run_on(
    cursor: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DuckDB parses `/` by a setting, which shows when it has parsed.
    text = Parsed("SELECT 7 / 2")
    assert text.run(cursor).fetchall() == [(3.5,)]
    cursor.execute("SET integer_division = true")
    assert [text.run(cursor).fetchall() for _ in range(2)] == [[(3,)], [(3,)]]
    cursor.execute("SET integer_division = false")
    assert text.run(cursor).fetchall() == [(3,)]
    monkeypatch.setattr(binding, "KEPT_CHARS_MAX", 8)
    long = Parsed("SELECT 7 / 2 ")
    assert [long.run(cursor).fetchall() for _ in range(3)] == [[(3.5,)]] * 3
    cursor.execute("SET integer_division = true")
    assert long.run(cursor).fetchall() == [(3,)]


def test_values_beyond_what_a_text_can_name_take_no_place_of_ours() -> None:
    database = Database.open(":memory:")
    client = Client(database)
    client("create table t (id int primary key, n int)")
    client("create stream s on t")
    for number in range(1, 4):
        client("insert into t values ($1, $2)", number, 7, *range(USER_PARAMETERS_MAX + 5))
    assert client("select lsn, txid, after from stream s") == [
        (number, number + 1, f'{{"id":{number},"n":7}}') for number in range(1, 4)
    ]
    client.close()
    database.close()
