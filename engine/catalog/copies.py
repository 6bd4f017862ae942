"""Whole copies: a table as of one LSN, read by one consumer group only, before the events after that LSN.

A copy has LSNs of its own, reserved when its MVCC snapshot was fixed: no event has them. Its rows are in a
table with the form of a log (`copy_N`), ordered by partition and LSN. So a read of its group continues from
the copy's rows to the stream's events in rising order of LSNs, and a committed LSN is the group's position in
both. Other readers do not see them.

Reserved LSNs have rows in `commits`, one for each `CHUNK_ROWS`: each is a transaction for readers. The rows
of `group_copies` list these LSNs, which are in no log, for the audit at open, including those of dropped
copies, as long as `commits` has their rows. Source: docs/design/copies.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import duckdb

from ..quoting import literal
from ..schema import SCHEMA

# Rows of one transaction of a copy: the result of LIMIT 1 TRANSACTIONS, which a client holds at once.
CHUNK_ROWS = 1000
# The group id of copies without a group: being made, or dropped.
NOBODY = 0
TABLE = f"{SCHEMA}.group_copies"
# The name of a table of a copy's rows, before the copy's number.
PREFIX = "copy_"


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole copy of a table.

    Args:
        group_id: the group that reads it.
        version: the version of the table at that time.
        first_lsn, last_lsn: the reserved LSNs; for an empty table `last_lsn` is `first_lsn` - 1.
        first_txid: the txid of its first chunk.
        made_us: the time at which its MVCC snapshot was fixed, microseconds since 1970.
        rows: the number of its rows.
        spans: partition -> first and last LSN of its rows there, except for partitions without rows and
            partitions that SEEK has moved elsewhere. Empty once everything is read and its table is dropped.
    """

    copy_id: int
    group_id: int
    stream_id: int
    version: int
    first_lsn: int
    last_lsn: int
    first_txid: int
    made_us: int
    rows: int = 0
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def base_lsn(self) -> int:
        """The LSN as of which the copy was made: it includes every event up to there."""
        return self.first_lsn - 1

    @property
    def table(self) -> str:
        """The qualified name of the table of its rows."""
        return f"{SCHEMA}.{PREFIX}{self.copy_id}"

    @property
    def chunks(self) -> int:
        """The number of transactions of its reserved LSNs."""
        return -(-(self.last_lsn - self.base_lsn) // CHUNK_ROWS)

    @property
    def last_txid(self) -> int:
        """The txid of its last chunk; for an empty copy `first_txid` - 1."""
        return self.first_txid + self.chunks - 1

    @property
    def lines_sql(self) -> str:
        """SELECT of its rows of `commits`, which retention may have deleted from there."""
        first = f"{self.first_lsn} + i * {CHUNK_ROWS}"
        return (
            f"SELECT ({self.first_txid} + i)::BIGINT AS txid, ({first})::BIGINT AS first_lsn, "
            f"least({first} + {CHUNK_ROWS - 1}, {self.last_lsn})::BIGINT AS last_lsn, "
            f"make_timestamptz({self.made_us}) AS commit_time, NULL::VARCHAR AS annotation "
            f"FROM range({self.chunks}) AS r(i)"
        )

    def chunk_end(self, lsn: int) -> int | None:
        """The last LSN of the chunk that contains an LSN; None if the copy does not have it."""
        if not self.first_lsn <= lsn <= self.last_lsn:
            return None
        place = (lsn - self.first_lsn) // CHUNK_ROWS
        return min(self.base_lsn + (place + 1) * CHUNK_ROWS, self.last_lsn)

    def left(self, partition: int, lsn: int) -> int:
        """The number of its unread rows for a reader at an LSN of a partition."""
        span = self.spans.get(partition)
        if span is None or not self.base_lsn <= lsn < span[1]:
            return 0
        return span[1] - max(lsn, span[0] - 1)

    def has(self, lsn: int) -> bool:
        """True if an LSN is a position in it: its beginning, or one of its reserved LSNs."""
        return self.base_lsn <= lsn <= self.last_lsn

    def withholds(self, partition: int, lsn: int, after: int) -> bool:
        """True if an LSN is its own but unreachable behind `after`, because SEEK has left the copy there."""
        return self.first_lsn <= lsn <= self.last_lsn and not self.left(partition, after)

    def last_at(self, partition: int, lsn: int) -> int:
        """The LSN of the partition's last row at or before an LSN, 0 without one."""
        span = self.spans.get(partition)
        return 0 if span is None or lsn < span[0] else min(span[1], lsn)

    def at(self, after: Mapping[int, int]) -> Copy | None:
        """The part of it for a read from these positions (partition -> LSN); None for no rows."""
        spans = {number: self.spans[number] for number, lsn in after.items() if self.left(number, lsn)}
        return replace(self, spans=spans) if spans else None

    def start(self, partition: int, lsn: int) -> int:
        """The LSN after which the same reader finds the partition's next row or event."""
        if not self.has(lsn):
            return lsn
        return max(lsn, self.spans[partition][0] - 1) if self.left(partition, lsn) else self.last_lsn

    def without(self, partitions: set[int]) -> Copy:
        """The copy without these partitions."""
        return replace(self, spans={n: span for n, span in self.spans.items() if n not in partitions})

    def spans_sql(self) -> str:
        """SQL boolean on a row: its partition is read."""
        ranges: list[tuple[int, int]] = []
        for first, last in sorted(self.spans.values()):
            if ranges and ranges[-1][1] + 1 == first:
                ranges[-1] = ranges[-1][0], last
            else:
                ranges.append((first, last))
        return " OR ".join(f"lsn BETWEEN {first} AND {last}" for first, last in ranges) or "false"

    def insert_sql(self) -> str:
        """INSERT of its row of the catalog."""
        return (
            f"INSERT INTO {TABLE} (copy_id, group_id, stream_id, version, first_lsn, last_lsn, first_txid, "
            f"made_at, rows, spans) VALUES ({self.copy_id}, {self.group_id}, {self.stream_id}, "
            f"{self.version}, {self.first_lsn}, {self.last_lsn}, {self.first_txid}, "
            f"make_timestamptz({self.made_us}), {self.rows}, {literal(_spans_text(self.spans))})"
        )

    def delete_sql(self) -> str:
        """DELETE of its row of the catalog."""
        return f"DELETE FROM {TABLE} WHERE copy_id = {self.copy_id}"

    def update_sql(self) -> str:
        """UPDATE of its partitions in its row of the catalog."""
        return f"UPDATE {TABLE} SET spans = {literal(_spans_text(self.spans))} WHERE copy_id = {self.copy_id}"


def forget_sql(groups: str) -> str:
    """SQL that detaches the copies of groups; retention then drops their tables.

    Args:
        groups: SQL of the groups' ids.
    """
    return f"UPDATE {TABLE} SET group_id = {NOBODY}, spans = '{{}}' WHERE group_id IN ({groups})"


def copy_tables(cursor: duckdb.DuckDBPyConnection) -> list[tuple[int, str]]:
    """Number and qualified name of each table of a copy's rows."""
    rows = cursor.execute(
        "SELECT table_name FROM system.main.duckdb_tables() WHERE database_name = current_database() "
        f"AND schema_name = '{SCHEMA}' AND regexp_matches(table_name, '^{PREFIX}[0-9]+$')"
    ).fetchall()
    return [(int(name.removeprefix(PREFIX)), f"{SCHEMA}.{name}") for (name,) in rows]


def _spans_text(spans: Mapping[int, tuple[int, int]]) -> str:
    return json.dumps({str(number): list(span) for number, span in sorted(spans.items())})


def _spans(text: str) -> dict[int, tuple[int, int]]:
    return {int(number): (first, last) for number, (first, last) in json.loads(text).items()}


def read_copies(cursor: duckdb.DuckDBPyConnection) -> dict[int, Copy]:
    """Group id -> its copy, in the cursor's MVCC snapshot."""
    rows = cursor.execute(
        f"SELECT copy_id, group_id, stream_id, version, first_lsn, last_lsn, first_txid, epoch_us(made_at), "
        f"rows, spans FROM {TABLE} WHERE group_id <> {NOBODY}"
    ).fetchall()
    return {row[1]: replace(Copy(*row[:9]), spans=_spans(row[9])) for row in rows}
