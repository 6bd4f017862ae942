"""Hostile clients of the HTTP API: malformed requests, other sites' pages, floods, users without rights."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import certificates
import pytest
from http_client import HttpClient, http_port
from server_process import ServerProcess

from ducktail.engine.database import Database
from ducktail.engine.errors import QueryCanceled
from ducktail.pgwire_gateway.http_api import event_messages, requests
from ducktail.pgwire_gateway.http_api import http_port as port_module
from ducktail.pgwire_gateway.http_api.http_port import HttpPort
from ducktail.pgwire_gateway.server import Server, listen
from ducktail.pgwire_gateway.server.postmaster import ServerThread


def raw(port: int, data: bytes) -> bytes:
    """What a server answers to bytes, up to its end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(data)
        found = b""
        while part := one.recv(1 << 16):
            found += part
    return found


HEAD = "POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
INNER = "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        f"{HEAD}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{INNER}",
        f"{HEAD}Transfer-Encoding: chunked\r\nContent-Length: {len(INNER) + 5}\r\n\r\n0\r\n\r\n{INNER}",
        f"{HEAD}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}{INNER}",
        f"{HEAD}Content-Length: +2\r\n\r\n{{}}{INNER}",
        f"{HEAD}Content-Length: 2_0\r\n\r\n{{}}{INNER}",
        f"{HEAD}Content-Length : 2\r\n\r\n{{}}{INNER}",
        f"{HEAD}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{INNER}",
        f"{HEAD}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{INNER}",
        f"{HEAD}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{INNER}",
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n0x2\r\n{{}}\r\n0\r\n\r\n{INNER}",
        f"{HEAD}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n0\r\n\r\n{INNER}",
        f"{HEAD} folded: x\r\nContent-Length: 2\r\n\r\n{{}}{INNER}",
        "GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /live\r\n\r\n",
        "GET /live HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "GE\0T /live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /live HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_a_request_is_one_request(client: HttpClient, request_: str) -> None:
    """What an intermediary and this server could divide differently is refused, with all that follows."""
    answer = raw(client.port, request_.encode("latin-1"))
    assert b"live\n" not in answer and len(re.findall(rb"(?m)^HTTP/1.. \d", answer)) <= 1
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/0.9 400"))
    assert client.get("/live").status == 200


def test_pipelined_requests_have_their_answers(client: HttpClient) -> None:
    last = INNER.replace("Host", "Connection: close\r\nHost")
    answer = raw(client.port, (INNER * 2 + last).encode())
    assert answer.count(b"HTTP/1.1 200 OK") == 3 == answer.count(b"live\n")


def test_long_heads_and_bodies(place: Path) -> None:
    options = ("--port", "0", "--http", "127.0.0.1:0", "--message-bytes-max", "100000")
    with ServerProcess(place, options) as server:
        client = HttpClient(http_port(server))
        too_long = client.post("/v1/sql", {"sql": "SELECT 1 --" + "x" * 200_000})
        assert (too_long.status, too_long.sqlstate) == (413, "54000")
        body = b"x" * 5_000_000
        with contextlib.suppress(ConnectionError):
            assert client.post("/v1/sql", body).status == 413
        chunked = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"10000\r\n" + b" " * 65536 + b"\r\n"
        chunked += (b"10000\r\n" + b" " * 65536 + b"\r\n") * 3
        assert raw(client.port, chunked).startswith(b"HTTP/1.1 413")
        for head in ("X: " + "y" * 100_000, "\r\n".join(f"X{n}: y" for n in range(10_000))):
            answer = raw(client.port, f"GET /live HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
            assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert raw(client.port, b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n").startswith(
            (b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 414")
        )
        assert client.sql("SELECT 1") == [[1]]


def test_pages_of_other_sites(place: Path) -> None:
    """A page may use the API from its own origin, or from one that is allowed; and only with a real Host."""
    allowed = "https://app.example"
    options = ("--port", "0", "--http", "127.0.0.1:0", "--http-cors", allowed)
    with ServerProcess(place, options) as server:
        client = HttpClient(http_port(server))
        own = f"http://127.0.0.1:{client.port}"
        statement = {"sql": "CREATE TABLE IF NOT EXISTS t (i INT)"}
        for origin, status in ((allowed, 200), (own, 200), ("https://evil.example", 403), ("null", 403)):
            answer = client.post("/v1/sql", statement, {"Origin": origin})
            assert answer.status == status, origin
            assert client.get("/v1/streams", {"Origin": origin}).status == status
            shown = answer.headers.get("Access-Control-Allow-Origin")
            assert shown == (allowed if origin == allowed else None)
        asked = {"Origin": allowed, "Access-Control-Request-Method": "POST"}
        preflight = client.request("OPTIONS", "/v1/sql", headers=asked)
        assert (preflight.status, preflight.headers["Access-Control-Allow-Origin"]) == (204, allowed)
        assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
        refused = client.request("OPTIONS", "/v1/sql", headers={**asked, "Origin": "https://evil.example"})
        assert (refused.status, "Access-Control-Allow-Origin" in refused.headers) == (403, False)
        # A name that points at this machine: trust is for requests that name it.
        for host, status in (
            ("evil.example", 401),
            ("localhost", 200),
            ("[::1]:80", 200),
            ("127.0.0.1", 200),
        ):
            assert client.get("/v1/streams", {"Host": host}).status == status, host


def test_what_pages_of_other_sites_embed(client: HttpClient, table: str) -> None:
    """Browsers send no Origin with the GET of an image, a script or a link: it must not move a group."""
    path = f"/v1/streams/{table}_s/poll"
    for site in ("cross-site", "same-site"):
        assert client.get(path, {"Sec-Fetch-Site": site}, group="g", member="m").status == 403, site
        assert client.get("/", {"Sec-Fetch-Site": site}).status == 200, site
    shown = client.sql(f"SELECT count(last_read_at) FROM ducktail.offsets WHERE stream_name = '{table}_s'")
    assert shown == [[0]]
    assert client.get(path, {"Sec-Fetch-Site": "same-origin"}, group="g", member="m").status == 200


def test_texts_that_are_no_unicode(client: HttpClient, table: str, topic: str) -> None:
    kind = {"Content-Type": "application/json"}
    for path, body in (
        (f"/v1/streams/{table}_s/commit", b'{"group": "\\ud800", "member": "m"}'),
        ("/v1/sql", b'{"sql": "SELECT \'\\ud800\'"}'),
        ("/v1/sql", b'{"sql": "SELECT $1", "parameters": [["\\uD800"]]}'),
        (f"/v1/topics/{topic}", b'{"payload": "\\ud800"}'),
        (f"/v1/topics/{topic}", b'{"payload": 1, "key": "\\ud800"}'),
    ):
        answer = client.request("POST", path, body, kind)
        assert (answer.status, answer.json()["error"]["sqlstate"]) == (400, "22P02"), body
    assert client.sql("SELECT $1::VARCHAR", "\U0001f600") == [["\U0001f600"]]


def test_without_cors_no_page_may(client: HttpClient) -> None:
    assert client.get("/v1/streams", {"Origin": "https://app.example"}).status == 403
    answer = client.request("OPTIONS", "/v1/sql", headers={"Origin": "https://app.example"})
    assert answer.status == 403


# Time and number: in process, with short times.


@pytest.fixture
def quick_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpPort]:
    """A server in this process, whose times are short."""
    monkeypatch.setattr(port_module, "IDLE_S", 0.4)
    monkeypatch.setattr(requests, "BODY_S", 0.4)
    monkeypatch.setattr(event_messages, "SLOW_S", 0.4)
    database = Database.open(":memory:")
    server = Server(database, listen("127.0.0.1", 0))
    port = HttpPort(server, listen("127.0.0.1", 0), None, ())
    server.attach(port)
    thread = ServerThread(server)
    try:
        yield port
    finally:
        thread.stop()
        database.close()


@pytest.fixture
def quick(quick_port: HttpPort) -> HttpClient:
    return HttpClient(quick_port.address[1])


def ended(one: socket.socket) -> bytes:
    """What comes before the other side's end."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := one.recv(1 << 16):
            found += part
    return found


def test_slow_heads_and_bodies(quick: HttpClient) -> None:
    for part in (b"", b"GET /live HT", b"GET /live HTTP/1.1\r\nHost: a\r\nX: "):
        with socket.create_connection(("127.0.0.1", quick.port), timeout=30) as one:
            one.sendall(part)
            assert ended(one) == b""
    with socket.create_connection(("127.0.0.1", quick.port), timeout=30) as one:
        one.sendall(f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
        assert b"400 Bad Request" in one.recv(1 << 16)
    # Also behind a first request on the same connection.
    with socket.create_connection(("127.0.0.1", quick.port), timeout=30) as one:
        one.sendall(INNER.encode() + b"GET /li")
        assert ended(one).count(b"HTTP/1.1") == 1


def test_a_client_that_takes_nothing_is_told_its_position(quick: HttpClient, quick_port: HttpPort) -> None:
    quick.sql("CREATE TOPIC p WITH (partitions = 1)")
    for _ in range(8):
        quick.post("/v1/topics/p", [{"payload": "x" * 1_000_000}] * 4)
    with socket.create_connection(("127.0.0.1", quick.port), timeout=30) as one:
        one.sendall(b"GET /v1/streams/p/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader = one.makefile("rb")
        assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
        # The server waits for this client, which reads on when it has been given up.
        while quick_port.requests_now:
            pass
        lines = reader.read().split(b"\n")
        reader.close()
    ids = [line for line in lines if line.startswith(b"id: ")]
    failure = lines.index(b"event: failure")
    assert lines[failure + 1] == ids[-2] == ids[-1]
    assert QueryCanceled.sqlstate.encode() in lines[failure + 2]
    assert len(ids) < 32
    with quick.events("/v1/streams/p/events", last_event_id=ids[-1][4:].decode()) as stream:
        assert stream.take(1)[0].json()["lsn"] == int(ids[-1][4:]) + 1


def test_idle_connections_give_way(place: Path) -> None:
    options = ("--port", "0", "--http", "127.0.0.1:0", "--http-connections-max", "20")
    with ServerProcess(place, options) as server:
        client = HttpClient(http_port(server))
        client.sql("CREATE TOPIC p")
        with contextlib.ExitStack() as stack:
            kept = [stack.enter_context(client.events("/v1/streams/p/events")) for _ in range(10)]
            idle = [
                stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=30))
                for _ in range(200)
            ]
            client.post("/v1/topics/p", {"payload": 1})
            assert [len(stream.take(1)) for stream in kept] == [1] * 10
            assert ended(idle[0]) == b""
            # Once all of them are busy, another one is refused.
            kept += [stack.enter_context(client.events("/v1/streams/p/events")) for _ in range(10)]
            with pytest.raises((ConnectionError, OSError)):
                client.get("/live")
        assert _served(client)


def _served(client: HttpClient) -> bool:
    """True as soon as the server has noticed that connections have ended."""
    while True:
        with contextlib.suppress(ConnectionError, OSError):
            return client.get("/live").status == 200


# Users.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with users, TLS, a stream, a topic and groups of a superuser."""
    directory = tmp_path_factory.mktemp("guarded")
    files = certificates.make(directory, "localhost")
    options = ("--port", "0", "--http", "127.0.0.1:0", "--tls-cert", str(files.certificate))
    with ServerProcess(directory / "x.duckdb", (*options, "--tls-key", str(files.key))) as server:
        with server.connect() as wire:
            for statement in (
                "CREATE TABLE t (id INTEGER PRIMARY KEY)", "CREATE STREAM s ON t", "CREATE TOPIC p",
                "CREATE CONSUMER GROUP g ON s", "INSERT INTO t VALUES (1)", "PUBLISH TO p '1'",
                "CREATE USER root PASSWORD 'pw' SUPERUSER", "CREATE USER nobody PASSWORD 'n'",
                "CREATE USER lee PASSWORD 's'", "GRANT PUBLISH ON p TO lee", "GRANT SELECT ON t TO lee",
            ):  # fmt: skip
                wire.execute(statement)
        yield server


def any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def as_user(server: ServerProcess, *user: str) -> HttpClient:
    login = (user[0], user[1]) if user else None
    return HttpClient(http_port(server), login, context=any_certificate())


def with_token(server: ServerProcess, token: str) -> HttpClient:
    return HttpClient(http_port(server), token=token, context=any_certificate())


ROUTES_OF_S = [
    ("GET", "/v1/streams/{}/poll", {}), ("GET", "/v1/streams/{}/poll", {"group": "g"}),
    ("GET", "/v1/streams/{}/poll", {"group": "g", "member": "m"}),
    ("GET", "/v1/streams/{}/poll", {"after": 5}),
    ("GET", "/v1/streams/{}/poll", {"where": "op = 'insert'"}),
    ("GET", "/v1/streams/{}/poll", {"envelope": "changes"}), ("GET", "/v1/streams/{}/poll", {"partition": 0}),
    ("GET", "/v1/streams/{}/events", {}), ("GET", "/v1/streams/{}/events", {"group": "g"}),
    ("GET", "/v1/streams/{}/events", {"after": 9}), ("GET", "/v1/streams/{}/events", {"where": "true"}),
    ("POST", "/v1/streams/{}/commit", {"group": "g", "member": "m"}),
    ("POST", "/v1/streams/{}/commit", {"group": "g", "offsets": {"0": 1}}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "given"), ROUTES_OF_S)
def test_without_a_right_there_is_no_stream(
    guarded: ServerProcess, method: str, path: str, given: dict[str, object]
) -> None:
    """What a user must not see does not exist for him; what he sees without the right is 403."""
    for user, stream, status in (
        (("nobody", "n"), "s", 404),
        (("lee", "s"), "s", 404),
        (("lee", "s"), "p", 403),
    ):
        client = as_user(guarded, *user)
        if stream == "p" and given.get("envelope"):
            continue
        name = path.format(stream)
        answer = client.get(name, **given) if method == "GET" else client.post(name, given)
        groups_hidden = stream == "p" and "group" in given
        assert answer.status == (404 if groups_hidden and answer.status == 404 else status), answer.body
        assert answer.sqlstate in ("42704", "42P01", "42501")


def test_other_routes_without_the_right(guarded: ServerProcess) -> None:
    nobody, lee, root = (as_user(guarded, *user) for user in (("nobody", "n"), ("lee", "s"), ("root", "pw")))
    assert (nobody.get("/v1/streams").json(), nobody.get("/v1/groups").json()) == (
        {"streams": []},
        {"groups": []},
    )
    assert [one["name"] for one in lee.get("/v1/streams").json()["streams"]] == ["p"]
    assert nobody.post("/v1/topics/p", {"payload": 1}).status == 404
    assert lee.post("/v1/topics/p", {"payload": 1}).status == 200
    for client, status in ((nobody, 403), (lee, 403), (root, 200)):
        assert client.get("/metrics").status == status
    for text in ("SELECT * FROM t", "SELECT * FROM s", "DROP TABLE t", "SELECT * FROM STREAM s"):
        assert nobody.post("/v1/sql", {"sql": text}).status == 404, text
    for text in ("CREATE USER x PASSWORD 'x'", "SELECT * FROM read_csv('/etc/passwd')", "DELETE FROM t"):
        assert lee.post("/v1/sql", {"sql": text}).status == 403, text
    assert as_user(guarded).get("/live").status == 200
    # Another user's kept session or shared read gives nothing.
    assert root.get("/v1/streams/s/poll").status == 200
    with root.events("/v1/streams/s/events") as stream:
        stream.take(1)
        assert nobody.get("/v1/streams/s/events").status == 404


def test_authentication(guarded: ServerProcess) -> None:
    for client in (as_user(guarded), as_user(guarded, "root", "no"), as_user(guarded, "who", "pw")):
        for path in ("/v1/streams", "/v1/groups", "/v1/streams/s/poll", "/v1/streams/s/events", "/metrics"):
            answer = client.get(path)
            assert (answer.status, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic"), path
        # Nobody's body is read.
        assert client.post("/v1/sql", b"x" * 1_000_000).status == 401
    wrong, unknown = (as_user(guarded, user, "x").get("/v1/streams").json() for user in ("root", "who"))
    assert wrong["error"]["sqlstate"] == unknown["error"]["sqlstate"] == "28P01"
    for header in ("Basic", "Basic !!!", "Basic cm9vdA==", "Bearer", "Bearer ", "Digest x", "Bearer a b"):
        assert as_user(guarded).get("/v1/streams", {"Authorization": header}).status == 401, header
    plain = HttpClient(http_port(guarded), ("root", "pw"))
    with pytest.raises((ConnectionError, OSError, ValueError)):
        plain.get("/v1/streams")
    with guarded.connect(user="root", password="pw") as wire:
        wire.execute("ALTER USER lee PASSWORD 'new'")
        assert as_user(guarded, "lee", "s").get("/v1/streams").status == 401
        wire.execute("ALTER USER lee PASSWORD 's'")
    assert as_user(guarded, "LEE", "s").get("/v1/streams").status == 200


def test_tokens(guarded: ServerProcess) -> None:
    root, lee = as_user(guarded, "root", "pw"), as_user(guarded, "lee", "s")
    ((name, token, until),) = lee.sql("CREATE TOKEN ci FOR USER lee")
    assert (name, until, token[:9]) == ("ci", None, "ducktail_")
    holder = with_token(guarded, token)
    assert holder.sql("SELECT current_user") == [["lee"]]
    # Nobody prolongs a token by means of it.
    for text in ("CREATE TOKEN ci2 FOR USER lee", "ALTER USER lee PASSWORD 'other'"):
        answer = holder.post("/v1/sql", {"sql": text})
        assert (answer.status, answer.sqlstate) == (403, "42501"), answer.body
    assert [row[:2] for row in lee.sql("SHOW TOKENS")] == [["ci", "lee"]]
    assert as_user(guarded, "nobody", "n").sql("SHOW TOKENS") == []
    for text, sqlstate in (
        ("CREATE TOKEN ci2 FOR USER root", "42501"), ("CREATE TOKEN CI FOR USER lee", "42710"),
        ("CREATE TOKEN x FOR USER lee VALID UNTIL '2001-01-01'", "22023"), ("DROP TOKEN nothing", "42704"),
        ("CREATE TOKEN x FOR USER lee VALID UNTIL 'soon'", "22P02"),
    ):  # fmt: skip
        answer = lee.post("/v1/sql", {"sql": text})
        assert answer.sqlstate == sqlstate, answer.body
    hidden = as_user(guarded, "nobody", "n").post("/v1/sql", {"sql": "DROP TOKEN ci"})
    assert hidden.sqlstate == "42704"
    # Nothing in the file or its log has the token's text.
    for file in Path(str(guarded.path)).parent.glob("x.duckdb*"):
        assert token.encode() not in file.read_bytes()
    with guarded.connect(user="root", password="pw") as wire:
        wire.execute("ALTER USER lee RENAME TO another")
        assert holder.sql("SELECT current_user") == [["another"]]
        wire.execute("ALTER USER another RENAME TO lee")
        ((_, short, _),) = wire.execute("CREATE TOKEN short FOR USER lee VALID UNTIL '2099-01-01'").fetchall()
    assert with_token(guarded, short).get("/v1/streams").status == 200
    lee.sql("DROP TOKEN ci")
    assert holder.get("/v1/streams").status == 401
    root.sql("DROP TOKEN IF EXISTS short")
    # Without the row no token is accepted, and a dropped user's are dropped.
    root.sql("CREATE USER brief PASSWORD 'b'")
    ((_, brief, _),) = root.sql("CREATE TOKEN b FOR USER brief")
    root.sql("DROP USER brief")
    root.sql("CREATE USER brief PASSWORD 'b'")
    assert with_token(guarded, brief).get("/v1/streams").status == 401
    root.sql("DROP USER brief")


def test_a_revoked_right_ends_a_stream(guarded: ServerProcess) -> None:
    root = as_user(guarded, "root", "pw")
    root.sql("CREATE USER reader PASSWORD 'r'")
    root.sql("GRANT SELECT ON p TO reader")
    reader = as_user(guarded, "reader", "r")
    with reader.events("/v1/streams/p/events") as stream:
        stream.take(1)
        root.sql("REVOKE SELECT ON p FROM reader")
        root.post("/v1/topics/p", {"payload": "secret"})
        messages = list(stream)
    assert messages[-1].event == "failure"
    assert messages[-1].json()["error"]["sqlstate"] in ("42704", "42501", "42P01")
    assert not any("secret" in message.data for message in messages)
    root.sql("DROP USER reader")
