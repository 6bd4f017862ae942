"""What an opening sees of tables that were written past ducktail.

It looks only where somebody may have written the file since ducktail closed it (`storage/stamp.py`): at
columns and key, the number of rows, and the row-hash sum. To count rows costs next to nothing; to sum them
is to read them, and is done of so many as an opening has time for. A table that was dropped and made again
is found by what it has, as any other edit is. Which rows differ is CHECK STREAM's to say.
Source: docs/checks.md.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

import duckdb

from ..asking import ask
from ..duckdb_errors import translated
from ..errors import DucktailError
from ..quoting import literal
from ..schema import SCHEMA
from ..streams.captured import Captured
from ..streams.catalog import Catalog
from ..whole import whole
from . import row_sums
from .checking import balance_text, unfit_columns
from .row_sums import KeptSum

logger = logging.getLogger(__name__)

# What one opening sums of tables and their logs, the smallest first: half a second or so where rows are
# narrow, and one or two where they are wide.
SUMMED_ROWS_MAX = 10_000_000
SUMMED_BYTES_MAX = 2 << 30
# What a value takes beside its text.
_VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Counted:
    """A table whose columns fit.

    Args:
        rows: how many it has.
        logged: how many log rows tell what has changed since its sum was kept.
        more: how many rows more it has than it should.
        value_bytes: what its values and those of these log rows take, about; 0 where it has too many rows.
    """

    captured: Captured
    kept: KeptSum
    rows: int
    logged: int
    more: int
    value_bytes: int


def mark_unlike(cursor: duckdb.DuckDBPyConnection, catalog: Catalog, damaged: Container[int]) -> None:
    """Keep of each table that does not agree with its log that it does not: its readers are told.

    Args:
        damaged: streams whose logs are known not to be whole.
    """
    agreeing = []
    (accepted_lsn,) = ask(
        cursor, f"SELECT coalesce(max(value::BIGINT), 0) FROM {SCHEMA}.meta WHERE name = 'accepted'"
    )
    for captured in catalog.tables.values():
        if any(stream.stream_id in damaged for stream in captured.streams):
            continue
        try:
            counted = _count(cursor, captured, accepted_lsn)
        except (duckdb.Error, DucktailError) as error:  # A damaged table is told of by whoever reads it.
            logger.error("%s cannot be counted: %s", captured.shown_name, translated(error).message)
            continue
        if isinstance(counted, str):
            _mark(cursor, captured, counted)
        elif counted is not None and counted.more:
            _mark(cursor, captured, f"there are {balance_text(counted.more)}")
        elif counted is not None:
            agreeing.append(counted)
    rows_left, bytes_left = SUMMED_ROWS_MAX, SUMMED_BYTES_MAX
    for found in sorted(agreeing, key=lambda one: one.value_bytes):
        rows = found.rows + found.logged
        if rows > rows_left or found.value_bytes > bytes_left:
            text = "the rows of %s were counted and not read: CHECK STREAM says whether they are as they were"
            logger.info(text, found.captured.shown_name)
            continue
        rows_left, bytes_left = rows_left - rows, bytes_left - found.value_bytes
        if not _sums_agree(cursor, found):
            _mark(cursor, found.captured, "rows are others than they were")


def _count(cursor: duckdb.DuckDBPyConnection, captured: Captured, accepted_lsn: int) -> _Counted | str | None:
    """Count a table's rows; a text says that its columns do not fit, None that there is nothing to say.

    Args:
        accepted_lsn: up to which events may be missing, as somebody has accepted.
    """
    kept = row_sums.read_kept(cursor, captured.table_id)
    if kept is None or kept.differs is not None or kept.taken_lsn < accepted_lsn:
        return None
    unfit = unfit_columns(cursor, captured)
    if unfit is not None:
        return unfit
    (rows,) = ask(cursor, f"SELECT count(*) FROM {captured.shape.qualified}")
    added, taken, logged = ask(
        cursor,
        "SELECT count(*) FILTER (WHERE op='i'), count(*) FILTER (WHERE op='d'), count(*) "
        f"FROM {captured.logged} WHERE lsn>{kept.lsn} AND op IN ('i','u','d')",
    )
    value_bytes = 0
    if rows + logged <= SUMMED_ROWS_MAX:  # Else it is not summed, and has many segments to ask about.
        value_bytes = _value_bytes(cursor, [captured.shape.qualified, *(captured.logs if logged else ())])
    return _Counted(captured, kept, rows, logged, rows - (kept.sum.rows + added - taken), value_bytes)


def _value_bytes(cursor: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> int:
    """What the values of tables take, about: from what DuckDB keeps of each segment of theirs, unread."""
    segments = " UNION ALL ".join(
        f"FROM system.main.pragma_storage_info({literal(table)})" for table in tables
    )
    (found,) = ask(
        cursor,
        f"SELECT coalesce(sum(count * {_VALUE_BYTES} + coalesce(stats.total_string_length::BIGINT, 0)), 0)"
        f"::BIGINT FROM ({segments}) WHERE segment_type <> 'VALIDITY'",
    )
    return int(found)


def _sums_agree(cursor: duckdb.DuckDBPyConnection, found: _Counted) -> bool:
    captured, kept = found.captured, found.kept
    try:
        expected = kept.sum + row_sums.change(cursor, captured, kept.lsn)
        return row_sums.table_sum(cursor, captured.shape) == expected
    except duckdb.Error as error:
        logger.error("%s cannot be summed: %s", captured.shown_name, translated(error).message)
        return True


def _mark(cursor: duckdb.DuckDBPyConnection, captured: Captured, differs: str) -> None:
    logger.error("%s was written past ducktail: %s", captured.shown_name, differs)
    with whole(cursor):
        cursor.execute(row_sums.mark_statement(captured.table_id, differs)).fetchall()
