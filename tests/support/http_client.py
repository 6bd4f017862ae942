"""A client of the HTTP API for tests: plain requests over http.client, and Server-Sent Events."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from server_process import ServerProcess

SERVED = re.compile(r"HTTP is served host=\S+ port=(\d+)")
TIMEOUT_S = 60.0


def http_port(server: ServerProcess) -> int:
    """The port of a server that was started with `--http 127.0.0.1:0`."""
    found = [match for line in server.lines if (match := SERVED.search(line))]
    return int(found[-1][1])


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def sqlstate(self) -> str:
        """The SQLSTATE of an error."""
        return str(self.json()["error"]["sqlstate"])


@dataclass(frozen=True, slots=True)
class Message:
    """A message of an event stream; `id` is the last one that was sent."""

    id: str
    event: str
    data: str

    def json(self) -> Any:
        """The data as JSON."""
        return json.loads(self.data)


class HttpClient:
    """Requests to one port, each on a connection of its own.

    Args:
        user: name and password, or None.
        token: a bearer token, or None.
        context: for TLS.
    """

    def __init__(
        self,
        port: int,
        user: tuple[str, str] | None = None,
        token: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.port = port
        self._context = context
        self._headers: dict[str, str] = {}
        if user is not None:
            self._headers["Authorization"] = (
                "Basic " + base64.b64encode(f"{user[0]}:{user[1]}".encode()).decode()
            )
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        if self._context is not None:
            return http.client.HTTPSConnection(
                "localhost", self.port, timeout=TIMEOUT_S, context=self._context
            )
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request and read its answer."""
        connection = self.connection()
        try:
            connection.request(method, path, body, {**self._headers, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: object) -> Answer:
        """GET."""
        return self.request("GET", with_query(path, query), headers=headers)

    def post(
        self,
        path: str,
        value: object,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """POST a JSON value, or bytes as they are."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.request(
            "POST", with_query(path, {}), body, {"Content-Type": content_type, **(headers or {})}
        )

    def sql(self, text: str, *parameters: object) -> Any:
        """The rows of a statement; an error fails the test."""
        answer = self.post("/v1/sql", {"sql": text, "parameters": list(parameters)})
        assert answer.status == 200, answer.body
        return answer.json()["rows"]

    def events(self, path: str, last_event_id: str | None = None, **query: object) -> EventStream:
        """A stream of events."""
        headers = dict(self._headers)
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        connection = self.connection()
        connection.request("GET", with_query(path, query), headers=headers)
        return EventStream(connection, connection.getresponse())


def with_query(path: str, query: Mapping[str, object]) -> str:
    """A path with parameters, percent-encoded."""
    path = quote(path, safe="/")
    return path if not query else f"{path}?{urlencode({k: str(v) for k, v in query.items()})}"


class EventStream:
    """An open event stream; iterating gives its messages, to its end."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._answer = answer
        self.status = answer.status
        self.last_id = ""
        self.comments = 0

    def error(self) -> Any:
        """The body of an answer that is no stream."""
        with self:
            return json.loads(self._answer.read())["error"]

    def __iter__(self) -> Iterator[Message]:
        assert self.status == 200, self._answer.read()
        event, data = "", list[str]()
        while line := self._answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(":")
            value = value.removeprefix(" ")
            if line == b"\n":
                if data:
                    yield Message(self.last_id, event or "message", "\n".join(data))
                event, data = "", []
            elif not name:
                self.comments += 1
            elif name == "id":
                self.last_id = value
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)

    def take(self, count: int) -> list[Message]:
        """The next messages."""
        found: list[Message] = []
        if count:
            for message in self:
                found.append(message)
                if len(found) == count:
                    break
        assert len(found) == count, found
        return found

    def close(self) -> None:
        """Cut the connection."""
        self._answer.close()
        self._connection.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
