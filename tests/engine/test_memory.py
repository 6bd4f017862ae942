"""Bounds of memory: all buffers together, DuckDB's own, and what it may spill beside the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_client import Client, raises

from ducktail.engine.buffers.buffer import Addition, StreamBuffer
from ducktail.engine.buffers.buffers import hold
from ducktail.engine.database import Database
from ducktail.engine.errors import InvalidParameterValue
from ducktail.engine.settings import Settings

# Eight seconds in all: left out of `make quick`.
pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Opens a database with settings; all of them end with the test."""
    clients: list[Client] = []

    def open_(name: str = "t", **settings: int) -> Client:
        clients.append(Client(Database.open(str(tmp_path / f"{name}.duckdb"), Settings(**settings))))
        return clients[-1]

    yield open_
    for client in clients:
        client.close()
        client.session.database.close()


def filled(lsns: range, size: int) -> StreamBuffer:
    """Buffers with these events, each of so many bytes."""
    buffer = StreamBuffer(1, 1 << 30)
    rows = [bytes(size) for _ in lsns]
    added = Addition(list(lsns), rows, len(rows), lsns[0], lsns[-1])
    buffer.append({0: added}, 0, size * len(rows))
    return buffer


def kept(buffer: StreamBuffer) -> list[int]:
    hot = buffer.read({0: buffer.partitions[0].unbuffered_through_lsn}, 1 << 60, 1 << 30)
    assert hot is not None
    return hot.lsns


def test_the_oldest_events_of_all_leave_first() -> None:
    old, new, empty = filled(range(1, 1001), 895), filled(range(1001, 2001), 895), StreamBuffer(1, MIB)
    hold([new, old, empty], 1_500_000)
    assert kept(new) == list(range(1001, 2001))
    left = kept(old)
    assert left == list(range(1001 - len(left), 1001)) and 450 <= len(left) <= 500
    assert old.bytes == 1000 * len(left)
    hold([new, old, empty], 500_000)
    assert kept(old) == []
    assert 450 <= len(kept(new)) <= 500 and kept(new)[-1] == 2000


def test_streams_of_one_table_share_what_there_is() -> None:
    odd, even = filled(range(1, 4000, 2), 895), filled(range(2, 4001, 2), 895)
    hold([odd, even], 2_000_000)
    assert odd.bytes + even.bytes <= 2_000_000
    assert abs(len(kept(odd)) - len(kept(even))) <= 64


def test_many_streams_stay_within_the_total_and_lose_nothing(opened: Callable[..., Client]) -> None:
    client = opened(buffer_bytes_total=MIB)
    database = client.session.database
    for number in range(6):
        client(f"create table t{number} (id int primary key, a varchar)")
        client(f"create stream s{number} on t{number} with (partitions = 1, buffer_bytes = '1 MiB')")
    for number in range(6):
        client(f"insert into t{number} select i, repeat('x', 400) from range(1000) r(i)")
    for number in range(6):
        assert client.one(f"select count(*) from stream s{number}") == 1000
        assert len(client(f"select * from stream s{number}")) == 1000
    assert sum(buffer.bytes for buffer in database.buffers) <= MIB
    streams = sorted(database.catalog.streams.values(), key=lambda stream: stream.stream_id)
    first, *_, last = (database.buffers.of(stream) for stream in streams)
    assert first.bytes == 0 and first.log_reads > 0
    assert last.bytes > 500_000
    assert json.loads(client("select after from stream s0 limit 1")[0][0])["id"] == 0


def test_opening_fills_no_more_than_the_total(opened: Callable[..., Client]) -> None:
    client = opened()
    for number in range(8):
        client(f"create table t{number} (id int primary key, a varchar)")
        client(f"create stream s{number} on t{number}")
        client(f"insert into t{number} select i, repeat('x', 400) from range(2000) r(i)")
    assert client.one("select count(*) from stream s7") == 2000
    client.close()
    client.session.database.close()
    again = opened(buffer_bytes_total=MIB)
    buffers = again.session.database.buffers
    assert 0 < sum(buffer.bytes for buffer in buffers) <= MIB
    assert all(len(again(f"select * from stream s{number}")) == 2000 for number in range(8))


def test_a_stream_larger_than_the_total_is_bounded_by_it(opened: Callable[..., Client]) -> None:
    client = opened(buffer_bytes_total=MIB)
    client("create table t (id int primary key, a varchar)")
    client("create stream s on t with (buffer_bytes = '64 MiB')")
    client("insert into t select i, repeat('x', 400) from range(10_000) r(i)")
    # The buffer is filled before the next events are readable.
    client("insert into t values (10_001, 'x')")
    assert client.one("select count(*) from stream s") == 10_001
    [buffer] = client.session.database.buffers
    assert 0 < buffer.bytes <= MIB


def test_duckdb_gets_what_the_settings_say(opened: Callable[..., Client], tmp_path: Path) -> None:
    client = opened(memory_limit_bytes=128 * MIB, temp_bytes_max=MIB)
    shown = client(
        "select current_setting('memory_limit'), current_setting('temp_directory'), "
        "current_setting('max_temp_directory_size')"
    )
    assert shown == [("128.0 MiB", str(tmp_path / "t.duckdb.tmp"), "1.0 MiB")]
    with raises("42501"):
        client("set memory_limit = '1 GB'")
    whole = opened("whole", buffer_bytes_total=MIB).one(
        "select parse_formatted_bytes(current_setting('memory_limit'))"
    )
    less = opened("less", buffer_bytes_total=512 * MIB).one(
        "select parse_formatted_bytes(current_setting('memory_limit'))"
    )
    assert less < whole
    assert less >= whole // 2


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterValue, match="memory_limit_bytes"):
        Database.open(str(tmp_path / "t.duckdb"), Settings(memory_limit_bytes=MIB))


SORTED = "select count(*) from (select * from range(3_000_000) r(i) order by md5(i::varchar) limit 2_900_000)"


def test_what_exceeds_memory_is_spilled_beside_the_file(opened: Callable[..., Client]) -> None:
    assert opened(memory_limit_bytes=100 * MIB).one(SORTED) == 2_900_000
    with raises("53200"):
        opened("dry", memory_limit_bytes=100 * MIB, temp_bytes_max=0)(SORTED)


@pytest.mark.parametrize(
    "write",
    [
        "insert into t select i, md5(i::varchar) from range(3_000_000) r(i) order by 2",
        "update t set a = x.a from (select i, md5(i::varchar) a from range(3_000_000) r(i) order by 2) x "
        "where t.id = x.i",
    ],
)
def test_out_of_memory_leaves_nothing_and_the_engine_goes_on(
    opened: Callable[..., Client], write: str
) -> None:
    client = opened(memory_limit_bytes=64 * MIB, temp_bytes_max=0)
    client("create table t (id bigint primary key, a varchar)")
    client("create stream s on t with (partitions = 1)")
    client("insert into t values (-1, 'x')")
    with raises("53200"):
        client(write)
    client("begin")
    client("insert into t values (-2, 'y')")
    with raises("53200"):
        client(write)
    client("rollback")
    client("update t set a = 'z'")
    assert client("select * from t") == [(-1, "z")]
    events = client("select lsn, op, after from stream s")
    assert events == [(1, "insert", '{"id":-1,"a":"x"}'), (2, "update", '{"id":-1,"a":"z"}')]
