"""Sequences are named by strings, which DuckDB resolves at each use: whose they are is asked each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from heard import OK, Heard, World

REFUSED = ("42P01", "42704", "42501")


@pytest.fixture
def world() -> Iterator[World]:
    """`main.numbers` is nobody's to count but superusers'; eve has CREATE on schema `eves`."""
    made = World()
    made.run("CREATE SCHEMA eves", "CREATE SCHEMA hid", "CREATE SEQUENCE numbers START 7000")
    made.people(["root"], ["eve"])
    made.run("GRANT CREATE ON SCHEMA eves TO eve")
    yield made
    made.close()


@pytest.fixture
def eve(world: World) -> Heard:
    return world.session("eve", search_path="eves,main")


def next_number(world: World, name: str = "numbers") -> str | None:
    return world.root.ask(f"SELECT nextval('{name}')").rows[0][0]


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("CREATE VIEW eves.v AS SELECT nextval('numbers') AS n", "SELECT n FROM eves.v"),
        ("CREATE TEMP VIEW v AS SELECT nextval('numbers') AS n", "SELECT n FROM v"),
        ("CREATE VIEW eves.v AS SELECT nextval('numbers') AS n", "SET VARIABLE x = (SELECT n FROM eves.v)"),
        ("CREATE TEMP TABLE v (n BIGINT DEFAULT nextval('numbers'), x INT)", "INSERT INTO v (x) VALUES (1)"),
    ],
)
def test_a_sequence_of_ones_own_that_is_gone_is_no_others(
    world: World, eve: Heard, made: str, used: str
) -> None:
    """What named eve's sequence would count the hidden one, once hers is dropped."""
    eve("CREATE SEQUENCE eves.numbers")
    if eve.ask(made).sqlstate == OK:
        assert eve.ask(used).sqlstate == OK
        eve.ask("DROP SEQUENCE eves.numbers CASCADE")
        assert eve.ask(used).sqlstate in (*REFUSED, "42P01")
    assert next_number(world) == "7000"


def test_a_view_counts_its_owners_sequence(world: World, eve: Heard) -> None:
    """Of superusers' views too, whatever sequence the reader has made under the name."""
    world.run("CREATE VIEW counted AS SELECT nextval('numbers') AS n", "GRANT SELECT ON counted TO eve")
    assert eve("SELECT n FROM main.counted") == (("7000",),)
    eve("CREATE SEQUENCE eves.numbers")
    eve("CREATE VIEW eves.mine AS SELECT nextval('numbers') AS n")
    assert eve("SELECT n FROM eves.mine") == (("1",),)
    assert eve("SELECT n FROM main.counted") == (("7001",),)
    assert world.session("eve")("SELECT n FROM eves.mine") == (("2",),)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT nextval('eves s')",
        "SELECT nextval('s--x')",
        "SELECT nextval('\"s--x\"')",
        "SELECT 's--x'.nextval()",
        "SELECT nextval('s' || '--x')",
        "SELECT setval(value := '5', sequence_name := 'hid.hs')",
        "SELECT setval(is_called := 'true', value := 77, sequence_name := 'hid.hs')",
        "SELECT currval('hid.hs')",
        "CREATE TABLE eves.t (n BIGINT DEFAULT nextval('hid.hs'))",
        "CREATE TABLE eves.t (n BIGINT DEFAULT setval(value := '5', sequence_name := 'hid.hs'))",
        "SELECT n FROM (SELECT nextval('main.numbers') AS n)",
    ],
)
def test_names_in_strings_are_read_as_duckdb_reads_them(world: World, eve: Heard, statement: str) -> None:
    for name in ('"eves s"', '"s--x"', "hid.hs"):
        world.run(f"CREATE SEQUENCE {name} START 500")
    for name in ("s", '"5"', '"true"'):
        eve(f"CREATE SEQUENCE eves.{name}")
    assert eve.ask(statement).sqlstate in REFUSED
    assert [next_number(world, name) for name in ('"eves s"', '"s--x"', "hid.hs")] == ["500"] * 3


def test_types_in_strings_are_found_behind_names_of_arguments(world: World, eve: Heard) -> None:
    world.run("CREATE TYPE hid.kinds AS ENUM ('canary-k1nd')")
    for name in ("from_json", "from_json_strict", "json_transform", "json_transform_strict"):
        for order in ("structure := '{0}', json := '{{}}'", "json := '{{}}', structure := '{0}'"):
            arguments = order.format('{"a":"hid.kinds"}')
            answer = eve.ask(f"SELECT typeof({name}({arguments}))")
            assert answer.sqlstate == "42501" and "canary-k1nd" not in answer, f"{name}: {answer}"


def test_counting_is_no_change_of_the_catalog(world: World, eve: Heard) -> None:
    """The next value stands in a sequence's SQL: to whoever defines something then it has not changed."""
    eve("SELECT 1")
    world.run("SELECT nextval('numbers')")
    eve("CREATE TABLE eves.t (x INT)")
    world.run("SELECT nextval('numbers')")
    eve("DROP TABLE eves.t")


@pytest.mark.parametrize(
    "table", ["ducktail.streams", "ducktail.owner_catalog", "ducktail.meta", "memory.ducktail.streams"]
)
def test_nothing_of_ours_goes_with_a_sequence(world: World, eve: Heard, table: str) -> None:
    eve("CREATE SEQUENCE eves.s")
    assert eve.ask(f"ALTER SEQUENCE eves.s OWNED BY {table}").sqlstate in REFUSED
    eve("DROP SEQUENCE eves.s CASCADE")
    world.run("CREATE SEQUENCE s")
    if world.root.ask(f"ALTER SEQUENCE s OWNED BY {table}").sqlstate == OK:
        assert world.root.ask("DROP SEQUENCE s CASCADE").sqlstate == "42501"
    world.run("SELECT count(*) FROM ducktail.streams", "SELECT count(*) FROM ducktail.owner_catalog")


def test_a_serial_column_is_its_owners(world: World, eve: Heard) -> None:
    """The sequence belongs to the table's user; whoever may insert gets its values, and may not set it."""
    eve("CREATE TABLE eves.t (id SERIAL PRIMARY KEY, n INT)")
    eve("CREATE STREAM eves.s ON eves.t")
    assert eve("INSERT INTO t (n) VALUES (1) RETURNING id") == (("1",),)
    eve("ALTER TABLE t ADD COLUMN k INT GENERATED ALWAYS AS IDENTITY")
    assert eve("SELECT setval(pg_get_serial_sequence('eves.t', 'id'), 5)") == (("5",),)
    assert eve.ask("TRUNCATE eves.t RESTART IDENTITY").sqlstate == OK
    assert eve("INSERT INTO t (n) VALUES (1) RETURNING id, k") == (("1", "1"),)
    eve("DROP TABLE eves.t CASCADE")
    assert world.root.ask("SELECT count(*) FROM duckdb_sequences() WHERE schema_name = 'eves'").rows == (
        ("0",),
    )


def test_anothers_serial_column_is_left_alone(world: World, eve: Heard) -> None:
    """No statement in PostgreSQL's form reaches further than its parts."""
    world.run("CREATE TABLE secret (id SERIAL PRIMARY KEY, n INT)", "INSERT INTO secret (n) VALUES (1)")
    world.run("CREATE TABLE shown (id SERIAL PRIMARY KEY, n INT)", "INSERT INTO shown (n) VALUES (1)")
    world.run("GRANT SELECT, INSERT, DELETE ON shown TO eve")
    eve("CREATE TABLE eves.t (id SERIAL, n INT)")
    eve("INSERT INTO eves.t (n) VALUES (1)")
    for table in ("secret", "shown"):
        for text in (
            f"SELECT setval(pg_get_serial_sequence('main.{table}', 'id'), 500)",
            f"ALTER TABLE main.{table} ALTER COLUMN id RESTART WITH 500",
            f"ALTER TABLE main.{table} ADD COLUMN k SERIAL UNIQUE",
            f"ALTER TABLE main.{table} ALTER n ADD GENERATED ALWAYS AS IDENTITY",
            f"ALTER SEQUENCE main.{table}_id_seq RESTART WITH 500",
            f"DROP TABLE eves.t, main.{table}",
            f"TRUNCATE eves.t, main.{table} RESTART IDENTITY",
        ):
            assert eve.ask(text).sqlstate in (*REFUSED, "55000"), text
    assert eve.ask("CREATE TABLE main.mine (id SERIAL)").sqlstate == "42501"
    assert eve("SELECT count(*) FROM eves.t") == (("1",),)
    assert eve("INSERT INTO main.shown (n) VALUES (2) RETURNING id") == (("2",),)
    left = "SELECT sequence_name FROM duckdb_sequences() WHERE schema_name = 'main' ORDER BY ALL"
    assert world.root.ask(left).rows == (("numbers",), ("secret_id_seq",), ("shown_id_seq",))
