"""A pass of compaction killed (-9) at its steps: a reader still gets the table, and the counts are right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amounts import amount
from hands import DAY_US, Hands
from killed_passes import killed_passes
from local_client import Client
from reopening import QUIET

from ducktail.engine.database import Database

# Of the pass's some seventy statements every so-manieth; more are a matter of time alone.
STRIDE = amount("DUCKTAIL_KILL_STRIDE", 16, 1)
# The LSNs that a whole pass leaves.
LEFT = {"s": [*range(81, 151), *range(151, 161)], "odd": [*range(81, 151, 2), 151, 153, 155, 157, 159]}


def make(path: Path) -> None:
    """A table with updates and deletes, all older than the pass's horizon."""
    clock = Hands()
    database = Database.open(str(path), QUIET, clock)
    client = Client(database)
    client("create table t (id int primary key, v int)")
    options = "partitions = 2, retention = 'none', compaction = 'key'"
    client(f"create stream s on t with ({options})")
    client(f"create stream odd on t where id % 2 = 1 with ({options})")
    client("create bookmark b on s")
    client("insert into t select i, 0 from range(1, 71) r(i)")  # 1 to 70
    client("insert into t select i, 0 from range(71, 81) r(i)")  # 71 to 80
    client("update t set v = 1 where id <= 70")  # 81 to 150
    client("delete from t where id > 70")  # 151 to 160
    client("create consumer group g on s start after 40")
    client("checkpoint")
    client.close()
    database.close()


def check(path: Path) -> None:
    """What is there folds to the table, is counted right, and a new pass ends the work."""
    clock = Hands()
    clock.us += DAY_US
    database = Database.open(str(path), QUIET, clock)
    assert not database.damage
    client = Client(database)
    table = dict(client("select id, v from t"))
    for again in range(2):
        for name, left in LEFT.items():
            rows: dict[int, int] = {}
            events = client(
                f"select op, (key->>'id')::int, (after->>'v')::int, lsn from stream {name} order by lsn"
            )
            for op, key, v, _ in events:
                if op == "delete":
                    rows.pop(key, None)
                else:
                    rows[key] = v
            assert rows == {k: v for k, v in table.items() if name == "s" or k % 2}
            assert again == 0 or [lsn for *_, lsn in events] == left
            counted = f"select sum(events)::int from ducktail.partitions where stream_name = '{name}'"
            assert client.one(counted) == len(events)
            if name == "s":
                lag = sum(lsn > 40 for *_, lsn in events)
                assert client.one("select sum(lag_events)::int from ducktail.offsets") == lag
                assert client("select events, trimmed_events from ducktail.bookmarks") == [(len(events), 0)]
        assert client("check stream s") == []
        database.retention.look()
    [[removed]] = database.cursor().execute("SELECT sum(removed) FROM ducktail.compacted_ranges").fetchall()
    assert removed == 160 - len(LEFT["s"])
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
    assert killed * STRIDE > 40
    for path in files:
        check(path)
