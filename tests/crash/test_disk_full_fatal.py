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

FILLED_ROWS = 30_000
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
    connection.execute(
        f"insert into t select i, md5(i::text) || md5((i * 7)::text) from range({FILLED_ROWS}) r(i)"
    )
    connection.execute("checkpoint")


def write_more(connection: Connection, first: int, rows: int = 1000) -> None:
    connection.execute(
        f"insert into t select i, md5(i::text) || md5((i * 7)::text) from range({first}, {first + rows}) r(i)"
    )


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
            for number in range(20):
                write_more(one, FILLED_ROWS + 1000 * number)
                acknowledged += 1000
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
        again(lambda: write_more(one, 100_000))
        assert check(two, acknowledged + 1000) == acknowledged + 1000
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
        check(connection, acknowledged + 1000)
