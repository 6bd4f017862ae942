"""Promise 14: nothing outside the database is reachable through SQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from local_client import Client, raises


@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from read_blob('{file}')",
        "select * from read_parquet('{file}')",
        "select * from read_json('{file}')",
        "select * from glob('{directory}/*')",
        "select * from '{file}'",
        "from '{file}'",
        "insert into t select 1 from '{file}'",
        "create table u as select * from '{file}'",
        "copy t to '{new}'",
        "copy t from '{file}'",
        "copy (select 1) to '{new}'",
        "attach '{new}' as other",
        "attach ':memory:' as other",
        "install httpfs",
        "load httpfs",
        "load '{file}'",
        "export database '{directory}/export'",
        "import database '{directory}'",
        "create secret s (type s3)",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "set python_enable_replacements = true",
        "set temp_directory = '{directory}'",
        "set memory_limit = '1GB'",
    ],
)
def test_what_lies_outside_is_refused(connect: Callable[..., Client], tmp_path: Path, statement: str) -> None:
    file, new = tmp_path / "secret.csv", tmp_path / "written"
    file.write_text("a,b\n1,2\n")
    client = connect()
    client("create table t (id int)")
    with raises("42501"):
        client(statement.format(file=file, new=new, directory=tmp_path))
    assert not new.exists() and not (tmp_path / "export").exists()


def test_a_python_object_is_no_table(connect: Callable[..., Client]) -> None:
    frame = {"a": [1]}
    assert frame
    with raises("42P01"):
        connect()("select * from frame")


def test_a_file_name_in_quotes_reads_no_file(connect: Callable[..., Client], tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    with raises("42501"):
        connect()(f'select * from "{tmp_path}/secret.csv"')
