"""500 connections to one server: 450 are idle or stuck at every place there is, the other 50 are served.

What is stuck holds a session perhaps, but no thread, no lock that others want, and nothing once it is gone.
"""

from __future__ import annotations

import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certificates
import psycopg
import pytest
from server_process import ServerProcess
from wire_messages import Written

from ducktail.pgwire_gateway.conversation.row_transfer import CORES

Raw = Any
written = Written()

EACH = 30
EVENTS = 50
USER = {"user": "worker", "password": "a password"}
WORKERS = 50
# All of them, on a machine that does other things too; a server that serves only some never ends.
SERVED_S_MAX = 30.0
GONE_S_MAX = 20.0
# Who is not let in may be as late as the test takes: it is not the time-out that is tried here.
OPTIONS = {
    "max-connections": "600",
    "connections-starting-max": "600",
    "authentication-timeout-ms": "300000",
    "idle-in-transaction-session-timeout-ms": "0",
}
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
STARTUP = written.startup()


def client_hello() -> bytes:
    context, outgoing = ssl.create_default_context(), ssl.MemoryBIO()
    side = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()


HELLO = client_hello()


def entered(raw: Raw, data: bytes, last: str = "Z") -> None:
    """Come in, say something, and wait for as much of the answer as there will be."""
    raw.enter()
    raw.send(data)
    if last:
        assert raw.until(last)[-1][0] == last


def asked_for_tls(raw: Raw) -> None:
    raw.send(SSL_REQUEST)
    assert raw.read(1) == b"S"
    raw.send(HELLO[:50])


# Where a client can stand still; those of the second list have no session. Others wait for a lock.
PLACES: dict[str, Callable[[Raw], None]] = {
    "idle": lambda raw: entered(raw, b"", ""),
    "in a transaction": lambda raw: entered(raw, written.query("BEGIN; SELECT count(*) FROM plain")),
    "in a failed one": lambda raw: entered(raw, written.query("BEGIN; SELECT nothing")),
    "in a message": lambda raw: entered(raw, written.query("SELECT 1") + written.query("SELECT 2")[:9]),
    "in a COPY": lambda raw: entered(
        raw, written.query("COPY plain FROM STDIN") + written.message("d", b"1\n" * 1000), "G"
    ),
    "at a suspended portal": lambda raw: entered(
        raw,
        written.query("BEGIN") + written.parse("SELECT * FROM range(100000)") + written.bind()
        + written.execute(max_rows=2) + written.flush,
        "s",
    ),
    "before its Sync": lambda raw: entered(raw, written.parse("SELECT 1") + written.flush, "1"),
    "not reading": lambda raw: entered(
        raw, written.query("SELECT repeat('x', 1000) FROM range(1000000)"), "T"
    ),
    "listening": lambda raw: entered(raw, written.query("LISTEN s")),
}  # fmt: skip
OUTSIDE: dict[str, Callable[[Raw], None]] = {
    "before startup": lambda raw: None,
    "in the startup packet": lambda raw: raw.send(STARTUP[:20]),
    "in a TLS handshake": asked_for_tls,
    "in a direct one": lambda raw: raw.send(HELLO[:50]),
}


def in_sasl(raw: Raw) -> None:
    raw.send(STARTUP)
    assert raw.answer()[0] == "R"


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[ServerProcess]:
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    tls = certificates.make(tmp_path).options
    with ServerProcess(tmp_path / "ducktail.duckdb", ("--port", "0", *options, *tls)) as made:
        yield made


class Worker:
    """A client that works: simple, extended, writes, and reads of the stream with commits."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        self.problem: BaseException | None = None
        self.served = False
        self._server, self._number = server, number
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._server.connect(**USER, connect_timeout=60) as con:
                self._work(con)
            self.served = True
        except BaseException as error:
            self.problem = error

    def _work(self, con: psycopg.Connection[Any]) -> None:
        n, found = self._number, []
        assert psycopg.ClientCursor(con).execute(f"SELECT {n} + 1").fetchall() == [(n + 1,)]
        query = "SELECT i * %s FROM range(50) r(i)"
        for _ in range(3):
            assert con.execute(query, (n,), prepare=True).fetchall() == [(i * n,) for i in range(50)]
        con.execute("INSERT INTO plain VALUES (%s)", (n,))
        read = f"SELECT (after->>'i')::INTEGER, after->>'v' FROM STREAM s CONSUMER GROUP g{n} LIMIT 20"
        while rows := con.execute(read).fetchall():
            con.execute(f"COMMIT OFFSETS ON s CONSUMER GROUP g{n}")
            found += rows
        assert found == [(i, f"v{i}") for i in range(EVENTS)]


def held(server: ServerProcess, what: str) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/{what}").iterdir()))


@pytest.mark.slow
def test_the_others_are_served(wide: ServerProcess, raw_to: Callable[[ServerProcess], Raw]) -> None:
    with wide.connect() as con:
        for text in (
            "CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)",
            "CREATE STREAM s ON t WITH (partitions = 1)",
            "CREATE TABLE plain (i INTEGER)",
            f"INSERT INTO t SELECT i, 'v' || i FROM range({EVENTS}) r(i)",
            *(f"CREATE CONSUMER GROUP g{number} ON s" for number in range(WORKERS)),
        ):
            con.execute(text)
        files, threads = held(wide, "fd"), held(wide, "task")
        stuck: list[Raw] = []
        for place in (PLACES | OUTSIDE).values():
            for _ in range(EACH):
                stuck.append(raw_to(wide))
                place(stuck[-1])
        con.execute("CREATE USER worker PASSWORD 'a password' SUPERUSER")
        for _ in range(EACH):
            stuck.append(raw_to(wide))
            in_sasl(stuck[-1])
        holder = wide.connect(**USER, autocommit=False)
        holder.execute("INSERT INTO t VALUES (-1, 'held')")
        waiting = [wide.connect(**USER, options="-c lock_timeout=10min") for _ in range(EACH)]
        for number, waiter in enumerate(waiting):
            waiter.pgconn.send_query(f"INSERT INTO t VALUES ({1000 + number}, 'waited')".encode())
        count = "SELECT count(*) FROM ducktail.sessions"
        assert con.execute(count).fetchall() == [(EACH * (len(PLACES) + 1) + 2,)]
        start = time.monotonic()
        workers = [Worker(wide, number) for number in range(WORKERS)]
        for worker in workers:
            worker.thread.join(max(0.0, start + SERVED_S_MAX - time.monotonic()))
        problems = [worker.problem for worker in workers if worker.problem is not None]
        if problems:
            raise problems[0]
        assert [worker.served for worker in workers] == [True] * WORKERS
        print(f"served in {time.monotonic() - start:.1f} s")
        at_lock = "SELECT count(*) FROM ducktail.sessions WHERE writer_lock = 'waits'"
        assert con.execute(at_lock).fetchall() == [(EACH,)]
        holder.close()
        for waiter in waiting:
            while (result := waiter.pgconn.get_result()) is not None:
                assert result.command_tuples == 1
            waiter.close()
        for number, raw in enumerate(stuck):
            raw.vanish() if number % 2 else raw.socket.close()
        deadline = time.monotonic() + GONE_S_MAX
        while con.execute(count).fetchall() != [(1,)] or held(wide, "fd") > files:
            assert time.monotonic() < deadline, "something of the stuck is left"
        # The workers, and the encoders of large results: one a core.
        assert held(wide, "task") <= threads + 16 + CORES
        assert con.execute("SELECT count(*) FROM t").fetchall() == [(EVENTS + EACH,)]
        assert con.execute("SELECT count(*) FROM plain").fetchall() == [(WORKERS,)]
    assert not [line for line in wide.lines if "ERROR" in line or "Traceback" in line]
