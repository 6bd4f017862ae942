"""Arrow's types as the gateway sends them and Spark's: every one, sliced, nested, NULL."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import pytest

pytest.importorskip("pyspark.sql", reason="pyspark is not installed")

from pyspark.sql.pandas.types import to_arrow_schema

from ducktail.spark_connector.errors import ConnectorError
from ducktail.spark_connector.source.spark_types import cast_batch, spark_schema

KINDS: list[tuple[str, str, object]] = [
    ("255::UTINYINT", "smallint", 255),
    ("18446744073709551615::UBIGINT", "decimal(20,0)", Decimal(2**64 - 1)),
    ("TIME '12:34:56.5'", "string", "12:34:56.5"),
    ("TIME '12:34:00'", "string", "12:34:00"),
    ("[1, NULL, 2]::UBIGINT[]", "array<decimal(20,0)>", [Decimal(1), None, Decimal(2)]),
    ("[1, 2, 3]::INTEGER[3]", "array<int>", [1, 2, 3]),
    ("[[1], [], NULL]", "array<array<int>>", [[1], [], None]),
    ("[{'a': 1}, NULL]", "array<struct<a:int>>", [{"a": 1}, None]),
    (
        "{'a': [TIME '12:00:00'], 'b': {'c': 1::UTINYINT}}",
        "struct<a:array<string>,b:struct<c:smallint>>",
        {"a": ["12:00:00"], "b": {"c": 1}},
    ),
    ("MAP {'a': 1::UTINYINT, 'b': NULL}", "map<string,smallint>", [("a", 1), ("b", None)]),
    ("1.5::DECIMAL(38, 10)", "decimal(38,10)", Decimal("1.5")),
]


@pytest.mark.parametrize(("expression", "type_", "value"), KINDS, ids=[kind[0] for kind in KINDS])
def test_a_type_and_its_null_in_a_slice(expression: str, type_: str, value: object) -> None:
    query = f"SELECT CASE WHEN i = 1 THEN {expression} END AS v FROM range(3) AS r (i)"
    table = duckdb.connect().sql(query).to_arrow_table()
    schema = spark_schema(table.schema, "a table")
    assert schema[0].dataType.simpleString() == type_
    target = to_arrow_schema(schema, timezone="UTC")
    rows = cast_batch(table.combine_chunks().to_batches()[0].slice(1), target)
    rows.validate(full=True)
    assert rows.schema.equals(target) and rows.column(0).to_pylist() == [value, None]


def test_a_type_that_spark_has_not_is_refused_by_the_columns_name() -> None:
    table = duckdb.connect().sql("SELECT 1 AS a, INTERVAL '1 day' AS odd").to_arrow_table()
    with pytest.raises(ConnectorError, match='column "odd" of table "t" has type'):
        spark_schema(table.schema, 'table "t"')
