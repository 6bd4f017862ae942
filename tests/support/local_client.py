"""A session of this process, and what tests ask of it: rows, errors, a stream folded to its table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.settings import Settings
from ducktail.engine.waiting import drive
from ducktail.sql.session import Session

Row = tuple[Any, ...]


class Client:
    """One session; SQL in, rows out."""

    def __init__(self, database: Database, *, wire: bool = False, **settings: str) -> None:
        self.session = Session(database, settings=settings, wire=wire)
        self.tag: str | None = None

    def __call__(self, text: str, *parameters: object) -> list[Row]:
        """Run one statement and take all its rows."""
        statement = drive(self.session.parse(text))
        result = drive(self.session.execute(statement, parameters))
        rows: list[Row] = []
        while (batch := result.fetch(None)) is not None:
            rows += [tuple(row.values()) for row in batch.record_batch().to_pylist()]
        self.tag = result.tag
        return rows

    def copy(self, text: str, pieces: Iterable[bytes]) -> None:
        """Run a COPY FROM STDIN as a client of the wire does, which sends its rows in these pieces."""
        statement = drive(self.session.parse(text))
        try:
            begun = drive(self.session.execute(statement)).copy_in
            assert begun is not None
            for piece in pieces:
                drive(self.session.copy_data(begun, piece))
            self.tag = drive(self.session.copy_done(begun)).tag
        except DucktailError:
            drive(self.session.abort_implicit())
            raise

    def one(self, text: str, *parameters: object) -> Any:
        """The first value of the first row."""
        return self(text, *parameters)[0][0]

    def close(self) -> None:
        """End the session."""
        drive(self.session.close())


@contextmanager
def raises(sqlstate: str) -> Iterator[pytest.ExceptionInfo[DucktailError]]:
    """The block ends with an error of this SQLSTATE."""
    with pytest.raises(DucktailError) as found:
        yield found
    assert found.value.sqlstate == sqlstate, found.value


def state_of(client: Client, text: str) -> str:
    """'ok', or the SQLSTATE with which a statement fails."""
    try:
        client(text)
    except DucktailError as error:
        return error.sqlstate
    return "ok"


def fold(events: list[Row], start: dict[str, Row] | None = None) -> dict[str, str]:
    """Events (op, key, before, after), in order, folded to key -> row; each must fit the last.

    Every image is JSON text. An insert of a key that is there, a change of one that is not, or a
    before-image that is not the row fails.
    """
    rows: dict[str, str] = dict(start or {})
    for op, key, before, after in events:
        if op in ("insert", "snapshot"):
            assert key not in rows, f"insert of a key that is there: {key}"
            rows[key] = after
            continue
        assert rows.get(key) == before, f"{op} of {key}: {before} is not {rows.get(key)}"
        if op == "delete":
            del rows[key]
        else:
            rows[key] = after
    return rows


def fold_without_key(events: list[Row]) -> Counter[str]:
    """Events (op, before, after) of a table without a key, folded to its rows with their counts."""
    rows: Counter[str] = Counter()
    for op, before, after in events:
        if before is not None:
            assert rows[before] > 0, f"{op} of a row that is not there: {before}"
            rows[before] -= 1
        if after is not None:
            rows[after] += 1
    return +rows


def check_stream(ask: Callable[[str], Sequence[Row]], stream: str, table: str) -> None:
    """CHECK STREAM finds nothing, and the events fold to the table's rows.

    Args:
        ask: runs a statement and gives its rows.
        stream: made on the whole table with snapshot = 'initial', or while the table was empty.
    """
    found = list(ask(f"CHECK STREAM {stream}"))
    assert found == [], found
    events = ask(f"SELECT op, before, after FROM STREAM {stream} WHERE op <> 'schema'")
    rows = Counter(row[0] for row in ask(f"SELECT to_json(t)::VARCHAR FROM {table} AS t"))
    folded = fold_without_key(list(events))
    assert folded == rows, f"only in the stream: {folded - rows}, only in the table: {rows - folded}"


def image(row: dict[str, Any]) -> str:
    """A row's JSON as events have it."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def settings(**values: int) -> Settings:
    """Settings for a test."""
    return Settings(**values)
