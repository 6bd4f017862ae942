"""DuckDB's write-ahead log as a chain of frames, read before DuckDB opens the file.

DuckDB reads the log up to the first frame that exceeds the file, and deletes the rest. That is right for the
torn tail of a crash, but wrong for a corrupted length in the middle, which acknowledged commits follow. This
module distinguishes the two: no commit follows a torn tail.

    log     header, then frames
    header  pairs of a field number (u16) and varints, ended by 0xffff: 100 is 98, 101 the version, 102 the
            database's identity, 103 the checkpoint that the log follows
    frame   u64 size, u64 checksum, `size` bytes: 0x64 0x00 type .. 0xff 0xff
    commit  a frame of type 100, always the same 21 bytes

The checksum is the XOR of 5381 and the payload's 64-bit words, each multiplied by a constant; the bytes of an
incomplete last word pass through a Murmur mix. Little-endian. Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

import filecmp
import mmap
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HEADER_TYPE, CHECKPOINT_TYPE = 98, 99
VERSION = 2  # 1 has no checksums, 3 is encrypted: their frames are not read here
END = b"\xff\xff"
FRAME = struct.Struct("<QQ")
COMMIT = bytes.fromhex("0500000000000000e7fe7d722fed3d5e640064ffff")

WORD = 0xBF58476D1CE4E5B9
MIX = 0xC6A4A7935BD1E995
REST_SEED = 0xE17A1465
SEED = 5381
MASK = (1 << 64) - 1
# Below it a loop in Python is faster than a call of numpy.
SMALL = 128
# A header has some 40 bytes; data without an end within this many bytes is not a header.
HEADER_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class WalChain:
    """The chain of frames in one log file.

    Args:
        size: the size of the file in bytes.
        commits: the number of whole commits from the beginning.
        end: the end of the last of them.
        broken_at: the start of the first incomplete frame; None if all are complete.
        resumes_at: the position of a commit behind the break; None without one.
        fits: True if the frame at the break has its full length and only its bytes are wrong.
        checkpointing: True if a checkpoint has begun after the log's last frame.
        readable: False for a version whose frames are not understood here.
        follows: the checkpoint of the file that the log follows, None if the log does not record it.
    """

    path: Path
    size: int
    commits: int
    end: int
    broken_at: int | None = None
    resumes_at: int | None = None
    fits: bool = False
    checkpointing: bool = False
    readable: bool = True
    follows: int | None = None

    @property
    def damaged(self) -> bool:
        """True if commits follow a break, which no crash can cause."""
        return self.resumes_at is not None


def wal_paths(path: str) -> tuple[Path, Path]:
    """The logs of a database file: its own, and the one written during a checkpoint."""
    return Path(f"{path}.wal"), Path(f"{path}.wal.checkpoint")


def read_chain(path: Path) -> WalChain | None:
    """Read one log; None if it is missing or empty.

    Raises:
        OSError: the log cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
                return _read(path, log, size)
    except FileNotFoundError:
        return None


def checksum(payload: bytes) -> int:
    """The checksum of a frame's payload."""
    whole = len(payload) & ~7
    result = SEED
    if whole > SMALL:
        words = np.frombuffer(payload, dtype="<u8", count=whole >> 3)
        result ^= int(np.bitwise_xor.reduce(words * np.uint64(WORD)))
    elif whole:
        for word in struct.unpack_from(f"<{whole >> 3}Q", payload):
            result ^= word * WORD & MASK
    if whole < len(payload):
        result ^= _mixed(payload[whole:])
    return result


def copy_aside(path: Path) -> Path:
    """Copy a log beside itself under a name that is never deleted; once, even if repeated.

    Returns:
        The path of the copy.
    """
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        if filecmp.cmp(path, copy, shallow=False):
            return copy
        number += 1
    shutil.copy2(path, copy)
    with copy.open("rb+") as file:
        os.fsync(file.fileno())
    return copy


def cut(path: Path, end: int) -> None:
    """Truncate a log after its last whole commit."""
    with path.open("rb+") as file:
        file.truncate(end)
        os.fsync(file.fileno())


def _mixed(rest: bytes) -> int:
    mixed = (REST_SEED ^ len(rest) * MIX) & MASK
    mixed = (mixed ^ int.from_bytes(rest, "little")) * MIX & MASK
    mixed ^= mixed >> 47
    mixed = mixed * MIX & MASK
    return mixed ^ mixed >> 47


def _read(path: Path, log: mmap.mmap, size: int) -> WalChain:
    header = log_header(bytes(log[:HEADER_BYTES_MAX]))
    if header is None:
        return WalChain(path, size, 0, 0, 0, _found(log, 0), fits=True)
    at, version, follows = header
    if version != VERSION:
        return WalChain(path, size, 0, 0, readable=False, follows=follows)
    commits, end, checkpointing = 0, at, False
    while at < size:
        if size - at < FRAME.size:
            return WalChain(path, size, commits, end, at, follows=follows)
        length, stored = FRAME.unpack_from(log, at)
        after = at + FRAME.size + length
        if after > size or not _whole(log[at + FRAME.size : after], stored):
            found = _found(log, at)
            return WalChain(path, size, commits, end, at, found, fits=after <= size, follows=follows)
        if length == 5 and log[at:after] == COMMIT:
            commits, end = commits + 1, after
        checkpointing = checkpointing or log[at + FRAME.size + 2] == CHECKPOINT_TYPE
        at = after
    # Whole frames may remain of a transaction whose commit was not written.
    broken_at = None if end == size else end
    return WalChain(path, size, commits, end, broken_at, checkpointing=checkpointing, follows=follows)


def _whole(payload: bytes, stored: int) -> bool:
    return payload[:2] == b"\x64\x00" and payload[-2:] == END and checksum(payload) == stored


def _found(log: mmap.mmap, start: int) -> int | None:
    place = log.find(COMMIT, start)
    return None if place < 0 else place


def log_header(data: bytes) -> tuple[int, int, int | None] | None:
    """The end of a log's header, its version, and the checkpoint that it follows; None without one."""
    at, facts = 0, dict[int, int]()
    while at + 2 <= len(data):
        field = int.from_bytes(data[at : at + 2], "little")
        at += 2
        if field == 0xFFFF:
            good = facts.get(100) == HEADER_TYPE and 101 in facts
            return (at, facts[101], facts.get(103)) if good else None
        count, at = varint(data, at)
        facts[field] = count
        if field == 102:  # a list: this is the number of varints that follow
            for _ in range(min(count, HEADER_BYTES_MAX)):
                _, at = varint(data, at)
    return None


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of DuckDB's serialization, and the position behind it."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at
