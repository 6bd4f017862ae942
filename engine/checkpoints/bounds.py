"""What a checkpoint may hold at the most, and how its names and texts are checked.

Source: docs/design/checkpoints.md, "Bounds".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import InvalidParameterValue, ProgramLimitExceeded

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
UINT64_MAX = (1 << 64) - 1
# The end of the year 9999: later times are none to DuckDB and to Python.
TIME_US_MAX = 253_402_300_799_999_999
# A key is the name of a directory, which has at most 255 bytes on the systems that we know.
KEY_BYTES_MAX = 200
# Names of operators, offsets and metadata are shown to people.
NAME_BYTES_MAX = 1000
# A value of metadata is a note, not a place for data: operator states are.
VALUE_BYTES_MAX = 64 << 10
# A stream has at most 1,024 partitions; a job of several sources some thousands of offsets.
NAMES_MAX = 10_000
# A state is written whole and held in memory twice while it is.
STATE_BYTES_MAX = 64 << 20


def check_key(key: str) -> str:
    """A stream's or consumer's key, under which checkpoints are kept: it may be a directory's name.

    Raises:
        InvalidParameterValue: 22023, it is empty, too long, or could lead out of a directory.
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
    """A whole number in its range.

    Raises:
        InvalidParameterValue: 22023.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise InvalidParameterValue(f"{what} of a checkpoint is not from {least} to {most}: {number!r}")
    return number


def check_text(what: str, text: str, bytes_max: int) -> str:
    """A text that every store can keep.

    Raises:
        InvalidParameterValue: 22023. ProgramLimitExceeded: 54000, it is too long.
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
    """The names of a map, and how many there are.

    Raises:
        InvalidParameterValue: 22023. ProgramLimitExceeded: 54000.
    """
    if len(found) > NAMES_MAX:
        raise ProgramLimitExceeded(f"a checkpoint has more than {NAMES_MAX} of {what}")
    for name in found:
        check_text(f"a name in {what}", name, NAME_BYTES_MAX)


def metadata_of(found: Mapping[str, str]) -> Mapping[str, str]:
    """Metadata, checked, in the order of its names.

    Raises:
        InvalidParameterValue: 22023. ProgramLimitExceeded: 54000.
    """
    check_names("metadata", found)
    for value in found.values():
        check_text("a value in metadata", value, VALUE_BYTES_MAX)
    return MappingProxyType({name: found[name] for name in sorted(found)})
