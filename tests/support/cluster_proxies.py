"""The network between the nodes of a cluster: all that other nodes say to one goes through its proxy.

Its bytes can be held, to the node, from it or both ways, as packets that are dropped are: connections stay,
new ones are not answered. What was held is delivered late, or its connections are cut. Clients do not come
this way: a node that is held answers them, and is cut off from the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

TO, FROM = "to", "from"
PIECE_BYTES = 64 * 1024


class _Proxy:
    """One node's, on the loop."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.open = {TO: asyncio.Event(), FROM: asyncio.Event()}
        for gate in self.open.values():
            gate.set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.server: asyncio.Server | None = None

    async def listen(self) -> int:
        self.server = await asyncio.start_server(self._came, "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            await self.open[TO].wait()
            back, there = await asyncio.open_connection("127.0.0.1", self.target)
            self.writers.add(there)
            pumps = (self._pump(reader, there, TO), self._pump(back, writer, FROM))
            await asyncio.wait(
                [asyncio.ensure_future(pump) for pump in pumps], return_when=asyncio.FIRST_COMPLETED
            )
        except OSError:
            pass  # The node is not there.
        finally:
            for one in (writer, there):
                if one is not None:
                    self.writers.discard(one)
                    one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self.open[way].wait()
                writer.write(data)
                await writer.drain()

    async def hold(self, ways: tuple[str, ...]) -> None:
        for way in ways:
            self.open[way].clear()

    async def release(self, *, cut: bool) -> None:
        if cut:
            for writer in list(self.writers):
                writer.transport.abort()
        for gate in self.open.values():
            gate.set()


async def end_of(servers: Collection[asyncio.Server]) -> None:
    """End servers and the connections that they have taken, on their loop.

    A connection that was just taken fails where its server is closed, and stays open: so first no more are
    taken.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
    await _turns()
    for server in servers:
        server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _turns()


async def _turns() -> None:
    """Let the loop go on: what was begun or given up needs some turns."""
    for _ in range(5):
        await asyncio.sleep(0)


class Proxies:
    """See the head of the file.

    Args:
        targets: node -> the port at which it listens.

    Attributes:
        ports: node -> where other nodes reach it.
    """

    def __init__(self, targets: Mapping[str, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._proxies = self._run(self._made(targets))
        self.ports = {name: self._run(proxy.listen()) for name, proxy in self._proxies.items()}

    async def _made(self, targets: Mapping[str, int]) -> dict[str, _Proxy]:
        return {name: _Proxy(port) for name, port in targets.items()}

    def hold(self, node: str, ways: tuple[str, ...]) -> None:
        """What is said to it, by it, or both, does not come for now."""
        self._run(self._proxies[node].hold(ways))

    def release(self, node: str, *, cut: bool) -> None:
        """It comes again, and what was held too, unless its connections are cut."""
        self._run(self._proxies[node].release(cut=cut))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Proxies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        servers = [proxy.server for proxy in self._proxies.values() if proxy.server is not None]
        self._run(end_of(servers))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
