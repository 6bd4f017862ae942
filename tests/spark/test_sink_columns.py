"""Columns on their way into a table of other types, without Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from server_process import ServerProcess

from ducktail.spark_connector.errors import ConnectorError
from ducktail.spark_connector.options import Use, parse
from ducktail.spark_connector.sink import staging
from ducktail.spark_connector.sink import target as sink_target

DAY = datetime.date(2026, 1, 2)
NOON = datetime.datetime(2026, 1, 2, 12)
UTC = pa.timestamp("us", "UTC")
# the table's type -> the data frame's column, what becomes of it as text
TAKEN: dict[str, tuple[pa.Array, str]] = {
    "SMALLINT": (pa.array([7], pa.int64()), "7"),
    "DOUBLE": (pa.array([2**53 - 1], pa.int64()), "9007199254740991.0"),
    "DECIMAL(9, 2)": (pa.array([1.255]), "1.26"),
    "DECIMAL(9, 1)": (pa.array([Decimal("1.25")]), "1.3"),
    "DECIMAL(12, 4)": (pa.array([Decimal("1.25")]), "1.2500"),
    "FLOAT": (pa.array([0.1], pa.float64()), "0.1"),
    "VARCHAR": (pa.array([1.5]), "1.5"),
    "TEXT": (pa.array([b"\0\xff"]), "\\x00ff"),
    "BLOB": (pa.array([b"\0a"]), "\\x00a"),
    "INTEGER": (pa.array(["42"]), "42"),
    "DATE": (pa.array(["2026-01-02"]), "2026-01-02"),
    "TIMESTAMP": (pa.array([DAY]), "2026-01-02 00:00:00"),
    "TIMESTAMP_S": (pa.array([NOON], pa.timestamp("us")), "2026-01-02 12:00:00"),
    "TIMESTAMPTZ": (pa.array([NOON], pa.timestamp("us")), "2026-01-02 12:00:00+00"),
    "TIMESTAMP WITH TIME ZONE": (pa.array([NOON], UTC), "2026-01-02 12:00:00+00"),
    "TIME": (pa.array([NOON.time()], pa.time64("us")), "12:00:00"),
    "UUID": (pa.array(["00000000-0000-0000-0000-00000000002a"]), "00000000-0000-0000-0000-00000000002a"),
    "HUGEINT": (pa.array([5], pa.int32()), "5"),
    "JSON": (pa.array([{"a": [1]}]), '{"a": [1]}'),
    "INTEGER[]": (pa.array([[1, None]]), "[1, NULL]"),
    "BOOLEAN": (pa.array([True]), "true"),
    "BIGINT": (pa.nulls(1), ""),
}


def test_columns_of_other_types_are_taken_or_told(gateway: ServerProcess) -> None:
    names = [f"c{place}" for place in range(len(TAKEN))]
    rows = pa.RecordBatch.from_arrays([column for column, _ in TAKEN.values()], names)
    given = parse({"host": gateway.host, "port": str(gateway.port), "table": "odd"}, Use.WRITE)
    with gateway.connect(options="-c TimeZone=UTC") as connection:
        columns = ", ".join(f"{name} {type_}" for name, type_ in zip(names, TAKEN, strict=True))
        connection.execute(f"CREATE OR REPLACE TABLE odd ({columns})")  # type: ignore[arg-type]
        target = sink_target.target_of(given, rows.schema, overwrite=False)
        staging.publish(given, target, [staging.stage(given, target, iter([rows, rows]))])
        texts = ", ".join(f"coalesce({name}::VARCHAR, '')" for name in names)
        found = connection.execute(f"SELECT {texts} FROM odd").fetchall()  # type: ignore[arg-type]
        assert found == [tuple(text for _, text in TAKEN.values())] * 2
        wrong = pa.RecordBatch.from_pydict({"c0": [1, 100_000]})
        target = sink_target.target_of(given, wrong.schema, overwrite=False)
        with pytest.raises(ConnectorError, match="row 2, column c0"):
            staging.stage(given, target, iter([wrong]))
        connection.execute("DROP TABLE odd")


def test_large_batches_are_cut() -> None:
    wide = pa.record_batch({"v": pa.array(["x" * (1 << 20)] * 40)})
    parts = list(sink_target.split_batch(wide))
    assert sum(part.num_rows for part in parts) == 40
    assert max(part.nbytes for part in parts) <= sink_target.BATCH_BYTES_MAX
    assert pa.Table.from_batches(parts).to_pylist() == wide.to_pylist()
