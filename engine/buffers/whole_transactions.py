"""Where the n-th transaction of a scan ends: LIMIT n TRANSACTIONS.

Events of a transaction stand together in the order of LSNs, and their txid rises with it. In the buffers
the ends are looked for among ready rows, by bisection, so that of a large transaction a few rows a page are
looked at. In the log they are a grouped query over ranges of whole transactions, which makes no event
and holds no row. Source: docs/design/engine.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import duckdb

from ..asking import ask_maybe
from ..log.log import EVENT_NAMES
from ..log.queries import Again, Events
from ..schema import SCHEMA
from ..values import datarow
from .buffer import StreamBuffer

TXID = EVENT_NAMES.index("txid")
# Ready rows that are looked at together, at first and at most: a page costs a slice in each partition.
PAGE_ROWS, PAGE_ROWS_MAX = 256, 8192
# Transactions whose events are looked for together in the log, at least.
WINDOW_TRANSACTIONS = 1024


def end_in_buffer(buffer: StreamBuffer, after: Mapping[int, int], through_lsn: int, count: int) -> int | None:
    """LSN of the last buffered event of the `count`-th transaction after a position.

    Args:
        after: partition -> LSN, of the partitions that are scanned.

    Returns:
        `through_lsn` where there are no more than `count`; None where the buffers do not reach.
    """
    after = dict(after)
    size, seen, txid, end = PAGE_ROWS, 0, 0, 0
    while True:
        page = buffer.read(after, through_lsn, size)
        if page is None:
            return None
        place = 0
        while place < len(page.rows):
            found = txid_of(page.rows[place])
            if found != txid:
                seen, txid = seen + 1, found
                if seen > count:
                    return end
            place = _end_of(page.rows, place, txid)
            end = page.lsns[place - 1]
        if page.exhausted:
            return through_lsn
        if page.lsns:
            after = {number: max(lsn, page.lsns[-1]) for number, lsn in after.items()}
        size = min(2 * size, PAGE_ROWS_MAX)


def txid_of(row: bytes) -> int:
    """The transaction of a ready event."""
    value = datarow.field(row, TXID)
    assert value is not None
    return int(value)


def _end_of(rows: Sequence[bytes], place: int, txid: int) -> int:
    """The first place behind a transaction's rows, of which one stands at `place`."""
    low, step = place, 1
    while low + step < len(rows) and txid_of(rows[low + step]) == txid:
        low, step = low + step, 2 * step
    high = min(low + step, len(rows))
    while high - low > 1:
        middle = (low + high) // 2
        if txid_of(rows[middle]) == txid:
            low = middle
        else:
            high = middle
    return high


def end_in_log(
    cursor: duckdb.DuckDBPyConnection,
    query: Events,
    starts: Sequence[int],
    through_lsn: int,
    count: int,
    aside: tuple[Callable[[int, int], str], Callable[[int, int], Again | None]] | None = None,
) -> int:
    """LSN of the last event in the log of the `count`-th transaction after a position.

    Args:
        starts: the LSN after which each partition is read, partition 0 first; `through_lsn` for those
            that are not.
        aside: of a group with parked events: what takes them out of a range of LSNs, as a predicate that
            goes on, and what is given again in one.

    Returns:
        `through_lsn` where there are no more than `count`.
    """
    first = True
    low, width = min(starts), max(WINDOW_TRANSACTIONS, count + 1)
    while low < through_lsn or (first and aside is not None):
        high = _end_of_window(cursor, low, through_lsn, width)
        after = f"[{', '.join(map(str, starts))}][partition + 1]"
        window = f"lsn > {low} AND lsn <= {high}" + ("" if aside is None else aside[0](low, high))
        events = query.window(cursor, low, high).sql(window, "false")
        events = f"SELECT lsn, txid FROM ({events}) WHERE lsn > {after}"
        again = None if aside is None else aside[1](-1 if first else low, high)
        if again is not None:
            events += f" UNION ALL SELECT lsn, txid FROM ({again.events.sql(again.where, 'false')})"
        first = False
        row = ask_maybe(
            cursor,
            f"WITH ends AS (SELECT txid, max(lsn) AS lsn FROM ({events}) GROUP BY txid) "
            f"SELECT count(*), (SELECT lsn FROM ends ORDER BY txid LIMIT 1 OFFSET {count - 1}) FROM ends",
        )
        assert row is not None
        if row[1] is not None:
            return int(row[1])
        low, width, count = high, 2 * width, count - int(row[0])
    return through_lsn


def _end_of_window(cursor: duckdb.DuckDBPyConnection, low: int, through_lsn: int, transactions: int) -> int:
    """The last LSN of so many transactions behind one LSN."""
    row = ask_maybe(
        cursor,
        f"SELECT last_lsn FROM {SCHEMA}.commits WHERE last_lsn > {low} AND last_lsn >= first_lsn "
        f"ORDER BY txid LIMIT 1 OFFSET {transactions - 1}",
    )
    return through_lsn if row is None else min(through_lsn, int(row[0]))
