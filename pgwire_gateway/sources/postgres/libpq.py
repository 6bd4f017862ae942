"""A connection to a PostgreSQL outside, by libpq: queries, COPY and replication, each ended by `close`.

psycopg's connections know neither replication nor an end from another thread, so its libpq wrapper is used
directly, never blocking: each wait is for the connection's socket, for a time, or for `close`.

Source: PostgreSQL, "libpq - C Library", "Streaming Replication Protocol".
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ....engine import errors

Row: TypeAlias = tuple[str | None, ...]

CONNECT_TIMEOUT_S = 10.0
# A query of the catalog, or a change of a publication, which waits for locks.
QUERY_TIMEOUT_S = 60.0
# Between two rows of a copy.
COPY_TIMEOUT_S = 600.0
# How long `close` waits for another thread's call to end before the connection is left to it.
CLOSE_TIMEOUT_S = 5.0

# Texts of values are the same in a copy and in replication, whatever is set for the user or the database.
SESSION_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    # A copy of a table with policies for rows fails instead of leaving rows out.
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "30s",
}
_KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

_BY_STATE: dict[str, type[errors.DucktailError]] = {
    found.sqlstate: found
    for found in (
        errors.InvalidPassword, errors.InvalidAuthorization, errors.UndefinedDatabase,
        errors.InsufficientPrivilege, errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedObject,
        errors.DuplicateObject, errors.ObjectInUse, errors.LockNotAvailable, errors.WrongObjectType,
        errors.ConfigurationLimit, errors.WrongState, errors.NotSupported, errors.UntranslatableCharacter,
        errors.CharacterNotInRepertoire,
    )
}  # fmt: skip
# The server ends or begins, or has no place for now: another attempt may succeed.
_TRANSIENT = re.compile(r"08|57P0[1235]|53300")
# A refused connection has no SQLSTATE in libpq, so the server's own text decides; a server that speaks
# another language than English is reported as unavailable, with its text.
_REFUSALS: tuple[tuple[str, type[errors.DucktailError], str | None], ...] = (
    (
        r"password authentication failed|no password supplied",
        errors.InvalidPassword,
        "Give the right password: in the connection string, a service file or a password file.",
    ),
    (
        r"no encryption|hostssl|SSL off",
        errors.InvalidAuthorization,
        "The server may accept this user with TLS only: add sslmode=require, or better sslmode=verify-full "
        "with sslrootcert. Otherwise pg_hba.conf needs an entry.",
    ),
    (
        r"to start walsender|to start WAL sender|walsender|WAL sender",
        errors.InsufficientPrivilege,
        "ALTER ROLE ... REPLICATION gives the user this right.",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        errors.InvalidAuthorization,
        "Add an entry for the user and database to the server's pg_hba.conf.",
    ),
    (
        r'authentication failed|role ".*" does not exist|not permitted to log in|valid client certificate',
        errors.InvalidAuthorization,
        None,
    ),
    (r'database ".*" does not exist', errors.UndefinedDatabase, None),
    (
        r"max_wal_senders",
        errors.ConfigurationLimit,
        "Raise max_wal_senders at the source and restart it, or end another replication connection.",
    ),
    (
        r"does not support SSL|certificate|SSL error|root\.crt|could not read .*key|sslmode value",
        errors.CannotConnect,
        "Compare sslmode, sslrootcert and the certificates with what the server has.",
    ),
)


def parameters(conninfo: str, application_name: str) -> dict[str, str]:
    """libpq's parameters of a connection string, with those that ducktail adds.

    Raises:
        InvalidParameterValue: the text is malformed; it is not repeated, as it may have a password.
    """
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except psycopg.Error as error:
        raise errors.InvalidParameterValue(
            "the connection string is malformed",
            hint="It is 'postgresql://user@host:port/database?sslmode=...' or "
            "'host=... port=... dbname=... user=...', with the parameters of libpq.",
        ) from error
    if "replication" in given:
        raise errors.InvalidParameterValue("the connection string cannot have the parameter replication")
    options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
    return {
        "fallback_application_name": application_name,
        **_KEEPALIVES,
        **given,
        "client_encoding": "UTF8",
        "options": f"{given.get('options', '')} {options}".strip(),
    }


def identifier(name: str) -> str:
    """A name, quoted.

    >>> identifier('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal of SQL and of replication commands, without backslashes of its own.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


class Link:
    """One connection; its calls are made by one thread, except `close`.

    `calls` is held during each call, so that `close` never frees what another thread uses; callers that read
    many messages hold it once.

    Args:
        parameters: of libpq, as `parameters` gives them.
        replication: True for one that takes replication commands.
    """

    def __init__(self, parameters: dict[str, str], *, replication: bool = False) -> None:
        self._parameters = parameters | ({"replication": "database"} if replication else {})
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        self._closing = threading.Lock()
        # The server has ended replication; its result is not read yet.
        self._has_ended = False
        self.calls = threading.RLock()
        self._connection: pq.abc.PGconn | None = None

    @property
    def connection(self) -> pq.abc.PGconn:
        if self._connection is None or self._closed:
            raise errors.SourceUnavailable("the connection to the source is closed")
        return self._connection

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def server_version(self) -> int:
        """As 150004."""
        return self.connection.server_version

    def open(self) -> Link:
        """Connect to the first host that answers.

        Raises:
            SourceUnavailable: the server cannot be reached now.
        """
        limit_s = _connect_timeout_s(self._parameters)
        with self.calls:
            *others, last = _attempts(self._parameters)
            for given in others:
                try:
                    self._connect(given, limit_s)
                    return self
                except errors.SourceUnavailable:
                    if self._closed:
                        raise
            self._connect(last, limit_s)
        return self

    def _connect(self, given: dict[str, str], limit_s: float) -> None:
        until_s = time.monotonic() + limit_s
        try:
            connection = self._connection = pq.PGconn.connect_start(make_conninfo("", **given).encode())
            state = connection.connect_poll() if connection.status != pq.ConnStatus.BAD else None
            while state in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
                events = select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT
                if not self._wait(events, until_s):
                    raise errors.SourceUnavailable(
                        f"connection to the source timed out after {limit_s:g} seconds"
                    )
                state = connection.connect_poll()
            if state != pq.PollingStatus.OK:
                raise _refusal(connection.get_error_message("utf-8"))
            connection.nonblocking = 1
        except BaseException as error:
            self._finish()
            if isinstance(error, psycopg.Error):
                raise _refusal(str(error)) from error
            raise

    def is_alive(self) -> bool:
        """False if the server has ended the connection, which nobody has used since."""
        with self.calls:
            if self._closed or self._connection is None:
                return False
            try:
                # The reason comes before the end.
                while self._wait(select.POLLIN, time.monotonic()):
                    self._connection.consume_input()
            except (psycopg.Error, errors.SourceUnavailable):
                self._give_up()
            return not self._closed

    def query(self, sql: str, *values: str | None, timeout_s: float = QUERY_TIMEOUT_S) -> list[Row]:
        """The rows of one statement, as texts.

        Raises:
            SourceUnavailable: the connection is lost, or the time is over; it is closed then.
        """
        with self.calls, self._lost_as_unavailable():
            if values:
                given = [None if value is None else value.encode() for value in values]
                self.connection.send_query_params(sql.encode(), given)
            else:
                self.connection.send_query(sql.encode())
            until_s = time.monotonic() + timeout_s
            result = self._result(until_s)
            while self._next_result(until_s) is not None:
                pass
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise failure(result)
            columns = range(result.nfields)
            return [
                tuple(_text(result.get_value(row, column)) for column in columns)
                for row in range(result.ntuples)
            ]

    def copy_out(self, sql: str, rows_max: int, bytes_max: int) -> Iterator[bytearray]:
        """The rows of a COPY ... TO STDOUT in text format, joined; some at once."""
        with self.calls:
            self._begin_copy(sql, pq.ExecStatus.COPY_OUT)
        more = True
        while more:
            rows, more = self._copied(rows_max, bytes_max)
            if rows:
                yield rows

    def _copied(self, rows_max: int, bytes_max: int) -> tuple[bytearray, bool]:
        """The next rows of a copy, joined; False if they are the last."""
        joined = bytearray()
        left = rows_max
        with self.calls, self._lost_as_unavailable():
            get = self.connection.get_copy_data
            while left and len(joined) < bytes_max:
                length, data = get(1)
                if length > 0:
                    joined += data
                    left -= 1
                elif length == 0:
                    self._receive(time.monotonic() + COPY_TIMEOUT_S)
                else:
                    self._end_copy()
                    return joined, False
        return joined, True

    def start_replication(self, sql: str) -> None:
        """Run START_REPLICATION; `read_messages` then has its messages."""
        with self.calls:
            self._begin_copy(sql, pq.ExecStatus.COPY_BOTH)

    def read_messages(self, most: int) -> list[bytes]:
        """The messages of replication that have arrived, at most some; none if there are none now."""
        messages: list[bytes] = []
        try:
            connection = self.connection
            get = connection.get_copy_data
            length, data = (-1, memoryview(b"")) if self._has_ended else get(1)
            if length == 0:
                connection.consume_input()
                length, data = get(1)
            while length > 0:
                messages.append(bytes(data))
                if len(messages) == most:
                    return messages
                length, data = get(1)
            self._has_ended = length < 0
            if self._has_ended and not messages:
                self._end_copy()
                raise errors.SourceUnavailable("the source has ended replication")
        except (psycopg.Error, errors.SourceUnavailable) as error:
            raise self._ended(error) from error
        return messages

    def wait_message(self, until_s: float) -> bool:
        """Wait until something has arrived; False if the time is over."""
        return bool(self._wait(select.POLLIN, until_s))

    def send_message(self, message: bytes) -> None:
        """Send a message in replication; it leaves with a later call if the socket takes no more now."""
        with self._lost_as_unavailable():
            self.connection.put_copy_data(message)
            self.connection.flush()

    def close(self) -> None:
        """End the connection, and another thread's call with an error."""
        self._closed = True
        with self._closing:
            if self._wake < 0:
                return
            os.eventfd_write(self._wake, 1)
            if self.calls.acquire(timeout=CLOSE_TIMEOUT_S):
                try:
                    self._finish()
                    os.close(self._wake)
                    self._wake = -1
                finally:
                    self.calls.release()

    def _finish(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish()

    def _begin_copy(self, sql: str, expected: pq.ExecStatus) -> None:
        with self._lost_as_unavailable():
            self.connection.send_query(sql.encode())
            until_s = time.monotonic() + COPY_TIMEOUT_S
            result = self._result(until_s)
            if result.status != expected:
                while self._next_result(until_s) is not None:
                    pass
                raise failure(result)

    def _end_copy(self) -> None:
        """Read the result behind the last row or message; an error of the source is raised."""
        until_s = time.monotonic() + QUERY_TIMEOUT_S
        failed = None
        while (result := self._next_result(until_s)) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failed = failure(result)
        if failed is not None:
            raise failed

    @contextmanager
    def _lost_as_unavailable(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, errors.SourceUnavailable) as error:
            raise self._ended(error) from error

    def _ended(self, error: psycopg.Error | errors.SourceUnavailable) -> errors.SourceUnavailable:
        """Close a connection that has failed; the error to raise."""
        self._give_up()
        if isinstance(error, errors.SourceUnavailable):
            return error
        return errors.SourceUnavailable(f"the connection to the source is lost: {_one_line(str(error))}")

    def _give_up(self) -> None:
        # Another thread that closes the connection waits for this call.
        if not self._closed:
            self.close()

    def _result(self, until_s: float) -> pq.abc.PGresult:
        result = self._next_result(until_s)
        if result is None:
            raise errors.SourceUnavailable("the source has sent no answer")
        return result

    def _next_result(self, until_s: float) -> pq.abc.PGresult | None:
        connection = self.connection
        while connection.flush():
            if self._wait(select.POLLIN | select.POLLOUT, until_s) & select.POLLIN:
                connection.consume_input()
        while connection.is_busy():
            self._receive(until_s)
        return connection.get_result()

    def _receive(self, until_s: float) -> None:
        if not self._wait(select.POLLIN, until_s):
            raise errors.SourceUnavailable("the source has not answered in time")
        self.connection.consume_input()

    def _wait(self, events: int, until_s: float) -> int:
        """The events that have happened at the socket; 0 if the time is over."""
        if self._connection is None or self._closed:
            raise errors.SourceUnavailable("the connection to the source is closed")
        poll = select.poll()
        poll.register(self._connection.socket, events)
        poll.register(self._wake, select.POLLIN)
        found = poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        if self._closed:
            raise errors.SourceUnavailable("the connection to the source is closed")
        return sum(happened for number, happened in found if number != self._wake)


def failure(result: pq.abc.PGresult) -> errors.DucktailError:
    """The error of a failed statement, with the source's own SQLSTATE and text."""

    def field(code: pq.DiagnosticField) -> str | None:
        return _text(result.error_field(code))

    state = field(pq.DiagnosticField.SQLSTATE)
    message = field(pq.DiagnosticField.MESSAGE_PRIMARY) or _one_line(result.get_error_message("utf-8"))
    detail, hint = field(pq.DiagnosticField.MESSAGE_DETAIL), field(pq.DiagnosticField.MESSAGE_HINT)
    if state is None or _TRANSIENT.match(state):
        return errors.SourceUnavailable(f"the source says: {message}", detail=detail, hint=hint)
    if state in _BY_STATE:
        return _BY_STATE[state](f"the source says: {message}", detail=detail, hint=hint)
    return errors.SourceError(state, f"the source says: {message}", detail=detail, hint=hint)


def _refusal(text: str) -> errors.DucktailError:
    """The error of a connection that was not made."""
    message = _one_line(text) or "no reason is given"
    for pattern, kind, hint in _REFUSALS:
        if re.search(pattern, message):
            return kind(f"cannot connect to the source: {message}", hint=hint)
    return errors.SourceUnavailable(f"cannot connect to the source: {message}")


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _attempts(given: dict[str, str]) -> list[dict[str, str]]:
    """Parameters for each host that is named: each has a time of its own, which libpq leaves to its caller.

    >>> [one["port"] for one in _attempts({"host": "a,b", "port": "1,2"})]
    ['1', '2']
    """
    lists = {name: given[name].split(",") for name in ("host", "hostaddr", "port") if name in given}
    count = max((len(lists[name]) for name in ("host", "hostaddr") if name in lists), default=1)
    lists = {name: found * count if len(found) == 1 else found for name, found in lists.items()}
    if any(len(found) != count for found in lists.values()):
        return [given]  # libpq says what is wrong.
    return [given | {name: found[place] for name, found in lists.items()} for place in range(count)]


def _connect_timeout_s(given: dict[str, str]) -> float:
    """libpq leaves connect_timeout to a caller that does not block; 0 is none there, but not here."""
    try:
        wanted = float(given.get("connect_timeout", ""))
    except ValueError:
        wanted = CONNECT_TIMEOUT_S
    return min(wanted, CONNECT_TIMEOUT_S) if wanted > 0 else CONNECT_TIMEOUT_S


def names(values: Sequence[str]) -> str:
    """Names for a message, at most ten."""
    shown = ", ".join(values[:10])
    return f"{shown} and {len(values) - 10} more" if len(values) > 10 else shown
