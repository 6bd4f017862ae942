"""Sinks against hostile users: rights, keys that are shown nowhere, receivers that are none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kafka_cluster import KafkaCluster
from server_process import ServerProcess
from webhook_receiver import ReceiverProcess, until

from ducktail.engine.catalog.sinks import Sink
from ducktail.engine.networks import address_of, is_allowed, is_public, networks_of
from ducktail.pgwire_gateway.sinks.payloads import Message
from ducktail.pgwire_gateway.sinks.target import Answer
from ducktail.pgwire_gateway.sinks.webhook import Webhook

Connection = psycopg.Connection[Any]
DENIED = psycopg.errors.InsufficientPrivilege
KEY = "whsec_c2VjcmV0IG9mIHRoZSBzaW5rcyB0ZXN0IQ=="
TOKEN, UNQUOTED = "canarytoken", "unquotedtoken"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--port", "0", "--allow-network", "127.0.0.1", "--log-min-duration-statement-ms", "0")
    with ServerProcess(tmp_path_factory.mktemp("sinks") / "shop.duckdb", options) as started:
        with started.connect() as first:
            first.execute("CREATE USER ann PASSWORD 'x' SUPERUSER")
        with started.connect(user="ann", password="x") as ann:
            for user in ("bob", "eve"):
                ann.execute(f"CREATE USER {user} PASSWORD 'x'")
            ann.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
            ann.execute("CREATE STREAM s ON t")
            ann.execute("GRANT CONSUME ON s TO bob")
            ann.execute("GRANT CREATE ON DATABASE TO bob")
        yield started


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    with ReceiverProcess(tmp_path / "received") as process:
        yield process


def create(url: str, name: str = "hook", stream: str = "s") -> str:
    """CREATE SINK with secrets."""
    headers = f'{{"Authorization": "Bearer {TOKEN}"}}'
    return (
        f"CREATE SINK {name} ON {stream} TO WEBHOOK '{url}?key={TOKEN}' "
        f"WITH (secret = '{KEY}', headers = '{headers}', backoff = '10 ms')"
    )


def test_who_may_create_a_sink(ann: Connection, bob: Connection, eve: Connection) -> None:
    url = "https://receiver.invalid/"
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute(create(url))
    ann.execute("GRANT CONSUME ON s TO eve")
    with pytest.raises(DENIED, match="to let a sink send events"):
        eve.execute(create(url))
    ann.execute("REVOKE CONSUME ON s FROM eve")
    ann.execute("GRANT CREATE ON DATABASE TO eve")
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute(create(url))
    ann.execute("REVOKE CREATE ON DATABASE FROM eve")
    bob.execute(create(url))
    bob.execute("DROP SINK hook ON s")


def test_a_sink_is_its_owners(ann: Connection, bob: Connection, eve: Connection) -> None:
    ann.execute("GRANT CONSUME ON s TO eve")
    ann.execute("GRANT CREATE ON DATABASE TO eve")
    bob.execute(create("https://receiver.invalid/"))
    uses = (
        "ALTER SINK hook ON s SET (batch = 1)",
        "ALTER SINK hook ON s TO WEBHOOK 'https://eve.invalid/'",
        "PAUSE SINK hook ON s",
        "RESUME SINK hook ON s",
        "DROP SINK hook ON s",
    )
    for use in uses:
        with pytest.raises(psycopg.errors.UndefinedObject):
            eve.execute(use)
    assert eve.execute("SHOW SINKS").fetchall() == []
    assert eve.execute("SELECT * FROM ducktail.deliveries").fetchall() == []
    # Who may use the group does not send its events elsewhere.
    bob.execute("GRANT CONSUME ON CONSUMER GROUP hook ON s TO eve")
    assert len(eve.execute("SHOW SINKS").fetchall()) == 1
    for use in uses:
        with pytest.raises(DENIED):
            eve.execute(use)
    for statement in ("CREATE ON DATABASE", "CONSUME ON s"):
        ann.execute(f"REVOKE {statement} FROM eve")
    ann.execute("PAUSE SINK hook ON s")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        ann.execute("DROP USER bob")
    bob.execute("DROP SINK hook ON s")
    assert bob.execute("SHOW CONSUMER GROUPS").fetchall() == []


def test_who_has_lost_a_right_alters_nothing_and_sends_nothing(
    ann: Connection, bob: Connection, receiver: ReceiverProcess
) -> None:
    bob.execute(create(receiver.url))
    ann.execute("INSERT INTO t VALUES (1, 'x')")
    until(lambda: len(receiver.received()) == 1)
    ann.execute("REVOKE CREATE ON DATABASE FROM bob")
    bob.execute("PAUSE SINK hook ON s")
    for use in ("ALTER SINK hook ON s SET (batch = 1)", "RESUME SINK hook ON s"):
        with pytest.raises(DENIED):
            bob.execute(use)
    ann.execute("RESUME SINK hook ON s")
    ann.execute("REVOKE CONSUME ON s FROM bob")
    ann.execute("INSERT INTO t VALUES (2, 'x')")
    state = "SELECT state, reason FROM ducktail.sinks"
    until(lambda: ann.execute(state).fetchall()[0][0] == "stopped")
    assert "owner of the sink has lost a right" in ann.execute(state).fetchall()[0][1]
    assert len(receiver.received()) == 1
    ann.execute("GRANT CONSUME ON s TO bob")
    ann.execute("GRANT CREATE ON DATABASE TO bob")
    bob.execute("RESUME SINK hook ON s")
    until(lambda: len(receiver.received()) == 2)
    bob.execute("DROP SINK hook ON s")


def test_secrets_are_shown_nowhere(
    server: ServerProcess, ann: Connection, bob: Connection, receiver: ReceiverProcess
) -> None:
    bob.execute(create(receiver.url))
    bob.execute(f"ALTER SINK hook ON s SET (secret = '{KEY}')")
    ann.execute("INSERT INTO t VALUES (3, 'x')")
    until(lambda: [event for event in receiver.accepted() if event["key"] == {"id": 3}])
    shown = [
        ann.execute(text).fetchall()
        for text in (
            "SHOW SINKS",
            "SELECT * FROM ducktail.sinks",
            "SELECT * FROM ducktail.deliveries",
            "DESCRIBE CONSUMER GROUP hook ON s",
            "SELECT pid, query FROM pg_stat_activity",
            "SHOW PARKED ON s CONSUMER GROUP hook",
        )
    ]
    assert "?..." in str(shown)
    wrong = (
        f"CREATE SINK x ON s TO WEBHOOK 'https://h/' WITH (secret = '{KEY}' '{TOKEN}' {UNQUOTED})",
        f"CREATE SINK x ON s TO WEBHOOK 'https://h/' WITH (secret = {UNQUOTED})",
        f"CREATE SINK x ON s TO WEBHOOK 'https://h/' WITH (secret = \"{KEY}\")",
        f"CREATE SINK x ON s TO WEBHOOK 'https://h/' WITH (secret = {KEY})",
        f'ALTER SINK hook ON s SET (headers = "{TOKEN}")',
        f"CREATE SINK x ON s TO WEBHOOK 'https://h/' WITH (secret = 'whsec_{TOKEN}')",
        f"CREATE SINK x ON s TO WEBHOOK 'https://h/' WITH (headers = '{{\"Cookie\": 1, \"{TOKEN}\": 2}}')",
        f"CREATE SINK x ON s TO WEBHOOK 'https://{TOKEN}@h/'",
        f"CREATE SINK x ON s TO WEBHOOK '{TOKEN}'",
        f"CREATE SINK x ON s TO {UNQUOTED}",
        f"ALTER SINK hook ON s SET (secret = '{KEY}') {UNQUOTED}",
    )
    for text in wrong:
        with pytest.raises(psycopg.Error) as error:
            bob.execute(text)
        told = error.value.diag
        shown.append([(told.message_primary, told.message_detail, told.message_hint)])
    # A log shows no literal; what is not written as one is a name there.
    assert UNQUOTED not in str(shown)
    shown.append([tuple(server.lines)])
    for secret in (KEY, KEY.removeprefix("whsec_"), TOKEN):
        assert secret not in str(shown)
    bob.execute("DROP SINK hook ON s")


def test_secrets_of_kafka_are_shown_nowhere(server: ServerProcess, ann: Connection, bob: Connection) -> None:
    password, pem = "canarypassword", "-----BEGIN PRIVATE KEY-----canarypem-----END PRIVATE KEY-----"
    options = f"security_protocol = 'sasl_ssl', sasl_username = 'u', sasl_password = '{password}'"
    bob.execute(f"CREATE SINK k ON s TO KAFKA '127.0.0.1:1' TOPIC 't' WITH ({options})")
    bob.execute(f"ALTER SINK k ON s SET (sasl_password = '{password}', ssl_key = '{pem}')")
    ann.execute("INSERT INTO t VALUES (30, 'x')")
    until(
        lambda: ann.execute("SELECT fault FROM ducktail.sinks WHERE sink_name = 'k'").fetchall() != [(None,)]
    )
    shown = [
        ann.execute(text).fetchall()
        for text in (
            "SHOW SINKS",
            "SELECT * FROM ducktail.sinks",
            "SELECT * FROM ducktail.deliveries",
            "SELECT pid, query FROM pg_stat_activity",
        )
    ]
    assert '["sasl_password", "ssl_key"]' in str(shown).replace("'", '"')
    for text in (
        f"ALTER SINK k ON s SET (sasl_password = '{password}\n')",
        f"ALTER SINK k ON s SET (ssl_key = '{password}')",
        f"ALTER SINK k ON s SET (sasl_password = '{password}') x",
        f"ALTER SINK k ON s SET (sasl_password = {UNQUOTED})",
    ):
        with pytest.raises(psycopg.Error) as error:
            bob.execute(text)
        told = error.value.diag
        shown.append([(told.message_primary, told.message_detail, told.message_hint)])
    assert UNQUOTED not in str(shown)
    shown.append([tuple(server.lines)])
    for secret in (password, "canarypem"):
        assert secret not in str(shown)
    bob.execute("DROP SINK k ON s")


@pytest.mark.parametrize(
    "brokers", ["10.0.0.1:9092", "kafka.invalid,192.168.1.1", "[::1]:9092", "[::ffff:10.1.2.3]", "0.0.0.0"]
)
def test_a_broker_that_is_not_public_is_refused_at_once(ann: Connection, brokers: str) -> None:
    with pytest.raises(DENIED, match="is not a public address"):
        ann.execute(f"CREATE SINK x ON s TO KAFKA '{brokers}' TOPIC 't'")


def test_a_broker_that_the_cluster_names_is_judged(ann: Connection, bob: Connection) -> None:
    cluster = KafkaCluster(1)
    try:
        cluster.create("t", 1)
        cluster.advertise(1, "10.9.8.7", 9092)
        bob.execute(f"CREATE SINK k ON s TO KAFKA '{cluster.servers}' TOPIC 't'")
        ann.execute("INSERT INTO t VALUES (31, 'x')")
        fault = until(lambda: ann.execute("SELECT fault FROM ducktail.sinks").fetchall()[0][0])
        assert fault == "cannot connect: 10.9.8.7 is not a public address"
        bob.execute("DROP SINK k ON s")
    finally:
        cluster.close()


def test_no_sql_reads_the_table_of_secrets(ann: Connection, bob: Connection) -> None:
    for user in (ann, bob):
        for text in (
            "SELECT * FROM ducktail.__ducktail_sinks",
            'SELECT * FROM ducktail."__DUCKTAIL_SINKS"',
            "COPY ducktail.__ducktail_sinks TO STDOUT",
            "SELECT * FROM query_table('ducktail.__ducktail_' || 'sinks')",
            "DELETE FROM ducktail.__ducktail_sinks",
        ):
            with pytest.raises(psycopg.Error) as error:
                user.execute(text)
            assert error.value.sqlstate in ("42501", "0A000"), text


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/", "https://169.254.169.254/latest", "http://[::1]:80/", "http://[::ffff:10.1.2.3]/",
     "https://0.0.0.0/", "http://[fd00::1]/", "http://[64:ff9b::a00:1]/", "https://100.64.0.1/",
     "https://224.0.0.1/", "https://192.168.1.1/"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused_at_once(ann: Connection, url: str) -> None:
    with pytest.raises(DENIED, match="is not a public address"):
        ann.execute(f"CREATE SINK x ON s TO WEBHOOK '{url}'")


@pytest.mark.parametrize(
    "url",
    ["ftp://h/", "https://", "https://h:0/", "https://h:99999/", "https://user:pass@h/", "https://h/#x",
     "https://h/ x", "https://h\\@127.0.0.1/", "https://h/é", "//h/", "https://h@", "file:///etc/passwd",
     "https://h/\r\nX: y", "https://[::1/", "https://-h/"],
)  # fmt: skip
def test_a_text_that_is_no_address_of_a_webhook(ann: Connection, url: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        ann.execute(f"CREATE SINK x ON s TO WEBHOOK '{url}'".encode())


@pytest.mark.parametrize(
    "host", ["localhost", "2130706433", "0x7f000001", "017700000001", "127.1", "ip6-localhost"]
)
def test_other_spellings_are_refused_where_they_are_connected_to(tmp_path: Path, host: str) -> None:
    with ReceiverProcess(tmp_path / "received") as receiver:
        answer = asyncio.run(_sent(f"http://{host}:{receiver.port}/", ()))
        assert not answer.reached
        assert receiver.received() == []


def test_a_public_address_is_not_sent_to_without_tls() -> None:
    answer = asyncio.run(_sent("http://93.184.215.14/", ()))
    assert not answer.reached
    assert "the connection is not encrypted" in answer.detail


def test_a_name_that_changes_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection judges its own address, whatever the name was before."""
    real, answers = socket.getaddrinfo, ["127.0.0.2", "127.0.0.1"]

    def asked(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host == "changing.example":
            host = answers.pop(0)
        return real(host, port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", asked)

    async def twice() -> tuple[list[Answer], int]:
        connections = 0

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        listener = socket.create_server(("", 0))
        receiver = await asyncio.start_server(talk, sock=listener)
        port = listener.getsockname()[1]
        webhook = Webhook(f"http://changing.example:{port}/", networks_of(["127.0.0.2"]))
        try:
            found = [await webhook.send(SINK, MESSAGE, 0) for _ in range(2)]
        finally:
            await webhook.close()
            receiver.close()
        return found, connections

    (first, second), connections = asyncio.run(twice())
    assert first.accepted
    assert not second.reached
    assert "127.0.0.1 is not a public address" in second.detail
    assert connections == 1


SINK = Sink(1, "u", "webhook", "http://h/", {}, {})
MESSAGE = Message("u-1", b"{}", {"content-type": "application/json"})


async def _sent(url: str, allowed: Sequence[str]) -> Answer:
    webhook = Webhook(url, networks_of(allowed))
    try:
        return await webhook.send(SINK, MESSAGE, 0)
    finally:
        await webhook.close()


@pytest.mark.parametrize(
    ("text", "public"),
    [("8.8.8.8", True), ("2606:4700::1111", True), ("::ffff:8.8.8.8", True), ("64:ff9b::808:808", True),
     ("127.0.0.1", False), ("::1", False), ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False),
     ("::", False), ("0.0.0.0", False), ("fe80::1%eth0", False), ("fec0::1", False), ("2002:7f00:1::", False),
     ("2001:db8::1", False), ("255.255.255.255", False), ("198.18.0.1", False), ("ff02::1", False),
     ("::127.0.0.1", False), ("192.0.0.170", False), ("192.88.99.1", False),
     ("64:ff9b:1:a00:1::808:808", False), ("64:ff9b:1::808:808", False)],
)  # fmt: skip
def test_public_addresses(text: str, public: bool) -> None:
    address = address_of(text)
    assert address is not None
    assert is_public(address) is public


def test_an_error_has_no_query_of_the_url() -> None:
    async def answered() -> Answer:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"SSH-2.0-Receiver\r\n\r\n")
            writer.close()

        receiver = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = receiver.sockets[0].getsockname()[1]
        try:
            return await _sent(f"http://127.0.0.1:{port}/hook?key={TOKEN}", ("127.0.0.1",))
        finally:
            receiver.close()

    answer = asyncio.run(answered())
    assert "Bad status line" in answer.detail
    assert TOKEN not in answer.detail


def test_a_connection_that_fails_without_words_is_told_by_its_error() -> None:
    async def answered() -> Answer:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        receiver = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = receiver.sockets[0].getsockname()[1]
        try:
            return await _sent(f"https://127.0.0.1:{port}/", ("127.0.0.1",))
        finally:
            receiver.close()

    answer = asyncio.run(answered())
    assert not answer.reached
    assert len(answer.detail) > len("cannot connect: ")


def test_allowed_networks() -> None:
    networks = networks_of(["10.0.0.0/8", "::1"])
    allowed = [a for a in ("10.1.2.3", "::ffff:10.1.2.3", "::1", "11.0.0.1", "::2") if _in(a, networks)]
    assert allowed == ["10.1.2.3", "::ffff:10.1.2.3", "::1"]


def _in(text: str, networks: Any) -> bool:
    address = address_of(text)
    assert address is not None
    return is_allowed(address, networks)
