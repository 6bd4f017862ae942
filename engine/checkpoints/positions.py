"""Positions: typed places up to which a source was read, as text, and in an order where the type has one.

A position of several counters at once (a set of GTIDs, an LSN for each partition) has a partial order: one
is before another where nothing in it is behind. Two that are each ahead somewhere have no order: `compare`
answers None, and <, <=, > and >= are all false, as they are for Python's sets. Positions of two types
cannot be compared (TypeError).

The types here are a place in a binary log of MySQL or MariaDB (`mysql-bin.000003:12345`), PostgreSQL's log
sequence number, and ducktail's LSN for each partition. gtid.py has sets of GTIDs, kinds.py the types by
name. Source: docs/design/checkpoints.md, "Positions"; MySQL Reference Manual, "The Binary Log"; PostgreSQL,
"pg_lsn Type"; docs/sql.md, "Committing".
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import ClassVar, Self

from ..errors import InvalidParameterValue, InvalidTextRepresentation

UINT32_MAX = (1 << 32) - 1
UINT64_MAX = (1 << 64) - 1
# A set of GTIDs of a server with thousands of gaps; a map of 1,024 partitions has some 30 KB.
POSITION_CHARS_MAX = 1 << 20
# The longest name of a file on the systems that these servers run on.
FILE_CHARS_MAX = 255
# The server counts up to 2^31 - 1 and stops.
FILE_NUMBER_MAX = (1 << 31) - 1
_DIGITS_MIN = 6
LSN_MAX = (1 << 63) - 1
# Nine digits are more partitions than any stream has, and never a number that overflows.
PARTITION_MAX = 10**9 - 1
BLANKS = " \t\r\n"
_MEMBER = r'[ \t\r\n]*"([0-9]{1,9})"[ \t\r\n]*:[ \t\r\n]*(0|[1-9][0-9]{0,18})[ \t\r\n]*'
_MEMBERS = re.compile(_MEMBER)
_WHOLE = re.compile(rf"[ \t\r\n]*\{{(?:{_MEMBER}(?:,{_MEMBER})*)\}}[ \t\r\n]*")


class Position(ABC):
    """See the head of the file. Subclasses are frozen values that are checked when they are built."""

    __slots__ = ()

    # What the type is called where positions are stored and shown.
    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read a position's text.

        Raises:
            InvalidTextRepresentation; its `position` is the character of `text`, from 1, that is
            wrong, and its DETAIL says what is wrong there.
        """

    @abstractmethod
    def __str__(self) -> str:
        """The text, in the one way in which it is written; `parse` reads it back."""

    @abstractmethod
    def compare(self, other: Self) -> int | None:
        """-1 where this is before `other`, 0 where they are the same, 1 where it is after, else None."""

    def __lt__(self, other: object) -> bool:
        return self._order(other) == -1

    def __le__(self, other: object) -> bool:
        return self._order(other) in (-1, 0)

    def __gt__(self, other: object) -> bool:
        return self._order(other) == 1

    def __ge__(self, other: object) -> bool:
        return self._order(other) in (0, 1)

    def _order(self, other: object) -> int | None:
        if type(other) is not type(self):
            raise TypeError(f"a position of type {self.kind} has no order with {other!r}")
        return self.compare(other)


def is_whole(value: object, least: int, most: int) -> bool:
    """True if a value is a whole number in a range; True and 1.0 are none, as their texts are others."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def order_of(at_least_left: bool, at_least_right: bool) -> int | None:
    """The order of two values of which is known whether each has all that the other has."""
    if at_least_left and at_least_right:
        return 0
    if at_least_left:
        return 1
    return -1 if at_least_right else None


@cache
def _any_of(characters: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(characters)}]*")


class Reader:
    """Reads a position's text from the left, and says where it is wrong.

    Args:
        kind: what is read, as a message calls it: "PostgreSQL LSN".
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        self.at = 0
        if len(text) > POSITION_CHARS_MAX:
            raise self.wrong(f"it is longer than {POSITION_CHARS_MAX} characters", POSITION_CHARS_MAX)

    @property
    def ended(self) -> bool:
        """True if nothing is left."""
        return self.at >= len(self.text)

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def skip(self, characters: str) -> None:
        """Pass over any of these."""
        found = _any_of(characters).match(self.text, self.at)
        assert found is not None, "none of them is a match as well"
        self.at = found.end()

    def take(self, character: str) -> bool:
        """True if this character comes next; it is passed over then."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> None:
        """Pass over this character.

        Raises:
            InvalidTextRepresentation: another one stands there.
        """
        if not self.take(character):
            raise self.wrong(f'"{character}" is expected')

    def run(self, characters: str) -> str:
        """All that comes next of these characters."""
        begin = self.at
        self.skip(characters)
        return self.text[begin : self.at]

    def number(self, what: str, least: int, most: int, *, base: int = 10) -> int:
        """A whole number without a sign.

        Raises:
            InvalidTextRepresentation: there is none, or it is out of its range.
        """
        begin = self.at
        digits = self.run("0123456789" if base == 10 else "0123456789abcdefABCDEF")
        if not digits:
            raise self.wrong(f"{what} is expected")
        # What is longer is out of range whatever it says, and is not worked out.
        value = int(digits, base) if len(digits) <= 20 else most + 1
        if not least <= value <= most:
            shown = f"{least} to {most}" if base == 10 else f"{least:X} to {most:X}"
            raise self.wrong(f"{what} is not from {shown}", begin)
        return value

    def end(self) -> None:
        """Nothing may be left.

        Raises:
            InvalidTextRepresentation.
        """
        if not self.ended:
            raise self.wrong("nothing more is expected")

    def wrong(self, why: str, at: int | None = None) -> InvalidTextRepresentation:
        """The error of what stands at a place, or next."""
        place = self.at if at is None else at
        found = f'"{self.text[place]}"' if place < len(self.text) else "the end"
        shown = self.text if len(self.text) <= 100 else self.text[:100] + "..."
        return InvalidTextRepresentation(
            f'invalid {self.kind}: "{shown}"',
            detail=f"At character {place + 1}, {found}: {why}.",
            position=place + 1,
        )


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


@dataclass(frozen=True, slots=True, order=False)
class PostgresLsn(Position):
    """A place in PostgreSQL's write-ahead log, as a number of 64 bits; fully ordered.

    >>> PostgresLsn.parse("16/B374D848").number
    97500059720
    >>> str(PostgresLsn(97500059720))
    '16/B374D848'
    """

    kind: ClassVar[str] = "postgres_lsn"

    number: int

    def __post_init__(self) -> None:
        if not is_whole(self.number, 0, UINT64_MAX):
            raise InvalidParameterValue(f"{self.number} is no PostgreSQL LSN: it is not from 0 to 2^64 - 1")

    @classmethod
    def parse(cls, text: str) -> PostgresLsn:
        """Read two halves of at most 8 hexadecimal digits, with a slash between them."""
        reader = Reader("PostgreSQL LSN", text)
        high = _half(reader)
        reader.expect("/")
        low = _half(reader)
        reader.end()
        return cls(high << 32 | low)

    def __str__(self) -> str:
        return f"{self.number >> 32:X}/{self.number & UINT32_MAX:X}"

    def compare(self, other: PostgresLsn) -> int | None:
        """The order of the numbers."""
        return (self.number > other.number) - (self.number < other.number)


def _half(reader: Reader) -> int:
    begin = reader.at
    half = reader.number("a hexadecimal number", 0, UINT32_MAX, base=16)
    if reader.at - begin > 8:
        raise reader.wrong("each half has at most 8 digits", begin + 8)
    return half


@dataclass(frozen=True, slots=True, order=False)
class PartitionLsns(Position):
    """ducktail's own position of a whole stream: partition -> the last LSN that was processed.

    One is at least another where it has each of its partitions, at the same LSN or a later one.

    >>> str(PartitionLsns.parse('{"1": 20, "0": 17}'))
    '{"0": 17, "1": 20}'
    """

    kind: ClassVar[str] = "ducktail"

    lsns: Mapping[int, int]

    def __post_init__(self) -> None:
        for partition, lsn in self.lsns.items():
            if not is_whole(partition, 0, PARTITION_MAX):
                raise InvalidParameterValue(f"{partition!r} is no partition")
            if not is_whole(lsn, 0, LSN_MAX):
                raise InvalidParameterValue(f"{lsn!r} is no LSN: it is not from 0 to 2^63 - 1")
        object.__setattr__(self, "lsns", MappingProxyType(dict(sorted(self.lsns.items()))))

    @classmethod
    def parse(cls, text: str) -> PartitionLsns:
        """Read a JSON object of LSNs by partition."""
        reader = Reader("position", text)
        if _WHOLE.fullmatch(text):
            # As it always is. Each commit of offsets may come with one, so it is read at once.
            pairs = _MEMBERS.findall(text)
            found = {int(partition): int(lsn) for partition, lsn in pairs}
            if len(found) == len(pairs) and max(found.values()) <= LSN_MAX:
                return cls(found)
        lsns: dict[int, int] = {}
        reader.skip(BLANKS)
        reader.expect("{")
        reader.skip(BLANKS)
        while not reader.take("}"):
            if lsns:
                reader.expect(",")
                reader.skip(BLANKS)
            begin = reader.at
            reader.expect('"')
            partition = reader.number("a partition's number", 0, PARTITION_MAX)
            reader.expect('"')
            if partition in lsns:
                raise reader.wrong(f"partition {partition} stands there twice", begin)
            reader.skip(BLANKS)
            reader.expect(":")
            reader.skip(BLANKS)
            begin = reader.at
            lsns[partition] = reader.number("an LSN", 0, LSN_MAX)
            if reader.at - begin > 1 and text[begin] == "0":
                raise reader.wrong("a number does not begin with 0", begin)
            reader.skip(BLANKS)
        reader.skip(BLANKS)
        reader.end()
        return cls(lsns)

    def __str__(self) -> str:
        return json.dumps({str(partition): lsn for partition, lsn in self.lsns.items()})

    def __hash__(self) -> int:
        return hash(tuple(self.lsns.items()))

    def compare(self, other: PartitionLsns) -> int | None:
        """The partial order, partition by partition."""
        return order_of(_has(self.lsns, other.lsns), _has(other.lsns, self.lsns))


def _has(left: Mapping[int, int], right: Mapping[int, int]) -> bool:
    return all(partition in left and left[partition] >= lsn for partition, lsn in right.items())
