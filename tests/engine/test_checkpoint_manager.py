"""When checkpoints are taken, what of, and what a job goes on from."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hands import Hands
from local_client import raises

from ducktail.engine.checkpoints.backend import Backend, MemoryBackend
from ducktail.engine.checkpoints.file_backend import FileBackend
from ducktail.engine.checkpoints.manager import CheckpointManager, Snapshot
from ducktail.engine.checkpoints.positions import PostgresLsn
from ducktail.engine.checkpoints.state import Checkpoint, CheckpointState
from ducktail.engine.clock import SystemClock


@dataclass
class Job:
    """Sums numbers of several streams; what it has summed is its state."""

    sums: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)

    def work(self, stream: str, number: int) -> None:
        self.sums[stream] = self.sums.get(stream, 0) + number
        self.read[stream] = self.read.get(stream, 0) + 1

    def snapshot(self, stream: str) -> Snapshot:
        return Snapshot(
            operator_states={"sum": str(self.sums.get(stream, 0)).encode()},
            source_offsets={"numbers": self.read.get(stream, 0)},
            watermark_ns=self.read.get(stream, 0) * 1000,
            metadata={"job": "sum"},
            checkpoint=Checkpoint("postgresql", PostgresLsn(self.read.get(stream, 0)), 7),
        )


def manager_of(backend: Backend, job: Job, clock: Hands, **every: int | None) -> CheckpointManager:
    bounds = {"every_events": None, "every_ms": None, **every}
    return CheckpointManager(backend, job.snapshot, clock, **bounds)


def test_every_so_many_events_of_each_stream() -> None:
    backend, job, clock = MemoryBackend(), Job(), Hands()
    manager = manager_of(backend, job, clock, every_events=3)
    taken = []
    for number in range(7):
        for stream in ("a", "b") if number % 2 else ("a",):
            job.work(stream, number)
            if (state := manager.processed(stream)) is not None:
                taken.append((stream, state.sequence, state.event_count))
    assert taken == [("a", 0, 3), ("a", 1, 6), ("b", 0, 3)]
    assert (manager.taken("a"), manager.taken("b"), manager.taken("c"), manager.taken()) == (2, 1, 0, 3)
    assert (manager.pending("a"), manager.pending("b"), manager.pending("c")) == (1, 0, 0)
    newest = backend.latest("a")
    assert newest == CheckpointState(
        "a",
        1,
        clock.now_us(),
        {"sum": b"15"},
        {"numbers": 6},
        6000,
        6,
        {"job": "sum"},
        Checkpoint("postgresql", PostgresLsn(6), 7),
    )


def test_a_batch_counts_as_its_events() -> None:
    manager = manager_of(MemoryBackend(), Job(), Hands(), every_events=100)
    assert manager.processed("a", 99) is None
    state = manager.processed("a", 250)
    assert state is not None and state.event_count == 349
    with raises("22023"):
        manager.processed("a", -1)


def test_after_so_much_time_of_each_stream() -> None:
    job, clock = Job(), Hands()
    manager = manager_of(MemoryBackend(), job, clock, every_ms=500)
    assert manager.processed("a") is None
    clock.us += 499_000
    assert manager.processed("a") is None and manager.processed("b") is None
    clock.us += 2_000
    assert manager.processed("b") is None
    assert manager.processed("a", 0) is not None
    clock.us += 600_000
    assert manager.processed("a", 0) is None, "nothing has come since"
    assert manager.processed("a") is not None
    assert manager.processed("b") is not None


def test_whichever_comes_first() -> None:
    clock = Hands()
    manager = manager_of(MemoryBackend(), Job(), clock, every_events=2, every_ms=1000)
    assert manager.processed("a") is None and manager.processed("a") is not None
    clock.us += 999_000
    assert manager.processed("a") is None
    clock.us += 1_000
    assert manager.processed("a", 0) is not None


@pytest.mark.parametrize("every", [{}, {"every_events": 0}, {"every_ms": 0}, {"every_events": -1}])
def test_senseless_bounds_are_refused(every: dict[str, int | None]) -> None:
    with raises("22023"):
        manager_of(MemoryBackend(), Job(), Hands(), **every)


def test_a_job_goes_on_from_the_newest_that_is_intact(tmp_path: Path) -> None:
    told: list[object] = []
    numbers = list(range(100))
    job, clock = Job(), Hands()
    manager = manager_of(FileBackend(tmp_path / "c", fsync=False), job, clock, every_events=10)
    assert manager.recover("a") is None
    for number in numbers[:57]:
        job.work("a", number)
        manager.processed("a")
    # It is gone, and the newest is damaged: sequences 0 to 4 have 10 to 50 events.
    path = tmp_path / "c" / "a" / f"{4:019}.json"
    path.write_bytes(path.read_bytes()[:-3])
    backend = FileBackend(tmp_path / "c", fsync=False, report=told.append)
    again = Job()
    manager = manager_of(backend, again, clock, every_events=10)
    state = manager.recover("a")
    assert state is not None and (state.sequence, state.event_count, len(told)) == (3, 40, 1)
    again.sums["a"], again.read["a"] = int(state.operator_states["sum"]), state.source_offsets["numbers"]
    for number in numbers[again.read["a"] :]:
        again.work("a", number)
        manager.processed("a")
    assert manager.taken("a") == 6
    newest = backend.latest("a")
    assert newest is not None and (newest.sequence, newest.event_count) == (10, 100)
    assert newest.operator_states == {"sum": str(sum(numbers)).encode()}


def test_a_job_that_does_not_recover_goes_on_with_the_numbers() -> None:
    backend, job = MemoryBackend(), Job()
    job.work("a", 1)
    assert manager_of(backend, job, Hands(), every_events=5).take("a").sequence == 0
    job.work("a", 1)
    state = manager_of(backend, job, Hands(), every_events=5).take("a")
    assert state.sequence == 1
    # One that has forgotten how far it was would take the position back.
    with raises("22023"):
        manager_of(backend, Job(), Hands(), every_events=5).take("a")
    assert backend.latest("a") == state


def test_what_could_not_be_saved_is_due_again(tmp_path: Path) -> None:
    root = tmp_path / "c"
    backend = FileBackend(root, fsync=False)
    manager = manager_of(backend, Job(), Hands(), every_events=2)
    manager.processed("a")
    root.joinpath("a").write_text("in the way")
    with raises("58030"):
        manager.processed("a")
    assert (manager.taken(), manager.pending("a")) == (0, 2)
    root.joinpath("a").unlink()
    state = manager.processed("a")
    assert state is not None and (state.sequence, state.event_count) == (0, 3)


def test_several_threads_tell_of_events() -> None:
    backend, clock = MemoryBackend(), Hands()
    manager = manager_of(backend, Job(), clock, every_events=7)
    begun = threading.Barrier(4)
    failed: list[BaseException] = []

    def work(own: str) -> None:
        try:
            begun.wait(20)
            for _ in range(350):
                manager.processed(own)
                manager.processed("shared")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [manager.taken(name) for name in "abcd"] == [50] * 4
    newest = backend.latest("shared")
    assert newest is not None and (newest.sequence, newest.event_count) == (199, 1400)
    assert manager.taken() == 400 and manager.pending("shared") == 0


def test_the_program_on_the_page_runs(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    [program] = [block for block in blocks if "CheckpointManager" in block]
    program = program.replace("shop.duckdb", str(tmp_path / "shop.duckdb"))
    for taken in (3, 1):  # again, with nothing left to do
        names: dict[str, Any] = {}
        exec(compile(program, "checkpoints.md", "exec"), names)
        assert names["total"] == sum(range(2501)) and names["manager"].taken() == taken
        [row] = names["con"].execute("SHOW CHECKPOINTS").fetchall()
        assert (row[2], row[4], row[5]) == ("payments", "postgres_lsn", "0/9C4")
        names["con"].close()


@pytest.mark.parametrize("events", [-1, 1.5, True, None])
def test_events_are_counted_whole(events: Any) -> None:
    manager = CheckpointManager(MemoryBackend(), lambda stream: Snapshot(), SystemClock(), every_events=1)
    with raises("22023"):
        manager.processed("s", events)
    assert manager.processed("s") is not None


def test_the_last_number_is_told() -> None:
    backend = MemoryBackend()
    backend.save(CheckpointState("s", 2**63 - 1, 1))
    manager = CheckpointManager(backend, lambda stream: Snapshot(), SystemClock())
    with raises("54000"):
        manager.take("s")
