"""Files without a name, and a session's spool over one."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from ducktail.engine.errors import OutOfMemory
from ducktail.engine.storage.spill import Extent, SpillFile, SpillSpace
from ducktail.sql.results.results import ArrowBatch, EventBatch
from ducktail.sql.results.spool import KeptSource, Spool


@pytest.fixture
def space(tmp_path: Path) -> SpillSpace:
    return SpillSpace(str(tmp_path / "d.duckdb"), 1 << 20)


def test_pieces_come_back_and_room_is_used_again(space: SpillSpace) -> None:
    """Against a plain dict: what is written is read, pieces never lie on each other, all room comes back."""
    choices, file, held = random.Random(7), SpillFile(space), dict[Extent, bytes]()
    longest = 0
    for _ in range(3000):
        if held and choices.random() < 0.5:
            extent = choices.choice(list(held))
            assert file.read(extent) == held.pop(extent)
            file.free(extent)
        elif len(held) < 20:
            data = choices.randbytes(choices.randint(1, 5000))
            extent = file.write(memoryview(data))
            assert all(extent.end <= other.start or other.end <= extent.start for other in held)
            held[extent] = data
        longest = max(longest, file.size)
        assert space.size == file.size >= max((extent.end for extent in held), default=0)
    assert longest < 20 * 5000 * 2
    for extent, data in held.items():
        assert file.read(extent) == data
        file.free(extent)
    assert (file.size, space.size) == (0, 0)


def test_it_has_no_name_and_nobody_else_may_read_it(space: SpillSpace, tmp_path: Path) -> None:
    file = SpillFile(space)
    before = set(os.listdir("/proc/self/fd"))
    extent = file.write(memoryview(b"secret"))
    assert os.listdir(tmp_path) == []
    (descriptor,) = [int(name) for name in set(os.listdir("/proc/self/fd")) - before if is_open(int(name))]
    status = os.fstat(descriptor)
    assert (status.st_nlink, stat.S_IMODE(status.st_mode), status.st_size) == (0, 0o600, 6)
    assert status.st_dev == os.stat(tmp_path).st_dev
    assert file.read(extent) == b"secret"
    file.close()
    assert not is_open(descriptor)
    assert space.size == 0
    file.free(extent)
    file.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_files_are_bounded_together(space: SpillSpace) -> None:
    one, other = SpillFile(space), SpillFile(space)
    held = one.write(memoryview(bytes(900_000)))
    with pytest.raises(OutOfMemory, match="spool_bytes_max, 1048576 bytes"):
        other.write(memoryview(bytes(200_000)))
    one.free(held)
    other.write(memoryview(bytes(200_000)))
    assert space.size == 200_000


def rows(start: int, count: int) -> ArrowBatch:
    return ArrowBatch(
        pa.RecordBatch.from_pydict(
            {"i": list(range(start, start + count)), "t": pa.array(["x" * 100] * count).dictionary_encode()}
        )
    )


def test_a_spool_holds_a_bound_of_memory_over_all_results(space: SpillSpace) -> None:
    spool = Spool(space, 40_000)
    sources = [KeptSource(spool) for _ in range(3)]
    for start in range(0, 3000, 300):
        for source in sources:
            source.add(rows(start, 300))
    assert 0 < spool.memory_bytes <= 40_000
    assert spool.file_bytes > 0
    found: list[list[int]] = [[] for _ in sources]
    sizes = [1, 77, None]
    while any(len(part) < 3000 for part in found[:2]):
        for part, source, size in zip(found[:2], sources, sizes, strict=False):
            if (batch := source.next(size)) is not None:
                assert size is None or batch.row_count <= size
                part += batch.record_batch().column(0).to_pylist()
                assert batch.record_batch().column(1)[0].as_py() == "x" * 100
    assert found[0] == found[1] == list(range(3000))
    assert [source.next(5) for source in sources[:2]] == [None, None]
    sources[2].close()
    assert (spool.memory_bytes, spool.file_bytes, space.size) == (0, 0, 0)


def test_ready_events_come_back_as_they_were(space: SpillSpace) -> None:
    source = KeptSource(Spool(space, 0))
    batch = EventBatch([b"D1", b"D22", b"D3"], [7, 8, 8], [0, 1, 1], (2, 0), ("BIGINT",) * 3, parted=True)
    source.add(batch)
    first, rest = source.next(2), source.next(None)
    assert first == EventBatch([b"D1", b"D22"], [7, 8], [0, 1], (2, 0), ("BIGINT",) * 3, parted=True)
    assert rest == EventBatch([b"D3"], [8], [1], (2, 0), ("BIGINT",) * 3, parted=True)
    assert source.next(None) is None
