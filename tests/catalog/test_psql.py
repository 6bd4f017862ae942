"""psql's backslash commands and its tab completion, against a real server."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from server_process import ServerProcess

from ducktail.engine.version import VERSION

pytestmark = pytest.mark.psql

# How long psql may take to complete a word: a server that has just begun, two busy cores.
COMPLETION_TIMEOUT_S = 20.0

SETUP = """
    CREATE SCHEMA app;
    CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR NOT NULL, price DECIMAL(10,2) DEFAULT 1.5,
        tags VARCHAR[], CHECK (price > 0));
    CREATE TABLE app.lines (id INTEGER, note VARCHAR);
    CREATE INDEX lines_note ON app.lines (note);
    CREATE VIEW cheap AS SELECT id FROM orders WHERE price < 2;
    CREATE SEQUENCE numbers;
    CREATE MACRO twice(a) AS a * 2;
    CREATE TYPE mood AS ENUM ('sad', 'glad');
    COMMENT ON TABLE orders IS 'what was bought';
    CREATE STREAM orders_stream ON orders;
"""

Psql = Callable[[str], str]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all of these tests, which leave it as it is."""
    with ServerProcess(tmp_path_factory.mktemp("psql") / "ducktail.duckdb") as server:
        with server.connect() as connection:
            for statement in filter(str.strip, SETUP.split(";")):
                connection.execute(statement)
        yield server


@pytest.fixture
def psql(shop: ServerProcess) -> Psql:
    """`psql("\\\\d orders")` is what psql prints, errors included."""

    def run(text: str) -> str:
        done = subprocess.run(
            ["psql", "-X", "-d", shop.conninfo], input=text, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    return run


def rows(printed: str) -> list[list[str]]:
    """The cells of a printed table, without title, head and count."""
    body = printed.split("+", 1)[-1].split("\n", 1)[-1]
    return [[cell.strip() for cell in line.split("|")] for line in body.splitlines() if "|" in line]


def test_a_table_is_described(psql: Psql) -> None:
    assert psql("\\d orders") == (
        '                   Table "main.orders"\n'
        " Column |     Type      | Collation | Nullable | Default \n"
        "--------+---------------+-----------+----------+---------\n"
        " id     | integer       |           | not null | \n"
        " item   | text          |           | not null | \n"
        " price  | numeric(10,2) |           |          | 1.5\n"
        " tags   | text[]        |           |          | \n"
        "Indexes:\n"
        '    "orders_pkey" PRIMARY KEY, art (id)\n'
        "Check constraints:\n"
        '    "orders_price_check" CHECK (price > 0)\n'
        "\n"
    )
    assert "Access method: duckdb" in psql("\\d+ orders")


def test_views_streams_indexes_and_sequences_are_described(psql: Psql) -> None:
    assert "View definition:\n SELECT id FROM orders" in psql("\\d+ cheap")
    stream = psql("\\d orders_stream")
    assert 'View "main.orders_stream"' in stream
    assert ["lsn", "bigint", "", "", ""] in rows(stream) and ["key", "jsonb", "", "", ""] in rows(stream)
    assert 'art, for table "app.lines"' in psql("\\d app.lines_note")
    assert rows(psql("\\d numbers"))[0][:2] == ["bigint", "1"]
    assert 'View "ducktail.streams"' in psql("\\d ducktail.streams")
    assert psql("\\d nowhere") == 'Did not find any relation named "nowhere".\n'


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("\\d", [["main", "cheap", "view", "ducktail"], ["main", "numbers", "sequence", "ducktail"],
                 ["main", "orders", "table", "ducktail"], ["main", "orders_stream", "view", "ducktail"],
                 ["main", "orders_stream_changes", "view", "ducktail"]]),
        ("\\dt", [["main", "orders", "table", "ducktail"]]),
        ("\\dt+", [["main", "orders", "table", "ducktail", "permanent", "duckdb", "", "what was bought"]]),
        ("\\dt app.*", [["app", "lines", "table", "ducktail"]]),
        ("\\dv", [["main", "cheap", "view", "ducktail"], ["main", "orders_stream", "view", "ducktail"],
                  ["main", "orders_stream_changes", "view", "ducktail"]]),
        ("\\di", [["main", "orders_pkey", "index", "ducktail", "orders"]]),
        ("\\ds", [["main", "numbers", "sequence", "ducktail"]]),
        ("\\dn", [["app", "ducktail"], ["ducktail", "ducktail"], ["main", "ducktail"]]),
        ("\\df", [["main", "twice", '"any"', "a", "func"]]),
        ("\\du", [["ducktail", "Superuser, Create role, Create DB, Replication, Bypass RLS", "{}"]]),
        ("\\dT", [["main", "mood", ""]]),
        ("\\dp orders", [["main", "orders", "table", "", "", ""]]),
        ("\\l", [["ducktail", "ducktail", "UTF8", "C", "C", "", "libc", ""]]),
        ("\\dt ducktail.*", None),
        ("\\dx", [["ducktail", VERSION, "ducktail", ""]]),
        ("\\sf twice", "CREATE MACRO main.twice(a) AS (a * 2)"),
        ("\\sf nowhere", 'ERROR:  function "nowhere" does not exist'),
        ("\\sv cheap", "CREATE OR REPLACE VIEW main.cheap AS"),
        ("\\conninfo", 'You are connected to database "ducktail" as user "ducktail"'),
    ],
)  # fmt: skip
def test_the_commands_list_what_there_is(psql: Psql, command: str, expected: object) -> None:
    printed = psql(command)
    if isinstance(expected, str):
        assert expected in printed
    elif expected is None:
        assert "Did not find any relation" in printed
    else:
        assert rows(printed) == expected


OTHERS = """
    dn+ l+ dD dC dO dc dd da do dF des det dew deu dE dy dRp dRs dP dX ddp drds dL db dg dconfig dT+ df+
    dS dtS
    di+ dm dAc dAf dAo dAp dv+ ds+ du+ dx+ dFd dFp dFt dp
"""


def test_the_other_commands_do_not_fail(psql: Psql) -> None:
    assert "ERROR" not in psql("\n".join(f"\\{command}" for command in OTHERS.split()))


def test_a_table_of_the_open_transaction(psql: Psql) -> None:
    printed = psql("BEGIN;\nCREATE TABLE fresh (a INTEGER);\n\\d fresh\nROLLBACK;\n\\d fresh")
    assert 'Table "main.fresh"' in printed and 'Did not find any relation named "fresh"' in printed


def test_the_search_path_decides_what_is_listed(psql: Psql) -> None:
    printed = psql("SET search_path = app;\n\\dt\nCREATE TEMP TABLE mine (a INTEGER);\n\\d mine")
    assert ["app", "lines", "table", "ducktail"] in rows(printed)
    assert 'Table "pg_temp.mine"' in printed


@pytest.fixture
def complete(shop: ServerProcess) -> Iterator[Callable[[str, str], str]]:
    """`complete("SELECT * FROM or", "orders")`: types into psql, then Tab until it shows the word."""
    environment = {**os.environ, "TERM": "dumb", "PSQL_HISTORY": os.devnull, "INPUTRC": os.devnull}
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes psql
        os.execvpe("psql", ["psql", "-X", "-d", shop.conninfo], environment)

    def shown(until: str, seconds: float = COMPLETION_TIMEOUT_S) -> str:
        found, end = "", time.monotonic() + seconds
        while until not in found and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                found += os.read(terminal, 65536).decode(errors="replace")
        return re.sub(r"[\r\x07]|\x1b\[\S", "", found)

    assert "=# " in shown("=# ")  # the prompt of a superuser

    def run(typed: str, until: str) -> str:
        os.write(terminal, f"{typed}\t\t\t".encode())
        printed = shown(until)
        os.write(terminal, b"\x15")  # Control-U takes the line away.
        return printed

    yield run
    os.write(terminal, b"\x04")
    os.close(terminal)
    os.waitpid(pid, 0)


def test_tables_and_columns_are_completed(complete: Callable[[str, str], str]) -> None:
    assert "orders_stream" in complete("SELECT * FROM ord", "orders_stream")
    assert "lines" in complete("SELECT * FROM app.l", "lines")
    assert "price" in complete("UPDATE orders SET pr", "price")
    assert "cheap" in complete("DROP VIEW ch", "cheap")
