"""The row-hash sum of each captured table: the expected sum of its rows if capture missed no write.

The sum is computed from the table itself only when it gets its first stream, when a database of an older
format is opened, when DuckDB's hash has changed, when it gets a column, and when a stream is repaired. From
then on the log has the additions and subtractions, so a commit writes nothing for it:

    the table's sum as of a commit = the kept sum + hash of each new row - hash of each old row
                                     of the log's rows behind the kept sum's LSN, up to that commit

Before retention deletes rows of the log it adds them to the stored sum, in the same transaction.

The hash is DuckDB's 64-bit `hash` of the row's columns, summed in a HUGEINT: exact, and independent of order.
Values that compare equal have one hash. In DuckDB a NULL has the same hash as an empty list or map, a list of
NULLs, and a struct of NULLs: so for a nested column its being NULL and its length are hashed too. DuckDB does
not guarantee hashes across versions, so the version is stored with the sum. Source: docs/design/engine.md,
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

# DuckDB's version, followed by the version of the hashed expressions.
_VERSION = f"{duckdb.__version__}, 2"
# Reasons to compute a sum from the table.
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
    """A table's row in `row_sums`.

    Args:
        lsn: the LSN up to which the log's rows are in the sum.
        taken_lsn: the last LSN when it was computed from the table.
        reason: the reason for that computation.
        taken_at: its time, as text.
        differs: the finding of CHECK STREAM, or None.
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
    """The expressions that are hashed in addition to a nested value."""
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
    """A SELECT of the changes in number of rows and sum by the log's rows of a range of LSNs."""
    old, new = hash_of("o", captured.shape), hash_of("n", captured.shape)
    added = f"coalesce(sum({new}) FILTER (WHERE op IN ('i','u')),0)"
    taken = f"coalesce(sum({old}) FILTER (WHERE op IN ('d','u')),0)"
    return (
        f"SELECT (count(*) FILTER (WHERE op='i'))-(count(*) FILTER (WHERE op='d')) AS row_count,"
        f"({added}-{taken})::HUGEINT AS hash_sum FROM {captured.logged} "
        f"WHERE lsn>{after_lsn} AND lsn<={through_lsn} AND op IN ('i','u','d')"
    )


def take_statements(captured: Captured, lsn: int, reason: str, differs: str | None = None) -> list[str]:
    """The statements that compute a table's sum from the rows visible in the transaction.

    Args:
        lsn: the last LSN included in it.
    """
    told = "NULL" if differs is None else literal(differs)
    return [
        drop_statement(captured.table_id),
        f"INSERT INTO {SCHEMA}.row_sums SELECT {captured.table_id},{lsn},row_count,hash_sum,{lsn},"
        f"{literal(reason)},now(),{literal(_VERSION)},{told} FROM ({table_sum_sql(captured.shape)})",
    ]


def drop_statement(table_id: int) -> str:
    """DELETE of the sum of a table that is no longer captured."""
    return f"DELETE FROM {SCHEMA}.row_sums WHERE table_id = {table_id}"


def fold_statement(captured: Captured, through_lsn: int) -> str:
    """Add the log's rows up to an LSN to the stored sum, because they are about to be deleted."""
    change = change_sql(
        captured, f"(SELECT lsn FROM {SCHEMA}.row_sums WHERE table_id={captured.table_id})", str(through_lsn)
    )
    return (
        f"UPDATE {SCHEMA}.row_sums SET lsn={through_lsn},row_count=row_sums.row_count+c.row_count,"
        f"hash_sum=row_sums.hash_sum+c.hash_sum FROM ({change}) AS c "
        f"WHERE table_id={captured.table_id} AND lsn<{through_lsn}"
    )


def mark_statement(table_id: int, differs: str) -> str:
    """Store a finding of CHECK STREAM for the table."""
    return f"UPDATE {SCHEMA}.row_sums SET differs = {literal(differs)} WHERE table_id = {table_id}"


def read_kept(cursor: duckdb.DuckDBPyConnection, table_id: int) -> KeptSum | None:
    """A table's row of `row_sums`; None if its sum could not be computed."""
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
    """Compute missing sums, and sums hashed by another version of DuckDB, at an opening."""
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
        except duckdb.Error as error:  # Reads of a damaged table report the error.
            logger.error(
                "the row-hash sum of %s cannot be taken: %s", captured.shown_name, translated(error).message
            )


def marks(cursor: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """Table id -> the finding of CHECK STREAM, for tables that differ from their logs."""
    return dict(
        cursor.execute(
            f"SELECT table_id, differs FROM {SCHEMA}.row_sums WHERE differs IS NOT NULL"
        ).fetchall()
    )
