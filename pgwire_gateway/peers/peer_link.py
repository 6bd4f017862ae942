"""One connection to a peer: requests are sent one after the other, and replies arrive over PostgreSQL's
protocol.

It lives on the server's event loop; `ask`, `cancel` and `release` may be called from any thread. Each request
is one Bind and Execute of a statement prepared at connect. Its frames arrive in binary: libpq splits the
messages, and no value is decoded. A peer's errors are raised here with all their fields. A peer
that is silent for long is probed by a connection of its own: TCP alone does not show that a process has
stopped. Source: docs/design/cluster.md, "Connections between nodes".
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from psycopg import pq

from ...engine import errors
from ...engine.errors import ConnectionLost, DucktailError, InternalError, QueryCanceled
from ...engine.placement.placement import Node
from ...sql.peers.remote import Reply
from ...sql.results.notices import NOTICES_MAX, Notice

FIELD = pq.DiagnosticField


def _classes() -> dict[str, type[DucktailError]]:
    """The classes of errors by SQLSTATE; of several, the first one in the catalogue."""
    found: dict[str, type[DucktailError]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, DucktailError) and value is not DucktailError:
            found.setdefault(value.sqlstate, value)
    return found


CLASSES = _classes()


def as_error(result: pq.abc.PGresult) -> DucktailError:
    """The error in a result."""

    def text(field: pq.DiagnosticField) -> str | None:
        value = result.error_field(field)
        return None if value is None else value.decode("utf-8", "replace")

    position = text(FIELD.STATEMENT_POSITION)
    kind = CLASSES.get(text(FIELD.SQLSTATE) or "", InternalError)
    return kind(
        text(FIELD.MESSAGE_PRIMARY) or "",
        detail=text(FIELD.MESSAGE_DETAIL),
        hint=text(FIELD.MESSAGE_HINT),
        position=int(position) if position else None,
        context=text(FIELD.CONTEXT),
    )


# The one statement of a link, under its name at the peer.
PREPARED, TEXT = b"forward", b"FORWARD $1"
BYTEA_OID, BINARY = 17, 1
# A peer that has not answered for so long is asked whether it is there, and again after as long; and how long
# that question may take, as it is its event loop that answers.
SILENT_S, PROBE_S = 5.0, 5.0
# What is said to a peer to see whether it answers at all: PostgreSQL's SSLRequest, whose answer is one byte.
SSL_REQUEST = struct.pack(">II", 8, 80877103)
CANCEL_S = 5.0
# After how long a cancel is said again, at first, and at most.
CANCEL_AGAIN_S, CANCEL_AGAIN_MAX_S = 0.05, 1.0


@dataclass(slots=True)
class Asked:
    """A request that is not answered yet."""

    request: bytes
    future: Future[Reply]
    notices: list[Notice] = field(default_factory=list)


class PeerLink:
    """A connection to a peer, with the requests in progress.

    Args:
        connection: a connection of psycopg, used only through the calls of libpq, on which TEXT is prepared.
        on_release: takes the link back when its session ends.
        on_lost: called once when the connection is lost.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: Node,
        epoch: int,
        connection: psycopg.AsyncConnection[object],
        on_release: Callable[[PeerLink], None],
        on_lost: Callable[[PeerLink], None],
    ) -> None:
        self.node = node
        self.epoch = epoch
        self.lost = False
        self._loop = loop
        self._thread = threading.get_ident()
        self._connection = connection
        self._libpq = connection.pgconn
        self._on_release = on_release
        self._on_lost = on_lost
        self._asked: deque[Asked] = deque()
        self._at: Asked | None = None
        self._results: list[pq.abc.PGresult] = []
        self._writing = False
        # Until a cancel has been dealt with by the peer: it must not end the request after the one it is for.
        self._cancelling = False
        self._settled = asyncio.Event()
        # It runs on when an answer comes: nearly all come long before it ends.
        self._probing: asyncio.TimerHandle | None = None
        self._sent_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._libpq.nonblocking = 1
        self._libpq.notice_handler = self._noticed
        self._socket = self._libpq.socket
        loop.add_reader(self._socket, self._readable)

    # From any thread.

    def ask(self, request: bytes) -> Future[Reply]:
        """See Link."""
        future: Future[Reply] = Future()
        self._on_loop(self._queue, Asked(request, future))
        return future

    def cancel(self, reply: Future[Reply]) -> None:
        """See Link."""
        self._on_loop(self._cancel, reply)

    def release(self) -> None:
        """See Link."""
        self._on_loop(self._release)

    def _on_loop(self, work: Callable[..., None], *arguments: object) -> None:
        if threading.get_ident() == self._thread:
            work(*arguments)
            return
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:  # The server has ended, and its loop is closed.
            for asked in arguments:
                if isinstance(asked, Asked):
                    asked.future.set_exception(self._gone("this node is shutting down"))

    # On the loop.

    @property
    def busy(self) -> bool:
        """True if requests are not answered yet."""
        return self._at is not None or bool(self._asked)

    def _queue(self, asked: Asked) -> None:
        self._asked.append(asked)
        if self.lost:
            self._fail(self._gone("the connection is closed"))
        else:
            self._send_next()

    def _send_next(self) -> None:
        if self._asked and self._at is None and not (self._cancelling or self.lost):
            self._send()

    def _send(self) -> None:
        self._at = at = self._asked.popleft()
        try:
            self._libpq.send_query_prepared(PREPARED, [at.request], [BINARY], result_format=BINARY)
            self._flush()
        except psycopg.Error as error:
            self._lose(_words(error))
            return
        self._sent_s = self._loop.time()
        if self._probing is None:
            self._probing = self._loop.call_later(SILENT_S, self._probe)

    def _flush(self) -> None:
        """Send libpq's output; the rest when the peer accepts it."""
        more = bool(self._libpq.flush())
        if more != self._writing:
            self._writing = more
            if more:
                self._loop.add_writer(self._socket, self._writable)
            else:
                self._loop.remove_writer(self._socket)

    def _writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self._lose(_words(error))

    def _readable(self) -> None:
        try:
            self._libpq.consume_input()
            self._libpq.notifies()
            while self._at is not None and not self._libpq.is_busy():
                result = self._libpq.get_result()
                if result is None:
                    self._answered()
                else:
                    self._results.append(result)
        except psycopg.Error as error:
            self._lose(_words(error))
            return
        if self._libpq.status != pq.ConnStatus.OK:
            self._lose("the node has closed the connection")

    def _answered(self) -> None:
        at, results = self._at, self._results
        assert at is not None, "what is answered was asked"
        self._at, self._results = None, []
        self._settled.set()
        failed = next((r for r in results if r.status == pq.ExecStatus.FATAL_ERROR), None)
        if failed is not None:
            if self._libpq.status != pq.ConnStatus.OK:
                self._asked.appendleft(at)
                self._lose(_words_of(failed))
                return
            self._settle(at, as_error(failed))
        else:
            frames = [r.get_value(row, 0) or b"" for r in results for row in range(r.ntuples)]
            if not at.future.done():
                at.future.set_result(Reply(tuple(frames), tuple(at.notices)))
        self._send_next()

    def _settle(self, at: Asked, error: DucktailError) -> None:
        if not at.future.done():
            at.future.set_exception(error)

    def _noticed(self, result: pq.abc.PGresult) -> None:
        if self._at is not None and len(self._at.notices) < NOTICES_MAX:
            error = as_error(result)
            severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b"NOTICE"
            sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"00000").decode()
            self._at.notices.append(
                Notice(severity.decode(), sqlstate, error.message, error.detail, error.hint)
            )

    def _cancel(self, reply: Future[Reply]) -> None:
        for asked in self._asked:
            if asked.future is reply:
                # It was not sent yet: an earlier one is being cancelled, say.
                self._asked.remove(asked)
                self._settle(asked, QueryCanceled("canceling statement due to user request"))
                return
        at = self._at
        if at is not None and at.future is reply and not (self.lost or self._cancelling):
            self._cancelling = True
            self._settled.clear()
            self._spawn(self._cancelled())

    async def _cancelled(self) -> None:
        again_s = CANCEL_AGAIN_S
        try:
            # It may come before the peer has begun with the request, and end nothing.
            while not (self._settled.is_set() or self.lost):
                await self._connection.cancel_safe(timeout=CANCEL_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._settled.wait(), again_s)
                again_s = min(2 * again_s, CANCEL_AGAIN_MAX_S)
        except psycopg.Error as error:
            # Nobody knows what it does now: it ends with its connection.
            self._lose(_words(error))
        finally:
            self._cancelling = False
            self._send_next()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _release(self) -> None:
        if not self.lost:
            self._on_release(self)

    # Whether the peer is still there.

    def _probe(self) -> None:
        self._probing = None
        if self._at is None or self.lost:
            return
        left_s = SILENT_S - (self._loop.time() - self._sent_s)
        if left_s > 0:
            self._probing = self._loop.call_later(left_s, self._probe)
        else:
            self._spawn(self._probed())

    async def _probed(self) -> None:
        at = self._at
        try:
            await asyncio.wait_for(answers(self.node), PROBE_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            if self._at is at:
                self._lose("the node does not answer any more")
            return
        if self._at is not None and not self.lost and self._probing is None:
            self._probing = self._loop.call_later(SILENT_S, self._probe)

    # Ends.

    def close(self) -> None:
        """End the connection; requests that are not answered fail."""
        self._lose("the connection is closed")

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        self._settled.set()
        if self._probing is not None:
            self._probing.cancel()
        self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._fail(self._gone(why))
        self._libpq.finish()
        self._on_lost(self)

    def _fail(self, error: DucktailError) -> None:
        asked = [*([self._at] if self._at is not None else []), *self._asked]
        self._at = None
        self._asked.clear()
        for one in asked:
            self._settle(one, error)

    def _gone(self, why: str) -> ConnectionLost:
        return ConnectionLost(
            f'the connection to node "{self.node.name}" was lost',
            detail=f"{why[:1].upper()}{why[1:].rstrip('.')}. What the statement did is unknown.",
            hint="Try again: a read loses nothing, and a commit of the same offsets is accepted.",
        )


async def answers(node: Node) -> None:
    """Return when the node's server has answered anything.

    Raises:
        OSError: the server cannot be reached.
        IncompleteReadError: the server closed the connection.
    """
    reader, writer = await asyncio.open_connection(node.host, node.port)
    try:
        writer.write(SSL_REQUEST)
        await reader.readexactly(1)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _words(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _words_of(result: pq.abc.PGresult) -> str:
    return as_error(result).message
