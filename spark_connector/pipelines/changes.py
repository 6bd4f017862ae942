"""What a batch of changes makes of a table, as data frames: the last row of each key, or all versions.

The changes are rows of ENVELOPE CHANGES: the table's columns, `_change_type`, `_commit_version`,
`_commit_timestamp`, `_lsn`, `_partition`. Of one key they are in one partition and in the order of `_lsn`; an
update that changes the key is a delete of the old key and an insert of the new one; so a key's last change
says what has become of it, whatever the other keys do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from ..errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ENVELOPE = ("_change_type", "_commit_version", "_commit_timestamp", "_lsn", "_partition")
DELETED = "_deleted"
# Of SCD type 2: from when to when (and from which change to which) the row was so.
VALID_FROM, VALID_TO, IS_CURRENT, FROM_LSN, TO_LSN = VERSION_COLUMNS = (
    "valid_from", "valid_to", "is_current", "from_lsn", "to_lsn",
)  # fmt: skip
# The first change of its key in a batch: it ends what was current before.
FIRST = "_first"


def table_columns(schema: StructType) -> list[str]:
    """The table's own columns.

    Raises:
        OptionError: these are no rows of ENVELOPE CHANGES, or a column has a name that versions have.
    """
    names = [field.name for field in schema]
    missing = [name for name in ENVELOPE if name not in names]
    if missing:
        raise OptionError(f'a mirror reads changes, which have a column "{missing[0]}" (option envelope)')
    return [name for name in names if name not in ENVELOPE]


def latest(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each key of a batch: as it is after it, with `_deleted`."""
    columns = table_columns(changes.schema)
    newest = Window.partitionBy(*keys).orderBy(f.col("_lsn").desc())
    return (
        changes.where("_change_type <> 'update_preimage'")
        .withColumn("_place", f.row_number().over(newest))
        .where("_place = 1")
        .select(*columns, (f.col("_change_type") == "delete").alias(DELETED))
    )


def versions(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """A row for each change of a batch: what became of its key, until when, with `_deleted` and `_first`."""
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
