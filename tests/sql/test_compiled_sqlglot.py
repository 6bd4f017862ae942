"""The language on sqlglot's compiled build: `sqlglot[c]`, whose classes nobody can extend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Before what is installed: this process has the interpreted build.
COMPILED = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "sqlglotc")}
CORPUS = ["tests/sql/test_dialect.py", "tests/sql/test_shape.py", "tests/sql/test_read_requests.py"]
READS = "in_process and (groups/read or groups/transactions or errors/reads or errors/syntax or streams/read)"

pytestmark = pytest.mark.sqlglotc


def run(*command: str) -> str:
    """What a program says that runs on the compiled build."""
    ran = subprocess.run(command, cwd=ROOT, env=COMPILED, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_that_it_is_compiled() -> None:
    told = run(sys.executable, "-c", "import sqlglot.parser as parser; print(parser.__file__)")
    assert told.strip().endswith(".so")


def test_the_corpus_of_the_language() -> None:
    pytest_ = str(Path(sys.executable).with_name("pytest"))
    options = ["--rootdir=tests", "-q", "-p", "no:cacheprovider"]
    assert " passed" in run(pytest_, *options, *CORPUS)
    assert " passed" in run(pytest_, *options, "tests/test_slt.py", "-k", READS)
