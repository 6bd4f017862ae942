"""The tests that PostgreSQL passes and ducktail does not, each with its reason: known.tsv."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

KNOWN = Path(__file__).with_name("known.tsv")
# The reason of a test that no one has looked at; a run fails on it.
UNEXPLAINED = "?"
REASON = re.compile(r"DuckDB's meaning|not built, because .+|the test's own: .+")


@dataclass
class Known:
    """Suite and test (`*` stands for any text) with the reason."""

    reasons: dict[tuple[str, str], str]

    @classmethod
    def read(cls, path: Path) -> Known:
        """Read the list.

        Raises:
            ValueError: a line has no accepted reason.
        """
        reasons = {}
        for number, line in enumerate(path.read_text().splitlines()[1:], 2):
            suite, test, reason = line.split("\t")
            if not REASON.match(reason) and not reason.startswith(UNEXPLAINED):
                raise ValueError(
                    f"{path.name}, line {number}: the reason {reason!r} is none of {REASON.pattern}"
                )
            reasons[suite, test] = reason
        return cls(reasons)

    def write(self, path: Path) -> None:
        """Write the list, sorted."""
        lines = ["\t".join([*key, reason]) for key, reason in sorted(self.reasons.items())]
        path.write_text("\n".join(["suite\ttest\treason", *lines]) + "\n")

    def add(self, suite: str, failed: dict[str, str]) -> None:
        """Add the failures that are new, with the error as the question to answer."""
        for test in self.compare(suite, failed)[0]:
            self.reasons.setdefault((suite, test), f"{UNEXPLAINED} {failed[test]}")

    def compare(self, suite: str, failed: dict[str, str]) -> tuple[list[str], list[str]]:
        """Compare with a run.

        Returns:
            the failures without a reason, and the lines that no failure matches.
        """
        mine = {test: reason for (of, test), reason in self.reasons.items() if of == suite}
        explained = {test for test, reason in mine.items() if not reason.startswith(UNEXPLAINED)}
        patterns = [test for test in explained if "*" in test]
        new = [
            test
            for test in sorted(failed)
            if test not in explained and not any(_matches(test, pattern) for pattern in patterns)
        ]
        over = [
            test
            for test in sorted(mine)
            if test not in failed and not ("*" in test and any(_matches(name, test) for name in failed))
        ]
        return new, over


def _matches(test: str, pattern: str) -> bool:
    # Brackets are part of names such as test_literal[one].
    return fnmatchcase(test, pattern.replace("[", "[[]"))
