"""Errors of users have classes of their own, and never that of an internal one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError

TEXTS = [
    "SELECT * FROM STREAM s LIMIT $1",
    "SELECT * FROM STREAM s LIMIT $1 TRANSACTIONS",
    "SELECT * FROM STREAM s WHERE partition = $1",
    "SELECT * FROM STREAM s WHERE partition IN (0, $1)",
    "SELECT * FROM STREAM s WHERE commit_time > $1",
    "SELECT * FROM STREAM s WHERE lsn > $1",
    "SELECT * FROM STREAM s AFTER $1",
    "SELECT * FROM STREAM s PARTITION $1",
    "SELECT * FROM STREAM s CONSUMER GROUP $1",
    "SELECT * FROM STREAM s CONSUMER GROUP g MEMBER $1",
    "SELECT * FROM STREAM s CONSUMER GROUP g WAIT $1",
    "SELECT count(*) FROM (FROM STREAM s LIMIT $1) q",
    "INSERT INTO t SELECT lsn + $1, 1 FROM STREAM s",
    "COMMIT OFFSETS AT $1 ON s CONSUMER GROUP g",
    "COMMIT OFFSET PARTITION $1 AT 1 ON s CONSUMER GROUP g",
    "CREATE CONSUMER GROUP $1 ON s",
]


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    opened = Database.open(":memory:")
    client = Client(opened)
    client("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    client("CREATE STREAM s ON t")
    client("CREATE CONSUMER GROUP g ON s")
    client("INSERT INTO t VALUES (1, 1)")
    client.close()
    yield opened
    opened.close()


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_a_parameter_without_a_value(database: Database, text: str, wire: bool) -> None:
    client = Client(database, wire=wire)
    with raises("42P02"):
        client(text)
    with raises("42P02"):
        client(text.replace("$1", "$2"), 1)
    client.close()


def test_a_call_that_is_not_closed_is_a_syntax_error(database: Database) -> None:
    client = Client(database, wire=True)
    with raises("42601"):
        client("SELECT pg_notify('a', --)")
    client.close()


@pytest.mark.parametrize("name", ["temp", "system", "memory", "'temp, main'"])
def test_a_database_is_no_schema_of_the_search_path(database: Database, name: str) -> None:
    client = Client(database)
    with raises("3F000"):
        client(f"SET search_path = {name}")
    assert client("SELECT id FROM t") == [(1,)]
    client.close()


RECURSIVE = "WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT {} FROM r WHERE a < 3) SELECT * FROM r"


@pytest.mark.parametrize(
    ("value", "sqlstate"),
    [
        ("('y' || a)::INT", "22P02"),
        ("a + 2147483647::INT", "22003"),
        ("error('mine')::INT", "22000"),
    ],
)
def test_what_fails_while_rows_are_streamed_has_its_own_class(
    database: Database, value: str, sqlstate: str
) -> None:
    for wire in (False, True):
        client = Client(database, wire=wire)
        with raises(sqlstate):
            client(RECURSIVE.format(value))
        client.close()


def test_a_topic_that_is_being_made_is_not_told_to_be_a_view(database: Database) -> None:
    maker, watcher, *clients = (Client(database) for _ in range(4))

    def told(client: Client, text: str) -> str | None:
        try:
            client(text)
        except DucktailError as error:
            return error.sqlstate
        return None

    with ThreadPoolExecutor(3) as threads:
        # DuckDB has committed it, and the catalog waits for this to know of it.
        with database.catalog.mutex:
            made = threads.submit(told, maker, "CREATE TOPIC arriving")
            while not watcher("SELECT 1 FROM duckdb_views() WHERE view_name = 'arriving'"):
                assert not made.done()
            texts = ("SELECT * FROM TOPIC arriving", "PUBLISH TO arriving 'x'")
            answers = [threads.submit(told, *one) for one in zip(clients, texts, strict=True)]
            settled = database.catalog.changes._settled
            while sum(answer.done() for answer in answers) + len(settled._waiters) < 2:  # type: ignore[attr-defined]
                pass
        # What was asked before it was there may be told that it is not.
        assert made.result() is None and answers[0].result() is None
        assert answers[1].result() in (None, "42704")
    for client in (maker, watcher, *clients):
        client.close()
