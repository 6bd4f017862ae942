"""Checkpoints as files: damage, what else lies in the directory, several processes, a disk that fails."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from local_client import raises

from ducktail.engine.checkpoints.encodings import FILE_BYTES_MAX
from ducktail.engine.checkpoints.file_backend import LOCK, TEMPORARY, Disk, FileBackend
from ducktail.engine.checkpoints.state import CheckpointState
from ducktail.engine.errors import DataCorrupted


def state(sequence: int, stream: str = "s") -> CheckpointState:
    return CheckpointState(stream, sequence, 1, source_offsets={"0": sequence}, operator_states={"a": b"\0x"})


@pytest.fixture
def damage() -> list[DataCorrupted]:
    return []


@pytest.fixture
def backend(tmp_path: Path, damage: list[DataCorrupted]) -> FileBackend:
    """With states 1 to 4 of "s"."""
    made = FileBackend(tmp_path / "checkpoints", report=damage.append)
    for sequence in range(1, 5):
        made.save(state(sequence))
    return made


def path_of(tmp_path: Path, sequence: int, stream: str = "s") -> Path:
    return tmp_path / "checkpoints" / stream / f"{sequence:019}.json"


def test_a_file_is_json_for_its_owner_alone(backend: FileBackend, tmp_path: Path) -> None:
    path = path_of(tmp_path, 4)
    found = json.loads(path.read_text())
    assert (found["stream"], found["sequence"], found["source_offsets"]) == ("s", 4, {"0": 4})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(path.parent)) == [path_of(tmp_path, n).name for n in range(1, 5)]
    assert sorted(os.listdir(path.parent.parent)) == [LOCK, "s"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def enlarge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(FILE_BYTES_MAX + 1)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def other(path: Path) -> None:
    path.write_bytes(path.with_name(f"{1:019}.json").read_bytes())


DAMAGES = [flip, enlarge, pipe, link, directory, other, lambda path: path.write_bytes(b"")]


@pytest.mark.parametrize("harm", DAMAGES)
def test_a_damaged_file_is_reported_and_passed_over(
    backend: FileBackend, tmp_path: Path, damage: list[DataCorrupted], harm: Callable[[Path], None]
) -> None:
    harm(path_of(tmp_path, 4))
    assert backend.latest("s") == state(3)
    [found] = damage
    assert found.message == 'checkpoint 4 of "s" is damaged' and found.detail
    assert list(backend.all("s")) == [state(1), state(2), state(3)]
    assert list(backend.list("s")) == [1, 2, 3, 4] and backend.count() == 4
    with raises("XX001"):
        backend.load("s", 4)
    assert backend.load("s", 2) == state(2)


@pytest.mark.parametrize("harm", [flip, pipe, link, other])
def test_a_damaged_file_is_written_over_and_can_be_deleted(
    backend: FileBackend, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(path_of(tmp_path, 4))
    harm(path_of(tmp_path, 3))
    backend.save(state(4))
    assert backend.latest("s") == state(4)
    assert backend.delete("s", 3)
    assert list(backend.list("s")) == [1, 2, 4]


def test_all_damaged_is_none(backend: FileBackend, tmp_path: Path, damage: list[DataCorrupted]) -> None:
    for sequence in range(1, 5):
        flip(path_of(tmp_path, sequence))
    assert backend.latest("s") is None and len(damage) == 4
    backend.save(state(5))
    assert backend.latest("s") == state(5)


def test_a_forged_state_of_another_key_is_damage(backend: FileBackend, tmp_path: Path) -> None:
    backend.save(state(9, "other"))
    path_of(tmp_path, 9).write_bytes(path_of(tmp_path, 9, "other").read_bytes())
    with raises("XX001") as found:
        backend.load("s", 9)
    assert found.value.detail == 'It says that it is number 9 of "other".'


def test_what_else_lies_there_is_left_alone(backend: FileBackend, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    strangers = [root / "README", root / ".git" / "x", root / "empty" / "note.txt", root / "s" / "12.json"]
    names = (f"{2**63:019}.json", f"{5:019}.json.bak", "my.partial")
    strangers += [root / "s" / name for name in names]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    assert list(backend.streams()) == ["s"] and backend.count() == 4
    backend.save(state(6))
    backend.clear("s")
    assert all(path.exists() for path in strangers)


def test_what_a_killed_process_has_left_goes(backend: FileBackend, tmp_path: Path) -> None:
    left = path_of(tmp_path, 5).with_name(path_of(tmp_path, 5).name + TEMPORARY)
    left.write_text("half")
    assert list(backend.list("s")) == [1, 2, 3, 4]
    backend.save(state(5))
    assert not left.exists() and backend.latest("s") == state(5)


class Full(Disk):
    """A disk that fails at one step."""

    def __init__(self, step: str) -> None:
        self.step = step

    def fail(self, step: str) -> None:
        if step == self.step:
            raise OSError(28, "No space left on device")

    def write(self, path: Path, data: bytes) -> None:
        if self.step == "write":
            super().write(path, data[:10])
        self.fail("write")
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self.fail("sync")

    def rename(self, path: Path, target: Path) -> None:
        self.fail("rename")
        super().rename(path, target)


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, backend: FileBackend, step: str) -> None:
    full = FileBackend(tmp_path / "checkpoints", disk=Full(step))
    with raises("58030") as found:
        full.save(state(5))
    assert found.value.detail is not None and "No space left" in found.value.detail
    assert len(os.listdir(tmp_path / "checkpoints" / "s")) == 4
    assert full.latest("s") == state(4)
    backend.save(state(5))
    assert full.latest("s") == state(5)


def test_running_out_of_descriptors_is_no_damage(tmp_path: Path, backend: FileBackend) -> None:
    class Out(Disk):
        """A disk of a process that has too many files open."""

        def read(self, path: Path, bytes_max: int) -> bytes | None:
            raise OSError(errno.EMFILE, "Too many open files")

    out = FileBackend(tmp_path / "checkpoints", disk=Out())
    for call in (lambda: out.latest("s"), lambda: out.save(state(5)), lambda: out.load("s", 4)):
        with raises("58030"):
            call()


def test_a_directory_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with raises("58030"):
        FileBackend(tmp_path / "file" / "in")


SAVER = """
import sys
from pathlib import Path
from ducktail.engine.checkpoints.file_backend import FileBackend
from ducktail.engine.checkpoints.state import CheckpointState
from ducktail.engine.errors import InvalidParameterValue
backend, refused = FileBackend(sys.argv[1]), 0
for sequence in range(60):
    try:
        backend.save(CheckpointState("s", sequence, 1, source_offsets={"0": sequence}))
    except InvalidParameterValue:
        refused += 1
    newest = backend.latest("s")
    assert newest is not None and newest.sequence >= sequence, (newest, sequence)
"""


def test_several_processes_share_a_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SAVER, str(tmp_path / "c")]
    savers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for saver in savers:
        _, errors = saver.communicate(timeout=60)
        assert saver.returncode == 0, errors
    backend = FileBackend(tmp_path / "c")
    assert list(backend.list("s")) == list(range(50, 60))
    assert [one.sequence for one in backend.all("s")] == list(range(50, 60))
