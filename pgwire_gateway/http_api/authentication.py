"""Authentication of a request: trust on loopback while there is no user, else Basic or a bearer token.

The rules for the address are those of the wire (`server/admission.py`). A browser also sends requests that no
user has asked for, from pages of other sites, with the credentials that it knows and from the server's own
machine. So a request with the Origin of another site is refused unless that is allowed, and a request that is
trusted for its address must name this machine in Host: a page whose name was pointed at 127.0.0.1 does not.

A password's verification costs some milliseconds, by intent: it runs on a worker, and its outcome is kept
for a minute under a keyed hash, as long as the user's verifier is the same.
Source: docs/security.md; docs/http.md, "Authentication"; RFC 7617; RFC 6750.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
from collections import OrderedDict
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from aiohttp import web

from ...engine.catalog.passwords import Verifier, is_password_of, mock_verifier
from ...engine.catalog.rights import digest_of
from ...engine.errors import InsufficientPrivilege, InvalidAuthorization, InvalidPassword
from ..server.admission import TLS_HINT, USERS_HINT, is_loopback
from .sessions import Client

if TYPE_CHECKING:
    from ..server import Server

KEPT_MAX, KEPT_S = 1024, 60.0
# Passwords that are verified at once: more would only take the workers from statements.
VERIFYING_MAX = 2
# A browser's word on the page that made a request; "none" is its user, "same-origin" the console.
OTHER_SITES = frozenset({"cross-site", "same-site"})
# The user of a client that is trusted and names none.
NOBODY = "ducktail"


class Authentication:
    """Finds the client of each request.

    Args:
        workers: threads that may block.
        origins: the web origins whose pages may use the API; "*" is any.
    """

    def __init__(self, server: Server, workers: Executor, origins: tuple[str, ...]) -> None:
        self._server = server
        self._workers = workers
        self._origins = frozenset(origins)
        self._key = secrets.token_bytes(32)
        # Keyed hash of user and password -> the verifier that they fit, and the end of that knowledge.
        self._kept: OrderedDict[bytes, tuple[Verifier, float]] = OrderedDict()
        self._verifying = asyncio.Semaphore(VERIFYING_MAX)

    def allowed_origin(self, request: web.BaseRequest) -> str | None:
        """The origin of a page of another site that may use the API; None for requests of no such page.

        Raises:
            InsufficientPrivilege: the page may not use it.
        """
        origin = request.headers.get("Origin")
        if origin is None and request.path != "/" and request.headers.get("Sec-Fetch-Site") in OTHER_SITES:
            # An image, a script or a link of another page: a GET, too, moves a group's members.
            raise InsufficientPrivilege("permission denied for what pages of another origin embed or link")
        if origin is None or origin == f"{request.scheme}://{request.host}":
            return None
        if origin in self._origins or "*" in self._origins:
            return origin
        raise InsufficientPrivilege(
            "permission denied for pages of another origin",
            hint="--http-cors names the origins whose pages may use this API.",
        )

    async def client(self, request: web.BaseRequest) -> Client:
        """The client of a request.

        Raises:
            InvalidAuthorization: it may not enter in this way, or has to authenticate.
            InvalidPassword: user and password, or the token, are wrong.
        """
        peer, secured = str(request.remote or ""), request.secure
        near = self._server.insecure or is_loopback(peer)
        if not near and not secured:
            raise InvalidAuthorization("requests from other machines want TLS", hint=TLS_HINT)
        scheme, _, words = request.headers.get("Authorization", "").partition(" ")
        if not self._server.database.rights.users:
            return self._trusted(request, peer, words if scheme.lower() == "basic" else "", near=near)
        if scheme.lower() == "basic":
            name, password = _credentials(words)
            account = await self._verified(name, password)
        elif scheme.lower() == "bearer":
            account = self._token(words.strip())
            return Client(account, account, peer, secured, by_token=True)
        else:
            raise InvalidAuthorization("the request wants an Authorization: Basic or Bearer")
        return Client(account, account, peer, secured)

    def _trusted(self, request: web.BaseRequest, peer: str, words: str, *, near: bool) -> Client:
        if not near:
            raise InvalidAuthorization(
                "there are no users yet, so nobody from another machine can come in", hint=USERS_HINT
            )
        if not self._server.insecure and not _names_loopback(request.host):
            raise InvalidAuthorization(
                f'the request is for host "{request.host}", and without users only this machine is served',
                hint="Use localhost or 127.0.0.1, or create users.",
            )
        name = _credentials(words)[0] if words else ""
        return Client(None, name or NOBODY, peer, request.secure)

    async def _verified(self, name: str, password: str) -> str:
        """The account of user and password."""
        rights = self._server.database.rights
        user = rights.users.get(name.lower())
        verifier = mock_verifier(rights.nonce, name.lower()) if user is None else user.verifier
        loop = asyncio.get_running_loop()
        key = hmac.digest(self._key, f"{name.lower()}\0{password}".encode(), "sha256")
        kept = self._kept.get(key)
        if user is not None and kept is not None and kept[0] is verifier and kept[1] > loop.time():
            return user.name
        async with self._verifying:
            fits = await loop.run_in_executor(self._workers, is_password_of, verifier, password)
        if not fits or user is None:
            raise InvalidPassword(f'password authentication failed for user "{name}"')
        self._kept[key] = verifier, loop.time() + KEPT_S
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return user.name

    def _token(self, token: str) -> str:
        """The account of a token."""
        rights = self._server.database.rights
        found = rights.tokens.get(digest_of(token))
        user = None if found is None else rights.users.get(found.user)
        if found is None or user is None or not found.is_valid(self._server.database.clock.now_us()):
            raise InvalidPassword("authentication failed: there is no such token, or its time is over")
        return user.name


def _credentials(words: str) -> tuple[str, str]:
    """User and password of Basic."""
    try:
        text = base64.b64decode(words.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidAuthorization("malformed credentials in Authorization: Basic") from None
    name, colon, password = text.partition(":")
    if not colon or "\0" in text:
        raise InvalidAuthorization("malformed credentials in Authorization: Basic")
    return name, password


def _names_loopback(host: str) -> bool:
    """True if a Host header names this machine."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.lower() == "localhost" or is_loopback(name.strip("[]"))
