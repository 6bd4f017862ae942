"""A share of SQLAlchemy's own suite, which its package contains: each test's outcome is the one of the list.

`make peers` runs the whole suite, also on PostgreSQL. A test that passes now, and one that no longer does,
changes sqlalchemy_suite.tsv beside this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
from server_process import ServerProcess

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "sqlalchemy_suite.tsv"
PEERS = HERE.parent / "peers"
PYTEST = Path(sys.executable).with_name("pytest")
SKIPPED = "skipped"

# Some of each kind, quick ones: the time of the gate is bounded.
CLASSES = (
    "ArrayTest", "CompoundSelectTest", "DateTimeTest", "FetchLimitOffsetTest", "IdentityColumnTest",
    "InsertBehaviorTest", "JoinTest", "LongNameBlowoutTest", "RowCountTest", "SequenceTest",
    "ServerSideCursorsTest", "SimpleUpdateDeleteTest", "UuidTest",
)  # fmt: skip

SETTINGS = """
[tool:pytest]
addopts = -p no:logging
[sqla_testing]
requirement_cls = sqlalchemy_requirements:Requirements
profile_file = profiles.txt
[db]
default = sqlite://
"""


def test_the_outcomes_are_those_of_the_list(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text(SETTINGS)
    (tmp_path / "suite.py").write_text("from sqlalchemy.testing.suite import *\n")
    results = tmp_path / "results"
    with ServerProcess(tmp_path / "postgres.duckdb") as server:
        where = f"{server.host}:{server.port}/postgres"
        with psycopg.connect(f"postgresql://postgres@{where}", autocommit=True) as connection:
            connection.execute("CREATE SCHEMA test_schema")
        words = ["-q", "--maxfail=1000", "--tb=native", "-k", " or ".join(CLASSES), "suite.py"]
        for plugin in ("no:cacheprovider", "sqlalchemy.testing.plugin.pytestplugin", *PLUGINS):
            words += ["-p", plugin]
        words += ["--dburi", f"postgresql+psycopg://postgres@{where}"]
        environment = {**os.environ, "PYTHONPATH": str(PEERS), "PEERS_RESULTS": str(results)}
        run = subprocess.run(
            [PYTEST, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert results.exists(), run.stdout + run.stderr
    found = _outcomes(results.read_text())
    expected = dict(line.split("\t") for line in EXPECTED.read_text().splitlines())
    (tmp_path / "found.tsv").write_text("".join(f"{test}\t{found[test]}\n" for test in sorted(found)))
    different = [
        f"{test}: {expected.get(test, SKIPPED)} in the list, now {found.get(test, SKIPPED)}"
        for test in sorted({*found, *expected})
        if found.get(test) != expected.get(test)
    ]
    assert not different, "\n".join([*different, f"all outcomes: {tmp_path / 'found.tsv'}"])


PLUGINS = ("outcome_plugin", "sqlalchemy_plugin")


def _outcomes(text: str) -> dict[str, str]:
    """Test -> passed, or the class of the error; without the tests that were skipped."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        test, _, outcome = line.partition("\t")
        # SQLAlchemy adds the database and its version to the names of classes.
        name = "::".join(part.partition("_postgresql+")[0] for part in test.split("::")[1:])
        if outcome != SKIPPED and found.get(name, "passed") == "passed":
            found[name] = outcome.partition(":")[0]
    return found
