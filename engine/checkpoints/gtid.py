"""Positions that are sets of global transaction ids: MySQL's and MariaDB's are two things.

MySQL's are sets of numbers by server, in intervals: `3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7`. MariaDB's
has for each replication domain the last transaction, by server and number: `0-1-42,1-1-7`.

Source: MySQL Reference Manual, "GTID Format and Storage"; MariaDB, "Global Transaction ID".
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from ..errors import InvalidParameterValue
from .positions import BLANKS, UINT32_MAX, UINT64_MAX, Position, Reader, is_whole, order_of

# MySQL's GNO_END.
NUMBER_MAX = (1 << 63) - 2
TAG_CHARS_MAX = 32
_TAG_FIRST = string.ascii_letters + "_"
_TAG = _TAG_FIRST + string.digits
_UUID_PARTS = (8, 4, 4, 4, 12)
_SOURCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:([a-z_][a-z0-9_]{0,31})?")

Interval = tuple[int, int]  # both ends are in it
Source = tuple[str, str]  # uuid, tag; "" is no tag


@dataclass(frozen=True, slots=True, order=False)
class MysqlGtids(Position):
    """A set of MySQL's GTIDs; one GTID is a set of one. Ordered by what they contain.

    Args:
        intervals: (server's uuid, tag) -> the numbers, joined and in order.

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
        """Read `uuid:interval[:interval ...]`, several with commas between them.

        An interval may also follow a comma (`uuid:1-5,7`), and a tag may stand before intervals
        (`uuid:tag:1-5`), as MySQL has it from 8.3 on. No text is the empty set.
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
        """True if all of another set are in this one."""
        if not isinstance(other, MysqlGtids):
            return False
        mine = self.intervals
        return all(_within(found, mine.get(source, ())) for source, found in other.intervals.items())

    def compare(self, other: MysqlGtids) -> int | None:
        """The order of two sets by which of them contains the other; None where neither does."""
        return order_of(other in self, self in other)


def _another(reader: Reader, expected: str) -> bool:
    """True if the text goes on with a comma and another member.

    Args:
        expected: what is told where nothing follows the comma.
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
    """Intervals in order, those that touch each other made one."""
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
    """True if each of some joined intervals lies in one of others, which are in order as well."""
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
    """True if digits come that are no uuid: its first part has 8 digits and a dash, then 4 and a dash."""
    text, at = reader.text, reader.at
    end = at
    while end < len(text) and text[end] in string.digits:
        end += 1
    is_uuid = text[end : end + 1] in tuple(string.ascii_letters) or (
        end - at == _UUID_PARTS[0] and text[end + 5 : end + 6] == "-" and text[end : end + 1] == "-"
    )
    return end > at and not is_uuid


def _tagged(reader: Reader, found: dict[Source, list[Interval]], uuid: str, tag: str) -> str:
    """The part between two colons: a tag, for the part behind it, or an interval."""
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
    """The last transaction of each of MariaDB's replication domains; one GTID is a list of one.

    One is at least another where it has each of its domains, with the same transaction or one with a
    higher number. The same number of two servers is no order: histories have parted.

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
        """Read `domain-server-number`, several with commas between them; no text is no domain."""
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
