"""has_table_privilege and its like answer by the session's rights; of what is not there as PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

from ducktail.sql.language.statements import ROWS, Right, Row
from ducktail.sql.rights import permission

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER bob PASSWORD 'x';
CREATE USER eve PASSWORD 'x';
CREATE TABLE read_only (id INT PRIMARY KEY, v TEXT);
CREATE TABLE hidden (id INT);
CREATE SEQUENCE hidden_sequence;
CREATE SCHEMA bobs;
CREATE SCHEMA hidden_schema;
CREATE STREAM changes ON read_only;
GRANT SELECT ON read_only TO bob;
GRANT CONSUME ON changes TO bob;
GRANT CREATE ON SCHEMA bobs TO bob;
GRANT INSERT, DELETE ON read_only TO eve;
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("privileges") / "shop.duckdb") as started:
        with started.connect() as first:
            for statement in filter(str.strip, SETUP.split(";")):
                first.execute(statement)
        with started.connect(user="bob", password="x") as bob:
            bob.execute("CREATE TABLE bobs.own (id INT, v TEXT)")
            bob.execute("CREATE SEQUENCE bobs.counter")
        yield started


@pytest.fixture(scope="module")
def people(server: ServerProcess) -> Iterator[dict[str, psycopg.Connection[Any]]]:
    with server.connect(user="ann", password="x") as ann, server.connect(user="bob", password="x") as bob:
        yield {"ann": ann, "bob": bob}


def asked(connection: psycopg.Connection[Any], question: str) -> Any:
    """The answer, or the SQLSTATE of the error."""
    try:
        return connection.execute(f"SELECT {question}").fetchall()[0][0]  # type: ignore[call-overload]
    except psycopg.Error as error:
        return error.diag.sqlstate


# What is asked, and what ann (a superuser) and bob are answered.
QUESTIONS = [
    ("has_table_privilege('read_only', 'SELECT')", True, True),
    ("has_table_privilege('read_only', 'insert')", True, False),
    ("has_table_privilege('read_only', 'INSERT, SELECT')", True, True),
    ("has_table_privilege('read_only', 'SELECT WITH GRANT OPTION')", True, False),
    ("has_table_privilege('read_only', 'TRUNCATE')", True, False),
    ("has_table_privilege('main.read_only'::regclass, 'SELECT')", True, True),
    ("has_table_privilege('bobs.own', 'delete')", True, True),
    ("has_table_privilege('bobs.own', 'SELECT WITH GRANT OPTION')", True, True),
    ("has_table_privilege('bobs.own', 'TRIGGER')", True, False),
    ("has_table_privilege('changes', 'SELECT')", True, False),
    ("has_table_privilege('hidden', 'SELECT')", True, "42P01"),
    ("has_table_privilege('absent', 'SELECT')", "42P01", "42P01"),
    ("has_table_privilege(999999999, 'SELECT')", None, None),
    ("has_table_privilege(NULL, 'SELECT')", None, None),
    ("has_table_privilege('read_only', 'nonsense')", "22023", "22023"),
    ("has_table_privilege('pg_catalog.pg_class', 'SELECT')", True, True),
    ("has_table_privilege('pg_catalog.pg_class', 'INSERT')", True, False),
    ("has_table_privilege('ducktail.streams', 'SELECT')", True, True),
    ("has_table_privilege('bob', 'read_only', 'INSERT')", False, False),
    ("has_table_privilege('eve', 'read_only', 'INSERT')", True, "42704"),
    ("has_table_privilege('ann', 'read_only', 'INSERT')", True, "42704"),
    ("has_table_privilege('nobody', 'read_only', 'INSERT')", "42704", "42704"),
    ("has_table_privilege(current_user, 'read_only', 'INSERT')", True, False),
    ("has_any_column_privilege('read_only', 'INSERT')", True, False),
    ("has_column_privilege('read_only', 'v', 'SELECT')", True, True),
    ("has_column_privilege('read_only', 2, 'UPDATE')", True, False),
    ("has_column_privilege('read_only', 'absent', 'SELECT')", "42703", "42703"),
    ("has_column_privilege('hidden', 'id', 'SELECT')", True, "42P01"),
    ("has_sequence_privilege('bobs.counter', 'USAGE')", True, True),
    ("has_sequence_privilege('hidden_sequence', 'USAGE')", True, "42P01"),
    ("has_schema_privilege('bobs', 'CREATE')", True, True),
    ("has_schema_privilege('main', 'CREATE')", True, False),
    ("has_schema_privilege('main', 'USAGE')", True, True),
    ("has_schema_privilege('pg_catalog', 'USAGE')", True, True),
    ("has_schema_privilege('hidden_schema', 'USAGE')", True, "3F000"),
    ("has_schema_privilege('absent', 'USAGE')", "3F000", "3F000"),
    ("has_database_privilege(current_database(), 'CREATE')", True, False),
    ("has_database_privilege(current_database(), 'CONNECT')", True, True),
    ("has_database_privilege('absent', 'CONNECT')", "3D000", "3D000"),
    ("has_function_privilege('lower(text)', 'EXECUTE')", True, True),
    ("has_function_privilege('pg_get_viewdef(oid)', 'EXECUTE')", True, True),
    ("has_function_privilege('write_log(text)', 'EXECUTE')", True, False),
    ("has_function_privilege('absent(text)', 'EXECUTE')", "42883", "42883"),
    ("pg_has_role(current_user, 'MEMBER')", True, True),
    ("pg_has_role('ducktail', 'USAGE')", True, False),
    ("pg_has_role('absent', 'USAGE')", "42704", "42704"),
]


@pytest.mark.parametrize(("question", "ann", "bob"), QUESTIONS)
def test_what_one_may_is_answered(
    people: dict[str, psycopg.Connection[Any]], question: str, ann: Any, bob: Any
) -> None:
    assert (asked(people["ann"], question), asked(people["bob"], question)) == (ann, bob)


def test_of_the_rows_of_the_catalog(server: ServerProcess) -> None:
    with server.connect(user="bob", password="x") as bob:
        query = """
            SELECT c.relname, has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'UPDATE'),
                   has_schema_privilege(n.oid, 'CREATE'), has_table_privilege('bob', c.oid, 'INSERT')
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname IN ('main', 'bobs') AND c.relkind IN ('r', 'v') ORDER BY 1"""
        assert bob.execute(query).fetchall() == [
            ("changes", False, False, False, False),
            ("changes_changes", False, False, False, False),
            ("own", True, True, True, True),
            ("read_only", True, False, False, False),
        ]
        asked_with = bob.execute("SELECT has_table_privilege(%s, %s)", ["read_only", "SELECT"])
        assert asked_with.fetchall() == [(True,)]


def test_while_there_is_no_user_everything_is_allowed(server: ServerProcess, tmp_path: Any) -> None:
    with ServerProcess(tmp_path / "open.duckdb") as started, started.connect() as anybody:
        anybody.execute("CREATE TABLE t (i INT)")
        row = anybody.execute("SELECT has_table_privilege('t', 'DELETE'), pg_has_role('ducktail', 'USAGE')")
        assert row.fetchall() == [(True, True)]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.right is Right.SUPERUSER], ids=lambda row: row.tag
)
def test_statements_without_a_rule_are_left_to_superusers(
    row: Row, people: dict[str, psycopg.Connection[Any]]
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        people["bob"].execute(row.form)  # type: ignore[call-overload]


def test_all_other_rights_have_a_rule() -> None:
    # A PUBLISH is judged as the INSERT that it is.
    assert set(Right) - permission._RIGHTS.keys() == {Right.SUPERUSER, Right.PUBLISH}
