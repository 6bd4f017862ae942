"""Conversion of types and columns from Arrow, as the gateway sends them, to Spark.

The gateway sends DuckDB's values as an Arrow stream, in which a type that Arrow does not have is text
(docs/sql.md, "COPY"). Spark requires batches with exactly its own schema
(pyspark/sql/worker/plan_data_source_read.py), so each column is cast to that, mostly without a copy.
Source: docs/spark/source.md, "Types".
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..errors import ConnectorError

# UBIGINT has twenty digits.
_UBIGINT = DecimalType(20, 0)

_PLAIN: dict[str, Callable[[], DataType]] = {
    "bool": BooleanType,
    "int8": ByteType,
    "int16": ShortType,
    "int32": IntegerType,
    "int64": LongType,
    "uint8": ShortType,
    "uint16": IntegerType,
    "uint32": LongType,
    "uint64": lambda: _UBIGINT,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date32[day]": DateType,
    # Spark's own TIME is off by default and not supported in Parquet yet.
    "time64[us]": StringType,
}


def spark_schema(schema: pa.Schema, what: str) -> StructType:
    """Spark's schema for columns that the gateway sends; all are nullable.

    Args:
        what: the columns' relation, for the error.

    Raises:
        ConnectorError: Spark has no type for a column.
    """
    fields = []
    for field in schema:
        type_ = spark_type(field.type)
        if type_ is None:
            raise ConnectorError(
                f'column "{field.name}" of {what} has type {field.type}, which Spark has not: '
                "name the other columns in schema(), or leave it out of the stream"
            )
        fields.append(StructField(field.name, type_))
    return StructType(fields)


def spark_type(type_: pa.DataType) -> DataType | None:
    """Spark's type for an Arrow type, or None."""
    plain = _PLAIN.get(str(type_))
    if plain is not None:
        return plain()
    if pa.types.is_decimal(type_):
        return DecimalType(type_.precision, type_.scale)
    if pa.types.is_timestamp(type_):
        return TimestampNTZType() if type_.tz is None else TimestampType()
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        element = spark_type(type_.value_type)
        return None if element is None else ArrayType(element)
    if pa.types.is_map(type_):
        key, value = spark_type(type_.key_type), spark_type(type_.item_type)
        return None if key is None or value is None else MapType(key, value)
    if pa.types.is_struct(type_):
        members = [(field.name, spark_type(field.type)) for field in type_]
        if any(member is None for _, member in members):
            return None
        return StructType([StructField(name, member) for name, member in members if member is not None])
    return None


def cast_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to exactly Spark's schema; the columns are already in its order.

    Raises:
        ConnectorError: a value that does not fit its type, or a NULL that the schema does not allow.
    """
    arrays = []
    for column, field in zip(batch.columns, target, strict=True):
        if column.null_count and not field.nullable:
            raise ConnectorError(f'column "{field.name}" has a NULL, and schema() says that it has none')
        try:
            arrays.append(_cast(column, field.type))
        except pa.ArrowInvalid as error:
            raise ConnectorError(f'column "{field.name}" does not fit {field.type}: {error}') from None
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    type_ = column.type
    if type_.equals(wanted):
        return column
    if pa.types.is_timestamp(type_):
        # Spark has microseconds: nanoseconds are truncated.
        return column.cast(wanted, safe=type_.unit != "ns")
    if pa.types.is_time(type_):
        # As DuckDB's own text: no trailing zeros.
        return pc.replace_substring_regex(column.cast(pa.string()), r"\.?0*$", "", max_replacements=1)
    if column.offset:
        # Arrow cannot build a nested column over a slice.
        column = column.take(pa.array(range(len(column)), pa.int64()))
    if pa.types.is_fixed_size_list(type_):
        type_ = pa.list_(type_.value_type)
        return _cast(column.cast(type_), wanted)
    if pa.types.is_list(type_):
        values = _cast(column.values, wanted.value_type)
        mask = column.is_null() if column.null_count else None
        offsets = column.offsets
        return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=mask)
    if pa.types.is_struct(type_):
        members = [_cast(member, field.type) for member, field in zip(column.flatten(), wanted, strict=True)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(members, fields=list(wanted), mask=mask)
    if pa.types.is_map(type_):
        keys = _cast(column.keys, wanted.key_type)
        items = _cast(column.items, wanted.item_type)
        mask = column.is_null() if column.null_count else None
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=wanted, mask=mask)
    return column.cast(wanted)
