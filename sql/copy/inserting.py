"""The INSERTs of one COPY FROM STDIN: Arrow tables into a table or a topic, each as one statement."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from ...engine.duck.duckdb_errors import translated
from ...engine.errors import DucktailError
from ...engine.quoting import ident
from ...engine.values.copy_columns import ColumnLoader
from ...engine.waiting import Waiting
from ..cluster import topic_publishing
from ..cluster.shares import remote_owners
from ..dml import topic_writes, writes
from ..language.classify import classify
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement

# The relation that an INSERT reads.
ROWS = "__ducktail_copy"
# The column with a row's number in it.
_ROW = "__ducktail_row"


class Refused(Exception):
    """A failed INSERT.

    Args:
        error: the INSERT's error, without a position.
        at: row (in the inserted table) and column of the first value that a cast refuses; None if the error
            has another cause.
    """

    def __init__(self, error: DucktailError, at: tuple[int, int] | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.at = at


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """The table or topic that a COPY FROM STDIN fills.

    Args:
        name: the name, for errors.
        sql: the name as SQL.
        columns: the filled columns.
        types: DuckDB's types of these columns; None for a topic, whose columns accept any value.
        own: the transaction belongs to this statement, and ends with it.
    """

    session: Context
    statement: ParsedStatement
    name: str
    sql: str
    columns: tuple[str, ...]
    types: tuple[str, ...] | None
    own: bool


class Inserting:
    """The INSERTs of one COPY.

    Args:
        loaders: the conversions of the rows' columns into the target's.
    """

    def __init__(self, target: CopyTarget, loaders: Sequence[ColumnLoader]) -> None:
        self._session = target.session
        self._statement = target.statement
        self._loaders = loaders
        # The rows' columns have the names of the table's, which appear in DuckDB's errors.
        self._names = list(target.columns)
        listed = ",".join(map(ident, self._names))
        values = ",".join(loader.cast(ident(name)) for name, loader in zip(self._names, loaders, strict=True))
        self._insert = classify(f"INSERT INTO {target.sql} ({listed}) SELECT {values} FROM {ROWS}")
        # The number of rows so far.
        self.count = 0
        self._judged = False
        self._topic = topic_writes.target(self._session, self._insert)
        # The rows for other nodes, which are sent after the client's last row.
        self._owners = (
            None if self._topic is None or not target.own else remote_owners(self._session, self._topic)
        )
        self._collected: list[pa.Table] = []

    def put(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Waiting[None]:
        """Insert rows, one column for each name.

        Raises:
            Refused: the INSERT failed.
        """
        if not self._judged:
            # The rows may arrive late: the rights are checked again before the first row is written.
            self._session.judge(self._statement)
            self._judged = True
        table = pa.Table.from_arrays(list(columns), names=self._names)
        cursor = self._session.cursor
        self._session.collected = None if self._owners is None else self._collected
        try:
            cursor.register(ROWS, table)
            yield from writes.write(self._session, self._statement, self._insert, ())
        except (DucktailError, duckdb.Error) as error:
            told = translated(error)
            told.position = None
            raise Refused(told, self._refused(table)) from error
        finally:
            self._session.collected = None
            # In a failed transaction DuckDB has already unregistered it.
            with suppress(duckdb.Error):
                cursor.unregister(ROWS)
        self.count += table.num_rows

    def send(self) -> Waiting[None]:
        """Send the rows of other nodes' partitions, after the COPY's own transaction.

        Raises:
            DucktailError: see `topic_publishing.send`.
        """
        if self._owners is not None and self._collected:
            assert self._topic is not None
            table = pa.concat_tables(self._collected)
            yield from topic_publishing.send(
                self._session, self._topic, self._owners, table, None, told=False
            )

    def _refused(self, table: pa.Table) -> tuple[int, int] | None:
        """Row and column of the first value that DuckDB cannot cast; the transaction has ended by now."""
        meta = self._session.meta
        first: tuple[int, int] | None = None
        meta.register(ROWS, table)
        try:
            for place, loader in enumerate(self._loaders):
                name = ident(self._names[place])
                # A type that this transaction has created is unknown outside it.
                with suppress(duckdb.Error):
                    numbered = f"SELECT row_number() OVER () - 1 AS {_ROW}, {name} FROM {ROWS}"
                    row = meta.execute(
                        f"SELECT min({_ROW}) FROM ({numbered}) WHERE {loader.is_refused(name)}"
                    ).fetchall()[0]
                    if row[0] is not None and (first is None or row[0] < first[0]):
                        first = (int(row[0]), place)
        finally:
            meta.unregister(ROWS)
        return first
