"""Promise 2: ways in which a captured table could be written, dropped or mistaken past its stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from local_client import Client, fold, raises, state_of

from ducktail.engine.database import Database
from ducktail.engine.waiting import drive


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """A captured table that hangs on a sequence, a type and a macro."""
    made = connect()
    made("create sequence q")
    made("create type mood as enum ('ok', 'sad')")
    made("create macro seven() as 7")
    made(
        "create table t (id int primary key default nextval('q'), "
        "m mood default 'ok'::mood, n int default (seven()))"
    )
    made("create stream s on t with (partitions = 1)")
    made("insert into t default values")
    return made


@pytest.mark.parametrize("drop", ["drop sequence q cascade", "drop type mood cascade"])
def test_no_cascade_takes_a_captured_table(client: Client, drop: str) -> None:
    with raises("2BP01"):
        client(drop)
    client("begin")
    with raises("2BP01"):
        client(drop)
    client("rollback")
    client("insert into t default values")
    assert client.one("select count(*) from stream s") == 2


@pytest.mark.parametrize("name", ["sha1", "duckdb_tables", "epoch_us", "LOWER"])
def test_no_macro_takes_the_name_of_a_built_in_function(client: Client, name: str) -> None:
    with raises("0A000"):
        client(f"create macro {name}(x) as 1")


def test_nor_one_that_was_made_past_ducktail(tmp_path: Path) -> None:
    """While the file is closed: as long as it is open, DuckDB refuses a second connection."""
    path = str(tmp_path / "macros.duckdb")
    for made, told in (
        ("create table t (id int primary key)", ""),
        ("create macro To_JSON(a) as 1", "to_json"),
    ):
        with duckdb.connect(path) as past:
            past.execute(made)
        with closing(Database.open(path)) as database:
            with pytest.raises(duckdb.Error):
                duckdb.connect(path)
            client = Client(database)
            if told:
                with raises("0A000") as found:
                    client("create stream others on t")
                assert f'"{told}"' in found.value.message
                client("drop macro to_json")
            client("create stream others on t")
            client("drop stream others")
            client.close()


@pytest.mark.parametrize(
    "write",
    [
        "explain explain analyze delete from t",
        "explain analyze prepare p as delete from t",
        "explain analyze create table u as with w as (delete from t returning *) select * from w",
        "create view v as with w as (delete from t returning *) select * from w",
        "create macro m() as table with w as (delete from t returning *) select * from w",
        "select * from json_execute_serialized_sql(json_serialize_sql('delete from t'))",
        "select * from JSON_EXECUTE_SERIALIZED_SQL('x')",
        "with w as (delete from t returning *) select * from w, stream s",
        "with w as (delete from t returning *), x as (delete from t returning *) select * from w",
        "drop table t",
        "alter table t add primary key (id)",
        "create or replace table t (x int)",
        "truncate s",
        "insert into s select * from s",
        "drop view s",
        "delete from ducktail.commits",
    ],
)
def test_what_cannot_be_captured_is_refused(client: Client, write: str) -> None:
    assert state_of(client, write) in ("0A000", "2BP01", "42501")
    assert client.one("select count(*) from t") == client.one("select count(*) from stream s") == 1


@pytest.mark.parametrize(
    "write",
    [
        "select * from query('with w as (delete from t returning *) select * from w')",
        "select * from (with w as (delete from t returning *) select * from w)",
        "select (with w as (delete from t returning *) select count(*) from w)",
        "with y as (with w as (delete from t returning *) select * from w) select * from y",
        "with recursive w as (delete from t returning *) select * from w",
        "set variable x = (with w as (delete from t returning *) select count(*) from w)",
        "from t insert into t",
        "insert into u with w as (delete from t returning *) select * from w",
    ],
)
def test_what_duckdb_refuses_itself(client: Client, write: str) -> None:
    client("create table u (id int, m varchar, n int)")
    assert state_of(client, write) == "42601"
    assert client.one("select count(*) from t") == client.one("select count(*) from stream s") == 1


@pytest.mark.parametrize(
    "write",
    [
        "with w as (insert into t values (5, 'ok', 1) returning *) select * from w",
        "(with w as (update t set n = 2 returning *) select * from w)",
        "with w as (with y as (select 1 as id) delete from t using y where t.id = y.id) select 1",
        "create table u as with w as (delete from t returning *) select * from w",
        "create temp table u as (with w as (update t set n = 2 returning *) select * from w)",
        "with w as (delete from t returning *) insert into plain select id from w",
        "with w as (delete from plain returning *) insert into t (id) select id + 9 from w",
        "explain analyze insert into t default values",
        "explain (analyze) update t set n = 3",
        "merge into t using (select 1 as id) x on t.id = x.id when matched then delete",
        "explain analyze merge into t using (values (1)) x(i) on id = i when matched then update set n = 7",
        "explain analyze with w as (delete from t returning *) select * from w",
        "execute p",
        "explain analyze insert or replace into t values (1, 'sad', 9), (2, 'sad', 9)",
    ],
)
def test_what_writes_by_a_detour_is_captured(client: Client, write: str) -> None:
    client("create table plain (id int)")
    client("insert into plain values (1)")
    client("prepare p as with w as (delete from t returning *) select * from w")
    client(write)
    events = client("select op, key, before, after from stream s")
    assert len(events) > 1
    rows = dict(client("select {'id': id}::json::varchar, t::json::varchar from t"))
    assert fold(events) == rows


def test_idempotent_scripts_and_temporary_tables_pass(client: Client) -> None:
    client("create table if not exists t (id int primary key)")
    with raises("42P07"):
        client("create table t (id int)")
    client("create temp table t (id int)")
    client("insert into t values (9)")
    assert client.one("select count(*) from stream s") == 1
    client("drop table temp.t")
    client("insert into t default values")
    assert client.one("select count(*) from stream s") == 2


def test_a_table_without_a_stream_may_be_written_by_a_cte(client: Client) -> None:
    client("create table plain (id int)")
    client("insert into plain values (1), (2)")
    assert client("with w as (delete from plain where id = 1 returning *) select * from w") == [(1,)]
    assert client("select * from plain") == [(2,)]


@pytest.mark.parametrize("path", ["ducktail", "main, ducktail", "__ducktail_pg.pg"])
def test_our_schema_is_not_on_a_search_path(client: Client, path: str) -> None:
    with raises("42501"):
        client(f"set search_path = '{path}'")


def test_a_table_made_before_ours_on_the_search_path(connect: Callable[..., Client]) -> None:
    """What an open transaction's unqualified name means is told by its own snapshot."""
    setup = connect()
    for text in ("create schema a", "create schema b", "create table b.t (id int)", "create stream s on b.t"):
        setup(text)
    writer = connect()
    writer("set search_path to a, b")
    writer("begin")
    writer("select * from t")
    setup("create table a.t (id int)")
    writer("insert into t values (1)")
    writer("commit")
    assert setup("select * from a.t") == []
    assert setup("select after from stream main.s") == [('{"id":1}',)]


def test_a_row_on_which_the_filter_fails_does_not_match(client: Client) -> None:
    client("create table raw (id int primary key, a text)")
    client("create stream big on raw where raw.a::int > 1")
    client("insert into raw values (1, 'abc'), (2, '5'), (3, '0')")
    assert client("select key from stream big") == [('{"id":2}',)]


def test_a_table_that_went_while_nobody_looked_stops_no_other(
    client: Client, database: Database, connect: Callable[..., Client]
) -> None:
    import duckdb

    client("create table other (id int primary key)")
    client("create stream so on other")
    client("insert into other values (1)")
    client.close()
    database.close()
    with duckdb.connect(database.path) as plain:
        plain.execute("drop table t")
    reopened = Database.open(database.path)
    again = Client(reopened)
    assert again.one("select count(*) from stream so") == 1
    again.close()
    reopened.close()


@pytest.mark.parametrize("name", ["main.t", "t"])
def test_to_duckdb_a_temporary_table_hides_main_too(client: Client, name: str) -> None:
    client("create temp table t (id int default 5, mood text, n int)")
    client(f"insert into {name} default values")
    client(f"update {name} set n = 7")
    assert client("select id, n from temp.main.t") == [(5, 7)]
    assert client.one("select count(*) from stream s") == 1


@pytest.mark.parametrize("name", ["{0}.main.t", "{0}.t"])
def test_a_captured_table_under_its_whole_name(client: Client, database: Database, name: str) -> None:
    name = name.format(database.catalog_name)
    client(f"insert into {name} default values")
    assert client.one("select count(*) from stream s") == 2
    client("create temp table t (id int)")
    with raises("0A000"):
        client(f"insert into {name} default values")
    client("drop table temp.t")
    client(f"delete from {name}")
    assert client.one("select count(*) from stream s") == 4


def test_no_session_changes_the_order_that_others_get(client: Client, connect: Callable[..., Client]) -> None:
    """Some settings of DuckDB are the process's: one session's would turn every image and every read."""
    other = connect()
    with raises("42501"):
        other("set default_order = 'desc'")
    other("set default_null_order = 'nulls_first'")
    assert other("from (values (1), (null)) v(i) order by i") == [(None,), (1,)]
    assert client("from (values (1), (null)) v(i) order by i") == [(1,), (None,)]
    client("create table pair (id int primary key, a int, b int)")
    client("create stream sp on pair with (partitions = 1)")
    client("insert into pair values (1, 2, 3)")
    client("insert into pair values (2, 2, 3)")
    assert client("select after from stream sp") == [('{"id":1,"a":2,"b":3}',), ('{"id":2,"a":2,"b":3}',)]


def test_no_read_changes_how_others_get_their_rows(client: Client, connect: Callable[..., Client]) -> None:
    """DuckDB's lossless Arrow form belongs to the cursor that asked for it."""
    client("create table big (id int primary key, h hugeint)")
    client("create stream sb on big")
    client("insert into big values (1, 2)")
    assert client("select max(h) from stream sb envelope changes after 0") == [(2,)]
    client("with w as (delete from big returning *) select * from w")
    other = connect()
    assert other.one("select current_setting('arrow_lossless_conversion')") is False


def test_a_plan_is_of_the_transactions_own_names(connect: Callable[..., Client]) -> None:
    """What was a table that reads the same twice may be a view that does not."""
    client, other = connect(), connect()
    client("create table t (v double)")
    client("create table u (v double)")
    client("insert into u values (1)")
    client("create stream s on t")
    insert = "insert into t select v from u"
    client("begin")
    client("select * from t")
    other("drop table u")
    other("create view u as select random() as v")
    client(insert)
    client("commit")
    client(insert)
    client("create schema further")
    client("create table further.u as select 2 as v")
    copied = "insert into main.t select v from u"
    statement = drive(client.session.parse(copied))
    for path in ("further", "main", "further", "main"):
        client(f"set search_path = '{path}'")
        drive(client.session.execute(statement))
    rows = client("select v from t order by v")
    assert len(rows) == 6
    assert client("select (after->>'v')::double as v from stream s order by v") == rows


def test_a_bulk_insert_without_a_key_meets_nothing(connect: Callable[..., Client]) -> None:
    client, other = connect(), connect()
    client("create table t (v int)")
    client("create table u as select i::int as v from range(20000) r(i)")
    client("create stream s on t")
    client("begin")
    client("select * from t")
    other("insert into t values (-1)")
    client("insert into t select v from u")
    client("commit")
    assert client.one("select count(*) from stream s") == 20001


def test_the_open_file_is_not_attached_a_second_time(client: Client, database: Database) -> None:
    with raises("42501"):
        client(f"from read_duckdb('{database.path}', table_name = 't')")
