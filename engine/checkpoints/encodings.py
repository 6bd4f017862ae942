"""The two encodings of a checkpoint state: binary, for a database, and JSON, for files that people read.

The binary form is versioned, with a digest over every byte:

    offset  size  field
    0       4     "DTCK"
    4       2     version, 1
    6       2     0
    8       4     length of the whole, 28 to `FORM_BYTES_MAX`
    12      16    BLAKE2b-128 of all other bytes
    28            body: the fields of the state in sequence

Integers are little-endian; docs/design/checkpoints.md has the table of the body. A state has exactly one
form: names are in order, and a reader refuses any other order. The length is checked against the bytes before
anything else is read, and every count and length of the body against the remaining bytes, so that allocations
are bounded by the input.

The second line of a JSON file is the checksum of the lines after it:

    {
      "checksum": "32 hexadecimal digits, BLAKE2b-128 of every byte behind this line",
      "format": 1,
      "stream": "orders", ...
    }

Operator states are in base64, times in UTC. A file edited by hand is damaged, by its checksum.
docs/design/checkpoints.md has the fields.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from ..errors import DataCorrupted, DucktailError, ProgramLimitExceeded
from .positions import parse_position
from .state import NAMES_MAX, STATE_BYTES_MAX, Checkpoint, CheckpointState

MAGIC = b"DTCK"
VERSION = 1
DIGEST_BYTES = 16
_START = struct.Struct("<4sHHI")
HEAD_BYTES = _START.size + DIGEST_BYTES
# Space for names, offsets, metadata and a position besides the operator states.
FORM_BYTES_MAX = STATE_BYTES_MAX + (32 << 20)

_U8, _U32, _U64, _I64 = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
Value = TypeVar("Value")
FORMAT = 1
# Base64 has four bytes for three, and JSON up to six for one byte of a name or a note.
FILE_BYTES_MAX = 2 * FORM_BYTES_MAX
_HEAD = re.compile(rb'\{\n  "checksum": "([0-9a-f]{32})",\n')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = (
    "format",
    "stream",
    "sequence",
    "created_at",
    "position",
    "watermark_ns",
    "event_count",
    "source_offsets",
    "metadata",
    "operator_states",
)
_POSITION_FIELDS = ("source", "type", "text", "at", "transaction_id", "metadata")


def to_bytes(state: CheckpointState) -> bytes:
    """The state's binary form.

    Raises:
        ProgramLimitExceeded: the form is longer than `FORM_BYTES_MAX`.
    """
    parts: list[bytes] = []
    _put_text(parts, state.stream)
    parts += [_U64.pack(state.sequence), _U64.pack(state.created_us)]
    if state.watermark_ns is None:
        parts.append(_U8.pack(0))
    else:
        parts += [_U8.pack(1), _I64.pack(state.watermark_ns)]
    parts.append(_U64.pack(state.event_count))
    parts.append(_U32.pack(len(state.operator_states)))
    for name, data in state.operator_states.items():
        _put_text(parts, name)
        parts += [_U32.pack(len(data)), data]
    parts.append(_U32.pack(len(state.source_offsets)))
    for name, offset in state.source_offsets.items():
        _put_text(parts, name)
        parts.append(_U64.pack(offset))
    _put_metadata(parts, state.metadata)
    _put_checkpoint(parts, state.checkpoint)
    length = HEAD_BYTES + sum(map(len, parts))
    if length > FORM_BYTES_MAX:
        raise ProgramLimitExceeded(
            f'checkpoint {state.sequence} of "{state.stream}" is longer than {FORM_BYTES_MAX} bytes'
        )
    body = b"".join(parts)
    start = _START.pack(MAGIC, VERSION, 0, length)
    return start + digest(start, body) + body


def from_bytes(form: bytes) -> CheckpointState:
    """The state of a binary form.

    Raises:
        DataCorrupted: the form is damaged or of a newer version.
    """
    if len(form) < HEAD_BYTES:
        raise damaged(f"It has {len(form)} bytes, and its head alone has {HEAD_BYTES}.")
    magic, version, zero, length = _START.unpack_from(form)
    if magic != MAGIC:
        raise damaged("It does not begin as a checkpoint does.")
    if length != len(form) or length > FORM_BYTES_MAX:
        raise damaged(f"It has {len(form)} bytes, and says that it has {length}.")
    if digest(form[: _START.size], memoryview(form)[HEAD_BYTES:]) != form[_START.size : HEAD_BYTES]:
        raise damaged("Its checksum is of other bytes.")
    if version != VERSION or zero:
        raise damaged(f"It is of version {version}, and this ducktail reads version {VERSION}.")
    reader = _StateReader(form)
    try:
        state = _read_state(reader)
    except DataCorrupted:
        raise
    except DucktailError as error:
        raise damaged(f"What it says cannot be: {error.message}.") from error
    if reader.left:
        raise damaged(f"{reader.left} bytes are left at its end.")
    return state


def digest(*parts: bytes | memoryview) -> bytes:
    """The checksum of the concatenated parts, 16 bytes."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(part)
    return found.digest()


def damaged(why: str) -> DataCorrupted:
    """The error for a form that cannot be read."""
    return DataCorrupted("a checkpoint is damaged", detail=why)


def _put_text(parts: list[bytes], text: str) -> None:
    data = text.encode()
    parts += [_U32.pack(len(data)), data]


def _put_metadata(parts: list[bytes], metadata: Mapping[str, str]) -> None:
    parts.append(_U32.pack(len(metadata)))
    for name, value in metadata.items():
        _put_text(parts, name)
        _put_text(parts, value)


def _put_checkpoint(parts: list[bytes], checkpoint: Checkpoint | None) -> None:
    if checkpoint is None:
        parts.append(_U8.pack(0))
        return
    parts.append(_U8.pack(1 if checkpoint.transaction_id is None else 2))
    _put_text(parts, checkpoint.source_type)
    _put_text(parts, checkpoint.position.kind)
    _put_text(parts, str(checkpoint.position))
    parts.append(_U64.pack(checkpoint.at_us))
    if checkpoint.transaction_id is not None:
        _put_text(parts, checkpoint.transaction_id)
    _put_metadata(parts, checkpoint.metadata)


class _StateReader:
    """Reads a form's body from the left; each length is checked against the remaining bytes first."""

    def __init__(self, form: bytes) -> None:
        self._form = form
        self._at = HEAD_BYTES

    @property
    def left(self) -> int:
        return len(self._form) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise damaged(f"{length} bytes are to come, and {self.left} are left.")
        self._at += length
        return self._form[self._at - length : self._at]

    def number(self, kind: struct.Struct) -> int:
        (found,) = kind.unpack(self.take(kind.size))
        return int(found)

    def data(self) -> bytes:
        return self.take(self.number(_U32))

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeDecodeError as error:
            raise damaged("A text in it is no UTF-8.") from error

    def flag(self, most: int) -> int:
        found = self.number(_U8)
        if found > most:
            raise damaged(f"A mark in it is {found}.")
        return found

    def named(self, read: Callable[[], Value]) -> dict[str, Value]:
        """A map by name; names must be in strictly rising order."""
        count = self.number(_U32)
        if count > NAMES_MAX:
            raise damaged(f"It has {count} names, and {NAMES_MAX} at the most.")
        found: dict[str, Value] = {}
        last: str | None = None
        for _ in range(count):
            name = self.text()
            if last is not None and name <= last:
                raise damaged("Names in it are not in order.")
            found[name], last = read(), name
        return found


def _read_state(reader: _StateReader) -> CheckpointState:
    stream = reader.text()
    sequence, created_us = reader.number(_U64), reader.number(_U64)
    watermark_ns = reader.number(_I64) if reader.flag(1) else None
    return CheckpointState(
        stream=stream,
        sequence=sequence,
        created_us=created_us,
        watermark_ns=watermark_ns,
        event_count=reader.number(_U64),
        operator_states=reader.named(reader.data),
        source_offsets=reader.named(lambda: reader.number(_U64)),
        metadata=reader.named(reader.text),
        checkpoint=_read_checkpoint(reader),
    )


def _read_checkpoint(reader: _StateReader) -> Checkpoint | None:
    mark = reader.flag(2)
    if not mark:
        return None
    source_type, kind, text = reader.text(), reader.text(), reader.text()
    at_us = reader.number(_U64)
    transaction_id = reader.text() if mark == 2 else None
    position = parse_position(kind, text)
    if str(position) != text:
        raise damaged("A position in it is not written as positions are.")
    return Checkpoint(source_type, position, at_us, transaction_id, reader.named(reader.text))


def to_json(state: CheckpointState) -> bytes:
    """The contents of the state's JSON file."""
    position = state.checkpoint
    values = (
        FORMAT,
        state.stream,
        state.sequence,
        _time_text(state.created_us),
        None if position is None else _position_json(position),
        state.watermark_ns,
        state.event_count,
        dict(state.source_offsets),
        dict(state.metadata),
        {name: base64.b64encode(data).decode() for name, data in state.operator_states.items()},
    )
    text = json.dumps(dict(zip(_FIELDS, values, strict=True)), ensure_ascii=False, indent=2)
    rest = text.removeprefix("{\n").encode() + b"\n"
    return b'{\n  "checksum": "%s",\n' % digest(rest).hex().encode() + rest


def from_json(data: bytes) -> CheckpointState:
    """The state of a JSON file.

    Raises:
        DataCorrupted: the file is damaged or of a newer format.
    """
    head = _HEAD.match(data)
    if head is None:
        raise damaged("It does not begin as a checkpoint's file does.")
    if digest(memoryview(data)[head.end() :]).hex().encode() != head[1]:
        raise damaged("Its checksum is of other bytes.")
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise damaged(f"It is of format {found['format']}, and this ducktail reads format {FORMAT}.")
        return _state_of(found)
    except DataCorrupted:
        raise
    except DucktailError as error:
        raise damaged(f"What it says cannot be: {error.message}.") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        # Its checksum is right, so it was written that way: the exact error does not matter.
        raise damaged(f"It is no checkpoint: {error!r}.") from error


def _state_of(found: Any) -> CheckpointState:
    _, stream, sequence, created_at, position, watermark, events, offsets, metadata, operators = (
        found[field] for field in _FIELDS
    )
    return CheckpointState(
        stream=stream,
        sequence=sequence,
        created_us=_time_us(created_at),
        checkpoint=None if position is None else _checkpoint_of(position),
        watermark_ns=watermark,
        event_count=events,
        source_offsets=dict(offsets),
        metadata=dict(metadata),
        operator_states={name: _bytes_of(text) for name, text in operators.items()},
    )


def _position_json(checkpoint: Checkpoint) -> dict[str, object]:
    values = (
        checkpoint.source_type,
        checkpoint.position.kind,
        str(checkpoint.position),
        _time_text(checkpoint.at_us),
        checkpoint.transaction_id,
        dict(checkpoint.metadata),
    )
    return dict(zip(_POSITION_FIELDS, values, strict=True))


def _checkpoint_of(found: Any) -> Checkpoint:
    source, kind, text, at, transaction_id, metadata = (found[field] for field in _POSITION_FIELDS)
    return Checkpoint(source, parse_position(kind, text), _time_us(at), transaction_id, dict(metadata))


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise damaged("An operator state in it is no base64.") from error


def _time_text(at_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat()


def _time_us(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
