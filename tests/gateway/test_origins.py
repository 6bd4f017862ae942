"""Table and column numbers in RowDescription: PostgreSQL's, by the names that the catalog has for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from psycopg import pq
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

TABLES = (
    'CREATE TABLE t (id INT PRIMARY KEY, a INT, "B b" TEXT)',
    "CREATE TABLE u (id INT, z INT)",
    "CREATE SCHEMA s",
    "CREATE TABLE s.t (k INT, v INT)",
    "CREATE VIEW w AS SELECT a, id AS i FROM t",
    "INSERT INTO t VALUES (1, 2, 'x')",
)
STATEMENTS = (
    "SELECT * FROM t",
    "SELECT id, a AS q, id + 1, 'x', a, count(*) OVER () FROM t",
    'SELECT x."B b", x.*, 7 FROM t AS x',
    "SELECT x.one, three FROM t AS x (one, two, three)",
    "SELECT * FROM w",
    "SELECT i FROM w ORDER BY a",
    "SELECT s.t.v, t.k FROM s.t",
    "SELECT t.id, u.z, y.v FROM t JOIN u ON t.id = u.id LEFT JOIN s.t AS y ON k = z",
    "SELECT * FROM t JOIN u USING (id)",
    "SELECT id, z FROM t LEFT JOIN u USING (id)",
    "SELECT t.*, u.* FROM t, u",
    "SELECT j.id FROM (t JOIN u USING (id)) AS j",
    "SELECT id, n, max FROM (SELECT id, a AS n, max(a) OVER () AS max FROM t) AS d",
    "SELECT * FROM (SELECT id FROM t LIMIT 1) AS d (other)",
    "WITH c AS (SELECT a, id FROM t), d AS (SELECT id, a + 1 AS x FROM c) SELECT * FROM d",
    "WITH c (a, id) AS (SELECT id, a FROM t) SELECT a, id AS x FROM c",
    "WITH t AS (SELECT z AS id FROM u) SELECT id FROM t",
    "SELECT id FROM t UNION SELECT 1",
    "SELECT a, count(*) FROM t GROUP BY a",
    "SELECT DISTINCT a FROM t ORDER BY a LIMIT 1",
    "SELECT (SELECT a FROM t LIMIT 1) AS a, generate_series FROM generate_series(1, 2)",
    "SELECT a FROM (VALUES (1)) AS v (a)",
    "INSERT INTO t VALUES (10, 1, 'y') RETURNING *",
    "INSERT INTO u VALUES (10, 1) RETURNING z, id AS i, z + 1",
    "UPDATE t AS x SET a = 3 WHERE id = 1 RETURNING x.a, id",
    "DELETE FROM u WHERE z > 100 RETURNING id",
)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Connection]:
    """A PostgreSQL with the tables."""
    with postgres(tmp_path) as info, psycopg.connect(info, autocommit=True) as connection:
        for text in TABLES:
            connection.execute(text)
        yield connection


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of this file."""
    with ServerProcess(tmp_path_factory.mktemp("origins") / "ducktail.duckdb") as server:
        yield server


@pytest.fixture
def here(served: ServerProcess) -> Iterator[Connection]:
    """A database here with the tables."""
    with psycopg.connect(served.conninfo, autocommit=True) as connection:
        for text in ("DROP VIEW IF EXISTS w", "DROP TABLE IF EXISTS t, u, s.t", "DROP SCHEMA IF EXISTS s"):
            connection.execute(text)
        for text in TABLES:
            connection.execute(text)
        yield connection


NAMES = (
    "SELECT c.oid, a.attnum, relname || '.' || attname FROM pg_class c "
    "JOIN pg_attribute a ON attrelid = c.oid WHERE attnum > 0"
)


Names = dict[tuple[int, int], str]


def names_of(connection: Connection) -> Names:
    """table.column by OID and number."""
    return {(oid, number): name for oid, number, name in connection.execute(NAMES).fetchall()}


def origins(connection: Connection, names: Names, text: str, *, simple: bool) -> list[str | None]:
    """table.column of each column of a result, None for one without an origin."""
    if simple:
        result = connection.pgconn.exec_(text.encode())
    else:
        connection.pgconn.prepare(b"", text.encode())
        result = connection.pgconn.describe_prepared(b"")
    assert result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK), result.error_message
    numbers = [(result.ftable(at), result.ftablecol(at)) for at in range(result.nfields)]
    return [None if pair == (0, 0) else names[pair] for pair in numbers]


def test_a_string_may_be_the_name_of_a_table(here: Connection) -> None:
    here.execute("CREATE TABLE one (a INT, b INT); CREATE TABLE other (b INT, a INT)")
    told = []
    for text in ("SELECT a FROM 'one'", "SELECT a FROM 'other'", "SELECT a AS 'x' FROM one"):
        result = here.pgconn.exec_(text.encode())
        told.append((result.ftable(0), result.ftablecol(0)))
    oids = [here.execute(f"SELECT '{name}'::regclass::oid").fetchone() for name in ("one", "other")]
    (one,), (other,) = [oid or (0,) for oid in oids]
    here.execute("DROP TABLE one, other")
    assert told == [(one, 1), (other, 2), (one, 1)]


def test_origins_are_those_of_postgresql(here: Connection, there: Connection) -> None:
    ours, theirs = names_of(here), names_of(there)
    for simple in (False, True):
        found = {text: origins(here, ours, text, simple=simple) for text in STATEMENTS}
        assert found == {text: origins(there, theirs, text, simple=simple) for text in STATEMENTS}


# Statements whose columns have no origin, each with columns that could be taken for a table's.
WITHOUT = (
    "SELECT columns('a') FROM t",
    "SELECT * RENAME (a AS id2) FROM t",
    "SELECT s.a FROM (SELECT unnest({'a': 1}), id FROM t) AS s",
    "SELECT s.a FROM (SELECT t.a, u.id AS a FROM t, u) AS s",
    "SELECT s.id_1 FROM (SELECT id, a AS id, id AS id_1 FROM t) AS s",
    "SELECT * FROM (SELECT id, a AS id FROM t) AS s (x, x)",
    "SELECT a FROM t NATURAL FULL JOIN (SELECT 1 AS a)",
    "SELECT rowid FROM t",
    "WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT a FROM r",
    "SELECT a FROM t PIVOT (sum(id) FOR id IN (1))",
    "DESCRIBE t",
    # Too deep for a reader of the tree.
    f"SELECT {'1+' * 900}1, a FROM t",
    "EXPLAIN SELECT a FROM t",
    "SELECT typname FROM pg_type LIMIT 1",
    "SELECT lsn, table_name FROM STREAM t_stream",
    "MERGE INTO t USING (SELECT 1 AS id) AS q ON t.id = q.id WHEN MATCHED THEN UPDATE SET a = 5 RETURNING a",
)


@pytest.mark.parametrize("simple", [True, False], ids=["simple", "extended"])
def test_what_has_no_origin(here: Connection, simple: bool) -> None:
    here.execute("CREATE STREAM t_stream ON t")
    try:
        names = names_of(here)
        found = {text: origins(here, names, text, simple=simple) for text in WITHOUT}
    finally:
        here.execute("DROP STREAM t_stream")
    assert {text: columns for text, columns in found.items() if any(columns)} == {}


def test_texts_that_differ_in_literals_only(here: Connection) -> None:
    names = names_of(here)
    for text, expected in (
        ("SELECT 'a', id FROM t WHERE a IN (1, 2)", [None, "t.id"]),
        ("SELECT 'b', id FROM t WHERE a IN (3, 4, 5)", [None, "t.id"]),
        ("SELECT '\"', id AS \"it's\", a FROM t", [None, "t.id", "t.a"]),
        ("SELECT '\"', a AS \"it's\", id FROM t", [None, "t.a", "t.id"]),
        ("SELECT /* ' */ id, a FROM t -- '", ["t.id", "t.a"]),
        ("SELECT /* ' */ a, id FROM t -- '", ["t.a", "t.id"]),
        ("SELECT E'\\'', id, E'\\'' FROM t", [None, "t.id", None]),
        ("SELECT E'\\'', a, E'\\'' FROM t", [None, "t.a", None]),
        ("SELECT (1), (2), a FROM t", [None, None, "t.a"]),
        ("TABLE u", ["u.id", "u.z"]),
    ):
        assert origins(here, names, text, simple=True) == expected, text


def test_origins_follow_the_catalog(here: Connection, served: ServerProcess) -> None:
    def looked() -> list[list[str | None]]:
        names = names_of(here)
        return [
            origins(here, names, "SELECT * FROM t WHERE id > 0", simple=simple) for simple in (True, False)
        ]

    assert looked() == [["t.id", "t.a", "t.B b"]] * 2
    with psycopg.connect(served.conninfo, autocommit=True) as other:
        other.execute("ALTER TABLE t DROP COLUMN a")
        assert looked() == [["t.id", "t.B b"]] * 2
        other.execute("DROP VIEW w")
        other.execute("DROP TABLE t")
        other.execute("CREATE TABLE t (a INT, id INT)")
        assert looked() == [["t.a", "t.id"]] * 2
    here.execute("SET search_path = s")
    assert origins(here, names_of(here), "SELECT * FROM t WHERE 0 < 1", simple=True) == ["t.k", "t.v"]
    here.execute("CREATE TEMP TABLE t (id INT)")
    assert looked() == [["t.id"]] * 2
    here.execute("DROP TABLE temp.t")
    here.execute("RESET search_path")
    with here.transaction():
        here.execute("CREATE TABLE fresh (x INT, y INT)")
        assert origins(here, names_of(here), "SELECT y FROM fresh", simple=True) == ["fresh.y"]
        here.execute("ALTER TABLE fresh DROP COLUMN x")
        found = here.pgconn.exec_(b"SELECT y FROM fresh")
        assert (found.ftablecol(0), found.ftable(0) > 0) == (1, True)
        here.execute("DROP TABLE fresh")


def test_a_prepared_statement_has_the_present_origins(here: Connection) -> None:
    here.pgconn.prepare(b"kept", b"SELECT id, a FROM t WHERE id = $1")
    before = here.pgconn.describe_prepared(b"kept")
    here.execute("ALTER TABLE t RENAME id TO number")
    here.execute("ALTER TABLE t RENAME a TO id")
    here.execute("ALTER TABLE t RENAME number TO a")
    after = here.pgconn.describe_prepared(b"kept")
    assert [before.ftablecol(0), before.ftablecol(1), after.ftablecol(0), after.ftablecol(1)] == [1, 2, 2, 1]
    assert before.ftable(0) == after.ftable(1) != 0


def test_a_limited_user_has_origins_too(here: Connection, served: ServerProcess) -> None:
    here.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
    here.execute("CREATE USER reader PASSWORD 'x'")
    with served.connect(user="ann", password="x") as ann:
        ann.execute("GRANT SELECT ON t TO reader")
        names = names_of(ann)
    with served.connect(user="reader", password="x") as reader:
        expected = ["t.a", "t.id", None]
        for simple in (True, False):
            assert origins(reader, names, "SELECT a, id AS x, 1 FROM t", simple=simple) == expected
    with served.connect(user="ann", password="x") as ann:
        ann.execute("REVOKE ALL ON t FROM reader")
        ann.execute("DROP USER reader")
