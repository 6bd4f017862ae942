"""The writers behind `df.write` and `df.writeStream`: Arrow batches in, stages out, one transaction a batch.

Spark makes a writer for each batch in a process of its own, pickles it to the tasks, and calls `commit` or
`abort` in yet another process: what the tasks have to tell is in their messages. What keeps a batch from
being written twice is in staging/.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from . import staging
from .errors import ConnectorError
from .options import Options

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Of Spark's task: which query and batch it writes for. Source: StreamExecution, MicroBatchExecution.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What a task has staged.

    Args:
        query: of a streaming query its id, which is that of its checkpoint.
    """

    stage: staging.Stage
    query: str = ""


class Writer(DataSourceArrowWriter):
    """A batch job's."""

    def __init__(self, options: Options, target: staging.Target) -> None:
        self.options = options
        self.target = target

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Stage a task's rows."""
        return Written(staging.stage(self.options, self.target, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Bring all that was staged into the target."""
        staging.publish(self.options, self.target, staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        drop_staged(self.options, self.target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's, of one batch."""

    def __init__(self, options: Options, target: staging.Target) -> None:
        self.options = options
        self.target = target

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Stage a task's rows."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        number = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        if not query or number is None:
            raise ConnectorError("this Spark does not say which query and batch a task writes for")
        batch = staging.Batch(query, int(number))
        return Written(staging.stage(self.options, self.target, iterator, staging.owner_of(batch)), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Bring the batch into the target, if it is not there."""
        query = next((message.query for message in messages if isinstance(message, Written)), None)
        if query is None:
            return  # There was no task, so there is no row.
        staging.publish(self.options, self.target, staged(messages), staging.Batch(query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged."""
        drop_staged(self.options, self.target, messages)


def target(options: Options, schema: StructType, *, overwrite: bool) -> staging.Target:
    """What a data frame of this schema is written to.

    Raises:
        OptionError: options and columns do not go together.
    """
    return staging.target_of(options, to_arrow_schema(schema, timezone="UTC"), overwrite=overwrite)


def staged(messages: Sequence[WriterCommitMessage | None]) -> list[staging.Stage]:
    """What the tasks have told."""
    return [message.stage for message in messages if isinstance(message, Written)]


def drop_staged(
    options: Options, target: staging.Target, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Drop what was staged for a write that Spark has given up."""
    # The error that Spark aborts for is the one to be told; what stays is dropped by a later write.
    with contextlib.suppress(ConnectorError):
        staging.discard(options, target, staged(messages))
