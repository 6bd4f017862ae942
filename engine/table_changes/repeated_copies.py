"""The rows of a copy of a table outside: staged in a temporary table, and stored over the rows that are here.

The first copy of a table gives snapshot events only. A repeated one is compared with the rows that are here
as of the same position of the source: each row that differs gets its update, insert or delete, so that all
readers end with the rows of the source, whatever their filters and partitions; then each copied row is a
snapshot event. Rows that are here and not in a copy of all rows are deleted. With a condition only the rows
that were copied are looked at.

Without a key it cannot be told which rows are the same: the rows here are deleted, and the copied ones come
in their place. Source: docs/design/sources.md, "Repeated copies".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from ..capture.difference import Difference, comparable, table_rows
from ..capture.log_sql import stored_names
from ..capture.plan import numbers
from ..catalog.captured_tables import Captured
from ..catalog.filters import plain_division
from ..catalog.source_tables import SourceTable
from ..checks import row_sums
from ..duck.cursors import ask
from ..duck.duckdb_errors import translated
from ..errors import WrongState
from ..log.log import copied_sql, dropped_sql, snapshot_sql
from ..quoting import ident

_BATCH = "__ducktail_staged"

Row = tuple[object, ...]


class Stage:
    """A temporary table for the rows of a copy, and the SQL that fills it.

    Args:
        condition: a predicate on the rows that are kept; None for all.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        table_id: int,
        table: SourceTable,
        condition: str | None = None,
    ) -> None:
        self.table = table
        self.condition = condition
        self.name = f"temp.main.__ducktail_copied_{table_id}"
        self._cursor = cursor
        columns = ", ".join(f"{ident(c.name)} {c.type}" for c in table.columns)
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE {self.name} ({columns})").fetchall()
        values = ", ".join(f"{c.sql(f'n{i}')} AS {ident(c.name)}" for i, c in enumerate(table.columns, 1))
        # It may name the table, and an error in it is no match, as in the filter of a stream.
        where = "" if condition is None else f" WHERE TRY(({condition})::BOOLEAN)"
        self._sql = (
            f"INSERT INTO {self.name} SELECT * FROM "
            f"(SELECT {values} FROM {_BATCH}) AS {ident(table.name)}{where}"
        )
        self._names = [f"n{i}" for i in range(1, len(table.columns) + 1)]
        if condition is not None:
            self._check(condition)

    def _check(self, condition: str) -> None:
        """Check that a condition still fits the table."""
        arrays = [pa.array([], column.arrow) for column in self.table.columns]
        try:
            self._insert(pa.Table.from_arrays(arrays, names=self._names))
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            raise WrongState(
                f"table {self.table.shown} no longer fits the condition of its copy: {condition}",
                detail=translated(error).message,
                hint="ALTER STREAM ... SNAPSHOT TABLE, without WHERE, takes its place; then RESUME STREAM.",
            ) from error

    def add(self, rows: Sequence[Row]) -> None:
        """Put rows into it, without a lock."""
        if not rows:
            return
        arrays = [
            pa.array(values, column.arrow)
            for values, column in zip(zip(*rows, strict=True), self.table.columns, strict=True)
        ]
        self._insert(pa.Table.from_arrays(arrays, names=self._names))

    def _insert(self, batch: pa.Table) -> None:
        self._cursor.register(_BATCH, batch)
        try:
            with plain_division(self._cursor):
                self._cursor.execute(self._sql).fetchall()
        finally:
            self._cursor.unregister(_BATCH)

    def drop(self) -> None:
        """Drop it."""
        self._cursor.execute(f"DROP TABLE IF EXISTS {self.name}").fetchall()


@dataclass(frozen=True, slots=True)
class CopyOfTable:
    """A staged copy, and where its rows go; in a transaction that holds the writer lock.

    Args:
        captured: the table with our rows, in the columns of the copy.
        relations: our table and its mirrors, as SQL.
        base_lsn, txid: its events are base_lsn + 1, + 2, ...
    """

    cursor: duckdb.DuckDBPyConnection
    stage: Stage
    captured: Captured
    relations: tuple[str, ...]
    base_lsn: int
    txid: int

    def store_first(self, stream_id: int) -> int:
        """Store the rows of a table that has none here.

        Returns:
            The number of events, which is that of the rows.
        """
        for relation in self.relations:
            self._insert(relation, f"{self.stage.name} AS s")
        sql = snapshot_sql(self.captured, stream_id, self.base_lsn, self.txid)
        events = int(ask(self.cursor, sql)[0])
        # The sum of the rows has them from here on: they are no inserts.
        self._take_sum(self.base_lsn + events, row_sums.CREATED)
        return events

    def store_again(self, *, whole: bool) -> tuple[int, int]:
        """Store the rows of a table over those that are here.

        Args:
            whole: True if all rows are known here: those that are missing get an insert too.

        Returns:
            The number of events, and of rows.
        """
        if self.captured.shape.primary_key:
            events = self._log_difference(whole=whole)
            self._replace_differing()
        else:
            events = int(ask(self.cursor, dropped_sql(self.captured, self.base_lsn, self.txid))[0])
            for relation in self.relations:
                self.cursor.execute(f"DELETE FROM {relation}").fetchall()
                self._insert(relation, f"{self.stage.name} AS s")
        sql = copied_sql(self.captured, self.stage.name, self.base_lsn + events, self.txid)
        rows = int(ask(self.cursor, sql)[0])
        if self.stage.condition is None:
            self._take_sum(self.base_lsn + events + rows, row_sums.RESYNCED)
        return events + rows, rows

    def _log_difference(self, *, whole: bool) -> int:
        """Write the events between the rows that are here and the copied ones; returns their number."""
        shape = self.captured.shape
        places = range(1, len(shape.stored) + 1)
        old = f"SELECT NULL::BIGINT AS rid,{','.join(f'n{i} AS o{i}' for i in places)} FROM {{}}"
        new = f"SELECT {stored_names(shape)} FROM {self.stage.name}"
        here, there = f"({table_rows(shape)}) AS h", f"({new}) AS n({','.join(f'n{i}' for i in places)})"
        keys = [(i, shape.stored[i - 1].type) for i in (shape.place(k) + 1 for k in shape.primary_key)]
        on = " AND ".join(f"{comparable(f'h.n{i}', t)}={comparable(f'n.n{i}', t)}" for i, t in keys)
        if self.stage.condition is not None:
            here = f"(SELECT * FROM {here} SEMI JOIN {there} ON {on}) AS h"
        new = f"SELECT n.* FROM {there}" + ("" if whole else f" SEMI JOIN {here} ON {on}")
        difference = Difference(shape, old.format(here), new)
        sql = difference.log_sql(self.captured.table)
        return int(ask(self.cursor, sql, numbers(self.base_lsn, self.txid))[0])

    def _replace_differing(self) -> None:
        """Let our table and its mirrors have the copied rows; rows that are the same stay untouched."""
        shape, stage = self.captured.shape, f"{self.stage.name} AS s"
        same = " AND ".join(f"t.{ident(c.name)} IS NOT DISTINCT FROM s.{ident(c.name)}" for c in shape.stored)
        keys = " AND ".join(f"t.{ident(name)} = s.{ident(name)}" for name in shape.primary_key)
        for relation in self.relations:
            if self.stage.condition is None:
                differing = f"SELECT t.rowid FROM {relation} AS t ANTI JOIN {stage} ON {same}"
            else:
                differing = f"SELECT t.rowid FROM {relation} AS t JOIN {stage} ON {keys} WHERE NOT ({same})"
            self.cursor.execute(f"DELETE FROM {relation} WHERE rowid IN ({differing})").fetchall()
            self._insert(relation, f"{stage} ANTI JOIN {relation} AS t ON {keys}")

    def _insert(self, relation: str, rows: str) -> None:
        names = stored_names(self.captured.shape)
        # Our columns may stand in another order than those of the copy, after ALTER TABLE.
        self.cursor.execute(f"INSERT INTO {relation} ({names}) SELECT {names} FROM {rows}").fetchall()

    def _take_sum(self, lsn: int, reason: str) -> None:
        for statement in row_sums.take_statements(self.captured, lsn, reason):
            self.cursor.execute(statement).fetchall()
