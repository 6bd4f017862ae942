"""GET /metrics, /ready and /live, as on the port of `server/metrics.py`.

Probes need no authentication. The metrics contain the names of all streams and groups: only superusers see
them here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from ...engine.errors import CannotConnectNow, InsufficientPrivilege
from .failures import failure
from .requests import check_known

if TYPE_CHECKING:
    from .http_port import HttpPort


async def show_live(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /live: 200 while the event loop turns."""
    return web.Response(text="live\n")


async def show_ready(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /ready: 200 while statements are answered."""
    if port.server.ready:
        return web.Response(text="ready\n")
    return failure(CannotConnectNow("the server does not answer statements now"))


async def show_metrics(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /metrics: Prometheus' text format."""
    check_known(request, ())
    client = await port.client(request)
    if client.account is not None:
        user = port.server.database.rights.users.get(client.account.lower())
        if user is None or not user.superuser:
            raise InsufficientPrivilege("permission denied to see the metrics", hint="Only superusers may.")
    text, kind = await port.metrics_text()
    return web.Response(body=text, headers={"Content-Type": kind})
