"""The publisher's rounds: what gathers, and what ends the wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import duckdb
import pytest
from local_client import Client

from ducktail.engine.buffers import publisher as module
from ducktail.engine.buffers.buffers import Buffers
from ducktail.engine.buffers.publisher import LINGER_LSNS, Note, Publisher
from ducktail.engine.catalog.streams import Stream
from ducktail.engine.database import Database

# Longer than any test may take: what comes sooner came for another reason.
FOREVER_S = 3600.0
SOON_S = 30.0


class Rounds:
    """A publisher that only writes down its rounds."""

    def __init__(self) -> None:
        self.txids: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self.awaited: set[int] = set()
        self.ready = False
        self.threads: set[str] = set()
        self.meanwhile: Callable[[], None] | None = None
        self.publisher = Publisher(
            self._publish, 0, self.awaited.__contains__, lambda note: self.ready, lambda: None
        )
        self.lsn = 0

    def _publish(self, notes: list[Note]) -> list[object]:
        self.threads.add(threading.current_thread().name)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.txids.append([note.txid for note in notes])
        self.begun.release()
        return []

    def commit_elsewhere(self, txid: int) -> None:
        """Commit on another thread than the main one."""
        thread = threading.Thread(target=self.commit, args=(txid,), name="worker")
        thread.start()
        thread.join(SOON_S)

    def commit(self, txid: int, events: int = 1) -> None:
        first, self.lsn = self.lsn + 1, self.lsn + events
        self.publisher.put(Note(txid, first, self.lsn, 0, {1: (first, self.lsn)}))


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    monkeypatch.setattr(module, "LINGER_S", FOREVER_S)
    made = Rounds()
    yield made
    made.publisher.close()


def test_small_commits_gather_until_a_reader_waits(rounds: Rounds) -> None:
    for txid in (1, 2, 3):
        rounds.commit(txid)
    future = rounds.publisher.wait_for(2)
    assert future is not None
    future.result(SOON_S)
    assert rounds.txids == [[1, 2, 3]]
    assert rounds.publisher.wait_for(3) is None


def test_a_commit_is_published_at_once_for_a_reader_who_waits_already(rounds: Rounds) -> None:
    future = rounds.publisher.wait_for(1)
    assert future is not None and not future.done()
    rounds.commit(1)
    future.result(SOON_S)
    assert rounds.txids == [[1]]


def test_many_events_do_not_wait_for_a_reader(rounds: Rounds) -> None:
    rounds.commit(1, LINGER_LSNS - 1)
    rounds.commit(2)
    assert rounds.begun.acquire(timeout=SOON_S)
    assert rounds.txids == [[1, 2]]


def test_closing_publishes_what_has_gathered(rounds: Rounds) -> None:
    rounds.commit(1)
    rounds.publisher.close()
    assert rounds.txids == [[1]]


def test_without_a_reader_a_round_comes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.001)
    made = Rounds()
    made.commit(1)
    assert made.begun.acquire(timeout=SOON_S)
    made.publisher.close()
    assert made.txids == [[1]]


def test_what_is_not_readable_yet_is_told_with_the_round_under_way(rounds: Rounds) -> None:
    assert rounds.publisher.unpublished() == []
    rounds.commit(1, events=2)
    rounds.commit(2)
    assert [note.txid for note in rounds.publisher.unpublished()] == [1, 2]
    future = rounds.publisher.wait_for(3)
    assert future is not None
    future.result(SOON_S)
    assert rounds.publisher.unpublished() == []


def test_a_commit_that_is_ready_is_published_by_its_own_thread(rounds: Rounds) -> None:
    rounds.ready = True
    rounds.commit_elsewhere(1)
    assert rounds.txids == [[1]] and rounds.threads == {"worker"}
    assert rounds.publisher.wait_for(1) is None and rounds.publisher.is_idle
    assert rounds.publisher.unpublished() == []


def test_a_commit_that_is_ready_stays_behind_those_before_it(rounds: Rounds) -> None:
    rounds.commit(1)
    rounds.ready = True
    rounds.commit_elsewhere(2)
    assert not rounds.publisher.is_idle and rounds.txids == []
    future = rounds.publisher.wait_for(2)
    assert future is not None
    future.result(SOON_S)
    assert rounds.txids == [[1, 2]] and rounds.threads == {"ducktail-publisher"}


def test_the_main_thread_may_be_interrupted_and_publishes_nothing(rounds: Rounds) -> None:
    rounds.ready = True
    rounds.commit(1)
    future = rounds.publisher.wait_for(1)
    if future is not None:
        future.result(SOON_S)
    assert rounds.threads == {"ducktail-publisher"}


def test_commits_wait_for_the_end_of_one_that_is_ready(rounds: Rounds) -> None:
    """The publisher's thread takes none before."""
    rounds.ready = True

    def other() -> None:
        rounds.ready = False
        rounds.commit(2)
        assert rounds.publisher.wait_for(2) is not None

    rounds.meanwhile = other
    rounds.commit_elsewhere(1)
    assert rounds.begun.acquire(timeout=SOON_S) and rounds.begun.acquire(timeout=SOON_S)
    assert rounds.txids == [[1], [2]]


def test_a_stream_that_is_dropped_before_its_buffers_are_filled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A large round is readable before its events are in the buffers; its log may be gone by then."""
    fill, dropped, filled = Buffers._fill, threading.Event(), []

    def later(buffers: Buffers, stream: Stream, work: Callable[[], None]) -> None:
        assert dropped.wait(SOON_S)

        def noted() -> None:
            try:
                work()
            except duckdb.CatalogException:
                filled.append(stream.name)
                raise

        fill(buffers, stream, noted)

    monkeypatch.setattr(Buffers, "_fill", later)
    database = Database.open(":memory:")
    client = Client(database)
    client("create table t (id int primary key)")
    client("create stream s on t with (buffer_bytes = 65536)")
    client("insert into t select i from range(20000) r(i)")
    assert client("select count(*) from stream s") == [(20_000,)]
    client("drop stream s")
    dropped.set()
    client("create table u (id int primary key)")
    client("create stream v on u")
    client("insert into u values (1)")
    assert client("select count(*) from stream v") == [(1,)]
    client.close()
    database.close()
    assert filled == ["s"]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
