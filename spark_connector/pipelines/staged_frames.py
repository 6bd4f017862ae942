"""A batch of a streaming query, written from within `foreachBatch` as the sink writes it: once.

Spark runs the sink's tasks and its commit itself, by way of a data source of our own that has one option:
what is to be done, pickled. So it wants neither pandas (`mapInArrow` does) nor the rows on the driver.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from .. import staging
from ..errors import ConnectorError
from ..options import Options
from ..sink import QUERY_PROPERTY, Written, drop_staged, staged

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

_JOB = "job"


@dataclass(frozen=True, slots=True)
class Job:
    """What is written where; picklable."""

    options: Options
    target: staging.Target
    batch: staging.Batch
    merge: staging.Merge | None = None


class StagedSource(DataSource):
    """Writes one batch; only `write_once` uses it."""

    @classmethod
    def name(cls) -> str:
        """As it is registered."""
        return "ducktail_staged"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of the job in the option."""
        return _JobWriter(pickle.loads(base64.b64decode(self.options[_JOB])))


class _JobWriter(DataSourceArrowWriter):
    def __init__(self, job: Job) -> None:
        self.job = job

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        job = self.job
        return Written(staging.stage(job.options, job.target, iterator, staging.owner_of(job.batch)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        job = self.job
        staging.publish(job.options, job.target, staged(messages), job.batch, job.merge)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        drop_staged(self.job.options, self.job.target, messages)


def batch_of(frame: DataFrame, number: int) -> staging.Batch:
    """Which query's batch this is: the query is known by its checkpoint.

    Raises:
        ConnectorError: this is no batch of a streaming query.
    """
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
    if not query:
        raise ConnectorError("this is no batch of a streaming query: call it from foreachBatch")
    return staging.Batch(query, number)


def write_once(
    frame: DataFrame,
    options: Options,
    target: staging.Target,
    batch: staging.Batch,
    merge: staging.Merge | None = None,
) -> None:
    """Write a batch's rows, in one transaction with the mark that says so; once.

    Args:
        merge: as of `staging.publish`; picklable.

    Raises:
        PySparkException: of Spark, around the ConnectorError; nothing of the batch is there.
    """
    frame.sparkSession.dataSource.register(StagedSource)
    job = base64.b64encode(pickle.dumps(Job(options, target, batch, merge))).decode()
    rows = frame.select(*target.names)
    rows.write.format(StagedSource.name()).option(_JOB, job).mode("append").save()
