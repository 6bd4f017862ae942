"""`mirror`: a table kept equal to its stream, with its present rows (SCD type 1) or all versions (type 2).

    query = mirror(changes, ParquetTarget("/data/orders"), keys=["id"])

`changes` is a streaming data frame of ENVELOPE CHANGES: the table's columns, `_change_type`,
`_commit_version`, `_commit_timestamp`, `_lsn`, `_partition`. All changes of a key are in one partition, in
the order of `_lsn`; an update of the key is a delete of the old key and an insert of the new one. So a key's
last change in a batch determines its row, independently of other keys. Spark computes the rows of a batch
in this module for all targets (targets.py), and a target applies them in one atomic step.

A target applies each batch once, whatever is killed when: the mark of query and batch is written atomically
with the rows. A target with the mark of another query is refused, because the rows would not fit together;
so is one that holds anything without a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from ..errors import ConnectorError, OptionError
from ..sink.staging import Batch
from ..sink.writers import batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

SCD_TYPES = (1, 2)
ENVELOPE = ("_change_type", "_commit_version", "_commit_timestamp", "_lsn", "_partition")
DELETED = "_deleted"
# Columns of SCD type 2: the times and the changes that began and ended the row.
VALID_FROM, VALID_TO, IS_CURRENT, FROM_LSN, TO_LSN = VERSION_COLUMNS = (
    "valid_from", "valid_to", "is_current", "from_lsn", "to_lsn",
)  # fmt: skip
# True for the first change of its key in a batch, which ends the key's current version.
FIRST = "_first"


def mirror(changes: DataFrame, target: MirrorTarget, keys: Sequence[str], scd: int = 1) -> DataStreamWriter:
    """A mirror's query, ready for its checkpoint, its trigger and its start.

    Raises:
        OptionError: these are no changes, a key is not among their columns, or the SCD type is unknown.
    """
    columns = table_columns(changes.schema)
    missing = [key for key in keys if key not in columns]
    if missing:
        raise OptionError(f'the table has no column "{missing[0]}" (option key)')
    return changes.writeStream.foreachBatch(batch_function(target, keys, scd))


def batch_function(
    target: MirrorTarget, keys: Sequence[str], scd: int = 1
) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`.

    Raises:
        OptionError: there are no keys, or the SCD type is not 1 or 2.
    """
    if not keys:
        raise OptionError("a mirror wants the table's primary key (option key)")
    if scd not in SCD_TYPES:
        raise OptionError(f"a mirror is of SCD type 1 or 2, not {scd} (option scd)")

    def apply(frame: DataFrame, number: int) -> None:
        # Every target reads the rows more than once.
        frame.persist()
        try:
            target.apply(Change.of(frame, keys, scd, batch_of(frame, number)))
        finally:
            frame.unpersist()

    return apply


def table_columns(schema: StructType) -> list[str]:
    """The table's own columns.

    Raises:
        OptionError: these are not rows of ENVELOPE CHANGES.
    """
    names = [field.name for field in schema]
    missing = [name for name in ENVELOPE if name not in names]
    if missing:
        raise OptionError(f'a mirror reads changes, which have a column "{missing[0]}" (option envelope)')
    return [name for name in names if name not in ENVELOPE]


def latest(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each key of a batch, as after its last change, with `_deleted`."""
    columns = table_columns(changes.schema)
    newest = Window.partitionBy(*keys).orderBy(f.col("_lsn").desc())
    return (
        changes.where("_change_type <> 'update_preimage'")
        .withColumn("_place", f.row_number().over(newest))
        .where("_place = 1")
        .select(*columns, (f.col("_change_type") == "delete").alias(DELETED))
    )


def versions(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each change of a batch: the version that it began, with `_deleted` and `_first`.

    Raises:
        OptionError: the table has a column with the name of a version column.
    """
    columns = table_columns(changes.schema)
    taken = sorted(set(columns) & set(VERSION_COLUMNS))
    if taken:
        raise OptionError(f'a table with a column "{taken[0]}" cannot be mirrored as type 2 (option scd)')
    order = Window.partitionBy(*keys).orderBy("_lsn")
    after = f.lead("_lsn").over(order)
    return changes.where("_change_type <> 'update_preimage'").select(
        *columns,
        f.col("_commit_timestamp").alias(VALID_FROM),
        f.lead("_commit_timestamp").over(order).alias(VALID_TO),
        after.isNull().alias(IS_CURRENT),
        f.col("_lsn").alias(FROM_LSN),
        after.alias(TO_LSN),
        (f.col("_change_type") == "delete").alias(DELETED),
        (f.row_number().over(order) == 1).alias(FIRST),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A batch as a target applies it.

    Args:
        rows: the rows of `latest` for SCD type 1, of `versions` for type 2.
        columns: the table's own columns.
        keys: the columns of the primary key.
    """

    rows: DataFrame
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    scd: int
    batch: Batch

    @classmethod
    def of(cls, frame: DataFrame, keys: Sequence[str], scd: int, batch: Batch) -> Change:
        """The change made by a batch of ENVELOPE CHANGES."""
        made = latest if scd == 1 else versions
        columns = tuple(table_columns(frame.schema))
        return cls(made(frame, keys), columns, tuple(keys), scd, batch)

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns of the mirror."""
        return self.columns if self.scd == 1 else (*self.columns, *VERSION_COLUMNS)


class MirrorTarget(Protocol):
    """A target of a mirror: Parquet files, a Delta table, or a table in a database."""

    def apply(self, change: Change) -> None:
        """Apply a batch, unless it has been applied before.

        Raises:
            ConnectorError: nothing of the batch was applied.
        """


def other_query(place: str, option: str) -> ConnectorError:
    """The error for a target that another query has written."""
    return ConnectorError(
        f"{place} holds what a query with another checkpoint has written (options checkpoint, {option}): "
        "give this one the same checkpoint, or an empty place"
    )


def foreign(place: str, option: str) -> ConnectorError:
    """The error for a target with content that no mirror has written, which would be mixed or lost."""
    return ConnectorError(
        f"{place} is not empty, and no mirror has written it (option {option}): give the mirror an empty "
        "place, or one that is not there yet"
    )


def unmarked(place: str, option: str, batch: Batch) -> ConnectorError:
    """The error for a target without the mark of the previous batches."""
    return ConnectorError(
        f"{place} does not know of the batches before batch {batch.number} that the checkpoint has (options "
        f"checkpoint, {option}): bring back what was there, or begin anew with an empty checkpoint and "
        "another consumer group"
    )


def gone(place: str, option: str, batch: Batch) -> ConnectorError:
    """The error for a target that no longer exists: a new one would lack the previous batches."""
    return ConnectorError(
        f"{place} is not there, and the checkpoint has batches before batch {batch.number} in it "
        f"(options checkpoint, {option}): bring it back, or begin anew with an empty checkpoint and another "
        "consumer group"
    )
