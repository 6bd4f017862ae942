"""ENVELOPE CHANGES over the wire: typed columns in text and binary, portals that are fetched in part."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(shared: ServerProcess) -> Iterator[Connection]:
    """An autocommit connection with a stream `cs` of one insert, two updates and a delete; a group `cg`."""
    with shared.connect() as connection:
        connection.execute("DROP STREAM IF EXISTS cs CASCADE")
        connection.execute("DROP TABLE IF EXISTS ct")
        connection.execute(
            "CREATE TABLE ct (id int PRIMARY KEY, n numeric(9, 2), m timestamptz, l int[], b bytea)"
        )
        connection.execute("CREATE STREAM cs ON ct WITH (partitions = 1)")
        connection.execute("CREATE CONSUMER GROUP cg ON cs")
        values = "1, 1.5, '2026-01-02 03:04:05+00', [1, NULL], '\\x00'::BLOB"
        connection.execute(f"INSERT INTO ct VALUES ({values})")
        connection.execute("UPDATE ct SET n = 2.25")
        connection.execute("UPDATE ct SET n = NULL")
        connection.execute("DELETE FROM ct")
        yield connection


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
TYPES = ["insert", "update_preimage", "update_postimage", "update_preimage", "update_postimage", "delete"]
NUMBERS = [decimal.Decimal(n) if n else None for n in ("1.5", "1.5", "2.25", "2.25", None, None)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_columns_have_their_types(connection: Connection, binary: bool, zone: str) -> None:
    connection.execute(f"SET TimeZone = '{zone}'")
    cursor = connection.execute("SELECT * FROM STREAM cs ENVELOPE CHANGES", binary=binary, prepare=True)
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    assert names[:6] == ["id", "n", "m", "l", "b", "_change_type"]
    assert names[6:] == ["_commit_version", "_commit_timestamp", "_lsn", "_partition"]
    rows = cursor.fetchall()
    assert [row[5] for row in rows] == TYPES
    assert [row[1] for row in rows] == NUMBERS
    assert {(row[0], row[2], tuple(row[3]), bytes(row[4])) for row in rows} == {(1, MOMENT, (1, None), b"\0")}
    assert all(isinstance(row[7], datetime.datetime) for row in rows)
    # The same through DuckDB, which hands out the values itself.
    other = connection.execute("SELECT * FROM cs_changes ORDER BY _lsn, _change_type DESC", binary=binary)
    assert other.fetchall() == rows


def test_a_portal_counts_an_update_once_both_rows_are_sent(
    connection: Connection, shared_raw: Callable[[], Any]
) -> None:
    client = shared_raw()
    client.enter()
    for text in (
        "SELECT id, _change_type FROM STREAM cs CONSUMER GROUP cg ENVELOPE CHANGES",
        "SELECT id + 0, _change_type FROM STREAM cs CONSUMER GROUP cg ENVELOPE CHANGES",
    ):
        client.query("BEGIN")
        client.message("P", b"\0" + text.encode() + b"\0\0\0")
        client.message("B", b"\0\0\0\0\0\0\0\0")
        seen = []
        for _ in TYPES:
            client.message("E", b"\0" + struct.pack("!i", 1))
            client.message("H")
            answers = client.until("s")
            assert [kind for kind, _ in answers if kind == "D"] == ["D"]
            seen.append(answers[-1][0])
        client.message("S")
        client.until("Z")
        client.query("ROLLBACK")
        assert seen == ["s"] * len(TYPES)
        first = lsns(connection)[0]
        for rows, events in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 4)):
            assert position_after(client, text, rows) == first + events - 1, (text, rows)


def lsns(connection: Connection) -> list[int]:
    """The LSNs of the stream's events."""
    return [lsn for (lsn,) in connection.execute("SELECT lsn FROM STREAM cs").fetchall()]


def position_after(client: Any, text: str, rows: int) -> int:
    """The read position once a portal has given so many rows and is closed."""
    client.message("P", b"\0" + text.encode() + b"\0\0\0")
    client.message("B", b"\0\0\0\0\0\0\0\0")
    client.message("E", b"\0" + struct.pack("!i", rows))
    client.message("S")
    answers = client.until("Z")
    assert sum(kind == "D" for kind, _ in answers) == rows
    [body] = [
        body for kind, body in client.query("SHOW READ POSITION ON cs CONSUMER GROUP cg") if kind == "D"
    ]
    return int(body[6:].decode().split(":")[1].strip(" }"))


def test_a_statement_has_the_columns_of_the_stream_that_is_there(
    connection: Connection, shared: ServerProcess
) -> None:
    """psycopg asks for them at each execution."""
    text = "SELECT * FROM STREAM cs ENVELOPE CHANGES"
    connection.execute(text, prepare=True)
    connection.execute(text, prepare=True)
    with shared.connect() as other:
        other.execute("DROP STREAM cs CASCADE")
        other.execute("DROP TABLE ct")
        other.execute("CREATE TABLE ct (id int PRIMARY KEY, other text)")
        other.execute("CREATE STREAM cs ON ct")
        other.execute("INSERT INTO ct VALUES (1, 'x')")
    cursor = connection.execute(text, prepare=True)
    names = [column.name for column in cursor.description or ()]
    row = dict(zip(names, cursor.fetchone() or (), strict=True))
    assert (row["id"], row["other"]) == (1, "x")
