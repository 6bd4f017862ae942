"""Names are compared as DuckDB compares them: over all of Unicode, and for captured tables and columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import duckdb
import pytest
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.quoting import fold, folded_sql, ident

KELVIN = "\N{KELVIN SIGN}"
# Common table expressions of one query: planning it takes time by their number's square.
PIECE = 25


def _spellings(code: int) -> set[str]:
    char = chr(code)
    return {char, char.lower(), char.upper(), char.title(), char.casefold()}


def _all_code_points() -> list[int]:
    return [code for code in range(1, 0x110000) if not 0xD800 <= code <= 0xDFFF]


@cache
def all_names() -> list[str]:
    """Every spelling that some case of Python's makes of a character that has cases, behind an x."""
    spelt = filter(lambda found: len(found) > 1, map(_spellings, _all_code_points()))
    return sorted({f"x{text}" for found in spelt for text in found})


@cache
def folded_names() -> list[str]:
    """One name for each that DuckDB should know."""
    return sorted({fold(name) for name in all_names()})


@cache
def asked_names() -> list[str]:
    """The same, each in a spelling that differs from it as far as it may."""
    return ["".join(char.upper() if char.isascii() else char for char in name) for name in folded_names()]


@pytest.fixture(scope="module")
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        yield connection


def test_there_are_names_enough() -> None:
    assert len(folded_names()) > 2900
    assert {fold(name) for name in asked_names()} == set(folded_names())
    assert {f"x{KELVIN}", "xk", "xÉ", "xé", "xß", "xi̇", "xİ"} <= set(folded_names())


def test_columns_are_told_apart_as_fold_does(cursor: duckdb.DuckDBPyConnection) -> None:
    # Two that were one to DuckDB would be refused here; one that were two would not be found there.
    cursor.execute(
        f"CREATE TABLE columns_of ({', '.join(f'{ident(name)} INTEGER' for name in folded_names())})"
    )
    found = cursor.execute(f"SELECT {', '.join(map(ident, asked_names()))} FROM columns_of").description
    assert [column[0] for column in found] == folded_names()


def test_unquoted_names_are_told_apart_as_fold_does(cursor: duckdb.DuckDBPyConnection) -> None:
    names = [name for name in folded_names() if name.isalpha()]
    cursor.execute(f"CREATE TABLE unquoted ({', '.join(f'{ident(name)} INTEGER' for name in names)})")
    found = cursor.execute(f"SELECT {', '.join(names)} FROM unquoted").description
    assert [column[0] for column in found] == names


def test_tables_are_told_apart_as_fold_does(cursor: duckdb.DuckDBPyConnection) -> None:
    for name in folded_names():
        cursor.execute(f"CREATE TABLE {ident(name)} (i INTEGER)")
    for name, asked in zip(folded_names(), asked_names(), strict=True):
        cursor.execute(f"DROP TABLE {ident(asked)}")
        assert fold(asked) == name


def test_common_table_expressions_are_told_apart_as_fold_does(cursor: duckdb.DuckDBPyConnection) -> None:
    # Names that Unicode would take for one stand side by side.
    pairs = sorted(
        zip(folded_names(), asked_names(), strict=True), key=lambda pair: (pair[0].casefold(), pair[0])
    )
    for first in range(0, len(pairs), PIECE - 5):
        names, asked = zip(*pairs[first : first + PIECE], strict=True)
        made = ", ".join(f"{ident(name)} AS (SELECT {number} AS i)" for number, name in enumerate(names))
        read = ", ".join(f"(SELECT i FROM {ident(name)})" for name in asked)
        assert cursor.execute(f"WITH {made} SELECT {read}").fetchone() == tuple(range(len(names)))


def test_sql_folds_as_python_does(cursor: duckdb.DuckDBPyConnection) -> None:
    names = "SELECT code, 'Xy' || chr(code::INTEGER) AS name FROM range(1, 1114112) AS codes (code)"
    rows = cursor.execute(
        f"SELECT string_agg({folded_sql('name')}, '' ORDER BY code) "
        f"FROM ({names} WHERE code NOT BETWEEN 55296 AND 57343)"
    ).fetchone()
    assert rows == ("".join(fold("Xy" + chr(code)) for code in _all_code_points()),)
    assert cursor.execute(f"SELECT {folded_sql('$1')}", [None]).fetchone() == (None,)


def test_no_macro_hides_what_folds_in_sql() -> None:
    own = duckdb.connect(":memory:")
    for macro in ("lower(a)", "length(a)", "strlen(a)", "translate(a, b, c)"):
        own.execute(f"CREATE MACRO {macro} AS 'hidden'")
        own.execute(f"CREATE TEMP MACRO {macro} AS 'hidden'")
    own.execute("CREATE SCHEMA system")
    for text in ("ABC", f"ÀB{KELVIN}"):
        assert own.execute(f"SELECT {folded_sql('$1')}", [text]).fetchone() == (fold(text),)


def test_columns_that_unicode_would_take_for_one(tmp_path: Path) -> None:
    client = Client(Database.open(str(tmp_path / "a.duckdb")))
    client('CREATE TABLE t (id INTEGER PRIMARY KEY, "É" INTEGER, "é" INTEGER)')
    client("CREATE STREAM s ON t")
    client("CREATE STREAM p ON t WITH (partition_by = (é))")
    client("INSERT INTO t VALUES (1, 10, 20), (2, 3, 4)")
    client("UPDATE t SET É = 11 WHERE é = 20")
    client('UPDATE t SET "é" = "É", "É" = "é" WHERE id = 1')
    client('INSERT INTO t (id, "É", "é") VALUES (1, 5, 6) ON CONFLICT (id) DO UPDATE SET é = excluded.É')
    client("INSERT INTO t (id, é) VALUES (3, 7)")
    client("DELETE FROM t WHERE é = 4")
    expected = [
        ("insert", None, '{"id":1,"É":10,"é":20}'),
        ("insert", None, '{"id":2,"É":3,"é":4}'),
        ("update", '{"id":1,"É":10,"é":20}', '{"id":1,"É":11,"é":20}'),
        # To another partition of `p`, which é chooses: the log has a delete and an insert.
        ("delete", '{"id":1,"É":11,"é":20}', None),
        ("insert", None, '{"id":1,"É":20,"é":11}'),
        ("delete", '{"id":1,"É":20,"é":11}', None),
        ("insert", None, '{"id":1,"É":20,"é":5}'),
        ("insert", None, '{"id":3,"É":null,"é":7}'),
        ("delete", '{"id":2,"É":3,"é":4}', None),
    ]
    for stream in ("s", "p"):
        assert client(f"SELECT op, before, after FROM STREAM {stream} ORDER BY lsn") == expected
        assert client(f"CHECK STREAM {stream}") == []
    client.session.database.close()


def test_tables_that_unicode_would_take_for_one(tmp_path: Path) -> None:
    client = Client(Database.open(str(tmp_path / "a.duckdb")))
    tables = [f"{KELVIN}ept", "kept", "İ", "ÉTÉ", "été"]
    for number, name in enumerate(tables):
        client(f"CREATE TABLE {ident(name)} (id INTEGER PRIMARY KEY, v INTEGER)")
        client(f"CREATE STREAM s{number} ON {ident(name)}")
    for number, name in enumerate(tables):
        client(f"INSERT INTO {ident(name)} VALUES (1, {number}), (2, {number})")
        client(f"UPDATE {ident(name)} SET v = v + 10 WHERE id = 1")
        client(f"DELETE FROM {ident(name)} WHERE id = 2")
    for number in range(len(tables)):
        assert client(f"SELECT op, before, after FROM STREAM s{number} ORDER BY lsn") == [
            ("insert", None, f'{{"id":1,"v":{number}}}'),
            ("insert", None, f'{{"id":2,"v":{number}}}'),
            ("update", f'{{"id":1,"v":{number}}}', f'{{"id":1,"v":{number + 10}}}'),
            ("delete", f'{{"id":2,"v":{number}}}', None),
        ]
        assert client(f"CHECK STREAM s{number}") == []
    # One hides nothing of the other: a temporary table, a view's name, a stream's.
    client(f"CREATE TEMP TABLE {ident('S' + KELVIN)} (a INTEGER)")
    client(f"CREATE STREAM sk ON {ident('kept')}")
    client.session.database.close()
