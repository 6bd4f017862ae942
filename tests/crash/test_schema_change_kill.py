"""Changes of a captured table in a transaction, killed (-9) between its statements: all there, or nothing.

DUCKTAIL_SCHEMA_KILLS (default 2) is at how many of them, `all` at each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from amounts import SOAK
from local_client import Client, raises
from preloaded import ran
from reopening import QUIET

from ducktail.engine.database import Database

HERE = Path(__file__).resolve().parent
KILLS = os.environ.get("DUCKTAIL_SCHEMA_KILLS", "all" if SOAK else "2")
ALTERED = (
    "BEGIN;UPDATE t SET v = 6 WHERE id = 2;ALTER TABLE t ADD COLUMN w INT;ALTER TABLE t RENAME TO u;"
    "INSERT INTO u VALUES (4, 4, 4);COMMIT"
)
SWAPPED = (
    "BEGIN;DROP TABLE t;CREATE TABLE t (id INT, v INT, w INT);"
    "INSERT INTO t VALUES (2, 5, NULL), (4, 4, 4);COMMIT"
)

IN_SCHEMA = (
    "BEGIN;CREATE TABLE n.a__tmp AS SELECT 1 AS id, 3 AS v;ALTER TABLE n.a RENAME TO a__backup;"
    "ALTER TABLE n.a__tmp RENAME TO a;DROP TABLE n.b;CREATE TABLE n.c AS SELECT 5 AS id;COMMIT"
)


def make(path: Path) -> None:
    """A table with two streams, altered before, and with events of both versions."""
    database = Database.open(str(path), QUIET)
    client = Client(database)
    client("create table t (id int primary key, v int)")
    client("create stream wide on t with (partitions = 3)")
    client("create stream narrow on t (id) with (partitions = 1)")
    client("insert into t values (1, 1)")
    client("alter table t alter v set default 5")
    client("insert into t (id) values (2)")
    client("checkpoint")
    client.close()
    database.close()


def make_schema(path: Path) -> None:
    """A stream on all tables of a schema, one of which was dropped before."""
    database = Database.open(str(path), QUIET)
    client = Client(database)
    client("create schema n")
    client("create stream s on all tables in schema n with (partitions = 1)")
    client("create table n.a as select i::int as id, 1 as v from range(3) as r(i)")
    client("create table n.b as select 1 as id")
    client("create table n.c (id int, w int)")
    client("drop table n.c")
    client("checkpoint")
    client.close()
    database.close()


def check(path: Path, *, done: bool) -> None:
    """The database is as before the change or as after it, and goes on from there."""
    database = Database.open(str(path), QUIET)
    client = Client(database)
    assert not database.damage
    version, table = (4, "u") if done else (2, "t")
    events = client("select lsn, op, table_name, schema_version from stream wide")
    assert events == client("select lsn, op, table_name, schema_version from wide order by lsn")
    wanted = [(1, "insert", "main.t", 1), *((lsn, "schema", "main.t", 2) for lsn in (2, 3, 4))]
    wanted.append((5, "insert", "main.t", 2))
    if done:
        wanted += [(6, "update", "main.t", 2), *((lsn, "schema", "main.t", 3) for lsn in (7, 8, 9))]
        wanted += [(10, "insert", "main.t", 3), *((lsn, "schema", "main.u", 4) for lsn in (11, 12, 13))]
    assert events == wanted
    client(f"insert into {table} (id) values (3)")
    last = client("select lsn, schema_version from stream narrow where op = 'insert' and lsn > 5")[-1]
    assert last == (14 if done else 6, version)
    middle = [(2, 5), (2, 6), (4, 4)] if done else []
    changes = client("select id, v from wide_changes order by _lsn, _change_type desc")
    assert changes == [(1, 1), (2, 5), *middle, (3, 5)]
    client(f"alter table {table} alter v drop default")
    assert client("select max(schema_version) from ducktail.schema_versions") == [(version + 1,)]
    client.close()
    database.close()


def check_swap(path: Path, *, done: bool) -> None:
    """The same of a table that was dropped and made anew."""
    database = Database.open(str(path), QUIET)
    client = Client(database)
    assert not database.damage
    assert client("check stream wide") == []
    rows = [(2, 5, None), (4, 4, 4)] if done else [(1, 1), (2, 5)]
    assert client("from t order by id") == rows
    told = client("select op, schema_version from stream narrow where lsn > 5")
    assert told == ([(op, 3) for op in ("schema", "delete", "insert")] if done else [])
    assert client("select count(*) from duckdb_tables() where table_name like '%aside%'") == [(0,)]
    with raises("23505"):
        client("insert into t (id) values (2)")
    client("insert into t (id) values (7)")
    assert client("check stream wide") == []
    client.close()
    database.close()


def check_schema(path: Path, *, done: bool) -> None:
    """Tables of a schema that one transaction has swapped, dropped and made, with a stream on all of them."""
    database = Database.open(str(path), QUIET)
    client = Client(database)
    assert not database.damage and not database.catalog.behind
    assert client("check stream s") == []
    told = client("select op, table_name, after->>'dropped' from stream s where lsn > 5")
    assert told == client("select op, table_name, after->>'dropped' from s where lsn > 5 order by lsn")
    swapped = [*(("delete", "n.a", None),) * 3, ("insert", "n.a", None)]
    dropped = [("delete", "n.b", None), ("schema", "n.b", "true")]
    assert told == ([*swapped, *dropped, ("schema", "n.c", None), ("insert", "n.c", None)] if done else [])
    there = ["n.a", "n.c"] if done else ["n.a", "n.b"]
    assert client("select list_sort(tables) from ducktail.streams") == [(there,)]
    if done:
        with raises("55000"):
            client("insert into n.a__backup values (1, 1)")
        client("drop table n.a__backup")
    for table in there:
        client(f"insert into {table} (id) values (7)")
    client("create table if not exists n.b as select 1 as id")
    assert client("check stream s") == []
    assert client("select list_sort(tables) from ducktail.streams") == [(sorted({*there, "n.b"}),)]
    client.close()
    database.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("maker", "script", "looked"),
    [
        (make, ALTERED, check),
        (make, SWAPPED, check_swap),
        (make_schema, IN_SCHEMA, check_schema),
    ],
)
def test_a_change_killed_between_its_statements(
    tmp_path: Path, maker: Callable[[Path], None], script: str, looked: Callable[..., None]
) -> None:
    made = tmp_path / "made.duckdb"
    maker(made)
    program = HERE / "schema_change_child.py"
    done = ran([str(made), str(tmp_path), script, KILLS], program=program, timeout=300)
    assert done.returncode == 0, done.stderr
    looked(tmp_path / "0.duckdb", done=True)
    for number in range(1, int(done.stdout) + 1):
        looked(tmp_path / f"{number}.duckdb", done=False)
