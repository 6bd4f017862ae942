"""COPY FROM STDIN over the wire: psycopg, psql and a bare socket."""

from __future__ import annotations

import select
import struct
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

Connection = psycopg.Connection[Any]
# A server that takes nothing for so long waits for something.
STALLED_S = 3.0


@pytest.fixture
def con(shared: ServerProcess) -> Iterator[Connection]:
    """A captured table t and a plain one p, empty."""
    with shared.connect() as made:
        for text in (
            "drop stream if exists s",
            "drop table if exists t",
            "drop table if exists p",
            "create table t (id int primary key, v text default 'none', n numeric(10, 2))",
            "create table p (id int, v text)",
            "create stream s on t with (partitions = 1)",
        ):
            made.execute(text)
        yield made


def load(con: Connection, statement: str, data: str | bytes) -> str:
    """Run a COPY with this data; its command tag."""
    with con.cursor() as cursor:
        with cursor.copy(statement) as copy:  # type: ignore[arg-type]
            copy.write(data)
        return cursor.statusmessage or ""


def rows(con: Connection, text: str) -> list[Any]:
    return con.execute(text).fetchall()  # type: ignore[arg-type]


def events(con: Connection) -> list[Any]:
    return rows(con, "select op, after::text from stream s")


def failed(con: Connection, statement: str, data: str | bytes) -> tuple[str | None, str | None]:
    """The SQLSTATE and the context with which a COPY fails."""
    with pytest.raises(psycopg.Error) as found:
        load(con, statement, data)
    return found.value.sqlstate, found.value.diag.context


def test_text_into_a_captured_table(con: Connection) -> None:
    data = "1\ta\\tb\\\\c\t1.005\n2\t\\N\t\\N\n3\tö\\303\\251\\x41\\\nx\t-7\n\\.\nnothing more\n"
    assert load(con, "copy t from stdin", data) == "COPY 3"
    found = [(1, "a\tb\\c", "1.01"), (2, None, None), (3, "öéA\nx", "-7.00")]
    assert rows(con, "select id, v, n::text from t order by id") == found
    assert events(con)[0] == ("insert", '{"id":1,"v":"a\\tb\\\\c","n":1.01}')
    assert len(events(con)) == 3


def test_columns_and_defaults(con: Connection) -> None:
    assert load(con, "copy t (n, id) from stdin", "1\t7\n") == "COPY 1"
    assert rows(con, "select id, v, n::int from t") == [(7, "none", 1)]


def test_a_plain_table(con: Connection) -> None:
    assert load(con, "copy p from stdin with csv", '1,"a ""b"", c"\n2,\n3,""\n') == "COPY 3"
    assert rows(con, "select * from p order by id") == [(1, 'a "b", c'), (2, None), (3, "")]


@pytest.mark.parametrize(
    ("options", "data", "found"),
    [
        ("(format csv, header)", "id,v\n1,x\n", [(1, "x")]),
        ("(format csv, header match)", "id,v\r\n1,x\r\n", [(1, "x")]),
        ("csv header", "what,ever\n1,x", [(1, "x")]),
        ("(header)", "id\tv\n1\tx\n", [(1, "x")]),
        ("(format csv, delimiter ';', null 'nil')", '1;nil\n2;"nil"\n', [(1, None), (2, "nil")]),
        ("with delimiter as '|' null as ''", "1|\n2|x\n", [(1, None), (2, "x")]),
        ("(format csv, quote '''', escape '\\')", "1,'it\\'s'\n2,'a\\b'\n", [(1, "it's"), (2, "a\\b")]),
        ("(format csv, force_not_null (v))", "1,\n", [(1, "")]),
        ("(format csv, force_null (v))", '1,""\n', [(1, None)]),
        ("csv force not null v", "1,\n", [(1, "")]),
        ("(format csv)", '1,"two\nlines\r\nthree"\n2,b"c"d\n', [(1, "two\nlines\r\nthree"), (2, "bcd")]),
        ("(encoding 'UTF8')", "1\tx\r2\ty\r", [(1, "x"), (2, "y")]),
        ("", "", []),
        ("(format csv)", "1,x\n\\.\n2,y\n", [(1, "x")]),
    ],
)
def test_options(con: Connection, options: str, data: str, found: list[Any]) -> None:
    assert load(con, f"copy p from stdin {options}", data) == f"COPY {len(found)}"
    assert rows(con, "select * from p order by id") == found


def test_any_pieces_give_the_same_rows(con: Connection) -> None:
    data = '1,"ö\n""x"""\r\n2,y\r\n3,"é"\r\n'.encode()
    with con.cursor() as cursor, cursor.copy("copy p from stdin csv") as copy:
        for place in range(len(data)):
            copy.write(data[place : place + 1])
    assert rows(con, "select * from p order by id") == [(1, 'ö\n"x"'), (2, "y"), (3, "é")]


def test_values_of_many_types(con: Connection) -> None:
    con.execute("create or replace table odd (b boolean, i bigint, f double, y blob, u uuid, d date, "
                "ts timestamp, tz timestamptz, iv interval, a int[], s text[], j json, h hugeint, r real, "
                "st struct(x int), e enum ('a', 'b'), ti time, bi bit, nn int[][])")  # fmt: skip
    line = "\t".join(
        ("t", "-9007199254740993", "NaN", "\\\\x00ff", "00000000-0000-0000-0000-000000000001", "2024-02-29",
         "2024-02-29 12:34:56.123456", "2024-02-29 12:00:00+02", "1 mon 2 days 03:00:00", "{1,NULL,3}",
         '{"a b",NULL,"c\\\\"d"}', '{"k": [1]}', "170141183460469231731687303715884105727", "1.1",
         '{"x": 5}', "b", "01:02:03", "101", "{{1,2},{3,NULL}}")
    )  # fmt: skip
    assert load(con, "copy odd from stdin", line + "\n") == "COPY 1"
    [found] = rows(
        con,
        "select b, i, f::text, y::text, u::text, d::text, ts::text, (tz at time zone 'utc')::text, iv::text, "
        "a, s, j::text, h::text, r::text, st::text, e::text, ti::text, bi::text, nn::text from odd",
    )
    assert found == (
        True, -9007199254740993, "nan", "\\x00\\xFF", "00000000-0000-0000-0000-000000000001", "2024-02-29",
        "2024-02-29 12:34:56.123456", "2024-02-29 10:00:00", "1 month 2 days 03:00:00", [1, None, 3],
        ["a b", None, 'c"d'], '{"k": [1]}', "170141183460469231731687303715884105727", "1.1",
        "{'x': 5}", "b", "01:02:03", "101", "[[1, 2], [3, NULL]]",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "data", "sqlstate", "context"),
    [
        ("copy t from stdin", "1\tx\t1\n2\ty\n", "22P04", 'COPY t, line 2: "2\ty"'),
        ("copy t from stdin", "1\tx\t1\t9\n", "22P04", 'COPY t, line 1: "1\tx\t1\t9"'),
        ("copy t from stdin", "1\tx\t1\n2\ty\tz\n", "22P02", 'COPY t, line 2, column n: "z"'),
        (
            "copy t from stdin",
            "1\tx\t1\n3000000000\ty\t1\n",
            "22003",
            'COPY t, line 2, column id: "3000000000"',
        ),
        ("copy t (id) from stdin csv", '1\n"2', "22P04", 'COPY t, line 2: ""2"'),
        ("copy t (id) from stdin (format csv, header match)", "x\n1\n", "22P04", "COPY t, line 1"),
        ("copy t from stdin", b"1\t\xff\t1\n", "22021", "COPY t, line 1"),
        ("copy t from stdin", b"1\ta\t1\n2\t\\377\t1\n", "22021", "COPY t, line 2"),
        ("copy t (id) from stdin", "1\n1\n", "23505", "COPY t, lines 1 to 2"),
        ("copy t (v) from stdin", "a\n", "23502", "COPY t, lines 1 to 1"),
        ("copy t (id, id) from stdin", "", "42701", None),
        ("copy t (nope) from stdin", "", "42703", None),
        ("copy nope from stdin", "", "42P01", None),
        ("copy s from stdin", "", "0A000", None),
        ("copy ducktail.commits from stdin", "", "42501", None),
        ("copy t from stdin (format binary)", b"", "22P04", None),
        ("copy t from stdin binary", b"no signature", "22P04", None),
        ("copy binary t from stdin (format csv)", "", "42601", None),
        ("copy t from stdin (format xml)", "", "22023", None),
        ("copy t from stdin (nonsense true)", "", "42601", None),
        ("copy t from stdin (header, header)", "", "42601", None),
        ("copy t from stdin (delimiter 'ab')", "", "22023", None),
        ("copy t from stdin (quote 'a')", "", "0A000", None),
        ("copy t from stdin (format csv, force_null (nope))", "", "42703", None),
        ("copy t from stdin (encoding 'latin1')", "", "0A000", None),
        ("copy t from stdin where id > 1", "", "0A000", None),
        ("copy t from stdin csv nonsense", "", "42601", None),
        ("copy t from program 'ls'", "", "42501", None),
    ],
)
def test_errors(
    con: Connection, statement: str, data: str | bytes, sqlstate: str, context: str | None
) -> None:
    assert failed(con, statement, data) == (sqlstate, context)
    assert rows(con, "select * from t") == events(con) == []


def test_an_unknown_value_of_an_enum_is_told_with_its_line(con: Connection) -> None:
    con.execute("create or replace table e (id int, m enum ('a', 'b'))")
    assert failed(con, "copy e from stdin", "1\ta\n2\tc\n") == ("22P02", 'COPY e, line 2, column m: "c"')


def test_in_a_transaction(con: Connection) -> None:
    con.execute("begin")
    assert load(con, "copy t (id) from stdin", "1\n2\n") == "COPY 2"
    assert rows(con, "select count(*) from t") == [(2,)]
    con.execute("rollback")
    assert rows(con, "select count(*) from t") == [(0,)]
    con.execute("begin")
    load(con, "copy t (id) from stdin", "1\n2\n")
    con.execute("commit")
    assert len(events(con)) == 2
    con.execute("begin")
    assert failed(con, "copy t (id) from stdin", "3\nx\n")[0] == "22P02"
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        con.execute("select 1")
    con.execute("rollback")
    assert len(events(con)) == 2


def test_a_client_that_gives_up(con: Connection) -> None:
    with pytest.raises(RuntimeError), con.cursor() as cursor, cursor.copy("copy t (id) from stdin") as copy:
        copy.write("1\n")
        raise RuntimeError("enough")
    assert rows(con, "select * from t") == events(con) == []
    assert con.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_write_row_by_row(con: Connection) -> None:
    with con.cursor() as cursor, cursor.copy("copy t from stdin") as copy:
        for number in range(1000):
            copy.write_row((number, f"v\t{number}\\", None))
    assert rows(con, "select count(*), count(distinct v), count(n) from t") == [(1000, 1000, 0)]
    assert len(events(con)) == 1000


@pytest.mark.psql
def test_psql(con: Connection, shared: ServerProcess) -> None:
    script = "copy t (id, v) from stdin;\n1\tone\n2\ttwo\n\\.\n"
    script += "\\copy p from pstdin csv header\nid,v\n3,three\n\\.\n"
    script += "copy t (id) from stdin; select 'after';\n9\n\\.\n"
    ran = subprocess.run(
        ["psql", shared.conninfo, "-X", "-A", "-t", "-f", "-"], input=script, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (ran.stderr, ran.stdout.split("\n")) == ("", ["COPY 2", "COPY 1", "COPY 1", "after", ""])
    assert rows(con, "select id, v from t order by id") == [(1, "one"), (2, "two"), (9, "none")]
    assert rows(con, "select * from p") == [(3, "three")]


# A bare socket.


def begun(raw: Any, text: str) -> None:
    """Send a COPY and wait until the server wants its rows."""
    raw.message("Q", text.encode() + b"\0")
    assert raw.until("G")[-1] == ("G", b"\0\0\1\0\0")


def test_what_the_server_answers(con: Connection, shared_raw: Callable[[], Any]) -> None:
    raw = shared_raw()
    raw.enter()
    begun(raw, "copy t (id) from stdin")
    for kind, body in (("d", b"1"), ("H", b""), ("d", b"\n2\n"), ("S", b""), ("d", b""), ("c", b"")):
        raw.message(kind, body)
    assert raw.until("Z") == [("C", b"COPY 2\0"), ("Z", b"I")]


def test_a_pipeline_is_one_transaction_though_a_sync_came_with_its_execute(
    con: Connection, shared_raw: Callable[[], Any], error_fields: Any
) -> None:
    """libpq sends one with the Execute: it means nothing, and what fails before the next undoes the COPY."""
    raw = shared_raw()
    raw.enter()
    raw.message("P", b"\0copy t (id) from stdin\0\0\0")
    raw.message("B", bytes(8))
    raw.send(b"E" + struct.pack("!i", 9) + bytes(5) + b"S" + struct.pack("!i", 4))
    assert "".join(kind for kind, _ in raw.until("G")) == "12G"
    for kind, body in (("d", b"1\n"), ("c", b""), ("P", b"\0nonsense\0\0\0"), ("S", b"")):
        raw.message(kind, body)
    answers = raw.until("Z")
    assert [kind for kind, _ in answers] == ["C", "E", "Z"]
    assert error_fields(answers[1][1])["C"] == "42601"
    assert rows(con, "select * from t") == []


def test_copy_fail(con: Connection, shared_raw: Callable[[], Any], error_fields: Any) -> None:
    raw = shared_raw()
    raw.enter()
    begun(raw, "copy t (id) from stdin")
    raw.message("d", b"1\n")
    raw.message("f", b"enough\0")
    [(_, body), ready] = raw.until("Z")
    assert error_fields(body)["C"] == "57014"
    assert error_fields(body)["M"] == "COPY from stdin failed: enough"
    assert ready == ("Z", b"I")
    assert rows(con, "select * from t") == []


def test_extended_protocol(con: Connection, shared_raw: Callable[[], Any]) -> None:
    raw = shared_raw()
    raw.enter()
    raw.message("P", b"\0copy t (id) from stdin\0\0\0")
    raw.message("B", b"\0\0\0\0\0\0\0\0")
    raw.message("D", b"P\0")
    raw.message("E", b"\0\0\0\0\0")
    raw.message("S")
    assert [kind for kind, _ in raw.until("G")] == ["1", "2", "n", "G"]
    raw.message("d", b"1\nx\n")
    raw.message("c")
    assert [kind for kind, _ in raw.until("E")] == ["E"]
    raw.message("d", b"2\n")  # passed over, as all up to Sync
    raw.message("S")
    assert raw.until("Z") == [("Z", b"I")]
    assert rows(con, "select * from t") == []


def test_another_request_within_ends_it(
    con: Connection, shared_raw: Callable[[], Any], error_fields: Any
) -> None:
    raw = shared_raw()
    raw.enter()
    begun(raw, "copy t (id) from stdin")
    raw.message("d", b"1\n")
    raw.message("Q", b"select 1\0")
    [(kind, body), ready] = raw.until("Z")
    assert (kind, error_fields(body)["C"], ready) == ("E", "08P01", ("Z", b"I"))
    raw.message("c")  # passed over
    assert raw.query("select count(*) from t")[1][1][-1:] == b"0"


def test_a_cancel_ends_the_wait_for_rows(
    con: Connection, shared_raw: Callable[[], Any], error_fields: Any
) -> None:
    raw = shared_raw()
    told = raw.enter()
    begun(raw, "copy t (id) from stdin")
    raw.message("d", b"1\n")
    other = shared_raw()
    other.packet(1234 << 16 | 5678, int(told["pid"]).to_bytes(4, "big") + bytes.fromhex(told["secret"]))
    [(kind, body), ready] = raw.until("Z")
    assert (kind, error_fields(body)["C"], ready) == ("E", "57014", ("Z", b"I"))
    assert rows(con, "select * from t") == []


def test_a_client_that_vanishes_leaves_nothing(con: Connection, shared_raw: Callable[[], Any]) -> None:
    raw = shared_raw()
    told = raw.enter()
    begun(raw, "copy t (id) from stdin")
    # More than a batch: rows are in the table, and the writer lock is held.
    raw.message("d", b"".join(b"%d\n" % number for number in range(1_000_000)))
    raw.vanish()
    con.execute("set lock_timeout = '20 s'")
    con.execute("insert into t (id) values (-1)")
    assert rows(con, "select count(*) from t") == [(1,)]
    assert [row[1] for row in events(con)] == ['{"id":-1,"v":"none","n":null}']
    assert told["pid"]


def test_a_shutdown_ends_the_wait_for_rows(
    serve: Callable[..., ServerProcess], raw_to: Callable[[ServerProcess], Any], error_fields: Any
) -> None:
    server = serve()
    with server.connect() as connection:
        connection.execute("create table t (id int)")
    raw = raw_to(server)
    raw.enter()
    begun(raw, "copy t (id) from stdin")
    raw.message("d", b"1\n")
    assert server.stop() == 0
    [(kind, body)] = raw.until("Z")
    assert (kind, error_fields(body)["C"]) == ("E", "57P01")


def peak_bytes(server: ServerProcess) -> int:
    """The most memory that a server has held."""
    with open(f"/proc/{server.process.pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_a_million_rows_take_bounded_memory(serve: Callable[..., ServerProcess]) -> None:
    """100 MB; DuckDB itself takes twice a transaction's rows before it gives memory back."""
    server = serve()
    with server.connect() as con:
        con.execute("create table p (id int, v text)")
        before = peak_bytes(server)
        pad = "x" * 90
        with con.cursor() as cursor, cursor.copy("copy p from stdin") as copy:
            for low in range(0, 1_000_000, 10_000):
                copy.write("".join(f"{number}\t{pad}\n" for number in range(low, low + 10_000)))
        assert rows(con, "select count(*), sum(id) from p") == [(1_000_000, 499999500000)]
    assert peak_bytes(server) - before < 450 << 20


def test_a_client_that_is_faster_than_the_table_waits(
    con: Connection, shared_raw: Callable[[], Any], error_fields: Any
) -> None:
    """While another holds the writer lock no more is taken than a batch and what sockets hold."""
    con.execute("begin")
    con.execute("insert into t (id) values (-1)")
    raw = shared_raw()
    raw.enter()
    raw.query("set lock_timeout = '60 s'")
    begun(raw, "copy t (id) from stdin")
    message = b"d" + struct.pack("!i", 4 + 16 * 65_536)
    pieces = (
        message + b"".join(b"%15d\n" % number for number in range(low, low + 65_536))
        for low in range(0, 64 * 65_536, 65_536)
    )
    sent, rest = 0, b""
    for rest in pieces:
        while rest and select.select([], [raw.socket], [], STALLED_S)[1]:
            taken = raw.socket.send(rest[:65_536])
            sent, rest = sent + taken, rest[taken:]
        if rest:
            break
    assert rest
    assert sent < 32 << 20
    con.execute("rollback")
    raw.send(rest)
    raw.message("c")
    [(kind, body), ready] = raw.until("Z")
    assert (kind, ready) == ("C", ("Z", b"I")), error_fields(body)
    count = int(body[5:-1])
    assert count % 65_536 == 0
    assert count * 16 > sent - 65_536
    assert rows(con, "select count(*) from t") == [(count,)]
