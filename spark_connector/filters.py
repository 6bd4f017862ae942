"""Filters that Spark sends down, as SQL of the gateway.

Only those whose meaning is the same in Spark and in DuckDB: comparisons of whole numbers, decimals, text,
dates and timestamps with a zone, IS NULL, and beginnings, ends and parts of text. A column that is text in
Spark may have another type in DuckDB (UUID, HUGEINT, TIME): it is compared as the text that Spark gets. Times
without a zone stay with Spark, which may have cut off their nanoseconds. Spark judges every row again (it
is told that none was taken), so a filter here only ever leaves out what Spark would have.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from psycopg import sql
from pyspark.sql import datasource as ds
from pyspark.sql.types import StringType, StructType, TimestampNTZType

_COMPARED: dict[type, sql.SQL] = {
    ds.EqualTo: sql.SQL("{} = {}"),
    ds.GreaterThan: sql.SQL("{} > {}"),
    ds.GreaterThanOrEqual: sql.SQL("{} >= {}"),
    ds.LessThan: sql.SQL("{} < {}"),
    ds.LessThanOrEqual: sql.SQL("{} <= {}"),
}
_TEXTS: dict[type, sql.SQL] = {
    ds.StringStartsWith: sql.SQL("starts_with({}, {})"),
    ds.StringEndsWith: sql.SQL("ends_with({}, {})"),
    ds.StringContains: sql.SQL("contains({}, {})"),
}
_EXACT = (bool, int, str, Decimal, datetime.datetime, datetime.date)


def as_sql(filters: Sequence[Any], schema: StructType) -> list[sql.Composable]:
    """Those of Spark's filters that the gateway can judge."""
    return [found for item in filters if (found := _condition(item, schema)) is not None]


def _condition(item: Any, schema: StructType) -> sql.Composable | None:
    if isinstance(item, ds.Not):
        inner = _condition(item.child, schema)
        return None if inner is None else sql.SQL("NOT ({})").format(inner)
    attribute: tuple[str, ...] = getattr(item, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.fieldNames():
        return None
    name: sql.Composable = sql.Identifier(attribute[0])
    if isinstance(item, ds.IsNull):
        return sql.SQL("{} IS NULL").format(name)
    if isinstance(item, ds.IsNotNull):
        return sql.SQL("{} IS NOT NULL").format(name)
    type_ = schema[attribute[0]].dataType
    if isinstance(type_, TimestampNTZType):
        return None
    if isinstance(type_, StringType):
        name = sql.SQL("{}::VARCHAR").format(name)
    if isinstance(item, ds.In):
        values = [_literal(value) for value in item.value]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            return None
        return sql.SQL("{} IN ({})").format(name, sql.SQL(", ").join(known))
    value = _literal(getattr(item, "value", None))
    if value is None:
        return None
    form = _COMPARED.get(type(item))
    if form is None and isinstance(item.value, str):
        form = _TEXTS.get(type(item))
    return None if form is None else form.format(name, value)


def _literal(value: Any) -> sql.Composable | None:
    """A value in SQL; None where it is not one that both sides compare alike."""
    if not isinstance(value, _EXACT) or (isinstance(value, str) and "\0" in value):
        return None
    return sql.Literal(value)
