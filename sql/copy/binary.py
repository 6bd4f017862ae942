"""The parser of a COPY FROM STDIN in PostgreSQL's binary format; its bytes arrive in pieces of any size.

    'PGCOPY\\n\\xff\\r\\n\\0', Int32 flags, Int32 length of an extension, the extension; then for each row
    Int16 fields, each of Int32 length (-1 is NULL) and so many bytes; at the end Int16 -1, or nothing.

Nothing is converted here: a field is its bytes, or None for NULL. Each length is checked before the bytes are
waited for. Source: PostgreSQL documentation, "COPY", "Binary Format".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ...engine.errors import BadCopyFileFormat, ProgramLimitExceeded
from .text import ROW_BYTES_MAX, TextRow

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_FLAGS = struct.Struct("!Ii")
_COUNT = struct.Struct("!h")
_LENGTH = struct.Struct("!i")
_WITH_OIDS = 1 << 16
_CRITICAL = 0xFFFF0000
_TRAILER = -1
_NULL = -1


class BinaryRowReader:
    """Divides bytes into rows; a row's `line` is its number.

    Args:
        table: the table's name, for errors.
        columns: the names of the filled columns, in order.
    """

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = len(columns)
        self._tail = bytearray()
        self._begun = False
        self._ended = False
        self._count = 0

    def feed(self, data: bytes) -> list[TextRow]:
        """The rows that these bytes complete.

        Raises:
            BadCopyFileFormat: a row is malformed; the error has its number.
            ProgramLimitExceeded: a row is larger than ROW_BYTES_MAX.
        """
        self._tail += data
        place = 0
        if not self._begun:
            head = self._header()
            if head is None:
                return []
            self._begun, place = True, head
        rows: list[TextRow] = []
        while (found := self._row(place)) is not None:
            fields, place = found
            rows.append(TextRow(self._count, fields))
        if self._ended and len(self._tail) > place + _COUNT.size:
            raise self._bad("received copy data after EOF marker")
        # The trailer is kept: any bytes after it, in this piece or the next, are an error.
        self._bound(len(self._tail) - place)
        del self._tail[:place]
        return rows

    def finish(self) -> list[TextRow]:
        """End the data, which must not be inside a row; the trailer may be missing.

        Raises:
            BadCopyFileFormat: the data ends inside a row.
        """
        if not self._begun:
            raise self._bad("COPY file signature not recognized")
        if self._tail and not self._ended:
            self._count += 1
            raise self._bad("unexpected EOF in COPY data")
        return []

    def _header(self) -> int | None:
        """The length of the header; None while it is incomplete."""
        tail = self._tail
        start = bytes(tail[: len(SIGNATURE)])
        if not SIGNATURE.startswith(start):
            raise self._bad("COPY file signature not recognized")
        at = len(SIGNATURE)
        if len(tail) < at + _FLAGS.size:
            return None
        flags, extension = _FLAGS.unpack_from(tail, at)
        if flags & _WITH_OIDS:
            raise self._bad("invalid COPY file header (WITH OIDS)")
        if flags & _CRITICAL:
            raise self._bad("unrecognized critical flags in COPY file header")
        if extension < 0:
            raise self._bad("invalid COPY file header (missing length)")
        self._bound(extension)
        end: int = at + _FLAGS.size + extension
        return end if len(tail) >= end else None

    def _row(self, place: int) -> tuple[list[bytes | None], int] | None:
        """The fields of the row that begins here, and its end; None while it is incomplete."""
        tail, end = self._tail, len(self._tail)
        if end - place < _COUNT.size:
            return None
        (count,) = _COUNT.unpack_from(tail, place)
        if count == _TRAILER:
            self._ended = True
            return None
        if count != self._columns:
            self._count += 1
            raise self._bad(f"row field count is {count}, expected {self._columns}")
        place += _COUNT.size
        fields: list[bytes | None] = []
        for _ in range(count):
            if end - place < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack_from(tail, place)
            place += _LENGTH.size
            if length == _NULL:
                fields.append(None)
                continue
            if length < 0:
                self._count += 1
                raise self._bad("invalid field size")
            self._bound(length)
            if end - place < length:
                return None
            fields.append(bytes(tail[place : place + length]))
            place += length
        self._count += 1
        return fields, place

    def _bound(self, size: int) -> None:
        if size > ROW_BYTES_MAX:
            raise ProgramLimitExceeded(
                f"a row of COPY is longer than {ROW_BYTES_MAX} bytes",
                context=f"COPY {self._table}, line {self._count + 1}",
            )

    def _bad(self, message: str) -> BadCopyFileFormat:
        context = f"COPY {self._table}, line {self._count}" if self._begun else None
        return BadCopyFileFormat(message, context=context)
