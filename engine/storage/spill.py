"""Unnamed files for data of sessions that would not fit in memory: one for each session, with a common limit.

Such a file is in the directory of the database, created without a name (if the file system does not support
that, its name is removed at once): no other process opens it, and it disappears with its process in any case.
Freed space is reused; free space at its end is returned to the file system. Source: docs/design/sql.md,
"Cursors".
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass

from ..errors import IoError, OutOfMemory
from .duckdb_file import MEMORY

HINT = "Read results to their end, or close them, before the next statement; or raise spool_bytes_max."


class SpillSpace:
    """The directory of a database's spill files, and their common limit.

    Args:
        path: the path of the database; files of a database in memory are in the system's temporary directory.
        bytes_max: the limit of all files together.
    """

    def __init__(self, path: str, bytes_max: int) -> None:
        self.directory = None if path == MEMORY else os.path.dirname(os.path.abspath(path))
        self.bytes_max = bytes_max
        self._bytes = 0
        self._mutex = threading.Lock()

    @property
    def size(self) -> int:
        """The total size of the files in bytes."""
        return self._bytes

    def take(self, count: int) -> None:
        """Count the growth of a file.

        Raises:
            OutOfMemory: the total would exceed the limit.
        """
        with self._mutex:
            if self._bytes + count > self.bytes_max:
                raise OutOfMemory(
                    f"unfinished results hold more than spool_bytes_max, {self.bytes_max} bytes", hint=HINT
                )
            self._bytes += count

    def give_back(self, count: int) -> None:
        """Count the shrinking of a file."""
        with self._mutex:
            self._bytes -= count
            assert self._bytes >= 0, "more is given back than was taken"


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A piece of a file: the bytes from `start` to before `end`."""

    start: int
    end: int


class SpillFile:
    """The spill file of a session, created with its first piece. Safe to use from several threads."""

    def __init__(self, space: SpillSpace) -> None:
        self._space = space
        self._descriptor: int | None = None
        self._end = 0
        self._free: list[Extent] = []  # sorted; no two are adjacent, none is at the end
        self._closed = False
        self._mutex = threading.Lock()

    @property
    def size(self) -> int:
        """The present length of the file."""
        return self._end

    def write(self, data: memoryview) -> Extent:
        """Store a piece.

        Raises:
            OutOfMemory: the files would exceed their limit.
            IoError: the file cannot be written.
        """
        with self._mutex:
            assert not self._closed, "a session that has ended keeps nothing"
            extent = self._room(len(data))
            try:
                descriptor = self._opened()
                place = extent.start
                while place < extent.end:
                    place += os.pwrite(descriptor, data[place - extent.start :], place)
            except OSError as error:
                self._let_go(extent)
                raise IoError("unfinished results cannot be written", detail=str(error)) from error
            return extent

    def read(self, extent: Extent) -> bytes:
        """The bytes of a stored piece.

        Raises:
            IoError: the file cannot be read.
        """
        size = extent.end - extent.start
        with self._mutex:
            assert not self._closed, "a session that has ended reads nothing"
            try:
                data = os.pread(self._opened(), size, extent.start)
            except OSError as error:
                raise IoError("unfinished results cannot be read", detail=str(error)) from error
        if len(data) != size:
            raise IoError("unfinished results cannot be read", detail=f"{len(data)} of {size} bytes.")
        return data

    def free(self, extent: Extent) -> None:
        """Free a piece."""
        with self._mutex:
            if not self._closed:
                self._let_go(extent)

    def close(self) -> None:
        """Delete the file; may be repeated."""
        with self._mutex:
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._space.give_back(self._end)
            self._end = 0
            self._free.clear()

    def _opened(self) -> int:
        if self._descriptor is None:
            # Made with mode 0600, and without a name.
            with tempfile.TemporaryFile(dir=self._space.directory, buffering=0) as file:
                self._descriptor = os.dup(file.fileno())
        return self._descriptor

    def _room(self, size: int) -> Extent:
        """The first free extent that is large enough, or a new one at the end."""
        for place, free in enumerate(self._free):
            if free.end - free.start >= size:
                taken = Extent(free.start, free.start + size)
                self._free[place : place + 1] = [Extent(taken.end, free.end)] if taken.end < free.end else []
                return taken
        self._space.take(size)
        self._end += size
        return Extent(self._end - size, self._end)

    def _let_go(self, extent: Extent) -> None:
        """Merge a piece with the free extents beside it; at the end of the file, truncate the file."""
        before = [free for free in self._free if free.end < extent.start]
        after = [free for free in self._free if free.start > extent.end]
        touching = self._free[len(before) : len(self._free) - len(after)]
        joined = Extent(
            min([extent.start, *(free.start for free in touching)]),
            max([extent.end, *(free.end for free in touching)]),
        )
        if joined.end < self._end:
            self._free = [*before, joined, *after]
            return
        self._free = before
        self._space.give_back(self._end - joined.start)
        self._end = joined.start
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, self._end)
