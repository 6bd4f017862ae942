"""An archive of the classes that Spark loads: a JVM with it begins with half of the processor's time.

Run as a program it writes the archive, once for each JVM and version of Spark (`make deps`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from java_programs import SOON

BUILD = Path(__file__).parents[2] / "build"


def archive() -> Path | None:
    """Where the archive of this JVM and this Spark is, made or not; None without one of them."""
    java = shutil.which("java")
    try:
        versions = [metadata.version("pyspark")]
    except metadata.PackageNotFoundError:
        return None
    if java is None:
        return None
    program = Path(java).resolve()
    versions += [str(program), str(program.stat().st_mtime_ns), sys.prefix]
    return BUILD / f"spark-{hashlib.sha256(' '.join(versions).encode()).hexdigest()[:12]}.jsa"


@cache
def java_options() -> str:
    """The JVM's options for Spark in a test."""
    found = archive()
    if found is None or not found.exists():
        return SOON
    return f"{SOON} -XX:SharedArchiveFile={found} -Xlog:disable"


def main() -> None:
    """Write the archive: the classes of a query with tasks of Python and of a stream."""
    place = archive()
    if place is None or place.exists():
        return
    from pyspark.sql import SparkSession

    BUILD.mkdir(exist_ok=True)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = place.with_suffix(f".{os.getpid()}")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"{SOON} -XX:ArchiveClassesAtExit={made} -Xlog:disable")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    jvm = session.sparkContext._gateway
    session.range(100).filter("id > 3").groupBy("id").count().collect()
    session.sparkContext.parallelize(range(4), 2).map(str).collect()
    query = session.readStream.format("rate").load().writeStream.format("noop").trigger(availableNow=True)
    query.start().awaitTermination()
    session.stop()
    # Its end writes the archive.
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait()
    for old in BUILD.glob("spark-*.jsa"):
        old.unlink()
    made.rename(place)


if __name__ == "__main__":
    main()
