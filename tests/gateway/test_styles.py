"""DateStyle and IntervalStyle: texts of random values as a real PostgreSQL sends them, and the settings."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

TABLE = """CREATE TABLE styled (i integer, d date, t timestamp, z timestamptz, v interval, ds date[],
    zs timestamptz[], vs interval[])"""
ROWS = 300
# Abbreviations, offsets with minutes and seconds, zones without a name of their own.
ZONES = ["UTC", "GMT", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo", "Etc/GMT-2"]
STYLES = [
    f"{style}, {order}" for style in ("ISO", "SQL", "Postgres", "German") for order in ("DMY", "MDY", "YMD")
]
INTERVAL_STYLES = ["postgres", "sql_standard", "postgres_verbose", "iso_8601"]


def a_date(chance: random.Random) -> str:
    if chance.random() < 0.05:
        return chance.choice(["infinity", "-infinity"])
    year = chance.choice(
        [chance.randint(1900, 2100), chance.randint(1, 9999), chance.randint(-4700, 200_000)]
    )
    text = f"{year if year > 0 else 1 - year:04}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
    return text if year > 0 else f"{text} BC"


def a_moment(chance: random.Random, zone: str = "") -> str:
    date = a_date(chance)
    if "infinity" in date:
        return date
    day, _, era = date.partition(" ")
    fraction = chance.choice(["", "", ".5", f".{chance.randint(1, 999_999):06}", ".000001"])
    clock = f"{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}{fraction}"
    return f"{day} {clock}{zone} {era}".rstrip()


def an_interval(chance: random.Random) -> str:
    parts = []
    for unit, most in (("years", 3000), ("mons", 11), ("days", 400), ("hours", 99), ("mins", 59)):
        if chance.random() < 0.5:
            parts.append(f"{chance.choice([1, -1, chance.randint(-most, most)])} {unit}")
    if chance.random() < 0.5:
        seconds = chance.choice(["1", "-1", "0.5", "-0.000001", f"{chance.uniform(-99, 99):.6f}"])
        parts.append(f"{seconds} secs")
    return " ".join(parts) or "0 secs"


def rows(chance: random.Random) -> Iterator[list[Any]]:
    def listed(make: Callable[[], str]) -> str:
        return f"{{{','.join(chance.choice(['NULL', *[make()] * 3]) for _ in range(chance.randint(0, 3)))}}}"

    for number in range(ROWS):
        row = [a_date(chance), a_moment(chance), a_moment(chance, "+00"), an_interval(chance)]
        row += [
            listed(lambda: a_date(chance)),
            listed(lambda: a_moment(chance, "+00")),
            listed(lambda: an_interval(chance)),
        ]
        yield [number, *(None if chance.random() < 0.05 else value for value in row)]


@pytest.fixture(scope="module")
def conninfo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running PostgreSQL."""
    with postgres(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture
def both(shared: ServerProcess, conninfo: str) -> Iterator[tuple[Connection, Connection]]:
    """Connections to PostgreSQL and to ducktail, with the same rows."""
    values = list(rows(random.Random(2026)))
    with psycopg.connect(conninfo, autocommit=True) as real, shared.connect() as ours:
        for con in (real, ours):
            con.execute(TABLE)
            with con.cursor() as cursor, cursor.copy("COPY styled FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
        yield real, ours
        ours.execute("DROP TABLE styled")


def sent(con: Connection, text: str) -> list[list[bytes | None]]:
    """The texts of a query's values."""
    with con.cursor() as cursor:
        found = cursor.execute(text.encode()).pgresult
        assert found is not None
        return [[found.get_value(row, at) for at in range(found.nfields)] for row in range(found.ntuples)]


def copied(con: Connection, text: str) -> bytes:
    with con.cursor() as cursor, cursor.copy(text.encode()) as copy:
        return b"".join(bytes(piece) for piece in copy)


@pytest.mark.postgres
def test_random_values_have_postgres_texts(both: tuple[Connection, Connection]) -> None:
    for number, style in enumerate(STYLES):
        for con in both:
            con.execute(f"SET DateStyle = {style}".encode())
            con.execute(f"SET IntervalStyle = {INTERVAL_STYLES[number % 4]}".encode())
            con.execute(f"SET TimeZone = '{ZONES[number % len(ZONES)]}'".encode())
        # Few rows are encoded value by value, and many column by column.
        for text in ("SELECT * FROM styled ORDER BY i", "SELECT * FROM styled WHERE i % 9 = 1 ORDER BY i"):
            real, ours = (sent(con, text) for con in both)
            for one, other in zip(real, ours, strict=True):
                assert one == other, style
        for form in ("", " (FORMAT csv)"):
            real, ours = (
                copied(con, f"COPY (SELECT * FROM styled ORDER BY i) TO STDOUT{form}") for con in both
            )
            assert real == ours, style


SETTINGS = [
    "SET DateStyle = German",
    "SET DateStyle = 'SQL'",
    "SET DateStyle = mdy",
    "SET DateStyle TO Postgres, YMD",
    "SET DateStyle TO DEFAULT",
    "SET DateStyle TO 'iso, european'",
    "SET DateStyle = US",
    "SET IntervalStyle = ISO_8601",
    "BEGIN; SET LOCAL DateStyle = 'SQL'; SET LOCAL IntervalStyle = sql_standard",
    "COMMIT",
    "BEGIN; SET DateStyle = 'German, MDY'",
    "ROLLBACK",
    "SELECT set_config('DateStyle', 'German', false)",
    "RESET DateStyle",
    "SET DateStyle = German; SET IntervalStyle = postgres_verbose",
    "DISCARD ALL",
    "SET DateStyle = 'Klingon'",
    "SET DateStyle = ISO, German",
    "SET DateStyle = dmy, mdy",
    "SET IntervalStyle = German",
]


@pytest.mark.postgres
def test_settings_are_reported_as_by_postgres(shared: ServerProcess, conninfo: str) -> None:
    options = "-c DateStyle=SQL,DMY -c IntervalStyle=iso_8601"
    with (
        psycopg.connect(conninfo, autocommit=True, options=options) as real,
        shared.connect(options=options) as ours,
    ):
        assert told(real) == told(ours) == (["SQL, DMY", "iso_8601"], [(b"31/01/2026", b"P1D")])
        for text in SETTINGS:
            found = [state(con, text) for con in (real, ours)]
            assert found[0] == found[1], text


def state(con: Connection, text: str) -> object:
    """What is reported and sent after a statement, and its SQLSTATE."""
    try:
        con.execute(text.encode())
    except psycopg.Error as error:
        return error.sqlstate, told(con)
    return told(con)


def told(con: Connection) -> tuple[list[str | None], list[tuple[bytes | None, ...]]]:
    reported = [con.info.parameter_status(name) for name in ("DateStyle", "IntervalStyle")]
    return reported, [tuple(row) for row in sent(con, "SELECT DATE '2026-01-31', INTERVAL '1 day'")]


def test_events_have_the_styles(shared: ServerProcess) -> None:
    """Ready events are kept in the default styles, and are turned for each reader."""
    with shared.connect() as con:
        con.execute(
            "CREATE TABLE styled_events (id integer PRIMARY KEY, d date, v interval, zs timestamptz[])"
        )
        con.execute("CREATE STREAM styled_stream ON styled_events")
        con.execute(
            "INSERT INTO styled_events SELECT i, '2026-01-31', '-1 mon', ['2026-01-31 12:00+00'] "
            "FROM range(300) r(i)"
        )
        changes = "SELECT d, v, zs FROM STREAM styled_stream ENVELOPE CHANGES LIMIT"
        plain = [b"2026-01-31", b"-1 mons", b'{"2026-01-31 12:00:00+00"}']
        german = [b"31.01.2026", b"P-1M", b'{"31.01.2026 13:00:00 CET"}']
        times = "SELECT commit_time FROM STREAM styled_stream LIMIT 1"
        try:
            assert sent(con, f"{changes} 1") == [plain]
            with con.cursor(binary=True) as cursor:
                binary = cursor.execute(f"{changes} 1".encode()).fetchall()
            iso = sent(con, times)
            con.execute(
                "SET DateStyle = German; SET IntervalStyle = iso_8601; SET TimeZone = 'Europe/Berlin'"
            )
            assert sent(con, f"{changes} 1") == [german] and sent(con, f"{changes} 300") == [german] * 300
            assert copied(con, f"COPY ({changes} 2) TO STDOUT (FORMAT csv)") == 2 * (
                b'31.01.2026,P-1M,"{""31.01.2026 13:00:00 CET""}"\n'
            )
            with con.cursor(binary=True) as cursor:
                assert cursor.execute(f"{changes} 1".encode()).fetchall() == binary
            assert sent(con, times)[0][0].endswith(b" CET") or sent(con, times)[0][0].endswith(b" CEST")
            con.execute("RESET ALL")
            assert sent(con, times) == iso
        finally:
            con.execute("DROP STREAM styled_stream CASCADE")
            con.execute("DROP TABLE styled_events")
