"""Copies with a flipped bit, a missing or swapped object, or a truncated log: named, and never restored
wrongly."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from amounts import amount, seed_of
from copied_load import CopiedServer, asker, compare
from preloaded import ran

from ducktail.engine.errors import DataCorrupted
from ducktail.engine.replication.objects import BLOCKS, CHECKPOINT, LOG
from ducktail.engine.replication.point_in_time import Moment, check_copy, restore_copy

FLIPS = amount("DUCKTAIL_COPY_FLIPS", 4, 300)
Damage = Callable[[list[Path]], str]


@pytest.fixture
def files(copied: CopiedServer, tmp_path: Path) -> list[Path]:
    """The objects of a copy of the copy's newest generation, in order."""
    place = tmp_path / "copy"
    # The server goes on: an object that is being written has another name until it is whole.
    shutil.copytree(copied.target, place, ignore=shutil.ignore_patterns("*.partial"))
    (generation,) = [path for path in place.iterdir() if path.is_dir()]
    return sorted(path for path in generation.iterdir() if path.name != "head")


def last_span(files: list[Path]) -> list[Path]:
    """The last checkpoint, and the objects behind it."""
    place = max(number for number, path in enumerate(files) if path.suffix == f".{CHECKPOINT}")
    return files[place:]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(bytes(data))


def flipped_checkpoint(files: list[Path]) -> str:
    flip(last_span(files)[0], 5000)
    return last_span(files)[0].name


def missing_object(files: list[Path]) -> str:
    last_span(files)[0].unlink()
    return f"object {int(last_span(files)[0].stem)} of generation"


def missing_end(files: list[Path]) -> str:
    files[-1].unlink()
    return f"object {int(files[-1].stem)} of generation"


def swapped_objects(files: list[Path]) -> str:
    logs = [path for path in last_span(files) if path.suffix == f".{LOG}"]
    aside = logs[0].with_name("aside")
    logs[0].rename(aside)
    logs[-1].rename(logs[0])
    aside.rename(logs[-1])
    return f'{logs[0].name}" of the copy is damaged: It is another object than its name says'


def truncated_log(files: list[Path]) -> str:
    log = [path for path in files if path.suffix == f".{LOG}"][-1]
    log.write_bytes(log.read_bytes()[:-100])
    return log.name


def another_generations_object(files: list[Path]) -> str:
    log = [path for path in last_span(files) if path.suffix == f".{LOG}"][-1]
    data = log.read_bytes()
    name = log.parent.name.encode()
    log.write_bytes(data.replace(name, name[:-1] + b"x"))
    return log.name


DAMAGES = (
    flipped_checkpoint,
    missing_object,
    missing_end,
    swapped_objects,
    truncated_log,
    another_generations_object,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(files: list[Path], tmp_path: Path, damage: Damage) -> None:
    named = damage(files)
    target = files[0].parents[1]
    with pytest.raises(DataCorrupted) as found:
        restore_copy(target, Moment(), tmp_path / "x.duckdb")
    text = f"{found.value.message}: {found.value.detail}"
    assert named in text, text
    assert not (tmp_path / "x.duckdb").exists()
    done = ran(["check", str(target)])
    assert done.returncode == 1 and named in done.stdout and "damaged" in done.stdout, done.stdout


def test_any_flipped_bit(copied: CopiedServer, files: list[Path], tmp_path: Path) -> None:
    """A flipped bit is found by the check; a restore fails, or does not need the object."""
    chance = random.Random(seed_of("DUCKTAIL_COPY_SEED", 3))
    target = files[0].parents[1]
    right = 0
    for number in range(FLIPS):
        path = chance.choice(files)
        whole, at = path.read_bytes(), chance.randrange(path.stat().st_size)
        flip(path, at)
        assert f"{path.parent.name}/{path.name}" in " ".join(check_copy(target, tmp_path)[1])
        new = tmp_path / f"{number}.duckdb"
        try:
            _, made = restore_copy(target, Moment(), new)
        except DataCorrupted:
            assert not new.exists()
        else:
            right += 1
            with copied.server.connect() as connection:
                compare(new, asker(connection), made.counters.lsn)
        path.write_bytes(whole)
    print(f"{right} of {FLIPS} were restored without the damaged object")


def test_what_can_still_be_restored(copied: CopiedServer, files: list[Path], tmp_path: Path) -> None:
    target = files[0].parents[1]
    spans = [number for number, path in enumerate(files) if path.suffix == f".{CHECKPOINT}"]
    assert len(spans) > 2, "the load makes several checkpoints"
    logs = [path for path in files[: spans[1]] if path.suffix == f".{LOG}"]
    flip(logs[-1], logs[-1].stat().st_size // 2)
    # The end does not need the damaged log, nor does what is before it.
    _, latest = restore_copy(target, Moment(), tmp_path / "latest.duckdb")
    with copied.server.connect() as connection:
        compare(tmp_path / "latest.duckdb", asker(connection), latest.counters.lsn)
        # What is before the damage can be restored, what is in it cannot.
        last = [path for path in files if path.suffix == f".{LOG}"][-1]
        flip(last, last.stat().st_size // 2)
        with pytest.raises(DataCorrupted, match="damaged"):
            restore_copy(target, Moment(), tmp_path / "x.duckdb")
        about, wrong = check_copy(target, tmp_path)
        assert any(last.name in line for line in wrong) and any(logs[-1].name in line for line in wrong)
        assert any(line.startswith("restorable: generation") for line in about)


def test_blocks_that_are_needed(files: list[Path], tmp_path: Path) -> None:
    """Without any of its blocks a checkpoint is not restored."""
    target = files[0].parents[1]
    for path in files:
        if path.suffix == f".{BLOCKS}":
            path.unlink()
    with pytest.raises(DataCorrupted) as found:
        restore_copy(target, Moment(), tmp_path / "x.duckdb")
    assert "missing" in f"{found.value.detail}"
