"""Interfaces through which a conversation uses a session and the server.

`sql.session.Session` implements the session; the tests have a scripted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...engine.errors import DucktailError
from ...engine.notifications import Notification
from ...engine.values.copy_rows import CopyForm
from ...engine.waiting import Waiting
from ...sql.dml.batch_insert import Many
from ...sql.session_state.portals import Portals
from ...sql.text.classified import Classified
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


class Column(Protocol):
    """A column of a result."""

    @property
    def name(self) -> str:
        """As the client shall see it."""

    @property
    def type(self) -> str:
        """DuckDB's name of the type."""


class Statement(Protocol):
    """A prepared statement; its types are worked out when first asked for, which asks DuckDB."""

    @property
    def classified(self) -> Classified:
        """Its kind."""

    @property
    def inline(self) -> bool:
        """Running it now takes no DuckDB work."""

    @property
    def empty(self) -> bool:
        """There is nothing in the text."""

    @property
    def parameter_types(self) -> tuple[str, ...]:
        """DuckDB's names of the parameters' types."""

    @property
    def columns(self) -> Sequence[Column] | None:
        """The columns of its rows; None when it gives none."""


class CopyIn(Protocol):
    """A COPY FROM STDIN under way."""

    @property
    def column_count(self) -> int:
        """The number of columns in a row."""

    @property
    def binary(self) -> bool:
        """True if the rows are in the binary format."""


class CopyOut(Protocol):
    """The format in which the rows of a COPY ... TO STDOUT are sent."""

    @property
    def form(self) -> CopyForm:
        """The format, and its marks."""

    @property
    def header(self) -> bool:
        """True if the column names are the first row."""


class Batch(Protocol):
    """Some rows of a result."""

    @property
    def row_count(self) -> int:
        """The number of rows."""

    def parts(self) -> Sequence[Batch]:
        """The rows in parts for threads that encode; none where a thread is not worth its while."""

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes | memoryview:
        """The rows as DataRow messages; a type and a format a column."""

    def copy_rows(self, types: Sequence[str], form: CopyForm, timezone: str) -> bytes | memoryview:
        """The rows as CopyData messages."""


class Result(Protocol):
    """The rows of one execution, taken batch by batch."""

    @property
    def columns(self) -> Sequence[Column] | None:
        """The columns of the rows; None when there are none."""

    @property
    def inline(self) -> bool:
        """The next fetch takes no DuckDB work."""

    @property
    def copy_in(self) -> CopyIn | None:
        """The COPY FROM STDIN that precedes the answer, or None."""

    @property
    def copy_out(self) -> CopyOut | None:
        """The format of the rows, if they are those of a COPY ... TO STDOUT."""

    @property
    def arrow_schema(self) -> Any:
        """Arrow's schema of its rows, if they are sent as Arrow."""

    @property
    def formats(self) -> Sequence[int]:
        """The columns' formats that the statement itself asks for, as in Bind."""

    @property
    def row_count(self) -> int:
        """The number of rows taken."""

    @property
    def tag(self) -> str | None:
        """The command tag, once all rows are taken."""

    @property
    def elsewhere(self) -> bool:
        """True if its rows come from another node: call `arrive` before each fetch."""

    def arrive(self, max_rows: int | None) -> Waiting[None]:
        """Wait until the next rows have arrived."""

    @property
    def settles(self) -> bool:
        """Behind its last row something is waited for: `settled`."""

    def settled(self) -> Waiting[None]:
        """Wait until its end is known where it has to be."""

    def fetch(self, max_rows: int | None) -> Batch | None:
        """The next batch, of at most `max_rows` rows; None when there are no more."""

    def suspend(self) -> None:
        """The rows taken so far are an answer by themselves."""

    def fail(self) -> None:
        """Discard the rest, in the middle of an answer."""


class Notice(Protocol):
    """Something that the session wants its user to know."""

    @property
    def severity(self) -> str:
        """NOTICE, WARNING, ..."""

    @property
    def sqlstate(self) -> str:
        """Its class."""

    @property
    def message(self) -> str:
        """The message itself."""

    @property
    def detail(self) -> str | None:
        """A sentence with the facts."""

    @property
    def hint(self) -> str | None:
        """A sentence that suggests a remedy."""


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
