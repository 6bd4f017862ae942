"""Where the settings of a server come from: flag, environment, file, default; and how each is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

from ducktail.__main__ import parser
from ducktail.engine.errors import DucktailError, InvalidParameterValue, IoError
from ducktail.engine.settings import numbers
from ducktail.engine.toml_file import FILE_BYTES_MAX
from ducktail.pgwire_gateway.command.configuration import OPTIONS, configure

Serve = Callable[..., ServerProcess]

SHOWN = "SELECT setting, source, place FROM ducktail.settings WHERE name = %s"


def configured(text: str, tmp_path: Path, *words: str, **environment: str) -> dict[str, tuple[Any, Any]]:
    """What a file, the words of a command line and an environment come to: value and place by name."""
    file = tmp_path / "ducktail.toml"
    file.write_text(text)
    chosen = parser().parse_args(["serve", "--config", str(file), *words])
    found = configure(vars(chosen), environment).found
    return {name: (item.value, item.place and Path(item.place).name) for name, item in found.items()}


def test_a_server_says_where_each_value_comes_from(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "files").mkdir()
    file = tmp_path / "ducktail.toml"
    file.write_text(
        "# of this test\nport = 0\nlock_timeout_ms = 1\nmax_connections = 2\nworker_threads = 3\n"
        f'allow_dir = ["{tmp_path}/files"]\nlog_level = "warning"\n'
    )
    server = serve(
        "data.duckdb",
        options=("--config", str(file), "--worker-threads", "7"),
        environment={"DUCKTAIL_MAX_CONNECTIONS": "5", "DUCKTAIL_WORKER_THREADS": "6"},
    )
    expected = {
        "lock_timeout_ms": ("1", "configuration file", f"{file}:3"),
        "max_connections": ("5", "environment variable", "DUCKTAIL_MAX_CONNECTIONS"),
        "worker_threads": ("7", "command line", "--worker-threads"),
        "wal_bytes_max": ("268435456", "default", None),
        "path": (str(server.path), "command line", "PATH"),
        "port": ("0", "configuration file", f"{file}:2"),
        "allowed_directories": (f"{tmp_path}/files", "configuration file", f"{file}:6"),
        "log_level": ("warning", "configuration file", f"{file}:7"),
        "insecure": ("off", "default", None),
    }
    with server.connect(application_name="me", options="-c statement_timeout=5s") as connection:
        for name, row in expected.items():
            assert connection.execute(SHOWN, [name]).fetchone() == row, name
        connection.execute("SET client_min_messages = warning")
        shown = {row[0]: (row[1], row[3]) for row in connection.execute("SHOW ALL")}
        for name, (value, source, _) in expected.items():
            assert shown[name] == (value, source)
        assert shown["application_name"] == ("me", "client")
        assert shown["statement_timeout"] == ("5s", "client")
        assert shown["client_min_messages"] == ("warning", "session")
        assert shown["DateStyle"] == ("ISO, MDY", "default")
        assert connection.execute("SHOW lock_timeout").fetchone() == ("1ms",)
        assert connection.execute("SHOW max_connections").fetchone() == ("5",)
        with pytest.raises(psycopg.errors.CantChangeRuntimeParam):
            connection.execute("SET max_connections = 50")
        connection.execute("CREATE USER ann PASSWORD 'a' SUPERUSER")
        connection.execute("CREATE USER bob PASSWORD 'b'")
    # No file and no address of the server's machine is anybody else's to know.
    with server.connect(user="bob", password="b") as connection:
        rows = connection.execute("SELECT name, setting, place FROM ducktail.settings").fetchall()
        assert ("max_connections", "5", None) in rows
        shown = connection.execute("SHOW ALL").fetchall()
        assert "max_connections" in str(shown)
        assert str(tmp_path) not in str(rows + shown) and ("port" not in {row[0] for row in rows + shown})
        assert {row[2] for row in rows} == {None}


def test_every_setting_in_each_of_its_places(tmp_path: Path) -> None:
    """Flag before environment before file, for whatever setting there is or will be."""
    texts = {
        "log_level": ("debug", "error", "warning"),
        "log_format": ("json", "text", "json"),
        "http": ("127.0.0.1:1", "[::1]:2", "localhost:3"),
        "http_cors": ("https://a.example", "http://localhost:3000,https://b.example", "*"),
    }
    lows = {item.name: item.metadata["low"] for item in numbers()}
    for option in OPTIONS:
        low = lows.get(option.name, 201)
        three = (str(low), str(low + 1), str(low + 2))
        check(option.name, option.kind, texts.get(option.name, three), tmp_path)


def check(name: str, kind: type, values: tuple[str, str, str], tmp_path: Path) -> None:
    """One setting, from each of its places."""
    read = {int: int, str: str, list: lambda text: [text]}[kind]
    filed, variable, flagged = values
    text = f"{name} = {read(filed)!r}\n".replace("'", '"')
    environment = {f"DUCKTAIL_{name.upper()}": variable}
    words = [flagged] if name == "path" else [f"--{name.replace('_', '-')}={flagged}"]
    assert configured(text, tmp_path)[name] == (read(filed), "ducktail.toml:1")
    assert configured(text, tmp_path, **environment)[name] == (read(variable), f"DUCKTAIL_{name.upper()}")
    place = "PATH" if name == "path" else words[0].partition("=")[0]
    assert configured(text, tmp_path, *words, **environment)[name] == (read(flagged), place)
    assert configured("", tmp_path)[name][1] is None
    assert configured(text, tmp_path, **dict.fromkeys(environment, ""))[name][0] == read(filed)


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("port = 1\n\nlock_timout_ms = 5\n", ':3: unknown setting "lock_timout_ms"', "lock_timeout_ms"),
        ('"porrt" = 5\n', ':1: unknown setting "porrt"', "Did you mean port?"),
        ("[server]\nport = 1\n", ':1: unknown setting "server"', "no table"),
        ("[[tls]]\n", ':1: unknown setting "tls"', None),
        ("\ninsecure = true\n", ':2: unknown setting "insecure"', "--insecure"),
        ("accept_loss = true\n", ':1: unknown setting "accept_loss"', "--accept-loss"),
        ('config = "other.toml"\n', ':1: unknown setting "config"', None),
        ('\n\nport = "5"\n', ':3: setting "port": wants a whole number, not \'5\'', None),
        ("port = true\n", ':1: setting "port": wants a whole number, not True', None),
        ("port = 70000\n", ':1: setting "port": not a port', None),
        ("host = 1\n", ':1: setting "host": wants a string', None),
        ('allow_dir = "x"\n', ':1: setting "allow_dir": wants a list of strings', None),
        ("allow_dir = [1]\n", ':1: setting "allow_dir": wants a list of strings', None),
        ('log_level = "loud"\n', ':1: setting "log_level": not one of debug', None),
        ('log_format = "xml"\n', ':1: setting "log_format": not one of text, json', None),
        ("\nmax_connections = 0\n", ':2: setting "max_connections" wants a whole number from 1', None),
        ("port = \n", "line 1", None),
        ("port = 1\nport = 2\n", "line 2", None),
        ("#" * (FILE_BYTES_MAX + 1), "larger than", None),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, text: str, told: str, hint: str | None
) -> None:
    with pytest.raises(InvalidParameterValue) as refused:
        configured(text, tmp_path)
    assert refused.value.message.startswith(f"{tmp_path}/ducktail.toml:")
    assert told in refused.value.message
    assert hint is None or hint in str(refused.value.hint)


def test_no_such_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(IoError, match=r"cannot read configuration file .*none.toml.*no such file"):
        configure({"config": str(tmp_path / "none.toml")}, {})
    (tmp_path / "bytes.toml").write_bytes(b"port = 1 # \xff\n")
    with pytest.raises(InvalidParameterValue, match=r"bytes\.toml: .*utf-8"):
        configure({}, {"DUCKTAIL_CONFIG": str(tmp_path / "bytes.toml")})


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("DUCKTAIL_PORT", "tcp://10.0.0.1:5480", "DUCKTAIL_PORT: not a whole number"),
        ("DUCKTAIL_MAX_CONNECTIONS", "0", 'DUCKTAIL_MAX_CONNECTIONS: setting "max_connections" wants'),
        ("DUCKTAIL_LOG_FORMAT", "xml", "DUCKTAIL_LOG_FORMAT: not one of text, json"),
    ],
)
def test_a_variable_that_is_wrong_is_told_with_its_name(variable: str, value: str, told: str) -> None:
    with pytest.raises(DucktailError) as refused:
        configure({}, {variable: value})
    assert told in refused.value.message


def test_several_directories_in_the_environment(tmp_path: Path) -> None:
    found = configured("", tmp_path, DUCKTAIL_ALLOW_DIR=f"/a{os.pathsep}/b")
    assert found["allow_dir"] == (["/a", "/b"], "DUCKTAIL_ALLOW_DIR")
