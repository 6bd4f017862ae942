"""Outcomes of a suite's tests: a file with a line for each, of its name and `passed` or what went wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PASSED = "passed"
# SQLAlchemy puts the server's version into its tests' names; ports and addresses differ from run to run.
MASKED = re.compile(r"_postgresql\+\w+?_15_\d+| at 0x[0-9a-f]+|(?<=port )\d+")
MESSAGE_MAX = 160


@dataclass(frozen=True)
class Outcomes:
    """The outcome of each test: PASSED, or why it did not pass."""

    of: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        """Read a file of outcomes; a suite that wrote none has none."""
        found: dict[str, str] = {}
        for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
            test, _, outcome = MASKED.sub("", line).partition("\t")
            # A test that also fails at its end, and a test of subtests, have several lines.
            if found.get(test, PASSED) == PASSED:
                found[test] = outcome[:MESSAGE_MAX]
        return cls(found)

    @property
    def passed(self) -> set[str]:
        """The tests that passed."""
        return {test for test, outcome in self.of.items() if outcome == PASSED}

    def message(self, test: str) -> str:
        """Why a test did not pass."""
        return self.of.get(test, "did not run")
