"""Saving a checkpoint to files, ended at every step: killed with SIGKILL, and by a power cut.

A power cut is a model of the worst that a disk may do: what was not synced is gone, or is there in part.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from checkpoint_jobs import JOBS, KEEP, Job, Newest, Steps, state
from preloaded import ran

from ducktail.engine.checkpoints.file_backend import TEMPORARY, Disk, FileBackend

HERE = Path(__file__).resolve().parent


def names(value: object) -> str:
    return getattr(value, "__name__", "")


def newest_of(backend: FileBackend) -> Newest:
    """What work would go on from; each state that is there must be whole."""
    found = backend.latest("s")
    assert len(backend.list("s")) == len(backend.all("s")), "a name is of a whole state"
    return None if found is None else (found.sequence, found.metadata["m"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("present", "job", "may", "done"), JOBS, ids=names)
@pytest.mark.parametrize("when", ["between", "midst"])
def test_killed_at_every_step(
    tmp_path: Path, present: tuple[int, ...], job: Job, may: set[Newest], done: Newest, when: str
) -> None:
    ended = ran([job.__name__, when, str(tmp_path)], program=HERE / "checkpoint_child.py")
    assert ended.returncode == 0, ended.stderr
    killed = int(ended.stdout)
    assert killed >= 2
    for step in range(killed):
        root = tmp_path / str(step)
        backend = FileBackend(root, keep=KEEP)
        assert newest_of(backend) in may, step
        backend.save(state(9))
        assert newest_of(backend) == (9, "")
        assert not [name for name in os.listdir(root / "s") if name.endswith(TEMPORARY)]
        assert len(backend.list("s")) <= KEEP
    assert newest_of(FileBackend(tmp_path / str(killed), keep=KEEP)) == done


class Cut(Exception):
    """The power is gone."""


class Lossy(Disk):
    """The machine's disk, of which a book is kept: what is on it for certain, and what perhaps.

    A name is on the disk when its directory was synced since it changed, bytes when their file was. A file
    is known by a number, whatever its name is.
    """

    def __init__(self) -> None:
        self.steps = Steps(10_000, self.cut)
        self.numbers: dict[Path, int | None] = {}  # what a reader sees; None is a directory
        self.contents: list[bytes] = []
        self.synced: set[int] = set()
        self.on_disk: dict[Path, int | None] = {}
        self.changed: set[Path] = set()

    def cut(self) -> None:
        raise Cut

    def make_directory(self, path: Path) -> None:
        self.steps.step()
        super().make_directory(path)
        self.numbers[path] = None
        self.changed.add(path)

    def write(self, path: Path, data: bytes) -> None:
        self.steps.step()
        super().write(path, data)
        self.numbers[path] = len(self.contents)
        self.contents.append(data)
        self.changed.add(path)

    def sync(self, path: Path) -> None:
        self.steps.step()
        super().sync(path)
        number = self.numbers[path]
        assert number is not None
        self.synced.add(number)

    def rename(self, path: Path, target: Path) -> None:
        self.steps.step()
        super().rename(path, target)
        self.numbers[target] = self.numbers.pop(path)
        self.changed |= {path, target}

    def remove(self, path: Path) -> bool:
        self.steps.step()
        self.numbers.pop(path, None)
        self.changed.add(path)
        return super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self.steps.step()
        super().sync_directory(path)
        for name in [name for name in self.changed if name.parent == path]:
            self.settle(name)

    def settle(self, name: Path) -> None:
        self.changed.remove(name)
        if name in self.numbers:
            self.on_disk[name] = self.numbers[name]
        else:
            self.on_disk.pop(name, None)

    def left(self, rng: random.Random, root: Path, target: Path) -> None:
        """Make in `target` what a power cut may leave of `root`."""
        for name in sorted(self.changed):
            if rng.random() < 0.5:
                self.settle(name)
        for name, number in sorted(self.on_disk.items(), key=lambda item: len(item[0].parts)):
            place = target / name.relative_to(root.parent)
            if not place.parent.is_dir():
                continue  # Its directory's own name is not there.
            if number is None:
                place.mkdir()
                continue
            data = self.contents[number]
            if number not in self.synced:
                data = rng.choice([b"", data, data[: len(data) // 2], bytes(len(data))])
            place.write_bytes(data)


CUTS = 8


@pytest.mark.parametrize(("present", "job", "may", "done"), JOBS, ids=names)
def test_power_cut_at_every_step(
    tmp_path: Path, present: tuple[int, ...], job: Job, may: set[Newest], done: Newest
) -> None:
    rng = random.Random(8)
    for step in range(100):
        over = False
        for number in range(CUTS):
            root = tmp_path / f"{step}-{number}" / "checkpoints"
            root.parent.mkdir()
            disk = Lossy()
            backend = FileBackend(root, keep=KEEP, disk=disk)
            for sequence in present:
                backend.save(state(sequence))
            disk.steps.left = step
            try:
                job(backend)
                over = True
            except Cut:
                pass
            left = tmp_path / f"{step}-{number}-left"
            left.mkdir()
            disk.left(rng, root, left)
            backend = FileBackend(left / "checkpoints", keep=KEEP)
            newest = newest_of(backend)
            # What has returned stands; what has not may.
            assert newest == done if over else newest in may, step
            backend.save(state(9))
            assert newest_of(backend) == (9, "")
        if over:
            break
    assert 2 <= step < 50


def test_without_fsync_a_power_cut_may_take_the_newest(tmp_path: Path) -> None:
    """The model is able to lose: it says of `fsync=False` what the docs say."""
    found = set()
    for number in range(40):
        disk, root = Lossy(), tmp_path / f"{number}" / "checkpoints"
        root.parent.mkdir()
        FileBackend(root, disk=disk, fsync=False).save(state(1))
        left = tmp_path / f"{number}-left"
        left.mkdir()
        disk.left(random.Random(number), root, left)
        backend = FileBackend(left / "checkpoints", report=lambda damage: None)
        found.add((len(backend.list("s")), backend.latest("s") is not None))
    assert found == {(0, False), (1, False), (1, True)}
