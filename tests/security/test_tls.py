"""TLS: who gets it and how, which certificate, and what an attacker in between cannot do."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certificates
import psycopg
import pytest
from server_process import ServerProcess

from ducktail.engine.errors import InvalidParameterValue
from ducktail.pgwire_gateway import TlsFiles

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
STARTUP = b"user\0ann\0database\0ducktail\0\0"
STARTUP = struct.pack("!ii", len(STARTUP) + 8, 3 << 16) + STARTUP
OPENED: list[socket.socket] = []
SLOW = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8"


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    """Close what a test has opened."""
    yield
    while OPENED:
        OPENED.pop().close()


def kept(client: socket.socket) -> Any:
    """The same, closed at the test's end."""
    OPENED.append(client)
    return client


def raw(server: ServerProcess) -> socket.socket:
    """A bare connection."""
    client: socket.socket = kept(socket.create_connection((server.host, server.port), 20))
    return client


def rest(client: socket.socket) -> bytes:
    """All that a server still sends before it closes."""
    found = b""
    while True:
        try:
            data = client.recv(65536)
        except ConnectionError:
            return found
        if not data:
            return found
        found += data


def wrapped(
    client: socket.socket, *, alpn: str | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLSocket:
    """The client's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    if version is not None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
    inside = context.wrap_socket(client, do_handshake_on_connect=False)
    kept(inside)
    inside.do_handshake()
    return inside


def test_a_client_gets_tls_and_the_certificate_is_the_servers(
    secure: ServerProcess, certificate: certificates.Files, tmp_path: Path
) -> None:
    with secure.connect(sslmode="verify-full", sslrootcert=str(certificate.certificate)) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("SELECT sum(range) FROM range(100000)").fetchone() == (4999950000,)
        assert len(connection.execute("SELECT repeat('x', 3000000)").fetchone()[0]) == 3_000_000  # type: ignore[index]
    other = certificates.make(tmp_path, "other")
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        secure.connect(sslmode="verify-ca", sslrootcert=str(other.certificate))


def test_direct_tls_of_libpq(secure: ServerProcess, certificate: certificates.Files) -> None:
    root = str(certificate.certificate)
    with secure.connect(sslmode="verify-full", sslnegotiation="direct", sslrootcert=root) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_direct_tls_wants_the_protocols_name(secure: ServerProcess) -> None:
    """A browser that was led here must not be answered (ALPACA)."""
    for alpn in (None, "http/1.1"):
        client = wrapped(raw(secure), alpn=alpn)
        with pytest.raises((ssl.SSLError, OSError)):
            client.sendall(STARTUP)
            if client.recv(1) == b"":
                raise ssl.SSLEOFError
    client = wrapped(raw(secure), alpn="postgresql")
    client.sendall(STARTUP)
    assert client.recv(1) == b"R"


def test_tls_inside_tls_is_refused(secure: ServerProcess) -> None:
    client = wrapped(raw(secure), alpn="postgresql")
    client.sendall(SSL_REQUEST)
    assert b"08P01" in client.recv(65536)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_tls_is_refused(secure: ServerProcess, version: ssl.TLSVersion) -> None:
    client = raw(secure)
    client.sendall(SSL_REQUEST)
    assert client.recv(1) == b"S"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        wrapped(client, version=version)


def test_bytes_behind_the_request_are_refused(secure: ServerProcess) -> None:
    """CVE-2021-23214: in one piece, and in a piece that comes before the answer."""
    client = raw(secure)
    client.sendall(SSL_REQUEST + STARTUP)
    assert b"08P01" in rest(client)
    with raw(secure) as stalled:
        stalled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stalled.sendall(SSL_REQUEST)
        stalled.sendall(STARTUP[:5])
        answer = rest(stalled)
        # The request may have been answered in between: what then comes is no TLS.
        assert answer == b"S" or b"08P01" in answer or answer.startswith(b"S\x15")


def test_plain_bytes_after_the_yes_are_no_session(secure: ServerProcess) -> None:
    client = raw(secure)
    client.sendall(SSL_REQUEST)
    assert client.recv(1) == b"S"
    client.sendall(STARTUP)
    assert b"R\0\0\0" not in rest(client)


def test_garbage_in_the_handshake_and_after_it_ends_that_connection_only(secure: ServerProcess) -> None:
    with secure.connect(sslmode="require") as neighbour:
        for garbage in (b"\x16\x03\x01\x00\x05hello" * 20, b"\x16" + bytes(range(256)) * 40):
            client = raw(secure)
            client.sendall(garbage)
            rest(client)
        client = raw(secure)
        client.sendall(SSL_REQUEST)
        assert client.recv(1) == b"S"
        inside = wrapped(client)
        inside.sendall(STARTUP)
        inside.recv(65536)
        plain = kept(socket.socket(fileno=socket.dup(inside.fileno())))
        plain.settimeout(20)
        plain.sendall(b"\x17\x03\x03\x00\x10" + b"x" * 16)
        rest(plain)
        assert neighbour.execute("SELECT 1").fetchone() == (1,)


def test_a_cancel_over_tls_is_closed_properly(secure: ServerProcess) -> None:
    """libpq calls a cancel failed whose connection ends without close_notify."""
    with secure.connect(sslmode="require") as connection:
        failed: list[BaseException] = []

        def cancel() -> None:
            try:
                connection.cancel_safe(timeout=10)
            except BaseException as error:
                failed.append(error)

        timer = threading.Timer(0.3, cancel)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(SLOW)
        timer.join()
        assert not failed


def test_an_end_is_a_proper_end(secure: ServerProcess) -> None:
    client = wrapped(raw(secure), alpn="postgresql")
    client.sendall(STARTUP)
    client.recv(65536)
    client.sendall(b"X\0\0\0\4")
    while client.recv(65536):
        pass  # Without close_notify this is an SSLEOFError.


def test_a_certificate_is_read_again_on_sighup(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    files = certificates.make(tmp_path, "mine")
    first = files.certificate.read_text()
    server = serve(options=("--port", "0", *files.options))

    def shown() -> str:
        """The certificate that a new connection is shown."""
        return ssl.DER_cert_to_PEM_cert(wrapped(raw(server), alpn="postgresql").getpeercert(True) or b"")

    def until(words: str) -> None:
        deadline = time.monotonic() + 20
        while not any(words in line for line in server.lines):
            assert time.monotonic() < deadline, server.lines
            time.sleep(0.02)

    with server.connect(sslmode="require") as connection:
        assert shown() == first
        certificates.make(tmp_path, "mine")
        second = files.certificate.read_text()
        assert second != first and shown() == first
        server.process.send_signal(signal.SIGHUP)
        until("has been read again")
        assert shown() == second
        files.key.write_text("no key")
        server.process.send_signal(signal.SIGHUP)
        until("the old certificate stays")
        assert shown() == second
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_without_a_certificate_tls_is_refused(server: ServerProcess) -> None:
    client = raw(server)
    client.sendall(SSL_REQUEST)
    assert client.recv(1) == b"N"
    client.sendall(STARTUP)
    assert client.recv(1) == b"R"
    with pytest.raises(psycopg.OperationalError, match="SSL"):
        server.connect(sslmode="require")


def test_certificates_that_cannot_be_used(
    tmp_path: Path, certificate: certificates.Files, key_with_passphrase: certificates.Files
) -> None:
    missing = tmp_path / "none"
    other = certificates.make(tmp_path, "other")
    for cert, key, words in (
        (missing, certificate.key, "no such file"),
        (certificate.certificate, missing, "no such file"),
        (certificate.certificate, other.key, "mismatch"),
        (certificate.key, certificate.key, "cannot use certificate"),
        (key_with_passphrase.certificate, key_with_passphrase.key, "passphrase"),
    ):
        with pytest.raises(InvalidParameterValue, match=words):
            TlsFiles(str(cert), str(key)).load()


def test_a_server_does_not_start_with_one(tmp_path: Path, certificate: certificates.Files) -> None:
    one = ("--tls-cert", str(certificate.certificate))
    for options, words in ((one, "go together"), ((*one, "--tls-key", str(tmp_path)), "cannot use")):
        with pytest.raises(RuntimeError, match="ducktail: ") as told:
            ServerProcess(tmp_path / "d.duckdb", ("--port", "0", *options))
        assert words in str(told.value)
        assert not (tmp_path / "d.duckdb").exists()
