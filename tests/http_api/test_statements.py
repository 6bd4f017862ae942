"""POST /v1/sql, the listings, and the form of answers and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from http_client import HttpClient, http_port
from server_process import ServerProcess

from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings
from ducktail.pgwire_gateway.http_api.failures import OF_CLASS, OF_STATE, status_of


def test_values_keep_their_digits(client: HttpClient) -> None:
    answer = client.post(
        "/v1/sql",
        {
            "sql": "SELECT 9007199254740993::BIGINT AS i, 1.50::DECIMAL(10,2) AS d, 'NaN'::DOUBLE AS n, "
            "true AS b, [1, NULL] AS l, ['a,\"', 'b'] AS s, {'x': [1]} AS st, NULL AS z, "
            "'{\"a\": 1}'::JSON AS j, "
            "TIMESTAMPTZ '2026-01-02 03:04:05.6+00' AS t, DATE '2026-01-02' AS day, 'a\"\n' AS text, "
            "'\\xAA'::BLOB AS raw"
        },
    )
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert b"9007199254740993" in answer.body and b"1.50" in answer.body
    found = answer.json()
    assert found["rows"] == [
        [
            9007199254740993, 1.5, "NaN", True, [1, None], ['a,"', "b"], {"x": [1]}, None, {"a": 1},
            "2026-01-02T03:04:05.6Z", "2026-01-02", 'a"\n', "\\xaa",
        ]
    ]  # fmt: skip
    assert found["columns"][:2] == [{"name": "i", "type": "BIGINT"}, {"name": "d", "type": "DECIMAL(10,2)"}]
    assert (found["command"], found["truncated"]) == ("SELECT 1", False)


def test_parameters_are_values(client: HttpClient, table: str) -> None:
    assert client.sql("SELECT $1 || $2, $3::INT + 1", "'); DROP TABLE x; --", "é", 41) == [
        ["'); DROP TABLE x; --é", 42]
    ]
    client.sql(f"INSERT INTO {table} VALUES ($1, $2, $3)", 1, None, "12.5")
    assert client.sql(f"SELECT * FROM {table}") == [[1, None, 12.5]]
    few = client.post("/v1/sql", {"sql": "SELECT $1::INT + $2::INT", "parameters": [1]})
    assert (few.status, few.sqlstate) == (400, "42601")


def test_a_long_answer_is_truncated(client: HttpClient) -> None:
    answer = client.post("/v1/sql", {"sql": "SELECT * FROM range(3000) AS r(x)", "limit": 2500}).json()
    assert ([row[0] for row in answer["rows"]], answer["truncated"]) == ([*range(2500)], True)
    whole = client.post("/v1/sql", {"sql": "SELECT * FROM range(3000) AS r(x)", "limit": 3000}).json()
    assert (len(whole["rows"]), whole["truncated"], whole["command"]) == (3000, False, "SELECT 3000")
    wide = client.post("/v1/sql", {"sql": "SELECT repeat('x', 9000000) FROM range(20)"}).json()
    assert (len(wide["rows"]), wide["truncated"]) == (3, True)


def test_settings_end_with_the_request(client: HttpClient, server: ServerProcess) -> None:
    client.sql("SET application_name = 'another'")
    client.sql("CREATE TEMPORARY TABLE mine AS SELECT 1")
    assert client.sql("SHOW application_name") == [["http"]]
    assert client.post("/v1/sql", {"sql": "SELECT * FROM mine"}).status == 404
    with server.connect() as wire:
        # No request is under way: the sessions of statements are gone.
        names = wire.execute("SELECT count(*) FROM ducktail.sessions WHERE state <> 'idle'").fetchone()
    assert names == (1,)


@pytest.mark.parametrize(
    ("body", "status", "sqlstate"),
    [
        ({"sql": "BEGIN"}, 400, "0A000"),
        ({"sql": "SELECT 1; SELECT 2"}, 400, "42601"),
        ({"sql": " "}, 400, "42601"),
        ({"sql": "COPY (SELECT 1) TO STDOUT"}, 400, "0A000"),
        ({"sql": "PREPARE p AS SELECT 1"}, 400, "0A000"),
        ({"sql": "SELEC 1"}, 400, "42601"),
        ({"sql": "SELECT * FROM nowhere"}, 404, "42P01"),
        ({"sql": "SELECT 'x'::INT"}, 400, "22P02"),
        ({"sql": "SELECT count(*) FROM range(100000000000)", "timeout_ms": 50}, 503, "57014"),
        ({"sql": "SELECT 1", "limit": 0}, 400, "22023"),
        ({"sql": "SELECT 1", "limit": True}, 400, "22023"),
        ({"sql": 1}, 400, "22023"),
        ({"sql": "SELECT 1", "row_limit": 3}, 400, "22023"),
        ({"sql": "CREATE TOKEN x FOR USER nobody"}, 404, "42704"),
        ([1], 400, "22023"),
    ],
)  # fmt: skip
def test_refused_statements(client: HttpClient, body: Any, status: int, sqlstate: str) -> None:
    answer = client.post("/v1/sql", body)
    assert (answer.status, answer.sqlstate) == (status, sqlstate), answer.body


def test_bodies_of_other_types_are_refused(client: HttpClient) -> None:
    """A page of another site can send these without asking."""
    body = b'{"sql": "SELECT 1"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert client.post("/v1/sql", body, content_type=kind).status == 400
    for raw in (b'{"sql": NaN}', b"{", b"\xff", b"[" * 100_000, b'{"sql": "a", "sql": "b"}'):
        answer = client.post("/v1/sql", raw)
        assert answer.status == 400, answer.body
    zipped = client.post("/v1/sql", body, {"Content-Encoding": "gzip"})
    assert (zipped.status, zipped.sqlstate) == (400, "0A000")


def test_unknown_routes_methods_and_parameters(client: HttpClient, table: str) -> None:
    assert (client.get("/v2/streams").status, client.get("/v1/sql").status) == (404, 405)
    assert client.get("/v1/streams", limt=3).sqlstate == "22023"
    assert client.get(f"/v1/streams/{table}_s/poll", limt=3).sqlstate == "22023"
    twice = client.request("GET", f"/v1/streams/{table}_s/poll?limit=3&limit=4")
    assert (twice.status, twice.sqlstate) == (400, "22023")
    assert client.request("GET", "/v1/streams/%22/poll").status == 400


def test_listings(client: HttpClient, table: str, topic: str) -> None:
    client.sql(f"INSERT INTO {table} VALUES (1, 'a', 1.5), (2, 'b', 2)")
    streams = {one["name"]: one for one in client.get("/v1/streams").json()["streams"]}
    assert (streams[topic]["kind"], streams[topic]["tables"], streams[topic]["events"]) == ("topic", [], 0)
    stream = streams[f"{table}_s"]
    assert (stream["kind"], stream["tables"], stream["partitions"]) == ("stream", [f"main.{table}"], 4)
    assert (stream["events"], stream["last_lsn"] - stream["first_lsn"]) == (2, 1)
    groups = {one["stream"]: one for one in client.get("/v1/groups").json()["groups"]}
    group = groups[f"{table}_s"]
    assert (group["group"], group["lag_events"], group["members"], group["parked"]) == ("g", 2, 0, 0)
    assert group["lag_seconds"] > 0 and len(group["partitions"]) == 4
    assert sum(one["lag_events"] for one in group["partitions"]) == 2


def test_probes_and_metrics(client: HttpClient) -> None:
    assert (client.get("/live").body, client.get("/ready").body) == (b"live\n", b"ready\n")
    metrics = client.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"ducktail_ready 1.0" in metrics.body


def test_every_sqlstate_has_a_status() -> None:
    states = {one.sqlstate for one in _classes(DucktailError)}
    missing = {state for state in states if state not in OF_STATE and state[:2] not in OF_CLASS}
    assert missing == {"XX000", "XX001"}
    assert {status_of(one("x")) for one in _classes(DucktailError) if one.sqlstate[:2] == "XX"} == {500}


def _classes(top: type[Any]) -> list[type[Any]]:
    found = []
    for one in top.__subclasses__():
        found += [one, *_classes(one)]
    return [one for one in found if one.__init__ is DucktailError.__init__]


def test_a_taken_port_and_a_wrong_address(place: Path, server: ServerProcess) -> None:
    taken = http_port(server)
    for words, told in (
        (("--http", f"127.0.0.1:{taken}"), "cannot listen on"),
        (("--http", "5481"), "not HOST:PORT"),
        (("--http", "0.0.0.0:0"), "wants TLS and users"),
        (("--http-cors", "https://a.example"), "which --http serves"),
        (("--http", "127.0.0.1:0", "--http-cors", "a.example"), "not an origin"),
    ):
        with pytest.raises(RuntimeError, match=told):
            ServerProcess(place, ("--port", "0", *words))


def test_requests_count_as_sessions(place: Path) -> None:
    options = ("--port", "0", "--http", "127.0.0.1:0", "--max-connections", "3")
    with ServerProcess(place, options) as server:
        client = HttpClient(http_port(server))
        held = [server.connect() for _ in range(3)]
        try:
            full = client.post("/v1/sql", {"sql": "SELECT 1"})
            assert (full.status, full.sqlstate, full.headers["Retry-After"]) == (503, "53300", "1")
        finally:
            for connection in held:
                connection.close()
        # A connection of the wire is counted until the server has noticed its end.
        assert _until_served(client) == [[1]]


def _until_served(client: HttpClient) -> Any:
    while (answer := client.post("/v1/sql", {"sql": "SELECT 1"})).status == 503:
        pass
    return answer.json()["rows"]


def test_a_cancelled_request_ends_its_statement(client: HttpClient, wire: psycopg.Connection[Any]) -> None:
    connection = client.connection()
    body = b'{"sql": "SELECT count(*) FROM range(1000000000000)"}'
    connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json"})
    running = "SELECT count(*) FROM ducktail.sessions WHERE application_name = 'http' AND state = 'active'"
    while wire.execute(running).fetchone() == (0,):
        pass
    connection.close()
    while wire.execute(running).fetchone() != (0,):
        pass


def test_another_session_can_cancel_it(client: HttpClient, wire: psycopg.Connection[Any]) -> None:
    connection = client.connection()
    body = b'{"sql": "SELECT count(*) FROM range(1000000000000)"}'
    connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json"})
    running = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'http' AND state = 'active'"
    )
    while not wire.execute(running).fetchall():
        pass
    answer = connection.getresponse()
    assert (answer.status, b"57014" in answer.read()) == (503, True)
    connection.close()


def test_the_setting_is_one_of_the_server() -> None:
    assert Settings().http_connections_max == 2000


def test_numbers_of_parameters_keep_their_digits(client: HttpClient) -> None:
    values = b'[12345678901234567.123456789012345678, {"p": 1.50}]'
    body = b'{"sql": "SELECT $1::DECIMAL(38,18), $2::JSON", "parameters": ' + values + b"}"
    answer = client.post("/v1/sql", body)
    assert b'"rows":[[12345678901234567.123456789012345678,{"p": 1.50}]]' in answer.body
