"""Promise 9, as far as the log's edge moves: what is gone is told, never skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A stream with a buffer that holds only its last events, 1 to 3,000 in its log."""
    made = connect()
    made("create table t (id int primary key, v text)")
    made("create stream s on t with (partitions = 2, buffer_bytes = '64 KiB')")
    made("create stream other on t")
    made("create consumer group g on s")
    for start in range(0, 3000, 100):
        made(f"insert into t select i, repeat('x', 50) from range({start}, {start + 100}) r(i)")
        made("select max(end_lsn) from ducktail.streams")  # Published, and so encoded, one by one.
    return made


def trim(client: Client, database: Database, lsn: int) -> None:
    """Move the stream's edge."""
    database.retention.trim(database.catalog.streams["main", "s"], lsn)


def test_a_reader_behind_the_buffer_reads_the_log(client: Client) -> None:
    (buffered,) = client("select min(buffered_from_lsn) from ducktail.partitions where stream_name = 's'")[0]
    assert 100 < buffered < 3000
    assert [lsn for (lsn,) in client("select lsn from stream s after 5")] == list(range(6, 3001))
    hot = client("select * from stream s after 2990")
    assert hot == client("select * from s where lsn > 2990 order by lsn")


def test_hot_cold_and_view_give_the_same(client: Client) -> None:
    cold = client("select * from stream s after 100 limit 50")
    hot = client("select * from stream s after 2900 limit 50")
    assert cold == client("select * from s where lsn > 100 order by lsn limit 50")
    assert hot == client("select * from s where lsn > 2900 order by lsn limit 50")


def test_a_reader_whose_place_is_gone_is_told(client: Client, database: Database) -> None:
    trim(client, database, 1000)
    with raises("72000") as error:
        client("select * from stream s after 500")
    assert error.value.detail is not None and "are gone" in error.value.detail
    with raises("72000"):
        client("select * from stream s consumer group g")
    with raises("72000"):
        client("select count(*) from stream s consumer group g where op = 'insert'")
    assert [lsn for (lsn,) in client("select lsn from stream s after 0")] == list(range(1001, 3001))
    assert client.one("select min(lsn) from s") == 1001
    # The table's other stream retains what it has.
    assert client.one("select count(*) from stream other") == 3000


def test_a_scan_under_way_that_the_edge_passes_is_told(client: Client, database: Database) -> None:
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s after 5"))))
    assert result.fetch(10) is not None
    other = Client(database)
    trim(other, database, 2900)  # Beyond the window that it has read.
    other.close()
    with raises("72000"):
        while result.fetch(10) is not None:
            pass


def test_counts_stay_exact_over_trims_and_reopening(client: Client, database: Database) -> None:
    trim(client, database, 700)
    trim(client, database, 1000)
    query = (
        "select sum(events), sum(trimmed_events), max(trimmed_through_lsn) "
        "from ducktail.partitions where stream_name = 's'"
    )
    assert client(query) == [(2000, 1000, 1000)]
    path = database.path
    client.close()
    database.close()
    reopened = Database.open(path)
    again = Client(reopened)
    assert again(query) == [(2000, 1000, 1000)]
    with raises("72000"):
        again("select * from stream s after 999")
    assert [lsn for (lsn,) in again("select lsn from stream s after 1000 limit 2")] == [1001, 1002]
    again.close()
    reopened.close()
