"""Commits of offsets by sessions of the wire: who writes them together, and what they leave behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import InvalidParameterValue, SerializationFailure
from ducktail.engine.transactions.transaction import CommitStep
from ducktail.engine.waiting import Wait, block_on, drive
from ducktail.sql.session import Session

GROUPS = 4
COMMIT = "COMMIT OFFSET PARTITION 0 AT {} ON s CONSUMER GROUP g{}"


def execute(session: Session, sql: str) -> None:
    """Run a statement that gives no rows."""
    drive(session.execute(drive(session.parse(sql))))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Events in one partition, and groups."""
    opened = Database.open(str(tmp_path / "inline.duckdb"))
    session = Session(opened)
    execute(session, "CREATE TABLE t (i INTEGER PRIMARY KEY)")
    execute(session, "CREATE STREAM s ON t WITH (partitions = 1)")
    execute(session, "INSERT INTO t SELECT i FROM range(100) numbers(i)")
    for number in range(GROUPS):
        execute(session, f"CREATE CONSUMER GROUP g{number} ON s")
    drive(session.close())
    yield opened
    opened.close()


def test_those_that_come_together_are_written_together(database: Database) -> None:
    """Who then comes alone is not kept waiting for the others, and none is answered before it is written."""
    sessions = [Session(database, wire=True) for _ in range(GROUPS)]
    waits: list[Wait] = []
    works = []
    with database.offsets.writing():
        for number, session in enumerate(sessions):
            work = session.execute(drive(session.parse(COMMIT.format(10, number))))
            waits.append(next(work))
            works.append(work)
        assert not any(wait.future.done() for wait in waits)
    for wait, work in zip(waits, works, strict=True):
        assert block_on(wait)
        with pytest.raises(StopIteration):
            work.send(True)
    execute(sessions[0], COMMIT.format(20, 0))
    groups = sorted(database.catalog.groups.values(), key=lambda group: group.name)
    committed = [database.offsets.positions(group.group_id)[0].lsn for group in groups]
    assert committed == [20, 10, 10, 10]
    # Whoever writes tells that it goes back.
    with pytest.raises(InvalidParameterValue, match="behind what consumer group"):
        execute(sessions[1], COMMIT.format(9, 1))
    with pytest.raises(InvalidParameterValue, match="past the end"):
        execute(sessions[1], COMMIT.format(1_000_000, 1))
    for session in sessions:
        drive(session.close())


def test_a_commit_leaves_no_cycles(database: Database) -> None:
    """What refers to itself has to be looked for: with many commits a second that is what they cost."""
    session = Session(database, wire=True)
    statements = [drive(session.parse(COMMIT.format(lsn, 0))) for lsn in range(1, 52)]
    drive(session.execute(statements[0]))
    gc.collect()
    gc.disable()
    try:
        for statement in statements[1:]:
            drive(session.execute(statement))
        found = gc.collect()
    finally:
        gc.enable()
    assert found < len(statements)
    drive(session.close())


def test_a_commit_that_covers_released_events_is_not_for_the_event_loop(database: Database) -> None:
    """Their rows go in a transaction of DuckDB's, which no event loop is to wait for."""
    session = Session(database, wire=True)
    commit = drive(session.parse("COMMIT OFFSETS ON s CONSUMER GROUP g0"))
    other = drive(session.parse(COMMIT.format(6, 1)))
    execute(session, "ALTER CONSUMER GROUP g0 ON s PARK PARTITION 0 AT 5")
    execute(session, COMMIT.format(10, 0))
    assert commit.inline and other.inline
    execute(session, "ALTER CONSUMER GROUP g0 ON s RELEASE PARTITION 0 AT 5")
    result = drive(
        session.execute(drive(session.parse("SELECT lsn FROM STREAM s CONSUMER GROUP g0 LIMIT 3")))
    )
    while result.fetch(None) is not None:
        pass
    result.close()
    assert not commit.inline
    drive(session.execute(commit))
    assert not database.parked.released
    assert commit.inline and other.inline
    drive(session.close())


def test_a_position_that_comes_between_a_transactions_look_and_its_write(database: Database) -> None:
    """As with a partition that comes from another node just then; committed LSNs do not go back."""
    session = Session(database)
    execute(session, "BEGIN")
    execute(session, COMMIT.format(10, 0))
    (group,) = [group for group in database.catalog.groups.values() if group.name == "g0"]
    offsets, transaction = database.offsets, session.block.transaction
    assert transaction is not None

    def arrive() -> None:
        offsets.applied([offsets.move(group.group_id, {0: 50}, "")])

    transaction.at(CommitStep.CHECKS, arrive)
    with pytest.raises(SerializationFailure, match="moved from 0 to 50"):
        execute(session, "COMMIT")
    assert offsets.positions(group.group_id)[0].lsn == 50
    drive(session.close())
