"""The three ways that a .slt file runs: in process, by the simple and by the extended protocol."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import slt_text
from psycopg import pq
from slt_file import Parameter
from transcripts import Trace

import ducktail

Row = tuple[str | None, ...]
EVERY_SYNC_LATE = "DUCKTAIL_LATE_SYNC" in os.environ
PLACEHOLDER = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one statement: rows (and how many columns), a row count, or an error."""

    columns: int | None = None
    rows: tuple[Row, ...] = ()
    count: int | None = None
    sqlstate: str | None = None
    message: str = ""  # with "DETAIL: ..." and "HINT: ..." on lines of their own


class Way(Protocol):
    """One way to run statements against a database file."""

    def open(self, path: Path, settings: dict[str, int]) -> None:
        """Open the database at `path`, made where there is none."""

    def execute(self, connection: str, sql: str, parameters: Sequence[Parameter]) -> Answer:
        """Run one statement in the session called `connection`, made where there is none."""

    def close(self) -> None:
        """End all sessions and close the database; `open` may follow."""


class InProcess:
    """Through ducktail.connect; a session is a connection of its own."""

    def __init__(self) -> None:
        self._connections: dict[str, ducktail.Connection] = {}

    def open(self, path: Path, settings: dict[str, int]) -> None:
        """Open the database at `path`, made where there is none."""
        given: dict[str, Any] = dict(settings)
        self._connections["default"] = ducktail.connect(path, **given)

    def execute(self, connection: str, sql: str, parameters: Sequence[Parameter]) -> Answer:
        """Run one statement in the session called `connection`, made where there is none."""
        if connection not in self._connections:
            self._connections[connection] = self._connections["default"].duplicate()
        with self._connections[connection].cursor() as cursor:
            try:
                cursor.execute(sql, parameters)
                if cursor.description is None:
                    return Answer(count=cursor.rowcount)
                rows = tuple(tuple(slt_text.text(value) for value in row) for row in cursor.fetchall())
                return Answer(len(cursor.description), rows, cursor.rowcount)
            except ducktail.Error as error:
                return _failure(error.sqlstate, error.message, error.detail, error.hint)

    def close(self) -> None:
        """End all sessions and close the database; `open` may follow."""
        for connection in reversed(self._connections.values()):
            connection.close()
        self._connections.clear()


class Host:
    """The server process that the ways over the wire share; see slt_host and slt_cluster_host.

    Args:
        log: a file for what it writes to standard error; else that is the tests' own.
    """

    def __init__(self, program: str = "slt_host.py", log: Path | None = None) -> None:
        path = Path(__file__).with_name(program)
        with log.open("wb") if log else nullcontext() as error:
            self._process = subprocess.Popen(
                [sys.executable, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error,
                text=True,
            )

    def ask(self, **request: object) -> dict[str, int]:
        """Send one request and wait for its answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the server process ended; its standard error says why"
        answer: dict[str, int] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process and wait for it."""
        self._process.communicate(timeout=30)


class Wire:
    """Through libpq to a server process.

    Args:
        extended: Parse, Describe, Bind, Execute with parameters; else one Query message. Of every second
            Execute, or with DUCKTAIL_LATE_SYNC of each, the Sync comes late.

    Attributes:
        transcript: the server's messages for each statement, complete when it is closed.
    """

    def __init__(self, host: Host, extended: bool) -> None:
        self._host, self._extended = host, extended
        self._late_sync = False
        self._connections: dict[str, pq.abc.PGconn] = {}
        self._traces: dict[pq.abc.PGconn, Trace] = {}
        self._sent: list[pq.abc.PGconn] = []  # each statement's connection, in their order
        self.transcript: list[str] = []

    def open(self, path: Path, settings: dict[str, int]) -> None:
        """Open the database at `path`, made where there is none."""
        self._path = str(path)
        self._port = self._host.ask(open=self._path, settings=settings)["port"]

    def execute(self, connection: str, sql: str, parameters: Sequence[Parameter]) -> Answer:
        """Run one statement in the session called `connection`, made where there is none."""
        if connection not in self._connections:
            self._connections[connection] = self._connect()
        return self._run(self._connections[connection], sql, parameters)

    def _run(self, session: pq.abc.PGconn, sql: str, parameters: Sequence[Parameter]) -> Answer:
        self._sent.append(session)
        if not self._extended:
            if parameters:
                sql = PLACEHOLDER.sub(lambda match: _literal(parameters[int(match[1]) - 1]), sql)
            return _answer(session.exec_(sql.encode()))
        prepared = session.prepare(b"", sql.encode())
        if prepared.status == pq.ExecStatus.FATAL_ERROR:
            return _answer(prepared)
        described = session.describe_prepared(b"")
        if described.status == pq.ExecStatus.FATAL_ERROR:
            return _answer(described)
        values = [_wire_text(value) for value in parameters]
        self._late_sync = EVERY_SYNC_LATE or not self._late_sync
        result = _executed_late(session, values) if self._late_sync else session.exec_prepared(b"", values)
        if result.status == pq.ExecStatus.TUPLES_OK:
            shapes = [[(r.fname(i), r.ftype(i)) for i in range(r.nfields)] for r in (described, result)]
            assert shapes[0] == shapes[1], f"Describe said {shapes[0]}, the answer has {shapes[1]}"
        return _answer(result)

    def close(self) -> None:
        """End all sessions and close the database; `open` may follow."""
        heard = {session: iter(trace.end()) for session, trace in self._traces.items()}
        self.transcript += [next(heard[session]) for session in self._sent]
        self._traces.clear()
        self._sent.clear()
        for connection in self._connections.values():
            connection.finish()
        self._connections.clear()
        self._host.ask(close=self._path)

    def _connect(self, port: int | None = None) -> pq.abc.PGconn:
        conninfo = f"host=127.0.0.1 port={port or self._port} dbname=ducktail user=ducktail"
        session = pq.PGconn.connect(conninfo.encode())
        assert session.status == pq.ConnStatus.OK, session.error_message.decode()
        self._traces[session] = Trace(session)
        return session


class Forwarded(Wire):
    """Two nodes: reads, commits, publishes and what is about groups go to the one that owns nothing.

    Tables, streams and topics are made and written on the other. What stands in a transaction block, or is
    about the session itself, goes there as well; a SET and a CREATE SCHEMA go to both.
    """

    def open(self, path: Path, settings: dict[str, int]) -> None:
        """Open both databases."""
        self._path = str(path)
        self._ports = self._host.ask(open=self._path, settings=settings)
        self._topics: set[str] = set()
        self._readers: dict[str, pq.abc.PGconn] = {}

    def execute(self, connection: str, sql: str, parameters: Sequence[Parameter]) -> Answer:
        """Run one statement on the node that it is for."""
        owner, entry = (self._session(connection, node) for node in ("local", "entry"))
        self._topics.update(name.lower() for name in TOPIC.findall(sql))
        in_block = owner.transaction_status != pq.TransactionStatus.IDLE
        if SETTING.match(sql) and not in_block:
            self._run(entry, sql, parameters)
        session = entry if not in_block and self._is_for_entry(sql) else owner
        if POSITION.match(sql) and not in_block:
            # Where this session has read last.
            session = self._readers.get(connection, session)
        elif SCAN.search(sql):
            self._readers[connection] = session
        answer = self._run(session, sql, parameters)
        if session is entry and PUBLISHED.match(sql) and answer.columns == 4:
            # The last column says whether an event was stored on the node that was asked.
            return replace(answer, rows=tuple((*row[:3], "t") for row in answer.rows))
        if LISTS.match(sql) and answer.columns:
            # The last column says on which node it is.
            return replace(answer, columns=answer.columns - 1, rows=tuple(row[:-1] for row in answer.rows))
        if session is entry and answer.sqlstate == "42704" and not in_block:
            # That a name is a table, and no stream, is told where the table is.
            return self._run(owner, sql, parameters)
        return answer

    def _is_for_entry(self, sql: str) -> bool:
        inserted = INSERTED.match(sql)
        if inserted is not None and inserted[1].lower() in self._topics:
            return RETURNING.search(sql) is None
        return AWAY.match(sql) is not None and INTO.search(sql) is None

    def _session(self, connection: str, node: str) -> pq.abc.PGconn:
        name = f"{connection} on {node}"
        if name not in self._connections:
            self._connections[name] = self._connect(self._ports[node])
        return self._connections[name]


class Spread(Wire):
    """Three nodes that each own a third of every topic; statements go to the one that owns partition 0."""

    def open(self, path: Path, settings: dict[str, int]) -> None:
        """Open the three databases."""
        self._path = str(path)
        self._port = self._host.ask(open=self._path, settings=settings, spread=True)["local"]


TOPIC = re.compile(r"\bCREATE\s+TOPIC\s+(?:IF\s+NOT\s+EXISTS\s+)?([\w.]+)", re.IGNORECASE)
LISTS = re.compile(r"\s*SHOW\s+(?:(?:CHANGE\s+)?STREAMS|TOPICS|CONSUMER\s+GROUPS\s*$)", re.IGNORECASE)
SETTING = re.compile(r"\s*(?:SET|RESET|CREATE\s+SCHEMA)\b", re.IGNORECASE)
INSERTED = re.compile(r"\s*INSERT\s+INTO\s+([\w.]+)", re.IGNORECASE)
PUBLISHED = re.compile(r"\s*PUBLISH\b", re.IGNORECASE)
# RETURNING of a topic that has partitions on other nodes is 0A000.
RETURNING = re.compile(r"\bRETURNING\b", re.IGNORECASE)
INTO = re.compile(r"\bINSERT\s+INTO\b|\bCREATE\b.*\bTABLE\b", re.IGNORECASE | re.DOTALL)
POSITION = re.compile(r"\s*(?:COMMIT\s+OFFSETS\s+ON|SHOW\s+READ)\b", re.IGNORECASE)
SCAN = re.compile(r"\b(?:FROM|JOIN)\s+(?:STREAM|TOPIC)\b.*\bCONSUMER\s+GROUP\b", re.IGNORECASE | re.DOTALL)
AWAY = re.compile(
    r"\s*(?:(?:SELECT|WITH|FROM|EXPLAIN)\b.*\b(?:FROM|JOIN)\s+(?:STREAM|TOPIC)\s+[\w\"]"
    r"|COMMIT\s+OFFSETS?\b|PUBLISH\b|(?:CREATE|ALTER|DROP|DESCRIBE|LEAVE)\s+CONSUMER\s+GROUP\b"
    r"|SHOW\s+(?:OFFSETS|MEMBERS|PARKED|READ|PARTITIONS|BOOKMARKS\s+ON|CONSUMER\s+GROUPS\s+ON)\b"
    r"|DESCRIBE\s+STREAM\b|(?:CREATE|DROP)\s+BOOKMARK\b)",
    re.IGNORECASE | re.DOTALL,
)


# How long a late Sync is held back.
LATE_S = 0.002


def _executed_late(session: pq.abc.PGconn, values: list[bytes | None]) -> pq.abc.PGresult:
    """Execute the unnamed statement; its Sync follows in a later packet.

    The server usually waits for it by then, and writes nothing but an error or a notice.
    """
    session.enter_pipeline_mode()
    session.send_query_prepared(b"", values)
    session.flush()
    select.select([session.socket], [], [], LATE_S)
    session.pipeline_sync()
    session.flush()
    found = None
    while (result := session.get_result()) is None or result.status != pq.ExecStatus.PIPELINE_SYNC:
        found = found or result
    session.exit_pipeline_mode()
    assert found is not None, "an Execute is answered"
    return found


def _answer(result: pq.abc.PGresult) -> Answer:
    if result.status == pq.ExecStatus.TUPLES_OK:
        rows = tuple(
            tuple(_decoded(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        )
        return Answer(result.nfields, rows, result.command_tuples)
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY):
        return Answer(count=result.command_tuples)
    fields = (
        pq.DiagnosticField.SQLSTATE,
        pq.DiagnosticField.MESSAGE_PRIMARY,
        pq.DiagnosticField.MESSAGE_DETAIL,
        pq.DiagnosticField.MESSAGE_HINT,
    )
    sqlstate, message, detail, hint = (_decoded(result.error_field(field)) for field in fields)
    return _failure(sqlstate or "(no sqlstate)", message or result.error_message.decode(), detail, hint)


def _failure(sqlstate: str | None, message: str, detail: str | None, hint: str | None) -> Answer:
    parts = [message]
    parts += [f"DETAIL: {detail}"] if detail else []
    parts += [f"HINT: {hint}"] if hint else []
    return Answer(sqlstate=sqlstate, message="\n".join(parts))


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _wire_text(value: Parameter) -> bytes | None:
    if value is None:
        return None
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()


def _literal(value: Parameter) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | Decimal) else "'" + value.replace("'", "''") + "'"
