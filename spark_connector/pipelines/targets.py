"""The targets of a mirror: Parquet files, a Delta table, or a table of DuckDB or PostgreSQL.

**Parquet**: each batch is a new directory, and a file names the current one.

    PATH/batch=17/part-....parquet       the whole mirror after batch 17
    PATH/_LATEST                         {"query": "...", "batch": 17, "directory": "batch=17"}
    PATH/_MIRROR                         {"query": "..."}: the owner, written before the first batch

Parquet has no merge, so each batch writes the mirror anew from the last directory and the changes, and then
replaces `_LATEST` by an atomic rename. A killed batch leaves a directory that no `_LATEST` names; it is
overwritten when the batch is repeated. The directory before the last one is kept for active readers; older
ones are deleted. A rename over a file is atomic on local disks, NFS and HDFS, not on every object store.

**Delta**, by delta-rs (`pip install deltalake`), without a Spark package or JAR: the driver merges each batch
in one commit of Delta's log, with query and batch as an application transaction. The changes of a batch are
collected on the driver, so limit them (option maxEventsPerTrigger).

**SQL**: rows are staged as by the sink (sink/staging.py), merged into the table and marked in one
transaction. The table is created if it does not exist; for type 1 with the primary key, so that the database
itself ensures one row per key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..connection import Connection, connect, failure, retrying
from ..errors import ConnectorError
from ..options import Name, Options
from ..sink import staging
from ..sink.target import Column, Target
from ..sink.writers import write_once
from .mirror import (
    DELETED,
    FIRST,
    FROM_LSN,
    IS_CURRENT,
    TO_LSN,
    VALID_FROM,
    VALID_TO,
    Change,
    foreign,
    gone,
    other_query,
    unmarked,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LATEST = "_LATEST"
# Names the query that owns the directory; written before the first batch.
MIRROR = "_MIRROR"
# The current directory, and the previous one for active readers.
DIRECTORIES_KEPT = 2


def read_mirror(spark: SparkSession, path: str) -> DataFrame:
    """The current rows of a Parquet mirror.

    Raises:
        ConnectorError: there is no mirror yet.
    """
    latest = _Directory(spark, path).latest()
    if latest is None:
        raise ConnectorError(f"there is no mirror at {path} yet (option path)")
    return spark.read.parquet(f"{path}/{latest['directory']}")


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    """A directory on a file system that driver and executors share."""

    path: str

    def apply(self, change: Change) -> None:
        """Apply a batch, unless it has been applied before, in a new directory."""
        spark = change.rows.sparkSession
        directory = _Directory(spark, self.path)
        latest = directory.latest()
        if latest is not None:
            if latest["query"] != change.batch.query:
                raise other_query(f"the mirror at {self.path}", "path")
            if latest["batch"] >= change.batch.number:
                return
        elif change.batch.number > 0:
            raise gone(f"the mirror at {self.path}", "path", change.batch)
        else:
            directory.take(change.batch.query)
        old = None if latest is None else spark.read.parquet(f"{self.path}/{latest['directory']}")
        merged = _type_1(old, change) if change.scd == 1 else _type_2(old, change)
        name = f"batch={change.batch.number}"
        merged.write.mode("overwrite").parquet(f"{self.path}/{name}")
        facts = {"query": change.batch.query, "batch": change.batch.number, "directory": name}
        directory.replace(LATEST, facts)
        directory.delete_all_but(DIRECTORIES_KEPT)


def _type_1(old: DataFrame | None, change: Change) -> DataFrame:
    new = change.rows.where(~f.col(DELETED)).select(*change.kept)
    if old is None:
        return new
    rest = old.join(change.rows.select(*change.keys), list(change.keys), "left_anti")
    return rest.select(*change.kept).unionByName(new)


def _type_2(old: DataFrame | None, change: Change) -> DataFrame:
    new = change.rows.where(~f.col(DELETED)).select(*change.kept)
    if old is None:
        return new
    first = change.rows.where(FIRST).select(
        *change.keys, f.col(VALID_FROM).alias("_ends"), f.col(FROM_LSN).alias("_ends_lsn")
    )
    joined = old.join(first, list(change.keys), "left")
    ends = f.col(IS_CURRENT) & f.col("_ends_lsn").isNotNull()
    ended = (
        joined.withColumn(VALID_TO, f.when(ends, f.col("_ends")).otherwise(f.col(VALID_TO)))
        .withColumn(TO_LSN, f.when(ends, f.col("_ends_lsn")).otherwise(f.col(TO_LSN)))
        .withColumn(IS_CURRENT, f.col(IS_CURRENT) & f.col("_ends_lsn").isNull())
    )
    return ended.select(*change.kept).unionByName(new)


class _Directory:
    """A directory accessed through Hadoop's file systems, which include HDFS."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._home = self._path(path)
        self._files = self._home.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._streams = jvm.org.apache.commons.io.IOUtils
        # FileContext's rename can replace an existing file, FileSystem's cannot.
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._files.getUri(), spark.sparkContext._jsc.hadoopConfiguration()
        )
        options = jvm.org.apache.hadoop.fs.Options.Rename
        gateway: Any = spark.sparkContext._gateway
        self._overwrite = gateway.new_array(options, 1)
        self._overwrite[0] = options.OVERWRITE

    def latest(self) -> dict[str, Any] | None:
        """The content of `_LATEST`; None if it does not exist."""
        return self._read(LATEST)

    def take(self, query: str) -> None:
        """Make a query the directory's owner, before its first batch writes into it."""
        taken = self._read(MIRROR)
        if taken is None:
            there = self._files.listStatus(self._home) if self._files.exists(self._home) else []
            if {status.getPath().getName() for status in there} - {f"{MIRROR}.new"}:
                raise foreign(f"the directory {self._home}", "path")
            self.replace(MIRROR, {"query": query})
        elif taken["query"] != query:
            raise other_query(f"the mirror at {self._home}", "path")

    def _read(self, name: str) -> dict[str, Any] | None:
        file = self._path(self._home, name)
        if not self._files.exists(file):
            return None
        opened = self._files.open(file)
        try:
            found: dict[str, Any] = json.loads(self._streams.toString(opened, "UTF-8"))
        finally:
            opened.close()
        return found

    def replace(self, name: str, facts: dict[str, Any]) -> None:
        """Replace a file's content atomically."""
        new = self._path(self._home, f"{name}.new")
        opened = self._files.create(new, True)
        opened.write(json.dumps(facts).encode())
        opened.hsync()
        opened.close()
        self._context.rename(new, self._path(self._home, name), self._overwrite)

    def delete_all_but(self, count: int) -> None:
        """Delete the directories of all but the last batches."""
        found = []
        for status in self._files.listStatus(self._home):
            name = status.getPath().getName()
            if name.startswith("batch=") and name[6:].isdecimal():
                found.append(int(name[6:]))
        for number in sorted(found)[:-count]:
            self._files.delete(self._path(self._home, f"batch={number}"), True)


# The column with the action of a row in Delta's merge.
_WHAT = "_what"
# The batch number in the mark of a new table.
_CREATED = -1


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """The path of a Delta table."""

    path: str

    def apply(self, change: Change) -> None:
        """Apply a batch, unless it has been applied before, in one commit of Delta's log."""
        try:
            from deltalake import CommitProperties, DeltaTable, Transaction
            from deltalake.exceptions import TableNotFoundError
        except ImportError:
            raise ConnectorError(
                'a mirror in Delta wants the package deltalake: pip install "ducktail[delta]" (option kind)'
            ) from None
        rows = _delta_rows(change)
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            if change.batch.number > 0:
                raise gone(f"the Delta table at {self.path}", "path", change.batch) from None
            if os.path.isdir(self.path) and os.listdir(self.path):
                raise foreign(f"the directory {self.path}", "path") from None
            # Marked from its creation: a batch that is repeated after a kill finds the mark.
            mark = CommitProperties(app_transactions=[Transaction(change.batch.query, _CREATED)])
            columns = rows.drop_columns([_WHAT]).schema
            table = DeltaTable.create(self.path, columns, commit_properties=mark)
        done = table.transaction_version(change.batch.query)
        if done is None:
            raise other_query(f"the Delta table at {self.path}", "path")
        if done >= change.batch.number:
            return
        mark = CommitProperties(app_transactions=[Transaction(change.batch.query, change.batch.number)])
        _delta_merge(table, rows, change, mark)


def _delta_rows(change: Change) -> pa.Table:
    """The actions of the merge, one per row: `_what` is put or delete; for type 2 open or end."""
    rows = change.rows
    if change.scd == 1:
        what = f.when(f.col(DELETED), "delete").otherwise("put")
        return rows.select(*change.kept, what.alias(_WHAT)).toArrow()
    opened = rows.where(~f.col(DELETED)).select(*change.kept, f.lit("open").alias(_WHAT))
    ended = rows.where(FIRST).select(*change.kept, f.lit("end").alias(_WHAT))
    return opened.unionByName(ended).toArrow()


def _delta_merge(table: Any, rows: pa.Table, change: Change, mark: Any) -> None:
    same = " AND ".join(f"m.`{key}` = s.`{key}`" for key in change.keys)
    values = {f"`{name}`": f"s.`{name}`" for name in change.kept}
    if change.scd == 1:
        merged = table.merge(rows, same, source_alias="s", target_alias="m", commit_properties=mark)
        merged = (
            merged.when_matched_delete(f"s.{_WHAT} = 'delete'")
            .when_matched_update(values)
            .when_not_matched_insert(values, f"s.{_WHAT} = 'put'")
        )
    else:
        on = f"s.{_WHAT} = 'end' AND m.is_current AND {same}"
        merged = table.merge(rows, on, source_alias="s", target_alias="m", commit_properties=mark)
        ends = {"valid_to": "s.valid_from", "is_current": "false", "to_lsn": "s.from_lsn"}
        merged = merged.when_matched_update(ends).when_not_matched_insert(values, f"s.{_WHAT} = 'open'")
    merged.execute()


# Spark type -> a type that both DuckDB and PostgreSQL have; nested values are JSON.
_SQL_TYPES: dict[type[t.DataType], str] = {
    t.StringType: "TEXT", t.BooleanType: "BOOLEAN", t.ByteType: "SMALLINT", t.ShortType: "SMALLINT",
    t.IntegerType: "INTEGER", t.LongType: "BIGINT", t.FloatType: "REAL", t.DoubleType: "DOUBLE PRECISION",
    t.DateType: "DATE", t.TimestampType: "TIMESTAMPTZ", t.TimestampNTZType: "TIMESTAMP",
    t.BinaryType: "BYTEA", t.ArrayType: "JSON", t.StructType: "JSON", t.MapType: "JSON",
}  # fmt: skip
_NESTED_TYPES = (t.ArrayType, t.StructType, t.MapType)


@dataclass(frozen=True, slots=True)
class SqlTarget:
    """A table of DuckDB behind a gateway, or of PostgreSQL.

    Args:
        options: the options of the connection, and stagingSchema.
        table: its name with an optional schema.
    """

    options: Options
    table: str

    def apply(self, change: Change) -> None:
        """Apply a batch, unless it has been applied before, in one transaction."""
        if change.batch.number == 0:
            self._prepare(change)
        self._check(change.batch)
        fields = {field.name: field.dataType for field in change.rows.schema}
        extra = {DELETED: "BOOLEAN", FIRST: "BOOLEAN"}
        columns = tuple(
            Column(name, name, isinstance(type_, _NESTED_TYPES), extra.get(name, ""))
            for name, type_ in fields.items()
        )
        schema = self.options["stagingSchema"]
        target = Target("table", self._name, f"scd {change.scd}", schema, columns)
        nested = tuple(column.name for column in columns if column.nested)
        merge = SqlMerge(change.scd, change.columns, change.kept, change.keys, nested)
        write_once(change.rows, self.options, target, change.batch, merge)

    @property
    def _name(self) -> Name:
        return Name.parse(self.table)

    def _check(self, batch: staging.Batch) -> None:
        """Check that the table has the mark of this query, or is empty before the first batch."""
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
        """The queries with a mark for the table."""
        query = sql.SQL("SELECT query FROM {} WHERE target = %s")
        schema = self.options["stagingSchema"]
        try:
            found = connection.execute(query.format(staging.marks(schema)), (f'table "{self._name}"',))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return set()
        return {str(row[0]) for row in found.fetchall()}

    def _prepare(self, change: Change) -> None:
        """Create the table, the schema of stages and the table of marks."""
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
    known = _SQL_TYPES.get(type(field.dataType))
    if known is None:
        raise ConnectorError(
            f'column "{field.name}" cannot be mirrored into a table: {field.dataType.simpleString()}'
        )
    return known


@dataclass(frozen=True, slots=True)
class SqlMerge:
    """Merges a stage into the table, in the transaction of the sink's commit; picklable.

    Args:
        nested: columns that are text in the stage and JSON in the table.
    """

    scd: int
    columns: tuple[str, ...]
    kept: tuple[str, ...]
    keys: tuple[str, ...]
    nested: tuple[str, ...]

    def __call__(self, connection: Connection, target: Target, stage: sql.Identifier) -> None:
        """Merge a stage into the table; called by `staging.publish`."""
        for statement in self._statements(target.identifier, stage):
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
        names["on_conflict"] = staging.do_update(rest)
        delete = "DELETE FROM {table} AS m USING {stage} AS s WHERE {same} AND s._deleted"
        return [
            sql.SQL(delete).format(**names),
            sql.SQL(insert + " ON CONFLICT ({keys}) {on_conflict}").format(**names),
        ]


def _value(name: str, nested: Sequence[str]) -> sql.Composed:
    return sql.SQL("{}::JSON" if name in nested else "{}").format(sql.Identifier(name))
