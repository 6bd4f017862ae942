"""Positions that are log sequence numbers: PostgreSQL's, and ducktail's own, one for each partition.

Source: PostgreSQL, "pg_lsn Type"; docs/sql.md, "Committing".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from ..errors import InvalidParameterValue
from .position import UINT32_MAX, UINT64_MAX, Position, Reader, is_whole, order_of

LSN_MAX = (1 << 63) - 1
# Nine digits are more partitions than any stream has, and never a number that overflows.
PARTITION_MAX = 10**9 - 1
_BLANK = " \t\r\n"
_MEMBER = r'[ \t\r\n]*"([0-9]{1,9})"[ \t\r\n]*:[ \t\r\n]*(0|[1-9][0-9]{0,18})[ \t\r\n]*'
_MEMBERS = re.compile(_MEMBER)
_WHOLE = re.compile(rf"[ \t\r\n]*\{{(?:{_MEMBER}(?:,{_MEMBER})*)\}}[ \t\r\n]*")


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
        reader.skip(_BLANK)
        reader.expect("{")
        reader.skip(_BLANK)
        while not reader.take("}"):
            if lsns:
                reader.expect(",")
                reader.skip(_BLANK)
            begin = reader.at
            reader.expect('"')
            partition = reader.number("a partition's number", 0, PARTITION_MAX)
            reader.expect('"')
            if partition in lsns:
                raise reader.wrong(f"partition {partition} stands there twice", begin)
            reader.skip(_BLANK)
            reader.expect(":")
            reader.skip(_BLANK)
            begin = reader.at
            lsns[partition] = reader.number("an LSN", 0, LSN_MAX)
            if reader.at - begin > 1 and text[begin] == "0":
                raise reader.wrong("a number does not begin with 0", begin)
            reader.skip(_BLANK)
        reader.skip(_BLANK)
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
