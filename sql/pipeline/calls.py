"""The calls of a session: each alone, cancellable, with DuckDB's errors translated.

A failing call leaves nothing: the open result is void, and the block has failed. If DuckDB has invalidated
the database, the error is that. Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from ...engine.duck.duckdb_errors import recognized
from ...engine.errors import DucktailError, InternalError, IoError, QueryCanceled
from ...engine.sessions import ACTIVE, SessionEntry
from ...engine.transactions.commits import UNKNOWN
from ...engine.waiting import Waiting
from ..results.results import ResultBatch
from ..rights.hidden_names import as_told, without_hidden_names
from ..session_state.context import Context
from ..text.hints import hint_for

T = TypeVar("T")

# The time for the end of a statement that has used up its own.
END_MS = 500


class Calls:
    """The calls of one session, each guarded and with translated errors.

    Args:
        renew: creates new cursors, if the file has been reopened since the last ones were created.
    """

    def __init__(self, session: Context, entry: SessionEntry, renew: Callable[[], None]) -> None:
        self._database = session.database
        self._guard = session.guard
        self._entry = entry
        self._block = session.block
        self._cursors = session.cursors
        self._variables = session.variables
        self._access = session.access
        self._renew = renew
        # The text of a statement that has waited during its preparation, and the end of its time.
        self._prepared: tuple[str, float] | None = None

    def run(
        self,
        work: Callable[[], Waiting[T]],
        *,
        ends: bool = False,
        text: str | None = None,
        commits: Callable[[], bool] | None = None,
    ) -> Waiting[T]:
        """Run a piece of work, which may wait.

        Args:
            ends: the work ends a statement whose rows were sent: it has the rest of the statement's time.
            text: the text of the running statement, whose preparation counts towards its time.
            commits: returns True if the work that has ended may have committed something: its answer waits
                for synchronous copies.

        Raises:
            CommitNotConfirmed: the work has ended, but the copies do not have its commit.
            DucktailError: the work has failed; an open block has then failed too.
        """
        yield from self._database.standing()
        self._enter()
        try:
            self._renew()
            limit_ms = self._variables.milliseconds("statement_timeout")
            if ends and limit_ms:
                # Its client may have taken long over the rows.
                limit_ms = min(limit_ms, max(self._guard.left_ms, END_MS))
            if text is not None:
                limit_ms = self._left_of(text, limit_ms)
                self._prepared = None
            result = yield from self._guard.cancellable(work(), limit_ms)
            if commits is not None and self._database.synchronous_copies is not None and commits():
                yield from self._database.confirm_commits()
            return result
        except BaseException as error:
            self._fail(error)
        finally:
            self._leave()

    def prepare(self, text: str, work: Callable[[], Waiting[T]]) -> Waiting[T]:
        """Perform the waits of a statement before it runs, in the running call or in one of its own.

        As in PostgreSQL, the statement's time-out begins here, and covers preparation and execution together.
        """
        if self._guard.running:
            return (yield from work())
        result = yield from self.run(work, text=text)
        if (ends_s := self._guard.ends_s) is not None:
            self._prepared = text, ends_s
        return result

    def forget_prepared(self) -> None:
        """Handle a Sync: later statements have their full time, whatever was prepared before."""
        self._prepared = None

    def _left_of(self, text: str, limit_ms: int) -> int:
        """The remaining time of a statement, at least 1 ms; 0 without a timeout."""
        if not limit_ms or self._prepared is None or self._prepared[0] != text:
            return limit_ms
        left_s = self._prepared[1] - self._database.clock.monotonic_s()
        return min(limit_ms, max(1, round(left_s * 1000)))

    def fetch(self, step: Callable[[], ResultBatch | None], *, committed: bool = False) -> ResultBatch | None:
        """Run a fetch as a call; it waits for nothing.

        Args:
            committed: the statement has committed, so that a cancel does not end it.
        """
        self._enter()
        try:
            self._renew()
            batch = step()
            if not committed:
                self._guard.check()
            return batch
        except BaseException as error:
            self._fail(error)
        finally:
            self._leave()

    def _enter(self) -> None:
        self._guard.enter()
        self.mark(ACTIVE)

    def _leave(self) -> None:
        if not self._block.begun:
            self._entry.has_snapshot = self._cursors.has_open_result
        self.mark(self._block.resting)
        self._guard.leave()

    def mark(self, state: str) -> None:
        """Report the session's state to the engine."""
        entry, clock = self._entry, self._database.clock
        entry.state, entry.since_us, entry.since_s = state, clock.now_us(), clock.monotonic_s()

    def _fail(self, error: BaseException) -> NoReturn:
        """End a call with an error; a closed driver and an interrupt of the thread are errors too."""
        told = recognized(error) or error
        if isinstance(told, DucktailError):
            told = self.told(told)
        if isinstance(told, QueryCanceled):
            why = self._guard.cancel_error()
            # The part that remains in spite of the error.
            why.detail, why.hint = told.detail, told.hint
            told = why
        self._block.failed()
        if told is error:
            raise error
        raise told from error

    def told(self, error: DucktailError) -> DucktailError:
        """The error for the client, with hidden names removed; an invalidated database is reported."""
        error = without_hidden_names(self._access, self._database, as_told(self._access, error))
        error.hint = hint_for(error) or error.hint
        if isinstance(error, IoError) and error.message.startswith(UNKNOWN):
            return error
        if self._guard.warned is not None:
            return self._guard.warned
        if not isinstance(error, (IoError, InternalError)) or not self._database.has_fallen():
            return error
        fallen = self._database.fallen
        if fallen is None or not self._guard.running or self._block.begun:
            return fallen or error
        # DuckDB may have failed to complete the call's own COMMIT.
        told = " Where the statement wrote, its outcome is unknown."
        return type(fallen)(fallen.message, detail=f"{fallen.detail}.{told}", hint=fallen.hint)
