"""EXPLAIN of a query that reads a stream: what DuckDB's plan reads, and from where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_client import Client

from ducktail.engine.database import Database


@pytest.fixture
def client() -> Iterator[Client]:
    """A session; s has 1,000 events in its buffer, cold the newest few of them."""
    database = Database.open(":memory:")
    made = Client(database)
    made("create table t (id int primary key, v text)")
    for name, size in (("s", 1 << 20), ("cold", 1 << 16)):
        made(f"create stream {name} on t with (partitions = 4, buffer_bytes = {size})")
        made(f"create consumer group g on {name}")
    made("insert into t select i, 'v' from range(1000) r(i)")
    made("select count(*) from stream s")
    yield made
    made.close()
    database.close()


def lines(client: Client, query: str, *parameters: object) -> list[str]:
    return [line for (line,) in client(f"explain {query}", *parameters)]


def test_a_scan_is_described(client: Client) -> None:
    plan = lines(client, "select lsn from stream s where op = 'insert' and lsn > 600")
    assert plan[-5:] == [
        "Stream main.s",
        "  Plain reads: from the buffer; other queries: from the log",
        "  Partitions: 0, 1, 2, 3 of 4",
        "  LSNs: 601 to 1000",
        "  Estimated events: 400",
    ]
    text = "\n".join(plan)
    assert "Projections: lsn " in text and "'insert'" in text and "after" not in text


def test_a_scan_of_the_log_is_described(client: Client) -> None:
    plan = lines(client, "select * from stream cold consumer group g where partition = $1", 2)
    assert plan[-4].startswith("  Plain reads: from the log up to LSN ")
    assert plan[-3] == "  Partitions: 2 of 4"
    assert abs(int(plan[-1].rpartition(" ")[2]) - 250) < 50
    plan = lines(client, "select count(*) from stream cold after 10 envelope changes")
    assert plan[-2] == "  LSNs: 11 to 1000"


def test_nothing_moves_and_every_form_is_explained(client: Client) -> None:
    client("select * from stream s consumer group g limit 10")
    lines(client, "select * from stream s consumer group g limit 5 transactions")
    lines(client, "analyze select count(*) from stream s consumer group g")
    client("commit offsets on s consumer group g")
    assert client("select max(committed_lsn) from ducktail.offsets where stream_name = 's'") == [(10,)]
    assert lines(client, "select 1 from stream s a join stream cold b using (lsn)")[-10] == "Stream main.s"
    assert client("explain (format json) select * from stream s")[0][0].lstrip().startswith("[")
