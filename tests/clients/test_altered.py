"""Prepared statements behind ALTER TABLE: drivers that keep columns prepare again; none reads wrong ones.

The table is altered on another connection, on the same one, and in a transaction of that one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from java_programs import JAVA, JAVAC
from postgres_server import postgres
from server_process import ServerProcess

DRIVER = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).with_name("java") / "Altered.java"
PROGRAM = Path(__file__).with_name("node") / "altered.cjs"
MODULES = Path(__file__).parents[2] / "build" / "node" / "node_modules"

# What is altered, and a row of it by `SELECT *` before and after.
CHANGES: list[tuple[str, tuple[object, ...]]] = [
    ("ALTER TABLE altered ALTER a TYPE real", (1, 2.0, "x")),
    ("ALTER TABLE altered ADD COLUMN c int", (1, 2.0, "x", None)),
    ("ALTER TABLE altered DROP COLUMN b", (1, 2.0, None)),
    ("ALTER TABLE altered DROP COLUMN c", (1, 2.0)),
    ("ALTER TABLE altered ADD COLUMN b text DEFAULT 'y'", (1, 2.0, "y")),
]


@pytest.fixture(params=["plain", "captured"])
def altered(request: pytest.FixtureRequest, look: psycopg.Connection[Any]) -> Iterator[str]:
    """A table (id, a, b) of one row, without a stream or with one; the name of a view of its events."""
    look.execute("CREATE TABLE altered (id int PRIMARY KEY, a int, b text)")
    if request.param == "captured":
        look.execute("CREATE STREAM altered_stream ON altered")
    look.execute("INSERT INTO altered VALUES (1, 2, 'x')")
    yield request.param
    look.execute("DROP STREAM IF EXISTS altered_stream CASCADE")
    look.execute("DROP TABLE altered")


QUERIES = ["SELECT * FROM altered", "UPDATE altered SET id = 1 WHERE id = 1 RETURNING *"]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("origin", ["other", "same", "transaction"])
def test_psycopg(shop: ServerProcess, look: Any, altered: str, query: str, binary: bool, origin: str) -> None:
    """It asks for the columns at each execution, and gets the new ones."""
    with shop.connect() as con:
        for _ in range(2):
            assert con.execute(query, prepare=True, binary=binary).fetchall() == [(1, 2, "x")]
        for change, row in CHANGES:
            with con.transaction() if origin == "transaction" else nullcontext():
                (look if origin == "other" else con).execute(change)
                for _ in range(2):
                    assert con.execute(query, prepare=True, binary=binary).fetchall() == [row]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("origin", ["other", "same"])
def test_asyncpg(url: str, look: Any, altered: str, query: str, origin: str) -> None:
    """It asks once; by the error's routine it prepares again, outside a transaction."""

    async def work() -> list[Any]:
        con = await asyncpg.connect(url)
        try:
            found = [tuple(await con.fetchrow(query))]
            for change, _ in CHANGES:
                kept = await con.prepare(f"/* kept */ {query}")
                if origin == "other":
                    await asyncio.to_thread(look.execute, change)
                else:
                    await con.execute(change)
                with pytest.raises(asyncpg.InvalidCachedStatementError):
                    await kept.fetch()
                found.append(tuple(await con.fetchrow(query)))
            return found
        finally:
            await con.close()

    assert asyncio.run(work()) == [(1, 2, "x"), *(row for _, row in CHANGES)]


def test_what_a_described_write_would_return_is_not_written(url: str, look: Any, altered: str) -> None:
    """The error comes before the row does."""

    async def work() -> None:
        con = await asyncpg.connect(url)
        try:
            kept = await con.prepare("INSERT INTO altered (id) VALUES ($1) RETURNING *")
            await kept.fetch(2)
            await asyncio.to_thread(look.execute, "ALTER TABLE altered ADD COLUMN c int")
            with pytest.raises(asyncpg.InvalidCachedStatementError):
                await kept.fetch(3)
        finally:
            await con.close()

    asyncio.run(work())
    assert look.execute("SELECT id FROM altered ORDER BY id").fetchall() == [(1,), (2,)]


def test_a_described_stream(url: str, look: Any) -> None:
    look.execute("CREATE TABLE altered (id int PRIMARY KEY, a int)")
    look.execute("CREATE STREAM altered_stream ON altered")
    look.execute("INSERT INTO altered VALUES (1, 2)")

    async def work() -> list[Any]:
        con = await asyncpg.connect(url)
        found = []
        queries = "SELECT * FROM STREAM altered_stream ENVELOPE CHANGES", "FROM altered_stream_changes"
        try:
            for query in queries:
                kept = await con.prepare(query)
                found.append(len((await kept.fetch())[0]))
            await asyncio.to_thread(look.execute, "ALTER TABLE altered ADD COLUMN b text DEFAULT 'z'")
            for query in queries:
                found.append(len((await con.fetch(query))[0]))
            return found
        finally:
            await con.close()

    first, view, then, view_then = asyncio.run(work())
    assert (then, view_then) == (first + 1, view + 1)
    look.execute("DROP STREAM altered_stream CASCADE")
    look.execute("DROP TABLE altered")


def test_a_transaction_that_is_rolled_back(shop: ServerProcess, look: Any, altered: str) -> None:
    with shop.connect() as con:
        with pytest.raises(ZeroDivisionError), con.transaction():
            con.execute("ALTER TABLE altered ADD COLUMN c int")
            for _ in range(2):
                assert con.execute("SELECT * FROM altered", prepare=True).fetchone() == (1, 2, "x", None)
            raise ZeroDivisionError
        assert con.execute("SELECT * FROM altered", prepare=True).fetchone() == (1, 2, "x")


def test_asyncpg_in_a_transaction(url: str, look: Any, altered: str) -> None:
    """It cannot prepare again there; the transaction has failed, and the change is undone with it."""

    async def work() -> list[Any]:
        con = await asyncpg.connect(url)
        query, found = QUERIES[0], []
        try:
            found.append(tuple(await con.fetchrow(query)))
            with pytest.raises(asyncpg.InvalidCachedStatementError):
                async with con.transaction():
                    await con.execute("ALTER TABLE altered DROP COLUMN a")
                    await con.fetchrow(query)
            found.append(tuple(await con.fetchrow(query)))
            async with con.transaction():
                await con.execute("ALTER TABLE altered DROP COLUMN a")
            found.append(tuple(await con.fetchrow(query)))
            return found
        finally:
            await con.close()

    assert asyncio.run(work()) == [(1, 2, "x"), (1, 2, "x"), (1, "x")]


# The rows of altered.cjs behind each of its changes.
OF_NODE = [
    {"id": 1, "a": 2, "b": "x"},
    {"id": 1, "a": 2, "b": "x"},
    {"id": 1, "a": 2, "b": "x", "c": None},
    {"id": 1, "a": 2, "c": None},
    {"id": 1, "aa": 2, "c": None},
]


@pytest.mark.node
@pytest.mark.parametrize(
    "prepare", ["", "CREATE STREAM altered_stream ON altered"], ids=["plain", "captured"]
)
def test_node(shop: ServerProcess, prepare: str) -> None:
    """node-postgres asks for a portal's columns at each execution; postgres.js asks once, as asyncpg does."""
    done = subprocess.run(
        ["node", str(PROGRAM), shop.host, str(shop.port), "ducktail", "shop", prepare],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    rows = [[row] for row in OF_NODE for _ in range(4)]
    for origin in ("other", "same"):
        assert seen[f"node-postgres {origin}"] == seen[f"postgres.js {origin}"] == rows
    assert seen["node-postgres transaction"] == rows[:4] + [[row] for row in OF_NODE[1:] for _ in range(8)]
    # The error ends the transaction, and the change with it.
    undone = ["0A000", *["25P02"] * 3, *rows[:4]]
    assert seen["postgres.js transaction"] == rows[:4] + undone * 4


@pytest.mark.jdbc
@pytest.mark.postgres
def test_pgjdbc_does_as_with_postgresql(shop: ServerProcess, tmp_path: Path) -> None:
    subprocess.run([*JAVAC, "-cp", str(DRIVER), "-d", str(tmp_path), str(SOURCE)], check=True)
    (tmp_path / "postgres").mkdir()
    with postgres(tmp_path / "postgres") as other:
        words = dict(word.split("=") for word in other.split())
        of_postgres = f"{words['host']}:{words['port']}/{words['dbname']}?user={words['user']}"
        seen = []
        for url in (f"{shop.host}:{shop.port}/shop?user=ducktail", of_postgres):
            url = f"jdbc:postgresql://{url}&prepareThreshold=1&binaryTransfer=true"
            done = subprocess.run(
                [*JAVA, "-cp", f"{DRIVER}:{tmp_path}", "Altered", url],
                check=True, capture_output=True, text=True, timeout=100,
            )  # fmt: skip
            seen.append(done.stdout.splitlines())
    assert seen[0] == seen[1]
