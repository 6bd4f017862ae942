"""Results that have to make room: rows in parts with other statements between, in bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

MIB = 1 << 20
ROWS = 1_000_000
# A row is some 210 bytes: 200 MiB in all.
WIDE = "SELECT i, 'row ' || i || repeat('.', 180) AS t, i * 0.5 AS half FROM range({rows}) r(i)"


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def nameless_bytes(server: ServerProcess) -> int:
    """What the server's files without a name hold."""
    total = 0
    for entry in os.scandir(f"/proc/{server.process.pid}/fd"):
        if os.readlink(entry.path).endswith("(deleted)"):
            total += os.stat(entry.path).st_size
    return total


def row(i: int) -> tuple[Any, ...]:
    return (i, f"row {i}" + "." * 180, i / 2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, whose memory is measured."""
    with ServerProcess(tmp_path / "d.duckdb") as made:
        yield made


def read_in_parts(server: ServerProcess, con: psycopg.Connection[Any], rows: int) -> tuple[int, int]:
    """Read a result in parts with other statements between; the server's largest memory and file."""
    memory = file = seen = 0
    with con.cursor("parts") as cursor:
        cursor.execute(WIDE.format(rows=rows))
        while part := cursor.fetchmany(5000):
            assert part[0] == row(seen) and part[-1] == row(seen + len(part) - 1)
            seen += len(part)
            assert con.execute("SELECT %s + 1", [seen]).fetchone() == (seen + 1,)
            memory = max(memory, resident_bytes(server))
            file = max(file, nameless_bytes(server))
    assert seen == rows
    assert nameless_bytes(server) == 0
    con.commit()
    return memory, file


@pytest.mark.slow
def test_a_million_rows_in_parts_and_memory_stays(server: ServerProcess) -> None:
    with server.connect(autocommit=False) as con:
        # What threads and allocators take for themselves is there after the first of them.
        before, _ = read_in_parts(server, con, ROWS // 4)
        most, file = read_in_parts(server, con, ROWS)
    print(f"\nresident {before // MIB} MiB before, {most // MIB} at most, {file // MIB} MiB in the file")
    assert file > 150 * MIB
    assert most - before < 48 * MIB


def test_what_nobody_disturbs_is_not_kept(server: ServerProcess) -> None:
    with server.connect(autocommit=False) as con, con.cursor("alone") as cursor:
        cursor.execute(WIDE.format(rows=100_000))
        for start in range(0, 50_000, 5000):
            assert cursor.fetchmany(5000)[0] == row(start)
            assert nameless_bytes(server) == 0
        con.execute("SELECT 1")
        assert nameless_bytes(server) > 5 * MIB
        assert [found[0] for found in cursor.fetchall()] == list(range(50_000, 100_000))


def test_it_is_freed_by_close_rollback_and_the_end(server: ServerProcess) -> None:
    with server.connect() as con:
        for ending in ("CLOSE c", "CLOSE ALL", "COMMIT", "ROLLBACK"):
            con.execute("BEGIN")
            con.execute("DECLARE c CURSOR FOR " + WIDE.format(rows=100_000))
            con.execute("SELECT 1")
            assert nameless_bytes(server) > 10 * MIB
            con.execute(ending)
            assert nameless_bytes(server) == 0, ending
            con.execute("ROLLBACK")
        con.execute("DECLARE held CURSOR WITH HOLD FOR " + WIDE.format(rows=100_000))
        assert nameless_bytes(server) > 10 * MIB
        assert con.execute("FETCH 1 held").fetchall() == [row(0)]
    with server.connect() as con:
        while nameless_bytes(server):
            con.execute("SELECT 1")


def test_a_file_lies_beside_the_database_without_a_name_and_a_kill_leaves_none(
    server: ServerProcess, tmp_path: Path
) -> None:
    with server.connect() as con:
        con.execute("DECLARE held CURSOR WITH HOLD FOR " + WIDE.format(rows=100_000))
        (found,) = [
            (os.readlink(entry.path), os.stat(entry.path))
            for entry in os.scandir(f"/proc/{server.process.pid}/fd")
            if os.readlink(entry.path).endswith("(deleted)")
        ]
        assert Path(found[0]).parent == tmp_path
        assert (found[1].st_nlink, found[1].st_mode & 0o777) == (0, 0o600)
        assert names(tmp_path) == ["d.duckdb", "d.duckdb.ducktail", "d.duckdb.wal"]
        server.kill()
        assert names(tmp_path) == ["d.duckdb", "d.duckdb.ducktail", "d.duckdb.wal"]


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_read_of_a_stream_in_a_query_is_kept_with_its_position(server: ServerProcess) -> None:
    with server.connect() as con:
        con.execute("CREATE TABLE n (i integer PRIMARY KEY, t text)")
        con.execute("CREATE STREAM s ON n WITH (partitions = 1)")
        con.execute("CREATE CONSUMER GROUP g ON s")
        con.execute("INSERT INTO n SELECT i, repeat('x', 500) FROM range(1, 30001) r(i)")
        con.execute("BEGIN")
        query = "SELECT after->>'i', after FROM STREAM s CONSUMER GROUP g WHERE after->>'t' <> ''"
        con.execute(f"DECLARE c CURSOR FOR {query}")
        con.execute("FETCH 10 c")
        con.execute("SELECT 1")
        assert nameless_bytes(server) > 5 * MIB
        taken = con.execute("FETCH 20000 c").fetchall()
        assert [int(found[0]) for found in taken] == list(range(11, 20011))
        position = con.execute("SHOW READ POSITION ON s CONSUMER GROUP g").fetchall()
        con.execute("COMMIT OFFSETS ON s CONSUMER GROUP g")
        con.execute("COMMIT")
        left = con.execute("SELECT count(*), min((after->>'i')::int) FROM STREAM s CONSUMER GROUP g")
        assert left.fetchone() == (9990, 20011), position


@pytest.mark.parametrize("limits", [("0", "1048576"), ("1048576", "0")], ids=["file", "memory"])
def test_what_is_more_than_both_bounds_is_told_and_freed(tmp_path: Path, limits: tuple[str, str]) -> None:
    options = ("--spool-memory-bytes-max", limits[0], "--spool-bytes-max", limits[1])
    with ServerProcess(tmp_path / "d.duckdb", ("--port", "0", *options)) as server, server.connect() as con:
        con.execute("DECLARE small CURSOR WITH HOLD FOR SELECT i FROM range(10000) r(i)")
        con.execute("BEGIN")
        con.execute("DECLARE c CURSOR FOR " + WIDE.format(rows=20_000))
        assert con.execute("FETCH 10 c").rowcount == 10
        with pytest.raises(psycopg.errors.OutOfMemory) as found:
            con.execute("SELECT 1")
        assert f"spool_bytes_max, {limits[1]} bytes" in str(found.value)
        assert "raise spool_bytes_max" in (found.value.diag.message_hint or "")
        con.execute("ROLLBACK")
        assert con.execute("FETCH ALL small").rowcount == 10_000
        assert nameless_bytes(server) == 0
