"""node-postgres and postgres.js, driven by a JavaScript program that prints what it saw."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.node

PROGRAM = Path(__file__).with_name("node") / "shop.cjs"
MODULES = Path(__file__).parents[2] / "build" / "node" / "node_modules"

ANN = {
    "id": "1", "name": "Ann ☃", "email": "ann@example.org", "created": "2026-01-02T03:04:05.678Z",
    "balance": "12345.67", "meta": {"a": [1, None]}, "tags": ["x", "y z", None, '"q"'],
    "uid": "b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e", "photo": "00ff5c", "active": True,
}  # fmt: skip
# postgres.js reads a NULL in an array as this word, PostgreSQL's as well.
NULL = "NULL"
PARAMETERS = {"a": ["a", None], "j": {"k": [1]}, "t": "2026-01-02T03:04:05.678Z", "n": None}
INSERTED = [{"i": 1, "txt": "it's \\ ☃"}, {"i": 2, "txt": None}]


@pytest.fixture
def seen(shop: ServerProcess, table: str, group: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the program saw through the library that the test is for."""
    done = subprocess.run(
        ["node", str(PROGRAM), request.param, shop.host, str(shop.port), table, group],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("seen", ["node-postgres"], indirect=True)
def test_node_postgres(seen: dict[str, Any]) -> None:
    assert seen == {
        "simple": ANN,
        "prepared": ANN,
        "types": [20, 25, 25, 1184, 1700, 3802, 1009, 2950, 17, 16],
        "inserted": ["INSERT", 1, INSERTED[:1]],
        "several": [[{"n": "1"}], [{"y": "x"}]],
        "parameters": [{**PARAMETERS, "b": "00ff"}],
        "cursor": [2, ["13", "14", "15"]],
        "errors": ["42703", "23505", "57014"],
        "stream": [1, 2, 3, 4],
        "notification": "said",
        "notices": ["25P01"],
        "name": "shop.js",
        "pool": [2, 4, 6, 8],
    }


@pytest.mark.parametrize("seen", ["postgres.js"], indirect=True)
def test_postgres_js(seen: dict[str, Any], look: psycopg.Connection[Any], table: str) -> None:
    assert seen == {
        "row": {**ANN, "tags": ["x", "y z", NULL, '"q"']},
        "inserted": INSERTED,
        "updated": 2,
        "parameters": {**PARAMETERS, "a": ["a", NULL]},
        "errors": ["42703", "42P01"],
        "kept": 2,
        "cursor": [["1", "2", "3"], ["4", "5", "6"], ["7"]],
        "described": [["id", 20], ["name", 25]],
        "cancelled": "57014",
        "stream": [1, 2, 3, 4],
    }
    assert look.execute(f"SELECT * FROM {table} ORDER BY i").fetchall() == [(1, "u"), (2, "u")]
