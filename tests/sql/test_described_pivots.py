"""A PIVOT that lists no values asks the rows for its columns: to describe one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from heard import OK, World


@pytest.fixture
def world() -> Iterator[World]:
    """A captured table `stock`, and a table to pivot."""
    made = World()
    made.run(
        "CREATE TABLE mine (id INT, s TEXT)",
        "INSERT INTO mine VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE stock (id INT PRIMARY KEY, s TEXT)",
        "CREATE STREAM changes ON stock WITH (partitions = 1)",
        "INSERT INTO stock VALUES (1, 'x'), (2, 'y')",
        "CREATE TABLE plain (id INT)",
    )
    yield made
    made.close()


PIVOT = "PIVOT mine ON id USING max(s)"


@pytest.mark.parametrize("query", [PIVOT, f"{PIVOT};", f"WITH n AS ({PIVOT}) SELECT * FROM n -- all"])
def test_a_query_is_described(world: World, query: str) -> None:
    answer = world.root.ask(query, describe=True)
    assert (answer.sqlstate, answer.rows) == (OK, (("a", "b"),))


@pytest.mark.parametrize("describe", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        f"WITH n AS ({PIVOT}) UPDATE stock SET s = 'z'",
        f"WITH n AS ({PIVOT}) DELETE FROM stock WHERE id = 1",
        f"WITH n AS ({PIVOT}) INSERT INTO stock VALUES (3, 'z')",
        f"INSERT INTO stock SELECT 4, 'q' FROM ({PIVOT})",
    ],
)
def test_a_write_of_a_captured_table_is_refused(world: World, statement: str, describe: bool) -> None:
    """To describe it, DuckDB would run it, past capture."""
    assert world.root.ask(statement, describe=describe).sqlstate == "0A000"
    assert world.root("SELECT * FROM stock ORDER BY id") == (("1", "x"), ("2", "y"))
    assert world.root("CHECK STREAM changes") == ()


def test_a_write_of_another_table_is_not_run_twice(world: World) -> None:
    statement = f"INSERT INTO plain SELECT 4 FROM ({PIVOT})"
    assert world.root.ask(statement, describe=True).sqlstate == "0A000"
    assert world.root.ask(statement).sqlstate == OK
    assert world.root("SELECT * FROM plain") == (("4",),)
