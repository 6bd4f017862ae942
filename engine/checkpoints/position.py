"""A position: how far a source was read, typed, as text, and in an order where its type has one.

A position of several counters at once (a set of GTIDs, an LSN for each partition) has a partial order:
one is before another where nothing in it is behind. Two that are each ahead somewhere have no order:
`compare` answers None, and <, <=, > and >= are all false, as they are for Python's sets. Positions of two
types cannot be compared (TypeError).

Source: docs/design/checkpoints.md, "Positions".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cache
from typing import ClassVar, Self

from ..errors import InvalidTextRepresentation

UINT32_MAX = (1 << 32) - 1
UINT64_MAX = (1 << 64) - 1
# A set of GTIDs of a server with thousands of gaps; a map of 1,024 partitions has some 30 KB.
POSITION_CHARS_MAX = 1 << 20


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
            InvalidTextRepresentation: 22P02; its `position` is the character of `text`, from 1, that is
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
    """Whether a value is a whole number in a range; True and 1.0 are none, as their texts are others."""
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
        """Whether nothing is left."""
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
        """Whether this character comes next; it is passed over then."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> None:
        """Pass over this character.

        Raises:
            InvalidTextRepresentation: 22P02, another one stands there.
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
            InvalidTextRepresentation: 22P02, there is none, or it is out of its range.
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
            InvalidTextRepresentation: 22P02.
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
