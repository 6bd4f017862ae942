"""A place in a binary log of MySQL or MariaDB: `mysql-bin.000003:12345`.

Source: MySQL Reference Manual, "The Binary Log".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import InvalidParameterValue
from .position import UINT64_MAX, Position, Reader, is_whole

# The longest name of a file on the systems that these servers run on.
FILE_CHARS_MAX = 255
# The server counts up to 2^31 - 1 and stops.
FILE_NUMBER_MAX = (1 << 31) - 1
_DIGITS_MIN = 6


@dataclass(frozen=True, slots=True, order=False)
class BinlogPosition(Position):
    """A byte of a numbered file; ordered among the files of one name.

    Args:
        base: the files' name without its number: "mysql-bin".
        file_number: of the file, at least 6 digits in its name.
        offset: the byte in it.

    >>> BinlogPosition.parse("mysql-bin.000003:12345")
    BinlogPosition(base='mysql-bin', file_number=3, offset=12345)
    """

    kind: ClassVar[str] = "binlog"

    base: str
    file_number: int
    offset: int

    def __post_init__(self) -> None:
        if not self.base or _unfit(self.base) or len(self.base) > FILE_CHARS_MAX:
            raise InvalidParameterValue(f'"{self.base}" is no name of binary log files')
        if not is_whole(self.file_number, 0, FILE_NUMBER_MAX):
            raise InvalidParameterValue(f"{self.file_number} is no number of a binary log file")
        if not is_whole(self.offset, 0, UINT64_MAX):
            raise InvalidParameterValue(f"{self.offset} is no place in a binary log file")

    @classmethod
    def parse(cls, text: str) -> BinlogPosition:
        """Read a file's name, a colon and a place in it."""
        reader = Reader("binlog position", text)
        colon, dot = text.rfind(":"), text.rfind(".", 0, max(text.rfind(":"), 0))
        if colon < 0:
            raise reader.wrong('":" and a place in the file are expected', len(text))
        if dot <= 0:
            raise reader.wrong('a file\'s name with a number is expected, such as "mysql-bin.000003"', 0)
        for place in range(dot):
            if _unfit(text[place]) or place >= FILE_CHARS_MAX:
                raise reader.wrong("a file's name does not go on so", place)
        reader.at = dot + 1
        file_number = reader.number("the file's number", 0, FILE_NUMBER_MAX)
        if reader.at - dot - 1 < _DIGITS_MIN:
            raise reader.wrong(f"the file's number has at least {_DIGITS_MIN} digits", dot + 1)
        if str(file_number).zfill(_DIGITS_MIN) != text[dot + 1 : reader.at]:
            raise reader.wrong("the file's number has a 0 too many", dot + 1)
        reader.expect(":")
        offset = reader.number("a place in the file", 0, UINT64_MAX)
        reader.end()
        return cls(text[:dot], file_number, offset)

    def __str__(self) -> str:
        return f"{self.base}.{self.file_number:0{_DIGITS_MIN}}:{self.offset}"

    def compare(self, other: BinlogPosition) -> int | None:
        """The order of file and place; None between files of two names."""
        if self.base != other.base:
            return None
        left, right = (self.file_number, self.offset), (other.file_number, other.offset)
        return (left > right) - (left < right)


def _unfit(text: str) -> bool:
    return any(character in ":/\\" or not character.isprintable() for character in text)
