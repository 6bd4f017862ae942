"""The writers behind `df.write`, `df.writeStream` and `foreachBatch`: Arrow batches are staged and published.

Spark creates a writer for each batch in a new process, pickles it to the tasks, and calls `commit` or `abort`
in another process, so the tasks' results are in their messages. staging.py writes each batch once.

Within `foreachBatch`, `write_once` lets Spark run the sink's tasks and commit by a data source of its own,
whose one option is the pickled writer. It needs neither pandas, as `mapInArrow` does, nor the rows on the
driver.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..connection import parameters
from ..errors import ConnectorError
from ..options import Options
from . import staging
from .target import Target, target_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

# Properties of Spark's task: the query and batch of a write. Source: StreamExecution, MicroBatchExecution.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
_WRITER = "writer"


@dataclass
class StageMessage(WriterCommitMessage):
    """The stage of a task.

    Args:
        query: id of the streaming query, which is that of its checkpoint.
    """

    stage: staging.Stage
    query: str = ""


class Writer(DataSourceArrowWriter):
    """The writer of a batch job, or of one batch within `foreachBatch`.

    Args:
        batch, merge: see `staging.publish`; both picklable.
    """

    def __init__(
        self,
        options: Options,
        target: Target,
        batch: staging.Batch | None = None,
        merge: staging.Merge | None = None,
    ) -> None:
        self.options = options
        self.target = target
        self.batch = batch
        self.merge = merge

    def write(self, iterator: Iterator[RecordBatch]) -> StageMessage:
        """Stage the rows of a task."""
        owner = "" if self.batch is None else staging.owner_of(self.batch)
        return StageMessage(staging.stage(self.options, self.target, iterator, owner))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all stages."""
        staging.publish(self.options, self.target, _stages(messages), self.batch, self.merge)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the stages."""
        _discard(self.options, self.target, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one batch of a streaming query."""

    def __init__(self, options: Options, target: Target) -> None:
        self.options = options
        self.target = target

    def write(self, iterator: Iterator[RecordBatch]) -> StageMessage:
        """Stage the rows of a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        number = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        if not query or number is None:
            raise ConnectorError("this Spark does not say which query and batch a task writes for")
        owner = staging.owner_of(staging.Batch(query, int(number)))
        return StageMessage(staging.stage(self.options, self.target, iterator, owner), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, unless it has been published before."""
        query = next((message.query for message in messages if isinstance(message, StageMessage)), None)
        if query is None:
            return  # Without a task there is no row.
        staging.publish(self.options, self.target, _stages(messages), staging.Batch(query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the stages."""
        _discard(self.options, self.target, messages)


def frame_target(options: Options, schema: StructType, *, overwrite: bool) -> Target:
    """The target for a data frame of this schema.

    Raises:
        OptionError: options and columns do not match.
    """
    return target_of(options, to_arrow_schema(schema, timezone="UTC"), overwrite=overwrite)


# The targets of streaming queries that this process has checked.
_checked: set[tuple[object, ...]] = set()
CHECKED_MAX = 100


def checked_target(options: Options, schema: StructType, *, overwrite: bool, once: bool) -> Target:
    """The target for a data frame of this schema, which exists and has its columns.

    Args:
        once: a target that this process has checked is not checked again: Spark makes two writers for each
            batch of a query, in two processes, which it keeps.

    Raises:
        ConnectorError: see `frame_target` and `staging.check`.
    """
    target = frame_target(options, schema, overwrite=overwrite)
    key = (*parameters(options), target)
    if once and key in _checked:
        return target
    staging.check(options, target)
    if once:
        if len(_checked) >= CHECKED_MAX:
            _checked.clear()
        _checked.add(key)
    return target


def _stages(messages: Sequence[WriterCommitMessage | None]) -> list[staging.Stage]:
    return [message.stage for message in messages if isinstance(message, StageMessage)]


def _discard(options: Options, target: Target, messages: Sequence[WriterCommitMessage | None]) -> None:
    # Spark reports the error for which it aborts; a later write drops the stages that remain.
    with contextlib.suppress(ConnectorError):
        staging.discard(options, target, _stages(messages))


class BatchSource(DataSource):
    """The data source that runs a pickled writer; only `write_once` uses it."""

    @classmethod
    def name(cls) -> str:
        """The name under which it is registered."""
        return "ducktail_staged"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer in the option."""
        made: Writer = pickle.loads(base64.b64decode(self.options[_WRITER]))
        return made


def batch_of(frame: DataFrame, number: int) -> staging.Batch:
    """The batch passed to a function of `foreachBatch`; the query's id is that of its checkpoint.

    Raises:
        ConnectorError: the data frame is not a batch of a streaming query.
    """
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
    if not query:
        raise ConnectorError("this is no batch of a streaming query: call it from foreachBatch")
    return staging.Batch(query, number)


def write_once(
    frame: DataFrame,
    options: Options,
    target: Target,
    batch: staging.Batch,
    merge: staging.Merge | None = None,
) -> None:
    """Write the rows of a batch and its mark in one transaction, unless the batch has been written before.

    Args:
        merge: see `staging.publish`; picklable.

    Raises:
        PySparkException: Spark's, around the ConnectorError; nothing of the batch was written.
    """
    frame.sparkSession.dataSource.register(BatchSource)
    writer = base64.b64encode(pickle.dumps(Writer(options, target, batch, merge))).decode()
    rows = frame.select(*target.names)
    rows.write.format(BatchSource.name()).option(_WRITER, writer).mode("append").save()
