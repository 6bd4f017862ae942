"""GET / and /console/...: the files of the console, a page that uses this API like any other client.

The files contain no data, so they need no authentication: the page asks for user and password when the API
answers 401. They are read once; a browser keeps them and asks with their hash whether they have changed. The
policy permits no inline code, nothing from elsewhere, no frame around the page, and no text that becomes
markup.
Source: docs/console.md; docs/design/pgwire_gateway.md, "The console".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from ...engine.errors import UndefinedObject
from .requests import check_known

if TYPE_CHECKING:
    from .http_port import HttpPort

PAGE, FOLDER = "index.html", "/console/"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Asset(NamedTuple):
    """A file of the console.

    Args:
        tag: the hash of its content, as an ETag.
    """

    content_type: str
    body: bytes
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """The files by their paths below the console's folder."""
    return dict(_assets(files(__package__.rpartition(".")[0]) / "console", ""))


def _assets(folder: Traversable, path: str) -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        name = f"{path}{entry.name}"
        if entry.is_dir():
            yield from _assets(entry, f"{name}/")
        elif (suffix := name[name.rfind(".") :]) in CONTENT_TYPES:
            body = entry.read_bytes()
            yield name, Asset(CONTENT_TYPES[suffix], body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


async def show_console(port: HttpPort, request: web.Request) -> web.StreamResponse:
    """GET /: the page. GET /console/{file} and /console/views/{file}: a file of it."""
    check_known(request, ())
    asset = assets().get(request.path.removeprefix(FOLDER) if "file" in request.match_info else PAGE)
    if asset is None:
        raise UndefinedObject("the console has no such file")
    headers = {**HEADERS, "Content-Type": asset.content_type, "ETag": asset.tag}
    if request.headers.get("If-None-Match") == asset.tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=asset.body, headers=headers)
