"""psycopg 3 against a real server: normal, prepared, binary and pipeline mode."""

from __future__ import annotations

import datetime
import decimal
import select
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from server_process import ServerProcess

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(shared: ServerProcess) -> Iterator[Connection]:
    """An autocommit connection with an empty table t(id, item)."""
    with shared.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute("CREATE TABLE t(id int PRIMARY KEY, item text)")
        yield connection


VALUES: list[tuple[str, object]] = [
    ("int4", 7),
    ("int8", -(2**40)),
    ("bool", True),
    ("float8", 0.5),
    ("text", "é ☃ ' \" \\"),
    ("numeric(18, 4)", decimal.Decimal("12345.6789")),
    ("date", datetime.date(2026, 11, 21)),
    ("timestamp", datetime.datetime(2026, 11, 21, 13, 5, 1, 250)),
    ("timestamptz", datetime.datetime(2026, 11, 21, 13, 5, tzinfo=datetime.UTC)),
    ("time", datetime.time(1, 2, 3, 4)),
    ("uuid", uuid.UUID("b1d8e8d1-6d0b-4e7c-9f57-3a0c1b1c2d3e")),
    ("bytea", b"\0\xff\\"),
]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_value_goes_there_and_back(connection: Connection, kind: str, value: object, binary: bool) -> None:
    placeholder = "%b" if binary else "%s"
    cursor = connection.execute(f"SELECT {placeholder}::{kind} AS v, NULL::{kind}", (value,), binary=binary)
    assert cursor.fetchall() == [(value, None)]


def test_an_error_has_its_sqlstate_and_place(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        connection.execute("SELECT 'é', nowhere FROM t")
    assert caught.value.diag.statement_position == "13"
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        connection.execute("SELECT 1; SELECT nowhere FROM t")
    assert caught.value.diag.statement_position == "18"


def test_transactions(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        assert connection.info.transaction_status == TransactionStatus.INTRANS
    with pytest.raises(ZeroDivisionError), connection.transaction():
        connection.execute("INSERT INTO t VALUES (2, 'b')")
        raise ZeroDivisionError
    with connection.transaction(force_rollback=True):
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        assert connection.info.transaction_status == TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
    assert connection.execute("SELECT * FROM t").fetchall() == [(1, "a")]
    assert connection.info.transaction_status == TransactionStatus.IDLE


def test_not_autocommit(shared: ServerProcess, connection: Connection) -> None:
    with shared.connect(autocommit=False) as other:
        other.execute("INSERT INTO t VALUES (1, 'a')")
        other.rollback()
        other.execute("INSERT INTO t VALUES (2, 'b')")
        other.commit()
    assert connection.execute("SELECT id FROM t").fetchall() == [(2,)]


def test_prepared_statements(connection: Connection) -> None:
    for number in range(20):
        connection.execute("INSERT INTO t VALUES (%s, %s)", (number, str(number)), prepare=True)
    found = [
        connection.execute("SELECT item FROM t WHERE id = %s", (number,), prepare=True).fetchone()
        for number in range(20)
    ]
    assert found == [(str(number),) for number in range(20)]
    # psycopg forgets its statements with DEALLOCATE ALL when a table changes.
    connection.execute("DROP TABLE t")
    connection.execute("CREATE TABLE t(id int)")
    assert connection.execute("SELECT count(*) FROM t", prepare=True).fetchone() == (0,)


def test_a_prepared_statement_divides_by_the_setting_it_is_run_under(connection: Connection) -> None:
    connection.execute("CREATE STREAM halves ON t")
    connection.execute("INSERT INTO t VALUES (7, '')")

    def half() -> object:
        connection.execute("UPDATE t SET item = (id / 2)::varchar WHERE id = 7", prepare=True)
        row = connection.execute("SELECT (id / 2)::float8, item FROM t", prepare=True).fetchone()
        assert row is not None and float(row[1]) == row[0]
        return row[0]

    assert [half() for _ in range(3)] == [3.5] * 3
    for setting, found in (("on", 3.0), ("off", 3.5)):
        connection.execute(f"SET integer_division = {setting}")
        assert [half() for _ in range(2)] == [found] * 2
    connection.execute("DROP STREAM halves")


def test_a_pipeline_is_one_transaction_up_to_its_sync(connection: Connection) -> None:
    with connection.pipeline():
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        connection.execute("INSERT INTO t VALUES (2, 'b')")
        count = connection.execute("SELECT count(*) FROM t")
    assert count.fetchone() == (2,)
    with pytest.raises(psycopg.errors.UndefinedTable), connection.pipeline():
        connection.execute("INSERT INTO t VALUES (3, 'c')")
        connection.execute("SELECT * FROM nowhere")
        connection.execute("INSERT INTO t VALUES (4, 'd')")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
    with connection.pipeline() as pipeline:
        connection.execute("INSERT INTO t VALUES (5, 'e')")
        pipeline.sync()
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO t VALUES (5, 'e')").fetchall()
        pipeline.sync()
        connection.execute("INSERT INTO t VALUES (6, 'f')")
    assert connection.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (5,), (6,)]


def test_a_transaction_in_a_pipeline(connection: Connection) -> None:
    with connection.pipeline(), connection.transaction():
        connection.execute("INSERT INTO t VALUES (1, 'a')")
    with connection.pipeline(), connection.transaction(force_rollback=True):
        connection.execute("INSERT INTO t VALUES (2, 'b')")
    assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]


def test_the_results_of_a_pipeline_come_with_its_sync(
    shared: ServerProcess, shared_raw: Callable[[], Any], connection: Connection
) -> None:
    """However TCP divides it, as in PostgreSQL; an error is not held back."""
    client = shared_raw()
    client.enter()
    execute = (("P", b"\0SELECT 1\0\0\0"), ("B", b"\0\0\0\0\0\0\0\0"), ("E", b"\0\0\0\0\0"))
    for kind, body in execute:
        client.message(kind, body)
    for _ in range(10):
        connection.execute("SELECT 1")
    assert select.select([client.socket], [], [], 0)[0] == []
    client.message("H")
    assert [kind for kind, _ in client.until("C")] == ["1", "2", "D", "C"]
    client.message("P", b"\0SELECT wrong\0\0\0")
    assert client.until("E")[-1][0] == "E"
    client.message("S")
    assert client.until("Z")


def test_executemany(connection: Connection) -> None:
    cursor = connection.cursor()
    cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(number, "x") for number in range(100)])
    assert cursor.rowcount == 100
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (100,)


def test_several_statements_in_one_text(connection: Connection) -> None:
    cursor = connection.execute("INSERT INTO t VALUES (1, 'a'); SELECT id FROM t; SELECT 'é;é'")
    assert cursor.statusmessage == "INSERT 0 1"
    assert cursor.nextset() and cursor.fetchall() == [(1,)]
    assert cursor.nextset() and cursor.fetchall() == [("é;é",)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("INSERT INTO t VALUES (2, 'b'); INSERT INTO t VALUES (1, 'b')")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_a_long_result_streams(connection: Connection) -> None:
    cursor = connection.cursor()
    total = 0
    for row in cursor.stream("SELECT range AS n, repeat('x', 100) AS x FROM range(300000)"):
        total += row[0]
    assert total == sum(range(300000))


def test_describe_without_execution(connection: Connection) -> None:
    result = connection.pgconn.prepare(b"s", b"SELECT $1::int AS a, 'x' AS b")
    described = connection.pgconn.describe_prepared(b"s")
    assert (result.nparams, described.nparams, described.param_type(0)) == (0, 1, 23)
    assert [described.fname(at) for at in range(described.nfields)] == [b"a", b"b"]
    assert [described.ftype(at) for at in range(described.nfields)] == [23, 25]


def test_a_running_query_is_cancelled(connection: Connection) -> None:
    slow = "SELECT count(*) FROM range(10000000000) a WHERE a.range % 7 = 8"
    timer = threading.Timer(0.3, connection.cancel_safe)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute(slow)
    timer.join()
    assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.cancel()
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_changed_parameters_are_reported(connection: Connection) -> None:
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    assert connection.info.parameter_status("TimeZone") == "Asia/Tokyo"
    found = connection.execute("SELECT timestamptz '2026-01-01 00:00:00+00'").fetchone()
    assert found is not None and str(found[0]) == "2026-01-01 09:00:00+09:00"
    connection.execute("SET application_name = 'x'")
    assert connection.info.parameter_status("application_name") == "x"


def test_a_warning_is_a_notice(connection: Connection) -> None:
    notices: list[str | None] = []
    connection.add_notice_handler(lambda diagnostic: notices.append(diagnostic.sqlstate))
    connection.execute("COMMIT")
    assert notices == ["25P01"]


def test_raise_in_do(connection: Connection) -> None:
    """Notices come in order, before an error, and their values are in the form that clients see."""
    told: list[tuple[object, ...]] = []
    connection.add_notice_handler(
        lambda d: told.append((d.severity_nonlocalized, d.sqlstate, d.message_primary, d.message_hint))
    )
    code = (
        r"BEGIN RAISE NOTICE 'a % %', true, '\x01'::bytea; RAISE WARNING SQLSTATE 'PXX98' USING HINT = 'h'; "
    )
    connection.execute(f"DO $${code} RAISE INFO '%', date '2026-01-02'; RAISE DEBUG 'd'; END$$")
    assert told == [
        ("NOTICE", "00000", r"a t \x01", None),
        ("WARNING", "PXX98", "PXX98", "h"),
        ("INFO", "00000", "2026-01-02", None),
    ]
    told.clear()
    with pytest.raises(psycopg.errors.ProgrammingError) as raised:
        connection.execute(f"DO $${code} RAISE 'failed' USING ERRCODE = 'PXX99', DETAIL = 'why'; END$$")
    found = raised.value.diag
    assert (found.sqlstate, found.message_primary, found.message_detail) == ("PXX99", "failed", "why")
    assert [sqlstate for _, sqlstate, _, _ in told] == ["00000", "PXX98"]


def test_execute_of_a_format_in_do(connection: Connection) -> None:
    connection.execute(
        "DO $$BEGIN EXECUTE format('CREATE TABLE %I (t TEXT)', 'Made €'); "
        "EXECUTE format('INSERT INTO %I VALUES (%L), (%L)', 'Made €', 'it''s', NULL); END$$"
    )
    rows = connection.execute('SELECT t, quote_literal(t) FROM "Made €"').fetchall()
    assert rows == [("it's", "'it''s'"), (None, None)]
    # They are the same in writes and views.
    connection.execute("""INSERT INTO "Made €" SELECT format('%I', t) FROM "Made €" WHERE t IS NOT NULL""")
    connection.execute("""CREATE VIEW made AS SELECT format('%s of %L', quote_ident(t), t) FROM "Made €" """)
    assert connection.execute("SELECT * FROM made OFFSET 2").fetchall() == [('"""it\'s""" of \'"it\'\'s"\'',)]
    with pytest.raises(psycopg.Error, match="null values cannot be formatted as an SQL identifier"):
        connection.execute("SELECT format('%I', NULL)")
    connection.execute('DROP VIEW made; DROP TABLE "Made €"')


def test_parameters_of_positions(shared: ServerProcess) -> None:
    """SEEK AFTER takes an LSN or a map, as a number or a text; START AFTER an LSN."""
    with shared.connect() as connection:
        connection.execute("CREATE TABLE positions (id int PRIMARY KEY)")
        connection.execute("CREATE STREAM places ON positions WITH (partitions = 2)")
        connection.execute("INSERT INTO positions SELECT i FROM range(20) r(i)")
        rows = connection.execute("SELECT partition, max(lsn) FROM STREAM places GROUP BY 1 ORDER BY 1")
        first, second = (int(lsn) for _, lsn in rows.fetchall())
        begun = min(first, second)
        connection.execute("CREATE CONSUMER GROUP g ON places START AFTER %s", (begun,))
        seek = "ALTER CONSUMER GROUP {} ON places SEEK {} AFTER {} DRY RUN"
        here: object
        for here in (begun, str(begun), f'{{"0": {begun}, "1": {begun}}}'):
            for mark in ("%s", "%b") if isinstance(here, int) else ("%s",):
                found = connection.execute(seek.format("g", "", mark), (here,)).fetchall()
                assert [row[:3] for row in found] == [(0, begun, begun), (1, begun, begun)]
        moved = connection.execute(seek.format("%s", "PARTITION %s", "%s"), ("g", 1, 0)).fetchall()
        assert [row[:3] for row in moved] == [(1, begun, 0)]
        for wrong, sqlstate in (("x", "22P02"), ("-1", "22P02"), (None, "22023"), ('{"9": 1}', "22023")):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(seek.format("g", "", "%s"), (wrong,))
            assert caught.value.sqlstate == sqlstate
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute(seek.format("g", "PARTITION 1", "%s"), ('{"1": 1}',))
        connection.execute("DROP STREAM places CASCADE")
        connection.execute("DROP TABLE positions")
