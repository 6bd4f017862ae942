"""The events of a stream over all its logs: versions of a table, and several tables."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import duckdb

from ..streams.captured import Captured
from ..streams.catalog import Catalog
from ..streams.streams import Stream
from .log import Commit, end_of_transaction
from .queries import Events, LogEvents
from .table_query import EventQuery
from .topic_query import TopicQuery


@dataclass(frozen=True, slots=True)
class VersionsQuery(Events):
    """The events of a stream on a table that has several versions, each with a log of its own.

    A transaction that has changed the table has events in two of them, or in more.

    Args:
        versions: the query of each, oldest first.
    """

    versions: tuple[EventQuery, ...]

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events."""
        return self.versions

    @property
    def lsns(self) -> str:
        """See Events."""
        return f"({' UNION ALL '.join(f'SELECT lsn FROM {part.log}' for part in self.versions)})"

    def between(self, first_lsn: int, last_lsn: int) -> EventQuery | VersionsQuery:
        """See Events."""
        ends = [*(part.captured.first_lsn - 1 for part in self.versions[1:]), None]
        return self._of(
            [
                part
                for part, end in zip(self.versions, ends, strict=True)
                if part.captured.first_lsn <= last_lsn and (end is None or first_lsn <= end)
            ]
        )

    @property
    def newest(self) -> EventQuery:
        """See Events."""
        return self.versions[-1]

    def holding(self, lsns: Collection[int]) -> EventQuery | VersionsQuery:
        """See Events."""
        first_lsn = self.versions[0].first_lsn
        found = [self.between(lsn, lsn) for lsn in lsns if lsn >= first_lsn]
        return self._of([part for part in self.versions if part in found])

    def _of(self, versions: Sequence[EventQuery]) -> EventQuery | VersionsQuery:
        """Of some of the versions; of none, where the newest answers as well as any, of that one."""
        if len(versions) > 1:
            return replace(self, versions=tuple(versions))
        return versions[0] if versions else self.versions[-1]

    def parked(self) -> Self:
        """See Events."""
        return replace(self, copies=True, versions=tuple(part.parked() for part in self.versions))

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        return _all(part.sql(where, last, commit, txids) for part in self.versions)

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events."""
        return _all(part.whole_sql(where, whole) for part in self.versions)


# The events of a stream on one table.
TableEvents = EventQuery | VersionsQuery


@dataclass(frozen=True, slots=True)
class TablesQuery(Events):
    """The events of a stream over several tables, each with logs of its own: all in one order of LSNs.

    Args:
        tables: the query of each table, in the order in which they were named; two at least, but where fewer
            are left of a stream.
    """

    tables: tuple[TableEvents, ...]

    @property
    def parts(self) -> tuple[LogEvents, ...]:
        """See Events; oldest first within each table."""
        return tuple(part for table in self.tables for part in table.parts)

    @property
    def lsns(self) -> str:
        """See Events."""
        return f"({' UNION ALL '.join(f'SELECT lsn FROM {part.log}' for part in self.parts)})"

    def of(self, tables: Container[int]) -> Events:
        """See Events."""
        return self._of([table for table in self.tables if table.stream.table_id in tables])

    def between(self, first_lsn: int, last_lsn: int) -> Events:
        """See Events."""
        made = [table for table in self.tables if table.stream.created_lsn < last_lsn]
        return self._of([table.between(first_lsn, last_lsn) for table in made or self.tables[:1]])

    @property
    def newest(self) -> Events:
        """See Events."""
        return self._of([table.newest for table in self.tables])

    def holding(self, lsns: Collection[int]) -> Events:
        """See Events."""
        last = max(lsns)
        # Of a table the versions that had them may have gone: nothing is parked of those that came after.
        made = [
            table
            for table in self.tables
            if table.stream.created_lsn < last and table.parts[0].first_lsn <= last
        ]
        return self._of([table.holding(lsns) for table in made or self.tables[:1]])

    def _of(self, tables: Sequence[TableEvents]) -> Events:
        if len(tables) == 1:
            return tables[0]
        return replace(self, tables=tuple(tables))

    def parked(self) -> Self:
        """See Events."""
        return replace(self, copies=True, tables=tuple(table.parked() for table in self.tables))

    def window(self, cursor: duckdb.DuckDBPyConnection, after_lsn: int, through_lsn: int) -> Events:
        """See Events: a log without rows there makes the query dearer to plan, and asking is cheap."""
        row = cursor.execute(f"SELECT {end_of_transaction(through_lsn)}").fetchone()
        last_lsn = through_lsn if row is None else int(row[0])
        found = self.between(after_lsn + 1, last_lsn)
        if not isinstance(found, TablesQuery):
            return found
        asked = " UNION ALL ".join(
            f"SELECT {place} WHERE EXISTS "
            f"(SELECT 1 FROM {part.log} WHERE lsn > {after_lsn} AND lsn <= {last_lsn})"
            for place, table in enumerate(found.tables)
            for part in table.parts
        )
        places = {int(place) for (place,) in cursor.execute(asked).fetchall()}
        return self._of([found.tables[place] for place in sorted(places)] or found.tables[:1])

    def sql(
        self, where: str, last: str, commit: Commit | None = None, txids: tuple[int, int] | None = None
    ) -> str:
        """See Events."""
        return _all(part.sql(where, last, commit, txids) for part in self.parts)

    def whole_sql(self, where: str, whole: str) -> str:
        """See Events: a transaction's last event may be in any of the logs."""
        rows = " UNION ALL ".join(f"SELECT lsn, txid FROM ({part.rows(whole)})" for part in self.parts)
        last = f"lsn IN (SELECT max(lsn) FROM ({rows}) GROUP BY txid)"
        # What made a next version that is not among these has an event there, behind all that are.
        following = {table.newest.next_txid for table in self.tables} - {0}
        goes_on = ", ".join(str(txid) for txid in sorted(following))
        if goes_on:
            last += f" AND txid NOT IN ({goes_on})"
        return f"SELECT * REPLACE (({last}) AS tx_last) FROM ({self.sql(where, 'NULL::BOOLEAN')})"


def _all(queries: Iterable[str]) -> str:
    # A query of its own: what is put behind it is of all of them.
    return f"SELECT * FROM ({' UNION ALL '.join(queries)})"


def query_over(captured: Captured, stream: Stream) -> TableEvents:
    """The SELECT of the events of a stream, or of a part of one, on one table."""
    following = [*captured.versions[1:], None]
    queries = tuple(
        EventQuery(
            captured.stream_in(stream, version),
            captured.only(version),
            next_txid=0 if after is None else after.txid,
        )
        for version, after in zip(captured.versions, following, strict=True)
        if after is None or after.first_lsn - 1 > stream.created_lsn
    )
    return queries[0] if len(queries) == 1 else VersionsQuery(stream, queries)


def query_over_all(stream: Stream, tables: Sequence[Captured]) -> Events:
    """The SELECT of all events of a stream on tables, these; they need not be in the catalog yet."""
    if stream.several is None:
        (captured,) = tables
        return query_over(captured, stream)
    return TablesQuery(stream, tuple(query_over(table, table.part_of(stream)) for table in tables))


def event_query(catalog: Catalog, stream: Stream) -> Events:
    """The SELECT of a stream's events.

    Args:
        stream: as it is, or was when somebody got hold of it: its tables may have been altered since.

    Raises:
        UndefinedObject: 42704, it has been dropped.
    """
    with catalog.mutex:
        if stream.topic:
            return TopicQuery(stream, bases=catalog.segments.bases(stream.stream_id, stream.partitions))
        tables = catalog.tables_of(stream)
        if stream.several is None:
            # Its columns are found by the names that they have in the table as the catalog has it.
            stream = tables[0].part_of(stream)
        return query_over_all(stream, tables)


def newest_query(catalog: Catalog, stream: Stream) -> Events:
    """The same of the logs that are written."""
    return event_query(catalog, stream).newest
