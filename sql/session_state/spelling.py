"""The spelling of a statement within another one: the query of DECLARE, the statement of PREPARE.

A gateway rewrites a client's text before the session parses it; a text within a statement is cut out by the
session, and is rewritten by the same rules then. In process a text is DuckDB's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..results.results import ResultColumn


class Spelling(Protocol):
    """A text as a client sent it, and as the session runs it."""

    @property
    def rewritten(self) -> str:
        """The text that the session runs."""

    def columns(self, found: Sequence[ResultColumn] | None) -> Sequence[ResultColumn] | None:
        """The columns of its rows as the client sees them."""

    def position(self, at: int | None) -> int | None:
        """The position in the sent text of a position in the rewritten one; None if it has none."""


@dataclass(frozen=True, slots=True)
class AsWritten:
    """A text that is run as it was sent."""

    rewritten: str

    def columns(self, found: Sequence[ResultColumn] | None) -> Sequence[ResultColumn] | None:
        """The columns themselves."""
        return found

    def position(self, at: int | None) -> int | None:
        """The position itself."""
        return at


Speller = Callable[[str], Spelling]
