"""A PEP 249 cursor: runs statements in its connection's session and hands out what they answer.

A fetch takes from the session exactly the rows that the caller asked for, never more in advance:
what a reader was given is what COMMIT OFFSETS commits. So `fetchmany(1000)` is the fast way to
read a long answer bit by bit, and `fetchall`, `fetch_arrow_table`, `df` and `pl` to read it whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Protocol

import duckdb
import pyarrow as pa

from ..results.results import Result
from .errors import InterfaceError, NotSupportedError, translated
from .python_values import Row, arrow_table, rows

if TYPE_CHECKING:
    import pandas
    import polars

Description = list[tuple[str, str, None, None, None, None, None]]


class Owner(Protocol):
    """The part of a connection that its cursors need."""

    def run_text(self, text: str, parameters: Sequence[object]) -> Result:
        """Run the statements of `text`; the last one's result."""

    def run_many(self, text: str, sets: Iterable[Sequence[object]]) -> int:
        """Run one statement with each set of parameters, all or none; the rows written."""

    def check_open(self) -> None:
        """Raise InterfaceError (08003) when the connection is closed."""

    @property
    def reading(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's cursor with the session's settings, beside the one that runs its statements."""


class Cursor:
    """One statement at a time, and the rows that it answers with.

    Made by `Connection.cursor()`; all cursors of a connection share its session and transaction.

    Attributes:
        arraysize: how many rows `fetchmany()` takes when not told.
    """

    def __init__(self, connection: Owner) -> None:
        self.connection = connection
        self.arraysize = 1
        self._result: Result | None = None
        self._written_by_many: int | None = None
        self._closed = False

    @property
    def description(self) -> Description | None:
        """A 7-tuple (name, DuckDB type, five times None) a column; None where there are no rows."""
        if self._result is None or self._result.columns is None:
            return None
        return [(column.name, column.type, None, None, None, None, None) for column in self._result.columns]

    @property
    def rowcount(self) -> int:
        """Rows written, or given once all are fetched; -1 when there is no such number (yet)."""
        if self._written_by_many is not None:
            return self._written_by_many
        return rows_written(self.statusmessage)

    @property
    def statusmessage(self) -> str | None:
        """The command tag, such as "INSERT 0 3" or "CREATE STREAM", once the statement is through."""
        return self._result.tag if self._result is not None else None

    def execute(self, operation: str, parameters: Sequence[object] = ()) -> Cursor:
        """Run a statement, or several parted by semicolons (without parameters, in one transaction).

        Args:
            operation: the text, with `?` or `$1`, `$2`, ... where parameters go.
            parameters: their values, in order.

        Returns:
            The cursor itself; it has the last statement's answer.

        Raises:
            Error: with the SQLSTATE in `.sqlstate`.
        """
        self._check_open()
        self._forget()
        with translated():
            result = self.connection.run_text(operation, parameters)
            if result.columns is None:
                while result.fetch(None) is not None:
                    pass
        self._result = result
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[object]]) -> Cursor:
        """Run a statement once for each set of parameters: all of them, or none.

        Outside a transaction the run is one; inside, an error fails the transaction, as any does. For
        many rows `Connection.append` is far faster.

        Raises:
            ProgrammingError: 42601, the statement gives rows (PEP 249 leaves them undefined).
        """
        self._check_open()
        self._forget()
        with translated():
            self._written_by_many = self.connection.run_many(operation, seq_of_parameters)
        return self

    def fetchone(self) -> Row | None:
        """The next row, or None after the last one."""
        return next(iter(self.fetchmany(1)), None)

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, at most `size` of them (`arraysize` when not told); [] after the last one."""
        left = self.arraysize if size is None else size
        taken: list[Row] = []
        while left > 0 and (more := self._take(left)):
            taken += more
            left -= len(more)
        return taken

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        taken: list[Row] = []
        while more := self._take(None):
            taken += more
        return taken

    def fetch_arrow_table(self) -> pa.Table:
        """All rows that are left, as an Arrow table with DuckDB's own Arrow types."""
        result = self._answer()
        with translated():
            return arrow_table(result, self.connection.reading)

    def df(self) -> pandas.DataFrame:
        """All rows that are left, as a pandas data frame.

        Raises:
            NotSupportedError: 0A000, pandas is not installed.
        """
        _wanted("pandas")
        frame: pandas.DataFrame = self.fetch_arrow_table().to_pandas()
        return frame

    def pl(self) -> polars.DataFrame:
        """All rows that are left, as a polars data frame.

        Raises:
            NotSupportedError: 0A000, polars is not installed.
        """
        frame: polars.DataFrame = _wanted("polars").from_arrow(self.fetch_arrow_table())
        return frame

    def close(self) -> None:
        """Give up what is left of the answer; the cursor is of no more use."""
        self._forget()
        self._closed = True

    def setinputsizes(self, sizes: Sequence[object]) -> None:
        """PEP 249 wants it; types are inferred, so there is nothing to do."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """PEP 249 wants it; no value is ever cut, so there is nothing to do."""

    def __iter__(self) -> Iterator[Row]:
        while (row := self.fetchone()) is not None:
            yield row

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, count: int | None) -> list[Row]:
        """The next batch of at most `count` rows; [] after the last row, empty batches passed over."""
        result = self._answer()
        assert result.columns is not None
        with translated():
            while (batch := result.fetch(count)) is not None:
                if found := rows(batch.record_batch(), result.columns, self.connection.reading):
                    # They are the program's: an answer by themselves.
                    result.suspend()
                    return found
        return []

    def _answer(self) -> Result:
        """The result that a fetch reads from."""
        self._check_open()
        if self._result is None or self._result.columns is None:
            raise InterfaceError("there is no answer to fetch from", "24000")
        return self._result

    def _check_open(self) -> None:
        self.connection.check_open()
        if self._closed:
            raise InterfaceError("the cursor is closed", "24000")

    def _forget(self) -> None:
        if self._result is not None:
            self._result.close()
        self._result, self._written_by_many = None, None


def rows_written(tag: str | None) -> int:
    """The number in a command tag, such as 3 of "INSERT 0 3"; -1 where it has none."""
    last = (tag or "").rpartition(" ")[2]
    return int(last) if last.isdigit() else -1


def _wanted(module: str) -> ModuleType:
    """An optional library, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError:
        hint = f"Install it, as with `pip install {module}`, or use fetch_arrow_table()."
        raise NotSupportedError(f"{module} is not installed", "0A000", hint=hint) from None
