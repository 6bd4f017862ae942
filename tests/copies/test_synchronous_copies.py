"""Synchronous copies: what was acknowledged, or was seen by a reader, survives the loss of the server.

DUCKTAIL_SYNCHRONOUS_COMMITS is how many commits are acknowledged before the last kill.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from acknowledged_load import TABLES, Acknowledged, has_everything
from amounts import amount, seed_of
from copied_load import await_copy
from server_process import ServerProcess

from ducktail.engine.errors import DataCorrupted, InvalidParameterValue
from ducktail.engine.replication.point_in_time import Moment, check_copy, restore_copy
from ducktail.engine.settings import Settings

COMMITS = amount("DUCKTAIL_SYNCHRONOUS_COMMITS", 600, 100_000)
COMMITS_A_KILL = amount("DUCKTAIL_SYNCHRONOUS_COMMITS_A_KILL", 300, 2_000)
SEED = seed_of("DUCKTAIL_SYNCHRONOUS_SEED")
NEVER_MS = str(3_600_000)
# Statements that commit nothing, and so wait for no copy.
READS = (
    "prepare p as select * from t",
    "execute p",
    "explain select * from t",
    "show streams",
    "describe stream s",
    "set lock_timeout = '1 s'",
    "select pg_backend_pid()",
    "begin",
    "rollback",
    "select lsn from stream s consumer group g",
)

# Numbers of which DuckDB can spare no byte.
RANDOM = "hash(i) % 2000000000"

Serve = Callable[..., ServerProcess]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Servers with synchronous copies in the given directories."""
    servers: list[ServerProcess] = []

    def start(*targets: Path, count: int = 1, options: tuple[str, ...] = ()) -> ServerProcess:
        given = tuple(word for place in targets for word in ("--copy-to", str(place)))
        wanted = ("--port", "0", "--synchronous-copies", str(count))
        server = ServerProcess(tmp_path / "shop.duckdb", (*wanted, *given, *options))
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(120 + COMMITS // 10)
def test_no_acknowledged_commit_is_lost(serve: Serve, target: Path, tmp_path: Path) -> None:
    """kill -9 of the server under load; only its copy is left. Generations and checkpoints come often."""
    options = ("--copy-interval-ms", "200", "--copy-generation-ms", "1500", "--wal-bytes-max", str(4 << 20))
    server = serve(target, options=options)
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
    kept: dict[str, list[int]] = {}
    kills = 0
    while sum(map(len, kept.values())) < COMMITS:
        load = Acknowledged(server, kills * 10_000_000, SEED + kills)
        while load.count < COMMITS_A_KILL:
            assert load.errors == []
            time.sleep(0.01)
        server.kill()
        load.stop()
        assert load.errors == []
        for kind, numbers in load.kept.items():
            kept.setdefault(kind, []).extend(numbers)
        restored = tmp_path / f"restored_{kills}.duckdb"
        _, copied = restore_copy(target, Moment(), restored)
        assert copied.counters.lsn >= load.seen, "a reader has seen an event that is lost"
        has_everything(restored, kept)
        for left in tmp_path.glob(f"{restored.name}*"):
            left.unlink()
        kills += 1
        server.start()


def test_a_copy_that_is_gone(serve: Serve, target: Path, tmp_path: Path) -> None:
    """Every kind of commit ends with an error that says that it stands; readers see it when it is copied."""
    server = serve(target, options=("--synchronous-copies-timeout-ms", "300"))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("create sequence numbers")
        connection.execute("insert into t values (1, 1)")
        assert connection.execute("select lsn from stream s consumer group g").fetchall() == [(1,)]
        await_copy(connection)
        target.rename(tmp_path / "away")
        statements = (
            "insert into t values (2, 2)",
            "insert into t values (20, 2) returning id",
            "update t set v = 3 where id = 2",
            "insert into plain values (1)",
            "create table made (i int)",
            "publish to news '7'",
            "commit offsets on s consumer group g",
            "insert into plain values (2); insert into plain values (3)",
            "select nextval('numbers')",
            "declare numbered cursor with hold for select nextval('numbers')",
        )
        for text in statements:
            with pytest.raises(psycopg.OperationalError, match="committed here, but not confirmed") as caught:
                connection.execute(text)
            assert caught.value.sqlstate == "57R01", text
            assert "within 300 ms" in str(caught.value.diag.message_detail)
        refused = pytest.raises(psycopg.OperationalError, match="committed here")
        with refused, connection.transaction():
            connection.execute("insert into t values (3, 3)")
        with refused, connection.cursor() as cursor, cursor.copy("copy plain from stdin") as copy:
            copy.write_row((4,))
        for query in ("delete from plain where id = 2 returning id", "select nextval('numbers')"):
            with refused, connection.cursor() as cursor, cursor.copy(f"copy ({query}) to stdout") as copy:
                assert len(list(copy.rows())) == 1
        # All of them stand; their events are not readable, and what only reads waits for nothing.
        assert connection.execute("select id from t order by id").fetchall() == [(1,), (2,), (3,), (20,)]
        assert connection.execute("select id from plain order by id").fetchall() == [(1,), (3,), (4,)]
        assert connection.execute("select lsn from stream s after 0").fetchall() == [(1,)]
        assert connection.execute("show continuous copies").fetchall()[0][1] == "failing"
        for text in READS:
            connection.execute(text)
        with connection.cursor() as cursor, cursor.copy("copy plain to stdout") as copy:
            assert len(list(copy.rows())) == 3
        # A transaction's snapshot has the rows, and its streams must agree; ALTER TABLE waits for readers.
        for text in ("select lsn from stream s after 0", "alter table t add column z int"):
            unread = pytest.raises(psycopg.OperationalError, match="earlier commits are not confirmed")
            with unread as caught, connection.transaction():
                connection.execute(text)
            assert caught.value.sqlstate == "57R02" and "not executed" in str(caught.value.diag.message_hint)
        (tmp_path / "away").rename(target)
        connection.execute("set statement_timeout = '60 s'")
        await_copy(connection, "state = 'following'")
        connection.execute("insert into t values (5, 5)")
        found = connection.execute("select (after ->> 'id')::int from stream s after 0 where op = 'insert'")
        assert [one for (one,) in found.fetchall()] == [1, 2, 20, 3, 5]
    server.kill()
    _, copied = restore_copy(target, Moment(), tmp_path / "new.duckdb")
    has_everything(tmp_path / "new.duckdb", {"t": [1, 2, 3, 5, 20], "plain": [1, 3, 4], "offsets": [1]})
    assert copied.counters.lsn == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_target(serve: Serve, target: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(target)], check=True)
    try:
        server = serve(target, options=("--synchronous-copies-timeout-ms", "500"))
        with server.connect() as connection:
            for text in TABLES:
                connection.execute(text)
            with pytest.raises(psycopg.OperationalError) as caught:
                connection.execute(
                    "insert into plain select hash(i) % 2000000000 from range(1000000) as r(i)"
                )
            assert caught.value.sqlstate == "57R01"
            assert "No space left" in str(caught.value.diag.message_detail)
            subprocess.run(["mount", "-o", "remount,size=64m", str(target)], check=True)
            await_copy(connection, "state = 'following'")
            connection.execute("insert into t values (1, 1)")
        server.kill()
        restore_copy(target, Moment(), tmp_path / "new.duckdb")
        has_everything(tmp_path / "new.duckdb", {"t": [1]})
    finally:
        server.kill()
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def test_two_of_three_copies(serve: Serve, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("one", "two", "three")]
    for place in targets:
        place.mkdir()
    server = serve(*targets, count=2, options=("--synchronous-copies-timeout-ms", "300"))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        targets[0].rename(tmp_path / "away")
        connection.execute("insert into t values (1, 1)")
        targets[2].rename(tmp_path / "also away")
        with pytest.raises(psycopg.OperationalError) as caught:
            connection.execute("insert into t values (2, 2)")
        assert caught.value.sqlstate == "57R01" and str(caught.value.diag.message_detail).startswith(
            "2 copies"
        )
        server.kill()
    restore_copy(targets[1], Moment(), tmp_path / "new.duckdb")
    has_everything(tmp_path / "new.duckdb", {"t": [1, 2]})


def test_tails(serve: Serve, target: Path, tmp_path: Path) -> None:
    """Between two passes commits are in tails: they are restored, and their damage is named."""
    server = serve(target, options=("--copy-interval-ms", NEVER_MS))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("checkpoint")
        for number in range(1, 21):
            connection.execute("insert into t values (%s, 0)", (number,))
    server.kill()
    tails = sorted(target.glob("*/*.tail"))
    assert len(tails) >= 10, "each commit of one session is an object"
    _, copied = restore_copy(target, Moment(), tmp_path / "all.duckdb")
    assert copied.counters.lsn == 20
    _, copied = restore_copy(target, Moment(lsn=10), tmp_path / "ten.duckdb")
    assert copied.counters.lsn == 10
    assert check_copy(target, tmp_path)[1] == []
    whole = tails[-3].read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    tails[-3].write_bytes(bytes(changed))
    assert any(tails[-3].name in fault for fault in check_copy(target, tmp_path)[1])
    with pytest.raises(DataCorrupted, match=tails[-3].name):
        restore_copy(target, Moment(), tmp_path / "damaged.duckdb")
    tails[-3].unlink()
    with pytest.raises(DataCorrupted) as caught:
        restore_copy(target, Moment(), tmp_path / "missing.duckdb")
    assert f"the log before {tails[-2].parent.name}/{tails[-2].name} is missing" in str(caught.value.detail)
    _, copied = restore_copy(target, Moment(lsn=10), tmp_path / "before.duckdb")
    assert copied.counters.lsn == 10
    tails[-3].write_bytes(whole)
    # A server that comes back continues the generation, and its next pass puts them into the chain.
    server.start()
    with server.connect() as connection:
        connection.execute("insert into t values (21, 0)")
        await_copy(connection)
    assert server.stop() == 0
    assert list(target.glob("*/*.tail")) == []
    assert len([path for path in target.iterdir() if path.is_dir()]) == 1
    _, copied = restore_copy(target, Moment(), tmp_path / "after.duckdb")
    assert copied.counters.lsn == 21


def test_more_copies_than_directories(target: Path) -> None:
    with pytest.raises(InvalidParameterValue, match='"synchronous_copies" is 2, and "copy_to" has 1'):
        Settings(copy_to=(str(target),), synchronous_copies=2)


def test_a_stop_ends_the_waits(serve: Serve, target: Path, tmp_path: Path) -> None:
    """A server that is stopped does not wait for a copy that is gone, for longer than it drains."""
    server = serve(target, options=("--synchronous-copies-timeout-ms", NEVER_MS))
    with server.connect() as writer, server.connect() as other:
        for text in TABLES:
            writer.execute(text)
        target.rename(tmp_path / "away")
        outcome: list[str | None] = []

        def write() -> None:
            with pytest.raises(psycopg.OperationalError) as caught:
                writer.execute("insert into t values (1, 1)")
            outcome.append(caught.value.sqlstate)

        thread = threading.Thread(target=write)
        thread.start()
        ends = time.monotonic() + 60
        while other.execute("select count(*) from t").fetchone() != (1,):
            assert time.monotonic() < ends
        other.close()
        assert server.stop() == 0
        thread.join()
    assert outcome in (["57R01"], ["57P01"])
