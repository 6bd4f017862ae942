"""The state of a job on a stream at one moment, from which it goes on.

Source: docs/design/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from ..errors import InvalidParameterValue, ProgramLimitExceeded
from .bounds import (
    INT64_MAX,
    INT64_MIN,
    STATE_BYTES_MAX,
    TIME_US_MAX,
    UINT64_MAX,
    check_key,
    check_names,
    check_number,
    metadata_of,
)
from .checkpoint import Checkpoint

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """See the head of the file. Checked when it is built; its maps are in the order of their names.

    Args:
        stream: the key under which it is kept: a stream's name, or a consumer's.
        sequence: its number among those of the stream, 0 to 2^63 - 1; the highest is the newest.
        created_us: when it was taken, microseconds since 1970.
        operator_states: operator's name -> its state.
        source_offsets: source's name -> how far it was read, 0 to 2^64 - 1.
        watermark_ns: no event before it is expected any more, nanoseconds since 1970; None without one.
        event_count: events processed since the job began.
        checkpoint: the typed position of the source, where it has one.

    Raises:
        InvalidParameterValue: 22023. ProgramLimitExceeded: 54000, it is too large.
    """

    stream: str
    sequence: int
    created_us: int
    operator_states: Mapping[str, bytes] = field(default_factory=dict)
    source_offsets: Mapping[str, int] = field(default_factory=dict)
    watermark_ns: int | None = None
    event_count: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        check_key(self.stream)
        check_number("the sequence", self.sequence, INT64_MAX)
        check_number("the time", self.created_us, TIME_US_MAX)
        if self.watermark_ns is not None:
            check_number("the watermark", self.watermark_ns, INT64_MAX, INT64_MIN)
        check_number("the event count", self.event_count, INT64_MAX)
        check_names("operator states", self.operator_states)
        for state in self.operator_states.values():
            if not isinstance(state, bytes):
                raise InvalidParameterValue("an operator state of a checkpoint is no bytes")
        if sum(map(len, self.operator_states.values())) > STATE_BYTES_MAX:
            raise ProgramLimitExceeded(
                f"the operator states of a checkpoint have more than {STATE_BYTES_MAX} bytes",
                hint="Keep large state in a table, and the key to it in the checkpoint.",
            )
        check_names("source offsets", self.source_offsets)
        for offset in self.source_offsets.values():
            check_number("a source offset", offset, UINT64_MAX)
        object.__setattr__(self, "operator_states", _ordered(self.operator_states))
        object.__setattr__(self, "source_offsets", _ordered(self.source_offsets))
        object.__setattr__(self, "metadata", metadata_of(self.metadata))

    def age_us(self, now_us: int) -> int:
        """How old it is, microseconds; 0 where the clock has gone back behind it."""
        return max(0, now_us - self.created_us)

    def behind(self, earlier: CheckpointState) -> str | None:
        """What in it is not at or after an earlier state, as a sentence; None where nothing is.

        The typed position must be at or after the earlier one, as must each source's offset; neither may
        be missing where it was. Custom texts have no order, so any follows any.
        """
        for name, offset in earlier.source_offsets.items():
            if name not in self.source_offsets:
                return f'It has no offset of source "{name}", which was at {offset}.'
            if self.source_offsets[name] < offset:
                return f'Source "{name}" is at {self.source_offsets[name]}, and was at {offset}.'
        if earlier.checkpoint is None:
            return None
        if self.checkpoint is None:
            return f"It has no position, which was {earlier.checkpoint.position}."
        if earlier.checkpoint.source_type == self.checkpoint.source_type == "custom":
            return None
        if self.checkpoint.compare(earlier.checkpoint) not in (0, 1):
            return f"Its position is {self.checkpoint.position}, and was {earlier.checkpoint.position}."
        return None


def _ordered(found: Mapping[str, Value]) -> Mapping[str, Value]:
    return MappingProxyType({name: found[name] for name in sorted(found)})
