"""Connections to the gateway and to the nodes of its cluster: connect, pool, retry, COPY in Arrow's format.

`connect` opens a connection; `failure` turns an exception of psycopg into a `ConnectorError` of one sentence
that names the option to check and says whether the call can be retried; `retrying` repeats a call for
`retryTimeout`. Retryable are an unreachable or stopping gateway (08xxx, 57P01, 57P03, a broken connection),
too many connections (53300) and conflicts (40001, 55P03). Every other error needs a person.

On a standalone server, and for partitions that the given gateway owns, the owner is the gateway that the
options name. Rows of other partitions are read directly from the node that owns them; the given gateway
locates that node, waits for events and has the consumer group.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
from psycopg import sql

from .errors import ConnectorError
from .options import Options

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

APPLICATION = "ducktail-spark"

_MADE_FROM = ("host", "port", "user", "password", "database", "sslmode", "sslrootcert")

# The wait between two tries doubles from the first to the last.
RETRY_FIRST_S = 0.1
RETRY_LAST_S = 2.0

# TCP itself detects a dead peer in about idle + count * interval seconds, also during a long poll, and within
# tcp_user_timeout (milliseconds) if it does not acknowledge data.
_KEEPALIVES: dict[str, Any] = {
    "keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 45_000,
}  # fmt: skip

RETRYABLE = frozenset({"40001", "55P03", "53300", "57P01", "57P02", "57P03"})
_RETRYABLE_CLASS = "08"

# SQLSTATE -> the options to check, where the server's message does not name them.
_OPTIONS_OF = {
    "28P01": "user, password",
    "28000": "user, sslmode",
    "42501": "user",
    "3D000": "database",
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A reason for which a connection is refused.

    Args:
        pattern: the pattern in libpq's message, which lacks the SQLSTATE of a failed connection.
        advice: the options to check.
        sqlstate: the gateway's SQLSTATE, if the message identifies it.
        retryable: a later try may succeed.
    """

    pattern: str
    advice: str
    sqlstate: str | None = None
    retryable: bool = False


# The first match applies.
_REFUSALS = (
    _Refusal(r"failed to resolve host|could not translate host", "option host: no such host"),
    _Refusal(
        r"password authentication failed|no password supplied", "options user, password: not let in", "28P01"
    ),
    _Refusal(r"database .* does not exist", "option database", "3D000"),
    _Refusal(
        r"server does not support SSL|no encryption|root certificate|certificate verify|SSL error|sslmode",
        "options sslmode, sslrootcert",
    ),
    _Refusal(
        r"starting up|shutting down|too many connections|too many clients", "the gateway is busy", None, True
    ),
    _Refusal(r"FATAL:", "the gateway does not let in"),
    _Refusal(r"timeout expired", "options host, port, connectTimeout: no answer in time", None, True),
    _Refusal(r"", "options host, port: nobody answers", None, True),
)


def connect(options: Options, node: str = "") -> Connection:
    """Open a connection in autocommit mode, its session in UTC.

    Args:
        options: only those of the connection are read.
        node: name of a cluster node, for messages; "" for the gateway that the user names.

    Raises:
        ConnectorError: the connection fails; the message names the option.
    """
    try:
        return psycopg.connect(
            host=options["host"],
            port=options["port"],
            user=options["user"],
            password=options["password"],
            dbname=options["database"],
            sslmode=options["sslmode"],
            sslrootcert=options["sslrootcert"],
            # libpq counts in seconds, and 0 means no timeout.
            connect_timeout=max(1, round(options["connectTimeout"])),
            application_name=APPLICATION,
            options="-c TimeZone=UTC",
            autocommit=True,
            # Each statement is sent a few times per session at most.
            prepare_threshold=None,
            **_KEEPALIVES,
        )
    except psycopg.Error as error:
        raise _not_connected(error, options, node) from None


# The idle connections of a Python worker by their parameters: Spark runs task after task in a worker, and a
# new connection, whose statements the gateway has not seen yet, costs a small task half of its time. There is
# one per node, for the nodes used last.
_idle: dict[tuple[Any, ...], Connection] = {}
IDLE_MAX = 8


def borrow(options: Options, node: str = "") -> Connection:
    """The worker's idle connection, if it still answers, or a new one; `give_back` or close it.

    Args:
        node: see `connect`.

    Raises:
        ConnectorError: see `connect`.
    """
    connection = _idle.pop(parameters(options), None)
    if connection is not None:
        try:
            connection.execute("SELECT 1")
            return connection
        except psycopg.Error:
            connection.close()
    return connect(options, node)


def give_back(connection: Connection, options: Options) -> None:
    """Keep an idle connection for the worker's next task."""
    key = parameters(options)
    same = _idle.pop(key, None)
    if same is not None:
        same.close()
    _idle[key] = connection
    while len(_idle) > IDLE_MAX:
        _idle.pop(next(iter(_idle))).close()


@contextlib.contextmanager
def borrowed(options: Options, node: str = "") -> Iterator[Connection]:
    """Borrow the worker's connection for a `with` block; it is closed if the block fails.

    Args:
        node: see `connect`.

    Raises:
        ConnectorError: see `connect`.
    """
    connection = borrow(options, node)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    give_back(connection, options)


def parameters(options: Options) -> tuple[Any, ...]:
    """The parameters of a connection, and its process: a fork must not use its parent's connection."""
    return (os.getpid(), *(options[name] for name in _MADE_FROM))


def _not_connected(error: psycopg.Error, options: Options, node: str) -> ConnectorError:
    where = f"{options['host']}:{options['port']}"
    what = f'node "{node}" of the cluster' if node else "the gateway"
    said = " ".join(str(error).split())
    refusal = next(one for one in _REFUSALS if re.search(one.pattern, said))
    message = f"cannot connect to {what} at {where} ({refusal.advice}): {said}"
    return ConnectorError(message, refusal.sqlstate, refusal.retryable)


def failure(error: psycopg.Error, doing: str, look_at: str = "") -> ConnectorError:
    """The ConnectorError for a failed statement.

    Args:
        doing: the activity, such as 'reading stream "orders_stream"'.
        look_at: the options that name the statement's object, such as "stream".
    """
    state = error.sqlstate
    options = _OPTIONS_OF.get(state or "", look_at)
    named = f" (option{'s' if ',' in options else ''} {options})" if options else ""
    said = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    message = f"{doing} failed{named}: {said}"
    place = f"At {error.diag.context}." if error.diag.context else None
    more = [part for part in (error.diag.message_detail, place, error.diag.message_hint) if part]
    if more:
        message += ". " + " ".join(more)
    return ConnectorError(message, state, is_retryable(error))


def is_retryable(error: psycopg.Error) -> bool:
    """True if the same statement may succeed later, on a new connection if this one is broken."""
    state = error.sqlstate
    if state is None:
        # For a broken connection libpq gives no SQLSTATE.
        return isinstance(error, psycopg.OperationalError)
    return state in RETRYABLE or state.startswith(_RETRYABLE_CLASS)


def retrying(work: Callable[[], T], timeout_s: float) -> T:
    """Call `work`, again after each retryable ConnectorError until the time is over; return its result.

    Raises:
        ConnectorError: one that is not retryable, or the last one.
    """
    end = time.monotonic() + timeout_s
    wait = RETRY_FIRST_S
    while True:
        try:
            return work()
        except ConnectorError as error:
            left = end - time.monotonic()
            if not error.retryable:
                raise
            if left <= 0:
                waited = f"; tried for {timeout_s:g} s (option retryTimeout)" if timeout_s else ""
                raise type(error)(error.message + waited, error.sqlstate, error.retryable) from None
        time.sleep(min(wait, left))
        wait = min(wait * 2, RETRY_LAST_S)


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that owns a partition, from which the partition is read.

    Args:
        node: its name in the cluster; "" for the gateway that the options name.
        host, port: its address.
    """

    node: str = ""
    host: str = ""
    port: int = 0

    def options(self, options: Options) -> Options:
        """The options of a connection to it: the given gateway's with another address."""
        return options.at(self.host, self.port) if self.node else options

    def __str__(self) -> str:
        """The owner in messages."""
        return f' on node "{self.node}"' if self.node else ""


GIVEN = Owner()


class Connections:
    """A driver's connections, one per node, opened at their first use."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open: dict[Owner, Connection] = {}

    def to(self, owner: Owner = GIVEN) -> Connection:
        """The connection to a node.

        Raises:
            ConnectorError: see `connect`.
        """
        connection = self._open.get(owner)
        if connection is None or connection.closed:
            connection = self._open[owner] = connect(owner.options(self._options), owner.node)
        return connection

    def close(self) -> None:
        """Close all connections."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _CopyFile:
    """The CopyData messages of one COPY as a file for pyarrow.

    The gateway sends each message of Arrow's in one CopyData, and a batch refers to these bytes: no copy.
    """

    closed = False

    def __init__(self, copy: psycopg.Copy) -> None:
        self._copy = copy
        self._piece = memoryview(b"")

    def read(self, count: int) -> memoryview | bytes:
        """The next bytes; fewer at the end."""
        taken = [self._take(count)]
        missing = count - len(taken[0])
        while missing and (data := self._copy.read()):
            self._piece = memoryview(data)
            taken.append(self._take(missing))
            missing -= len(taken[-1])
        return taken[-1] if len(taken[-1]) + missing == count else b"".join(taken)

    def close(self) -> None:
        """Mark the file as closed; the COPY belongs to its cursor."""
        self.closed = True

    def _take(self, count: int) -> memoryview:
        taken, self._piece = self._piece[:count], self._piece[count:]
        return taken


def copy_out(
    connection: Connection, query: sql.Composable, doing: str, look_at: str
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a query by COPY ( query ) TO STDOUT (FORMAT arrow), batch by batch as they arrive.

    Args:
        doing, look_at: see `failure`.

    Raises:
        ConnectorError: the query failed, at its beginning or later.
    """
    text = sql.SQL("COPY ({}) TO STDOUT (FORMAT arrow)").format(query)
    try:
        with connection.cursor().copy(text) as copy:
            with pa.ipc.open_stream(pa.PythonFile(_CopyFile(copy), mode="r")) as reader:
                yield from reader
            while copy.read():
                pass
    except psycopg.Error as error:
        raise failure(error, doing, look_at) from None


def arrow_schema(connection: Connection, query: sql.Composable, doing: str, look_at: str) -> pa.Schema:
    """The schema of a query's result, which is fetched without rows.

    Args:
        doing, look_at: see `failure`.

    Raises:
        ConnectorError: the query failed.
    """
    text = sql.SQL("COPY (SELECT * FROM ({}) AS probe LIMIT 0) TO STDOUT (FORMAT arrow)").format(query)
    try:
        with connection.cursor().copy(text) as copy:
            return pa.ipc.open_stream(b"".join(map(bytes, copy))).schema
    except psycopg.Error as error:
        raise failure(error, doing, look_at) from None
