"""One name, looked up at several moments: another session changes what it means in between.

A tenant makes and drops a table of another's name in his own schema while another session of his says that
name: between the look at rights, capture and the binder the nearest table comes and goes. And what waits for
a lock was judged before it had to wait. `test_deceived.py` has what needs no second session.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from amounts import amount, chosen
from heard import INTERNAL, Heard, World
from local_client import check_stream

pytestmark = pytest.mark.slow

CANARY = "canary-t1me"
LOCK_NOT_AVAILABLE = "55P03"
# How long a race goes on at most, and how many statements it has.
RACE_S = amount("DUCKTAIL_RACE_SECONDS", 0.25, 10.0)
STATEMENTS_MAX = amount("DUCKTAIL_RACE_STATEMENTS", 2_000, 20_000)
# Python changes threads so often in one: each statement meets the other session at many places.
SWITCH_S = 1e-4
COLUMNS = "id INT PRIMARY KEY, who TEXT, secret TEXT"
MADE = f"CREATE TABLE a.pay ({COLUMNS})"


@contextmanager
def coming_and_going(session: Heard, *statements: str) -> Iterator[None]:
    """Another thread goes round these statements, of which each may fail."""
    done = threading.Event()

    def go() -> None:
        for statement in itertools.cycle(statements):
            if done.is_set():
                return
            session.ask(statement)

    thread, interval = threading.Thread(target=go, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    thread.start()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()


def race(said: Callable[[int], None], changed: Callable[[], bool] = lambda: False) -> None:
    """Say something again and again.

    Args:
        said: says it for the n-th time.
        changed: whether there is nothing more to be found out.
    """
    end = time.monotonic() + RACE_S
    for n in range(STATEMENTS_MAX):
        said(n)
        if time.monotonic() > end or (n % 50 == 0 and changed()):
            return


@pytest.fixture
def paid() -> Iterator[World]:
    """A world in which `main.pay` is captured and another's, and tom is a tenant with schema `a`."""
    world = World(["ann"], ["tom"], {"tom": "a"})
    world.run(
        f'CREATE TABLE pay ({COLUMNS}, "{CANARY}" INT DEFAULT 0)',
        "CREATE STREAM changes ON pay WITH (partitions = 1)",
        f"INSERT INTO pay VALUES (1, 'ceo', '{CANARY}', 1), (2, 'cfo', '{CANARY}', 2)",
        "CREATE TOPIC open_topic WITH (partitions = 1)",
        "GRANT PUBLISH ON open_topic TO tom",
    )
    yield world
    world.close()


# Of them, some in the gate.
AT_PAY = [
    "SELECT secret FROM pay",
    "SELECT secret FROM v",
    "EXECUTE p",
    "EXECUTE one((SELECT max(secret) FROM pay))",
    "DESCRIBE pay",
    "SET VARIABLE x = (SELECT max(secret) FROM pay)",
    "INSERT INTO pay (id, who, secret) VALUES ({n} + 10, 'tom', 'tom')",
    "INSERT INTO a.kept SELECT secret FROM pay",
    "UPDATE pay SET secret = 'tom'",
    "DELETE FROM pay",
    "TRUNCATE pay",
    "MERGE INTO pay USING (SELECT 1 AS id) AS n ON pay.id = n.id WHEN MATCHED THEN DELETE",
    "WITH w AS (DELETE FROM pay RETURNING secret) SELECT * FROM w",
    "ALTER TABLE pay ADD COLUMN x{n} INT",
    "COMMENT ON TABLE pay IS 'tom {n}'",
    "CREATE INDEX i{n} ON pay (who)",
    "DROP TABLE pay",
    "PUBLISH TO open_topic SELECT secret FROM pay",
    "CREATE STREAM a.s{n} ON pay WITH (snapshot = 'initial')",
    "CREATE TABLE a.t{n} AS SELECT secret FROM pay",
    "CREATE VIEW a.v{n} AS SELECT secret FROM pay",
    "CREATE TYPE a.e{n} AS ENUM (SELECT secret FROM pay)",
    "COPY pay TO STDOUT",
    "COPY (SELECT secret FROM pay) TO STDOUT",
    "COPY pay (id, who, secret) FROM STDIN",
    "GRANT SELECT ON pay TO tom",
]


@pytest.mark.parametrize("statement", chosen(AT_PAY, 8, "comes and goes"))
def test_a_nearer_table_that_comes_and_goes(paid: World, statement: str) -> None:
    """`main.pay` is never read and never changed, whatever `pay` is just then."""
    before = paid.state("main.pay")
    maker, tom = paid.session("tom"), paid.session("tom", search_path="a,main")
    tom("CREATE TABLE a.kept (secret TEXT)")
    tom(MADE)
    for prepared in ("p AS SELECT secret FROM pay", "one AS SELECT $1::TEXT"):
        tom(f"PREPARE {prepared}")
    tom("CREATE VIEW a.v AS SELECT secret FROM pay")
    tom("DROP TABLE a.pay")

    def say(n: int) -> None:
        answer = tom.ask(statement.format(n=n), data=b"%d\ttom\ttom\n" % (n + 10))
        assert CANARY not in answer, f"{n}: {answer}"
        assert answer.sqlstate != INTERNAL, f"{n}: {answer}"

    rows = "SELECT count(*) FROM pay WHERE secret = $1"
    with coming_and_going(maker, MADE, "DROP TABLE a.pay"):
        race(say, lambda: paid.root.ask(rows, CANARY).rows != (("2",),))
    assert paid.state("main.pay") == before
    check_stream(paid.root, "changes", "main.pay")
    for left in ("SELECT getvariable('x')::TEXT", "SELECT * FROM a.kept"):
        assert CANARY not in tom.ask(left), left
    made = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'a' AND table_name <> 'kept'"
    for (name,) in paid.root(made):
        assert CANARY not in paid.root.ask(f"SELECT * FROM a.{name}"), name
    streams = "SELECT stream_name, tables::TEXT FROM ducktail.streams WHERE schema_name = 'a'"
    for name, table in paid.root(streams):
        assert table == "[a.pay]", name
        assert CANARY not in paid.root.ask(f"SELECT * FROM STREAM a.{name}"), name
    labels = "SELECT labels FROM duckdb_types() WHERE schema_name = 'a'"
    for told in (labels, "SELECT * FROM TOPIC open_topic"):
        assert CANARY not in paid.root.ask(told), told


@pytest.mark.parametrize(
    "statements",
    [
        ("INSERT INTO pay VALUES ({n}, 'w', 'w')",),
        ("UPDATE pay SET secret = '{n}' WHERE id < 0",),
        ("INSERT INTO pay VALUES ({n}, 'w', 'w')", "DELETE FROM pay WHERE id >= 0"),
        ("INSERT OR REPLACE INTO pay VALUES ({n} % 7, 'w', '{n}')",),
        ("MERGE INTO pay USING (SELECT {n} % 5 AS id) AS n ON pay.id = n.id WHEN MATCHED THEN DELETE "
         "WHEN NOT MATCHED THEN INSERT VALUES (n.id, 'w', 'w')",),
        ("INSERT INTO pay VALUES ({n}, 'w', 'w')", "TRUNCATE pay"),
        ("COPY pay FROM STDIN",),
        ("WITH w AS (INSERT INTO pay VALUES ({n}, 'w', 'w') RETURNING id) SELECT * FROM w",),
        ("EXECUTE p({n})",),
    ],
)  # fmt: skip
def test_capture_writes_the_table_that_is_written(statements: tuple[str, ...]) -> None:
    """Without any users: what is written to `main.pay` is in its stream, and nothing else is."""
    world = World()
    world.run("CREATE SCHEMA a", f"CREATE TABLE pay ({COLUMNS})")
    world.run("CREATE STREAM changes ON pay WITH (partitions = 1)", "INSERT INTO pay VALUES (-1, 'w', 'w')")
    maker, writer = world.session(), world.session(search_path="a,main")
    writer("PREPARE p AS INSERT INTO pay VALUES ($1, 'w', 'w')")

    def say(n: int) -> None:
        for text in statements:
            answer = writer.ask(text.format(n=n), data=b"%d\tw\tw\n" % n)
            assert answer.sqlstate != INTERNAL, f"{n}: {text}: {answer}"

    with coming_and_going(maker, MADE, "DROP TABLE a.pay"):
        race(say)
    check_stream(world.root, "changes", "main.pay")
    world.close()


def test_capture_of_a_nearer_table_that_comes_and_goes() -> None:
    """The one that comes and goes is captured: of what is written further on nothing gets into its stream."""
    world = World()
    world.run("CREATE SCHEMA a", f"CREATE TABLE pay ({COLUMNS})")
    maker, writer = world.session(), world.session(search_path="a,main")
    made = (MADE, "CREATE STREAM a.near ON a.pay WITH (partitions = 1)", "CHECK STREAM a.near")
    strays: list[str] = []

    def say(n: int) -> None:
        answer = writer.ask(f"INSERT INTO pay VALUES ({n}, 'w', 'w')")
        assert answer.sqlstate != INTERNAL, f"{n}: {answer}"
        found = writer.ask("CHECK STREAM a.near")
        strays.extend(str(found) for _ in found.rows)

    with coming_and_going(maker, *made, "DROP TABLE a.pay CASCADE"):
        race(say)
    assert strays == []
    world.close()


# What waits for a lock was judged before.


def held(world: World, *statements: str) -> Heard:
    """A transaction of ann's that holds the writer lock, and has done this."""
    ann = world.session("ann", lock_timeout="100")
    for statement in ("BEGIN", "INSERT INTO locked VALUES (1)", *statements):
        ann(statement)
    return ann


@pytest.fixture
def waiting() -> Iterator[World]:
    """A world with a captured table `locked`, and bob with a table of his own."""
    world = World(["ann"], ["bob", "eve"], {"bob": "bobs", "eve": "eves"})
    world.run("CREATE TABLE locked (id INT PRIMARY KEY)", "CREATE STREAM of_locked ON locked")
    world.session("bob")(f"CREATE TABLE bobs.t ({COLUMNS})")
    yield world
    world.close()


AGAIN = ("DROP TABLE bobs.t", f"CREATE TABLE bobs.t ({COLUMNS})",
         f"INSERT INTO bobs.t VALUES (1, 'ann', '{CANARY}')")  # fmt: skip


@pytest.mark.parametrize("when", ["in the transaction that holds it", "beside it"])
@pytest.mark.parametrize(
    "statement",
    [
        "GRANT SELECT ON bobs.t TO eve",
        "GRANT ALL ON bobs.t TO eve",
        "CREATE STREAM bobs.s ON bobs.t WITH (snapshot = 'initial')",
        "CREATE STREAM bobs.s ON bobs.t",
    ],
)
def test_what_has_waited_is_judged_again(waiting: World, statement: str, when: str) -> None:
    """bob's table is ann's by the time that the lock is free: he gives nothing of hers, and hears nothing."""
    within = when.startswith("in the")
    ann = held(waiting, *(AGAIN if within else ()))
    bob, eve = waiting.session("bob"), waiting.session("eve")
    work = bob.begin(statement)
    if not within:
        beside = waiting.session("ann", lock_timeout="100")
        for again in AGAIN:
            beside.ask(again)
    ann("COMMIT")
    state = bob.end(work)
    if CANARY not in waiting.root.ask("SELECT * FROM bobs.t"):
        return  # It was not made again: bob's statement has the table's name for itself.
    assert state in ("42P01", "42501", "42704", "40001"), state
    for session in (bob, eve):
        for read in ("SELECT * FROM bobs.t", "SELECT * FROM STREAM bobs.s", "SELECT * FROM bobs.s",
                     "SELECT * FROM bobs.s_changes"):  # fmt: skip
            answer = session.ask(read)
            assert answer.sqlstate in ("42P01", "42704", "42501"), f"{read}: {answer}"
            assert CANARY not in answer
    assert [key for key in waiting.database.rights.grants if key[1].name == "t"] == []


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO bobs.t VALUES (7, 'bob', 'bob')",
        "UPDATE bobs.t SET who = 'bob' RETURNING secret",
        "DELETE FROM bobs.t RETURNING secret",
        "WITH w AS (DELETE FROM bobs.t RETURNING secret) SELECT * FROM w",
        "MERGE INTO bobs.t USING (SELECT 1 AS i) ON id = i WHEN MATCHED THEN DELETE RETURNING secret",
        "TRUNCATE bobs.t",
        "ALTER TABLE bobs.t ADD COLUMN x INT",
    ],
)
def test_a_write_that_has_waited_is_judged_again(waiting: World, statement: str) -> None:
    """bob's captured table has become ann's by the time that the lock is free."""
    waiting.run("CREATE STREAM bobs.of_t ON bobs.t WITH (partitions = 1)")
    ann = held(waiting, *AGAIN)
    bob = waiting.session("bob")
    work = bob.begin(statement)
    ann("COMMIT")
    before = waiting.state("bobs.t")
    state = bob.end(work)
    assert state in ("42P01", "42501", "40001"), state
    assert waiting.state("bobs.t") == before


def test_a_rename_that_is_not_committed_keeps_nobody_from_working() -> None:
    """DuckDB cannot list its indexes then; names are resolved all the same."""
    world = World(["ann"], ["bob", "eve"], {"bob": "bobs", "eve": "eves"})
    world.run(
        "CREATE TABLE shop (id INT PRIMARY KEY, s TEXT)",
        "CREATE STREAM of_shop ON shop",
        "GRANT SELECT, INSERT ON shop TO eve",
    )
    bob, eve, ann = world.session("bob"), world.session("eve"), world.session("ann")
    bob("CREATE TABLE bobs.t (id INT, s TEXT)")
    bob("CREATE INDEX i ON bobs.t (s)")
    eve("CREATE TABLE eves.t (id INT)")
    eve("CREATE INDEX e ON eves.t (id)")
    ann("CREATE TABLE plain (id INT PRIMARY KEY, s TEXT UNIQUE)")
    ann("CREATE TABLE looked_up (id INT PRIMARY KEY, s TEXT)")
    ann("CREATE UNIQUE INDEX u ON looked_up (s)")
    bob("BEGIN")
    bob("DROP INDEX bobs.i")
    bob("ALTER TABLE bobs.t RENAME TO u")
    for session in (eve, ann):
        session("SET search_path = 'eves, main'")
        for statement in (
            "INSERT INTO shop VALUES ({n}, 'x')",
            "SELECT count(*) FROM shop",
            "CREATE TABLE eves.made{n} (id INT)",
            "CREATE TEMP TABLE shop (id INT)",
            "INSERT INTO shop VALUES (1)",
            "DROP TABLE shop",
            "BEGIN",
            "INSERT INTO shop VALUES ({n} + 10, 'x')",
            "ALTER TABLE eves.made{n} ADD COLUMN y INT",
            "COMMIT",
            "ALTER TABLE eves.made{n} RENAME TO other{n}",
            "DROP TABLE eves.other{n}",
        ):
            session(statement.replace("{n}", str(1 + (session is ann))))
    # What asks for the indexes themselves is told why there is no answer.
    assert eve.ask("DROP INDEX eves.e").sqlstate == LOCK_NOT_AVAILABLE
    ann("CREATE STREAM of_plain ON plain")
    assert ann.ask("CREATE STREAM of_looked_up ON looked_up").sqlstate == LOCK_NOT_AVAILABLE
    bob("ROLLBACK")
    eve("DROP INDEX eves.e")
    ann("CREATE STREAM of_looked_up ON looked_up")
    world.close()
