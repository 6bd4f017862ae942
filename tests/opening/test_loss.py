"""A database that lacks what was acknowledged says so, and is served only when that is accepted."""

from __future__ import annotations

import logging
import shutil
import uuid
from pathlib import Path

import duckdb
import pytest
from database_files import Files
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.storage.side_file import Mark, SideFile
from ducktail.engine.storage.wal_chain import read_chain

BASE = 1 << 40


def lsns(client: Client) -> list[int]:
    return [lsn for (lsn,) in client("select lsn from stream s after 0")]


def open_client(files: Files) -> Client:
    return Client(Database.open(str(files.path)))


def closed(client: Client) -> None:
    client.close()
    client.session.database.close()


def test_after_a_kill_everything_is_there(killed: Files, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        client = open_client(killed)
        assert lsns(client) == list(range(1, killed.keys + 1))
        assert client.one("select committed_lsn from ducktail.offsets") == killed.offset
        client.session.database.checkpoint()
        closed(client)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_log_that_is_gone_is_told(killed: Files, lost: str) -> None:
    before = killed.path.read_bytes()
    if lost == "gone":
        killed.wal.unlink()
    else:
        killed.wal.write_bytes(b"")
    with raises("XX001") as found:
        Database.open(str(killed.path))
    # Stream and group are transactions 1 and 2; the offset commit is number 2, after the group's own.
    assert found.value.detail == (
        f"Lost: transactions 3 to {killed.keys + 2}; events with LSN 1 to {killed.keys}; "
        "commits of offsets, those numbered 2 to 2."
    )
    assert killed.path.read_bytes() == before


def test_offsets_alone_are_told(killed: Files) -> None:
    client = open_client(killed)
    client.session.database.checkpoint()
    with open(killed.path, "rb") as file:
        kept = file.read()
    client("commit offset partition 0 at 29 on s consumer group g")
    closed(client)
    killed.path.write_bytes(kept)
    with raises("XX001") as found:
        Database.open(str(killed.path))
    assert found.value.detail == "Lost: commits of offsets, those numbered 3 to 3."


@pytest.mark.parametrize(
    "definition",
    [
        "create stream another on t",
        "alter stream s set (retention = '1 day', buffer_bytes = '8 MiB')",
        "alter stream s rename to another",
        "alter consumer group g on s set (on_gap = 'earliest')",
        "create consumer group h on s start after 3",
    ],
)
def test_a_lost_definition_is_told(killed: Files, definition: str) -> None:
    client = open_client(killed)
    client.session.database.checkpoint()
    with open(killed.path, "rb") as file:
        kept = file.read()
    client(definition)
    closed(client)
    closed(open_client(killed))
    killed.path.write_bytes(kept)
    with raises("XX001") as found:
        Database.open(str(killed.path))
    lost = f"Lost: transactions {killed.keys + 3} to {killed.keys + 3}"
    assert (found.value.detail or "").startswith(lost)


def test_dropping_a_group_is_no_loss(killed: Files) -> None:
    client = open_client(killed)
    client("drop consumer group g on s")
    closed(client)
    client = open_client(killed)
    client("drop stream s")
    client.session.database.offsets.fold()
    closed(client)
    closed(open_client(killed))


def test_offsets_folded_after_a_drop_are_no_loss(killed: Files) -> None:
    client = open_client(killed)
    for name in ("h", "i"):
        client(f"create consumer group {name} on s")
    client("drop consumer group h on s")
    client("drop consumer group i on s")
    client.session.database.offsets.fold()
    closed(client)
    client = open_client(killed)
    client("drop consumer group g on s")
    client.session.database.offsets.fold()
    dropped = "select count(*) from ducktail.offset_log"
    assert client.session.database.cursor().execute(dropped).fetchall() == [(1,)]
    closed(client)
    closed(open_client(killed))


def test_a_loss_that_is_accepted_never_gives_an_lsn_twice(killed: Files) -> None:
    chain = read_chain(killed.wal)
    assert chain is not None
    data = killed.wal.read_bytes()
    # Cut after half of the transactions, at a commit.
    place = 0
    for _ in range(chain.commits // 2):
        place = data.index(b"\x64\x00\x64\xff\xff", place) + 5
    killed.wal.write_bytes(data[:place])
    with raises("XX001"):
        Database.open(str(killed.path))
    client = Client(Database.open(str(killed.path), accept_loss=True))
    kept = lsns(client)
    assert kept == list(range(1, len(kept) + 1)) and 10 < len(kept) < 20
    client("insert into t values (1000, 'new')")
    assert lsns(client) == [*kept, BASE + 1]
    assert client.one("select max(txid) from stream s after 0") == killed.keys + 3
    for text in (
        f"select * from stream s after {len(kept) + 1}",
        f"commit offset partition 0 at {killed.keys} on s consumer group g",
        f"create consumer group h on s start after {killed.keys}",
    ):
        with raises("22023") as found:
            client(text)
        assert f"LSN {len(kept)} is the last one" in (found.value.detail or "")
    assert client(f"select lsn from stream s after {len(kept)}") == [(BASE + 1,)]
    closed(client)
    client = open_client(killed)  # accepted once: no loss any more
    client("insert into t values (1001, 'newer')")
    assert lsns(client) == [*kept, BASE + 1, BASE + 2]
    closed(client)


def test_an_older_file_in_place_is_told(killed: Files) -> None:
    client = open_client(killed)
    client.session.database.checkpoint()
    with open(killed.path, "rb") as file:
        older = file.read()
    closed(client)
    killed.side.unlink()
    side = None
    with duckdb.connect(str(killed.path)) as plain:
        (identity,) = plain.execute("select value from ducktail.meta where name = 'identity'").fetchone()
        side = SideFile.create(killed.side, uuid.UUID(identity), 1, Mark(1, 1, 1))
    side.close()
    killed.path.write_bytes(older)
    with raises("XX001") as found:
        Database.open(str(killed.path))
    assert "older" in (found.value.detail or "")
    client = Client(Database.open(str(killed.path), accept_loss=True))
    client("insert into t values (1000, 'new')")
    assert lsns(client)[-1] == 2 * BASE + 1
    closed(client)


def test_a_copy_is_served_with_a_warning(killed: Files, caplog: pytest.LogCaptureFixture) -> None:
    killed.side.unlink()
    client = open_client(killed)
    assert lsns(client) == list(range(1, killed.keys + 1))
    assert "no side file" in caplog.text
    closed(client)
    assert killed.side.exists()


def test_a_side_file_of_another_database_is_moved_aside(
    killed: Files,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = tmp_path / "other.duckdb"
    closed(Client(Database.open(str(other))))
    shutil.copy(f"{other}.ducktail", killed.side)
    closed(open_client(killed))
    assert "is of another database" in caplog.text
    assert Path(f"{killed.side}.old-1").exists()


@pytest.mark.parametrize("damage", [b"", b"DUCKTAIL", bytes(512)])
def test_a_damaged_side_file_is_moved_aside(
    killed: Files,
    damage: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    killed.side.write_bytes(damage)
    closed(open_client(killed))
    assert "cannot be believed" in caplog.text and Path(f"{killed.side}.old-1").exists()


def test_one_torn_mark_leaves_the_other(killed: Files) -> None:
    marks = []
    for place in (64, 128):
        torn = bytearray(killed.side.read_bytes())
        torn[place + 8] ^= 1
        path = killed.side.with_name(f"torn-{place}")
        path.write_bytes(torn)
        side = SideFile.open(path)
        assert side is not None
        marks.append(side.mark.txid)
        side.close()
    assert sorted(marks) == [killed.keys + 1, killed.keys + 2]


def test_a_side_file_without_its_database_is_moved_aside(
    killed: Files,
    caplog: pytest.LogCaptureFixture,
) -> None:
    killed.path.unlink()
    killed.wal.unlink()
    client = open_client(killed)
    client("create table t (id int primary key, v varchar)")
    client("create stream s on t")
    assert lsns(client) == []
    assert Path(f"{killed.side}.old-1").exists()
    closed(client)


def test_one_engine_a_file(killed: Files) -> None:
    client = open_client(killed)
    with raises("55006"):
        Database.open(str(killed.path))
    closed(client)
    closed(open_client(killed))


def test_in_memory_there_is_no_side_file() -> None:
    first, second = Client(Database.open(":memory:")), Client(Database.open(":memory:"))
    assert first.session.database.side is None
    closed(first)
    closed(second)
