"""What all tests may use: a real server process, and psql."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from amounts import SEED_VARIABLE, SOAK, run_seed
from hypothesis import HealthCheck, settings
from server_process import ServerProcess
from spark_classes import java_options

# Where `make deps` puts the libraries of the JavaScript clients.
NODE_MODULES = Path(__file__).parents[1] / "build" / "node" / "node_modules"
HERE = Path(__file__).parent
# A file that takes longer has a line: its path and its seconds, two workers on two cores.
DURATIONS = HERE / "durations.tsv"
SHORT_S = 2.0
# A soak's tests have so many times the time.
SOAK_TIMES = 20
# A test that takes the fixture `spark`, or a fixture of its file that does.
ASKS_SPARK = re.compile(r"\bspark: Any\b")
# sqlglot with the modules of `sqlglot[c]`, put before the one in .venv where a test wants it.
COMPILED_SQLGLOT = Path(__file__).parents[1] / "build" / "sqlglotc"
# pgjdbc, as Debian installs it.
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slt-rewrite", action="store_true", help="write what .slt records answer into them")
    parser.addoption("--transcripts-rewrite", action="store_true", help="write tests/transcripts anew")
    parser.addoption("--transcripts", metavar="DIRECTORY", help="write the server's messages there")
    parser.addoption("--durations-rewrite", action="store_true", help="write tests/durations.tsv anew")


def pytest_configure(config: pytest.Config) -> None:
    """The seed of this run, before any worker asks for it; no example of a property is bounded by time."""
    run_seed()
    slow = [HealthCheck.too_slow]
    settings.register_profile("ducktail", deadline=None, suppress_health_check=slow)
    settings.load_profile("ducktail")
    if config.getoption("--durations-rewrite") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())


def pytest_report_header() -> str:
    return f"ducktail: {'a soak' if SOAK else 'the gate'}, {SEED_VARIABLE}={run_seed()}"


def pytest_collection_finish() -> None:
    """What stands now stays: the collector of garbage does not look through it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that want a system program are left out, and say so, where it is missing."""
    if SOAK:
        for item in items:
            limit = item.get_closest_marker("timeout")
            seconds = limit.args[0] if limit else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(SOAK_TIMES * seconds), append=False)
    if hasattr(config, "workerinput"):
        _share_out(items)
    programs = {
        "psql": shutil.which("psql"),
        "postgres": postgres_programs(),
        "node": shutil.which("node") and NODE_MODULES.is_dir(),
        "odbc": odbc_driver(),
        "chromium": shutil.which("chromium") and (NODE_MODULES / "axe-core").is_dir(),
        "prometheus": shutil.which("prometheus") and shutil.which("promtool"),
        "systemd": shutil.which("systemd-analyze"),
        "container": shutil.which("buildah") and shutil.which("mmdebstrap") and os.geteuid() == 0,
        "sqlglotc": COMPILED_SQLGLOT.is_dir(),
        "jdbc": shutil.which("javac") and JDBC_DRIVER.exists(),
    }
    for item in items:
        for marker, found in programs.items():
            if item.get_closest_marker(marker) and not found:
                item.add_marker(pytest.mark.skip(reason=f"{marker} is not installed (make deps)"))


@cache
def _group(file: str) -> str:
    """The tests that one worker runs: a file, whose tests share a server, or all that share Spark."""
    return "spark" if ASKS_SPARK.search((HERE / file).read_text()) else file


def _share_out(items: list[pytest.Item]) -> None:
    """The order in which several workers (`pytest -n 2`) take the groups.

    The longest first, by tests/durations.tsv: a group that begins last is to be short, or one worker waits
    for the other.
    """
    files = [item.nodeid.partition("::")[0] for item in items]
    groups = [_group(file) for file in files]
    known = dict(line.split("\t") for line in DURATIONS.read_text().splitlines())
    weights = Counter[str]()
    for file, group in set(zip(files, groups, strict=True)):
        weights[group] += float(known.get(file, 0))
    order = sorted(range(len(items)), key=lambda n: (-weights[groups[n]], groups[n]))
    items[:] = [items[n] for n in order]


class _Durations:
    """The seconds of each file, for `_share_out`."""

    def __init__(self) -> None:
        self._seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        lines = sorted(f"{file}\t{s:.0f}\n" for file, s in self._seconds.items() if s >= SHORT_S)
        DURATIONS.write_text("".join(lines))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares the tests out by `_group`.

    xdist has marks for groups as well, but writes them into a field of the test that pytest 9 does not read:
    each test was a group of its own, and both workers started each file's server, and Spark.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0])

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
    preloaded = request.path.stem not in ("test_command", "test_configuration", "test_entry")

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
        .config("spark.driver.extraJavaOptions", java_options())
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
