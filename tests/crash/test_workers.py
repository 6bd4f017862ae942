"""Promise 10 over the wire: eight workers of one group, killed, paused and added at random.

The workers are the programs of docs/examples/workers, processes of their own. While rows are written, some
are killed (SIGKILL), some stopped for longer than their `session_timeout` and continued, some told to
end, and new ones take their places. The checker reads what they have written themselves:

- every event was processed at least once;
- no event is in two batches whose commits were acknowledged: no commit of a fenced worker was accepted;
- in each partition a worker's events rise, but for where it was fenced: what was not committed comes again;
- with the transactional pattern every event is in the target table exactly once.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import amount, seed_of
from preloaded import Forked
from server_process import ServerProcess

PROGRAMS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "workers"
SECONDS = amount("DUCKTAIL_WORKERS_SECONDS", 4.0, 60.0)
SEED = seed_of("DUCKTAIL_WORKERS_SEED")
WORKERS = 8
PARTITIONS = 12
TIMEOUT_S = 2.0
# A batch takes so long besides: most of what befalls a worker befalls it between a read and its commit.
WORK_S = 0.1
# For so long nothing more may be committed once nobody is hindered any more.
CATCH_UP_S = 60.0


class Crew:
    """Worker processes of one group: started, killed, stopped, continued.

    Args:
        target: the last word of the program's command line, from the worker's name.
    """

    def __init__(self, server: ServerProcess, program: str, target: dict[str, str], directory: Path) -> None:
        self._server = server
        self._program = program
        self._directory = directory
        self._fixed = target
        self._next = 0
        self.running: dict[str, Forked] = {}
        self.paused: dict[str, float] = {}  # name -> when it is to go on
        self.done: Counter[str] = Counter()

    def add(self) -> None:
        """Start one more, under a name that nobody has had."""
        self._next += 1
        name = f"w{self._next}"
        target = self._fixed.get("table") or str(self._directory / f"{name}.txt")
        words = (self._server.conninfo, "s", "g", name, target)
        with (self._directory / f"{name}.log").open("wb") as log:
            self.running[name] = Forked(
                [*words, "--work", str(WORK_S)], program=PROGRAMS / self._program, stdout=log.fileno()
            )
        self.done["added"] += 1

    def hinder(self, rng: random.Random, now: float) -> None:
        """Do something to one of them, and keep eight."""
        for name in [name for name, at in self.paused.items() if at <= now]:
            del self.paused[name]
            self.running[name].send_signal(signal.SIGCONT)
        free = sorted(self.running.keys() - self.paused.keys())
        act = rng.choice(("kill", "kill", "pause", "pause", "end", "nothing"))
        if act != "nothing" and free:
            name = rng.choice(free)
            if act == "pause":
                self.running[name].send_signal(signal.SIGSTOP)
                self.paused[name] = now + TIMEOUT_S * rng.choice((0.3, 1.5, 2.0))
            else:
                self.running[name].send_signal(signal.SIGKILL if act == "kill" else signal.SIGTERM)
                self._reap(name)
            self.done[act] += 1
        while len(self.running) < WORKERS:
            self.add()

    def _reap(self, name: str) -> None:
        self.running.pop(name).wait(30)

    def let_go(self) -> None:
        """Nobody is stopped any more."""
        for name in list(self.paused):
            self.running[name].send_signal(signal.SIGCONT)
        self.paused.clear()

    def end(self) -> None:
        """Ask all to end, and wait."""
        self.let_go()
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for name in list(self.running):
            self._reap(name)

    def kill(self) -> None:
        """Whatever is left."""
        for process in self.running.values():
            process.kill()
            process.wait(30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "shop.duckdb") as started:
        with started.connect() as connection:
            connection.execute("create table t (id int primary key, v int)")
            connection.execute("create table target (lsn bigint, partition int, key varchar, member varchar)")
            connection.execute(f"create stream s on t with (partitions = {PARTITIONS})")
            timeout = f"session_timeout = '{TIMEOUT_S:g} s'"
            connection.execute(f"create consumer group g on s with ({timeout})")
        yield started


def write(server: ServerProcess, stopped: threading.Event) -> None:
    """Rows and changes of rows until it is stopped: keys come again, so that their order shows."""
    rng = random.Random(SEED)
    with server.connect() as connection:
        while not stopped.wait(0.02):
            keys = rng.sample(range(5000), rng.randint(1, 200))
            rows = ", ".join(f"({key}, {rng.randrange(1000)})" for key in keys)
            connection.execute(f"insert into t values {rows} on conflict (id) do update set v = excluded.v")


def lag(connection: psycopg.Connection[Any]) -> int:
    """Events that the group has not committed."""
    row = connection.execute("select sum(lag_events)::bigint from ducktail.offsets").fetchone()
    assert row is not None
    return int(row[0])


def run_crew(server: ServerProcess, crew: Crew) -> list[tuple[int, int]]:
    """Write and hinder for SECONDS, then let them come to the end; gives (lsn, partition) of all events."""
    rng, stopped = random.Random(SEED), threading.Event()
    writer = threading.Thread(target=write, args=(server, stopped))
    writer.start()
    pace = threading.Event()
    try:
        for _ in range(WORKERS):
            crew.add()
        ends = time.monotonic() + SECONDS
        while (now := time.monotonic()) < ends:
            crew.hinder(rng, now)
            pace.wait(rng.uniform(0.1, 0.6))
        stopped.set()
        writer.join()
        crew.let_go()
        with server.connect() as connection:
            least, ends = lag(connection), time.monotonic() + CATCH_UP_S
            while behind := lag(connection):
                if behind < least:
                    least, ends = behind, time.monotonic() + CATCH_UP_S
                members = "select * from ducktail.members"
                assert time.monotonic() < ends, connection.execute(members).fetchall()
                pace.wait(0.2)
            crew.end()
            events = connection.execute("select lsn, partition from stream s after 0").fetchall()
            left = connection.execute(
                "select count(*) from ducktail.members where user_name <> ''"
            ).fetchone()
            print(f"{len(events)} events, {dict(crew.done)}, {left} members not timed out yet")
            return events
    finally:
        stopped.set()
        writer.join()
        crew.kill()


def batches(path: Path) -> Iterator[tuple[list[tuple[int, int]], str]]:
    """What one worker has written: its batches of (partition, lsn), and what became of each."""
    batch: list[tuple[int, int]] = []
    for line in path.read_text().splitlines(keepends=True):
        words = line.split()
        if words[0] == "event":
            # The last line of one that was killed may be cut.
            if line.endswith("\n") and len(words) == 4:
                batch.append((int(words[1]), int(words[2])))
        else:
            yield batch, words[0]
            batch = []
    if batch:
        yield batch, "killed"


@pytest.mark.slow
def test_every_event_at_least_once_and_no_fenced_commit(server: ServerProcess, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    crew = Crew(server, "at_least_once.py", {}, directory)
    events = run_crew(server, crew)
    processed: Counter[int] = Counter()
    committed: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    for path in sorted(directory.glob("*.txt")):
        last: dict[int, int] = {}
        for batch, outcome in batches(path):
            outcomes[outcome] += 1
            processed.update(lsn for _, lsn in batch)
            for partition, lsn in batch:
                assert lsn > last.get(partition, 0), f"{path.name}: {lsn} again, though it was not fenced"
                last[partition] = lsn
            if outcome == "committed":
                committed.update(lsn for _, lsn in batch)
            else:
                last.clear()
    again = sum(count - 1 for count in processed.values())
    print(f"batches {dict(outcomes)}, {again} events processed again")
    assert {lsn for lsn, _ in events} == processed.keys()
    assert max(committed.values()) == 1, [lsn for lsn, count in committed.items() if count > 1][:5]


@pytest.mark.slow
def test_in_one_transaction_every_event_exactly_once(server: ServerProcess, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    directory.mkdir()
    crew = Crew(server, "exactly_once.py", {"table": "target"}, directory)
    events = run_crew(server, crew)
    refused = sum(path.read_text().count("refused") for path in directory.glob("*.log"))
    with server.connect() as connection:
        applied = connection.execute("select lsn, partition from target").fetchall()
        members = connection.execute("select count(distinct member) from target").fetchone()
    print(f"{refused} transactions refused, {members} members have applied some")
    assert sorted(applied) == sorted(events)
