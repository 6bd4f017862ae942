"""Saves in DuckDB that go by what the process has saved last do what saves do that read it: as in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amounts import seeds
from local_client import raises

from ducktail.engine.checkpoints.backend import Backend, MemoryBackend
from ducktail.engine.checkpoints.duckdb_backend import TABLE, UNPRUNED_MAX
from ducktail.engine.checkpoints.positions import PartitionLsns
from ducktail.engine.checkpoints.state import VALUE_BYTES_MAX, Checkpoint, CheckpointState
from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.sql.python.stream_manager import checkpoints_of_jobs


@pytest.fixture(scope="module")
def opened() -> Iterator[Database]:
    made = Database.open(":memory:")
    yield made
    made.close()


@pytest.fixture
def database(opened: Database) -> Database:
    """Without checkpoints, and one that knows of none."""
    with opened.cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}").fetchall()
    opened.checkpoints.forget()
    opened.checkpoints._touched.clear()
    return opened


def state(sequence: int, lsn: int, key: str = "j", note: str = "") -> CheckpointState:
    position = Checkpoint("ducktail", PartitionLsns({0: lsn, 1: 3}), 1)
    return CheckpointState(key, sequence, 1, event_count=lsn, metadata={"n": note}, checkpoint=position)


def rows(database: Database) -> int:
    with database.cursor() as cursor:
        [(count,)] = cursor.execute(f"SELECT count(*) FROM {TABLE}").fetchall()
        return int(count)


def answer(call: Callable[[Backend], Any], backend: Backend) -> Any:
    try:
        return call(backend)
    except DucktailError as error:
        return error.sqlstate, error.detail


@pytest.mark.parametrize("seed", seeds("DUCKTAIL_SAVES_SEED", 1, 40))
def test_any_calls_answer_as_in_memory(database: Database, seed: int) -> None:
    """Two backends of one database, and now and then a transaction that is committed or rolled back."""
    chance, model = random.Random(seed), MemoryBackend(keep=3)
    pair = [checkpoints_of_jobs(database, keep=3) for _ in range(2)]
    sequence = lsn = 0

    def call() -> Callable[[Backend], Any]:
        nonlocal sequence, lsn
        sequence += chance.choice((1, 1, 1, 1, 1, 0, 2, -1))
        lsn += chance.choice((5, 5, 5, 0, 1, -3))
        what, key = chance.random(), chance.choice("jjjk")
        at, to = max(sequence, 0), max(lsn, 0)
        if what < 0.8:
            saved, rewind = state(at, to, key, str(chance.random())), what < 0.04
            return lambda backend: backend.save(saved, rewind=rewind)
        if what < 0.88:
            return lambda backend: backend.delete(key, at)
        if what < 0.95:
            return lambda backend: backend.delete_before(key, at - 1)
        return lambda backend: backend.clear(key)

    for number in range(120):
        if number % 30 == 29:
            with database.cursor() as cursor:
                cursor.execute("BEGIN")
                bound, one = chance.choice(pair).within(cursor), call()
                found = answer(one, bound)
                end = chance.choice(("COMMIT", "ROLLBACK"))
                cursor.execute(end)
            if end == "COMMIT":
                assert found == answer(one, model)
        else:
            one = call()
            assert answer(one, chance.choice(pair)) == answer(one, model)
        if number % 4 == 0:
            looks: list[Callable[[Backend], Any]] = [
                lambda backend: [*backend.streams()],
                lambda backend: backend.count(),
                lambda backend: [*backend.all("j")],
                lambda backend: [*backend.list("k")],
                lambda backend: [backend.load("j", at) for at in range(max(0, sequence - 6), sequence + 3)],
                lambda backend: backend.latest("j"),
            ]
            for look in looks:
                assert look(pair[0]) == look(model)


def test_rows_that_are_too_old_go_now_and_then(database: Database) -> None:
    backend = checkpoints_of_jobs(database, keep=2)
    most = 0
    for sequence in range(100):
        backend.save(state(sequence, sequence))
        most = max(most, rows(database))
        assert list(backend.list("j")) == [sequence - 1, sequence][-sequence - 1 :]
    assert 2 < most <= 2 + UNPRUNED_MAX


def test_large_states_leave_nothing_behind(database: Database) -> None:
    backend = checkpoints_of_jobs(database, keep=2)
    for sequence in range(5):
        backend.save(state(sequence, sequence, note="x" * VALUE_BYTES_MAX))
        assert rows(database) <= 2


def test_a_transaction_that_saves_later_is_not_overtaken(database: Database) -> None:
    backend = checkpoints_of_jobs(database)
    backend.save(state(1, 10))
    with database.cursor() as cursor:
        cursor.execute("BEGIN")
        backend.within(cursor).save(state(2, 90))
        cursor.execute("COMMIT")
    for sequence in (2, 3):
        with raises("22023"):
            backend.save(state(sequence, 20))
    backend.save(state(3, 91))
    with raises("22023"):
        backend.save(state(4, 90))


def test_what_was_cleared_begins_anew(database: Database) -> None:
    backend, other = checkpoints_of_jobs(database), checkpoints_of_jobs(database)
    for sequence in range(1, 4):
        backend.save(state(sequence, 10 * sequence))
    other.clear("j")
    backend.save(state(4, 1))
    assert list(backend.list("j")) == [4]
