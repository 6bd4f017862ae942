"""The values that say what a query does with a stream scan; shape.py has the theory."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..language.statements import Number, Scan
from .pruning import Fact

HIDDEN_LSN = "__ducktail_lsn"


class Kind(enum.Enum):
    """The rows of the read-position table."""

    ROWWISE = "rowwise"
    WHOLE = "whole"
    UNCHANGED = "unchanged"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `text` into the user's text at the character `offset`, from 0.

    Args:
        sorts: it restores the order of the LSNs, and is left out where DuckDB's plan keeps that.
    """

    offset: int
    text: str
    sorts: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """A read whose rows are events as they are, so that ready rows can be sent.

    Args:
        columns: event column and name in the answer, in order; None for all as they are.
        limit: how many rows; None for all.
    """

    columns: tuple[tuple[str, str], ...] | None
    limit: Number | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A LIMIT clause over rows of which two may be an update's.

    DuckDB is asked for one row more, and the session cuts where no update is parted.

    Args:
        start, end: its span in the user's text.
        limit: how many rows.
    """

    start: int
    end: int
    limit: Number


@dataclass(frozen=True, slots=True)
class Unit:
    """A row-wise query with a LIMIT inside a query that is not.

    Args:
        start, end: its span in the user's text, without brackets around it.
        edits: carry the hidden column to its select list; offsets in the user's text.
        limits, cuts: as of Shape.
    """

    start: int
    end: int
    edits: tuple[Edit, ...]
    limits: tuple[Number, ...]
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What a query does with one scan.

    Args:
        scan: the scan.
        kind: the row of the table.
        reason: for NONE: why there is no read position, as an error's detail without its full stop.
        edits: what carries the hidden column to the answer, and sorts by it where DuckDB may mix the
            rows up; offsets in the user's text. For ROWWISE, and for such a query without a group.
        plain: whether ready rows answer it; given for reads without a group too.
        facts: what WHERE says of the scan's partition, lsn and commit_time.
        unit: for WHOLE: the inner query whose rows the position follows.
        limits: the LIMITs on the scan's way, constants and parameters: one that is 0 when it is
            bound makes the read UNCHANGED.
        cuts: for ENVELOPE CHANGES: the LIMIT clauses that would part an update.
        transactions: how many transactions the scan gives at most; None without that bound.
        misplaced: why LIMIT n TRANSACTIONS, which the query has, does not bound the scan.
        empty: nothing of the scan is read: a filter is constant false, or a LIMIT is 0.
    """

    scan: Scan
    kind: Kind
    reason: str = ""
    edits: tuple[Edit, ...] = ()
    plain: Plain | None = None
    facts: tuple[Fact, ...] = ()
    unit: Unit | None = None
    limits: tuple[Number, ...] = ()
    cuts: tuple[Cut, ...] = ()
    transactions: Number | None = None
    misplaced: str = ""
    empty: bool = False

    def __post_init__(self) -> None:
        assert bool(self.reason) == (self.kind is Kind.NONE)
        assert not self.edits or self.kind in (Kind.ROWWISE, Kind.UNCHANGED)
        assert self.unit is None or self.kind in (Kind.WHOLE, Kind.UNCHANGED)
        assert not self.cuts or self.hidden

    @property
    def hidden(self) -> bool:
        """Whether the scan's relation has the hidden column; any other would show it to the user."""
        return self.kind is Kind.ROWWISE or self.unit is not None or bool(self.edits)
