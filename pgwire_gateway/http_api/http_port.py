"""The port of the HTTP API: aiohttp's parser and protocol, within the bounds of this server.

A connection costs some kilobytes, and may do nothing for `IDLE_S`, the arrival of a request's header
included; a body has `BODY_S` (requests.py). Beyond `http_connections_max` the connection that has been idle
longest is closed for a new one; if none is idle, the new one is closed. So neither clients that say nothing
nor those that trickle keep others out. Requests are authenticated before their body is read.
Source: docs/http.md; docs/design/pgwire_gateway.md, "HTTP API".
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web
from aiohttp.http import HttpVersion10
from aiohttp.web_protocol import RequestHandler

from ...engine.errors import DucktailError, InternalError, ProtocolViolation, UndefinedObject
from ...engine.server_log import facts
from ..server.admission import check_listener
from ..server.event_loop import Wakes
from ..server.metrics import CONTENT_TYPE, Metrics
from ..server.tls import TlsFiles
from .authentication import Authentication
from .event_stream import CATCHING_UP_MAX
from .failures import failure
from .requests import check_head
from .routes import ROUTES
from .sessions import Client, SessionPool
from .tails import Tails

if TYPE_CHECKING:
    from ..server import Server

T = TypeVar("T")

# The time in which a connection may be idle, or take for a request's header.
IDLE_S = 20.0
# The bound of a request's line and of each field: the longest is a position of 1024 partitions.
FIELD_BYTES_MAX = 32 * 1024
HANDSHAKE_S = 10.0
BACKLOG = 512
ALPN = "http/1.1"
# Rows whose JSON is made on the loop; more of them are encoded on a worker.
INLINE_ROWS_MAX = 100
# The time for a request that has been cancelled to end.
CANCEL_S = 5.0
# The time for which a browser may keep the answer to a preflight request.
PREFLIGHT_S = "600"
HEADERS = {"Server": "ducktail", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
ALLOWED_HEADERS = "Authorization, Content-Type, Last-Event-ID, Ducktail-Producer, Ducktail-Sequence"
# aiohttp's own refusals -> the class of their errors.
REFUSALS = {404: "there is no such route", 405: "the route has other methods", 413: "the body is too long"}
REASONS = {404: UndefinedObject, 405: ProtocolViolation, 413: ProtocolViolation}

# The origin of the page that has sent a request, if it is another's.
ORIGIN: web.RequestKey[str | None] = web.RequestKey("origin", str)

# Connections that may not be made yet, after which the present ones are counted.
STARTING_MAX = 1024

log = logging.getLogger("ducktail.gateway")


class HttpPort:
    """The HTTP API of a server (`AttachedPort`).

    Args:
        server: the server; `Server.attach` starts and closes the port with it.
        listener: a socket of `listen`; closed with the port.
        tls: certificate and key; None means no TLS.
        origins: the web origins whose pages may use the API; "*" is any.

    Raises:
        InvalidParameterValue: the certificate or the key cannot be used.
        InvalidAuthorization: others can reach the port, and TLS or users are missing.
    """

    def __init__(
        self, server: Server, listener: socket.socket, tls: TlsFiles | None, origins: tuple[str, ...]
    ) -> None:
        rights = server.database.rights
        check_listener(listener, rights, secured=tls is not None, insecure=server.insecure)
        self.server = server
        self._listener = listener
        self._tls = tls
        self._context = None if tls is None else tls.load(ALPN).context
        self._origins = origins
        self._metrics = Metrics(server)
        self._metrics_thread = ThreadPoolExecutor(1, thread_name_prefix="ducktail-http-metrics")
        self._port: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        # Connections without a request, the longest idle first; some may be closed already.
        self._idle: dict[RequestHandler, None] = {}
        # Connections that asyncio has not made yet, or not ended yet after an abort.
        self._starting: dict[RequestHandler, float] = {}
        self._ending_ones: set[RequestHandler] = set()
        # At least the number of connections that stay: they are not counted anew for each.
        self._at_most = 0
        self._busy: set[asyncio.Task[object]] = set()
        self._ending: asyncio.Future[DucktailError] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The listening address: host, port."""
        name = self._listener.getsockname()
        return name[0], name[1]

    async def start(self, workers: ThreadPoolExecutor, wakes: Wakes) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        self.workers: Executor = workers
        self._ending = loop.create_future()
        self.sessions = SessionPool(self.server, workers, wakes)
        self.tails = Tails(self)
        self.catching_up = asyncio.Semaphore(CATCHING_UP_MAX)
        self.lookers: set[asyncio.Event] = set()
        self._authentication = Authentication(self.server, workers, self._origins)
        application = web.Application(
            middlewares=[self._answered],
            client_max_size=self.server.database.settings.message_bytes_max,
        )
        for method, path, handler in ROUTES:
            application.router.add_route(method, path, _bound(handler, self))
        application.on_response_prepare.append(self._prepared)
        self._runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_S,
            auto_decompress=False,
            max_line_size=FIELD_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
        )
        await self._runner.setup()
        handshake_s = None if self._context is None else HANDSHAKE_S
        self._port = await loop.create_server(
            self._accepted,
            sock=self._listener,
            ssl=self._context,
            ssl_handshake_timeout=handshake_s,
            backlog=BACKLOG,
        )
        host, port = self.address
        log.info("HTTP is served", extra=facts(host=host, port=port, tls=self._context is not None))

    def reload(self) -> None:
        """Read the certificate again, for later connections."""
        if self._tls is not None and self._context is not None:
            self._tls.load(ALPN)  # Refuse an unusable pair before it replaces the one in use.
            self._context.load_cert_chain(self._tls.certificate, self._tls.key)

    async def drain(self, error: DucktailError, timeout_s: float) -> None:
        """End streams and waits with `error`, and let running requests finish for a while."""
        assert self._port is not None, "only a started port is drained"
        self.ending_future.set_result(error)
        self._port.close()
        if self._busy:
            await asyncio.wait(set(self._busy), timeout=timeout_s)
        self.sessions.end(error)
        if self._busy:
            await asyncio.wait(set(self._busy), timeout=CANCEL_S)
        for task in list(self._busy):
            task.cancel()

    async def close(self) -> None:
        """Close all connections and sessions."""
        await self.tails.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.sessions.close()
        self._metrics_thread.shutdown(wait=False, cancel_futures=True)

    # Connections.

    def _accepted(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        assert self._runner is not None and self._runner.server is not None, "a started port has a runner"
        most = self.server.database.settings.http_connections_max
        now_s = asyncio.get_running_loop().time()
        if self._at_most >= most or len(self._starting) >= STARTING_MAX:
            self._at_most = self._count(now_s)
        if self._at_most >= most and not self._close_idle():
            return _Refused()
        handler = self._runner.server()
        self._at_most += 1
        self._starting[handler] = now_s
        self._idle[handler] = None
        return handler

    def _count(self, now_s: float) -> int:
        """The number of connections that stay; those that are gone are forgotten."""
        assert self._runner is not None and self._runner.server is not None, "a started port has a runner"
        made = set(self._runner.server.connections)
        # One whose TLS handshake has failed is never made.
        latest_s = now_s - HANDSHAKE_S - 1
        self._starting = {
            one: since_s for one, since_s in self._starting.items() if one not in made and since_s > latest_s
        }
        there = made | self._starting.keys()
        self._ending_ones &= there
        self._idle = {one: None for one in self._idle if one in there}
        return len(there) - len(self._ending_ones)

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest; False if there is none."""
        while self._idle:
            oldest = next(iter(self._idle))
            starts = oldest in self._starting
            if starts and self._context is not None:
                return False  # Its handshake ends within a bound of its own.
            del self._idle[oldest]
            if starts or oldest.transport is not None:
                self._ending_ones.add(oldest)
                # One of the same burst is made before this runs.
                asyncio.get_running_loop().call_soon(_abort, oldest)
                return True
        return False

    # Requests.

    @property
    def requests_now(self) -> int:
        """The number of requests that are being answered."""
        return len(self._busy)

    async def client(self, request: web.Request) -> Client:
        """The authenticated client of a request.

        Raises:
            InvalidAuthorization: the client has to authenticate, or may not enter.
            InvalidPassword: user and password, or the token, are wrong.
        """
        return await self._authentication.client(request)

    async def until_ending(self, work: asyncio.Future[T]) -> None:
        """Wait for work that waits itself; it is cancelled when the server ends.

        Raises:
            AdminShutdown: the server ends.
        """
        try:
            await asyncio.wait((work, self.ending_future), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancelled(work)
            raise
        if not work.done():
            await _cancelled(work)
            raise self.ending_future.result()

    @property
    def ending_future(self) -> asyncio.Future[DucktailError]:
        """Done when the server ends, with the error for its clients."""
        assert self._ending is not None, "requests come to a started port"
        return self._ending

    @property
    def ended_by(self) -> DucktailError | None:
        """The error with which the server ends; None while it does not."""
        return self.ending_future.result() if self.ending_future.done() else None

    def committed(self) -> None:
        """Let the event streams of groups look at what their groups have committed."""
        for looking in self.lookers:
            looking.set()

    async def encoded(self, encode: Callable[[], T], rows: int) -> T:
        """The result of an encoder, which runs on a worker if the rows are many."""
        if rows <= INLINE_ROWS_MAX:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self.workers, encode)

    async def metrics_text(self) -> tuple[bytes, str]:
        """The metrics, and their content type."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._metrics_thread, self._metrics.text), CONTENT_TYPE

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer a request; every error has the same form."""
        task = asyncio.current_task()
        assert task is not None, "a request is handled in a task"
        connection = request.protocol
        self._idle.pop(connection, None)
        self._busy.add(task)
        try:
            if request.version < HttpVersion10:
                raise web.HTTPBadRequest
            check_head(request)
            request[ORIGIN] = self._authentication.allowed_origin(request)
            if request.method == "OPTIONS" and request[ORIGIN] is not None:
                return _preflight(request)
            return await handler(request)
        except DucktailError as error:
            return failure(error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            kind = REASONS.get(error.status, ProtocolViolation)
            answer = failure(kind(REFUSALS.get(error.status, "the request is malformed")), error.status)
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return answer
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("a request has failed")
            return failure(InternalError(f"unexpected error: {type(error).__name__}"))
        finally:
            self._busy.discard(task)
            self._idle[connection] = None

    async def _prepared(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of every answer."""
        response.headers.update(HEADERS)
        origin = request.get(ORIGIN)
        if origin is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Credentials"] = "true"
            response.headers["Access-Control-Expose-Headers"] = "Ducktail-Position, Retry-After"
            response.headers["Vary"] = "Origin"


def _abort(connection: RequestHandler) -> None:
    if connection.transport is not None:
        connection.transport.abort()


async def _cancelled(work: asyncio.Future[Any]) -> None:
    """Cancel work and wait for its end."""
    work.cancel()
    await asyncio.wait((work,))


def _bound(
    handler: Callable[[HttpPort, web.Request], Awaitable[web.StreamResponse]], port: HttpPort
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(port, request)

    return answer


def _preflight(request: web.Request) -> web.Response:
    """The answer to a browser that asks whether a page of another origin may send a request."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": ALLOWED_HEADERS,
        "Access-Control-Max-Age": PREFLIGHT_S,
    }
    return web.Response(status=204, headers=headers)


class _Refused(asyncio.Protocol):
    """A connection beyond the maximum: closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
