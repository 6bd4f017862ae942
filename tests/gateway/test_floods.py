"""Promise 13: a client that sends without end, or reads nothing, costs the others no time and no memory.

Each flood is as cheap to send, and as dear to answer, as could be thought of. A neighbour asks for a constant
meanwhile. How long one client may keep the event loop is tried in tests/wire; here it is that nothing hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess
from wire_messages import Written

written = Written()
WIDE = "SELECT " + ",".join(f"1 AS a{i}" for i in range(1500))
# Some tenths on a machine that does nothing else.
GAP_S_MAX = 5.0
GROWN_BYTES_MAX = 150 << 20
WATCHED_S = 1.0

FLOODS = {
    "syncs": written.sync * 300_000,
    "passed over": written.bind("", "missing") + written.flush * 300_000,
    "rows of a COPY that is none": written.message("d") * 300_000,
    "descriptions": written.parse(WIDE, "w") + written.describe("S", "w") * 40_000,
    "descriptions of no rows": written.query(f"{WIDE} LIMIT 0;" * 300),
    "a long text": written.query("VALUES " + ",".join(["(1,'abcdefgh')"] * 60_000)),
    "many parameters": written.parse("SELECT $65535", "p") + written.bind("", "p", (None,) * 65_535) * 20,
}  # fmt: skip
# Tokens and values of a long text are what it takes to cut and run it: some 85 bytes a character.
LONG_TEXTS = ("descriptions of no rows", "a long text")


def memory(server: ServerProcess) -> int:
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


class Neighbour:
    """Asks for a constant all the time, on a thread of its own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.gap_s = 0.0
        self.asked = 0
        self._connection = connection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            start = time.monotonic()
            assert self._connection.execute("SELECT %s::INT", (self.asked,)).fetchall() == [(self.asked,)]
            self.gap_s = max(self.gap_s, time.monotonic() - start)
            self.asked += 1


@pytest.fixture
def neighbour(shared: ServerProcess) -> Iterator[Neighbour]:
    with shared.connect() as connection:
        made = Neighbour(connection)
        yield made
        made.stop()


@pytest.mark.parametrize("name", FLOODS)
def test_flood(shared: ServerProcess, shared_raw: Callable[[], Any], neighbour: Neighbour, name: str) -> None:
    client = shared_raw()
    client.enter()
    before = memory(shared)
    sending = threading.Thread(target=send, args=(client, FLOODS[name]))
    sending.start()
    peak, end = before, time.monotonic() + WATCHED_S
    while time.monotonic() < end:
        peak = max(peak, memory(shared))
        neighbour._stop.wait(0.01)
    client.vanish()
    sending.join()
    asked = neighbour.asked
    while neighbour.asked < asked + 10:
        assert shared.process.poll() is None
    assert neighbour.gap_s < GAP_S_MAX
    assert peak - before < GROWN_BYTES_MAX * (4 if name in LONG_TEXTS else 1)


def send(client: Any, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        pass  # It has vanished meanwhile.


def test_an_answer_comes_while_the_next_request_is_at_work(shared_raw: Callable[[], Any]) -> None:
    client = shared_raw()
    told = client.enter()
    slow = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8"
    client.send(written.query("SELECT 41 + 1") + written.query(slow))
    assert [kind for kind, _ in client.until("Z")] == ["T", "D", "C", "Z"]
    other = shared_raw()
    other.packet(1234 << 16 | 5678, int(told["pid"]).to_bytes(4, "big") + bytes.fromhex(told["secret"]))
    assert [kind for kind, _ in client.until("Z")] == ["E", "Z"]
