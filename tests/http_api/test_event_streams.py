"""Server-Sent Events: resuming, filters, groups, slow clients, and the errors that end a stream."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import amount
from http_client import HttpClient, Message, http_port
from server_process import ServerProcess

OPTIONS = ("--port", "0", "--http", "127.0.0.1:0")


def lsns(messages: list[Message]) -> list[int]:
    return [message.json()["lsn"] for message in messages]


def fill(client: HttpClient, table: str, first: int, rows: int) -> None:
    client.sql(f"INSERT INTO {table} SELECT x, 'v' || x, x FROM range({first}, {first + rows}) AS r(x)")


def all_lsns(client: HttpClient, table: str) -> list[int]:
    return [row[0] for row in client.sql(f"SELECT lsn FROM {table}_s ORDER BY lsn")]


def test_a_stream_continues_behind_its_last_message(client: HttpClient, table: str) -> None:
    fill(client, table, 0, 5)
    path = f"/v1/streams/{table}_s/events"
    with client.events(path) as stream:
        first = stream.take(2)
        assert stream.last_id == str(first[-1].json()["lsn"]) == first[-1].id
    with client.events(path, last_event_id=first[-1].id, after=0) as stream:
        rest = stream.take(3)
        fill(client, table, 5, 2)
        rest += stream.take(2)
    assert lsns(first + rest) == all_lsns(client, table)
    with client.events(path, after=rest[-3].id) as stream:
        assert lsns(stream.take(2)) == lsns(rest)[-2:]


def test_clients_at_different_positions_get_the_same_events(client: HttpClient, table: str) -> None:
    """They share one read once they are at the end."""
    path = f"/v1/streams/{table}_s/events"
    fill(client, table, 0, 30)
    known = all_lsns(client, table)
    streams = [client.events(path, after=after) for after in (0, known[9], known[-1], known[-1] + 3)]
    others = [client.events(path, after=known[-1]) for _ in range(20)]
    try:
        got = [stream.take(count) for stream, count in zip(streams, (30, 20, 0, 0), strict=True)]
        for number in range(30, 40):
            fill(client, table, number, 1)
        known = all_lsns(client, table)
        for stream, messages, count in zip(streams, got, (10, 10, 10, 7), strict=True):
            messages += stream.take(count)
        assert [lsns(messages) for messages in got] == [known, known[10:], known[30:], known[33:]]
        assert all(lsns(stream.take(10)) == known[30:] for stream in others)
        sessions = client.sql(
            "SELECT count(*) FROM ducktail.sessions WHERE application_name = 'http' AND state = 'active'"
        )
        # The shared read, and the session that asks; those of earlier tests may still be there.
        assert sessions[0][0] <= 6
    finally:
        for stream in streams + others:
            stream.close()


def test_a_position_of_partitions(client: HttpClient, table: str) -> None:
    fill(client, table, 0, 20)
    rows = client.sql(f"SELECT lsn, partition FROM {table}_s ORDER BY lsn")
    at = {str(partition): max(lsn for lsn, p in rows[:12] if p == partition) for partition in range(2)}
    with client.events(f"/v1/streams/{table}_s/events", after=json.dumps(at)) as stream:
        expected = [lsn for lsn, partition in rows if lsn > at.get(str(partition), 0)]
        messages = stream.take(len(expected))
        assert lsns(messages) == expected
    # A message's id is the position in all partitions: nothing comes again, nothing is missing.
    for message in messages[::3]:
        with client.events(f"/v1/streams/{table}_s/events", last_event_id=message.id) as stream:
            rest = expected[expected.index(message.json()["lsn"]) + 1 :]
            assert lsns(stream.take(len(rest))) == rest


def test_filters_and_the_position_behind_rejected_events(client: HttpClient, table: str) -> None:
    path = f"/v1/streams/{table}_s/events"
    fill(client, table, 0, 10)
    query = {"where": "(after->>'id')::INT % 5 = 0", "partition": "0,1,2,3"}
    with client.events(path, **query) as stream:
        assert [message.json()["after"]["id"] for message in stream.take(2)] == [0, 5]
        fill(client, table, 10, 6)
        assert [message.json()["after"]["id"] for message in stream.take(2)] == [10, 15]
    with client.events(path, envelope="changes", where="price > 14", after=0) as stream:
        assert [message.json()["id"] for message in stream.take(1)] == [15]
        client.sql(f"UPDATE {table} SET price = price + 1 WHERE id = 15")
        old, new = stream.take(2)
    assert (old.json()["_change_type"], new.json()["_change_type"]) == ("update_preimage", "update_postimage")
    assert (old.id, new.id) == (str(old.json()["_lsn"] - 1), str(new.json()["_lsn"]))


def test_a_line_end_in_a_payload(client: HttpClient, topic: str) -> None:
    client.post(f"/v1/topics/{topic}", b'{"payload": {\n"a":\r\n"x\\ny"}, "key": "\\u2028"}')
    with client.events(f"/v1/streams/{topic}/events") as stream:
        (message,) = stream.take(1)
    assert (message.json()["after"], message.json()["key"]) == ({"a": "x\ny"}, "\u2028")


def test_a_group_gets_more_once_it_has_committed(client: HttpClient, table: str) -> None:
    fill(client, table, 0, 5)
    path, known = f"/v1/streams/{table}_s", all_lsns(client, table)
    with client.events(f"{path}/events", group="g", member="m", limit=2) as stream:
        first = stream.take(2)
        offsets = json.loads(first[-1].id)
        assert client.post(f"{path}/commit", {"group": "g", "member": "m", "offsets": offsets}).status == 200
        second = stream.take(2)
        # A commit over the wire is seen as well.
        client.sql(f"COMMIT OFFSETS ON {table}_s CONSUMER GROUP g MEMBER 'm'")
        third = stream.take(1)
        assert lsns(first + second + third) == known
    # Without a commit they come again, whatever the browser has seen.
    with client.events(f"{path}/events", third[-1].id, group="g", member="m", limit=2) as stream:
        assert lsns(stream.take(1)) == known[4:]


def test_released_events_of_a_group(client: HttpClient, table: str) -> None:
    fill(client, table, 0, 3)
    path, known = f"/v1/streams/{table}_s", client.sql(f"SELECT lsn, partition FROM {table}_s ORDER BY lsn")
    lsn, partition = known[0]
    client.sql(f"ALTER CONSUMER GROUP g ON {table}_s PARK PARTITION {partition} AT {lsn}")
    with client.events(f"{path}/events", group="g", limit=10) as stream:
        rest = stream.take(2)
        assert lsns(rest) == [one for one, _ in known[1:]]
        client.sql(f"ALTER CONSUMER GROUP g ON {table}_s RELEASE PARTITION {partition} AT {lsn}")
        client.post(f"{path}/commit", {"group": "g", "offsets": json.loads(rest[-1].id)})
        assert lsns(stream.take(1)) == [lsn]


@pytest.mark.parametrize("group", [{}, {"group": "g"}])
def test_a_dropped_stream_ends_with_a_failure(client: HttpClient, group: dict[str, str]) -> None:
    client.sql("CREATE TOPIC gone")
    client.sql("CREATE CONSUMER GROUP g ON gone")
    client.post("/v1/topics/gone", {"payload": 1})
    with client.events("/v1/streams/gone/events", **group) as stream:
        (first,) = stream.take(1)
        client.sql("DROP TOPIC gone CASCADE")
        *_, last = list(stream)
    assert (last.event, last.json()["error"]["sqlstate"]) == ("failure", "42704")
    assert last.json()["position"] == first.id == last.id
    with client.events("/v1/streams/gone/events", **group) as stream:
        assert (stream.status, stream.error()["sqlstate"]) == (404, "42704")


def test_a_renamed_stream_goes_on(client: HttpClient, table: str) -> None:
    fill(client, table, 0, 1)
    with client.events(f"/v1/streams/{table}_s/events") as stream:
        stream.take(1)
        client.sql(f"ALTER STREAM {table}_s RENAME TO {table}_r")
        client.sql(f"CREATE TOPIC {table}_s")
        client.post(f"/v1/topics/{table}_s", {"payload": 1})
        fill(client, table, 1, 1)
        (message,) = stream.take(1)
    assert message.json()["after"]["id"] == 1


def test_a_client_that_does_not_read_is_paused(client: HttpClient, topic: str) -> None:
    """What it has not taken stays in the database: the server writes no more than its bound."""
    path, payload = f"/v1/streams/{topic}/events", "x" * 10_000
    slow = socket.create_connection(("127.0.0.1", client.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    slow.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n\r\n".encode())
    reader = slow.makefile("rb")
    assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
    with client.events(path) as fast:
        for batch in range(10):
            events = [{"payload": payload + str(batch * 100 + n), "key": n} for n in range(100)]
            client.post(f"/v1/topics/{topic}", events)
            assert len(fast.take(100)) == 100
    got, size = 0, 0
    while got < 1000:
        line = reader.readline()
        size += len(line)
        if line.startswith(b"data: "):
            assert json.loads(line[6:])["after"] == payload + str(got)
            got += 1
    assert size > 10_000_000
    slow.close()
    reader.close()


def test_no_gap_and_no_repeat_over_restarts(place: Path) -> None:
    """A browser connects again with the last id that it has seen; others write, and the server is killed."""
    with ServerProcess(place, OPTIONS) as server:
        with server.connect() as wire:
            wire.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
            wire.execute("CREATE STREAM s ON t WITH (partitions = 3)")
        got: list[int] = []
        last, number, acknowledged = "0", 0, set[int]()
        for _ in range(amount("DUCKTAIL_HTTP_KILLS", 3, 20)):
            client = HttpClient(http_port(server))

            def write() -> None:
                nonlocal number
                try:
                    with server.connect() as wire:
                        while True:
                            number += 1
                            wire.execute(f"INSERT INTO t VALUES ({number})")
                            acknowledged.add(number)
                except psycopg.Error:
                    pass

            writer = threading.Thread(target=write)
            writer.start()
            with client.events("/v1/streams/s/events", last_event_id=last) as stream:
                for message in stream.take(50):
                    got.append(message.json()["lsn"])
                    last = message.id
                server.kill()
                for message in _rest(stream):
                    got.append(message.json()["lsn"])
                    last = message.id
            writer.join()
            server.start()
        client = HttpClient(http_port(server))
        known = [row[0] for row in client.sql("SELECT lsn FROM s ORDER BY lsn")]
        with client.events("/v1/streams/s/events", last_event_id=last) as stream:
            got += lsns(stream.take(len(known) - len(got)))
        assert got == known
        assert acknowledged <= {row[0] for row in client.sql("SELECT id FROM t")}


def _rest(stream: Any) -> list[Message]:
    found = []
    try:
        for message in stream:
            found.append(message)
    except (ConnectionError, ValueError, OSError):
        pass
    except Exception as error:
        if type(error).__name__ != "IncompleteRead":
            raise
    return [message for message in found if message.event == "message"]


def test_the_end_of_the_server(place: Path) -> None:
    with ServerProcess(place, OPTIONS) as server:
        client = HttpClient(http_port(server))
        client.sql("CREATE TOPIC p")
        client.sql("CREATE CONSUMER GROUP g ON p")
        client.post("/v1/topics/p", {"payload": 1})
        streams = [client.events("/v1/streams/p/events", **query) for query in ({}, {"group": "g"})]
        answers: list[Any] = []
        polling = threading.Thread(
            target=lambda: answers.append(client.get("/v1/streams/p/poll", after=99, wait=60))
        )
        polling.start()
        for stream in streams:
            stream.take(1)
        while b"ducktail_long_polls 2.0" not in client.get("/metrics").body:
            pass
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        for stream in streams:
            (last,) = list(stream)
            assert (last.event, last.json()["error"]["sqlstate"]) == ("failure", "57P01")
            stream.close()
        polling.join()
        assert (answers[0].status, answers[0].sqlstate) == (503, "57P01")
        stopping.join()
        assert server.process.poll() == 0
