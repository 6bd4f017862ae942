"""What is done to checkpoints in files while something goes wrong: tests/crash/test_checkpoint_kill.py."""

from __future__ import annotations

from collections.abc import Callable

from ducktail.engine.checkpoints.file_backend import FileBackend
from ducktail.engine.checkpoints.state import CheckpointState

KEEP = 3
Job = Callable[[FileBackend], None]
Newest = tuple[int, str] | None


def state(sequence: int, mark: str = "") -> CheckpointState:
    return CheckpointState("s", sequence, 1, {"a": bytes(range(200))}, {"0": sequence}, metadata={"m": mark})


class Steps:
    """Counts the steps of a disk, and calls `end` before the nth."""

    def __init__(self, left: int, end: Callable[[], None]) -> None:
        self.left = left
        self.end = end

    def step(self) -> None:
        if self.left == 0:
            self.end()
        self.left -= 1


def first(backend: FileBackend) -> None:
    backend.save(state(1))


def another(backend: FileBackend) -> None:
    backend.save(state(5))


def again(backend: FileBackend) -> None:
    backend.save(state(4, "again"))


def back(backend: FileBackend) -> None:
    backend.save(state(3, "back"), rewind=True)


def clear(backend: FileBackend) -> None:
    backend.clear("s")


def before(backend: FileBackend) -> None:
    backend.delete_before("s", 4)


# What is there first, what is done, what may be the newest afterwards, and what is when it is done: sequence
# and mark, None for nothing.
JOBS: list[tuple[tuple[int, ...], Job, set[Newest], Newest]] = [
    ((), first, {None, (1, "")}, (1, "")),
    ((2, 3, 4), another, {(4, ""), (5, "")}, (5, "")),
    ((2, 3, 4), again, {(4, ""), (4, "again")}, (4, "again")),
    ((2, 3, 4), back, {(4, ""), (3, "back")}, (3, "back")),
    ((2, 3, 4), clear, {(4, ""), (3, ""), (2, ""), None}, None),
    ((2, 3, 4), before, {(4, "")}, (4, "")),
]
