"""Does a job with checkpoints in files, and kills its own process, with SIGKILL, at the nth step of it.

`python checkpoint_child.py JOB between|midst ROOT`: n is 0, 1, 2 ..., each in a process and a directory of
its own, ROOT/n. The first that comes to its end is the last; how many were killed is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from checkpoint_jobs import JOBS, KEEP, Job, Steps, state

from ducktail.engine.checkpoints.file_backend import Disk, FileBackend


class Killer(Disk):
    """The machine's disk, whose process is killed before the nth step, or in the midst of a write."""

    def __init__(self, left: int, *, midst: bool) -> None:
        self.steps = Steps(left, lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.midst = midst

    def make_directory(self, path: Path) -> None:
        self.steps.step()
        super().make_directory(path)

    def write(self, path: Path, data: bytes) -> None:
        if self.midst and self.steps.left == 0:
            super().write(path, data[: len(data) // 2])
        self.steps.step()
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self.steps.step()
        super().sync(path)

    def rename(self, path: Path, target: Path) -> None:
        self.steps.step()
        super().rename(path, target)

    def remove(self, path: Path) -> bool:
        self.steps.step()
        return super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self.steps.step()
        super().sync_directory(path)


def killed(root: Path, job: Job, step: int, midst: bool) -> bool:
    """Whether a child was killed at this step; False where it came to its end before."""
    child = os.fork()
    if child == 0:
        job(FileBackend(root, keep=KEEP, disk=Killer(step, midst=midst)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and status:
        sys.exit(f"step {step} failed: {status}")
    return os.WIFSIGNALED(status)


def main(name: str, midst: bool, directory: Path) -> None:
    """Kill a job at each of its steps."""
    [(present, job)] = [(present, job) for present, job, _, _ in JOBS if job.__name__ == name]
    step = 0
    while True:
        root = directory / str(step)
        if present:
            backend = FileBackend(root, keep=KEEP)
            for sequence in present:
                backend.save(state(sequence))
        if not killed(root, job, step, midst):
            break
        step += 1
    print(step)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "midst", Path(sys.argv[3]))
