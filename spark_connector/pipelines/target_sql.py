"""A mirror in a table: of DuckDB through the gateway, or of PostgreSQL; both over the same wire.

The rows come as the sink's do (staging/). In one transaction the stage is merged into the table and the
batch is marked as done. The table is made where it is not there; of type 1 with the primary key, so that one
row a key is the database's own rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from pyspark.sql import types as t

from .. import staging
from ..connection import Connection, connect, failure, retrying
from ..errors import ConnectorError
from ..options import Options
from . import changes
from .staged_frames import write_once
from .targets import Change, gone, other_query

# Spark's types -> a type that DuckDB and PostgreSQL have both; what is nested is JSON.
_TYPES: dict[type[t.DataType], str] = {
    t.StringType: "TEXT", t.BooleanType: "BOOLEAN", t.ByteType: "SMALLINT", t.ShortType: "SMALLINT",
    t.IntegerType: "INTEGER", t.LongType: "BIGINT", t.FloatType: "REAL", t.DoubleType: "DOUBLE PRECISION",
    t.DateType: "DATE", t.TimestampType: "TIMESTAMPTZ", t.TimestampNTZType: "TIMESTAMP",
    t.BinaryType: "BYTEA", t.ArrayType: "JSON", t.StructType: "JSON", t.MapType: "JSON",
}  # fmt: skip
_NESTED = (t.ArrayType, t.StructType, t.MapType)


@dataclass(frozen=True, slots=True)
class SqlPlace:
    """A table behind a connection.

    Args:
        options: how to connect, and the option stagingSchema.
        table: its name, perhaps with its schema.
    """

    options: Options
    table: str

    def apply(self, change: Change) -> None:
        """See targets.py."""
        if change.batch.number == 0:
            self._prepare(change)
        elif not self._is_there():
            raise gone(f'table "{self.table}"', "table", change.batch)
        fields = {field.name: field.dataType for field in change.rows.schema}
        extra = {changes.DELETED: "BOOLEAN", changes.FIRST: "BOOLEAN"}
        columns = tuple(
            staging.Column(name, name, isinstance(type_, _NESTED), extra.get(name, ""))
            for name, type_ in fields.items()
        )
        schema = self.options["stagingSchema"]
        target = staging.Target("table", self.table, f"scd {change.scd}", schema, columns)
        nested = tuple(column.name for column in columns if column.nested)
        merging = Merging(change.scd, change.columns, change.kept, change.keys, nested, change.batch.query)
        write_once(change.rows, self.options, target, change.batch, merging)

    def _is_there(self) -> bool:
        def look() -> bool:
            try:
                with connect(self.options) as connection:
                    named = sql.Identifier(*self.table.split("."))
                    connection.execute(sql.SQL("SELECT 1 FROM {} WHERE false").format(named))
                    return True
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return False
            except psycopg.Error as error:
                raise failure(error, f'looking at table "{self.table}"', "table") from None

        return retrying(look, self.options["retryTimeout"])

    def _prepare(self, change: Change) -> None:
        """Make the table, the schema of stages and the marks.

        Raises:
            ConnectorError: a column's type has no counterpart, or they cannot be made.
        """
        types = {field.name: _sql_type(field) for field in change.rows.schema if field.name in change.kept}
        parts: list[sql.Composable] = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types[name])) for name in change.kept
        ]
        if change.scd == 1:
            keys = sql.SQL(", ").join(map(sql.Identifier, change.keys))
            parts.append(sql.SQL("PRIMARY KEY ({})").format(keys))
        make = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
            sql.Identifier(*self.table.split(".")), sql.SQL(", ").join(parts)
        )

        def work() -> None:
            try:
                with connect(self.options) as connection:
                    staging.make_schema(connection, self.options["stagingSchema"])
                    connection.execute(make)
            except psycopg.Error as error:
                raise failure(error, f'making table "{self.table}"', "table") from None

        retrying(work, self.options["retryTimeout"])


def _sql_type(field: t.StructField) -> str:
    if isinstance(field.dataType, t.DecimalType):
        return f"NUMERIC({field.dataType.precision}, {field.dataType.scale})"
    known = _TYPES.get(type(field.dataType))
    if known is None:
        raise ConnectorError(
            f'column "{field.name}" cannot be mirrored into a table: {field.dataType.simpleString()}'
        )
    return known


@dataclass(frozen=True, slots=True)
class Merging:
    """Brings a stage into the table, in the transaction of the sink's commit; picklable.

    Args:
        nested: columns that travel as text and are JSON in the table.
        query: whose table it is.
    """

    scd: int
    columns: tuple[str, ...]
    kept: tuple[str, ...]
    keys: tuple[str, ...]
    nested: tuple[str, ...]
    query: str

    def __call__(self, connection: Connection, target: staging.Target, stage: sql.Identifier) -> None:
        """See `staging.publish`.

        Raises:
            ConnectorError: another query has written the table.
        """
        others = sql.SQL("SELECT 1 FROM {} WHERE target = %s AND query <> %s LIMIT 1")
        found = connection.execute(
            others.format(staging.marks(target.schema)), (str(target), self.query)
        ).fetchone()
        if found is not None:
            raise other_query(str(target), "table")
        for statement in self._statements(target.named, stage):
            connection.execute(statement)

    def _statements(self, table: sql.Identifier, stage: sql.Identifier) -> list[sql.Composed]:
        equal = [sql.SQL("m.{0} = s.{0}").format(sql.Identifier(key)) for key in self.keys]
        names: dict[str, sql.Composable] = {
            "table": table,
            "stage": stage,
            "keys": sql.SQL(", ").join(map(sql.Identifier, self.keys)),
            "same": sql.SQL(" AND ").join(equal),
            "kept": sql.SQL(", ").join(map(sql.Identifier, self.kept)),
            "values": sql.SQL(", ").join(_value(name, self.nested) for name in self.kept),
        }
        insert = "INSERT INTO {table} ({kept}) SELECT {values} FROM {stage} WHERE NOT _deleted"
        if self.scd == 2:
            return [
                sql.SQL(
                    "UPDATE {table} AS m SET valid_to = s.valid_from, is_current = false, "
                    "to_lsn = s.from_lsn FROM {stage} AS s WHERE {same} AND m.is_current AND s._first"
                ).format(**names),
                sql.SQL(insert).format(**names),
            ]
        rest = [name for name in self.columns if name not in self.keys]
        sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest)
        names["on_conflict"] = sql.SQL("DO UPDATE SET {}").format(sets) if rest else sql.SQL("DO NOTHING")
        delete = "DELETE FROM {table} AS m USING {stage} AS s WHERE {same} AND s._deleted"
        return [
            sql.SQL(delete).format(**names),
            sql.SQL(insert + " ON CONFLICT ({keys}) {on_conflict}").format(**names),
        ]


def _value(name: str, nested: Sequence[str]) -> sql.Composed:
    return sql.SQL("{}::JSON" if name in nested else "{}").format(sql.Identifier(name))
