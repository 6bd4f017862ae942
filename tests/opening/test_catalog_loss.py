"""What was taken out of ducktail's own tables is told: the catalog, and numbers that make up for others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.storage.backup import look_through
from ducktail.engine.storage.side_file import CatalogCounts, SideFile, side_path


def closed(client: Client) -> None:
    client.close()
    client.session.database.close()


def opened(path: Path, *, accept_loss: bool = False) -> Client:
    return Client(Database.open(str(path), accept_loss=accept_loss))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A closed database with two streams on a table, a topic, three groups and ten events."""
    path = tmp_path / "shop.duckdb"
    client = opened(path)
    client("create table t (id int primary key)")
    client("create stream s on t")
    client("create stream r on t")
    client("create topic p")
    for number in range(3):
        client(f"create consumer group g{number} on s")
    for key in range(10):
        client(f"insert into t values ({key})")
    closed(client)
    yield path


def edit(path: Path, *statements: str) -> None:
    """What plain DuckDB does to the file."""
    with duckdb.connect(str(path)) as plain:
        for statement in statements:
            plain.execute(statement)


def told(path: Path) -> str:
    """What an opening says of it, which is what `ducktail check` says, and changes nothing."""
    before = path.read_bytes()
    with raises("XX001") as found:
        Database.open(str(path))
    assert path.read_bytes() == before
    detail = (found.value.detail or "").removeprefix("Lost: ").removesuffix(".")
    wrong = look_through(str(path))[1]
    assert any(detail.lower() in line.lower() for line in wrong), (detail, wrong)
    return detail


def test_nothing_is_told_of_what_ducktail_did(path: Path) -> None:
    for statements in (
        ("drop consumer group g1 on s",),
        ("drop stream r",),
        ("drop topic p",),
        ("begin", "create consumer group g4 on s", "drop consumer group g0 on s", "commit"),
        ("begin", "create consumer group g5 on s", "rollback"),
        ("create stream q on t", "alter stream q rename to r"),
        ("create table u (id int primary key)", "create stream ofu on u", "drop table u cascade"),
        ("create schema app", "create stream a on all tables in schema app"),
        ("create table app.x (id int primary key)",),
        ("drop table app.x",),
        ("drop stream s cascade",),
    ):  # fmt: skip
        client = opened(path)
        for statement in statements:
            client(statement)
        shutil.copy(side_path(str(path)), f"{path}.kept")  # As it is where the process is killed now.
        closed(client)
        shutil.copy(f"{path}.kept", side_path(str(path)))
        assert look_through(str(path))[1] == [], statements
        side = SideFile.open(side_path(str(path)))
        assert side is not None and side.objects is not None
        side.close()


SCHEMA_GONE = "schema ducktail, with all streams and groups; transactions 1 to 16; events with LSN 1 to 10"


@pytest.mark.parametrize("edits", ["drop schema ducktail cascade", "delete from ducktail.meta"])
def test_the_schema_is_gone(path: Path, edits: str) -> None:
    edit(path, edits)
    assert told(path).startswith(SCHEMA_GONE)
    client = opened(path, accept_loss=True)
    client("create table fresh (id int primary key)")
    client("create stream fresh_s on fresh")
    client("insert into fresh values (1)")
    # Nobody gets an LSN that was given out before.
    assert client("select lsn from stream fresh_s") == [(2**40 + 1,)]
    closed(client)
    closed(opened(path))


def test_another_database_in_its_place(path: Path) -> None:
    path.unlink()
    edit(path, "create table other (id int)")
    with raises("XX001") as found:
        Database.open(str(path))
    assert "move its side file away" in (found.value.hint or "")
    side_path(str(path)).rename(f"{path}.aside")
    closed(opened(path))


@pytest.mark.parametrize(
    ("edits", "loss"),
    [
        (
            "delete from ducktail.group_catalog",
            "streams or consumer groups: 3 and 3 were acknowledged, 3 and 0 of them at most are there",
        ),
        (
            "delete from ducktail.group_catalog where group_name = 'g1'",
            "streams or consumer groups: 3 and 3 were acknowledged, 3 and 2 of them at most are there",
        ),
        (
            "update ducktail.group_catalog set group_id = group_id + 100 where group_name = 'g1'",
            "streams or consumer groups: 3 and 3 were acknowledged, 3 and 3 of them at most are there",
        ),
        (
            "delete from ducktail.stream_catalog where stream_name = 'r'",
            "streams or consumer groups: 3 and 3 were acknowledged, 2 and 3 of them at most are there",
        ),
        (
            "drop table ducktail.group_catalog",
            "streams or consumer groups: 3 and 3 were acknowledged, 0 and 0 of them at most are there",
        ),
        ("delete from ducktail.table_catalog", "A stream is on a table that ducktail.table_catalog has not"),
    ],
)
def test_rows_of_the_catalog_are_gone(path: Path, edits: str, loss: str) -> None:
    edit(path, edits)
    assert told(path) == loss
    closed(opened(path, accept_loss=True))
    if "table_catalog" not in edits:
        closed(opened(path))


def test_the_commits_are_gone(path: Path) -> None:
    edit(path, "drop table ducktail.commits")
    assert told(path).startswith("transactions 1 to 16; events with LSN 1 to 10")


def test_a_mark_that_is_behind_accuses_nobody(path: Path) -> None:
    shutil.copy(side_path(str(path)), f"{path}.kept")
    client = opened(path)
    client("create consumer group g4 on s")
    closed(client)
    shutil.copy(f"{path}.kept", side_path(str(path)))
    assert look_through(str(path))[1] == []
    closed(opened(path))


def test_a_side_file_of_an_older_version_says_nothing_of_objects(path: Path) -> None:
    edit(path, "delete from ducktail.group_catalog where group_name = 'g1'")
    side = bytearray(side_path(str(path)).read_bytes())
    for place in (100, 164):
        side[place : place + 20] = bytes(20)
    side_path(str(path)).write_bytes(side)
    closed(opened(path))
    found = SideFile.open(side_path(str(path)))
    assert found is not None and found.objects is not None
    assert (found.objects.streams, found.objects.groups) == (3, 2) != (CatalogCounts().streams, 3)
    found.close()


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        (
            "update {log} set lsn = 4, txid = (select txid from {log} where lsn = 4) where lsn = 7",
            "A log has LSN 4 more than once",
        ),
        (
            "delete from ducktail.commits where first_lsn = 7; insert into ducktail.commits "
            "select * from ducktail.commits where first_lsn = 6",
            "Ducktail.commits goes from transaction 12 (last LSN 6) to 12 (first LSN 6)",
        ),
    ],
)
def test_numbers_that_make_up_for_others(path: Path, edits: str, text: str) -> None:
    with duckdb.connect(str(path)) as plain:
        [[log]] = plain.execute(
            "select 'ducktail.log_' || table_id || '_' || version from ducktail.table_catalog "
            "where table_name = 't'"
        ).fetchall()
    edit(path, *edits.format(log=log).split(";"))
    client = opened(path)
    with raises("XX001") as found:
        client("select * from stream s after 0")
    assert (found.value.detail or "").startswith(text)
    closed(client)
    assert any(text.lower() in line.lower() for line in look_through(str(path))[1])
