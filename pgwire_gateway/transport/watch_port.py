"""The port for those who watch a server: /metrics, /ready and /live over HTTP.

    GET /live      200 while the event loop turns
    GET /ready     200 while statements are answered; 503 while the file is not open, or the server ends
    GET /metrics   Prometheus' text format

It reads one request, answers it and closes. Of too many connections the oldest is cut: a probe or a scraper
asks at once and is answered, however many others are slow. /metrics is made on a thread of its own, so that
neither busy workers nor a slow disk keep it waiting, and it keeps nobody; the other two ask nothing that
could wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import ThreadPoolExecutor

from ...engine.log.logs import facts
from .metrics import CONTENT_TYPE, Metrics, Watched

# A request of a scraper or a probe has a few hundred bytes, and comes at once.
REQUEST_BYTES_MAX = 8192
TIMEOUT_S = 10.0
# One or two scrapers and a probe; of more than these the oldest is cut.
CONNECTIONS_MAX = 32
PLAIN = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}

log = logging.getLogger("ducktail.gateway")


class WatchPort:
    """See the head of the file.

    Args:
        server: who is watched.
        listener: from `listen`; closed with the port.
    """

    def __init__(self, server: Watched, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._metrics = Metrics(server)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ducktail-metrics")
        self._port: asyncio.Server | None = None
        self._talks: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def start(self) -> None:
        """Begin to answer."""
        self._port = await asyncio.start_server(self._talk, sock=self._listener, limit=REQUEST_BYTES_MAX)
        host, port = self._listener.getsockname()[:2]
        log.info("metrics are served", extra=facts(host=host, port=port))

    async def close(self) -> None:
        """Answer no more."""
        assert self._port is not None, "only a started port is closed"
        self._port.close()
        for talk in list(self._talks):
            talk.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a request, its answer, the end."""
        task = asyncio.current_task()
        assert task is not None, "a connection is a task's"
        self._talks[task] = None
        if len(self._talks) > CONNECTIONS_MAX:
            oldest = next(iter(self._talks))
            del self._talks[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(await self._answered(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            # Whoever asks slowly, or is gone, is not answered.
            pass
        finally:
            self._talks.pop(task, None)
            writer.transport.abort()  # What its client has not taken by now, it does not get.

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(431)
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response(400)
        if method not in (b"GET", b"HEAD"):
            return _response(405, more="Allow: GET, HEAD\r\n")
        answer = await self._page(target.partition(b"?")[0])
        # The answer to HEAD has the length of a body that does not come.
        return answer if method == b"GET" else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def _page(self, path: bytes) -> bytes:
        if path == b"/live":
            return _response(200, b"live\n")
        if path == b"/ready":
            return _response(200, b"ready\n") if self._server.ready else _response(503, b"not ready\n")
        if path != b"/metrics":
            return _response(404)
        text = await asyncio.get_running_loop().run_in_executor(self._thread, self._metrics.text)
        return _response(200, text, CONTENT_TYPE)


def _response(status: int, body: bytes | None = None, kind: str = PLAIN, more: str = "") -> bytes:
    body = f"{REASONS[status].lower()}\n".encode() if body is None else body
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body
