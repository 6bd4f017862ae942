"""The suites: what each wants, its commands, and the share that ducktail must pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import packages
import psycopg

HERE = Path(__file__).resolve().parent
# For one test; a suite has its own limit.
TEST_LIMIT_S = 60


@dataclass(frozen=True)
class Server:
    """Where a suite connects: `kind` is postgres or ducktail."""

    kind: str
    host: str
    port: int
    database: str
    user: str = "postgres"

    def environment(self, **more: str) -> dict[str, str]:
        """The process environment with libpq's variables for this server."""
        own = {
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": self.user,
            "PGDATABASE": self.database,
        }
        return {**os.environ, **own, "PEERS_SERVER": self.kind, **more}

    @property
    def conninfo(self) -> str:
        """The server as libpq's keywords."""
        return f"host={self.host} port={self.port} user={self.user} dbname={self.database}"

    @property
    def url(self) -> str:
        """The server as an URL without its scheme."""
        return f"{self.user}@{self.host}:{self.port}/{self.database}"


@dataclass(frozen=True)
class Command:
    """A process to run."""

    words: list[str]
    folder: Path
    environment: Mapping[str, str]


def _nothing(server: Server) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Suite:
    """One row of the table.

    Args:
        bar: percent of PostgreSQL's passes that ducktail must reach.
        commands: the processes to run, given the server and the file for the outcomes.
        source: its tests are in a source package (sources.txt).
        requirements: the file of an environment of its own, named as the suite.
        node: the folder with the package.json of its npm packages.
        limit_s: for each command, after which what it has written counts.
    """

    name: str
    title: str
    bar: int
    commands: Callable[[Server, Path], Iterator[Command]]
    prepare: Callable[[Server], None] = _nothing
    source: bool = False
    requirements: str = ""
    node: str = ""
    programs: tuple[str, ...] = ()
    limit_s: int = 3600


def _pytest(server: Server, results: Path, folder: Path, *words: str, **environment: str) -> Command:
    """Pytest over a suite in its own folder, with the settings of that folder and not with ours."""
    own = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "outcome_plugin",
        "--timeout",
        str(TEST_LIMIT_S),
        "--tb=native",
    ]
    named = server.environment(PYTHONPATH=str(HERE), PEERS_RESULTS=str(results), **environment)
    return Command([str(packages.PYTHON), "-m", "pytest", *own, *words], folder, named)


def _sqlalchemy(server: Server, results: Path) -> Iterator[Command]:
    where = packages.source("sqlalchemy")
    options = "addopts=-p no:logging --import-mode=importlib --maxfail=100000"
    words = ["-p", "sqlalchemy_plugin", "-o", options, "test/dialect/test_suite.py"]
    yield _pytest(server, results, where, *words, "--dburi", f"postgresql+psycopg://{server.url}")


def _sqlalchemy_schemas(server: Server) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA test_schema")
        connection.execute("CREATE SCHEMA test_schema_2")


def _asyncpg(server: Server, results: Path) -> Iterator[Command]:
    yield _pytest(server, results, packages.tests_only("asyncpg"), "tests")


def _psycopg2(server: Server, results: Path) -> Iterator[Command]:
    where = packages.tests_only("psycopg2")
    yield _pytest(server, results, where, "tests", PSYCOPG2_TESTDB=server.database)


def _django(server: Server, results: Path) -> Iterator[Command]:
    """Django's tests, a process for each line of applications, so that a failure cannot spread too far."""
    words = ["runtests.py", "--settings=django_tests_settings", "--keepdb", "--parallel=1", "--noinput"]
    named = server.environment(PYTHONPATH=str(HERE), PEERS_RESULTS=str(results))
    for line in (HERE / "django_apps.txt").read_text().splitlines():
        if not line.startswith("#"):
            called = [str(packages.PYTHON), *words, *line.split()]
            yield Command(called, packages.source("django") / "tests", named)


def _script(
    name: str, environment: str = "venv", *words: Path
) -> Callable[[Server, Path], Iterator[Command]]:
    """A script of ours, in one of the environments of build/peers."""
    python = packages.BUILD / environment / "bin" / "python"

    def commands(server: Server, results: Path) -> Iterator[Command]:
        called = [str(word) for word in (python, HERE / name, results, *words)]
        yield Command(called, HERE, server.environment())

    return commands


def _mappers(server: Server, results: Path) -> Iterator[Command]:
    python = packages.BUILD / "mappers" / "bin" / "python"
    words = [python, HERE / "mapper_steps.py", results, packages.modules("mappers"), server.kind]
    yield Command([str(word) for word in words], HERE, server.environment())


def _jdbc(server: Server, results: Path) -> Iterator[Command]:
    words = ["java", "-cp", str(JDBC), str(HERE / "java" / "Introspection.java"), str(results)]
    yield Command(words, HERE, server.environment())


JDBC = Path("/usr/share/java/postgresql.jar")
NODE_POSTGRES = packages.modules("node") / "pg"

SUITES = {
    suite.name: suite
    for suite in [
        Suite("django", "Django 5.2: migrate, admin, ORM calls", 100, _script("django_calls.py")),
        Suite(
            "django_tests",
            "Django 5.2: its tests of the database",
            85,
            _django,
            source=True,
            limit_s=600,
        ),
        Suite(
            "programs", "pg_dump, psql and pgbench", 90, _script("postgres_programs.py"), programs=("psql",)
        ),
        Suite("dbt", "dbt 1.9", 100, _script("dbt_project.py", "dbt"), requirements="requirements-dbt.txt"),
        Suite(
            "superset",
            "Superset 6.0: a connection's pages",
            90,
            _script("superset_calls.py", "superset"),
            requirements="requirements-superset.txt",
        ),
        Suite(
            "node",
            "node-postgres 4.5: integration files",
            90,
            _script("node_files.py", "venv", NODE_POSTGRES),
            node="node",
            programs=("node", "npm"),
        ),
        Suite(
            "mappers",
            "Object mappers: Alembic, Drizzle, Knex ...",
            90,
            _mappers,
            requirements="requirements-mappers.txt",
            node="mappers",
            programs=("node", "npm"),
        ),
        Suite("jdbc", "pgjdbc: Metabase's introspection", 100, _jdbc, programs=("java", str(JDBC))),
        # A fifth of both suites is about large objects, two-phase commit, SERIALIZABLE, composite, range and
        # network types, domains and PL/pgSQL, which DuckDB does not have.
        Suite("psycopg2", "psycopg2 2.9: its tests", 75, _psycopg2, source=True),
        Suite("asyncpg", "asyncpg 0.32: its tests", 75, _asyncpg, source=True),
        Suite(
            "sqlalchemy",
            "SQLAlchemy 2.1: dialect suite (psycopg)",
            95,
            _sqlalchemy,
            _sqlalchemy_schemas,
            source=True,
        ),
    ]
}
