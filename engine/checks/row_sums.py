"""The row-hash sum of each captured table: what its rows must add up to, if nothing went past capture.

The sum is taken of the table itself, once: when it gets its first stream, when a database of an older format
is opened, when DuckDB hashes in another way than before, when it gets a column, and when a stream is mended.
From there on the log says what is added to it and what is taken away, so a commit writes nothing for it:

    the table's sum as of a commit = the kept sum + hash of each new row - hash of each old row
                                     of the log's rows behind the kept sum's LSN, up to that commit

Before retention deletes rows of the log it adds them to the kept sum, in the same transaction.

It is DuckDB's 64-bit `hash` of the row's columns, summed in a HUGEINT: exact, and without an order. Values
that compare equal have one hash. To DuckDB a NULL hashes as an empty list or map does, a list of NULLs, and a
struct of them: so of a nested column it is hashed too whether it is NULL, and how long it is. DuckDB promises
no hash from one version to the next, so the version is kept with the sum. Source: docs/design/engine.md,
"Checks against the table".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from ..capture.log_sql import images
from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from ..duck.cursors import ask, ask_maybe, in_one_transaction
from ..duck.duckdb_errors import translated
from ..duck.table_shape import TableShape
from ..quoting import ident, literal
from ..schema import SCHEMA

logger = logging.getLogger(__name__)

# DuckDB's version, and behind it that of what is hashed of a row.
_VERSION = f"{duckdb.__version__}, 2"
# Why a sum was taken of the table.
CREATED, OPENED, VERSION, RESYNCED, ALTERED = "created", "opened", "version", "resynced", "altered"


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of rows, and the sum of their hashes."""

    rows: int
    hashes: int

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.rows + other.rows, self.hashes + other.hashes)

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.rows - other.rows, self.hashes - other.hashes)


NOTHING = Sum(0, 0)


@dataclass(frozen=True, slots=True)
class KeptSum:
    """A table's line in `row_sums`.

    Args:
        lsn: the log's rows up to this LSN are in the sum.
        taken_lsn: the last LSN when it was taken of the table.
        reason: why it was taken then.
        taken_at: when, as text.
        differs: what CHECK STREAM has found, None where nothing.
    """

    lsn: int
    sum: Sum
    taken_lsn: int
    reason: str
    taken_at: str
    differs: str | None


def hash_of(side: str, shape: TableShape) -> str:
    """SQL of the hash of an image in the log, `o` or `n`."""
    return _hash(images(side, shape).split(","), shape)


def _hash(values: Sequence[str], shape: TableShape) -> str:
    """SQL of the hash of a row, from its columns' values."""
    told = [
        argument
        for value, column in zip(values, shape.stored, strict=True)
        for argument in (value, *_besides(value, column.type))
    ]
    return f"hash({','.join(told)})"


def _besides(value: str, type_: str) -> tuple[str, ...]:
    """The parts of a nested value that are hashed beside it."""
    if type_.endswith("[]"):
        return f"{value} IS NULL", f"len({value})"
    if type_.startswith("MAP("):
        return f"{value} IS NULL", f"cardinality({value})"
    nested = type_.endswith("]") or type_.startswith(("STRUCT(", "UNION("))
    return (f"{value} IS NULL",) if nested else ()


def table_sum_sql(shape: TableShape) -> str:
    """A SELECT of the number of a table's rows and the sum of their hashes."""
    row = _hash([ident(column.name) for column in shape.stored], shape)
    hashes = f"coalesce(sum({row}),0)::HUGEINT"
    return f"SELECT count(*) AS row_count,{hashes} AS hash_sum FROM {shape.qualified}"


def change_sql(captured: Captured, after_lsn: str, through_lsn: str) -> str:
    """A SELECT of what the log's rows of a range of LSNs add to both."""
    old, new = hash_of("o", captured.shape), hash_of("n", captured.shape)
    added = f"coalesce(sum({new}) FILTER (WHERE op IN ('i','u')),0)"
    taken = f"coalesce(sum({old}) FILTER (WHERE op IN ('d','u')),0)"
    return (
        f"SELECT (count(*) FILTER (WHERE op='i'))-(count(*) FILTER (WHERE op='d')) AS row_count,"
        f"({added}-{taken})::HUGEINT AS hash_sum FROM {captured.logged} "
        f"WHERE lsn>{after_lsn} AND lsn<={through_lsn} AND op IN ('i','u','d')"
    )


def take_statements(captured: Captured, lsn: int, reason: str, differs: str | None = None) -> list[str]:
    """Take a table's sum, of the table as the transaction sees it.

    Args:
        lsn: the last LSN that is in it.
    """
    told = "NULL" if differs is None else literal(differs)
    return [
        drop_statement(captured.table_id),
        f"INSERT INTO {SCHEMA}.row_sums SELECT {captured.table_id},{lsn},row_count,hash_sum,{lsn},"
        f"{literal(reason)},now(),{literal(_VERSION)},{told} FROM ({table_sum_sql(captured.shape)})",
    ]


def drop_statement(table_id: int) -> str:
    """A table is no longer captured."""
    return f"DELETE FROM {SCHEMA}.row_sums WHERE table_id = {table_id}"


def fold_statement(captured: Captured, through_lsn: int) -> str:
    """Add the log's rows up to an LSN to the kept sum: they are about to be deleted."""
    change = change_sql(
        captured, f"(SELECT lsn FROM {SCHEMA}.row_sums WHERE table_id={captured.table_id})", str(through_lsn)
    )
    return (
        f"UPDATE {SCHEMA}.row_sums SET lsn={through_lsn},row_count=row_sums.row_count+c.row_count,"
        f"hash_sum=row_sums.hash_sum+c.hash_sum FROM ({change}) AS c "
        f"WHERE table_id={captured.table_id} AND lsn<{through_lsn}"
    )


def mark_statement(table_id: int, differs: str) -> str:
    """CHECK STREAM has found this of the table."""
    return f"UPDATE {SCHEMA}.row_sums SET differs = {literal(differs)} WHERE table_id = {table_id}"


def read_kept(cursor: duckdb.DuckDBPyConnection, table_id: int) -> KeptSum | None:
    """A table's line; None where it has none, as its sum could not be taken."""
    row = ask_maybe(
        cursor,
        "SELECT lsn, row_count, hash_sum, taken_lsn, reason, taken_at::VARCHAR, differs "
        f"FROM {SCHEMA}.row_sums WHERE table_id = {table_id} AND duckdb_version = {literal(_VERSION)}",
    )
    if row is None:
        return None
    return KeptSum(row[0], Sum(row[1], row[2]), row[3], row[4], row[5], row[6])


def table_sum(cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> Sum:
    """The sum of the table's rows."""
    return Sum(*ask(cursor, table_sum_sql(shape)))


def change(cursor: duckdb.DuckDBPyConnection, captured: Captured, after_lsn: int) -> Sum:
    """The sum of the log's rows behind an LSN."""
    return Sum(*ask(cursor, change_sql(captured, str(after_lsn), str((1 << 63) - 1))))


def take_missing(cursor: duckdb.DuckDBPyConnection, catalog: Catalog, last_lsn: int) -> None:
    """At an opening: take the sums that are not there, or that another version of DuckDB hashed."""
    versions = dict(cursor.execute(f"SELECT table_id, duckdb_version FROM {SCHEMA}.row_sums").fetchall())
    for captured in catalog.tables.values():
        if versions.get(captured.table_id) == _VERSION:
            continue
        try:
            with in_one_transaction(cursor):
                known = ask_maybe(
                    cursor, f"SELECT differs FROM {SCHEMA}.row_sums WHERE table_id = {captured.table_id}"
                )
                reason, differs = (OPENED, None) if known is None else (VERSION, known[0])
                for statement in take_statements(captured, last_lsn, reason, differs):
                    cursor.execute(statement).fetchall()
        except duckdb.Error as error:  # A damaged table is told of by whoever reads it.
            logger.error(
                "the row-hash sum of %s cannot be taken: %s", captured.shown_name, translated(error).message
            )


def marks(cursor: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """Table id -> what CHECK STREAM has found, of the tables that do not agree with their logs."""
    return dict(
        cursor.execute(
            f"SELECT table_id, differs FROM {SCHEMA}.row_sums WHERE differs IS NOT NULL"
        ).fetchall()
    )
