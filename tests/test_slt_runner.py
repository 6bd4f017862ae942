"""The runner of the .slt files itself: what it reads, what it lets pass, what it writes back."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
import slt_text
from slt_file import Control, Parameter, Record, SltSyntaxError, parse
from slt_run import Mismatch, run_file
from slt_ways import Answer

FILE = """\
# A comment.
settings lock_timeout_ms=300

statement ok
CREATE TABLE t (a INTEGER)

statement count 2
INSERT INTO t
VALUES (1), (2)

connection b
params 1 'it''s' NULL true 2.5
query IT rowsort label_1
SELECT
----
1\ttwo
NULL\t(empty)

skipif simple
statement error (42P01) does not .*exist
FROM nowhere

restart

sleep 1 ms

halt

statement ok
NEVER
"""


class Scripted:
    """A way that answers from a table."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, tuple[Parameter, ...]]] = []
        self.opened = 0

    def open(self, path: Path, settings: dict[str, int]) -> None:
        assert settings == {"lock_timeout_ms": 300}
        self.opened += 1

    def execute(self, connection: str, sql: str, parameters: Sequence[Parameter]) -> Answer:
        self.asked.append((connection, sql, tuple(parameters)))
        return self.answers[sql]

    def close(self) -> None:
        pass


ANSWERS = {
    "CREATE TABLE t (a INTEGER)": Answer(),
    "INSERT INTO t\nVALUES (1), (2)": Answer(count=2),
    "SELECT": Answer(2, ((None, ""), ("1", "two")), 2),
    "FROM nowhere": Answer(sqlstate="42P01", message="table nowhere does not\nHINT: exist"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.slt"
    path.write_text(FILE)
    return path


def test_records_are_read(file: Path) -> None:
    records = parse(file)
    assert [record.kind for record in records if isinstance(record, Control)] == [
        *("settings", "restart", "sleep", "halt")
    ]
    query = next(record for record in records if isinstance(record, Record) and record.types)
    assert (query.connection, query.parameters) == ("b", (1, "it's", None, True, Decimal("2.5")))
    assert query.expected == ("1\ttwo", "NULL\t(empty)")


def test_a_line_that_is_no_record_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bad.slt"
    path.write_text("statement ok\nSELECT 1\n\nstatment ok\nSELECT 1\n")
    with pytest.raises(SltSyntaxError, match=r"bad\.slt:4: unknown record 'statment'"):
        parse(path)


def test_a_right_file_passes(file: Path, tmp_path: Path) -> None:
    way = Scripted({**ANSWERS, "FROM nowhere": Answer(sqlstate="42P01", message="does not exist")})
    run_file(file, "extended", way, tmp_path / "x.duckdb")
    assert way.opened == 2
    assert way.asked[2][0] == "b"
    assert len(way.asked) == 4


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("CREATE TABLE t (a INTEGER)", Answer(sqlstate="42P07")),
        ("INSERT INTO t\nVALUES (1), (2)", Answer(count=1)),
        ("SELECT", Answer(2, (("1", "two"),), 1)),
        ("SELECT", Answer(1, (("1",), ("2",)), 1)),
        ("FROM nowhere", Answer(sqlstate="42P01", message="something else")),
        ("FROM nowhere", Answer(sqlstate="42704", message="does not exist")),
        ("FROM nowhere", Answer()),
    ],
)
def test_a_wrong_answer_fails(file: Path, tmp_path: Path, sql: str, answer: Answer) -> None:
    right = {**ANSWERS, "FROM nowhere": Answer(sqlstate="42P01", message="does not exist")}
    with pytest.raises(Mismatch):
        run_file(file, "extended", Scripted({**right, sql: answer}), tmp_path / "x.duckdb")


def test_rewriting_makes_the_file_right(file: Path, tmp_path: Path) -> None:
    answers = {
        "CREATE TABLE t (a INTEGER)": Answer(sqlstate="42P07", message="it (is) there"),
        "INSERT INTO t\nVALUES (1), (2)": Answer(count=5),
        "SELECT": Answer(1, (("a\tb",), ("c",)), 2),
        "FROM nowhere": Answer(1, (("1",),), 1),
    }
    run_file(file, "in_process", Scripted(answers), tmp_path / "x.duckdb", rewriting=True)
    run_file(file, "in_process", Scripted(answers), tmp_path / "x.duckdb")
    text = file.read_text()
    assert "statement error (42P07) it\\ \\(is\\)\\ there\nCREATE TABLE" in text
    assert "query T rowsort label_1\nSELECT\n----\na\\tb\nc\n" in text
    assert text.endswith("halt\n\nstatement ok\nNEVER\n")


def test_values_after_regex_are_matched_whole(tmp_path: Path) -> None:
    path = tmp_path / "regex.slt"
    path.write_text("settings lock_timeout_ms=300\n\nquery TT\nSELECT\n----\n<REGEX>:a+\tb\n")
    run_file(path, "simple", Scripted({"SELECT": Answer(2, (("aaa", "b"),), 1)}), tmp_path / "x")
    with pytest.raises(Mismatch):
        run_file(path, "simple", Scripted({"SELECT": Answer(2, (("aaab", "b"),), 1)}), tmp_path / "x")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((1e15, "1e+15"), (1e14, "100000000000000"), (1.5e300, "1.5e+300"), (1e-5, "1e-05")),
        *((0.1, "0.1"), (-0.0, "-0"), (float("nan"), "NaN"), (float("-inf"), "-Infinity")),
        *((True, "t"), (b"\x01", "\\x01"), ([1, None, "a b", ""], '{1,NULL,"a b",""}'), ([], "{}")),
    ],
)
def test_values_as_postgres_text(value: object, shown: str) -> None:
    assert slt_text.text(value) == shown
