"""Connections that cannot be made, and which errors are worth another try; against a real gateway."""

from __future__ import annotations

import pickle
import time

import psycopg
import pytest
from server_process import ServerProcess

from ducktail.spark_connector.connection import connect, failure, retrying
from ducktail.spark_connector.errors import ConnectorError
from ducktail.spark_connector.options import Use, parse


def refused(server: ServerProcess, **given: str) -> ConnectorError:
    """How a connection with these options fails."""
    options = parse({"host": server.host, "port": str(server.port), **given}, Use.READ)
    with pytest.raises(ConnectorError) as caught:
        connect(options)
    return caught.value


def test_a_connection_speaks_utc_and_says_who_it_is(server: ServerProcess) -> None:
    options = parse({"host": server.host, "port": str(server.port)}, Use.READ)
    with connect(options) as connection:
        assert connection.execute("SHOW TimeZone").fetchone() == ("UTC",)
        [name] = connection.execute("SELECT current_setting('application_name')").fetchall()
    assert name == ("ducktail-spark",)


def test_each_refusal_names_its_option_and_is_not_tried_again(server: ServerProcess) -> None:
    with server.connect() as admin:
        admin.execute("CREATE USER ann PASSWORD 'right' SUPERUSER")
    for given, option in [
        ({"user": "ann", "password": "wrong"}, "user, password"),
        ({"user": "ann"}, "user, password"),
        ({"user": "ann", "password": "right", "database": "nope"}, "database"),
        ({"user": "ann", "password": "right", "sslmode": "require"}, "sslmode"),
        ({"host": "no-such-host.invalid"}, "host"),
    ]:
        error = refused(server, **given)
        assert f"option {option}" in str(error) or f"options {option}" in str(error), error
        assert not error.retryable and "right" not in str(error), error
        assert error.sqlstate == {"user, password": "28P01", "database": "3D000"}.get(option), error


def test_nobody_there_may_pass(server: ServerProcess) -> None:
    server.stop()
    error = refused(server)
    assert "options host, port: nobody answers" in str(error) and error.retryable


def test_nobody_answers(silent: tuple[str, int]) -> None:
    """Packets are dropped, and no refusal comes: the time-out ends it, and another try may go through."""
    host, port = silent
    options = parse({"host": host, "port": str(port), "connectTimeout": "2 s"}, Use.READ)
    began = time.monotonic()
    with pytest.raises(ConnectorError) as caught:
        connect(options)
    assert time.monotonic() - began < 10
    assert f"{host}:{port} (options host, port, connectTimeout: no answer in time)" in str(caught.value)
    assert caught.value.retryable


def test_a_statements_error_says_what_was_done_and_where_to_look(server: ServerProcess) -> None:
    with server.connect() as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT * FROM STREAM nope")
    error = failure(caught.value, 'reading stream "nope"', "stream")
    assert str(error).startswith('reading stream "nope" failed (option stream): ')
    assert error.sqlstate == "42704"
    assert not error.retryable
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.sqlstate, again.retryable) == (str(error), "42704", False)


def test_a_broken_connection_may_be_tried_again(server: ServerProcess) -> None:
    with server.connect() as connection:
        server.kill()
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT 1")
    assert failure(caught.value, "reading").retryable


def test_retries_end() -> None:
    calls = []

    def work() -> None:
        calls.append(time.monotonic())
        raise ConnectorError("gone", None, retryable=True)

    with pytest.raises(ConnectorError):
        retrying(work, 0.5)
    assert len(calls) >= 3 and calls[-1] - calls[0] <= 1.0
    calls.clear()
    with pytest.raises(ConnectorError):
        retrying(work, 0.0)
    assert len(calls) == 1
