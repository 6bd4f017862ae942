"""Run a pipeline: a session, a query, a reporter; until it is stopped, or with `once` until all is read."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..connection import retrying
from ..data_source import DucktailSource, register
from ..errors import ConnectorError
from ..java import ensure_java
from ..options import Options, Use, parse
from .config import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# All cores, and a task that fails (a gateway that restarts) is tried again three times.
MASTER = "local[*,4]"
# How long between two looks at whether to stop.
LOOK_S = 1
# Makes the query of a pipeline: what it writes, without checkpoint, trigger and name.
Build = Callable[["SparkSession", Config], "DataStreamWriter"]
T = TypeVar("T")


def session(config: Config, master: str | None) -> SparkSession:
    """The session, with `format("ducktail")` known; the one of spark-submit where that runs us."""
    ensure_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"ducktail {config.kind} {config.name}")
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = master or MASTER
        builder = builder.master(chosen)
        if chosen.startswith("local"):
            # On one machine Spark has no business on its other addresses.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    # Our own line of progress is enough.
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for key, value in config.spark.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    register(made)
    return made


def read(spark: SparkSession, config: Config, **defaults: str) -> DataFrame:
    """The pipeline's source as a streaming data frame.

    A pipeline may start beside its gateway: the columns are asked for here, and not by Spark's `load()`,
    which asks once.

    Args:
        defaults: options that hold where the file has no others.

    Raises:
        ConnectorError: as of the source's `schema`, after retryTimeout where it may pass.
    """
    given = {key.lower(): value for key, value in config.source.items()}
    chosen = {key: value for key, value in defaults.items() if key.lower() not in given}
    options = {**config.source, **chosen}
    schema = asked(config.name, DucktailSource(options).schema, parse(options, Use.READ_STREAM))
    return spark.readStream.format("ducktail").schema(schema).options(**options).load()


def asked(name: str, work: Callable[[], T], options: Options) -> T:
    """What `work` returns, which asks the gateway before the query `name` begins; who waits is told why.

    Raises:
        ConnectorError: one that is not retryable, or the last one when retryTimeout is over.
    """
    told = False

    def look() -> T:
        nonlocal told
        try:
            return work()
        except ConnectorError as error:
            if error.retryable and not told:
                told = True
                print(f"{name}: {error}; trying again", file=sys.stderr, flush=True)
            raise

    return retrying(look, options["retryTimeout"])


def run(build: Build, config: Config, master: str | None = None, *, once: bool = False) -> int:
    """Run a pipeline to its end.

    Returns:
        The exit status: 0 it was stopped or has read all, 1 it failed.

    Raises:
        ConnectorError: it could not begin.
    """
    from pyspark.errors import PySparkException

    from .reporting import Reporter

    spark = session(config, master)
    try:
        try:
            writer = build(spark, config)
            writer = writer.queryName(config.name).option("checkpointLocation", config.checkpoint)
            writer = (
                writer.trigger(availableNow=True) if once else writer.trigger(processingTime=config.trigger)
            )
        except PySparkException as failed:
            raise ConnectorError(_cause(failed)) from None
        group = {key.lower(): value for key, value in config.source.items()}.get("consumergroup", config.name)
        reporter = Reporter(config.connection, config.name, config.stream, group)
        spark.streams.addListener(reporter)
        try:
            query = writer.start()
        except PySparkException as failed:
            raise ConnectorError(_cause(failed)) from None
        reporter.begin(str(query.id))
        stopped = _stop_on_signals()
        status, error = "finished", None
        try:
            while not query.awaitTermination(LOOK_S):
                if stopped():
                    status = "stopped"
                    query.stop()
                    break
        except PySparkException as failed:
            status, error = "failed", _cause(failed)
        print(reporter.finish(status, query.lastProgress, error), file=sys.stderr, flush=True)
        if error is not None:
            print(f"{config.name}: {error}", file=sys.stderr, flush=True)
        return 1 if error is not None else 0
    finally:
        spark.stop()


def _stop_on_signals() -> Callable[[], bool]:
    """Whether SIGTERM or SIGINT has come; the batch that runs is stopped, and comes again."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: came.append(number))
    return lambda: bool(came)


def _cause(error: Exception) -> str:
    """What went wrong, without the stacks of Java and Python around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "ducktail.spark_connector.errors." in line]
    if ours:
        return ours[-1].partition("errors.")[2].partition(": ")[2]
    return lines[0] if lines else type(error).__name__
