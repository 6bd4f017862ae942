"""A receiver of webhooks in a process of its own, which answers as it is told, or at random.

Each request is one line of a file, written before the answer: what has been answered with 2xx is there, even
if the process is killed. `ReceiverProcess` is for a test; run as a program, this file is the receiver.

    python webhook_receiver.py PORT FILE MODE SEED

| mode | answers |
|---|---|
| ok | 200 to all |
| fails | 500 to all |
| hangs | none |
| late | 200 to all, and a tenth of a second later once more |
| picky503 | as picky, with 503 |
| picky | 422 to a request with an event whose `v` begins with "bad", 200 to others |
| random | as picky; in a third of the cases 500, 503, 429, no answer, an early end, half an answer or two |
| STATUS | that status to all, with `Retry-After: 1` if it is 429 and `Location` if it is 302 |
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

BAD = '"v":"bad'
MODES: dict[str, int | str] = {"ok": 200, "fails": 500, "hangs": "hang", "late": "late"}


@dataclass(frozen=True, slots=True)
class Received:
    """One request.

    Args:
        status: the status that it was answered with; 0 for another end.
    """

    headers: dict[str, str]
    body: str
    status: int

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in its body."""
        found = json.loads(self.body)
        return found if isinstance(found, list) else [found]

    @property
    def accepted(self) -> bool:
        """True if the sender was told that it is received."""
        return 200 <= self.status < 300


class ReceiverProcess:
    """A receiver.

    Args:
        file: the file of its requests.
        mode, seed: as above.
    """

    def __init__(self, file: Path, mode: str = "ok", seed: int = 0) -> None:
        self._file = file
        self._seed = seed
        self._read = 0
        self._received: list[Received] = []
        self._accepted: list[dict[str, Any]] = []
        self.port = 0
        self.start(mode)

    @property
    def url(self) -> str:
        """An address for its requests."""
        return f"http://127.0.0.1:{self.port}/hook"

    def start(self, mode: str) -> None:
        """Start it (again), on the same port."""
        self._seed += 1
        words = [sys.executable, __file__, str(self.port), str(self._file), mode, str(self._seed)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the receiver ended with {self.process.wait()}")
        self.port = int(line)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def received(self) -> list[Received]:
        """Its requests so far, in their order; a torn last line is left out."""
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read += len(whole) + 1
                new = [Received(**json.loads(line)) for line in whole.split(b"\n")]
                self._received += new
                self._accepted += [event for one in new if one.accepted for event in one.events]
        return self._received

    def accepted(self) -> list[dict[str, Any]]:
        """The events of accepted requests, in their order."""
        self.received()
        return self._accepted

    def restart(self, mode: str) -> None:
        """End it by SIGKILL, and start it in another mode."""
        self.kill()
        self.start(mode)

    def __enter__(self) -> ReceiverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def until(condition: Callable[[], T], timeout_s: float = 60.0) -> T:
    """The first true value of a condition, which is asked every hundredth of a second."""
    ends_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < ends_s, "the condition does not become true"
        time.sleep(0.01)
    return found


REASONS = {200: "OK", 302: "Found", 422: "Unprocessable", 429: "Too Many Requests", 500: "Error"}


def _response(status: int, body: str = "", more: str = "") -> bytes:
    if status == 429:
        more += "Retry-After: 1\r\n"
    if status == 302:
        more += "Location: http://127.0.0.1:1/elsewhere\r\n"
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return (head + body).encode()


class _Receiver:
    def __init__(self, file: str, mode: str, seed: int) -> None:
        # A line is one write to the end of the file, so that two runs do not mix.
        self._log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._mode = mode
        self._random = random.Random(seed)

    def _status(self, body: str) -> int | str:
        if self._mode.isdecimal():
            return int(self._mode)
        if self._mode in MODES:
            return MODES[self._mode]
        if self._mode == "picky503":
            return 503 if BAD in body.replace(" ", "") else 200
        if self._mode == "random" and self._random.random() < 1 / 3:
            kinds = (500, 503, "429", "hang", "early", "half", "twice")
            kind = self._random.choice(kinds)
            if kind != "twice":
                return kind
            return 422 if BAD in body.replace(" ", "") else kind
        return 422 if BAD in body.replace(" ", "") else 200

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        headers = {name.lower(): value for name, value in headers.items()}
        body = (await reader.readexactly(int(headers["content-length"]))).decode()
        status = self._status(body)
        told = status if isinstance(status, int) else 200 if status in ("twice", "late") else 0
        line = json.dumps({"headers": headers, "body": body, "status": told})
        os.write(self._log, f"{line}\n".encode())
        if status == "hang":
            await asyncio.sleep(3600)
        if status == "early":
            return False
        if status == "half":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
            await writer.drain()
            return False
        if status == "429":
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
            return True
        answer = _response(told, "not this one" if told == 422 else "")
        writer.write(answer * 2 if status == "twice" else answer)
        await writer.drain()
        if status == "late":
            await asyncio.sleep(0.1)
            writer.write(answer)
            await writer.drain()
        return True


async def main(port: int, file: str, mode: str, seed: int) -> None:
    """Receive until the process is killed."""
    receiver = _Receiver(file, mode, seed)
    server = await asyncio.start_server(receiver.talk, "127.0.0.1", port, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
