"""Commits of offsets by sessions of the wire: who writes them together, and what they leave behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import InvalidParameterValue, SerializationFailure, UndefinedObject
from ducktail.engine.transactions.transaction import CommitStep
from ducktail.engine.waiting import Wait, block_on, drive
from ducktail.sql.results.results import Result
from ducktail.sql.session import Session

GROUPS = 4
COMMIT = "COMMIT OFFSET PARTITION 0 AT {} ON s CONSUMER GROUP g{}"


def execute(session: Session, sql: str) -> None:
    """Run a statement that gives no rows."""
    drive(session.execute(drive(session.parse(sql))))


def lsns(result: Result) -> list[object]:
    """The values of the answer's only column."""
    batches = iter(lambda: result.fetch(None), None)
    return [row["lsn"] for batch in batches for row in batch.record_batch().to_pylist()]


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


def test_a_read_with_commit_begins_when_the_commit_is_durable(database: Database) -> None:
    """The event loop runs both; where the commit fails nothing is read."""
    session = Session(database, wire=True)
    read = drive(session.parse("SELECT lsn FROM STREAM s CONSUMER GROUP g0 COMMIT LIMIT 3"))

    def lsns(result: Result) -> list[object]:
        rows = [
            row
            for batch in iter(lambda: result.fetch(None), None)
            for row in batch.record_batch().to_pylist()
        ]
        return [row["lsn"] for row in rows]

    assert read.inline
    assert lsns(drive(session.execute(read))) == [1, 2, 3]
    with database.offsets.writing():
        work = session.execute(read)
        wait = next(work)
        assert not wait.future.done()
    assert block_on(wait)
    with pytest.raises(StopIteration) as ended:
        work.send(True)
    assert lsns(ended.value.value) == [4, 5, 6]
    (group,) = [group for group in database.catalog.groups.values() if group.name == "g0"]
    database.offsets.seal([group.group_id], [0])
    for _ in range(2):
        with pytest.raises(SerializationFailure, match="moved to another node"):
            drive(session.execute(read))
    database.offsets.unseal([0], [group.group_id])
    assert lsns(drive(session.execute(read))) == [7, 8, 9]
    assert database.offsets.positions(group.group_id)[0].lsn == 6
    # An empty poll has nothing to commit, and waits for nobody.
    drive(session.execute(drive(session.parse("COMMIT OFFSET PARTITION 0 AT 100 ON s CONSUMER GROUP g0"))))
    assert lsns(drive(session.execute(read))) == []
    with database.offsets.writing():
        assert lsns(drive(session.execute(read))) == []
    drive(session.close())


def test_a_read_that_begins_again_does_not_commit_again(database: Database) -> None:
    """A limited user's read is checked and begun again where the catalog has changed meanwhile."""
    owner = Session(database)
    for text in (
        "CREATE USER boss PASSWORD 'long enough' SUPERUSER",
        "CREATE USER reader PASSWORD 'long enough'",
        "GRANT CONSUME ON s TO reader",
    ):
        execute(owner, text)
    session = Session(database, wire=True, account="reader")
    execute(session, "CREATE CONSUMER GROUP own ON s")
    read = drive(session.parse("SELECT lsn FROM STREAM s CONSUMER GROUP own COMMIT LIMIT 3"))
    assert lsns(drive(session.execute(read))) == [1, 2, 3]
    with database.offsets.writing():
        work = session.execute(read)
        wait = next(work)
        while wait.future.done():
            wait = work.send(True)
        execute(owner, "CREATE TABLE other (i INTEGER)")
    result = None
    try:
        while True:
            wait = work.send(block_on(wait))
    except StopIteration as ended:
        result = ended.value
    assert result is not None and lsns(result) == [4, 5, 6]
    (group,) = [group for group in database.catalog.groups.values() if group.name == "own"]
    assert database.offsets.positions(group.group_id)[0].lsn == 3
    execute(owner, "CREATE USER nobody PASSWORD 'long enough'")
    other = Session(database, wire=True, account="nobody")
    with pytest.raises(UndefinedObject):
        execute(other, "SELECT lsn FROM STREAM s CONSUMER GROUP own COMMIT LIMIT 3")
    for one in (owner, session, other):
        drive(one.close())


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


def test_a_fetch_of_few_buffered_events_needs_no_thread(database: Database) -> None:
    session = Session(database, wire=True)

    def fetched(sql: str) -> tuple[bool, Result]:
        statement = drive(session.parse(sql))
        inline = statement.inline
        return inline, drive(session.execute(statement))

    execute(session, "BEGIN")
    execute(session, "DECLARE c CURSOR FOR SELECT lsn FROM STREAM s")
    for first in range(1, 91, 10):
        inline, result = fetched("FETCH 10 FROM c")
        assert inline and result.is_ready(None)
        assert lsns(result) == list(range(first, first + 10)) and result.is_ready(None)
    assert not fetched("FETCH ALL FROM c")[0]
    execute(session, "DECLARE t CURSOR FOR SELECT i FROM t")
    execute(session, "FETCH 1 FROM t")
    assert not fetched("FETCH 1 FROM t")[0]
    execute(session, "ROLLBACK")
    drive(session.close())
