"""EventSource as browsers and node have it: it connects again by itself, with the id of its last message.

A headless Chromium and a node process follow one stream from its first event, on an address that says so
(`after=0`): without Last-Event-ID each restart of the server would repeat all events.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from amounts import amount
from cluster_processes import free_ports
from headless_chromium import headless_chromium
from playwright.sync_api import Page
from server_process import ServerProcess

pytestmark = [pytest.mark.node, pytest.mark.chromium]

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "clients" / "node" / "event_source.cjs"
MODULES = ROOT / "build" / "node" / "node_modules"
EVENTS = "/v1/streams/s/events?after=0"
# A restart takes some seconds on a busy machine, and a client tries again each second.
HEARD_S = 60.0
# Events that each client receives between two kills.
ROUND_EVENTS = 40

LISTEN = """address => {
    window.heard = [];
    window.opened = 0;
    window.failures = [];
    const source = new EventSource(address);
    source.onopen = () => { window.opened += 1; };
    source.onmessage = (message) => window.heard.push([message.lastEventId, JSON.parse(message.data).lsn]);
    source.addEventListener("failure", (message) => window.failures.push(message.data));
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) window.failures.push("closed"); };
}"""


class InBrowser:
    """The EventSource of a page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.set_default_timeout(HEARD_S * 1000)
        page.evaluate(LISTEN, EVENTS)

    def wait(self, count: int) -> None:
        """Wait until so many messages have come."""
        enough = "count => window.heard.length >= count || window.failures.length"
        self._page.wait_for_function(enough, arg=count, polling=20)

    def found(self) -> tuple[list[tuple[str, int]], int, list[str]]:
        """The id and the LSN of each message, the number of connections, and failures."""
        heard, opened, failures = self._page.evaluate("() => [heard, opened, failures]")
        return [(id_, lsn) for id_, lsn in heard], opened, failures


class InNode:
    """The EventSource of a node process, whose lines a thread reads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._heard: list[tuple[str, int]] = []
        self._opened = 0
        self._failures: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with self._changed:
                word, _, lsn = line.rstrip("\n").partition(" ")
                if word == "open":
                    self._opened += 1
                elif word.isdigit():
                    self._heard.append((word, int(lsn)))
                else:
                    self._failures.append(line)
                self._changed.notify()

    def wait(self, count: int) -> None:
        """Wait until so many messages have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._heard) >= count or self._failures, HEARD_S)

    def found(self) -> tuple[list[tuple[str, int]], int, list[str]]:
        """The id and the LSN of each message, the number of connections, and failures."""
        with self._changed:
            return list(self._heard), self._opened, list(self._failures)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()


@contextmanager
def listening_in_node(address: str) -> Iterator[InNode]:
    """A node process that follows the events."""
    process = subprocess.Popen(
        ["node", str(PROGRAM), address],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        listener = InNode(process)
        try:
            yield listener
        finally:
            listener.end()


def test_event_sources_over_restarts(place: Path) -> None:
    """No gap and no repeat while others write and the server is killed; the address stays the same."""
    kills = amount("DUCKTAIL_EVENT_SOURCE_KILLS", 3, 20)
    [port] = free_ports(1)
    origin = f"http://127.0.0.1:{port}"
    with ServerProcess(place, ("--port", "0", "--http", f"127.0.0.1:{port}")) as server:
        with server.connect() as wire:
            wire.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
            wire.execute("CREATE STREAM s ON t WITH (partitions = 3)")
        with headless_chromium() as browser, listening_in_node(origin + EVENTS) as in_node:
            page = browser.new_page()
            # A page of the same origin that does nothing itself.
            page.goto(f"{origin}/v1/openapi.json")
            listeners = (InBrowser(page), in_node)
            number, acknowledged = 0, set[int]()

            def write() -> None:
                nonlocal number
                try:
                    with server.connect() as wire:
                        while True:
                            number += 1
                            rows = range(10 * number, 10 * number + number % 4 + 1)
                            values = ", ".join(f"({n}, 'line\n{n}')" for n in rows)
                            wire.execute(f"INSERT INTO t VALUES {values}")
                            acknowledged.update(rows)
                except psycopg.Error:
                    pass

            for _ in range(kills):
                writer = threading.Thread(target=write)
                writer.start()
                for listener in listeners:
                    listener.wait(len(listener.found()[0]) + ROUND_EVENTS)
                server.kill()
                writer.join()
                server.start()
            with server.connect() as wire:
                # Whoever had heard everything before the last kill has to connect again for this one.
                wire.execute("INSERT INTO t VALUES (-1, 'last')")
                known = [row[0] for row in wire.execute("SELECT lsn FROM s ORDER BY lsn")]
                committed = {row[0] for row in wire.execute("SELECT id FROM t")}
            for listener in listeners:
                listener.wait(len(known))
                heard, opened, failures = listener.found()
                assert failures == []
                assert [lsn for _, lsn in heard] == known
                assert [id_ for id_, _ in heard] == [str(lsn) for lsn in known]
                assert opened == kills + 1
            assert len(known) >= kills * ROUND_EVENTS
            assert acknowledged <= committed and len(known) == len(committed)
