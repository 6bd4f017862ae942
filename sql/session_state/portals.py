"""Named queries whose rows are taken in parts: cursors of DECLARE, and a driver's named portals.

PostgreSQL treats both as one kind, and so does this module: SQL's FETCH takes from a portal that a driver has
bound, and the protocol describes and executes a cursor that SQL has declared. A portal ends with its
transaction; a cursor WITH HOLD is kept in the session's spool when its transaction commits.
Source: docs/design/sql.md, "Cursors".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...engine.errors import DuplicateCursor, InvalidCursorName, ProgramLimitExceeded
from ..results.results import Result, ResultBatch, ResultColumn
from ..results.spool import Scroll
from .spelling import AsWritten, Spelling
from .statement import ParsedStatement


def _nothing() -> None:
    """Free nothing: the default of `Portal.free`."""


@dataclass(slots=True, eq=False)
class Portal:
    """A query with its parameters, and with a result once it has been started.

    Args:
        binary: SQL's FETCH returns binary values.
        hold: the portal outlives its transaction.
        declared: DECLARE created the portal; else a driver did.
        given: number of rows taken so far: the position of a forward-only cursor.
        ours: True if the open transaction created the portal.
        scroll: the cursor moves in any direction; `scrolled` is its position once it has been started.
        text: the text of the statement that created the portal, if it differs from `statement`.
        made_us: time of creation, in microseconds since 1970.
        free: frees the portal's resources.
        spelling: the query as its client sent it.
    """

    statement: ParsedStatement
    parameters: Sequence[object]
    binary: bool = False
    hold: bool = False
    declared: bool = True
    result: Result | None = None
    given: int = 0
    ours: bool = True
    scroll: bool = False
    scrolled: Scroll | None = None
    text: str = ""
    made_us: int = 0
    free: Callable[[], None] = _nothing
    spelling: Spelling = AsWritten("")

    @property
    def columns(self) -> Sequence[ResultColumn]:
        """The columns of the portal's rows, as the client sees them."""
        columns = self.statement.columns if self.result is None else self.result.columns
        return self.spelling.columns(columns) or ()

    def take(self, count: int | None) -> ResultBatch | None:
        """The next rows, at most `count`, within a call of the session; None at the end."""
        assert self.result is not None, "a portal is started before its rows are taken"
        batch = self.result.take(count)
        if batch is not None:
            self.given += batch.row_count
        return batch

    def close(self) -> None:
        """Discard the remaining rows."""
        if self.result is not None:
            self.result.close()
        self.free()


class Portals:
    """The portals of a session, by name.

    Args:
        portals_max: the maximum number of portals.
        now_us: returns the time, in microseconds since 1970.
    """

    def __init__(self, portals_max: int, now_us: Callable[[], int]) -> None:
        self._max = portals_max
        self.now_us = now_us
        self._portals: dict[str, Portal] = {}

    def __iter__(self) -> Iterator[tuple[str, Portal]]:
        """Iterate over names and portals."""
        return iter(list(self._portals.items()))

    def get(self, name: str) -> Portal | None:
        """The portal of this name, or None."""
        return self._portals.get(name)

    def find(self, name: str) -> Portal:
        """The portal of this name.

        Raises:
            InvalidCursorName: no portal has this name.
        """
        portal = self._portals.get(name)
        if portal is None:
            raise InvalidCursorName(f'cursor "{name}" does not exist')
        return portal

    def add(self, name: str, portal: Portal) -> None:
        """Add a new portal.

        Raises:
            DuplicateCursor: the name is in use.
            ProgramLimitExceeded: there are too many portals.
        """
        if name in self._portals:
            raise DuplicateCursor(f'cursor "{name}" already exists')
        if len(self._portals) >= self._max:
            raise ProgramLimitExceeded(
                f"a session cannot keep more than {self._max} portals",
                hint="Close portals that are no longer needed.",
            )
        portal.made_us = self.now_us()
        self._portals[name] = portal

    def remove(self, name: str) -> None:
        """Close a portal, if it exists."""
        portal = self._portals.pop(name, None)
        if portal is not None:
            portal.close()

    def clear(self) -> None:
        """Close all portals that SQL has declared."""
        for name, portal in self:
            if portal.declared:
                self.remove(name)

    def close(self) -> None:
        """Close all portals, at the end of the session: an open scan holds its window of the log."""
        for name, _ in self:
            self.remove(name)

    def keep_held(self, keep_rest: Callable[[Result], None]) -> None:
        """Spool the results that outlive the transaction, before its COMMIT.

        Raises:
            OutOfMemory: there is no room for the rows.
            IoError: the rows cannot be written.
        """
        for _, portal in self:
            if portal.hold and portal.result is not None and portal.result.holds_cursor:
                keep_rest(portal.result)

    def transaction_ended(self, *, committed: bool) -> None:
        """Close the portals that end with their transaction; held ones that a commit finds remain."""
        for name, portal in self:
            if portal.hold and (committed or not portal.ours):
                portal.ours = False
            elif portal.declared:
                self.remove(name)
