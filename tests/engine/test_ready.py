"""Events that are made before COMMIT: byte for byte those of the log, and none of what is not committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from json_values import VALUES

from ducktail.engine.buffers import ready as module
from ducktail.engine.buffers.buffer import StreamBuffer
from ducktail.engine.buffers.publisher import Note
from ducktail.engine.buffers.publishing import refill
from ducktail.engine.buffers.ready import READY_EVENTS_MAX, READY_STREAMS_MAX, ReadyQueries
from ducktail.engine.catalog.streams import Stream
from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.groups import polls
from ducktail.engine.groups.polls import Poll
from ducktail.engine.log.queries import event_query
from ducktail.engine.waiting import drive
from ducktail.sql.session import Session

pytestmark = pytest.mark.slow

TYPES = [(value, type_) for value, type_, _ in VALUES if type_ not in ('"NULL"', "VARIANT")]
COLUMNS = ", ".join(f'"c {place}" {type_}' for place, (_, type_) in enumerate(TYPES))
LITERALS = ", ".join(f"CAST({value} AS {type_})" for value, type_ in TYPES)
ALL_TYPES = f'CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR, "Camel" INTEGER, {COLUMNS})'
SMALL = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


class Scene:
    """A database, a session, and what becomes of its commits."""

    def __init__(self) -> None:
        self.database = Database.open(":memory:")
        self.session = Session(self.database)
        self.notes: list[Note] = []
        self.light: list[bool] = []
        self.polls: list[Poll] = []
        put, publish = self.database.publisher.put, self.database.publisher._publish
        self.database.publisher.put = lambda note: (self.notes.append(note), put(note))[1]  # type: ignore
        # Not the main thread: what that commits is left to the publisher's.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="worker")

        def noted(notes: list[Note]) -> Any:
            self.light.append(threading.current_thread().name.startswith("worker"))
            return publish(notes)

        self.database.publisher._publish = noted

    def do(self, *texts: str) -> None:
        self._worker.submit(self.do_here, *texts).result()

    def do_here(self, *texts: str) -> None:
        for text in texts:
            self._rest()
            drive(self.session.execute(drive(self.session.parse(text))))

    def _rest(self) -> None:
        """Until the publisher has nothing to do: beside it a commit is left to its thread."""
        drive(self.database.commits.wait_readable())
        ends_s = time.monotonic() + 30
        while not self.database.publisher.is_idle:
            assert time.monotonic() < ends_s
            time.sleep(0.001)

    def wait_for(self, name: str = "s") -> Poll:
        """Somebody waits for the events of a stream."""
        stream = self.stream(name)
        poll = Poll(self.session.id, stream)
        self.database.polls.arm(poll, range(stream.partitions))
        self.polls.append(poll)
        return poll

    def stream(self, name: str) -> Stream:
        return next(s for s in self.database.catalog.streams.values() if s.name == name)

    def check(self) -> None:
        """What is buffered of each stream is what its log says."""
        drive(self.database.commits.wait_readable())
        cursor = self.database.cursor(utc=True)
        for stream in self.database.catalog.streams.values():
            hot = self.database.buffers.of(stream)
            assert hot.failure is None
            cold = StreamBuffer(stream.partitions, hot.bytes_max)
            query = event_query(self.database.catalog, stream)
            refill(cursor, query, cold, self.database.commits.last_lsn, hot.bytes_max)
            for mine, theirs in zip(hot.partitions, cold.partitions, strict=True):
                assert (mine.lsns, mine.rows) == (theirs.lsns, theirs.rows)
                assert (mine.events, mine.first_lsn, mine.last_lsn) == (
                    theirs.events,
                    theirs.first_lsn,
                    theirs.last_lsn,
                )
            assert hot._rows == cold._rows
            assert hot.retained_bytes.total == sum(map(len, hot._rows))
        cursor.close()

    def close(self) -> None:
        for poll in self.polls:
            self.database.polls.leave(poll)
        self._worker.shutdown()
        drive(self.session.close())
        self.database.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Who has waited once is taken to come back, however long a statement takes on a busy machine.
    monkeypatch.setattr(polls, "LATELY_S", 600.0)
    made = Scene()
    yield made
    made.close()


@pytest.mark.parametrize(
    "options",
    [
        "ON t",
        "ON t WITH (partitions = 1, before = 'none')",
        'ON t (v, "Camel", "c 12")',
        "ON t WITH (partitions = 4, partition_by = (v), before = 'key')",
        "ON t OPERATIONS UPDATE, DELETE",
    ],
)
def test_events_of_all_types_are_those_of_the_log(scene: Scene, options: str) -> None:
    scene.do(ALL_TYPES, f"CREATE STREAM s {options}", "SET timezone = 'America/Caracas'")
    scene.wait_for()
    scene.do(
        f"INSERT INTO t SELECT i, 'v' || i % 5, i, {LITERALS} FROM range(40) r(i)",
        "INSERT INTO t (id, v) VALUES (100, NULL), (101, 'tab' || chr(9) || '\"é')",
        "UPDATE t SET v = v || '!', \"Camel\" = id WHERE id < 7",
        "UPDATE t SET id = id + 1000 WHERE id IN (8, 9)",
        "DELETE FROM t WHERE id BETWEEN 10 AND 20",
        "INSERT INTO t (id, v) VALUES (1, 'x'), (200, 'y') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "BEGIN",
        "INSERT INTO t (id, v) VALUES (300, 'a')",
        "UPDATE t SET v = 'b' WHERE id = 300",
        "DELETE FROM t WHERE id = 300",
        "COMMIT",
        "SET ducktail.annotation = '{\"by\": \"it''s\"}'",
        "UPDATE t SET id = id + 1000 WHERE id = 30",
        "INSERT INTO t (id, v) VALUES (400, 'a')",
    )
    assert len(scene.notes) == 9 and all(note.ready for note in scene.notes)
    assert scene.light == [True] * 9
    scene.check()


@pytest.mark.slow
def test_small_rounds_of_the_publisher_are_made_in_the_same_way(scene: Scene) -> None:
    """Of one transaction, two and three; with a filter, whose text is the publisher's to work out."""
    scene.do(ALL_TYPES, "CREATE STREAM s ON t", "CREATE STREAM f ON t WHERE id % 3 = 0")
    first = f"INSERT INTO t SELECT i, 'v', i, {LITERALS} FROM range(@, @ + 9) r(i)"
    annotated = "SET ducktail.annotation = '{\"by\": 1}'"
    changes = [], ["UPDATE t SET id = id + 1"], [annotated, "DELETE FROM t"]
    for number, texts in enumerate(changes):
        scene.do(first.replace("@", f"{number * 100}"), *texts)
        scene.check()
    scene.do(annotated, "INSERT INTO t (id) VALUES (1)", "DELETE FROM t", "INSERT INTO t (id) VALUES (3)")
    scene.check()
    assert not any(note.ready for note in scene.notes) and not any(scene.light)


def test_all_streams_of_all_tables_at_once(scene: Scene) -> None:
    scene.do(
        SMALL,
        "CREATE TABLE u (a INTEGER, b DOUBLE)",
        "CREATE STREAM s ON t",
        "CREATE STREAM s2 ON t OPERATIONS DELETE WITH (partitions = 2)",
        "CREATE STREAM s3 ON u",
    )
    scene.wait_for()
    scene.do(
        "BEGIN",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO u VALUES (1, 'nan'), (2, 0.5)",
        "DELETE FROM t WHERE id = 1",
        "COMMIT",
    )
    assert [len(note.ready) for note in scene.notes] == [3] and scene.light == [True]
    scene.check()


def test_topics(scene: Scene) -> None:
    scene.do("CREATE TOPIC s WITH (partitions = 4)")
    scene.wait_for()
    scene.do(
        "PUBLISH TO s KEY 'k' VALUES ('{\"a\": 1.50}')",
        "PUBLISH TO s SELECT i::VARCHAR FROM range(5) r(i)",
        "SET ducktail.annotation = '{\"by\": 1}'",
        "PUBLISH TO s KEY 'k' VALUES ('2')",
    )
    assert [len(note.ready) for note in scene.notes] == [1, 1, 1] and all(scene.light)
    scene.check()


def test_what_is_left_to_the_publisher(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits, a filter, many events, large ones, many streams; and all of them are right."""
    scene.do(SMALL, "CREATE STREAM s ON t", "INSERT INTO t VALUES (1, 'a')")
    scene.check()
    scene.wait_for()
    scene.do(f"INSERT INTO t SELECT i, 'b' FROM range(2, {READY_EVENTS_MAX + 3}) r(i)")
    scene.check()
    scene.do("INSERT INTO t SELECT i, repeat('b', 20000) FROM range(300, 600) r(i)")
    scene.check()
    scene.do("INSERT INTO t SELECT i, repeat('x', 200000) FROM range(600, 700) r(i)")
    scene.check()
    scene.do("CREATE STREAM f ON t WHERE id > 2")
    noted = len(scene.notes)
    scene.do("DELETE FROM t WHERE id < 4")
    scene.check()
    scene.do("DROP STREAM f")
    for number in range(READY_STREAMS_MAX):
        scene.do(f"CREATE STREAM m{number} ON t")
    noted = len(scene.notes) - noted
    scene.do("DELETE FROM t WHERE id < 6")
    scene.check()
    assert not any(note.ready for note in scene.notes) and not any(scene.light) and noted >= 1


def test_other_writers_who_wait_are_not_kept_waiting(scene: Scene) -> None:
    scene.do(SMALL, "CREATE STREAM s ON t")
    scene.wait_for()
    scene.do("BEGIN", "INSERT INTO t VALUES (1, 'a')")
    other = scene.database.sessions.new_id()
    lock = scene.database.transactions.writer_lock
    granted = lock.acquire(other)
    assert granted is not None
    scene.do("COMMIT")
    granted.result(30)
    lock.release(other)
    assert not scene.notes[0].ready
    scene.check()


def test_nothing_of_a_transaction_that_does_not_commit(scene: Scene) -> None:
    scene.do(SMALL, "CREATE STREAM s ON t", "CREATE CONSUMER GROUP g ON s")
    poll = scene.wait_for()
    scene.do("BEGIN", "INSERT INTO t VALUES (1, 'gone')", "ROLLBACK")
    # A COMMIT that fails when its events have been made.
    made: list[object] = []
    commit = scene.database.transactions.ready.made

    def broken(*args: Any) -> Any:
        made.append(commit(*args))
        raise DucktailError("no room")

    scene.do("BEGIN", "INSERT INTO t VALUES (2, 'gone, too')")
    scene.database.transactions.ready = type("Broken", (), {"made": staticmethod(broken)})()  # type: ignore
    with pytest.raises(DucktailError, match="no room"):
        scene.do("COMMIT")
    assert made and made[0]
    assert not poll.future.done() and not scene.notes
    assert scene.database.publisher.unpublished() == []
    scene.check()


def test_a_stream_that_is_defined_otherwise_by_now_is_asked_anew(scene: Scene) -> None:
    scene.do(SMALL, "CREATE STREAM s ON t", "CREATE STREAM other ON t WITH (before = 'none')")
    scene.wait_for()
    publisher = scene.database.publisher
    put = publisher.put

    def swapped(note: Note) -> None:
        mine, others = note.ready.items()
        put(replace(note, ready={mine[0]: others[1]}))

    publisher.put = swapped  # type: ignore[method-assign]
    scene.do("INSERT INTO t VALUES (1, 'a')")
    scene.check()
    scene.do("UPDATE t SET v = 'b'")
    scene.check()
    assert scene.light == [False, False]


def test_few_statements_stay_prepared(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PREPARED_MAX", 2)
    scene.do(SMALL, "CREATE STREAM s ON t", "CREATE STREAM s2 ON t")
    scene.wait_for()
    for number in range(4):
        scene.do(f"INSERT INTO t VALUES ({number}, 'a')", f"DELETE FROM t WHERE id = {number}")
    prepared = scene.database.transactions.ready.queries._prepared.values()
    assert prepared and all(len(names) <= 2 for names in prepared)
    assert all(len(note.ready) == 2 for note in scene.notes)
    scene.check()


@pytest.mark.parametrize("call", range(1, 6))
def test_a_cancel_among_what_is_prepared_fails_one_commit_alone(
    monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Whichever call it comes to, before or after it has taken effect: later ones find what they name."""
    monkeypatch.setattr(module, "PREPARED_MAX", 2)
    for takes_effect in (False, True):
        with duckdb.connect() as connection:
            cursor, queries = _Cancelled(connection, call, takes_effect), ReadyQueries()
            for number in (1, 2, 3, 1, 3, 2, 1):
                with suppress(duckdb.InterruptException):
                    queries._prepare(cursor, f"p{number}", f"SELECT {number}")  # type: ignore[arg-type]
                    assert cursor.execute(f"EXECUTE p{number}").fetchall() == [(number,)]
            assert cursor.left < 0


class _Cancelled:
    """A cursor that is interrupted at one of its calls."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, call: int, takes_effect: bool) -> None:
        self.left, self._connection, self._takes_effect = call, connection, takes_effect

    def execute(self, text: str) -> duckdb.DuckDBPyConnection:
        if text.startswith("EXECUTE"):
            return self._connection.execute(text)
        self.left -= 1
        if self.left or self._takes_effect:
            self._connection.execute(text)
        if not self.left:
            raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")
        return self._connection


def test_who_waits_is_woken_by_the_commit_itself(scene: Scene) -> None:
    scene.do(SMALL, "CREATE STREAM s ON t")
    poll = scene.wait_for()
    scene.do("INSERT INTO t VALUES (1, 'a')")
    assert poll.future.done()
    # He processes what came: the next ones are made ready for him, too.
    scene.database.polls.leave(poll)
    scene.do("INSERT INTO t VALUES (2, 'b')")
    scene.do_here("INSERT INTO t VALUES (3, 'c')")
    scene.check()
    assert scene.light == [True, True, False] and scene.notes[2].ready
