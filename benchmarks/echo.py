"""A server that answers the same bytes to whatever comes: what Python's asyncio can do at most.

python echo.py FILE    prints the port; FILE holds the answer
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast


class Echo(asyncio.Protocol):
    """One connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Something has come."""
        self._transport.write(self._answer)


async def main() -> None:
    """Serve until the process is ended."""
    answer = Path(sys.argv[1]).read_bytes()
    server = await asyncio.get_running_loop().create_server(lambda: Echo(answer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
