"""The record batches of an Arrow IPC stream whose bytes arrive in pieces of any size, from any client.

    message   0xFFFFFFFF, Int32 length of the metadata, the metadata (a flatbuffer), the body
    stream    a message with the schema, messages with record batches, a message of length 0 or the end

No part of a stream is trusted. Lengths are checked against a bound before their bytes are awaited. Compressed
bodies and dictionaries are refused, because their size is known only after unpacking. The schema is read
without its metadata (an extension type is its storage), and only with types that DuckDB reads. Every batch is
validated in full, and its timestamps are checked: one out of range makes DuckDB invalidate the whole
database.
Source: Arrow columnar format, "IPC Streaming Format"; Message.fbs; docs/sql.md, "COPY".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import (
    BadCopyFileFormat,
    InvalidBinaryRepresentation,
    NotSupported,
    ProgramLimitExceeded,
)

# Limit of a message's body: that of the longest protocol message and of the longest row in other formats.
BODY_BYTES_MAX = 64 << 20
# Limit of its metadata: about ten thousand columns with names of a usual length.
METADATA_BYTES_MAX = 1 << 20
# Limit of a batch's rows: 64 MB of the smallest likely values. NULLs take no bytes at all.
BATCH_ROWS_MAX = 16 << 20
# Limit of nesting of lists, structs and maps.
DEPTH_MAX = 32
# DuckDB's limit of the length of an ARRAY.
ARRAY_LENGTH_MAX = 100_000

_PREFIX = struct.Struct("<Ii")
_CONTINUED = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
_BUFFER = struct.Struct("<qq")
# Alignment of a buffer's offset.
_ALIGNED = 8

# Types that DuckDB reads unchanged; other types are composed of these, or refused.
_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
    pa.types.is_date32, pa.types.is_time, pa.types.is_timestamp,
)  # fmt: skip
# DuckDB's earliest timestamp in microseconds, and one second in each unit.
_FIRST_US = -9_223_372_022_400_000_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
_LAST = 2**63 - 1
_FIRST_DAY, _LAST_DAY = -(2**31) + 1, 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Head:
    """The metadata of a message.

    Args:
        size: bytes of the whole message, its prefix included.
    """

    kind: int
    size: int


class ArrowStreamReader:
    """Splits a stream of bytes into record batches.

    Args:
        context: the operation named in errors, such as 'COPY t'.
    """

    def __init__(self, context: str) -> None:
        self.schema: pa.Schema | None = None
        self._context = context
        self._tail = bytearray()
        self._head: _Head | None = None
        self._ended = False
        self._batches = 0

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """The batches that these bytes complete; `schema` is set before the first.

        Raises:
            BadCopyFileFormat: the stream is malformed.
            NotSupported: a feature of the format is not supported.
            ProgramLimitExceeded: a message that is too large.
        """
        self._tail += data
        while not self._ended and (head := self._whole()) is not None:
            message = bytes(self._tail[: head.size])
            del self._tail[: head.size]
            self._head = None
            batch = self._read(head.kind, message)
            if batch is not None:
                yield batch
        if self._ended and self._tail:
            raise self._bad("received copy data after EOF marker")

    def finish(self) -> None:
        """End the data; the stream's own end marker may be missing.

        Raises:
            BadCopyFileFormat: the last message is incomplete, or there was no message.
        """
        if self._tail:
            raise self._bad("unexpected EOF in COPY data")
        if self.schema is None:
            raise self._bad("the Arrow stream has no schema")

    def _whole(self) -> _Head | None:
        """The first message of the buffer, or None until all of it has arrived."""
        if self._head is None:
            self._head = self._begun()
        head = self._head
        return head if head is not None and len(self._tail) >= head.size else None

    def _begun(self) -> _Head | None:
        """The kind and size of the next message, or None until its metadata has arrived."""
        tail = self._tail
        if len(tail) < _PREFIX.size:
            if not b"\xff\xff\xff\xff".startswith(tail[:4]):
                raise self._bad("this is no Arrow IPC stream")
            return None
        mark, size = _PREFIX.unpack_from(tail)
        if mark != _CONTINUED:
            raise self._bad("this is no Arrow IPC stream")
        if size == 0:
            self._ended = True
            del tail[: _PREFIX.size]
            return None
        if size < 0 or size % _ALIGNED:
            raise self._bad("a message of the Arrow stream has a wrong length")
        self._bound(size, METADATA_BYTES_MAX, "bytes", "metadata")
        if len(tail) < _PREFIX.size + size:
            return None
        try:
            kind, body = self._described(bytes(tail[_PREFIX.size : _PREFIX.size + size]))
        except struct.error:
            raise self._bad("a message of the Arrow stream has broken metadata") from None
        return _Head(kind, _PREFIX.size + size + body)

    def _described(self, metadata: bytes) -> tuple[int, int]:
        """A message's kind and the length of its body."""
        message = _Table.root(metadata)
        kind = int(message.number(1, "<B"))
        body = int(message.number(3, "<q"))
        if body < 0 or body % _ALIGNED:
            raise self._bad("a message of the Arrow stream has a wrong length")
        self._bound(body, BODY_BYTES_MAX, "bytes", "body", "Send batches of fewer rows.")
        header = message.table(2)
        if kind == _SCHEMA:
            if header.number(0, "<h"):
                raise self._refused("values in big-endian order")
        elif kind == _RECORD_BATCH:
            self._check_batch(header)
        elif kind == _DICTIONARY:
            raise self._refused("dictionaries", "Send the values themselves.")
        else:
            raise self._bad("a message of the Arrow stream is neither a schema nor a record batch")
        return kind, body

    def _check_batch(self, header: _Table) -> None:
        rows = int(header.number(0, "<q"))
        if rows < 0:
            raise self._bad("a batch of the Arrow stream has a wrong length")
        self._bound(rows, BATCH_ROWS_MAX, "rows", "batch", "Send batches of fewer rows.")
        if header.has(3):
            raise self._refused("compressed batches", "Write the stream without compression.")
        for offset, length in _BUFFER.iter_unpack(header.structs(2, _BUFFER.size)):
            if length and offset % _ALIGNED:
                raise self._bad("a batch of the Arrow stream is not aligned")

    def _read(self, kind: int, message: bytes) -> pa.RecordBatch | None:
        """The batch of a message; None for the schema's message."""
        if (kind == _SCHEMA) != (self.schema is None):
            fault = "begins without a schema" if self.schema is None else "has a second schema"
            raise self._bad(f"the Arrow stream {fault}")
        try:
            if self.schema is None:
                self.schema = self._plain_schema(pa.ipc.read_schema(pa.py_buffer(message)))
                return None
            self._batches += 1
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), self.schema)
            batch.validate(full=True)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise self._bad(f"the Arrow stream is broken: {_first_line(error)}") from None
        for field, column in zip(self.schema, batch.columns, strict=True):
            if not _are_moments(column):
                raise InvalidBinaryRepresentation(
                    f'column "{field.name}" has a date or a timestamp that is out of range',
                    context=self._place(),
                )
        return batch

    def _plain_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema with its names and types, without metadata."""
        fields = []
        for field in schema:
            plain = _plain(field.type, 0)
            if plain is None:
                raise NotSupported(
                    f'column "{field.name}" of the Arrow stream has type {str(field.type)[:100]}, which is '
                    "not supported",
                    hint="Cast it before it is sent, if need be to text.",
                    context=self._place(),
                )
            fields.append(pa.field(field.name, plain))
        return pa.schema(fields)

    def _bound(self, size: int, most: int, unit: str, what: str, hint: str | None = None) -> None:
        if size > most:
            message = f"a message's {what} in the Arrow stream has more than {most} {unit}: {size}"
            raise ProgramLimitExceeded(message, hint=hint, context=self._place())

    def _refused(self, what: str, hint: str | None = None) -> NotSupported:
        return NotSupported(f"{what} in an Arrow stream are not supported", hint=hint, context=self._place())

    def _bad(self, message: str) -> BadCopyFileFormat:
        return BadCopyFileFormat(message, context=self._place())

    def _place(self) -> str:
        return f"{self._context}, batch {self._batches}" if self._batches else self._context


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


def _plain(type_: pa.DataType, depth: int) -> pa.DataType | None:
    """A type of the same buffers without extension names; None where DuckDB does not read it."""
    if depth > DEPTH_MAX:
        return None
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(type_.storage_type, depth + 1)
    if any(is_one(type_) for is_one in _PLAIN):
        return type_
    if pa.types.is_decimal128(type_):
        # Arrow allows scales below 0, and does not check others.
        return type_ if 0 <= type_.scale <= type_.precision else None
    if pa.types.is_fixed_size_binary(type_):
        return type_ if type_.byte_width else None
    if pa.types.is_struct(type_):
        members = [_plain(field.type, depth + 1) for field in type_]
        if not members or any(member is None for member in members):
            return None
        pairs = zip(type_, members, strict=True)
        return pa.struct([pa.field(field.name, member) for field, member in pairs])
    if pa.types.is_map(type_):
        key, item = _plain(type_.key_type, depth + 1), _plain(type_.item_type, depth + 1)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_fixed_size_list(type_) and not 0 < type_.list_size <= ARRAY_LENGTH_MAX:
        return None
    for is_one, make in _LISTS:
        if is_one(type_):
            value = _plain(type_.value_type, depth + 1)
            return None if value is None else make(type_, value)
    return None


_LISTS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], pa.DataType]], ...
] = (
    (pa.types.is_list, lambda _, value: pa.list_(value)),
    (pa.types.is_large_list, lambda _, value: pa.large_list(value)),
    (pa.types.is_fixed_size_list, lambda type_, value: pa.list_(value, type_.list_size)),
)


def _are_moments(column: pa.Array) -> bool:
    """True if the column's dates and timestamps, at any depth, are in DuckDB's range or infinite."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return all(map(_are_moments, column.flatten()))
    if pa.types.is_map(type_):
        return _are_moments(column.keys) and _are_moments(column.items)
    if any(is_one(type_) for is_one, _ in _LISTS):
        return _are_moments(column.flatten())
    if pa.types.is_date32(type_):
        return _within(column.view(pa.int32()), _FIRST_DAY, _FIRST_DAY, _LAST_DAY)
    if pa.types.is_timestamp(type_) and type_.unit in _PER_SECOND:
        per = 10**6 // _PER_SECOND[type_.unit]
        return _within(column.view(pa.int64()), -_LAST, _FIRST_US // per, _LAST // per, _LAST)
    return True


def _within(numbers: pa.Array, below: int, first: int, last: int, above: int | None = None) -> bool:
    """True if all are from first to last, or equal to `below` or `above`, which stand for the infinities."""
    found = pc.min_max(numbers)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None or (low >= first and high <= last):
        return True
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    infinite = pc.is_in(numbers, pa.array([below, above if above is not None else last], numbers.type))
    return pc.all(pc.or_(inside, infinite)).as_py() is not False


class _Table:
    """A table of a flatbuffer; every offset is checked, and a wrong one raises struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _unpacked("<i", data, at)
        self._size = _unpacked("<H", data, self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """The root table of a flatbuffer."""
        return cls(data, _unpacked("<I", data, 0))

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        offset = _unpacked("<H", self._data, self._fields + entry)
        return self._at + offset if offset else None

    def has(self, field: int) -> bool:
        """True if the field is present."""
        return self._place(field) is not None

    def number(self, field: int, form: str) -> int:
        """The number in a field, 0 where it is absent."""
        place = self._place(field)
        return 0 if place is None else _unpacked(form, self._data, place)

    def table(self, field: int) -> _Table:
        """The table in a field, which must be present."""
        return _Table(self._data, self._pointed(field))

    def structs(self, field: int, size: int) -> bytes:
        """The bytes of a vector of structs, empty where it is absent."""
        if not self.has(field):
            return b""
        begin = self._pointed(field)
        end = begin + 4 + _unpacked("<I", self._data, begin) * size
        if end > len(self._data):
            raise struct.error("a vector is longer than its message")
        return self._data[begin + 4 : end]

    def _pointed(self, field: int) -> int:
        place = self._place(field)
        if place is None:
            raise struct.error("a field is missing")
        return place + _unpacked("<I", self._data, place)


def _unpacked(form: str, data: bytes, at: int) -> int:
    # A negative position would count from the end of the data.
    if at < 0:
        raise struct.error("a place is before the data")
    value: int = struct.unpack_from(form, data, at)[0]
    return value
