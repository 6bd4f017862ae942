"""GET /v1/views and /v1/views/{view}: the views of schema `ducktail`.

POST /v1/sql answers the same queries, each in a session of its own. These are read every few seconds by the
console and by monitoring; they are this package's own statements, so they run in kept sessions, which are not
opened and logged for each request.
Source: docs/sql.md, "Views".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiohttp import web

from ...engine.errors import UndefinedTable
from ...engine.quoting import ident
from ...engine.schema import LIVE_VIEWS, SCHEMA
from .failures import JSON
from .requests import check_known, number_in
from .sql_route import ANSWER_BYTES_MAX, rendered

if TYPE_CHECKING:
    from .http_port import HttpPort

ROWS_DEFAULT, ROWS_MAX = 1000, 10_000


async def list_views(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/views: the names of the views, and the user who asks."""
    check_known(request, ())
    client = await port.client(request)
    body = {"views": sorted(LIVE_VIEWS), "user": client.user}
    return web.Response(text=json.dumps(body, ensure_ascii=False), content_type=JSON)


async def show_view(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /v1/views/{view}?limit=1000: the rows of a view, in the form of POST /v1/sql."""
    check_known(request, ("limit",))
    client = await port.client(request)
    name = request.match_info["view"]
    if name not in LIVE_VIEWS:
        raise UndefinedTable(f'view "{name}" does not exist', hint="GET /v1/views lists them.")
    limit = number_in(request, "limit", ROWS_DEFAULT, 1, ROWS_MAX)
    async with port.sessions.borrowed(client) as session:
        answer = await session.statement(
            f"SELECT * FROM {SCHEMA}.{ident(name)}", rows_max=limit, bytes_max=ANSWER_BYTES_MAX
        )
        return await port.encoded(lambda: rendered(session, answer), answer.row_count)
