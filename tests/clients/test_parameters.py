"""A parameter that nothing is done with has the type that its client declares; digits stay as they are."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.types.json import Jsonb
from server_process import ServerProcess

VALUES: list[tuple[object, int]] = [
    (1, 21), (70_000, 23), (2**40, 20), (2**70, 1700), (Decimal("1.50"), 1700), (Decimal("-0.001"), 1700),
    (Decimal("1E+3"), 1700), (Decimal("1" * 20 + "." + "2" * 18), 1700), (True, 16), (1.5, 701),
]  # fmt: skip


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("form", ["s", "t", "b"])
def test_psycopg(shop: ServerProcess, form: str, binary: bool) -> None:
    with shop.connect() as con:
        for value, oid in VALUES:
            for _ in range(2):
                cursor = con.execute(f"SELECT %{form}, 'x', %{form} AS n", [value, value], binary=binary)
                assert [column.type_code for column in cursor.description or ()] == [oid, 25, oid]
                row = cursor.fetchone()
                assert row == (value, "x", value)
                assert isinstance(row[0], Decimal) == (oid == 1700)
        cursor = con.execute("SELECT %s, %s FROM app.orders LIMIT 3", [Decimal("2.50"), None], binary=binary)
        assert [str(row[0]) for row in cursor] == ["2.50"] * 3
        cursor = con.execute("SELECT %s + 1, %s::numeric(10, 1)", [Decimal("2.50"), Decimal("2.50")])
        assert cursor.fetchone() == (Decimal("3.50"), Decimal("2.5"))
        cursor = con.execute("SELECT %s * i, 'x' FROM range(1, 3) r(i)", [Decimal("2.50")], binary=binary)
        assert cursor.fetchall() == [(Decimal("2.50"), "x"), (Decimal("5.00"), "x")]
        # The other operand's type, as in PostgreSQL.
        with pytest.raises(psycopg.DataError):
            con.execute("SELECT %s + INTERVAL '1 day', 2", ["2024-01-01"])
        assert con.execute("SELECT 1").fetchone() == (1,)
        with con.cursor("parts") as named, con.transaction():
            named.execute("SELECT %s AS n FROM range(3)", [Decimal("2.50")])
            assert [str(row[0]) for row in named] == ["2.50"] * 3


CAST_TO_NUMERIC: list[tuple[object, str]] = [
    (Decimal("100.1234567"), "100.1234567"), (5, "5"), (2**62, str(2**62)), (2**70, str(2**70)),
    (0.1234567, "0.1234567"), ("1.234567", "1.234567"), (1e20, "100000000000000000000"),
]  # fmt: skip


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_parameter_cast_to_numeric_keeps_its_digits(shop: ServerProcess, binary: bool) -> None:
    with shop.connect() as con:
        for value, text in CAST_TO_NUMERIC:
            cursor = con.execute(
                "SELECT %s::numeric, CAST(%s AS numeric) AS n", [value, value], binary=binary
            )
            assert [(column.name, column.type_code) for column in cursor.description or ()] == [
                ("numeric", 1700), ("n", 1700),
            ]  # fmt: skip
            assert [f"{row:f}" for row in cursor.fetchone() or ()] == [text, text]
            query = "SELECT %s::numeric + 1, abs(%s::numeric), 1 WHERE %s::numeric > 0.1"
            cursor = con.execute(query, [value] * 3, binary=binary)
            assert cursor.fetchone() == (Decimal(text) + 1, Decimal(text), 1)
            query = "SELECT n FROM (SELECT %s::numeric AS n UNION ALL SELECT 0) ORDER BY n DESC LIMIT 1"
            assert con.execute(query, [value], binary=binary).fetchone() == (Decimal(text),)
            query = "SELECT 1 GROUP BY %s::numeric ORDER BY 1, %s::numeric DESC, %s::numeric + 1"
            assert con.execute(query, [1] * 3).fetchone() == (1,)
        # Beside a function of the catalog, which determines the types of the other columns.
        cursor = con.execute("SELECT %s::numeric, current_user, %s", [1, Decimal("1.23456")], binary=binary)
        assert [column.type_code for column in cursor.description or ()] == [1700, 19, 1700]
        assert cursor.fetchone()[::2] == (1, Decimal("1.23456"))  # type: ignore[index]
        con.execute("CREATE TEMP TABLE kept (a NUMERIC(38, 10), b VARCHAR)")
        for value, text in CAST_TO_NUMERIC:
            con.execute("INSERT INTO kept VALUES (%s::numeric, %s)", [value, text])
            con.execute("INSERT INTO kept SELECT %s::numeric, %s", [value, text])
        assert con.execute("SELECT count(*) FROM kept WHERE a = b::NUMERIC(38, 10)").fetchone() == (14,)
        assert con.execute("SELECT %s::numeric", [None]).fetchone() == (None,)
        # A type that lasts is DuckDB's; a parameter of another type keeps it where it is not cast.
        con.execute("CREATE TEMP TABLE cut AS SELECT '1.23456'::numeric AS n")
        assert con.execute("SELECT n FROM cut").fetchone() == (Decimal("1.235"),)
        con.execute("CREATE TEMP VIEW whole AS SELECT '1.23456'::numeric AS n")
        assert con.execute("SELECT n FROM whole").fetchone() == (Decimal("1.23456"),)
        recursive = (
            "WITH RECURSIVE r(n) AS (SELECT 1::numeric UNION ALL SELECT n * 20.25 FROM r WHERE n < 400) "
        )
        assert con.execute(recursive + "SELECT max(n) FROM r").fetchone() == (Decimal("410.063"),)
        for text in ("SELECT '1e-40'::numeric", f"SELECT {'9' * 39}::numeric"):
            with pytest.raises(psycopg.errors.NumericValueOutOfRange, match="38 digits"):
                con.execute(text)
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            con.execute("SELECT %s::numeric", ["x"])
        count = con.pgconn.exec_params
        found = count(b"SELECT $1::numeric, $1", [b"7"], [23])
        assert (found.ftype(0), found.get_value(0, 0), found.ftype(1)) == (1700, b"7.000", 23)
        described = con.pgconn.prepare(b"kept", b"SELECT $1::numeric + 1, $2::numeric", [23])
        assert not described.error_message
        described = con.pgconn.describe_prepared(b"kept")
        assert [described.param_type(at) for at in range(2)] == [23, 1700]


@pytest.mark.parametrize("form", ["s", "t", "b"])
def test_a_parameter_cast_to_an_array_of_numerics_keeps_its_digits(shop: ServerProcess, form: str) -> None:
    values: list[list[object]] = [
        [Decimal("1.23456"), None, Decimal(2)], ["1.23456"], [1, 2**40], [0.1234567], [], [None],
    ]  # fmt: skip
    with shop.connect() as con:
        for value in values:
            want = [None if item is None else Decimal(str(item)) for item in value]
            query = f"SELECT %{form}::numeric[] AS n, CAST(%{form} AS numeric[])"
            cursor = con.execute(query, [value, value])
            assert [(column.name, column.type_code) for column in cursor.description or ()] == [
                ("n", 1231), ("numeric", 1231),
            ]  # fmt: skip
            assert cursor.fetchone() == (want, want)
            query = f"SELECT n + 1 FROM unnest(%{form}::numeric[]) AS t(n)"
            assert con.execute(query, [value]).fetchall() == [(n if n is None else n + 1,) for n in want]
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="several dimensions"):
            con.execute(f"SELECT %{form}::numeric[]", [[[Decimal(1)], [Decimal(2)]]])
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            con.execute(f"SELECT %{form}::numeric[]", [[Decimal("NaN")]])


def test_an_array_cast_to_text_has_postgresqls_text(shop: ServerProcess) -> None:
    with shop.connect() as con:
        for form in "stb":
            query = f"SELECT %{form}::text, %{form}::text || '!', %{form}"
            for value, text in (
                ([1, None, 3], "{1,NULL,3}"), (["a", "b c", "NULL", "", 'q"'], r'{a,"b c","NULL","","q\""}'),
                ([True, False], "{t,f}"), ([Jsonb({"a": 1}), Jsonb(None)], r'{"{\"a\": 1}","null"}'),
                ([], "{}"),
            ):  # fmt: skip
                assert con.execute(query, [value] * 3).fetchone()[:2] == (text, text + "!")  # type: ignore[index]


def test_the_type_oid_in_a_query_without_from(shop: ServerProcess) -> None:
    with shop.connect() as con:
        for binary in (False, True):
            cursor = con.execute("SELECT '4294967295'::oid, %s::oid AS n", [5], binary=binary)
            assert [(column.name, column.type_code) for column in cursor.description or ()] == [
                ("oid", 26), ("n", 26),
            ]  # fmt: skip
            assert cursor.fetchone() == (4294967295, 5)


def test_arrays_with_bounds(shop: ServerProcess) -> None:
    """They are read, as PostgreSQL writes them, and begin at 1 from then on."""
    with shop.connect() as con:
        con.execute("CREATE TEMP TABLE bounded (a TEXT[])")
        con.execute("INSERT INTO bounded VALUES ('[0:1]={a,b}'), ('[5:6]={a,b}'::text[])")
        con.execute("INSERT INTO bounded VALUES (%s)", ["[-1:0]={a,b}"])
        assert con.execute("SELECT DISTINCT a FROM bounded WHERE a = '[3:4]={a,b}'").fetchall() == [
            (["a", "b"],)
        ]
        for text in ("[0:2]={a,b}", "[0:1]={{a,b}}", "[0:1][0:0]={a,b}", "[1:0]={}"):
            with pytest.raises(psycopg.errors.InvalidTextRepresentation):
                con.execute(f"SELECT '{text}'::text[]")
            with pytest.raises(psycopg.errors.InvalidTextRepresentation):
                con.execute("SELECT %s::text[]", [text])


def test_copy_of_a_quoted_type(shop: ServerProcess) -> None:
    query = """COPY (SELECT '{"a": 1}'::"jsonb") TO STDOUT (FORMAT binary)"""
    with shop.connect() as con, con.cursor() as cursor, cursor.copy(query) as copy:
        copy.set_types(["jsonb"])
        assert list(copy.rows()) == [({"a": 1},)]


def test_asyncpg(url: str) -> None:
    async def work() -> list[Any]:
        con = await asyncpg.connect(url)
        try:
            asked: list[tuple[str, object]] = [
                ("SELECT $1", "x"), ("SELECT $1::int", 7), ("SELECT $1::numeric", Decimal("1.50")),
                ("SELECT $1::bool", True), ("SELECT $1::numeric + 1", Decimal("1.50")),
            ]  # fmt: skip
            return [await con.fetchval(query, value) for query, value in asked]
        finally:
            await con.close()

    assert asyncio.run(work()) == ["x", 7, Decimal("1.50"), True, Decimal("2.50")]


@pytest.mark.psql
def test_psqls_gdesc_of_a_parameter_that_nobody_declares(shop: ServerProcess) -> None:
    done = subprocess.run(
        ["psql", "-X", "-At", "-d", f"{shop.conninfo} dbname=shop"],
        input="SELECT $1 AS a, $1::numeric(10, 2) AS b, $2::int AS c, $3::bool AS d \\gdesc\n",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["a|text", "b|numeric(10,2)", "c|integer", "d|boolean"], done.stderr


def test_the_time_of_a_statement_ends_while_its_rows_are_taken(shop: ServerProcess) -> None:
    """The first rows are there at once; what comes after them takes longer than the statement may."""
    rows = "SELECT 1 AS i FROM range(5) UNION ALL SELECT i FROM range(1000000000000) r(i) WHERE i % 7 = 8"
    with shop.connect(autocommit=False) as con:
        con.execute("SET statement_timeout = '400ms'")
        con.commit()
        with con.cursor("slow") as cursor:
            cursor.execute(rows)
            assert cursor.fetchmany(3) == [(1,), (1,), (1,)]
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                cursor.fetchall()
            con.rollback()
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            for _ in con.cursor().stream(rows):
                pass
        con.rollback()
        assert con.execute("SELECT 1").fetchone() == (1,)


def test_set_config_and_pg_notify_with_parameters(shop: ServerProcess, url: str) -> None:
    """As PostgREST and libraries for LISTEN send them."""
    with shop.connect() as con, shop.connect() as listener:
        listener.execute("LISTEN told")
        with con.transaction():
            query = "SELECT set_config('search_path', %s, true), set_config('application_name', %s, true)"
            assert con.execute(query, ["app", "rest"]).fetchall() == [("app", "rest")]
            assert con.execute("SELECT count(*) > 0 FROM orders").fetchall() == [(True,)]
            assert con.execute("SHOW application_name").fetchall() == [("rest",)]
            assert con.execute("SELECT pg_notify(%s, %s)", ["told", "from psycopg"]).fetchall() == [("",)]
        assert con.execute("SHOW search_path").fetchall() == [("main",)]
        with pytest.raises(psycopg.errors.UndefinedTable):
            con.execute("SELECT count(*) FROM orders")

        async def work() -> None:
            other = await asyncpg.connect(url)
            try:
                query = "SELECT set_config('application_name', $1, $2)"
                assert await other.fetchval(query, "a", False) == "a"
                assert await other.fetchval("SHOW application_name") == "a"
                assert await other.fetchval("SELECT pg_notify($1, $2)", "told", "from asyncpg") == ""
            finally:
                await other.close()

        asyncio.run(work())
        told = [note.payload for note in listener.notifies(timeout=20, stop_after=2)]
        assert told == ["from psycopg", "from asyncpg"]


# A column of each number's type, and what it holds.
NUMBERS = {
    "tinyint": [-128, 42, 127],
    "utinyint": [0, 42, 255],
    "smallint": [-32768, 42],
    "usmallint": [42, 65535],
    "integer": [-(2**31), 42, 2**31 - 1],
    "uinteger": [42, 2**32 - 1],
    "bigint": [42, 2**63 - 1],
    "ubigint": [0, 42, 2**64 - 1],
    "hugeint": [-(10**30), 42, 10**30],
    "uhugeint": [0, 42, 10**15],
    "decimal(6, 2)": [Decimal("1.50"), Decimal("42.00"), Decimal("-9999.99")],
    "decimal(38, 0)": [42, 10**30],
    "double": [42, 2**50],
}
ASKED = [Decimal(text) for text in ("42", "42.0", "42.4", "41.5", "-1", "1.504", "1.5", "12345.67", "300")]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_numeric_is_compared_with_all_its_digits(shop: ServerProcess, binary: bool) -> None:
    """Whatever it stands beside: not as the type of the column."""
    form = "b" if binary else "t"
    with shop.connect() as con:
        con.prepare_threshold = None  # The same text is of another table each time.
        for type_, held in NUMBERS.items():
            rows = ", ".join(f"('{value}'::{type_})" for value in held)
            con.execute(f"CREATE OR REPLACE TEMP TABLE compared AS SELECT * FROM (VALUES {rows}) v(n)")
            for value in ASKED:
                query = f"SELECT n FROM compared WHERE n = %{form} OR n < %{form} ORDER BY n"
                found = [row[0] for row in con.execute(query, [value, value]).fetchall()]
                assert found == sorted(n for n in held if n <= value), (type_, value)
                # Its own text has no type either: what was told of it is a numeric, where it is one.
                if type_.startswith(("u", "huge", "dec")) and not type_.startswith(("uti", "usm", "uin")):
                    found = [row[0] for row in con.execute(query.replace(f"%{form}", "%s"), [str(value)] * 2)]
                    assert found == sorted(n for n in held if n <= value), (type_, value)


def test_a_described_column_keeps_its_type_beside_a_numeric(shop: ServerProcess) -> None:
    query = "SELECT coalesce(%s, n), n + %s FROM (VALUES (41)) v(n)"
    values = (Decimal("42.4"), Decimal("5"), Decimal("0.12345678901234567890"), None)
    with shop.connect() as con:
        for binary in (False, True):
            for value in values:
                cursor = con.execute(query, [value, value], binary=binary, prepare=True)
                found = cursor.fetchone()
                if value is not None:
                    assert [column.type_code for column in cursor.description or ()] == [1700, 1700]
                    assert found == (value, 41 + value)
                else:
                    assert found == (41, None)


def test_a_moment_is_compared_with_all_its_digits(shop: ServerProcess) -> None:
    half = datetime.datetime(2026, 1, 2, 3, 4, 5, 500_000)
    with shop.connect() as con:
        con.execute("CREATE TEMP TABLE moments (s timestamp_s, ms timestamp_ms)")
        con.execute("INSERT INTO moments VALUES ('2026-01-02 03:04:05', '2026-01-02 03:04:05.5')")
        for form in ("%s", "%t", "%b"):
            found = con.execute(f"SELECT s = {form}, ms = {form} FROM moments", [half, half]).fetchone()
            assert found == (False, True)
            assert con.execute(f"SELECT 1 FROM moments WHERE s = {form}", [half]).fetchall() == []


def test_a_captured_row_is_not_deleted_by_a_rounded_number(shop: ServerProcess) -> None:
    with shop.connect() as con:
        con.execute("CREATE TABLE app.held (id int PRIMARY KEY, n int)")
        con.execute("CREATE STREAM app.held_stream ON app.held")
        con.execute("INSERT INTO app.held VALUES (1, 42)")
        delete = "WITH x AS (DELETE FROM app.held WHERE n = %s RETURNING id) SELECT * FROM x"
        assert con.execute(delete, [Decimal("42.4")]).fetchall() == []
        update = "UPDATE app.held SET n = 7 WHERE n = %s RETURNING id"
        assert con.execute(update, [Decimal("42.4")]).fetchall() == []
        assert con.execute(delete, [Decimal("42.0")]).fetchall() == [(1,)]
        events = con.execute("SELECT op FROM STREAM app.held_stream").fetchall()
        assert [op for (op,) in events] == ["insert", "delete"]
        con.execute("DROP STREAM app.held_stream CASCADE")
        con.execute("DROP TABLE app.held")


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_numerics_that_are_no_numbers(shop: ServerProcess, binary: bool) -> None:
    """DuckDB's DECIMAL has none, so they come back only where nothing is done with them."""
    with shop.connect() as con:
        for text in ("NaN", "Infinity", "-Infinity"):
            cursor = con.execute("SELECT %s, %b AS n, 1", [Decimal(text), Decimal(text)], binary=binary)
            assert [str(value) for value in cursor.fetchone() or ()] == [text, text, "1"]
            assert [column.type_code for column in cursor.description or ()] == [1700, 1700, 23]
            with pytest.raises(psycopg.DataError):
                con.execute("SELECT %s + 1", [Decimal(text)], binary=binary)


def test_arrays_of_several_dimensions(shop: ServerProcess) -> None:
    """A list of lists is a type of its own: its parts are not printed into a list of texts."""
    nested = [["foo", "bar"], ["baz", "q x"]]
    with shop.connect() as con:
        for query in ("SELECT %s::text[]", "SELECT unnest(%s::text[])"):
            with pytest.raises(psycopg.NotSupportedError):
                con.execute(query, [nested])
        assert con.execute("SELECT %s::text[][]", [nested]).fetchone() == (nested,)
        assert con.execute("SELECT %s::int[][]", [[[1, 2], [3, 4]]]).fetchone() == ([[1, 2], [3, 4]],)
        literals = (
            "'{{foo,bar},{baz,q x}}'::text[], CAST('{{1,NULL}}' AS int[]), '{1,2}'::int[][], '{}'::text[]"
        )
        assert con.execute(f"SELECT {literals}").fetchone() == (nested, [[1, None]], [1, 2], [])


def test_malformed_json_is_refused(shop: ServerProcess) -> None:
    """DuckDB takes a parameter of type JSON unread: its event would end all reads of the stream."""
    with shop.connect() as con:
        con.execute("CREATE TABLE documents (id INT PRIMARY KEY, d JSON)")
        con.execute("CREATE STREAM documents_stream ON documents")
        insert = "INSERT INTO documents VALUES (%s, %s)"
        malformed = ["{", "", "nul", '{"a": 1', '"\\ud800"', "[" * 5000]
        for text in malformed * 2:  # The second time as a small write.
            for value in (text, Jsonb(text, dumps=str)):
                with pytest.raises(psycopg.errors.InvalidTextRepresentation):
                    con.execute(insert, [0, value])
        well_formed = ['{"a": [1, "\\ud83d\\ude00", 1e999]}', " null ", "[1,]", "[" * 1500 + "]" * 1500]
        for number, text in enumerate(well_formed):
            con.execute(insert, [number, text])
        rows = con.execute("SELECT d::varchar FROM documents ORDER BY id").fetchall()
        assert rows == [(text,) for text in well_formed]
        events = con.execute("SELECT after::varchar FROM STREAM documents_stream").fetchall()
        assert len(events) == len(well_formed)
        con.execute("DROP STREAM documents_stream")
        con.execute("DROP TABLE documents")
