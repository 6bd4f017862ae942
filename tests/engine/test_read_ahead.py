"""Windows of the log: as many as the events need, however few are fetched, and never past an edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import current_thread
from typing import Any

import pyarrow as pa
import pytest
from local_client import Client, raises

from ducktail.engine.buffers.buffer import StreamBuffer
from ducktail.engine.buffers.read_ahead import Held, LogWindow
from ducktail.engine.buffers.scan import Scan
from ducktail.engine.database import Database
from ducktail.engine.errors import QueryCanceled
from ducktail.engine.log.log import EVENT_TYPES
from ducktail.engine.values import datarow
from ducktail.engine.waiting import drive
from ducktail.sql.results.results import LogBatch, Result

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


def windows_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> tuple[ThreadPoolExecutor, list[bool]]:
    """The one thread that reads ahead; and of each window that is read, whether that thread reads it."""
    monkeypatch.setattr("ducktail.engine.buffers.scan.AHEAD_ROWS", 2048)
    threads = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    monkeypatch.setattr(client.session.database.buffers._ahead, "_threads", threads)
    read, ahead = Scan._cold, []

    def noted(scan: Scan, after: dict[int, int]) -> LogWindow:
        ahead.append(current_thread().name.startswith("ahead"))
        return read(scan, after)

    monkeypatch.setattr(Scan, "_cold", noted)
    return threads, ahead


def test_the_next_window_is_read_for_a_group_behind_the_buffer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, ahead = windows_read(client, monkeypatch)
    found: list[int] = []
    while rows := client("select lsn, after from stream s consumer group g limit 150"):
        found += [lsn for lsn, _ in rows]
        client("commit offsets on s consumer group g")
        threads.submit(int).result()
    assert found == list(range(1, EVENTS + 1))
    assert ahead[0] is False and all(ahead[1:]) and 2 <= len(ahead) <= 4


def test_no_window_is_read_twice_for_reads_that_end_in_the_next_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read begins the window behind the one in which it ends; the next read waits for that one."""
    threads, _ = windows_read(client, monkeypatch)
    read, began = Scan._cold, []

    def noted(scan: Scan, after: dict[int, int]) -> LogWindow:
        began.append(min(after.values()))
        return read(scan, after)

    monkeypatch.setattr(Scan, "_cold", noted)
    client(f"insert into t select i, 'v' || i from range({EVENTS}, {4 * EVENTS}) r(i)")
    client("select count(*) from stream s")
    began.clear()
    found: list[int] = []
    while rows := client("select lsn, after from stream s consumer group g limit 3000"):
        found += [lsn for lsn, _ in rows]
        client("commit offsets on s consumer group g")
    threads.submit(int).result()
    assert found == list(range(1, 4 * EVENTS + 1))
    assert len(began) == len(set(began)) >= 4


def test_a_wait_for_a_window_ends_with_a_cancel(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is being read for an earlier read, on a cursor that this one cannot interrupt."""
    result, _, held = read_on(client, monkeypatch)
    scan = result.source.scan  # type: ignore[attr-defined]
    coming: Future[None] = Future()
    monkeypatch.setattr(client.session.database.buffers._ahead, "arriving", lambda source, after: coming)
    other = begun(client, "select * from stream s after 11000")
    waiting = other.source.scan  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(waiting.read, 10)
        while waiting._interrupted is None:
            assert not read.done()
        waiting.interrupt()
        with pytest.raises(QueryCanceled):
            read.result(30)
    coming.set_result(None)
    assert waiting.read(3).lsns == [11001, 11002, 11003]
    assert held.closed is False and scan is not waiting
    other.close()
    result.close()


def test_rows_of_a_window_that_are_encoded_need_no_thread(client: Client) -> None:
    statement = drive(client.session.parse("select * from stream s after 200 limit 100"))
    results = [drive(client.session.execute(statement)) for _ in range(3)]
    assert [result.inline for result in results] == [False] * 3
    batch = results[0].fetch(100)
    assert isinstance(batch, LogBatch)
    first = bytes(batch.datarows(EVENT_TYPES, [0] * len(EVENT_TYPES), "UTC"))
    results[0].close()
    assert results[1].inline
    again = results[1].fetch(100)
    assert isinstance(again, LogBatch) and again.page is batch.page
    assert bytes(again.datarows(EVENT_TYPES, [0] * len(EVENT_TYPES), "UTC")) == first
    for result in results[1:]:
        result.close()


def begun(client: Client, sql: str) -> Result:
    return drive(client.session.execute(drive(client.session.parse(sql))))


def encode(batch: object, timezone: str = "UTC") -> bytes:
    assert isinstance(batch, LogBatch)
    return bytes(batch.datarows(EVENT_TYPES, [0] * len(EVENT_TYPES), timezone))


def test_few_rows_in_another_form_leave_the_page_encoded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = (begun(client, "select * from stream s after 200 limit 100") for _ in range(2))
    in_utc = encode(first.fetch(100))
    first.close()
    batch = again.fetch(100)
    encoded, counts = datarow.encoded, []

    def noted(rows: pa.RecordBatch, *form: Any) -> tuple[memoryview, list[int]]:
        counts.append(rows.num_rows)
        return encoded(rows, *form)

    monkeypatch.setattr(datarow, "encoded", noted)
    there = encode(batch, "Asia/Tokyo")
    assert there != in_utc and there.count(b"+09") == 100
    assert encode(batch) == in_utc and counts == [100]
    again.close()


def test_a_look_for_encoded_rows_copies_none(client: Client) -> None:
    """Rows of some partitions are copied out of another reader's window when they are read, not before."""
    whole = begun(client, "select * from stream s after 200")
    encode(whole.fetch(100))
    whole.close()
    result = begun(client, "select * from stream s partition 2 after 200 limit 100")
    assert not result.inline
    part = result.source.scan._held.part  # type: ignore[attr-defined]
    assert part.pages._places is not None
    batch = result.fetch(100)
    assert isinstance(batch, LogBatch) and batch.partitions == [2] * 100
    wanted = [row[0] for row in client("select lsn from stream s partition 2 after 200 limit 100")]
    assert batch.lsns == wanted == batch.record_batch().column(0).to_pylist()
    result.close()


def test_a_window_without_rows_for_a_read_is_not_ready(client: Client) -> None:
    """The read goes on behind it, in the log: an event loop must not."""
    others = "select (key->>'id')::int from stream s where partition <> 2 and lsn <= 100"
    client(f"update t set v = 'w' where id in ({others})")
    for number in range(40):
        client(f"update t set v = 'w{number}' where id in ({others})")
    client(f"insert into t select i, 'v' || i from range({EVENTS}, {EVENTS + 3000}) r(i)")
    client("select count(*) from stream s")
    last = client("select max(lsn) from stream s where partition = 2 and lsn <= 12000")[0][0]
    whole = begun(client, f"select * from stream s after {last}")
    encode(whole.fetch(100))
    whole.close()
    result = begun(client, f"select * from stream s partition 2 after {last} limit 10")
    part = result.source.scan._find_window()  # type: ignore[attr-defined]
    assert not len(part.lsns) and not result.inline
    batch = result.fetch(10)
    assert isinstance(batch, LogBatch) and batch.partitions == [2] * 10
    result.close()


def test_reads_go_on_if_no_thread_can_be_started(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, ahead = windows_read(client, monkeypatch)
    submit = threads.submit

    def refused(work: Callable[[], None]) -> None:
        submit(work)  # It remains in the queue.
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "submit", refused)
    found: list[int] = []
    while rows := client("select lsn, after from stream s consumer group g limit 500"):
        found += [lsn for lsn, _ in rows]
        client("commit offsets on s consumer group g")
    assert found == fetched(client, 1000)[0] == list(range(1, EVENTS + 1))
    submit(int).result()
    windows = client.session.database.buffers._ahead
    assert not any(ahead) and not windows._coming and not windows._open_bytes


def test_none_is_read_for_groups_in_several_places(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client("create consumer group h on s start earliest")
    client("select count(*) from stream s")
    for group, events in (("g", 10), ("h", 6000)):
        client(f"select lsn from stream s consumer group {group} limit {events}")
        client(f"commit offsets on s consumer group {group}")
    threads, ahead = windows_read(client, monkeypatch)
    for _ in range(10):
        for group in "gh":
            client(f"select lsn, after from stream s consumer group {group} limit 10")
            client(f"commit offsets on s consumer group {group}")
            threads.submit(int).result()
    assert ahead == [False, False]


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


def read_on(client: Client, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, list[int], Held]:
    """A read that has begun its second window while the third one is read, and the LSNs given until then."""
    monkeypatch.setattr("ducktail.engine.buffers.scan.AHEAD_ROWS", 2048)
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    found = list(result.fetch(1000).lsns)  # type: ignore[union-attr]
    (held,) = held_of(client)
    while held.coming is None:
        found += result.fetch(1000).lsns  # type: ignore[union-attr]
    held.settle()
    return result, found, held


def held_of(client: Client) -> list[Held]:
    return list(client.session.database.buffers._ahead._open)


def test_the_next_window_is_read_while_one_is_given(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    result, found, held = read_on(client, monkeypatch)
    assert held.window is not None and held.arrived is not None
    first = int(held.arrived.lsns[0])
    assert found[-1] < first == held.window.lsns[-1] + 1
    reads = buffer_of(client).log_reads
    while (batch := result.fetch(1000)) is not None:
        found += batch.lsns  # type: ignore[attr-defined]
        if held.coming is not None:
            held.settle()
    assert found == list(range(1, EVENTS + 1))
    assert buffer_of(client).log_reads <= reads + 1  # The window that has arrived is not read again.


def test_a_window_read_ahead_that_retention_passes_is_not_given(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, found, held = read_on(client, monkeypatch)
    database = client.session.database
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
    result, _, held = read_on(client, monkeypatch)
    coming = held.arrived
    assert coming is not None
    result.close()
    ahead = client.session.database.buffers._ahead
    assert held.arrived is None and not ahead._open_bytes and len(ahead._windows) == 2
    assert any(window is coming for window in ahead._windows.values())
    assert client("select count(*) from stream s") == [(EVENTS,)]


def test_a_short_read_reads_nothing_ahead(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ducktail.engine.buffers.scan.AHEAD_ROWS", 1)
    client("select * from stream s limit 3")
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    result.fetch(100)
    assert [held.coming for held in held_of(client)] == [None]
    result.close()


def test_a_read_is_interrupted_while_it_is_closed(client: Client) -> None:
    result = drive(client.session.execute(drive(client.session.parse("select * from stream s"))))
    result.fetch(100)
    scan = result.source.scan  # type: ignore[attr-defined]
    assert scan._cursor is not None
    scan._cursor.close()  # As another thread does that closes the read.
    scan.interrupt()
    result.close()
    assert client("select count(*) from stream s") == [(EVENTS,)]


@pytest.mark.parametrize(
    "columns", ["* from stream z", "* from stream z envelope changes", "count(*) from stream z"]
)
def test_the_log_of_an_old_version_goes_during_a_read(client: Client, columns: str) -> None:
    client("create table old (id int primary key)")
    client("create stream z on old with (buffer_bytes = 65536)")
    client("insert into t values (-1, 'between the versions')")
    client("alter table old add column v text")
    client("insert into old select i, repeat('v', 100) from range(3000) r(i)")
    client("select count(*) from stream z")
    result = drive(client.session.execute(drive(client.session.parse(f"select {columns}"))))
    catalog = client.session.database.catalog
    (table,) = catalog.tables_of(catalog.streams["main", "z"])
    assert len(table.versions) == 2
    client.session.database.retention.look()
    (table,) = catalog.tables_of(catalog.streams["main", "z"])
    assert len(table.versions) == 1  # The log of the first one had no events.
    found = 0
    while (batch := result.fetch(100_000)) is not None:
        found += batch.row_count
    assert found == (1 if "count" in columns else 3000 if "changes" in columns else 3008)
