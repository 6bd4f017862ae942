"""`mirror`: a table kept equal to its stream, as it is (SCD type 1) or with all it has been (type 2).

    query = mirror(changes, ParquetPlace("/data/orders"), keys=["id"], checkpoint="/data/checkpoints/orders")

`changes` is a streaming data frame of ENVELOPE CHANGES. Each batch is applied once, whatever is killed when:
the place keeps the query and the batch with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import OptionError
from .changes import table_columns
from .staged_frames import batch_of
from .targets import Change, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCD_TYPES = (1, 2)


def applying(place: Place, keys: Sequence[str], scd: int = 1) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`.

    Raises:
        OptionError: no keys, or another type of SCD than 1 and 2.
    """
    if not keys:
        raise OptionError("a mirror wants the table's primary key (option key)")
    if scd not in SCD_TYPES:
        raise OptionError(f"a mirror is of SCD type 1 or 2, not {scd} (option scd)")

    def apply(frame: DataFrame, number: int) -> None:
        # Each place reads the rows more than once.
        frame.persist()
        try:
            place.apply(Change.of(frame, keys, scd, batch_of(frame, number)))
        finally:
            frame.unpersist()

    return apply


def mirror(changes: DataFrame, place: Place, keys: Sequence[str], scd: int = 1) -> DataStreamWriter:
    """A mirror, ready for its checkpoint, its trigger and its start.

    Raises:
        OptionError: these are no changes, the keys are not among their columns, or the SCD type is none.
    """
    columns = table_columns(changes.schema)
    missing = [key for key in keys if key not in columns]
    if missing:
        raise OptionError(f'the table has no column "{missing[0]}" (option key)')
    return changes.writeStream.foreachBatch(applying(place, keys, scd))
