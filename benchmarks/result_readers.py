"""Who reads a result in results_out.py: a socket that looks at nothing, and clients that people use.

The socket tells the server's own cost from the client's: it takes the bytes, finds the end of the answer
and believes the row count of its command tag.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import asyncpg
import psycopg
from psycopg.conninfo import conninfo_to_dict

PROTOCOL_3 = 196_608
RECEIVE_BYTES = 1 << 20
# ReadyForQuery outside a transaction, and the command tag that stands before it.
READY = b"Z\0\0\0\x05I"
TAG = re.compile(rb"(?:SELECT|COPY) (\d+)\0Z\0\0\0\x05I\Z")
TAIL_BYTES = 64
TIMEOUT_S = 600.0

BUFFER = bytearray(RECEIVE_BYTES)


def message(kind: bytes, body: bytes) -> bytes:
    """A message of the protocol."""
    return kind + struct.pack("!i", len(body) + 4) + body


def query(sql: str) -> bytes:
    """What asks for an answer in text, by the simple protocol."""
    return message(b"Q", sql.encode() + b"\0")


def binary_query(sql: str) -> bytes:
    """What asks for an answer in binary, by the extended protocol."""
    parse = message(b"P", b"\0" + sql.encode() + b"\0\0\0")
    bind = message(b"B", b"\0\0" + struct.pack("!hhhh", 0, 0, 1, 1))
    execute = message(b"E", b"\0" + struct.pack("!i", 0))
    return parse + bind + message(b"D", b"P\0") + execute + message(b"S", b"")


@dataclass(slots=True)
class Raw:
    """A connection that looks at nothing but the end of an answer."""

    socket: socket.socket
    tail: bytes = b""
    received: int = 0
    began: float = 0.0
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def connect(cls, conninfo: str) -> Raw:
        """A connection that is ready for a query, in UTC."""
        words = conninfo_to_dict(conninfo)
        raw = cls(socket.create_connection((str(words["host"]), int(words["port"] or 0)), TIMEOUT_S))
        options = {"user": words["user"], "database": words["dbname"], "TimeZone": "UTC"}
        body = b"".join(f"{name}\0{value}\0".encode() for name, value in options.items())
        startup = struct.pack("!i", PROTOCOL_3) + body + b"\0"
        raw.socket.sendall(struct.pack("!i", len(startup) + 4) + startup)
        while not raw.tail.endswith(READY):
            raw.take()
        return raw

    def ask(self, asked: bytes) -> None:
        """Send a query."""
        self.tail, self.received, self.began = b"", 0, time.perf_counter()
        self.socket.sendall(asked)

    def take(self) -> None:
        """Take what there is; wait for the first byte of it."""
        count = self.socket.recv_into(BUFFER)
        assert count, "the server has closed the connection"
        self.received += count
        self.tail = (self.tail + BUFFER[max(0, count - TAIL_BYTES) : count])[-TAIL_BYTES:]

    @property
    def rows(self) -> int | None:
        """The row count of the whole answer; None before its end."""
        found = TAG.search(self.tail)
        assert found or not self.tail.endswith(READY), f"an answer without rows: {self.tail!r}"
        return int(found[1]) if found else None


def raw(asked: bytes, conninfo: str) -> int:
    """Take a whole answer."""
    connection = Raw.connect(conninfo)
    connection.ask(asked)
    while connection.rows is None:
        connection.take()
    connection.socket.close()
    return connection.rows


def raw_many(asked: bytes, count: int, conninfo: str) -> tuple[int, list[float]]:
    """The same answer on many connections at once; all rows, and the seconds of each connection."""
    connections = [Raw.connect(conninfo) for _ in range(count)]
    rows, seconds = 0, list[float]()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.ask(asked)
        while len(seconds) < count:
            for key, _ in selector.select():
                key.data.take()
                if key.data.rows is not None:
                    rows += key.data.rows
                    seconds.append(time.perf_counter() - key.data.began)
                    selector.unregister(key.fileobj)
    for connection in connections:
        connection.socket.close()
    return rows, seconds


def first_row(asked: bytes, conninfo: str) -> float:
    """Seconds from sending a query to the first byte of its first DataRow; the rest is not read."""
    connection = Raw.connect(conninfo)
    connection.ask(asked)
    described, answer = False, b""
    while not described or not answer:
        piece = connection.socket.recv(RECEIVE_BYTES)
        assert piece, "the server has closed the connection"
        answer += piece
        if not described and len(answer) > 4:
            assert answer[:1] == b"T", answer[:200]
            end = 1 + struct.unpack_from("!i", answer, 1)[0]
            described, answer = len(answer) >= end, answer[end:] if len(answer) >= end else answer
    seconds = time.perf_counter() - connection.began
    assert answer[:1] == b"D", answer[:200]
    connection.socket.close()
    return seconds


def with_psycopg(sql: str, binary: bool, conninfo: str) -> int:
    """psycopg's tuples, all of them."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        return len(connection.cursor(binary=binary).execute(sql).fetchall())


def copied_by_psycopg(sql: str, conninfo: str) -> int:
    """psycopg's raw pieces of a COPY: one a row."""
    with psycopg.connect(conninfo, autocommit=True) as connection, connection.cursor() as cursor:
        with cursor.copy(sql) as copy:
            for _ in copy:
                pass
        return cursor.rowcount


def with_asyncpg(sql: str, conninfo: str) -> int:
    """asyncpg's records, all of them."""
    words = conninfo_to_dict(conninfo)

    async def fetch() -> int:
        connection = await asyncpg.connect(
            host=words["host"], port=words["port"], user=words["user"], database=words["dbname"], ssl=False
        )
        try:
            return len(await connection.fetch(sql))
        finally:
            await connection.close()

    return asyncio.run(fetch())


def with_psql(sql: str, rows: int, conninfo: str) -> int:
    """psql, its output thrown away; it answers no count."""
    command = ["psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", conninfo, "-c", sql]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
    return rows


Reader = Callable[[str], int]
COPIES = {"text": "", "csv": " (FORMAT csv)", "binary": " (FORMAT binary)"}


def readers(sql: str, table: str, rows: int) -> dict[str, Reader]:
    """Everyone who reads, by name: each takes a conninfo and gives the number of rows."""
    copies = {name: f"COPY {table} TO STDOUT{options}" for name, options in COPIES.items()}
    return {
        "socket, text": partial(raw, query(sql)),
        "socket, binary": partial(raw, binary_query(sql)),
        **{f"socket, COPY {name}": partial(raw, query(copy)) for name, copy in copies.items()},
        "psycopg, text": partial(with_psycopg, sql, False),
        "psycopg, binary": partial(with_psycopg, sql, True),
        "psycopg, COPY text": partial(copied_by_psycopg, copies["text"]),
        "psql -At": partial(with_psql, sql, rows),
        **{f"psql, COPY {name}": partial(with_psql, copy, rows) for name, copy in copies.items()},
        "asyncpg": partial(with_asyncpg, sql),
    }


def spread(seconds: Sequence[float]) -> float:
    """How much longer the last of some connections took than the first."""
    return max(seconds) / min(seconds)
