"""The side file of a database, `x.duckdb.ducktail`: its last acknowledged commits.

DuckDB silently loses commits if its log is deleted or cut. This file cannot restore them, but shows that they
are missing. It is written after DuckDB's COMMIT has returned and before the commit is acknowledged, so it is
never ahead of the database, and a database that opens behind it has lost commits.

    offset  size  field
    0       8     "DUCKTAIL"
    8       4     format, 1
    12      4     CRC-32 of bytes 0 to 11 and 16 to 39
    16      16    identity of the database (uuid), also in ducktail.meta
    32      8     incarnation
    64      56    mark 0 and its objects
    128     56    mark 1 and its objects
    192     16    stamp of the database file at the last close (see `opening.py`); zeros without one
    256     2     length of the address
    258     n     address of the server that has the database open, "host port"; empty without one

    mark     u64 number, u64 txid, u64 lsn, u64 offset commit, u32 CRC-32 of the identity and these 32 bytes
    objects  u32 streams, u32 groups, u64 sum of their ids, u32 CRC-32 of the mark and these 16 bytes: the
             catalog's objects at that commit; the CRC-32 does not match while they are being changed

The marks are written in turn, so that one is valid at any instant; the valid one with the larger number
counts. A write goes to the page cache, as with a mapped page: kill -9 does not lose it, and a full disk is an
error instead of a signal. It is not synced: a power cut may lose the newest marks, and an old mark never
reports a loss wrongly. Integers are little-endian.

While it cannot be written, no commit that it must record is possible: before each such COMMIT its last mark
is written again (`check`). Source: docs/design/engine.md, "Opening".
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..counter import ThreadSafeCounter
from ..errors import IoError

logger = logging.getLogger(__name__)

MAGIC = b"DUCKTAIL"
FORMAT = 1
SIZE = 512
HEAD = struct.Struct("<8sII16sQ")
MARK = struct.Struct("<QQQQI")
OBJECTS = struct.Struct("<IIQI")
MARK_PLACES = (64, 128)
STAMP_PLACE, STAMP_BYTES = 192, 16
ADDRESS_PLACE, ADDRESS_BYTES_MAX = 256, SIZE - 258


@dataclass(frozen=True, slots=True)
class Mark:
    """The last acknowledged captured commit, its last LSN, and the last offset commit's number."""

    txid: int = 0
    lsn: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class CatalogCounts:
    """The number of streams and groups in a catalog, and the sum of their ids."""

    streams: int = 0
    groups: int = 0
    ids: int = 0


def side_path(path: str) -> Path:
    """The path of the side file of a database file."""
    return Path(f"{path}.ducktail")


class DamagedSideFile(Exception):
    """The error for a file that is not a side file, or whose checksums do not match."""


class SideFile:
    """An open side file; safe to use from several threads.

    Args:
        identity: the uuid of the database.
        incarnation: the incarnation of the database.
        mark: the current mark.
        objects: the catalog's objects at that mark; None if unknown.

    Attributes:
        failure: the error of the last write; None if it succeeded.
        errors: the number of failed writes.
    """

    def __init__(
        self,
        descriptor: int,
        identity: uuid.UUID,
        incarnation: int,
        mark: Mark,
        number: int,
        objects: CatalogCounts | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._mutex = threading.Lock()
        self._number = number
        self._closed = False
        self.identity = identity
        self.incarnation = incarnation
        self.mark = mark
        self.objects = objects
        self.failure: str | None = None
        self.errors = ThreadSafeCounter()
        self._superseded: str | None = None

    @classmethod
    def create(cls, path: Path, identity: uuid.UUID, incarnation: int, mark: Mark) -> SideFile:
        """Write a new side file, replacing an existing one; durable when it returns.

        Raises:
            IoError: the file cannot be written.
        """
        data = bytearray(SIZE)
        HEAD.pack_into(data, 0, MAGIC, FORMAT, 0, identity.bytes, incarnation)
        struct.pack_into("<I", data, 12, zlib.crc32(data[16:40], zlib.crc32(data[:12])))
        written = _mark_bytes(identity, 1, mark, None)
        data[MARK_PLACES[1] : MARK_PLACES[1] + len(written)] = written
        temporary = path.with_name(f"{path.name}.new")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise IoError(f'the side file "{path}" cannot be written', detail=str(error)) from error
        return cls(descriptor, identity, incarnation, mark, 1)

    @classmethod
    def open(cls, path: Path) -> SideFile | None:
        """The existing side file; None without one.

        Raises:
            DamagedSideFile: the file is invalid.
            IoError: the file cannot be read, or is not writable.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            try:
                data = os.pread(descriptor, SIZE, 0)
            except OSError as error:
                raise _unreadable(path, error) from error
            identity, incarnation = _head(data)
            number, mark, objects = max(_marks(data, identity), key=lambda found: found[0])
            return cls(descriptor, identity, incarnation, mark, number, objects)
        except BaseException:
            os.close(descriptor)
            raise

    def acknowledge(self, *, txid: int = 0, lsn: int = 0, seq: int = 0, defines: bool = False) -> None:
        """Record a commit of DuckDB, before it is acknowledged. Omitted values are unchanged.

        Args:
            defines: the commit may have created or dropped streams or groups; a call of `tell` follows.
        """
        with self._mutex:
            old = self.mark
            self.mark = Mark(max(txid, old.txid), max(lsn, old.lsn), max(seq, old.seq))
            if defines:
                self.objects = None
            self._write_mark()

    def tell(self, objects: CatalogCounts) -> None:
        """Record the streams and groups after the last commit that defined any."""
        with self._mutex:
            self.objects = objects
            self._write_mark()

    def check(self) -> None:
        """Write the last mark again, before DuckDB commits a transaction that will be acknowledged.

        Raises:
            IoError: the file cannot be written.
        """
        with self._mutex:
            self._write_mark()
            if self.failure is not None:
                raise IoError(
                    "the side file of the database cannot be written, and nothing is committed",
                    detail=self.failure,
                    hint="It tells what was acknowledged. It is tried again with each commit, "
                    "and twice a second.",
                )

    def superseded(self, error: IoError) -> None:
        """Record that its replacement could not be created; the next opening creates it."""
        with self._mutex:
            self._superseded = f"{error.message}: {error.detail}. Restart the server."
            self._failed(self._superseded)

    def _write_mark(self) -> None:
        self._number += 1
        data = _mark_bytes(self.identity, self._number, self.mark, self.objects)
        self._write(data, MARK_PLACES[self._number % 2])

    def _write(self, data: bytes, place: int) -> None:
        if self._closed:
            return
        try:
            os.pwrite(self._descriptor, data, place)
        except OSError as error:
            # The old mark stays: an old mark can only miss a loss, not report a false one.
            self._failed(str(error))
            return
        if self.failure is not None and self._superseded is None:
            self.failure = None
            logger.warning("the side file can be written again")

    def _failed(self, reason: str) -> None:
        self.errors.add(1)
        if self.failure is None:
            logger.error("the side file cannot be written: %s", reason)
        self.failure = reason

    def announce(self, address: str) -> None:
        """Store the address of the server that has the database open; "" for none."""
        data = address.encode()
        if len(data) > ADDRESS_BYTES_MAX:
            raise ValueError("an address of a few hundred bytes is none")
        with self._mutex:
            self._write(struct.pack("<H", len(data)) + data, ADDRESS_PLACE)

    def leave(self, stamp: bytes) -> None:
        """Store the stamp of the database file at its close; the next opening compares it."""
        assert len(stamp) == STAMP_BYTES
        with self._mutex:
            # If it cannot be written, the old stamp differs from the file's, and the next opening checks the
            # file.
            self._write(stamp, STAMP_PLACE)

    @property
    def stamp(self) -> bytes:
        """The stamp of the database file at its last close; zeros without one."""
        return os.pread(self._descriptor, STAMP_BYTES, STAMP_PLACE)

    @property
    def address(self) -> str:
        """The last announced address."""
        data = os.pread(self._descriptor, SIZE, 0)
        (length,) = struct.unpack_from("<H", data, ADDRESS_PLACE)
        return data[ADDRESS_PLACE + 2 : ADDRESS_PLACE + 2 + length].decode(errors="replace")

    def close(self) -> None:
        """Close the file; may be repeated."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)


def _unreadable(path: Path, error: OSError) -> IoError:
    return IoError(f'the side file "{path}" cannot be opened', detail=str(error))


def move_aside(path: Path) -> Path:
    """Rename a side file to a name that is not read.

    Returns:
        The new path.
    """
    number = 1
    while (other := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    path.rename(other)
    return other


def _mark_bytes(identity: uuid.UUID, number: int, mark: Mark, objects: CatalogCounts | None) -> bytes:
    numbers = struct.pack("<QQQQ", number, mark.txid, mark.lsn, mark.seq)
    whole = numbers + struct.pack("<I", zlib.crc32(numbers, zlib.crc32(identity.bytes)))
    if objects is None:
        return whole + bytes(OBJECTS.size)
    counts = struct.pack("<IIQ", objects.streams, objects.groups, objects.ids)
    return whole + counts + struct.pack("<I", zlib.crc32(counts, zlib.crc32(whole)))


def _head(data: bytes) -> tuple[uuid.UUID, int]:
    if len(data) != SIZE or data[:8] != MAGIC:
        raise DamagedSideFile("it does not begin as one")
    _, form, stored, identity, incarnation = HEAD.unpack_from(data)
    if stored != zlib.crc32(data[16:40], zlib.crc32(data[:12])):
        raise DamagedSideFile("its checksum does not fit")
    if form != FORMAT:
        raise DamagedSideFile(f"its format is {form}, and this ducktail reads {FORMAT}")
    return uuid.UUID(bytes=identity), int(incarnation)


def _marks(data: bytes, identity: uuid.UUID) -> list[tuple[int, Mark, CatalogCounts | None]]:
    found = []
    for place in MARK_PLACES:
        number, txid, lsn, seq, stored = MARK.unpack_from(data, place)
        if number and stored == zlib.crc32(data[place : place + 32], zlib.crc32(identity.bytes)):
            found.append((number, Mark(txid, lsn, seq), _objects(data[place:])))
    if not found:
        raise DamagedSideFile("neither of its marks is whole")
    return found


def _objects(data: bytes) -> CatalogCounts | None:
    *counts, stored = OBJECTS.unpack_from(data, MARK.size)
    written = zlib.crc32(data[MARK.size : MARK.size + 16], zlib.crc32(data[: MARK.size]))
    return CatalogCounts(*counts) if stored == written else None


def sync_directory(directory: Path) -> None:
    """Make created or renamed files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
