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
        node: it wants build/peers/node.
        limit_s: for each command, after which what it has written counts.
    """

    name: str
    title: str
    bar: int
    commands: Callable[[Server, Path], Iterator[Command]]
    prepare: Callable[[Server], None] = _nothing
    source: bool = False
    requirements: str = ""
    node: bool = False
    programs: tuple[str, ...] = ()
    limit_s: int = 1800


def _pytest(results: Path, *words: str) -> list[str]:
    own = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout",
        str(TEST_LIMIT_S),
        "--tb=short",
        f"--junitxml={results}",
    ]
    return [str(packages.PYTHON), "-m", "pytest", *own, *words]


def _sqlalchemy(server: Server, results: Path) -> Iterator[Command]:
    where = packages.source("sqlalchemy")
    options = "addopts=-p no:logging --import-mode=importlib --maxfail=100000"
    words = ["-p", "sqlalchemy_plugin", "-o", options, "test/dialect/test_suite.py"]
    url = f"postgresql+psycopg://{server.url}"
    environment = server.environment(PYTHONPATH=str(HERE))
    yield Command([*_pytest(results, *words), "--dburi", url], where, environment)


def _sqlalchemy_schemas(server: Server) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA test_schema")
        connection.execute("CREATE SCHEMA test_schema_2")


def _asyncpg(server: Server, results: Path) -> Iterator[Command]:
    # Its folder also has the package without its compiled parts: the tests are run from one that has not.
    where = packages.tests_only("asyncpg")
    environment = server.environment()
    yield Command(_pytest(results, "--tb=native", "tests"), where, environment)


def _psycopg2(server: Server, results: Path) -> Iterator[Command]:
    environment = server.environment(PSYCOPG2_TESTDB=server.database)
    yield Command(_pytest(results, "tests"), packages.tests_only("psycopg2"), environment)


def _script(name: str, *words: str) -> Callable[[Server, Path], Iterator[Command]]:
    def commands(server: Server, results: Path) -> Iterator[Command]:
        yield Command(
            [str(packages.PYTHON), str(HERE / name), str(results), *words], HERE, server.environment()
        )

    return commands


SUITES = {
    suite.name: suite
    for suite in [
        Suite(
            "sqlalchemy",
            "SQLAlchemy 2.1's dialect suite (psycopg)",
            95,
            _sqlalchemy,
            _sqlalchemy_schemas,
            source=True,
        ),
        Suite("django", "Django 5.2: migrate, admin, 34 ORM calls", 100, _script("django_calls.py")),
        Suite("asyncpg", "asyncpg 0.32's tests", 80, _asyncpg, source=True),
        Suite("psycopg2", "psycopg2 2.9's tests", 80, _psycopg2, source=True),
    ]
}
