"""The names and values of results that depend on parameters, arrays and FLOAT, through each client.

Each client declares the types of its parameters in its own way: psycopg and pgjdbc those of numbers, asyncpg
and postgres.js those that the server reports, node-postgres none. The answers are PostgreSQL's, which a test
compares.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from java_programs import JAVA
from postgres_server import postgres
from psycopg import RawCursor
from server_process import ServerProcess

HERE = Path(__file__).parent
DRIVER = Path("/usr/share/java/postgresql.jar")
MODULES = HERE.parents[1] / "build" / "node" / "node_modules"

TABLE = (
    "CREATE TABLE results (id int PRIMARY KEY, n int, f double precision, name text, day date, tags text[])",
    "INSERT INTO results VALUES (1, 10, 0.5, 'ann', '2026-01-02', NULL), (2, 20, 1.5, 'bob', NULL, NULL)",
)
# Text, parameters, names, rows.
CASES: list[tuple[str, list[Any], list[str], list[list[Any]]]] = [
    ("SELECT id FROM results WHERE name ILIKE $1 || '%'", ["A"], ["id"], [[1]]),
    ("SELECT n + $1 AS s FROM results ORDER BY 1", [5], ["s"], [[15], [25]]),
    ("SELECT $1 + n AS s FROM results ORDER BY 1", [5], ["s"], [[15], [25]]),
    ("SELECT n * $1 - $2 AS s, name FROM results WHERE id = $3", [2, 1, 1], ["s", "name"], [[19, "ann"]]),
    ("SELECT n + $1 AS a, f + $1 AS b FROM results WHERE id = 1", [1], ["a", "b"], [[11, 1.5]]),
    ("SELECT id FROM results WHERE id = ANY($1) ORDER BY id", [[1, 2, 3]], ["id"], [[1], [2]]),
    ("SELECT id, name FROM results WHERE name = ANY($1)", [["bob", "x"]], ["id", "name"], [[2, "bob"]]),
    ("SELECT id FROM results WHERE id <> ALL($1)", [[1, 3]], ["id"], [[2]]),
    ("SELECT id FROM results WHERE (id, n) = ($1, $2)", [1, 10], ["id"], [[1]]),
    ("SELECT a, b FROM (VALUES ($1, 1), ('y', 2)) v(a, b) ORDER BY b", ["x"], ["a", "b"],
     [["x", 1], ["y", 2]]),
    ("SELECT a FROM (VALUES (1), ($1)) v(a) ORDER BY a", [7], ["a"], [[1], [7]]),
    ("SELECT day - $1 = 1 AS d FROM results WHERE id = 1", ["2026-01-01"], ["d"], [[True]]),
    ("SELECT day::timestamp + $1 > '2026-01-03' AS d FROM results WHERE id = 1",
     ["1 day 1 hour"], ["d"], [[True]]),
    ("SELECT n FROM results WHERE id = 1 UNION ALL SELECT $1", [7], ["n"], [[10], [7]]),
    ("SELECT CASE WHEN id = $1 THEN n + $2 ELSE $3 END AS c FROM results ORDER BY id", [1, 1, 9], ["c"],
     [[11], [9]]),
    ("SELECT name || $1 AS x, $2 AS y FROM results WHERE id = 1", ["!", "z"], ["x", "y"], [["ann!", "z"]]),
    ("UPDATE results SET n = n + $1 WHERE id = $2 RETURNING n", [0, 1], ["n"], [[10]]),
    ("INSERT INTO results (id, name, n) SELECT $1, $2, $3 RETURNING id, name", [3, "c", 1],
     ["id", "name"], [[3, "c"]]),
    ("DELETE FROM results WHERE id = ANY($1) RETURNING n", [[3]], ["n"], [[1]]),
    ("SELECT $1::text[] AS a", [["\u2003", "\u00a0x\u00a0", "a b"]], ["a"],
     [[["\u2003", "\u00a0x\u00a0", "a b"]]]),
    ("SELECT timestamptz '2026-01-02 03:04:05 +01:00' = '2026-01-02 02:04:05 +00:00' AS a, "
     "'2026-01-02 03:04:05.5 +0130'::timestamptz < now() AS b, '2026-01-02 03:04:05 +01:00' AS c", [],
     ["a", "b", "c"], [[True, True, "2026-01-02 03:04:05 +01:00"]]),
    ("SELECT ARRAY['x']::varchar(255)[] AS a, ARRAY['y']::text[1] AS b", [], ["a", "b"],
     [[["x"], ["y"]]]),
    ("SELECT ARRAY[1, 2]::text AS a, CAST(ARRAY['a b', NULL, 'q\"'] AS text) AS b", [], ["a", "b"],
     [["{1,2}", '{"a b",NULL,"q\\""}']]),
    ("SELECT '{\"x y\",\"b\"}'::text[] AS a", [], ["a"], [[["x y", "b"]]]),
    ("UPDATE results SET tags = '{\"x y\",b}', name = '{bob}' WHERE id = $1 RETURNING tags, name", [2],
     ["tags", "name"], [[["x y", "b"], "{bob}"]]),
    ("INSERT INTO results (id, tags) VALUES ($1, '{}'), (5, '{\"q\"}') RETURNING id, tags", [4],
     ["id", "tags"], [[4, []], [5, ["q"]]]),
    ("UPDATE results SET name = 'bob' WHERE id = $1 RETURNING name", [2], ["name"], [["bob"]]),
    ("SELECT id FROM results WHERE tags = '{q}' AND name IS NULL", [], ["id"], [[5]]),
    ("DELETE FROM results WHERE id = ANY($1) AND tags = '{}' RETURNING id", [[4, 5]], ["id"], [[4]]),
    ("DELETE FROM results WHERE id > $1 RETURNING id", [2], ["id"], [[5]]),
    ("SELECT 0.1::float = 0.1::float8 AS a, CAST(0.1 AS FLOAT) = 0.1::real AS b", [], ["a", "b"],
     [[True, False]]),
]  # fmt: skip
# asyncpg writes the values of the types that the server reports.
OF_ASYNCPG: dict[str, object] = {
    "2026-01-01": datetime.date(2026, 1, 1),
    "1 day 1 hour": datetime.timedelta(days=1, hours=1),
}


@pytest.fixture(params=["plain", "captured"])
def results(request: pytest.FixtureRequest, look: psycopg.Connection[Any]) -> Iterator[None]:
    """The table, without a stream or with one."""
    for text in TABLE:
        look.execute(text)
    if request.param == "captured":
        look.execute("CREATE STREAM results_stream ON results")
    yield
    look.execute("DROP STREAM IF EXISTS results_stream CASCADE")
    look.execute("DROP TABLE results")


def answer(con: psycopg.Connection[Any], text: str, values: list[Any], *, binary: bool) -> Any:
    """The names and rows of a statement by psycopg."""
    with RawCursor(con) as cursor:
        cursor.execute(text, values or None, binary=binary)
        names = [column.name for column in cursor.description or ()]
        return names, [list(row) for row in cursor.fetchall()]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_psycopg(shop: ServerProcess, results: None, binary: bool) -> None:
    with shop.connect() as con:
        for text, values, names, rows in CASES:
            assert answer(con, text, values, binary=binary) == (names, rows), text


def test_asyncpg(url: str, results: None) -> None:
    async def work() -> None:
        con = await asyncpg.connect(url)
        try:
            for text, values, names, rows in CASES:
                statement = await con.prepare(text)
                given = [
                    OF_ASYNCPG.get(value, value) if isinstance(value, str) else value for value in values
                ]
                found = [list(row) for row in await statement.fetch(*given)]
                assert ([column.name for column in statement.get_attributes()], found) == (names, rows), text
        finally:
            await con.close()

    asyncio.run(work())


@pytest.mark.node
def test_node(shop: ServerProcess, results: None, tmp_path: Path) -> None:
    (tmp_path / "cases").write_text(json.dumps([case[:2] for case in CASES]))
    done = subprocess.run(
        ["node", str(HERE / "node" / "results.cjs"), shop.host, str(shop.port), "ducktail", "shop",
         str(tmp_path / "cases")],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for library in ("node-postgres", "postgres.js"):
        for (text, _, names, rows), seen in zip(CASES, found[library], strict=True):
            assert seen == [names, rows], (library, text)


@pytest.mark.jdbc
def test_pgjdbc(shop: ServerProcess, results: None, tmp_path: Path) -> None:
    lines = []
    for text, values, _, _ in CASES:
        given = [
            f"{'i' if isinstance(value[0], int) else 't'}:{','.join(map(str, value))}"
            if isinstance(value, list)
            else f"{'n' if isinstance(value, int) else 's'}:{value}"
            for value in (values[int(number) - 1] for number in re.findall(r"\$(\d)", text))
        ]
        lines.append("\t".join([re.sub(r"\$\d", "?", text), *given]))
    (tmp_path / "cases").write_text("\n".join(lines))
    # Texts without a declared type, as an ORM sends them.
    url = f"jdbc:postgresql://{shop.host}:{shop.port}/shop?user=ducktail&stringtype=unspecified"
    done = subprocess.run(
        [*JAVA, "-cp", str(DRIVER), str(HERE / "java" / "Results.java"), url, str(tmp_path / "cases")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (text, _, names, rows), line in zip(CASES, done.stdout.splitlines(), strict=True):
        told = [names, *([_text(value) for value in row] for row in rows)]
        assert line == f"[{', '.join('[' + ', '.join(row) + ']' for row in told)}]", text


def _text(value: object) -> str:
    """A value as pgjdbc gives its text."""
    if isinstance(value, bool):
        return "tf"[not value]
    if isinstance(value, list):
        return (
            "{" + ",".join(f'"{item}"' if re.search(r"\s", item, re.ASCII) else item for item in value) + "}"
        )
    return str(value)


@pytest.mark.postgres
def test_the_answers_are_those_of_postgresql(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    with postgres(tmp_path / "postgres") as conninfo, psycopg.connect(conninfo, autocommit=True) as con:
        for text in TABLE:
            con.execute(text)
        for text, values, names, rows in CASES:
            assert answer(con, text, values, binary=True) == (names, rows), text


def test_containment_of_a_json_column(shop: ServerProcess) -> None:
    with shop.connect() as con:
        doc = """(SELECT '{"a": 1, "b": [2]}'::jsonb AS doc) AS d"""
        for value, count in (('{"b": [2]}', 1), ('{"b": [3]}', 0)):
            assert con.execute(f"SELECT count(*) FROM {doc} WHERE doc @> %s", [value]).fetchone() == (count,)
