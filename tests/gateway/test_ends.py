"""How connections end: clients that vanish or stall, cancels, shutdown, bytes that make no sense."""

from __future__ import annotations

import signal
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import COMMAND, ServerProcess

SLOW = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8"


def test_a_client_that_vanishes_in_a_transaction_is_rolled_back(
    server: ServerProcess, raw: Callable[[], Any]
) -> None:
    with server.connect() as connection:
        connection.execute("CREATE TABLE t(id int PRIMARY KEY)")
        connection.execute("CREATE STREAM s ON t")
        client = raw()
        client.enter()
        client.query("BEGIN; INSERT INTO t VALUES (1)")
        client.vanish()
        # The writer lock is free as soon as the server has seen it; else this would be 55P03.
        connection.execute("INSERT INTO t VALUES (2)")
        assert connection.execute("SELECT id FROM t").fetchall() == [(2,)]


def loads_duckdb(pid: int, _: Path) -> bool:
    """It has loaded DuckDB, and has a second's work before it opens a file."""
    return "duckdb" in Path(f"/proc/{pid}/maps").read_text()


def opens_its_file(_: int, path: Path) -> bool:
    return path.exists()


@pytest.mark.parametrize("reached", [loads_duckdb, opens_its_file])
def test_a_sighup_while_the_server_starts_does_not_end_it(
    tmp_path: Path, reached: Callable[[int, Path], bool]
) -> None:
    path = tmp_path / "starting.duckdb"
    command = [str(COMMAND), "serve", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            while not reached(process.pid, path):
                assert process.poll() is None
            process.send_signal(signal.SIGHUP)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on")
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_client_that_vanishes_while_it_waits_for_the_lock(
    server: ServerProcess, raw: Callable[[], Any]
) -> None:
    with server.connect() as holder, server.connect() as other:
        holder.execute("CREATE TABLE t(id int PRIMARY KEY)")
        holder.execute("CREATE STREAM s ON t")
        holder.execute("BEGIN")
        holder.execute("INSERT INTO t VALUES (1)")
        client = raw()
        client.enter()
        client.message("Q", b"INSERT INTO t VALUES (2)\0")
        client.vanish()
        holder.execute("COMMIT")
        other.execute("INSERT INTO t VALUES (3)")
        # Its row may have come first or never; what counts is that nobody waits for it.
        assert (3,) in other.execute("SELECT id FROM t").fetchall()


def test_a_client_that_vanishes_while_its_query_runs(
    serve: Callable[..., ServerProcess], raw_to: Any
) -> None:
    """With one worker thread, the next client is served only once that query has been stopped."""
    server = serve(options=("--port", "0", "--worker-threads", "1"))
    client = raw_to(server)
    client.enter()
    client.message("Q", SLOW.encode() + b"\0")
    client.vanish()
    with server.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_cancel_wants_the_secret(server: ServerProcess, raw: Callable[[], Any], error_fields: Any) -> None:
    client = raw()
    told = client.enter()
    pid, secret = struct.pack("!i", int(told["pid"])), bytes.fromhex(told["secret"])
    client.message("Q", SLOW.encode() + b"\0")
    for body in (
        pid + b"\0\0\0\0",
        struct.pack("!i", int(told["pid"]) + 1) + secret,
        pid + secret + b"x",
        pid,
    ):
        other = raw()
        other.packet(80877102, body)
        assert other.read(1) == b""
    client.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.read(1)
    client.socket.settimeout(20)
    other = raw()
    other.packet(80877102, pid + secret)
    assert other.read(1) == b""
    (kind, body), (ready, _) = client.until("Z")
    assert (kind, error_fields(body)["C"], ready) == ("E", "57014", "Z")


def test_a_session_that_waits_for_the_lock_is_cancelled(server: ServerProcess) -> None:
    with server.connect() as holder, server.connect() as waiter:
        holder.execute("CREATE TABLE t(id int PRIMARY KEY)")
        holder.execute("CREATE STREAM s ON t")
        holder.execute("BEGIN")
        holder.execute("INSERT INTO t VALUES (1)")
        timer = threading.Timer(0.3, waiter.cancel_safe)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            waiter.execute("INSERT INTO t VALUES (2)")
        timer.join()
        holder.execute("COMMIT")
        waiter.execute("INSERT INTO t VALUES (3)")
        assert waiter.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (3,)]


def test_waiting_sessions_hold_no_thread(serve: Callable[..., ServerProcess]) -> None:
    server = serve(options=("--port", "0", "--worker-threads", "2"))
    with server.connect() as holder:
        holder.execute("CREATE TABLE t(id int PRIMARY KEY)")
        holder.execute("CREATE STREAM s ON t")
        holder.execute("BEGIN")
        holder.execute("INSERT INTO t VALUES (0)")
        waiters = [server.connect() for _ in range(10)]
        threads = [
            threading.Thread(target=waiter.execute, args=("INSERT INTO t VALUES (%s)", (number,)))
            for number, waiter in enumerate(waiters, start=1)
        ]
        for thread in threads:
            thread.start()
        assert holder.execute("SELECT count(*) FROM t").fetchone() == (1,)
        holder.execute("COMMIT")
        for thread in threads:
            thread.join(20)
        assert holder.execute("SELECT count(*) FROM t").fetchone() == (11,)
        for waiter in waiters:
            waiter.close()


def test_a_client_that_reads_nothing_costs_bounded_memory(
    server: ServerProcess, raw: Callable[[], Any]
) -> None:
    """Promise 11: rows are computed no further than the client takes them."""

    def resident_mb() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    client = raw()
    client.enter()
    with server.connect() as other:
        other.execute("SELECT 1")
        before = resident_mb()
        # 4 GB of rows.
        client.message("Q", b"SELECT range, repeat('x', 1000) FROM range(4000000)\0")
        assert client.answer()[0] == "T"
        for _ in range(200):
            other.execute("SELECT sum(range) FROM range(100000)").fetchone()
        assert resident_mb() - before < 300
        client.vanish()
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_session_that_idles_in_a_transaction_is_told_and_ended(
    serve: Callable[..., ServerProcess], raw_to: Any, error_fields: Any
) -> None:
    server = serve(options=("--port", "0", "--idle-in-transaction-session-timeout-ms", "300"))
    idler, other = raw_to(server), raw_to(server)
    idler.enter()
    other.enter()
    idler.query("CREATE TABLE t(id int PRIMARY KEY)")
    idler.query("CREATE STREAM s ON t")
    idler.query("BEGIN; INSERT INTO t VALUES (1)")
    # Its end gives the lock to who waits for it.
    assert [kind for kind, _ in other.query("INSERT INTO t VALUES (2)")] == ["C", "Z"]
    ((kind, body),) = idler.until("Z")
    assert (kind, error_fields(body)["S"], error_fields(body)["C"]) == ("E", "FATAL", "25P03")
    assert idler.answer() is None


def test_shutdown_tells_every_session(
    server: ServerProcess, raw: Callable[[], Any], error_fields: Any
) -> None:
    clients = [raw() for _ in range(3)]
    for client in clients:
        client.enter()
    clients[1].query("BEGIN; CREATE TABLE t(id int)")
    waiting = threading.Thread(target=server.stop)
    waiting.start()
    for client in clients:
        ((kind, body),) = client.until("Z")
        assert (kind, error_fields(body)["S"], error_fields(body)["C"]) == ("E", "FATAL", "57P01")
        assert client.answer() is None
    waiting.join(30)
    assert server.process.returncode == 0


def test_shutdown_lets_a_running_statement_finish(server: ServerProcess, raw: Callable[[], Any]) -> None:
    client = raw()
    client.enter()
    client.query("CREATE TABLE t(id int)")
    client.message("Q", b"INSERT INTO t SELECT range FROM range(20000000)\0")
    # The server reads a connection's bytes in order: once another session answers, this one runs.
    with server.connect() as other:
        other.execute("SELECT 1")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        kinds = [kind for kind, _ in client.until("Z")]
    stopping.join(30)
    assert kinds[0] == "C" and server.process.returncode == 0


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 64, b"Q\xff\xff\xff\xff", b"\x7fhello", b"S\0\0\0\1", b"D\0\0\0\x07X\0\0"],
    ids=["zeros", "negative length", "unknown type", "short length", "bad subtype"],
)
def test_bytes_that_make_no_sense_end_that_connection_only(
    raw: Callable[[], Any], error_fields: Any, data: bytes
) -> None:
    neighbour, client = raw(), raw()
    neighbour.enter()
    client.enter()
    client.send(data)
    ((kind, body),) = client.until("Z")
    assert (kind, error_fields(body)["S"], error_fields(body)["C"]) == ("E", "FATAL", "08P01")
    assert client.answer() is None
    assert [kind for kind, _ in neighbour.query("SELECT 1")] == ["T", "D", "C", "Z"]


def test_a_half_message_is_waited_for(raw: Callable[[], Any]) -> None:
    client = raw()
    client.enter()
    for byte in b"Q\0\0\0\x0dSELECT 1\0":
        client.send(bytes([byte]))
    assert [kind for kind, _ in client.until("Z")] == ["T", "D", "C", "Z"]
