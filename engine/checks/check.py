"""CHECK STREAM, the comparison of a captured table with its log; and the check of tables at an opening.

CHECK STREAM makes three comparisons, all in one MVCC snapshot, so that writers continue meanwhile:

1. For each key with retained events of the stream: the row after its last event with the table's row.
2. The table's row-hash sum and number of rows with those of the last commit (`row_sums.py`). The differences
   of the first comparison explain a part of a difference here.
3. If a part remains unexplained: each event's old row with the row after the previous event of its key. This
   finds an edit that a captured write has overwritten since, unless the log has been compacted there.

A remaining difference concerns rows without retained events: some of them differ, but they cannot be named.
No comparison finds a value that compares equal, or an edit that was undone. Differences are stored with the
sum, and every read of the table's streams fails with them until RESYNC has repaired the table.

An opening looks for tables that were written without ducktail, but only if another program may have written
the file since ducktail closed it (`storage/opening.py`). It compares columns and key, the number of rows, and
the row-hash sum. Counting rows is cheap; summing reads them, and is limited by the time for an opening. A
table that was dropped and recreated is found by its contents, like any other edit. CHECK STREAM names the
rows that differ. Source: docs/checks.md.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import duckdb

from ..capture.difference import Difference, comparable, table_rows
from ..capture.log_sql import partition_hash, stored_names
from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from ..catalog.streams import Stream
from ..duck.cursors import ask, ask_maybe, in_one_transaction
from ..duck.duckdb_errors import translated
from ..duck.table_shape import RESERVED_PREFIX, TableShape, unfit_key_column
from ..errors import DucktailError, WrongState
from ..log.deleted_ranges import compacted_through
from ..log.log import shown_table
from ..quoting import literal, shown_name
from ..schema import SCHEMA
from ..values.json_images import object_sql
from . import row_sums
from .row_sums import NOTHING, KeptSum, Sum

# Most differences listed singly; the rest are counted. Each has two rows as JSON.
TOLD_MAX = 10_000
# The temporary tables of one comparison.
FOUND = f"temp.main.{RESERVED_PREFIX}_found"
BROKEN = f"temp.main.{RESERVED_PREFIX}_broken"
LAST = f"{RESERVED_PREFIX}_last"
# Sort of a differing row -> its name.
WORDS = {"u": "changed", "d": "missing", "i": "unexpected"}
logger = logging.getLogger(__name__)
# Limits of the rows of tables and logs that one opening sums, the smallest tables first: about half a second
# for narrow rows, one or two for wide ones.
SUMMED_ROWS_MAX = 10_000_000
SUMMED_BYTES_MAX = 2 << 30
# Bytes of a value besides its text.
_VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Unlike:
    """One difference.

    Args:
        kind: 'changed', 'missing' and 'unexpected' for rows of the table; 'overwritten' for an edit that a
            captured write has overwritten; 'unknown' for rows that cannot be named; 'columns' for columns
            that differ from the log's; 'table' for a table created without ducktail in the schema of the
            stream.
        key, expected, found: JSON objects as text: the key, the row by the log, and the actual row.
        lsn: the event whose old row differs from the row after the previous event.
    """

    kind: str
    key: str | None = None
    lsn: int | None = None
    expected: str | None = None
    found: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The differences found in one table.

    Args:
        table: its name with its schema.
        told: the first TOLD_MAX differences.
        counts: kind -> number of differences.
        unknown: the unexplained rest of the sum over rows without retained events; None if it is unknown.
        kept: the sum with which the table was compared.
    """

    table: str
    told: tuple[Unlike, ...]
    counts: dict[str, int] = field(default_factory=dict)
    unknown: Sum | None = None
    kept: KeptSum | None = None

    @property
    def agrees(self) -> bool:
        """True without differences."""
        return not self.counts

    @property
    def summary(self) -> str:
        """The differences in few words; for columns the difference itself instead of its number."""
        if "columns" in self.counts:
            return self.told[0].detail or "columns"
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))


def look(cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream) -> Look:
    """Compare a stream's table with its log, without changes or remaining temporary tables.

    Raises:
        duckdb.Error: DuckDB failed.
    """
    cursor.execute("BEGIN")
    try:
        return look_within(cursor, captured, stream)
    finally:
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")


def look_within(cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream) -> Look:
    """Compare a stream's table with its log in the cursor's open transaction.

    The temporary tables FOUND and BROKEN remain until the transaction ends.

    Raises:
        duckdb.Error: DuckDB failed.
    """
    shape = captured.shape
    kept = row_sums.read_kept(cursor, captured.table_id)
    unfit = unfit_columns(cursor, captured)
    if unfit is not None:
        return Look(shown_table(shape), (Unlike("columns", detail=unfit),), {"columns": 1}, None, kept)
    counts: dict[str, int] = {}
    told: list[Unlike] = []
    explained = NOTHING
    if shape.primary_key:
        cursor.execute(f"CREATE TEMP TABLE {FOUND.rpartition('.')[2]} AS {_found_sql(captured, stream)}")
        explained = explained + _told_rows(cursor, shape, told, counts)
    left = None
    if kept is not None:
        expected = kept.sum + row_sums.change(cursor, captured, kept.lsn)
        left = row_sums.table_sum(cursor, shape) - expected
        # If the sums agree nevertheless, the rows differed already when the sum was taken.
        if left != NOTHING:
            left = left - explained
        if left != NOTHING and shape.primary_key:
            # In a compacted range the previous event of a key may be deleted.
            after_lsn = max(kept.taken_lsn, compacted_through(cursor, captured.table_id))
            sql = _broken_sql(captured, after_lsn)
            cursor.execute(f"CREATE TEMP TABLE {BROKEN.rpartition('.')[2]} AS {sql}")
            left = left - _told_broken(cursor, shape, told, counts)
        if left != NOTHING:
            counts["unknown"] = 1
            told.append(Unlike("unknown", detail=_left_text(left, shape, kept)))
    return Look(shown_table(shape), tuple(told[:TOLD_MAX]), counts, left, kept)


def unfit_columns(cursor: duckdb.DuckDBPyConnection, captured: Captured) -> str | None:
    """The difference of a table's columns and key from those of its log, or None."""
    cursor.execute(f"SELECT COLUMNS('^n[0-9]+$') FROM {captured.log} LIMIT 0")
    logged = [str(column[1]) for column in cursor.description or []]
    cursor.execute(f"SELECT {stored_names(captured.shape)} FROM {captured.shape.qualified} LIMIT 0")
    stored = [str(column[1]) for column in cursor.description or []]
    if logged != stored:
        return f"the table has columns of types {', '.join(stored)}, and its log is of {', '.join(logged)}"
    column = unfit_key_column(captured.shape.stored, captured.shape.primary_key)
    if column is not None:  # Old versions accepted such a key.
        return f'column "{column.name}" of its key is of type {column.type}, which cannot be captured'
    names = {column.name for column in captured.shape.stored}
    for stream in captured.streams:
        lost = next((name for name in stream.columns if name not in names), None)
        if lost is not None:
            return f'the table has no column "{lost}", which stream "{stream.name}" carries'
        # Columns of the log go by position: two columns that have exchanged names or positions differ.
        order = tuple(column.name for column in captured.shape.stored if column.name in stream.columns)
        if order != stream.columns:
            was, now = ", ".join(stream.columns), ", ".join(order)
            return f'stream "{stream.name}" carries columns {was}, which the table has as {now}'
    # For an altered table the names of all columns are stored with their numbers.
    known = zip(captured.shape.stored, captured.present.ids, strict=True)
    new = next((column.name for column, number in known if number < 0), None)
    if new is not None:
        return f'the table has a column "{new}" that no ALTER TABLE has told of'
    # The key of the newest event.
    key = partition_hash("n", captured.shape)
    other = ask_maybe(
        cursor,
        f"SELECT key_hash IS DISTINCT FROM ({key}) FROM {captured.log} WHERE op IN ('i','u') "
        "ORDER BY lsn DESC LIMIT 1",
    )
    return "the table has another primary key than its events" if other == (True,) else None


def last_images_sql(captured: Captured, stream: Stream) -> str:
    """A SELECT of the log rows that are the last events of their keys in the stream."""
    keys = [f"k{number}" for number in range(1, len(captured.shape.primary_key) + 1)]
    mine = f"stream_id IS NULL OR stream_id={stream.stream_id}"
    return (
        f"SELECT * FROM {captured.logged} WHERE lsn IN (SELECT max(lsn) FROM (SELECT lsn,"
        f"{keys_sql(captured.shape)} FROM {captured.logged} WHERE {mine}) GROUP BY {','.join(keys)})"
    )


def difference(captured: Captured, stream: Stream, rid: str = "NULL::BIGINT") -> Difference:
    """The difference of the rows after a stream's last events from the table's, for keys with events."""
    shape = captured.shape
    old = ",".join(f"n{i} AS o{i}" for i in range(1, len(shape.stored) + 1))
    return Difference(
        shape,
        f"SELECT {rid} AS rid,{old} FROM {LAST} WHERE op<>'d'",
        f"SELECT n.* FROM ({table_rows(shape)}) AS n SEMI JOIN {LAST} AS l ON {same_key('n', 'l', shape)}",
        f"{LAST} AS MATERIALIZED ({last_images_sql(captured, stream)})",
    )


def same_key(rows: str, logged: str, shape: TableShape) -> str:
    """SQL boolean: an image n1.. of `rows` has the key of the row `logged` of the log."""
    pairs = []
    for name in shape.primary_key:
        place = shape.place(name)
        type_ = shape.stored[place].type
        key = f"CASE WHEN {logged}.op='d' THEN {logged}.o{place + 1} ELSE {logged}.n{place + 1} END"
        pairs.append(f"{comparable(f'{rows}.n{place + 1}', type_)}={comparable(f'({key})', type_)}")
    return " AND ".join(pairs)


def keys_sql(shape: TableShape) -> str:
    """The key of a log row as k1, k2, ..."""
    places = [shape.place(name) + 1 for name in shape.primary_key]
    return ",".join(
        f"CASE WHEN op='d' THEN o{place} ELSE n{place} END AS k{number}"
        for number, place in enumerate(places, start=1)
    )


def _found_sql(captured: Captured, stream: Stream) -> str:
    found = difference(captured, stream, "lsn")
    return f"SELECT *,{found.sort_sql([])} AS sort FROM ({found.sql()})"


def _told_rows(
    cursor: duckdb.DuckDBPyConnection, shape: TableShape, told: list[Unlike], counts: dict[str, int]
) -> Sum:
    """Add the rows in FOUND to the differences; returns their part of the table's sum."""
    for sort, count in cursor.execute(f"SELECT sort,count(*) FROM {FOUND} GROUP BY 1").fetchall():
        counts[WORDS[sort]] = count
    key = f"CASE WHEN sort='d' THEN {_key_json('o', shape)} ELSE {_key_json('n', shape)} END"
    rows = cursor.execute(
        f"SELECT sort,({key})::VARCHAR,rid,CASE WHEN sort<>'i' THEN {_row_json('o', shape)} END::VARCHAR,"
        f"CASE WHEN sort<>'d' THEN {_row_json('n', shape)} END::VARCHAR FROM {FOUND} "
        f"ORDER BY 2 LIMIT {TOLD_MAX}"
    ).fetchall()
    told += [Unlike(WORDS[sort], key, lsn, old, new) for sort, key, lsn, old, new in rows]
    new, old = row_sums.hash_of("n", shape), row_sums.hash_of("o", shape)
    return Sum(
        *ask(
            cursor,
            "SELECT (count(*) FILTER (WHERE sort='i'))-(count(*) FILTER (WHERE sort='d')),"
            f"(coalesce(sum({new}) FILTER (WHERE sort<>'d'),0)"
            f"-coalesce(sum({old}) FILTER (WHERE sort<>'i'),0))::HUGEINT FROM {FOUND}",
        )
    )


def _broken_sql(captured: Captured, after_lsn: int) -> str:
    """The events whose old row differs from the row after the previous event of the same key.

    Columns: lsn; `had`, true if the event has an old row; `left_row`, true if the previous event left a row;
    o1.. the old row; n1.. the row after the previous event.
    """
    shape = captured.shape
    keys = ",".join(f"k{number}" for number in range(1, len(shape.primary_key) + 1))
    places = range(1, len(shape.stored) + 1)
    # A row of a snapshot describes the previous state as well as an old row.
    stood = [f"CASE WHEN e.op='s' THEN e.n{i} ELSE e.o{i} END" for i in places]
    columns = ",".join([*(f"{x} AS o{i}" for i, x in enumerate(stood, 1)), *(f"p.n{i}" for i in places)])
    differs = " OR ".join(
        f"{comparable(f'({x})', column.type)} IS DISTINCT FROM {comparable(f'p.n{i}', column.type)}"
        for i, (x, column) in enumerate(zip(stood, shape.stored, strict=True), start=1)
    )
    had, left, log = "(e.op<>'i')", "(p.op<>'d')", captured.logged
    return (
        f"SELECT e.lsn,{had} AS had,{left} AS left_row,{columns} FROM (SELECT lsn,"
        f"lag(lsn) OVER (PARTITION BY {keys} ORDER BY lsn) AS before_lsn FROM "
        f"(SELECT lsn,{keys_sql(shape)} FROM {log})) AS c JOIN {log} AS e ON e.lsn=c.lsn "
        f"JOIN {log} AS p ON p.lsn=c.before_lsn "
        f"WHERE c.lsn>{after_lsn} AND ({had}<>{left} OR {had} AND ({differs}))"
    )


def _told_broken(
    cursor: duckdb.DuckDBPyConnection, shape: TableShape, told: list[Unlike], counts: dict[str, int]
) -> Sum:
    """Add the events in BROKEN to the differences; returns the part of their edits in the table's sum."""
    old, new = row_sums.hash_of("o", shape), row_sums.hash_of("n", shape)
    count, *added = ask(
        cursor,
        f"SELECT count(*),(count(*) FILTER (WHERE had))-(count(*) FILTER (WHERE left_row)),"
        f"(coalesce(sum({old}) FILTER (WHERE had),0)"
        f"-coalesce(sum({new}) FILTER (WHERE left_row),0))::HUGEINT FROM {BROKEN}",
    )
    if count:
        counts["overwritten"] = count
    key = f"CASE WHEN had THEN {_key_json('o', shape)} ELSE {_key_json('n', shape)} END"
    rows = cursor.execute(
        f"SELECT ({key})::VARCHAR,lsn,CASE WHEN left_row THEN {_row_json('n', shape)} END::VARCHAR,"
        f"CASE WHEN had THEN {_row_json('o', shape)} END::VARCHAR FROM {BROKEN} ORDER BY lsn LIMIT {TOLD_MAX}"
    ).fetchall()
    told += [Unlike("overwritten", *row) for row in rows]
    return Sum(*added)


def _key_json(side: str, shape: TableShape) -> str:
    places = [shape.place(name) for name in shape.primary_key]
    return object_sql([(shape.stored[i].name, f"{side}{i + 1}", shape.stored[i].type) for i in places])


def _row_json(side: str, shape: TableShape) -> str:
    stored = enumerate(shape.stored, start=1)
    return object_sql([(column.name, f"{side}{i}", column.type) for i, column in stored])


def _left_text(left: Sum, shape: TableShape, kept: KeptSum) -> str:
    which = "rows without retained events differ" if shape.primary_key else "rows differ"
    balance = balance_text(left.rows)
    return f"{which}: {balance}, by the row-hash sum that was taken after LSN {kept.taken_lsn}"


def balance_text(more: int) -> str:
    """The text of a surplus or lack of rows."""
    if not more:
        return "as many rows as there should be"
    return f"{abs(more)} {'more' if more > 0 else 'fewer'} rows than there should be"


def made_again(captured: Captured) -> str:
    """The hint for a table that RESYNC cannot repair; its differences concern all of its streams."""
    if captured.may_go:
        table = shown_name(captured.shape.name)
        return f"DROP TABLE {table} takes it out of the stream, which goes on; made again it comes in anew."
    if len(captured.streams) > 1:
        return (
            "DROP STREAM all that are on the table, and then make them again, WITH (snapshot = 'initial') to "
            "begin with its rows."
        )
    return "DROP STREAM and CREATE STREAM ... WITH (snapshot = 'initial')."


def unlike_error(stream: Stream, captured: Captured, differs: str) -> WrongState:
    """The error for reads of a stream whose table differs from its log."""
    table = f'table "{captured.shape.name}"'
    if captured.shape.primary_key:
        name = shown_name(stream.name)
        hint = (
            f"CHECK STREAM {name} lists what differs, "
            f"ALTER STREAM {name} RESYNC mends it where the columns are the same."
        )
    else:
        hint = f"Without a primary key it cannot be mended. {made_again(captured)}"
    return WrongState(
        f'stream "{stream.name}" does not agree with {table}',
        detail=f"The table was written past ducktail: {differs}.",
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class _RowCounts:
    """The counts of a table whose columns match.

    Args:
        rows: its number of rows.
        logged: number of log rows since its stored sum.
        more: its surplus of rows.
        value_bytes: approximate bytes of its values and those of these log rows; 0 for too many rows.
    """

    captured: Captured
    kept: KeptSum
    rows: int
    logged: int
    more: int
    value_bytes: int


def mark_unlike(cursor: duckdb.DuckDBPyConnection, catalog: Catalog, damaged: Container[int]) -> None:
    """Mark the tables that differ from their logs, so that their readers get an error.

    Args:
        damaged: streams whose logs are known to be damaged.
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
        except (duckdb.Error, DucktailError) as error:  # Reads of a damaged table report the error.
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


def _count(
    cursor: duckdb.DuckDBPyConnection, captured: Captured, accepted_lsn: int
) -> _RowCounts | str | None:
    """Count a table's rows; a text is a mismatch of columns, None a table that cannot be checked.

    Args:
        accepted_lsn: the LSN up to which missing events were accepted.
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
    if rows + logged <= SUMMED_ROWS_MAX:  # Otherwise it is not summed.
        value_bytes = _value_bytes(cursor, [captured.shape.qualified, *(captured.logs if logged else ())])
    return _RowCounts(captured, kept, rows, logged, rows - (kept.sum.rows + added - taken), value_bytes)


def _value_bytes(cursor: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> int:
    """The approximate bytes of the values of tables, from DuckDB's metadata of their segments."""
    segments = " UNION ALL ".join(
        f"FROM system.main.pragma_storage_info({literal(table)})" for table in tables
    )
    (found,) = ask(
        cursor,
        f"SELECT coalesce(sum(count * {_VALUE_BYTES} + coalesce(stats.total_string_length::BIGINT, 0)), 0)"
        f"::BIGINT FROM ({segments}) WHERE segment_type <> 'VALIDITY'",
    )
    return int(found)


def _sums_agree(cursor: duckdb.DuckDBPyConnection, found: _RowCounts) -> bool:
    captured, kept = found.captured, found.kept
    try:
        expected = kept.sum + row_sums.change(cursor, captured, kept.lsn)
        return row_sums.table_sum(cursor, captured.shape) == expected
    except duckdb.Error as error:
        logger.error("%s cannot be summed: %s", captured.shown_name, translated(error).message)
        return True


def _mark(cursor: duckdb.DuckDBPyConnection, captured: Captured, differs: str) -> None:
    logger.error("%s was written past ducktail: %s", captured.shown_name, differs)
    with in_one_transaction(cursor):
        cursor.execute(row_sums.mark_statement(captured.table_id, differs)).fetchall()
