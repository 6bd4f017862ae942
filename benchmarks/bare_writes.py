"""A server with nothing but the writes of small_writes.py: what Python and DuckDB can do at most.

python bare_writes.py FILE ROWS    prints the port; FILE is the database, ROWS what the table has at first

It speaks as much of the protocol as psycopg's extended queries need and reads no SQL: the number of
parameters says which write is meant. The writes that have come while a batch was written are the next batch,
with the values as lists: the table, its log, a line of `commits` for each, one COMMIT; an answer follows the
COMMIT. It has no catalog, no rights, no streams to read and no errors.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import duckdb

SSL_REQUESTS = (80877103, 80877104)
READY = b"Z\x00\x00\x00\x05I"
ANSWERS = {ord("P"): b"1\x00\x00\x00\x04", ord("B"): b"2\x00\x00\x00\x04", ord("D"): b"n\x00\x00\x00\x04"}
ANSWERS[ord("C")] = b"3\x00\x00\x00\x04"
DONE = b"C\x00\x00\x00\x0fINSERT 0 1\x00"
# As ducktail's group commit: how long a batch waits for as many writes as the last one had.
COMPANY_S = 0.002

TABLES = """
    CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INTEGER, item VARCHAR, price DOUBLE);
    CREATE TABLE log (lsn BIGINT, txid BIGINT, op VARCHAR, key VARCHAR, before VARCHAR, customer INTEGER,
        item VARCHAR, price DOUBLE);
    CREATE TABLE commits (txid BIGINT, lsn BIGINT, commit_time TIMESTAMPTZ);
"""
ORDERS, UPDATED = "?::BIGINT[] ?::INTEGER[] ?::VARCHAR[] ?::DOUBLE[]", "?::INTEGER[] ?::VARCHAR[] ?::BIGINT[]"


def _lists(types: str) -> str:
    return ", ".join(f"unnest({each})" for each in types.split())


COMMITS = f"INSERT INTO commits SELECT {_lists('?::BIGINT[] ?::BIGINT[]')}, now()"
# Number of parameters -> the statements of a batch, of which one wants the LSNs before the values.
WRITES = {
    4: (
        f"INSERT INTO orders SELECT {_lists(ORDERS)}",
        f"INSERT INTO log SELECT l, l, 'insert', i::VARCHAR, NULL, c, n, p "
        f"FROM (SELECT {_lists('?::BIGINT[] ' + ORDERS)}) AS w (l, i, c, n, p)",
    ),
    3: (
        f"INSERT INTO log SELECT l, l, 'update', i::VARCHAR, o.item, c, n, o.price "
        f"FROM (SELECT {_lists('?::BIGINT[] ' + UPDATED)}) AS w (l, c, n, i) JOIN orders AS o ON o.id = w.i",
        f"UPDATE orders SET customer = c, item = n "
        f"FROM (SELECT {_lists(UPDATED)}) AS w (c, n, i) WHERE orders.id = w.i",
    ),
    2: (
        f"INSERT INTO log SELECT l, l, 'publish', k, v, NULL, NULL, NULL "
        f"FROM (SELECT {_lists('?::BIGINT[] ?::VARCHAR[] ?::VARCHAR[]')}) AS w (l, k, v)",
    ),
}
Write = tuple[list[Any], "Connection"]


class Writer:
    """The thread that writes the batches."""

    def __init__(self, file: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._came = loop, threading.Condition()
        self._waiting: list[Write] = []
        self._database = duckdb.connect(file)
        self._database.execute(TABLES)
        self._parsed: dict[str, Any] = {}
        self._lsn = self._last = 0
        threading.Thread(target=self._work, daemon=True).start()

    def offer(self, write: Write) -> None:
        """Take a write for the next batch."""
        with self._came:
            self._waiting.append(write)
            self._came.notify()

    def fill(self, rows: int) -> None:
        """Rows of earlier days, for UPDATE."""
        self._database.execute(
            "INSERT INTO orders SELECT -i, i % 10007, 'item ' || i % 997, i / 100.0 "
            "FROM range(1, ?) AS numbers (i)",
            [rows + 1],
        )

    def _run(self, text: str, values: list[Any] | None = None) -> None:
        if text not in self._parsed:
            self._parsed[text] = self._database.extract_statements(text)[0]
        self._database.execute(self._parsed[text], values)

    def _work(self) -> None:
        while True:
            with self._came:
                self._came.wait_for(lambda: len(self._waiting) >= self._last, COMPANY_S)
                self._came.wait_for(lambda: self._waiting)
                batch, self._waiting = self._waiting, []
            # Two writes of one key are in two batches, as they must be where each one has an event.
            if len(batch[0][0]) == 3:
                batch, later = _distinct(batch)
                with self._came:
                    self._waiting[:0] = later
            self._last = len(batch)
            self._write([values for values, _ in batch])
            self._loop.call_soon_threadsafe(_answer, [connection for _, connection in batch])

    def _write(self, rows: list[list[Any]]) -> None:
        """One transaction of writes of one kind."""
        lsns = list(range(self._lsn + 1, self._lsn + 1 + len(rows)))
        self._lsn += len(rows)
        lists = [list(column) for column in zip(*rows, strict=True)]
        self._run("BEGIN")
        for text in WRITES[len(lists)]:
            given = text.count("?")
            self._run(text, lists if given == len(lists) else [lsns, *lists])
        self._run(COMMITS, [lsns, lsns])
        self._run("COMMIT")


def _distinct(batch: list[Write]) -> tuple[list[Write], list[Write]]:
    seen: set[Any] = set()
    now: list[Write] = []
    later: list[Write] = []
    for write in batch:
        (later if write[0][2] in seen else now).append(write)
        seen.add(write[0][2])
    return now, later


def _answer(connections: list[Connection]) -> None:
    for connection in connections:
        connection.written()


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._input, self._read = writer, bytearray(), cast(Callable[[], bool], self._begin)
        self._answer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read all messages that are whole."""
        self._input += data
        while self._read():
            pass

    def written(self) -> None:
        """The client's write is durable."""
        self._transport.write(bytes(self._answer) + DONE + READY)
        self._answer.clear()

    def _begin(self) -> bool:
        if len(self._input) < 8:
            return False
        length, code = struct.unpack_from("!ii", self._input)
        if len(self._input) < length:
            return False
        del self._input[:length]
        if code in SSL_REQUESTS:
            self._transport.write(b"N")
            return True
        self._transport.write(b"R\x00\x00\x00\x08\x00\x00\x00\x00" + _settings() + READY)
        self._read = self._message
        return True

    def _message(self) -> bool:
        if len(self._input) < 5:
            return False
        kind, length = struct.unpack_from("!Bi", self._input)
        if len(self._input) <= length:
            return False
        if kind == ord("B"):
            self._values = _values(bytes(self._input[5 : length + 1]))
        del self._input[: length + 1]
        if kind == ord("E"):
            self._writer.offer((self._values, self))
            self._values = []
        elif kind == ord("S"):
            # A Sync behind an Execute is answered with it.
            if not self._answer or self._answer[-5:-4] != b"n":
                self._transport.write(bytes(self._answer) + READY)
                self._answer.clear()
        elif kind == ord("X"):
            self._transport.close()
            return False
        else:
            self._answer += ANSWERS[kind]
        return True


def _settings() -> bytes:
    found = b""
    for name, value in ("client_encoding", "UTF8"), ("server_version", "15.0"), ("integer_datetimes", "on"):
        body = f"{name}\0{value}\0".encode()
        found += b"S" + struct.pack("!i", len(body) + 4) + body
    return found


def _values(bind: bytes) -> list[Any]:
    """The parameters: text, or binary integers and, as the last of four, a double."""
    at = bind.index(b"\0", bind.index(b"\0") + 1) + 1
    (count,) = struct.unpack_from("!h", bind, at)
    formats = struct.unpack_from(f"!{count}h", bind, at + 2)
    (number,) = struct.unpack_from("!h", bind, at := at + 2 + 2 * count)
    at += 2
    found: list[Any] = []
    for place in range(number):
        (size,) = struct.unpack_from("!i", bind, at)
        raw, at = bind[at + 4 : at + 4 + size], at + 4 + size
        if not formats[place if count > 1 else 0]:
            found.append(raw.decode())
        elif number == 4 and place == 3:
            found.append(struct.unpack("!d", raw)[0])
        else:
            found.append(int.from_bytes(raw, "big", signed=True))
    return found


async def main() -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    writer = Writer(sys.argv[1], loop)
    writer.fill(int(sys.argv[2]))
    server = await loop.create_server(lambda: Connection(writer), "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
