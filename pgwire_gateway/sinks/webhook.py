"""The HTTP client of webhooks, on aiohttp.

A request follows no redirect, uses no proxy of the environment, keeps no cookie, and asks for an answer
without compression, of which it reads a kilobyte. The address of each connection is judged where its socket
is made (`engine/networks.py`). Only a server with a webhook imports this module.
Source: docs/sinks.md, "Receivers that are refused".
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from ...engine.catalog.sinks import Sink
from ...engine.catalog.streams import Stream
from ...engine.log.events import Event
from ...engine.networks import Network, refusal
from ...engine.version import VERSION
from .payloads import Message, message_of, signature
from .target import Answer, Moment

# Bytes of an answer that are read: a receiver tells its reason in the first.
ANSWER_BYTES_MAX = 1024
# The longest pause that a receiver can ask for.
RETRY_AFTER_MAX_S = 3600.0
# Idle connections to a receiver are closed after this time; many receivers close them earlier.
KEEP_ALIVE_S = 30.0

# Answers that say nothing against the event: the receiver may accept it later.
_LATER = frozenset({408, 425, 429})


class _Connector(aiohttp.TCPConnector):
    """Connections that are used again only if nothing has arrived on them since their last answer.

    A receiver that answers a request twice would otherwise answer the next one before it has seen it.
    """

    async def _get(self, key: Any, traces: Any) -> Any:
        while (found := await super()._get(key, traces)) is not None:
            if found.protocol is not None and not found.protocol.should_close:
                break
            found.close()
        return found


class RefusedAddress(OSError):
    """An address to which no sink may connect."""


class Webhook:
    """The connections to the receiver of one sink, in a running event loop.

    Args:
        target: its URL.
        allowed: networks to which it may connect although they are not public.
    """

    keeps_positions = False

    def __init__(self, target: str, allowed: Sequence[Network]) -> None:
        self.target = target
        self._url = URL(target, encoded=True)
        self._allowed = allowed
        traces = aiohttp.TraceConfig()
        traces.on_request_headers_sent.append(_note_sent)
        connector = _Connector(
            limit=0, socket_factory=self._socket, keepalive_timeout=KEEP_ALIVE_S, use_dns_cache=False
        )
        self._client = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            trace_configs=[traces],
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one address of the receiver, unless no sink may connect to it."""
        family, kind, protocol, _, place = info
        refused = refusal(str(place[0]), self._allowed, encrypted=self._url.scheme == "https")
        if refused is not None:
            raise RefusedAddress(refused)
        return socket.socket(family, kind, protocol)

    def fits(self, sink: Sink) -> bool:
        """True if the sink has this URL."""
        return sink.target == self.target

    async def open(self, committed: Mapping[int, int], seeks: int) -> Mapping[int, int]:
        """Nothing: connections are made with requests, and a receiver has no positions."""
        return {}

    async def deliver(self, sink: Sink, stream: Stream, events: Sequence[Event], at: Moment) -> Answer:
        """Send events in one request."""
        return await self.send(sink, message_of(sink, stream, events), at.now_us)

    async def send(self, sink: Sink, message: Message, now_us: int) -> Answer:
        """Send a request, and return its answer or its failure.

        Args:
            now_us: the time, for the signature.
        """
        timestamp = now_us // 1_000_000
        headers = {
            "accept-encoding": "identity",
            "user-agent": f"ducktail/{VERSION}",
            **message.headers,
            "webhook-id": message.delivery_id,
            "webhook-timestamp": str(timestamp),
        }
        if sink.keys:
            headers["webhook-signature"] = signature(sink.keys, message, timestamp)
        sent = SimpleNamespace(reached=False)
        try:
            async with asyncio.timeout(sink.integer("timeout") / 1000):
                async with self._client.post(
                    self._url, data=message.body, headers=headers, allow_redirects=False,
                    trace_request_ctx=sent,
                ) as answer:  # fmt: skip
                    return await _answer(answer, now_us)
        except TimeoutError:
            return Answer(None, f"no answer in {sink.integer('timeout')} ms", reached=sent.reached)
        except aiohttp.ClientConnectorError as error:
            told = str(error.os_error) or type(error.os_error).__name__
            return Answer(None, f"cannot connect: {told}", reached=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # The text of an answer that is no HTTP has the URL, whose query may be a token.
            told = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
            told = _printable(f"{type(error).__name__}: {told}".encode())
            return Answer(None, told.rstrip(": "), reached=sent.reached)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


async def _note_sent(session: aiohttp.ClientSession, context: SimpleNamespace, sent: object) -> None:
    context.trace_request_ctx.reached = True


async def _answer(answer: aiohttp.ClientResponse, now_us: int) -> Answer:
    body = b""
    while len(body) < ANSWER_BYTES_MAX and (piece := await answer.content.read(ANSWER_BYTES_MAX - len(body))):
        body += piece
    pause = _retry_after_s(answer.headers.get("Retry-After"), now_us)
    status, text = answer.status, _printable(body)
    return Answer(
        status,
        text,
        accepted=200 <= status < 300,
        # A redirect, or an error of the client: another attempt would have the same answer.
        refused=300 <= status < 500 and status not in _LATER,
        retry_after_s=pause,
        reason=f"HTTP {status}: {text}".rstrip(": "),
    )


def _printable(body: bytes) -> str:
    """The text of an answer, on one line."""
    text = body.decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text).strip()


def _retry_after_s(text: str | None, now_us: int) -> float | None:
    """The pause in a Retry-After, within its bound: seconds, or a date; None for none that is valid."""
    if text is None:
        return None
    if text.strip().isdecimal() and text.strip().isascii():
        return min(float(text.strip()[:12]), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    left_s = (at - datetime.fromtimestamp(now_us / 1_000_000, UTC)).total_seconds()
    return min(max(0.0, left_s), RETRY_AFTER_MAX_S)
