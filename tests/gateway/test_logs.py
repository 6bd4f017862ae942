"""What a server logs: its connections, refusals and slow statements; and what it never logs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import psycopg
import pytest
from server_process import ServerProcess

from ducktail.engine.server_log import JsonFormatter, TextFormatter, facts
from ducktail.sql.language.clauses import RULES
from ducktail.sql.text.tokens import SECRET_WORDS, SHOWN_CHARS_MAX, masked

Serve = Callable[..., ServerProcess]

# Whatever is said with it must not be found in a log.
SECRET = "Sesam42Sesam"


def events(server: ServerProcess) -> list[dict[str, Any]]:
    """The log of a server that has ended, from `--log-format json`."""
    return [json.loads(line) for line in server.lines if line.startswith("{")]


def with_message(found: list[dict[str, Any]], message: str) -> list[dict[str, Any]]:
    """The events of one kind."""
    return [event for event in found if event["message"] == message]


def test_connections_refusals_and_slow_statements_are_logged_without_any_value(serve: Serve) -> None:
    words = ("--port", "0", "--log-format", "json", "--log-min-duration-statement-ms", "0")
    server = serve(options=words)
    with server.connect(application_name="a\nb") as connection:
        session = connection.info.backend_pid
        connection.execute(f"CREATE TABLE t AS SELECT '{SECRET}' AS s, 4711 AS n -- {SECRET}")
        connection.execute("SELECT * FROM t WHERE s = %s", [SECRET], binary=True)
        connection.execute(f"SELECT $${SECRET}$$, e'{SECRET}'")
        cast, quote = f"SELECT CAST('{SECRET}' AS int)", f"SELECT '{SECRET}"
        typed = f"CREATE USER u PASSWRD '{SECRET}'"
        for wrong in (cast, quote, typed):
            with pytest.raises(psycopg.Error):
                connection.execute(wrong)
        connection.execute(f"CREATE USER ann PASSWORD '{SECRET}' SUPERUSER")
    with pytest.raises(psycopg.OperationalError):
        server.connect(user="ann", password=f"{SECRET}!").close()
    with pytest.raises(psycopg.OperationalError):
        server.connect(user="ann", password=SECRET, dbname="elsewhere").close()
    server.connect(user="ann", password=SECRET).close()
    assert server.stop() == 0

    found = events(server)
    first, second = with_message(found, "connection opened")
    assert first | {"time": ""} == {
        "time": "", "level": "info", "logger": "ducktail.gateway", "message": "connection opened",
        "session": session, "user": "ducktail", "application": "a\nb", "peer": "127.0.0.1", "tls": False,
    }  # fmt: skip
    assert second["user"] == "ann"
    closed = with_message(found, "connection closed")
    # A connection is over once its end is written: the next may be there before that.
    assert {event["session"] for event in closed} == {first["session"], second["session"]}
    assert all(event["duration_s"] >= 0 and "sqlstate" not in event for event in closed)
    (failed,) = with_message(found, "authentication failed")
    assert (failed["level"], failed["user"], failed["sqlstate"]) == ("warning", "ann", "28P01")
    assert failed["peer"] == "127.0.0.1"
    (refused,) = with_message(found, "connection refused")
    assert (refused["user"], refused["sqlstate"]) == ("ann", "3D000")
    slow = with_message(found, "slow statement")
    told = [(event["kind"], event["outcome"], event["statement"]) for event in slow]
    assert told == [
        ("ddl", "ok", "CREATE TABLE t AS SELECT ? AS s , ? AS n"),
        ("read", "ok", "SELECT * FROM t WHERE s = $1"),
        ("read", "ok", "SELECT ? , ?"),
        ("read", "22P02", "SELECT CAST ( ? AS int )"),
        ("unknown", "42601", "?"),
        ("unknown", "42601", "CREATE USER u PASSWRD ?"),
        ("ours", "ok", "CREATE USER ann PASSWORD ? SUPERUSER"),
    ]
    assert all(event["session"] == session and event["duration_ms"] > 0 for event in slow)
    assert SECRET not in "\n".join(server.lines)


def test_slow_is_what_takes_longer_and_a_session_that_is_ended_says_why(serve: Serve) -> None:
    words = ("--port", "0", "--log-format", "json", "--log-min-duration-statement-ms", "60000")
    server = serve(options=(*words, "--lock-timeout-ms", "1"))
    with server.connect() as one, server.connect() as other:
        one.execute("CREATE TABLE t (i int)")
        one.execute("CREATE STREAM s ON t")
        other.execute("SET idle_in_transaction_session_timeout = '50ms'")
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            one.execute("INSERT INTO t VALUES (2)")
        # The server closes it by itself; until it does there is nothing to read.
        with pytest.raises(psycopg.OperationalError):
            next(other.notifies(timeout=20))
    assert server.stop() == 0
    found = events(server)
    assert with_message(found, "slow statement") == []
    reasons = [event.get("sqlstate") for event in with_message(found, "connection closed")]
    assert sorted(map(str, reasons)) == ["25P03", "None"]


def test_retention_is_logged(serve: Serve) -> None:
    words = ("--port", "0", "--log-format", "json", "--retention-interval-ms", "100")
    server = serve(options=words)
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (i int)")
        connection.execute("CREATE STREAM s ON t WITH (retention = '1 s', partitions = 1)")
        connection.execute("INSERT INTO t SELECT * FROM range(5)")
        while connection.execute("SELECT first_lsn FROM ducktail.partitions").fetchone() != (None,):
            pass
    assert server.stop() == 0
    (event,) = with_message(events(server), "events are no longer retained")
    assert (event["stream"], event["events"], event["groups_passed"]) == ("main.s", 5, 0)
    assert event["logger"] == "ducktail.engine.retention.edges"


def record(message: str, error: BaseException | None = None, **values: object) -> logging.LogRecord:
    """A record as a logger makes it, at a time that is known."""
    trace = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("ducktail.x", logging.INFO, "f.py", 1, message, (), trace)
    made.created, made.msecs = 1_767_225_600.25, 250.0
    made.__dict__.update(facts(**values))
    return made


def test_a_line_as_text_and_as_json() -> None:
    end = 'x\n"y"\x1b[2J'
    made = record("it is so", user="ann", peer="127.0.0.1", odd="a b", none=None, count=3, end=end)
    assert TextFormatter().format(made) == (
        '2026-01-01T00:00:00.250Z INFO ducktail.x: it is so user=ann peer=127.0.0.1 odd="a b" count=3 '
        'end="x\\n\\"y\\"\\u001b[2J"'
    )
    assert json.loads(JsonFormatter().format(made)) == {
        "time": "2026-01-01T00:00:00.250Z", "level": "info", "logger": "ducktail.x", "message": "it is so",
        "user": "ann", "peer": "127.0.0.1", "odd": "a b", "count": 3, "end": 'x\n"y"\x1b[2J',
    }  # fmt: skip


def test_nobody_can_forge_a_line() -> None:
    assert TextFormatter().format(record("one\ntwo\u2028three")).endswith("one\\ntwo\\u2028three")
    assert "\n" not in JsonFormatter().format(record("one\ntwo"))


def test_a_traceback_stands_behind_its_event() -> None:
    try:
        raise OSError("of the test")
    except OSError:
        made = record("it failed", error=sys.exception())
    first, *others = TextFormatter().format(made).splitlines()
    assert first.endswith("it failed")
    assert others[-1] == "  OSError: of the test" and all(line.startswith("  ") for line in others)
    assert json.loads(JsonFormatter().format(made))["traceback"].endswith("OSError: of the test")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT 'k0nspicuous'::INT", "ConversionException: 22P02"),
        ("INSERT INTO t VALUES ('k0nspicuous')", "ConstraintException: 23505"),
        ("SELECT error('k0nspicuous')", "InvalidInputException: 22000"),
        ("SELECT absent FROM t", 'BinderException: 42703 column "absent" does not exist'),
    ],
)
def test_an_error_is_logged_without_values(query: str, told: str) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (v VARCHAR PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES ('k0nspicuous')")
        try:
            try:
                connection.execute(query).fetchall()
            except duckdb.Error as error:
                raise KeyError("k0nspicuous") from error
        except KeyError:
            made = record("it failed", error=sys.exception())
    text, data = TextFormatter().format(made), JsonFormatter().format(made)
    assert f"\n  {told}" in text and text.endswith("\n  KeyError: KeyError")
    assert told in json.loads(data)["traceback"]
    # Source lines of this test stand in it, no message does.
    assert "k0nspicuous" not in text.replace('raise KeyError("k0nspicuous")', "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("select 'a''b', 1.5e3, x'ff', \"Name\" -- c\n/* d */ from t", 'select ? , ? , ? , "Name" from t'),
        ("select $tag$secret$tag$, e'\\'', $1, ?", "select ? , ? , $1 , ?"),
        ("select 'open", "?"),
        ("", ""),
        (
            'create sink "k" on s to webhook \'x\' with (secret = "whsec_a+b", batch = 5)',
            'create sink "k" on s to webhook ? with ( secret = ? , batch = ? )',
        ),
        (
            "alter sink k on s set (SECRET = whsec_a, columns = (lsn))",
            "alter sink k on s set ( SECRET = ? , columns = ( lsn ) )",
        ),
        (
            "alter sink k on s set (secret = whsec_a+b/c==)",
            "alter sink k on s set ( secret = ? ? ? ? ? ? )",
        ),
        (
            'create user "ann" password "s3cret" valid until \'2030-01-01\'',
            'create user "ann" password ? valid until ?',
        ),
        ('select password, "secret" from t', 'select password , "secret" from t'),
    ],
)
def test_masking(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_every_secret_option_is_masked() -> None:
    secret = {name.upper() for name, rule in RULES.items() if rule.secret}
    assert secret - {"USERNAME"} == SECRET_WORDS


def test_a_long_statement_is_cut() -> None:
    text = masked("select " + ", ".join("column_name" for _ in range(1000)))
    assert text.endswith(" ...") and len(text) <= SHOWN_CHARS_MAX + 10
    assert masked('select "' + "x" * 5000 + '"') == "select ..."


def test_an_error_that_is_its_own_cause_is_logged() -> None:
    """A loop of causes ends, where the event loop would stand still for ever."""
    error = ValueError("x")
    error.__cause__ = RuntimeError("y")
    error.__cause__.__cause__ = error
    record = logging.LogRecord("ducktail", logging.ERROR, "", 0, "it failed", None, (ValueError, error, None))
    text = TextFormatter().format(record)
    assert (text.count("ValueError: "), text.count("RuntimeError: ")) == (1, 1)
