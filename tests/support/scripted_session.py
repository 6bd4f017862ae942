"""A conversation of the wire over a session that follows a script, driven without a socket.

The script: `rows n` gives n rows, `fail STATE` raises, `wait` waits, `begin`/`commit`/`rollback` do
what they say, anything else is a command without rows. `calls` is what the session was asked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ducktail.engine.duck.duckdb_errors import translated
from ducktail.engine.errors import (
    DucktailError,
    QueryCanceled,
    SerializationFailure,
    SyntaxError_,
    UndefinedTable,
)
from ducktail.engine.waiting import Wait, Waiting
from ducktail.pgwire_gateway.conversation import Conversation, Door, EndedStatement, Entry, Need, Step
from ducktail.sql.language.classify import classify
from ducktail.sql.session_state.portals import Portals
from ducktail.sql.text.classified import Classified, Kind

SECRET = bytes(range(32))


@dataclass(frozen=True)
class Column:
    name: str = "n"
    type: str = "INTEGER"
    table_oid: int = 0
    number: int = 0


@dataclass
class Statement:
    text: str
    inline: bool = False
    varies: bool = False

    @property
    def classified(self) -> Classified:
        if self.text.startswith("deallocate"):
            return classify(self.text)
        return Classified(Kind.UTILITY, self.text, ())

    @property
    def empty(self) -> bool:
        return not self.text

    @property
    def parameter_types(self) -> tuple[str, ...]:
        return ("INTEGER",) * self.text.count("$")

    @property
    def types_shown(self) -> tuple[str, ...]:
        return self.parameter_types

    @property
    def columns(self) -> tuple[Column, ...] | None:
        if self.text.startswith("wide"):
            return (Column(),) * int(self.text.split()[1])
        return (Column(),) if self.text.startswith("rows") else None


@dataclass
class Rows:
    """A batch of ready DataRows."""

    row_count: int

    def parts(self) -> Sequence[Rows]:
        return ()

    def datarows(self, types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes:
        return (b"D" + struct.pack("!iHi", 10, 1, -1)) * self.row_count


@dataclass
class Result:
    columns: tuple[Column, ...] | None
    left: int
    command: str
    tag: str | None = None
    given: int = 0
    closed: bool = False
    suspended: int = 0
    elsewhere: bool = False
    settles: bool = False
    committed: bool = False
    copy_in: None = None
    copy_out: None = None
    formats: tuple[int, ...] = ()

    def is_ready(self, rows: int | None) -> bool:
        return True

    def fetch(self, max_rows: int | None) -> Rows | None:
        assert not self.closed
        if not self.left:
            self.tag = f"SELECT {self.given}" if self.columns else self.command
            return None
        # Batches are smaller than what is asked for: a limit is reached over several.
        rows = min(self.left, 3, max_rows or 3)
        self.left -= rows
        self.given += rows
        return Rows(rows)

    @property
    def row_count(self) -> int:
        return self.given

    def suspend(self) -> None:
        self.suspended += 1

    def fail(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True


@dataclass
class Session:
    id: int = 7
    transaction_status: str = "I"
    implicit: bool = False
    calls: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    cancelled: bool = False
    fail_commit: bool = False
    portals: Portals = field(default_factory=lambda: Portals(1000, lambda: 0))

    def parse(self, text: str, oids: Sequence[int] = (), *, told: bool = True) -> Waiting[Statement]:
        yield from ()
        self.calls.append(f"parse {text}")
        if text.startswith("nonsense"):
            raise UndefinedTable("no sense", position=5)
        if text == "gibberish":
            raise SyntaxError_("no SQL", position=1)
        return Statement(text, inline=text == "inline")

    def is_known_write(self, text: str) -> bool:
        return False

    def is_stale(self, statement: Statement) -> bool:
        return False

    def renew(self, statement: Statement) -> None:
        raise AssertionError("nothing is stale")

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Waiting[Result]:
        self.calls.append(f"execute {statement.text}")
        verb, _, rest = statement.text.partition(" ")
        if verb == "fail":
            raise SerializationFailure("it failed")
        if verb == "crash":
            raise ZeroDivisionError("a fault of ours")
        if verb == "wait":
            done = yield Wait(Future(), 1.0)
            if self.cancelled:
                self.cancelled = False
                raise QueryCanceled("cancelled")
            self.calls.append(f"waited {done}")
        if verb in ("begin", "commit", "rollback"):
            self.implicit = False
            self.transaction_status = "T" if verb == "begin" else "I"
        rows = int(rest.split()[0]) if verb == "rows" else 0
        tag = "DEALLOCATE ALL" if statement.text == "deallocate all" else verb.upper()
        self.results.append(Result(statement.columns, rows, tag))
        return self.results[-1]

    def begin_implicit(self, *, piped: bool = False) -> Waiting[None]:
        yield from ()
        if self.transaction_status == "I" and not self.implicit:
            self.calls.append("begin_implicit")
            self.implicit = True

    def cycle_ended(self) -> None:
        pass

    def commit_implicit(self) -> Waiting[None]:
        yield from ()
        if self.implicit:
            self.implicit = False
            self.calls.append("commit_implicit")
            if self.fail_commit:
                raise SerializationFailure("lost")

    def abort_implicit(self) -> Waiting[None]:
        yield from ()
        if self.implicit:
            self.calls.append("abort_implicit")
            self.implicit = False

    def fail(self) -> None:
        if self.transaction_status == "T":
            self.transaction_status = "E"

    def as_told(self, error: Exception) -> DucktailError:
        return translated(error)

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> Waiting[None]:
        yield from ()
        self.calls.append("close")

    @property
    def has_news(self) -> bool:
        return False

    def take_notices(self) -> list[Any]:
        return []

    def take_notifications(self) -> list[Any]:
        return []

    def take_parameter_changes(self) -> dict[str, str]:
        return {}

    def trace(self) -> str:
        return ""

    def parameter_status(self) -> dict[str, str]:
        return {
            "server_version": "15.0", "TimeZone": "UTC", "DateStyle": "ISO, MDY", "IntervalStyle": "postgres"
        }  # fmt: skip


@dataclass
class Host:
    session: Session
    entries: list[Entry] = field(default_factory=list)
    cancels: list[tuple[int, bytes]] = field(default_factory=list)
    refusals: list[tuple[str | None, str]] = field(default_factory=list)
    ended: list[EndedStatement] = field(default_factory=list)
    time_s: float = 0.0
    refuse: DucktailError | None = None
    offers_tls: bool = False

    door_: Door = Door()
    doors: list[Door] = field(default_factory=list)

    def door(self, entry: Entry, *, secured: bool) -> Door:
        return self.door_

    def open_session(self, entry: Entry, door: Door) -> Session:
        self.entries.append(entry)
        self.doors.append(door)
        if self.refuse is not None:
            raise self.refuse
        return self.session

    def refused(self, entry: Entry | None, error: DucktailError) -> None:
        self.refusals.append((None if entry is None else entry.user, error.sqlstate))

    def now_s(self) -> float:
        return self.time_s

    def statement_ended(self, ended: EndedStatement) -> None:
        self.ended.append(ended)

    def cancel(self, pid: int, secret: bytes) -> None:
        self.cancels.append((pid, secret))


class Driver:
    """Drives a conversation as the server does, but one call at a time."""

    def __init__(self, read_answers: Callable[[bytes], list[tuple[str, bytes]]]) -> None:
        self.session = Session()
        self.host = Host(self.session)
        self.conversation = Conversation(self.host, SECRET)
        self.channel = self.conversation.channel
        self.steps: Generator[Step, Any, None] = self.conversation.run()
        self.hops = 0
        self.flushes = 0
        self.over = False
        self._read = read_answers
        self.wait: Wait | None = None
        self._go(None)

    def say(self, data: bytes) -> list[tuple[str, bytes]]:
        """Send bytes; the answers up to the next need of input (or wait, or end)."""
        self.channel.receive(data)
        return self._go(True)

    def raw(self, data: bytes) -> bytes:
        """As `say`, for answers that are no messages."""
        self.channel.receive(data)
        self._advance(True)
        return b"".join(self.channel.take_output())

    def end_wait(self, value: bool) -> list[tuple[str, bytes]]:
        """What comes after a wait."""
        assert self.wait is not None
        return self._go(value)

    def kinds(self, data: bytes) -> str:
        """The type letters of the answers."""
        return "".join(kind for kind, _ in self.say(data))

    def until_flush(self) -> int:
        """Go on until the client has to take what there is; the bytes that it takes."""
        step = self.steps.send(True)
        while step is not Need.FLUSH:
            step = self.steps.send(True)
        return sum(map(len, self.channel.take_output()))

    def _go(self, value: Any) -> list[tuple[str, bytes]]:
        self._advance(value)
        return self._read(b"".join(self.channel.take_output()))

    def _advance(self, value: Any) -> None:
        self.wait = None
        try:
            step = next(self.steps) if value is None else self.steps.send(value)
            while step is not Need.INPUT:
                if isinstance(step, Wait):
                    self.wait = step
                    return
                self.hops += step is Need.WORKER
                self.flushes += step is Need.FLUSH
                step = self.steps.send(True)
        except StopIteration:
            self.over = True
