"""on_gap = 'earliest' over the wire: the read goes on, and a notice says what is gone."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import Diagnostic
from server_process import ServerProcess

# A pass of retention every 100 ms, the least there is; the first trim has this long.
OPTIONS = ("--port", "0", "--retention-interval-ms", "100")
TRIM_S = 20.0
TRIMMED = "select trimmed_events from ducktail.partitions"
QUERY = "select lsn from stream s consumer group {} where lsn > %s"


def wait_until_trimmed(connection: psycopg.Connection[tuple[object, ...]], events: int) -> None:
    until = time.monotonic() + TRIM_S
    while connection.execute(TRIMMED).fetchall() != [(events,)]:
        assert time.monotonic() < until, "retention has not passed"


def test_a_gap_is_told_in_a_notice(tmp_path: Path) -> None:
    told: list[tuple[str | None, ...]] = []

    def keep(notice: Diagnostic) -> None:  # libpq frees it after the call
        severities = (notice.severity, notice.severity_nonlocalized)
        told.append((*severities, notice.sqlstate, notice.message_primary, notice.message_detail))

    with ServerProcess(tmp_path / "gap.duckdb", OPTIONS) as server, server.connect() as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("create stream s on t with (partitions = 1, retention_bytes = 1)")
        for name, on_gap in (("g", "earliest"), ("strict", "error")):
            connection.execute(f"create consumer group {name} on s with (on_gap = '{on_gap}')")
        connection.execute("insert into t select i from range(100) r(i)")
        wait_until_trimmed(connection, 100)
        connection.execute("alter stream s set (retention_bytes = '1 GB')")
        connection.execute("insert into t select i from range(100, 103) r(i)")
        connection.add_notice_handler(keep)
        for binary in (False, True):
            rows = connection.execute(QUERY.format("g"), (0,), binary=binary).fetchall()
            assert rows == [(101,), (102,), (103,)]
        assert told[0] == told[1] and len(told) == 2
        *severities, sqlstate, message, detail = told[0]
        assert (severities, sqlstate) == (["WARNING", "WARNING"], "72000")
        assert message == (
            'consumer group "g" is at a gap in partition 0 of stream "s": what follows LSN 0 has been trimmed'
        )
        assert detail is not None and detail.startswith("100 events after LSN 0, up to LSN 100, are gone: ")
        assert detail.endswith("The first available one has LSN 101.")
        with pytest.raises(psycopg.Error) as error:
            connection.execute(QUERY.format("strict"), (0,))
        assert error.value.sqlstate == "72000"
        assert error.value.diag.message_detail == detail
        assert len(told) == 2
