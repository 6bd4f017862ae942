"""Windows over a log: ranges of rows whose events have a bounded size.

Rows may be of any size, so a number of rows is no bound: 8,192 documents of a megabyte would be 8 GB of JSON.
Source: docs/design/engine.md, "Memory".
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np

from ..duck.cursors import arrow_table, ask
from .queries import Events

# Approximate bytes of the events that are read from a log at once; one event may be larger. While they are
# encoded they exist three times: in DuckDB, in Arrow and as rows. DuckDB unpacks a column 2,048 rows at a
# time, even for a part of them: with a much smaller bound, large rows would be unpacked many times.
WINDOW_BYTES_MAX = 32 << 20
# LSNs of one query when a whole log is read: its events are sorted and held in memory at once.
WINDOW_LSNS = 32_768
# Number of LSNs read without measuring their size first: the query costs about two milliseconds.
UNASKED_ROWS = 32


def windows(
    cursor: duckdb.DuckDBPyConnection,
    events: Events,
    first_lsn: int,
    last_lsn: int,
    unasked: int = UNASKED_ROWS,
) -> Iterator[tuple[int, int]]:
    """The first and last LSNs of the parts of a range of a log, each small enough to be read at once.

    LSNs without rows are skipped: a raised incarnation leaves a trillion of them.

    Args:
        unasked: number of LSNs up to which a range is read without measuring its size.

    Raises:
        duckdb.Error: a query fails.
    """
    start: int | None = first_lsn
    while start is not None and start <= last_lsn:
        end = min(start + WINDOW_LSNS - 1, last_lsn)
        found = cuts(cursor, events.between(start, end), start - 1, end, unasked)
        for cut in found:
            yield start, cut
            start = cut + 1
        if not found:
            rest = events.between(start, last_lsn).lsns
            (start,) = ask(cursor, f"SELECT min(lsn) FROM {rest} WHERE lsn BETWEEN {start} AND {last_lsn}")


def cuts(
    cursor: duckdb.DuckDBPyConnection,
    events: Events,
    after_lsn: int,
    through_lsn: int,
    unasked: int = UNASKED_ROWS,
) -> list[int]:
    """The last LSNs of the parts of a range, each small enough to be read at once; empty without rows.

    Args:
        events: the query of the logs that may have LSNs of this range, of at most some ten thousand rows.

    Raises:
        duckdb.Error: the query fails.
    """
    if through_lsn - after_lsn <= unasked:
        return [through_lsn]
    where = f"lsn > {after_lsn} AND lsn <= {through_lsn}"
    rows = arrow_table(cursor.execute(f"SELECT lsn, bytes FROM {events.sizes} WHERE {where} ORDER BY lsn"))
    if not rows.num_rows:
        return []
    totals = np.cumsum(rows.column(1).to_numpy())
    ends = np.flatnonzero(np.diff(totals // WINDOW_BYTES_MAX))
    return [*rows.column(0).to_numpy()[ends].tolist(), through_lsn]


def log_bytes(cursor: duckdb.DuckDBPyConnection, events: Events, first_lsn: int, last_lsn: int) -> int:
    """The approximate size of the events of a range of a log in bytes."""
    where = f"lsn BETWEEN {first_lsn} AND {last_lsn}"
    (size,) = ask(cursor, f"SELECT coalesce(sum(bytes), 0)::BIGINT FROM {events.sizes} WHERE {where}")
    return int(size)
