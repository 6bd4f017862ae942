"""The judgement of `make peers`: outcomes are read, failures are compared with the list of known ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).with_name("peers")
sys.path.insert(0, str(PEERS))

from known import KNOWN, Known  # noqa: E402
from outcome import Outcomes  # noqa: E402


def test_every_known_failure_has_a_reason() -> None:
    """The list in the repository is read, and has no open question."""
    assert not [key for key, reason in Known.read(KNOWN).reasons.items() if reason.startswith("?")]


def test_a_reason_is_one_of_two(tmp_path: Path) -> None:
    """A line without an accepted reason is an error."""
    (tmp_path / "known.tsv").write_text("suite\ttest\treason\na\tb\tit is hard\n")
    with pytest.raises(ValueError, match=r"known\.tsv, line 2"):
        Known.read(tmp_path / "known.tsv")


def test_new_and_mended_tests_are_told() -> None:
    """A failure without a line is new; a line without a failure is over; `*` stands for many."""
    known = Known({("s", "a"): "DuckDB's meaning", ("s", "b*[x]"): "DuckDB's meaning", ("s", "c"): "? why"})
    assert known.compare("s", {"b1[x]": "", "c": "", "d": ""}) == (["c", "d"], ["a"])
    assert known.compare("t", {"a": ""}) == (["a"], [])


def test_the_first_failure_of_a_test_counts(tmp_path: Path) -> None:
    """A test with several lines has passed only if each has."""
    (tmp_path / "out").write_text("a\tpassed\na\tError: 1\na\tpassed\nb_postgresql+psycopg_15_0\tpassed\n")
    outcomes = Outcomes.read(tmp_path / "out")
    assert outcomes.of == {"a": "Error: 1", "b": "passed"} and outcomes.passed == {"b"}
