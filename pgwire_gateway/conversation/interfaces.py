"""The session and the server as a conversation uses them.

`sql.session.Session` implements the session; the tests have a scripted one. Statements and results are
those of sql (`sql.session_state.statement`, `sql.results`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...engine.errors import DucktailError
from ...engine.notifications import Notification
from ...engine.waiting import Waiting
from ...sql.dml.batch_insert import Many
from ...sql.results.notices import Notice
from ...sql.session_state.portals import Portals
from .startup import Door, Entry


@dataclass(frozen=True, slots=True)
class EndedStatement:
    """A statement that has ended.

    Args:
        kind: the value of its Kind, or UNKNOWN.
        sqlstate: of its error; None where there was none.
        text: as the client sent it, literals and all: not for logs as it is.
        resumed: it was a further piece of a portal that has been counted.
        unanswered: it asked the catalog something that this could not answer.
        executions: how often it was executed in this time.
        trace: the id by which it is followed through several nodes' logs; "" is none.
    """

    session_id: int
    kind: str
    sqlstate: str | None
    seconds: float
    text: str
    resumed: bool
    unanswered: bool = False
    executions: int = 1
    trace: str = ""


class Session(Protocol):
    """One user's session; one call at a time, but for `cancel`."""

    id: int
    portals: Portals
    # How many rows the client of the present statement takes at first; None for all of them.
    first_rows: int | None

    @property
    def transaction_status(self) -> str:
        """I, T or E, as in ReadyForQuery."""

    def parse(self, text: str, oids: Sequence[int] = (), *, told: bool = True) -> Waiting[Any]:
        """Prepare one statement.

        Args:
            told: whether its columns are told before it runs.
        """

    def is_stale(self, statement: Any) -> bool:
        """True if its columns were worked out for another state of the catalog, and may be others by now."""

    def renew(self, statement: Any) -> None:
        """Work them out again. Blocks: DuckDB is asked."""

    def execute(self, statement: Any, parameters: Sequence[object] = ()) -> Waiting[Any]:
        """Run it."""

    def sent_inline(self, parameters: Sequence[object]) -> bool:
        """True if a statement forwarded by another node needs no DuckDB work."""

    def many(self, statement: Any) -> Waiting[Many | None]:
        """An object that runs many executions of a statement at once; None: there is none."""

    def copy_data(self, copy: Any, data: bytes) -> Waiting[None]:
        """Give a COPY FROM STDIN a piece of its rows."""

    def copy_done(self, copy: Any) -> Waiting[Any]:
        """End the COPY after its last row, and return its result."""

    def begin_implicit(self, *, piped: bool = False) -> Waiting[None]:
        """Open the transaction that several statements share; nothing if one is open.

        Args:
            piped: those up to a Sync; else those of one Query.
        """

    def cycle_ended(self) -> None:
        """Handle a Sync: preparation time before it counts for no later statement."""

    def commit_implicit(self) -> Waiting[None]:
        """Commit it; nothing if a BEGIN or COMMIT among the statements has taken it over."""

    def abort_implicit(self) -> Waiting[None]:
        """Roll it back; nothing if there is none."""

    def fail(self) -> None:
        """An error that the session has not raised itself: an open block has failed."""

    def as_told(self, error: Exception) -> Any:
        """The error to report to its client for an exception that is no DucktailError."""

    def cancel(self) -> None:
        """End its current operation or wait with 57014; from any thread, no effect without one."""

    def close(self) -> Waiting[None]:
        """Roll back and free everything."""

    def take_notices(self) -> Sequence[Notice]:
        """Notices since the last call."""

    def take_notifications(self) -> Sequence[Notification]:
        """Notifications since the last call."""

    def take_parameter_changes(self) -> Mapping[str, str]:
        """Reported parameters that have changed since the last call."""

    def parameter_status(self) -> Mapping[str, str]:
        """All reported parameters."""

    def trace(self) -> str:
        """The id that identifies its work in the logs of several nodes; "" for none."""


class Host(Protocol):
    """The server, as one of its connections sees it."""

    @property
    def offers_tls(self) -> bool:
        """True if it has a certificate."""

    def door(self, entry: Entry, *, secured: bool) -> Door:
        """The authentication required of a client.

        Args:
            secured: whether its connection is TLS.

        Raises:
            InvalidAuthorization: not this way.
        """

    def open_session(self, entry: Entry, door: Door) -> Session:
        """Let a client in through a door that it has passed. Blocks: DuckDB is called.

        Raises:
            UndefinedDatabase: the database is not here.
            TooManyConnections.
            CannotConnectNow: the server is closing.
            InvalidParameterValue: a setting that cannot be.
        """

    def refused(self, entry: Entry | None, error: DucktailError) -> None:
        """Record a refused client; without an entry it did not even name a user."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def statement_ended(self, ended: EndedStatement) -> None:
        """A statement of the session has ended."""

    def cancel(self, pid: int, secret: bytes) -> None:
        """Cancel the statement of session `pid`, if `secret` is its own; there is no answer."""
