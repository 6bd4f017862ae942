"""Windows of the log: as many as the events need, however few are fetched, and never past an edge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_client import Client, raises

from ducktail.engine.buffers.buffer import StreamBuffer
from ducktail.engine.database import Database
from ducktail.engine.waiting import drive

EVENTS = 12_000


@pytest.fixture
def client() -> Iterator[Client]:
    """A session; the events of s are in the log, the newest few excepted."""
    database = Database.open(":memory:")
    made = Client(database)
    made("create table t (id int primary key, v text)")
    made("create stream s on t with (partitions = 4, buffer_bytes = 65536)")
    made("create consumer group g on s")
    for first, last in ((0, 100), (100, EVENTS)):
        made(f"insert into t select i, 'v' || i from range({first}, {last}) r(i)")
    made("select count(*) from stream s")
    yield made
    made.close()
    database.close()


def buffer_of(client: Client) -> StreamBuffer:
    database = client.session.database
    return database.buffers.of(database.catalog.streams["main", "s"])


def fetched(client: Client, rows: int) -> tuple[list[int], int]:
    """The LSNs that a portal gives, so many rows a fetch, and how often it read the log."""
    buffer = buffer_of(client)
    before = buffer.log_reads
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    found: list[int] = []
    while (batch := result.fetch(rows)) is not None:
        assert batch.row_count <= rows
        found += batch.lsns  # type: ignore[attr-defined]
    return found, buffer.log_reads - before


def test_a_fetch_of_few_rows_costs_no_window(client: Client) -> None:
    few, reads = fetched(client, 100)
    many, least = fetched(client, 10_000)
    assert few == many == list(range(1, EVENTS + 1))
    assert reads <= least + 1 <= 5


def test_a_group_behind_the_buffer_reads_on_in_its_window(client: Client) -> None:
    buffer = buffer_of(client)
    before, found = buffer.log_reads, []
    while rows := client("select lsn, after from stream s consumer group g limit 150"):
        found += [lsn for lsn, _ in rows]
        client("commit offsets on s consumer group g")
    assert found == list(range(1, EVENTS + 1))
    assert buffer.log_reads - before <= 6
    # Another group does not read what the first left of other columns, nor of other partitions.
    client("create consumer group h on s start earliest")
    rows = client("select * from stream s consumer group h partition 2 limit 150")
    assert [row[1] for row in rows] == [2] * 150


def test_a_window_behind_the_edge_is_not_used(client: Client) -> None:
    client("select * from stream s consumer group g limit 10")
    client("commit offsets on s consumer group g")
    database = client.session.database
    database.retention.trim(database.catalog.streams["main", "s"], 100)
    with raises("72000"):
        client("select * from stream s consumer group g limit 10")
    assert [row[0] for row in client("select * from stream s limit 3")] == [101, 102, 103]


def test_open_reads_share_a_bound(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are taken from reads that wait; they go on where they were, without a row twice."""
    monkeypatch.setattr("ducktail.engine.buffers.read_ahead.OPEN_BYTES_MAX", 1 << 20)
    ahead = client.session.database.buffers._ahead
    results = [
        drive(client.session.execute(drive(client.session.parse("select * from stream s")))) for _ in range(6)
    ]
    found: list[list[int]] = [[] for _ in results]
    while results:
        for place, result in enumerate(results):
            if (batch := result.fetch(1700)) is not None:
                found[place] += batch.lsns  # type: ignore[attr-defined]
            assert ahead._open_bytes <= 1 << 20 or len(ahead._open) == 1
        results = [result for result in results if not result.ended]
    assert found == [list(range(1, EVENTS + 1))] * 6
    assert not ahead._open_bytes and not ahead._open


def test_the_next_window_is_read_while_one_is_given(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducktail.engine.buffers.scan.AHEAD_ROWS", 2048)
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    found = list(result.fetch(100).lsns)  # type: ignore[union-attr]
    (held,) = client.session.database.buffers._ahead._open
    held.settle()
    assert held.window is not None and held.arrived is not None
    first = int(held.arrived.lsns[0])
    assert first == held.window.lsns[-1] + 1
    reads = buffer_of(client).log_reads
    while found[-1] < first:
        found += result.fetch(1000).lsns  # type: ignore[union-attr]
        held.settle()
    assert buffer_of(client).log_reads == reads + 1  # The window behind it, and not this one again.
    while (batch := result.fetch(1000)) is not None:
        found += batch.lsns  # type: ignore[attr-defined]
    assert found == list(range(1, EVENTS + 1))


def test_a_window_read_ahead_that_retention_passes_is_not_given(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducktail.engine.buffers.scan.AHEAD_ROWS", 2048)
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    found = list(result.fetch(100).lsns)  # type: ignore[union-attr]
    database = client.session.database
    (held,) = database.buffers._ahead._open
    held.settle()
    assert held.window is not None
    last = int(held.window.lsns[-1])
    database.retention.trim(database.catalog.streams["main", "s"], last + 50)
    with raises("72000"):
        while (batch := result.fetch(1000)) is not None:
            found += batch.lsns  # type: ignore[attr-defined]
    assert found == list(range(1, last + 1))


def test_a_read_that_is_closed_leaves_the_window_that_was_coming(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ducktail.engine.buffers.scan.AHEAD_ROWS", 2048)
    ahead = client.session.database.buffers._ahead
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    result.fetch(100)
    (held,) = ahead._open
    coming = held.coming
    assert coming is not None
    result.close()
    coming.result()
    buffers = client.session.database.buffers
    buffers.close()  # Its threads have done what follows the read, too.
    assert not ahead._open_bytes and len(ahead._windows) == 2
    assert client("select count(*) from stream s") == [(EVENTS,)]


def test_a_read_is_interrupted_while_it_is_closed(client: Client) -> None:
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    result.fetch(100)
    scan = result.source.scan  # type: ignore[attr-defined]
    assert scan._cursor is not None
    scan._cursor.close()  # As another thread does that closes the read.
    scan.interrupt()
    result.close()
    assert client("select count(*) from stream s") == [(EVENTS,)]
