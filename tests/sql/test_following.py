"""Following a stream in process: batches, what is stored when, and what ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hands import DAY_US, Hands
from local_client import Client

import ducktail
from ducktail.engine.database import Database
from ducktail.engine.errors import IoError
from ducktail.engine.log.events import Event
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import Waiting, drive
from ducktail.sql.python.feed import GroupFeed, Reads
from ducktail.sql.python.follower import Bounds, DoneEvents, Follower, Following
from ducktail.sql.python.stream_manager import StreamManager

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0


@pytest.fixture
def con() -> Iterator[ducktail.Connection]:
    with ducktail.connect() as found:
        found.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
        found.execute("CREATE STREAM s ON t WITH (partitions = 4)")
        yield found


def put(con: ducktail.Connection, start: int, stop: int) -> None:
    con.execute(f"INSERT INTO t SELECT i, 'v' || i FROM range({start}, {stop}) r(i)")


def until(found: Callable[[], bool]) -> None:
    """Wait until something is so that another thread brings about."""
    end_s = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < end_s, "it does not come"
        threading.Event().wait(0.005)


class Program(threading.Thread):
    """A program that follows until its follow ends."""

    def __init__(self, stream: ducktail.ReplicationStream, consumer: str, **arguments: object) -> None:
        super().__init__(daemon=True)
        self.stream, self.consumer, self.arguments = stream, consumer, arguments
        self.lsns: list[int] = []
        self.error: ducktail.Error | None = None
        self.start()

    def run(self) -> None:
        try:
            for batch in self.stream.follow(self.consumer, **self.arguments):  # type: ignore[arg-type]
                self.lsns += [event.lsn for event in batch]
        except ducktail.Error as error:
            self.error = error

    def ended(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive()


def lsns_of(con: ducktail.Connection, consumer: str, count: int, **arguments: object) -> list[int]:
    """The LSNs of so many events, read whole batches at a time; the last batch is not done."""
    found: list[int] = []
    for batch in con.streams.open("s").follow(consumer, **arguments):  # type: ignore[arg-type]
        found += [event.lsn for event in batch]
        if len(found) >= count:
            break
    return found


def test_batches_are_the_events_of_a_read(con: ducktail.Connection) -> None:
    put(con, 0, 250)
    con.execute("UPDATE t SET v = 'x' WHERE id = 3")
    con.execute("DELETE FROM t WHERE id = 4")
    given: list[ducktail.Event] = []
    for batch in con.streams.open("s").follow("c"):
        given += batch
        assert len(batch) <= 100
        assert batch.position == dict.fromkeys(range(4), batch.last_lsn)
        assert batch.event_count == len(given)
        if len(given) == 252:
            break
    assert [tuple(event) for event in given] == con.execute("SELECT * FROM STREAM s").fetchall()
    assert batch.arrow().to_pylist()[-1]["op"] == "delete"
    assert given[250].after == '{"id":3,"v":"x"}' and given[250].op == "update"
    assert con.streams.count == 0


def test_what_is_read_cold_is_the_same(tmp_path: Path) -> None:
    with ducktail.connect(tmp_path / "cold.duckdb") as con:
        con.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
        con.execute("CREATE STREAM s ON t WITH (partitions = 4, buffer_bytes = '64 KiB')")
        put(con, 0, 3000)
        given = [e for b in islice(con.streams.open("s").follow("c", batch_size=500), 30) for e in b]
        assert [tuple(event) for event in given] == con.execute("SELECT * FROM STREAM s").fetchall()


def test_a_checkpoint_covers_a_batch_once_the_next_is_asked_for(con: ducktail.Connection) -> None:
    put(con, 0, 300)
    stream = con.streams.open("s")
    follow = stream.follow("c", batch_size=50, checkpoint_every=100)
    first = next(follow)
    follow.close()
    assert con.streams.get_checkpoint("s", "c") is None
    assert lsns_of(con, "c", 150, batch_size=50) == list(range(1, 151))
    found = con.streams.get_checkpoint("s", "c")
    assert found is not None
    assert (found.position, found.event_count) == (dict.fromkeys(range(4), 100), 100)
    assert found.watermark == first.events[0].commit_time
    assert lsns_of(con, "c", 50)[0] == 101


def test_no_more_than_an_interval_is_ever_open(con: ducktail.Connection) -> None:
    put(con, 0, 1000)
    given = 0
    for batch in con.streams.open("s").follow("c", batch_size=70, checkpoint_every=100):
        given += len(batch)
        found = con.streams.get_checkpoint("s", "c")
        assert given - (0 if found is None else found.event_count or 0) <= 100
        if given == 1000:
            break
    assert max(map(len, islice(con.streams.open("s").follow("d", checkpoint_every=30), 5))) == 30


def test_it_waits_and_stores_when_nothing_comes(con: ducktail.Connection) -> None:
    program = Program(con.streams.open("s"), "c")
    for number in range(5):
        put(con, number, number + 1)
        until(lambda: len(program.lsns) == number + 1)  # noqa: B023
    until(lambda: con.streams.get_checkpoint("s", "c") is not None)
    until(lambda: con.streams.get_checkpoint("s", "c").event_count == 5)  # type: ignore[union-attr]
    assert [stream.name for stream in con.streams.active] == ["s"]
    program.stream.stop()
    program.ended()
    assert program.error is None and program.lsns == [1, 2, 3, 4, 5]


def test_manual_checkpoints(con: ducktail.Connection) -> None:
    put(con, 0, 300)
    stream = con.streams.open("s")
    for batch in stream.follow("c", checkpoint_every=None):
        if batch.number == 2:
            stream.checkpoint()
            assert con.streams.get_checkpoint("s", "c").position[0] == 100  # type: ignore[union-attr]
            stream.checkpoint(batch)
            break
    assert con.streams.get_checkpoint("s", "c").position[0] == 200  # type: ignore[union-attr]
    with pytest.raises(ducktail.OperationalError) as error:
        stream.checkpoint()
    assert error.value.sqlstate == "55000"
    assert next(stream.follow("c", checkpoint_every=None)).first_lsn == 201
    assert con.streams.get_checkpoint("s", "c").position[0] == 200  # type: ignore[union-attr]


def test_a_batch_of_another_follow_is_refused(con: ducktail.Connection) -> None:
    put(con, 0, 300)
    stream = con.streams.open("s")
    [*_, third] = islice(stream.follow("c"), 3)
    follow = stream.follow("d")
    next(follow)
    with pytest.raises(ducktail.DataError) as error:
        stream.checkpoint(third)
    assert error.value.sqlstate == "22023"


def test_after_and_a_position_that_goes_back_because_it_is_asked_to(con: ducktail.Connection) -> None:
    put(con, 0, 300)
    lsns_of(con, "c", 300)
    assert con.streams.get_checkpoint("s", "c").position[0] == 200  # type: ignore[union-attr]
    assert lsns_of(con, "c", 200, after=50) == list(range(51, 251))
    assert con.streams.get_checkpoint("s", "c").position[0] == 150  # type: ignore[union-attr]
    con.streams.set_checkpoint("s", "c", {0: 290, 1: 290, 2: 290, 3: 290})
    assert lsns_of(con, "c", 10) == list(range(291, 301))
    con.streams.set_checkpoint("s", "c", 10)
    assert lsns_of(con, "c", 1)[0] == 11
    con.streams.clear_checkpoint("s", "c")
    assert con.streams.get_checkpoint("s", "c") is None
    assert lsns_of(con, "c", 1)[0] == 1
    for bad in ({0: 1}, 301, {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}):
        with pytest.raises(ducktail.DataError) as error:
            lsns_of(con, "c", 1, after=bad)
        assert error.value.sqlstate == "22023"


def test_pause_and_resume(con: ducktail.Connection) -> None:
    program = Program(con.streams.open("s"), "c")
    put(con, 0, 1)
    until(lambda: len(program.lsns) == 1)
    program.stream.pause()
    put(con, 1, 2)
    until(lambda: con.streams.get_checkpoint("s", "c") is not None)
    assert program.lsns == [1]
    program.stream.resume()
    until(lambda: program.lsns == [1, 2])
    program.stream.pause()
    program.stream.stop()
    program.ended()


@pytest.mark.parametrize("group", [None, "g"])
def test_stop_ends_a_waiting_follow(con: ducktail.Connection, group: str | None) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    waiting = "SELECT count(*) FROM ducktail.sessions WHERE waits_for = 'events'"
    program = Program(con.streams.open("s"), "c", group=group)
    until(lambda: con.execute(waiting).fetchall() == [(1,)])
    program.stream.stop()
    program.ended()
    assert program.error is None
    assert con.streams.count == 0
    assert con.execute("SELECT count(*) FROM ducktail.members").fetchall() == [(0,)]
    assert con.execute("SELECT count(*) FROM ducktail.sessions").fetchall() == [(1,)]


def test_a_group_that_counts_deliveries_is_not_followed(con: ducktail.Connection) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s WITH (max_deliveries = 3)")
    put(con, 0, 10)
    program = Program(con.streams.open("s"), "c", group="g")
    program.ended()
    assert program.error is not None and program.error.sqlstate == "0A000"
    assert con.execute("SELECT count(*) FROM ducktail.delivery_counts").fetchall() == [(0,)]
    con.execute("ALTER CONSUMER GROUP g ON s SET (max_deliveries = 'none')")
    program = Program(con.streams.open("s"), "c", group="g")
    until(lambda: len(program.lsns) == 10)
    program.stream.stop()
    program.ended()


@pytest.mark.parametrize("group", [None, "g"])
def test_closing_the_connection_is_an_error(con: ducktail.Connection, group: str | None) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    put(con, 0, 10)
    other = con.duplicate()
    program = Program(other.streams.open("s"), "c", group=group)
    until(lambda: len(program.lsns) == 10)
    other.close()
    program.ended()
    assert program.error is not None and program.error.sqlstate == "57P01"
    found = con.streams.get_checkpoint("s", "c", group)
    assert found is not None and max(found.position.values()) == 10


def test_closing_the_manager_is_the_end(con: ducktail.Connection) -> None:
    other = con.duplicate()
    with other.streams as streams:
        programs = [Program(streams.open("s"), name) for name in ("a", "b")]
        until(lambda: streams.count == 2)
    for program in programs:
        program.ended()
        assert program.error is None
    with pytest.raises(ducktail.OperationalError) as error:
        streams.open("s")
    assert error.value.sqlstate == "57P01"
    other.close()


def test_a_consumer_follows_once(con: ducktail.Connection) -> None:
    put(con, 0, 1)
    other = con.duplicate()
    first = con.streams.open("s").follow("c")
    next(first)
    for again in (con.streams, other.streams):
        with pytest.raises(ducktail.OperationalError) as error:
            next(again.open("s").follow("c"))
        assert error.value.sqlstate == "55006"
        with pytest.raises(ducktail.OperationalError) as error:
            again.set_checkpoint("s", "c", 0)
        assert error.value.sqlstate == "55006"
    first.close()
    next(other.streams.open("s").follow("c"))
    other.close()


def test_dropping_the_stream_ends_it_and_takes_its_checkpoints(con: ducktail.Connection) -> None:
    put(con, 0, 10)
    program = Program(con.streams.open("s"), "c")
    until(lambda: con.streams.get_checkpoint("s", "c") is not None)
    con.execute("ALTER STREAM s RENAME TO s2")
    put(con, 10, 11)
    until(lambda: len(program.lsns) == 11)
    con.execute("DROP STREAM s2")
    program.ended()
    assert program.error is not None and program.error.sqlstate == "42704"
    con.execute("CREATE STREAM s ON t WITH (partitions = 4)")
    assert con.streams.get_checkpoint("s", "c") is None
    put(con, 11, 12)
    assert lsns_of(con, "c", 1)[0] > 11


def test_a_gap_is_an_error() -> None:
    clock = Hands()
    database = Database.open(":memory:", Settings(retention_interval_ms=3_600_000), clock)
    session = ducktail.sql.session.Session(database)  # type: ignore[attr-defined]

    def run(text: str) -> None:
        work = ducktail.engine.waiting.drive  # type: ignore[attr-defined]
        result = work(session.execute(work(session.parse(text))))
        while result.fetch(None) is not None:
            pass

    run("CREATE TABLE t (id INT PRIMARY KEY)")
    run("CREATE STREAM s ON t WITH (retention = '2 hours')")
    run("INSERT INTO t SELECT i FROM range(100) r(i)")
    streams = StreamManager(database, Following(), "u", lambda notices: None)
    for batch in streams.open("s").follow("c", batch_size=10):
        if batch.number == 3:
            break
    clock.us += DAY_US
    run("INSERT INTO t SELECT i FROM range(100, 110) r(i)")
    database.retention.look()
    with pytest.raises(ducktail.OperationalError) as error:
        next(streams.open("s").follow("c"))
    assert error.value.sqlstate == "72000" and "retention by time" in str(error.value.detail)
    # Without a checkpoint it begins at what is retained.
    assert next(streams.open("s").follow("new")).first_lsn == 101
    streams.close()
    ducktail.engine.waiting.drive(session.close())  # type: ignore[attr-defined]
    database.close()


def test_the_buffer_holds_the_reader_back(con: ducktail.Connection) -> None:
    put(con, 0, 5000)
    stream = con.streams.open("s")
    given = "SELECT sum(events) FROM (SELECT 1 AS events FROM STREAM s)"
    follow = stream.follow("c", batch_size=10, buffer_size=100, checkpoint_every=None)
    next(follow)
    buffer = con._shared.database.buffers.of(stream._stream)
    until(lambda: buffer.given.value >= 100)
    threading.Event().wait(0.05)
    assert buffer.given.value <= 200
    assert con.execute(given).fetchall() == [(5000,)]
    follow.close()
    con.execute("UPDATE t SET v = repeat('x', 10000)")
    large = stream.follow("d", after=5000, batch_size=10, buffer_bytes=1 << 20, checkpoint_every=None)
    before = buffer.given.value
    next(large)
    threading.Event().wait(0.05)
    # 100 events are read before it is known how large they are.
    assert buffer.given.value - before <= 100 + 100
    large.close()


@pytest.mark.parametrize("group", [None, "g"])
def test_large_events_stay_within_the_bound_of_bytes(con: ducktail.Connection, group: str | None) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    con.execute("INSERT INTO t SELECT i, 'v' FROM range(0, 200) r(i)")
    con.execute("INSERT INTO t SELECT i, repeat('x', 1000000) FROM range(200, 240) r(i)")
    stream = con.streams.open("s")
    follow = stream.follow("c", group=group, batch_size=10, buffer_bytes=1 << 20)
    found = [event.lsn for event in next(follow)]
    follower = stream._follower
    assert follower is not None
    while len(found) < 240:
        # Of a group the program's own thread reads.
        until(lambda: group or follower._waiting is not None or not follower._has_room())
        assert follower._bytes <= 3 << 20
        found += [event.lsn for event in next(follow)]
    assert found == [*range(1, 241)]


def test_members_of_a_group_share_it(con: ducktail.Connection) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    programs = [Program(con.streams.open("s"), name, group="g") for name in ("a", "b")]
    owned = "SELECT member_name, len(partitions) FROM ducktail.members ORDER BY 1"
    until(lambda: con.execute(owned).fetchall() == [("a", 2), ("b", 2)])
    put(con, 0, 1000)
    until(lambda: sum(len(program.lsns) for program in programs) == 1000)
    assert all(program.lsns for program in programs)
    for program in programs:
        program.stream.stop()
        program.ended()
        assert program.error is None
    assert sorted(programs[0].lsns + programs[1].lsns) == list(range(1, 1001))
    assert con.execute("SELECT sum(lag_events) FROM ducktail.offsets").fetchall() == [(0,)]


def test_a_groups_checkpoint_is_its_committed_position(con: ducktail.Connection) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    put(con, 0, 250)
    assert len(lsns_of(con, "c", 250, group="g")) == 250
    found = con.streams.get_checkpoint("s", "c", "g")
    rows = con.execute("SELECT partition, committed_lsn FROM ducktail.offsets ORDER BY 1").fetchall()
    assert found is not None and found.position == dict(rows)
    assert len(lsns_of(con, "c", 50, group="g")) == 50
    con.streams.clear_checkpoint("s", "c", "g")
    assert lsns_of(con, "c", 1, group="g")[0] == 1
    con.streams.set_checkpoint("s", "c", {0: 200, 1: 200, 2: 200, 3: 200}, "g")
    assert lsns_of(con, "c", 1, group="g")[0] == 201
    with pytest.raises(ducktail.DataError):
        lsns_of(con, "c", 1, group="g", after=0)
    with pytest.raises(ducktail.ProgrammingError):
        lsns_of(con, "c", 1, group="no_such_group")


def test_manual_checkpoints_of_a_group(con: ducktail.Connection) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    put(con, 0, 250)
    stream = con.streams.open("s")
    given: list[int] = []
    for batch in stream.follow("c", "g", batch_size=20, buffer_size=50, checkpoint_every=None):
        given += [event.lsn for event in batch]
        if batch.number == 4:
            stream.checkpoint(batch)
        if len(given) == 250:
            break
    assert given == list(range(1, 251))
    done = 250 - len(lsns_of(con, "c", 170, group="g", checkpoint_every=None, batch_size=1))
    assert done == 80


def test_released_events_of_a_group(con: ducktail.Connection) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    put(con, 0, 100)
    partition = con.execute("SELECT partition FROM STREAM s AFTER 4 LIMIT 1").fetchone()
    assert partition is not None
    con.execute(f"ALTER CONSUMER GROUP g ON s PARK PARTITION {partition[0]} AT 5")
    assert 5 not in lsns_of(con, "c", 99, group="g", batch_size=33)
    con.execute(f"ALTER CONSUMER GROUP g ON s RELEASE PARTITION {partition[0]} AT 5")
    program = Program(con.streams.open("s"), "c", group="g", batch_size=10)
    parked = "SELECT count(*) FROM ducktail.parked"
    until(lambda: 5 in program.lsns and con.execute(parked).fetchall() == [(0,)])
    assert program.lsns.count(5) == 1
    program.stream.stop()
    program.ended()


def test_reads_of_a_group_are_bounded_by_bytes(tmp_path: Path) -> None:
    """Also while it has parked events; those with released ones, by the number of events that fit."""
    database = Database.open(str(tmp_path / "shop.duckdb"))
    client = Client(database)
    client("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    client("CREATE STREAM s ON t WITH (partitions = 1)")
    client("CREATE CONSUMER GROUP g ON s")
    client("INSERT INTO t SELECT i, repeat('x', 1000) FROM range(4000) r(i)")
    client("ALTER CONSUMER GROUP g ON s PARK PARTITION 0 AT 1")
    [stream], [group] = database.catalog.streams.values(), database.catalog.groups.values()
    reads, commits = (Reads(database, stream, "u", "test", lambda notices: None) for _ in range(2))
    feed = GroupFeed(reads, commits, group, "m")

    def read() -> list[int]:
        return [event.lsn for event in drive(feed.read(3000, 100_000))]

    lsns = read()
    assert 50 < len(lsns) < 100 and lsns == list(range(2, 2 + len(lsns)))
    client("ALTER CONSUMER GROUP g ON s RELEASE PARTITION 0 AT 1")
    assert read() == [1, *range(lsns[-1] + 1, lsns[-1] + 16)]
    more = [len(read()) for _ in range(3)]
    assert more[0] == 64 and max(more) < 100
    feed.close()
    client.close()
    database.close()


def test_it_works_beside_a_server(con: ducktail.Connection) -> None:
    import psycopg

    server = con.serve(port=0)
    program = Program(con.streams.open("s"), "c")
    address = f"host={server.host} port={server.port} user=u dbname=memory"
    with psycopg.connect(address, autocommit=True) as wire:
        for number in range(20):
            wire.execute("INSERT INTO t VALUES (%s, 'w')", (number,))
    until(lambda: len(program.lsns) == 20)
    program.stream.stop()
    program.ended()


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"buffer_size": -1},
        {"buffer_bytes": True},
        {"checkpoint_every": 0},
        {"batch_size": 10_000_000},
    ],
)
def test_bad_bounds(con: ducktail.Connection, arguments: dict[str, int]) -> None:
    with pytest.raises(ducktail.DataError) as error:
        con.streams.open("s").follow("c", **arguments)  # type: ignore[arg-type]
    assert error.value.sqlstate == "22023"


@pytest.mark.parametrize(("name", "sqlstate"), [("nothing", "42704"), ("s s", "42601"), ("", "42601")])
def test_bad_names(con: ducktail.Connection, name: str, sqlstate: str) -> None:
    with pytest.raises(ducktail.ProgrammingError) as error:
        con.streams.open(name)
    assert error.value.sqlstate == sqlstate


@pytest.mark.slow  # A process of its own, as the next one.
def test_the_example_counts_once(tmp_path: Path) -> None:
    program = Path(__file__).resolve().parents[2] / "docs" / "examples" / "following" / "totals.py"
    path, target = tmp_path / "shop.duckdb", tmp_path / "totals.json"
    for life in range(2):
        with ducktail.connect(path) as con:
            con.execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, customer TEXT, amount INT)")
            con.execute("CREATE STREAM IF NOT EXISTS orders_stream ON orders")
            con.execute(f"INSERT INTO orders SELECT {life} * 250 + i, 'c' || i % 3, 1 FROM range(250) r(i)")
        child = subprocess.Popen(
            [sys.executable, str(program), str(path), str(target)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        while f"LSN {250 + 250 * life}" not in child.stdout.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT if life else signal.SIGKILL)
        child.stdout.close()
        assert child.wait(PATIENCE_S) == (0 if life else -signal.SIGKILL)
    assert json.loads(target.read_text())["totals"] == {"c0": 168, "c1": 166, "c2": 166}


def test_arrow_of_no_events() -> None:
    from ducktail.engine.log.events import arrow_of

    assert isinstance(arrow_of([]), pa.RecordBatch)


def test_a_stop_before_the_first_batch_is_one(con: ducktail.Connection) -> None:
    put(con, 0, 10)
    stream = con.streams.open("s")
    follow = stream.follow("c")
    stream.stop()
    assert list(follow) == [] and con.streams.count == 0
    assert len(next(stream.follow("c"))) == 10


@pytest.mark.parametrize("paused", [True, False])
def test_a_stop_behind_an_error_that_the_reader_has_met_is_the_end(
    con: ducktail.Connection, paused: bool
) -> None:
    put(con, 0, 500)
    stream = con.streams.open("s")
    follow = stream.follow("c", batch_size=10)
    next(follow)
    con.execute("DROP STREAM s")
    follower = stream._follower
    assert follower is not None
    until(lambda: follower._error is not None)
    if paused:
        stream.pause()
    stream.stop()
    assert list(follow) == []


@pytest.mark.parametrize("group", [None, "g"])
def test_what_was_dropped_does_not_keep_a_connection_from_closing(
    con: ducktail.Connection, group: str | None
) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    put(con, 0, 20)
    follow = con.streams.open("s").follow("c", group, batch_size=10)
    next(follow), next(follow)
    con.execute("DROP STREAM s CASCADE")
    con.close()
    with pytest.raises(ducktail.Error):
        next(follow)


class Full:
    """A feed whose checkpoints cannot be stored."""

    ahead = False

    def __init__(self) -> None:
        self.position = {0: 0}
        self.closed = False

    def read(self, count: int, bytes_max: int) -> Waiting[list[Event]]:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return [Event(1, 0, "insert", "t", None, None, "{}", at, 1, 1, True, 1, None)]
        yield

    def advance(self, position: Mapping[int, int], events: Sequence[Event]) -> dict[int, int]:
        return {0: events[-1].lsn}

    def commit(self, position: Mapping[int, int], event_count: int, watermark_us: int) -> bool:
        raise IoError("the disk is full")

    def cancel(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self.closed = True


def test_what_cannot_be_stored_keeps_nothing_open(tmp_path: Path) -> None:
    con = ducktail.connect(tmp_path / "d.duckdb")
    shared = con._shared
    feeds = [Full(), Full()]
    follows = []
    for number, feed in enumerate(feeds):
        follower = Follower("s", feed, Bounds(), 0)
        follows.append(follower.batches())
        follower._is_done(DoneEvents(1, next(follows[-1]).position, 1, 1))
        shared.following.enter((number, 0, "c"), "s")
        shared.following.began((number, 0, "c"), follower)
    with pytest.raises(ducktail.OperationalError):
        con.close()
    assert all(feed.closed for feed in feeds) and shared.database._closed
    ducktail.connect(tmp_path / "d.duckdb").close()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_name_that_another_stream_has_got_is_not_read(con: ducktail.Connection, group: str | None) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    program = Program(con.streams.open("s"), "c", group=group)
    until(lambda: program.stream.active)
    for number in range(5):
        con.execute(f"ALTER STREAM {'s' if number == 0 else f's{number}'} RENAME TO s{number + 1}")
        con.execute(f"CREATE TABLE o{number} (id INT PRIMARY KEY)")
        con.execute(f"CREATE STREAM {'s' if number == 0 else f's{number}'} ON o{number}")
        con.execute(f"INSERT INTO o{number} VALUES (1)")
        put(con, number, number + 1)
        until(lambda number=number: len(program.lsns) > number)  # type: ignore[misc]
    program.stream.stop()
    program.ended()
    assert program.error is None and len(program.lsns) == 5


BAD_POSITIONS = [{0: 1.5}, {0: True}, {"0": 1}, -1, {0: -1}, 1.5, "5", b"5", 2**64, {0: 2**64}, {4: 1}, {}]


@pytest.mark.parametrize("position", BAD_POSITIONS, ids=repr)
def test_bad_positions(con: ducktail.Connection, position: Any) -> None:
    put(con, 0, 10)
    if isinstance(position, dict) and position and 4 not in position:
        position = dict.fromkeys(range(1, 4), 1) | position
    with pytest.raises(ducktail.DataError) as found:
        con.streams.set_checkpoint("s", "c", position)
    assert found.value.sqlstate == "22023"
    with pytest.raises(ducktail.DataError) as found:
        next(con.streams.open("s").follow("c", after=position))
    assert found.value.sqlstate == "22023"
    assert con.streams.get_checkpoint("s", "c") is None


@pytest.mark.parametrize(
    "name", [None, 5, b"x", "", "a\0b", "\ud800", "n" * 1001], ids=lambda name: repr(name)[:9]
)
@pytest.mark.parametrize("group", [None, "g"])
def test_names_of_consumers_are_texts(con: ducktail.Connection, name: Any, group: str | None) -> None:
    con.execute("CREATE CONSUMER GROUP g ON s")
    put(con, 0, 10)
    with pytest.raises(ducktail.Error) as found:
        next(con.streams.open("s").follow(name, group))
    assert found.value.sqlstate in ("22023", "54000")


@pytest.mark.parametrize("name", [None, 5])
def test_names_of_streams_are_texts(con: ducktail.Connection, name: Any) -> None:
    with pytest.raises(ducktail.DataError):
        con.streams.open(name)


FORK = """
import gc, os, sys
import ducktail
con = ducktail.connect(sys.argv[1])
con.execute("CREATE TABLE o (id INT PRIMARY KEY)")
con.execute("CREATE STREAM s ON o")
con.execute("INSERT INTO o SELECT range FROM range(500)")
follow = con.streams.open("s").follow("c")
next(follow), next(follow)
child = os.fork()
if not child:
    try:
        next(follow)
    except ducktail.OperationalError as error:
        assert error.sqlstate == "55000", error
    con.close()
    del follow, con
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert next(follow).first_lsn == 201
follow.close()
assert con.streams.get_checkpoint("s", "c").event_count == 200
con.close()
assert ducktail.connect(sys.argv[1]).streams.get_checkpoint("s", "c").event_count == 200
"""


@pytest.mark.slow
def test_a_process_that_is_forked_off_leaves_the_database_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path / "d.duckdb")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
