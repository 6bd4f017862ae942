"""The state of a job on a stream at one instant, from which it resumes, and the bounds of states.

A `Checkpoint` has the position up to which a source was read, the time, and the source's transaction. A
`CheckpointState` is everything from which a job resumes. Both are validated at construction: names, texts and
sizes have bounds.
Source: docs/design/checkpoints.md, "Bounds".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from ..errors import InvalidParameterValue, ProgramLimitExceeded
from .positions import (
    POSITION_CHARS_MAX,
    UINT64_MAX,
    BinlogPosition,
    CustomPosition,
    MariadbGtids,
    MysqlGtids,
    PartitionLsns,
    Position,
    PostgresLsn,
)

Value = TypeVar("Value")
INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
# The end of the year 9999: DuckDB and Python have no later times.
TIME_US_MAX = 253_402_300_799_999_999
# A key is the name of a directory, which has at most 255 bytes on known systems.
KEY_BYTES_MAX = 200
# Names of operators, offsets and metadata are shown to people.
NAME_BYTES_MAX = 1000
# A value of metadata is a note, not a place for data: operator states are.
VALUE_BYTES_MAX = 64 << 10
# A stream has at most 1,024 partitions; a job of several sources some thousands of offsets.
NAMES_MAX = 10_000
# A state is written as a whole, and is in memory twice meanwhile.
STATE_BYTES_MAX = 64 << 20
# Source type -> its types of position.
SOURCES: dict[str, tuple[type[Position], ...]] = {
    "ducktail": (PartitionLsns,),
    "postgresql": (PostgresLsn,),
    "mysql": (BinlogPosition, MysqlGtids),
    "mariadb": (BinlogPosition, MariadbGtids),
    "custom": (CustomPosition,),
}


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The state from which a job resumes. Validated at construction; its maps are in the order of their
    names.

    Args:
        stream: its key: a stream's name, or a consumer's.
        sequence: its number among the stream's states, 0 to 2^63 - 1; the highest is the newest.
        created_us: the time at which it was taken, microseconds since 1970.
        operator_states: operator's name -> its state.
        source_offsets: source's name -> the offset up to which it was read, 0 to 2^64 - 1.
        watermark_ns: the time before which no more events are expected, nanoseconds since 1970; None without
            one.
        event_count: events processed since the job began.
        checkpoint: the typed position of the source, or None.

    Raises:
        InvalidParameterValue: a field is invalid.
        ProgramLimitExceeded: the state is too large.
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
        """The state's age in microseconds; 0 if the clock was set back to an earlier time."""
        return max(0, now_us - self.created_us)

    def behind(self, earlier: CheckpointState) -> str | None:
        """The part of it that is before an earlier state, as a sentence; None without one.

        The typed position and each source's offset must be at or after the earlier ones, and may not be
        missing if the earlier state has them. Custom texts have no order, so any may follow any.
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


def check_key(key: str) -> str:
    """Check the key of a stream or consumer under which checkpoints are stored: it may be a directory's name.

    Raises:
        InvalidParameterValue: the key is empty, too long, or could lead out of a directory.
    """
    wrong = None
    if not isinstance(key, str):
        wrong = "It is no text."
    elif not key:
        wrong = "It is empty."
    elif key.startswith("."):
        wrong = 'It begins with ".".'
    elif any(character in "/\\" or not character.isprintable() for character in key):
        wrong = "It has a slash, or a character that cannot be printed."
    elif len(key.encode()) > KEY_BYTES_MAX:
        wrong = f"It has more than {KEY_BYTES_MAX} bytes."
    if wrong is not None:
        raise InvalidParameterValue(f"invalid checkpoint key: {key!r:.100}", detail=wrong)
    return key


def check_number(what: str, number: int, most: int, least: int = 0) -> int:
    """Check that an integer is in its range.

    Raises:
        InvalidParameterValue: the number is out of range.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise InvalidParameterValue(f"{what} of a checkpoint is not from {least} to {most}: {number!r}")
    return number


def check_text(what: str, text: str, bytes_max: int) -> str:
    """Check that every store can keep a text.

    Raises:
        InvalidParameterValue: the text has invalid characters.
        ProgramLimitExceeded: the text is too long.
    """
    if not isinstance(text, str) or "\0" in text:
        raise InvalidParameterValue(f"{what} of a checkpoint is no text without the character 0")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidParameterValue(
            f"{what} of a checkpoint holds half of a surrogate pair",
            detail=f"It is character {error.start + 1}.",
        ) from None
    if size > bytes_max:
        raise ProgramLimitExceeded(f"{what} of a checkpoint is longer than {bytes_max} bytes")
    return text


def check_names(what: str, found: Mapping[str, object]) -> None:
    """Check the names of a map, and their number.

    Raises:
        InvalidParameterValue: a name or text is invalid.
        ProgramLimitExceeded: the map has too many names, or a text is too long.
    """
    if len(found) > NAMES_MAX:
        raise ProgramLimitExceeded(f"a checkpoint has more than {NAMES_MAX} of {what}")
    for name in found:
        check_text(f"a name in {what}", name, NAME_BYTES_MAX)


def metadata_of(found: Mapping[str, str]) -> Mapping[str, str]:
    """Validated metadata in the order of its names.

    Raises:
        InvalidParameterValue: a name or text is invalid.
        ProgramLimitExceeded: the map has too many names, or a text is too long.
    """
    check_names("metadata", found)
    for value in found.values():
        check_text("a value in metadata", value, VALUE_BYTES_MAX)
    return MappingProxyType({name: found[name] for name in sorted(found)})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position of a source with its time. Ordered by `position` if its type has an order.

    Args:
        source_type: 'ducktail', 'postgresql', 'mysql', 'mariadb' or 'custom'.
        position: everything up to it, inclusive, has been processed.
        at_us: the time of the position, microseconds since 1970.
        transaction_id: the source's name of the transaction that ends there, or None.

    Raises:
        InvalidParameterValue: the source type is unknown or has no such positions.
        ProgramLimitExceeded: the position's text is longer than the limit of reading it back.
    """

    source_type: str
    position: Position
    at_us: int
    transaction_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.source_type not in SOURCES:
            raise InvalidParameterValue(
                f'there are no sources of type "{self.source_type}"',
                hint=f"The types are {', '.join(SOURCES)}.",
            )
        if type(self.position) not in SOURCES[self.source_type]:
            kinds = " or ".join(kind.kind for kind in SOURCES[self.source_type])
            raise InvalidParameterValue(
                f'a source of type "{self.source_type}" has no positions of type "{self.position.kind}"',
                hint=f"Its positions are of type {kinds}.",
            )
        if len(str(self.position)) > POSITION_CHARS_MAX:
            raise ProgramLimitExceeded(
                f"the text of a checkpoint's position is longer than {POSITION_CHARS_MAX} characters"
            )
        check_number("the time", self.at_us, TIME_US_MAX)
        if self.transaction_id is not None:
            check_text("the transaction id", self.transaction_id, NAME_BYTES_MAX)
        object.__setattr__(self, "metadata", metadata_of(self.metadata))

    def age_us(self, now_us: int) -> int:
        """The checkpoint's age in microseconds; 0 if the clock was set back to an earlier time."""
        return max(0, now_us - self.at_us)

    def compare(self, other: Checkpoint) -> int | None:
        """The order of the positions as in `Position`; None also for two types of source or position."""
        same = self.source_type == other.source_type and type(self.position) is type(other.position)
        return self.position.compare(other.position) if same else None
