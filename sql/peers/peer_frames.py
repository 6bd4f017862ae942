"""The answers between nodes: frames of bytes, with rows in their stored form.

    frame   first byte   then
    head    H            JSON: the columns (name, DuckDB type; null without rows), Arrow's schema
    events  E            u32 length of a JSON object (rows, columns, types, parted, placed), the object; where
                         they are placed the LSNs (int64 each), the partitions (int32 each) and the sizes of
                         the DataRow messages (int32 each); these messages, in text and UTC
    rows    A            an Arrow IPC stream of one batch
    facts   F            JSON: the answer of an operation other than a statement
    tail    T            JSON: the command tag; whether there are more rows

Numbers are little-endian. The entry node passes encoded events on unchanged if its client requests text, as
clients do for events. Source: docs/design/cluster.md, "Frames".
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import pyarrow as pa

from ...engine.errors import ProtocolViolation
from ...engine.log.log import EVENT_TYPES
from ...engine.values.copy_rows import CopyForm
from ...engine.values.encoding import recoder
from ..results.results import EVENT_RESULT, ArrowBatch, EventBatch, LogBatch, ResultBatch, ResultColumn

HEAD, EVENTS, ROWS, FACTS, TAIL = b"H", b"E", b"A", b"F", b"T"
_LENGTH = struct.Struct("<I")
_WRITER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Heads, tails and what is said of events are kept as they were written and read: those of the statements that
# are repeated now, where they are short.
KEPT_MAX, KEPT_BYTES_MAX = 128, 4096

assert sys.byteorder == "little", "frames are written in the machine's own order"


def _json(value: object) -> bytes:
    return _WRITER.encode(value).encode()


@dataclass(frozen=True, slots=True)
class Head:
    """The description of an answer's rows.

    Args:
        columns: None if the answer has none.
        schema: Arrow's schema, if the rows are sent as Arrow.
    """

    columns: tuple[ResultColumn, ...] | None
    schema: pa.Schema | None = None
    parameters: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The frame."""
        if self.columns is EVENT_RESULT and not self.parameters and self.schema is None:
            return _EVENT_HEAD
        columns = None if self.columns is None else [[c.name, c.type] for c in self.columns]
        found: dict[str, Any] = {"columns": columns}
        if self.parameters:
            found["parameters"] = self.parameters
        if self.schema is not None:
            found["schema"] = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return HEAD + _json(found)


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a reply: the command tag, or the mark that it is full or has all requested rows."""

    tag: str | None
    more: bool = False

    def encode(self) -> bytes:
        """The frame."""
        return _tail_frame(self.tag, self.more)


@lru_cache(KEPT_MAX)
def _tail_frame(tag: str | None, more: bool) -> bytes:
    return TAIL + _json({"tag": tag, "more": more})


def batch_frame(batch: ResultBatch, *, placed: bool) -> bytes:
    """Encode a batch of rows as a frame.

    Args:
        placed: True to send events with their LSNs and partitions, which are omitted if the events are only
            passed on.
    """
    if isinstance(batch, LogBatch):
        batch = batch.ready()
    if isinstance(batch, EventBatch):
        return _events_frame(batch, placed)
    rows = batch.record_batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return b"".join((ROWS, sink.getvalue()))


def facts_frame(facts: object) -> bytes:
    """Encode the answer of an operation."""
    return FACTS + _json(facts)


def _events_frame(batch: EventBatch, placed: bool) -> bytes:
    types = None if batch.types is EVENT_TYPES else batch.types
    about = _events_head(len(batch.rows), batch.columns, types, batch.parted, placed)
    places: tuple[bytes, ...] = ()
    if placed:
        found = array("q", batch.lsns), array("i", batch.partitions), array("i", map(len, batch.rows))
        places = tuple(one.tobytes() for one in found)
    return b"".join((about, *places, *batch.rows))


@lru_cache(KEPT_MAX)
def _events_head(
    rows: int, columns: tuple[int, ...] | None, types: tuple[str, ...] | None, parted: bool, placed: bool
) -> bytes:
    """Encode the header of events; usual values are omitted."""
    about: dict[str, Any] = {"rows": rows}
    if columns is not None:
        about["columns"] = columns
    if types is not None:
        about["types"] = types
    if parted:
        about["parted"] = True
    if placed:
        about["placed"] = True
    written = _json(about)
    return EVENTS + _LENGTH.pack(len(written)) + written


_EVENT_HEAD = HEAD + _json({"columns": [[c.name, c.type] for c in EVENT_RESULT]})


def head_of(frame: bytes) -> Head:
    """Decode a head; the same object for the same frame, so that derived values can be kept with it.

    Raises:
        ProtocolViolation: the frame is malformed.
    """
    return _kept_head(frame) if len(frame) <= KEPT_BYTES_MAX else _head(frame)


def _head(frame: bytes) -> Head:
    found = _object(frame, HEAD)
    columns, schema = found["columns"], found.get("schema")
    return Head(
        None if columns is None else tuple(ResultColumn(name, type_) for name, type_ in columns),
        None if schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
        tuple(found.get("parameters", ())),
    )


_kept_head = lru_cache(KEPT_MAX)(_head)


def tail_of(frame: bytes) -> Tail:
    """Decode a tail.

    Raises:
        ProtocolViolation: the frame is malformed.
    """
    return _kept_tail(frame) if len(frame) <= KEPT_BYTES_MAX else _tail(frame)


def _tail(frame: bytes) -> Tail:
    found = _object(frame, TAIL)
    return Tail(found["tag"], found["more"])


_kept_tail = lru_cache(KEPT_MAX)(_tail)


def facts_of(frame: bytes) -> Any:
    """Decode the answer of an operation.

    Raises:
        ProtocolViolation: the frame has no facts.
    """
    return _object(frame, FACTS)


def batch_of(frame: bytes) -> ResultBatch:
    """Decode the rows of a frame.

    Raises:
        ProtocolViolation: the frame has no rows.
    """
    if frame[:1] == ROWS:
        with pa.ipc.open_stream(pa.py_buffer(frame)[1:]) as reader:
            return ArrowBatch(reader.read_next_batch())
    if frame[:1] != EVENTS:
        raise _malformed()
    (length,) = _LENGTH.unpack_from(frame, 1)
    place = 1 + _LENGTH.size
    about = _kept_about(frame[place : place + length])
    count, place = about["rows"], place + length
    lsns, partitions, sizes = array("q"), array("i"), array("i")
    for found in (lsns, partitions, sizes) if about.get("placed") else ():
        end = place + count * found.itemsize
        found.frombytes(frame[place:end])
        place = end
    columns, types = about.get("columns"), about.get("types")
    return PassedBatch(
        memoryview(frame)[place:],
        count,
        lsns,
        partitions,
        sizes,
        None if columns is None else tuple(columns),
        EVENT_TYPES if types is None else tuple(types),
        about.get("parted", False),
    )


# Only read: it is the same one for all events of which the same is said.
_kept_about: Callable[[bytes], dict[str, Any]] = lru_cache(KEPT_MAX)(json.loads)


@dataclass(slots=True, eq=False)
class PassedBatch:
    """Events that another node has encoded, in one piece; they are split only on request.

    Args:
        data: the DataRow messages of the events.
        sizes: the size of each message in bytes.
        lsns, partitions: as in EventBatch. Empty, like `sizes`, if the events are only passed on.
        columns, types, parted: as in EventBatch.
    """

    data: memoryview
    count: int
    lsns: array[int]
    partitions: array[int]
    sizes: array[int]
    columns: tuple[int, ...] | None
    types: tuple[str, ...]
    parted: bool
    _events: EventBatch | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return self.count

    @property
    def size(self) -> int:
        """The size of the rows in bytes."""
        return len(self.data)

    def events(self) -> EventBatch:
        """The events as an EventBatch, with single rows."""
        if self._events is None:
            rows, place, data = [], 0, self.data
            for size in self.sizes or self._sizes_read():
                end = place + size
                rows.append(bytes(data[place:end]))
                place = end
            places = (self.lsns, self.partitions) if self.lsns else (range(self.count), repeat(0, self.count))
            lsns, partitions = map(list, places)
            self._events = EventBatch(rows, lsns, partitions, self.columns, self.types, self.parted)
        return self._events

    def _sizes_read(self) -> Iterator[int]:
        """The sizes, read from the messages."""
        place = 0
        while place < len(self.data):
            size = 1 + int.from_bytes(self.data[place + 1 : place + 5], "big")
            yield size
            place += size

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the rows."""
        return self.events().cut(start, count)

    def turned(self) -> ResultBatch:
        """The rows in reverse order."""
        return self.events().turned()

    def record_batch(self) -> pa.RecordBatch:
        """The rows as Arrow."""
        return self.events().record_batch()

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The rows with their positions, and the function that restores a batch from them."""
        return self.events().stored()

    def parts(self) -> Sequence[ResultBatch]:
        """None: encoded rows are only passed on."""
        return ()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages: unchanged if the client wants that form."""
        if self.columns is None and not any(map(recoder, types, formats, repeat(timezone))):
            return self.data
        return self.events().datarows(types, formats, timezone)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""
        return self.events().copy_rows(types, form, timezone)


def _object(frame: bytes, kind: bytes) -> Any:
    if frame[:1] != kind:
        raise _malformed()
    try:
        return json.loads(frame[1:])
    except ValueError as error:
        raise _malformed() from error


def _malformed() -> ProtocolViolation:
    return ProtocolViolation("malformed answer of another node")


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Frames as the result of a statement from another node: one binary column."""

    frames: Sequence[bytes]

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.frames)

    @property
    def size(self) -> int:
        """The size of the frames in bytes."""
        return sum(map(len, self.frames))

    def cut(self, start: int, count: int | None) -> ResultBatch:
        """A slice of the frames."""
        return FrameBatch(self.frames[start : None if count is None else start + count])

    def turned(self) -> ResultBatch:
        """The frames in reverse order."""
        return FrameBatch(self.frames[::-1])

    def record_batch(self) -> pa.RecordBatch:
        """The frames as Arrow."""
        return pa.RecordBatch.from_arrays([pa.array(self.frames, pa.binary())], ["frame"])

    def stored(self) -> tuple[pa.RecordBatch, Callable[[pa.RecordBatch], ResultBatch]]:
        """The frames as Arrow, and the function that restores a batch from them."""
        return self.record_batch(), ArrowBatch

    def parts(self) -> Sequence[ResultBatch]:
        """None: frames need no encoding threads."""
        return ()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The frames as DataRow messages, in one piece."""
        if not all(formats):
            return ArrowBatch(self.record_batch()).datarows(types, formats, timezone)
        pieces: list[bytes] = []
        for frame in self.frames:
            pieces += (b"D%b\0\1%b" % (_u32(len(frame) + 10), _u32(len(frame))), frame)
        return b"".join(pieces)

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The frames as CopyData messages."""
        return ArrowBatch(self.record_batch()).copy_rows(types, form, timezone)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")
