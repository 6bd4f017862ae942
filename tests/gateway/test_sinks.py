"""Webhooks of a served database, against a receiver that is a process of its own."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from local_client import Client
from server_process import ServerProcess
from sink_streams import SinkStream
from standardwebhooks.webhooks import Webhook
from webhook_receiver import ReceiverProcess, until

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive
from ducktail.sql.sink_session import SinkSession

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_KEY = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OPTIONS = ("--port", "0", "--metrics-port", "0", "--allow-network", "127.0.0.0/8")
QUICK = "backoff = '10 ms', backoff_max = '50 ms'"


class Hook(SinkStream):
    """A stream with a sink, which is called hook, and its receiver."""

    def __init__(self, server: ServerProcess, receiver: ReceiverProcess, number: int) -> None:
        super().__init__(server, number)
        self.receiver = receiver

    def make(self, options: str, start: str = "") -> None:
        """The sink."""
        self.sql(
            f"create sink hook on {self.stream} {start} to webhook '{self.receiver.url}' with ({options})"
        )

    def parked(self) -> list[tuple[int, str]]:
        """The ids of the parked rows, and the reasons."""
        rows = self.sql(f"show parked on {self.stream} consumer group hook")
        return [(row[3]["id"], row[5]) for row in rows if row[2] == "parked"]

    def accepted(self) -> list[int]:
        """The ids of the accepted rows, in the order in which they arrived."""
        return [event["after"]["id"] for event in self.receiver.accepted()]

    def outcomes(self) -> list[str]:
        """The outcomes in ducktail.deliveries."""
        rows = self.sql(f"select outcome from ducktail.deliveries where stream_name = '{self.stream}'")
        return [outcome for (outcome,) in rows]


NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sinks") / "shop.duckdb", OPTIONS) as process:
        yield process


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    with ReceiverProcess(tmp_path / "received") as process:
        yield process


@pytest.fixture
def hook(server: ServerProcess, receiver: ReceiverProcess) -> Iterator[Hook]:
    made = Hook(server, receiver, next(NUMBERS))
    yield made
    made.drop()


def test_events_arrive_in_order_and_signed(hook: Hook) -> None:
    hook.make(f"secret = '{KEY} {OTHER_KEY}', batch = 10")
    hook.insert(1, 60)
    hook.sql(f"update {hook.table} set v = 'y' where id <= 30")
    hook.drained()
    requests = hook.receiver.received()
    for request in requests:
        for key in (KEY, OTHER_KEY):
            Webhook(key).verify(request.body, request.headers)
        assert len({event["partition"] for event in request.events}) == 1
        assert len(request.events) <= 10
    assert len({request.headers["webhook-id"] for request in requests}) == len(requests)
    events = hook.receiver.accepted()
    assert len(events) == 90
    for partition in range(3):
        lsns = [event["lsn"] for event in events if event["partition"] == partition]
        assert lsns == sorted(lsns)
    [update] = [e for e in events if e["op"] == "update" and e["key"] == {"id": 7}]
    assert update["before"] == {"id": 7, "v": "x"}
    assert update["after"] == {"id": 7, "v": "y"}
    assert hook.state("delivered_events") == 90


def test_a_wrong_key_is_noticed_by_the_receiver(hook: Hook) -> None:
    hook.make(f"secret = '{KEY}'")
    hook.insert(1, 1)
    hook.drained()
    [request] = hook.receiver.received()
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(OTHER_KEY).verify(request.body, request.headers)


def test_exactly_the_refused_events_are_parked(hook: Hook) -> None:
    hook.receiver.restart("picky")
    hook.make(f"batch = 20, {QUICK}")
    hook.sql(f"pause sink hook on {hook.stream}")
    hook.insert(1, 40)
    hook.insert(41, 42, "bad")
    hook.insert(43, 80)
    hook.insert(81, 81, "bad")
    hook.sql(f"resume sink hook on {hook.stream}")
    hook.drained()
    assert sorted(hook.parked()) == [(n, "HTTP 422: not this one") for n in (41, 42, 81)]
    assert sorted(hook.accepted()) == sorted({*range(1, 81)} - {41, 42})
    assert "narrowed" in hook.outcomes()
    assert hook.state("parked_events") == 3


def test_exhausted_attempts_park_and_released_events_are_delivered(hook: Hook) -> None:
    hook.receiver.restart("fails")
    hook.make(f"batch = 2, attempts = 2, {QUICK}")
    hook.insert(1, 3)
    hook.drained()
    assert sorted(hook.parked()) == [(n, "HTTP 500:".rstrip(":")) for n in (1, 2, 3)]
    hook.receiver.restart("ok")
    for partition in range(3):
        hook.sql(f"alter consumer group hook on {hook.stream} release partition {partition}")
    until(lambda: sorted(hook.accepted()) == [1, 2, 3])
    [(left,)] = until(lambda: _released(hook) == [(0,)] and _released(hook))
    assert left == 0


def _released(hook: Hook) -> list[tuple[int]]:
    return hook.sql(
        f"select released_events from ducktail.consumer_groups where stream_name = '{hook.stream}'"
    )


def test_a_pause_that_the_receiver_asks_for_is_kept(hook: Hook) -> None:
    hook.receiver.restart("429")
    hook.make(f"batch = 1, attempts = 2, {QUICK}")
    hook.insert(1, 1)
    hook.drained()
    assert [reason for _, reason in hook.parked()] == ["HTTP 429"]
    first, second = hook.sql(
        f"select epoch_ms(started_at) from ducktail.deliveries where stream_name = '{hook.stream}'"
    )
    assert second[0] - first[0] >= 1000


def test_a_redirect_is_not_followed(hook: Hook) -> None:
    hook.receiver.restart("302")
    hook.make(QUICK)
    hook.insert(1, 1)
    hook.drained()
    assert hook.parked() == [(1, "HTTP 302")]
    assert len(hook.receiver.received()) == 1


def test_a_receiver_that_does_not_answer_in_time(hook: Hook) -> None:
    hook.receiver.restart("hangs")
    hook.make(f"timeout = '100 ms', attempts = 2, {QUICK}")
    hook.insert(1, 1)
    hook.drained()
    assert hook.parked() == [(1, "no answer in 100 ms")]
    assert hook.outcomes() == ["retried", "parked"]


def test_a_partition_between_two_attempts_keeps_no_other_waiting(hook: Hook) -> None:
    hook.receiver.restart("picky503")
    hook.make("batch = 1, max_in_flight = 1, backoff = '1 hour', backoff_max = '1 hour'")
    hook.insert(1, 1, "bad")
    until(lambda: hook.outcomes() == ["retried"])
    hook.insert(2, 30)
    at_fault = hook.sql(f"select partition from stream {hook.stream} where (after->>'id')::int = 1")
    others = f"select count(*) from stream {hook.stream} where partition <> {at_fault[0][0]}"
    [(count,)] = hook.sql(others)
    assert count > 5
    until(lambda: len(hook.accepted()) == count)
    assert hook.state("lag_events") == 30 - count


def test_an_unreachable_receiver_parks_nothing(hook: Hook) -> None:
    hook.receiver.kill()
    hook.make(f"attempts = 1, {QUICK}")
    hook.insert(1, 5)
    fault = until(lambda: hook.state("fault"))
    assert fault.startswith("cannot connect")
    until(lambda: hook.outcomes().count("retried") > 5)
    assert hook.parked() == []
    hook.receiver.start("ok")
    hook.drained()
    assert sorted(hook.accepted()) == [1, 2, 3, 4, 5]
    assert hook.state("fault") is None


def test_a_sinks_group_has_no_delivery_counts(hook: Hook) -> None:
    """A pause would count, although the receiver has seen nothing."""
    hook.make(QUICK)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="that of a sink"):
        hook.sql(f"alter consumer group hook on {hook.stream} set (max_deliveries = 2)")
    hook.sql(f"alter consumer group hook on {hook.stream} set (max_deliveries = 'none', on_park = 'key')")
    hook.sql(f"create consumer group other on {hook.stream} with (max_deliveries = 2)")


def test_a_second_answer_is_not_that_of_the_next_request(hook: Hook) -> None:
    hook.receiver.restart("late")
    hook.make("batch = 1")
    hook.insert(1, 1)
    hook.drained()
    until(lambda: len(hook.receiver.received()) == 1)
    # The second answer arrives on the idle connection.
    hook.sql("select pg_sleep(0.3)")
    hook.insert(2, 2)
    hook.drained()
    assert hook.accepted() == [1, 2]
    assert hook.outcomes() == ["delivered", "delivered"]


def test_a_sink_that_stops(hook: Hook) -> None:
    hook.receiver.restart("picky")
    hook.make(f"on_failure = 'stop', {QUICK}")
    hook.insert(1, 1, "bad")
    until(lambda: hook.state("state") == "stopped")
    assert "HTTP 422: not this one" in hook.state("reason")
    assert hook.state("lag_events") == 1
    assert hook.parked() == []
    hook.receiver.restart("ok")
    hook.sql(f"resume sink hook on {hook.stream}")
    hook.drained()
    assert (hook.state("state"), hook.state("reason")) == ("running", None)
    assert hook.accepted() == [1]


def test_a_refused_schema_event_stops_the_sink(hook: Hook) -> None:
    hook.receiver.restart("fails")
    hook.make(f"attempts = 1, {QUICK}")
    hook.sql(f"alter table {hook.table} add column w int")
    until(lambda: hook.state("state") == "stopped")
    assert "schema event" in hook.state("reason")
    hook.receiver.restart("ok")
    hook.sql(f"resume sink hook on {hook.stream}")
    hook.drained()
    assert {event["op"] for event in hook.receiver.accepted()} == {"schema"}


def test_an_event_that_a_user_parks_is_sent_no_more(hook: Hook) -> None:
    hook.receiver.restart("fails")
    hook.make("attempts = 1000, backoff = '100 ms', backoff_max = '100 ms', batch = 10")
    hook.insert(1, 1)
    until(lambda: len(hook.receiver.received()) == 2)
    [event] = hook.receiver.received()[0].events
    place = f"partition {event['partition']} at {event['lsn']}"
    hook.sql(f"alter consumer group hook on {hook.stream} park {place} reason 'by hand'")
    hook.drained()
    assert hook.parked() == [(1, "by hand")]


def test_pause_resume_and_another_receiver(hook: Hook, tmp_path: Path) -> None:
    hook.make("batch = 1")
    hook.insert(1, 1)
    hook.drained()
    hook.sql(f"pause sink hook on {hook.stream}")
    until(lambda: not hook.sql(f"show members on {hook.stream} consumer group hook"))
    hook.insert(2, 2)
    assert hook.state("lag_events") == 1
    with ReceiverProcess(tmp_path / "other") as other:
        hook.sql(f"alter sink hook on {hook.stream} to webhook '{other.url}' set (batch = 5)")
        hook.sql(f"resume sink hook on {hook.stream}")
        hook.drained()
        assert [event["after"]["id"] for event in other.accepted()] == [2]
        assert isinstance(json.loads(other.received()[0].body), list)
    assert hook.accepted() == [1]


@pytest.mark.parametrize("backoff", ["10 ms", "1 hour"], ids=["another", "the same"])
def test_an_alteration_ends_the_wait_before_an_attempt(hook: Hook, backoff: str) -> None:
    hook.receiver.restart("fails")
    hook.make("backoff = '1 hour', backoff_max = '1 hour'")
    hook.insert(1, 1)
    until(lambda: hook.outcomes() == ["retried"])
    hook.receiver.restart("ok")
    hook.sql(f"alter sink hook on {hook.stream} set (backoff = '{backoff}')")
    hook.drained()
    assert hook.accepted() == [1]


def test_events_of_a_parked_key_stay_in_order(hook: Hook) -> None:
    hook.receiver.restart("picky")
    hook.make(f"on_park = 'key', batch = 10, {QUICK}")
    hook.insert(1, 2, "bad")
    for value in ("second", "third"):
        hook.sql(f"update {hook.table} set v = '{value}' where id = 1")
    hook.insert(3, 9)
    hook.drained()
    assert sorted(hook.accepted()) == [*range(3, 10)]
    assert sorted(number for number, _ in hook.parked()) == [1, 2]
    hook.receiver.restart("ok")
    for partition in range(3):
        hook.sql(f"alter consumer group hook on {hook.stream} release partition {partition}")
    until(lambda: hook.accepted().count(1) == 3)
    values = [e["after"]["v"] for e in hook.receiver.accepted() if e["after"]["id"] == 1]
    assert values == ["bad", "second", "third"]


def test_seek_delivers_again_under_the_same_ids(hook: Hook) -> None:
    hook.make("batch = 1")
    hook.insert(1, 6)
    hook.drained()
    first = {request.headers["webhook-id"] for request in hook.receiver.received()}
    hook.sql(f"alter consumer group hook on {hook.stream} seek to earliest")
    until(lambda: len(hook.accepted()) == 12)
    assert {request.headers["webhook-id"] for request in hook.receiver.received()} == first
    assert len(first) == 6


def test_start_latest_leaves_out_what_was_before(hook: Hook) -> None:
    hook.insert(1, 3)
    hook.make("batch = 1", "start latest")
    hook.insert(4, 4)
    hook.drained()
    assert hook.accepted() == [4]


def test_additional_headers_are_sent_and_not_shown(hook: Hook) -> None:
    hook.make("""headers = '{"Authorization": "Bearer t0ken", "X-Team": "billing"}'""")
    hook.insert(1, 1)
    hook.drained()
    [request] = hook.receiver.received()
    assert request.headers["authorization"] == "Bearer t0ken"
    assert request.headers["x-team"] == "billing"
    assert hook.state("options")["headers"] == ["Authorization", "X-Team"]
    assert "t0ken" not in str(hook.sql("show sinks"))


def test_a_dropped_sink_sends_nothing_more(hook: Hook) -> None:
    hook.make("batch = 1")
    hook.insert(1, 1)
    hook.drained()
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        hook.sql(f"drop consumer group hook on {hook.stream}")
    hook.sql(f"drop sink hook on {hook.stream}")
    assert hook.sql(f"show consumer groups on {hook.stream}") == []
    hook.insert(2, 2)
    # One of the same name has another number, and receives what it has not.
    hook.make("batch = 1", "start latest")
    hook.insert(3, 3)
    hook.drained()
    assert hook.accepted() == [1, 3]


def test_a_rolled_back_sink_never_sends(hook: Hook) -> None:
    hook.insert(1, 1)
    hook.sql("begin")
    hook.make("batch = 1")
    hook.sql("rollback")
    assert hook.sql(f"show sinks on {hook.stream}") == []
    hook.make("batch = 1", "start latest")
    hook.insert(2, 2)
    hook.drained()
    assert hook.accepted() == [2]


def test_metrics_of_a_sink(hook: Hook) -> None:
    hook.receiver.restart("picky")
    hook.make(f"batch = 1, {QUICK}")
    hook.insert(1, 2)
    hook.insert(3, 3, "bad")
    hook.drained()
    port = next(line for line in hook.server.lines if "metrics are served" in line).rpartition("port=")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{int(port)}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    mine = [line.rpartition(" ") for line in lines if f'stream="{hook.stream}"' in line and "_sink_" in line]
    found = {name.removeprefix("ducktail_sink_"): float(value) for name, _, value in mine}
    of_sink, stream = 'schema="main",sink="hook"', f'stream="{hook.stream}"'
    assert found[f"events_delivered_total{{{of_sink},{stream}}}"] == 2
    assert found[f"events_parked_total{{{of_sink},{stream}}}"] == 1
    assert found[f'requests_total{{outcome="parked",{of_sink},{stream}}}'] == 1
    assert found[f'state{{{of_sink},state="running",{stream}}}'] == 1


def test_states_outlive_the_server(tmp_path: Path, receiver: ReceiverProcess) -> None:
    with ServerProcess(tmp_path / "db", OPTIONS) as server:
        hook = Hook(server, receiver, 0)
        hook.receiver.restart("picky")
        hook.make("on_failure = 'stop'")
        hook.sql(f"create sink still on {hook.stream} to webhook '{receiver.url}'")
        hook.sql(f"pause sink still on {hook.stream}")
        hook.insert(1, 1, "bad")
        until(lambda: hook.sql("select 1 from ducktail.sinks where state = 'stopped'"))
        hook.connection.close()
        server.kill()
        server.start()
        hook.connection = server.connect()
        shown = "select sink_name, state, lag_events from ducktail.sinks order by 1"
        assert hook.sql(shown) == [("hook", "stopped", 1), ("still", "paused", 1)]
        receiver.restart("ok")
        hook.sql(f"resume sink hook on {hook.stream}")
        hook.sql(f"resume sink still on {hook.stream}")
        until(lambda: hook.accepted() == [1, 1])
        hook.connection.close()


def test_no_sink_delivers_where_there_may_be_none(tmp_path: Path, receiver: ReceiverProcess) -> None:
    with ServerProcess(tmp_path / "db", OPTIONS) as server:
        hook = Hook(server, receiver, 0)
        hook.make("batch = 1")
        hook.connection.close()
    with ServerProcess(tmp_path / "db", (*OPTIONS, "--sinks-max", "0")) as server:
        connection = server.connect()
        connection.execute("insert into t0 values (1, 'x')")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            connection.execute(f"create sink more on s0 to webhook '{receiver.url}'")
        assert connection.execute("select in_flight, lag_events from ducktail.sinks").fetchall() == [(0, 1)]
        connection.close()
    assert hook.receiver.received() == []


def test_only_released_events_lift_the_bound_of_a_reads_bytes(tmp_path: Path) -> None:
    database = Database.open(str(tmp_path / "shop.duckdb"))
    client = Client(database)
    client("create table t (id int primary key, v text)")
    client("create stream s on t with (partitions = 1)")
    client("create sink hook on s to webhook 'https://receiver.invalid/'")
    client("insert into t select i, repeat('x', 1000) from range(4000) r(i)")
    client("alter consumer group hook on s park partition 0 at 1")
    [sink] = database.catalog.sinks.values()
    session = SinkSession(database, sink)
    assert not session.releases
    assert len(drive(session.read(None, 3000, 100_000))) < 100
    client("alter consumer group hook on s release partition 0 at 1")
    assert session.releases
    assert len(drive(session.read(None, 3000, None))) == 3000
    session.close()
    client.close()
    database.close()
