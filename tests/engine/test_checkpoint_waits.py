"""CHECKPOINT and FORCE CHECKPOINT hold nobody up: while others have written they are 55006."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database

# What would hang would do so for ever.
HANGS_S = 30


def soon(call: Callable[[], object]) -> object:
    """What a call gives, on a thread of its own; it must come to an end."""
    found: list[object] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]
    return found[0]


@pytest.mark.parametrize("checkpoint", ["CHECKPOINT", "FORCE CHECKPOINT", "force /* it */ checkpoint served"])
@pytest.mark.parametrize(
    "after",
    [
        "ALTER TABLE o ADD COLUMN x INT",
        "SELECT count(*) FROM STREAM s CONSUMER GROUP g",
        "SELECT * FROM ducktail.offsets",
        "SELECT * FROM o",
    ],
)
def test_a_checkpoint_waits_for_nobody(tmp_path: Path, checkpoint: str, after: str) -> None:
    database = Database.open(str(tmp_path / "served.duckdb"))
    first, second, third = Client(database), Client(database), Client(database)
    first("CREATE TABLE o (id INT PRIMARY KEY, v INT)")
    first("CREATE TABLE p (id INT)")
    first("CREATE STREAM s ON p")
    first("CREATE CONSUMER GROUP g ON s")
    first("INSERT INTO o VALUES (1, 1)")
    first("BEGIN")
    first("UPDATE o SET v = v + 1")
    with raises("55006"):
        soon(lambda: second(checkpoint))
    soon(lambda: first(after))
    soon(lambda: third("SELECT * FROM o"))
    first("COMMIT")
    assert soon(lambda: second(checkpoint)) == []
    assert third("SELECT v FROM o") == [(2,)]
    for client in (first, second, third):
        client.close()
    database.close()
