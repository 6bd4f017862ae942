"""The position of a reader: for each partition, the LSN up to which it has all events.

Events of a stream arrive in LSN order over all its partitions. So after event n a reader has every event up
to n, in each partition, and one number is the position in all of them. A reader that begins at a map of LSNs
is ahead of that number in some partitions for a while. A topic with partitions on several nodes has no such
order: its position is a map.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.errors import InvalidParameterValue
from ...sql.language.position_text import format_positions, parse_after


class Position:
    """A position that moves forward.

    Args:
        base: the LSN up to which the reader has all events of each partition.
        ahead: partition -> LSN, where it is above `base`.
    """

    __slots__ = ("ahead", "base")

    def __init__(self, base: int = 0, ahead: Mapping[int, int] | None = None) -> None:
        self.base = base
        self.ahead = {partition: lsn for partition, lsn in (ahead or {}).items() if lsn > base}

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position in a text: an LSN, or a JSON object of LSNs by partition.

        >>> Position.parse("17").text(2), Position.parse('{"1": 20}').text(2)
        ('17', '{"0": 0, "1": 20}')

        Raises:
            InvalidTextRepresentation: the text is no position.
        """
        found = parse_after(text)
        return cls(found) if isinstance(found, int) else cls(0, found)

    def check(self, partitions: int) -> None:
        """Refuse a position of partitions that the stream does not have.

        Raises:
            InvalidParameterValue: it names one.
        """
        for partition in self.ahead:
            if partition >= partitions:
                raise InvalidParameterValue(f"partition {partition} does not exist: there are {partitions}")

    def copy(self) -> Position:
        """The same position, which moves on its own."""
        return Position(self.base, self.ahead)

    def of(self, partition: int) -> int:
        """The LSN up to which the reader has all events of a partition."""
        return max(self.base, self.ahead.get(partition, 0))

    def reach(self, lsn: int) -> None:
        """Move past all events up to an LSN, in every partition."""
        if lsn > self.base:
            self.base = lsn
            if self.ahead:
                self.ahead = {partition: at for partition, at in self.ahead.items() if at > lsn}

    def reach_in(self, partition: int, lsn: int) -> None:
        """Move past all events of one partition up to an LSN."""
        if lsn > self.of(partition):
            self.ahead[partition] = lsn

    def covers(self, other: Position) -> bool:
        """True if a reader at this position has every event that one at the other position has.

        >>> Position(5).covers(Position(3, {1: 9})), Position(9).covers(Position(3, {1: 9}))
        (False, True)
        """
        return self.base >= other.base and all(self.of(p) >= lsn for p, lsn in other.ahead.items())

    def text(self, partitions: int) -> str:
        """The position in the form that AFTER takes; of a stream with so many partitions."""
        if not self.ahead:
            return str(self.base)
        return format_positions({partition: self.of(partition) for partition in range(partitions)})
