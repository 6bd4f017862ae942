"""A checkpoint state as a file that people can read: JSON whose second line is the checksum of what follows.

    {
      "checksum": "32 hexadecimal digits, BLAKE2b-128 of every byte behind this line",
      "format": 1,
      "stream": "orders", ...
    }

Operator states are in base64, times in UTC. A file that was edited by hand is damaged: its checksum says so.
docs/design/checkpoints.md has the fields.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import DataCorrupted, DucktailError
from .binary_form import FORM_BYTES_MAX, damaged, digest
from .checkpoint import Checkpoint
from .kinds import parse_position
from .state import CheckpointState

FORMAT = 1
# Base64 has four bytes for three, and JSON up to six for one of a name or a note.
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


def to_json(state: CheckpointState) -> bytes:
    """The state's file."""
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
    """The state of a file.

    Raises:
        DataCorrupted: XX001, it is damaged, or of a newer format.
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
        # Its checksum is right, so somebody has written it so: what is wrong with it does not matter.
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
