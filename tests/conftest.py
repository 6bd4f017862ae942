"""What all tests may use: a real server process, and psql."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

# Where `make deps` puts the libraries of the JavaScript clients.
NODE_MODULES = Path(__file__).parents[1] / "build" / "node" / "node_modules"
# A slow test takes as long as so many others.
SLOW_WEIGHT = 100
# sqlglot with the modules of `sqlglot[c]`, put before the one in .venv where a test wants it.
COMPILED_SQLGLOT = Path(__file__).parents[1] / "build" / "sqlglotc"
# pgjdbc, as Debian installs it.
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slt-rewrite", action="store_true", help="write what .slt records answer into them")
    parser.addoption("--transcripts-rewrite", action="store_true", help="write tests/transcripts anew")
    parser.addoption("--transcripts", metavar="DIRECTORY", help="write the server's messages there")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that want a system program are left out, and say so, where it is missing."""
    if hasattr(config, "workerinput"):
        _share_out(items)
    programs = {
        "psql": shutil.which("psql"),
        "postgres": postgres_programs(),
        "node": shutil.which("node") and NODE_MODULES.is_dir(),
        "odbc": odbc_driver(),
        "sqlglotc": COMPILED_SQLGLOT.is_dir(),
        "jdbc": shutil.which("javac") and JDBC_DRIVER.exists(),
    }
    for item in items:
        for marker, found in programs.items():
            if item.get_closest_marker(marker) and not found:
                item.add_marker(pytest.mark.skip(reason=f"{marker} is not installed (make deps)"))


def _group(node_id: str) -> str:
    """What is run by one worker of several: a file, as its tests share a server, and all that wants Spark."""
    file = node_id.partition("::")[0]
    return "spark" if "spark" in file else file


def _share_out(items: list[pytest.Item]) -> None:
    """The order in which several workers (`pytest -n 2`) take what there is.

    First all that starts a JVM for Spark, as it takes longest; then come the files with slow tests, then the
    largest: what begins last is to be short, or one worker waits for the other.
    """
    groups = [_group(item.nodeid) for item in items]
    weights = Counter[str]()
    for item, group in zip(items, groups, strict=True):
        weights[group] += SLOW_WEIGHT if item.get_closest_marker("slow") else 1
    order = sorted(range(len(items)), key=lambda n: (groups[n] != "spark", -weights[groups[n]], groups[n]))
    items[:] = [items[n] for n in order]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares the tests out by `_group`.

    xdist has marks for groups as well, but writes them into a field of the test that pytest 9 does not read:
    each test was a group of its own, and both workers started each file's server, and Spark.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


def postgres_programs() -> Path | None:
    """The directory of initdb and postgres, if any."""
    found = shutil.which("initdb")
    places = [Path(found)] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].resolve().parent if places else None


def odbc_driver() -> Path | None:
    """psqlODBC's entry among the installed drivers, if any."""
    found = Path("/etc/odbcinst.ini")
    return found if found.is_file() and "[PostgreSQL Unicode]" in found.read_text() else None


@pytest.fixture
def serve(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerProcess]]:
    """`serve("name.duckdb")` starts a real server on a file in tmp_path; all are stopped at the end."""
    started: list[ServerProcess] = []
    # Tests of the command itself start it as a user does.
    preloaded = request.path.stem not in ("test_command", "test_ends", "test_configuration", "test_entry")

    def start(name: str = "ducktail.duckdb", **arguments: Any) -> ServerProcess:
        started.append(ServerProcess(tmp_path / name, **{"preloaded": preloaded, **arguments}))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., ServerProcess]) -> ServerProcess:
    """A real server on a new database."""
    return serve()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark for all tests of a run: it takes the longest to start."""
    # Loopback, whatever the machine is called; the workers are this Python.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("java is not installed (make deps)")
    from ducktail.spark_connector.data_source import register

    home = tmp_path_factory.mktemp("spark")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.jars", str(JDBC_DRIVER) if JDBC_DRIVER.exists() else "")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.maxMetadataStringLength", "1000")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(home))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
