"""The events that a group with a whole copy reads: the copy's rows as snapshot events, and the stream's.

The copy's table has the form of a log of the table's version of then, so its rows are one more part of the
stream's SELECT, with LSNs that no other part has. Source: docs/design/copies.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..catalog.captured_tables import Captured
from ..catalog.catalog import Catalog
from ..catalog.copies import CHUNK_ROWS, Copy
from ..catalog.streams import Stream
from ..log.log import HIDDEN, Commit, side_log
from ..log.queries import EventQuery, Events, LogEvents
from ..partitioning import hash_sql
from ..quoting import ident
from ..schema import SCHEMA


@dataclass(frozen=True, slots=True)
class CopyQuery(EventQuery):
    """The rows of a copy, as events: those of the partitions in its `spans`."""

    copy: Copy

    @property
    def log(self) -> str:
        """The table that is read; what is parked of it is kept with what is parked of its version's log."""
        return side_log(self.source.log) if self.copies else self.copy.table

    @property
    def commits(self) -> str:
        """The lines of its chunks, however long `commits` keeps them."""
        return f"{SCHEMA}.parked_commits" if self.copies else f"({self.copy.lines_sql})"

    @property
    def first_lsn(self) -> int:
        """See LogEvents."""
        return self.copy.first_lsn

    def _mine(self, where: str) -> str:
        return f"({where})" if self.copies else f"({where}) AND ({self.copy.spans_sql()})"


@dataclass(frozen=True, slots=True)
class CopiedEvents(Events):
    """A stream's events with the rows of a copy among them."""

    events: Events
    copied: CopyQuery

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events; the copy's rows first."""
        return (self.copied, *self.events.parts)

    @property
    def lsns(self) -> str:
        """See Events."""
        return f"(SELECT lsn FROM {self.copied.log} UNION ALL SELECT lsn FROM {self.events.lsns})"

    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """See Events."""
        inner, copy = self.events.between(first_lsn, last_lsn), self.copied.copy
        if first_lsn <= copy.last_lsn and copy.first_lsn <= last_lsn:
            return replace(self, events=inner)
        return inner

    @property
    def newest(self) -> Events:
        """See Events."""
        return self.events.newest

    def holding(self, lsns: Collection[int]) -> Events:
        """See Events."""
        inner, copy = self.events.holding(lsns), self.copied.copy
        return replace(self, events=inner) if any(copy.has(lsn) for lsn in lsns) else inner

    def parked(self) -> Events:
        """See Events: copies of its rows are where those of its version's log are."""
        return self.events.parked()

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        return _both(self.copied.sql(where, last), self.events.sql(where, last, commit, txids))

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events."""
        return _both(self.copied.whole_sql(where, whole), self.events.whole_sql(where, whole))


def _both(copied: str, events: str) -> str:
    # A query of its own: what is put behind it is of both.
    return f"SELECT * FROM ({copied} UNION ALL {events})"


def with_copy(catalog: Catalog, stream: Stream, events: Events, copy: Copy) -> CopiedEvents:
    """A stream's events with the rows of a copy of its table."""
    with catalog.mutex:
        captured = catalog.table_by_id(stream.table_id)
    return CopiedEvents(stream, events, copy_query(captured, captured.part_of(stream), copy))


def copy_query(captured: Captured, stream: Stream, copy: Copy) -> CopyQuery:
    """The rows of a copy, by the names that the columns had when it was made."""
    version = next(one for one in captured.versions if one.version == copy.version)
    return CopyQuery(captured.stream_in(stream, version), captured.only(version), copy)


def fill_sql(captured: Captured, stream: Stream, copy: Copy) -> str:
    """Make the table of a copy's rows from the table's: by partition, numbered from `copy.first_lsn` on.

    Args:
        captured: in the copy's version.
    """
    shape = captured.shape
    types = {column.name: column.type for column in shape.stored}

    def hashed(names: Sequence[str]) -> str:
        return hash_sql([(ident(name), types[name]) for name in names])

    key = hashed(shape.primary_key) if shape.primary_key else "NULL"
    if stream.partitions == 1:
        partition = "0"
    elif stream.partition_by == shape.primary_key:
        partition = f"{HIDDEN}hash % {stream.partitions}"
    else:
        partition = f"{hashed(stream.partition_by)} % {stream.partitions}"
    places = range(1, len(shape.stored) + 1)
    values = ", ".join(f"{ident(c.name)} AS {HIDDEN}n{p}" for p, c in zip(places, shape.stored, strict=True))
    head = f"{key}::UINTEGER AS {HIDDEN}hash, {values}, {partition} AS {HIDDEN}partition"
    rows = f"SELECT {head} FROM {shape.qualified}"
    if stream.filter is not None:
        # As the stream takes it: a row on which it fails does not match.
        rows += f" WHERE coalesce(TRY(({stream.filter})::BOOLEAN), false)"
    if stream.partitions > 1:
        rows += f" ORDER BY {HIDDEN}partition"
    old = ", ".join(f"NULL::{c.type} AS o{p}" for p, c in zip(places, shape.stored, strict=True))
    new = ", ".join(f"{HIDDEN}n{p} AS n{p}" for p in places)
    return (
        f"CREATE TABLE {copy.table} AS SELECT ({copy.base_lsn} + place)::BIGINT AS lsn, "
        f"({copy.first_txid} + (place - 1) // {CHUNK_ROWS})::BIGINT AS txid, 's' AS op, "
        f"{stream.stream_id}::INTEGER AS stream_id, NULL::BIGINT AS rid, {HIDDEN}hash AS key_hash, "
        f"NULL::INTEGER AS key_change, {old}, {new} "
        f"FROM (SELECT *, row_number() OVER () AS place FROM ({rows}))"
    )


def spans_sql(query: CopyQuery) -> str:
    """Each partition's number, first and last LSN, and how many rows it has."""
    return (
        f"SELECT {query.partition_sql()} AS p, min(lsn), max(lsn), count(*) "
        f"FROM (SELECT * FROM {query.log}) AS l GROUP BY p ORDER BY p"
    )
