"""A reader of MySQL or MariaDB for tests: a connector, and its changes up to the present end of the log."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import duckdb
import pyarrow as pa
import pytest

from ducktail.engine.catalog.source_tables import DEFINE, Change, Piece, SourceTable
from ducktail.engine.errors import DucktailError
from ducktail.pgwire_gateway.sources.mysql import MysqlConnector
from ducktail.pgwire_gateway.sources.mysql.mysql_changes import MysqlChanges
from ducktail.pgwire_gateway.sources.mysql.mysql_types import table_of

READ_S = 20.0
# Each reader of a server has a number of its own.
SERVER_IDS = itertools.count(1000)


class Server(Protocol):
    """A server with a URL."""

    @property
    def url(self) -> str: ...


class Reader:
    """A connector of some tables, and the changes since it was made."""

    def __init__(self, server: Server, *tables: str, parameters: str = "") -> None:
        self.selection = [(None, table) for table in tables]
        self.url = server.url + (f"?{parameters}" if parameters else "")
        self.connector = MysqlConnector(self.url, self.selection, next(SERVER_IDS))
        self.tables = list(self.connector.describe())
        with self.connector.begin() as copy:
            self.position = copy.position
            self.rows = {t.name: [row for block in copy.rows(t) for row in block] for t in self.tables}
        self.changes: MysqlChanges | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.connector.close()

    def open(self) -> MysqlChanges:
        """The changes behind what was read."""
        if self.changes is None:
            made = self.connector.changes(self.tables, self.position)
            assert isinstance(made, MysqlChanges)
            self.changes = made
        return self.changes

    def end(self) -> str:
        """The present end of the log, in the form of positions."""
        with self.connector.copy() as copy:
            return copy.position

    def pieces(self) -> list[Piece]:
        """The pieces up to the present end."""
        end, found = self.end(), []
        ends_s = time.monotonic() + READ_S
        changes = self.open()
        while self.position != end:
            piece = changes.next(0.5)
            if piece is not None:
                found.append(piece)
                self.position = piece.commit.position if piece.commit is not None else self.position
            assert time.monotonic() < ends_s, f"{self.position} instead of {end}"
        return found

    def transactions(self) -> list[list[Change]]:
        """The changes up to the present end, by transaction; definitions are kept for the next reading."""
        found: list[list[Change]] = [[]]
        for piece in self.pieces():
            found[-1] += piece.changes
            if piece.commit is not None and found[-1]:
                found.append([])
        assert found.pop() == [], "the last transaction has ended"
        for change in itertools.chain(*found):
            if change.op == DEFINE:
                assert isinstance(change.new, SourceTable)
                place = [(t.schema, t.name) for t in self.tables].index(change.table)
                self.tables[place] = change.new
        return found

    def differing(self) -> list[tuple[SourceTable, SourceTable]]:
        """The tables whose known definitions are not those of the server, beside these."""
        now = MysqlConnector(self.url, self.selection, next(SERVER_IDS))
        pairs = zip(self.tables, now.describe(), strict=True)
        return [(known, told) for known, told in pairs if not table_of(known).has_shape_of(table_of(told))]

    def events(self) -> list[tuple[str, object, object]]:
        """Operation, old and new row of the changes up to the present end."""
        return [(change.op, change.old, change.new) for change in itertools.chain(*self.transactions())]

    def error(self) -> DucktailError:
        """The error with which reading ends."""
        ends_s = time.monotonic() + READ_S
        with pytest.raises(DucktailError) as raised:
            changes = self.open()
            while time.monotonic() < ends_s:
                changes.next(0.5)
        return raised.value


def in_duckdb(table: SourceTable, rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Rows as DuckDB has them in the columns' types, as text."""
    arrays = [
        pa.array(values, column.arrow)
        for values, column in zip(zip(*rows, strict=True), table.columns, strict=True)
    ]
    given = pa.Table.from_arrays(arrays, names=[f"n{i}" for i in range(len(arrays))])
    with duckdb.connect() as connection:
        connection.register("given", given)
        connection.execute("SET TimeZone = 'UTC'")
        types = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
        connection.execute(f"CREATE TABLE kept ({types})")
        values = ", ".join(column.sql(f"n{i}") for i, column in enumerate(table.columns))
        connection.execute(f"INSERT INTO kept SELECT {values} FROM given")
        texts = ", ".join(f'CAST("{c.name}" AS VARCHAR)' for c in table.columns)
        return connection.execute(f"SELECT {texts} FROM kept").fetchall()


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + READ_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.02)
