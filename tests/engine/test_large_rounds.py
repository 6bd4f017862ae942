"""What one transaction wrote and no buffer can hold: counted first, readable from the log, then filled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_client import Client

from ducktail.engine.buffers.publisher import Publisher
from ducktail.engine.database import Database

BUFFERED = "select sum(events), max(buffered_from_lsn) from ducktail.partitions where stream_name = 's'"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    database = Database.open(str(tmp_path / "large.duckdb"))
    found = Client(database)
    found("create table t (id int primary key, v varchar)")
    yield found
    found.close()
    database.close()


@pytest.mark.parametrize("options", ["buffer_bytes = '64 KiB'", "buffer_bytes = '64 KiB', partitions = 1"])
@pytest.mark.parametrize("where", ["", "where id % 2 = 0"])
def test_a_large_transaction_is_readable_whole(client: Client, options: str, where: str) -> None:
    client(f"create stream s on t {where} with ({options})")
    client("insert into t values (-2, 'before')")
    client("insert into t select i, 'v' || i from range(5000) r(i)")
    wanted = 1 + (2500 if where else 5000)
    rows = client("select * from stream s")
    assert len(rows) == wanted
    assert rows == client("select * from s order by lsn")
    assert [row[0] for row in rows if row[10]] == [1, rows[-1][0]], "tx_last, once a transaction"
    # The buffers are filled by the same thread that publishes the next transaction.
    client("insert into t values (-4, 'after')")
    assert len(client("select * from stream s")) == wanted + 1
    events, buffered_from = client(BUFFERED)[0]
    assert events == wanted + 1
    assert rows[-1][0] - 1500 < buffered_from < rows[-1][0], "the newest of it are buffered"
    tail = f"select * from stream s after {buffered_from}"
    assert client(tail) == client(f"select * from s where lsn > {buffered_from} order by lsn")


def test_the_bytes_of_events_that_are_all_at_the_beginning_count(client: Client) -> None:
    client("create stream s on t where v = 'a' with (buffer_bytes = '64 KiB')")
    client("insert into t select i, case when i < 5000 then 'a' else 'b' end from range(50000) r(i)")
    assert len(client("select * from stream s")) == 5000
    assert client.one("select bytes from ducktail.streams") > 5000 * 100
    client("insert into t values (-4, 'a')")
    assert client.one("select count(*) from stream s") == 5001
    assert 3500 < client(BUFFERED)[0][1] < 5000, "the newest of it are buffered"


def test_a_fill_that_never_comes_leaves_a_stream_readable(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client("create stream s on t with (buffer_bytes = '64 KiB')")

    monkeypatch.setattr(Publisher, "_afterwards", staticmethod(lambda work: None))
    client("insert into t select i, 'v' || i from range(5000) r(i)")
    client("update t set v = 'later' where id = 1")
    events = client("select op, key->>'id' from stream s")
    assert len(events) == 5001
    assert events[-1] == ("update", "1")
