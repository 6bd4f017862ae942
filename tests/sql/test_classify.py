"""The allow-list: what each opening is, and that nothing unknown is let through."""

from __future__ import annotations

import pytest

from ducktail.engine.errors import SyntaxError_
from ducktail.sql.language.classify import classify
from ducktail.sql.text.classified import Classified, Kind

KINDS = {
    Kind.EMPTY: ["", " ;; ", "-- nothing", "/* ; */"],
    Kind.OURS: [
        "CREATE STREAM s ON t",
        "create or replace change stream if not exists s on t",
        "CREATE TOPIC s",
        "ALTER STREAM s SET (retention = '1 day')",
        "DROP CHANGE STREAM s",
        "COMMENT ON STREAM s IS 'x'",
        "SHOW STREAMS",
        "SHOW CHANGE STREAMS LIKE 'a%'",
        "SHOW TOPICS",
        "SHOW PARTITIONS ON s",
        "SHOW CREATE STREAM s",
        "DESCRIBE STREAM s",
        "CHECK STREAM s",
        "PUBLISH TO s 'x'",
        "LISTEN s",
        "UNLISTEN *",
        "NOTIFY c, 'x'",
        "SHOW CHANGES FOR t",
        "CREATE CONSUMER GROUP g ON s",
        "ALTER CONSUMER GROUP g ON s SEEK EARLIEST",
        "DROP CONSUMER GROUP IF EXISTS g ON s",
        "DESCRIBE CONSUMER GROUP g ON s",
        "SHOW CONSUMER GROUPS",
        "SHOW OFFSETS ON s CONSUMER GROUP g",
        "SHOW MEMBERS ON s CONSUMER GROUP g",
        "SHOW PARKED ON s CONSUMER GROUP g",
        "SHOW READ POSITION ON s CONSUMER GROUP g",
        "LEAVE CONSUMER GROUP g ON s MEMBER 'm'",
        "CREATE BOOKMARK b ON s",
        "SHOW BOOKMARKS",
        "DROP BOOKMARK b ON s",
        "CREATE SINK k ON s TO WEBHOOK 'https://h/'",
        "ALTER SINK k ON s SET (batch = 1)",
        "PAUSE SINK k ON s",
        "RESUME SINK k ON s",
        "DROP SINK k ON s",
        "SHOW SINKS",
        "SHOW CHECKPOINTS",
        "SHOW NODES",
        "SHOW PLACEMENT",
        "SHOW CONTINUOUS COPIES",
        "REPORT PIPELINE 'p' AS '{}'",
        "COMMIT OFFSETS ON s CONSUMER GROUP g",
        "COMMIT OFFSET PARTITION 1 AT 2 ON s CONSUMER GROUP g",
        "CREATE USER u PASSWORD 'x'",
        "ALTER USER u",
        "DROP USER u",
        "GRANT SELECT ON t TO u",
        "REVOKE SELECT ON t FROM u",
        "SUBSCRIBE TO s",
        "CREATE SUBSCRIPTION s CONNECTION 'x'",
        "CREATE CHANGEFEED FOR t",
    ],
    Kind.READ: [
        "select 1",
        "from t",
        "values (1)",
        "table t",
        "with a as (select 1) from a",
        "((select 1))",
        "describe t",
        "describe stream",
        "desc t",
        "summarize t",
        "pivot t on a",
        "unpivot t on a",
        "show tables",
        "show all tables",
        "show databases",
        "show",
        "pragma table_info('t')",
        'select * from "stream"',
        "with a as (insert into t values (1) returning *) select * from a",
    ],
    Kind.DML: [
        "insert into t values (1)",
        "insert or replace into t values (1)",
        "update t set a = 1",
        "delete from t",
        "truncate t",
        "merge into t using u on true when matched then delete",
        "with recursive a(x) as (select 1), b as materialized (select 2) update t set a = 1",
    ],
    Kind.DDL: [
        "create table t(a int)",
        "create or replace temp table t as select 1",
        "create view v as select 1",
        "create unique index i on t(a)",
        "create schema s",
        "create sequence s",
        "create type m as enum ('a')",
        "create macro m(a) as a",
        "create function m(a) as table select a",
        "alter table t add column b int",
        "drop table if exists t",
        "drop schema s cascade",
        "drop macro table m",
        "comment on column s.t.c is 'x'",
    ],
    Kind.TRANSACTION: [
        "begin",
        "begin transaction isolation level repeatable read, read only",
        "start transaction read write",
        "commit and no chain",
        "end work",
        "rollback",
        "abort",
        "savepoint a",
        "release savepoint a",
        "rollback to a",
        "set transaction read only",
        "set session characteristics as transaction isolation level read committed",
    ],
    Kind.SETTING: [
        "set a = 1",
        "set local a.b to 'x', y",
        "set time zone 'UTC'",
        "set names 'utf8'",
        "reset all",
        "show search_path",
        "show transaction isolation level",
        "discard all",
        "set variable x = 1",
    ],
    Kind.COPY: ["copy t(a) from stdin with (format csv)", "copy (select 1) to stdout", "copy t from 'x.csv'"],
    Kind.EXPLAIN: [
        "explain select 1",
        "explain analyze insert into t values (1)",
        "explain (analyze) select 1",
    ],
    Kind.PREPARE: ["prepare p as select 1", "prepare p(int, varchar) as insert into t values ($1, $2)"],
    Kind.EXECUTE: ["execute p", "execute p(1, (2 + 3))"],
    Kind.DEALLOCATE: ["deallocate p", "deallocate prepare p", "deallocate all"],
    Kind.UTILITY: ["checkpoint", "force checkpoint", "vacuum", "analyze", "use main"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KINDS.items() for text in texts])
def test_kind(kind: Kind, text: str) -> None:
    assert classify(text).kind is kind
    assert classify(f"/* x */ {text} ;").kind is kind


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("attach 'x.db'", "42501"),
        ("detach x", "42501"),
        ("install httpfs", "42501"),
        ("load httpfs", "42501"),
        ("export database 'x'", "42501"),
        ("import database 'x'", "42501"),
        ("call pragma_version()", "42501"),
        ("update extensions", "42501"),
        ("create secret s (type s3)", "42501"),
        ("create or replace persistent secret s (type s3)", "42501"),
        ("drop secret s", "42501"),
        ("create constraint trigger x after insert on t for each row insert into u values (1)", "0A000"),
        ("copy t from program 'id'", "42501"),
        ("copy from database a to b", "42501"),
        ("create database d", "42501"),
        ("select * from json_execute_serialized_sql('x')", "0A000"),
        ("select \"JSON_EXECUTE_SERIALIZED_SQL\"('x')", "0A000"),
        ("pragma threads=4", "0A000"),
        ("pragma enable_profiling", "0A000"),
        ("pragma json_execute_serialized_sql('x')", "0A000"),
        ("lock table t", "0A000"),
        ("create materialized view v as select 1", "0A000"),
        ("reindex table t", "0A000"),
    ],
)
def test_refused(text: str, sqlstate: str) -> None:
    found = classify(text)
    assert found.kind is Kind.REFUSED
    assert found.error is not None and found.error.sqlstate == sqlstate
    with pytest.raises(type(found.error)):
        raise found.error


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("selct 1", 1),
        ("?", 1),
        ("begin foo", 7),
        ("commit; rollback", 7),
        ("create foo", 8),
        ("set a", 6),
        ("insert into", 12),
        ("update", 7),
        ("with a as (select 1)", 21),
        ("with a (select 1) select 2", 19),
        ("show a b", 8),
        ("prepare p select 1", 11),
        ("explain", 8),
        ("copy t", 7),
    ],
)
def test_malformed_openings_have_a_position(text: str, position: int) -> None:
    with pytest.raises(SyntaxError_) as caught:
        classify(text)
    assert caught.value.position == position


def dml_of(text: str) -> tuple[object, ...]:
    facts = classify(text).dml
    assert facts is not None
    return facts.target, facts.alias, facts.has_with, facts.has_returning


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('insert into a."b c" values (1)', (("a", "b c"), None, False, False)),
        ("insert into t as z(a) values (1) returning a", (("t",), "z", False, True)),
        ("insert into t by name select 1", (("t",), None, False, False)),
        ("insert into t default values", (("t",), None, False, False)),
        ("update t x set a = (with q as (select 1) select 2)", (("t",), "x", False, False)),
        (
            "with q as (update u set a = 1) delete from db.s.t",
            (("db", "s", "t"), None, True, False),
        ),
        ('delete from t as "x y" using u returning *', (("t",), "x y", False, True)),
        ("merge into t using u on true when matched then delete", (("t",), None, False, False)),
        ("truncate table s.t", (("s", "t"), None, False, False)),
    ],
)
def test_dml_facts(text: str, facts: tuple[object, ...]) -> None:
    assert dml_of(text) == facts


@pytest.mark.parametrize(
    ("text", "may_write", "cte_writes"),
    [
        ("select 1", False, False),
        ("select 'delete from t'", False, False),
        ("select * from query('delete from t')", True, False),
        ("select * from \"QUERY\"('x')", True, False),
        ("select update from t", True, False),
        ("with a as (delete from t returning *) select * from a", True, True),
        (
            "with a as not materialized (merge into t using u on a = b) select 1",
            True,
            True,
        ),
        ("insert into t (update, delete) values (1, 2)", True, False),
        ("create table u as with a as (insert into t values (1) returning *) select * from a", True, True),
        ("copy (with a as (delete from t returning *) select * from a) to stdout", True, True),
        ("set variable x = (with a as (delete from t returning 1) select * from a)", True, True),
        ("create table u(a int)", False, False),
    ],
)
def test_what_may_write(text: str, may_write: bool, cte_writes: bool) -> None:
    found = classify(text)
    assert (found.may_write, found.cte_writes) == (may_write, cte_writes)


def classified(text: str) -> Classified:
    return classify(text)


def test_ddl_facts() -> None:
    create = classified("create or replace temp table if not exists s.t (a int)").ddl
    assert create is not None
    assert (create.verb, create.object_type, create.table) == ("CREATE", "TABLE", ("s", "t"))
    assert create.or_replace and create.temporary and create.if_not_exists and not create.as_select
    text = "create table t(a) as with q as (select 1) select * from q"
    select = classified(text).ddl
    assert select is not None and select.as_select and select.query_offset is not None
    assert text[select.query_offset :].startswith("with q")
    index = classified('create index on "s"."T x"(a)').ddl
    assert index is not None and index.table == ("s", "T x") and index.names == ()
    drop = classified("drop table if exists a, s.b cascade").ddl
    assert drop is not None and drop.names == (("a",), ("s", "b")) and drop.cascade and drop.if_exists
    column = classified("comment on column s.t.c is 'x'").ddl
    assert column is not None and column.table == ("s", "t")
    view = classified("drop view v").ddl
    assert view is not None and view.table is None


def test_transaction_facts() -> None:
    begin = classified("begin isolation level read committed, read only")
    assert begin.verb == "BEGIN"
    assert begin.transaction is not None
    modes = {"transaction_isolation": "read committed", "transaction_read_only": "on"}
    assert begin.transaction.modes == modes
    assert classified("abort").verb == "ROLLBACK"
    assert classified("end").verb == "COMMIT"
    chained = classified("commit and chain").transaction
    assert chained is not None and chained.chain
    back = classified('rollback to savepoint "A b"')
    assert back.verb == "ROLLBACK TO"
    assert back.transaction is not None and back.transaction.savepoint == "A b"


@pytest.mark.parametrize(
    ("text", "scope", "name", "values"),
    [
        ("set a = 1", None, "a", ("1",)),
        ("set session a to 'it''s', B, \"C d\"", "SESSION", "a", ("it's", "B", "C d")),
        ("set local a.B = -1.5", "LOCAL", "a.b", ("-1.5",)),
        ("set a to default", None, "a", None),
        ("set time zone local", None, "timezone", ("local",)),
        ("set names utf8", None, "client_encoding", ("utf8",)),
        ("set schema 's'", None, "search_path", ("s",)),
        ("set session authorization default", "SESSION", "session_authorization", None),
        ("reset session authorization", None, "session_authorization", None),
        ("reset all", None, "all", None),
        ("show time zone", None, "timezone", None),
        ("show all", None, "all", None),
        ("discard temp", None, "temp", None),
    ],
)
def test_setting_facts(text: str, scope: str | None, name: str, values: tuple[str, ...] | None) -> None:
    facts = classified(text).setting
    assert facts is not None
    assert (facts.scope, facts.name, facts.values) == (scope, name, values)


def test_inner_statements_keep_their_place() -> None:
    text = "explain (analyze, format 'json') insert into t values (1)"
    explain = classified(text).explain
    assert explain is not None and explain.analyze
    assert explain.options == {"ANALYZE": "", "FORMAT": "json"}
    assert text[explain.offset :] == explain.inner == "insert into t values (1)"
    query = classified("explain (select 1)").explain
    assert query is not None and query.inner == "(select 1)" and not query.analyze
    off = classified("explain (analyze false) select 1").explain
    assert off is not None and not off.analyze
    text = "prepare p (int, decimal(10,2)) as select $1"
    prepared = classified(text).prepare
    assert prepared is not None
    assert (prepared.name, prepared.types, prepared.inner) == ("p", ("int", "decimal(10,2)"), "select $1")
    assert text[prepared.offset :] == prepared.inner
    executed = classified("execute p(1, f(2, 3), 'a,b')").execute
    assert executed is not None and executed.arguments == (
        (None, "1"),
        (None, "f(2, 3)"),
        (None, "'a,b'"),
    )


def test_copy_facts() -> None:
    into = classified('copy s.t(a, "B c") from stdin (format csv)').copy
    assert into is not None and into.reads and into.client
    assert (into.table, into.columns, into.table_position) == (("s", "t"), ("a", "B c"), 5)
    out = classified("copy (select 1) to stdout").copy
    assert out is not None and not out.reads and out.client
    assert (out.query, out.query_offset) == ("select 1", 6)
    found = classified("copy t from 'a.csv' (header)")
    assert found.copy is not None and found.copy.reads and not found.copy.client
    assert found.tokens[found.copy.rest].value == "a.csv"
