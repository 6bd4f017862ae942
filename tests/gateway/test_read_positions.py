"""A read position says what its reader has been answered, and nothing of an answer that broke off."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess
from wire_messages import Written

# Larger than what a server and the sockets hold of an answer that nobody takes.
ROWS = 60_000
READ = "SELECT lsn, after FROM STREAM s CONSUMER GROUP g"
OF_MEMBER = "CONSUMER GROUP g MEMBER 'm'"


@pytest.fixture
def stream(server: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    with server.connect() as connection:
        connection.execute("CREATE TABLE t(id int PRIMARY KEY, v varchar)")
        connection.execute("CREATE STREAM s ON t")
        connection.execute("CREATE CONSUMER GROUP g ON s")
        connection.execute(f"INSERT INTO t SELECT range, repeat('x', 500) FROM range({ROWS})")
        connection.execute("SELECT count(*) FROM STREAM s")
        yield connection


def position(connection: psycopg.Connection[Any], of: str = OF_MEMBER) -> dict[str, int]:
    row = connection.execute(f"SHOW READ POSITION ON s {of}").fetchone()
    assert row is not None
    found: dict[str, int] = row[0] if isinstance(row[0], dict) else json.loads(row[0])
    return found


def alone(connection: psycopg.Connection[Any]) -> None:
    """Come back once the server has ended all other sessions."""
    for _ in itertools.count():
        if connection.execute("SELECT count(*) FROM ducktail.sessions").fetchone() == (1,):
            return


def some_rows(client: Any, count: int) -> None:
    kinds = (client.answer()[0] for _ in itertools.count())
    taken = sum(1 for _ in itertools.islice((kind for kind in kinds if kind == "D"), count))
    assert taken == count


def cancel(client: Any, told: dict[str, str]) -> None:
    """Cancel what a session does, and come back once the server has taken it."""
    client.packet(80877102, struct.pack("!i", int(told["pid"])) + bytes.fromhex(told["secret"]))
    assert client.read(1) == b""


@pytest.mark.parametrize("where", ["", "WHERE op = 'insert' AND lsn % 2 >= 0"])
def test_an_answer_that_breaks_off_sets_no_position(
    stream: psycopg.Connection[Any], raw: Callable[[], Any], where: str
) -> None:
    client = raw()
    client.enter()
    client.message("Q", f"{READ} MEMBER 'm' {where}\0".encode())
    some_rows(client, 5)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        position(stream)
    client.vanish()
    alone(stream)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        stream.execute(f"COMMIT OFFSETS ON s {OF_MEMBER}")
    # Nothing was skipped.
    assert stream.execute(f"SELECT count(*) FROM STREAM s {OF_MEMBER}").fetchone() == (ROWS,)


def test_an_earlier_position_stays_where_a_later_answer_breaks_off_before_its_first_row(
    stream: psycopg.Connection[Any], raw: Callable[[], Any]
) -> None:
    stream.execute(f"SELECT lsn FROM STREAM s {OF_MEMBER} LIMIT 5").fetchall()
    before = position(stream)
    client = raw()
    client.enter()
    client.message("Q", f"SELECT lsn FROM STREAM s {OF_MEMBER} AFTER {10 * ROWS} WAIT '1 h'\0".encode())
    client.vanish()
    alone(stream)
    assert position(stream) == before


def test_a_cancelled_answer_sets_no_position(stream: psycopg.Connection[Any], raw: Callable[[], Any]) -> None:
    client = raw()
    told = client.enter()
    client.message("Q", READ.encode() + b"\0")
    some_rows(client, 5)
    cancel(raw(), told)
    assert "E" in [kind for kind, _ in client.until("Z")]
    assert "E" in [kind for kind, _ in client.query("COMMIT OFFSETS ON s CONSUMER GROUP g")]


@pytest.mark.parametrize(("function", "sqlstate"), [("cancel", "57014"), ("terminate", "57P01")])
def test_an_answer_that_waits_for_its_client_is_cancelled_by_another_session(
    stream: psycopg.Connection[Any], raw: Callable[[], Any], error_fields: Any, function: str, sqlstate: str
) -> None:
    client = raw()
    told = client.enter()
    client.message("Q", READ.encode() + b"\0")
    some_rows(client, 5)
    assert stream.execute(f"SELECT pg_{function}_backend(%s)", [int(told["pid"])]).fetchone() == (True,)
    kind, body = next(found for found in iter(client.answer, None) if found[0] in "EC")
    assert kind == "E" and error_fields(body)["C"] == sqlstate


def test_a_session_that_cancels_itself_cancels_that_statement_and_no_other(raw: Callable[[], Any]) -> None:
    client = raw()
    client.enter()
    for _ in range(100):
        assert "E" in [kind for kind, _ in client.query("SELECT pg_cancel_backend(pg_backend_pid())")]
        assert "E" not in [kind for kind, _ in client.query("SELECT count(*) FROM range(10)")]


def test_a_portal_that_is_closed_keeps_what_was_suspended(
    stream: psycopg.Connection[Any], raw: Callable[[], Any]
) -> None:
    (fifth,) = stream.execute("SELECT lsn FROM STREAM s LIMIT 1 OFFSET 4").fetchone() or ()
    client = raw()
    client.enter()
    written = Written()
    client.send(written.parse(f"{READ} MEMBER 'm'"))
    client.send(written.bind() + written.execute(max_rows=5) + written.close("P") + written.sync)
    assert "s" in [kind for kind, _ in client.until("Z")]
    assert max(position(stream).values()) == fifth


def test_a_cursor_whose_fetch_breaks_off_gives_no_more(
    stream: psycopg.Connection[Any], raw: Callable[[], Any]
) -> None:
    client = raw()
    told = client.enter()
    client.query(f"DECLARE c CURSOR WITH HOLD FOR {READ} MEMBER 'm'")
    assert "E" not in [kind for kind, _ in client.query("FETCH 5 FROM c")]
    assert position(stream)
    client.message("Q", b"FETCH ALL FROM c\0")
    some_rows(client, 5)
    cancel(raw(), told)
    assert "E" in [kind for kind, _ in client.until("Z")]
    assert "E" in [kind for kind, _ in client.query("FETCH 5 FROM c")]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        position(stream)
