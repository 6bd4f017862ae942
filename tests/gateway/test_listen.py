"""LISTEN, NOTIFY and UNLISTEN: streams that tell of their events, and channels as PostgreSQL has them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]
# A notification comes a tenth of a second after the commit at the latest; a crowded machine takes longer.
COMES_S = 15.0


@pytest.fixture
def con(shared: ServerProcess) -> Iterator[Connection]:
    """A connection that writes, and a stream feed of a table fed."""
    with shared.connect() as made:
        made.execute("DROP STREAM IF EXISTS feed CASCADE")
        made.execute("DROP TABLE IF EXISTS fed")
        made.execute("CREATE TABLE fed (id integer PRIMARY KEY)")
        made.execute("CREATE STREAM feed ON fed WITH (partitions = 4)")
        yield made


@pytest.fixture
def listener(shared: ServerProcess) -> Iterator[Connection]:
    with shared.connect() as made:
        yield made


def heard(listener: Connection, count: int = 1) -> list[tuple[str, str]]:
    """So many notifications, or those that come in time."""
    found = listener.notifies(timeout=COMES_S, stop_after=count)
    return [(note.channel, note.payload) for note in found]


def ends(con: Connection) -> dict[int, int]:
    rows = con.execute("SELECT partition, max(lsn) FROM STREAM feed GROUP BY partition").fetchall()
    return dict(rows)


def test_a_stream_tells_an_idle_connection_of_its_newest_events(
    con: Connection, listener: Connection
) -> None:
    listener.execute("LISTEN Feed")
    con.execute("INSERT INTO fed SELECT i FROM range(100) r(i)")
    found = heard(listener, 4)
    assert {channel for channel, _ in found} == {"feed"}
    payloads = [json.loads(payload) for _, payload in found]
    assert all(set(payload) == {"partition", "lsn"} for payload in payloads)
    assert {payload["partition"]: payload["lsn"] for payload in payloads} == ends(con)
    con.execute("DELETE FROM fed WHERE id = 1")
    (told,) = heard(listener)
    newest = "SELECT partition, lsn FROM STREAM feed ORDER BY lsn DESC LIMIT 1"
    partition, lsn = con.execute(newest).fetchall()[0]
    assert json.loads(told[1]) == {"partition": partition, "lsn": lsn}


def test_one_that_does_not_ask_gets_one_a_partition(con: Connection, listener: Connection) -> None:
    """In a transaction nothing is told; after it the newest LSN of each partition, once."""
    listener.execute("LISTEN feed")
    listener.execute("BEGIN")
    for number in range(50):
        con.execute("INSERT INTO fed VALUES (%s)", [number])
    newest = ends(con)
    listener.execute("SELECT 1")
    listener.execute("COMMIT")
    found = heard(listener, len(newest))
    assert {p["partition"]: p["lsn"] for p in (json.loads(payload) for _, payload in found)} == newest
    con.execute("INSERT INTO fed VALUES (1000)")
    assert len(heard(listener)) == 1


def test_a_topic_tells_of_what_is_published(con: Connection, listener: Connection) -> None:
    con.execute("DROP TOPIC IF EXISTS clicks CASCADE")
    con.execute("CREATE TOPIC clicks WITH (partitions = 4)")
    listener.execute("LISTEN clicks")
    published = con.execute("PUBLISH TO clicks KEY 'ada' 'x'").fetchone()
    assert published is not None
    ((channel, payload),) = heard(listener)
    assert (channel, json.loads(payload)) == ("clicks", {"partition": published[0], "lsn": published[1]})
    con.execute("BEGIN; PUBLISH TO clicks 'nobody hears of it'; ROLLBACK")
    con.execute("INSERT INTO clicks (payload, key) SELECT i, i FROM range(100) r(i)")
    told = {note["partition"]: note["lsn"] for note in (json.loads(p) for _, p in heard(listener, 4))}
    newest = con.execute("SELECT partition, max(lsn) FROM TOPIC clicks GROUP BY partition").fetchall()
    assert told == dict(newest)


def test_unlisten_and_what_is_not_committed(con: Connection, listener: Connection) -> None:
    listener.execute("LISTEN feed")
    listener.execute("LISTEN other")
    listener.execute("UNLISTEN feed")
    con.execute("INSERT INTO fed VALUES (1)")
    con.execute("SELECT count(*) FROM STREAM feed")
    con.execute("NOTIFY other, 'last'")
    assert heard(listener) == [("other", "last")]
    listener.execute("UNLISTEN *")
    listener.execute("BEGIN; LISTEN other; ROLLBACK")
    con.execute("NOTIFY other, 'nobody'")
    listener.execute("BEGIN; LISTEN third; COMMIT")
    con.execute("BEGIN; NOTIFY third, 'rolled back'; ROLLBACK")
    con.execute("BEGIN; NOTIFY third, 'twice'; NOTIFY third, 'twice'; NOTIFY third; COMMIT")
    assert heard(listener, 2) == [("third", "twice"), ("third", "")]
    listener.execute("DISCARD ALL")
    con.execute("NOTIFY third, 'nobody'")
    listener.execute('LISTEN "Fourth"')
    con.execute("NOTIFY fourth, 'another'")
    con.execute("NOTIFY \"Fourth\", 'mine'")
    assert heard(listener) == [("Fourth", "mine")]


def test_what_is_told_has_its_teller(con: Connection, listener: Connection) -> None:
    listener.execute("LISTEN c")
    con.execute("NOTIFY c, 'x'")
    (note,) = listener.notifies(timeout=COMES_S, stop_after=1)
    assert note.pid == con.info.backend_pid
    listener.execute("NOTIFY c, 'own'")
    assert heard(listener) == [("c", "own")]


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        (f"NOTIFY c, '{'x' * 8000}'", "22023"),
        (f"NOTIFY {'c' * 64}", "22023"),
        ("NOTIFY c, 5", "42601"),
        ("NOTIFY", "42601"),
        ("LISTEN", "42601"),
        ("LISTEN a b", "42601"),
    ],
)
def test_what_is_wrong_is_told(con: Connection, text: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.Error) as found:
        con.execute(text)  # type: ignore[arg-type]
    assert found.value.sqlstate == sqlstate


def test_a_listener_that_never_takes_anything_is_let_go_of(
    con: Connection, shared_raw: Callable[[], Any], error_fields: Callable[[bytes], dict[str, str]]
) -> None:
    """It is in a transaction, so nothing can be told; the others go on."""
    client = shared_raw()
    client.enter()
    client.query("LISTEN crowd")
    client.query("BEGIN")
    for number in range(1001):
        con.execute(f"NOTIFY crowd, '{number}'")
    kind, body = client.until("E")[-1]
    assert (kind, error_fields(body)["C"]) == ("E", "54000")
    assert client.answer() is None
    assert con.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.psql
def test_psql_shows_them(con: Connection, shared: ServerProcess) -> None:
    script = "listen feed;\ninsert into fed values (7);\nselect count(*) from stream feed;\nselect 1;\n"
    command = ["psql", "-X", "-qAt", shared.conninfo]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=True)
    partition, lsn = con.execute("SELECT partition, lsn FROM STREAM feed").fetchall()[0]
    payload = json.dumps({"partition": partition, "lsn": lsn})
    assert f'Asynchronous notification "feed" with payload "{payload}"' in done.stdout


def test_asyncpg_hears_them(con: Connection, shared: ServerProcess) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def run() -> tuple[str, str]:
        made = await asyncpg.connect(host=shared.host, port=shared.port, user="ann", database="ducktail")
        try:
            come: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
            await made.add_listener("feed", lambda _, pid, *note: come.put_nowait(note))
            await asyncio.to_thread(con.execute, "INSERT INTO fed VALUES (1)")
            return await asyncio.wait_for(come.get(), COMES_S)
        finally:
            await made.close()

    channel, payload = asyncio.run(run())
    assert channel == "feed"
    assert {json.loads(payload)["partition"]: json.loads(payload)["lsn"]} == ends(con)
