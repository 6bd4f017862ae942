"""A gateway for the tests of a file, and an address that does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for the tests of a file."""
    path: Path = tmp_path_factory.mktemp("gateway") / "ducktail.duckdb"
    with ServerProcess(path) as started:
        yield started


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Where nobody answers: the queue of those who want in is full, so the kernel drops what else comes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = []
        try:
            while True:
                waiting.append(socket.socket())
                waiting[-1].settimeout(0.2)
                waiting[-1].connect(address)
        except TimeoutError:
            pass
        yield address
        for one in waiting:
            one.close()
