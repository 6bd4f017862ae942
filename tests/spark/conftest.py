"""One Spark for all tests of a run, and a gateway for those of a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

# Loopback, whatever the machine is called; the workers are this Python.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# What tests of Spark's JDBC beside the connector want.
DRIVER = Path("/usr/share/java/postgresql.jar")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session: it takes the longest to start."""
    import sys

    os.environ["PYSPARK_PYTHON"] = sys.executable
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("java is not installed (make deps)")
    from ducktail.spark_connector.data_source import register

    home = tmp_path_factory.mktemp("spark")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.jars", str(DRIVER) if DRIVER.exists() else "")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for the tests of a file."""
    path: Path = tmp_path_factory.mktemp("gateway") / "ducktail.duckdb"
    with ServerProcess(path) as started:
        yield started
