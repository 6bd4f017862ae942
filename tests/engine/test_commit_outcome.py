"""A COMMIT that raises: whether it took effect is found out, whosever it was, and no number is given twice.

DuckDB raises so where it cannot be made to by hand: the session's cursor raises behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from local_client import Client, state_of

from ducktail.engine.database import Database

STATEMENTS = (
    "insert into t values (100)",
    "create consumer group g on s",
    "alter stream s set (buffer_bytes = 100000)",
    "create stream other on t with (snapshot = 'initial', partitions = 1)",
    "alter stream s rename to renamed",
    "drop stream {s} cascade",
)
SEEN = (
    "select stream_name, end_lsn, events, buffer_bytes from ducktail.streams",
    "select group_name from ducktail.consumer_groups",
    "select * from t",
    "select * from ducktail.commits",
)


class Raising:
    """A cursor whose next COMMIT raises, after DuckDB has committed or rolled back."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, end: str) -> None:
        self._cursor, self._end = cursor, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql != "COMMIT" or not self._end:
            return self._cursor.execute(sql, *values)
        self._cursor.execute(self._end)
        self._end = ""
        raise duckdb.IOException("IO Error: raised by a test")


@contextmanager
def raising(client: Client, end: str) -> Iterator[None]:
    cursors = client.session.cursors
    main = cursors.main
    cursors.main = Raising(main, end)  # type: ignore[assignment]
    try:
        yield
    finally:
        cursors.main = main


def _no_cursor() -> duckdb.DuckDBPyConnection:
    raise duckdb.IOException("IO Error: raised by a test")


@pytest.mark.parametrize("can_be_told", [True, False])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_commit_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, can_be_told: bool
) -> None:
    path, stands = str(tmp_path / "shop.duckdb"), end == "COMMIT"
    database = Database.open(path)
    client, other = Client(database), Client(database)
    client("create table t (id int primary key)")
    client("insert into t values (1), (2)")
    client("create stream s on t with (partitions = 1)")
    for number, text in enumerate(STATEMENTS):
        statement = text.format(s="renamed" if stands else "s")
        with raising(client, end):
            if can_be_told:
                assert state_of(client, statement) == ("ok" if stands else "58030")
            else:
                with monkeypatch.context() as patched:
                    patched.setattr(database.commits, "cursor", _no_cursor)
                    assert state_of(client, statement) == "58030"
                    assert state_of(other, "create stream late on t") == "58030"  # Nobody gets a number.
        other("insert into t values ($1)", 3 + number)
    held = [sorted(other(text)) for text in SEEN]
    txids = [row[0] for row in held[-1]]
    assert txids == list(range(1, database.commits.last_txid + 1))
    assert held[-1][-1][2] == database.commits.last_lsn
    assert [row[0] for row in held[0]] == (["other"] if stands else ["s"])
    assert ((100,) in held[2]) == stands
    client.close()
    other.close()
    database.close()
    # What memory held is what the file has.
    database = Database.open(path)
    client = Client(database)
    assert [sorted(client(text)) for text in SEEN] == held
    client.close()
    database.close()
