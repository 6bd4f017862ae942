"""A cut connection, and a cancel, at every message boundary: nothing is lost, moved or left behind.

Promise 6 (reading moves nothing), 7 (a committed LSN goes where it was told, or stays) and 13 (the
others never notice), for a stream's read, a commit of offsets, COPY both ways and a suspended portal.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]
# A session whose client is gone is cleaned up long before.
GONE_S = 20.0
READ = "SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 4"


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def query(text: str) -> bytes:
    return message("Q", text.encode() + b"\0")


def parse(text: str) -> bytes:
    return message("P", b"\0" + text.encode() + b"\0" + bytes(2))


def execute(rows: int) -> bytes:
    return message("E", b"\0" + struct.pack("!i", rows))


BIND, DESCRIBE, SYNC = message("B", bytes(8)), message("D", b"P\0"), message("S")
COMMIT = query("COMMIT OFFSETS ON s CONSUMER GROUP g")

# What a client sends, piece by piece; and how many events are committed once all of it has been answered.
CONVERSATIONS: dict[str, tuple[list[bytes], int]] = {
    "read": ([parse(READ), BIND, DESCRIBE, execute(0), SYNC], 0),
    "commit": ([query("BEGIN"), query(READ), COMMIT, query("COMMIT")], 4),
    "commit at once": ([query(READ), COMMIT], 4),
    "copy out": ([query(f"COPY ({READ}) TO STDOUT (FORMAT binary)"), COMMIT], 4),
    "copy in": (
        [query("COPY loaded FROM STDIN"), message("d", b"1\n2\n"), message("d", b"3\n"), message("c")],
        0,
    ),
    "portal": (
        [query("BEGIN"), parse(READ), BIND, execute(1), SYNC, execute(2), SYNC, COMMIT, query("COMMIT")],
        3,
    ),
    "cursor": (
        [
            *(query("BEGIN"), query(f"DECLARE c CURSOR FOR {READ}"), query("FETCH 2 c"), query("MOVE 1 c")),
            *(COMMIT, query("COMMIT")),
        ],
        3,
    ),
}
PLACES = [(name, place) for name, (said, _) in CONVERSATIONS.items() for place in range(len(said) + 1)]


@dataclass
class Scene:
    """A stream s with some events and a group g that has committed none; a table for COPY."""

    con: Connection
    lsns: list[int]

    def committed(self) -> int:
        """How many of the events the group has committed."""
        text = "SELECT committed_lsn FROM ducktail.offsets WHERE group_name = 'g'"
        rows = self.con.execute(text).fetchall()
        return sum(lsn <= rows[0][0] for lsn in self.lsns)

    def check(self, committed: set[int]) -> None:
        """What must hold whatever became of the client."""
        found = self.committed()
        assert found in committed
        rows = self.con.execute("SELECT lsn FROM STREAM s CONSUMER GROUP g").fetchall()
        assert [row[0] for row in rows] == self.lsns[found:]
        assert self.con.execute("SELECT count(*) FROM loaded").fetchone() in ((0,), (3,))
        self.con.execute("INSERT INTO t VALUES (1000)")
        self.con.execute("DELETE FROM t WHERE i = 1000")

    def until_gone(self, pid: int) -> None:
        """Wait for a session's end."""
        deadline = time.monotonic() + GONE_S
        text = "SELECT count(*) FROM ducktail.sessions WHERE session_id = %s"
        while self.con.execute(text, [pid]).fetchone() != (0,):
            assert time.monotonic() < deadline, "a session is left behind"


@pytest.fixture(scope="module")
def con(shared: ServerProcess) -> Iterator[Connection]:
    with shared.connect() as made:
        made.execute("CREATE TABLE t (i integer PRIMARY KEY)")
        made.execute("CREATE TABLE loaded (i integer PRIMARY KEY)")
        made.execute("CREATE STREAM s ON t WITH (partitions = 1)")
        made.execute("CREATE STREAM l ON loaded WITH (partitions = 1)")
        made.execute("INSERT INTO t SELECT i FROM range(10) r(i)")
        yield made


@pytest.fixture
def scene(con: Connection) -> Scene:
    con.execute("DELETE FROM loaded")
    con.execute("DROP CONSUMER GROUP IF EXISTS g ON s")
    con.execute("CREATE CONSUMER GROUP g ON s")
    return Scene(con, [row[0] for row in con.execute("SELECT lsn FROM STREAM s").fetchall()])


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_cut(scene: Scene, shared_raw: Callable[[], Any], name: str, place: int) -> None:
    said, committed = CONVERSATIONS[name]
    client = shared_raw()
    told = client.enter()
    client.send(b"".join(said[:place]))
    client.vanish()
    scene.until_gone(int(told["pid"]))
    scene.check({0, committed})


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_cancel(
    scene: Scene,
    shared_raw: Callable[[], Any],
    error_fields: Callable[[bytes], dict[str, str]],
    name: str,
    place: int,
) -> None:
    """The session goes on: what was not cancelled has its answer, and it can be used again."""
    said, committed = CONVERSATIONS[name]
    client = shared_raw()
    told = client.enter()
    client.send(b"".join(said[:place]))
    other = shared_raw()
    other.packet(1234 << 16 | 5678, struct.pack("!i", int(told["pid"])) + bytes.fromhex(told["secret"]))
    assert other.answer() is None
    client.send(b"".join(said[place:]) + query("ROLLBACK") + query("SELECT 'the end'"))
    answers: list[tuple[str, bytes]] = []
    while not answers or b"the end" not in answers[-1][1]:
        answers.append(client.answer())
    errors = [error_fields(body)["C"] for kind, body in answers if kind == "E"]
    # What follows a cancelled statement finds its transaction failed, or none where it was BEGIN; no read
    # to commit; no cursor. Without BEGIN the portal ends at its first Sync, with one row given.
    assert set(errors) <= {"57014", "25P02", "25P01", "55000", "34000", "08P01"}, errors
    if not errors:
        assert scene.committed() == committed
    scene.check({0, committed, *([1] if name == "portal" else [])})
    client.message("X")
    assert [kind for kind, _ in client.until("never")] == ["C", "Z"]
