"""A session's two cursors on DuckDB, and the open result of the first.

One is for the user's statements, the other for binding and look-ups, which would fix a transaction's
snapshot on the first. A DuckDB cursor has one open result: its remaining rows are stored in the session's
spool before the next statement runs. Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

import threading
from contextlib import suppress

import duckdb

from ...engine.database import Database
from ...engine.errors import DucktailError
from .results import Result
from .spool import KeptSource, ScrollSource, Spool


class Cursors:
    """See the head of the file. The cursors exist once `renew` has been called.

    Attributes:
        main, meta: for the user's statements; for binding and looking up.
        spool: where results lie that had to make room.
        mutex: who makes or closes them has it, and who looks something up outside a call.
    """

    main: duckdb.DuckDBPyConnection
    meta: duckdb.DuckDBPyConnection

    def __init__(self, database: Database) -> None:
        self._database = database
        self._generation: int | None = None
        self._result: Result | None = None
        self._kept: Result | None = None
        self._later: list[str] = []
        self.spool = Spool(database.spill, database.settings.spool_memory_bytes_max)
        self.mutex = threading.RLock()

    @property
    def stale(self) -> bool:
        """True if the file has been reopened since the cursors were created."""
        return self._generation != self._database.generation

    def renew(self) -> None:
        """Make them."""
        self._generation = self._database.generation
        self.main, self.meta = self._database.cursor(), self._database.cursor()

    def close(self) -> None:
        """Close them."""
        for cursor in (self.main, self.meta):
            with suppress(duckdb.Error):
                cursor.close()

    def interrupt(self) -> None:
        """End the call that is under way; from any thread."""
        with suppress(duckdb.ConnectionException):  # Its cursor has been closed, and not yet renewed.
            self.main.interrupt()

    # The open result.

    @property
    def has_open_result(self) -> bool:
        """True if rows remain to be fetched."""
        result, kept = self._result, self._kept
        return (result is not None and result.holds_cursor) or (kept is not None and kept.holds_cursor)

    def giving(self, result: Result) -> None:
        """This is the open result from now on."""
        self._result = result

    def keeping(self, result: Result) -> None:
        """This one, a portal's, is taken in parts, with other statements in between."""
        self._kept = result

    def settle(self, sparing: Result | None = None) -> None:
        """Keep the rest of the open results before the next one.

        Args:
            sparing: goes on as it is: the next statement only takes rows of it.

        Raises:
            OutOfMemory: what all sessions keep is more than `spool_bytes_max`.
            IoError: it cannot be written.
        """
        # The answer first: it may be one that takes the rows of the other.
        for result in self._taken():
            if not result.holds_cursor:
                continue
            if result is sparing:
                self._kept = result
            else:
                self.keep_rest(result)

    def keep_rest(self, result: Result) -> None:
        """Take the rest of a result from DuckDB's cursor.

        Raises:
            OutOfMemory: as above. IoError: as above.
        """
        source = result.source
        result.keep_rest(source if isinstance(source, ScrollSource) else KeptSource(self.spool))

    def drop_result(self) -> None:
        """Nobody wants the rest of it; a portal's that holds no cursor is the portal's own business."""
        answer = self._result
        for result in self._taken():
            if result is answer or result.holds_cursor:
                result.close()

    def fail_result(self, error: DucktailError | None = None) -> None:
        """Void the open result after an error."""
        for result in self._taken():
            result.fail(error)

    def _taken(self) -> list[Result]:
        """The open results, which are so no longer."""
        found = [result for result in (self._result, self._kept) if result is not None]
        self._result = self._kept = None
        return found

    # Settings that wait.

    def later(self, sql: str) -> None:
        """Run a setting of the main cursor's before the next statement: a failed transaction takes none."""
        self._later.append(sql)

    def catch_up(self) -> None:
        """Run the settings that a failed transaction did not take; none is open now."""
        while self._later:
            self.main.execute(self._later[-1])
            self._later.pop()
