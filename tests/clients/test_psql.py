"""psql: \\x, \\copy, \\watch, \\gdesc, \\crosstabview and FETCH_COUNT (the \\d commands: tests/catalog)."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess
from shop import ORDERS

pytestmark = pytest.mark.psql

Psql = Callable[..., str]


@pytest.fixture
def psql(shop: ServerProcess) -> Psql:
    """`psql("SELECT 1")` is what psql prints, errors included; more words are its options."""

    def run(text: str, *options: str) -> str:
        done = subprocess.run(
            ["psql", "-X", "-d", f"{shop.conninfo} dbname=shop", *options],
            input=text, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    return run


def test_rows_as_blocks(psql: Psql) -> None:
    printed = psql("\\x\nSELECT lsn, op, key FROM STREAM orders_stream LIMIT 1;")
    assert "-[ RECORD 1 ]" in printed and 'key | {"id":1}' in printed
    assert psql("SELECT name FROM app.customers ORDER BY id \\gx", "-At") == "name|Ann ☃\n\nname|Bob\n"


def test_copy_both_ways(psql: Psql, look: psycopg.Connection[Any], table: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text('i,txt\n1,"a, b"\n2,\n')
    assert psql(f"\\copy {table} FROM '{rows}' CSV HEADER") == "COPY 2\n"
    assert look.execute(f"SELECT * FROM {table} ORDER BY i").fetchall() == [(1, "a, b"), (2, None)]
    out = tmp_path / "out.csv"
    assert psql(f"\\copy (SELECT * FROM {table} ORDER BY i) TO '{out}' CSV HEADER") == "COPY 2\n"
    assert out.read_text() == rows.read_text()


def test_watch_asks_again_until_it_is_stopped(shop: ServerProcess) -> None:
    watching = subprocess.Popen(
        ["psql", "-X", "-At", "-d", f"{shop.conninfo} dbname=shop"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert watching.stdin and watching.stdout
    watching.stdin.write("SELECT 'seen ' || count(*) FROM app.orders \\watch 0.1\n")
    watching.stdin.flush()
    seen = 0
    for line in watching.stdout:
        seen += line == f"seen {ORDERS}\n"
        if seen == 3:
            break
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=20)
    assert seen == 3


def test_a_query_is_described_and_fetched_in_parts(psql: Psql) -> None:
    assert psql("SELECT id, amount, count(*) OVER () FROM app.orders \\gdesc", "-At") == (
        "id|bigint\namount|numeric(10,2)\ncount|bigint\n"
    )
    printed = psql("SELECT id FROM app.orders ORDER BY id;", "-At", "-v", "FETCH_COUNT=50")
    assert printed.split() == [str(number) for number in range(1, ORDERS + 1)]
    crossing = "SELECT customer_id, s % 2 AS odd, count(*) AS n FROM app.orders GROUP BY ALL ORDER BY 1, 2"
    assert psql(f"{crossing} \\crosstabview", "-At") == "1|500|\n2||500\n"


def test_errors_point_at_their_place(psql: Psql) -> None:
    printed = psql("SELECT 1,\n  nowhere FROM app.orders;")
    assert "LINE 2:   nowhere FROM app.orders;\n          ^" in printed
    assert psql("\\set ON_ERROR_STOP 1\nSELECT * FROM nope;\nSELECT 'went on';", "-At").count("went on") == 0
