"""Golden transcripts: the bytes that the server sends for each statement, and a short form of them to keep.

libpq's own trace of a connection (PQtrace) is cut at each Query and Parse. tests/transcripts has a file for
each .slt file and for each client's queries: a line a statement, with the digest of its answer by each way,
and the statement's beginning. A digest is

    12 hexadecimal digits   the first of the SHA-256 of the server's messages, in libpq's text of them
    *                       the bytes differ from run to run (a time, an id, an order nobody asked for)
    -                       the statement does not run this way

`--transcripts-rewrite` writes them: each statement is answered twice, and what differs becomes `*`, as
does what was `*` before. `--transcripts DIRECTORY` writes the messages themselves, to compare two commits.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from psycopg import pq

GOLDEN = Path(__file__).parents[1] / "transcripts"
RECORDINGS = 2
VARIES, ABSENT = "*", "-"
BEGINNING_MAX = 72
STATEMENT = re.compile(r"^F\t\d+\t(?:Query|Parse)\t", re.MULTILINE)
# The server's messages: a client's text may go on over several lines.
SENT = re.compile(r"^B\t.*$", re.MULTILINE)
DATA_ROW = re.compile(r"B\t\d+\tDataRow\t")


class Trace:
    """What is said on one connection from now on."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._connection = connection
        self._file = os.memfd_create("transcript")
        connection.trace(self._file)
        connection.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)

    def end(self) -> list[str]:
        """The server's messages for each statement so far, a line a message."""
        self._connection.untrace()
        with open(self._file, "rb") as file:
            file.seek(0)
            text = file.read().decode(errors="backslashreplace")
        return ["\n".join(SENT.findall(part)) for part in STATEMENT.split(text)[1:]]


def digest(messages: str) -> str:
    """The short form of an answer."""
    return hashlib.sha256(messages.encode()).hexdigest()[:12]


def in_row_order(messages: str) -> str:
    """The messages, with the DataRows sorted: for a statement that asks for no order."""
    lines = messages.split("\n")
    rows = iter(sorted(line for line in lines if DATA_ROW.match(line)))
    return "\n".join(next(rows) if DATA_ROW.match(line) else line for line in lines)


class Transcript:
    """The golden file of one file of statements.

    Args:
        name: its path below tests/transcripts, without a suffix.
        ways: its columns.
        statements: the texts, in the file's order.
    """

    def __init__(self, name: str, ways: Sequence[str], statements: Sequence[str]) -> None:
        self._name, self._ways, self._statements = name, ways, statements
        self._path = GOLDEN / f"{name}.tsv"

    def keep(self, way: str, recordings: Sequence[Sequence[str | None]], config: pytest.Config) -> None:
        """Check the answers, rewrite the golden file or write the messages, as the run is told.

        Args:
            recordings: of each server, the answers to all statements; None for one that was not sent.

        Raises:
            AssertionError: with the first statement that is answered otherwise, and its messages.
        """
        directory = config.getoption("--transcripts")
        if directory is not None:
            self._write(Path(directory), way, recordings[0])
        elif config.getoption("--transcripts-rewrite"):
            self._rewrite(way, recordings)
        else:
            self._check(way, recordings[0])

    def _check(self, way: str, answers: Sequence[str | None]) -> None:
        kept = self._read()
        wanted = [_beginning(statement) for statement in self._statements]
        again = f"tests/transcripts/{self._name}.tsv is of other statements: --transcripts-rewrite"
        assert [line[-1] for line in kept] == wanted, again
        place = self._ways.index(way)
        for line, answer, statement in zip(kept, answers, self._statements, strict=True):
            found = ABSENT if answer is None else digest(answer)
            if line[place] not in (VARIES, found):
                raise AssertionError(f"{self._name} [{way}]: other bytes for\n{statement}\n{answer}")

    def _rewrite(self, way: str, recordings: Sequence[Sequence[str | None]]) -> None:
        kept = self._read()
        beginnings = [_beginning(statement) for statement in self._statements]
        if [line[-1] for line in kept] != beginnings:
            known = {line[-1]: line for line in kept}
            empty = [ABSENT] * len(self._ways)
            kept = [list(known.get(beginning, [*empty, beginning])) for beginning in beginnings]
        place = self._ways.index(way)
        for line, answers in zip(kept, zip(*recordings, strict=True), strict=True):
            found = {ABSENT if answer is None else digest(answer) for answer in answers}
            line[place] = VARIES if len(found) > 1 or line[place] == VARIES else found.pop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("".join("\t".join(line) + "\n" for line in kept))

    def _write(self, directory: Path, way: str, answers: Sequence[str | None]) -> None:
        path = directory / f"{self._name}.{way}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = zip(self._statements, answers, strict=True)
        path.write_text("\n\n".join(f"{statement}\n{answer}" for statement, answer in parts) + "\n")

    def _read(self) -> list[list[str]]:
        if not self._path.exists():
            return []
        return [line.split("\t") for line in self._path.read_text().splitlines()]


def _beginning(statement: str) -> str:
    return " ".join(statement.split())[:BEGINNING_MAX]
