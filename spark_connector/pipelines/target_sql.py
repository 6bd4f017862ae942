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
from ..names import Name
from ..options import Options
from . import changes
from .staged_frames import write_once
from .targets import Change, foreign, gone, other_query, unmarked

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
        self._check(change.batch)
        fields = {field.name: field.dataType for field in change.rows.schema}
        extra = {changes.DELETED: "BOOLEAN", changes.FIRST: "BOOLEAN"}
        columns = tuple(
            staging.Column(name, name, isinstance(type_, _NESTED), extra.get(name, ""))
            for name, type_ in fields.items()
        )
        schema = self.options["stagingSchema"]
        target = staging.Target("table", self._name, f"scd {change.scd}", schema, columns)
        nested = tuple(column.name for column in columns if column.nested)
        merging = Merging(change.scd, change.columns, change.kept, change.keys, nested)
        write_once(change.rows, self.options, target, change.batch, merging)

    @property
    def _name(self) -> Name:
        return Name.parse(self.table)

    def _check(self, batch: staging.Batch) -> None:
        """The table is the mirror's own, by its mark; or, of the first batch, empty.

        Raises:
            ConnectorError: it is not there any more, or another's.
        """
        where = f'table "{self.table}"'

        def look() -> None:
            try:
                with connect(self.options) as connection:
                    is_empty = self._is_empty(connection)
                    marked = self._marked(connection)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                raise gone(where, "table", batch) from None
            except psycopg.Error as error:
                raise failure(error, f"looking at {where}", "table") from None
            if marked - {batch.query}:
                raise other_query(where, "table")
            if not marked and batch.number > 0:
                raise unmarked(where, "table, stagingSchema", batch)
            if not marked and not is_empty:
                raise foreign(where, "table")

        retrying(look, self.options["retryTimeout"])

    def _is_empty(self, connection: Connection) -> bool:
        query = sql.SQL("SELECT 1 FROM {} LIMIT 1").format(self._name.identifier)
        return connection.execute(query).fetchone() is None

    def _marked(self, connection: Connection) -> set[str]:
        """The queries that have written the table."""
        query = sql.SQL("SELECT query FROM {} WHERE target = %s")
        schema = self.options["stagingSchema"]
        try:
            found = connection.execute(query.format(staging.marks(schema)), (f'table "{self._name}"',))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return set()
        return {str(row[0]) for row in found.fetchall()}

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
            self._name.identifier, sql.SQL(", ").join(parts)
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
    """

    scd: int
    columns: tuple[str, ...]
    kept: tuple[str, ...]
    keys: tuple[str, ...]
    nested: tuple[str, ...]

    def __call__(self, connection: Connection, target: staging.Target, stage: sql.Identifier) -> None:
        """See `staging.publish`."""
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
