"""How fast changes reach those outside: webhooks, Server-Sent Events, and a reader with WAIT, in turns.

    latency     from the commit to the receipt, milliseconds, p50 and p99: one writer, 100 transactions of
                five rows a second, into a stream of eight partitions. The reader with WAIT is a psycopg
                client, which waits for more events behind the last one
    backlog     events a second of a sink that has fallen behind: one event a request, and 100

Commit times are those of the server's clock, receipts those of the same machine: the writer, the server and
the receiver share two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
from aiohttp import web
from http_server import HttpServer, served

HERE = Path(__file__).resolve().parent
WEBHOOK, SSE, WAIT = "webhook", "Server-Sent Events", "WAIT over the wire"
PARTITIONS, COMMITS_PER_S, ROWS = 8, 100, 5
P50_BAR_MS, P99_BAR_MS = 15, 60
# A receipt: the wall clock in microseconds, and the events' commit times.
Receipts = list[tuple[int, list[datetime]]]
IN_FLIGHT = 8
READY_S = 20


def now_us() -> int:
    """The wall clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def receive_webhooks(pipe: Connection) -> None:
    """A receiver of webhooks: sends its port and, once told the number of events, what it has received."""
    bodies: list[tuple[int, bytes]] = []

    async def accept(request: web.Request) -> web.Response:
        body = await request.read()
        bodies.append((now_us(), body))
        return web.Response()

    async def work() -> None:
        app = web.Application(client_max_size=4 << 20)
        app.router.add_post("/", accept)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, pipe.recv)
        await runner.cleanup()

    asyncio.run(work())
    pipe.send([(at, _commit_times(json.loads(body))) for at, body in bodies])


def _commit_times(found: Any) -> list[datetime]:
    events = found if isinstance(found, list) else [found]
    return [datetime.fromisoformat(event["commit_time"]) for event in events]


def receive_events(pipe: Connection, port: int, stream: str, last_lsn: int) -> None:
    """A client of Server-Sent Events; as `receive_webhooks`."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
    client.request("GET", f"/v1/streams/{stream}/events?after={last_lsn}")
    answer = client.getresponse()
    assert answer.status == 200, answer.read()
    lines: list[tuple[int, bytes]] = []
    pipe.send(0)
    wanted = None
    while wanted is None or len(lines) < wanted:
        line = answer.readline()
        if line.startswith(b"data:"):
            lines.append((now_us(), line))
        if pipe.poll():
            wanted = pipe.recv()
    client.close()
    pipe.send([(at, _commit_times(json.loads(line[5:]))) for at, line in lines])


def receive_rows(pipe: Connection, conninfo: str, stream: str, last_lsn: int) -> None:
    """A reader with WAIT; as `receive_webhooks`."""
    receipts: Receipts = []
    text = f"SELECT lsn, commit_time FROM STREAM {stream} AFTER %s WAIT '1 s' LIMIT 1000"
    with psycopg.connect(conninfo, autocommit=True) as client:
        client.execute(text, [last_lsn], prepare=True)
        pipe.send(0)
        wanted = None
        while wanted is None or sum(len(commits) for _, commits in receipts) < wanted:
            rows = client.execute(text, [last_lsn], prepare=True).fetchall()
            if rows:
                receipts.append((now_us(), [row[1] for row in rows]))
                last_lsn = rows[-1][0]
            if pipe.poll():
                wanted = pipe.recv()
    pipe.send(receipts)


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[Connection, Any]]:
    """A receiver in a process of its own: the pipe to it, and the first that it has sent."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    started = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    started.start()
    try:
        assert ours.poll(READY_S), "the receiver has not begun"
        yield ours, ours.recv()
    finally:
        started.join(READY_S)
        started.kill()


def write(conninfo: str, seconds: float, first_id: int) -> int:
    """Commit at the fixed rate; the number of rows. A commit that is late is not left out."""
    begun, rows = time.perf_counter(), first_id
    with psycopg.connect(conninfo, autocommit=True) as writer:
        for number in range(int(seconds * COMMITS_PER_S)):
            pause = begun + number / COMMITS_PER_S - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            values = ", ".join(f"({rows + place}, 'item {place}', {place}.5)" for place in range(ROWS))
            writer.execute(f"INSERT INTO t VALUES {values}")
            rows += ROWS
    return rows - first_id


def delays_ms(receipts: Receipts) -> list[float]:
    """Milliseconds from the commit to the receipt of each event, rising."""
    return sorted((at - commit.timestamp() * 1e6) / 1000 for at, commits in receipts for commit in commits)


def count(admin: psycopg.Connection, text: str) -> int:
    """The number that a query gives."""
    row = admin.execute(text).fetchone()
    assert row is not None
    return int(row[0] or 0)


def latency(found: HttpServer, admin: psycopg.Connection, way: str, seconds: float) -> list[float]:
    """The delays of one turn; every event must have been received once."""
    last_lsn = count(admin, "SELECT max(lsn) FROM s")
    first_id = count(admin, "SELECT max(id) + 1 FROM t")
    if way == WEBHOOK:
        started = process(receive_webhooks)
    elif way == SSE:
        started = process(receive_events, found.http, "s", last_lsn)
    else:
        started = process(receive_rows, found.conninfo, "s", last_lsn)
    with started as (pipe, port):
        if way == WEBHOOK:
            admin.execute(f"CREATE SINK hook ON s START LATEST TO WEBHOOK 'http://127.0.0.1:{port}/'")
        rows = write(found.conninfo, seconds, first_id)
        if way == WEBHOOK:
            _wait_for_sink(admin, "hook")
            admin.execute("DROP SINK hook ON s")
        pipe.send(rows)
        # One more commit, which ends a reader's wait for events.
        admin.execute(f"INSERT INTO t VALUES ({first_id + rows}, 'last', 0)")
        delays = delays_ms(pipe.recv())
    assert rows <= len(delays) <= rows + 1, f"{len(delays)} of {rows} events received by {way}"
    return delays


def _wait_for_sink(admin: psycopg.Connection, name: str) -> None:
    until = time.monotonic() + 120
    while count(admin, f"SELECT lag_events FROM ducktail.sinks WHERE sink_name = '{name}'"):
        assert time.monotonic() < until, "the sink does not come to the end"
        time.sleep(0.01)


def backlog(admin: psycopg.Connection, batch: int) -> float:
    """Events a second of a sink that begins with the first event."""
    events = count(admin, "SELECT count(*) FROM s")
    with process(receive_webhooks) as (pipe, port):
        began = time.perf_counter()
        admin.execute(
            f"CREATE SINK behind ON s START EARLIEST TO WEBHOOK 'http://127.0.0.1:{port}/' "
            f"WITH (batch = {batch}, max_in_flight = {IN_FLIGHT})"
        )
        _wait_for_sink(admin, "behind")
        took = time.perf_counter() - began
        admin.execute("DROP SINK behind ON s")
        pipe.send(events)
        received = sum(len(commits) for _, commits in pipe.recv())
    assert received == events, f"{received} of {events} events received"
    return events / took


def page(delays: dict[str, list[tuple[float, float]]], rates: dict[int, list[float]], seconds: float) -> str:
    """The result as a Markdown page."""
    lines = [
        "# Changes carried out",
        "",
        f"{COMMITS_PER_S} commits of {ROWS} rows a second for {seconds:g} s, {PARTITIONS} partitions, "
        f"{len(delays[WEBHOOK])} turns, medians of the turns; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. From the commit to the receipt, milliseconds:",
        "",
        "| way | p50 | p99 |",
        "|---|---:|---:|",
    ]
    for way, turns in delays.items():
        p50, p99 = (statistics.median(turn[place] for turn in turns) for place in (0, 1))
        lines.append(f"| {way} | {p50:.1f} | {p99:.1f} |")
    lines += [
        "",
        f"The bar of webhooks is p50 {P50_BAR_MS} ms and p99 {P99_BAR_MS} ms.",
        "",
        f"A sink that has fallen behind, {IN_FLIGHT} requests under way, events a second:",
        "",
        "| events in a request | events/s, median | lowest | highest |",
        "|---|---:|---:|---:|",
    ]
    for batch, found in rates.items():
        lines.append(f"| {batch} | {statistics.median(found):,.0f} | {min(found):,.0f} | {max(found):,.0f} |")
    return "\n".join([*lines, ""])


def run(seconds: float, turns: int) -> str:
    """The whole benchmark."""
    delays: dict[str, list[tuple[float, float]]] = {way: [] for way in (WEBHOOK, SSE, WAIT)}
    rates: dict[int, list[float]] = {1: [], 100: []}
    allowed = "--allow-network", "127.0.0.1"
    with served(*allowed) as found, psycopg.connect(found.conninfo, autocommit=True) as admin:
        admin.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, item TEXT, price DECIMAL(12, 2))")
        admin.execute(f"CREATE STREAM s ON t WITH (partitions = {PARTITIONS})")
        admin.execute("INSERT INTO t VALUES (0, 'first', 0)")
        for turn in range(turns):
            for way in list(delays)[:: 1 if turn % 2 == 0 else -1]:
                taken = latency(found, admin, way, seconds)
                p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
                delays[way].append((p50, p99))
                print(f"{way:<20} p50 {p50:>8.1f} ms  p99 {p99:>8.1f} ms", flush=True)
        for _ in range(turns):
            for batch in rates:
                rates[batch].append(backlog(admin, batch))
                print(f"backlog, {batch:>3} a request {rates[batch][-1]:>12,.0f} events/s", flush=True)
    return page(delays, rates, seconds)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "changes_out.md")
    arguments = parser.parse_args()
    text = run(arguments.seconds, arguments.turns)
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)
    print(f"\n{text}\nwritten to {arguments.output}")


if __name__ == "__main__":
    main()
