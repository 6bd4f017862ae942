"""A connection to the gateway, and what its errors mean to a Spark query.

`connect` makes one; `failure` turns whatever psycopg raises into a `ConnectorError` of one sentence that
names the option to look at and says whether to try again; `retrying` does so for as long as `retryTimeout`
allows. What can be tried again: the gateway is not there or going (08xxx, 57P01, 57P03, a broken
connection), is full for now (53300), or somebody else was first (40001, 55P03). All else is for a person.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from .errors import ConnectorError
from .options import Options

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

APPLICATION = "ducktail-spark"

_MADE_FROM = ("host", "port", "user", "password", "database", "sslmode", "sslrootcert")

# Of the wait between two tries: doubled from the first to the last.
RETRY_FIRST_S = 0.1
RETRY_LAST_S = 2.0

# A dead peer is noticed by TCP itself in about idle + count * interval seconds, also in a long poll; and
# within tcp_user_timeout (milliseconds) where it does not acknowledge what was sent.
_KEEPALIVES: dict[str, Any] = {
    "keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 45_000,
}  # fmt: skip

RETRYABLE = frozenset({"40001", "55P03", "53300", "57P01", "57P02", "57P03"})
_RETRYABLE_CLASS = "08"

# SQLSTATE -> the options to look at, where the server's sentence alone does not say.
_TO_LOOK_AT = {
    "28P01": "user, password",
    "28000": "user, sslmode",
    "42501": "user",
    "3D000": "database",
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A way in which a connection is not made.

    Args:
        pattern: libpq's words for it; the SQLSTATE of a connection it keeps to itself.
        told: which options to look at.
        sqlstate: the one that the gateway has said, where the words leave no doubt.
        retryable: whether it may pass.
    """

    pattern: str
    told: str
    sqlstate: str | None = None
    retryable: bool = False


# The first that fits holds.
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
    """A connection in autocommit mode, its session in UTC.

    Args:
        options: those of `options.py`; only the first group of the table is read.
        node: the name of the node of a cluster that it is to; "" for the gateway that the user names.

    Raises:
        ConnectorError: it cannot be made; the message names the option.
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
            # libpq counts whole seconds, and takes 0 for no end.
            connect_timeout=max(1, round(options["connectTimeout"])),
            application_name=APPLICATION,
            options="-c TimeZone=UTC",
            autocommit=True,
            # A prepared statement lives in one session; each of ours is sent a few times at most.
            prepare_threshold=None,
            **_KEEPALIVES,
        )
    except psycopg.Error as error:
        raise _not_connected(error, options, node) from None


# The idle connections of a Python worker, with what they were made from: Spark runs task after task in a
# worker, and a new connection, whose statements the gateway has not seen yet, costs a small task half of its
# time. One a node, of the nodes that it has read from last.
_idle: dict[tuple[Any, ...], Connection] = {}
IDLE_MAX = 8


def borrow(options: Options, node: str = "") -> Connection:
    """The worker's idle connection, if it still answers, or a new one; `give_back` or close it.

    Args:
        node: as `connect` takes it.

    Raises:
        ConnectorError: as `connect`.
    """
    connection = _idle.pop(_key(options), None)
    if connection is not None:
        try:
            connection.execute("SELECT 1")
            return connection
        except psycopg.Error:
            connection.close()
    return connect(options, node)


def give_back(connection: Connection, options: Options) -> None:
    """Keep a connection, on which nothing is under way, for the worker's next task."""
    key = _key(options)
    same = _idle.pop(key, None)
    if same is not None:
        same.close()
    _idle[key] = connection
    while len(_idle) > IDLE_MAX:
        _idle.pop(next(iter(_idle))).close()


@contextlib.contextmanager
def lent(options: Options, node: str = "") -> Iterator[Connection]:
    """The worker's connection for a while; it is kept for the next task, or closed where something failed.

    Args:
        node: as `connect` takes it.

    Raises:
        ConnectorError: as `connect`.
    """
    connection = borrow(options, node)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    give_back(connection, options)


def _key(options: Options) -> tuple[Any, ...]:
    """What a connection is made from, and in which process: a fork must not use its parent's."""
    return (os.getpid(), *(options[name] for name in _MADE_FROM))


def _not_connected(error: psycopg.Error, options: Options, node: str) -> ConnectorError:
    where = f"{options['host']}:{options['port']}"
    what = f'node "{node}" of the cluster' if node else "the gateway"
    said = " ".join(str(error).split())
    refusal = next(one for one in _REFUSALS if re.search(one.pattern, said))
    message = f"cannot connect to {what} at {where} ({refusal.told}): {said}"
    return ConnectorError(message, refusal.sqlstate, refusal.retryable)


def failure(error: psycopg.Error, doing: str, look_at: str = "") -> ConnectorError:
    """What a statement's error means.

    Args:
        error: of psycopg.
        doing: what was being done, such as 'reading stream "orders_stream"'.
        look_at: the options that name what the statement is about, such as "stream".
    """
    state = error.sqlstate
    options = _TO_LOOK_AT.get(state or "", look_at)
    named = f" (option{'s' if ',' in options else ''} {options})" if options else ""
    said = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    message = f"{doing} failed{named}: {said}"
    place = f"At {error.diag.context}." if error.diag.context else None
    more = [part for part in (error.diag.message_detail, place, error.diag.message_hint) if part]
    if more:
        message += ". " + " ".join(more)
    return ConnectorError(message, state, is_retryable(error))


def is_retryable(error: psycopg.Error) -> bool:
    """Whether the same statement may succeed later: on a new connection, if this one is broken."""
    state = error.sqlstate
    if state is None:
        # The connection broke, and libpq says so without a SQLSTATE.
        return isinstance(error, psycopg.OperationalError)
    return state in RETRYABLE or state.startswith(_RETRYABLE_CLASS)


def retrying(work: Callable[[], T], timeout_s: float) -> T:
    """What `work` returns; it is called again after a retryable ConnectorError until the time is over.

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
            if not error.retryable or left <= 0:
                raise
        time.sleep(min(wait, left))
        wait = min(wait * 2, RETRY_LAST_S)
