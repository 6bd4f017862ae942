"""What the gateway tests share: a bare socket that speaks the protocol."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from server_process import ServerProcess

# Every answer that a test waits for is there long before; a server that hangs fails the test.
ANSWER_TIMEOUT_S = 20.0


class Raw:
    """A client that sends what it likes and reads messages one at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), ANSWER_TIMEOUT_S)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def message(self, kind: str, body: bytes = b"") -> None:
        """Send one message."""
        self.send(kind.encode() + struct.pack("!i", len(body) + 4) + body)

    def packet(self, code: int, body: bytes = b"") -> None:
        """Send one message without a type byte."""
        self.send(struct.pack("!iI", len(body) + 8, code) + body)

    def enter(self, **parameters: str) -> dict[str, str]:
        """Start a session; the reported parameters, with `pid` and `secret` (hexadecimal)."""
        named = {"user": "ann", "database": "ducktail", **parameters}
        words = [word.encode() + b"\0" for pair in named.items() for word in pair]
        self.packet(3 << 16, b"".join(words) + b"\0")
        told: dict[str, str] = {}
        for kind, body in self.until("Z"):
            if kind == "S":
                name, value = body[:-1].decode().split("\0")
                told[name] = value
            elif kind == "K":
                told |= {"pid": str(struct.unpack("!i", body[:4])[0]), "secret": body[4:].hex()}
        return told

    def query(self, text: str) -> list[tuple[str, bytes]]:
        """Send a Query; all answers up to ReadyForQuery."""
        self.message("Q", text.encode() + b"\0")
        return self.until("Z")

    def until(self, last: str) -> list[tuple[str, bytes]]:
        """Answers up to and with one of type `last`, or up to the end of the connection."""
        found: list[tuple[str, bytes]] = []
        while (answer := self.answer()) is not None:
            found.append(answer)
            if answer[0] == last:
                break
        return found

    def answer(self) -> tuple[str, bytes] | None:
        """The next message; None where the server has closed the connection."""
        head = self.read(5)
        if len(head) < 5:
            return None
        return chr(head[0]), self.read(struct.unpack("!i", head[1:])[0] - 4)

    def read(self, size: int) -> bytes:
        """So many bytes; fewer where the server has closed the connection."""
        while len(self._buffer) < size:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                break
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def vanish(self) -> None:
        """Cut the connection with a reset, as a crashed client's machine does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def fields(body: bytes) -> dict[str, str]:
    """The fields of an ErrorResponse by their letters."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}


@pytest.fixture
def raw_to() -> Iterator[Callable[[ServerProcess], Raw]]:
    """`raw_to(server)` is a new bare connection to a server."""
    made: list[Raw] = []

    def connect(server: ServerProcess) -> Raw:
        made.append(Raw(server.host, server.port))
        return made[-1]

    yield connect
    for client in made:
        client.socket.close()


@pytest.fixture
def raw(server: ServerProcess, raw_to: Callable[[ServerProcess], Raw]) -> Callable[[], Raw]:
    """`raw()` is a new bare connection to the test's server."""
    return lambda: raw_to(server)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a file that leave nothing behind for each other."""
    with ServerProcess(tmp_path_factory.mktemp("shared") / "ducktail.duckdb") as server:
        yield server


@pytest.fixture
def shared_raw(shared: ServerProcess, raw_to: Callable[[ServerProcess], Raw]) -> Callable[[], Raw]:
    """`shared_raw()` is a new bare connection to the server of the file."""
    return lambda: raw_to(shared)


@pytest.fixture
def error_fields() -> Callable[[bytes], dict[str, str]]:
    """The fields of an ErrorResponse by their letters."""
    return fields
