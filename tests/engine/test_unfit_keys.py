"""Tables whose key has no hash get no stream, and keep no database from opening."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_client import Client, raises

from ducktail.engine.database import Database
from ducktail.engine.definitions import stream_spec
from ducktail.engine.duck import table_shape
from ducktail.engine.storage.side_file import side_path

TYPES = ["TIMETZ", "GEOMETRY"]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("options", ["", " WITH (partitions = 1)", " WITH (partition_by = (v))"])
def test_a_key_without_a_hash_is_refused(tmp_path: Path, type_: str, options: str) -> None:
    database = Database.open(str(tmp_path / "keys.duckdb"))
    client = Client(database)
    client(f"CREATE TABLE t (k {type_} PRIMARY KEY, v INT)")
    with raises("0A000") as found:
        client(f"CREATE STREAM s ON t{options}")
    assert '"k"' in found.value.message
    client("CREATE TABLE free (i INT PRIMARY KEY, k TIMETZ, v INT)")
    with raises("0A000"):
        client("CREATE STREAM f ON free WITH (partition_by = (k))")
    client("CREATE STREAM f ON free")
    client("INSERT INTO free VALUES (1, '10:00:00+01', 2)")
    client.close()
    database.close()


def test_all_tables_of_a_schema_take_none(tmp_path: Path) -> None:
    database = Database.open(str(tmp_path / "keys.duckdb"))
    client = Client(database)
    client("CREATE TABLE a (i INT PRIMARY KEY)")
    client("CREATE STREAM s ON ALL TABLES IN SCHEMA main")
    with raises("0A000"):
        client("CREATE TABLE t (k TIMETZ PRIMARY KEY)")
    with raises("0A000"):
        client("CREATE OR REPLACE TABLE a (i TIMETZ PRIMARY KEY)")
    client("INSERT INTO a VALUES (1)")
    assert client("SELECT op, key FROM STREAM s") == [("insert", '{"i":1}')]
    client.close()
    database.close()


@pytest.mark.parametrize("type_", TYPES)
def test_a_database_with_such_a_stream_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    """Older versions made it."""
    path = str(tmp_path / "keys.duckdb")
    with monkeypatch.context() as patch:
        patch.setattr(table_shape, "has_form", lambda of: True)
        patch.setattr(stream_spec, "check_type", lambda of: None)
        database = Database.open(path)
        client = Client(database)
        client(f"CREATE TABLE t (k {type_} PRIMARY KEY, v INT)")
        client("CREATE STREAM s ON t")
        client("CREATE TABLE other (i INT PRIMARY KEY)")
        client("CREATE STREAM o ON other")
        client("INSERT INTO other VALUES (1)")
        client.close()
        database.close()
    # As after a kill, the tables are looked at.
    side_path(path).unlink()
    database = Database.open(path)
    client = Client(database)
    client("INSERT INTO other VALUES (2)")
    assert len(client("SELECT * FROM STREAM o")) == 2
    with raises("55000") as found:
        client("SELECT * FROM STREAM s")
    assert type_[:4] in str(found.value.detail) and '"k"' in str(found.value.detail)
    client("DROP STREAM s")
    client.close()
    database.close()
