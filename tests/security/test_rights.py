"""What a user may do: with what he has rights on, makes or is given, and what is for superusers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hidden_things import Connection, connect, serving_hidden_things, told
from server_process import ServerProcess

DENIED = psycopg.errors.InsufficientPrivilege


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the operator has allowed."""
    directory = tmp_path_factory.mktemp("allowed")
    (directory / "in.csv").write_text("id\n7\n")
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, allowed: Path) -> Iterator[ServerProcess]:
    """Tests leave it as it was."""
    with serving_hidden_things(tmp_path_factory.mktemp("rights"), "--allow-dir", str(allowed)) as started:
        yield started


def test_a_right_is_what_it_says_and_no_more(bob: Connection, ann: Connection) -> None:
    ann.execute("CREATE TABLE work (id INT PRIMARY KEY, v INT)")
    ann.execute("INSERT INTO work VALUES (1, 1)")
    statements = {
        "select": ["COPY work TO STDOUT", "COPY (FROM work) TO STDOUT", "SELECT * FROM work",
                   "SELECT * FROM (SELECT * FROM main.work)", "DESCRIBE work",
                   "CREATE OR REPLACE TEMP TABLE kept AS SELECT * FROM work", "SUMMARIZE work"],
        "insert": ["INSERT INTO work SELECT 2 + range, 2 FROM range(0)", "COPY work FROM STDIN"],
        "update": ["UPDATE work SET v = 1 WHERE id = 9"],
        "delete": ["DELETE FROM work WHERE id = 9"],
    }  # fmt: skip
    both = {
        "INSERT INTO work SELECT 9, 9 WHERE false RETURNING id": {"insert", "select"},
        "INSERT INTO work VALUES (1, 1) ON CONFLICT DO UPDATE SET v = 1": {"insert", "update", "select"},
        "MERGE INTO work USING open AS o ON work.id = -o.id WHEN MATCHED THEN DELETE": {"delete", "select"},
        "MERGE INTO work USING (SELECT 1 AS id) AS o ON work.id = o.id WHEN MATCHED THEN UPDATE SET v = 1 "
        "WHEN NOT MATCHED THEN INSERT VALUES (o.id, 1)": {"insert", "update", "select"},
    }

    def may(statement: str) -> bool:
        try:
            if statement.startswith("COPY"):
                with bob.cursor() as cursor, cursor.copy(statement) as copy:
                    if "STDOUT" in statement:
                        list(copy)
            else:
                bob.execute(statement)
        except DENIED:
            return False
        except psycopg.errors.UndefinedTable:
            assert not given
            return False
        return True

    given: set[str] = set()
    for privileges in ((), ("select",), ("insert",), ("select", "insert"), ("select", "update"),
                       ("select", "delete"), ("select", "insert", "update"),
                       ("select", "insert", "update", "delete")):  # fmt: skip
        ann.execute("REVOKE ALL ON work FROM bob")
        given = set(privileges)
        if given:
            ann.execute(f"GRANT {', '.join(privileges)} ON work TO bob")
        for needs, tried in statements.items():
            wanted = {needs} | ({"select"} if needs in ("update", "delete") else set())
            for statement in tried:
                assert may(statement) == (wanted <= given), (privileges, statement)
        for statement, wanted in both.items():
            assert may(statement) == (wanted <= given), (privileges, statement)
    assert may("DELETE FROM work") and may("TRUNCATE work")
    ann.execute("DROP TABLE work")


def test_schemas_and_the_database(bob: Connection, ann: Connection) -> None:
    ann.execute("CREATE SCHEMA shop")
    ann.execute("CREATE TABLE shop.a (i INT)")
    ann.execute("GRANT SELECT ON SCHEMA shop TO bob")
    ann.execute("CREATE TABLE shop.b (i INT)")
    assert bob.execute("SELECT * FROM shop.a, shop.b").fetchall() == []
    names = bob.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'")
    assert sorted(names.fetchall()) == [("a",), ("b",)]
    with pytest.raises(DENIED):
        bob.execute("INSERT INTO shop.a VALUES (1)")
    with pytest.raises(DENIED):
        bob.execute("CREATE TABLE shop.c (i INT)")
    ann.execute("REVOKE SELECT ON SCHEMA shop FROM bob")
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute("SELECT * FROM shop.a")
    ann.execute("GRANT SELECT ON DATABASE TO bob")
    assert bob.execute("SELECT * FROM shop.a").fetchall() == []
    assert bob.execute("SELECT count(*) FROM hidden").fetchone() == (2,)
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute("SELECT * FROM ducktail.meta")
    ann.execute("REVOKE SELECT ON DATABASE FROM bob")
    ann.execute("GRANT CREATE ON DATABASE TO bob")
    bob.execute("CREATE SCHEMA bobs_own")
    bob.execute("CREATE TABLE bobs_own.t (i INT)")
    with pytest.raises(DENIED):
        bob.execute("CREATE TABLE main.t (i INT)")
    bob.execute("DROP SCHEMA bobs_own CASCADE")
    ann.execute("REVOKE ALL ON DATABASE FROM bob")
    ann.execute("DROP SCHEMA shop CASCADE")


def test_a_view_runs_with_its_owners_rights(bob: Connection, eve: Connection, ann: Connection) -> None:
    assert bob.execute("SELECT n FROM window_on_hidden ORDER BY n").fetchall() == [(1,), (2,)]
    # The plan would show what is under it.
    with pytest.raises(DENIED):
        bob.execute("EXPLAIN SELECT * FROM window_on_hidden")
    bob.execute("CREATE VIEW bobs.passed_on AS SELECT * FROM window_on_hidden, open")
    bob.execute("GRANT SELECT ON bobs.passed_on TO eve")
    assert len(eve.execute("SELECT * FROM bobs.passed_on").fetchall()) == 6
    with pytest.raises(psycopg.errors.UndefinedTable):
        eve.execute("SELECT * FROM window_on_hidden")
    # What its owner may no longer read, nobody reads by it; not his table either.
    ann.execute("REVOKE SELECT ON open FROM bob")
    for reader in (eve, bob):
        with pytest.raises(DENIED):
            reader.execute("SELECT * FROM bobs.passed_on")
    ann.execute("GRANT SELECT ON open TO bob")
    assert len(eve.execute("SELECT * FROM bobs.passed_on").fetchall()) == 6
    bob.execute("DROP VIEW bobs.passed_on")


def test_a_macro_runs_with_its_callers_rights(bob: Connection, ann: Connection) -> None:
    assert bob.execute("SELECT twice(21)").fetchone() == (42,)
    for call in (
        "SELECT one_of_hidden()", "SELECT * FROM all_of_hidden()", "SELECT twice(len(one_of_hidden()))",
        "INSERT INTO bobs.mine SELECT 9, one_of_hidden()", "UPDATE bobs.mine SET v = one_of_hidden()",
        "CREATE TABLE bobs.t AS FROM all_of_hidden()", "CREATE VIEW bobs.v AS SELECT one_of_hidden()",
        "DELETE FROM bobs.mine WHERE v = one_of_hidden()",
    ):  # fmt: skip
        state, message, *_ = told(bob, call)
        assert state == "42501" and "_of_hidden" in str(message) and "table" not in str(message)
        assert len(ann.execute("SELECT one_of_hidden()").fetchall()) == 1
    with pytest.raises(DENIED):
        bob.execute("CREATE MACRO bobs.m() AS (SELECT max(id) FROM hidden)")


def test_revoke_holds_for_what_is_prepared_and_open(bob: Connection, ann: Connection) -> None:
    ann.execute("CREATE TABLE brief (i INT)")
    ann.execute("GRANT SELECT ON brief TO bob")
    bob.execute("PREPARE kept AS SELECT * FROM brief")
    read = "SELECT i FROM brief WHERE i = %s"
    for _ in range(3):
        assert bob.execute(read, [1], prepare=True).fetchall() == []
        assert bob.execute("EXECUTE kept").fetchall() == []
    ann.execute("REVOKE SELECT ON brief FROM bob")
    for statement, arguments in ((read, [1]), ("EXECUTE kept", None), ("SELECT * FROM brief", None)):
        with pytest.raises(psycopg.errors.UndefinedTable):
            bob.execute(statement, arguments)
    ann.execute("DROP TABLE brief")


def test_arguments_of_execute_are_queries_too(bob: Connection) -> None:
    bob.execute("PREPARE number(INT) AS SELECT $1")
    assert bob.execute("EXECUTE number(3)").fetchone() == (3,)
    assert bob.execute("EXECUTE number((SELECT max(id) FROM open))").fetchone() == (3,)
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute("EXECUTE number((SELECT max(id) FROM hidden))")


def test_what_one_makes_is_ones_own(bob: Connection, eve: Connection, ann: Connection) -> None:
    bob.execute("CREATE TABLE bobs.t (i INT)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        eve.execute("SELECT * FROM bobs.t")
    bob.execute("GRANT SELECT ON bobs.t TO eve")
    assert eve.execute("SELECT * FROM bobs.t").fetchall() == []
    for refused in (
        "DROP TABLE bobs.t", "ALTER TABLE bobs.t ADD COLUMN j INT", "CREATE INDEX x ON bobs.t (i)",
        "GRANT SELECT ON bobs.t TO eve", "CREATE STREAM eves.s ON bobs.t",
        "COMMENT ON TABLE bobs.t IS 'x'", "INSERT INTO bobs.t VALUES (1)",
    ):  # fmt: skip
        with pytest.raises(DENIED):
            eve.execute(refused)
    # Rights follow the name, and end with the thing.
    bob.execute("ALTER TABLE bobs.t RENAME TO u")
    assert eve.execute("SELECT * FROM bobs.u").fetchall() == []
    bob.execute("DROP TABLE bobs.u")
    for table in ("owner_catalog", "grant_catalog"):
        left = ann.execute(f"SELECT * FROM ducktail.{table} WHERE schema_name = 'bobs' AND object_name = 'u'")
        assert left.fetchall() == []
    bob.execute("CREATE TABLE bobs.u (i INT)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        eve.execute("SELECT * FROM bobs.u")
    # A superuser's OR REPLACE does not take it away from its owner.
    ann.execute("CREATE OR REPLACE TABLE bobs.u (i INT, j INT)")
    bob.execute("INSERT INTO bobs.u VALUES (1, 2)")
    ann.execute("DROP TABLE bobs.u")
    ann.execute("CREATE TABLE bobs.u (i INT)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute("SELECT * FROM bobs.u")
    with pytest.raises(psycopg.Error):
        bob.execute("CREATE OR REPLACE TABLE bobs.u (i INT)")
    ann.execute("DROP TABLE bobs.u")


def test_a_dropped_table_takes_its_streams_and_their_rights_with_it(
    bob: Connection, eve: Connection, ann: Connection
) -> None:
    bob.execute("CREATE TABLE bobs.t (i INT)")
    bob.execute("CREATE STREAM bobs.s ON bobs.t")
    bob.execute("CREATE CONSUMER GROUP g ON bobs.s")
    bob.execute("GRANT SELECT ON bobs.t TO eve")
    bob.execute("GRANT SELECT ON bobs.s TO eve")
    with pytest.raises(DENIED):
        eve.execute("DROP TABLE bobs.t CASCADE")
    bob.execute("DROP TABLE bobs.t CASCADE")
    for table in ("owner_catalog", "grant_catalog"):
        left = ann.execute(f"SELECT * FROM ducktail.{table} WHERE object_name IN ('t', 's')")
        assert left.fetchall() == []
    bob.execute("CREATE TABLE bobs.t (i INT)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        eve.execute("SELECT * FROM bobs.t")
    bob.execute("DROP TABLE bobs.t")


def test_a_transaction_sees_its_own_changes_and_a_rollback_takes_them_back(
    bob: Connection, eve: Connection, server: ServerProcess
) -> None:
    bob.execute("BEGIN")
    bob.execute("CREATE TABLE bobs.t (i INT)")
    bob.execute("INSERT INTO bobs.t VALUES (1)")
    bob.execute("GRANT SELECT ON bobs.t TO eve")
    assert bob.execute("SELECT * FROM bobs.t").fetchall() == [(1,)]
    assert bob.execute("SELECT relname FROM pg_class WHERE relname = 't'").fetchall() == [("t",)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        eve.execute("SELECT * FROM bobs.t")
    bob.execute("ROLLBACK")
    with connect(server, "eve") as other, pytest.raises(psycopg.errors.UndefinedTable):
        other.execute("SELECT * FROM bobs.t")
    # A refusal is an error like others: the block has failed, and nothing of it stands.
    bob.execute("BEGIN")
    bob.execute("CREATE TABLE bobs.t (i INT)")
    for state in ("42P01", "25P02"):
        assert told(bob, "SELECT * FROM hidden")[0] == state
    refused = bob.pgconn.prepare(b"", b"SELECT * FROM hidden")
    assert refused.status == psycopg.pq.ExecStatus.FATAL_ERROR
    bob.execute("ROLLBACK")
    assert told(bob, "SELECT * FROM bobs.t")[0] == "42P01"
    bob.execute("BEGIN")
    bob.execute("CREATE TABLE bobs.t (i INT)")
    bob.execute("GRANT SELECT ON bobs.t TO eve")
    bob.execute("COMMIT")
    assert eve.execute("SELECT * FROM bobs.t").fetchall() == []
    bob.execute("DROP TABLE bobs.t")


# Streams and groups.


def test_streams_want_their_own_rights(bob: Connection, eve: Connection, ann: Connection) -> None:
    assert [row[0] for row in bob.execute("SELECT op FROM STREAM open_stream")] == ["insert"]
    assert bob.execute("SELECT count(*) FROM open_stream").fetchone() == (1,)
    assert bob.execute("SELECT v FROM open_stream_changes").fetchall() == [("three",)]
    for refused in (
        "SELECT * FROM STREAM open_stream CONSUMER GROUP g", "CREATE CONSUMER GROUP g ON open_stream",
        "DROP STREAM open_stream", "ALTER STREAM open_stream RENAME TO mine",
        "COMMENT ON STREAM open_stream IS 'x'",
        "CREATE STREAM bobs.second ON open", "INSERT INTO open_stream (lsn) VALUES (1)",
    ):  # fmt: skip
        with pytest.raises(DENIED):
            bob.execute(refused)
    # The stream's right is not the table's, nor the other way.
    for statement in ("SELECT * FROM STREAM open_stream", "SELECT * FROM open", "SHOW CHANGES FOR open"):
        with pytest.raises(psycopg.Error):
            eve.execute(statement)
    ann.execute("GRANT CONSUME ON open_stream TO eve")
    with pytest.raises(DENIED):
        eve.execute("SELECT * FROM STREAM open_stream")
    with pytest.raises(DENIED):
        eve.execute("SELECT * FROM open_stream")
    eve.execute("CREATE CONSUMER GROUP eves_group ON open_stream")
    assert len(eve.execute("SELECT * FROM STREAM open_stream CONSUMER GROUP eves_group").fetchall()) == 1
    eve.execute("COMMIT OFFSETS ON open_stream CONSUMER GROUP eves_group")
    eve.execute("DROP CONSUMER GROUP eves_group ON open_stream")
    ann.execute("REVOKE CONSUME ON open_stream FROM eve")


def test_a_group_is_whose_made_it(bob: Connection, eve: Connection, ann: Connection) -> None:
    for user in ("bob", "eve"):
        ann.execute(f"GRANT CONSUME ON open_stream TO {user}")
    bob.execute("CREATE CONSUMER GROUP bobs_group ON open_stream")
    uses = (
        "SELECT * FROM STREAM open_stream CONSUMER GROUP bobs_group",
        "COMMIT OFFSET PARTITION 0 AT 0 ON open_stream CONSUMER GROUP bobs_group",
        "ALTER CONSUMER GROUP bobs_group ON open_stream SEEK TO EARLIEST",
        "ALTER CONSUMER GROUP bobs_group ON open_stream SET (on_gap = 'error')",
        "DESCRIBE CONSUMER GROUP bobs_group ON open_stream",
        "SHOW OFFSETS ON open_stream CONSUMER GROUP bobs_group",
        "SELECT * FROM STREAM open_stream CONSUMER GROUP bobs_group MEMBER 'm'",
        "COMMIT OFFSETS ON open_stream CONSUMER GROUP bobs_group MEMBER 'm'",
        "SHOW READ POSITION ON open_stream CONSUMER GROUP bobs_group MEMBER 'm'",
        "SHOW MEMBERS ON open_stream CONSUMER GROUP bobs_group",
        "LEAVE CONSUMER GROUP bobs_group ON open_stream MEMBER 'm'",
        "SHOW PARKED ON open_stream CONSUMER GROUP bobs_group",
        "ALTER CONSUMER GROUP bobs_group ON open_stream RELEASE PARTITION 0",
        "ALTER CONSUMER GROUP bobs_group ON open_stream DISCARD PARTITION 0",
        "DROP CONSUMER GROUP bobs_group ON open_stream",
    )
    for use in uses:
        with pytest.raises(psycopg.errors.UndefinedObject):
            eve.execute(use)
    # By a parameter as well.
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute("SELECT * FROM STREAM open_stream CONSUMER GROUP %s", ["bobs_group"])
    assert eve.execute("SHOW CONSUMER GROUPS ON open_stream").fetchall() == []
    bob.execute("SELECT * FROM STREAM open_stream CONSUMER GROUP bobs_group MEMBER 'm'").fetchall()
    assert eve.execute("SELECT * FROM ducktail.members").fetchall() == []
    assert len(bob.execute("SELECT * FROM ducktail.members").fetchall()) == 1
    bob.execute("LEAVE CONSUMER GROUP bobs_group ON open_stream MEMBER 'm'")
    assert eve.execute("SELECT * FROM ducktail.offsets").fetchall() == []
    assert len(bob.execute("SHOW CONSUMER GROUPS ON open_stream").fetchall()) == 1
    bob.execute("GRANT CONSUME ON CONSUMER GROUP bobs_group ON open_stream TO eve")
    for use in uses[:-1]:
        eve.execute(use)
    with pytest.raises(DENIED):
        eve.execute("GRANT CONSUME ON CONSUMER GROUP bobs_group ON open_stream TO eve")
    bob.execute("REVOKE CONSUME ON CONSUMER GROUP bobs_group ON open_stream FROM eve")
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute(uses[0])
    # Who may no longer consume the stream may not by his own group.
    ann.execute("REVOKE CONSUME ON open_stream FROM bob")
    with pytest.raises(DENIED):
        bob.execute(uses[0])
    ann.execute(uses[-1])
    ann.execute("REVOKE CONSUME ON open_stream FROM eve")


def test_a_bookmark_is_whose_made_it(bob: Connection, eve: Connection, ann: Connection) -> None:
    with pytest.raises(DENIED):
        bob.execute("CREATE BOOKMARK bobs_mark ON open_stream")
    for user in ("bob", "eve"):
        ann.execute(f"GRANT CONSUME ON open_stream TO {user}")
    bob.execute("CREATE BOOKMARK bobs_mark ON open_stream")
    bob.execute("CREATE CONSUMER GROUP bobs_group ON open_stream")
    eve.execute("CREATE CONSUMER GROUP eves_group ON open_stream")
    for use in (
        "DROP BOOKMARK bobs_mark ON open_stream",
        "ALTER CONSUMER GROUP eves_group ON open_stream SEEK TO BOOKMARK bobs_mark",
        "CREATE BOOKMARK eves_mark ON open_stream CONSUMER GROUP bobs_group",
    ):
        with pytest.raises(psycopg.errors.UndefinedObject):
            eve.execute(use)
    assert eve.execute("SHOW BOOKMARKS").fetchall() == []
    shown = bob.execute("SELECT bookmark_name, created_by FROM ducktail.bookmarks").fetchall()
    assert shown == [("bobs_mark", "bob")]
    bob.execute("ALTER CONSUMER GROUP bobs_group ON open_stream SEEK TO BOOKMARK bobs_mark DRY RUN")
    # It follows the stream to another name, and its owner stays while he has it.
    ann.execute("ALTER STREAM open_stream RENAME TO opened_stream")
    assert len(bob.execute("SHOW BOOKMARKS ON opened_stream").fetchall()) == 1
    ann.execute("ALTER STREAM opened_stream RENAME TO open_stream")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as error:
        ann.execute("DROP USER bob")
    assert 'bookmark "bobs_mark"' in str(error.value.diag.message_detail)
    # Who may no longer consume the stream has none on it.
    ann.execute("REVOKE CONSUME ON open_stream FROM bob")
    with pytest.raises(psycopg.errors.UndefinedObject):
        bob.execute("DROP BOOKMARK bobs_mark ON open_stream")
    assert bob.execute("SHOW BOOKMARKS").fetchall() == []
    for statement in (
        "DROP BOOKMARK bobs_mark ON open_stream", "DROP CONSUMER GROUP bobs_group ON open_stream",
        "DROP CONSUMER GROUP eves_group ON open_stream", "REVOKE CONSUME ON open_stream FROM eve",
    ):  # fmt: skip
        ann.execute(statement)


def test_a_pipeline_is_whose_reported_it(bob: Connection, eve: Connection, ann: Connection) -> None:
    bob.execute("REPORT PIPELINE 'bobs' AS '{\"batch_id\": 1}'")
    bob.execute("REPORT PIPELINE 'BOBS' AS '{\"batch_id\": 2}'")
    for name in ("bobs", "hidden_pipeline"):
        with pytest.raises(DENIED):
            eve.execute(f"REPORT PIPELINE '{name}' AS '{{}}'")
    query = "SELECT batch_id, reported_by FROM ducktail.pipeline_history WHERE pipeline_name ILIKE 'bobs'"
    assert eve.execute(query).fetchall() == []
    assert bob.execute(query).fetchall() == [(1, "bob"), (2, "bob")]
    assert ann.execute(query).fetchall() == [(1, "bob"), (2, "bob")]


def test_a_pipeline_does_not_keep_its_user(server: ServerProcess, ann: Connection, eve: Connection) -> None:
    ann.execute("CREATE USER tom PASSWORD 'x'")
    with connect(server, "tom") as tom:
        tom.execute("REPORT PIPELINE 'toms' AS '{}'")
    ann.execute("DROP USER tom")
    ann.execute("REPORT PIPELINE 'toms' AS '{}'")
    with pytest.raises(DENIED):
        eve.execute("REPORT PIPELINE 'toms' AS '{}'")


def test_a_stream_of_ones_own(bob: Connection, eve: Connection) -> None:
    bob.execute("CREATE STREAM bobs.feed ON bobs.mine WITH (partitions = 1)")
    bob.execute("INSERT INTO bobs.mine VALUES (3, 'c')")
    bob.execute("DELETE FROM bobs.mine WHERE id = 3")
    assert len(bob.execute("SELECT * FROM STREAM bobs.feed").fetchall()) == 2
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute("SELECT * FROM STREAM bobs.feed")
    bob.execute("GRANT SELECT ON bobs.feed TO eve")
    assert len(eve.execute("SELECT * FROM STREAM bobs.feed").fetchall()) == 2
    with pytest.raises(psycopg.errors.UndefinedTable):
        eve.execute("SELECT * FROM bobs.mine")
    bob.execute("ALTER STREAM bobs.feed RENAME TO news")
    assert len(eve.execute("SELECT * FROM STREAM bobs.news").fetchall()) == 2
    bob.execute("DROP STREAM bobs.news")
    bob.execute("CREATE STREAM bobs.news ON bobs.mine")
    with pytest.raises(psycopg.errors.UndefinedObject):
        eve.execute("SELECT * FROM STREAM bobs.news")
    bob.execute("DROP STREAM bobs.news")


def test_listen_tells_of_no_stream_that_is_hidden(bob: Connection, ann: Connection) -> None:
    for channel in ("hidden_stream", "open_stream"):
        bob.execute(f"LISTEN {channel}")
    ann.execute("INSERT INTO hidden VALUES (77, 'hidden value')")
    ann.execute("DELETE FROM hidden WHERE id = 77")
    ann.execute("INSERT INTO open VALUES (77, 'x')")
    ann.execute("DELETE FROM open WHERE id = 77")
    # The publisher tells in the order of commits.
    first = next(bob.notifies(timeout=20))
    assert first.channel == "open_stream"
    assert {note.channel for note in bob.notifies(timeout=0.1)} <= {"open_stream"}


# The rest of the house.


def test_files_are_for_superusers(bob: Connection, ann: Connection, allowed: Path) -> None:
    file, other = allowed / "in.csv", allowed / "out.csv"
    for statement in (
        f"SELECT * FROM '{file}'", f"SELECT * FROM read_csv('{file}')", f"SELECT * FROM read_text('{file}')",
        f"SELECT * FROM glob('{allowed}/*')", f"COPY bobs.mine TO '{other}'", f"COPY bobs.mine FROM '{file}'",
        f"COPY (SELECT 1) TO '{other}'", f"CREATE TABLE bobs.t AS SELECT * FROM '{file}'",
        f"WITH w AS (COPY bobs.mine TO '{other}') SELECT 1", f"SELECT * FROM sniff_csv('{file}')",
        f"INSERT INTO bobs.mine SELECT id, 'x' FROM '{file}'", f"SELECT * FROM read_blob('{file}')",
    ):  # fmt: skip
        with pytest.raises(psycopg.Error):
            bob.execute(statement)
        assert not other.exists()
    assert ann.execute(f"SELECT * FROM '{file}'").fetchall() == [(7,)]
    ann.execute(f"COPY open TO '{other}'")
    other.unlink()


@pytest.mark.parametrize(
    "statement",
    ["CHECKPOINT", "VACUUM", "ANALYZE", "SHOW TABLES", "SHOW ALL TABLES", "SHOW DATABASES", "SHOW SCHEMAS",
     "SELECT * FROM ducktail.meta", "SELECT * FROM ducktail.commits",
     "SELECT * FROM ducktail.checkpoint_states", "SELECT * FROM ducktail.grant_catalog",
     "SELECT * FROM ducktail.owner_catalog", "SELECT * FROM ducktail.log_1_1", "SHOW temp_directory",
     "SELECT ducktail_live('streams', NULL)", "SELECT __ducktail_setting(1, 'application_name')",
     "SELECT * FROM __ducktail_pg.pg.tables()", "SELECT write_log('x')",
     "SET VARIABLE __ducktail_limited = false", "SET VARIABLE __ducktail_account = 'ann'",
     "SET SESSION AUTHORIZATION ann", "SET ROLE ann", "CREATE USER x PASSWORD 'x'", "DROP USER eve",
     "GRANT ALL ON DATABASE TO bob", "GRANT CREATE ON SCHEMA bobs TO bob", "CREATE SCHEMA x",
     "CREATE TABLE t (i INT)", "CREATE VIEW v AS SELECT 1", "CREATE SEQUENCE s"],
)  # fmt: skip
def test_what_only_superusers_may(bob: Connection, statement: str) -> None:
    with pytest.raises(psycopg.Error) as error:
        bob.execute(statement)
    assert not isinstance(error.value, psycopg.errors.InternalError_), statement


def test_wrong_names_are_not_guessed_at(bob: Connection, ann: Connection) -> None:
    for statement in ("SELECT * FROM hidde", "SELECT one_of_hidde()", "SELECT NULL::hidden_typ",
                      "SELECT * FROM all_of_hidde()", "SELECT nextval('hidden_sequenc')"):  # fmt: skip
        error = str(told(bob, statement))
        assert "hidden" not in error.replace("hidden_typ", "").replace("hidden_sequenc", "")
    assert "all_of_hidden" in str(told(ann, "SELECT * FROM all_of_hidde()"))


def test_a_temporary_table_hides_and_opens_nothing(bob: Connection) -> None:
    bob.execute("CREATE TEMP TABLE hidden AS SELECT 5 AS id")
    assert bob.execute("SELECT * FROM hidden").fetchall() == [(5,)]
    bob.execute("DROP TABLE hidden")
    with pytest.raises(psycopg.errors.UndefinedTable):
        bob.execute("SELECT * FROM hidden")
    bob.execute("CREATE TEMP VIEW looked AS SELECT * FROM open")
    assert len(bob.execute("SELECT * FROM looked").fetchall()) == 3


def test_a_search_path_that_is_asked_for_at_the_start(server: ServerProcess) -> None:
    for schema in ("hidden_schema", "absent_schema"):
        message = f'no schema of the search path exists: "{schema}"'
        with pytest.raises(psycopg.OperationalError, match=message):
            connect(server, "bob", options=f"-c search_path={schema}")
    with connect(server, "bob", options="-c search_path=bobs") as bob:
        assert bob.execute("SELECT v FROM mine WHERE id = 1").fetchone() == ("a",)
        assert bob.execute("SELECT count(*) FROM open").fetchone() == (3,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            bob.execute("SELECT * FROM hidden")


def test_a_user_with_something_stays(ann: Connection) -> None:
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as error:
        ann.execute("DROP USER bob")
    assert "bobs.mine" in str(error.value.diag.message_detail)


def test_rights_outlive_the_server(serve: Callable[..., ServerProcess]) -> None:
    server = serve()
    with server.connect() as first:
        for statement in ("CREATE USER ann PASSWORD 'x' SUPERUSER", "CREATE USER bob PASSWORD 'x'",
                          "CREATE TABLE a (i INT)", "CREATE TABLE b (i INT)", "GRANT SELECT ON a TO bob",
                          "CREATE SCHEMA n", "GRANT CREATE ON SCHEMA n TO bob"):  # fmt: skip
            first.execute(statement)
    with connect(server, "bob") as bob:
        bob.execute("CREATE TABLE n.t (i INT)")
    server.kill()
    server.start()
    with connect(server, "bob") as bob:
        assert bob.execute("SELECT * FROM a, n.t").fetchall() == []
        with pytest.raises(psycopg.errors.UndefinedTable):
            bob.execute("SELECT * FROM b")
        bob.execute("DROP TABLE n.t")


def test_a_stream_on_all_tables_of_a_schema_is_the_superusers(server: ServerProcess) -> None:
    wide = "CREATE STREAM main.wide ON ALL TABLES IN SCHEMA bobs"
    with connect(server, "ann") as ann, connect(server, "bob") as bob, connect(server, "eve") as eve:
        for connection in (ann, bob, eve):
            connection.autocommit = True
        for limited in (bob, eve):
            with pytest.raises(DENIED):
                limited.execute(wide)
        ann.execute(wide)
        # Others make and drop tables there as ever, and are not told of it.
        bob.execute("CREATE TABLE bobs.more AS SELECT 7 AS id")
        bob.execute("CREATE TABLE bobs.other (id INT PRIMARY KEY)")
        bob.execute("DROP TABLE bobs.more, bobs.other")
        bob.execute("CREATE TABLE bobs.more (id INT PRIMARY KEY)")
        bob.execute("INSERT INTO bobs.more VALUES (8)")
        streams = bob.execute("SELECT stream_name FROM ducktail.streams").fetchall()
        assert ("wide",) not in streams
        assert bob.execute("SELECT * FROM bobs.more").fetchall() == [(8,)]
        rows = ann.execute("SELECT op, after->>'id' FROM STREAM wide WHERE op <> 'schema'").fetchall()
        assert rows == [("insert", "7"), ("delete", None), ("insert", "8")]
        bob.execute("DROP TABLE bobs.more")
        ann.execute("DROP STREAM wide")
