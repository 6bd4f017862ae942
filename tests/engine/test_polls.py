"""Long polls: who is woken by what, and that none is left behind; wake-ups are counted, not timed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import (
    AdminShutdown,
    DucktailError,
    Gap,
    ProgramLimitExceeded,
    QueryCanceled,
    SerializationFailure,
    UndefinedObject,
)
from ducktail.engine.groups.polls import Poll
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import Wait, block_on, drive
from ducktail.sql.session import Session

pytestmark = pytest.mark.slow

# Waits that end for another reason than their time.
LONG = "WAIT '1 hour'"
SOON_S = 30.0


class Client:
    """A session whose statements run to their end, or are held where they wait."""

    def __init__(self, database: Database) -> None:
        self.session = Session(database)
        self._held: list[Held] = []

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement; its rows."""
        return rows_of(drive(self.session.execute(drive(self.session.parse(text)))))

    def held(self, text: str) -> Held:
        """Run a statement up to its first wait that is not over."""
        self._held.append(Held(self.session, text))
        return self._held[-1]

    def close(self) -> None:
        for held in self._held:
            held.work.close()
        drive(self.session.close())


class Held:
    """A statement that waits; driven by hand, as the gateway's event loop does."""

    def __init__(self, session: Session, text: str) -> None:
        self.work = session.execute(drive(session.parse(text)))
        self.result: Any = None
        self.wait: Wait | None = None
        self._send(None)
        while self.wait is not None and self.wait.timeout_s is None:
            self.go_on()  # The publisher's: it is short.

    def _send(self, answer: bool | None) -> None:
        try:
            self.wait = self.work.send(answer)  # type: ignore[arg-type]
        except StopIteration as stop:
            self.wait, self.result = None, stop.value

    @property
    def woken(self) -> bool:
        assert self.wait is not None
        return self.wait.future.done()

    def go_on(self, timeout_s: float = SOON_S) -> None:
        """Wait for what it waits for, and let it go on."""
        assert self.wait is not None
        self.wait.future.result(timeout_s)
        self._send(True)

    def pass_time(self, seconds: float) -> None:
        """Let it wait and look for so long, as its driver does."""
        end = time.monotonic() + seconds
        while self.wait is not None and time.monotonic() < end:
            left_s = max(0.0, end - time.monotonic())
            timeout_s = left_s if self.wait.timeout_s is None else self.wait.timeout_s
            done = block_on(Wait(self.wait.future, min(left_s, timeout_s)))
            if done or timeout_s <= left_s:
                self._send(done)

    def answer(self) -> list[tuple[Any, ...]]:
        """Its rows, once it has been woken."""
        while self.wait is not None:
            self.go_on()
        return rows_of(self.result)


def rows_of(result: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while (batch := result.fetch(None)) is not None:
        table = batch.record_batch()
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return found


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database.open(":memory:", Settings(long_polls_max=20))
    yield made
    made.close()


@pytest.fixture
def clients(database: Database) -> Iterator[Callable[[], Client]]:
    made: list[Client] = []

    def new() -> Client:
        made.append(Client(database))
        return made[-1]

    yield new
    for client in made:
        client.close()


@pytest.fixture
def writer(clients: Callable[[], Client]) -> Client:
    client = clients()
    for name in ("a", "b"):
        client.rows(f"CREATE TABLE {name} (i INTEGER PRIMARY KEY)")
        client.rows(f"CREATE STREAM s{name} ON {name} WITH (partitions = 4)")
        client.rows(f"CREATE CONSUMER GROUP g ON s{name}")
    return client


def published(database: Database) -> None:
    """All that is committed is readable, and who waits for it has been told."""
    drive(database.commits.wait_readable())
    # The publisher tells after it: a commit of another round comes when it has.
    done = threading.Event()
    while not done.is_set():
        with database.publisher._condition:
            if not database.publisher._notes:
                done.set()


def test_an_event_wakes_only_who_waits_for_it(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """Of 20 polls those of the other stream, and of other partitions, are never looked at."""
    of_b = [clients().held(f"SELECT lsn FROM STREAM sb {LONG}") for _ in range(8)]
    writer.rows("INSERT INTO a VALUES (1)")
    ((partition,),) = writer.rows("SELECT partition FROM STREAM sa")
    others = ", ".join(str(number) for number in range(4) if number != partition)
    of_others = [clients().held(f"SELECT lsn FROM STREAM sa PARTITION ({others}) {LONG}") for _ in range(8)]
    mine = [clients().held(f"SELECT lsn FROM STREAM sa PARTITION {partition} AFTER 1 {LONG}") for _ in "1234"]
    assert database.polls.count == 20 and database.polls.woken.value == 0
    writer.rows("DELETE FROM a")
    assert [held.answer() for held in mine] == [[(2,)]] * 4
    assert database.polls.woken.value == 4
    assert not any(held.woken for held in of_b + of_others)
    assert database.polls.count == 16
    writer.rows("INSERT INTO b VALUES (1)")
    assert [held.answer() for held in of_b] == [[(3,)]] * 8
    assert database.polls.woken.value == 12
    writer.rows("DROP STREAM sa CASCADE")
    for held in of_others:
        with pytest.raises(UndefinedObject):
            held.answer()
    assert (database.polls.count, database.polls._of_partition, database.polls._of_table) == (0, {}, {})


def test_for_n_is_woken_once(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    held = clients().held(f"SELECT count(*) FROM STREAM sa {LONG} FOR 10")
    for number in range(9):
        writer.rows(f"INSERT INTO a VALUES ({number})")
        published(database)
    assert not held.woken and database.polls.woken.value == 0
    writer.rows("INSERT INTO a VALUES (9), (10)")
    assert held.answer() == [(11,)]
    assert database.polls.woken.value == 1


def test_what_is_only_in_the_log_counts(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    writer.rows("INSERT INTO a SELECT i FROM range(100) r(i)")
    published(database)
    (stream,) = (s for s in database.catalog.streams.values() if s.name == "sa")
    buffer = database.buffers.of(stream)
    assert buffer.drop(1 << 30, None, 60)
    client = clients()
    assert client.rows(f"SELECT count(*) FROM STREAM sa AFTER 5 {LONG}") == [(95,)]
    assert client.rows(f"SELECT count(*) FROM STREAM sa AFTER 5 {LONG} FOR 95") == [(95,)]
    held = client.held(f"SELECT count(*) FROM STREAM sa AFTER 5 {LONG} FOR 97")
    writer.rows("INSERT INTO a VALUES (100)")
    published(database)
    assert not held.woken
    writer.rows("INSERT INTO a VALUES (101)")
    assert held.answer() == [(97,)]


def test_a_gap_is_told_at_once(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    client = clients()
    held = client.held(f"SELECT count(*) FROM STREAM sa CONSUMER GROUP g {LONG} FOR 100")
    writer.rows("INSERT INTO a VALUES (1), (2)")
    writer.rows("ALTER STREAM sa SET (retention_bytes = '1 B')")
    database.retention.look()
    writer.rows("INSERT INTO a SELECT i FROM range(100, 200) r(i)")
    with pytest.raises(Gap):
        held.answer()
    with pytest.raises(Gap):
        client.rows(f"SELECT count(*) FROM STREAM sa CONSUMER GROUP g {LONG}")
    assert database.polls.count == 0


def test_who_commits_first_leaves_the_other_waiting(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """Both are woken; to the second there is nothing new then, so it waits on."""
    text = f"SELECT lsn FROM STREAM sa CONSUMER GROUP g {LONG}"
    first, second = clients(), clients()
    one, other = first.held(text), second.held(text)
    writer.rows("INSERT INTO a VALUES (1)")
    assert one.answer() == [(1,)]
    first.rows("COMMIT OFFSETS ON sa CONSUMER GROUP g")
    other.go_on()
    assert other.wait is not None and not other.woken
    writer.rows("INSERT INTO a VALUES (2)")
    assert other.answer() == [(2,)]


def test_seek_wakes_the_group(clients: Callable[[], Client], writer: Client) -> None:
    writer.rows("INSERT INTO a VALUES (1)")
    writer.rows("SELECT * FROM STREAM sa CONSUMER GROUP g")
    writer.rows("COMMIT OFFSETS ON sa CONSUMER GROUP g")
    held = clients().held(f"SELECT lsn FROM STREAM sa CONSUMER GROUP g {LONG}")
    writer.rows("ALTER CONSUMER GROUP g ON sa SEEK TO EARLIEST")
    assert held.answer() == [(1,)]


def test_a_group_that_is_dropped(clients: Callable[[], Client], writer: Client) -> None:
    held = clients().held(f"SELECT lsn FROM STREAM sa CONSUMER GROUP g {LONG}")
    writer.rows("DROP CONSUMER GROUP g ON sa")
    with pytest.raises(UndefinedObject, match='consumer group "g" does not exist'):
        held.answer()


def test_a_member_whose_partitions_change_is_told(database: Database, writer: Client) -> None:
    (stream,) = (s for s in database.catalog.streams.values() if s.name == "sa")
    mine = Poll(1, stream, "m")
    others = [Poll(2, stream, "n"), Poll(3, stream, "m"), Poll(4, stream)]
    for poll, group_id in zip((mine, *others), (7, 7, 8, None), strict=True):
        database.polls.arm(poll, [0], group_id)
    database.polls.member_changed(7, "m")
    assert mine.future.done()
    assert not any(poll.future.done() for poll in others)
    for poll in (mine, *others):
        database.polls.leave(poll)
        database.polls.leave(poll)
    assert database.polls.count == 0
    assert database.polls._of_member == database.polls._of_stream == {}


def test_what_has_ended_a_poll_is_not_lost_on_one_that_was_woken(database: Database, writer: Client) -> None:
    (stream,) = (s for s in database.catalog.streams.values() if s.name == "sa")
    poll = Poll(1, stream)
    database.polls.arm(poll, [0])
    database.polls.look_again(stream.stream_id)
    database.polls.stream_dropped(stream)
    assert poll.ended is not None
    with pytest.raises(UndefinedObject, match='stream "sa" does not exist'):
        database.polls.arm(poll, [0])
    database.polls.leave(poll)


def test_the_reason_is_what_was_dropped(clients: Callable[[], Client], writer: Client) -> None:
    """And not that the member of what was dropped is none any more."""
    writer.rows("CREATE CONSUMER GROUP h ON sa")
    texts = [f"SELECT lsn FROM STREAM sa CONSUMER GROUP {name} MEMBER 'm' {LONG}" for name in "gh"]
    of_g, of_h = [clients().held(text) for text in texts]
    writer.rows("DROP CONSUMER GROUP g ON sa")
    with pytest.raises(UndefinedObject, match='consumer group "g" does not exist') as told:
        of_g.answer()
    assert told.value.detail == "It was dropped while the read waited."
    writer.rows("DROP STREAM sa CASCADE")
    with pytest.raises(UndefinedObject, match='stream "sa" does not exist') as told:
        of_h.answer()
    assert told.value.detail == "It was dropped while the read waited."


def test_a_time_to_come_is_waited_for(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """What is committed before it ends no wait: a loop would ask without end."""
    writer.rows("INSERT INTO a VALUES (0)")
    held = clients().held(f"SELECT lsn FROM STREAM sa {LONG} WHERE commit_time > '2999-01-01'")
    in_time = clients().held(f"SELECT lsn FROM STREAM sa {LONG} WHERE commit_time > '2001-01-01' AND lsn > 1")
    for number in (1, 2):
        writer.rows(f"INSERT INTO a VALUES ({number})")
        held.go_on()
        assert held.wait is not None and not held.woken
    assert in_time.answer() == [(2,), (3,)]


def test_members_that_wait(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    """A hand-over wakes both, and neither holds a partition while it waits."""

    def read(name: str, wait: str = LONG) -> str:
        return f"SELECT partition FROM STREAM sa CONSUMER GROUP g MEMBER '{name}' {wait}"

    first, second = clients(), clients()
    held = first.held(read("first"))
    joined = second.held(read("second"))
    # What was taken from the first it is told by an answer; it has the rest.
    assert held.answer() == []
    held = first.held(read("first"))
    owners = "SELECT member_name, len(partitions) FROM ducktail.members ORDER BY 1"
    assert writer.rows(owners) == [("first", 2), ("second", 2)]
    writer.rows("INSERT INTO a SELECT i FROM range(100) r(i)")
    assert {p for (p,) in held.answer()} | {p for (p,) in joined.answer()} == {0, 1, 2, 3}
    first.rows("COMMIT OFFSETS ON sa CONSUMER GROUP g MEMBER 'first'")
    # It gets what the other leaves behind, uncommitted, and that ends its wait.
    held = first.held(read("first"))
    second.rows("LEAVE CONSUMER GROUP g ON sa MEMBER 'second'")
    assert len({p for (p,) in held.answer()}) == 2


def test_a_stream_that_gets_another_name(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """Who waits goes on with the stream that it waits for, though another one has its name by then."""
    reads = [
        "SELECT lsn, op FROM STREAM sa {}",
        "SELECT lsn, 'insert' FROM STREAM sa CONSUMER GROUP g MEMBER 'm' {} WHERE op LIKE 'i%'",
        "SELECT _lsn, _change_type FROM STREAM sa ENVELOPE CHANGES {}",
    ]
    held = [clients().held(text.format(LONG)) for text in reads]
    twice = clients().held(f"SELECT count(*) FROM STREAM sa {LONG} FOR 2")
    writer.rows("ALTER STREAM sa RENAME TO sz")
    writer.rows("ALTER STREAM sb RENAME TO sa")
    writer.rows("INSERT INTO b VALUES (1)")
    published(database)
    for one in (*held, twice):
        one.pass_time(0.01)
        assert one.wait is not None
    writer.rows("INSERT INTO a VALUES (1)")
    assert [one.answer() for one in held] == [[(2, "insert")]] * 3
    writer.rows("COMMIT OFFSETS ON sz CONSUMER GROUP g MEMBER 'm'")
    assert writer.rows("SELECT committed_lsn FROM ducktail.offsets WHERE member IS NOT NULL LIMIT 1")
    writer.rows("ALTER STREAM sz RENAME TO sy")
    writer.rows("INSERT INTO a VALUES (2)")
    assert twice.answer() == [(2,)]
    # The next statement wants the new name, and finds what has the old one.
    assert clients().rows("SELECT lsn FROM STREAM sa WAIT '1 ms'") == [(1,)]
    of_dropped = clients().held(f"SELECT lsn FROM STREAM sy AFTER 3 {LONG}")
    writer.rows("ALTER STREAM sy RENAME TO sx")
    writer.rows("DROP STREAM sx CASCADE")
    with pytest.raises(UndefinedObject, match='stream "sx" does not exist'):
        of_dropped.answer()


def test_a_member_that_leaves_while_it_waits(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """Its reads end without rows, by whatever connection it leaves, and do not make it a member again."""
    read = f"SELECT lsn FROM STREAM sa CONSUMER GROUP g MEMBER 'm' {LONG}"
    insert = f"INSERT INTO b SELECT lsn FROM STREAM sa CONSUMER GROUP g MEMBER 'm' {LONG}"
    both = f"SELECT count(*) FROM STREAM sa CONSUMER GROUP g MEMBER 'm' {LONG} AS x, STREAM sb {LONG} AS y"
    members = "SELECT member_name FROM ducktail.members"
    held = [clients().held(text) for text in (read, insert, both)]
    assert writer.rows(members) == [("m",)]
    writer.rows("LEAVE CONSUMER GROUP g ON sa MEMBER 'm'")
    assert held[0].answer() == [] and writer.rows(members) == []
    assert held[1].answer() == [] and writer.rows(members) == []
    held[2].go_on()
    assert held[2].wait is not None and not held[2].woken
    writer.rows("INSERT INTO b VALUES (1)")
    assert held[2].answer() == [(0,)] and writer.rows(members) == []
    # What it did before it left is the only thing that ends: its next read joins.
    with pytest.raises(SerializationFailure, match="'m' is not a member"):
        writer.rows("COMMIT OFFSETS ON sa CONSUMER GROUP g MEMBER 'm'")
    again = clients().held(read)
    writer.rows("INSERT INTO a VALUES (1)")
    assert again.answer() == [(2,)] and writer.rows(members) == [("m",)]
    # In a transaction it leaves at COMMIT.
    writer.rows("COMMIT OFFSETS ON sa CONSUMER GROUP g MEMBER 'm'")
    again, client = clients().held(read), clients()
    client.rows("BEGIN")
    client.rows("LEAVE CONSUMER GROUP g ON sa MEMBER 'm'")
    assert again.wait is not None and not again.woken
    client.rows("COMMIT")
    assert again.answer() == [] and writer.rows(members) == []
    assert database.polls.count == 0


@pytest.mark.slow  # It waits for time-outs.
def test_a_member_that_waits_lives_and_sees_others_die(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    writer.rows("ALTER CONSUMER GROUP g ON sa SET (session_timeout = '1 s')")
    writer.rows("INSERT INTO a SELECT i FROM range(100) r(i)")
    read = "SELECT count(DISTINCT partition) FROM STREAM sa CONSUMER GROUP g MEMBER "
    dead, alive = clients(), clients()
    assert dead.rows(f"{read} 'dead'") == [(4,)]
    # Nobody else touches the group: the one who waits notices that the other has gone.
    assert alive.rows(f"{read} 'alive' {LONG}") == [(4,)]
    alive.rows("COMMIT OFFSETS ON sa CONSUMER GROUP g MEMBER 'alive'")
    assert alive.rows(f"{read} 'alive' WAIT '1.5 s'") == [(0,)]
    epochs = "SELECT member_name, epoch FROM ducktail.members"
    before = writer.rows(epochs)
    assert alive.rows(f"{read} 'alive' WAIT '1.5 s'") == [(0,)] and writer.rows(epochs) == before


@pytest.mark.slow  # It waits for time-outs.
def test_several_scans_wait_together(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """A member lives on also while another scan of its statement waits, whether its own scan waits or not;
    and each scan is told of its own."""
    for name in ("sa", "sb"):
        writer.rows(f"ALTER CONSUMER GROUP g ON {name} SET (session_timeout = '1 s')")
    writer.rows("INSERT INTO a SELECT i FROM range(100) r(i)")
    scans = [f"(SELECT count(*) FROM STREAM s{name} CONSUMER GROUP g MEMBER 'm' {LONG})" for name in "ab"]
    members = "SELECT stream_name, epoch, len(partitions) FROM ducktail.members ORDER BY 1"
    unwaiting = scans[0].replace(LONG, "")
    for query in (f"SELECT {scans[0]}, {scans[1]}", f"SELECT {scans[1]}, {unwaiting}"):
        held = clients().held(query)
        assert database.polls.count == 2
        before = writer.rows(members)
        assert [(name, count) for name, _, count in before] == [("sa", 4), ("sb", 4)]
        held.pass_time(1.2)
        assert writer.rows(members) == before
        writer.rows("INSERT INTO b SELECT coalesce(max(i), 0) + 1 FROM b")
        assert sorted(held.answer()[0]) == [1, 100]
        assert database.polls.count == 0
        writer.rows("COMMIT OFFSETS AT '{\"0\": 101}' ON sb CONSUMER GROUP g MEMBER 'm'")


def test_several_scans_end_together(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """Each has its own interval; one that has what it waits for is told all the same of its stream's end."""
    writer.rows("INSERT INTO a VALUES (1)")
    text = f"SELECT count(*) FROM STREAM sa WAIT '1 ms' FOR 9 AS x, STREAM sb {LONG} AS y"
    held = clients().held(text)
    held.pass_time(0.01)
    assert held.wait is not None
    writer.rows("INSERT INTO b VALUES (1)")
    assert held.answer() == [(1,)]
    held = clients().held(f"SELECT count(*) FROM STREAM sa {LONG} AS x, STREAM sb AFTER 2 {LONG} AS y")
    writer.rows("INSERT INTO a VALUES (2)")
    published(database)
    assert not held.woken
    writer.rows("DROP STREAM sa CASCADE")
    with pytest.raises(UndefinedObject, match='stream "sa" does not exist'):
        held.answer()
    assert database.polls.count == 0


def test_a_cancel_and_a_closed_driver_leave_nothing(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    client = clients()
    held = client.held(f"SELECT lsn FROM STREAM sa {LONG}")
    client.session.cancel()
    with pytest.raises(QueryCanceled):
        held.answer()
    assert database.polls.count == 0
    held = client.held(f"SELECT lsn FROM STREAM sa {LONG}")
    held.work.close()
    assert database.polls.count == 0
    assert client.rows("SELECT 1") == [(1,)]


def test_statement_timeout(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    client = clients()
    client.rows("SET statement_timeout = '50 ms'")
    with pytest.raises(QueryCanceled, match="statement timeout"):
        client.rows(f"SELECT lsn FROM STREAM sa {LONG}")
    assert database.polls.count == 0


def test_the_database_closes(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    client = clients()
    held = client.held(f"SELECT lsn FROM STREAM sa {LONG}")
    database.polls.close()
    with pytest.raises(AdminShutdown):
        held.answer()
    with pytest.raises(AdminShutdown):
        client.rows(f"SELECT lsn FROM STREAM sa {LONG}")


def test_there_is_a_bound(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    text = f"SELECT lsn FROM STREAM sa {LONG}"
    held = [clients().held(text) for _ in range(20)]
    late = clients()
    with pytest.raises(ProgramLimitExceeded, match="20 wait already"):
        late.rows(text)
    assert late.rows("SELECT lsn FROM STREAM sa") == []
    writer.rows("INSERT INTO a VALUES (1)")
    assert [one.answer() for one in held] == [[(1,)]] * 20
    assert late.rows(text) == [(1,)]


def test_it_holds_no_lock_while_it_waits(clients: Callable[[], Client], writer: Client) -> None:
    """INSERT ... SELECT and an open transaction wait before they take anything."""
    held = clients().held(f"INSERT INTO b SELECT lsn FROM STREAM sa {LONG}")
    other = clients()
    other.rows("BEGIN")
    in_block = other.held(f"SELECT (SELECT count(*) FROM a), count(*) FROM STREAM sa {LONG}")
    assert writer.rows("SELECT waits_for, state, writer_lock FROM ducktail.sessions ORDER BY session_id") == [
        (None, "active", None), ("events", "active", None), ("events", "active", None),
    ]  # fmt: skip
    writer.rows("INSERT INTO a VALUES (5)")
    writer.rows("INSERT INTO b VALUES (100)")
    # The snapshot is taken after the wait, and the stream agrees with it.
    assert in_block.answer() == [(1, 1)]
    writer.rows("INSERT INTO a VALUES (6)")
    assert other.rows("SELECT (SELECT count(*) FROM a), count(*) FROM STREAM sa") == [(1, 1)]
    other.rows("COMMIT")
    held.answer()
    assert writer.rows("SELECT i FROM b ORDER BY i") in ([(1,), (100,)], [(1,), (3,), (100,)])


def test_an_event_between_the_look_and_the_wait_is_not_missed(
    database: Database, clients: Callable[[], Client], writer: Client
) -> None:
    """A reader that polls without end gets every event, whenever it comes; none waits for its time."""
    found: list[int] = []
    done = threading.Event()

    def read() -> None:
        client = clients()
        while len(found) < 100:
            after = found[-1] if found else 0
            found.extend(lsn for (lsn,) in client.rows(f"SELECT lsn FROM STREAM sa AFTER {after} {LONG}"))
        done.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for number in range(100):
        writer.rows(f"INSERT INTO a VALUES ({number})")
    assert done.wait(60)
    thread.join()
    assert found == list(range(1, 101))


def test_ctrl_c_leaves_nothing(database: Database, clients: Callable[[], Client], writer: Client) -> None:
    client = clients()
    over = threading.Event()

    def interrupt() -> None:
        while not database.polls.count:
            pass
        # Python may be on its way into the wait when the signal comes, and then does not see it.
        while database.polls.count and not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(5)

    # A process that was started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.rows(f"SELECT lsn FROM STREAM sa {LONG}")
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert database.polls.count == 0
    assert client.rows("SELECT 1") == [(1,)]


def test_duckdb_gives_the_database_up(tmp_path: Any) -> None:
    database = Database.open(str(tmp_path / "test.duckdb"))
    client = Client(database)
    client.rows("CREATE TABLE a (i INTEGER PRIMARY KEY)")
    client.rows("CREATE STREAM sa ON a")
    held = client.held(f"SELECT lsn FROM STREAM sa {LONG}")
    database._reopener.fell("a test")
    with pytest.raises(DucktailError) as told:
        held.answer()
    assert told.value.sqlstate == "58030"
    assert database.polls.count == 0
    assert client.rows("SELECT lsn FROM STREAM sa WAIT '1 ms'") == []
    client.close()
    database.close()
