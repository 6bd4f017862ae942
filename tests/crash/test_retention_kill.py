"""A retention pass killed (-9) at its steps: nothing retained is lost, nothing lost is untold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amounts import amount
from hands import DAY_US, HOUR_US, Hands
from killed_passes import killed_passes
from local_client import Client, raises
from reopening import QUIET

from ducktail.engine.database import Database

# Of the pass's statements every so-manieth: a transaction has three and more, and what it has done before its
# COMMIT is not there after the kill. With 1 it is each of them.
STRIDE = amount("DUCKTAIL_KILL_STRIDE", 4, 1)
# Stream -> its first retained LSN once a pass is over, and how many events it has then. Of t LSNs 1 to
# 100 are old and 201 to 220 are new; of u 101 to 200 are old.
AFTER = {"short": (201, 20), "kept": (1, 120), "other": (None, 0)}
BEFORE = {"short": (1, 120), "kept": (1, 120), "other": (101, 100)}


def make(path: Path) -> None:
    """Two captured tables with three streams; most of their events are a day old when the pass looks."""
    clock = Hands()
    database = Database.open(str(path), QUIET, clock)
    client = Client(database)
    client("create table t (id int primary key)")
    client("create table u (id int primary key)")
    client("create stream short on t with (partitions = 2, retention = '2 hours')")
    client("create stream kept on t with (partitions = 2, retention = 'none')")
    client("create stream other on u with (partitions = 2, retention = '2 hours')")
    client("create consumer group g on short")
    for start in range(0, 100, 25):
        client(f"insert into t select i from range({start}, {start + 25}) r(i)")
    for start in range(0, 100, 25):
        client(f"insert into u select i from range({start}, {start + 25}) r(i)")
    client("select * from stream short consumer group g limit 30")
    client("commit offsets on short consumer group g")
    clock.us += DAY_US - HOUR_US
    client("insert into t select i from range(100, 120) r(i)")
    client("checkpoint")
    client.close()
    database.close()


def check(path: Path) -> None:
    """Each stream is as before the pass or as after it, says so, and a new pass ends the work."""
    clock = Hands()
    clock.us += DAY_US
    database = Database.open(str(path), QUIET, clock)
    client = Client(database)
    for name, before in BEFORE.items():
        lsns = [lsn for (lsn,) in client(f"select lsn from stream {name}")]
        found = (lsns[0] if lsns else None, len(lsns))
        assert found in (before, AFTER[name])
        counted = "select sum(events), sum(trimmed_events) from ducktail.partitions where stream_name = $1"
        assert client(counted, name) == [(found[1], before[1] - found[1])]
        if found != before:
            with raises("72000"):
                client(f"select * from stream {name} after 1")
    unread = "select sum(trimmed_unread), sum(lag_events) from ducktail.offsets"
    if client.one("select sum(trimmed_events) from ducktail.partitions where stream_name = 'short'"):
        assert client(unread) == [(70, 20)]
        with raises("72000") as error:
            client("select * from stream short consumer group g")
        assert error.value.detail is not None and "At most" not in error.value.detail
    else:
        assert client(unread) == [(0, 90)]
        assert len(client("select * from stream short consumer group g")) == 90
    database.retention.look()
    for name, after in AFTER.items():
        assert client(f"select min(lsn), count(*) from {name}") == [after]
    assert client(unread) == [(70, 20)]
    cursor = database.cursor()
    rows = {
        table: cursor.execute(f'SELECT count(*) FROM ducktail."{table}"').fetchall()[0][0]
        for (table,) in cursor.execute(
            "SELECT table_name FROM duckdb_tables() WHERE table_name SIMILAR TO 'log_[0-9].*|commits'"
        ).fetchall()
    }
    # What "kept" is on is whole, with all commits since; the other table's log is empty.
    assert sorted(rows.values()) == [0, 9, 120]
    client.close()
    database.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pass_killed_at_its_steps(tmp_path: Path) -> None:
    made = tmp_path / "made.duckdb"
    make(made)
    files = killed_passes(made, tmp_path, STRIDE)
    killed = len(files) - 1
    # Counting, two tables' edges and logs: well over forty statements, or the pass has not done its work.
    assert killed * STRIDE > 40
    for path in files:
        check(path)
