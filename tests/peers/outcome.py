"""Outcomes of a suite's tests, from JUnit's XML or from lines of name, outcome and message."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

PASSED = "passed"
# SQLAlchemy puts the server's version into its tests' names; addresses of objects are never the same.
MASKED = re.compile(r"_postgresql\+\w+?_15_\d+| at 0x[0-9a-f]+|(?<=port )\d+")
ERROR = re.compile(
    r"^(?:E\s+)?((?:[\w.]*\.)?\w*(?:Error|Exception|errors\.\w+|Failed|Timeout)\b.*)$", re.MULTILINE
)
MESSAGE_MAX = 160


@dataclass(frozen=True)
class Outcomes:
    """The outcome of each test: PASSED, or why it did not pass."""

    of: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        """Read a file of results; a suite that wrote none has no outcomes."""
        if not path.exists():
            return cls({})
        text = path.read_text(errors="replace")
        return cls(_xml(text) if text.startswith("<") else _lines(text))

    @property
    def passed(self) -> set[str]:
        """The tests that passed."""
        return {test for test, outcome in self.of.items() if outcome == PASSED}

    def message(self, test: str) -> str:
        """Why a test did not pass."""
        return self.of.get(test, "did not run")


def _lines(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        test, _, outcome = line.partition("\t")
        found[test] = _short(outcome)
    return found


def _xml(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        test = MASKED.sub("", f"{case.get('classname')}::{case.get('name')}")
        outcome = PASSED
        for child in case:
            if child.tag == "skipped":
                outcome = "skipped"
            elif child.tag in ("failure", "error"):
                outcome = _last_error(f"{child.get('message') or ''}\n{child.text or ''}")
        # A test with an error at its end is listed twice; subtests are listed beside their test.
        if found.get(test, PASSED) == PASSED:
            found[test] = outcome
    return found


def _last_error(text: str) -> str:
    errors = ERROR.findall(text)
    of_server = [error for error in errors if "psycopg" in error or "asyncpg.exceptions" in error]
    chosen = of_server[-1] if of_server else errors[-1] if errors else text.strip().partition("\n")[0]
    return _short(chosen)


def _short(text: str) -> str:
    return " ".join(MASKED.sub("", text).split())[:MESSAGE_MAX]
