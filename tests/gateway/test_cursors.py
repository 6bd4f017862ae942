"""Cursors and suspended portals as drivers use them: psycopg's, asyncpg's, and bare messages."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import amount
from server_process import ServerProcess

Connection = psycopg.Connection[Any]


@pytest.fixture
def con(shared: ServerProcess) -> Iterator[Connection]:
    """A connection in transactions, and a stream s of a table n with 10 rows and a group g."""
    with shared.connect() as made:
        made.execute("DROP STREAM IF EXISTS s CASCADE")
        made.execute("DROP TABLE IF EXISTS n")
        made.execute("CREATE TABLE n (i integer PRIMARY KEY, t text)")
        made.execute("CREATE STREAM s ON n WITH (partitions = 1)")
        made.execute("CREATE CONSUMER GROUP g ON s")
        made.execute("INSERT INTO n SELECT i, 't' || i FROM range(1, 11) r(i)")
    with shared.connect(autocommit=False) as made:
        yield made


def test_psycopgs_server_side_cursor(con: Connection) -> None:
    with con.cursor("named") as cursor:
        cursor.itersize = 3
        cursor.execute("SELECT i, t FROM n WHERE i > %s ORDER BY i", [2])
        assert [column.name for column in cursor.description or ()] == ["i", "t"]
        assert cursor.fetchone() == (3, "t3")
        assert cursor.fetchmany(2) == [(4, "t4"), (5, "t5")]
        con.execute("UPDATE n SET t = 'new' WHERE i = 7")
        cursor.scroll(1)
        assert list(cursor) == [(7, "t7"), (8, "t8"), (9, "t9"), (10, "t10")]
        assert cursor.fetchone() is None
    with pytest.raises(psycopg.errors.InvalidCursorName):
        con.execute("FETCH named")


def test_psycopgs_cursor_in_binary_and_with_hold(con: Connection) -> None:
    with con.cursor("kept", withhold=True) as cursor:
        cursor.execute("SELECT i, i * 1.5 FROM n ORDER BY i", binary=True)
        assert cursor.fetchmany(1) == [(1, 1.5)]
        con.commit()
        con.execute("DELETE FROM n")
        con.commit()
        assert [row[0] for row in cursor.fetchall()] == list(range(2, 11))


def test_psycopgs_scrollable_cursor(con: Connection) -> None:
    with con.cursor("there", scrollable=True) as cursor:
        cursor.execute("SELECT i FROM n ORDER BY i")
        assert cursor.fetchmany(4) == [(1,), (2,), (3,), (4,)]
        con.execute("DELETE FROM n")
        cursor.scroll(-2)
        assert cursor.fetchone() == (3,)
        cursor.scroll(9, mode="absolute")
        assert cursor.fetchall() == [(10,)]
        cursor.scroll(0, mode="absolute")
        assert [row[0] for row in cursor.fetchall()] == list(range(1, 11))
        query = "SELECT name, is_scrollable, is_holdable, creation_time <= now() FROM pg_cursors"
        assert con.execute(query).fetchall() == [("there", True, False, True)]
        found = con.execute("SELECT statement FROM pg_cursors WHERE name = 'there'").fetchone()
        assert found and "SELECT i FROM n" in found[0] and found[0].startswith("DECLARE")
    with con.cursor("back", scrollable=False) as cursor:
        cursor.execute("SELECT i FROM n")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="can only scan forward"):
            cursor.scroll(-1)


@pytest.mark.parametrize("chunk", [7, 8192])
def test_a_scroll_cursor_over_many_batches_against_a_list(con: Connection, chunk: int) -> None:
    """Ways by chance over a result of several batches, most of it in the file, as PostgreSQL defines them."""
    rows, choices = list(range(20_000)), random.Random(chunk)
    con.execute("DECLARE c SCROLL CURSOR FOR SELECT i, repeat('x', 400) FROM range(20000) r(i)")
    position = 0
    for _ in range(60):
        count = choices.choice([1, chunk, -chunk, 0, choices.randint(-40_000, 40_000)])
        way = choices.choice(["FORWARD", "BACKWARD", "RELATIVE", "ABSOLUTE"])
        if way in ("FORWARD", "BACKWARD"):
            step = count if way == "FORWARD" else -count
            if step > 0:
                expected = rows[position : position + step]
                position = position + step if len(expected) == step else len(rows) + 1
            elif step < 0:
                expected = rows[max(0, position - 1 + step) : max(0, position - 1)][::-1]
                position = position + step if len(expected) == -step else 0
            else:
                expected = rows[position - 1 : position] if position else []
        else:
            target = position + count if way == "RELATIVE" else count
            if way == "ABSOLUTE" and count < 0:
                target = len(rows) + 1 + count
            position = min(max(0, target), len(rows) + 1)
            expected = rows[position - 1 : position] if position else []
        found = con.execute(f"FETCH {way} {count} FROM c").fetchall()
        assert [row[0] for row in found] == expected, (way, count)
        if choices.random() < 0.2:
            con.execute("SELECT 1")


def test_a_cursor_over_a_stream_moves_the_read_position(con: Connection) -> None:
    with con.cursor("events") as cursor:
        cursor.execute("SELECT after->>'i' FROM STREAM s CONSUMER GROUP g")
        assert cursor.fetchmany(4) == [("1",), ("2",), ("3",), ("4",)]
        con.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
        con.commit()
    rows = con.execute("SELECT after->>'i' FROM STREAM s CONSUMER GROUP g LIMIT 1").fetchall()
    assert rows == [("5",)]


def test_asyncpgs_cursors(con: Connection, shared: ServerProcess) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def run() -> tuple[list[int], list[int], list[int]]:
        made = await asyncpg.connect(host=shared.host, port=shared.port, user="ann", database="ducktail")
        try:
            async with made.transaction():
                walked = [row["i"] async for row in made.cursor("SELECT i FROM n ORDER BY i", prefetch=3)]
                first = await made.cursor("SELECT i FROM n WHERE i > $1 ORDER BY i", 0)
                second = await made.cursor("SELECT i FROM n ORDER BY i DESC")
                moved = await first.forward(4)
                parts = [moved, *(row["i"] for row in await first.fetch(2))]
                others = [row["i"] for row in await second.fetch(2)]
                parts += [row["i"] for row in await first.fetch(10)]
                others += [row["i"] for row in await second.fetch(1)]
                return walked, parts, others
        finally:
            await made.close()

    walked, parts, others = asyncio.run(run())
    assert walked == list(range(1, 11))
    assert parts == [4, 5, 6, 7, 8, 9, 10]
    assert others == [10, 9, 8]


def parse(client: Any, text: str, name: str = "") -> None:
    client.message("P", name.encode() + b"\0" + text.encode() + b"\0" + bytes(2))


def bind(client: Any, portal: str, name: str = "", results: bytes = bytes(2)) -> None:
    client.message("B", portal.encode() + b"\0" + name.encode() + b"\0" + bytes(4) + results)


def execute(client: Any, portal: str, rows: int = 0) -> None:
    client.message("E", portal.encode() + b"\0" + struct.pack("!i", rows))


def kinds(answers: list[tuple[str, bytes]]) -> str:
    return "".join(kind for kind, _ in answers)


# A result that is taken whole is there before the first of them.
PARTS = amount("DUCKTAIL_PARTS", 1000, 3000)


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_million_rows_in_parts_take_no_memory(
    serve: Callable[..., ServerProcess], raw_to: Any, size: int
) -> None:
    server = serve()
    client = raw_to(server)
    client.enter()

    def resident() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    client.query("BEGIN")
    parse(client, "SELECT i, repeat('x', 100) AS t FROM range(1000000) r(i)")
    bind(client, "p")
    execute(client, "p", size)
    client.message("H")
    assert kinds(client.until("s")) == "12" + "D" * size + "s"
    before = resident()
    parts = min(PARTS, 1_000_000 // size - 1)
    for _ in range(parts):
        execute(client, "p", size)
        client.message("S")
        found = client.until("Z")
        assert kinds(found) == "D" * size + "sZ"
    assert resident() - before < 60_000_000
    last = found[-3][1]
    assert int(last[6:].split(b"\0\0\0d")[0].decode()) == (parts + 1) * size - 1
    execute(client, "p")
    client.message("S")
    rest = client.until("Z")
    assert kinds(rest[-2:]) == "CZ"
    assert rest[-2][1] == f"SELECT {1_000_000 - (parts + 1) * size}".encode() + b"\0"
    client.query("COMMIT")


def test_several_portals_are_open_at_once(con: Connection, shared_raw: Callable[[], Any]) -> None:
    client = shared_raw()
    client.enter()
    client.query("BEGIN")
    for name, order in (("up", "ASC"), ("down", "DESC")):
        parse(client, f"SELECT i FROM n ORDER BY i {order}", name)
        bind(client, name, name)
    client.message("S")
    assert kinds(client.until("Z")) == "1212Z"
    seen: list[int] = []
    for name in ("up", "down", "up", "down"):
        execute(client, name, 2)
        client.message("S")
        seen += [int(body[6:]) for kind, body in client.until("Z") if kind == "D"]
    assert seen == [1, 2, 10, 9, 3, 4, 8, 7]
    assert client.query("MOVE 2 FROM up")[0] == ("C", b"MOVE 2\0")
    found = client.query("FETCH 2 FROM up")
    assert [int(body[6:]) for kind, body in found if kind == "D"] == [7, 8]
    client.query("CLOSE up")
    execute(client, "up")
    client.message("S")
    assert kinds(client.until("Z")) == "EZ"


def test_the_protocol_describes_and_executes_a_cursor_of_sqls(
    con: Connection, shared_raw: Callable[[], Any]
) -> None:
    client = shared_raw()
    client.enter()
    client.query("BEGIN; DECLARE c BINARY CURSOR FOR SELECT i FROM n ORDER BY i")
    client.message("D", b"Pc\0")
    execute(client, "c", 2)
    execute(client, "c", 3)
    client.message("S")
    found = client.until("Z")
    assert kinds(found) == "TDDsDDDsZ"
    assert found[0][1].endswith(struct.pack("!hih", 4, -1, 0))
    assert [int(body[6:]) for kind, body in found if kind == "D"] == [1, 2, 3, 4, 5]
    answers = client.query("FETCH 1 FROM c")
    assert kinds(answers) == "TDCZ"
    assert answers[1][1][6:] == struct.pack("!i", 6)
    client.message("C", b"Pc\0")
    client.message("D", b"Pc\0")
    client.message("S")
    found = client.until("Z")
    assert kinds(found) == "3EZ"
    client.query("ROLLBACK")


def test_a_commit_ends_what_was_not_fetched(con: Connection, shared_raw: Callable[[], Any]) -> None:
    """What a client leaves of a large answer costs nothing: it is given up, not kept."""
    client = shared_raw()
    client.enter()
    client.query("BEGIN")
    parse(client, "SELECT i, repeat('x', 1000) FROM range(100000000) r(i)")
    bind(client, "p")
    execute(client, "p", 1)
    client.message("S")
    client.until("Z")
    assert kinds(client.query("COMMIT")) == "CZ"
    execute(client, "p", 1)
    client.message("S")
    assert kinds(client.until("Z")) == "EZ"


# What is bound, and the change between its Bind and its Execute: a column is another type, missing, or new.
CHANGED_PORTALS = {
    "a table": ("SELECT * FROM changed", "ALTER TABLE changed ALTER v TYPE VARCHAR"),
    "a dropped column": ("SELECT * FROM changed", "ALTER TABLE changed DROP COLUMN v"),
    "a new column": ("UPDATE changed SET v = 3 RETURNING *", "ALTER TABLE changed ADD COLUMN w int"),
    "a stream": ("SELECT * FROM STREAM changed_stream ENVELOPE CHANGES", "ALTER TABLE changed DROP COLUMN v"),
    "EXECUTE": ("EXECUTE kept", "DEALLOCATE kept; PREPARE kept AS SELECT 'x'"),
    "FETCH": ("FETCH 1 FROM kept", "CLOSE kept; DECLARE kept CURSOR FOR SELECT 'x'"),
}


@pytest.mark.parametrize("case", CHANGED_PORTALS)
@pytest.mark.parametrize("again", [False, True], ids=["changed", "as described"])
def test_columns_that_change_between_bind_and_execute(
    shared: ServerProcess, shared_raw: Callable[[], Any], error_fields: Any, case: str, again: bool
) -> None:
    """An error of SQLSTATE 0A000, as the client would decode the rows by columns that it was told before."""
    bound, change = CHANGED_PORTALS[case]
    before = {"EXECUTE": "PREPARE kept AS SELECT 1", "FETCH": "DECLARE kept CURSOR FOR SELECT 1"}.get(
        case, ""
    )
    con = shared.connect()
    con.execute("CREATE TABLE changed (i int PRIMARY KEY, v int)")
    con.execute("CREATE STREAM changed_stream ON changed")
    con.execute("INSERT INTO changed VALUES (1, 2)")
    client = shared_raw()
    client.enter()
    try:
        if before:
            client.query(f"BEGIN; {before}")
        parse(client, bound, "s")
        bind(client, "p", "s")
        client.message("D", b"Ss\0")
        client.message("H")
        assert kinds(client.until("T")) == "12tT"
        if not again and before:
            assert kinds(client.query(change))[-1] == "Z"
        elif not again:
            con.execute(change)
        execute(client, "p")
        client.message("S")
        found = client.until("Z")
        if again:
            assert kinds(found) == "DCZ"
        else:
            assert kinds(found) == "EZ" and error_fields(found[0][1])["C"] == "0A000"
            assert error_fields(found[0][1])["M"] == "cached plan must not change result type"
            assert con.execute("SELECT i FROM changed").fetchall() == [(1,)]
    finally:
        client.socket.close()
        con.execute("DROP STREAM changed_stream CASCADE")
        con.execute("DROP TABLE changed")
        con.close()
