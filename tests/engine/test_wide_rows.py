"""Events of half a megabyte: what is made of them at once has a bound in bytes, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from local_client import Client

from ducktail.engine.buffers.buffer import READ_BYTES_MAX
from ducktail.engine.database import Database
from ducktail.engine.log.queries import event_query
from ducktail.engine.log.windows import WINDOW_BYTES_MAX, windows
from ducktail.engine.waiting import drive

SIZE = 400_000
ROWS = 100


@pytest.fixture
def client() -> Iterator[Client]:
    database = Database.open(":memory:")
    found = Client(database)
    found("create table t (id int primary key, v varchar)")
    found("create stream s on t with (buffer_bytes = '8 MiB', partitions = 2)")
    found(f"insert into t select i, repeat(chr((97 + i % 26)::int), {SIZE}) from range({ROWS}) r(i)")
    yield found
    found.close()
    database.close()


def batches(client: Client, text: str) -> list[tuple[list[int], int]]:
    """The LSNs of each batch of a plain read, and its bytes."""
    result = drive(client.session.execute(drive(client.session.parse(text))))
    found = []
    while (batch := result.fetch(None)) is not None:
        found.append((batch.lsns, batch.size))  # type: ignore[attr-defined]
    return found


def test_a_read_takes_bounded_bytes_at_once(client: Client) -> None:
    client("select count(*) from stream s")
    found = batches(client, "select * from stream s")
    assert [lsn for lsns, _ in found for lsn in lsns] == list(range(1, ROWS + 1))
    assert max(size for _, size in found) <= WINDOW_BYTES_MAX + 2 * SIZE
    assert client("select count(distinct after) from stream s")[0][0] == ROWS
    [buffer] = client.session.database.buffers
    assert buffer.bytes <= 8 << 20
    tail = buffer.oldest_lsn
    assert tail is not None and tail > 1, "the newest of a transaction that does not fit are buffered"
    found = batches(client, f"select * from stream s after {tail}")
    assert [lsn for lsns, _ in found for lsn in lsns] == list(range(tail + 1, ROWS + 1))
    assert len(found) > 1 and max(size for _, size in found) <= READ_BYTES_MAX + 2 * SIZE


def test_updates_are_not_parted(client: Client) -> None:
    client("update t set v = 'b' || v")
    rows = client("select _lsn, _change_type, strlen(v) from stream s envelope changes where _lsn > 100")
    shown = "select _lsn, _change_type, strlen(v) from s_changes where _lsn > 100"
    assert rows == client(f"{shown} order by _lsn, _change_type desc")
    assert len(rows) == 2 * ROWS


def test_windows_pass_over_what_no_row_has(client: Client) -> None:
    database = client.session.database
    [stream] = database.catalog.streams.values()
    with database.cursor() as cursor:
        events = event_query(database.catalog, stream)
        found = list(windows(cursor, events, 1, 1 << 40))
        assert len(found) >= 2 and found[0][0] == 1
        assert all(end < after for (_, end), (after, _) in pairwise(found))
        assert found[-1][1] >= ROWS and list(windows(cursor, events, ROWS + 1, 1 << 40)) == []
