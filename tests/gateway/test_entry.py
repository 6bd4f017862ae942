"""The way in: what is asked at the door, who is let in, and what is told."""

from __future__ import annotations

import select
import struct
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess


def test_what_a_session_is_told(shared_raw: Callable[[], Any]) -> None:
    told = shared_raw().enter(application_name="app", TimeZone="Europe/Berlin")
    assert told["server_version"].startswith("15.")
    assert (told["client_encoding"], told["server_encoding"]) == ("UTF8", "UTF8")
    assert (told["integer_datetimes"], told["standard_conforming_strings"]) == ("on", "on")
    assert told["TimeZone"] == "Europe/Berlin"
    assert told["application_name"] == "app"
    assert told["DateStyle"].startswith("ISO")
    assert int(told["pid"]) > 0 and len(told["secret"]) == 8
    assert shared_raw().enter()["secret"] != told["secret"]


def test_encryption_is_refused_with_a_letter(shared_raw: Callable[[], Any]) -> None:
    client = shared_raw()
    for code in (80877103, 80877104):
        client.packet(code)
        assert client.read(1) == b"N"
    assert client.enter()["server_encoding"] == "UTF8"


def test_bytes_behind_an_ssl_request(shared_raw: Callable[[], Any], error_fields: Any) -> None:
    client = shared_raw()
    client.send(struct.pack("!iI", 8, 80877103) + struct.pack("!iI", 8, 3 << 16))
    ((kind, body),) = client.until("Z")
    assert (kind, error_fields(body)["C"]) == ("E", "08P01")


@pytest.mark.parametrize("name", ["ducktail", "postgres"])
def test_names_of_the_database(shared: ServerProcess, name: str) -> None:
    with shared.connect(dbname=name) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_another_database_is_3d000(shared: ServerProcess) -> None:
    with pytest.raises(psycopg.OperationalError, match='database "shop" does not exist'):
        shared.connect(dbname="shop")


@pytest.mark.parametrize(
    ("parameters", "sqlstate"),
    [
        ({"database": "shop"}, "3D000"),
        ({"user": ""}, "28000"),
        ({"client_encoding": "klingon"}, "22023"),
        ({"options": "-c client_encoding=klingon"}, "22023"),
        ({"replication": "database"}, "0A000"),
        ({"options": "-x"}, "42601"),
        ({"TimeZone": "Atlantis"}, "22023"),
        ({"no_such_setting": "1"}, "42704"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_who_is_not_let_in(
    shared_raw: Callable[[], Any], error_fields: Any, parameters: dict[str, str], sqlstate: str
) -> None:
    client = shared_raw()
    named = {"user": "ann", "database": "ducktail", **parameters}
    words = [word.encode() + b"\0" for pair in named.items() for word in pair]
    client.packet(3 << 16, b"".join(words) + b"\0")
    (kind, body) = client.until("Z")[-1]
    assert (kind, error_fields(body)["S"], error_fields(body)["C"]) == ("E", "FATAL", sqlstate)


@pytest.mark.parametrize("spelling", ["utf8", "UTF-8", "'utf-8'", "unicode"])
def test_spellings_of_the_encoding(shared_raw: Callable[[], Any], spelling: str) -> None:
    assert shared_raw().enter(client_encoding=spelling)["client_encoding"] == "UTF8"


def test_settings_in_the_startup_packet(shared: ServerProcess) -> None:
    with shared.connect(options="-c lock_timeout=1234 -c TimeZone=Asia/Tokyo") as connection:
        assert connection.execute("SHOW TimeZone").fetchone() == ("Asia/Tokyo",)
        found = connection.execute("SHOW lock_timeout").fetchone()
        assert found is not None and found[0] in ("1234", "1234ms")


def test_protocol_3_2_is_negotiated(shared: ServerProcess) -> None:
    with shared.connect(max_protocol_version="3.2", min_protocol_version="3.0") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.pgconn.full_protocol_version == 30002
        thread = threading.Timer(0.3, connection.cancel_safe)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT count(*) FROM range(100000000000) a WHERE a.range % 7 = 8")
        thread.join()
    with shared.connect(min_protocol_version="3.2", max_protocol_version="latest") as connection:
        assert connection.pgconn.full_protocol_version == 30002


def test_a_cancel_key_is_as_long_as_the_protocol_says_and_only_the_whole_of_it_cancels(
    shared: ServerProcess, shared_raw: Callable[[], Any], error_fields: Any
) -> None:
    for version, length in ((3 << 16, 4), (3 << 16 | 1, 4), (3 << 16 | 2, 32), (3 << 16 | 7, 32)):
        client = shared_raw()
        client.packet(version, b"user\0ann\0database\0ducktail\0\0")
        answers = client.until("Z")
        (key,) = [body for kind, body in answers if kind == "K"]
        assert len(key) == 4 + length
        assert [kind for kind, _ in answers if kind == "v"] == ["v"] * (version > (3 << 16 | 2))
        client.message("Q", b"SELECT count(*) FROM range(100000000000) a WHERE a.range % 7 = 8\0")
        wrong = [key[:-1] + bytes([key[-1] ^ 1]), key[:-1], key + b"\0", key[:8]]
        for told in [item for item in wrong if item != key]:
            other = shared_raw()
            other.packet(80877102, told)
            assert other.answer() is None
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(20)
        answered = False
        while not answered:
            other = shared_raw()
            other.packet(80877102, key)
            assert other.answer() is None
            answered = bool(select.select([client.socket], [], [], 0.5)[0])
        found = client.until("Z")
        assert [error_fields(body)["C"] for kind, body in found if kind == "E"] == ["57014"]


def test_another_protocol(shared_raw: Callable[[], Any], error_fields: Any) -> None:
    client = shared_raw()
    client.packet(2 << 16, b"user\0")
    ((_, body),) = client.until("Z")
    assert error_fields(body)["C"] == "0A000"


def test_too_many_clients(serve: Callable[..., ServerProcess]) -> None:
    server = serve(options=("--port", "0", "--max-connections", "2"))
    with server.connect() as first, server.connect() as second:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            server.connect()
        # A cancel needs no place.
        first.cancel()
        second.close()
        # The place is free once the server has closed the session, which no answer tells.
        for _ in range(100):
            first.execute("SELECT 1")
            try:
                server.connect().close()
                return
            except psycopg.OperationalError:
                pass
    pytest.fail("the place of a closed session was not given to another")
