"""Nothing that one client sends keeps the event loop from the others: no step of it is long.

Each case is a request that is long, or slow to look through; another client asks `SELECT 1` all the while.
One bound is on the processor's time of the loop's thread, which a busy machine does not make longer. The
other is on the time of a step with all that it waits for: a call on another thread that holds Python's lock
is seen in it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import chosen
from server_process import ServerProcess
from watched_server import WORDS, Watched

Client = psycopg.Connection[Any]

# Of the loop's own work in one step; a thousand small requests are some ten milliseconds.
STEP_CPU_MAX_S = 0.25
# Of one step with all that it waits for, on a machine with two busy cores; more where others want them, too.
WAIT_MAX_S = 0.9
# The machine may stop a step at the wrong moment, a request that keeps the loop does so each time.
ATTEMPTS = 3
# Each starts a server and keeps it busy for a second or two.
CASES_IN_GATE = 7
# Between two questions of the other client.
PAUSE_S = 0.003
TEXT_CHARS = 5_000_000
STATEMENTS = 24
MEMORY_MAX_BYTES = 60 << 20
MEMORY_TIMEOUT_S = 60.0


def nested(size: int) -> str:
    """A JSON object of nested ones."""
    one = '{"a":' * 20 + "1" + "}" * 20
    return '{"x":[' + ",".join([one] * (size // (len(one) + 1))) + "]}"


def made(client: Client) -> None:
    client.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    client.execute("CREATE STREAM s ON t")
    client.execute("CREATE CONSUMER GROUP g ON s")


def simple(client: Client, text: str) -> None:
    """A Query, whatever it answers."""
    with client.cursor() as cursor:
        cursor.execute(text.encode(), prepare=False)


def refused(client: Client, sqlstate: str, text: str) -> None:
    with pytest.raises(psycopg.Error) as told:
        simple(client, text)
    assert told.value.sqlstate == sqlstate


def report(client: Client) -> None:
    # The second time its text is known: nothing of it may be done on the loop for that.
    for _ in range(2):
        refused(client, "54000", f"REPORT PIPELINE 'p' AS '{nested(1_000_000)}'")
    client.execute(f"REPORT PIPELINE 'p' AS '{nested(120_000)}'")


def annotation(client: Client) -> None:
    for _ in range(2):
        refused(client, "54000", f"SET ducktail.annotation = '{nested(1_000_000)}'")


def positions(client: Client) -> None:
    made(client)
    position = json.dumps({str(partition): 0 for partition in range(100_000)})
    refused(client, "22P02", f"SELECT * FROM STREAM s AFTER '{position}'")


def array(client: Client) -> None:
    given = "{" + "a," * 2_499_999 + "a}"
    assert client.execute("SELECT len(%s::text[])", (given,)).fetchone() == (2_500_000,)


def integers(client: Client) -> None:
    found = client.execute("SELECT list_sum(%s::int[])", ([1] * 500_000,)).fetchone()
    assert found == (500_000,)


def escapes(client: Client) -> None:
    text = r"SELECT length(E'" + r"\n\t" * (TEXT_CHARS // 4) + "')"
    assert client.execute(text, prepare=False).fetchone() == (TEXT_CHARS // 2,)


def comments(client: Client) -> None:
    simple(client, "-- line\n" * 750_000 + "SELECT 1")


def semicolons(client: Client) -> None:
    simple(client, ";" * 1_000_000 + "SELECT 1")


def literal(client: Client) -> None:
    for _ in range(2):
        simple(client, f"SELECT '{'x' * TEXT_CHARS}'")


def rows(client: Client) -> None:
    made(client)
    values = ",".join(f"({number},'x')" for number in range(100_000))
    inserted = client.execute(f"INSERT INTO t VALUES {values}", prepare=False)
    assert inserted.rowcount == 100_000


def in_list(client: Client) -> None:
    numbers = ",".join(map(str, range(500_000)))
    assert client.execute(f"SELECT 1 WHERE 5 IN ({numbers})", prepare=False).fetchone() == (1,)


def parameters(client: Client) -> None:
    marks = ",".join(["%s"] * 20_000)
    client.execute(f"SELECT 1 WHERE 5 IN ({marks})", list(range(20_000)), prepare=False)


def told_names(client: Client) -> None:
    client.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
    client.execute("CREATE USER eve PASSWORD 'x'")
    info = client.info
    with psycopg.connect(
        host=info.host, port=info.port, dbname=info.dbname, user="eve", password="x", autocommit=True
    ) as eve:
        refused(eve, "22000", "SELECT error(repeat(' of the table \"', 40000) || 'x')")


def told_by_merge(client: Client) -> None:
    made(client)
    source = "(SELECT 1 AS id, error(repeat('\\\"\\\"', 100000) || 'x') AS v)"
    merge = f"MERGE INTO t USING {source} n ON t.id = n.id WHEN NOT MATCHED THEN INSERT VALUES (n.id, n.v)"
    refused(client, "22000", merge)


def calls(client: Client) -> None:
    made(client)
    client.execute("INSERT INTO t VALUES (1, 'x')")
    client.execute(f"UPDATE t SET v = '{'a(' * 100_000}{'a' * 100_000}'", prepare=False)


CASES: dict[str, Callable[[Client], None]] = {
    case.__name__: case
    for case in (
        report, annotation, positions, array, integers, escapes, comments, semicolons, literal, rows, in_list,
        parameters, told_names, told_by_merge, calls,
    )
}  # fmt: skip


@contextmanager
def watching(path: Path) -> Iterator[Watched]:
    with ServerProcess(path, WORDS) as server:
        yield Watched(server)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with watching(tmp_path / "long.duckdb") as server:
        yield server


class Other:
    """Another client, which asks all the time; `longest_s` is how long it has waited for an answer."""

    def __init__(self, server: ServerProcess) -> None:
        self.longest_s, self.answers = 0.0, 0
        self._over = threading.Event()
        self._client = server.connect()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._over.wait(PAUSE_S):
            began_s = time.monotonic()
            assert self._client.execute("SELECT 1").fetchone() == (1,)
            self.longest_s, self.answers = max(self.longest_s, time.monotonic() - began_s), self.answers + 1

    def __enter__(self) -> Other:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


def longest_steps(path: Path, case: str) -> tuple[float, float]:
    """The longest step of a new server's loop while it answers a case: processor's time, and all of it."""
    with watching(path) as watched:
        with watched.server.connect() as client, Other(watched.server) as other:
            CASES[case](client)
        measured = watched.metrics()
    assert other.answers > 0
    cpu_s, wall_s = (measured["event_loop_longest_step_seconds", kind] for kind in ("cpu", "wall"))
    return cpu_s, wall_s


@pytest.mark.parametrize("case", chosen(list(CASES), CASES_IN_GATE, "long steps"))
def test_the_loop_makes_no_long_step(tmp_path: Path, case: str) -> None:
    measured = []
    for attempt in range(ATTEMPTS):
        cpu_s, wall_s = longest_steps(tmp_path / f"{attempt}.duckdb", case)
        measured.append((cpu_s, wall_s))
        share = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        if cpu_s < STEP_CPU_MAX_S and wall_s < WAIT_MAX_S * share:
            return
    pytest.fail(f"{case}: the longest steps took {measured} s (processor, all)")


def test_closed_statements_leave_no_memory(watched: Watched) -> None:
    """Prepared statements of 4 MB, with a stream scan or without: later ones have the place of closed ones.

    The allocator keeps some of what the first ones leave, so the growth is measured behind them.
    """
    server = watched.server
    with server.connect() as client:
        made(client)
        prepared_and_closed(client)
        before = resident(server)
        prepared_and_closed(client)
        deadline_s = time.monotonic() + MEMORY_TIMEOUT_S
        while resident(server) - before > MEMORY_MAX_BYTES:
            assert time.monotonic() < deadline_s, resident(server) - before
            client.execute("SELECT 1")


def prepared_and_closed(client: Client) -> None:
    """Prepare all statements, and close them together."""
    for number in range(STATEMENTS):
        scan = " FROM STREAM s AFTER 0" if number % 2 else ""
        text = f"SELECT {number}, '{'x' * 4_000_000}'{scan}"
        assert client.pgconn.prepare(b"p%d" % number, text.encode()).status == 1
    client.execute("DEALLOCATE ALL")


def resident(server: ServerProcess) -> int:
    """Bytes of memory that a server has of the system."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
