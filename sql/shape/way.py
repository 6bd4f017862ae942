"""What the walk from a scan up through its query has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from ..language.nodes import LIST_END
from ..language.statements import Number, Scan
from .columns import Output, Source
from .pruning import Fact


@dataclass(slots=True)
class Level:
    """A row-wise select on the way.

    Args:
        point: a place in the text inside its FROM clause.
        followed: whether the hidden column can be carried through it.
        source: what it reads; `given` what it gives.
    """

    select: exp.Select
    point: int
    followed: bool
    source: Source
    given: Source
    limit: Number | None

    @property
    def list_end(self) -> int:
        """Where the select list ends in the text, from 0."""
        return int(self.select.meta[LIST_END])


@dataclass(slots=True)
class Way:
    """What was found on the way so far.

    Args:
        base: the scan's own columns, None where they are not known.
        transactions: whether LIMIT n TRANSACTIONS stood where it bounds the scan; `misplaced` says why it
            cannot, where it stood otherwise.
    """

    scan: Scan
    base: tuple[Output, ...] | None = None
    levels: list[Level] = field(default_factory=list)
    limits: list[Number] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    rowwise: bool = True
    followed: bool = True
    unchanged: bool = False
    unit: int | None = None  # how many of the levels are the unit
    limited: bool = False  # a LIMIT stood on the way
    reason: str = ""
    transactions: bool = False
    misplaced: str = ""

    @property
    def pairs(self) -> bool:
        """Whether two rows of the scan may have one LSN."""
        return self.scan.envelope != "json"

    def none(self, reason: str) -> None:
        """There is no read position; the first reason is the one to tell."""
        self.reason = self.reason or reason
        self.rowwise = False

    def end_rows(self) -> None:
        """What comes is no longer row-wise; what a LIMIT cut below is the unit."""
        if self.rowwise and self.limited:
            cut = [index for index, level in enumerate(self.levels) if level.limit is not None]
            self.unit = cut[-1] + 1
        self.rowwise = False
