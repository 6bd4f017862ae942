"""One name, looked up twice: each of these made the look at rights, capture and DuckDB mean different things.

A statement's names are looked up by the rights, by capture and by DuckDB's binder. Where two of them find
another object, a limited user reads or changes what is not his, or a write passes capture by. Here the object
is chosen by letters, by the cursor, by objects that stand in the place of DuckDB's own, by the text and by
whose session it is. `test_deceived_in_time.py` has those that want another session at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from amounts import chosen
from heard import INTERNAL, OK, Answer, Heard, Shared, World
from local_client import check_stream
from preloaded import ran

from ducktail.engine.settings import Settings

CANARY = "canary-d1ve"
# Of the statements and of the combinations of a deception so many are in the gate.
STATEMENTS, COMBINATIONS = 5, 5
# To Python its small letter is k, to DuckDB it is a letter of its own.
KELVIN = "\u212a"
# What is told of a relation that is not there, and so of one that is hidden.
ABSENT = ("42P01", "42704")
REFUSED = (*ABSENT, "42501", "0A000", "3F000", "42939", "42601", "42809", "2BP01", "42710")


@contextmanager
def untouched(world: World, *tables: str) -> Iterator[None]:
    """What these tables are is the same afterwards."""
    before = [world.state(table) for table in tables]
    yield
    assert [world.state(table) for table in tables] == before


def tried(session: Heard, *statements: str) -> list[Answer]:
    """Run statements that a user tries, of which none may tell a canary, or fail as no statement should."""
    answers = []
    for statement in statements:
        answers.append(session.ask(statement, data=b"7\tx\n"))
        shown = statement if len(statement) < 300 else f"{statement[:300]}..."
        assert CANARY not in answers[-1], f"{shown}: {answers[-1]}"
        assert answers[-1].sqlstate != INTERNAL, f"{shown}: {answers[-1]}"
    return answers


def absent(session: Heard, *statements: str) -> None:
    """All but the last may do something; that one is answered as if there were no such table."""
    last = tried(session, *statements)[-1]
    assert last.sqlstate in ABSENT, f"{statements[-1][:300]}: {last}"


# Statements about a table {0} that is another's, whose columns are `id` and `s`.
AT_A_TABLE = [
    "SELECT s FROM {0}",
    "SELECT s FROM main.{0}",
    "DESCRIBE {0}",
    "SHOW {0}",
    "SUMMARIZE {0}",
    "INSERT INTO {0} VALUES (7, 'x')",
    "INSERT INTO {0} VALUES (7, 'x') RETURNING (SELECT max(s) FROM {0})",
    "UPDATE {0} SET s = 'x'",
    "DELETE FROM {0}",
    "TRUNCATE {0}",
    "MERGE INTO {0} USING (SELECT 1 AS id) AS n ON {0}.id = n.id WHEN MATCHED THEN DELETE",
    "WITH w AS (DELETE FROM {0} RETURNING s) SELECT * FROM w",
    "ALTER TABLE {0} ADD COLUMN x INT",
    "ALTER TABLE {0} RENAME COLUMN s TO x",
    "ALTER TABLE {0} RENAME TO mine",
    "DROP TABLE {0}",
    "DROP TABLE {0} CASCADE",
    "COMMENT ON TABLE {0} IS 'x'",
    "COMMENT ON COLUMN {0}.s IS 'x'",
    "COMMENT ON CONSTRAINT c ON {0} IS 'x'",
    "CREATE INDEX i ON {0} (s)",
    "CREATE STREAM eves.mine ON {0} WITH (snapshot = 'initial')",
    "CREATE TABLE eves.mine AS SELECT * FROM {0}",
    "CREATE TABLE eves.mine (id INT REFERENCES {0} (id))",
    "CREATE VIEW eves.mine AS SELECT * FROM {0}",
    "CREATE TYPE eves.mine AS ENUM (SELECT s FROM {0})",
    "COPY {0} FROM STDIN",
    "COPY {0} TO STDOUT",
    "COPY (SELECT s FROM {0}) TO STDOUT",
    "DECLARE c CURSOR WITH HOLD FOR SELECT s FROM {0}",
    "PREPARE p AS SELECT s FROM {0}",
    "EXECUTE one((SELECT max(s) FROM {0}))",
    "SET VARIABLE x = (SELECT max(s) FROM {0})",
    "PUBLISH TO open_topic SELECT s FROM {0}",
    "PUBLISH TO open_topic KEY (SELECT max(s) FROM {0}) 'x'",
    "GRANT SELECT ON {0} TO eve",
]  # fmt: skip


def add_stock(world: World) -> World:
    """A captured table `stock` that is another's, and a topic that is open to eve."""
    world.run(
        "CREATE TABLE stock (id INT PRIMARY KEY, s TEXT)",
        "CREATE STREAM stock_changes ON stock WITH (partitions = 1)",
        f"INSERT INTO stock VALUES (1, '{CANARY}')",
        "CREATE TOPIC open_topic WITH (partitions = 1)",
        "GRANT PUBLISH ON open_topic TO eve",
    )
    return world


def plain_world() -> World:
    """As the fixture `world` is."""
    return World(["ann"], ["bob", "eve"], {"bob": "bobs", "eve": "eves"})


@pytest.fixture(scope="module")
def shared_stock() -> Iterator[Shared]:
    """What `stocked` gives."""
    shared = Shared(lambda: add_stock(plain_world()), "main.stock")
    yield shared
    shared.close()


@pytest.fixture
def stocked(shared_stock: Shared) -> Iterator[World]:
    """A world with `stock`, of several tests."""
    yield shared_stock.take()
    shared_stock.give_back()


def eve_of(world: World) -> Heard:
    """A session of eve's with a prepared statement `one`, which answers what it is given."""
    eve = world.session("eve")
    eve("PREPARE one AS SELECT $1::TEXT")
    return eve


# Letters.


@pytest.mark.parametrize("statement", chosen(AT_A_TABLE, STATEMENTS, "other letters"))
def test_a_temporary_table_in_other_letters(stocked: World, statement: str) -> None:
    eve = eve_of(stocked)
    with untouched(stocked, "main.stock"):
        absent(
            eve,
            f'CREATE TEMP TABLE "stoc{KELVIN}" (id INT PRIMARY KEY, s TEXT)',
            statement.format("stock"),
        )
        tried(eve, "SELECT getvariable('x')::TEXT", "FETCH ALL FROM c", "SELECT * FROM eves.mine")
    check_stream(stocked.root, "stock_changes", "stock")
    assert CANARY not in stocked.root.ask("SELECT * FROM TOPIC open_topic")


@pytest.mark.parametrize("there", ["été", "straße", "ĳs"])
def test_capitals_beyond_ascii(world: World, there: str) -> None:
    world.run(f'CREATE TABLE "{there}" (id INT PRIMARY KEY, s TEXT)')
    world.run(f"INSERT INTO \"{there}\" VALUES (1, '{CANARY}')")
    eve = eve_of(world)
    with untouched(world, f"main.{there}"):
        tried(eve, f'CREATE TEMP TABLE "{there.upper()}" (id INT, s TEXT)')
        for statement in AT_A_TABLE:
            if "open_topic" not in statement:
                absent(eve, statement.format(f'"{there}"'))


@pytest.mark.parametrize(
    "place",
    [
        "SET VARIABLE x = ({0})",
        "EXECUTE one(({0}))",
        "SELECT ({0})",
        "CREATE TABLE eves.mine AS {0}",
        "CREATE VIEW eves.mine AS {0}",
        "DESCRIBE {0}",
        "COPY ({0}) TO STDOUT",
        "CREATE TYPE eves.mine AS ENUM ({0})",
        "INSERT INTO eves.kept {0}",
        "PUBLISH TO open_topic {0}",
    ],
)
def test_a_common_table_expression_in_other_letters(stocked: World, place: str) -> None:
    eve = eve_of(stocked)
    eve("CREATE TABLE eves.kept (s TEXT)")
    query = f'WITH "stoc{KELVIN}" AS (SELECT 1 AS s) SELECT string_agg(s.s) FROM stock AS s'
    absent(eve, place.format(query))
    tried(eve, "SELECT getvariable('x')::TEXT", "SELECT * FROM eves.mine", "SELECT * FROM eves.kept")
    eve("DROP TABLE eves.kept")


@pytest.mark.parametrize(("captured", "other"), [("kept", f"{KELVIN}ept"), ("été", "ÉTÉ"), ("i̇", "İ")])
@pytest.mark.parametrize("first", [0, 1])
def test_capture_knows_two_tables_apart(captured: str, other: str, first: int) -> None:
    """Without any users: what is written to one is an event of that one alone, or the other is not made."""
    world = World()
    names = [captured, other]
    for name in names[first:] + names[:first]:
        made = world.root.ask(f'CREATE TABLE "{name}" (id INT PRIMARY KEY, s TEXT)')
        assert made.sqlstate in (OK, *REFUSED), made
    stream = world.root.ask(f'CREATE STREAM changes ON "{captured}"')
    assert stream.sqlstate in (OK, *REFUSED), stream
    for name in names:
        for statement in (
            "INSERT INTO {0} VALUES (1, 'a'), (2, 'b')",
            "UPDATE {0} SET s = 'c' WHERE id = 1",
            "INSERT OR REPLACE INTO {0} VALUES (1, 'd')",
            "MERGE INTO {0} AS t USING (SELECT 2 AS id) AS n ON t.id = n.id WHEN MATCHED THEN DELETE",
            "COPY {0} FROM STDIN",
        ):
            answer = world.root.ask(statement.format(f'"{name}"'), data=b"7\tx\n")
            assert answer.sqlstate in (OK, *REFUSED), f"{statement} of {name}: {answer}"
    if stream.sqlstate == OK:
        check_stream(world.root, "changes", f'"{captured}"')
    for name in names:
        world.run(f'ALTER TABLE "{name}" ADD COLUMN x INT', f"INSERT INTO \"{name}\" VALUES (9, 'e', 9)")
    if stream.sqlstate == OK:
        assert list(world.root("CHECK STREAM changes")) == []
    world.close()


@pytest.mark.parametrize("name", ["İ", "İstanbul", "ẞ", f"{KELVIN}", "ǅ", "Σ"])
def test_a_captured_table_whose_small_letters_are_others(name: str) -> None:
    world = World()
    made = [
        world.root.ask(statement.format(f'"{name}"'))
        for statement in ("CREATE TABLE {0} (id INT PRIMARY KEY, s TEXT)", "CREATE STREAM changes ON {0}")
    ]
    assert all(answer.sqlstate in (OK, *REFUSED) for answer in made), made
    if made[-1].sqlstate == OK:
        world.run(
            f"INSERT INTO \"{name}\" VALUES (1, 'a'), (2, 'b')",
            f"UPDATE \"{name}\" SET s = 'c' WHERE id = 1",
            f'DELETE FROM "{name}" WHERE id = 2',
        )
        check_stream(world.root, "changes", f'"{name}"')
        assert len(world.root("SELECT * FROM STREAM changes")) == 4
        world.run(f'DROP TABLE "{name}" CASCADE')
        assert world.root("SHOW STREAMS") == ()
    world.close()


# Cursors: a session has one that sees its temporary tables and its transaction, and one that does not.


def test_arguments_of_execute_are_read_where_they_were_judged(world: World) -> None:
    world.run("CREATE TABLE secret (s TEXT)", f"INSERT INTO secret VALUES ('{CANARY}')")
    eve = world.session("eve")
    tried(
        eve,
        "CREATE TEMP TABLE secret (s TEXT)",
        "INSERT INTO secret VALUES ('mine')",
        "PREPARE p AS SELECT $1::TEXT",
    )
    (answer,) = tried(eve, "EXECUTE p((SELECT string_agg(s, ';') FROM secret))")
    assert answer.rows == (("mine",),), answer


def test_arguments_of_execute_belong_to_the_transaction(world: World) -> None:
    """What another session has committed since the snapshot is not in them, and one's own writes are."""
    world.run("CREATE TABLE t (s TEXT)", "INSERT INTO t VALUES ('before')")
    reader = world.session()
    reader("PREPARE p AS SELECT $1::TEXT")
    for statement in ("BEGIN", "FROM t"):
        reader(statement)
    world.run("INSERT INTO t VALUES ('behind')")
    assert reader("EXECUTE p((SELECT string_agg(s, ';') FROM t))") == (("before",),)
    reader("INSERT INTO t VALUES ('own')")
    assert reader("EXECUTE p((SELECT string_agg(s, ';' ORDER BY s) FROM t))") == (("before;own",),)


COMPUTED = "query_table('ducktail.__ducktail' || '_users') AS u"


@pytest.mark.parametrize(
    "statement",
    [
        f"EXECUTE p((SELECT string_agg(u::TEXT, ';') FROM {COMPUTED}))",
        "EXECUTE p((SELECT string_agg(x, ';') FROM computing))",
        "EXECUTE p((SELECT string_agg(x, ';') FROM computed()))",
        f"EXECUTE p(list_transform([1], LAMBDA i: (SELECT string_agg(u::TEXT, ';') FROM {COMPUTED}))[1])",
        f"PUBLISH TO told SELECT u::TEXT FROM {COMPUTED}",
        f"PUBLISH TO told KEY (SELECT string_agg(u::TEXT, ';') FROM {COMPUTED}) 'x'",
        "PUBLISH TO told SELECT x FROM computing",
        "PUBLISH TO told SELECT x FROM computed()",
        "CREATE TEMP TABLE __ducktail_users (verifier TEXT); "
        "EXECUTE p((SELECT string_agg(verifier, ';') FROM __ducktail_users))",
        f"SET VARIABLE x = (SELECT string_agg(u::TEXT, ';') FROM {COMPUTED})",
        f"INSERT INTO told (payload) SELECT u::TEXT FROM {COMPUTED}",
    ],
)
def test_nobody_reads_what_passwords_are_held_against(world: World, statement: str) -> None:
    world.run("CREATE TOPIC told")
    ann = world.session("ann")
    tried(
        ann,
        "PREPARE p AS SELECT $1::TEXT",
        f"CREATE VIEW computing AS SELECT u::TEXT AS x FROM {COMPUTED}",
        f"CREATE MACRO computed() AS TABLE SELECT u::TEXT AS x FROM {COMPUTED}",
    )
    answers = tried(ann, *statement.split("; "), "SELECT getvariable('x')::TEXT", "SELECT * FROM TOPIC told")
    assert [answer for answer in answers if "SCRAM-SHA-256" in answer] == []


# Objects in the place of those by which names are looked up.

CATALOG = [
    *("duckdb_views", "duckdb_tables", "duckdb_columns", "duckdb_schemas", "duckdb_indexes"),
    *("duckdb_functions", "pg_class", "tables", "range"),
]


def share(names: list[str], kinds: list[str], what: str) -> list[tuple[str, str]]:
    """Combinations of the two, of which the gate has some."""
    return chosen([*product(names, kinds)], COMBINATIONS, what)


def forged(world: World, name: str, **values: str) -> str:
    """A query with the columns of one of DuckDB's lists, and one row that says what is given."""
    columns = world.root(f"SELECT column_name, column_type FROM (DESCRIBE FROM {name}())")
    return "SELECT " + ", ".join(
        f"({values.get(column or '', 'NULL')})::{type_} AS {column}" for column, type_ in columns
    )


@pytest.mark.parametrize("statement", chosen(AT_A_TABLE, STATEMENTS, "forged"))
def test_a_forged_list_of_views(stocked: World, statement: str) -> None:
    """It says of another's table that it is a temporary one of this session."""
    eve = eve_of(stocked)
    row = {"database_name": "'temp'", "schema_name": "'main'", "view_name": "'stock'", "internal": "false",
           "sql": "'CREATE VIEW stock AS SELECT 1 AS s;'"}  # fmt: skip
    with untouched(stocked, "main.stock"):
        tried(
            eve,
            f"CREATE TEMP VIEW duckdb_views AS {forged(stocked, 'duckdb_views', **row)}",
            # Its name has been a temporary table's once.
            "CREATE TEMP TABLE stock (id INT PRIMARY KEY, s TEXT)",
            "DROP TABLE stock",
        )
        absent(eve, statement.format("stock"))
        tried(eve, "SELECT getvariable('x')::TEXT", "FETCH ALL FROM c", "SELECT * FROM eves.mine")
    check_stream(stocked.root, "stock_changes", "stock")
    assert CANARY not in stocked.root.ask("SELECT * FROM TOPIC open_topic")


@pytest.mark.parametrize(("name", "kind"), share(CATALOG, ["TEMP TABLE", "TEMP VIEW"], "temporary list"))
def test_a_temporary_object_in_the_place_of_a_list(stocked: World, name: str, kind: str) -> None:
    """It may be refused, or it is the session's own affair: nothing else goes by it."""
    eve = eve_of(stocked)
    (made,) = tried(eve, f"CREATE {kind} {name} AS SELECT 1 AS a")
    assert made.sqlstate in (OK, "42939"), made
    with untouched(stocked, "main.stock"):
        for statement in ("SELECT s FROM {0}", "TRUNCATE {0}", "DROP TABLE {0}", "DESCRIBE {0}"):
            absent(eve, statement.format("stock"))
    kind = kind.removeprefix("TEMP ")
    for statement in (f"CREATE {kind} eves.more AS SELECT 1 AS a", f"SELECT * FROM eves.more, {name}",
                      f"DROP {kind} eves.more"):  # fmt: skip
        (answer,) = tried(eve, statement)
        assert answer.sqlstate == OK or made.sqlstate != OK, f"{statement}: {answer}"


@pytest.mark.parametrize(("name", "kind"), share(CATALOG, ["TABLE", "VIEW"], "list in main"))
def test_an_object_of_main_in_the_place_of_a_list(stocked: World, name: str, kind: str) -> None:
    """By one who may make things in `main`; others, and the owner of the database, go on as before."""
    stocked.run("GRANT CREATE ON SCHEMA main TO eve")
    bob, eve = stocked.session("bob"), stocked.session("eve")
    for statement in ("CREATE TABLE bobs.t (id INT PRIMARY KEY)", "CREATE VIEW bobs.v AS FROM bobs.t",
                      "CREATE STREAM bobs.s ON bobs.t WITH (partitions = 1)"):  # fmt: skip
        bob(statement)
    (made,) = tried(eve, f"CREATE {kind} main.{name} AS SELECT 1 AS a")
    assert made.sqlstate in (OK, "42939"), made
    for number, session in enumerate((bob, stocked.root)):
        for statement in (
            f"INSERT INTO bobs.t VALUES ({number})",
            "SELECT * FROM bobs.t",
            "SELECT * FROM bobs.v",
            "SELECT * FROM STREAM bobs.s",
            "SELECT * FROM bobs.s",
            "SELECT * FROM ducktail.streams",
            "SET search_path = 'bobs'",
            "SELECT * FROM t",
            "CREATE TABLE bobs.more (i INT)",
            "DROP TABLE bobs.more",
            "CHECK STREAM bobs.s",
            "SET search_path = 'main'",
        ):
            session(statement)
    if made.sqlstate == OK:
        eve(f"DROP {kind} main.{name}")
    stocked.run("DROP VIEW bobs.v", "DROP TABLE bobs.t CASCADE", "REVOKE CREATE ON SCHEMA main FROM eve")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMP MACRO lower(x) AS 'stock'",
        "CREATE TEMP FUNCTION lower(x) AS 'stock'",
        "CREATE TEMP MACRO duckdb_views() AS TABLE SELECT 1 AS a",
        "CREATE MACRO eves.lower(x) AS 'stock'",
        "CREATE OR REPLACE TEMP MACRO nextval(s) AS 1",
        "CREATE SCHEMA information_schema",
        "CREATE SCHEMA pg_catalog",
        "CREATE SCHEMA ducktail",
    ],
)
def test_functions_and_schemas_in_the_place_of_the_systems(world: World, statement: str) -> None:
    add_stock(world)
    world.run("GRANT CREATE ON DATABASE TO eve")
    eve = eve_of(world)
    (made,) = tried(eve, statement)
    assert made.sqlstate in REFUSED, made
    with untouched(world, "main.stock"):
        absent(eve, "SELECT s FROM stock")
    world.run("SELECT * FROM stock", "SELECT * FROM information_schema.tables")


# Text: what is looked through for names is not quite what runs.

PADDING = {"short": "", "long": f" /*{' ' * 10_001}*/", "64 KiB": f" /*{' ' * 65_537}*/"}
# FROM lists in which a bracket of literals is a table.
LITERALS = [
    "range(1) AS r(i), ('{0}') AS t",
    "(VALUES (1)) AS v(i), ('{0}') AS t",
    "unnest([1]) AS u('i'), ('{0}')",
    "range(1), ('{0}'), ('{0}') AS t",
    "('{0}') AS t",
    "range(1) AS r('i'), ('{0}' t)",
]


@pytest.fixture(scope="module")
def shared_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shared, Path]]:
    """A world with a table and an allowed file of the same rows."""
    file = tmp_path_factory.mktemp("allowed") / "secret.csv"
    file.write_text(f"id,s\n1,{CANARY}\n2,{CANARY}\n")

    def make() -> World:
        allowed = Settings(allowed_directories=(str(file.parent),))
        world = World(["ann"], ["eve"], {"eve": "eves"}, allowed)
        world.run("CREATE TABLE secret (id INT, s TEXT)", f"INSERT INTO secret VALUES (1, '{CANARY}')")
        return world

    shared = Shared(make)
    yield shared, file
    shared.close()


@pytest.mark.parametrize(
    ("tables", "padding", "kind"),
    chosen([*product(LITERALS, PADDING, ["table", "file"])], COMBINATIONS, "literals"),
)
def test_a_table_among_literals(
    shared_files: tuple[Shared, Path], tables: str, padding: str, kind: str
) -> None:
    shared, file = shared_files
    eve = eve_of(shared.take())
    query = f"SELECT max(s) AS s FROM {tables.format('secret' if kind == 'table' else file)}"
    try:
        for statement in (
            "SET VARIABLE x = ({0})",
            "EXECUTE one(({0}))",
            "DESCRIBE SELECT * FROM ({0})",
            "SUMMARIZE {0}",
            "{0}",
            "CREATE TABLE eves.t AS {0}",
            "CREATE VIEW eves.v AS {0}",
            "CREATE TYPE eves.e AS ENUM ({0})",
            "PREPARE q AS {0}",
            "EXPLAIN {0}",
            "COPY ({0}) TO STDOUT",
        ):
            (answer,) = tried(eve, statement.format(query + PADDING[padding]))
            assert answer.sqlstate in REFUSED, f"{statement}: {answer}"
            tried(eve, "SELECT getvariable('x')::TEXT", "SELECT enum_range(NULL::eves.e)")
    finally:
        shared.give_back()


def test_a_schema_that_is_called_as_a_word(world: World) -> None:
    """CREATE TYPE enum.x AS ENUM (query): the first ENUM is a name."""
    world.run("CREATE SCHEMA hid", "CREATE TABLE hid.t (s TEXT)", f"INSERT INTO hid.t VALUES ('{CANARY}')")
    for schema in ("enum", "as", "query", "select", "references"):
        world.run(f'CREATE SCHEMA "{schema}"', f'GRANT CREATE ON SCHEMA "{schema}" TO eve')
    eve = world.session("eve")
    for schema in ("enum", '"enum"', '"as"', '"query"', '"select"', '"references"'):
        absent(eve, f"CREATE TYPE {schema}.x AS ENUM (SELECT s FROM hid.t)")
        tried(eve, f"SELECT enum_range(NULL::{schema}.x)")
        absent(eve, f"CREATE VIEW {schema}.v AS SELECT s FROM hid.t")
        absent(eve, f"CREATE TABLE {schema}.t AS SELECT s FROM hid.t")
        tried(eve, f"SELECT * FROM {schema}.v", f"SELECT * FROM {schema}.t")


# Objects that nobody judged.


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("end", ["DROP SEQUENCE eves.s CASCADE", "DROP SEQUENCE eves.s"])
def test_a_sequence_that_is_owned_by_anothers_table(world: World, end: str, captured: bool) -> None:
    world.run("CREATE TABLE main.victim (s TEXT)", f"INSERT INTO victim VALUES ('{CANARY}')")
    if captured:
        world.run("CREATE STREAM of_victim ON victim WITH (snapshot = 'initial')")
    eve = world.session("eve")
    with untouched(world, "main.victim"):
        absent(eve, "CREATE SEQUENCE eves.s", "ALTER SEQUENCE eves.s OWNED BY main.victim")
        (dropped,) = tried(eve, end)
        assert "victim" not in dropped, dropped
    if captured:
        check_stream(world.root, "of_victim", "victim")


CHILD = """
import sys
from heard import World

world = World(["ann"], ["eve"], {"eve": "eves"})
eve = world.session("eve")
for statement in sys.argv[1:]:
    answer = eve.ask(statement)
    assert answer.sqlstate != "58030", answer
assert world.root("SELECT 1") == (("1",),)
print("alive")
"""


@pytest.mark.parametrize("how", ["DROP SEQUENCE eves.a", "DROP SEQUENCE eves.a CASCADE"])
@pytest.mark.parametrize("round_", ["a", "ab"])
def test_sequences_that_own_each_other_in_a_circle(tmp_path: Path, round_: str, how: str) -> None:
    """Of her own alone: to drop one of them must not take the database, or the process, down."""
    statements = [f"CREATE SEQUENCE eves.{name}" for name in round_]
    for name, owner in zip(round_, round_[1:] + round_[0], strict=True):
        statements.append(f"ALTER SEQUENCE eves.{name} OWNED BY eves.{owner}")
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    child = ran([*statements, how], program=program)
    assert child.stdout.strip() == "alive", (child.returncode, child.stderr[-1000:])


@pytest.mark.parametrize(
    ("kind", "definition", "how", "owner"),
    chosen(
        [
            (*made, how, owner)
            for made in [("SEQUENCE", ""), ("TYPE", "AS ENUM ('mine')")]
            for how in ["CREATE OR REPLACE {0}", "CREATE {0} IF NOT EXISTS", "CREATE {0}"]
            for owner in ["bob", "nobody"]
        ],
        4,
        "taken over",
    ),
)
def test_what_is_there_is_not_taken_over(
    world: World, kind: str, definition: str, how: str, owner: str
) -> None:
    world.run("GRANT CREATE ON SCHEMA bobs TO eve")
    first = "START 7" if kind == "SEQUENCE" else "AS ENUM ('first')"
    world.session("bob" if owner == "bob" else None)(f"CREATE {kind} bobs.own {first}")
    before = world.things()
    eve = world.session("eve")
    _, dropped = tried(eve, f"{how.format(kind)} bobs.own {definition}", f"DROP {kind} bobs.own")
    assert world.things() == before
    assert dropped.sqlstate in REFUSED, dropped


@pytest.mark.parametrize("drop", ["DROP SEQUENCE made.s CASCADE", "DROP SCHEMA made CASCADE"])
@pytest.mark.parametrize("captured", [False, True])
def test_what_depends_on_what_is_dropped(world: World, drop: str, captured: bool) -> None:
    """A DEFAULT of another's table calls a sequence of eve's: she cannot take the table with it."""
    world.run("GRANT CREATE ON DATABASE TO eve")
    eve = world.session("eve")
    eve("CREATE SCHEMA made")
    eve("CREATE SEQUENCE made.s")
    world.run(
        "CREATE TABLE bobs.numbered (id INT DEFAULT nextval('made.s') PRIMARY KEY, s TEXT)",
        f"INSERT INTO bobs.numbered (s) VALUES ('{CANARY}')",
    )
    if captured:
        world.run("CREATE STREAM bobs.changes ON bobs.numbered WITH (snapshot = 'initial')")
    with untouched(world, "bobs.numbered"):
        (dropped,) = tried(eve, drop)
        assert dropped.sqlstate in ("2BP01", "42501", "0A000"), dropped
        assert "numbered" not in dropped, dropped
    if captured:
        check_stream(world.root, "bobs.changes", "bobs.numbered")


def test_a_schema_is_not_replaced_by_another(world: World) -> None:
    world.run("GRANT CREATE ON DATABASE TO eve", "GRANT CREATE ON DATABASE TO bob")
    bob, eve = world.session("bob"), world.session("eve")
    bob("CREATE SCHEMA hidden_own")
    owners = dict(world.database.rights.owners)
    for statement in ("CREATE OR REPLACE SCHEMA hidden_own", "CREATE SCHEMA IF NOT EXISTS hidden_own",
                      "CREATE OR REPLACE SCHEMA bobs", "CREATE OR REPLACE SCHEMA main"):  # fmt: skip
        tried(eve, statement)
        assert dict(world.database.rights.owners) == owners, statement
    bob(f'CREATE TABLE hidden_own."{CANARY}" (i INT)')
    # DuckDB's hint names what is in it.
    for statement in ("CREATE OR REPLACE SCHEMA hidden_own", "DROP SCHEMA hidden_own",
                      "DROP SCHEMA hidden_own CASCADE", "CREATE OR REPLACE SCHEMA main"):  # fmt: skip
        (answer,) = tried(eve, statement)
        assert answer.sqlstate in REFUSED, f"{statement}: {answer}"
    bob(f'SELECT * FROM hidden_own."{CANARY}"')


# Other places in which a name, or a value, comes from somebody else.


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT s FROM memory.temp.t",
        "INSERT INTO memory.temp.t VALUES ('x')",
        "UPDATE memory.temp.t SET s = 'x'",
        "TRUNCATE memory.temp.t",
        "DESCRIBE memory.temp.t",
        "ALTER TABLE memory.temp.t ADD COLUMN x INT",
        "COMMENT ON TABLE memory.temp.t IS 'x'",
        "CREATE INDEX i ON memory.temp.t (s)",
        "COPY memory.temp.t TO STDOUT",
        "DROP TABLE memory.temp.t",
        "DROP SEQUENCE memory.temp.n",
        "DROP VIEW memory.temp.v",
        "CREATE TABLE memory.temp.u (i INT)",
        "CREATE VIEW memory.temp.u AS SELECT 1 AS i",
        "CREATE SEQUENCE memory.temp.m",
        "CREATE TYPE memory.temp.e AS ENUM ('x')",
        "CREATE STREAM memory.temp.changes ON eves.own",
        "GRANT SELECT ON memory.temp.t TO eve",
        "SET VARIABLE x = (SELECT max(s) FROM memory.temp.t)",
        "SELECT nextval('memory.temp.n')",
        "DROP SCHEMA memory.temp CASCADE",
    ],
)
def test_a_persistent_schema_called_temp(shared_temp: Shared, statement: str) -> None:
    """It is no session's own. It cannot be made, or what is in it is as well kept as anything."""
    world = shared_temp.take()
    before = world.things()
    try:
        (answer,) = tried(eve_of(world), statement)
        assert answer.sqlstate in REFUSED, answer
        assert world.things() == before
        assert world.root.ask("SELECT s FROM memory.temp.t").rows in ((), ((CANARY,),))
    finally:
        shared_temp.give_back()


@pytest.fixture(scope="module")
def shared_temp() -> Iterator[Shared]:
    """A world with such a schema, if there can be one."""

    def make() -> World:
        world = plain_world()
        world.session("eve")("CREATE TABLE eves.own (id INT PRIMARY KEY)")
        for statement in (
            "CREATE SCHEMA temp",
            "CREATE TABLE memory.temp.t (s TEXT)",
            "CREATE SEQUENCE memory.temp.n",
            f"INSERT INTO memory.temp.t VALUES ('{CANARY}')",
            "CREATE VIEW memory.temp.v AS SELECT 1 AS i",
        ):
            world.root.ask(statement)
        return world

    shared = Shared(make)
    yield shared
    shared.close()


@pytest.mark.parametrize("name", ["temp", "system", "pg_temp", "memory"])
def test_a_schema_under_a_name_of_the_systems(world: World, name: str) -> None:
    """Made by one who may make schemas: what he makes there is his, and nobody else's names go there."""
    world.run("GRANT CREATE ON DATABASE TO eve", "CREATE TABLE victim (s TEXT)")
    eve = world.session("eve")
    tried(eve, f"CREATE SCHEMA {name}", f"CREATE TABLE memory.{name}.victim (s TEXT)")
    world.run(*(f"INSERT INTO {place}victim VALUES ('{CANARY}')" for place in ("", "memory.main.")))
    for place in (f"memory.{name}.", f"{name}.", ""):
        tried(eve, f"SELECT * FROM {place}victim", f"TRUNCATE {place}victim")
    tried(eve, f"DROP TABLE memory.{name}.victim", f"DROP TABLE {name}.victim")
    assert world.root("SELECT count(*) FROM victim") == (("2",),)


@pytest.mark.parametrize(
    "definition",
    [
        "v TEXT DEFAULT (getvariable('secret'))",
        "v TEXT DEFAULT (coalesce(getvariable('secret'), 'x')::TEXT)",
        "v TEXT DEFAULT (current_query())",
        "v TEXT DEFAULT ('secret'.getvariable())",
        "v TEXT DEFAULT (\"getvariable\"('secret'))",
        "v TEXT DEFAULT (main.current_query())",
    ],
)
def test_a_default_takes_nothing_from_whoever_writes(world: World, definition: str) -> None:
    """The writer's variables and the text of his statement are his own; an INSERT fills them in."""
    eve, bob = world.session("eve"), world.session("bob")
    (made,) = tried(eve, f"CREATE TABLE eves.t (i INT, {definition})")
    tried(eve, "CREATE TABLE eves.t (i INT, v TEXT)")
    column, _, default = definition.partition(" TEXT DEFAULT ")
    tried(eve, f"ALTER TABLE eves.t ALTER {column} SET DEFAULT {default}",
          f"ALTER TABLE eves.t ADD COLUMN w TEXT DEFAULT {default}")  # fmt: skip
    world.run("GRANT INSERT ON eves.t TO bob")
    bob(f"SET VARIABLE secret = '{CANARY}'")
    for way in ("INSERT INTO eves.t (i) VALUES (1)", "INSERT INTO eves.t VALUES (1, DEFAULT)",
                "COPY eves.t (i) FROM STDIN"):  # fmt: skip
        bob.ask(f"{way} /* {CANARY} */", data=b"1\n")
    tried(eve, "SELECT * FROM eves.t")
    assert made.sqlstate in (OK, "42501"), made


def test_listening_ends_with_the_right(world: World) -> None:
    eve, last = world.session("eve"), 0

    def heard(*before: str) -> list[str]:
        """What eve hears of an event behind these statements, once it is readable."""
        nonlocal last
        last += 1
        events = 1 if any(text.startswith("CREATE STREAM") for text in before) else last
        world.run(*before, f"INSERT INTO t VALUES ({last})")
        world.run(f"SELECT * FROM STREAM s WAIT '5 s' FOR {events}")
        return eve.notified()

    made = "CREATE STREAM s ON t WITH (partitions = 1)"
    world.run("CREATE TABLE t (id INT PRIMARY KEY)", made, "GRANT SELECT ON s TO eve")
    eve("LISTEN s")
    assert heard() == ["s"]
    assert heard("REVOKE SELECT ON s FROM eve") == []
    heard("GRANT SELECT ON s TO eve")
    assert heard("DROP STREAM s", made) == [], "another stream that has got its name"


@pytest.mark.parametrize("list_", ["ducktail.pipelines", "ducktail.pipeline_history", "ducktail.checkpoints"])
def test_others_pipelines_and_checkpoints(world: World, list_: str) -> None:
    """Nor to one who may read, or consume from, the stream that they are of."""
    bob, eve = world.session("bob"), world.session("eve")
    bob("CREATE TABLE bobs.t (id INT PRIMARY KEY)")
    bob("CREATE STREAM bobs.s ON bobs.t")
    bob(f'CREATE CONSUMER GROUP "{CANARY}" ON bobs.s')
    bob("INSERT INTO bobs.t VALUES (1)")
    bob(f"SELECT * FROM STREAM bobs.s CONSUMER GROUP \"{CANARY}\" WAIT '5 s'")
    bob(f'COMMIT OFFSETS ON bobs.s CONSUMER GROUP "{CANARY}"')
    for privilege in ("SELECT", "CONSUME"):
        bob(f"GRANT {privilege} ON bobs.s TO eve")
    bob(f'REPORT PIPELINE \'{CANARY}\' AS \'{{"offsets": {{"bobs.s": "{CANARY}"}}}}\'')
    bob(f'CREATE BOOKMARK "{CANARY}" ON bobs.s')
    # Her own under a name that Python folds to his.
    tried(eve, f"REPORT PIPELINE 'canary-{KELVIN}' AS '{{}}'", f"SELECT * FROM {list_}", "SHOW CHECKPOINTS",
          "SHOW CHECKPOINTS ON bobs.s", "SHOW CONSUMER GROUPS", "SHOW BOOKMARKS", "SHOW BOOKMARKS ON bobs.s",
          "SELECT * FROM ducktail.offsets", "DESCRIBE STREAM bobs.s")  # fmt: skip


# Views and macros: names in them are looked up in the session of who reads.


VIEWS = {
    "main.by_subquery": "SELECT secret FROM pay WHERE who IN (SELECT who FROM allowed)",
    "main.by_join": "SELECT secret FROM pay JOIN allowed USING (who)",
    "main.by_schema": "SELECT secret FROM main.pay WHERE who IN (SELECT who FROM main.allowed)",
    "views.elsewhere": "SELECT secret FROM pay WHERE who IN (SELECT who FROM allowed)",
    "main.by_macro": "SELECT secret FROM main.pay WHERE permitted(who)",
    "main.by_table_macro": "SELECT secret FROM main.pay WHERE who IN (FROM all_permitted())",
    "main.upon_views": "SELECT secret FROM views.elsewhere UNION FROM main.by_subquery",
}


def pay_world() -> World:
    """A world with views of bob's that show eve the rows of whom `allowed` has."""
    world = plain_world()
    world.run("CREATE SCHEMA views")
    world.run(*(f"GRANT CREATE ON SCHEMA {name} TO bob" for name in ("views", "main")))
    bob = world.session("bob")
    for statement in (
        "CREATE TABLE pay (who TEXT, secret TEXT)",
        f"INSERT INTO pay VALUES ('ceo', '{CANARY}'), ('eve', 'fine')",
        "CREATE TABLE allowed (who TEXT)",
        "INSERT INTO allowed VALUES ('eve')",
    ):
        bob(statement)
    world.run(
        "CREATE MACRO permitted(w) AS w IN (SELECT who FROM allowed)",
        "CREATE MACRO all_permitted() AS TABLE SELECT who FROM allowed",
    )
    for name, query in VIEWS.items():
        bob(f"CREATE VIEW {name} AS {query}")
        bob(f"GRANT SELECT ON {name} TO eve")
    return world


@pytest.fixture(scope="module")
def shared_pay() -> Iterator[Shared]:
    """What `paying` gives."""
    shared = Shared(pay_world)
    yield shared
    shared.close()


@pytest.fixture
def paying(shared_pay: Shared) -> Iterator[World]:
    """A world with these views, of several tests."""
    yield shared_pay.take()
    shared_pay.give_back()


SHADOWS = [
    "CREATE TEMP TABLE allowed AS SELECT 'ceo' AS who",
    "CREATE TEMP VIEW allowed AS SELECT 'ceo' AS who",
    "CREATE TABLE eves.allowed AS SELECT 'ceo' AS who; SET search_path = 'eves, main'",
    "CREATE VIEW eves.allowed AS SELECT 'ceo' AS who; SET search_path = 'eves, views, main'",
    "CREATE TABLE eves.allowed AS SELECT 'ceo' AS who; SET schema = 'eves'",
]


@pytest.mark.parametrize(("view", "shadow"), share([*VIEWS], SHADOWS, "views of others"))
def test_a_view_reads_its_owners_tables(paying: World, view: str, shadow: str) -> None:
    """Names in it are looked up for whoever made it, not in the session of who reads."""
    eve = eve_of(paying)
    tried(eve, *shadow.split("; "))
    for read in (
        "SELECT * FROM {0}",
        "SELECT (SELECT string_agg(secret) FROM {0})",
        "WITH allowed AS (SELECT 'ceo' AS who) SELECT * FROM {0}",
        "COPY {0} TO STDOUT",
        "EXECUTE one((SELECT string_agg(secret) FROM {0}))",
        "SET VARIABLE x = (SELECT list(secret) FROM {0})",
        "CREATE TEMP TABLE mine AS FROM {0}",
    ):
        (answer,) = tried(eve, read.format(view))
        assert answer.sqlstate in (OK, *REFUSED), answer
        if answer.rows:
            assert "fine" in answer, answer
    tried(eve, "SELECT getvariable('x')::TEXT", "SELECT * FROM mine")
    for kind in ("TABLE", "VIEW"):
        if f"CREATE {kind} eves" in shadow:
            eve(f"DROP {kind} eves.allowed")


def test_a_view_that_a_stranger_can_fill_in(paying: World) -> None:
    """A name that a view's text has and that nobody has any more is not whoever makes it next."""
    paying.run("DROP TABLE allowed", "GRANT CREATE ON SCHEMA main TO eve")
    eve = paying.session("eve")
    tried(eve, "CREATE TABLE allowed AS SELECT 'ceo' AS who")
    tried(eve, *(f"SELECT * FROM {view}" for view in VIEWS))


def test_views_and_macros_of_superusers_read_what_they_name() -> None:
    """Whatever the reader's search path is, and whether he is told of what stands under them or not."""
    world = World()
    world.people(["root"], ["eve"])
    world.run(
        "CREATE SCHEMA eves",
        "CREATE TABLE few (id INT, s TEXT)",
        f"INSERT INTO few VALUES (1, '{CANARY}')",
        "CREATE VIEW shown AS SELECT id FROM few",
        "CREATE MACRO counted() AS (SELECT max(s) FROM few)",
        "CREATE MACRO listed() AS TABLE FROM few",
        "GRANT CREATE ON SCHEMA eves TO eve",
        "GRANT SELECT ON SCHEMA eves TO eve",
        "GRANT SELECT ON shown TO eve",
    )
    for path in ("main", "eves", "eves,main", "main,eves"):
        eve = world.session("eve", search_path=path)
        assert eve("FROM main.shown") == (("1",),), path
        tried(
            eve,
            "SET VARIABLE q = (SELECT list(m) FROM listed() AS m)",
            "SELECT getvariable('q')::TEXT",
            "SELECT counted()",
            "EXPLAIN FROM listed()",
            "CREATE TABLE eves.kept AS FROM listed()",
        )
        assert eve.ask("DESCRIBE FROM listed()").sqlstate == "42501", path
    world.close()
