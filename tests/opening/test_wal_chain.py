"""DuckDB's log as a chain of frames: what a crash tears, and what is damage."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from database_files import Files
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.storage.wal_chain import COMMIT, FRAME, WalChain, checksum, read_chain


def frames(data: bytes) -> list[int]:
    """Where each frame begins, told by lengths alone; the header ends at the first 0xffff."""
    found, at = [], data.index(b"\xff\xff") + 2
    while at < len(data):
        found.append(at)
        at += FRAME.size + struct.unpack_from("<Q", data, at)[0]
    assert at == len(data)
    return found


def chain_of(path: Path, data: bytes) -> WalChain:
    path.write_bytes(data)
    chain = read_chain(path)
    assert chain is not None
    return chain


def test_a_whole_log(killed: Files) -> None:
    data = killed.wal.read_bytes()
    chain = read_chain(killed.wal)
    assert chain is not None
    assert (chain.commits, chain.end, chain.broken_at) == (data.count(COMMIT), len(data), None)
    assert chain.commits >= killed.keys and chain.follows is not None


def test_no_log(tmp_path: Path) -> None:
    assert read_chain(tmp_path / "none.wal") is None
    (tmp_path / "empty.wal").touch()
    assert read_chain(tmp_path / "empty.wal") is None


@pytest.mark.parametrize("size", [0, 5, 8, 13, 128, 136, 1000, 4099])
def test_the_checksum_is_the_same_by_either_way(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    words = [int.from_bytes(payload[at : at + 8], "little") for at in range(0, size & ~7, 8)]
    expected = 5381
    for word in words:
        expected ^= word * 0xBF58476D1CE4E5B9 % (1 << 64)
    rest = payload[size & ~7 :]
    if rest:
        expected ^= checksum(rest) ^ 5381
    assert checksum(payload) == expected


def test_every_cut_is_a_torn_tail(killed: Files, tmp_path: Path) -> None:
    data, path = killed.wal.read_bytes(), tmp_path / "cut.wal"
    for place in frames(data):
        for cut in (place - 1, place, place + 1, place + FRAME.size):
            chain = chain_of(path, data[:cut])
            assert not chain.damaged
            if chain.readable:
                assert chain.commits == data[:cut].count(COMMIT)


def test_every_flip_before_the_last_commit_is_damage(killed: Files, tmp_path: Path) -> None:
    data, path = killed.wal.read_bytes(), tmp_path / "flipped.wal"
    last, rng = data.rindex(COMMIT), random.Random(7)
    for place in [rng.randrange(40, last) for _ in range(300)]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        chain = chain_of(path, bytes(flipped))
        assert chain.damaged, place
        assert chain.broken_at is not None and chain.broken_at <= place
        assert chain.commits == data[: chain.broken_at].count(COMMIT)


def test_damage_is_refused_and_copied_aside_once(killed: Files) -> None:
    data = bytearray(killed.wal.read_bytes())
    place = frames(bytes(data))[50]
    data[place + 4] ^= 1  # a length, as it would be silently believed
    killed.wal.write_bytes(data)
    before = killed.path.read_bytes()
    for _ in range(2):
        with raises("XX001") as found:
            Database.open(str(killed.path))
        assert f"damaged at byte {place} of {len(data)}" in found.value.message
    copies = sorted(killed.path.parent.glob("*.damaged-*"))
    assert [copy.read_bytes() for copy in copies] == [bytes(data)]
    assert (killed.wal.read_bytes(), killed.path.read_bytes()) == (bytes(data), before)
    client = Client(Database.open(str(killed.path), accept_loss=True))
    kept = [lsn for (lsn,) in client("select lsn from stream s after 0")]
    assert kept == list(range(1, len(kept) + 1)) and 0 < len(kept) < killed.keys
    client.close()
    client.session.database.close()


def test_a_torn_page_at_the_end_is_cut(killed: Files) -> None:
    """DuckDB would refuse the whole log for a last frame that has its length and not its bytes."""
    data = killed.wal.read_bytes()
    place = frames(data)[-2]
    unfinished = data + data[place : place + FRAME.size + 3] + bytes(200)
    killed.wal.write_bytes(unfinished)
    client = Client(Database.open(str(killed.path)))
    assert client.one("select count(*) from stream s after 0") == killed.keys
    client("insert into t values (1000, 'new')")
    assert client.one("select max(lsn) from stream s after 0") == killed.keys + 1
    client.close()
    client.session.database.close()
    [copy] = killed.path.parent.glob("*.damaged-*")
    assert copy.read_bytes() == unfinished
