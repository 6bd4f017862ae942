"""A clock that jumps: retention goes by elapsed time, commit times never go back, and an operator ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hands import DAY_US, HOUR_US, SECOND_US, Hands
from local_client import Client
from reopening import Reopening

from ducktail.engine.transactions.commit_times import reset_sql

YEAR_US = 365 * DAY_US


@pytest.fixture
def clock() -> Hands:
    """The test's clock."""
    return Hands()


@pytest.fixture
def reopen(tmp_path: Path, clock: Hands) -> Iterator[Callable[[], Client]]:
    """Opens the test's file (again); a session on it."""
    with Reopening(tmp_path / "kept.duckdb", clock) as again:
        yield again


@pytest.fixture
def client(reopen: Callable[[], Client]) -> Client:
    """A session on a database with a stream of table t that retains two hours."""
    client = reopen()
    client("create table t (id int primary key)")
    client("create stream s on t with (partitions = 1, retention = '2 hours')")
    client("create consumer group g on s")
    client("insert into t values (1)")
    return client


def jumped(client: Client, clock: Hands) -> None:
    """While event 2 is committed the clock is a year ahead."""
    clock.ahead_us = YEAR_US
    client("insert into t values (2)")
    clock.ahead_us = 0
    clock.us += SECOND_US


def retained(client: Client) -> list[int]:
    """The LSNs that are retained after a pass."""
    client.session.database.retention.look()
    return [lsn for (lsn,) in client("select lsn from stream s order by lsn")]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of the clock."""
    return [r.getMessage() for r in caplog.records if "clock" in r.getMessage()]


def test_events_of_a_jump_and_behind_it_go_by_elapsed_time(
    client: Client, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    jumped(client, clock)
    clock.us += HOUR_US
    client("insert into t values (3)")
    assert messages(caplog) == [
        "the machine's clock has jumped",
        "the machine's clock has jumped",
        "commit times are ahead of the machine's clock",
    ]
    assert client.one("select lag_seconds from ducktail.offsets") == HOUR_US // SECOND_US + 1
    assert retained(client) == [1, 2, 3]
    clock.us += HOUR_US
    assert retained(client) == [3]
    clock.us += HOUR_US - SECOND_US
    assert retained(client) == [3]
    clock.us += 2 * SECOND_US
    assert retained(client) == []


def test_a_jump_lets_nothing_go_before_it_is_believed(client: Client, clock: Hands) -> None:
    clock.ahead_us = YEAR_US
    assert retained(client) == [1]
    assert client.session.database.commits.times.glimpse_held_us() == YEAR_US
    assert client.one("select lag_seconds from ducktail.offsets") == 0
    clock.us += HOUR_US
    client("insert into t values (2)")
    assert retained(client) == [1, 2]
    clock.us += HOUR_US + 1
    assert retained(client) == [2]
    # A day behind the jump it is the time; event 2 has gone by then.
    clock.us += DAY_US
    assert retained(client) == []
    assert client.session.database.commits.times.glimpse_held_us() == 0


def test_a_clock_that_is_ahead_for_longer_and_comes_back(client: Client, clock: Hands) -> None:
    clock.ahead_us = YEAR_US
    client("insert into t values (2)")
    clock.us += HOUR_US
    client("insert into t values (3)")
    clock.ahead_us = 0
    # Of event 2 nothing is known but that it is older than event 3, with which it goes.
    clock.us += HOUR_US + 1
    assert retained(client) == [2, 3]
    clock.us += HOUR_US + 1
    assert retained(client) == []


def test_the_clock_catches_up(client: Client, clock: Hands) -> None:
    times = client.session.database.commits.times
    clock.ahead_us = HOUR_US
    client("insert into t values (2)")
    clock.ahead_us = 0
    assert times.glimpse_ahead_us() == HOUR_US
    for number in range(3, 7):
        clock.us += HOUR_US // 2
        client("insert into t values ($1)", number)
    assert times.glimpse_ahead_us() == 0
    at = "round((epoch_us(commit_time) - $1) / 3600000000, 3)"
    begun_us = clock.us - 2 * HOUR_US
    assert [hours for (hours,) in client(f"select {at} from stream s order by lsn", begun_us)] == [
        0, 1, 1.25, 1.5, 1.75, 2,
    ]  # fmt: skip


def test_a_restart_goes_on_with_elapsed_time(
    client: Client, clock: Hands, reopen: Callable[[], Client], caplog: pytest.LogCaptureFixture
) -> None:
    jumped(client, clock)
    caplog.clear()
    client = reopen()
    client("insert into t values (3)")
    assert messages(caplog) == ["commit times are ahead of the machine's clock"]
    clock.us += HOUR_US
    assert retained(client) == [1, 2, 3]
    clock.us += HOUR_US + SECOND_US
    assert retained(client) == []


def test_small_steps_are_no_news(client: Client, clock: Hands, caplog: pytest.LogCaptureFixture) -> None:
    for ahead_us in (SECOND_US, 0, 9 * SECOND_US, SECOND_US):
        clock.ahead_us = ahead_us
        client("insert into t select coalesce(max(id), 0) + 1 from t")
    times = [us for (us,) in client("select epoch_us(commit_time) from stream s order by lsn")]
    assert times == sorted(times)
    assert messages(caplog) == []


def test_reset_ends_it(client: Client, clock: Hands, reopen: Callable[[], Client]) -> None:
    jumped(client, clock)
    client("insert into t values (3)")
    clock.us += HOUR_US
    database = client.session.database
    with closing(database.cursor()) as cursor:
        counts = [cursor.execute(statement).fetchall()[0][0] for statement in reset_sql(clock.now_us())]
    assert counts[0] == 2
    client = reopen()
    times = client.session.database.commits.times
    assert times.glimpse_ahead_us() == 0
    since = "epoch_us(commit_time) - $1"
    assert client(f"select lsn, {since} from stream s order by lsn", clock.us) == [
        (1, -HOUR_US - SECOND_US), (2, 0), (3, 0),
    ]  # fmt: skip
    clock.us += 2 * HOUR_US + 1
    assert retained(client) == []
