"""What a server measures of itself, and that nobody who looks has to wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
from server_process import ServerProcess
from watched_server import ANSWER_TIMEOUT_S, WORDS, Watched

from ducktail.engine.buffers.buffer import PartitionBuffer
from ducktail.engine.database import Database
from ducktail.engine.measures import lag_of
from ducktail.engine.settings import Settings
from ducktail.pgwire_gateway import Server, listen
from ducktail.pgwire_gateway.server.metrics import Metrics
from ducktail.pgwire_gateway.server.postmaster import ServerThread


@pytest.fixture
def watched(serve: Callable[..., ServerProcess]) -> Iterator[Watched]:
    """A server with a port for metrics."""
    yield Watched(serve(options=WORDS))


def test_what_is_done_is_counted(watched: Watched) -> None:
    with watched.server.connect() as one, watched.server.connect() as other:
        one.execute("CREATE TABLE t (i int)")
        one.execute("CREATE STREAM s ON t WITH (partitions = 1)")
        one.execute('CREATE CONSUMER GROUP "g ""1\\" ON s')
        one.execute("INSERT INTO t SELECT * FROM range(10)")
        read = 'SELECT * FROM STREAM s CONSUMER GROUP "g ""1\\" LIMIT 4'
        assert len(one.execute(read).fetchall()) == 4
        with pytest.raises(psycopg.errors.UndefinedTable):
            one.execute("SELECT * FROM pg_catalog.pg_nothing_of_the_sort")
        with pytest.raises(psycopg.errors.UndefinedTable):
            one.execute("SELECT * FROM nothing")
        for misspelt in (
            "SELECT j FROM t, pg_class",
            "SELECT * FROM nothing JOIN pg_class ON true",
            "SELECT 'nothing'::regclass",
            "SELECT pg_backend_pid() FROM nothing",
            "SELECT nothing(i) FROM t WHERE current_schema() = ''",
        ):
            with pytest.raises(psycopg.ProgrammingError):
                one.execute(misspelt)
        other.execute("BEGIN")
        found = watched.metrics()
        assert found["statements_total", "ddl", "ok"] == 1
        assert found["statements_total", "dml", "ok"] == 1
        assert found["statements_total", "transaction", "ok"] == 1
        assert sum(value for key, value in found.items() if key[-1] == "42P01") == 5
        assert found["catalog_unanswered_total",] == 1
        assert found["connections",] == 2 and found["connections_max",] == 100
        assert found["connections_opened_total",] == 2
        assert found["sessions", "idle"] == 1 and found["sessions", "idle in transaction"] == 1
        assert found["events_captured_total",] == found["last_lsn",] == 10
        assert found["stream_events_total", "main", "s"] == 10
        assert found["stream_events_retained", "main", "s"] == 10
        assert found["stream_rows_read_total", "main", "s"] >= 4
        assert found["group_lag_events", 'g "1\\', "main", "s"] == 10
        assert found["stream_buffer_bytes", "main", "s"] == found["buffer_bytes",] > 0
        assert found["buffer_bytes_max",] == 512 << 20
        assert found["wal_bytes",] >= 0
        assert found["ready",] == 1
    with pytest.raises(psycopg.OperationalError):
        watched.server.connect(dbname="elsewhere").close()
    assert watched.metrics()["connections_refused_total", "3D000"] == 1


def test_a_lag_goes_down_with_commits_and_counters_begin_with_the_process(watched: Watched) -> None:
    with watched.server.connect() as one:
        one.execute("CREATE TABLE t (i int)")
        one.execute("CREATE STREAM s ON t WITH (partitions = 1)")
        one.execute("CREATE CONSUMER GROUP g ON s")
        one.execute("INSERT INTO t SELECT * FROM range(10)")
        one.execute("SELECT * FROM STREAM s CONSUMER GROUP g LIMIT 4").fetchall()
        one.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
        assert watched.metrics()["group_lag_events", "g", "main", "s"] == 6
        assert watched.metrics()["group_members", "g", "main", "s"] == 0
        one.execute("SELECT * FROM STREAM s CONSUMER GROUP g MEMBER 'm' LIMIT 1").fetchall()
        assert watched.metrics()["group_members", "g", "main", "s"] == 1
    watched.server.stop()
    watched.server.start()
    found = Watched(watched.server)
    after = found.metrics()
    assert after["group_lag_events", "g", "main", "s"] == 6
    assert after["events_captured_total",] == after["stream_events_total", "main", "s"] == 0
    assert after["last_lsn",] == 10 and after["stream_events_retained", "main", "s"] == 10


def test_ages_and_distances(watched: Watched) -> None:
    """What alerts go by: the oldest transaction, the oldest unread event, retention, and the disk."""
    with watched.server.connect() as one, watched.server.connect() as other:
        one.execute("CREATE TABLE t (i int)")
        one.execute("CREATE STREAM s ON t WITH (partitions = 1, retention = '1 hour')")
        one.execute("CREATE STREAM kept ON t WITH (partitions = 1, retention = 'none')")
        for stream in ("s", "kept"):
            one.execute(f"CREATE CONSUMER GROUP g ON {stream}")
        found = watched.metrics()
        assert found["oldest_transaction_seconds",] == 0
        assert found["group_lag_seconds", "g", "main", "s"] == found["group_gaps", "g", "main", "s"] == 0
        assert ("group_headroom_seconds", "g", "main", "s") not in found
        other.execute("BEGIN")
        for number in range(5):
            one.execute(f"INSERT INTO t VALUES ({number})")
        while watched.metrics()["oldest_transaction_seconds",] < 0.3:
            pass
        found = watched.metrics()
        lag_s = found["group_lag_seconds", "g", "main", "s"]
        shown = one.execute(
            "SELECT max(lag_seconds) FROM ducktail.offsets WHERE stream_name = 's'"
        ).fetchone()
        assert shown is not None and 0.2 < lag_s <= shown[0] < lag_s + 20
        assert found["group_headroom_seconds", "g", "main", "s"] == pytest.approx(3600 - lag_s)
        assert ("group_headroom_seconds", "g", "main", "kept") not in found
        # A commit moves the position: the age is that of a later event, and none if there is none.
        one.execute("SELECT * FROM STREAM s CONSUMER GROUP g LIMIT 4").fetchall()
        one.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
        assert watched.metrics()["group_lag_seconds", "g", "main", "s"] > 0
        one.execute("SELECT * FROM STREAM s CONSUMER GROUP g").fetchall()
        one.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
        found = watched.metrics()
        assert found["group_lag_seconds", "g", "main", "s"] == 0
        assert ("group_headroom_seconds", "g", "main", "s") not in found
        assert 0 < found["disk_free_bytes",] < found["disk_bytes",]
        assert found["database_file_bytes",] == Path(watched.server.path).stat().st_size
        assert found["wal_bytes_max",] > found["wal_bytes",]
        assert found["long_polls_max",] == 5000
    resident = watched.get("/metrics")[1].partition("\nprocess_resident_memory_bytes ")[2].split()[0]
    assert float(resident) > 50e6


def test_waits_for_the_writer_lock(watched: Watched) -> None:
    with watched.server.connect() as one, watched.server.connect() as other:
        one.execute("CREATE TABLE t (i int)")
        one.execute("CREATE STREAM s ON t")
        one.execute("BEGIN")
        one.execute("INSERT INTO t VALUES (1)")
        waiter = threading.Thread(target=lambda: other.execute("INSERT INTO t VALUES (2)"))
        waiter.start()
        while not watched.metrics()["writer_lock_waiting",]:
            pass
        assert watched.metrics()["writer_lock_waits_total",] == 1
        one.execute("COMMIT")
        waiter.join()
        found = watched.metrics()
        assert found["writer_lock_waiting",] == 0 and found["writer_lock_waits_total",] == 1
        assert found["events_captured_total",] == 2


def test_the_pages(watched: Watched) -> None:
    assert watched.get("/live") == (200, "live\n")
    assert watched.get("/ready") == (200, "ready\n")
    assert watched.get("/ready?x=1")[0] == 200
    assert watched.get("/live", "HEAD") == (200, "")
    assert watched.get("/")[0] == watched.get("/metrics/x")[0] == 404
    assert watched.get("/metrics", "POST")[0] == 405
    assert watched.raw(b"GET /live HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
    assert watched.raw(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert watched.raw(b"\x00" * 100_000).startswith((b"HTTP/1.1 431 ", b""))
    assert watched.get("/live")[0] == 200


def test_who_has_fallen_is_live_and_not_ready() -> None:
    database = Database.open(":memory:", Settings())
    port = listen("127.0.0.1", 0)
    place = f"http://127.0.0.1:{port.getsockname()[1]}"
    thread = ServerThread(Server(database, listen("127.0.0.1", 0), watched=port))
    try:
        assert urlopen(f"{place}/ready", timeout=ANSWER_TIMEOUT_S).read() == b"ready\n"
        database._reopener.fell("of the test")  # Without a file it is not opened again.
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{place}/ready", timeout=ANSWER_TIMEOUT_S)
        with refused.value:
            assert refused.value.code == 503
        assert urlopen(f"{place}/live", timeout=ANSWER_TIMEOUT_S).read() == b"live\n"
        assert b"\nducktail_ready 0.0\n" in urlopen(f"{place}/metrics", timeout=ANSWER_TIMEOUT_S).read()
    finally:
        thread.stop()
        database.close()


def test_many_who_say_nothing_keep_the_server_from_nothing(watched: Watched) -> None:
    silent = [socket.create_connection(("127.0.0.1", watched.port)) for _ in range(50)]
    try:
        with watched.server.connect() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        for client in silent:
            client.close()
    while watched.raw(b"GET /live HTTP/1.1\r\n\r\n") == b"":
        pass
    assert watched.get("/live") == (200, "live\n")


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_a_probe_is_answered_however_many_are_slow(watched: Watched, said: bytes) -> None:
    """Those who say nothing, half a request, or a request whose answer they do not read."""
    slow: list[socket.socket] = []
    try:
        for _ in range(100):
            slow.append(socket.create_connection(("127.0.0.1", watched.port), ANSWER_TIMEOUT_S))
            slow[-1].sendall(said)
            if len(slow) in (32, 33, 64, 100):
                assert watched.get("/live") == (200, "live\n")
                assert watched.get("/ready") == (200, "ready\n")
        assert watched.metrics()["ready",] == 1
    finally:
        for client in slow:
            client.close()
    watched.server.stop()
    assert [line for line in watched.server.lines if "ERROR" in line.upper()] == []


def test_a_scrape_waits_for_no_lock_of_the_engine(tmp_path: Path) -> None:
    """Every lock that the engine holds while it works is held by others, and the numbers come."""
    database = Database.open(str(tmp_path / "x.duckdb"), Settings())
    listener = listen("127.0.0.1", 0)
    try:
        metrics = Metrics(Server(database, listener))
        held = [
            database.catalog.mutex,
            database.sessions._mutex,
            database.offsets._condition,
            database.publisher._condition,
            database.transactions.writer_lock._mutex,
            database.retention._passing,
            database.buffers.edges_lock,
        ]
        texts: list[bytes] = []
        for lock in held:
            lock.acquire()
        try:
            scrape = threading.Thread(target=lambda: texts.append(metrics.text()), daemon=True)
            scrape.start()
            scrape.join(ANSWER_TIMEOUT_S)
        finally:
            for lock in held:
                lock.release()
        assert len(texts) == 1 and b"ducktail_last_lsn 0.0" in texts[0]
    finally:
        listener.close()
        database.close()


def test_a_lag_that_nobody_has_counted_is_the_most_that_it_can_be() -> None:
    partition = PartitionBuffer(events=100, last_lsn=500, unbuffered_through_lsn=400)
    partition.lsns, partition.rows = [450, 500], [b"", b""]
    assert lag_of(partition, 500, None) == 0
    assert lag_of(partition, 450, None) == 1
    assert lag_of(partition, 399, None) == 100
    assert lag_of(partition, 399, 90) == 10
    assert lag_of(PartitionBuffer(events=300, last_lsn=500, unbuffered_through_lsn=400), 399, None) == 101


def test_the_lag_of_a_group_behind_the_buffer_is_that_of_its_offsets(watched: Watched) -> None:
    with watched.server.connect() as one:
        one.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        one.execute("CREATE STREAM s ON t WITH (partitions = 8, buffer_bytes = 65536)")
        one.execute("CREATE CONSUMER GROUP g ON s")
        one.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM range(3000) r(i)")
        for rows in (1, 700):
            one.execute(f"SELECT * FROM STREAM s CONSUMER GROUP g LIMIT {rows}").fetchall()
            one.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
            lag = one.execute("SELECT sum(lag_events)::bigint FROM ducktail.offsets").fetchone()
            assert (watched.metrics()["group_lag_events", "g", "main", "s"],) == lag


def test_without_the_flag_there_is_no_port(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    assert not [line for line in server.lines if "metrics" in line]
