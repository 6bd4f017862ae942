"""Checkpoints in the database: with the stream and the group whose they are, and in transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from local_client import Client, raises

from ducktail.engine.catalog.streams import Stream
from ducktail.engine.checkpoints.duckdb_backend import TABLE
from ducktail.engine.checkpoints.positions import PartitionLsns
from ducktail.engine.checkpoints.state import Checkpoint, CheckpointState
from ducktail.engine.database import Database
from ducktail.engine.errors import DataCorrupted
from ducktail.engine.storage.backup import restore
from ducktail.sql.python.stream_manager import checkpoints_of, checkpoints_of_jobs


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """With table t, stream s on it, and group g."""
    made = Database.open(str(tmp_path / "shop.duckdb"))
    client = Client(made)
    client("create table t (id int primary key)")
    client("create stream s on t")
    client("create consumer group g on s")
    client.close()
    yield made
    made.close()


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    made = Client(database)
    yield made
    made.close()


def stream_of(database: Database, name: str = "s") -> Stream:
    return database.catalog.streams["main", name]


def state(sequence: int, key: str = "c") -> CheckpointState:
    position = Checkpoint("ducktail", PartitionLsns({0: sequence}), 1)
    return CheckpointState(key, sequence, 1, event_count=sequence, watermark_ns=5, checkpoint=position)


def rows(database: Database) -> int:
    with database.cursor() as cursor:
        [(count,)] = cursor.execute(f"SELECT count(*) FROM {TABLE}").fetchall()
    return int(count)


def test_they_go_with_the_stream(database: Database, client: Client) -> None:
    stream = stream_of(database)
    old, job = checkpoints_of(database, stream), checkpoints_of_jobs(database)
    old.save(state(7))
    job.save(state(7))
    client("drop stream s cascade")
    with raises("42704"):
        old.save(state(8))
    assert rows(database) == 1 and job.latest("c") == state(7)
    client("create stream s on t")
    new = checkpoints_of(database, stream_of(database))
    assert new.latest("c") is None
    new.save(state(1))
    assert new.latest("c") == state(1) and old.latest("c") is None


def test_they_stay_with_a_stream_of_another_name(database: Database, client: Client) -> None:
    checkpoints_of(database, stream_of(database)).save(state(7))
    client("alter stream s rename to other")
    backend = checkpoints_of(database, stream_of(database, "other"))
    assert backend.latest("c") == state(7)
    backend.save(state(8))


def test_they_go_with_the_group(database: Database, client: Client) -> None:
    stream = stream_of(database)
    [group] = database.catalog.groups_of(stream.stream_id)
    of_group, of_none = checkpoints_of(database, stream, group), checkpoints_of(database, stream)
    of_group.save(state(7))
    of_none.save(state(1))
    assert of_none.latest("c") == state(1) and of_group.latest("c") == state(7)
    client("begin")
    client("drop consumer group g on s")
    client("rollback")
    assert of_group.latest("c") == state(7)
    client("drop consumer group g on s")
    with raises("42704"):
        of_group.save(state(8))
    client("create consumer group g on s")
    [again] = database.catalog.groups_of(stream.stream_id)
    assert checkpoints_of(database, stream, again).latest("c") is None
    assert rows(database) == 1 and of_none.latest("c") == state(1)


def test_they_survive_and_are_told_in_columns(database: Database, tmp_path: Path) -> None:
    stream = stream_of(database)
    checkpoints_of(database, stream).save(state(7))
    database.close()
    again = Database.open(str(tmp_path / "shop.duckdb"))
    assert checkpoints_of(again, stream_of(again)).latest("c") == state(7)
    with again.cursor() as cursor:
        found = cursor.execute(
            f"SELECT stream_id, group_id, key, sequence, position_type, position, watermark_ns, event_count "
            f"FROM {TABLE}"
        ).fetchall()
    assert found == [(stream.stream_id, 0, "c", 7, "ducktail", '{"0": 7}', 5, 7)]
    again.close()


def test_they_are_part_of_a_transaction(database: Database) -> None:
    backend = checkpoints_of(database, stream_of(database))
    with database.cursor() as cursor:
        for end, newest in (("ROLLBACK", None), ("COMMIT", state(2))):
            cursor.execute("BEGIN")
            bound = backend.within(cursor)
            bound.save(state(1))
            bound.save(state(2))
            assert bound.latest("c") == state(2) and backend.latest("c") is None
            with raises("22023"):
                bound.save(state(0))
            cursor.execute(end)
            assert backend.latest("c") == newest


def test_two_transactions_that_save_the_same_fail_at_once(database: Database) -> None:
    backend = checkpoints_of(database, stream_of(database))
    backend.save(state(1))
    with database.cursor() as first, database.cursor() as second:
        first.execute("BEGIN")
        second.execute("BEGIN")
        backend.within(first).save(state(1))
        with raises("40001"):
            backend.within(second).save(state(1))
        second.execute("ROLLBACK")
        first.execute("COMMIT")
    assert backend.list("c") == [1]


@pytest.mark.parametrize("before", [False, True])
def test_two_transactions_that_save_new_sequences_of_one_key(database: Database, before: bool) -> None:
    backend = checkpoints_of(database, stream_of(database))
    if before:
        backend.save(state(1))
    with database.cursor() as first, database.cursor() as second:
        for cursor in (first, second):
            cursor.execute("BEGIN")
        backend.within(first).save(state(2))
        with raises("40001"):
            backend.within(second).save(state(3))
        second.execute("ROLLBACK")
        first.execute("COMMIT")
        # And one whose snapshot is older than what was committed.
        for cursor in (first, second):
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM ducktail.meta").fetchall()
        backend.within(first).save(state(4))
        first.execute("COMMIT")
        with raises("40001"):
            backend.within(second).save(state(3))
        second.execute("ROLLBACK")
    assert backend.list("c") == [1, 2, 4][not before :]


def test_a_damaged_row_is_reported_and_passed_over(database: Database) -> None:
    told: list[DataCorrupted] = []
    backend = checkpoints_of(database, stream_of(database), report=told.append)
    for sequence in (1, 2, 3, 4):
        backend.save(state(sequence))
    for sequence, form in ((4, "state[:-2]"), (3, "NULL")):
        with database.cursor() as cursor:
            cursor.execute(f"UPDATE {TABLE} SET state = {form} WHERE sequence = {sequence}").fetchall()
    assert backend.latest("c") == state(2)
    assert [damage.message for damage in told] == [f'checkpoint {n} of "c" is damaged' for n in (4, 3)]
    with raises("XX001"):
        backend.load("c", 4)
    assert backend.all("c") == [state(1), state(2)] and backend.list("c") == [1, 2, 3, 4]
    backend.save(state(4))
    assert backend.latest("c") == state(4)


def test_a_row_in_another_ones_place_is_damaged(database: Database) -> None:
    backend = checkpoints_of(database, stream_of(database))
    backend.save(state(1))
    with database.cursor() as cursor:
        cursor.execute(f"UPDATE {TABLE} SET sequence = 9").fetchall()
    with raises("XX001"):
        backend.load("c", 9)


def test_savers_and_a_drop_do_not_meet(database: Database, client: Client) -> None:
    stream = stream_of(database)
    backend = checkpoints_of(database, stream)
    begun, ended = threading.Event(), []

    def save() -> None:
        for sequence in range(10_000):
            try:
                backend.save(state(sequence))
            except Exception as error:
                ended.append(error)
                return
            begun.set()

    saver = threading.Thread(target=save)
    saver.start()
    assert begun.wait(20)
    client("drop stream s cascade")
    saver.join()
    [error] = ended
    assert getattr(error, "sqlstate", error) == "42704"
    assert rows(database) == 0


def test_a_restored_database_has_those_of_its_time(
    database: Database, client: Client, tmp_path: Path
) -> None:
    """Their positions are of events that are there: what came later went with its checkpoints."""
    client("insert into t values (1)")
    stream = stream_of(database)
    checkpoints_of(database, stream).save(state(1))
    client.close()
    database.close()
    backup = tmp_path / "backup.duckdb"
    backup.write_bytes((tmp_path / "shop.duckdb").read_bytes())
    later = Database.open(str(tmp_path / "shop.duckdb"))
    other = Client(later)
    other("insert into t values (2)")
    checkpoints_of(later, stream_of(later)).save(state(2))
    other.close()
    later.close()
    restore(backup, tmp_path / "restored.duckdb")
    restored = Database.open(str(tmp_path / "restored.duckdb"))
    found = checkpoints_of(restored, stream_of(restored)).latest("c")
    assert found == state(1)
    assert not any(hole.has(1) for hole in restored.holes)
    restored.close()


def test_nobody_reads_or_writes_the_table_by_sql(client: Client) -> None:
    for text in (f"delete from {TABLE}", f"insert into {TABLE} (key) values ('x')", f"drop table {TABLE}"):
        with raises("42501"):
            client(text)


def test_duckdb_errors_are_told_as_ours(database: Database) -> None:
    with database.cursor() as cursor:
        cursor.execute("BEGIN")
        with pytest.raises(duckdb.Error):
            cursor.execute("SELECT nonsense")
        with raises("25P02"):
            checkpoints_of(database, stream_of(database)).within(cursor).latest("c")
        cursor.execute("ROLLBACK")
