"""One socket's connection: an asyncio protocol that drives a conversation.

The conversation starts on the event loop. Before a step that may block it moves to a worker thread, until it
needs input again; while it waits (for the client, a lock, an event) it holds no thread. Back-pressure works
both ways: the client's bytes are not read while its queue is full, and rows are not computed while it does
not take the ready ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import islice
from typing import Any, cast

from ...engine.errors import DucktailError
from ...engine.server_log import facts
from ...engine.waiting import Wait
from ..conversation import Conversation, Need, Step
from ..conversation.channel import Channel, Steps
from .event_loop import Wakes
from .tls import HANDSHAKE_BYTE, Credentials, TlsBroken, TlsClosed, TlsLayer

# The time after which the last message to a client that does not read is discarded.
CLOSE_TIMEOUT_S = 5.0
# The time during which a client's bytes are read and dropped after its session: with unread bytes the kernel
# would cut the connection, and the last message to the client with it.
LINGER_S = 1.0
# A cancel between two calls to the session is repeated after this time, then after twice as long.
CANCEL_AGAIN_S = 0.1
# The size of unsent output at which a conversation must wait, and at which it continues.
UNSENT_HIGH_BYTES = 1024 * 1024
UNSENT_LOW_BYTES = 256 * 1024
# The maximum number of bytes in one call to the socket: asyncio copies the part that it does not take.
SEND_BYTES = 256 * 1024
# The maximum number of pieces in one call to the socket; the system accepts 1024.
PIECES_TOGETHER_MAX = 64
# The maximum number of bytes read at once: with the shortest messages, some ten milliseconds of the event
# loop.
INBOX_BYTES = 64 * 1024
# The interval of checks of a socket that is not read, whose disconnection the loop does not notice.
WATCH_S = 1.0
GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

log = logging.getLogger("ducktail.gateway")


class Connection(asyncio.BufferedProtocol):
    """Drives one conversation.

    Args:
        loop: the event loop of the socket.
        inbox: the loop's buffer for arriving bytes; one for all its connections, because each takes its bytes
            at once.
        workers: threads that may block.
        wakes: wakes the loop from other threads; one for all its connections.
        conversation: the state machine.
        on_over: called once, on the loop, when conversation and session have ended.
        credentials: the certificate for a client that asks for TLS; None without one.
        authentication_timeout_s: the maximum time of the authentication, in seconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inbox: memoryview,
        workers: Executor,
        wakes: Wakes,
        conversation: Conversation,
        on_over: Callable[[Connection], None],
        credentials: Credentials | None = None,
        authentication_timeout_s: float = 10.0,
    ) -> None:
        self.conversation = conversation
        self._authentication_timeout_s = authentication_timeout_s
        self.peer = ""
        self._credentials = credentials
        self._tls: TlsLayer | None = None
        self._untouched = True
        self._channel = conversation.channel
        self._loop = loop
        self._inbox = inbox
        self._workers = workers
        self._wakes = wakes
        self._on_over = on_over
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._sending = True
        # The waiter for the client to take earlier output.
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        # The driver's present waiter; it is settled with the value that resumes the driver.
        self._input: asyncio.Future[None] | None = None
        self._drain: asyncio.Future[None] | None = None
        self._waiting = False
        self._news = False
        self._answering = True
        self._lingering = False
        self._pressing: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the conversation with a new client."""
        self._transport = cast(asyncio.Transport, transport)
        # None if the client has disconnected already.
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._transport.set_write_buffer_limits(high=0)
        # A peer whose machine is gone never reports it: let TCP probe.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._timer = self._loop.call_later(self._authentication_timeout_s, self._not_authenticated)
        self._task = self._loop.create_task(self._live())

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._inbox

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes from the client."""
        if self._lingering:
            return
        data = bytes(self._inbox[:nbytes])
        if self._untouched and self._credentials is not None and data[0] == HANDSHAKE_BYTE:
            self._start_tls(self._credentials, direct=True)
        self._untouched = False
        if self._tls is not None:
            data = self._decrypted(self._tls, data)
        if not data:
            return
        self._channel.receive(data)
        if self._channel.full and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
            if self._watching is None:
                self._watching = self._loop.call_later(WATCH_S, self._watch)
        _settle(self._input, None)

    def _watch(self) -> None:
        """Check whether a client that is not being read has disconnected."""
        self._watching = None
        assert self._transport is not None, "bytes came on a made connection"
        if self._reading or self._transport.is_closing():
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), GONE)
        if poll.poll(0):
            self._transport.abort()
        else:
            self._watching = self._loop.call_later(WATCH_S, self._watch)

    def _start_tls(self, credentials: Credentials, *, direct: bool) -> None:
        self._tls = TlsLayer(credentials, direct=direct)

    def _decrypted(self, tls: TlsLayer, data: bytes) -> bytes:
        """Decrypt the client's bytes; empty if they end the connection."""
        assert self._transport is not None, "bytes come on a made connection"
        plain, goes_on = b"", True
        try:
            plain = tls.receive(data)
        except TlsClosed:
            goes_on = False
        except TlsBroken as error:
            log.info("TLS of a connection has failed: %s", error, extra=facts(peer=self.peer))
            goes_on = False
        if answer := tls.take():
            self._transport.write(answer)
        if not goes_on:
            self._transport.close()
        elif tls.established and not self._channel.secured:
            self._channel.secure(tls.end_point)
        return plain

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the loss of the socket."""
        if self._watching is not None:
            self._watching.cancel()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._channel.lose()
        self.cancel()
        self._wake()

    def pause_writing(self) -> None:
        """Note that the client takes no more output for now."""
        self._sending = False

    def resume_writing(self) -> None:
        """Continue after the client has taken the output."""
        self._sending = True
        self._send()
        if self._unsent_bytes <= UNSENT_LOW_BYTES:
            _settle(self._drain, None)

    # The server's side, on the loop.

    @property
    def busy(self) -> bool:
        """True if a request is being answered."""
        return self._answering and self._task is not None and not self._task.done()

    def cancel(self) -> None:
        """Cancel the request that is being answered, if there is one."""
        if self.busy:
            self._channel.cancel()
            _settle(self._input, None)
            if self._pressing is not None:
                # Its delay may still be a long one, from an earlier cancel.
                self._pressing.cancel()
            self._press(CANCEL_AGAIN_S)

    def news(self) -> None:
        """Handle new notifications of the session."""
        self._news = True
        _settle(self._input, None)

    def ending(self, error: DucktailError) -> None:
        """Announce `end`; on any thread."""
        self._channel.end(error)

    def end(self, error: DucktailError) -> None:
        """End the session with `error`: at once if it is waiting, else after the present request."""
        self._channel.end(error)
        if self._waiting:
            self.cancel()
        self._wake()

    def hang_up(self) -> None:
        """Stop reading from a client whose session is over."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection, and cancel its work."""
        if self._transport is not None:
            self._transport.abort()

    def _press(self, again_s: float) -> None:
        # Between two calls to the session there is nothing to cancel yet, so repeat until the conversation
        # has noticed.
        self._pressing = None
        session = self.conversation.session
        if self.busy and self._channel.cancelled and session is not None:
            session.cancel()
            self._pressing = self._loop.call_later(again_s, self._press, 2 * again_s)

    # The driver.

    async def _live(self) -> None:
        try:
            for steps in (self.conversation.run(), self.conversation.close()):
                try:
                    await self._drive(steps)
                    self._write()
                except Exception:
                    log.exception("a connection has failed")
        finally:
            try:
                self._close()
            finally:
                self._on_over(self)

    async def _drive(self, steps: Steps[None]) -> None:
        answer: bool | None = None
        worker = False
        while True:
            if worker:
                step = await self._on_worker(steps, answer)
            else:
                step = _advance(steps, answer)
            answer = True
            if step is None:
                return
            if isinstance(step, Wait):
                self._write_due()
                answer = await self._wait_for(step)
                worker = worker or step.works
                continue
            if step is Need.WORKER:
                self._write_due()
                worker = True
                continue
            if step is Need.INPUT:
                # The answers of a pipeline without its Sync or Flush wait for it, as in PostgreSQL.
                self._write_due()
            else:
                self._write()
            if step is Need.FLUSH:
                # Give others a turn: a client that sends without end always has requests waiting.
                await asyncio.sleep(0)
                await self._drained()
            elif step is Need.SECURE:
                assert self._credentials is not None, "TLS is offered with a certificate only"
                self._start_tls(self._credentials, direct=False)
            else:
                # In a COPY the request continues: a cancel ends the wait for more of it.
                worker, self._answering = False, step is Need.COPYING
                if not self._answering:
                    # A cancel that arrived as the worker finished the request does not belong to the next
                    # one.
                    self._channel.settle()
                await self._more_input()
                self._answering = True

    async def _on_worker(self, steps: Steps[None], answer: bool | None) -> Step | None:
        """Run `_work` on a worker thread."""
        return await self._wakes.run(self._workers, lambda: _work(steps, self._channel, answer))

    def _write_due(self) -> None:
        """Send the output, unless it is the small beginning of an answer, which is sent with its end.

        A client would be woken for nothing by a ParseComplete alone.
        """
        if self._channel.pressing:
            self._write()

    def _write(self) -> None:
        """Send the conversation's output, as far as the client takes it."""
        for data in self._channel.take_output():
            if len(data) <= SEND_BYTES:
                self._unsent.append(data)
            else:
                view = memoryview(data)
                starts = range(0, len(view), SEND_BYTES)
                self._unsent += (view[start : start + SEND_BYTES] for start in starts)
            self._unsent_bytes += len(data)
        self._send()

    def _send(self, *, whole: bool = False) -> None:
        assert self._transport is not None, "a driver runs on a made connection"
        if self._sending and self._tls is None and len(self._unsent) > 1:
            self._send_together(self._transport)
        while self._unsent and (self._sending or whole):
            piece = self._unsent.popleft()
            self._unsent_bytes -= len(piece)
            if self._transport.is_closing():
                continue
            if self._tls is None:
                self._transport.write(piece)
            else:
                self._tls.send(piece)
                self._transport.write(self._tls.take())

    def _send_together(self, transport: asyncio.Transport) -> None:
        """Pass several pieces to the socket in one call, so that a client is not woken for the small ones.

        The rest is passed to asyncio, which waits until there is room.
        """
        if transport.is_closing() or transport.get_write_buffer_size():
            return
        pieces = list(islice(self._unsent, PIECES_TOGETHER_MAX))
        try:
            taken = os.writev(transport.get_extra_info("socket").fileno(), pieces)
        except OSError:
            return  # There is no room, or no peer: asyncio finds out which.
        self._unsent_bytes -= taken
        while taken:
            piece = self._unsent.popleft()
            if taken < len(piece):
                self._unsent.appendleft(piece[taken:])
            taken -= min(taken, len(piece))

    async def _more_input(self) -> None:
        assert self._transport is not None, "a driver runs on a made connection"
        if self.conversation.session is not None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unsent_bytes > UNSENT_HIGH_BYTES:
            # A client that does not take its answers gets no new request answered.
            await self._drained()
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()
        news, self._news = self._news, False
        if self._channel.idle and not self._channel.over and not self._cancelled_in_copy() and not news:
            self._input = self._loop.create_future()
            try:
                await self._input
            finally:
                self._input = None

    def _cancelled_in_copy(self) -> bool:
        return self._answering and self._channel.cancelled

    async def _drained(self) -> None:
        if self._unsent_bytes > UNSENT_HIGH_BYTES and not self._channel.over:
            self._drain = self._loop.create_future()
            try:
                await self._drain
            finally:
                self._drain = None

    async def _wait_for(self, wait: Wait) -> bool:
        self._waiting = True
        if self._channel.over:
            # The end arrived while the session was about to wait.
            self.cancel()
        try:
            return await self._wakes.wait(wait)
        finally:
            self._waiting = False

    def _wake(self) -> None:
        _settle(self._input, None)
        _settle(self._drain, None)

    # Ends.

    def _not_authenticated(self) -> None:
        if self.conversation.session is None:
            log.info("a connection was not authenticated in time", extra=facts(peer=self.peer))
            self.abort()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._send(whole=True)
            if self._tls is not None:
                # Without it the end may be an attacker's: libpq reports a failed cancel (close_notify).
                self._tls.end()
                self._transport.write(self._tls.take())
            self._lingering = True
            try:
                self._transport.write_eof()
            except OSError:
                # The client has vanished, and the loop has not noticed yet.
                self._transport.abort()
                return
            self._transport.resume_reading()
            self._loop.call_later(LINGER_S, self._transport.close)
            self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)


def _advance(steps: Steps[None], answer: bool | None) -> Step | None:
    """The next step, None at the end."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None


def _work(steps: Steps[None], channel: Channel, answer: bool | None) -> Step | None:
    """Run steps on a worker thread; return the first one that only the event loop can perform.

    A complete answer is written before DuckDB is called for the next request.
    """
    step = _advance(steps, answer)
    while step is Need.WORKER and not channel.due:
        step = _advance(steps, True)
    return step


def _settle(waiter: asyncio.Future[Any] | None, value: object) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(value)
