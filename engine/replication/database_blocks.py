"""The blocks of a DuckDB file, read while DuckDB has the file open.

DuckDB writes changed blocks to free places, and a checkpoint makes them the database by writing one header.
Blocks that the last checkpoint uses, and blocks to which a commit in the log refers, are not overwritten
before the next one. So a block that is read between two equal headers, and whose checksum fits, is a block
of that checkpoint. Every block begins with its checksum (u64), which tells changed blocks from others
without reading them.

    file    three headers of 4,096 bytes, then blocks
    header  u64 checksum of the rest, then for the second and third: u64 checkpoint, u64 catalog,
            u64 free list, u64 blocks, u64 bytes of a block

The file is opened once for each open database: closing a descriptor would release DuckDB's lock on it.
Source: docs/design/replication.md, "Checkpoints".
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DataCorrupted
from ..storage.wal_chain import checksum

HEADER_BYTES = 4096
BLOCKS_AT = 3 * HEADER_BYTES
SUM = struct.Struct("<Q")
FIELDS = struct.Struct("<QQQQQ")
# The bit of the main header's flags that marks an encrypted file.
MAGIC_AT, MAGIC = 8, b"DUCK"
# A header that is being written is complete a moment later.
ATTEMPTS, PAUSE_S = 50, 0.01

Sums = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """The header in force.

    Args:
        iteration: the number of the checkpoint.
        block_count: the number of blocks at that checkpoint.
        data: the bytes of the three headers.
    """

    iteration: int
    block_count: int
    block_bytes: int
    data: bytes


def read_header(data: bytes) -> CheckpointHeader | None:
    """The header in force, of the bytes of the three; None if their checksums do not fit."""
    if len(data) != BLOCKS_AT or data[MAGIC_AT : MAGIC_AT + 4] != MAGIC:
        return None
    for at in range(0, BLOCKS_AT, HEADER_BYTES):
        if SUM.unpack_from(data, at)[0] != checksum(data[at + SUM.size : at + HEADER_BYTES]):
            return None
    first, second = (FIELDS.unpack_from(data, at + SUM.size) for at in (HEADER_BYTES, 2 * HEADER_BYTES))
    iteration, _, _, count, size = first if first[0] > second[0] else second
    return CheckpointHeader(iteration, count, size, data)


class DatabaseBlocks:
    """An open database file; safe to use from several threads."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file; only when DuckDB has closed it."""
        os.close(self._descriptor)

    def header(self) -> CheckpointHeader:
        """The header in force.

        Raises:
            DataCorrupted: it is damaged, or encrypted.
        """
        for _ in range(ATTEMPTS):
            found = read_header(os.pread(self._descriptor, BLOCKS_AT, 0))
            if found is not None:
                return found
            time.sleep(PAUSE_S)
        raise DataCorrupted("the headers of the database file are damaged")

    def is_at(self, headers: bytes | None) -> bool:
        """True if the file's headers are these, so that no checkpoint was made since they were read."""
        return os.pread(self._descriptor, BLOCKS_AT, 0) == headers

    def all_count(self, block_bytes: int) -> int:
        """The number of whole blocks in the file, with those behind the last checkpoint."""
        return max(0, os.fstat(self._descriptor).st_size - BLOCKS_AT) // block_bytes

    def sums(self, count: int, block_bytes: int) -> Sums:
        """The stored checksums of the first `count` blocks; 0 beyond the end of the file."""
        found = np.zeros(count, dtype=np.uint64)
        for number in range(count):
            data = os.pread(self._descriptor, SUM.size, BLOCKS_AT + number * block_bytes)
            if len(data) < SUM.size:
                break
            found[number] = SUM.unpack(data)[0]
        return found

    def read(self, numbers: Sequence[int], block_bytes: int) -> Iterator[tuple[int, bytes]]:
        """The blocks whose checksums fit; others are free, or being written."""
        for number in numbers:
            data = os.pread(self._descriptor, block_bytes, BLOCKS_AT + number * block_bytes)
            if len(data) == block_bytes and SUM.unpack_from(data)[0] == checksum(data[SUM.size :]):
                yield number, data
