"""COPY from and to files: only under the directories that were allowed, captured where there is a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_client import Client, raises

import ducktail
from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import Waiting
from ducktail.sql.session_state.names import Key


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The allowed directory."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def client(tmp_path: Path, files: Path) -> Iterator[Client]:
    """A captured table t and a plain one p."""
    database = Database.open(str(tmp_path / "shop.duckdb"), Settings(allowed_directories=(str(files),)))
    made = Client(database)
    made("create table t (id int primary key, v text default 'none', g int as (id * 2), n int)")
    made("create table p (id int, v text)")
    made("create stream s on t with (partitions = 1)")
    yield made
    made.close()
    database.close()


def test_csv_by_extension_into_a_captured_table(client: Client, files: Path) -> None:
    (files / "a.csv").write_text("id,v,n\n1,one,10\n2,,20\n")
    client(f"copy t from '{files}/a.csv'")
    assert client.tag == "COPY 2"
    assert client("select * from t order by id") == [(1, "one", 2, 10), (2, None, 4, 20)]
    assert client("select op, after from stream s") == [
        ("insert", '{"id":1,"v":"one","n":10}'),
        ("insert", '{"id":2,"v":null,"n":20}'),
    ]


def test_columns_defaults_and_options(client: Client, files: Path) -> None:
    (files / "a.txt").write_text("10;1\n20;2\n")
    client(f"COPY main.t (n, \"id\") FROM '{files}/a.txt' (FORMAT csv, DELIMITER ';', HEADER false)")
    assert client("select id, v, n from t order by id") == [(1, "none", 10), (2, "none", 20)]
    assert client.one("select count(*) from stream s") == 2


def test_a_table_that_comes_before_it_on_the_search_path_is_not_filled(
    client: Client, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a stream, and would be written past it."""
    (files / "a.csv").write_text("id,v\n1,one\n")
    client("create schema before")
    client("set search_path = 'before, main'")
    enter, other = client.session.block.enter_plain_write, Client(client.session.database)

    def late(key: Key) -> Waiting[bool]:
        other("create table before.p (id int, v text)")
        other("create stream q on before.p")
        return (yield from enter(key))

    monkeypatch.setattr(client.session.block, "enter_plain_write", late)
    client(f"copy p from '{files}/a.csv'")
    other.close()
    assert client("select * from before.p") == []
    assert client("select * from main.p") == [(1, "one")]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_there_and_back(client: Client, files: Path, kind: str) -> None:
    client("insert into t (id, v) select i, 'v' || i from range(1000) as r (i)")
    client(f"copy (select id, v from t) to '{files}/out.{kind}'")
    assert client.tag == "COPY 1000"
    client(f"copy p from '{files}/out.{kind}'")
    assert client.tag == "COPY 1000"
    client("delete from t")
    client(f"copy t (id, v) from '{files}/out.{kind}'")
    assert client.one("select count(*) from t join p on t.id = p.id and t.v = p.v") == 1000
    assert client.one("select count(*) from stream s where op = 'insert'") == 2000


def test_a_bad_row_leaves_nothing(client: Client, files: Path) -> None:
    (files / "bad.csv").write_text("id,v,n\n1,one,1\n2,two,x\n")
    with raises("22P02") as found:
        client(f"copy t from '{files}/bad.csv'")
    assert "__ducktail" not in found.value.message
    (files / "twice.csv").write_text("id,v,n\n1,one,1\n1,two,2\n")
    with raises("23505"):
        client(f"copy t from '{files}/twice.csv'")
    client("begin")
    (files / "one.csv").write_text("id,v,n\n1,one,1\n")
    client(f"copy t from '{files}/one.csv'")
    client("rollback")
    assert client("select * from t") == client("select * from stream s") == []
    client(f"copy t from '{files}/one.csv'")
    assert client.one("select count(*) from stream s") == 1


def test_what_is_written_on_the_way_to_a_file_is_captured(client: Client, files: Path) -> None:
    client("insert into t (id) values (1), (2)")
    query = "with x as (delete from t where id = 1 returning id, v) select * from x"
    client(f"copy ({query}) to '{files}/gone.csv'")
    assert client.tag == "COPY 1"
    assert (files / "gone.csv").read_text() == "id,v\n1,none\n"
    assert client("select op, key from stream s") == [
        ("insert", '{"id":1}'),
        ("insert", '{"id":2}'),
        ("delete", '{"id":1}'),
    ]


def test_a_stream_to_a_file(client: Client, files: Path) -> None:
    client("insert into t (id) values (1), (2)")
    client(f"copy (select lsn, op from stream s) to '{files}/events.csv'")
    assert (files / "events.csv").read_text() == "lsn,op\n1,insert\n2,insert\n"


def test_read_functions(client: Client, files: Path) -> None:
    (files / "a.csv").write_text("id,v\n1,one\n")
    assert client(f"select * from read_csv('{files}/*.csv')") == [(1, "one")]
    assert client(f"select * from '{files}/a.csv'") == [(1, "one")]
    client(f"insert into t (id, v) select * from read_csv('{files}/a.csv')")
    assert client.one("select count(*) from stream s") == 1


def test_nothing_outside_is_in_reach(client: Client, files: Path, tmp_path: Path) -> None:
    outside = tmp_path / "files2"
    outside.mkdir()
    (outside / "secret.csv").write_text("id,v\n1,secret\n")
    (files / "link.csv").symlink_to(outside / "secret.csv")
    (files / "linked").symlink_to(outside)  # after the opening, which refuses it
    (tmp_path / "secret.csv").write_text("id,v\n2,secret\n")
    for path in (
        f"{outside}/secret.csv",
        f"{files}/../files2/secret.csv",
        f"{files}/link.csv",
        f"{files}/linked/secret.csv",
        f"file://{files}/../files2/secret.csv",
    ):
        for text in (
            f"copy p from '{path}'",
            f"copy t (id, v) from '{path}'",
            f"select * from read_csv('{path}')",
            f"copy p to '{path}'",
        ):
            with raises("42501") as found:
                client(text)
            assert "--allow-dir" in (found.value.hint or "")
    for text in (
        f"copy p from '{files}/linked/../secret.csv'",
        f"copy t (id, v) from 'file://{files}/linked/../secret.csv'",
        f"copy p to '{files}/linked/../secret.csv'",
        f"copy p to '{files}/linked/../new.csv'",
    ):
        with raises("42501"):
            client(text)
    assert not (tmp_path / "new.csv").exists()
    for text in (f"copy p from '{files}/link*.csv'", f"select * from read_text('{files}/*/*')"):
        with raises("42501"):
            client(text)
    assert (outside / "secret.csv").read_text() == "id,v\n1,secret\n"
    assert client("select * from p") == client("select * from t") == []


def test_what_stays_refused(client: Client, files: Path) -> None:
    for text, state in (
        (f"attach '{files}/other.duckdb'", "42501"),
        (f"export database '{files}/x'", "42501"),
        (f"load '{files}/x.duckdb_extension'", "42501"),
        ("set allowed_directories = ['/']", "42501"),
        (f"copy from database shop to '{files}/x'", "42501"),
        (f"copy s from '{files}/a.csv'", "0A000"),
        (f"copy ducktail.commits from '{files}/a.csv'", "42501"),
        (f"copy p to '{files}/x.parquet' (return_stats)", "0A000"),
        ("copy p from stdin", "0A000"),
        ("copy p to stdout", "0A000"),
        (f"copy t (g) from '{files}/a.csv'", "42809"),
        (f"copy nope from '{files}/a.csv'", "42P01"),
    ):
        with raises(state):
            client(text)


def test_without_an_allowed_directory(tmp_path: Path) -> None:
    with ducktail.connect() as con:
        con.execute("create table p (id int)")
        for text in (f"copy p from '{tmp_path}/a.csv'", f"copy p to '{tmp_path}/a.csv'"):
            with pytest.raises(ducktail.ProgrammingError) as found:
                con.execute(text)
            assert found.value.sqlstate == "42501"
            assert "--allow-dir" in (found.value.hint or "")


def test_which_directories_can_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "x.csv").write_text("id\n1\n")
    with ducktail.connect(tmp_path / "d.duckdb", allowed_directories=[tmp_path / "b"]) as con:
        assert con.execute(f"from '{tmp_path}/b/x.csv'").fetchall() == [(1,)]
        shown = con.execute("select setting from ducktail.settings where name = 'allowed_directories'")
        assert shown.fetchall() == [(str(tmp_path / "a"),)]
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "linked").symlink_to(tmp_path / "a")
    inner = tmp_path / "inner"
    ducktail.connect(tmp_path / "d.duckdb", allowed_directories=[inner, tmp_path / "a"]).close()
    for wrong in ([inner], [tmp_path / "none"], [tmp_path / "a" / "x.csv"], [tmp_path], str(tmp_path / "a")):
        with pytest.raises((ducktail.DataError, DucktailError)) as found:
            ducktail.connect(tmp_path / "d.duckdb", allowed_directories=wrong)
        assert found.value.sqlstate == "22023"


WAYS_TO_OWN = (
    "{path}",
    "{end}",
    "./{end}",
    "files/../{end}",
    "{files}/../{end}",
    "file://{path}",
    "file:{path}",
    "{files}/link.csv",
    "{files}/hard.csv",
    "{files}/*.csv",
    "{files}/**",
    "{files}/*/../{end}",
    "{files}/../*",
)


@pytest.mark.parametrize("end", ["", ".wal", ".ducktail"])
def test_the_databases_own_files_are_out_of_reach(
    client: Client, files: Path, tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"shop.duckdb{end}"
    assert path.exists()
    (files / "deep").mkdir()
    (files / "link.csv").symlink_to(path)
    (files / "hard.csv").hardlink_to(path)
    before = path.stat().st_ino
    for way in WAYS_TO_OWN:
        name = way.format(path=path, end=path.name, files=files)
        for text, *values in (
            (f"select * from read_blob('{name}')",),
            (f"select * from main.\"read_text\" /* */ (e'{name}')",),
            ("select * from read_blob($1)", name),
            (f"select * from read_csv(['{name}'], all_varchar = true, ignore_errors = true)",),
            (f"explain select * from read_blob('{name}')",),
            (f"describe from parquet_metadata('{name}')",),
            (f"create table u as select * from read_text('{name}')",),
            (f"create view w as select * from read_text('{name}')",),
            (f"insert into p (v) select content from read_text('{name}')",),
            (f"select * from query('select * from read_blob(''{name}'')')",),
            (f"copy p from '{name}' (format csv, all_varchar true, ignore_errors true)",),
            ("copy p to $1 (format csv, use_tmp_file false)", name),
            (f"copy (select * from read_blob('{name}')) to '{files}/leak.parquet'",),
        ):
            with raises("42501"):
                client(text, *values)
        client("prepare look as select size from read_blob($1)")
        with raises("42501"):
            client(f"execute look('{name}')")
        client("deallocate look")
    for name in ("link.csv", "hard.csv", "*.csv"):
        for quoted in (f"'{files}/{name}'", f'"{files}/{name}"'):
            with raises("42501"):
                client(f"select * from {quoted}")
    assert path.stat().st_ino == before and not (files / "leak.parquet").exists()
    assert client("select * from p") == []


@pytest.mark.parametrize("end", ["", ".wal"])
def test_the_databases_own_files_by_way_of_home(
    client: Client, files: Path, tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was started where SQL may read, for a database under HOME: DuckDB reads `~` itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(files)
    before = (tmp_path / f"shop.duckdb{end}").read_bytes()
    for name in (f"~/shop.duckdb{end}", f"~//shop.duckdb{end}", f"~/files/../shop.duckdb{end}", "~/sh*"):
        with raises("42501"):
            client("select * from read_blob($1)", name)
        with raises("42501"):
            client(f"copy p to '{name}' (format csv, use_tmp_file false)")
    assert (tmp_path / f"shop.duckdb{end}").read_bytes() == before
    client("copy p to '~/files/p.csv'")
    assert (files / "p.csv").read_text() == "id,v\n"


def test_a_files_name_is_no_expression(client: Client, files: Path, tmp_path: Path) -> None:
    """What DuckDB would work out could be any file, the database's own ones too."""
    client(f"set variable own = '{tmp_path}/shop.duckdb.wal'")
    for text in (
        "select * from read_blob(getvariable('own'))",
        f"select * from read_blob('{tmp_path}/shop' || '.duckdb')",
        f"select * from read_blob(['{files}/a'] || getvariable('own'))",
        f"select * from read_blob('{files}/a' '/../../shop.duckdb')",
        "create macro look(p) as table select * from read_blob(p)",
        "select * from query('select * from read_' || 'blob(getvariable(''own''))')",
        "copy t to (getvariable('own')) (use_tmp_file false)",
        f"copy t to ('{files}/x')",
        f"copy t to '{files}/' '../shop.duckdb.wal' (use_tmp_file false)",
    ):
        with raises("0A000"):
            client(text)
    for option in (
        "file_extension '/../../../shop.duckdb'",
        "filename_pattern '../../shop{i}'",
        "\"filename_pattern\" '../../shop{i}'",
        "`File_Extension` '/../../../shop.duckdb.wal'",
    ):
        with raises("42501"):
            client(f"copy t to '{files}/out' (format csv, per_thread_output true, {option})")
    client(f"copy t to '{files}/out' (format csv, per_thread_output true, filename_pattern 'part_{{i}}')")
    assert [file.name for file in (files / "out").iterdir()] == ["part_0.csv"]


def test_names_as_parameters(client: Client, files: Path) -> None:
    (files / "a.csv").write_text("id,v\n1,one\n")
    assert client("select * from read_csv($1)", f"{files}/a.csv") == [(1, "one")]
    assert client("select * from read_csv($1, header = true)", [f"{files}/a.csv"]) == [(1, "one")]
    client("copy p from $1", f"{files}/a.csv")
    client("copy p to $1", f"{files}/b.csv")
    assert (files / "b.csv").read_text() == "id,v\n1,one\n"
    with raises("42501"):
        client("select * from read_csv($1)", "/etc/passwd")


@pytest.mark.parametrize("name", ["read_blob('{own}')", "read_text(['{own}'])", "read_duckdb('{own}')"])
def test_own_files_without_an_allowed_directory(tmp_path: Path, name: str) -> None:
    own = tmp_path / "d.duckdb"
    with ducktail.connect(own) as con:
        with pytest.raises(ducktail.ProgrammingError) as found:
            con.execute(f"select * from {name.format(own=own)}")
        assert found.value.sqlstate == "42501"


@pytest.mark.parametrize(
    "text",
    [
        "from duckdb_secrets()",
        "from duckdb_secrets",
        "from duckdb_secrets(redact = false)",
        "from which_secret('s3://x', 's3')",
        "from query('from duckdb_secrets()')",
    ],
)
def test_secrets_are_out_of_reach(client: Client, text: str) -> None:
    with raises("42501"):
        client(text)


@pytest.mark.parametrize("table", ["t", "p"])
@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_an_option_that_nobody_knows(client: Client, files: Path, table: str, kind: str) -> None:
    client(f"copy (select 1 as id, 'x' as v) to '{files}/a.{kind}'")
    for direction in (f"{table} (id, v) from", f"{table} (id, v) to"):
        text = f"copy {direction} '{files}/a.{kind}'"
        for option, state, told in (
            ("nonsense", "42601", 'option "nonsense" not recognized'),
            ("Nonsense 'x'", "42601", 'option "nonsense" not recognized'),
            ("freeze", "0A000", "COPY option FREEZE is not supported here"),
            ("on_error 'ignore'", "0A000", "COPY option ON_ERROR is not supported here"),
            ("format nope", "22023", 'COPY format "nope" not recognized'),
        ):
            with raises(state) as found:
                client(f"{text} ({option})")
            assert found.value.message == told
            word = told.split('"')[1] if '"' in told else option.split()[0]
            assert found.value.position == f"{text} ({option})".lower().index(word.lower(), len(text)) + 1
    client(f"copy {table} (id, v) from '{files}/a.{kind}'")
    assert client(f"select id, v from {table}") == [(1, "x")]
