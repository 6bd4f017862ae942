"""DuckDB's log, read while DuckDB appends to it: whole commits, with their transactions.

Between checkpoints DuckDB only appends to its log. A checkpoint appends one frame, after which the file
receives nothing more; later commits go to another file, which takes its name. A descriptor of the old file
still reads it to its end. Frames are not summed here: what a running process has just appended is whole up
to the file's end, and every restore sums them (`storage/wal_chain.py`).

A commit is known by the rows that it adds to `ducktail.commits`: transaction, LSNs and time. A commit
without such a row changed neither a captured table nor a topic.
Source: docs/design/replication.md, "DuckDB 2.0: experiments".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import DataCorrupted
from ..schema import SCHEMA
from ..storage.wal_chain import COMMIT, FRAME, HEADER_BYTES_MAX, VERSION, log_header, varint

WINDOW_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
USE_TABLE, INSERT, ROW_GROUPS, CHECKPOINT = 25, 26, 29, 99
BEGIN = b"\x64\x00"
_NAME, _TABLE = SCHEMA.encode(), b"commits"
# The frame that names the table `commits` for the frames behind it, in files of DuckDB 2.0 and of older ones.
OF_COMMITS = (
    b"\x64\x00\x19\x67\x00\x64\x00\x02"
    + bytes([len(_NAME)]) + _NAME + bytes([len(_TABLE)]) + _TABLE + b"\xff\xff\xff\xff",
    b"\x64\x00\x19\x65\x00"
    + bytes([len(_NAME)]) + _NAME + b"\x66\x00" + bytes([len(_TABLE)]) + _TABLE + b"\xff\xff",
)  # fmt: skip
# The start of a frame that inserts rows, up to their number.
_BEFORE_ROWS = b"\x64\x00\x1a\x65\x00\x64\x00"
# The types of its columns: three BIGINT, TIMESTAMP WITH TIME ZONE, VARCHAR; then their number.
_TYPES = bytes.fromhex("65000564000effff64000effff64000effff640020ffff640019ffff660005")
_NUMBERS = 4
CONSTANT = 2


@dataclass(frozen=True, slots=True)
class CopiedTransaction:
    """A row of `commits`.

    Args:
        first_lsn, last_lsn: its LSNs; without events the last one is before the first.
        commit_us: its commit time in microseconds since 1970.
    """

    txid: int
    first_lsn: int
    last_lsn: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """Whole commits that follow each other in a log.

    Args:
        start, end: their bytes.
        commits: the end of each commit, with its transactions.
        has_row_groups: True if a commit refers to blocks of the file.
        ended: True if a checkpoint has begun behind the last one: nothing follows.
    """

    start: int
    end: int
    commits: tuple[tuple[int, tuple[CopiedTransaction, ...]], ...]
    has_row_groups: bool
    ended: bool

    @property
    def transactions(self) -> list[CopiedTransaction]:
        """The transactions of all commits, in order."""
        return [one for _, several in self.commits for one in several]


class LogTail:
    """An open log.

    Attributes:
        offset: the end of the last commit that was taken from it.
        inode: the number of the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.offset = 0

    @classmethod
    def open(cls, path: str, iteration: int) -> LogTail | None:
        """The log that follows a checkpoint; None without one.

        Raises:
            DataCorrupted: the log is of a version whose frames are not read here.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        found = log_header(os.pread(descriptor, HEADER_BYTES_MAX, 0))
        if found is not None and found[1] != VERSION:
            os.close(descriptor)
            raise DataCorrupted(f"logs of version {found[1]} cannot be copied")
        # Files of DuckDB before 1.3 do not number their logs.
        if found is None or found[2] not in (iteration, None):
            os.close(descriptor)
            return None
        return cls(descriptor)

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)

    def size(self) -> int:
        """The bytes of the log."""
        return os.fstat(self._descriptor).st_size

    def part(self, bytes_max: int, *, start: int | None = None, without_blocks: bool = False) -> LogPart:
        """The whole commits behind `offset`: up to `bytes_max`, and at least one that is there.

        Args:
            start: the end of a commit, in place of `offset`.
            without_blocks: end before the first commit that refers to blocks of the file.

        Raises:
            DataCorrupted: the log is damaged, or of a form that is not read here.
        """
        at = start = self.offset if start is None else start
        if start == 0:
            found = log_header(os.pread(self._descriptor, HEADER_BYTES_MAX, 0))
            if found is None:
                return LogPart(0, 0, (), False, False)
            at = found[0]
        return scan(self._descriptor, start, at, bytes_max, without_blocks=without_blocks)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """A range of the log, in pieces.

        Raises:
            DataCorrupted: the log has become shorter.
        """
        while start < end:
            data = os.pread(self._descriptor, min(PIECE_BYTES, end - start), start)
            if not data:
                raise DataCorrupted("the log has become shorter")
            start += len(data)
            yield data


def scan(descriptor: int, start: int, first: int, bytes_max: int, *, without_blocks: bool = False) -> LogPart:
    """The whole commits from the frame at `first` on; the part begins at `start`."""
    size = os.fstat(descriptor).st_size
    data, base, at, end = b"", first, first, start
    commits: list[tuple[int, tuple[CopiedTransaction, ...]]] = []
    rows: list[CopiedTransaction] = []
    of_commits = row_groups = has_row_groups = ended = False
    while at + FRAME.size <= size and end - start < bytes_max:
        if at + FRAME.size > base + len(data):
            data, base = os.pread(descriptor, WINDOW_BYTES, at), at
        length, _ = FRAME.unpack_from(data, at - base)
        after = at + FRAME.size + length
        if length < 5 or after > size:
            if length < 5:
                raise DataCorrupted(f"the log is damaged at byte {at}")
            break
        if after > base + len(data) and length <= WINDOW_BYTES - FRAME.size:
            data, base = os.pread(descriptor, WINDOW_BYTES, at), at
        payload = at - base + FRAME.size
        if payload + 3 > len(data):
            data, base = os.pread(descriptor, WINDOW_BYTES, at), at
            payload = FRAME.size
        if data[payload : payload + 2] != BEGIN:
            raise DataCorrupted(f"the log is damaged at byte {at}")
        kind = data[payload + 2]
        if length == 5 and data[payload - FRAME.size : payload + 5] == COMMIT:
            commits.append((after, tuple(rows)))
            end, rows = after, []
            has_row_groups, row_groups = has_row_groups or row_groups, False
        elif kind == USE_TABLE:
            of_commits = data[payload : payload + length] in OF_COMMITS
        elif kind == INSERT and of_commits:
            rows += transactions_of(os.pread(descriptor, length, at + FRAME.size))
        elif kind == ROW_GROUPS:
            row_groups = True
            if without_blocks:
                break
        elif kind == CHECKPOINT:
            # The frame behind it has the form of a commit, and belongs to it.
            ended = True
            break
        at = after
    return LogPart(start, end, tuple(commits), has_row_groups, ended)


def transactions_of(payload: bytes) -> list[CopiedTransaction]:
    """The rows that a frame inserts into `commits`.

    Raises:
        DataCorrupted: the frame has another form than DuckDB 2.0 writes.
    """
    try:
        count, at = varint(payload, len(_BEFORE_ROWS))
        if payload[: len(_BEFORE_ROWS)] != _BEFORE_ROWS or payload[at : at + len(_TYPES)] != _TYPES:
            raise ValueError(at)
        at += len(_TYPES)
        columns = []
        for _ in range(_NUMBERS):
            numbers, at = _numbers(payload, at, count)
            columns.append(numbers)
    except (ValueError, IndexError, struct.error):
        raise DataCorrupted("a row of commits has an unknown form in DuckDB's log") from None
    return [CopiedTransaction(*row) for row in zip(*columns, strict=True)]


def _numbers(payload: bytes, at: int, count: int) -> tuple[tuple[int, ...], int]:
    """A vector of `count` numbers without NULL, and the position behind it."""
    values, form = None, None
    while payload[at : at + 2] != b"\xff\xff":
        field = int.from_bytes(payload[at : at + 2], "little")
        value, at = varint(payload, at + 2)
        if field == 90:
            form = value
        elif field == 101:  # the mask of NULLs, of which there are none
            at += value
        elif field == 102:
            values = struct.unpack_from(f"<{value // 8}q", payload, at)
            at += value
        elif field != 100:
            raise ValueError(field)
    if form not in (None, CONSTANT) or values is None:
        raise ValueError(form)
    if form == CONSTANT:
        values = values[:1] * count
    if len(values) != count:
        raise ValueError(count)
    return values, at + 2
