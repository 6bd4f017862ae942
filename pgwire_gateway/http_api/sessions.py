"""Sessions of HTTP clients: statements on the server's loop and workers, as over the wire.

A session is opened by `Server.open`, as for a client of the wire: it counts in `max_connections`, is logged,
shown in ducktail.sessions, and has its user's rights. One statement runs at a time. It holds a worker thread
while DuckDB works for it, and none while it waits. A request that ends early (its client is gone) cancels its
statement.

Sessions in which only this package's own statements run are kept for a while (`SessionPool`), for the next
request of the same user. A statement of the client's own (POST /v1/sql) gets a session of its own: settings,
temporary tables and variables end with the request.
Source: docs/design/pgwire_gateway.md, "HTTP API".
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ...engine.errors import DucktailError, NotSupported, SyntaxError_
from ...engine.values import parameters as wire_parameters
from ...engine.values.datarow import fields as fields_of_row
from ...engine.values.encoding import TEXT
from ...engine.waiting import Wait
from ...sql.results.notices import Notice
from ...sql.results.results import ResultColumn
from ...sql.session import Session
from ...sql.session_state.statement import ParsedStatement
from ...sql.text.classified import Kind
from ..codec import Limits
from ..conversation import Door, Entry, Need, Step
from ..conversation.channel import Channel, Fatal, Steps
from ..conversation.execution import StatementTimer, Work, placed
from ..conversation.startup import LONG_KEY_BYTES, MINOR
from ..server.event_loop import Wakes

if TYPE_CHECKING:
    from ..server import Server

T = TypeVar("T")

APPLICATION = "http"
# The name under which every database is served.
ANY_DATABASE = "ducktail"
# Kept sessions without a statement count in max_connections: few, and not for long.
IDLE_SESSIONS_MAX = 16
IDLE_S = 20.0
# A cancel between two calls to the session is repeated after this time, then after twice as long.
CANCEL_AGAIN_S = 0.05
# Rows that are taken from a result at once; fewer where each counts for a read position once it is taken.
ROWS_AT_ONCE, ROWS_AT_ONCE_TRACKED = 2000, 200
# Classes of SQLSTATEs after which a session is not used again.
BROKEN = frozenset({"08", "25", "28", "57", "58", "XX"})
ROW_HEAD_BYTES = 5


@dataclass(frozen=True, slots=True)
class Client:
    """An authenticated client of a request.

    Args:
        account: the user's name at creation; None is the database's owner.
        user: the name of its sessions.
        peer: the client's address.
        secured: it uses TLS.
        by_token: it has authenticated by a token.
    """

    account: str | None
    user: str
    peer: str
    secured: bool
    by_token: bool = False

    @property
    def key(self) -> str | None:
        """The client's user, for sharing sessions and reads."""
        return None if self.account is None else self.account.lower()


@dataclass(slots=True)
class Answer:
    """The answer of a statement.

    Args:
        columns: the columns of its rows; None if it returns none.
        types: the types of the columns.
        pieces: the rows as DataRow messages, many in each piece.
        tag: the command tag; "" if the answer is truncated.
        truncated: more rows exist than were taken.
        events: LSN and partition of each row, where the rows are in `copied`.
        copied: the messages of a COPY ... TO STDOUT.
    """

    columns: Sequence[ResultColumn] | None
    types: Sequence[str] = ()
    pieces: list[bytes | memoryview] = field(default_factory=list)
    row_count: int = 0
    tag: str = ""
    truncated: bool = False
    events: list[tuple[int, int]] | None = None
    copied: list[bytes | memoryview] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns or ()]

    def rows(self) -> Iterator[list[bytes | None]]:
        """The rows, field by field, in text."""
        for piece in self.pieces:
            yield from rows_in(piece)

    def texts(self) -> list[dict[str, str | None]]:
        """Few rows, as texts by the names of their columns."""
        names = self.names
        return [
            {name: None if value is None else value.decode() for name, value in zip(names, row, strict=True)}
            for row in self.rows()
        ]


def rows_in(piece: bytes | memoryview) -> Iterator[list[bytes | None]]:
    """The rows of consecutive DataRow messages, field by field."""
    view, place = memoryview(piece), 0
    while place < len(view):
        end = place + 1 + int.from_bytes(view[place + 1 : place + ROW_HEAD_BYTES], "big")
        yield fields_of_row(view[place:end])
        place = end


class RequestWork(Work):
    """The statements of one session; notices are kept for the answer in place of being sent."""

    notices: list[Notice]

    def _take_news(self) -> None:
        self.notices = [*getattr(self, "notices", ()), *self.session.take_notices()]
        changes = self.session.take_parameter_changes()
        self._reported.update(changes)


class HttpSession:
    """One session for requests of one client at a time.

    Args:
        workers: threads that may block.
        wakes: wakes the loop from other threads.
        settings: initial settings of the session.
    """

    def __init__(
        self,
        server: Server,
        workers: Executor,
        wakes: Wakes,
        client: Client,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.client = client
        self.secret = secrets.token_bytes(LONG_KEY_BYTES)
        self.node: str | None = None
        self.opened_s = 0.0
        self.used_s = 0.0
        self.broken = False
        self._server = server
        self._workers = workers
        self._wakes = wakes
        self._settings = settings or {}
        self._session: Session | None = None
        self._work: RequestWork | None = None
        self._ended: DucktailError | None = None
        bounds = server.database.settings
        self._channel = Channel(Limits(message_bytes_max=bounds.message_bytes_max))
        self._loop = asyncio.get_running_loop()
        self._running = False
        self._pressing: asyncio.TimerHandle | None = None

    # The server's side (`Visitor`).

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.client.peer

    @property
    def secured(self) -> bool:
        """True if the client uses TLS."""
        return self.client.secured

    def cancel_request(self) -> None:
        """Cancel the running statement."""
        self._press(CANCEL_AGAIN_S)

    def news(self) -> None:
        """Nothing: notifications are not part of any answer."""

    def cancelled(self) -> None:
        """Handle another session's cancel."""
        self._on_loop(self.cancel_request)

    def ended(self, error: DucktailError) -> None:
        """Handle the engine's end of the session."""
        self._ended, self.broken = error, True
        self._on_loop(self.cancel_request)

    def _on_loop(self, work: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    # The request's side.

    @property
    def session(self) -> Session:
        """The open session."""
        assert self._session is not None, "a session is opened before it is used"
        return self._session

    @property
    def notices(self) -> list[Notice]:
        """The notices of the statements since the last call."""
        assert self._work is not None, "a session is opened before it is used"
        notices, self._work.notices = self._work.notices, []
        return notices

    async def open(self) -> None:
        """Open the session, on a worker.

        Raises:
            TooManyConnections: no session is free.
            DucktailError: the session cannot be opened.
        """
        # A request names no database: each server has one.
        entry = Entry(self.client.user, ANY_DATABASE, APPLICATION, self._settings, (), MINOR, False)
        opening = self._loop.run_in_executor(
            self._workers, self._server.open, self, entry, Door(self.client.account)
        )
        try:
            self._session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Its client is gone: the session that is being opened must be closed nevertheless.
            self._session = await opening
            await self.close()
            raise
        session: Any = self._session
        session.access.by_token = self.client.by_token
        observed = StatementTimer(
            session.id, self._server.now_s, self._server.statement_log.statement_ended, session.trace
        )
        self._work = RequestWork(self._channel, session, observed)
        self._work.notices = []

    async def close(self) -> None:
        """End the session."""
        if self._session is None:
            return
        session, self._session = self._session, None
        try:
            await self._driven(_closing(session))
        finally:
            self._server.closed(self, session.id, self._ended)

    async def statement(
        self,
        text: str,
        parameters: Sequence[object] = (),
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        foreign: bool = False,
        copies: bool = False,
        suspends: bool = False,
    ) -> Answer:
        """Run one statement and take its rows.

        Args:
            parameters: values, or texts in the wire's form if `foreign`.
            rows_max, bytes_max: the answer is truncated beyond these.
            suspends: a truncated answer counts as delivered, as that of a portal, for the read position.
            foreign: the statement is a client's own.
            copies: the statement is a COPY ... TO STDOUT.

        Raises:
            DucktailError: the statement fails.
        """
        bounds = _Bounds(rows_max, bytes_max, suspends)
        return await self.steps(self._statement(text, parameters, bounds, foreign=foreign, copies=copies))

    async def steps(self, steps: Steps[T]) -> T:
        """Drive work on the session to its end; if the request is cancelled, so is the work."""
        task = asyncio.ensure_future(self._driven(self._told(steps)))
        self._running = True
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.broken = True
            self._press(CANCEL_AGAIN_S)
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            raise
        except DucktailError as error:
            self.broken = self.broken or error.sqlstate[:2] in BROKEN
            raise
        finally:
            self._running = False
            if self._pressing is not None:
                # A cancel that comes again would meet the next statement of this session.
                self._pressing.cancel()
                self._pressing = None
            self._channel.settle()

    def _press(self, again_s: float) -> None:
        if self._pressing is not None:
            self._pressing.cancel()
        if self._running and self._session is not None:
            self._channel.cancel()
            self._session.cancel()
            self._pressing = self._loop.call_later(again_s, self._press, 2 * again_s)

    def _told(self, steps: Steps[T]) -> Steps[T]:
        """The same steps, whose error has been reported to the session."""
        assert self._work is not None, "a session is opened before it is used"
        if self._ended is not None:
            raise self._ended
        try:
            return (yield from steps)
        except Fatal as error:
            raise error.error from None
        except Exception as error:
            told = yield from self._work.failed(error)
            raised = self._ended or told
            if raised is error:
                raise
            raise raised from error

    def _statement(
        self, text: str, parameters: Sequence[object], bounds: _Bounds, *, foreign: bool, copies: bool
    ) -> Steps[Answer]:
        work = self._work
        assert work is not None, "a session is opened before it is used"
        work.observed.reset(text)
        text, offset = _only_statement(work, text) if foreign else (text, 0)
        source, statement = yield from work.parse(text, offset, told=False)
        work.observed.found(statement.classified.kind, text)
        if foreign:
            _check(statement)
            if parameters or statement.part is not None:
                yield Need.WORKER
                with placed(source):
                    parameters = _values(statement, parameters)
        result = yield from work.execute(source, statement, parameters)
        if copies:
            answer = Answer(None, copied=self._channel.take_output(), tag=result.tag or "")
            work.observed.end()
            return answer
        columns = source.columns(result.columns)
        types = work.types(columns or ())
        answer = Answer(columns, types)
        try:
            yield from _taken(work, result, answer, bounds)
        except BaseException:
            result.fail()
            raise
        if foreign and self.session.transaction_status != "I":
            raise NotSupported(
                "transaction blocks are not supported over HTTP",
                hint="A request is one statement, which is a transaction of its own.",
            )
        work.observed.end()
        return answer

    async def _driven(self, steps: Steps[T]) -> T:
        """Perform the steps of work: on the loop, on a worker where DuckDB is called."""
        answer: bool | None = None
        worker = False
        while True:
            if worker:
                step = await self._on_worker(steps, answer)
            else:
                step = _advanced(steps, answer)
            answer = True
            if isinstance(step, _Done):
                result: T = step.value
                return result
            if isinstance(step, Wait):
                answer = await self._wakes.wait(step)
                worker = worker or step.works
            elif step is Need.WORKER:
                worker = True

    async def _on_worker(self, steps: Steps[Any], answer: bool | None) -> Step | _Done:
        def work() -> Step | _Done:
            step = _advanced(steps, answer)
            while step is Need.WORKER or step is Need.FLUSH:
                step = _advanced(steps, True)
            return step

        return await self._wakes.run(self._workers, work)


@dataclass(frozen=True, slots=True)
class _Done:
    """The end of the steps, with their result."""

    value: Any


@dataclass(slots=True)
class _Bounds:
    """The room that is left in an answer; None is without bound.

    Args:
        suspends: the rows of a full answer count as delivered.
    """

    rows: int | None
    bytes: int | None
    suspends: bool = False

    def use(self, rows: int, size: int) -> None:
        """Note rows of an answer."""
        self.rows = None if self.rows is None else self.rows - rows
        self.bytes = None if self.bytes is None else self.bytes - size


def _advanced(steps: Steps[Any], answer: bool | None) -> Step | _Done:
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as stop:
        return _Done(stop.value)


def _closing(session: Session) -> Steps[None]:
    yield Need.WORKER
    yield from session.close()


def _taken(work: RequestWork, result: Any, answer: Answer, bounds: _Bounds) -> Steps[None]:
    """Take a result's rows into an answer, up to its end or a bound."""
    formats = (TEXT,) * len(answer.types)
    most = ROWS_AT_ONCE_TRACKED if bounds.suspends else ROWS_AT_ONCE
    while True:
        # One row more than fits tells whether there are more.
        wanted = most if bounds.rows is None else min(most, bounds.rows + 1)
        batch = yield from work.fetch(result, wanted)
        if batch is None:
            answer.tag = result.tag or ""
            return
        if bounds.rows is not None and batch.row_count > bounds.rows:
            answer.truncated = True
            batch = batch.cut(0, bounds.rows)
        if answer.types:
            rows, count = batch.datarows(answer.types, formats, "UTC"), batch.row_count
            if bounds.bytes is not None and len(rows) > bounds.bytes and not bounds.suspends:
                rows, count = _fitting(rows, bounds.bytes)
                answer.truncated = True
            answer.pieces.append(rows)
            answer.row_count += count
            bounds.use(count, len(rows))
        if bounds.suspends and bounds.bytes is not None and bounds.bytes <= 0:
            answer.truncated = True
        if answer.truncated:
            if bounds.suspends:
                result.suspend()
                result.close()
            else:
                result.fail()
            return


def _fitting(rows: bytes | memoryview, size: int) -> tuple[bytes | memoryview, int]:
    """The first DataRows of a run that fit into a size, and their number."""
    view, place, count = memoryview(rows), 0, 0
    while place < len(view):
        end = place + 1 + int.from_bytes(view[place + 1 : place + ROW_HEAD_BYTES], "big")
        if end > size:
            break
        place, count = end, count + 1
    return view[:place], count


def _only_statement(work: RequestWork, text: str) -> tuple[str, int]:
    pieces = work.pieces(text)
    if len(pieces) != 1:
        raise SyntaxError_(
            "a request has one statement" if pieces else "a request has a statement, and this one has none"
        )
    return pieces[0]


# Kinds of statements that need a connection: their effect would end with the request.
KINDS_OF_CONNECTIONS = {
    Kind.TRANSACTION: "transaction statements are",
    Kind.CURSOR: "cursors are",
    Kind.PREPARE: "prepared statements are",
    Kind.EXECUTE: "prepared statements are",
}


def _check(statement: ParsedStatement) -> None:
    """Refuse a statement that needs a connection."""
    copy = statement.classified.copy
    if copy is not None and copy.client:
        raise NotSupported(
            "COPY FROM STDIN and COPY TO STDOUT are not supported over HTTP", hint="Use SELECT or INSERT."
        )
    what = KINDS_OF_CONNECTIONS.get(statement.classified.kind)
    if what is not None:
        raise NotSupported(
            f"{what} not supported over HTTP", hint="A request is one statement, in a session of its own."
        )


def _values(statement: ParsedStatement, given: Sequence[object]) -> Sequence[object]:
    """The values of a statement's parameters, from texts in the wire's form; DuckDB is called."""
    types = statement.parameter_types
    if len(given) != len(types):
        raise SyntaxError_(f"the statement has {len(types)} parameters, and the request {len(given)}")
    return [
        wire_parameters.decode(None if value is None else str(value).encode(), TEXT, 0, type_)
        for value, type_ in zip(given, types, strict=True)
    ]


class SessionPool:
    """The sessions of all HTTP clients.

    Args:
        workers: threads that may block.
        wakes: wakes the loop from other threads.
    """

    def __init__(self, server: Server, workers: Executor, wakes: Wakes) -> None:
        self._server = server
        self._workers = workers
        self._wakes = wakes
        self._idle: list[HttpSession] = []
        self._used: set[HttpSession] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._over: DucktailError | None = None

    async def taken(self, client: Client) -> HttpSession:
        """A session of a client's user, a kept one if there is one; `give_back` must follow.

        Raises:
            DucktailError: the session cannot be opened.
        """
        for session in reversed(self._idle):
            if session.client.account == client.account and not session.broken:
                self._idle.remove(session)
                self._used.add(session)
                return session
        return await self._opened(HttpSession(self._server, self._workers, self._wakes, client))

    async def _opened(self, session: HttpSession) -> HttpSession:
        if self._over is not None:
            raise self._over
        self._used.add(session)
        try:
            await session.open()
        except BaseException:
            self._used.discard(session)
            raise
        return session

    async def give_back(self, session: HttpSession) -> None:
        """Keep a session for a later request, or close it."""
        self._used.discard(session)
        if session.broken or self._over is not None or session.session.transaction_status != "I":
            await session.close()
            return
        session.used_s = asyncio.get_running_loop().time()
        self._idle.append(session)
        if len(self._idle) > IDLE_SESSIONS_MAX:
            self._close_later(self._idle.pop(0))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    @asynccontextmanager
    async def borrowed(self, client: Client) -> AsyncIterator[HttpSession]:
        """Context with a session of a client's user."""
        session = await self.taken(client)
        try:
            yield session
        finally:
            await asyncio.shield(asyncio.ensure_future(self.give_back(session)))

    @asynccontextmanager
    async def own(self, client: Client, settings: dict[str, str]) -> AsyncIterator[HttpSession]:
        """Context with a session that ends with it.

        Args:
            settings: initial settings of the session.
        """
        made = HttpSession(self._server, self._workers, self._wakes, client, settings)
        session = await self._opened(made)
        try:
            yield session
        finally:
            self._used.discard(session)
            await asyncio.shield(asyncio.ensure_future(session.close()))

    def _close_idle(self) -> None:
        """Close the sessions that nobody has used for a while."""
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._idle and loop.time() - self._idle[0].used_s >= IDLE_S:
            self._close_later(self._idle.pop(0))
        if self._idle:
            self._timer = loop.call_later(IDLE_S, self._close_idle)

    def _close_later(self, session: HttpSession) -> None:
        task = asyncio.ensure_future(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def end(self, error: DucktailError) -> None:
        """Open no more sessions, and end those that are used with `error`."""
        self._over = error
        for session in list(self._used):
            session.ended(error)

    async def close(self) -> None:
        """Close all sessions that no request uses."""
        if self._timer is not None:
            self._timer.cancel()
        for session in self._idle:
            self._close_later(session)
        self._idle.clear()
        if self._closing:
            await asyncio.wait(self._closing)
