"""A Redis server of our own for a benchmark: in a scratch directory, each write synced, gone afterwards."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

from postgres import free_port

START_S = 10.0


@contextlib.contextmanager
def server() -> Iterator[int]:
    """A running server that answers a write once it is on disk (appendfsync always); gives its port."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("The benchmark wants redis-server: make deps")
    directory, port = tempfile.mkdtemp(prefix="ducktail-bench-"), free_port()
    words = f"--port {port} --bind 127.0.0.1 --dir {directory} --appendonly yes --appendfsync always --save"
    process = subprocess.Popen([program, *words.split(), ""], stdout=subprocess.DEVNULL)
    try:
        _await(port)
        yield port
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _await(port: int) -> None:
    import redis

    deadline = time.monotonic() + START_S
    while True:
        try:
            with redis.Redis(port=port) as client:
                client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
