"""psql against a real server: what a person sees."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.psql

Psql = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def psql(shared: ServerProcess) -> Psql:
    """`psql(text)` types text into psql; further words go on its command line."""

    def run(text: str = "", *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["psql", "-X", "-d", shared.conninfo, *words],
            input=text, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def test_a_table_of_rows(psql: Psql) -> None:
    assert psql("SELECT 1 AS a, 'x' AS b, NULL AS c;").stdout == (
        " a | b | c \n---+---+---\n 1 | x | \n(1 row)\n\n"
    )


def test_commands_answer_with_their_tags(psql: Psql) -> None:
    done = psql(
        "CREATE TABLE tags(id int);\nINSERT INTO tags VALUES (1), (2);\nBEGIN;\nDELETE FROM tags;\nROLLBACK;"
    )
    assert done.stdout.splitlines() == ["CREATE TABLE", "INSERT 0 2", "BEGIN", "DELETE 2", "ROLLBACK"]
    assert done.stderr == ""


def test_an_error_points_at_its_place(psql: Psql) -> None:
    done = psql("SELECT 1;\nSELECT 'é' AS e, nowhere;", "-At", "-v", "VERBOSITY=verbose")
    assert done.stdout == "1\n"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("ERROR:  42703: ")
    assert lines[1].startswith("LINE 1: SELECT 'é' AS e, nowhere")
    assert lines[2].index("^") == lines[1].index("nowhere")


def test_several_statements_in_one_command(psql: Psql) -> None:
    done = psql("", "-At", "-c", "CREATE TABLE t(id int); INSERT INTO t VALUES (1); SELECT * FROM nowhere")
    assert done.returncode == 1 and "42P01" not in done.stdout
    assert psql("", "-At", "-c", "SELECT * FROM t").returncode == 1
    done = psql("", "-At", "-c", "SELECT 1; SELECT 2", "-c", "SELECT 3")
    assert done.stdout.splitlines() == ["1", "2", "3"]


def test_gdesc_describes_without_running(psql: Psql) -> None:
    assert psql("SELECT 1::bigint AS a, 'x' AS b \\gdesc", "-At").stdout.splitlines() == [
        "a|bigint",
        "b|text",
    ]


def test_conninfo(psql: Psql) -> None:
    assert 'connected to database "ducktail" as user "ducktail"' in psql("\\conninfo").stdout


def test_an_unknown_database(shared: ServerProcess) -> None:
    done = subprocess.run(
        ["psql", "-X", "-h", shared.host, "-p", str(shared.port), "-d", "shop", "-c", "SELECT 1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert 'FATAL:  database "shop" does not exist' in done.stderr
