"""WHERE on the commit time leaves out what it would reject, in both envelopes and in any zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from local_client import Client

from ducktail.engine.clock import SystemClock
from ducktail.engine.database import Database
from ducktail.sql.language.statements import Parameter
from ducktail.sql.read_shape.pruning import Fact
from ducktail.sql.reading.read_requests import Pruning, in_lsns, within_times

START_US = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC


class Ticking(SystemClock):
    """Each commit is a second after the last."""

    def __init__(self) -> None:
        self.us = START_US

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def client() -> Iterator[Client]:
    """A stream `s` of five events, committed a second apart."""
    clock = Ticking()
    database = Database.open(":memory:", clock=clock)
    client = Client(database)
    client("create table t (id integer primary key)")
    client("create stream s on t with (partitions = 1)")
    for number in range(5):
        clock.us = START_US + number * 1_000_000
        client(f"insert into t values ({number})")
    yield client
    client.close()
    database.close()


THIRD = "2023-11-14 22:13:22+00"
CASES: list[tuple[str, object, tuple[int, int | None], list[int]]] = [
    (">=", THIRD, (3, None), [3, 4, 5]),
    (">", THIRD, (3, None), [4, 5]),
    ("<=", THIRD, (0, 3), [1, 2, 3]),
    ("<", THIRD, (0, 3), [1, 2]),
    ("=", THIRD, (3, 3), [3]),
    (">=", "2000-01-01", (1, None), [1, 2, 3, 4, 5]),
    ("<", "2000-01-01", (0, 0), []),
    (">", "infinity", (0, None), []),
    ("<", "infinity", (0, None), [1, 2, 3, 4, 5]),
]


@pytest.mark.parametrize(("compares", "value", "bounds", "lsns"), CASES)
def test_times_are_bounds_of_lsns(
    client: Client, compares: str, value: object, bounds: tuple[int, int | None], lsns: list[int]
) -> None:
    fact = Fact("commit_time", compares, (str(value),))
    found = in_lsns(client.session, within_times(client.session, [fact], Pruning(), ()))
    assert (found.from_lsn, found.to_lsn) == bounds
    for scan, lsn, time in (("s", "lsn", "commit_time"), ("s envelope changes", "_lsn", "_commit_timestamp")):
        rows = client(f"select {lsn} from stream {scan} where {time} {compares} '{value}'")
        assert [row[0] for row in rows] == lsns


def test_a_parameter_is_a_bound(client: Client) -> None:
    fact = Fact("commit_time", ">=", (Parameter(1),))
    moment = datetime(2023, 11, 14, 22, 13, 22, tzinfo=UTC)
    for value in (moment, THIRD):
        found = within_times(client.session, [fact], Pruning(), (value,))
        assert in_lsns(client.session, found).from_lsn == 3
    for value in (None, "no time", 5):
        assert within_times(client.session, [fact], Pruning(), (value,)) == Pruning()
    assert client("select _lsn from stream s envelope changes where _commit_timestamp > $1", moment) == [
        (4,),
        (5,),
    ]


def test_a_time_without_a_zone_is_of_the_sessions(client: Client) -> None:
    client("set timezone = 'Asia/Kathmandu'")
    fact = Fact("commit_time", ">=", ("2023-11-15 03:58:22",))
    found = within_times(client.session, [fact], Pruning(), ())
    assert in_lsns(client.session, found).from_lsn == 3
    text = "select lsn from stream s where commit_time >= '2023-11-15 03:58:22'"
    assert client(text) == [(3,), (4,), (5,)]
