"""The server in a thread of a process that holds the database itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import AdminShutdown, InvalidAuthorization, IoError
from ducktail.pgwire_gateway import serve_in_thread
from ducktail.pgwire_gateway.catalog import installation


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An open database called shop."""
    database = Database.open(str(tmp_path / "shop.duckdb"))
    yield database
    database.close()


def test_serves_and_stops(database: Database) -> None:
    server = serve_in_thread(database)
    assert server.address == (server.host, server.port)
    with psycopg.connect(host=server.host, port=server.port, dbname="shop", user="ann") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        server.stop()
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    server.stop()
    again = serve_in_thread(database, port=server.port)
    again.close()


def test_a_port_that_is_taken(database: Database) -> None:
    server = serve_in_thread(database)
    with pytest.raises(IoError, match="in use"):
        serve_in_thread(database, port=server.port)
    server.stop()


def test_loopback_only(database: Database) -> None:
    with pytest.raises(InvalidAuthorization, match="loopback"):
        serve_in_thread(database, host="0.0.0.0")


def test_a_session_that_is_terminated_is_told_of_no_cancel(database: Database) -> None:
    """The event loop is busy, so that the cancelled call ends before the loop ends the session."""
    server = serve_in_thread(database)
    with psycopg.connect(host=server.host, port=server.port, dbname="shop", user="ann") as connection:
        session = installation._sessions[connection.info.backend_pid]
        failed: list[psycopg.Error] = []

        def run() -> None:
            with pytest.raises(psycopg.Error) as told:
                connection.execute("SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8")
            failed.append(told.value)

        client, free = threading.Thread(target=run), threading.Event()
        client.start()
        while not session.guard.running:
            pass
        server._loop.call_soon_threadsafe(free.wait)
        assert session.on_ended is not None
        session.on_ended(AdminShutdown("terminating connection due to administrator command"))
        # A cancel that comes before DuckDB has begun finds nothing: it is repeated.
        while session.guard.running:
            session.cancel()
        free.set()
        client.join()
    assert [error.sqlstate for error in failed] == ["57P01"]
    server.stop()


def test_a_small_query_costs_one_change_of_threads(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops: list[object] = []
    submit = ThreadPoolExecutor.submit

    def counting(self: ThreadPoolExecutor, *arguments: object) -> object:
        hops.append(arguments[0])
        return submit(self, *arguments)  # type: ignore[arg-type]

    server = serve_in_thread(database)
    with psycopg.connect(host=server.host, port=server.port, dbname="shop", user="ann") as connection:
        connection.autocommit = True
        monkeypatch.setattr(ThreadPoolExecutor, "submit", counting)
        for query in (b"SELECT 1", b"SELECT count(*) FROM range(10)"):
            hops.clear()
            assert connection.pgconn.exec_(query).ntuples == 1
            assert len(hops) == 1
        hops.clear()
        assert connection.pgconn.exec_params(b"SELECT $1::int", [b"1"]).ntuples == 1
        assert len(hops) == 1
        monkeypatch.undo()
    server.stop()
