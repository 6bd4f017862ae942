"""A user who wants more than he was given: doors that stood open once, each tried at what is another's.

`eve` may make things in her schema, and may read table `open`; everything whose name begins with `hidden`
is not for her. Each of these gave a value, a name or a label of it, or the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER eve PASSWORD 'x';
CREATE USER bob PASSWORD 'x';
CREATE TABLE hidden (id INT PRIMARY KEY, v TEXT);
INSERT INTO hidden VALUES (1, 'hidden value');
CREATE SCHEMA hidden_schema;
CREATE TABLE hidden_schema.hidden_table (id INT PRIMARY KEY, v TEXT);
INSERT INTO hidden_schema.hidden_table VALUES (1, 'hidden value');
CREATE TYPE hidden_schema.hidden_type AS ENUM ('hidden label');
CREATE SEQUENCE hidden_schema.hidden_sequence;
CREATE SEQUENCE hidden_sequence;
CREATE MACRO next_of(s) AS nextval(s);
CREATE MACRO next_hidden() AS nextval('hidden_sequence');
CREATE STREAM hidden_stream ON hidden;
CREATE TABLE open (id INT PRIMARY KEY, v INT);
INSERT INTO open SELECT i, i * 7 FROM range(1000) AS r(i);
CREATE VIEW few AS SELECT id, v FROM open WHERE id < 3;
GRANT SELECT ON few TO eve;
CREATE SCHEMA eves;
GRANT CREATE ON SCHEMA eves TO eve;
CREATE SCHEMA shared;
GRANT CREATE ON SCHEMA shared TO eve;
GRANT CREATE ON SCHEMA shared TO bob;
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("hostile") / "shop.duckdb"
    with ServerProcess(path) as started:
        with started.connect() as first:
            for statement in filter(str.strip, SETUP.split(";")):
                first.execute(statement)
        with connect(started, "eve") as eve:
            eve.execute("CREATE TABLE eves.mine (id INT PRIMARY KEY, v TEXT)")
            eve.execute("INSERT INTO eves.mine VALUES (1, 'a')")
        yield started


def connect(server: ServerProcess, user: str) -> Connection:
    return server.connect(user=user, password="x")


def refused(connection: Connection, statement: str, *sqlstates: str) -> psycopg.errors.Diagnostic:
    """What the error of a statement tells; all but the first of several must do."""
    *before, last = statement.split("; ")
    for each in before:
        connection.execute(each)
    with pytest.raises(psycopg.Error) as error:
        found = connection.execute(last)
        raise AssertionError(f"{statement}: {found.fetchall() if found.description else 'done'}")
    assert error.value.diag.sqlstate in sqlstates
    return error.value.diag


ENGINES_OWN = ["ducktail_live('streams', NULL)", "current_setting('temp_directory')"]


@pytest.mark.parametrize("call", [*ENGINES_OWN, "__ducktail_setting({pid}, 'application_name')",
                                  "__ducktail_signal({pid}, {pid}, 'terminate')"])  # fmt: skip
@pytest.mark.parametrize(
    "definition",
    [
        "CREATE TABLE eves.t (i INT, v VARCHAR DEFAULT {0})",
        "CREATE TABLE eves.t (i INT, v VARCHAR DEFAULT coalesce(NULL, {0}::VARCHAR))",
        "CREATE TEMP TABLE t (i INT, v VARCHAR DEFAULT {0})",
        "CREATE TABLE eves.t (i INT CHECK ({0} IS NULL))",
        "CREATE TABLE eves.t (i INT, v VARCHAR GENERATED ALWAYS AS ({0}))",
        "CREATE TABLE IF NOT EXISTS eves.t (i INT, v VARCHAR DEFAULT {0})",
        "ALTER TABLE eves.mine ADD COLUMN w VARCHAR DEFAULT {0}",
        "ALTER TABLE eves.mine ALTER v SET DEFAULT {0}",
        "ALTER TABLE eves.mine ALTER v TYPE VARCHAR USING {0}",
        "CREATE INDEX i ON eves.mine ((v || {0}))",
        "MERGE INTO eves.mine AS t USING (SELECT 1 AS id) AS s ON t.id = s.id AND {0} IS NOT NULL "
        "WHEN MATCHED THEN UPDATE SET v = 'b'",
        "MERGE INTO eves.mine AS t USING (SELECT 1 AS id) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = {0}",
        "MERGE INTO eves.mine AS t USING (SELECT 1 AS id) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = 'b' RETURNING {0}",
    ],
)
def test_definitions_call_nothing_of_the_engines(
    eve: Connection, ann: Connection, definition: str, call: str
) -> None:
    refused(eve, definition.format(call.format(pid=ann.info.backend_pid)), "42501")
    assert ann.execute("SELECT 1").fetchall() == [(1,)]


def test_a_quoted_name_is_a_call_too(eve: Connection) -> None:
    refused(eve, """CREATE TABLE eves.t (v VARCHAR DEFAULT "ducktail_live"('streams', NULL))""", "42501")
    refused(eve, "CREATE TABLE eves.t (v VARCHAR DEFAULT main.current_setting('threads'))", "42501")
    refused(eve, "CREATE TABLE eves.t (v VARCHAR DEFAULT 'threads'.current_setting())", "42501")


def test_a_definition_may_call_what_a_query_may(eve: Connection) -> None:
    eve.execute("CREATE SEQUENCE eves.counter")
    eve.execute(
        "CREATE TABLE eves.ordinary (id INT DEFAULT nextval('eves.counter'), made TIMESTAMPTZ DEFAULT now(), "
        "price DECIMAL(10, 2) CHECK (abs(price) < 100), doubled INT GENERATED ALWAYS AS (2 * id))"
    )
    # Names before a bracket that are no calls.
    eve.execute("CREATE TABLE eves.stats (index_key INT PRIMARY KEY)")
    eve.execute("CREATE TABLE eves.child (i INT, FOREIGN KEY (i) REFERENCES eves.stats (index_key))")
    eve.execute("CREATE INDEX lowered ON eves.mine (lower(v))")
    eve.execute("INSERT INTO eves.ordinary (price) VALUES (1.5)")
    assert eve.execute("SELECT id, doubled FROM eves.ordinary").fetchall() == [(1, 2)]
    for table in ("child", "stats", "ordinary"):
        eve.execute(f"DROP TABLE eves.{table}")
    eve.execute("DROP SEQUENCE eves.counter")
    eve.execute("DROP INDEX eves.lowered")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT v FROM hidden",
        "SELECT v FROM {0}.hidden_schema.hidden_table",
        "FROM (SELECT v FROM hidden)",
        "(SELECT v FROM hidden)",
        "WITH q AS (SELECT v FROM hidden) FROM q",
        "VALUES ((SELECT max(v) FROM hidden))",
        "SHOW TABLES",
        "SELECT table_name FROM duckdb_tables()",
        "SELECT v FROM read_csv('/etc/passwd')",
    ],
)
def test_labels_of_a_type_are_no_way_to_values(eve: Connection, query: str) -> None:
    refused(eve, f"CREATE TYPE eves.t AS ENUM ({query.format('shop')})", "42P01", "42704", "42501")


def test_labels_may_come_from_what_one_may_read(eve: Connection) -> None:
    eve.execute("CREATE TYPE eves.letters AS ENUM (SELECT v FROM eves.mine)")
    assert eve.execute("SELECT enum_range(NULL::eves.letters)").fetchall() == [(["a"],)]
    eve.execute("DROP TYPE eves.letters")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE eves.t (i hidden_schema.hidden_type)",
        "CREATE TABLE eves.t (i {0}.hidden_schema.hidden_type)",
        "CREATE TYPE eves.t AS {0}.hidden_schema.hidden_type",
        "ALTER TABLE eves.mine ADD COLUMN w {0}.hidden_schema.hidden_type",
        "MERGE INTO eves.mine AS t USING (SELECT 1 AS id) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = enum_range(NULL::hidden_schema.hidden_type)::VARCHAR",
        "PREPARE p (hidden_schema.hidden_type) AS SELECT $1",
        "PREPARE p (int, {0}.hidden_schema.hidden_type) AS SELECT $1, $2",
        "CREATE STREAM eves.s ON eves.mine WHERE v::hidden_schema.hidden_type IS NULL",
        "CREATE STREAM eves.s ON eves.mine WHERE make_type('hidden_schema.hidden_type') IS NULL",
        "SELECT make_type('hidden_schema.hidden_type')",
        "SELECT make_type('hidden_schema' || '.hidden_type')",
        """SELECT from_json('["hidden label"]', '["hidden_schema.hidden_type"]')""",
        """SELECT json_transform('["hidden label"]', '["hidden_schema\\u002ehidden_type"]')""",
        "CREATE TABLE eves.t (v VARCHAR DEFAULT make_type('hidden_schema.hidden_type')::VARCHAR)",
    ],
)
def test_labels_of_a_hidden_type(eve: Connection, statement: str) -> None:
    told = refused(eve, statement.format("shop"), "3F000", "42704", "42501")
    assert "hidden label" not in str(told.message_primary)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW eves.t AS SELECT * FROM {0}.hidden_table",
        "CREATE TABLE eves.t AS SELECT * FROM {0}.hidden_table",
        "CREATE TYPE eves.t AS ENUM (SELECT v FROM {0}.hidden_table)",
        "CREATE TYPE eves.t AS {0}.hidden_type",
        "CREATE TABLE eves.t (i {0}.hidden_type)",
        "CREATE TABLE eves.t (i MAP(INT, {0}.hidden_type))",
        "CREATE TABLE eves.t (i STRUCT(a {0}.hidden_type[]))",
        "CREATE TABLE eves.t (i INT REFERENCES {0}.hidden_table (id))",
        "CREATE TABLE eves.t (i INT CHECK ({0}.i > 0))",
        "CREATE TABLE eves.t (i INT DEFAULT {0}.f())",
        "CREATE TABLE eves.t (i INT DEFAULT (NULL::{0}.hidden_type)::INT)",
        "CREATE TABLE eves.t (i INT DEFAULT CAST(NULL AS {0}.hidden_type)::INT)",
        "CREATE TABLE eves.t (v VARCHAR DEFAULT {0}.hidden_type 'hidden label')",
        "ALTER TABLE eves.mine ADD COLUMN w {0}.hidden_type",
        "ALTER TABLE eves.mine ALTER v TYPE {0}.hidden_type",
        "CREATE INDEX i ON {0}.hidden_table (id)",
        "CREATE STREAM {0}.s ON eves.mine",
        "CREATE STREAM eves.s ON {0}.hidden_table",
        "CREATE STREAM eves.s ON eves.mine, {0}.hidden_table",
        "SELECT NULL::{0}.hidden_type",
    ],
)
def test_a_definition_does_not_tell_of_a_hidden_schema(eve: Connection, statement: str) -> None:
    states = ("42P01", "42704", "3F000", "42601", "42883", "42703")
    hidden, absent = (
        refused(eve, statement.format(name), *states) for name in ("hidden_schema", "absent_schema")
    )
    parts = ("sqlstate", "message_primary", "message_detail", "message_hint")
    told, expected = ([getattr(diag, part) for part in parts] for diag in (hidden, absent))
    assert [part and part.replace("hidden_schema", "absent_schema") for part in told] == expected


def test_a_structure_of_plain_types_is_taken(eve: Connection) -> None:
    found = eve.execute("""SELECT from_json('{"a": "1"}', '{"a": "INT"}').a""").fetchall()
    assert found == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        """CREATE TABLE eves.t (i INT DEFAULT "nextval"('hidden_sequence'))""",
        "CREATE TABLE eves.t (i INT DEFAULT 'hidden_sequence'.nextval())",
        "CREATE TABLE eves.t (i INT DEFAULT nextval('hidden_' || 'sequence'))",
        "MERGE INTO eves.mine AS t USING (SELECT 1 AS id) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = nextval('hidden_sequence')::VARCHAR",
        "SELECT next_hidden()",
        "SELECT next_of('hidden_sequence')",
        "CREATE TABLE eves.t (i INT DEFAULT next_hidden())",
    ],
)
def test_a_hidden_sequence_stays_where_it_is(eve: Connection, ann: Connection, statement: str) -> None:
    refused(eve, statement, "42P01", "42501")
    with pytest.raises(psycopg.Error, match="not yet defined"):
        ann.execute("SELECT currval('hidden_sequence')")


def test_a_view_tells_nothing_of_rows_that_it_leaves_out(eve: Connection) -> None:
    assert eve.execute("SELECT max(v) FROM few").fetchall() == [(14,)]
    refused(eve, "SELECT stats(v) FROM few", "42501")


@pytest.mark.parametrize(
    "call",
    ["__internal_decompress_string(1::UTINYINT)", "json_serialize_sql('SELECT 1')",
     "json_deserialize_sql('{}')", "index_key(NULL, 'x')"],
)  # fmt: skip
def test_what_is_duckdbs_own_is_not_called(eve: Connection, call: str) -> None:
    refused(eve, f"SELECT {call}", "42501")


def test_a_foreign_key_that_is_in_the_way_is_not_named(eve: Connection, bob: Connection) -> None:
    bob.execute("CREATE TABLE shared.parent (id INT PRIMARY KEY)")
    bob.execute("GRANT SELECT ON shared.parent TO eve")
    eve.execute("CREATE TABLE shared.hidden_child (id INT REFERENCES shared.parent (id))")
    told = refused(bob, "DROP TABLE shared.parent", "2BP01")
    assert "hidden" not in f"{told.message_primary} {told.message_detail} {told.message_hint}"
    eve.execute("DROP TABLE shared.hidden_child")
    bob.execute("DROP TABLE shared.parent")


NESTED = {
    "subqueries": ("SELECT * FROM ", "(SELECT * FROM ", "open", ")"),
    "joins": ("SELECT * FROM ", "(", "open", " CROSS JOIN open)"),
    "expressions": ("SELECT ", "(", "1", ")"),
    "lists": ("SELECT ", "[", "1", "]"),
    "variables": ("SET VARIABLE x = ", "(", "1", ")"),
    "catalog": ("SELECT oid FROM pg_class WHERE ", "(", "true", ")"),
    "words": ("SELECT ", "NOT ", "true", ""),
    "operators": ("SELECT ", "@ ", "1", ""),
}


@pytest.mark.parametrize("depth", [500, 100_000])
@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("user", ["eve", "ann"])
def test_what_is_nested_too_deeply_is_refused(
    server: ServerProcess, user: str, kind: str, depth: int
) -> None:
    before, opening, inner, closing = NESTED[kind]
    with connect(server, user) as connection:
        text = before + opening * depth + inner + closing * depth
        try:
            connection.execute(text)
        except psycopg.Error as error:
            # 42601 is DuckDB's own bound of an expression.
            assert error.diag.sqlstate in ("54000", "42601", "42P01", "42702"), error
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_long_lists_of_literals_cost_no_tree(eve: Connection) -> None:
    numbers = ", ".join(map(str, range(20_000)))
    found = eve.execute(f"SELECT count(*) FROM few WHERE id IN ({numbers})").fetchall()  # type: ignore[call-overload]
    assert found == [(3,)]
    rows = ", ".join(f"({n + 1_000}, 'a''b')" for n in range(5_000))
    eve.execute(f"INSERT INTO eves.mine VALUES {rows}")  # type: ignore[call-overload]
    eve.execute("DELETE FROM eves.mine WHERE id >= 1000")
    # What stands among them, or behind, is seen all the same.
    for query in (
        f"SELECT 1 WHERE 1 IN ({numbers}, (SELECT max(id) FROM hidden))",
        f"SELECT 1 WHERE 1 IN ({numbers}) AND EXISTS (FROM hidden)",
        f"INSERT INTO eves.mine VALUES {rows}, ((SELECT max(id) FROM hidden), 'x')",
        f"INSERT INTO eves.mine SELECT id, v FROM hidden WHERE id NOT IN ({numbers})",
    ):
        told = refused(eve, query, "42P01")
        assert told.statement_position is None or int(told.statement_position) == query.index("hidden") + 1


def test_a_tree_without_bound_is_refused(eve: Connection) -> None:
    calls = ", ".join(["abs(1)"] * 100_000)
    refused(eve, f"SELECT 1 IN ({calls})", "54000")


def test_nobody_sleeps_on_a_thread_of_the_servers(eve: Connection) -> None:
    refused(eve, "SELECT pg_sleep(100)", "42501")


@pytest.mark.parametrize("kind", ["TABLE {} (v TEXT)", "VIEW {} AS SELECT 1 AS v", "SEQUENCE {}",
                                  "TYPE {} AS ENUM ('a')", "TABLE {} AS SELECT 1 AS v"])  # fmt: skip
@pytest.mark.parametrize(("squatted", "meant"), [("ÉTÉ", "été"), ("\u212aey", "key")])
def test_no_name_is_owned_before_it_is_made(
    eve: Connection, bob: Connection, kind: str, squatted: str, meant: str
) -> None:
    """Python's small letters of the one are the other; DuckDB tells them apart, and so do rights."""
    word = kind.partition(" ")[0]
    eve.execute("CREATE " + kind.format(f'shared."{squatted}"'))  # type: ignore[call-overload]
    refused(bob, f'DROP {word} shared."{squatted}"', "42P01", "42704")
    bob.execute("CREATE " + kind.format(f'shared."{meant}"'))  # type: ignore[call-overload]
    refused(eve, f'DROP {word} shared."{meant}"', "42P01", "42704")
    bob.execute(f'DROP {word} shared."{meant}"')  # type: ignore[call-overload]
    eve.execute(f'DROP {word} shared."{squatted}"')  # type: ignore[call-overload]
    eve.execute(f'CREATE TABLE eves.t (i INT); ALTER TABLE eves.t RENAME TO "{squatted}"')
    refused(bob, f'SELECT * FROM eves."{squatted}"', "42P01")
    refused(eve, f'DROP TABLE eves."{meant}"', "42P01")
    eve.execute(f'DROP TABLE eves."{squatted}"')  # type: ignore[call-overload]


def test_a_name_in_other_capitals_is_the_same_name(bob: Connection, eve: Connection) -> None:
    bob.execute('CREATE TABLE shared."Mixed" (v TEXT)')
    refused(eve, "SELECT * FROM shared.MIXED", "42P01")
    assert bob.execute("SELECT * FROM shared.mixed").fetchall() == []
    bob.execute("DROP TABLE shared.mixed")
