"""Targets that are full, gone, somebody else's or slow: the server goes on, and the copy catches up."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from copied_load import asker, await_copy, compare
from server_process import ServerProcess

from ducktail.engine.database import Database
from ducktail.engine.errors import InvalidParameterValue
from ducktail.engine.replication.point_in_time import Moment, restore_copy
from ducktail.engine.settings import Settings

QUICK = ("--port", "0", "--copy-interval-ms", "50")
TABLES = (
    "create table t (id int primary key, v bigint)",
    "create table bulk (id int primary key, v bigint)",
    "create table brief (id int primary key, v bigint)",
    "create table carried (lsn bigint)",
    "create stream s on t with (partitions = 1, retention = 'none', before = 'full')",
    "create stream s_bulk on bulk with (partitions = 1, retention = 'none')",
    "create stream s_brief on brief",
    "create stream s_carried on carried with (partitions = 1, retention = 'none')",
    "create topic news with (partitions = 2, retention = 'none')",
    "create consumer group g on s",
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    place = tmp_path / "copy"
    place.mkdir()
    return place


@pytest.fixture
def serve_copied(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Servers whose database is copied to the given directories."""
    servers: list[ServerProcess] = []

    def serve(*targets: Path, name: str = "shop.duckdb", options: tuple[str, ...] = ()) -> ServerProcess:
        given = tuple(word for place in targets for word in ("--copy-to", str(place)))
        server = ServerProcess(tmp_path / name, (*QUICK, *given, *options))
        servers.append(server)
        return server

    yield serve
    for server in servers:
        server.kill()


def await_true(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait for a condition."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def is_latest(server: ServerProcess, target: Path, path: Path) -> None:
    """Assert that the copy is the database as it is, once it has caught up."""
    with server.connect() as connection:
        await_copy(connection, "state = 'following' and lag_transactions = 0 and error is null")
        _, made = restore_copy(target, Moment(), path)
        assert connection.execute("select max(last_lsn) from ducktail.commits").fetchone() == (
            made.counters.lsn,
        )
        compare(path, asker(connection), made.counters.lsn)


def test_a_target_that_is_gone_and_back(
    serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path
) -> None:
    server = serve_copied(target)
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        await_copy(connection)
        target.rename(tmp_path / "away")
        connection.execute("insert into t values (1, 1)")
        await_copy(connection, "state = 'failing' and error like '%No such file%' and retry_at > error_at")
        for number in range(2, 30):
            connection.execute("insert into t values (%s, 0)", (number,))
        connection.execute("checkpoint")
        connection.execute("insert into t values (100, 0)")
        shown = connection.execute("show continuous copies").fetchall()
        assert len(shown) == 1 and shown[0][0] == str(target)
        (tmp_path / "away").rename(target)
    is_latest(server, target, tmp_path / "back.duckdb")
    # The generation went on, and has every commit in between: the log was read from its descriptor.
    assert len([path for path in target.iterdir() if path.is_dir()]) == 1
    _, made = restore_copy(target, Moment(lsn=17), tmp_path / "between.duckdb")
    assert made.counters.lsn == 17


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_target(serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(target)], check=True)
    try:
        server = serve_copied(target)
        with server.connect() as connection:
            for text in TABLES:
                connection.execute(text)
            await_copy(connection)
            connection.execute("create table heavy as select i, hash(i) as h from range(300000) as r(i)")
            await_copy(connection, "state = 'failing' and error like '%No space left%' and errors > 0")
            for number in range(50):
                connection.execute("insert into t values (%s, 0)", (number,))
            assert connection.execute("select count(*) from t").fetchone() == (50,)
            subprocess.run(["mount", "-o", "remount,size=64m", str(target)], check=True)
        is_latest(server, target, tmp_path / "full.duckdb")
        server.kill()
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def test_two_targets_and_a_restart(
    serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    server = serve_copied(target, second)
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("insert into bulk select i, i from range(200000) as r(i)")
        connection.execute("insert into t values (1, 1)")
        await_copy(connection)
    assert server.stop() == 0
    server.start()
    with server.connect() as connection:
        connection.execute("insert into t values (2, 2)")
    is_latest(server, target, tmp_path / "one.duckdb")
    is_latest(server, second, tmp_path / "two.duckdb")
    for place in (target, second):
        assert len([path for path in place.iterdir() if path.is_dir()]) == 1, (
            "a restart continues a generation"
        )


def test_generations_and_their_retention(
    serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path
) -> None:
    server = serve_copied(target, options=("--copy-generation-ms", "1000", "--copy-generations", "2"))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        first = connection.execute("select generation from ducktail.continuous_copies").fetchone()
        assert first is not None
        await_copy(connection, f"generation > '{first[0]}' and generations = 2 and lag_bytes = 0")
        connection.execute("insert into t values (1, 1)")
        later = connection.execute("select generation from ducktail.continuous_copies").fetchone()
        assert later is not None
        await_copy(connection, f"generation > '{later[0]}' and generations = 2")
        await_true(lambda: not (target / first[0]).exists())
    is_latest(server, target, tmp_path / "new.duckdb")


def test_a_directory_of_another_database(
    serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path
) -> None:
    with serve_copied(target).connect() as connection:
        await_copy(connection)
    before = sorted(target.rglob("*"))
    other = serve_copied(target, name="other.duckdb")
    with other.connect() as connection:
        await_copy(connection, "state = 'failing' and error like '%has copies of another database%'")
    assert set(before) <= set(target.rglob("*"))


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="is not a directory; Create it, or mount its disk"):
        ServerProcess(tmp_path / "x.duckdb", (*QUICK, "--copy-to", str(tmp_path / "none")))


def test_directories_that_sql_may_write(tmp_path: Path) -> None:
    (tmp_path / "files" / "copy").mkdir(parents=True)
    options = ("--allow-dir", str(tmp_path / "files"), "--copy-to", str(tmp_path / "files" / "copy"))
    with pytest.raises(RuntimeError, match="lies in a directory that SQL may write"):
        ServerProcess(tmp_path / "x.duckdb", (*QUICK, *options))
    with pytest.raises(InvalidParameterValue, match="in memory"):
        Database.open(":memory:", Settings(copy_to=(str(tmp_path / "files"),)))


def test_a_restored_database_begins_anew(
    serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path
) -> None:
    """A restored database is copied to the same directory as a new generation, with its own incarnation."""
    server = serve_copied(target)
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("insert into t values (1, 1)")
        connection.execute("insert into t values (2, 2)")
        await_copy(connection)
    server.kill()
    restore_copy(target, Moment(lsn=1), tmp_path / "again.duckdb")
    again = serve_copied(target, name="again.duckdb")
    with again.connect() as connection:
        connection.execute("insert into t values (3, 3)")
        await_copy(connection, "lag_transactions = 0 and generation is not null")
        assert connection.execute("select max(lsn) > 1099511627776 from stream s after 1").fetchone() == (
            True,
        )
    assert len([path for path in target.iterdir() if path.is_dir()]) == 2
    _, made = restore_copy(target, Moment(lsn=2), tmp_path / "lost.duckdb")
    assert made.counters.lsn == 2, "the abandoned history is still there"


@pytest.mark.timeout(600)
def test_verification(serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path) -> None:
    server = serve_copied(target, options=("--copy-verify-interval-ms", "300"))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        connection.execute("insert into t values (1, 1)")
        await_copy(connection, "verification = 'ok' and verified_generation = generation", 240)
        (log,) = sorted(target.glob("*/*.log"))[:1]
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(bytes(data))
        await_copy(connection, f"verification like '%{log.name}%damaged%'", 240)
    server.stop()
    assert [path.name for path in tmp_path.iterdir() if ".check-" in path.name] == []


def test_writers_beside_a_slow_target(
    serve_copied: Callable[..., ServerProcess], target: Path, tmp_path: Path
) -> None:
    """A target in which an object must wait: checkpoints are made all the same."""
    server = serve_copied(target, options=("--wal-bytes-max", str(4 << 20)))
    with server.connect() as connection:
        for text in TABLES:
            connection.execute(text)
        await_copy(connection)
        (generation,) = [path for path in target.iterdir() if path.is_dir()]
        number = 1 + max(int(path.stem) for path in generation.iterdir() if path.stem.isdecimal())
        # The next object is a named pipe: opening it waits for a reader.
        os.mkfifo(generation / f"{number:010d}.log.partial")
        connection.execute("insert into t values (1, 1)")
        for place in range(20):
            connection.execute(f"insert into brief select {place} * 1000 + i, i from range(1000) as r(i) "
                               "on conflict do nothing")  # fmt: skip
            connection.execute("update brief set v = v + 1")
        wal = Path(f"{server.path}.wal")
        # Checkpoints are made without the copy.
        await_true(lambda: not wal.exists() or wal.stat().st_size < 2 << 20)
        drained = threading.Thread(target=(generation / f"{number:010d}.log.partial").read_bytes)
        drained.start()
        drained.join()
    is_latest(server, target, tmp_path / "slow.duckdb")
