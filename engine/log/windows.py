"""Windows over a log: log rows until their events take so many bytes.

Rows may be of any size, so a number of them bounds nothing: 8,192 documents of a megabyte would be 8 GB of
JSON.
Source: docs/design/engine.md, "Memory".
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np

from ..duck.cursors import arrow_table, ask
from .queries import Events

# Bytes of the events that are made of a log at once, about; one event may be larger. They are there three
# times while they are encoded: DuckDB's, Arrow's and the rows. DuckDB unpacks a column 2,048 rows at a time,
# whatever part of them is asked for: with much less, large rows would be unpacked many times over.
WINDOW_BYTES_MAX = 32 << 20
# LSNs of one query of the log where all is read: its events are sorted, and held in memory, at once.
WINDOW_LSNS = 32_768
# Log rows that are taken without asking how large they are: the question costs some two milliseconds.
UNASKED_ROWS = 32


def windows(
    cursor: duckdb.DuckDBPyConnection,
    events: Events,
    first_lsn: int,
    last_lsn: int,
    unasked: int = UNASKED_ROWS,
) -> Iterator[tuple[int, int]]:
    """A range of a log in parts, each to be read at once: their first and last LSNs.

    LSNs that no row has, as a raised incarnation leaves a trillion of them, are passed over.

    Args:
        unasked: log rows that are taken as they are.

    Raises:
        duckdb.Error: a question's.
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
    """The LSNs at which a range is parted, so that what lies between can be read at once; none without rows.

    Args:
        events: of the logs that may have LSNs of this range, which has some ten thousand rows at the most.

    Raises:
        duckdb.Error: the question's.
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
    """About how many bytes the events of a range of a log take."""
    where = f"lsn BETWEEN {first_lsn} AND {last_lsn}"
    (size,) = ask(cursor, f"SELECT coalesce(sum(bytes), 0)::BIGINT FROM {events.sizes} WHERE {where}")
    return int(size)
