"""The session and the server as a conversation uses them.

`sql.session.Session` implements the session; the tests have a scripted one. Statements and results are
those of sql (`sql.session_state.statement`, `sql.results`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ...engine.duck.objects import Object, Objects
from ...engine.errors import DucktailError
from ...engine.notifications import Notification
from ...engine.waiting import Waiting
from ...sql.dml.batch_insert import Many
from ...sql.results.notices import Notice
from ...sql.session_state.portals import Portals
from ...sql.session_state.spelling import Speller
from .startup import Door, Entry


class EndedStatement(NamedTuple):
    """An ended statement.

    Args:
        kind: the value of its Kind, or UNKNOWN.
        sqlstate: the SQLSTATE of its error; None if it succeeded.
        text: the client's text, with literals: unsuitable for logs.
        resumed: True for a later part of a portal that has been counted.
        unanswered: a query of the catalog that could not be answered.
        executions: the number of executions in this time.
        trace: the id that identifies it in several nodes' logs; "" for none.
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
    """One user's session; one call at a time, except for `cancel`."""

    id: int
    portals: Portals
    # The rewriting of a text within a statement.
    spell: Speller
    # The client's last text, and the protocol's prepared statements, for pg_stat_activity and
    # pg_prepared_statements: name, text, time of creation, the parameters' OIDs.
    last_text: Callable[[], str]
    bound_statements: Callable[[], Sequence[tuple[str, str, int, tuple[int, ...]]]]
    # The oid of a table, view or type, from it, the database's objects and the session's temporary ones.
    object_oid: Callable[[Object, Objects, Objects], int] | None
    # The number of rows that the present statement's client takes at first; None for all.
    first_rows: int | None

    @property
    def transaction_status(self) -> str:
        """I, T or E, as in ReadyForQuery."""

    def parse(self, text: str, oids: Sequence[int] = (), *, told: bool = True) -> Waiting[Any]:
        """Prepare one statement.

        Args:
            told: True if the client requests its columns before it runs.
        """

    def is_stale(self, statement: Any) -> bool:
        """True if its columns were computed for another state of the catalog, and may have changed."""

    def renew(self, statement: Any) -> None:
        """Describe a statement again. Blocks: DuckDB is called."""

    def execute(self, statement: Any, parameters: Sequence[object] = ()) -> Waiting[Any]:
        """Run a statement."""

    def is_known_write(self, text: str) -> bool:
        """True if parsing and running a text takes no DuckDB work: a small write like earlier ones."""

    def sent_inline(self, parameters: Sequence[object]) -> bool:
        """True if a statement forwarded by another node needs no DuckDB work."""

    def many(self, statement: Any) -> Waiting[Many | None]:
        """An object that runs many executions of a statement at once; None if there is none."""

    def copy_data(self, copy: Any, data: bytes) -> Waiting[None]:
        """Pass a piece of rows to a COPY FROM STDIN."""

    def copy_done(self, copy: Any) -> Waiting[Any]:
        """End the COPY after its last row, and return its result."""

    def begin_implicit(self, *, piped: bool = False) -> Waiting[None]:
        """Begin the transaction that several statements share; do nothing if one is open.

        Args:
            piped: the statements up to a Sync share it; else those of one Query.
        """

    def cycle_ended(self) -> None:
        """Handle a Sync: earlier preparation time counts for no later statement."""

    def commit_implicit(self) -> Waiting[None]:
        """Commit the implicit transaction; do nothing if a BEGIN or COMMIT among the statements has ended
        it."""

    def abort_implicit(self) -> Waiting[None]:
        """Roll back the implicit transaction, if there is one."""

    def fail(self) -> None:
        """Fail the open block, because of an error outside the session."""

    def as_told(self, error: Exception) -> Any:
        """The error to report to the client for an exception that is no DucktailError."""

    def cancel(self) -> None:
        """End the current operation or wait with 57014, if there is one; from any thread."""

    def close(self) -> Waiting[None]:
        """Roll back and free everything."""

    @property
    def has_news(self) -> bool:
        """True if there are notices or parameter changes to take."""

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
            secured: its connection uses TLS.

        Raises:
            InvalidAuthorization: the client may not connect in this way.
        """

    def open_session(self, entry: Entry, door: Door) -> Session:
        """Open a session for a client that has passed a door. Blocks: DuckDB is called.

        Raises:
            UndefinedDatabase: the database is not served here.
            TooManyConnections: the maximum of sessions is reached.
            CannotConnectNow: the server is closing.
            InvalidParameterValue: a setting is invalid.
        """

    def refused(self, entry: Entry | None, error: DucktailError) -> None:
        """Record a refused client; `entry` is None if it did not name a user."""

    def now_s(self) -> float:
        """The time of a monotonic clock, in seconds."""

    def statement_ended(self, ended: EndedStatement) -> None:
        """Record an ended statement of the session."""

    def cancel(self, pid: int, secret: bytes) -> None:
        """Cancel the statement of session `pid`, if `secret` is its own; there is no answer."""
