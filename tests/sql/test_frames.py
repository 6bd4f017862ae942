"""Data frames of the process in SQL: register, append and executemany, captured like any write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pytest

import ducktail

ROWS = {"id": [1, 2, 3], "item": ["tea", None, "rusk"], "qty": [5, 6, 7]}


class Reading:
    """An object that is only an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


FRAMES: dict[str, Callable[[dict[str, Any]], object]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "lazy": lambda rows: pl.DataFrame(rows).lazy(),
    "table": pa.table,
    "batch": pa.record_batch,
    "reader": lambda rows: pa.table(rows).to_reader(),
    "stream": lambda rows: Reading(pa.table(rows)),
}


@pytest.fixture
def con() -> Iterator[ducktail.Connection]:
    """A connection with a captured table."""
    with ducktail.connect() as connection:
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY, item TEXT, qty INT DEFAULT 9)")
        connection.execute("CREATE STREAM s ON t WITH (partitions = 1)")
        yield connection


def rows(con: ducktail.Connection) -> list[Any]:
    return con.execute("SELECT * FROM t ORDER BY id").fetchall()


def folded(con: ducktail.Connection) -> list[Any]:
    """The rows that the stream says there are."""
    kept: dict[str, Any] = {}
    for op, key, after in con.execute("SELECT op, key, after FROM STREAM s").fetchall():
        if op == "delete":
            del kept[key]
        else:
            assert (op == "update") == (key in kept)
            kept[key] = tuple(json.loads(after).values())
    return sorted(kept.values())


@pytest.mark.parametrize("kind", FRAMES)
def test_insert_update_and_upsert_from_a_frame(con: ducktail.Connection, kind: str) -> None:
    make = FRAMES[kind]
    con.register("df", make(ROWS))
    assert con.execute("INSERT INTO t SELECT * FROM df").rowcount == 3
    con.register("df", make({"id": [2, 3, 9], "qty": [60, 70, 90]}))
    assert con.execute("UPDATE t SET qty = df.qty FROM df WHERE t.id = df.id").rowcount == 2
    con.register("df", make({"id": [1, 4], "item": ["x", "y"], "qty": [0, 0]}))
    upsert = "INSERT INTO t SELECT * FROM df ON CONFLICT (id) DO UPDATE SET item = EXCLUDED.item"
    assert con.execute(upsert).rowcount == 2
    con.register("df", make({"id": [3]}))
    assert con.execute("DELETE FROM t USING df WHERE t.id = df.id").rowcount == 1
    assert rows(con) == [(1, "x", 5), (2, None, 60), (4, "y", 0)]
    assert folded(con) == rows(con)
    con.unregister("df")
    with pytest.raises(ducktail.ProgrammingError) as gone:
        con.execute("SELECT * FROM df")
    assert gone.value.sqlstate == "42P01"


@pytest.mark.parametrize("kind", ["reader", "stream"])
def test_what_can_be_read_once_is_never_short(con: ducktail.Connection, kind: str) -> None:
    con.register("df", FRAMES[kind](ROWS))
    with pytest.raises(ducktail.DatabaseError) as caught:
        con.execute("INSERT INTO t SELECT a.* FROM df AS a JOIN df AS b USING (id)")
    assert caught.value.sqlstate == "55000"
    assert rows(con) == folded(con) == []
    con.register("df", FRAMES[kind](ROWS))
    con.execute("INSERT INTO t SELECT * FROM df")
    with pytest.raises(ducktail.DatabaseError) as caught:
        con.execute("INSERT INTO t SELECT id + 10, item, qty FROM df")
    assert caught.value.sqlstate == "55000"
    assert len(rows(con)) == len(folded(con)) == 3


def test_a_reader_that_fails_half_way_leaves_nothing(con: ducktail.Connection) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": pa.array(range(5000), pa.int32())})
        raise RuntimeError("the source has gone")

    con.register("df", pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int32())]), batches()))
    with pytest.raises(ducktail.DatabaseError, match="the source has gone"):
        con.execute("INSERT INTO t (id) SELECT id FROM df")
    assert rows(con) == folded(con) == []
    assert con.append("t", pa.table(ROWS)) == 3


def test_a_name_is_one_connection_s_own(con: ducktail.Connection) -> None:
    con.register("df", pa.table(ROWS))
    with con.duplicate() as other, pytest.raises(ducktail.ProgrammingError):
        other.execute("SELECT * FROM df")
    server = con.serve(port=0)
    wire = psycopg.connect(host=server.host, port=server.port, dbname="memory", user="ann", autocommit=True)
    with wire, pytest.raises(psycopg.errors.UndefinedTable):
        wire.execute("SELECT * FROM df")
    assert con.execute("SELECT count(*) FROM DF").fetchone() == (3,)


@pytest.mark.parametrize("name", ["t", "T", "s", "__ducktail_x", ""])
def test_names_that_are_taken(con: ducktail.Connection, name: str) -> None:
    with pytest.raises(ducktail.ProgrammingError) as caught:
        con.register(name, pa.table(ROWS))
    assert caught.value.sqlstate == {"": "42601", "__ducktail_x": "42501"}.get(name, "42P07")
    con.execute("INSERT INTO t VALUES (1, 'a', 1)")
    assert folded(con) == [(1, "a", 1)]


def test_a_quoted_name(con: ducktail.Connection) -> None:
    con.register('a "b" c', pa.table(ROWS))
    assert con.execute('INSERT INTO t SELECT * FROM "a ""b"" c"').rowcount == 3
    con.unregister('A "b" c')
    with pytest.raises(ducktail.ProgrammingError) as caught:
        con.unregister('a "b" c')
    assert caught.value.sqlstate == "42P01"


@pytest.mark.parametrize("thing", [7, "text", [1, 2], {"a": [1]}, None])
def test_what_holds_no_rows_is_refused(con: ducktail.Connection, thing: object) -> None:
    with pytest.raises(ducktail.ProgrammingError) as caught:
        con.register("df", thing)
    assert caught.value.sqlstate == "42804"
    with pytest.raises(ducktail.ProgrammingError):
        con.append("t", thing)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "SELECT 1/0; ROLLBACK", "fail"])
def test_transactions_leave_names_alone(con: ducktail.Connection, end: str) -> None:
    con.register("before", pa.table({"n": [1]}))
    con.register("gone", pa.table({"n": [1]}))
    con.execute("BEGIN")
    con.execute("SELECT count(*) FROM t")
    con.register("before", pa.table({"m": [2]}))
    con.register("inside", pa.table({"n": [3]}))
    con.unregister("gone")
    assert con.execute("SELECT m, n FROM before, inside").fetchall() == [(2, 3)]
    if end == "fail":
        with pytest.raises(ducktail.Error):
            con.execute("INSERT INTO t VALUES ('no number')")
        con.register("late", pa.table({"n": [4]}))
        con.execute("ROLLBACK")
        assert con.execute("SELECT n FROM late").fetchall() == [(4,)]
    else:
        con.execute(end.rpartition(";")[2])
    assert con.execute("SELECT m, n FROM before, inside").fetchall() == [(2, 3)]
    with pytest.raises(ducktail.ProgrammingError):
        con.execute("SELECT * FROM gone")


def test_plans_follow_a_frame_with_other_columns(con: ducktail.Connection) -> None:
    text = "INSERT INTO t BY NAME SELECT * FROM df RETURNING *"
    con.register("df", pa.table({"id": [1]}))
    assert con.execute(text).fetchall() == [(1, None, 9)]
    con.register("df", pa.table({"qty": [4], "id": [2]}))
    assert con.execute(text).fetchall() == [(2, None, 4)]
    con.execute("PREPARE p AS SELECT * FROM df")
    assert con.execute("EXECUTE p").fetchall() == [(4, 2)]
    con.register("df", pa.table({"item": ["x"]}))
    assert con.execute("EXECUTE p").fetchall() == [("x",)]


def test_a_table_made_later_is_hidden(con: ducktail.Connection) -> None:
    con.register("late", pa.table({"n": [1]}))
    con.execute("CREATE TABLE late (n INT)")
    for name in ("late", "main.late"):
        with pytest.raises(ducktail.Error):
            con.execute(f"INSERT INTO {name} VALUES (2)")
    assert con.execute("INSERT INTO memory.main.late VALUES (2)").rowcount == 1
    con.unregister("late")
    assert con.execute("SELECT n FROM late").fetchall() == [(2,)]


def test_discard_leaves_frames_and_drops_temporary_views(con: ducktail.Connection) -> None:
    con.register("df", pa.table({"n": [1]}))
    con.execute("CREATE TEMP VIEW v AS SELECT 1 AS n")
    con.execute("CREATE TEMP TABLE x (n INT)")
    con.execute("DISCARD ALL")
    assert con.execute("SELECT n FROM df").fetchall() == [(1,)]
    for name in "vx":
        with pytest.raises(ducktail.ProgrammingError):
            con.execute(f"SELECT * FROM {name}")


@pytest.mark.parametrize("kind", FRAMES)
def test_append(con: ducktail.Connection, kind: str) -> None:
    make = FRAMES[kind]
    assert con.append("t", make(ROWS)) == 3
    assert con.append("main.t", make({"item": ["z"], "id": [4]}), by_name=True) == 1
    assert con.append('"t"', make({"id": [], "item": [], "qty": []})) == 0
    assert rows(con)[3:] == [(4, "z", 9)]
    assert folded(con) == rows(con)


@pytest.mark.parametrize(
    ("table", "frame", "by_name", "state"),
    [
        ("t", {"id": [4]}, False, "42601"),
        ("t", {"id": [4], "nothing": [1]}, True, "42703"),
        ("t", {"id": [1], "item": ["x"], "qty": [1]}, False, "23505"),
        ("t", {"id": ["x"], "item": ["x"], "qty": [1]}, False, "22P02"),
        ("s", ROWS, False, "0A000"),
        ("ducktail.commits", ROWS, False, "42501"),
        ("nowhere", ROWS, False, "42P01"),
        ("t; DROP STREAM s", ROWS, False, "42601"),
        ("t VALUES (1)", ROWS, False, "42601"),
        ("", ROWS, False, "42601"),
    ],
)
def test_append_refuses(
    con: ducktail.Connection, table: str, frame: dict[str, Any], by_name: bool, state: str
) -> None:
    con.append("t", pa.table({"id": [1], "item": ["a"], "qty": [1]}))
    with pytest.raises(ducktail.Error) as caught:
        con.append(table, pa.table(frame), by_name=by_name)
    assert caught.value.sqlstate == state
    assert rows(con) == folded(con) == [(1, "a", 1)]


def test_append_is_part_of_the_transaction(con: ducktail.Connection) -> None:
    con.execute("BEGIN")
    con.append("t", pa.table(ROWS))
    con.rollback()
    assert rows(con) == folded(con) == []
    with con.duplicate() as manual:
        manual.autocommit = False
        manual.append("t", pa.table(ROWS))
        assert manual.in_transaction
        manual.commit()
    assert len(rows(con)) == len(folded(con)) == 3


def test_executemany_is_all_or_nothing(con: ducktail.Connection) -> None:
    cursor = con.cursor()
    insert = "INSERT INTO t VALUES (?, ?, ?)"
    assert cursor.executemany(insert, ((i, "x", i) for i in range(50))).rowcount == 50
    assert con.execute("SELECT count(DISTINCT txid), max(tx_seq) FROM STREAM s").fetchall() == [(1, 49)]
    with pytest.raises(ducktail.IntegrityError):
        cursor.executemany("INSERT INTO t VALUES (?, ?, ?)", [[50, "y", 0], [51, "y", 0], [7, "y", 0]])
    assert len(rows(con)) == len(folded(con)) == 50
    assert not con.in_transaction
    assert cursor.executemany("DELETE FROM t WHERE id = ?", [[1], [2], [-1]]).rowcount == 2
    assert cursor.executemany("DELETE FROM t WHERE id = ?", []).rowcount == 0
    with pytest.raises(ducktail.ProgrammingError):
        cursor.executemany("UPDATE t SET qty = 0 WHERE id = ? RETURNING id", [[3], [4]])
    assert folded(con) == rows(con) and all(row[2] for row in rows(con)[1:])


def test_executemany_inside_a_transaction_fails_it(con: ducktail.Connection) -> None:
    con.execute("BEGIN")
    con.execute("INSERT INTO t VALUES (1, 'a', 1)")
    con.cursor().executemany("INSERT INTO t VALUES (?, ?, ?)", [[2, "b", 2]])
    with pytest.raises(ducktail.IntegrityError):
        con.cursor().executemany("INSERT INTO t VALUES (?, ?, ?)", [[3, "c", 3], [2, "b", 2]])
    with pytest.raises(ducktail.InternalError) as caught:
        con.execute("SELECT 1")
    assert caught.value.sqlstate == "25P02"
    con.rollback()
    assert rows(con) == folded(con) == []
