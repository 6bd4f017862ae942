"""pgjdbc's updatable result sets and the metadata of a result's columns: they rest on the columns' tables."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from java_programs import JAVA, JAVAC
from server_process import ServerProcess

pytestmark = [pytest.mark.jdbc, pytest.mark.slow]

DRIVER = Path("/usr/share/java/postgresql.jar")
SOURCE = Path(__file__).with_name("java") / "Updatable.java"
# isNullable: 0 no, 1 yes, 2 not known.
SEEN = {
    "columns": "id main.{table}.id 0 true\tQty main.{table}.Qty 1 false\tnote main.{table}.note 1 false\t"
    "n main.{table}.id 0 true\tone .. 2 false",
    "updatable": "true",
    "first": "1 11 it's",
}
AFTER = [(1, 11, "it's"), (9, None, "new")]
EVENTS = [("update", 1), ("delete", 2), ("insert", 9)]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    home = tmp_path_factory.mktemp("classes")
    subprocess.run([*JAVAC, "-cp", str(DRIVER), "-d", str(home), str(SOURCE)], check=True)
    return home


@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
def test_updatable_results(
    shop: ServerProcess, look: psycopg.Connection[Any], classes: Path, table: str, captured: bool
) -> None:
    look.execute(f'CREATE OR REPLACE TABLE {table} (id SERIAL PRIMARY KEY, "Qty" INT, note TEXT)')
    look.execute(f"INSERT INTO {table} VALUES (1, 10, 'a'), (2, 20, 'b')")
    if captured:
        look.execute(f"CREATE STREAM {table}_s ON {table} WITH (partitions = 1)")
    url = f"jdbc:postgresql://{shop.host}:{shop.port}/shop?user=ducktail"
    done = subprocess.run(
        [*JAVA, "-cp", f"{DRIVER}:{classes}", "Updatable", url, table],
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert seen == {name: value.format(table=table) for name, value in SEEN.items()}
    assert look.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() == AFTER
    if captured:
        events = f"SELECT op, coalesce(after, before)->>'id' FROM STREAM {table}_s ORDER BY lsn"
        assert [(op, int(id_)) for op, id_ in look.execute(events)] == EVENTS
        look.execute(f"DROP STREAM {table}_s")
