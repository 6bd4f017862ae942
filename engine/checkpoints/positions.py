"""Positions: typed points up to which a source was read, with a text form and, for most types, an order.

A position with several counters (a set of GTIDs, an LSN for each partition) has a partial order: a position
is at or before another if none of its counters is ahead. Two positions that are each ahead in some counter
have no order: `compare` returns None, and <, <=, > and >= are all false, as for Python's sets. Positions of
two types cannot be compared (TypeError).

The types are a place in a binary log of MySQL or MariaDB (`mysql-bin.000003:12345`), PostgreSQL's log
sequence number, ducktail's LSN for each partition, sets of global transaction ids, and any other text.
MySQL's GTIDs are sets of numbers by server, in intervals: `3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7`.
MariaDB's have for each replication domain the last transaction, by server and number: `0-1-42,1-1-7`.

Source: docs/design/checkpoints.md, "Positions"; MySQL Reference Manual, "The Binary Log", "GTID Format and
Storage"; MariaDB, "Global Transaction ID"; PostgreSQL, "pg_lsn Type"; docs/sql.md, "Committing".
"""

from __future__ import annotations

import json
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import ClassVar, Self

from ..errors import InvalidParameterValue, InvalidTextRepresentation

UINT32_MAX = (1 << 32) - 1
UINT64_MAX = (1 << 64) - 1
# Enough for the GTIDs of a server with thousands of gaps; a map of 1,024 partitions has some 30 KB.
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
    """A position in a source. Subclasses are frozen values, validated at construction."""

    __slots__ = ()

    # The type's name in stored and displayed positions.
    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read a position's text.

        Raises:
            InvalidTextRepresentation: the text is malformed. Its `position` is the wrong character of `text`,
                from 1, and its DETAIL the reason.
        """

    @abstractmethod
    def __str__(self) -> str:
        """The canonical text; `parse` reads it back."""

    @abstractmethod
    def compare(self, other: Self) -> int | None:
        """-1 if this is before `other`, 0 if equal, 1 if after, None without an order."""

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
    """True if a value is an integer in a range; True and 1.0 are not, because their texts differ."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def order_of(at_least_left: bool, at_least_right: bool) -> int | None:
    """The order of two values, given for each if it includes all of the other."""
    if at_least_left and at_least_right:
        return 0
    if at_least_left:
        return 1
    return -1 if at_least_right else None


@cache
def _any_of(characters: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(characters)}]*")


class Reader:
    """Reads a position's text from the left, and reports errors with their position.

    Args:
        kind: the type in messages: "PostgreSQL LSN".
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        self.at = 0
        if len(text) > POSITION_CHARS_MAX:
            raise self.wrong(f"it is longer than {POSITION_CHARS_MAX} characters", POSITION_CHARS_MAX)

    @property
    def ended(self) -> bool:
        """True if no text is left."""
        return self.at >= len(self.text)

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def skip(self, characters: str) -> None:
        """Skip any of these characters."""
        found = _any_of(characters).match(self.text, self.at)
        assert found is not None, "none of them is a match as well"
        self.at = found.end()

    def take(self, character: str) -> bool:
        """True if this character is next; it is then consumed."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> None:
        """Consume this character.

        Raises:
            InvalidTextRepresentation: another character is next.
        """
        if not self.take(character):
            raise self.wrong(f'"{character}" is expected')

    def run(self, characters: str) -> str:
        """The longest run of these characters that is next."""
        begin = self.at
        self.skip(characters)
        return self.text[begin : self.at]

    def number(self, what: str, least: int, most: int, *, base: int = 10) -> int:
        """An integer without a sign.

        Raises:
            InvalidTextRepresentation: no number follows, or it is out of range.
        """
        begin = self.at
        digits = self.run("0123456789" if base == 10 else "0123456789abcdefABCDEF")
        if not digits:
            raise self.wrong(f"{what} is expected")
        # A longer text is out of range in any case, and is not converted.
        value = int(digits, base) if len(digits) <= 20 else most + 1
        if not least <= value <= most:
            shown = f"{least} to {most}" if base == 10 else f"{least:X} to {most:X}"
            raise self.wrong(f"{what} is not from {shown}", begin)
        return value

    def end(self) -> None:
        """Check that no text is left.

        Raises:
            InvalidTextRepresentation: some text is left.
        """
        if not self.ended:
            raise self.wrong("nothing more is expected")

    def wrong(self, why: str, at: int | None = None) -> InvalidTextRepresentation:
        """The error for the character at a position, or for the next one."""
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
    """A byte position in a numbered file; ordered among files of one base name.

    Args:
        base: the files' name without its number: "mysql-bin".
        file_number: the number of the file, at least 6 digits in its name.
        offset: the byte position in the file.

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
        """Read a file's name, a colon and a byte position."""
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
        """The order of file and byte position; None between files of two base names."""
        if self.base != other.base:
            return None
        left, right = (self.file_number, self.offset), (other.file_number, other.offset)
        return (left > right) - (left < right)


def _unfit(text: str) -> bool:
    return any(character in ":/\\" or not character.isprintable() for character in text)


@dataclass(frozen=True, slots=True, order=False)
class PostgresLsn(Position):
    """A position in PostgreSQL's write-ahead log, a number of 64 bits; fully ordered.

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
        """Read two halves of at most 8 hexadecimal digits, separated by a slash."""
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
    """ducktail's position in a whole stream: partition -> the last processed LSN.

    A position is at or after another if it has each of its partitions, at the same LSN or a later one.

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
            # The usual form. Each commit of offsets may have one, so it is read directly.
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


# MySQL's GNO_END.
NUMBER_MAX = (1 << 63) - 2
TAG_CHARS_MAX = 32
_TAG_FIRST = string.ascii_letters + "_"
_TAG = _TAG_FIRST + string.digits
_UUID_PARTS = (8, 4, 4, 4, 12)
_SOURCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:([a-z_][a-z0-9_]{0,31})?")

Interval = tuple[int, int]  # both ends included
Source = tuple[str, str]  # uuid, tag; "" for no tag


@dataclass(frozen=True, slots=True, order=False)
class MysqlGtids(Position):
    """A set of MySQL's GTIDs; one GTID is a set of one. Sets are ordered by inclusion.

    Args:
        intervals: (server's uuid, tag) -> intervals of numbers, merged and in order.

    >>> str(MysqlGtids.parse("3E11FA47-71CA-11E1-9E33-C80AA9429562:1-3:7:4-5"))
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7'
    """

    kind: ClassVar[str] = "mysql_gtid"

    intervals: Mapping[Source, tuple[Interval, ...]]

    def __post_init__(self) -> None:
        for source in self.intervals:
            if _SOURCE.fullmatch(":".join(source)) is None:
                raise InvalidParameterValue(f"{source!r} is no uuid of a server with a tag or without")
        joined = {source: _joined(found) for source, found in sorted(self.intervals.items()) if found}
        object.__setattr__(self, "intervals", MappingProxyType(joined))

    @classmethod
    def parse(cls, text: str) -> MysqlGtids:
        """Read `uuid:interval[:interval ...]`, separated by commas.

        An interval may also follow a comma (`uuid:1-5,7`), and a tag may precede intervals (`uuid:tag:1-5`),
        as in MySQL from 8.3 on. The empty text is the empty set.
        """
        reader = Reader("MySQL GTID set", text)
        found: dict[Source, list[Interval]] = {}
        uuid = tag = ""
        reader.skip(BLANKS)
        while not reader.ended:
            if uuid and _is_interval(reader):
                found[uuid, tag].append(_interval(reader))
            else:
                uuid, tag = _uuid(reader), ""
                reader.skip(BLANKS)
                reader.expect(":")
                tag = _tagged(reader, found, uuid, tag)
            while reader.take(":"):
                tag = _tagged(reader, found, uuid, tag)
            if not _another(reader, "a server's uuid or an interval is expected"):
                break
        return cls({source: tuple(intervals) for source, intervals in found.items()})

    def __str__(self) -> str:
        texts: dict[str, str] = {}
        for (uuid, tag), intervals in self.intervals.items():
            numbers = ":".join(str(a) if a == b else f"{a}-{b}" for a, b in intervals)
            texts[uuid] = f"{texts.get(uuid, uuid)}:{tag + ':' if tag else ''}{numbers}"
        return ",".join(texts.values())

    def __hash__(self) -> int:
        return hash(tuple(self.intervals.items()))

    def __contains__(self, other: object) -> bool:
        """True if this set includes another one."""
        if not isinstance(other, MysqlGtids):
            return False
        mine = self.intervals
        return all(_within(found, mine.get(source, ())) for source, found in other.intervals.items())

    def compare(self, other: MysqlGtids) -> int | None:
        """The order of two sets by inclusion; None if neither includes the other."""
        return order_of(other in self, self in other)


def _another(reader: Reader, expected: str) -> bool:
    """True if the text continues with a comma and another member.

    Args:
        expected: the expected member, for the error if nothing follows the comma.
    """
    reader.skip(BLANKS)
    if reader.ended:
        return False
    reader.expect(",")
    reader.skip(BLANKS)
    if reader.ended:
        raise reader.wrong(expected)
    return True


def _joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Intervals in order, with adjacent ones merged."""
    found: list[Interval] = []
    for first, last in sorted(intervals):
        if not (is_whole(first, 1, NUMBER_MAX) and is_whole(last, first, NUMBER_MAX)):
            raise InvalidParameterValue(f"{first}-{last} is no interval of transaction numbers")
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def _within(inner: tuple[Interval, ...], outer: tuple[Interval, ...]) -> bool:
    """True if each of some merged intervals is inside one of the others; both are in order."""
    place = 0
    for first, last in inner:
        while place < len(outer) and outer[place][1] < first:
            place += 1
        if place == len(outer) or not (outer[place][0] <= first and last <= outer[place][1]):
            return False
    return True


def _uuid(reader: Reader) -> str:
    begin = reader.at
    for number, length in enumerate(_UUID_PARTS):
        if number:
            reader.expect("-")
        for _ in range(length):
            if reader.peek() not in string.hexdigits or reader.ended:
                raise reader.wrong("a hexadecimal digit of a server's uuid is expected")
            reader.at += 1
    return reader.text[begin : reader.at].lower()


def _is_interval(reader: Reader) -> bool:
    """True if digits follow that do not begin a uuid (8 digits and a dash, then 4 and a dash)."""
    text, at = reader.text, reader.at
    end = at
    while end < len(text) and text[end] in string.digits:
        end += 1
    is_uuid = text[end : end + 1] in tuple(string.ascii_letters) or (
        end - at == _UUID_PARTS[0] and text[end + 5 : end + 6] == "-" and text[end : end + 1] == "-"
    )
    return end > at and not is_uuid


def _tagged(reader: Reader, found: dict[Source, list[Interval]], uuid: str, tag: str) -> str:
    """Read an interval, with an optional tag before it; returns the tag that now applies."""
    reader.skip(BLANKS)
    if reader.peek() and reader.peek() in _TAG_FIRST:
        begin = reader.at
        tag = reader.run(_TAG).lower()
        if len(tag) > TAG_CHARS_MAX:
            raise reader.wrong(f"a tag has at most {TAG_CHARS_MAX} characters", begin + TAG_CHARS_MAX)
        reader.skip(BLANKS)
        reader.expect(":")
        reader.skip(BLANKS)
    found.setdefault((uuid, tag), []).append(_interval(reader))
    reader.skip(BLANKS)
    return tag


def _interval(reader: Reader) -> Interval:
    begin = reader.at
    first = reader.number("a transaction's number", 1, NUMBER_MAX)
    reader.skip(BLANKS)
    if not reader.take("-"):
        return first, first
    reader.skip(BLANKS)
    last = reader.number("a transaction's number", 1, NUMBER_MAX)
    if last < first:
        raise reader.wrong(f"the interval ends at {last}, before it begins", begin)
    return first, last


@dataclass(frozen=True, slots=True, order=False)
class MariadbGtids(Position):
    """The last transaction of each MariaDB replication domain; one GTID is a list of one.

    A position is at or after another if it has each of its domains, with the same transaction or a higher
    number. Equal numbers of two servers have no order: the histories have diverged.

    Args:
        domains: domain -> (server, number).

    >>> str(MariadbGtids.parse("1-1-7, 0-1-42"))
    '0-1-42,1-1-7'
    """

    kind: ClassVar[str] = "mariadb_gtid"

    domains: Mapping[int, tuple[int, int]]

    def __post_init__(self) -> None:
        for domain, (server, number) in self.domains.items():
            fits = is_whole(domain, 0, UINT32_MAX) and is_whole(server, 0, UINT32_MAX)
            if not fits or not is_whole(number, 0, UINT64_MAX):
                raise InvalidParameterValue(f"{domain}-{server}-{number} is no MariaDB GTID")
        object.__setattr__(self, "domains", MappingProxyType(dict(sorted(self.domains.items()))))

    @classmethod
    def parse(cls, text: str) -> MariadbGtids:
        """Read `domain-server-number`, separated by commas; the empty text has no domains."""
        reader = Reader("MariaDB GTID list", text)
        domains: dict[int, tuple[int, int]] = {}
        reader.skip(BLANKS)
        while not reader.ended:
            begin = reader.at
            domain = reader.number("a domain", 0, UINT32_MAX)
            reader.expect("-")
            server = reader.number("a server's id", 0, UINT32_MAX)
            reader.expect("-")
            if domain in domains:
                raise reader.wrong(f"domain {domain} stands there twice", begin)
            domains[domain] = (server, reader.number("a transaction's number", 0, UINT64_MAX))
            if not _another(reader, "a domain is expected"):
                break
        return cls(domains)

    def __str__(self) -> str:
        found = self.domains.items()
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in found)

    def __hash__(self) -> int:
        return hash(tuple(self.domains.items()))

    def compare(self, other: MariadbGtids) -> int | None:
        """The partial order, domain by domain."""
        return order_of(_reaches(self.domains, other.domains), _reaches(other.domains, self.domains))


def _reaches(left: Mapping[int, tuple[int, int]], right: Mapping[int, tuple[int, int]]) -> bool:
    return all(
        domain in left and (left[domain] == place or left[domain][1] > place[1])
        for domain, place in right.items()
    )


@dataclass(frozen=True, slots=True, order=False)
class CustomPosition(Position):
    """A position that only its source understands; two different ones have no order."""

    kind: ClassVar[str] = "custom"

    text: str

    def __post_init__(self) -> None:
        _check(self.text)

    @classmethod
    def parse(cls, text: str) -> CustomPosition:
        """Any text without the character 0."""
        return cls(text)

    def __str__(self) -> str:
        return self.text

    def compare(self, other: CustomPosition) -> int | None:
        """0 for the same text, else None."""
        return 0 if self.text == other.text else None


def _check(text: str) -> None:
    reader = Reader("position", text)
    if "\0" in text:
        raise reader.wrong("the character 0 cannot stand in a text", text.index("\0"))
    for place, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise reader.wrong("half of a surrogate pair is no character", place)


KINDS: dict[str, type[Position]] = {
    kind.kind: kind
    for kind in (PostgresLsn, BinlogPosition, MysqlGtids, MariadbGtids, PartitionLsns, CustomPosition)
}


def parse_position(kind: str, text: str) -> Position:
    """Read a position of a type given by name.

    >>> parse_position("postgres_lsn", "0/1234ABCD")
    PostgresLsn(number=305441741)

    Raises:
        InvalidParameterValue: no such type exists.
        InvalidTextRepresentation: the text is malformed.
    """
    if kind not in KINDS:
        raise InvalidParameterValue(
            f'there are no positions of type "{kind}"', hint=f"The types are {', '.join(KINDS)}."
        )
    return KINDS[kind].parse(text)
