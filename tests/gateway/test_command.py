"""The command `ducktail`: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from server_process import COMMAND, ServerProcess

from ducktail.__main__ import main

Serve = Callable[..., ServerProcess]


def ducktail(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [str(COMMAND), *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment or None,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error of a command that could not do it."""
    assert done.returncode == 1 and done.stdout == "", done
    (line,) = done.stderr.splitlines()
    assert line.startswith("ducktail: ")
    return line


def parsed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str]:
    """The exit status of a command whose flags end it, and what it says; in this process: cheaper."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert ducktail("--version").stdout.startswith("ducktail 0.")
    assert "serve" in parsed(capsys, "--help")[1]
    status, told = parsed(capsys, "serve", "--help")
    assert status == 0
    for word in ("PATH", "--host", "--port", "--max-connections", "--lock-timeout-ms", "DUCKTAIL_", "psql"):
        assert word in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_keeps_what_was_written(serve: Serve, number: int) -> None:
    server = serve("shop.duckdb")
    with server.connect(dbname="shop") as connection:
        connection.execute("CREATE TABLE t(id int)")
        connection.execute("INSERT INTO t VALUES (1)")
    assert server.stop(number) == 0
    assert [line for line in server.lines if line.startswith("listening on ")] == server.lines[:1]
    assert server.lines[0].endswith("/shop.duckdb")
    # Nothing but its log: no library has a last word of its own.
    assert [line for line in server.lines[1:] if not line.startswith("20")] == []
    with serve("shop.duckdb").connect(dbname="shop") as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]


def test_settings_come_from_flags_and_from_the_environment(serve: Serve) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = serve(options=(), environment={"DUCKTAIL_PORT": str(port)})
    assert (server.host, server.port) == ("127.0.0.1", port)


def test_a_path_from_the_environment_and_an_address_of_the_other_family(tmp_path: Path, serve: Serve) -> None:
    server = serve(options=("--port", "0", "--host", "::1"))
    with server.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.execute("SELECT stream_name FROM ducktail.streams").fetchall() == []
    # It is no small thing, and pyarrow would import it to look for its types.
    assert "pandas" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_a_wrong_setting_is_told_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "d.duckdb")
    for words in (
        ["--port", "many"],
        ["--port", "70000"],
        ["--max-connections", "x"],
        ["--log-level", "loud"],
    ):
        status, told = parsed(capsys, "serve", path, *words)
        assert status == 2 and words[0] in told
    assert "max_connections" in refused(ducktail("serve", path, "--max-connections", "0"))
    line = refused(ducktail("serve", path, PATH="/usr/bin:/bin", DUCKTAIL_LOG_LEVEL="loud"))
    assert "DUCKTAIL_LOG_LEVEL: not one of" in line
    assert not Path(path).exists()


def test_a_port_that_is_taken(tmp_path: Path, server: ServerProcess) -> None:
    line = refused(ducktail("serve", str(tmp_path / "other.duckdb"), "--port", str(server.port)))
    assert f"127.0.0.1:{server.port}" in line and "in use" in line
    assert not (tmp_path / "other.duckdb").exists()


def test_a_file_that_is_taken(server: ServerProcess) -> None:
    assert Path(server.path).name in refused(ducktail("serve", str(server.path), "--port", "0"))


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "letter.duckdb"
    path.write_text("Dear Sir or Madam, " * 1000)
    assert "letter.duckdb" in refused(ducktail("serve", str(path), "--port", "0"))
    assert path.read_text().startswith("Dear Sir")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_can_reach(tmp_path: Path, host: str) -> None:
    """Promise 14: without users and TLS there is no door to the network."""
    path = tmp_path / "d.duckdb"
    line = refused(ducktail("serve", str(path), "--host", host, "--port", "0"))
    assert "loopback" in line and "--tls-cert" in line
    assert not path.exists()


def test_allowed_directories(tmp_path: Path, serve: Serve) -> None:
    for name in ("in", "out", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n1\n")
    options = ("--port", "0", "--allow-dir", str(tmp_path / "in"), "--allow-dir", str(tmp_path / "out"))
    with serve("data/x.duckdb", options=options).connect() as connection:
        connection.execute(f"create table t as from '{tmp_path}/in/a.csv'")
        assert connection.execute(f"copy t to '{tmp_path}/out/b.parquet'").statusmessage == "COPY 1"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"copy t to '{tmp_path}/c.csv'")
    done = ducktail("serve", str(tmp_path / "data" / "y.duckdb"), "--allow-dir", str(tmp_path / "none"))
    assert (done.returncode, "is not a directory" in done.stderr) == (1, True)
    done = ducktail("serve", str(tmp_path / "data" / "y.duckdb"), "--allow-dir", str(tmp_path / "data"))
    assert (done.returncode, "the database lies under it" in done.stderr) == (1, True)
