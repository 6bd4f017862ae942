"""Runs the records of a .slt file one way, and holds each answer against what the file says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from slt_file import Control, Record, parse, rewrite
from slt_ways import Answer, Row, Way
from transcripts import in_row_order

REGEX = "<REGEX>:"
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
# Of a file without settings: no pass of retention while it runs. On a slow machine one came between a BEGIN
# and its COMMIT, and recreated the views that the COMMIT recreates.
QUIET = {"retention_interval_ms": 3_600_000}


class Mismatch(AssertionError):
    """An answer that is not what the file says; the message shows both, with file and line."""


def run_file(path: Path, name: str, way: Way, database: Path, rewriting: bool = False) -> None:
    """Run one file.

    Args:
        name: the way's name, for skipif and onlyif.
        database: where its DuckDB file is made.
        rewriting: write what was answered into the file, where it differs, instead of failing.

    Raises:
        Mismatch: at the first record that answers otherwise.
    """
    __tracebackhide__ = True
    records = parse(path)
    opened = False
    labels: dict[str, tuple[Row, ...]] = {}
    settings = dict(QUIET)
    answers: dict[Record, list[str]] = {}
    try:
        for record in records:
            if isinstance(record, Control):
                if record.kind == "halt":
                    break
                if record.kind == "settings":
                    settings = {key: int(value) for key, value in (word.split("=") for word in record.words)}
                if record.kind == "sleep":
                    time.sleep(int(record.words[0]) / 1000)
                if record.kind == "restart":
                    way.close()
                    way.open(database, settings)
                continue
            if name not in record.ways:
                continue
            if not opened:
                way.open(database, settings)
                opened = True
            answer = way.execute(record.connection, record.sql, record.parameters)
            difference = compare(record, answer)
            if difference is not None and rewriting:
                answers[record] = said(record, answer)
            elif difference is not None:
                raise Mismatch(f"{path}:{record.start + 1} [{name}]\n{record.sql}\n{difference}")
            if record.label is not None:
                first = labels.setdefault(record.label, answer.rows)
                if first != answer.rows:
                    raise Mismatch(f"{path}:{record.start + 1} [{name}]: label {record.label} differs")
    finally:
        if opened:
            way.close()
    if answers:
        rewrite(path, answers)


def transcript_of(path: Path, name: str, answers: Iterable[str]) -> tuple[list[str], list[str | None]]:
    """The statements of a file, and the answer to each that runs this way; None for the others."""
    left = iter(answers)
    read = takewhile(lambda r: not (isinstance(r, Control) and r.kind == "halt"), parse(path))
    found = [record for record in read if isinstance(record, Record)]
    heard = [next(left) if name in record.ways else None for record in found]
    for at, (record, messages) in enumerate(zip(found, heard, strict=True)):
        if messages is not None and record.sort != "nosort":
            heard[at] = in_row_order(messages)
    return [record.sql for record in found], heard


def compare(record: Record, answer: Answer) -> str | None:
    """None where the answer is what the record says, else the difference to show."""
    if record.sqlstate is not None:
        if answer.sqlstate != record.sqlstate:
            return f"expected error {record.sqlstate}, {_shown(answer)}"
        if record.message is not None and not re.search(record.message, answer.message):
            return f"expected a message like {record.message!r}, {_shown(answer)}"
        return None
    if answer.sqlstate is not None:
        return _shown(answer)
    if record.types is None:
        return None if record.count in (None, answer.count) else f"expected {record.count}, {_shown(answer)}"
    if answer.columns != len(record.types):
        return f"expected {len(record.types)} columns, {_shown(answer)}"
    rows = ordered(record, answer.rows)
    if len(rows) == len(record.expected) and all(map(matches, record.expected, rows)):
        return None
    return "expected:\n" + "\n".join(record.expected) + "\ngot:\n" + "\n".join(rows)


def ordered(record: Record, rows: tuple[Row, ...]) -> list[str]:
    """The rows as lines, in the order that the record asks for."""
    if record.sort == "valuesort":
        return sorted(shown for row in rows for shown in map(show, row))
    lines = ["\t".join(map(show, row)) for row in rows]
    return sorted(lines) if record.sort == "rowsort" else lines


def show(value: str | None) -> str:
    """One value as it stands in a file."""
    if value is None:
        return "NULL"
    return "".join(ESCAPES.get(letter, letter) for letter in value) if value else "(empty)"


def matches(expected: str, row: str) -> bool:
    """Whether a row is what a line says; a value after <REGEX>: is matched whole."""
    if REGEX not in expected:
        return expected == row
    wanted, values = expected.split("\t"), row.split("\t")
    return len(wanted) == len(values) and all(
        re.fullmatch(want.removeprefix(REGEX), value) if want.startswith(REGEX) else want == value
        for want, value in zip(wanted, values, strict=True)
    )


def said(record: Record, answer: Answer) -> list[str]:
    """The lines that say what was answered, for --slt-rewrite: a head, then a query's rows."""
    if answer.sqlstate is not None:
        return [f"statement error ({answer.sqlstate}) {re.escape(answer.message.splitlines()[0])}"]
    if answer.columns is None:
        return ["statement ok" if record.count is None else f"statement count {answer.count}"]
    types = record.types if record.types and len(record.types) == answer.columns else "T" * answer.columns
    head = " ".join(["query", types, *([record.sort] if record.sort != "nosort" else [])])
    return [f"{head} {record.label}" if record.label else head, *ordered(record, answer.rows)]


def _shown(answer: Answer) -> str:
    if answer.sqlstate is not None:
        return f"got error {answer.sqlstate}: {answer.message}"
    return f"got {answer.count} rows affected" if answer.columns is None else f"got {list(answer.rows)}"
