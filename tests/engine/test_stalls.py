"""The views tell a publisher that stalls from a stream that is quiet."""

from __future__ import annotations

import threading

import pytest
from local_client import Client

from ducktail.engine import database as module
from ducktail.engine.database import Database

STALLED = "select unpublished_events, unpublished_seconds > 0, last_event_at is null from ducktail.streams"


def test_a_publisher_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_WAIT_S", 0.05)
    database = Database.open(":memory:")
    client = Client(database)
    client("create table t (id int primary key)")
    client("create stream s on t")
    client("create table u (id int primary key)")
    client("create stream quiet on u")
    publish, go_on = database.buffers.publish, threading.Event()

    def stall(notes: list[object]) -> object:
        go_on.wait(60)
        return publish(notes)  # type: ignore[arg-type]

    monkeypatch.setattr(database.publisher, "_publish", stall)
    client("insert into t select * from range(5)")
    client("insert into t select * from range(5, 7)")
    try:
        assert client(f"{STALLED} order by stream_name desc") == [(7, True, True), (0, False, True)]
    finally:
        go_on.set()
    assert client.one("select count(*) from stream s after 0") == 7
    assert client(f"{STALLED} order by stream_name desc") == [(0, False, False), (0, False, True)]
    client.close()
    database.close()
