"""Promise 13: whatever bytes a client sends, the server lives and its neighbours never notice.

Seeded: a failure is met again with the same seed. A neighbour runs a checking loop meanwhile.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from server_process import ServerProcess

# Long enough for some hundred connections, short enough for every run of the tests.
SECONDS = 5.0
SEED = 20261121


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


GOOD = [
    message(b"Q", b"SELECT 1\0"),
    message(b"Q", b"BEGIN\0"),
    message(b"Q", b"SELECT 'x' FROM range(100); SELECT 2\0"),
    message(b"P", b"\0SELECT $1::int\0\0\1\0\0\0\x17"),
    message(b"B", b"\0\0\0\0\0\1\0\0\0\1" + b"7" + b"\0\0"),
    message(b"D", b"P\0"),
    message(b"E", b"\0\0\0\0\0"),
    message(b"C", b"S\0"),
    message(b"H", b""),
    message(b"S", b""),
    message(b"F", bytes(10)),
    message(b"d", b"1\n"),
    message(b"f", b"no\0"),
    message(b"X", b""),
]


def startup() -> bytes:
    body = struct.pack("!I", 3 << 16) + b"user\0ann\0database\0ducktail\0\0"
    return struct.pack("!i", len(body) + 4) + body


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    wrong = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(wrong) + 1)
        match chance.randrange(4):
            case 0 if at < len(wrong):
                wrong[at] = chance.randrange(256)
            case 1:
                wrong[at : at + chance.randint(1, 8)] = b""
            case 2:
                wrong[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                wrong[at:at] = wrong[: chance.randint(0, len(wrong))]
    return bytes(wrong)


def conversation(chance: random.Random) -> bytes:
    """What one client sends: noise, or a session with something wrong in it, or with nothing wrong."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randint(0, 200))
    if kind == 1:
        return mutated(chance, startup())
    session = b"".join(chance.choice(GOOD) for _ in range(chance.randint(1, 12)))
    return startup() + (session if kind == 2 else mutated(chance, session))


def test_random_bytes_and_mutated_messages(server: ServerProcess, raw: Callable[[], Any]) -> None:
    chance = random.Random(SEED)
    end = time.monotonic() + SECONDS
    checked: list[int] = []
    stop = threading.Event()

    def neighbour() -> None:
        with server.connect() as connection:
            while not stop.is_set():
                number = len(checked)
                assert connection.execute("SELECT %s::int", (number,)).fetchone() == (number,)
                checked.append(number)

    thread = threading.Thread(target=neighbour)
    thread.start()
    clients = 0
    try:
        while time.monotonic() < end:
            client = raw()
            clients += 1
            try:
                client.send(conversation(chance))
                if chance.random() < 0.2:
                    client.vanish()
                    continue
                client.socket.shutdown(1)
                # Once it has read to our end the server closes; a hang is a time-out here.
                while client.socket.recv(65536):
                    pass
            except ConnectionError:
                pass
            client.socket.close()
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive() and len(checked) > 50, len(checked)
    assert clients > 50 and server.process.poll() is None
    problems = [line for line in server.lines if "Traceback" in line or "ERROR" in line]
    assert problems == []


@pytest.mark.parametrize("count", [300])
def test_a_flood_of_connections_that_say_nothing(
    server: ServerProcess, raw: Callable[[], Any], count: int
) -> None:
    with server.connect() as connection:
        for _ in range(count):
            raw()
        assert connection.execute("SELECT 1").fetchone() == (1,)
