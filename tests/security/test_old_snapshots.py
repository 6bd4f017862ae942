"""Rights are those of now, objects those of the snapshot: a name is judged only where both are one."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
from heard import OK, Answer, Heard, World

from ducktail.engine.transactions.commits import Commits

SECRET = "canary-0ld"
HIDDEN = ("42P01", "42704", "42501")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.people(["root"], ["eve", "bob"])
    made.run("CREATE SCHEMA shared")
    made.run(*(f"GRANT CREATE ON SCHEMA shared TO {user}" for user in ("eve", "bob")))
    yield made
    made.close()


READS = [
    "FROM shared.a",
    "SELECT max(s) FROM shared.a",
    "DESCRIBE shared.a",
    "COPY shared.a TO STDOUT",
    "SET VARIABLE x = (SELECT max(s) FROM shared.a)",
    "CREATE TEMP TABLE kept AS FROM shared.a",
    "INSERT INTO shared.a VALUES (2, 'eve')",
    "UPDATE shared.a SET s = 'eve'",
    "DELETE FROM shared.a",
    "DROP TABLE shared.a",
]


def began(eve: Heard) -> None:
    """A transaction of eve's that has its snapshot."""
    eve("BEGIN")
    eve("SELECT count(*) FROM ducktail.streams")


@pytest.mark.parametrize("statement", READS)
@pytest.mark.parametrize("goes", ["DROP TABLE shared.a", "ALTER TABLE shared.a RENAME TO b"])
def test_a_name_that_has_become_ones_own(world: World, statement: str, goes: str) -> None:
    """In eve's snapshot it is bob's table; now it is hers."""
    bob, eve, other = world.session("bob"), world.session("eve"), world.session("eve")
    bob("CREATE TABLE shared.a (id INT, s TEXT)")
    bob(f"INSERT INTO shared.a VALUES (1, '{SECRET}')")
    began(eve)
    bob(goes)
    other("CREATE TABLE shared.a (id INT, s TEXT)")
    answer = eve.ask(statement)
    assert answer.sqlstate == "40001" and SECRET not in answer, answer
    eve.ask("ROLLBACK")
    assert eve("FROM shared.a") == ()


def test_a_name_on_which_a_right_was_given_since(world: World) -> None:
    eve = world.session("eve")
    world.run("CREATE TABLE told (s TEXT)", f"INSERT INTO told VALUES ('{SECRET}')")
    began(eve)
    world.run("ALTER TABLE told RENAME TO kept", "CREATE TABLE told (s TEXT)", "GRANT SELECT ON told TO eve")
    answer = eve.ask("FROM told")
    assert answer.sqlstate == "40001" and SECRET not in answer
    eve.ask("ROLLBACK")
    assert eve("FROM told") == ()


def test_what_others_leave_alone_is_read_on(world: World) -> None:
    """A change of the table, or of others, is none of what it is."""
    eve = world.session("eve")
    world.run("CREATE TABLE told (s TEXT)", "INSERT INTO told VALUES ('a')", "GRANT SELECT ON told TO eve")
    began(eve)
    world.run("CREATE TABLE beside (s TEXT)", "ALTER TABLE told ADD COLUMN x INT")
    world.run("INSERT INTO told VALUES ('b', 1)")
    assert eve("FROM told") == (("a",),)
    eve("COMMIT")
    assert eve("FROM told") == (("a", None), ("b", "1"))


@pytest.mark.parametrize("statement", ["FROM told", "COPY told TO STDOUT", "INSERT INTO told VALUES ('eve')"])
def test_a_table_that_is_swapped_is_not_judged_by_the_rights_on_the_old_one(
    world: World, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between DuckDB's COMMIT and the rights in memory a session waits for both."""
    eve, seen = world.session("eve"), list[Answer]()
    world.run("CREATE TABLE told (s TEXT)", "GRANT SELECT ON told TO eve", "GRANT INSERT ON told TO eve")
    assert eve.ask(statement).sqlstate == OK
    shown = Commits.committed
    asking = Thread(target=lambda: seen.append(eve.ask(statement)))

    def late(self: Commits, *arguments: object) -> None:
        asking.start()
        asking.join(0.5)  # An answer that does not wait is there by then.
        shown(self, *arguments)  # type: ignore[arg-type]

    world.root("BEGIN")
    world.root("DROP TABLE told")
    world.root("CREATE TABLE told (s TEXT)")
    world.root(f"INSERT INTO told VALUES ('{SECRET}')")
    monkeypatch.setattr(Commits, "committed", late)
    world.root("COMMIT")
    monkeypatch.undo()
    asking.join(60)
    assert [SECRET in answer for answer in seen] == [False]
    assert world.root(f"SELECT count(*) FROM told WHERE s <> '{SECRET}'") == (("0",),)
    assert eve.ask(statement).sqlstate in HIDDEN


@pytest.mark.parametrize(
    "anew",
    [
        ("CREATE OR REPLACE TABLE shared.c (id INT PRIMARY KEY, s TEXT)",),
        ("CREATE OR REPLACE TABLE shared.c AS SELECT 1 AS id, 'x' AS s",),
    ],
)
def test_a_captured_table_keeps_its_rights_when_it_is_replaced(world: World, anew: tuple[str, ...]) -> None:
    bob, eve = world.session("bob"), world.session("eve")
    bob("CREATE TABLE shared.c (id INT PRIMARY KEY, s TEXT)")
    bob("CREATE STREAM shared.of_c ON shared.c")
    bob("GRANT SELECT ON shared.c TO eve")
    for statement in anew:
        bob(statement)
    assert eve.ask("FROM shared.c").sqlstate == OK
    bob("DROP TABLE shared.c CASCADE")
    bob("CREATE TABLE shared.c (id INT)")
    assert eve.ask("FROM shared.c").sqlstate in HIDDEN


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000", "\ufeff"])
def test_spaces_beyond_ascii_shift_no_place(world: World, space: str) -> None:
    """DuckDB counts places in a text in which they are blanks."""
    eve = world.session("eve")
    world.run("CREATE TABLE told (s TEXT)", "INSERT INTO told VALUES ('a')", "GRANT SELECT ON told TO eve")
    text = f"SELECT{space}'{space}' AS é,{space}s FROM/*{space}é*/{space}told AS t{space}WHERE t.s = 'a'"
    assert eve(text) == ((space, "a"),)
