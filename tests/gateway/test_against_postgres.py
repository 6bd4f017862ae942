"""Messages beside a real PostgreSQL's: the same requests, the same answers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from server_process import ServerProcess

pytestmark = pytest.mark.postgres


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def query(text: str) -> bytes:
    return message("Q", text.encode() + b"\0")


def parse(text: str, name: str = "") -> bytes:
    return message("P", name.encode() + b"\0" + text.encode() + b"\0" + bytes(2))


def bind(portal: str = "", name: str = "", binary: bool = False) -> bytes:
    formats = struct.pack("!hh", 1, 1) if binary else bytes(2)
    return message("B", portal.encode() + b"\0" + name.encode() + b"\0" + bytes(4) + formats)


def execute(portal: str = "", rows: int = 0) -> bytes:
    return message("E", portal.encode() + b"\0" + struct.pack("!i", rows))


def describe(portal: str) -> bytes:
    return message("D", b"P" + portal.encode() + b"\0")


def close(portal: str) -> bytes:
    return message("C", b"P" + portal.encode() + b"\0")


SYNC, FLUSH = message("S"), message("H")
ROWS = "SELECT i FROM numbers ORDER BY i"
SUSPENDED = [query("BEGIN"), parse(ROWS), bind(), describe(""), execute("", 2), SYNC]

SCRIPTS: dict[str, list[bytes]] = {
    "suspended, to the end": [*SUSPENDED, execute("", 2), execute("", 2), SYNC, execute(""), SYNC],
    "suspended at the very end": [*SUSPENDED, execute("", 3), execute("", 3), SYNC, query("COMMIT")],
    "suspended, then a commit": [*SUSPENDED, query("COMMIT"), execute("", 2), SYNC],
    "a portal ends at Sync outside of a block": [
        *(parse(ROWS), bind("p"), execute("p", 2), SYNC, execute("p"), SYNC),
    ],
    "no columns": [
        *(query("SELECT FROM numbers"), query("SELECT; SELECT WHERE 1 = 2"), query("SELECT 1 AS select")),
        *(parse("WITH n AS (SELECT 1) SELECT FROM n"), bind(binary=True), describe(""), execute(""), SYNC),
        *(query("BEGIN; DECLARE c CURSOR FOR SELECT FROM numbers"), query("FETCH 2 FROM c"), query("COMMIT")),
        *(
            query("PREPARE p AS SELECT FROM numbers LIMIT 1"),
            query("EXECUTE p"),
            query("SELECT FROM pg_am LIMIT 1"),
        ),
    ],
    "two portals": [
        *(query("BEGIN"), parse(ROWS, "s"), bind("a", "s"), bind("b", "s", binary=True)),
        *(execute("a", 2), execute("b", 1), execute("a", 2), execute("b", 9), SYNC, query("ROLLBACK")),
    ],
    "a portal's name is taken": [query("BEGIN"), parse(ROWS), bind("p"), bind("p"), SYNC, query("ROLLBACK")],
    "close, then execute": [
        *(query("BEGIN"), parse(ROWS), bind("p"), close("p"), close("p"), execute("p"), SYNC),
        query("ROLLBACK"),
    ],
    "SQL takes of a portal": [
        *(query("BEGIN"), parse(ROWS), bind("p"), execute("p", 1), SYNC, query("FETCH 2 FROM p")),
        *(query("MOVE 1 IN p"), query("FETCH ALL p"), query("FETCH p"), query("CLOSE p"), query("COMMIT")),
    ],
    "SQL moves in a portal that has not begun": [
        *(query("BEGIN"), parse(ROWS), bind("p"), SYNC, query("MOVE FORWARD 3 p"), execute("p", 1), SYNC),
        query("COMMIT"),
    ],
    "the protocol takes of a cursor": [
        *(query(f"BEGIN; DECLARE c BINARY CURSOR FOR {ROWS}"), describe("c"), execute("c", 2), FLUSH),
        *(execute("c", 9), SYNC, close("c"), SYNC, query("FETCH c"), query("ROLLBACK")),
    ],
    "cursors": [
        *(query(f"BEGIN; DECLARE c CURSOR FOR {ROWS}"), query("FETCH c"), query("MOVE 2 c")),
        *(
            query("FETCH ABSOLUTE 5 c"),
            query("FETCH NEXT c"),
            query("FETCH FORWARD ALL c"),
            query("CLOSE ALL"),
        ),
        query("COMMIT"),
    ],
    "a cursor outside of a block": [
        query(f"DECLARE c CURSOR FOR {ROWS}"),
        query("FETCH c"),
        query("CLOSE c"),
    ],
    "a cursor that is held": [
        *(query(f"DECLARE h CURSOR WITH HOLD FOR {ROWS}"), query("FETCH 2 h"), query("FETCH 9 h")),
        *(query("DECLARE h CURSOR WITH HOLD FOR SELECT 1"), query("CLOSE h"), query("CLOSE h")),
    ],
    "FETCH is described": [
        *(query(f"BEGIN; DECLARE c CURSOR FOR {ROWS}"), parse("FETCH 2 c"), message("D", b"S\0")),
        *(bind("", "", True), describe(""), execute(), SYNC, query("ROLLBACK")),
    ],
    "COPY to the client": [
        query(f"COPY ({ROWS}) TO STDOUT"),
        query(f"COPY ({ROWS}) TO STDOUT (FORMAT binary)"),
    ],
    "COPY to the client, extended": [
        *(parse(f"COPY ({ROWS}) TO STDOUT CSV HEADER"), bind(), describe(""), execute("", 1), SYNC),
    ],
    "COPY among others": [
        query("SELECT 1::integer AS a; COPY numbers (i) TO STDOUT; SELECT 2::integer AS b")
    ],
    "COPY that fails": [
        query("COPY (SELECT 1 FROM nowhere) TO STDOUT"),
        query("COPY numbers TO STDOUT (NONE)"),
    ],
    "COPY from the client": [
        *(query("BEGIN; COPY numbers FROM STDIN"), message("d", b"100\n"), message("c"), query("ROLLBACK")),
        *(query("COPY numbers FROM STDIN (FORMAT binary)"), message("f", b"enough\0")),
    ],
    "notifications": [
        *(
            query("LISTEN c"),
            query("NOTIFY c, 'own'"),
            query("BEGIN; NOTIFY c, 'a'; NOTIFY c, 'a'; NOTIFY c"),
        ),
        *(query("COMMIT"), query("UNLISTEN *"), query("NOTIFY c, 'nobody'")),
    ],
    "an error in a pipeline": [
        *(
            parse("SELECT 1::integer AS a"),
            bind(),
            execute(),
            parse("SELECT nothing"),
            bind(),
            execute(),
            SYNC,
        ),
        *(parse("SELECT 2::integer AS a"), bind(), execute(), SYNC),
    ],
    "statements about settings": [
        *(query("SET application_name = 'x'"), query("RESET application_name"), query("DISCARD ALL")),
        *(query("SET statement_timeout = '5s'"), query("SHOW statement_timeout"), query("RESET ALL")),
    ],
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with postgres(tmp_path_factory.mktemp("postgres")) as conninfo:
        told = dict(word.split("=") for word in conninfo.split())
        with psycopg.connect(conninfo, autocommit=True) as con:
            prepare(con)
            yield told


@pytest.fixture(scope="module")
def ours(shared: ServerProcess) -> ServerProcess:
    with shared.connect() as con:
        prepare(con)
    return shared


def prepare(con: psycopg.Connection[Any]) -> None:
    con.execute("CREATE TABLE numbers (i integer)")
    con.execute("INSERT INTO numbers VALUES (1), (2), (3), (4), (5), (6), (7)")


def shown(kind: str, body: bytes) -> object:
    """What must be the same of an answer."""
    if kind == "E":
        return next(part[1:] for part in body.split(b"\0") if part[:1] == b"C")
    if kind == "N":
        return None  # Ours says more here and there.
    if kind == "A":
        return body[4:]
    if kind == "T":
        return fields(body)
    return body


def fields(body: bytes) -> list[tuple[bytes, int, int]]:
    """Name, type and format of each column; tables' numbers are PostgreSQL's own."""
    found, place = [], 2
    for _ in range(struct.unpack_from("!h", body)[0]):
        end = body.index(b"\0", place)
        oid, _, _, format_ = struct.unpack_from("!IhiH", body, end + 7)
        found.append((body[place:end], oid, format_))
        place = end + 19
    return found


def play(client: Any, script: list[bytes]) -> list[tuple[str, object]]:
    client.send(b"".join(script) + query("SELECT 'the end' AS e"))
    found: list[tuple[str, object]] = []
    while True:
        answer = client.answer()
        assert answer is not None
        if answer[0] == "D" and b"the end" in answer[1]:
            break
        if answer[0] != "S":
            found.append((answer[0], shown(*answer)))
    return [(kind, body) for kind, body in found if kind != "N"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_messages(ours: ServerProcess, theirs: dict[str, str], raw_to: Callable[..., Any], name: str) -> None:
    class Theirs:
        host, port = theirs["host"], int(theirs["port"])

    client, reference = raw_to(ours), raw_to(Theirs)
    client.enter()
    reference.enter(user="postgres", database="postgres")
    assert play(client, SCRIPTS[name]) == play(reference, SCRIPTS[name])
