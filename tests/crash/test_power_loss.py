"""Promise 5 where the disk keeps less than it promised: DuckDB's log cut, flipped, zeroed, gone.

Of each damaged copy of a killed process's files: either all that was acknowledged is there, or the open says
XX001; and what is then served with `accept_loss` is one earlier moment, whose table is its stream folded.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from amounts import SOAK, seed_of
from database_files import Files, make_killed
from local_client import Client, fold

from ducktail.engine.database import Database
from ducktail.engine.errors import DataCorrupted
from ducktail.engine.storage.wal_chain import FRAME

# DUCKTAIL_POWER_LOSS=all tries every place; else a share of them.
WHOLE = SOAK or os.environ.get("DUCKTAIL_POWER_LOSS") == "all"
SHARE = 8
RANDOM_PLACES = 500
FLIPS = 300
BLOCKS = 100

Damage = tuple[str, bytes | None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files of a process that was killed after its last acknowledgement."""
    return make_killed(tmp_path_factory.mktemp("power") / "shop.duckdb")


def frame_places(data: bytes) -> list[int]:
    found, at = [], data.index(b"\xff\xff") + 2
    while at < len(data):
        found.append(at)
        at += FRAME.size + struct.unpack_from("<Q", data, at)[0]
    return found


def cuts(data: bytes) -> Iterator[Damage]:
    """The log ends early: at each frame, a byte before and after, and anywhere."""
    for place in [*frame_places(data), len(data)]:
        for cut in (place - 1, place, place + 1):
            if cut < len(data):
                yield f"cut at {cut}", data[:cut]
    rng = random.Random(1)
    for _ in range(RANDOM_PLACES):
        cut = rng.randrange(len(data))
        yield f"cut at {cut}", data[:cut]


def flips(data: bytes) -> Iterator[Damage]:
    """One bit is another: in a length, a checksum, a payload, the header."""
    rng, places = random.Random(2), frame_places(data)
    for number in range(FLIPS):
        frame = rng.choice(places)
        length = struct.unpack_from("<Q", data, frame)[0]
        low, high = ((0, 8), (8, 16), (16, 16 + length))[number % 3]
        place = frame + rng.randrange(low, high)
        yield f"bit of byte {place} flipped", _flipped(data, place, rng.randrange(8))
    for place in range(places[0]):
        yield f"bit of header byte {place} flipped", _flipped(data, place, rng.randrange(8))


def blocks(data: bytes) -> Iterator[Damage]:
    """A block is zeros, or garbage follows; or there is nothing at all."""
    rng = random.Random(3)
    yield "gone", None
    yield "zeros behind", data + bytes(4096)
    yield "garbage behind", data + rng.randbytes(777)
    yield "empty", b""
    for number in range(BLOCKS):
        size = (512, 4096)[number % 2]
        place = rng.randrange(len(data)) // 512 * 512
        end = min(place + size, len(data))
        yield f"{size} zeros at {place}", data[:place] + bytes(end - place) + data[end:]


def _flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [cuts, flips, blocks])
def test_nothing_acknowledged_is_silently_missing(
    kind: Callable[[bytes], Iterator[Damage]], files: Files, tmp_path: Path
) -> None:
    data = files.wal.read_bytes()
    damages = list(kind(data))
    tried = (
        damages
        if WHOLE
        else damages[:4] + random.Random(seed_of("DUCKTAIL_POWER_LOSS_SEED")).sample(damages[4:], SHARE)
    )
    told = 0
    for number, (name, damaged) in enumerate(tried):
        copy = files.copy_to(tmp_path / str(number))
        if damaged is None:
            copy.wal.unlink()
        else:
            copy.wal.write_bytes(damaged)
        told += look(copy, name)
        shutil.rmtree(copy.path.parent)
    print(f"{kind.__name__}: {len(tried)} tried, {told} told, {len(tried) - told} whole")
    assert told > len(tried) // 2, "most of this damage takes something away"


def look(files: Files, name: str) -> bool:
    """Open damaged files; True when the loss was told, and what is left is one moment."""
    told = False
    try:
        database = Database.open(str(files.path))
    except DataCorrupted:
        told = True
        database = Database.open(str(files.path), accept_loss=True)
    client = Client(database)
    try:
        if not told:
            assert database.damage == {}, name
            assert client.one("select count(*) from t") == files.keys, name
            assert client.one("select committed_lsn from ducktail.offsets") == files.offset, name
        events = client("select lsn, op, key::varchar, before::varchar, after::varchar from stream s after 0")
        assert [event[0] for event in events] == list(range(1, len(events) + 1)), name
        images = client(
            "select json_object('id', id)::varchar, json_object('id', id, 'v', v)::varchar from t"
        )
        assert fold([event[1:] for event in events]) == dict(images), name
        assert len(events) == files.keys or told, name
        client("insert into t values (1000, 'afterwards')")
        lsn = client.one("select max(lsn) from stream s after 0")
        assert lsn > files.keys, f"{name}: an LSN was given twice"
    finally:
        client.close()
        database.close()
    return told
