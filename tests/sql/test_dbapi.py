"""ducktail.connect against PEP 249, and what it promises beyond."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import ducktail

UTC = datetime.UTC


@pytest.fixture
def con() -> Iterator[ducktail.Connection]:
    """A connection to a new database in memory."""
    with ducktail.connect() as connection:
        yield connection


def test_the_module_says_what_it_is() -> None:
    assert (ducktail.apilevel, ducktail.threadsafety, ducktail.paramstyle) == ("2.0", 1, "qmark")


def test_every_public_name_is_there() -> None:
    for name in ducktail.__all__:
        assert getattr(ducktail, name) is not None
    with pytest.raises(AttributeError):
        _ = ducktail.nothing_of_the_kind


def test_the_exceptions_stand_as_pep_249_has_them(con: ducktail.Connection) -> None:
    assert issubclass(ducktail.InterfaceError, ducktail.Error)
    for name in ("DataError", "OperationalError", "IntegrityError", "InternalError", "ProgrammingError"):
        assert issubclass(getattr(ducktail, name), ducktail.DatabaseError)
        assert getattr(con, name) is getattr(ducktail, name)


VALUES: list[tuple[str, Any]] = [
    ("NULL", None),
    ("true", True),
    ("1::TINYINT", 1),
    ("9223372036854775807", 2**63 - 1),
    ("170141183460469231731687303715884105727::HUGEINT", 2**127 - 1),
    ("1.5::FLOAT", 1.5),
    ("'Infinity'::DOUBLE", float("inf")),
    ("1.50::DECIMAL(9, 2)", Decimal("1.50")),
    ("'duck'", "duck"),
    ("''", ""),
    ("""'{"a": [1, null]}'::JSON""", '{"a": [1, null]}'),
    ("'\\x00\\xff'::BLOB", b"\x00\xff"),
    ("'101'::BIT", "101"),
    ("['101'::BIT]", ["101"]),
    ("'b'::ENUM ('a', 'b')", "b"),
    ("'6f9619ff-8b86-d011-b42d-00c04fc964ff'::UUID", UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")),
    ("DATE '2024-02-29'", datetime.date(2024, 2, 29)),
    ("'infinity'::DATE", datetime.date.max),
    ("TIME '01:02:03.5'", datetime.time(1, 2, 3, 500_000)),
    ("TIMESTAMP '2024-01-01 01:02:03.000004'", datetime.datetime(2024, 1, 1, 1, 2, 3, 4)),
    ("'2024-01-01 00:00:00.123456789'::TIMESTAMP_NS", datetime.datetime(2024, 1, 1, 0, 0, 0, 123_456)),
    ("TIMESTAMPTZ '2024-01-01 01:02:03+00'", datetime.datetime(2024, 1, 1, 1, 2, 3, tzinfo=UTC)),
    ("INTERVAL '1 month 2 days 3 seconds'", datetime.timedelta(days=32, seconds=3)),
    ("[1, NULL, 3]", [1, None, 3]),
    ("['6f9619ff-8b86-d011-b42d-00c04fc964ff'::UUID]", [UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")]),
    ("[[1], [2, 3]]", [[1], [2, 3]]),
    ("{'a': 1, 'b': {'c': 'x'}}", {"a": 1, "b": {"c": "x"}}),
    ("MAP {'a': 1}", {"a": 1}),
    ("{'u': ['00000000-0000-0000-0000-000000000001'::UUID]}", {"u": [UUID(int=1)]}),
    ("row(1, INTERVAL '1 day')", (1, datetime.timedelta(days=1))),
    ("array_value(1, 2)", (1, 2)),
]


@pytest.mark.parametrize(("sql", "value"), VALUES, ids=[sql for sql, _ in VALUES])
def test_values_come_as_python_has_them(con: ducktail.Connection, sql: str, value: Any) -> None:
    [(found,)] = con.execute(f"SELECT {sql} AS x").fetchall()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, 2**40, 1.25, Decimal("2.50"), "it's", "", b"\x00\x01"),
        *(datetime.date(2024, 1, 2), datetime.time(3, 4), datetime.datetime(2024, 1, 2, 3, 4, 5)),
        *(datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), datetime.timedelta(days=2)),
        *(UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff"), [1, 2, 3]),
    ],
    ids=repr,
)
def test_values_go_and_come_back(con: ducktail.Connection, value: Any) -> None:
    assert con.execute("SELECT ? AS x", [value]).fetchall() == [(value,)]
    assert con.execute("SELECT $1 AS x", [value]).fetchall() == [(value,)]


def test_description_and_type_objects(con: ducktail.Connection) -> None:
    cursor = con.execute("SELECT 1 AS a, 'x' AS b, 1.5::DECIMAL(9, 2) AS c, now() AS d, 'y'::BLOB AS e")
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["a", "b", "c", "d", "e"]
    codes = [column[1] for column in cursor.description]
    families = [ducktail.NUMBER, ducktail.STRING, ducktail.NUMBER, ducktail.DATETIME, ducktail.BINARY]
    assert codes == families
    assert codes[0] != ducktail.STRING
    assert con.execute("CREATE TABLE t (id INTEGER)").description is None


def test_rowcount_and_statusmessage(con: ducktail.Connection) -> None:
    cursor = con.cursor()
    assert cursor.rowcount == -1
    cursor.execute("CREATE TABLE t (id INTEGER)")
    assert (cursor.rowcount, cursor.statusmessage) == (-1, "CREATE TABLE")
    assert cursor.execute("INSERT INTO t VALUES (1), (2), (3)").rowcount == 3
    assert cursor.executemany("INSERT INTO t VALUES (?)", [[4], [5]]).rowcount == 2
    assert cursor.execute("UPDATE t SET id = id + 10 WHERE id > 3").rowcount == 2
    cursor.execute("SELECT * FROM t")
    assert len(cursor.fetchall()) == cursor.rowcount == 5


def test_fetching(con: ducktail.Connection) -> None:
    cursor = con.execute("SELECT i FROM range(10) AS r (i)")
    assert cursor.fetchone() == (0,)
    assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(4,), (5,)]
    assert [row for (row,) in cursor] == [6, 7, 8, 9]
    assert (cursor.fetchone(), cursor.fetchmany(5), cursor.fetchall()) == (None, [], [])


def test_a_large_result_comes_whole(con: ducktail.Connection) -> None:
    assert len(con.execute("SELECT i FROM range(100_000) AS r (i)").fetchall()) == 100_000


def test_two_cursors_take_turns(con: ducktail.Connection) -> None:
    first = con.execute("SELECT i FROM range(50_000) AS r (i)")
    assert first.fetchone() == (0,)
    assert con.execute("SELECT 1").fetchall() == [(1,)]
    assert len(first.fetchall()) == 49_999


def test_arrow_pandas_polars(con: ducktail.Connection) -> None:
    query = "SELECT i, i::VARCHAR AS text FROM range(3) AS r (i)"
    table = con.execute(query).fetch_arrow_table()
    assert table.to_pydict() == {"i": [0, 1, 2], "text": ["0", "1", "2"]}
    assert con.execute(query).df()["i"].tolist() == [0, 1, 2]
    assert con.execute(query).pl()["text"].to_list() == ["0", "1", "2"]
    empty = con.execute("SELECT 1 AS a WHERE false").fetch_arrow_table()
    assert (empty.num_rows, empty.column_names) == (0, ["a"])


def test_a_missing_library_is_told(con: ducktail.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ducktail.NotSupportedError, match="pip install polars"):
        con.execute("SELECT 1").pl()


def test_errors_carry_their_sqlstate(con: ducktail.Connection) -> None:
    cases = [
        ("SELECT * FROM nowhere", ducktail.ProgrammingError, "42P01"),
        ("SELEKT 1", ducktail.ProgrammingError, "42601"),
        ("SELECT 'x'::INTEGER", ducktail.DataError, "22P02"),
        ("COMMIT OFFSETS ON nothing CONSUMER GROUP g", ducktail.ProgrammingError, "42704"),
        ("SELECT * FROM read_csv('/etc/passwd')", ducktail.ProgrammingError, "42501"),
    ]
    for sql, kind, sqlstate in cases:
        with pytest.raises(kind) as caught:
            con.execute(sql).fetchall()
        assert caught.value.sqlstate == sqlstate, sql
    con.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    con.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ducktail.IntegrityError) as caught_twice:
        con.execute("INSERT INTO t VALUES (1)")
    assert caught_twice.value.sqlstate == "23505"


@pytest.mark.parametrize(
    "text", ["INSERT INTO t SELECT nope", "UPDATE t SET id = nope", "DELETE FROM t WHERE nope"]
)
def test_places_of_errors_are_in_the_text_that_was_written(con: ducktail.Connection, text: str) -> None:
    con.execute("CREATE SCHEMA longer_name")
    con.execute("CREATE TABLE longer_name.t (id INTEGER)")
    con.execute("SET search_path = 'longer_name, main'")
    with pytest.raises(ducktail.ProgrammingError) as caught:
        con.execute(text)
    assert caught.value.position == text.index("nope") + 1


def test_closed_things_are_refused(con: ducktail.Connection) -> None:
    cursor = con.execute("SELECT 1")
    cursor.close()
    with pytest.raises(ducktail.InterfaceError) as caught:
        cursor.fetchone()
    assert caught.value.sqlstate == "24000"
    other = con.duplicate()
    left_open = other.execute("SELECT 1")
    other.close()
    other.close()
    with pytest.raises(ducktail.InterfaceError) as caught:
        other.execute("SELECT 1")
    assert caught.value.sqlstate == "08003"
    with pytest.raises(ducktail.InterfaceError):
        left_open.fetchone()


def test_fetching_without_an_answer(con: ducktail.Connection) -> None:
    with pytest.raises(ducktail.InterfaceError) as caught:
        con.cursor().fetchall()
    assert caught.value.sqlstate == "24000"
    with pytest.raises(ducktail.ProgrammingError):
        con.cursor().executemany("SELECT ?", [[1]])


def test_autocommit_is_on_and_off(con: ducktail.Connection) -> None:
    con.execute("CREATE TABLE t (id INTEGER)")
    with con.duplicate() as manual:
        manual.autocommit = False
        manual.execute("INSERT INTO t VALUES (1)")
        assert manual.in_transaction
        with pytest.raises(ducktail.ProgrammingError) as caught:
            manual.autocommit = True
        assert caught.value.sqlstate == "25001"
        manual.rollback()
        assert con.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        manual.execute("INSERT INTO t VALUES (2)")
        manual.commit()
        manual.commit()
    assert con.execute("SELECT id FROM t").fetchall() == [(2,)]


def test_the_context_manager_commits_or_rolls_back(con: ducktail.Connection) -> None:
    con.execute("CREATE TABLE t (id INTEGER)")
    with con.duplicate() as kept:
        kept.execute("BEGIN")
        kept.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(RuntimeError), con.duplicate() as dropped:
        dropped.execute("BEGIN")
        dropped.execute("INSERT INTO t VALUES (2)")
        raise RuntimeError
    assert con.execute("SELECT id FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM nowhere", "SELEC 42", "'abc", "CREATE STREAM", "SELECT 1; SELEC 2", "SELECT 'a' || \"b"],
)
def test_a_failed_transaction_does_not_pretend_to_commit(
    con: ducktail.Connection, text: str, many: bool
) -> None:
    con.execute("CREATE TABLE t (id INTEGER)")
    con.execute("BEGIN")
    con.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ducktail.ProgrammingError):
        con.cursor().executemany(text, [[], []]) if many else con.execute(text)
    with pytest.raises(ducktail.InternalError) as caught:
        con.commit()
    assert caught.value.sqlstate == "25P02"
    assert not con.in_transaction
    assert con.execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_several_statements_are_one_transaction(con: ducktail.Connection) -> None:
    assert con.execute("CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (1); FROM t").fetchall() == [(1,)]
    with pytest.raises(ducktail.ProgrammingError):
        con.execute("INSERT INTO t VALUES (2); SELECT * FROM nowhere")
    assert con.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
    with pytest.raises(ducktail.ProgrammingError):
        con.execute("SELECT ?; SELECT 2", [1])


def test_an_empty_text_answers_nothing(con: ducktail.Connection) -> None:
    assert con.execute("").description is None
    assert con.execute(" -- nothing\n ;").description is None


def test_one_file_is_opened_once(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    with ducktail.connect(file, lock_timeout_ms=300) as first:
        first.execute("CREATE TABLE t (id INTEGER)")
        with ducktail.connect(str(file), lock_timeout_ms=300) as second:
            assert second.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        with pytest.raises(ducktail.OperationalError) as caught:
            ducktail.connect(file)
        assert caught.value.sqlstate == "55006"
    with ducktail.connect(file) as again:
        assert again.execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_a_file_of_another_process_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shop.duckdb"
    opening = f"con = ducktail.connect({str(file)!r}); print('open', flush=True); sys.stdin.read()"
    program = f"import ducktail, sys; {opening}"
    # -I and a directory of its own: the repository's folders must not shadow anything.
    with subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ducktail.OperationalError) as caught:
            ducktail.connect(file)
        assert caught.value.sqlstate == "58030"
        holder.communicate(timeout=30)
        assert holder.returncode == 0
    ducktail.connect(file).close()


def test_memory_databases_are_apart() -> None:
    with ducktail.connect() as first, ducktail.connect() as second:
        first.execute("CREATE TABLE t (id INTEGER)")
        with pytest.raises(ducktail.ProgrammingError):
            second.execute("SELECT * FROM t")


def test_unknown_and_bad_settings() -> None:
    with pytest.raises(ducktail.DataError, match="lock_timeout_ms") as caught:
        ducktail.connect(lock_timeot_ms=5)
    assert caught.value.sqlstate == "22023"
    with pytest.raises(ducktail.DataError):
        ducktail.connect(lock_timeout_ms=-1)


def test_cancel_from_another_thread(con: ducktail.Connection) -> None:
    def cancel() -> None:
        time.sleep(0.3)
        con.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(ducktail.OperationalError) as caught:
        con.execute("SELECT count(*) FROM range(100_000_000_000) AS r (i) WHERE i % 7 = 3").fetchall()
    thread.join()
    assert caught.value.sqlstate == "57014"
    assert con.execute("SELECT 1").fetchall() == [(1,)]


def stream_of_orders(con: ducktail.Connection) -> None:
    """A table with a stream, a group and five events."""
    con.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR)")
    con.execute("CREATE STREAM orders_stream ON orders WITH (partitions = 1)")
    con.execute("CREATE CONSUMER GROUP g ON orders_stream")
    con.execute("INSERT INTO orders SELECT i, 'item ' || i FROM range(1, 6) AS r (i)")


READ = "SELECT * FROM STREAM orders_stream CONSUMER GROUP g"


def test_a_stream_in_process(con: ducktail.Connection) -> None:
    stream_of_orders(con)
    rows = con.execute(READ).fetchall()
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5]
    lsn, partition, op, table, key, before, after, moment, *_ = rows[0]
    assert (lsn, partition, op, table, key, before) == (1, 0, "insert", "main.orders", '{"id":1}', None)
    assert after == '{"id":1,"item":"item 1"}'
    assert isinstance(moment, datetime.datetime)
    assert moment.tzinfo is not None
    assert con.execute(READ).fetchall() == rows
    con.execute("COMMIT OFFSETS ON orders_stream CONSUMER GROUP g")
    assert con.execute(READ).fetchall() == []


def test_what_was_fetched_is_what_is_committed(con: ducktail.Connection) -> None:
    stream_of_orders(con)
    cursor = con.execute(READ)
    assert [row[0] for row in cursor.fetchmany(2)] == [1, 2]
    con.execute("COMMIT OFFSETS ON orders_stream CONSUMER GROUP g")
    assert [row[0] for row in con.execute(READ)] == [3, 4, 5]


def test_parameters_in_our_clauses(con: ducktail.Connection) -> None:
    stream_of_orders(con)
    query = "SELECT lsn FROM STREAM orders_stream PARTITION ? CONSUMER GROUP ? LIMIT ?"
    assert con.execute(query, [0, "g", 2]).fetchall() == [(1,), (2,)]


def test_notices_are_kept(con: ducktail.Connection) -> None:
    stream_of_orders(con)
    con.execute("BEGIN")
    con.execute(READ).fetchall()
    con.execute("COMMIT OFFSETS ON orders_stream CONSUMER GROUP g")
    con.execute("COMMIT")
    assert any("COMMIT" in (notice.hint or "") for notice in con.notices)


def test_serve_from_a_process_that_holds_the_database(tmp_path: Path) -> None:
    with ducktail.connect(tmp_path / "shop.duckdb") as con:
        stream_of_orders(con)
        server = con.serve(port=0)
        dsn = f"host={server.host} port={server.port} dbname=shop"
        with psycopg.connect(dsn, autocommit=True) as client:
            client.execute("INSERT INTO orders VALUES (6, 'over the wire')")
        assert len(con.execute(READ).fetchall()) == 6
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=2)
    with ducktail.connect(tmp_path / "shop.duckdb") as con:
        con.serve(port=0)


def test_a_text_that_is_no_unicode(con: ducktail.Connection) -> None:
    for call in (con.execute, lambda text: con.cursor().executemany(text, [()])):
        with pytest.raises(ducktail.DataError) as found:
            call("select '\ud800'")
        assert found.value.sqlstate == "22021"


@pytest.mark.parametrize("name", ["data.csv", "data.json"])
def test_a_file_of_data_is_no_database(tmp_path: Path, name: str) -> None:
    """DuckDB would show it in a database in memory, and every commit would be gone at the end."""
    path = tmp_path / name
    path.write_text('{"a": 1}\n')
    with pytest.raises(ducktail.OperationalError) as found:
        ducktail.connect(path)
    assert found.value.sqlstate == "58030"
    assert [file.name for file in tmp_path.iterdir()] == [name]
