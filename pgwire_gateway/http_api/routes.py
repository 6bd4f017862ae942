"""The routes of the API: one table, which the port serves and the OpenAPI document describes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from .console import show_console
from .event_stream import stream_events
from .listings import list_groups, list_streams
from .openapi import show_document
from .polls import commit, poll
from .publishing import publish
from .sql_route import run_statement
from .system_views import list_views, show_view
from .watch_routes import show_live, show_metrics, show_ready

if TYPE_CHECKING:
    from .http_port import HttpPort

Handler = Callable[["HttpPort", web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/v1/streams", list_streams),
    ("GET", "/v1/groups", list_groups),
    ("GET", "/v1/streams/{stream}/events", stream_events),
    ("GET", "/v1/streams/{stream}/poll", poll),
    ("POST", "/v1/streams/{stream}/commit", commit),
    ("POST", "/v1/topics/{topic}", publish),
    ("POST", "/v1/sql", run_statement),
    ("GET", "/v1/openapi.json", show_document),
    ("GET", "/v1/views", list_views),
    ("GET", "/v1/views/{view}", show_view),
    ("GET", "/metrics", show_metrics),
    ("GET", "/live", show_live),
    ("GET", "/ready", show_ready),
    ("GET", "/", show_console),
    ("GET", "/console/{file}", show_console),
    ("GET", "/console/views/{file}", show_console),
)
