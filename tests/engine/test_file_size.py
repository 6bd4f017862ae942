"""A month of steady writes at a fixed retention, in compressed time: the file does not grow with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hands import DAY_US, Hands
from local_client import Client

from ducktail.engine.database import Database
from ducktail.engine.settings import Settings

DAYS = 30
ROWS = 3000


@pytest.mark.slow
def test_a_month_of_writes_fits_the_file_of_three_days(tmp_path: Path) -> None:
    path, clock = tmp_path / "month.duckdb", Hands()
    database = Database.open(str(path), Settings(retention_interval_ms=3_600_000), clock)
    client = Client(database)
    client("create table t (id int primary key, written timestamptz, v text)")
    client("create stream day on t with (retention = '1 day')")
    client("create stream two_days on t where id % 2 = 0 with (retention = '2 days')")
    sizes = []
    for day in range(DAYS):
        first = day * ROWS
        client(f"insert into t select i, now(), md5(i::varchar) from range({first}, {first + ROWS}) r(i)")
        client(f"update t set v = md5(v) where id >= {first}")
        client(f"delete from t where id < {first}")
        clock.us += DAY_US
        database.retention.look()
        client("checkpoint")
        sizes.append(path.stat().st_size)
    if os.environ.get("DUCKTAIL_SHOW"):
        print([round(size / 1e6, 1) for size in sizes])
    # From the third day on retention lets go of a day's events for each day that comes.
    assert max(sizes[3:]) <= 1.5 * max(sizes[3:8])
    assert max(sizes[15:]) <= 1.2 * max(sizes[3:15])
    counted = "select sum(trimmed_events) + sum(events) from ducktail.partitions where stream_name = 'day'"
    assert client(counted) == [(DAYS * ROWS * 3 - ROWS,)]
    # What is just as old as is kept is kept.
    assert client.one("select count(*) from stream day") == 3 * ROWS
    client.close()
    database.close()
