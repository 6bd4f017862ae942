"""A full disk while DuckDB writes the file itself: it gives its database up, and the engine comes back.

The server process gets a limit of file size in place of a full disk, at the size that the file has: DuckDB's
log still fits, what a checkpoint writes does not.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

# Together they are more than DuckDB's log may be before a COMMIT checkpoints (16 MiB).
FILLED_ROWS, ROWS = 50_000, 1000
IO_ERROR, FAILED_BLOCK = "58030", "25P02"
# A client that tries again waits so long in between, and gives up after so many seconds.
PAUSE_S, PATIENCE_S = 0.05, 30.0

Connection = psycopg.Connection[Any]


def limit(server: ServerProcess, size: int) -> None:
    """No file of the server's may grow beyond `size` bytes."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def set_up(connection: Connection) -> None:
    """A captured table, its stream and a group, all of it in the file and little in the log."""
    connection.execute("create table t (id int primary key, v text)")
    connection.execute("create stream s on t with (partitions = 1)")
    connection.execute("create consumer group g on s")
    write(connection, 0, FILLED_ROWS)
    connection.execute("checkpoint")


def write(connection: Connection, first: int, rows: int = ROWS) -> None:
    """Rows of some 330 bytes that do not get much smaller in the file."""
    value = "||".join(f"sha256((i * {factor})::text)" for factor in (1, 3, 5, 7, 11))
    connection.execute(f"insert into t select i, {value} from range({first}, {first + rows}) r(i)")


def sqlstate(act: Callable[[], object]) -> str | None:
    """What an act is refused with; None where it is done."""
    try:
        act()
    except psycopg.Error as error:
        return error.sqlstate
    return None


def again(act: Callable[[], object]) -> None:
    """Until it is done; 58030 is the only error on the way."""
    end_s = time.monotonic() + PATIENCE_S
    while (found := sqlstate(act)) is not None:
        assert found == IO_ERROR and time.monotonic() < end_s
        time.sleep(PAUSE_S)


def rows_of(connection: Connection) -> int:
    row = connection.execute("select count(*) from t").fetchone()
    assert row is not None
    return int(row[0])


def check(connection: Connection, at_least: int) -> int:
    """The table is the fold of its stream; how many rows it has."""
    rows = rows_of(connection)
    assert rows >= at_least
    found = connection.execute("select count(*), min(lsn), max(lsn) from stream s after 0").fetchone()
    assert found == (rows, 1, rows)
    return rows


def descriptors(server: ServerProcess) -> int:
    """How often the server has the database's file open."""
    links = Path(f"/proc/{server.process.pid}/fd").iterdir()
    return sum(os.path.realpath(link) == os.path.realpath(server.path) for link in links)


@contextmanager
def full(server: ServerProcess) -> Iterator[None]:
    """Within, the database's file cannot grow."""
    limit(server, Path(server.path).stat().st_size)
    try:
        yield
    finally:
        limit(server, resource.RLIM_INFINITY)


@pytest.mark.slow
def test_the_engine_comes_back(serve: Callable[..., ServerProcess]) -> None:
    server = serve("full.duckdb")
    with server.connect() as one, server.connect() as two, server.connect() as idle:
        set_up(one)
        idle.execute("set timezone = 'Asia/Tokyo'")
        idle.execute("prepare twice as select $1::int * 2")
        idle.execute("create temp table mine as select 1 as x")
        two.execute("select lsn from stream s consumer group g limit 100")
        two.execute("commit offsets on s consumer group g")
        acknowledged = FILLED_ROWS
        with full(server):
            for number in range(5):
                write(one, FILLED_ROWS + ROWS * number)
                acknowledged += ROWS
            two.autocommit = False
            two.execute("insert into t values (-1, 'never committed')")
            assert sqlstate(lambda: idle.execute("checkpoint")) == IO_ERROR
            assert sqlstate(lambda: two.execute("select 1")) in (IO_ERROR, FAILED_BLOCK)
            assert sqlstate(lambda: two.execute("select 1")) == FAILED_BLOCK
            # The log still has room: the file is open again, on the disk that is full.
            again(lambda: rows_of(one))
            assert check(one, acknowledged) == acknowledged
            assert descriptors(server) == 1
        two.rollback()
        two.autocommit = True
        again(lambda: write(one, 100_000))
        assert check(two, acknowledged + ROWS) == acknowledged + ROWS
        read = two.execute("select lsn from stream s consumer group g limit 1").fetchall()
        assert read == [(101,)]
        again(lambda: one.execute("checkpoint"))
        # What the sessions had is theirs, but for temporary tables.
        assert idle.execute("show timezone").fetchone() == ("Asia/Tokyo",)
        asked = "select '2026-01-01 00:00+00'::timestamptz::text, current_setting('timezone')"
        assert idle.execute(asked).fetchone() == ("2026-01-01 09:00:00+09", "Asia/Tokyo")
        assert idle.execute("execute twice (21)").fetchone() == (42,)
        assert sqlstate(lambda: idle.execute("select x from mine")) == "42P01"
        # psql's \d, over the catalog that was made anew.
        found = one.execute("select relname from pg_class where relname = 't'").fetchall()
        assert found == [("t",)]
        # Nobody else gets the file: DuckDB's lock on it has outlived the change.
        program = f"import duckdb; duckdb.connect({str(server.path)!r})"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert other.returncode == 1 and "lock" in other.stderr
    server.kill()
    server.start()
    with server.connect() as connection:
        check(connection, acknowledged + ROWS)


@pytest.mark.slow
def test_a_commit_that_cannot_checkpoint(serve: Callable[..., ServerProcess]) -> None:
    """DuckDB checkpoints within the COMMIT that makes its log too large: then nobody knows what stands."""
    server = serve("full.duckdb")
    with server.connect() as connection:
        set_up(connection)
        acknowledged = FILLED_ROWS
        with full(server):
            for number in range(100):
                try:
                    write(connection, FILLED_ROWS + ROWS * number)
                except psycopg.OperationalError as error:
                    assert error.sqlstate == IO_ERROR
                    assert "the outcome of a COMMIT is unknown" in str(error)
                    break
                acknowledged += ROWS
            else:
                raise AssertionError("no COMMIT failed")
            # While the disk is full the next COMMIT ends so as well; nothing of it is told as done.
            again(lambda: rows_of(connection))
            assert sqlstate(lambda: write(connection, 1_000_000)) == IO_ERROR
            again(lambda: rows_of(connection))
        again(lambda: connection.execute("checkpoint"))
        rows = check(connection, acknowledged)
        assert rows <= acknowledged + 2 * ROWS and rows % ROWS == 0
        write(connection, 2_000_000)
    server.kill()
    server.start()
    with server.connect() as connection:
        assert check(connection, rows + ROWS) == rows + ROWS
