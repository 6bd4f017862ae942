"""The values that describe a query's use of a stream scan; the rules are in shape.py."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from sqlglot import exp

from ..language.dialect import LIST_END
from ..language.statements import Number, Scan
from .columns import ColumnSource, Output
from .pruning import Fact


@dataclass(slots=True)
class Level:
    """One row-wise select between the scan and the answer.

    Args:
        point: a position in the text inside its FROM clause.
        followed: True if the hidden column can be carried through it.
        source, given: the relation that it reads, and its result.
    """

    select: exp.Select
    point: int
    followed: bool
    source: ColumnSource
    given: ColumnSource
    limit: Number | None

    @property
    def list_end(self) -> int:
        """The end of the select list in the text, from 0."""
        return int(self.select.meta[LIST_END])


@dataclass(slots=True)
class WalkState:
    """The findings of the walk from a scan up through its query, so far.

    Args:
        base: the scan's own columns; None if unknown.
        transactions: LIMIT n TRANSACTIONS bounds the scan; `misplaced` has the reason if it is elsewhere and
            cannot.
    """

    scan: Scan
    base: tuple[Output, ...] | None = None
    levels: list[Level] = field(default_factory=list)
    limits: list[Number] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    rowwise: bool = True
    followed: bool = True
    unchanged: bool = False
    unit: int | None = None  # the number of levels that form the unit
    limited: bool = False  # True after a LIMIT
    reason: str = ""
    transactions: bool = False
    misplaced: str = ""

    @property
    def pairs(self) -> bool:
        """True if two rows of the scan may have one LSN."""
        return self.scan.envelope != "json"

    def none(self, reason: str) -> None:
        """Record that there is no read position; the first reason is reported."""
        self.reason = self.reason or reason
        self.rowwise = False

    def end_rows(self) -> None:
        """Mark the rows above as no longer row-wise; a query that a LIMIT cut below becomes the unit."""
        if self.rowwise and self.limited:
            cut = [index for index, level in enumerate(self.levels) if level.limit is not None]
            self.unit = cut[-1] + 1
        self.rowwise = False


HIDDEN_LSN = "__ducktail_lsn"


class ReadKind(enum.Enum):
    """The rows of the read-position table."""

    ROWWISE = "rowwise"
    WHOLE = "whole"
    UNCHANGED = "unchanged"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Edit:
    """An insertion of `text` into the user's text at the character `offset`, from 0.

    Args:
        sorts: it restores the order of the LSNs, and is omitted if DuckDB's plan keeps it.
    """

    offset: int
    text: str
    sorts: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """A read whose rows are unchanged events, so that ready rows can be sent.

    Args:
        columns: event column and name in the answer, in order; None for all columns as they are.
        limit: the number of rows; None for all.
    """

    columns: tuple[tuple[str, str], ...] | None
    limit: Number | None


@dataclass(frozen=True, slots=True)
class RowCut:
    """A LIMIT clause over rows of which two may belong to one update.

    DuckDB is asked for one more row, and the session cuts the rows so that no update is parted.

    Args:
        start, end: its span in the user's text.
        limit: the number of rows.
    """

    start: int
    end: int
    limit: Number


@dataclass(frozen=True, slots=True)
class Unit:
    """A row-wise query with a LIMIT inside a query that is not row-wise.

    Args:
        start, end: its span in the user's text, without parentheses around it.
        edits: the edits that carry the hidden column to its select list; offsets in the user's text.
        limits, cuts: see Shape.
    """

    start: int
    end: int
    edits: tuple[Edit, ...]
    limits: tuple[Number, ...]
    cuts: tuple[RowCut, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """The use that a query makes of one scan.

    Args:
        scan: the scan.
        kind: the row of the table.
        reason: for NONE, why there is no read position, as an error's detail without its full stop.
        edits: the edits that carry the hidden column to the answer, and sort by it where DuckDB may change
            the order; offsets in the user's text. For ROWWISE, and for such a query without a group.
        plain: ready rows answer it; set for reads without a group too.
        facts: the conditions of WHERE on the scan's partition, lsn and commit_time.
        unit: for WHOLE, the inner query whose rows the position follows.
        limits: the LIMITs above the scan, constants and parameters: a value of 0 makes the read UNCHANGED.
        cuts: for ENVELOPE CHANGES, the LIMIT clauses that would part an update.
        transactions: the maximum number of transactions of the scan; None without that bound.
        misplaced: the reason why the query's LIMIT n TRANSACTIONS does not bound the scan.
        empty: nothing of the scan is read: a filter is constant false, or a LIMIT is 0.
    """

    scan: Scan
    kind: ReadKind
    reason: str = ""
    edits: tuple[Edit, ...] = ()
    plain: Plain | None = None
    facts: tuple[Fact, ...] = ()
    unit: Unit | None = None
    limits: tuple[Number, ...] = ()
    cuts: tuple[RowCut, ...] = ()
    transactions: Number | None = None
    misplaced: str = ""
    empty: bool = False

    def __post_init__(self) -> None:
        assert bool(self.reason) == (self.kind is ReadKind.NONE)
        assert not self.edits or self.kind in (ReadKind.ROWWISE, ReadKind.UNCHANGED)
        assert self.unit is None or self.kind in (ReadKind.WHOLE, ReadKind.UNCHANGED)
        assert not self.cuts or self.hidden

    @property
    def hidden(self) -> bool:
        """True if the scan's relation has the hidden column; any other would show it to the user."""
        return self.kind is ReadKind.ROWWISE or self.unit is not None or bool(self.edits)
