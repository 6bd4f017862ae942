"""The files of tests/slt: sqllogictest records, read and written back.

Records are parted by empty lines; `#` begins a comment line. Forms:

    statement ok
    statement count 3
    statement error (42P01) a regular expression for the message, detail and hint
    SQL ...

    query IT [nosort | rowsort | valuesort] [label]
    SQL ...
    ----
    1<TAB>one
    2<TAB><REGEX>:o.e

    params 1 'two' NULL     values for $1, $2, $3 of the next record (the simple protocol gets literals)
    connection b            the next record runs in session b
    skipif simple           the next record is left out there: in_process, simple or extended
    onlyif extended
    settings lock_timeout_ms=300     of the database; first in the file
    restart                 closes the database and opens it again; all sessions are new
    sleep 100 ms
    halt                    the rest of the file is left out

A row is a line, its values parted by tabs; NULL is NULL, the empty string is (empty), and tab,
line feed and backslash within a value are \\t, \\n and \\\\.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

WAYS = ("in_process", "simple", "extended")
SORTS = ("nosort", "rowsort", "valuesort")
STATEMENT = re.compile(
    r"statement (?:(?P<ok>ok)|count (?P<count>\d+)|error \((?P<sqlstate>\w{5})\)(?: (?P<message>.+))?)"
)
QUERY = re.compile(r"query (?P<types>[A-Z]+)(?: (?P<sort>nosort|rowsort|valuesort))?(?: (?P<label>\w+))?")
PARAMETER = re.compile(r"\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<null>NULL)|(?P<bare>[^\s']+))")
CONTROLS = ("params", "connection", "skipif", "onlyif", "settings", "restart", "sleep", "halt")


Parameter = str | int | Decimal | bool | None


class SltSyntaxError(Exception):
    """A line that is none of the forms above; the message begins with file and line."""


@dataclass(frozen=True, slots=True)
class Record:
    """A statement or a query with what it should answer; lines are counted from 0, `end` excluded."""

    start: int
    end: int
    sql: str
    connection: str
    parameters: tuple[Parameter, ...]
    ways: frozenset[str]
    types: str | None = None  # of a query
    sort: str = "nosort"
    label: str | None = None
    expected: tuple[str, ...] = ()
    count: int | None = None
    sqlstate: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """`settings`, `restart`, `sleep` or `halt`, with its words."""

    start: int
    kind: str
    words: tuple[str, ...]


def parse(path: Path) -> list[Record | Control]:
    """Read one file.

    Raises:
        SltSyntaxError: with the file and the line.
    """
    return list(_Reader(path, path.read_text().split("\n")).records())


class _Reader:
    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path, self._lines, self._at = path, lines, 0
        self._forget()

    def _forget(self) -> None:
        """What `params`, `connection`, `skipif` and `onlyif` said is for one record."""
        self._connection = "default"
        self._parameters: tuple[Parameter, ...] = ()
        self._ways = frozenset(WAYS)

    def records(self) -> Iterator[Record | Control]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            words = tuple(line.split())
            if not words or line.startswith("#"):
                self._at += 1
            elif words[0] in ("statement", "query"):
                yield self._record(line)
                self._forget()
            elif words[0] in CONTROLS:
                yield from self._control(words)
                self._at += 1
            else:
                raise self._error(f"unknown record {words[0]!r}")

    def _control(self, words: tuple[str, ...]) -> Iterator[Control]:
        match words:
            case ("params", *_):
                self._parameters = tuple(_parameters(self._lines[self._at].removeprefix("params")))
            case ("connection", name):
                self._connection = name
            case ("skipif", way) if way in WAYS:
                self._ways -= {way}
            case ("onlyif", way) if way in WAYS:
                self._ways &= {way}
            case ("settings" | "restart" | "halt", *_) | ("sleep", _, "ms"):
                yield Control(self._at, words[0], words[1:])
            case _:
                raise self._error(f"cannot read {' '.join(words)!r}")

    def _record(self, head: str) -> Record:
        start = self._at
        block = self._block()
        common: dict[str, Any] = {
            "start": start,
            "end": self._at,
            "connection": self._connection,
            "parameters": self._parameters,
            "ways": self._ways,
        }
        if match := STATEMENT.fullmatch(head):
            return Record(
                **common,
                sql="\n".join(block[1:]),
                count=int(match["count"]) if match["count"] else None,
                sqlstate=match["sqlstate"],
                message=match["message"],
            )
        if match := QUERY.fullmatch(head):
            cut = block.index("----") if "----" in block else len(block)
            return Record(
                **common,
                sql="\n".join(block[1:cut]),
                types=match["types"],
                sort=match["sort"] or "nosort",
                label=match["label"],
                expected=tuple(block[cut + 1 :]),
            )
        raise self._error(f"cannot read {head!r}", start)

    def _block(self) -> list[str]:
        """The lines up to the next empty one."""
        start = self._at
        while self._at < len(self._lines) and self._lines[self._at] != "":
            self._at += 1
        return self._lines[start : self._at]

    def _error(self, text: str, line: int | None = None) -> SltSyntaxError:
        return SltSyntaxError(f"{self._path}:{(self._at if line is None else line) + 1}: {text}")


def _parameters(text: str) -> Iterator[Parameter]:
    """`1 'it''s' NULL true 2.5` as 1, "it's", None, True, Decimal("2.5")."""
    for match in PARAMETER.finditer(text):
        bare = match["bare"]
        if bare is None:
            yield None if match["null"] else match["text"].replace("''", "'")
        elif bare in ("true", "false"):
            yield bare == "true"
        else:
            yield int(bare) if bare.lstrip("-").isdigit() else Decimal(bare)


def rewrite(path: Path, answers: dict[Record, list[str]]) -> None:
    """Write the file anew, with other answers for some records: a head line, and a query's rows."""
    lines = path.read_text().split("\n")
    for record in sorted(answers, key=lambda record: record.start, reverse=True):
        head, *rows = answers[record]
        sql = record.sql.split("\n")
        is_query = head.startswith("query")
        lines[record.start : record.end] = [head, *sql, "----", *rows] if is_query else [head, *sql]
    path.write_text("\n".join(lines))
