"""At a topic's home: what members hold for reads and commits that other nodes do."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from ...engine.groups.assigned import Coordinated
from ...engine.groups.member import CommitRight, MemberHold

# Over all sessions and restarts: what an ended connection was given means nothing on the next one.
_NUMBERS = itertools.count(secrets.randbits(48))


class Holds:
    """What is held by reads and commits of one session, by number; it ends with that."""

    def __init__(self, members: Coordinated) -> None:
        self._members = members
        self._held: dict[int, tuple[MemberHold, CommitRight | None]] = {}

    def __iter__(self) -> Iterator[MemberHold]:
        """What is held now."""
        return iter([hold for hold, _ in self._held.values()])

    def add(self, hold: MemberHold, commit: CommitRight | None = None) -> int:
        """A read or a commit begins: its number."""
        number = next(_NUMBERS)
        self._held[number] = hold, commit
        return number

    def get(self, number: int) -> tuple[MemberHold, CommitRight | None] | None:
        """What was added; None where it has ended."""
        return self._held.get(number)

    def end(self, number: int) -> None:
        """It is over."""
        found = self._held.pop(number, None)
        if found is not None:
            self._members.end(found[0])

    def close(self) -> None:
        """All of them are."""
        for number in list(self._held):
            self.end(number)
