"""Listeners with TLS, on loopback, in front of ports without it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from types import TracebackType

from certificates import Files
from cluster_proxies import end_of

PIECE_BYTES = 64 * 1024


class TlsProxies:
    """TLS listeners for some ports, in a thread, until the end of the block.

    Attributes:
        ports: the port of each listener, in the order of the targets.
    """

    def __init__(self, targets: list[int], files: Files) -> None:
        self._targets = targets
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self.ports: list[int] = []

    def __enter__(self) -> TlsProxies:
        self._thread.start()
        self.ports = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(end_of(self._servers), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> list[int]:
        ports = []
        for target in self._targets:
            server = await asyncio.start_server(
                lambda reader, writer, target=target: self._came(reader, writer, target),  # type: ignore[misc]
                "127.0.0.1",
                0,
                ssl=self._context,
            )
            self._servers.append(server)
            ports.append(server.sockets[0].getsockname()[1])
        return ports

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", target)
            pumps = [asyncio.ensure_future(self._pump(*way)) for way in ((reader, there), (back, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        except OSError:
            pass  # The port is closed.
        finally:
            for one in (writer, there):
                if one is not None:
                    one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                writer.write(data)
                await writer.drain()
