"""One-row writes of clients of the wire, which are offered on the event loop and run together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

INSERT = "insert into t values (%s, %s)"
WAITING = "select count(*) from ducktail.sessions where writer_lock = 'waits'"


@pytest.fixture(params=[psycopg.Cursor, psycopg.ClientCursor])
def cursors(request: pytest.FixtureRequest) -> Any:
    """The kind of cursors: values are parameters of the wire, or literals of the text."""
    return request.param


@pytest.fixture
def holder(server: ServerProcess, cursors: Any) -> Iterator[psycopg.Connection[Any]]:
    """A session on a server with a captured table, whose INSERT has a plan."""
    with server.connect() as connection:
        connection.execute("create table t (id bigint primary key, v varchar)")
        connection.execute("create stream s on t")
        connection.cursor_factory = cursors
        for key in range(-4, 0):
            connection.execute(INSERT, (key, "warm"))
        yield connection


def test_writes_wait_without_a_thread_and_can_be_cancelled(
    server: ServerProcess, holder: psycopg.Connection[Any], cursors: Any
) -> None:
    """More sessions wait than there are worker threads; all others are answered meanwhile."""
    connections = [server.connect() for _ in range(40)]
    outcomes: dict[int, str] = {}
    for connection in connections:
        connection.cursor_factory = cursors

    def write(number: int) -> None:
        try:
            outcomes[number] = str(connections[number].execute(INSERT, (number, f"v{number}")).statusmessage)
        except psycopg.Error as error:
            outcomes[number] = str(error.sqlstate)

    holder.execute("begin")
    holder.execute(INSERT, (1000, "held"))
    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(connections))]
    for thread in threads:
        thread.start()
    other = server.connect()
    while other.execute(WAITING).fetchone() != (len(connections),):
        assert all(thread.is_alive() for thread in threads)
    connections[0].cancel()
    threads[0].join(20)
    assert outcomes == {0: "57014"}
    holder.execute("commit")
    for thread in threads:
        thread.join(20)
    assert [outcomes[number] for number in range(1, 40)] == ["INSERT 0 1"] * 39
    keys = {key for (key,) in other.execute("select id from t where id between 0 and 999").fetchall()}
    assert keys == set(range(1, 40))
    assert connections[0].execute(INSERT, (0, "again")).statusmessage == "INSERT 0 1"
    found = other.execute("select count(*), count(distinct txid), max(lsn) from stream s after 0").fetchone()
    assert found is not None and found[0] == found[1] == found[2]
    for connection in (*connections, other):
        connection.close()


def test_values_that_are_not_offered(holder: psycopg.Connection[Any]) -> None:
    """They are written by the session itself, on a worker thread."""
    holder.execute(INSERT, (1, "a"))
    holder.execute(INSERT, (2, 5))
    holder.execute(INSERT, ("3", "c" * 100_000))
    with pytest.raises(psycopg.errors.UniqueViolation, match="_pkey"):
        holder.execute(INSERT, (1, "again"))
    rows = holder.execute("select id, length(v) from t where id > 0 order by id").fetchall()
    assert rows == [(1, 1), (2, 1), (3, 100_000)]


@pytest.mark.parametrize(("count", "chars"), [(200, 100_000), (20_000, 1_000)])
def test_a_cancel_after_the_commit_does_not_answer_a_write_as_failed(
    server: ServerProcess, holder: psycopg.Connection[Any], count: int, chars: int
) -> None:
    """Its client is cancelled while it takes the rows of RETURNING, which have been committed."""
    text = f"insert into t select i, repeat('x', {chars}) from range({count}) r(i) returning v"
    with server.connect() as writer:
        writer.pgconn.send_query(text.encode())
        while holder.execute("select count(*) from t where id >= 0").fetchone() != (count,):
            pass
        writer.cancel_safe()
        results = list(iter(writer.pgconn.get_result, None))
        assert [result.command_status for result in results] == [f"INSERT 0 {count}".encode()]
        assert results[0].ntuples == count
        assert writer.execute("select 1").fetchone() == (1,)
