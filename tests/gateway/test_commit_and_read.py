"""COMMIT in a read over the wire: when it commits, and that it is durable before the rows come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess
from wire_messages import Written

READ = "SELECT lsn FROM STREAM s CONSUMER GROUP g COMMIT"
EVENTS = 1000
written = Written()


@pytest.fixture
def group(shared: ServerProcess) -> Iterator[psycopg.Connection[Any]]:
    """A connection; the stream s in one partition with the LSNs 1 to EVENTS, and a new group g."""
    with shared.connect() as connection:
        if connection.execute("SHOW STREAMS").fetchone() is None:
            connection.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            connection.execute("CREATE STREAM s ON t WITH (partitions = 1)")
            connection.execute(f"INSERT INTO t SELECT i FROM range({EVENTS}) r (i)")
        connection.execute("CREATE CONSUMER GROUP g ON s")
        yield connection
        connection.execute("DROP CONSUMER GROUP g ON s")


def committed(connection: psycopg.Connection[Any]) -> int:
    (lsn,) = connection.execute("SELECT committed_lsn FROM ducktail.offsets").fetchone() or (0,)
    assert isinstance(lsn, int)
    return lsn


def kinds(answers: list[tuple[str, bytes]]) -> str:
    return "".join(kind for kind, _ in answers)


@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_a_loop_of_one_statement(
    shared: ServerProcess, group: psycopg.Connection[Any], cursor: type[psycopg.Cursor[Any]]
) -> None:
    mark = "$1" if cursor is psycopg.RawCursor else "%s"
    with shared.connect(cursor_factory=cursor) as client:
        seen: list[int] = []
        while rows := client.execute(f"{READ} LIMIT {mark}", [300], prepare=True).fetchall():
            assert committed(group) == len(seen)
            seen += [lsn for (lsn,) in rows]
        assert seen == list(range(1, EVENTS + 1)) and committed(group) == EVENTS


def test_parse_bind_and_describe_commit_nothing(
    group: psycopg.Connection[Any], shared_raw: Callable[[], Any]
) -> None:
    client = shared_raw()
    client.enter()
    client.query(f"{READ} LIMIT 5")
    client.send(written.parse(f"{READ} LIMIT 7", "p") + written.describe("S", "p") + written.sync)
    assert kinds(client.until("Z")) == "1tTZ"
    client.send(written.bind("", "p") + written.describe("P") + written.sync)
    assert kinds(client.until("Z")) == "2TZ"
    assert committed(group) == 0
    client.send(written.bind("", "p") + written.execute() + written.sync)
    assert kinds(client.until("Z")) == "2DDDDDDDCZ"
    assert committed(group) == 5


def test_a_query_that_writes_is_refused_before_it_commits(group: psycopg.Connection[Any]) -> None:
    group.execute(f"{READ} LIMIT 5")
    writes = f"WITH w AS (INSERT INTO t VALUES (-1) RETURNING id) {READ} LIMIT 5"
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="in a query that writes"):
        group.execute(writes)
    assert committed(group) == 0


def test_a_portal_with_a_row_limit_commits_once_and_counts_what_was_sent(
    group: psycopg.Connection[Any], shared_raw: Callable[[], Any]
) -> None:
    client = shared_raw()
    client.enter()
    client.query(f"{READ} LIMIT 5")
    client.send(written.parse(f"{READ} LIMIT 100"))
    client.send(written.bind() + written.execute(max_rows=3) + written.sync)
    assert kinds(client.until("Z")) == "12DDDsZ"
    assert committed(group) == 5
    # In a transaction the portal goes on, and the commit is the transaction's.
    client.query("BEGIN")
    client.send(written.parse(f"{READ} LIMIT 100", "p") + written.bind("c", "p"))
    client.send(written.execute("c", 2) + written.execute("c", 2) + written.sync)
    assert kinds(client.until("Z")) == "12NDDsDDsZ"
    assert committed(group) == 5
    client.query("COMMIT")
    assert committed(group) == 8
    client.query(f"{READ} LIMIT 1")
    assert committed(group) == 12


def test_statements_up_to_a_sync_are_one_transaction(
    group: psycopg.Connection[Any], shared_raw: Callable[[], Any]
) -> None:
    client = shared_raw()
    client.enter()
    client.query(f"{READ} LIMIT 5")
    wrong = written.parse("SELECT 1 // 0 + 'x'::INT") + written.bind() + written.execute()
    client.send(written.parse(f"{READ} LIMIT 5") + written.bind() + written.execute() + wrong + written.sync)
    assert kinds(client.until("Z"))[-2:] == "EZ"
    assert committed(group) == 0
    answers = client.query(f"{READ} LIMIT 5")
    assert kinds(answers) == "EZ" and b"55000" in answers[0][1]


def test_copy_to_the_client(shared: ServerProcess, group: psycopg.Connection[Any]) -> None:
    with shared.connect() as client:
        for number in range(3):
            with client.cursor().copy(f"COPY ({READ} LIMIT 2) TO STDOUT") as copy:
                assert [row[0] for row in copy.rows()] == [str(2 * number + 1), str(2 * number + 2)]
            assert committed(group) == 2 * number


def test_an_empty_poll_in_every_protocol(
    shared: ServerProcess, group: psycopg.Connection[Any], shared_raw: Callable[[], Any]
) -> None:
    group.execute("ALTER CONSUMER GROUP g ON s SEEK TO LATEST")
    poll = "SELECT lsn FROM STREAM s CONSUMER GROUP g LIMIT 10"
    with shared.connect() as client:
        for prepare in (False, True, True):
            found = client.execute(poll, prepare=prepare)
            assert (found.fetchall(), found.statusmessage) == ([], "SELECT 0")
    client = shared_raw()
    client.enter()
    assert kinds(client.query(poll)) == "TCZ"
    assert ("C", b"COPY 0\0") in client.query(f"COPY ({poll}) TO STDOUT")
    client.send(written.parse(poll) + written.bind() + written.describe("P"))
    client.send(written.execute(max_rows=5) + written.execute() + written.sync)
    assert kinds(client.until("Z")) == "12TCCZ"


def test_an_answer_that_breaks_off_is_not_committed(
    group: psycopg.Connection[Any], shared: ServerProcess
) -> None:
    with shared.connect() as client:
        client.execute(f"{READ} LIMIT 5")
        client.execute("SET statement_timeout = 100")
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute(
                "SELECT sum(n * lsn) FROM STREAM s CONSUMER GROUP g COMMIT, range(100000000000) r (n)"
            )
        client.execute("RESET statement_timeout")
        assert committed(group) == 5
        assert client.execute(f"{READ} LIMIT 1").fetchall() == [(6,)]
        assert committed(group) == 5


def test_what_was_committed_before_the_rows_survives_a_kill(serve: Callable[..., ServerProcess]) -> None:
    server = serve("killed.duckdb")
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        connection.execute("CREATE STREAM s ON t WITH (partitions = 1)")
        connection.execute("CREATE CONSUMER GROUP g ON s")
        connection.execute("INSERT INTO t SELECT i FROM range(100) r (i)")
    for number in range(3):
        reader = server.connect()
        rows = [reader.execute(f"{READ} LIMIT 10").fetchall() for _ in range(2)]
        # The second batch is there, so the first is committed.
        server.kill()
        reader.close()
        server.start()
        with server.connect() as connection:
            assert committed(connection) == rows[0][-1][0] == 10 * (number + 1)
