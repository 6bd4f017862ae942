"""What a user may know: each way that a statement can take to the data, tried at what is not his.

`hidden` is a table that he has no right on, `absent` one that is not there: whatever he tries, the two must
be answered alike, word for word but for the name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from hidden_things import Connection, serving_hidden_things, told
from server_process import ServerProcess

DENIED = psycopg.errors.InsufficientPrivilege


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Tests leave it as it was."""
    with serving_hidden_things(tmp_path_factory.mktemp("hidden")) as started:
        yield started


# Ways to read, change, describe or reach a table that is {0}.
WAYS = [
    "SELECT * FROM {0}",
    "SELECT * FROM main.{0}",
    "SELECT * FROM ducktail.main.{0}",
    'SELECT * FROM "{0}"',
    "SELECT * FROM '{0}'",
    "FROM {0}",
    "TABLE {0}",
    "SELECT count(*) FROM {0}",
    "SELECT 1 FROM {0} WHERE false",
    "SELECT no_such_column FROM {0}",
    "SELECT * FROM open, {0}",
    "SELECT * FROM open JOIN {0} USING (id)",
    "SELECT * FROM open POSITIONAL JOIN {0}",
    "SELECT * FROM open WHERE id IN (SELECT id FROM {0})",
    "SELECT * FROM open WHERE EXISTS (FROM {0})",
    "SELECT (SELECT max(id) FROM {0})",
    "SELECT * FROM open ORDER BY (SELECT max(id) FROM {0})",
    "SELECT * FROM open LIMIT (SELECT count(*) FROM {0})",
    "SELECT * FROM open, LATERAL (SELECT * FROM {0})",
    "SELECT list_transform([1], LAMBDA x: (SELECT max(id) FROM {0}))",
    "SELECT sum(id) FILTER (WHERE id IN (SELECT id FROM {0})) FROM open",
    "SELECT * FROM open UNION ALL SELECT * FROM {0}",
    "WITH w AS (SELECT * FROM {0}) SELECT * FROM w",
    "WITH {0} AS (SELECT * FROM {0}) SELECT * FROM {0}",
    "WITH w AS (SELECT 1) SELECT * FROM open WHERE id IN (SELECT id FROM {0})",
    "WITH RECURSIVE w AS (SELECT id FROM {0} UNION ALL SELECT id + 1 FROM w WHERE id < 3) SELECT * FROM w",
    "FROM {0} PIVOT (count(*) FOR id IN (1, 2))",
    "FROM open PIVOT (count(*) FOR id IN ((SELECT id FROM {0})))",
    "FROM {0} UNPIVOT (x FOR y IN (id))",
    "SELECT * FROM {0} TABLESAMPLE 50%",
    "VALUES ((SELECT max(id) FROM {0}))",
    "DESCRIBE {0}",
    "DESC {0}",
    "DESCRIBE SELECT * FROM {0}",
    "SUMMARIZE {0}",
    "SELECT * FROM (DESCRIBE {0})",
    "SHOW {0}",
    "EXPLAIN SELECT * FROM {0}",
    "EXPLAIN ANALYZE SELECT * FROM {0}",
    "EXPLAIN INSERT INTO bobs.mine SELECT id FROM {0}",
    "PREPARE p AS SELECT * FROM {0}",
    "PREPARE p AS INSERT INTO {0} VALUES (9)",
    "INSERT INTO {0} VALUES (9, 'x')",
    "INSERT INTO {0} DEFAULT VALUES",
    "INSERT INTO bobs.mine SELECT id, 'x' FROM {0}",
    "INSERT INTO bobs.mine VALUES ((SELECT max(id) FROM {0}), 'x')",
    "INSERT INTO bobs.mine VALUES (9, 'x') RETURNING (SELECT max(id) FROM {0})",
    "INSERT INTO bobs.mine VALUES (1, 'x') ON CONFLICT DO UPDATE SET v = (SELECT max(id) FROM {0})",
    "UPDATE {0} SET id = 9",
    "UPDATE bobs.mine SET v = (SELECT max(id) FROM {0})",
    "UPDATE bobs.mine SET v = 'x' FROM {0} WHERE {0}.id = mine.id",
    "DELETE FROM {0}",
    "DELETE FROM bobs.mine WHERE id IN (SELECT id FROM {0})",
    "DELETE FROM bobs.mine USING {0} WHERE {0}.id = mine.id",
    "TRUNCATE {0}",
    "TRUNCATE TABLE {0}",
    "MERGE INTO {0} USING bobs.mine AS m ON {0}.id = m.id WHEN MATCHED THEN DELETE",
    "MERGE INTO bobs.mine USING {0} AS h ON mine.id = h.id WHEN MATCHED THEN DELETE",
    "MERGE INTO bobs.mine USING (SELECT * FROM {0}) AS h ON mine.id = h.id WHEN MATCHED THEN DELETE",
    "MERGE INTO bobs.mine USING open AS o ON mine.id = (SELECT max(id) FROM {0}) WHEN MATCHED THEN DELETE",
    "WITH w AS (INSERT INTO {0} VALUES (9, 'x') RETURNING id) SELECT * FROM w",
    "WITH w AS (UPDATE {0} SET id = 9 RETURNING id) SELECT * FROM w",
    "WITH w AS (DELETE FROM {0} RETURNING id) SELECT * FROM w",
    "WITH w AS (INSERT INTO bobs.mine SELECT id, 'x' FROM {0} RETURNING id) SELECT * FROM w",
    "CREATE TABLE bobs.copied AS SELECT * FROM {0}",
    "CREATE TEMP TABLE copied AS SELECT * FROM {0}",
    "CREATE VIEW bobs.looked AS SELECT * FROM {0}",
    "CREATE TEMP VIEW looked AS SELECT * FROM {0}",
    "CREATE TABLE bobs.child (id INT REFERENCES {0} (id))",
    "CREATE INDEX i ON {0} (id)",
    "CREATE STREAM bobs.s ON {0}",
    "ALTER TABLE {0} ADD COLUMN x INT",
    "ALTER TABLE {0} RENAME TO mine_now",
    "DROP TABLE {0}",
    "DROP VIEW {0}",
    "COMMENT ON TABLE {0} IS 'x'",
    "COMMENT ON COLUMN {0}.id IS 'x'",
    "COPY {0} FROM STDIN",
    "COPY (SELECT * FROM {0}) TO '/tmp/x.csv'",
    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM {0}",
    "COPY {0} TO STDOUT",
    "COPY {0} (id) TO STDOUT (FORMAT binary)",
    "COPY (SELECT * FROM {0}) TO STDOUT",
    "COPY (WITH w AS (FROM {0}) SELECT * FROM w) TO STDOUT (FORMAT csv)",
    "COPY (DELETE FROM {0} RETURNING id) TO STDOUT",
    "COPY (INSERT INTO bobs.mine SELECT id, 'x' FROM {0} RETURNING id) TO STDOUT",
    "GRANT SELECT ON {0} TO bob",
    "REVOKE SELECT ON {0} FROM bob",
    "SELECT * FROM STREAM {0}",
    "SET VARIABLE x = (SELECT max(id) FROM {0})",
    "SELECT '{0}'::regclass",
    "SELECT * FROM query_table('{0}')",
    "SELECT * FROM query('SELECT * FROM {0}')",
    "SELECT * FROM histogram({0}, id)",
    "SELECT * FROM pragma_table_info('{0}')",
    "PRAGMA table_info('{0}')",
    "PRAGMA storage_info('{0}')",
    "SELECT json_serialize_plan('SELECT * FROM {0}')",
    "PIVOT {0} ON id",
    "SELECT * FROM duckdb_table_sample('{0}')",
    "SELECT * FROM summary({0})",
]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_hidden_is_not_there(bob: Connection, ann: Connection, way: str) -> None:
    before = ann.execute("SELECT * FROM hidden ORDER BY id").fetchall()
    hidden, absent = (told(bob, way.format(name)) for name in ("hidden", "absent"))
    assert tuple(part and part.replace("hidden", "absent") for part in hidden) == absent
    assert "hidden_" not in str(hidden)
    # The extended protocol describes, and need not run.
    wire = bob.pgconn
    prepared = wire.prepare(b"", way.format("hidden").encode())
    if prepared.status == psycopg.pq.ExecStatus.COMMAND_OK:
        prepared = wire.describe_prepared(b"")
    if prepared.status == psycopg.pq.ExecStatus.COMMAND_OK:
        # Nothing is told of it before it runs: neither columns nor parameters.
        harmless = way.startswith(("EXPLAIN", "SHOW", "SELECT '"))
        assert harmless or (prepared.nfields, prepared.nparams) == (0, 0)
    assert b"hidden_" not in b"".join(prepared.fname(at) or b"" for at in range(prepared.nfields))
    assert ann.execute("SELECT * FROM hidden ORDER BY id").fetchall() == before
    assert bob.execute("SELECT v FROM bobs.mine ORDER BY id").fetchall() == [("a",), ("b",)]


# The same for other things: a statement, and what stands for a thing of that kind which is not there.
OTHERS = [
    ("SELECT * FROM STREAM {0}", "hidden_stream", "absent_stream"),
    ("SELECT * FROM STREAM {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("SELECT * FROM STREAM open_stream CONSUMER GROUP {0}", "hidden_group", "absent_group"),
    ("SELECT * FROM {0}", "hidden_stream", "absent_stream"),
    ("SELECT * FROM {0}", "hidden_stream_changes", "absent_stream_changes"),
    ("SELECT * FROM {0}", "hidden_view", "absent_view"),
    ("SELECT * FROM STREAM {0} ENVELOPE CHANGES", "hidden_stream", "absent_stream"),
    ("INSERT INTO bobs.mine SELECT lsn, op FROM STREAM {0}", "hidden_stream", "absent_stream"),
    ("COPY (SELECT * FROM STREAM {0}) TO STDOUT", "hidden_stream", "absent_stream"),
    ("SELECT * FROM open WHERE id IN (SELECT lsn FROM STREAM {0})", "hidden_stream", "absent_stream"),
    ("DESCRIBE STREAM {0}", "hidden_stream", "absent_stream"),
    ("SHOW PARTITIONS ON {0}", "hidden_stream", "absent_stream"),
    ("SHOW OFFSETS ON {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("SHOW READ POSITION ON {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("SHOW MEMBERS ON {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("LEAVE CONSUMER GROUP hidden_group ON {0} MEMBER 'm'", "hidden_stream", "absent_stream"),
    ("LEAVE CONSUMER GROUP {0} ON open_stream MEMBER 'm'", "hidden_group", "absent_group"),
    ("SELECT * FROM STREAM open_stream CONSUMER GROUP {0} MEMBER 'm'", "hidden_group", "absent_group"),
    ("COMMIT OFFSETS ON open_stream CONSUMER GROUP {0} MEMBER 'm'", "hidden_group", "absent_group"),
    ("DESCRIBE CONSUMER GROUP hidden_group ON {0}", "hidden_stream", "absent_stream"),
    ("CREATE CONSUMER GROUP g ON {0}", "hidden_stream", "absent_stream"),
    ("DROP CONSUMER GROUP hidden_group ON {0}", "hidden_stream", "absent_stream"),
    ("ALTER CONSUMER GROUP hidden_group ON {0} SEEK TO EARLIEST", "hidden_stream", "absent_stream"),
    ("COMMIT OFFSETS ON {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("COMMIT OFFSET PARTITION 0 AT 1 ON {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("SHOW PARKED ON {0} CONSUMER GROUP hidden_group", "hidden_stream", "absent_stream"),
    ("ALTER CONSUMER GROUP {0} ON open_stream PARK PARTITION 0 AT 1", "hidden_group", "absent_group"),
    ("ALTER CONSUMER GROUP {0} ON open_stream RELEASE PARTITION 0", "hidden_group", "absent_group"),
    ("ALTER CONSUMER GROUP {0} ON open_stream DISCARD PARTITION 0", "hidden_group", "absent_group"),
    ("CREATE BOOKMARK b ON {0}", "hidden_stream", "absent_stream"),
    ("DROP BOOKMARK hidden_bookmark ON {0}", "hidden_stream", "absent_stream"),
    ("DROP BOOKMARK {0} ON open_stream", "hidden_bookmark", "absent_bookmark"),
    ("SHOW BOOKMARKS ON {0}", "hidden_stream", "absent_stream"),
    ("CREATE SINK k ON {0} TO WEBHOOK 'https://h.invalid/'", "hidden_stream", "absent_stream"),
    ("ALTER SINK k ON {0} SET (batch = 1)", "hidden_stream", "absent_stream"),
    ("PAUSE SINK k ON {0}", "hidden_stream", "absent_stream"),
    ("PAUSE SINK {0} ON open_stream", "hidden_group", "absent_group"),
    ("DROP SINK {0} ON open_stream", "hidden_group", "absent_group"),
    ("SHOW SINKS ON {0}", "hidden_stream", "absent_stream"),
    ("SHOW CHECKPOINTS ON {0}", "hidden_stream", "absent_stream"),
    ("DROP STREAM {0}", "hidden_stream", "absent_stream"),
    ("COMMENT ON STREAM {0} IS 'x'", "hidden_stream", "absent_stream"),
    ("SHOW CREATE STREAM {0}", "hidden_stream", "absent_stream"),
    ("SHOW CHANGES FOR {0}", "hidden", "absent"),
    ("ALTER STREAM {0} RENAME TO mine", "hidden_stream", "absent_stream"),
    ("ALTER STREAM {0} SET (retention = '1 day')", "hidden_stream", "absent_stream"),
    ("GRANT CONSUME ON CONSUMER GROUP {0} ON open_stream TO bob", "hidden_group", "absent_group"),
    ("CREATE STREAM {0}.s ON bobs.mine", "hidden_schema", "absent_schema"),
    ("CREATE TABLE {0}.t (i INT)", "hidden_schema", "absent_schema"),
    ("CREATE VIEW {0}.v AS SELECT 1", "hidden_schema", "absent_schema"),
    ("SELECT * FROM {0}.t", "hidden_schema", "absent_schema"),
    ("SET search_path = '{0}'", "hidden_schema", "absent_schema"),
    ("SET schema = '{0}'", "hidden_schema", "absent_schema"),
    ("USE {0}", "hidden_schema", "absent_schema"),
    ("DROP SCHEMA {0}", "hidden_schema", "absent_schema"),
    ("DROP SCHEMA {0} CASCADE", "hidden_schema", "absent_schema"),
    ("COMMENT ON SCHEMA {0} IS 'x'", "hidden_schema", "absent_schema"),
    ("GRANT CREATE ON SCHEMA {0} TO bob", "hidden_schema", "absent_schema"),
    ("SELECT NULL::{0}.some_type", "hidden_schema", "absent_schema"),
    ("CREATE TABLE bobs.t (c {0}.some_type)", "hidden_schema", "absent_schema"),
    ("SELECT nextval('{0}')", "hidden_sequence", "absent_sequence"),
    ("SELECT currval('{0}')", "hidden_sequence", "absent_sequence"),
    ("CREATE TABLE bobs.t (i INT DEFAULT nextval('{0}'))", "hidden_sequence", "absent_sequence"),
    ("DROP SEQUENCE {0}", "hidden_sequence", "absent_sequence"),
    ("DROP INDEX {0}", "hidden_index", "absent_index"),
]


def test_a_hidden_schema_of_a_search_path_is_left_out_like_a_missing_one(bob: Connection) -> None:
    for name in ("hidden_schema", "absent_schema"):
        bob.execute(f"SET search_path = bobs, {name}")
        assert bob.execute("SELECT current_schemas(false)").fetchone() == (["bobs"],)
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            bob.execute(f"SET search_path = {name}")
    bob.execute("RESET search_path")


@pytest.mark.parametrize(("way", "hidden", "absent"), OTHERS)
def test_other_things_that_are_hidden_are_not_there(
    bob: Connection, way: str, hidden: str, absent: str
) -> None:
    errors = [told(bob, way.format(name)) for name in (hidden, absent)]
    assert tuple(part and part.replace(hidden, absent) for part in errors[0]) == errors[1]


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE IF EXISTS {0}", "DROP VIEW IF EXISTS {0}_view", "DROP STREAM IF EXISTS {0}_stream",
        "DROP SEQUENCE IF EXISTS {0}_sequence", "ALTER TABLE IF EXISTS {0} ADD COLUMN x INT",
    ],
)  # fmt: skip
def test_if_exists_says_the_same_of_both(bob: Connection, ann: Connection, statement: str) -> None:
    done = [bob.execute(statement.format(name)).statusmessage for name in ("hidden", "absent")]
    assert done[0] == done[1]
    assert ann.execute("SELECT count(*) FROM hidden").fetchone() == (2,)
    assert ann.execute("SELECT count(*) FROM hidden_stream").fetchone() == (0,)
    assert ann.execute("SELECT nextval('hidden_sequence') > 0").fetchone() == (True,)


# Queries whose answers must hold nothing that begins with `hidden`.
LISTS = [
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM information_schema.schemata",
    "SELECT * FROM information_schema.views",
    "SELECT * FROM information_schema.table_constraints",
    "SELECT * FROM information_schema.key_column_usage",
    "SELECT * FROM information_schema.sequences",
    "SELECT * FROM information_schema.routines",
    "SELECT * FROM information_schema.domains",
    "SELECT oid::regclass, * FROM pg_catalog.pg_class",
    "SELECT attrelid::regclass, * FROM pg_catalog.pg_attribute",
    "SELECT * FROM pg_catalog.pg_namespace",
    "SELECT pg_get_constraintdef(oid), * FROM pg_catalog.pg_constraint",
    "SELECT pg_get_indexdef(indexrelid), * FROM pg_catalog.pg_index",
    "SELECT * FROM pg_catalog.pg_indexes",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT pg_get_viewdef('window_on_hidden'::regclass)",
    "SELECT * FROM pg_catalog.pg_views WHERE viewname <> 'window_on_hidden'",
    "SELECT definition FROM pg_catalog.pg_views",
    "SELECT * FROM pg_catalog.pg_type",
    "SELECT * FROM pg_catalog.pg_enum",
    "SELECT * FROM pg_catalog.pg_proc WHERE proname LIKE '%hid%'",
    "SELECT * FROM pg_catalog.pg_description",
    "SELECT * FROM pg_catalog.pg_sequence",
    "SELECT * FROM pg_catalog.pg_sequences",
    "SELECT * FROM pg_catalog.pg_attrdef",
    "SELECT * FROM pg_catalog.pg_depend",
    "SELECT * FROM pg_catalog.pg_stat_activity",
    "SELECT * FROM pg_catalog.pg_stat_user_tables",
    "SELECT * FROM pg_catalog.pg_prepared_statements",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT obj_description(c.oid) FROM pg_catalog.pg_class c",
    "SELECT to_regclass('hidden'), to_regclass('main.hidden')",
    "SELECT * FROM ducktail.streams",
    "SELECT * FROM ducktail.partitions",
    "SELECT * FROM ducktail.consumer_groups",
    "SELECT * FROM ducktail.offsets",
    "SELECT * FROM ducktail.members",
    "SELECT * FROM ducktail.copies",
    "SELECT * FROM ducktail.parked",
    "SELECT * FROM ducktail.bookmarks",
    "SELECT * FROM ducktail.sinks",
    "SELECT * FROM ducktail.deliveries",
    "SHOW SINKS",
    "SELECT * FROM ducktail.pipelines",
    "SELECT * FROM ducktail.pipeline_history",
    "SHOW BOOKMARKS",
    "SELECT * FROM ducktail.checkpoints",
    "SHOW CHECKPOINTS",
    "SHOW CHECKPOINTS ON open_stream",
    "SHOW BOOKMARKS ON open_stream",
    "SELECT * FROM ducktail.sessions",
    "SELECT * FROM ducktail.settings",
    "SHOW STREAMS",
    "SHOW CONSUMER GROUPS",
    "SHOW ALL",
    "DESCRIBE STREAM open_stream",
]


@pytest.mark.parametrize("query", LISTS)
def test_lists_have_only_what_is_ones_own(bob: Connection, ann: Connection, query: str) -> None:
    try:
        seen = str(bob.execute(query).fetchall())
    except psycopg.errors.UndefinedTable:
        pytest.fail("the list is not there at all")
    assert "hidden" not in seen.replace("window_on_hidden", "")
    # A text that is longer than what the catalog looks at.
    with pytest.raises(psycopg.Error):
        if query.startswith("SELECT") and "ducktail." not in query:
            bob.execute(query + " -- " + "x" * 70_000)
        raise psycopg.Error


def test_who_is_a_superuser(bob: Connection, ann: Connection) -> None:
    for table, column, name in (("pg_roles", "rolsuper", "rolname"), ("pg_user", "usesuper", "usename")):
        for connection, is_one in ((bob, False), (ann, True)):
            query = f"SELECT {column} FROM pg_catalog.{table} WHERE {name} = current_user"
            assert connection.execute(query).fetchall() == [(is_one,)]
    assert bob.execute("SHOW is_superuser").fetchone() == ("off",)


def test_lists_have_what_is_ones_own(bob: Connection, ann: Connection) -> None:
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema NOT IN " \
        "('pg_catalog', 'information_schema', 'ducktail') ORDER BY 1"  # fmt: skip
    mine = [("mine",), ("open",), ("open_stream",), ("open_stream_changes",), ("window_on_hidden",)]
    assert bob.execute(tables).fetchall() == mine
    all_of_them = ann.execute(tables).fetchall()
    assert ("hidden",) in all_of_them and ("hidden_table",) in all_of_them
    assert bob.execute("SELECT stream_name FROM ducktail.streams").fetchall() == [("open_stream",)]
    assert ("hidden_stream",) in ann.execute("SELECT stream_name FROM ducktail.streams").fetchall()
    assert {row[0] for row in bob.execute("SELECT user_name FROM ducktail.sessions")} == {"bob"}
    assert {row[0] for row in ann.execute("SELECT user_name FROM ducktail.sessions")} >= {"ann", "bob"}


@pytest.mark.parametrize(
    "function",
    ["tables", "columns", "views", "schemas", "indexes", "constraints", "sequences", "types", "functions",
     "databases", "dependencies", "settings", "variables", "prepared_statements", "logs",
     "memory", "temporary_files"],
)  # fmt: skip
def test_duckdbs_own_lists_are_not_for_all(bob: Connection, ann: Connection, function: str) -> None:
    with pytest.raises(DENIED):
        bob.execute(f"SELECT * FROM duckdb_{function}()")
    ann.execute(f"SELECT * FROM duckdb_{function}()")


@pytest.mark.parametrize(
    "command", ["\\d", "\\dt+", "\\dv+", "\\dn+", "\\df", "\\ds", "\\di", "\\dT", "\\dp"]
)
@pytest.mark.psql
def test_what_psql_shows(server: ServerProcess, command: str) -> None:
    arguments = ["psql", "-X", "-h", server.host, "-p", str(server.port), "-U", "bob", "-d", "ducktail"]
    environment = {"PGPASSWORD": "x", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [*arguments, "-c", command], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert ran.returncode == 0 and "ERROR" not in ran.stderr, ran.stderr
    assert "hidden" not in ran.stdout.replace("window_on_hidden", "")
