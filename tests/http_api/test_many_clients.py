"""Many clients of one stream's events: each gets all of them, within bounds of memory and processor time."""

from __future__ import annotations

import os
import resource
import selectors
import socket
import time
from pathlib import Path

from amounts import amount
from http_client import HttpClient, http_port
from server_process import ServerProcess

# What a client's connection may cost the server, and its share of a core while ten events a second come.
CLIENT_KIB_MAX = 100
EVENTS_A_SECOND = 10
CLIENTS_PER_CORE_MIN = 1000


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kib(pid: int) -> int:
    """Memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def test_many_clients_of_one_stream(place: Path) -> None:
    clients = amount("DUCKTAIL_SSE_CLIENTS", 200, 1000)
    seconds = amount("DUCKTAIL_SSE_SECONDS", 4, 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * clients + 100)), hard))
    with ServerProcess(place, ("--port", "0", "--http", "127.0.0.1:0")) as server:
        pid, port = server.process.pid, http_port(server)
        client = HttpClient(port)
        client.sql("CREATE TOPIC p")
        client.post("/v1/topics/p", {"payload": 0})
        client.get("/v1/streams/p/poll")
        before_kib = rss_kib(pid)
        selector, heard = selectors.DefaultSelector(), dict[socket.socket, bytearray]()
        for _ in range(clients):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(f"GET /v1/streams/p/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ)
            heard[one] = bytearray()

        def listen(until: int) -> None:
            """Read what comes, until each client has so many events."""
            behind = {one for one, data in heard.items() if data.count(b"\ndata: ") < until}
            while behind:
                for key, _ in selector.select(30):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    data = one.recv(1 << 16)
                    assert data, "a stream has ended"
                    heard[one] += data
                    if heard[one].count(b"\ndata: ") >= until:
                        behind.discard(one)

        listen(1)
        cost_kib = (rss_kib(pid) - before_kib) / clients
        began_s, began_cpu_s, sent = time.monotonic(), cpu_s(pid), 1
        with server.connect() as wire:
            while (passed_s := time.monotonic() - began_s) < seconds:
                wire.execute(f"PUBLISH TO p '{sent}'")
                sent += 1
                listen(sent)
                time.sleep(max(0.0, (sent - 1) / EVENTS_A_SECOND - (time.monotonic() - began_s)))
        used = (cpu_s(pid) - began_cpu_s) / passed_s
        for data in heard.values():
            got = [line for line in data.decode().splitlines() if line.startswith("id: ")]
            assert got == [f"id: {n + 1}" for n in range(sent)]
        for one in heard:
            one.close()
        print(f"{clients} clients: {cost_kib:.0f} KiB each, {rss_kib(pid) / 1024:.0f} MiB, {used:.2f} cores")
        assert cost_kib < CLIENT_KIB_MAX
        assert used < max(0.3, clients / CLIENTS_PER_CORE_MIN)
