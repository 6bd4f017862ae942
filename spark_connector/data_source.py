"""The entry point for Spark: the data source `format("ducktail")`."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .errors import OptionError
from .options import READS, Use, parse


class DucktailSource(DataSource):
    """Reads streams and tables, and writes topics and tables, through a gateway.

    Spark creates it in a new Python process for each call, so its creation does no work.
    """

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "ducktail"

    # The source and the sink are imported at their use: a Python worker needs one of them.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch job, whose target has been checked."""
        from .sink.writers import Writer, checked_target

        options = parse(self.options, Use.WRITE)
        return Writer(options, checked_target(options, schema, overwrite=overwrite, once=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of one batch of a streaming query, whose target was checked before the first."""
        from .sink.writers import StreamWriter, checked_target

        options = parse(self.options, Use.WRITE_STREAM)
        return StreamWriter(options, checked_target(options, schema, overwrite=overwrite, once=True))

    def schema(self) -> StructType:
        """The columns of the stream or table, as the gateway describes them.

        Raises:
            ConnectorError: the gateway cannot be reached within retryTimeout, or there is no such stream or
                table.
        """
        from .connection import retrying
        from .source.relation import check_source, described

        options = parse(self.options, *READS)
        check_source(options)
        return retrying(partial(described, options), options["retryTimeout"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        from .source.batch_reader import BatchReader

        return BatchReader(parse(self.options, Use.READ), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query."""
        from .source.stream_reader import InvalidReader, StreamReader

        try:
            return StreamReader(parse(self.options, Use.READ_STREAM), schema)
        except OptionError as error:
            return InvalidReader(error)


def register(spark: SparkSession) -> None:
    """Register `format("ducktail")` with a session.

    If ducktail is installed from its wheel, Spark finds it without this call (pyspark_ducktail); from a
    checkout (`pip install -e`) the call is needed. In either case each thread that you start and that writes
    needs it.
    """
    spark.dataSource.register(DucktailSource)
    if hasattr(spark, "_jsparkSession"):
        # Spark looks up writers in the thread's active session only, and a new thread has none
        # (DataSource.lookupDataSource: SparkSession.getActiveSession). Spark Connect has no such threads.
        java: Any = spark
        java._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java._jsparkSession)
