"""A mirror in Parquet files: each batch a directory of its own, and a file that says which one counts.

    PATH/batch=17/part-....parquet       the whole mirror after batch 17
    PATH/_LATEST                         {"query": "...", "batch": 17, "directory": "batch=17"}
    PATH/_MIRROR                         {"query": "..."}: whose it is, from before the first batch

Parquet has no merge: each batch writes the mirror anew, from the last directory and the changes, and then
replaces `_LATEST` by a rename, which is whole or not at all. A batch that is killed leaves a directory that
nobody counts, which is written over when the batch comes again. The directory before the last one stays for
readers that have just begun; older ones are deleted. Renaming over a file is whole on local disks, NFS and
HDFS; of object stores it is not said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from ..errors import ConnectorError
from . import changes
from .targets import Change, foreign, gone, other_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATEST = "_LATEST"
# Whose directory it is, from before the first batch.
MIRROR = "_MIRROR"
# The present one, and the one before for readers that have begun.
DIRECTORIES_KEPT = 2


def read_mirror(spark: SparkSession, path: str) -> DataFrame:
    """The mirror as it is now.

    Raises:
        ConnectorError: there is none yet.
    """
    latest = _Directory(spark, path).latest()
    if latest is None:
        raise ConnectorError(f"there is no mirror at {path} yet (option path)")
    return spark.read.parquet(f"{path}/{latest['directory']}")


@dataclass(frozen=True, slots=True)
class ParquetPlace:
    """A directory, on a file system that driver and executors share."""

    path: str

    def apply(self, change: Change) -> None:
        """See targets.py."""
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
    new = change.rows.where(~f.col(changes.DELETED)).select(*change.kept)
    if old is None:
        return new
    rest = old.join(change.rows.select(*change.keys), list(change.keys), "left_anti")
    return rest.select(*change.kept).unionByName(new)


def _type_2(old: DataFrame | None, change: Change) -> DataFrame:
    new = change.rows.where(~f.col(changes.DELETED)).select(*change.kept)
    if old is None:
        return new
    first = change.rows.where(changes.FIRST).select(
        *change.keys, f.col(changes.VALID_FROM).alias("_ends"), f.col(changes.FROM_LSN).alias("_ends_lsn")
    )
    joined = old.join(first, list(change.keys), "left")
    ends = f.col(changes.IS_CURRENT) & f.col("_ends_lsn").isNotNull()
    ended = (
        joined.withColumn(changes.VALID_TO, f.when(ends, f.col("_ends")).otherwise(f.col(changes.VALID_TO)))
        .withColumn(changes.TO_LSN, f.when(ends, f.col("_ends_lsn")).otherwise(f.col(changes.TO_LSN)))
        .withColumn(changes.IS_CURRENT, f.col(changes.IS_CURRENT) & f.col("_ends_lsn").isNull())
    )
    return ended.select(*change.kept).unionByName(new)


class _Directory:
    """A path through Hadoop's file system, so that it may be on HDFS as well."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._home = self._path(path)
        self._files = self._home.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._streams = jvm.org.apache.commons.io.IOUtils
        # Its rename replaces a file that is there, where FileSystem's refuses to.
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._files.getUri(), spark.sparkContext._jsc.hadoopConfiguration()
        )
        options = jvm.org.apache.hadoop.fs.Options.Rename
        gateway: Any = spark.sparkContext._gateway
        self._overwrite = gateway.new_array(options, 1)
        self._overwrite[0] = options.OVERWRITE

    def latest(self) -> dict[str, Any] | None:
        """What `_LATEST` says; None where there is none."""
        return self._read(LATEST)

    def take(self, query: str) -> None:
        """Make the directory a query's own, before its first batch writes into it.

        Raises:
            ConnectorError: it is another's, or somebody has something there.
        """
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
        """Let a file say this, whole or not at all."""
        new = self._path(self._home, f"{name}.new")
        opened = self._files.create(new, True)
        opened.write(json.dumps(facts).encode())
        opened.hsync()
        opened.close()
        self._context.rename(new, self._path(self._home, name), self._overwrite)

    def delete_all_but(self, count: int) -> None:
        """Delete the directories of older batches."""
        found = []
        for status in self._files.listStatus(self._home):
            name = status.getPath().getName()
            if name.startswith("batch=") and name[6:].isdecimal():
                found.append(int(name[6:]))
        for number in sorted(found)[:-count]:
            self._files.delete(self._path(self._home, f"batch={number}"), True)
