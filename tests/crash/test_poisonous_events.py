"""Events that kill their consumers are parked, and no other one: workers of one group over the wire.

Each worker is a process that ends by SIGKILL at a poisonous event; another one takes its place. The server is
killed in between as well. The checker reads the files of the workers: every other event was processed, and
exactly the poisonous ones are parked, after as many deliveries as permitted, to members that have died.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from amounts import amount
from preloaded import Forked
from server_process import ServerProcess

WORKERS = 2
EVENTS = amount("DUCKTAIL_POISONED_EVENTS", 200, 5000)
POISON = {7, 8, 150} if EVENTS <= 200 else {7, 8, 150, 999, 3000, 3001, 3002, 4999}
MAX_DELIVERIES = 3
CHILD = Path(__file__).with_name("poisoned_child.py")


@pytest.mark.slow
def test_what_kills_its_consumers_is_parked_and_nothing_else(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "poisoned.duckdb") as server:
        with server.connect(autocommit=True) as connection:
            connection.execute("create table t (id int primary key)")
            connection.execute("create stream s on t with (partitions = 2)")
            connection.execute(
                "create consumer group g on s "
                f"with (max_deliveries = {MAX_DELIVERIES}, session_timeout = '1 s')"
            )
            connection.execute(f"insert into t select range from range({EVENTS})")
        died: set[str] = set()
        names = iter(f"w{number}" for number in range(10_000))
        running: dict[str, Forked] = {}
        kills, done = [2, 5], False
        try:
            while not done or running:
                # Before the server is killed nobody reads: an answer that nobody receives would count.
                drains = bool(kills) and len(died) >= kills[0]
                while len(running) < WORKERS and not done and not drains:
                    name = next(names)
                    words = [server.conninfo, name, str(tmp_path / f"{name}.txt")]
                    with (tmp_path / f"{name}.log").open("wb") as log:
                        running[name] = Forked(
                            [*words, ",".join(map(str, sorted(POISON)))], program=CHILD, stdout=log.fileno()
                        )
                if running:
                    name = next(iter(running))
                    code = running.pop(name).wait(120)
                    assert code in (0, -signal.SIGKILL), (tmp_path / f"{name}.log").read_text()
                    done = done or code == 0
                    died |= {name} if code else set()
                elif drains:
                    del kills[0]
                    server.kill()
                    server.start()
        finally:
            for worker in running.values():
                worker.kill()
                worker.wait(30)
        processed = {int(line) for file in tmp_path.glob("w*.txt") for line in file.read_text().split()}
        with server.connect(autocommit=True) as connection:
            parked = connection.execute(
                "select (key->>'id')::int, deliveries, members from ducktail.parked order by 1"
            ).fetchall()
            left = connection.execute("select count(*) from ducktail.delivery_counts").fetchone()
    assert processed == set(range(EVENTS)) - POISON
    assert [(number, deliveries) for number, deliveries, _ in parked] == [
        (number, MAX_DELIVERIES) for number in sorted(POISON)
    ]
    for _, _, members in parked:
        assert members[-1] in died
    assert left == (0,)
    assert not kills
