"""Mirrors: changes of a real table into each kind of place, replayed, and held against the table."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from amounts import SOAK, run_seed
from postgres_server import postgres
from server_process import ServerProcess

pytestmark = pytest.mark.slow

CHANGES = (
    "id int, v string, n bigint, _change_type string, _commit_version bigint, "
    "_commit_timestamp timestamp, _lsn bigint, _partition int"
)
ROUNDS = 3


def types(place: int) -> list[int]:
    """The types of mirrors of a kind of place: both in a soak, in the gate one, the other with other commits.

    Args:
        place: parquet and Delta, tables and PostgreSQL differ by one: of each two both types are tried.
    """
    return [1, 2] if SOAK else [1 + (run_seed() + place) % 2]


Row = tuple[Any, ...]


class Source:
    """A table with a stream, written at random, whose changes become files for Spark to stream."""

    def __init__(self, connection: psycopg.Connection[Any], name: str, directory: Path) -> None:
        self.connection = connection
        self.name = name
        self.directory = directory
        self.random = random.Random(7)
        self.lsn = 0
        directory.mkdir()
        connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v VARCHAR, n BIGINT)")
        connection.execute(f"CREATE STREAM {name}_stream ON {name} WITH (partitions = 3)")

    def write(self, transactions: int = 12) -> None:
        """Write at random: inserts, updates, deletes, changed keys, several in a transaction."""
        for _ in range(transactions):
            with self.connection.transaction():
                for _ in range(self.random.randint(1, 4)):
                    self._change(self.random.randint(1, 12), self.random.randint(0, 1000))

    def _change(self, key: int, value: int) -> None:
        kind = self.random.choice(["put", "put", "delete", "rekey", "many"])
        t = self.name
        if kind == "put":
            self.connection.execute(
                f"INSERT INTO {t} VALUES ({key}, 'v{value}', {value}) ON CONFLICT (id) DO UPDATE "
                "SET v = excluded.v, n = excluded.n"
            )
        elif kind == "delete":
            self.connection.execute(f"DELETE FROM {t} WHERE id = {key}")
        elif kind == "rekey":
            self.connection.execute(
                f"UPDATE {t} SET id = {key + 12} WHERE id = {key} AND NOT EXISTS "
                f"(SELECT 1 FROM {t} WHERE id = {key + 12})"
            )
        else:
            self.connection.execute(f"UPDATE {t} SET n = n + 1, v = NULL WHERE id % 3 = {key % 3}")

    def publish(self, spark: Any) -> None:
        """The changes since the last time, as a file."""
        rows = self.connection.execute(
            "SELECT * REPLACE (_commit_timestamp::VARCHAR AS _commit_timestamp) "
            f"FROM STREAM {self.name}_stream AFTER {self.lsn} ENVELOPE CHANGES"
        )
        assert rows.description is not None
        names = [column.name for column in rows.description]
        found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
        self.lsn = max([self.lsn, *(row["_lsn"] for row in found)])
        file = self.directory / f"{self.lsn}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in found))

    def rows(self) -> list[Row]:
        """The table."""
        return self.connection.execute(f"SELECT id, v, n FROM {self.name} ORDER BY id").fetchall()

    def versions(self) -> list[Row]:
        """All that the table has been: each row from which change to which."""
        changes = self.connection.execute(
            f"SELECT id, v, n, _change_type, _lsn FROM STREAM {self.name}_stream AFTER 0 ENVELOPE CHANGES"
        ).fetchall()
        open_: dict[int, Row] = {}
        found = []
        for id_, v, n, kind, lsn in changes:
            if kind == "update_preimage":
                continue
            if id_ in open_:
                found.append((*open_.pop(id_), lsn))
            if kind != "delete":
                open_[id_] = (id_, v, n, lsn)
        found += [(*row, None) for row in open_.values()]
        return sorted(found, key=lambda row: row[3])


@pytest.fixture(scope="module")
def database() -> Any:
    """A PostgreSQL, as options of a connection; not below pytest's directories, which are for one user."""
    with tempfile.TemporaryDirectory() as home, postgres(Path(home)) as conninfo:
        parts = psycopg.conninfo.conninfo_to_dict(conninfo)
        yield {
            "host": parts["host"], "port": parts.get("port", 5432), "user": parts["user"],
            "database": parts.get("dbname", parts["user"]),
        }  # fmt: skip


@pytest.fixture
def source(gateway: ServerProcess, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    name = "".join(letter if letter.isalnum() else "_" for letter in str(request.node.name))[-40:]
    with gateway.connect() as connection:
        yield Source(connection, f"t_{name}", tmp_path / "in")


def run(spark: Any, source: Source, place: Any, checkpoint: Path, scd: int) -> None:
    """All that is there, file by file."""
    from ducktail.spark_connector.pipelines.mirror import mirror

    frame = (
        spark.readStream.schema(CHANGES).option("maxFilesPerTrigger", "1").option("latestFirst", "false")
        .json(str(source.directory))
    )  # fmt: skip
    query = (
        mirror(frame, place, ["id"], scd).option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(100)


def replayed(checkpoint: Path) -> None:
    """As if Spark had died after its last batch was applied and before it said so."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal())
    for file in (checkpoint / "commits").glob(f"*{last}*"):
        file.unlink()


def check(spark: Any, source: Source, place: Any, look: Callable[[], Any], tmp_path: Path, scd: int) -> None:
    """Write, mirror, replay, restart; the mirror is the table, or all that it has been."""
    checkpoint = tmp_path / "checkpoint"
    for at in range(ROUNDS):
        source.write()
        source.publish(spark)
        if at != 1:
            run(spark, source, place, checkpoint, scd)
            replayed(checkpoint)
    run(spark, source, place, checkpoint, scd)
    found = sorted((tuple(row) for row in look()), key=lambda row: row[3 if scd == 2 else 0])
    if scd == 1:
        assert found == source.rows()
        return
    wanted = source.versions()
    assert [row[:5] for row in found] == wanted
    assert all(row[5] == (row[4] is None) == (row[7] is None) and row[6] is not None for row in found)
    # The current ones are the table.
    assert sorted(row[:3] for row in found if row[5]) == source.rows()


COLUMNS = {1: "id, v, n", 2: "id, v, n, from_lsn, to_lsn, is_current, valid_from, valid_to"}


@pytest.mark.parametrize("scd", types(0))
def test_into_parquet(spark: Any, source: Source, tmp_path: Path, scd: int) -> None:
    from ducktail.spark_connector.pipelines.targets import ParquetTarget, read_mirror

    path = str(tmp_path / "mirror")
    read = lambda: read_mirror(spark, path).selectExpr(*COLUMNS[scd].split(", ")).collect()  # noqa: E731
    check(spark, source, ParquetTarget(path), read, tmp_path, scd)
    assert len(list((tmp_path / "mirror").glob("batch=*"))) == 2
    # Another checkpoint does not fit.
    with pytest.raises(Exception, match="another checkpoint"):
        run(spark, source, ParquetTarget(path), tmp_path / "other", scd)


@pytest.mark.parametrize("scd", types(0))
def test_into_a_table_of_the_gateway(
    spark: Any, source: Source, gateway: ServerProcess, tmp_path: Path, scd: int
) -> None:
    from ducktail.spark_connector.options import Use, parse
    from ducktail.spark_connector.pipelines.targets import SqlTarget

    options = parse({"host": gateway.host, "port": str(gateway.port)}, Use.WRITE_STREAM)
    table = f"{source.name}_mirror"
    read = lambda: source.connection.execute(f"SELECT {COLUMNS[scd]} FROM {table}").fetchall()  # noqa: E731
    check(spark, source, SqlTarget(options, table), read, tmp_path, scd)
    with pytest.raises(Exception, match="another checkpoint"):
        run(spark, source, SqlTarget(options, table), tmp_path / "other", scd)


@pytest.mark.parametrize("scd", types(1))
def test_into_delta(spark: Any, source: Source, tmp_path: Path, scd: int) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    from ducktail.spark_connector.pipelines.targets import DeltaTarget

    path = str(tmp_path / "mirror")

    def read() -> list[Row]:
        columns = COLUMNS[scd].split(", ")
        table = deltalake.DeltaTable(path).to_pyarrow_table(columns=columns)
        return [tuple(row[name] for name in columns) for row in table.to_pylist()]

    check(spark, source, DeltaTarget(path), read, tmp_path, scd)
    with pytest.raises(Exception, match="another checkpoint"):
        run(spark, source, DeltaTarget(path), tmp_path / "other", scd)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_place_that_is_gone_is_not_begun_anew(
    spark: Any, source: Source, tmp_path: Path, kind: str
) -> None:
    from ducktail.spark_connector.pipelines.targets import DeltaTarget, ParquetTarget

    if kind == "delta":
        pytest.importorskip("deltalake", reason="deltalake is not installed")
    path = tmp_path / "mirror"
    place = ParquetTarget(str(path)) if kind == "parquet" else DeltaTarget(str(path))
    for _ in range(2):
        source.write()
        source.publish(spark)
        if path.exists():
            path.rename(tmp_path / "elsewhere")
            with pytest.raises(Exception, match="is not there, and the checkpoint has batches"):
                run(spark, source, place, tmp_path / "checkpoint", 1)
            assert not path.exists()
        else:
            run(spark, source, place, tmp_path / "checkpoint", 1)


def test_a_place_of_somebody_elses_is_left_alone(
    spark: Any, source: Source, gateway: ServerProcess, tmp_path: Path
) -> None:
    """It is refused before anything is written; an empty one is taken."""
    from ducktail.spark_connector.options import Use, parse
    from ducktail.spark_connector.pipelines.targets import DeltaTarget, ParquetTarget, SqlTarget

    source.write()
    source.publish(spark)
    table, look = f"{source.name}_theirs", source.connection
    look.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, v VARCHAR, n BIGINT)")
    look.execute(f"INSERT INTO {table} VALUES (1, 'theirs', 1)")
    place = SqlTarget(parse({"host": gateway.host, "port": str(gateway.port)}, Use.WRITE_STREAM), table)
    checkpoint = tmp_path / "table"
    with pytest.raises(Exception, match="is not empty, and no mirror has written it"):
        run(spark, source, place, checkpoint, 1)
    assert look.execute(f"SELECT * FROM {table}").fetchall() == [(1, "theirs", 1)]
    look.execute(f"DELETE FROM {table}")
    run(spark, source, place, checkpoint, 1)
    assert look.execute(f"SELECT id, v, n FROM {table} ORDER BY id").fetchall() == source.rows()
    # What it has written is forgotten: the next batch would be merged into what nobody knows.
    look.execute("DROP TABLE ducktail_spark.sinks")
    source.write()
    source.publish(spark)
    with pytest.raises(Exception, match="does not know of the batches before batch 1"):
        run(spark, source, place, checkpoint, 1)
    directory = tmp_path / "theirs"
    spark.range(3).write.parquet(str(directory / "batch=0"))
    before = sorted(directory.rglob("*"))
    for other in (ParquetTarget(str(directory)), DeltaTarget(str(directory))):
        with pytest.raises(Exception, match="is not empty, and no mirror has written it"):
            run(spark, source, other, tmp_path / type(other).__name__, 1)
    assert sorted(directory.rglob("*")) == before
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    theirs = str(tmp_path / "delta")
    deltalake.write_deltalake(theirs, pa.table({"id": pa.array([1], pa.int32())}))
    with pytest.raises(Exception, match="what a query with another checkpoint has written"):
        run(spark, source, DeltaTarget(theirs), tmp_path / "delta_check", 1)


@pytest.mark.postgres
@pytest.mark.parametrize("scd", types(1))
def test_into_postgres(spark: Any, source: Source, database: Any, tmp_path: Path, scd: int) -> None:
    from ducktail.spark_connector.options import Use, parse
    from ducktail.spark_connector.pipelines.targets import SqlTarget

    given = {key: str(value) for key, value in database.items()}
    table = f"mirror_{scd}"
    place = SqlTarget(parse({**given, "sslmode": "disable"}, Use.WRITE_STREAM), table)
    conninfo = psycopg.conninfo.make_conninfo(
        host=given["host"], port=given["port"], user=given["user"], dbname=given["database"]
    )

    def read() -> list[Row]:
        with psycopg.connect(conninfo) as look:
            return look.execute(f"SELECT {COLUMNS[scd]} FROM {table}").fetchall()

    check(spark, source, place, read, tmp_path, scd)
