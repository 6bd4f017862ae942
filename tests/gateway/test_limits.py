"""The bounds that an operator sets: connections, messages, statements, portals; who is told to stop."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

LIMITS = {
    "max-connections": "3",
    "connections-starting-max": "2",
    "authentication-timeout-ms": "700",
    "unauthenticated-bytes-max": "1000",
    "message-bytes-max": "100000",
    "statements-max": "3",
    "portals-max": "2",
    "spool-memory-bytes-max": "1048576",
    "spool-bytes-max": "1048576",
}
Fields = Callable[[bytes], dict[str, str]]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with little room."""
    options = [word for name, value in LIMITS.items() for word in (f"--{name}", value)]
    path = tmp_path_factory.mktemp("narrow") / "ducktail.duckdb"
    with ServerProcess(path, ("--port", "0", *options)) as server:
        yield server


@pytest.fixture
def enter(narrow: ServerProcess, raw_to: Callable[[ServerProcess], Any]) -> Callable[[], Any]:
    def make() -> Any:
        client = raw_to(narrow)
        client.enter()
        return client

    return make


def leave(client: Any) -> None:
    client.message("X")
    assert client.answer() is None


def parse(client: Any, name: str) -> str:
    client.message("P", name.encode() + b"\0select 1\0" + bytes(2))
    client.message("S")
    return "".join(kind for kind, _ in client.until("Z"))


def test_too_many_connections(narrow: ServerProcess, enter: Callable[[], Any]) -> None:
    clients = [enter() for _ in range(3)]
    with pytest.raises(psycopg.OperationalError) as found:
        narrow.connect()
    assert "too many clients" in str(found.value)
    for client in clients:
        leave(client)
    leave(enter())


def test_too_many_that_are_not_in_yet(
    narrow: ServerProcess, raw_to: Callable[[ServerProcess], Any], enter: Callable[[], Any]
) -> None:
    """The third is cut, and so are the others in time; who is in notices nothing."""
    inside = enter()
    silent = [raw_to(narrow) for _ in range(2)]
    assert raw_to(narrow).answer() is None
    assert inside.query("select 1")[-1] == ("Z", b"I")
    assert [client.answer() for client in silent] == [None, None]
    leave(inside)


def test_a_long_message_before_and_after(
    narrow: ServerProcess,
    raw_to: Callable[[ServerProcess], Any],
    enter: Callable[[], Any],
    error_fields: Fields,
) -> None:
    client = raw_to(narrow)
    client.send(struct.pack("!iI", 1001, 3 << 16))
    kind, body = client.answer()
    assert (kind, error_fields(body)["C"]) == ("E", "08P01")
    client = enter()
    assert client.query("select '" + "x" * 99_000 + "'")[-1] == ("Z", b"I")
    client.send(b"Q" + struct.pack("!i", 100_001))
    kind, body = client.answer()
    assert (kind, error_fields(body)["C"]) == ("E", "08P01")
    assert client.answer() is None


def test_too_many_statements_and_portals(enter: Callable[[], Any], error_fields: Fields) -> None:
    client = enter()
    assert [parse(client, name) for name in "abc"] == ["1Z"] * 3
    assert parse(client, "d") == "EZ"
    client.query("deallocate a")
    assert parse(client, "d") == "1Z"
    for name in "abc":
        assert client.query(f"prepare {name} as select 1")[0][0] == "C"
    kind, body = client.query("prepare d as select 1")[0]
    assert (kind, error_fields(body)["C"]) == ("E", "54000")
    client.query("begin")
    for name in "ab":
        assert client.query(f"declare {name} cursor for select 1")[0][0] == "C"
    kind, body = client.query("declare c cursor for select 1")[0]
    assert (kind, error_fields(body)["C"]) == ("E", "54000")
    leave(client)


def test_too_large_a_rest_is_told(enter: Callable[[], Any], error_fields: Fields) -> None:
    client = enter()
    client.query("begin")
    client.query("declare c cursor for select repeat('x', 1000) from range(100000)")
    assert client.query("fetch 10 c")[-2] == ("C", b"FETCH 10\0")
    kind, body = client.query("select 1")[0]
    assert (kind, error_fields(body)["C"]) == ("E", "53200")
    leave(client)


def test_a_parameter_that_no_message_can_count(shared_raw: Callable[[], Any], error_fields: Fields) -> None:
    client = shared_raw()
    client.enter()
    for number, found in ((65_535, "1tTZ"), (65_536, "EZ"), (2_000_000_000, "EZ")):
        client.message("P", f"\0select ${number}\0".encode() + bytes(2))
        client.message("D", b"S\0")
        client.message("S")
        answers = client.until("Z")
        assert "".join(kind for kind, _ in answers) == found
        if found == "EZ":
            assert error_fields(answers[0][1])["C"] == "42P02"


SLOW = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8"


def test_pg_cancel_backend_and_pg_terminate_backend(shared: ServerProcess) -> None:
    with shared.connect() as working, shared.connect() as other:
        pid = working.info.backend_pid
        for function, error in (
            ("pg_cancel_backend", psycopg.errors.QueryCanceled),
            ("pg_terminate_backend", psycopg.errors.AdminShutdown),
        ):
            failed: list[BaseException] = []

            def run(failed: list[BaseException] = failed) -> None:
                try:
                    working.execute(SLOW)
                except psycopg.Error as found:
                    failed.append(found)

            thread = threading.Thread(target=run)
            thread.start()
            active = "SELECT state FROM ducktail.sessions WHERE session_id = %s"
            while other.execute(active, [pid]).fetchall() != [("active",)]:
                pass
            # A cancel that comes before DuckDB has begun finds nothing: it is repeated.
            while thread.is_alive():
                other.execute(f"SELECT {function}(%s)", [pid])
                thread.join(0.1)
            assert isinstance(failed[0], error), failed
        while other.execute("SELECT pg_cancel_backend(%s)", [pid]).fetchall() != [(False,)]:
            pass
        assert other.execute("SELECT 1").fetchall() == [(1,)]


def test_statement_timeout_ends_a_query_and_its_rows(shared: ServerProcess) -> None:
    with shared.connect() as con:
        con.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            con.execute(SLOW)
        con.execute("RESET statement_timeout")
        assert con.execute("SELECT 1").fetchall() == [(1,)]


def test_a_fault_of_ours_leaves_the_connection_open(serve: Callable[..., ServerProcess]) -> None:
    with serve().connect() as connection:
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            connection.execute(f"PREPARE p AS SELECT ${'9' * 5000}")
        assert connection.execute("SELECT 1").fetchone() == (1,)
