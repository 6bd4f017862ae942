"""A rule of a placement: which node owns which partitions of the topics whose names it fits.

The first rule of the file that fits a topic's name counts. A rule for one topic says where each of its
partitions is, and no other partition has an owner. A rule with `*` is for topics of any size: it deals its
places round, so that partition p lies where its place p % places does. Source: docs/cluster.md, "The file".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..quoting import fold
from ..streams.streams import PARTITIONS_MAX

_RANGE = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")


@dataclass(frozen=True, slots=True)
class Rule:
    """See the head of the file.

    Args:
        name: schema and topic, in which `*` stands for any characters: 'main.orders', 'main.*', '*'.
        owners: the names of the nodes, by place.
    """

    name: str
    owners: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.name and 1 <= len(self.owners) <= PARTITIONS_MAX

    @property
    def deals(self) -> bool:
        """Whether it is for topics of any size."""
        return "*" in self.name

    def fits(self, key: str) -> bool:
        """Whether it is for a topic, `schema.topic` in small letters, or for all of a name with `*`."""
        pattern = ".*".join(map(re.escape, fold(self.name).split("*")))
        return re.fullmatch(pattern, key, re.DOTALL) is not None

    def owner(self, partition: int) -> str | None:
        """The name of the node that owns a partition; None: no node does."""
        if self.deals:
            return self.owners[partition % len(self.owners)]
        return self.owners[partition] if partition < len(self.owners) else None

    def partitions_of(self, node: str) -> tuple[int, ...]:
        """The places of a node."""
        return tuple(place for place, owner in enumerate(self.owners) if owner == node)


def full_name(name: str) -> str:
    """A rule's name with its schema: a topic without one is of schema main; `*` alone is every topic."""
    return name if "." in name or name == "*" else f"main.{name}"


def read_ranges(text: str) -> list[int]:
    """The partitions that a text like '0-3, 8' names, in its order.

    Raises:
        ValueError: it is none, or names one beyond what a topic may have.
    """
    numbers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"not partitions like '0-3, 8': {text!r}")
        first = int(found[1])
        last = first if found[2] is None else int(found[2])
        if last < first:
            raise ValueError(f"a range that goes down: {part.strip()!r}")
        if last >= PARTITIONS_MAX:
            raise ValueError(
                f"a topic has at most {PARTITIONS_MAX} partitions, 0 to {PARTITIONS_MAX - 1}: "
                f"{part.strip()!r}"
            )
        numbers.extend(range(first, last + 1))
    return numbers


def ranges_text(numbers: Iterable[int]) -> str:
    """The other way round: sorted, as ranges."""
    parts: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
