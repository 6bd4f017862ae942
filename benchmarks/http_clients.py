"""Many clients of the HTTP API: `python benchmarks/http_clients.py`.

`events`: 1,000 clients of one stream's Server-Sent Events for a minute, with ten events a second: the memory
of the server, its share of a core, and the time from PUBLISH to the last of the clients.

`crowds`: 10,000 connections that say nothing, and as many that send a byte of a header each second; each with
a bound of 12,000 connections, and with the default of 2,000. Meanwhile another client runs a small statement
each tenth of a second, on a new connection each time: how long it waits, and how often it is refused.

Everything is on loopback; the clients are one process with one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from http_server import HttpServer, served

MIB = 1 << 20
EVENTS_A_SECOND = 10
# Descriptors of a process besides the connections.
SPARE = 200
# Connections that are opened before the next look at the others.
BURST = 200
ASK_S = 0.1
TRICKLE_S = 1.0
TIMEOUT_S = 30.0


def connect(server: HttpServer) -> socket.socket:
    """A new connection to the HTTP API."""
    return socket.create_connection(("127.0.0.1", server.http), timeout=TIMEOUT_S)


def ask(server: HttpServer) -> float | None:
    """The seconds of a small SQL statement on a new connection; None if it is refused."""
    body = json.dumps({"sql": "SELECT 1"}).encode()
    head = f"POST /v1/sql HTTP/1.1\r\nHost: 127.0.0.1:{server.http}\r\nContent-Type: application/json\r\n"
    began_s = time.perf_counter()
    try:
        with connect(server) as one:
            one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = one.recv(1 << 16)
    except ConnectionError:
        return None
    return time.perf_counter() - began_s if answer.startswith(b"HTTP/1.1 200") else None


def percentile(times_s: list[float], percent: int) -> float:
    """A percentile of some times, in milliseconds."""
    return statistics.quantiles(times_s, n=100)[percent - 1] * 1000


def events(clients: int, seconds: float) -> None:
    """Clients of one stream's events."""
    with served() as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE TOPIC p")
            connection.execute("PUBLISH TO p '0'")
        ask(server)
        before_mib = server.memory_mib()
        selector, counts = selectors.DefaultSelector(), dict[socket.socket, int]()
        for _ in range(clients):
            one = connect(server)
            one.sendall(
                f"GET /v1/streams/p/events HTTP/1.1\r\nHost: 127.0.0.1:{server.http}\r\n\r\n".encode()
            )
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ)
            counts[one] = 0

        def listen(until: int) -> None:
            behind = {one for one, count in counts.items() if count < until}
            while behind:
                for key, _ in selector.select(TIMEOUT_S):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    data = one.recv(1 << 16)
                    assert data, "a stream has ended"
                    counts[one] += data.count(b"\ndata: ")
                    if counts[one] >= until:
                        behind.discard(one)

        listen(1)
        began_s, began_cpu_s, sent, waits_s = time.monotonic(), server.cpu_s(), 1, list[float]()
        with psycopg.connect(server.conninfo, autocommit=True) as wire:
            while (passed_s := time.monotonic() - began_s) < seconds:
                published_s = time.perf_counter()
                wire.execute(f"PUBLISH TO p '{sent}'")
                sent += 1
                listen(sent)
                waits_s.append(time.perf_counter() - published_s)
                time.sleep(max(0.0, (sent - 1) / EVENTS_A_SECOND - (time.monotonic() - began_s)))
        cores = (server.cpu_s() - began_cpu_s) / passed_s
        assert set(counts.values()) == {sent}, "a client has missed an event, or has one twice"
        print(f"\n## {clients:,} clients of Server-Sent Events, {sent - 1} events in {passed_s:.0f} s\n")
        print("| memory before, MiB | peak, MiB | cores | PUBLISH to the last client, ms: p50 | p99 |")
        print("|---:|---:|---:|---:|---:|")
        print(
            f"| {before_mib:.0f} | {server.memory_mib('VmHWM'):.0f} | {cores:.2f} "
            f"| {percentile(waits_s, 50):.0f} | {percentile(waits_s, 99):.0f} |"
        )
        for one in counts:
            one.close()


@dataclass(slots=True)
class Crowd:
    """Connections of which none sends a whole request."""

    server: HttpServer
    there: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    times_s: list[float] = field(default_factory=list)
    refused: int = 0
    asked_s: float = 0.0

    def open(self, count: int) -> None:
        """Open so many, and look at the others now and then."""
        for number in range(count):
            try:
                one = connect(self.server)
            except ConnectionError:
                continue
            one.setblocking(False)
            self.there.register(one, selectors.EVENT_READ)
            if number % BURST == 0:
                self.look()

    def count(self) -> int:
        """The number of open ones."""
        return len(self.there.get_map())

    def look(self, wait_s: float = 0.0) -> None:
        """Close those that the server has closed, and ask something if it is time."""
        for key, _ in self.there.select(wait_s):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            try:
                # An answer to a late header comes before the end.
                over = not one.recv(1 << 16)
            except ConnectionError:
                over = True
            if over:
                self._leave(one)
        if time.monotonic() - self.asked_s > ASK_S:
            self.asked_s = time.monotonic()
            took_s = ask(self.server)
            if took_s is None:
                self.refused += 1
            else:
                self.times_s.append(took_s)

    def send(self, data: bytes) -> None:
        """Send the same on all of them."""
        for key in list(self.there.get_map().values()):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            try:
                one.send(data)
            except ConnectionError:
                self._leave(one)

    def _leave(self, one: socket.socket) -> None:
        self.there.unregister(one)
        one.close()

    def close(self) -> None:
        """Close all."""
        for key in list(self.there.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            self._leave(key.fileobj)
        self.there.close()


def crowd(count: int, seconds: float, bound: int, *, trickle: bool) -> str:
    """A line about connections that say nothing, or too little."""
    with served("--http-connections-max", str(bound)) as server:
        for _ in range(20):
            ask(server)
        before_mib, began_cpu_s, began_s = server.memory_mib(), server.cpu_s(), time.monotonic()
        group = Crowd(server)
        group.open(count)
        opened, opened_s = group.count(), time.monotonic() - began_s
        sent_s = 0.0
        if trickle:
            group.send(b"GET /live HTTP/1.1\r\nX: ")
        while time.monotonic() - began_s < seconds:
            group.look(ASK_S / 2)
            if trickle and time.monotonic() - sent_s > TRICKLE_S:
                sent_s = time.monotonic()
                group.send(b"x")
        passed_s = time.monotonic() - began_s
        cores = (server.cpu_s() - began_cpu_s) / passed_s
        left, times_s = group.count(), group.times_s
        group.close()
        after = ask(server)
        assert after is not None, "the server does not answer"
        cells = (
            "a byte a second" if trickle else "nothing",
            f"{count:,}",
            f"{bound:,}",
            f"{opened_s:.1f}",
            f"{opened:,}",
            f"{left:,}",
            f"{before_mib:.0f}",
            f"{server.memory_mib('VmHWM'):.0f}",
            f"{cores:.2f}",
            f"{len(times_s)}",
            f"{group.refused}",
            f"{percentile(times_s, 50):.1f}",
            f"{percentile(times_s, 99):.1f}",
            f"{max(times_s) * 1000:.0f}",
        )
        return f"| {' | '.join(cells)} |"


def crowds(count: int, seconds: float) -> None:
    """Connections that say nothing or too little, below and above the bound."""
    print(f"\n## {count:,} connections without a request, for {seconds:.0f} s\n")
    print(
        "| they send | connections | bound | opened in, s | open then | open at the end | memory before, MiB "
        "| peak, MiB | cores | requests of others | refused | ms: p50 | p99 | longest |"
    )
    print("|---|" + "---:|" * 13)
    for trickle in (False, True):
        for bound in (count + 2000, 2000):
            print(crowd(count, seconds, bound, trickle=trickle), flush=True)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("events", "crowds"))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of the events; the others take half of it"
    )
    options = parser.parse_args()
    needed, (_, hard) = (
        max(options.clients, options.connections) + SPARE,
        resource.getrlimit(resource.RLIMIT_NOFILE),
    )
    if hard != resource.RLIM_INFINITY and hard < needed:
        sys.exit(f"the limit of open files is {hard}, and {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    work: dict[str, Callable[[], None]] = {
        "events": lambda: events(options.clients, options.seconds),
        "crowds": lambda: crowds(options.connections, options.seconds / 2),
    }
    for name, part in work.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
