"""A pytest plugin: writes each test's outcome as soon as it is known, to the file in $PEERS_RESULTS.

A run that is ended by its limit, or by a crash, keeps the outcomes so far.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

# The line of a traceback that names the error, with and without pytest's E.
ERROR = re.compile(
    r"^(?:E\s+)?((?:[\w.]*\.)?\w*(?:Error|Exception|errors\.\w+|Failed|Timeout)\b.*)$", re.MULTILINE
)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a line for a test that has run, for each of its failures, and for a test that was skipped."""
    if report.when == "call" or not report.passed:
        outcome = _error(report.longreprtext) if report.failed else report.outcome
        with Path(os.environ["PEERS_RESULTS"]).open("a") as out:
            out.write(f"{report.nodeid}\t{' '.join(outcome.split())}\n")


def _error(text: str) -> str:
    errors = ERROR.findall(text)
    of_server = [error for error in errors if "psycopg" in error or "asyncpg.exceptions" in error]
    return of_server[-1] if of_server else errors[-1] if errors else text.strip().partition("\n")[0]
