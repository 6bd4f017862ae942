"""A session's two cursors on DuckDB, and the open result of the first.

One cursor runs the user's statements, the other binds and looks up, which would fix a transaction's snapshot
on the first. A DuckDB cursor has one open result: its remaining rows are stored in the session's spool before
the next statement runs. Source: docs/design/sql.md, "Session".
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
    """The cursors of one session, which exist once `renew` has been called.

    Attributes:
        main, meta: the cursor for the user's statements; the cursor for binding and lookups.
        spool: storage for the rest of results that had to make room.
        mutex: held to create or close the cursors, and to look something up outside a call.
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
        """Create the cursors."""
        self._generation = self._database.generation
        self.main, self.meta = self._database.cursor(), self._database.cursor()

    def close(self) -> None:
        """Close the cursors."""
        for cursor in (self.main, self.meta):
            with suppress(duckdb.Error):
                cursor.close()

    def interrupt(self) -> None:
        """Interrupt the running call; from any thread."""
        with suppress(duckdb.ConnectionException):  # The cursor has been closed, and not yet renewed.
            self.main.interrupt()

    # The open result.

    @property
    def has_open_result(self) -> bool:
        """True if rows remain to be fetched."""
        result, kept = self._result, self._kept
        return (result is not None and result.holds_cursor) or (kept is not None and kept.holds_cursor)

    def giving(self, result: Result) -> None:
        """Make a result the open result from now on."""
        self._result = result

    def keeping(self, result: Result) -> None:
        """Note a portal's result, which is taken in parts, with other statements in between."""
        self._kept = result

    def settle(self, sparing: Result | None = None) -> None:
        """Spool the rest of the open results before the next statement.

        Args:
            sparing: a result to leave as it is, because the next statement only takes rows of it.

        Raises:
            OutOfMemory: all sessions' spooled rows exceed `spool_bytes_max`.
            IoError: the rows cannot be written.
        """
        # The answer first: it may take the rows of the portal's result.
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
            OutOfMemory: all sessions' spooled rows exceed `spool_bytes_max`.
            IoError: the rows cannot be written.
        """
        source = result.source
        result.keep_rest(source if isinstance(source, ScrollSource) else KeptSource(self.spool))

    def drop_result(self) -> None:
        """Close the open result, and a portal's result too if it holds the cursor."""
        answer = self._result
        for result in self._taken():
            if result is answer or result.holds_cursor:
                result.close()

    def fail_result(self, error: DucktailError | None = None) -> None:
        """Void the open result after an error."""
        for result in self._taken():
            result.fail(error)

    def _taken(self) -> list[Result]:
        """Return the open results, and forget them."""
        found = [result for result in (self._result, self._kept) if result is not None]
        self._result = self._kept = None
        return found

    # Delayed settings.

    def later(self, sql: str) -> None:
        """Delay a setting of the main cursor until the next statement: a failed transaction accepts none."""
        self._later.append(sql)

    def catch_up(self) -> None:
        """Run the delayed settings; no failed transaction is open now."""
        while self._later:
            self.main.execute(self._later[-1])
            self._later.pop()
