"""A disk that is full: writes are 58030 and leave nothing, reads go on, and with room again so do writes.

The server process gets a limit of file size in place of a full disk: DuckDB's log cannot grow.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from server_process import ServerProcess


def limit(server: ServerProcess, size: int) -> None:
    """No file of the server's may grow beyond `size` bytes."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_a_full_disk_loses_nothing(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = serve("full.duckdb")
    acknowledged = 0
    with server.connect() as connection:
        connection.execute("create table t (id int primary key, v text)")
        connection.execute("create stream s on t with (partitions = 1)")
        connection.execute("create consumer group g on s")
        limit(server, (tmp_path / "full.duckdb.wal").stat().st_size + 20_000)
        with pytest.raises(psycopg.OperationalError) as found:
            while acknowledged < 1000:
                connection.execute("insert into t values (%s, repeat('x', 2000))", (acknowledged,))
                acknowledged += 1
        assert found.value.sqlstate == "58030"
        for _ in range(3):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("insert into t values (-1, repeat('x', 20000))")
        assert connection.execute("select count(*) from t").fetchone() == (acknowledged,)
        read = "select lsn from stream s consumer group g"
        lsns = list(range(1, acknowledged + 1))
        assert [lsn for (lsn,) in connection.execute(read).fetchall()] == lsns
        limit(server, resource.RLIM_INFINITY)
        connection.execute("commit offsets on s consumer group g")
        connection.execute("insert into t values (%s, 'room again')", (acknowledged,))
        assert connection.execute(read).fetchall() == [(acknowledged + 1,)]
    server.kill()
    server.start()
    with server.connect() as connection:
        assert connection.execute("select count(*) from stream s after 0").fetchone() == (acknowledged + 1,)
        assert connection.execute(read).fetchall() == [(acknowledged + 1,)]
