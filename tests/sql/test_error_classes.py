"""Errors of users have classes of their own, and never that of an internal one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.duck.duckdb_errors import translated
from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings

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


# DuckDB's names of its kinds of errors, as they stand in front of a message that comes through Arrow.
KINDS = {
    "Out of Range": "22003",
    "Conversion": "22P02",
    "Unknown Type": "42804",
    "Decimal": "22003",
    "Mismatch Type": "42804",
    "Divide by Zero": "22012",
    "Object Size": "54000",
    "Invalid type": "42804",
    "Serialization": "22000",
    "TransactionContext": "40001",
    "Not implemented": "0A000",
    "Expression": "22000",
    "Catalog": "42704",
    "Parser": "42601",
    "Constraint": "23000",
    "Index": "23000",
    "Connection": "58030",
    "Syntax": "42601",
    "Settings": "22023",
    "Binder": "42601",
    "Network": "42501",
    "IO": "58030",
    "INTERRUPT": "57014",
    "FATAL": "58030",
    "INTERNAL": "XX000",
    "Invalid Input": "22000",
    "Out of Memory": "53200",
    "Permission": "42501",
    "Parameter Not Resolved": "42P18",
    "Parameter Not Allowed": "42P02",
    "Dependency": "2BP01",
    "HTTP": "42501",
    "Missing Extension": "42501",
    "Extension Autoloading": "42501",
    "Sequence": "55000",
    "Invalid Configuration": "22023",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["{}", '{{"exception_type":"","exception_message":"{}"}}'])
@pytest.mark.parametrize("raised", [OSError, duckdb.Error])
def test_each_kind_of_duckdbs_errors_has_a_class(kind: str, form: str, raised: type[Exception]) -> None:
    told = translated(raised(f"{kind} Error: {form.format('something')}"))
    assert (told.sqlstate, told.message) == (KINDS[kind], "something")


def test_each_exception_of_duckdbs_has_a_class() -> None:
    for name, raised in vars(duckdb).items():
        if name.endswith("Exception") and issubclass(raised, duckdb.Error) and "Internal" not in name:
            assert translated(raised("something")).sqlstate != "XX000", name


@pytest.mark.parametrize(
    "message",
    [
        "{",
        '{"a": "\\"exception_message\\""}',
        '{"exception_type": "Fatal", "exception_message": "b", "position": "c"}',
        "{" * 100_000 + '"exception_message"',
    ],
)
def test_what_a_message_looks_like_decides_nothing(message: str) -> None:
    assert translated(OSError(f"Invalid Input Error: {message}")).sqlstate == "22000"


def test_limits_of_pythons_and_of_the_systems_have_classes() -> None:
    assert translated(MemoryError()).sqlstate == "53200"
    assert translated(RecursionError()).sqlstate == "54000"
    assert translated(OSError(errno.ENOSPC, "No space left on device")).sqlstate == "58030"
    assert translated(KeyError("a")).sqlstate == "XX000"


def test_a_file_that_does_not_fit_its_columns_is_a_data_error(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    many = "".join(f'{{"a": {i}}}\n' for i in range(100_000))
    for name, text in {"begun": '{"a": "x"}\n', "late": many + '{"a": "x"}\n', "torn": many + '{"a"'}.items():
        (files / f"{name}.json").write_text(text)
    opened = Database.open(str(tmp_path / "d.duckdb"), Settings(allowed_directories=(str(files),)))
    for wire in (False, True):
        client = Client(opened, wire=wire)
        client("CREATE OR REPLACE TABLE plain (a INT)")
        for name in ("begun", "late", "torn"):
            with raises("22000"):
                client(f"FROM read_json('{files}/{name}.json', columns = {{a: 'INT'}})")
            with raises("22000"):
                client(f"INSERT INTO plain FROM read_json('{files}/{name}.json', columns = {{a: 'INT'}})")
            with raises("22000"):
                client(f"COPY plain FROM '{files}/{name}.json' (FORMAT json)")
        client.close()
    opened.close()


@pytest.mark.parametrize("wire", [False, True])
@pytest.mark.parametrize("text", ["PREPARE p AS SELECT ${}", "FETCH {} FROM c"])
def test_a_number_of_too_many_digits_is_no_fault_of_ours(database: Database, text: str, wire: bool) -> None:
    client = Client(database, wire=wire)
    with raises("54000"):
        client(text.format("9" * 5000))
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
