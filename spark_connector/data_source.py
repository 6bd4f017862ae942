"""The data source as Spark sees it: `format("ducktail")`."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from .options import Use, parse


class DucktailSource(DataSource):
    """Reads of streams and tables, and writes to topics and tables, through a gateway.

    Spark makes it in a Python process of its own for each thing that it wants to know; so it does no
    work when it is made.
    """

    @classmethod
    def name(cls) -> str:
        """The word that users write in `format(...)`."""
        return "ducktail"

    # What writes is imported where it is wanted: each Python worker that reads would pay for it.

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


def register(spark: SparkSession) -> None:
    """Make `format("ducktail")` known to a session.

    Where ducktail is installed from its wheel, Spark finds it without this call (pyspark_ducktail); from a
    checkout (`pip install -e`) it does not, and the call is needed.
    """
    spark.dataSource.register(DucktailSource)
