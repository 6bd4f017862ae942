"""Backups of closed and of served databases, what restore makes of them, and check."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from database_files import Files
from local_client import Client
from preloaded import ran
from server_process import ServerProcess

from ducktail.engine.database import Database

BASE = 1 << 40


def ducktail(*words: object) -> tuple[int, str]:
    """Run the command; its exit code, and what it wrote."""
    done = ran([str(word) for word in words])
    return done.returncode, done.stdout + done.stderr


def open_client(path: Path) -> Client:
    return Client(Database.open(str(path)))


def closed(client: Client) -> None:
    client.close()
    client.session.database.close()


def test_a_closed_database(killed: Files, tmp_path: Path) -> None:
    before = killed.path.read_bytes(), killed.wal.read_bytes()
    backup = tmp_path / "shop.backup"
    code, said = ducktail("backup", killed.path, "TO", backup)
    assert (code, said) == (0, f"backup {backup}: transaction 32, LSN 30, incarnation 0\n")
    assert (killed.path.read_bytes(), killed.wal.read_bytes()) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["files", "shop.backup"]
    code, said = ducktail("check", backup)
    assert code == 0 and "no damage found" in said, said

    target = tmp_path / "restored.duckdb"
    code, said = ducktail("restore", backup, "TO", target)
    assert (code, said) == (
        0,
        f"restored {target}: transaction 32, LSN 30, incarnation 1, whose LSNs begin at {BASE + 1}\n",
    )
    client = open_client(target)
    assert client.one("select count(*) from stream s after 0") == killed.keys
    assert client.one("select committed_lsn from ducktail.offsets") == killed.offset
    client("insert into t values (1000, 'new')")
    assert client("select lsn, txid from stream s after 30") == [(BASE + 1, 33)]
    closed(client)


def test_nothing_is_written_over(killed: Files, tmp_path: Path) -> None:
    there = tmp_path / "there.duckdb"
    there.write_text("mine")
    for words in (("backup", killed.path, "TO", there), ("restore", killed.path, "TO", there)):
        code, said = ducktail(*words)
        assert code == 1 and "already exists" in said
    assert there.read_text() == "mine"
    code, said = ducktail("backup", tmp_path / "none.duckdb", "TO", tmp_path / "x")
    assert code == 1 and "there is no database file" in said
    code, said = ducktail("backup", killed.path, "TO", tmp_path / "nowhere" / "x")
    assert code == 1 and "there is no directory" in said


def test_a_restore_in_place_of_a_lost_database(killed: Files, tmp_path: Path) -> None:
    """The lost one was itself restored after the backup: its incarnation is not used again."""
    backup = tmp_path / "shop.backup"
    assert ducktail("backup", killed.path, "TO", backup)[0] == 0
    for incarnation in (1, 2):
        killed.path.unlink()
        killed.wal.unlink(missing_ok=True)
        code, said = ducktail("restore", backup, "TO", killed.path)
        assert code == 0 and f"incarnation {incarnation}" in said, said
        client = open_client(killed.path)
        client("insert into t values (1000, 'new')")
        assert client.one("select max(lsn) from stream s after 0") == incarnation * BASE + 1
        closed(client)


@pytest.mark.parametrize("at", ["pathlib.Path.rename", "ducktail.engine.storage.backup.sync_directory"])
def test_a_restore_that_is_killed_uses_no_incarnation_again(killed: Files, tmp_path: Path, at: str) -> None:
    backup = tmp_path / "shop.backup"
    assert ducktail("backup", killed.path, "TO", backup)[0] == 0

    def lost() -> None:
        killed.path.unlink(missing_ok=True)
        killed.wal.unlink(missing_ok=True)

    lost()
    assert ducktail("restore", backup, "TO", killed.path)[0] == 0
    client = open_client(killed.path)
    client("insert into t values (1000, 'new')")
    assert client.one("select max(lsn) from stream s after 0") == BASE + 1
    closed(client)
    lost()
    module, _, name = at.rpartition(".")
    words = ["restore", str(backup), "TO", str(killed.path)]
    dies = (
        "import os, pathlib, ducktail.engine.storage.backup\n"
        f"{module}.{name} = lambda *given: os._exit(9)\n"
        f"from ducktail.__main__ import main\nmain({words!r})"
    )
    assert subprocess.run([sys.executable, "-c", dies], timeout=100).returncode == 9
    lost()
    code, said = ducktail("restore", backup, "TO", killed.path)
    assert code == 0 and "incarnation 2" in said, said
    client = open_client(killed.path)
    client("insert into t values (1000, 'newer')")
    assert client.one("select max(lsn) from stream s after 0") == 2 * BASE + 1
    closed(client)


def test_a_damaged_database_is_no_backup(killed: Files, tmp_path: Path) -> None:
    data = bytearray(killed.wal.read_bytes())
    data[len(data) // 2] ^= 1
    killed.wal.write_bytes(data)
    code, said = ducktail("backup", killed.path, "TO", tmp_path / "b")
    assert code == 1 and "is damaged at byte" in said
    assert not (tmp_path / "b").exists()
    code, said = ducktail("check", killed.path)
    assert code == 1 and "damage: the write-ahead log" in said, said
    assert killed.wal.read_bytes() == data


def test_check_tells_what_is_missing(killed: Files) -> None:
    code, said = ducktail("check", killed.path)
    assert code == 0, said
    assert "1 streams on 1 tables" in said and "acknowledged: transaction 32, LSN 30" in said
    killed.wal.unlink()
    before = killed.path.read_bytes()
    code, said = ducktail("check", killed.path)
    assert code == 1 and "missing: transactions 3 to 32; events with LSN 1 to 30" in said, said
    assert killed.path.read_bytes() == before and not killed.wal.exists()


class Writers:
    """Threads that write to a server until they are stopped; what was acknowledged, in order."""

    def __init__(self, server: ServerProcess) -> None:
        self.acknowledged: list[int] = []
        self.slowest_s = 0.0
        self._stop = threading.Event()
        self._server = server
        self._threads = [threading.Thread(target=work) for work in (self._captured, self._plain)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _captured(self) -> None:
        with self._server.connect() as connection:
            key = 0
            while not self._stop.is_set():
                key += 1
                connection.execute("insert into t values (%s, repeat('x', 300))", (key,))
                self.acknowledged.append(key)

    def _plain(self) -> None:
        """Bulk loads go to the file itself before they are committed, and so do the rows of whole copies."""
        with self._server.connect() as connection:
            number = 0
            while not self._stop.is_set():
                number += 1
                connection.execute(f"create or replace table plain{number % 3} as "
                                   "select range as i, repeat('y', 50) as v from range(60000)")  # fmt: skip
                try:
                    connection.execute("checkpoint")
                except psycopg.Error as error:
                    assert "CHECKPOINT" in str(error)
                connection.execute("drop consumer group if exists h on copied_stream")
                connection.execute("create consumer group h on copied_stream start snapshot")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_served_database_while_others_write(serve: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = serve("served.duckdb")
    with server.connect() as connection:
        connection.execute("create table t (id int primary key, v text)")
        connection.execute("create stream s on t with (partitions = 1)")
        connection.execute("create table copied as select i::int as id from range(3000) r(i)")
        connection.execute("create stream copied_stream on copied with (partitions = 2, partition_by = 'id')")
        connection.execute("create consumer group g on copied_stream start snapshot")
        connection.execute("select lsn from stream copied_stream consumer group g limit 1000")
        connection.execute("commit offsets on copied_stream consumer group g")
    code, said = ducktail("check", tmp_path / "served.duckdb")
    assert code == 1 and "is open in another process" in said
    seen: list[tuple[int, int]] = []
    with Writers(server) as writers:
        for number in range(2):
            goal = len(writers.acknowledged) + 20
            while len(writers.acknowledged) < goal:
                writers._stop.wait(0.01)
            before = len(writers.acknowledged)
            backup = tmp_path / f"backup-{number}"
            code, said = ducktail("backup", tmp_path / "served.duckdb", "TO", backup)
            assert code == 0, said
            seen.append((before, len(writers.acknowledged)))
    server.stop()
    for number, (before, after) in enumerate(seen):
        target = tmp_path / f"restored-{number}.duckdb"
        assert ducktail("restore", tmp_path / f"backup-{number}", "TO", target)[0] == 0
        client = open_client(target)
        rows: Any = client("select id from t order by id")
        events = client("select (key->>'id')::int from stream s after 0")
        assert rows == events
        # All that was acknowledged when it began; of what came while it ran, a beginning.
        assert before <= len(rows) <= after and rows == [(key,) for key in range(1, len(rows) + 1)]
        assert after > before, "writers did not wait"
        # A group in the middle of its whole copy goes on there; another may just have got its own.
        left = dict(client("select group_name, rows_left from ducktail.copies"))
        assert left.pop("g") == 2000 and left in ({}, {"h": 3000})
        client("insert into copied values (3000)")
        client("create consumer group i on copied_stream start snapshot")
        for group, count in (("g", 2001), *((name, 3001) for name in left), ("i", 3001)):
            found = client(f"select (after->>'id')::int from stream copied_stream consumer group {group}")
            assert len(set(found)) == len(found) == count
        closed(client)


def test_an_open_database_that_nobody_serves(killed: Files, tmp_path: Path) -> None:
    client = open_client(killed.path)
    code, said = ducktail("backup", killed.path, "TO", tmp_path / "b")
    assert code == 1 and "serves nobody" in said
    closed(client)
