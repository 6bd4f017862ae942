"""The data source as Spark sees it: `format("ducktail")`."""

from __future__ import annotations

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
    """Reads of streams and tables, and writes to topics and tables, through a gateway.

    Spark makes it in a Python process of its own for each thing that it wants to know; so it does no
    work when it is made.
    """

    @classmethod
    def name(cls) -> str:
        """The word that users write in `format(...)`."""
        return "ducktail"

    # What reads and what writes is imported where it is wanted: a Python worker does one of them.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch job."""
        from .sink import Writer, target

        options = parse(self.options, Use.WRITE)
        return Writer(options, target(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Of a streaming query's batch."""
        from .sink import StreamWriter, target

        options = parse(self.options, Use.WRITE_STREAM)
        return StreamWriter(options, target(options, schema, overwrite=overwrite))

    def schema(self) -> StructType:
        """The columns of what is read, asked of the gateway.

        Raises:
            ConnectorError: the gateway cannot be reached, or there is no such stream or table.
        """
        from .batch_reader import check_what
        from .connection import connect
        from .owners import GIVEN
        from .relation import Relation
        from .stream_state import look_up

        options = parse(self.options, *READS)
        check_what(options)
        with connect(options) as connection:
            if options["table"] is not None:
                return Relation.of_table(options).schema(connection)
            state = look_up(connection, options)
            relation, owner = Relation.of(options, state), state.partitions[0].owner
            if owner == GIVEN:
                return relation.schema(connection)
        with connect(owner.options(options), owner.node) as there:
            return relation.schema(there)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch query."""
        from .batch_reader import BatchReader

        return BatchReader(parse(self.options, Use.READ), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a streaming query."""
        from .stream_reader import Refused, StreamReader

        try:
            return StreamReader(parse(self.options, Use.READ_STREAM), schema)
        except OptionError as error:
            return Refused(error)


def register(spark: SparkSession) -> None:
    """Make `format("ducktail")` known to a session.

    Where ducktail is installed from its wheel, Spark finds it without this call (pyspark_ducktail); from a
    checkout (`pip install -e`) it does not, and the call is needed. So it is, either way, in each thread of
    one's own that writes.
    """
    spark.dataSource.register(DucktailSource)
    if hasattr(spark, "_jsparkSession"):
        # Spark looks for what writes in the thread's active session only, and a new thread has none
        # (DataSource.lookupDataSource: SparkSession.getActiveSession). Spark Connect has no such threads.
        java: Any = spark
        java._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java._jsparkSession)
