"""The types of positions by name, and a position that is any text.

Source: docs/design/checkpoints.md, "Positions".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import InvalidParameterValue
from .gtid import MariadbGtids, MysqlGtids
from .positions import BinlogPosition, PartitionLsns, Position, PostgresLsn, Reader


@dataclass(frozen=True, slots=True, order=False)
class CustomPosition(Position):
    """A position that only its source can read; two have no order unless they are the same."""

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
        """0 for the same text."""
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
    """Read a position of a type that is given by name.

    >>> parse_position("postgres_lsn", "0/1234ABCD")
    PostgresLsn(number=305441741)

    Raises:
        InvalidParameterValue: there is no such type. InvalidTextRepresentation.
    """
    if kind not in KINDS:
        raise InvalidParameterValue(
            f'there are no positions of type "{kind}"', hint=f"The types are {', '.join(KINDS)}."
        )
    return KINDS[kind].parse(text)
