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
# A number of its rows.
_ROW = "__ducktail_row"


class Refused(Exception):
    """An INSERT failed.

    Args:
        error: what it says, without a place.
        at: row (of the table that was to be inserted) and column of the first value that a cast
            refuses; None where it was not that.
    """

    def __init__(self, error: DucktailError, at: tuple[int, int] | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.at = at


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """The table or topic that a COPY FROM STDIN fills.

    Args:
        name: its name, for errors.
        sql: the same as SQL.
        columns: the columns that are filled.
        types: DuckDB's, of these columns; None for a topic, which takes any.
        own: the transaction is this statement's own, and ends with it.
    """

    session: Context
    statement: ParsedStatement
    name: str
    sql: str
    columns: tuple[str, ...]
    types: tuple[str, ...] | None
    own: bool


class Inserting:
    """Writes the rows of one COPY.

    Args:
        loaders: how a column of the rows becomes one of the target's.
    """

    def __init__(self, target: CopyTarget, loaders: Sequence[ColumnLoader]) -> None:
        self._session = target.session
        self._statement = target.statement
        self._loaders = loaders
        # The rows' columns are called as the table's, as DuckDB's errors name them.
        self._names = list(target.columns)
        listed = ",".join(map(ident, self._names))
        values = ",".join(loader.cast(ident(name)) for name, loader in zip(self._names, loaders, strict=True))
        self._insert = classify(f"INSERT INTO {target.sql} ({listed}) SELECT {values} FROM {ROWS}")
        # How many rows there are by now.
        self.count = 0
        self._judged = False
        self._topic = topic_writes.target(self._session, self._insert)
        # Shares of other nodes are sent when the client has sent all.
        self._owners = (
            None if self._topic is None or not target.own else remote_owners(self._session, self._topic)
        )
        self._collected: list[pa.Table] = []

    def put(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Waiting[None]:
        """Insert rows, one column for each name.

        Raises:
            Refused: they were not.
        """
        if not self._judged:
            # The client sends its rows when it likes: what it may do is judged where the first is written.
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
            # In a transaction that has failed DuckDB has already taken it away.
            with suppress(duckdb.Error):
                cursor.unregister(ROWS)
        self.count += table.num_rows

    def send(self) -> Waiting[None]:
        """Send the rows of other nodes' partitions, after the COPY's own transaction.

        Raises:
            DucktailError: as `publishing.send`.
        """
        if self._owners is not None and self._collected:
            assert self._topic is not None
            table = pa.concat_tables(self._collected)
            yield from topic_publishing.send(
                self._session, self._topic, self._owners, table, None, told=False
            )

    def _refused(self, table: pa.Table) -> tuple[int, int] | None:
        """Row and column of the first value that DuckDB does not cast: the transaction is over by now."""
        meta = self._session.meta
        first: tuple[int, int] | None = None
        meta.register(ROWS, table)
        try:
            for place, loader in enumerate(self._loaders):
                name = ident(self._names[place])
                # A type that this transaction has made is known nowhere else.
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
