"""CHECK STREAM: a captured table compared with its log; and the check of tables at an opening.

CHECK STREAM makes three comparisons, all in one MVCC snapshot, so that writers go on meanwhile:

1. Each key that has retained events of the stream: the row that its last event left with the table's.
2. The table's row-hash sum and number of rows with those of the last commit (`row_sums.py`). The
   differences of the first comparison explain a part of a difference here.
3. Where a part is left unexplained: each event's old row with the row that the event of the key before it
   left. This finds an edit that a captured write has overwritten since, unless the log has been compacted
   there.

A difference that is then left is of rows without retained events: some of them differ, and which is not
known. No comparison tells a value from one that compares equal, nor an edit that was undone. Differences
are kept with the sum, and every read of the table's streams fails with them until RESYNC has mended the
table.

An opening looks for tables that were written past ducktail, only where somebody may have written the file
since ducktail closed it (`storage/opening.py`). It compares columns and key, the number of rows, and the
row-hash sum. Counting rows costs next to nothing; summing reads them, and is done for as many as an opening
has time for. A table that was dropped and made again is found by its contents, as any other edit is. Which
rows differ is CHECK STREAM's to say. Source: docs/checks.md.
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

# Differences that are told one by one; the rest are counted. Each has two rows as JSON.
TOLD_MAX = 10_000
# The temporary tables of one look.
FOUND = f"temp.main.{RESERVED_PREFIX}_found"
BROKEN = f"temp.main.{RESERVED_PREFIX}_broken"
LAST = f"{RESERVED_PREFIX}_last"
# A difference as a row of an answer.
# Sort of a differing row -> what it is called.
WORDS = {"u": "changed", "d": "missing", "i": "unexpected"}
logger = logging.getLogger(__name__)
# What one opening sums of tables and their logs, the smallest first: half a second or so where rows are
# narrow, and one or two where they are wide.
SUMMED_ROWS_MAX = 10_000_000
SUMMED_BYTES_MAX = 2 << 30
# What a value takes beside its text.
_VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Unlike:
    """One difference.

    Args:
        kind: 'changed', 'missing' and 'unexpected' are of rows, as they are in the table; 'overwritten' is
            of an edit that a captured write has gone over; 'unknown' of rows that cannot be named;
            'columns' of the table's columns, which are not those of its log; 'table' of one that has come
            past ducktail into a schema that the stream is over.
        key, expected, found: JSON objects as text: the row by the log, and the row that was there.
        lsn: the event whose old row is another than the one before it left.
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
        told: up to TOLD_MAX differences one by one.
        counts: kind -> how many there are.
        unknown: what the rows without retained events add up to more than they should; None where that
            cannot be told.
        kept: the sum that the table was held against.
    """

    table: str
    told: tuple[Unlike, ...]
    counts: dict[str, int] = field(default_factory=dict)
    unknown: Sum | None = None
    kept: KeptSum | None = None

    @property
    def agrees(self) -> bool:
        """True if nothing was found."""
        return not self.counts

    @property
    def summary(self) -> str:
        """The differences in few words; of columns the difference itself, as their number says nothing."""
        if "columns" in self.counts:
            return self.told[0].detail or "columns"
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))


def look(cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream) -> Look:
    """Hold a stream's table against its log; nothing is changed, and no temporary table stays.

    Raises:
        duckdb.Error: what DuckDB said.
    """
    cursor.execute("BEGIN")
    try:
        return look_within(cursor, captured, stream)
    finally:
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")


def look_within(cursor: duckdb.DuckDBPyConnection, captured: Captured, stream: Stream) -> Look:
    """The same in the cursor's open transaction; FOUND and BROKEN stay in it.

    Raises:
        duckdb.Error: what DuckDB said.
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
        # Where the sums agree all the same, the sum was taken when the rows differed already.
        if left != NOTHING:
            left = left - explained
        if left != NOTHING and shape.primary_key:
            # In what has been compacted the event of a key before an event may have gone.
            after_lsn = max(kept.taken_lsn, compacted_through(cursor, captured.table_id))
            sql = _broken_sql(captured, after_lsn)
            cursor.execute(f"CREATE TEMP TABLE {BROKEN.rpartition('.')[2]} AS {sql}")
            left = left - _told_broken(cursor, shape, told, counts)
        if left != NOTHING:
            counts["unknown"] = 1
            told.append(Unlike("unknown", detail=_left_text(left, shape, kept)))
    return Look(shown_table(shape), tuple(told[:TOLD_MAX]), counts, left, kept)


def unfit_columns(cursor: duckdb.DuckDBPyConnection, captured: Captured) -> str | None:
    """The difference of a table's columns and key from those of its log; None where they are the same."""
    cursor.execute(f"SELECT COLUMNS('^n[0-9]+$') FROM {captured.log} LIMIT 0")
    logged = [str(column[1]) for column in cursor.description or []]
    cursor.execute(f"SELECT {stored_names(captured.shape)} FROM {captured.shape.qualified} LIMIT 0")
    stored = [str(column[1]) for column in cursor.description or []]
    if logged != stored:
        return f"the table has columns of types {', '.join(stored)}, and its log is of {', '.join(logged)}"
    column = unfit_key_column(captured.shape.stored, captured.shape.primary_key)
    if column is not None:  # Versions of old took such a key.
        return f'column "{column.name}" of its key is of type {column.type}, which cannot be captured'
    names = {column.name for column in captured.shape.stored}
    for stream in captured.streams:
        lost = next((name for name in stream.columns if name not in names), None)
        if lost is not None:
            return f'the table has no column "{lost}", which stream "{stream.name}" carries'
        # Rows are by place in the log: two columns that have changed their names, or places, are others.
        order = tuple(column.name for column in captured.shape.stored if column.name in stream.columns)
        if order != stream.columns:
            was, now = ", ".join(stream.columns), ", ".join(order)
            return f'stream "{stream.name}" carries columns {was}, which the table has as {now}'
    # Of a table that was altered the names of all columns are kept, with their numbers.
    known = zip(captured.shape.stored, captured.present.ids, strict=True)
    new = next((column.name for column, number in known if number < 0), None)
    if new is not None:
        return f'the table has a column "{new}" that no ALTER TABLE has told of'
    # What the newest event was told apart by.
    key = partition_hash("n", captured.shape)
    other = ask_maybe(
        cursor,
        f"SELECT key_hash IS DISTINCT FROM ({key}) FROM {captured.log} WHERE op IN ('i','u') "
        "ORDER BY lsn DESC LIMIT 1",
    )
    return "the table has another primary key than its events" if other == (True,) else None


def last_images_sql(captured: Captured, stream: Stream) -> str:
    """A SELECT of the log's rows that are the last events of their keys, as the stream has them."""
    keys = [f"k{number}" for number in range(1, len(captured.shape.primary_key) + 1)]
    mine = f"stream_id IS NULL OR stream_id={stream.stream_id}"
    return (
        f"SELECT * FROM {captured.logged} WHERE lsn IN (SELECT max(lsn) FROM (SELECT lsn,"
        f"{keys_sql(captured.shape)} FROM {captured.logged} WHERE {mine}) GROUP BY {','.join(keys)})"
    )


def difference(captured: Captured, stream: Stream, rid: str = "NULL::BIGINT") -> Difference:
    """The rows that the last events of a stream left against the table's, of the keys that have events."""
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
    """The key of a row of the log as k1, k2, ..."""
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
    """Tell of the rows in FOUND; gives what they add to the table's sum."""
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
    """The events whose old row is not the one that the event before it, of the same key, left.

    Columns: lsn, `had` and `left_row`: whether the event had an old row, and the one before it left a row;
    o1.. that old row, n1.. the one that was left.
    """
    shape = captured.shape
    keys = ",".join(f"k{number}" for number in range(1, len(shape.primary_key) + 1))
    places = range(1, len(shape.stored) + 1)
    # A row of a snapshot says what there was as well as an old row does.
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
    """Tell of the events in BROKEN; gives what the edits before them added to the table's sum."""
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
    """The text of how many rows there are more than there should be."""
    if not more:
        return "as many rows as there should be"
    return f"{abs(more)} {'more' if more > 0 else 'fewer'} rows than there should be"


def made_again(captured: Captured) -> str:
    """The advice where RESYNC cannot mend a table; the differences found in it concern all of its streams."""
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
    """The error of reads of a stream whose table does not agree with its log."""
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
    """About the bytes of the values of tables: from DuckDB's facts on each of their segments, unread."""
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
    with in_one_transaction(cursor):
        cursor.execute(row_sums.mark_statement(captured.table_id, differs)).fetchall()
