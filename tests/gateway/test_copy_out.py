"""COPY ... TO STDOUT over the wire, byte for byte as a real PostgreSQL sends it, and of stream scans."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

TABLE = """
    CREATE TABLE kinds (id integer, b boolean, s smallint, l bigint, r real, d double precision,
        n numeric(12, 3), t text, y bytea, dt date, tm time, ts timestamp, tz timestamptz, u uuid,
        a integer[], ta text[])
"""
ROWS = [
    "(1, true, 2, 3, 1.5, 2.25, 12.5, 'plain', '\\x00ff'::bytea, '2024-02-29', '12:34:56.5', "
    "'2024-02-29 01:02:03', '2024-02-29 01:02:03.25+00', '00000000-0000-0000-0000-00000000002a', "
    "ARRAY[1, NULL, 3], ARRAY['a', 'b c', NULL, 'q\"q', 'b\\s'])",
    "(2, false, -2, -3, -1e20, 1e300, -0.001, 'tab\tnew\nline\rret\\back\x08\x0c\x0b\x01,comma\"quote''s', "
    "''::bytea, '0044-03-15 BC', '00:00:00', '1969-12-31 23:59:59.999999', '2024-07-01 00:00:00+00', "
    "'ffffffff-ffff-ffff-ffff-ffffffffffff', ARRAY[]::integer[], ARRAY['NULL', '', '{x}'])",
    "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(4, true, 0, 0, 'NaN', 'Infinity', 0, '', 'a', 'infinity', '23:59:59.999999', 'infinity', "
    "'-infinity', NULL, NULL, NULL)",
    "(5, true, 0, 0, 0, 0, 0, '\\N', 'a', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(6, true, 0, 0, 0, 0, 0, '\\.', 'a', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(7, true, 0, 0, 0, 0, 0, ' spaced ', 'a', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
]
ORDERED = "(SELECT * FROM kinds ORDER BY id)"
SOURCES = [
    ORDERED,
    "kinds",
    "kinds (t, id)",
    "kinds (t)",
    "(SELECT id, t FROM kinds WHERE id < 0)",
    '(SELECT \'it\'\'s -- no comment\' AS "odd, ""name""", 1 AS "tab\tname")',
    "(SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS v(a, b))",
    "(SELECT i::integer AS i, i * 2.5 AS n, 'x' || i AS t FROM generate_series(1, 300) AS g(i) ORDER BY i)",
]
OPTIONS = [
    "",
    "WITH (FORMAT text, DELIMITER '|', NULL 'nil')",
    "(FORMAT text, HEADER)",
    "WITH (DELIMITER ' ')",
    "(FORMAT csv)",
    "(FORMAT csv, HEADER, FORCE_QUOTE *)",
    "(FORMAT csv, DELIMITER ';', QUOTE '''', NULL 'nil')",
    "(FORMAT csv, ESCAPE '\\')",
    "(FORMAT csv, DELIMITER ' ', HEADER true)",
    "CSV HEADER NULL AS 'plain'",
    "WITH DELIMITER AS 'Z' NULL AS ''",
    "(FORMAT binary)",
    "WITH BINARY",
    '(FORMAT "binary")',
]
REFUSED = [
    "COPY nowhere TO STDOUT",
    "COPY kinds (nothing) TO STDOUT",
    "COPY (SELECT nothing FROM kinds) TO STDOUT",
    "COPY (SELEC 1) TO STDOUT",
    "COPY kinds TO STDOUT (FORMAT xml)",
    "COPY kinds TO STDOUT (FORMAT binary, DELIMITER ',')",
    "COPY kinds TO STDOUT (FORMAT binary, NULL 'x')",
    "COPY kinds TO STDOUT (FORMAT binary, HEADER)",
    "COPY kinds TO STDOUT (HEADER match)",
    "COPY kinds TO STDOUT (FORCE_QUOTE *)",
    "COPY kinds TO STDOUT (FORMAT csv, FORCE_QUOTE (nothing))",
    "COPY kinds TO STDOUT (FORMAT csv, FORCE_NOT_NULL (t))",
    "COPY kinds FROM STDIN (FORMAT csv, FORCE_QUOTE *)",
    "COPY kinds TO STDOUT (QUOTE '!')",
    "COPY kinds TO STDOUT (DELIMITER 'a')",
    "COPY kinds TO STDOUT (NULL E'a\\nb')",
    "COPY kinds TO STDOUT (FORMAT csv, FORMAT csv)",
    "COPY kinds TO STDOUT (FORMAT csv, NONE 1)",
    "COPY BINARY kinds TO STDOUT (FORMAT csv)",
    "COPY (DELETE FROM kinds WHERE id < 0) TO STDOUT",
    "COPY (SELECT 1/'a'::integer) TO STDOUT",
]


def copied(con: Connection, statement: str) -> tuple[list[bytes], str]:
    """The messages of a COPY and its tag."""
    with con.cursor() as cursor:
        with cursor.copy(statement) as copy:  # type: ignore[arg-type]
            data = [bytes(piece) for piece in copy]
        return data, cursor.statusmessage or ""


def failing(con: Connection, statement: str) -> str | None:
    with pytest.raises(psycopg.Error) as found:
        copied(con, statement)
    return found.value.sqlstate


@pytest.fixture(scope="module")
def ours(shared: ServerProcess) -> Iterator[Connection]:
    with shared.connect(options="-c timezone=Europe/Berlin") as con:
        con.execute(TABLE)  # type: ignore[arg-type]
        for row in ROWS:
            ours = row.replace("'\\x00ff'::bytea", "'\\x00\\xFF'").replace(" BC'", " (BC)'")
            con.execute(f"INSERT INTO kinds VALUES {ours}".replace("bytea", "blob"))  # type: ignore[arg-type]
        yield con


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with postgres(tmp_path_factory.mktemp("postgres")) as conninfo:
        options = "-c timezone=Europe/Berlin"
        with psycopg.connect(conninfo, autocommit=True, options=options) as con:
            con.execute(TABLE)  # type: ignore[arg-type]
            for row in ROWS:
                con.execute(f"INSERT INTO kinds VALUES {row}")  # type: ignore[arg-type]
            yield con


@pytest.mark.postgres
@pytest.mark.parametrize("options", OPTIONS)
def test_every_byte_is_postgresqls(ours: Connection, theirs: Connection, options: str) -> None:
    for source in SOURCES:
        statement = f"COPY {source} TO STDOUT {options}"
        assert copied(ours, statement) == copied(theirs, statement), statement


@pytest.mark.postgres
def test_what_is_refused_is_refused_alike(ours: Connection, theirs: Connection) -> None:
    told = {text: (failing(ours, text), failing(theirs, text)) for text in REFUSED}
    assert {text: pair for text, pair in told.items() if pair[0] != pair[1]} == {}
    assert copied(ours, "COPY BINARY kinds TO STDOUT") == copied(theirs, "COPY BINARY kinds TO STDOUT")


@pytest.fixture
def feed(shared: ServerProcess) -> Iterator[Connection]:
    """A stream f of a table with five rows, and a group g."""
    with shared.connect() as con:
        con.execute("DROP STREAM IF EXISTS f CASCADE")
        con.execute("DROP TABLE IF EXISTS fed")
        con.execute("CREATE TABLE fed (id integer PRIMARY KEY, t text)")
        con.execute("CREATE STREAM f ON fed WITH (partitions = 1)")
        con.execute("CREATE CONSUMER GROUP g ON f")
        con.execute("INSERT INTO fed SELECT i, 'a,\tb' || i FROM range(1, 6) r(i)")
        yield con


def position(con: Connection) -> object:
    (row,) = con.execute("SHOW READ POSITION ON f CONSUMER GROUP g").fetchall()
    return row


def test_a_stream_scan_goes_out_in_every_format(feed: Connection) -> None:
    shown = "SELECT lsn, op, after, commit_time FROM STREAM f"
    rows = feed.execute(f"SELECT lsn::text, op, after::text, commit_time::text FROM ({shown}) t").fetchall()
    data, _ = copied(feed, f"COPY ({shown}) TO STDOUT")
    escaped = [[value.replace("\\", "\\\\") for value in row] for row in rows]
    assert [piece.decode() for piece in data] == ["\t".join(row) + "\n" for row in escaped]
    data, _ = copied(feed, f"COPY ({shown}) TO STDOUT (FORMAT csv, HEADER)")
    assert data[0] == b"lsn,op,after,commit_time\n"
    doubled = rows[0][2].replace('"', '""')
    assert data[1].decode() == f'{rows[0][0]},{rows[0][1]},"{doubled}",{rows[0][3]}\n'
    with feed.cursor() as cursor, cursor.copy(f"COPY ({shown}) TO STDOUT (FORMAT binary)") as copy:  # type: ignore[arg-type]
        copy.set_types(["int8", "text", "jsonb", "timestamptz"])
        found = list(copy.rows())
    assert [(str(lsn), op, after["id"]) for lsn, op, after, _ in found] == [
        (row[0], "insert", number) for number, row in enumerate(rows, 1)
    ]
    assert found == feed.execute(shown).fetchall()  # type: ignore[arg-type]


def test_a_query_over_a_stream_and_its_changes(feed: Connection) -> None:
    data, _ = copied(feed, "COPY (SELECT sum(_lsn) > 0, count(*) FROM STREAM f ENVELOPE CHANGES) TO STDOUT")
    assert data == [b"t\t5\n"]
    data, _ = copied(feed, "COPY (SELECT id, t FROM STREAM f ENVELOPE CHANGES WHERE id > 3) TO STDOUT CSV")
    assert data == [b'4,"a,\tb4"\n', b'5,"a,\tb5"\n']


def test_the_read_position_moves_once_all_is_sent(feed: Connection) -> None:
    copied(feed, "COPY (SELECT * FROM STREAM f CONSUMER GROUP g LIMIT 3) TO STDOUT")
    feed.execute("COMMIT OFFSETS ON f CONSUMER GROUP g")
    data, _ = copied(feed, "COPY (SELECT after->>'id' FROM STREAM f CONSUMER GROUP g) TO STDOUT")
    assert data == [b"4\n", b"5\n"]
    feed.execute("COMMIT OFFSETS ON f CONSUMER GROUP g")
    assert copied(feed, "COPY (SELECT * FROM STREAM f CONSUMER GROUP g) TO STDOUT")[0] == []


def test_a_copy_that_fails_leaves_no_position(feed: Connection) -> None:
    broken = "COPY (SELECT CAST(after->>'t' AS integer) FROM STREAM f CONSUMER GROUP g) TO STDOUT"
    assert failing(feed, broken) == "22P02"
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        feed.execute("COMMIT OFFSETS ON f CONSUMER GROUP g")
    assert feed.execute("SELECT 1").fetchall() == [(1,)]


def test_dml_gives_what_it_returns(feed: Connection) -> None:
    data, _ = copied(feed, "COPY (DELETE FROM fed WHERE id > 3 RETURNING id) TO STDOUT")
    assert sorted(data) == [b"4\n", b"5\n"]
    ops = feed.execute("SELECT op, key::text FROM STREAM f ORDER BY lsn DESC LIMIT 2").fetchall()
    assert sorted(ops) == [("delete", '{"id":4}'), ("delete", '{"id":5}')]


@pytest.mark.psql
def test_psql_copies_to_files(shared: ServerProcess, tmp_path: Path, feed: Connection) -> None:
    lines = [
        f"\\copy fed to '{tmp_path}/plain'",
        f"\\copy (select * from stream f) to '{tmp_path}/events' csv header",
        "copy (select id from fed where id < 3) to stdout",
    ]
    script = "\n".join(lines)
    command = ["psql", "-X", "-v", "ON_ERROR_STOP=1", shared.conninfo]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "COPY 5\nCOPY 5\n1\n2\n"
    assert (tmp_path / "plain").read_text().splitlines()[0] == "1\ta,\\tb1"
    assert (tmp_path / "events").read_text().startswith("lsn,partition,op,")


def test_a_cancel_ends_it_and_the_session_goes_on(feed: Connection) -> None:
    endless = "COPY (SELECT i, repeat('x', 200) FROM range(1000000000) r(i)) TO STDOUT"
    with (
        pytest.raises(psycopg.errors.QueryCanceled),
        feed.cursor() as cursor,
        cursor.copy(endless) as copy,
    ):
        for taken, _ in enumerate(copy):
            if taken == 1000:
                feed.cancel_safe()
    assert feed.execute("SELECT count(*) FROM fed").fetchall() == [(5,)]


def test_memory_stays_flat_while_a_client_takes_its_time(serve: Callable[..., ServerProcess]) -> None:
    server = serve("flat.duckdb")

    def resident() -> int:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    with server.connect() as con:
        wide = "SELECT i, repeat('x', 1000) AS t FROM range(400000) r(i)"
        copied(con, f"COPY (SELECT * FROM ({wide}) LIMIT 20000) TO STDOUT")
        with con.cursor() as cursor, cursor.copy(f"COPY ({wide}) TO STDOUT") as copy:
            taken = 0
            before = resident()
            highest = before
            for piece in copy:
                taken += len(piece)
                if taken % 50_000_000 < 1100:
                    highest = max(highest, resident())
    assert taken > 400_000_000
    assert highest - before < 100_000_000


BINARY_TABLE = """
    CREATE TABLE loaded (id integer PRIMARY KEY, b boolean, s smallint, l bigint, r real, d double precision,
        n numeric(12, 3), t text, y bytea, dt date, tm time, ts timestamp, tz timestamptz, u uuid,
        a integer[], ta text[])
"""


def test_binary_comes_back_in_as_it_went_out(ours: Connection) -> None:
    ours.execute("DROP STREAM IF EXISTS loads CASCADE")
    ours.execute("DROP TABLE IF EXISTS loaded")
    ours.execute(BINARY_TABLE)  # type: ignore[arg-type]
    ours.execute("CREATE STREAM loads ON loaded WITH (partitions = 1)")
    data, _ = copied(ours, "COPY (SELECT * FROM kinds ORDER BY id) TO STDOUT (FORMAT binary)")
    whole = b"".join(data)
    with ours.cursor() as cursor:
        with cursor.copy("COPY loaded FROM STDIN (FORMAT binary)") as copy:
            # In pieces that part every value.
            for start in range(0, len(whole), 7):
                copy.write(whole[start : start + 7])
        assert cursor.statusmessage == f"COPY {len(ROWS)}"
    assert b"".join(copied(ours, "COPY (SELECT * FROM loaded ORDER BY id) TO STDOUT BINARY")[0]) == whole
    assert ours.execute("SELECT count(*) FROM STREAM loads").fetchall() == [(len(ROWS),)]


HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
ROW = struct.pack("!hii", 1, 4, 7)
BROKEN = {
    "no header": (b"1\n2\n", "22P04"),
    "nothing": (b"", "22P04"),
    "oids": (b"PGCOPY\n\xff\r\n\0" + struct.pack("!Ii", 1 << 16, 0) + ROW, "22P04"),
    "unknown flags": (b"PGCOPY\n\xff\r\n\0" + struct.pack("!Ii", 1 << 20, 0) + ROW, "22P04"),
    "too many fields": (HEADER + struct.pack("!hiiii", 2, 4, 7, 4, 8), "22P04"),
    "a size below -1": (HEADER + struct.pack("!hi", 1, -2), "22P04"),
    "half a row": (HEADER + ROW + ROW[:5], "22P04"),
    "behind the trailer": (HEADER + ROW + b"\xff\xff" + ROW, "22P04"),
    "a value of another width": (HEADER + struct.pack("!hiq", 1, 8, 7), "22P03"),
}


@pytest.mark.postgres
@pytest.mark.parametrize("case", BROKEN)
def test_broken_binary_is_told_as_postgresql_tells_it(
    ours: Connection, theirs: Connection, case: str
) -> None:
    data, sqlstate = BROKEN[case]
    for con in (ours, theirs):
        con.execute("DROP TABLE IF EXISTS narrow")
        con.execute("CREATE TABLE narrow (i integer)")
        with (
            pytest.raises(psycopg.Error) as found,
            con.cursor() as cursor,
            cursor.copy("COPY narrow FROM STDIN (FORMAT binary)") as copy,
        ):
            copy.write(data)
        assert found.value.sqlstate == sqlstate
        assert con.execute("SELECT count(*) FROM narrow").fetchall() == [(0,)]


def test_a_trailer_may_be_missing(ours: Connection) -> None:
    ours.execute("DROP TABLE IF EXISTS narrow")
    ours.execute("CREATE TABLE narrow (i integer)")
    with ours.cursor() as cursor, cursor.copy("COPY narrow FROM STDIN (FORMAT binary)") as copy:
        copy.write(HEADER + ROW + ROW)
    assert ours.execute("SELECT i FROM narrow").fetchall() == [(7,), (7,)]
