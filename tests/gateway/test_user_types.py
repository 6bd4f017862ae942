"""The types that CREATE TYPE has made, in results: with their OIDs in pg_type, as in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from psycopg.types.composite import CompositeInfo, register_composite
from psycopg.types.enum import EnumInfo, register_enum
from server_process import ServerProcess

Connection = psycopg.Connection[Any]

SCRIPT = """
    CREATE SCHEMA s;
    CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"', 'a,b', '');
    CREATE TYPE s.size AS ENUM ('small', 'large');
    CREATE TYPE twin AS ENUM ('one', 'two');
    CREATE TYPE other_twin AS ENUM ('one', 'two');
    CREATE TABLE t (id INT, m mood, ms mood[], z s.size);
    CREATE VIEW v AS SELECT m, z FROM t;
    INSERT INTO t VALUES (1, 'it''s "ok"', ARRAY['a,b', NULL, '']::mood[], 'large'), (2, NULL, NULL, 'small');
    CREATE TYPE s.pair AS (a INT, "B b" TEXT COLLATE "default", c FLOAT);
    CREATE TYPE wide AS (
        i8 BIGINT, f4 REAL, n NUMERIC(10, 2), t BOOL, y BYTEA, d DATE, tm TIME, ts TIMESTAMP, tz TIMESTAMPTZ,
        iv INTERVAL, u UUID, l INT[], x TEXT[], v BIT VARYING
    );
    CREATE TYPE outer_one AS (k INT, p s.pair, ps s.pair[], m s.size, ms s.size[]);
    CREATE TABLE c (id INT, p s.pair, ps s.pair[], o outer_one);
    INSERT INTO c VALUES (1, ROW(1, 'x "y" \\ z', NULL), ARRAY[ROW(2, '', 1e20)::s.pair, NULL], NULL);
    INSERT INTO c VALUES (2, NULL, NULL, ROW(
        5, ROW(6, '(a,b)', 0.1), ARRAY[ROW(7, 'b c', -1)::s.pair], 'small', ARRAY['large', NULL]::s.size[]))
"""
WIDE = r"""ROW(
    -1, 1e-5, 1.5, false, '\x00ff'::bytea, '1044-03-15', '10:00:00.5', '2020-01-01 00:00:00.125',
    '2020-07-01 12:00:00+00', '1 year 2 days -03:00', '00000000-0000-0000-0000-00000000000a', ARRAY[1, 2],
    ARRAY['a b', NULL, 'null', ''], '101')::wide"""
EDGES = r"""ROW(
    NULL, 'Infinity', NULL, NULL, ''::bytea, 'infinity', NULL, '-infinity', 'infinity', '0', NULL,
    ARRAY[]::int[], NULL, NULL)::wide"""
WRITTEN = r"""'(1,,2.50,t,"\\x00ff",,,,,"1 day",,"{1,NULL}","{""a b"",""c\\""d""}",1)'::wide"""
STATEMENTS = (
    "SELECT * FROM t ORDER BY id",
    "SELECT m, z FROM v ORDER BY z",
    "SELECT 'sad'::mood, ARRAY['sad']::mood[], CAST('large' AS s.size), NULL::mood",
    "SELECT min(z), max(m), array_agg(z ORDER BY z) FROM t",
    "SELECT coalesce(m, 'sad'::mood) AS m, CASE WHEN id = 1 THEN z END FROM t ORDER BY id",
    "SELECT m FROM t WHERE id = 1 UNION ALL SELECT 'sad'::mood",
    "SELECT DISTINCT z, count(*) FROM t GROUP BY z ORDER BY 1",
    "WITH c AS (SELECT z AS x FROM t) SELECT x, x::text FROM c ORDER BY 1",
    "SELECT 'one'::twin, 'one'::other_twin, ARRAY['one']::twin[], ARRAY['two']::other_twin[]",
    "SELECT a, b FROM (SELECT 'one'::twin AS a, 'two'::other_twin AS b) AS d",
    "INSERT INTO t VALUES (3, 'sad', '{sad,\"a,b\"}', 'small') RETURNING *",
    "UPDATE t SET m = 'a,b' WHERE id = 3 RETURNING m, ms",
    "DELETE FROM t WHERE id = 3 RETURNING z",
    "SELECT p, ps FROM c ORDER BY id",
    'SELECT (p).a, (p)."B b" FROM c ORDER BY id',
    "SELECT ROW(1, NULL::text, 'a,b'::text, true, 1.5::float8, ARRAY[1, NULL], ROW(''::text, 2)), ROW()",
    "SELECT ARRAY[ROW(1, 'a b'::text), ROW(NULL::int, NULL::text)], ROW(NULL::int)",
    'SELECT \'(7,"a ""b""",1.5)\'::s.pair, NULL::s.pair, CAST(\'(7,"{}",)\' AS s.pair)',
    f"SELECT {WIDE}, {EDGES}, {WRITTEN}",
    "INSERT INTO c (id, p) VALUES (3, ROW(1, 'y', 2)) RETURNING p, ARRAY[p]",
    "DELETE FROM c WHERE id = 3 RETURNING p",
)
# Records with an OID of a user's type in them, which differs in binary.
NESTED = (
    "SELECT * FROM c ORDER BY id",
    "SELECT ROW(1, 'sad'::mood, ROW(2, 'x', 3)::s.pair)",
    """SELECT '(1,"(2,""x, """ "y" """ "",)","{""(3,z,1)"",NULL}",small,"{small,NULL}")'::outer_one""",
)
NAMES = "SELECT t.oid, n.nspname, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Connection]:
    """A PostgreSQL with the types."""
    with postgres(tmp_path) as info, psycopg.connect(info, autocommit=True) as connection:
        connection.execute(SCRIPT)
        yield connection


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with the types."""
    with ServerProcess(tmp_path_factory.mktemp("types") / "ducktail.duckdb") as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(SCRIPT)
        yield server


@pytest.fixture
def here(served: ServerProcess) -> Iterator[Connection]:
    """A connection to it."""
    with psycopg.connect(served.conninfo, autocommit=True) as connection:
        yield connection


def answer(connection: Connection, text: str, *, binary: bool) -> tuple[object, object]:
    """The types of a result's columns, with their lengths and modifiers, and its values as sent."""
    listed = connection.execute(NAMES).fetchall()
    names = {oid: f"{schema.replace('main', 'public')}.{name}" for oid, schema, name in listed}
    simple = None if binary else connection.pgconn.exec_(text.encode())
    found = simple or connection.pgconn.exec_params(text.encode(), [], result_format=1)
    assert found.status == psycopg.pq.ExecStatus.TUPLES_OK, found.error_message
    columns = [(names[found.ftype(at)], found.fsize(at), found.fmod(at)) for at in range(found.nfields)]
    rows = [[found.get_value(row, at) for at in range(found.nfields)] for row in range(found.ntuples)]
    # The header of a binary array has the OID of its elements, which differs.
    arrays = [at for at, (name, *_) in enumerate(columns) if binary and name.split(".")[1].startswith("_")]
    return columns, [
        [_array(value, names) if at in arrays and value else value for at, value in enumerate(row)]
        for row in rows
    ]


def _array(value: bytes, names: dict[int, str]) -> tuple[object, ...]:
    """A binary array with its elements' type by name."""
    return names[int.from_bytes(value[8:12], "big")], value[:8], value[12:]


def test_results_have_the_types_of_postgresql(here: Connection, there: Connection) -> None:
    for connection in (here, there):
        connection.execute("SET TIME ZONE 'Europe/Berlin'")
    for binary in (False, True):
        for text in (*STATEMENTS, *(() if binary else NESTED)):
            assert answer(here, text, binary=binary) == answer(there, text, binary=binary), text


def test_a_types_codec_is_used(here: Connection) -> None:
    info = EnumInfo.fetch(here, "s.size")
    assert info is not None
    register_enum(info, here)
    size = info.enum
    assert size is not None
    for binary in (False, True):
        query = "SELECT z, [z] AS zs FROM t WHERE id = 1"
        assert here.execute(query, binary=binary).fetchone() == (size.large, [size.large])
        for value in (size.small, [size.small, size.large]):
            assert here.execute("SELECT %s", [value], binary=binary).fetchone() == (value,)
    found = here.execute("SELECT id FROM t WHERE z = %s", [size.small]).fetchall()
    assert found == [(2,)]
    with (
        here.cursor() as cursor,
        cursor.copy("COPY (SELECT z, [z] FROM t ORDER BY z) TO STDOUT (FORMAT binary)") as copy,
    ):
        copy.set_types([info.oid, info.array_oid])
        assert list(copy.rows()) == [(one, [one]) for one in (size.small, size.large)]


def column_type(connection: Connection, text: str) -> str:
    cursor = connection.execute(text)
    assert cursor.description is not None
    oid = cursor.description[0].type_code
    cursor.fetchall()
    row = connection.execute("SELECT typname FROM pg_type WHERE oid = %s", [oid]).fetchone()
    assert row is not None
    return str(row[0])


def test_types_follow_the_catalog(here: Connection, served: ServerProcess) -> None:
    query = "SELECT 'x'::fresh AS x"
    with here.transaction(force_rollback=True):
        here.execute("CREATE TYPE fresh AS ENUM ('x')")
        assert column_type(here, query) == "fresh"
        here.execute("CREATE TEMP TABLE f (x fresh)")
        assert column_type(here, "INSERT INTO f VALUES ('x') RETURNING x") == "fresh"
    with psycopg.connect(served.conninfo, autocommit=True) as other:
        other.execute("CREATE TYPE fresh AS ENUM ('x')")
        assert column_type(here, query) == "fresh"
        info = EnumInfo.fetch(here, "fresh")
        assert info is not None
        register_enum(info, here)
        assert info.enum is not None
        for _ in range(2):
            assert here.execute("SELECT %s", [info.enum.x]).fetchone() == (info.enum.x,)
        other.execute("DROP TYPE fresh")
        other.execute("CREATE TYPE fresh AS ENUM ('x', 'y')")
        new = EnumInfo.fetch(here, "fresh")
        assert new is not None and new.oid == info.oid
        register_enum(new, here)
        assert new.enum is not None
        assert here.execute("SELECT %s", [new.enum.y]).fetchone() == (new.enum.y,)
        other.execute("DROP TYPE fresh")


def test_cursors_and_prepared_statements(here: Connection) -> None:
    with here.transaction():
        here.execute("DECLARE c CURSOR FOR SELECT z FROM t")
        assert column_type(here, "FETCH 1 FROM c") == "size"
        here.execute("CLOSE c")
    here.execute("PREPARE p AS SELECT 'one'::other_twin AS x")
    assert column_type(here, "EXECUTE p") == "other_twin"
    assert column_type(here, "SELECT 'q'::ENUM ('q') AS x") == "text"


def test_composite_types_are_read_and_written(here: Connection) -> None:
    size = EnumInfo.fetch(here, "s.size")
    assert size is not None
    register_enum(size, here)
    sizes = size.enum
    assert sizes is not None
    for name in ("s.pair", "outer_one"):
        info = CompositeInfo.fetch(here, name)
        assert info is not None
        register_composite(info, here)
        if name == "s.pair":
            assert list(info.field_names) == ["a", "B b", "c"] and list(info.field_types) == [23, 25, 701]
            pair = info.python_type
    whole = info.python_type
    assert pair is not None and whole is not None
    pairs = [pair(2, "", 0.5), None]
    value = whole(5, pair(1, 'x "y" \\ (,)', None), pairs, sizes.small, [sizes.large, None])
    for mark in ("%s", "%t", "%b"):
        for binary in (False, True):
            assert here.execute(f"SELECT {mark}", [value], binary=binary).fetchone() == (value,)
        here.execute(f"INSERT INTO c (id, o, ps) VALUES (9, {mark}, {mark})", [value, value.ps])
        found = here.execute("SELECT o, ps FROM c WHERE id = 9 AND o = %s", [value])
        assert found.fetchall() == [(value, value.ps)]
        here.execute("DELETE FROM c WHERE id = 9")
    for text in ("(1,2)", "(1,2,3,4)", '(1,"2,3)', "(1,2,3) x"):
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="malformed record literal"):
            here.execute("SELECT %t::s.pair", [text])
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        here.execute("CREATE TYPE empty AS ()")


def test_composite_types_in_the_catalog(here: Connection) -> None:
    """As psql's \\dT+ and the drivers ask for them."""
    shown = here.execute(
        "SELECT c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_type t "
        "JOIN pg_class c ON c.oid = t.typrelid JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE t.typtype = 'c' AND t.typname IN ('pair', 'outer_one') ORDER BY 1, a.attnum"
    ).fetchall()
    outer = [("k", "integer"), ("p", "s.pair"), ("ps", "s.pair[]"), ("m", "s.size"), ("ms", "s.size[]")]
    assert shown == [
        *(("outer_one", "c", *row) for row in outer),
        *(("pair", "c", *row) for row in (("a", "integer"), ("B b", "text"), ("c", "double precision"))),
    ]
    columns = (
        "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'c'::regclass ORDER BY attnum"
    )
    assert [row[0] for row in here.execute(columns)] == ["integer", "s.pair", "s.pair[]", "outer_one"]
    # By which pg_dump creates a type after those of its attributes.
    needs = (
        "SELECT t.typname FROM pg_depend JOIN pg_type t ON t.oid = refobjid JOIN pg_class c ON c.oid = objid "
        "WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_type'::regclass AND deptype = 'n' "
        "AND relname = 'outer_one' ORDER BY objsubid"
    )
    assert [row[0] for row in here.execute(needs)] == ["pair", "pair", "size", "size"]
    with here.transaction(force_rollback=True):
        here.execute("CREATE TYPE inside AS (x INT)")
        info = CompositeInfo.fetch(here, "inside")
        assert info is not None and list(info.field_names) == ["x"]
        assert column_type(here, "SELECT ROW(1)::inside AS x") == "inside"


def test_parameters_of_types_with_equal_labels(here: Connection) -> None:
    for name in ("twin", "other_twin"):
        info = EnumInfo.fetch(here, name)
        assert info is not None
        register_enum(info, here)
        assert info.enum is not None
        assert here.execute("SELECT %s, %s", [info.enum.two, [info.enum.one]]).fetchone() == (
            info.enum.two,
            [info.enum.one],
        )


def test_pg_typeof(here: Connection) -> None:
    found = here.execute(
        "SELECT pg_typeof('sad'::mood), pg_typeof(['small'::s.size]), pg_typeof(p), pg_typeof(ps), "
        "pg_typeof(ROW(1)), pg_typeof('x'::ENUM ('x')) FROM c LIMIT 1"
    ).fetchone()
    assert found == ("mood", "s.size[]", "s.pair", "s.pair[]", "record", "enum('x')")


def test_events_keep_their_form(here: Connection) -> None:
    """The rows of a stream are kept in one form for all readers: text, and json for a struct."""
    here.execute("CREATE TABLE moments (id INT PRIMARY KEY, m mood, p s.pair)")
    here.execute("CREATE STREAM moments_stream ON moments WITH (partitions = 1)")
    try:
        here.execute("INSERT INTO moments VALUES (1, 'sad', ROW(1, 'x', 2))")
        with here.transaction():
            text = "SELECT m, p FROM STREAM moments_stream ENVELOPE CHANGES"
            here.execute(f"DECLARE c CURSOR FOR {text}")
            for asked in (text, "FETCH ALL FROM c"):
                cursor = here.execute(asked)
                assert [column.type_code for column in cursor.description or ()] == [25, 114]
                assert cursor.fetchall() == [("sad", {"a": 1, "B b": "x", "c": 2.0})]
        assert column_type(here, "SELECT p FROM moments") == "pair"
    finally:
        here.execute("DROP STREAM moments_stream")
        here.execute("DROP TABLE moments")


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_copies(here: Connection, form: str) -> None:
    # DuckDB reads no bits from JSON, so that it has none in this type.
    here.execute(
        "CREATE TYPE mixed AS (j JSONB, n NUMERIC(10, 2), t BOOL, y BYTEA, d DATE, iv INTERVAL, l TEXT[])"
    )
    here.execute("CREATE TABLE copied (id INT, p s.pair, ps s.pair[], o outer_one, j mixed)")
    try:
        for value in (
            r"""ROW('{"k": 1.50}', 1.5, true, '\x00ff'::bytea, '2020-01-01', '1 day', ARRAY['a"b', NULL])""",
            "NULL",
        ):
            here.execute(f"INSERT INTO copied SELECT *, {value}::mixed FROM c")
        with here.cursor() as cursor:
            with cursor.copy(f"COPY copied TO STDOUT (FORMAT {form})") as copy:
                data = b"".join(bytes(piece) for piece in copy)
            rows = cursor.execute("SELECT * FROM copied").fetchall()
            cursor.execute("TRUNCATE copied")
            with cursor.copy(f"COPY copied FROM STDIN (FORMAT {form})") as copy:
                copy.write(data)
            assert cursor.execute("SELECT * FROM copied").fetchall() == rows
    finally:
        here.execute("DROP TABLE copied")
        here.execute("DROP TYPE mixed")
