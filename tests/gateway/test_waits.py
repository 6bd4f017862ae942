"""Long polls over the wire: what ends one, that nothing is left of it, and hundreds of them at once."""

from __future__ import annotations

import datetime
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from amounts import amount
from psycopg.adapt import Dumper
from server_process import ServerProcess

Connection = psycopg.Connection[Any]
LONG = "WAIT '1 hour'"
READ = f"SELECT lsn FROM STREAM feed {LONG}"
# What ends a wait comes at once; a crowded machine takes longer.
SOON_S = 30.0


@pytest.fixture
def con(shared: ServerProcess) -> Iterator[Connection]:
    """A connection that writes, and an empty stream feed of a table fed."""
    with shared.connect() as made:
        made.execute("DROP STREAM IF EXISTS feed CASCADE")
        made.execute("DROP TABLE IF EXISTS fed")
        made.execute("CREATE TABLE fed (id integer PRIMARY KEY)")
        made.execute("CREATE STREAM feed ON fed WITH (partitions = 2)")
        yield made


class Reader:
    """A connection whose statement waits in a thread of its own."""

    def __init__(self, server: ServerProcess, text: str, watcher: Connection, **arguments: Any) -> None:
        self.con = server.connect(**arguments)
        self.outcome: Any = None
        before = waiting(watcher)
        self._thread = threading.Thread(target=self._run, args=(text,), daemon=True)
        self._thread.start()
        until(lambda: waiting(watcher) == before + 1)

    def _run(self, text: str) -> None:
        try:
            cursor = self.con.execute(text)  # type: ignore[call-overload]
            self.outcome = cursor.fetchall() if cursor.description else cursor.statusmessage
        except psycopg.Error as error:
            self.outcome = error.sqlstate

    def ended(self) -> Any:
        """Its rows, or the SQLSTATE that it got."""
        self._thread.join(SOON_S)
        assert not self._thread.is_alive(), "it still waits"
        self.con.close()
        return self.outcome


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline, "it does not come"


def waiting(con: Connection) -> int:
    query = "SELECT count(*) FROM ducktail.sessions WHERE waits_for = 'events' AND state = 'active'"
    row = con.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def test_an_event_ends_it(con: Connection, shared: ServerProcess) -> None:
    reader = Reader(shared, READ, con)
    con.execute("INSERT INTO fed VALUES (1)")
    assert [len(row) for row in reader.ended()] == [1]
    assert waiting(con) == 0


def test_a_cancel_ends_it(con: Connection, shared: ServerProcess) -> None:
    reader = Reader(shared, READ, con)
    reader.con.cancel_safe()
    assert reader.ended() == "57014"
    reader = Reader(shared, READ, con)
    con.execute("SELECT pg_cancel_backend(%s)", [reader.con.info.backend_pid])
    assert reader.ended() == "57014"
    reader = Reader(shared, READ, con)
    con.execute("SELECT pg_terminate_backend(%s)", [reader.con.info.backend_pid])
    assert reader.ended() == "57P01"
    assert waiting(con) == 0


def test_a_cancel_is_as_quick_as_the_one_before(con: Connection, shared: ServerProcess) -> None:
    # One that comes while an earlier one is still being repeated is not put off until then.
    with shared.connect() as reader:
        for _ in range(16):
            told: list[str | None] = []
            work = functools.partial(_told, reader, told)
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            while thread.is_alive():
                reader.cancel_safe()
                thread.join(0.001)
            assert told == ["57014"]


def _told(reader: Connection, told: list[str | None]) -> None:
    """Read, and note how that fails."""
    try:
        reader.execute(READ)
    except psycopg.Error as error:
        told.append(error.sqlstate)


def test_the_statements_time_out_ends_it(con: Connection, shared: ServerProcess) -> None:
    with shared.connect(options="-c statement_timeout=50ms") as other:
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            other.execute(READ)
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_client_that_vanishes_leaves_nothing(
    con: Connection, shared: ServerProcess, shared_raw: Callable[[], Any]
) -> None:
    """Noticed while it waits: the wait itself would end in an hour."""
    sessions = "SELECT count(*) FROM ducktail.sessions"
    before = con.execute(sessions).fetchone()
    for leave in (lambda raw: raw.vanish(), lambda raw: raw.socket.close()):
        raw = shared_raw()
        raw.enter()
        raw.message("Q", READ.encode() + b"\0")
        until(lambda: waiting(con) == 1)
        leave(raw)
        until(lambda: con.execute(sessions).fetchone() == before)
        assert waiting(con) == 0


def test_a_client_that_vanishes_behind_much_that_it_has_sent(
    con: Connection, shared: ServerProcess, shared_raw: Callable[[], Any]
) -> None:
    """Its requests fill the queue, and it is not read any more; its member is not kept alive."""
    con.execute("CREATE CONSUMER GROUP g ON feed")
    raw = shared_raw()
    raw.enter()
    raw.message("Q", f"SELECT lsn FROM STREAM feed CONSUMER GROUP g MEMBER 'm' {LONG}".encode() + b"\0")
    until(lambda: waiting(con) == 1)
    request = b"SELECT '" + b"x" * 10_000 + b"'\0"
    raw.socket.settimeout(0.3)
    # Until nobody reads it: what there is then fills the queue and the kernel's buffers.
    with pytest.raises(TimeoutError):
        while True:
            raw.message("Q", request)
    raw.vanish()
    until(lambda: waiting(con) == 0)


def test_an_interval_is_a_parameter(con: Connection, shared: ServerProcess) -> None:
    """As text and in binary, as psycopg and pgjdbc send it, and put into the text."""
    text = "SELECT lsn FROM STREAM feed WAIT"
    given = datetime.timedelta(milliseconds=1)
    for place in ("%t", "%b", "%s::interval"):
        assert con.execute(f"{text} {place}", [given]).fetchall() == []
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 24 hours"):
            con.execute(f"{text} {place}", [datetime.timedelta(days=2)])
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 24 hours"):
            con.execute(f"{text} {place}", [-given])
    assert con.execute(f"{text} %s", ["1 ms"]).fetchall() == []
    assert psycopg.ClientCursor(con).execute(f"{text} %s", [given]).fetchall() == []
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="not a number: 5"):
        con.execute(f"{text} %s", [5])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="not a value of another type"):
        con.execute(f"{text} %s", [datetime.date(2020, 1, 1)])
    con.adapters.register_dumper(PGInterval, PGIntervalDumper)
    pg = "0 years {} mons 0 days 0 hours 0 mins 0.001 secs"
    assert con.execute(f"{text} %s", [PGInterval(pg.format(0))]).fetchall() == []
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="not one of months"):
        con.execute(f"{text} %s", [PGInterval(pg.format(1))])


class PGInterval(str):
    """An interval as pgjdbc has it."""


class PGIntervalDumper(Dumper):
    """As pgjdbc sends it: text, under the type's OID."""

    oid = psycopg.adapters.types["interval"].oid

    def dump(self, obj: PGInterval) -> bytes:
        """Its bytes."""
        return obj.encode()


def test_what_is_dropped_ends_it_with_an_error(con: Connection, shared: ServerProcess) -> None:
    con.execute("CREATE CONSUMER GROUP g ON feed")
    of_group = Reader(shared, f"SELECT lsn FROM STREAM feed CONSUMER GROUP g {LONG}", con)
    other = Reader(shared, READ, con)
    con.execute("DROP CONSUMER GROUP g ON feed")
    assert of_group.ended() == "42704"
    con.execute("DROP STREAM feed")
    assert other.ended() == "42704"


def test_a_shutdown_ends_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "ducktail.duckdb") as server:
        with server.connect() as con:
            con.execute("CREATE TABLE fed (id integer PRIMARY KEY)")
            con.execute("CREATE STREAM feed ON fed")
            readers = [Reader(server, READ, con) for _ in range(3)]
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < SOON_S
        assert [reader.ended() for reader in readers] == ["57P01"] * 3


def test_a_right_that_is_taken_away_meanwhile(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "ducktail.duckdb") as server, server.connect() as con:
        con.execute("CREATE TABLE fed (id integer PRIMARY KEY)")
        con.execute("CREATE STREAM feed ON fed")
        con.execute("CREATE USER ann PASSWORD 'hers' SUPERUSER")
        con.execute("CREATE USER bob PASSWORD 'his'")
        con.execute("GRANT SELECT ON feed TO bob")
        bob = {"user": "bob", "password": "his"}
        reader = Reader(server, READ, con, **bob)
        con.execute("INSERT INTO fed VALUES (1)")
        assert reader.ended() == [(1,)]
        # psycopg begins a transaction: its snapshot is taken when the wait is over.
        after = f"SELECT lsn, (SELECT count(*) FROM STREAM feed) FROM STREAM feed AFTER 1 {LONG}"
        in_block = Reader(server, after, con, autocommit=False, **bob)
        con.execute("INSERT INTO fed VALUES (2)")
        assert in_block.ended() == [(2, 2)]
        losing = Reader(server, f"SELECT lsn FROM STREAM feed AFTER 2 {LONG}", con, **bob)
        con.execute("REVOKE SELECT ON feed FROM bob")
        con.execute("INSERT INTO fed VALUES (3)")
        assert losing.ended() in ("42501", "42704")
        with server.connect(**bob) as other, pytest.raises(psycopg.Error) as told:
            other.execute(READ)
        assert told.value.sqlstate in ("42501", "42704")


def test_a_transaction_that_waits_is_not_idle(con: Connection, shared: ServerProcess) -> None:
    options = "-c idle_in_transaction_session_timeout=100ms"
    with shared.connect(autocommit=False, options=options) as other:
        assert other.execute("SELECT lsn FROM STREAM feed WAIT '1 s'").fetchall() == []
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            other.execute(READ)


def test_a_session_with_temporary_tables_waits_in_a_block(con: Connection, shared: ServerProcess) -> None:
    """What is sent is described before it runs; that takes a snapshot only where one of them is named."""
    with shared.connect() as other:
        other.execute("CREATE TEMP TABLE staged (id integer)")
        con.execute("INSERT INTO fed VALUES (1)")
        with other.transaction():
            found = other.execute(f"SELECT op FROM STREAM feed {LONG} WHERE lsn > %s", [0])
            assert found.fetchall() == [("insert",)]
        with pytest.raises(psycopg.errors.ActiveSqlTransaction), other.transaction():
            other.execute(f"SELECT count(*) FROM STREAM feed {LONG}, staged WHERE id > %s", [0])
        assert other.execute("SELECT count(*) FROM staged WHERE id > %s", [0]).fetchall() == [(0,)]


def test_in_a_pipeline_it_comes_first(con: Connection, shared: ServerProcess) -> None:
    with shared.connect() as other:
        with other.pipeline():
            empty = other.execute("SELECT lsn FROM STREAM feed WAIT '10 ms'")
            count = other.execute("SELECT count(*) FROM fed")
            assert (empty.fetchall(), count.fetchall()) == ([], [(0,)])
        with pytest.raises(psycopg.errors.ActiveSqlTransaction), other.pipeline():
            other.execute("SELECT count(*) FROM fed")
            other.execute(READ)
    script = f"SELECT count(*) FROM fed; {READ}"
    with shared.connect() as other, pytest.raises(psycopg.errors.ActiveSqlTransaction):
        psycopg.ClientCursor(other).execute(script)


def test_copies_and_writes_wait(con: Connection, shared: ServerProcess) -> None:
    con.execute("CREATE OR REPLACE TABLE seen (lsn bigint)")
    insert = Reader(shared, f"INSERT INTO seen SELECT lsn FROM STREAM feed {LONG} FOR 2", con)
    copied: list[bytes] = []

    def copy() -> None:
        with shared.connect() as other, other.cursor().copy(f"COPY ({READ}) TO STDOUT") as rows:
            copied.extend(bytes(row) for row in rows)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    until(lambda: waiting(con) == 2)
    # Neither holds the writer lock.
    con.execute("INSERT INTO fed VALUES (1), (2)")
    thread.join(SOON_S)
    assert insert.ended() == "INSERT 0 2" and len(b"".join(copied).splitlines()) == 2


@pytest.mark.parametrize("limit", [3])
def test_there_is_a_bound(tmp_path: Path, limit: int) -> None:
    options = ("--port", "0", "--long-polls-max", str(limit))
    with ServerProcess(tmp_path / "ducktail.duckdb", options) as server, server.connect() as con:
        con.execute("CREATE TABLE fed (id integer PRIMARY KEY)")
        con.execute("CREATE STREAM feed ON fed")
        readers = [Reader(server, READ, con) for _ in range(limit)]
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            con.execute(READ)
        con.execute("INSERT INTO fed VALUES (1)")
        assert [reader.ended() for reader in readers] == [[(1,)]] * limit


MANY = amount("DUCKTAIL_TEST_POLLS", 200, 1000)


@pytest.mark.slow
def test_thousands_wait_and_only_their_own_events_wake_them(
    tmp_path: Path, raw_to: Callable[[ServerProcess], Any]
) -> None:
    """Half of them wait for one stream, half for another; they hold no thread and take no time."""
    options = ("--port", "0", "--max-connections", str(MANY + 10), "--connections-starting-max", "1000")
    with ServerProcess(tmp_path / "ducktail.duckdb", options) as server, server.connect() as con:
        for name in ("a", "b"):
            con.execute(f"CREATE TABLE {name} (id integer PRIMARY KEY)")
            con.execute(f"CREATE STREAM s{name} ON {name}")
        threads, bytes_before = held(server, "task"), resident_bytes(server)
        raws = []
        for number in range(MANY):
            raw = raw_to(server)
            raw.enter()
            stream = "sa" if number % 2 else "sb"
            raw.message("Q", f"SELECT lsn FROM STREAM {stream} {LONG}".encode() + b"\0")
            raws.append(raw)
        until(lambda: waiting(con) == MANY)
        used = resident_bytes(server) - bytes_before
        cpu, begun = cpu_s(server), time.monotonic()
        while time.monotonic() < begun + 2:
            time.sleep(0.1)
        print(f"{MANY} long polls: {used / 1e6:.0f} MB, idle {(cpu_s(server) - cpu) / 2:.1%} of a core")
        assert held(server, "task") <= threads + 20
        con.execute("INSERT INTO a VALUES (1)")
        for raw in raws[1::2]:
            assert [kind for kind, _ in raw.until("Z")] == ["T", "D", "C", "Z"]
        assert waiting(con) == MANY - MANY // 2
        con.execute("DROP STREAM sb")
        for raw in raws[::2]:
            assert [kind for kind, _ in raw.until("Z")] == ["E", "Z"]
        assert waiting(con) == 0


def held(server: ServerProcess, what: str) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/{what}").iterdir()))


def resident_bytes(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(server: ServerProcess) -> float:
    words = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
