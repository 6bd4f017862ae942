"""The next version of a captured table, made in the transaction that has altered the table.

A table's versions divide the LSNs: a version owns those from its first one, which is its schema event's, to
the one before the next version's, and has a log of its own. Only the newest one's log is written. A read of a
range of LSNs queries the versions that overlap it, each by its own SELECT (`log.VersionsQuery`).

The first rows of a new version's log are its schema events: one for each partition of the table's widest
stream; a stream shows as many of them as it has partitions.

The transaction sees the version at once, others after its commit (`Transaction.altered`).
Source: docs/design/schema_changes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb

from ..capture.capture import CapturedTable
from ..catalog.captured_tables import Captured, TableVersion
from ..catalog.filters import check_filter
from ..catalog.streams import Stream
from ..checks.check import unlike_error
from ..checks.row_sums import ALTERED, take_statements
from ..database import Database
from ..definitions.catalog_rows import leave_name_sql, names_sql
from ..duck.table_shape import TableShape
from ..errors import DependentObjects, DucktailError, NotSupported, ProgramLimitExceeded
from ..log.envelope_changes import clashing, views_anew
from ..log.log import KeptVersion, create_log_sql, log_name, shown_table, version_json
from ..log.queries import lost_column
from ..quoting import fold, literal
from ..transactions.transaction import CommitStep, TableKey, Transaction
from ..transactions.transactions import stale
from ..waiting import Waiting

# Numbers of added columns begin here, above the positions of all initial columns.
ADDED = 1 << 20
# Numbers of columns of another table in its place begin here, above those assigned by ALTER TABLE.
SWAPPED = 1 << 40
# The most columns of a table that these numbers allow: 2^16 for each version.
PLACES = 16
# Limit of versions of one table with logs. A read of a whole stream queries each, and twice as many cost more
# than twice as much: with 60, a change takes a second under the writer lock, and the stream's view two.
VERSIONS_MAX = 64


def enter_to_alter(
    database: Database, transaction: Transaction, key: TableKey, annotation: str | None, timeout_ms: int
) -> Waiting[Captured]:
    """Give a transaction the writer lock, until its end, before it alters a captured table.

    Args:
        key: schema and name in lower case.
        annotation: the session's annotation, a JSON object as text, or None.

    Raises:
        LockNotAvailable: the lock was not free in time, or the table's last stream was dropped meanwhile.
        SerializationFailure: the table was written since the transaction began to read.
    """
    captured = yield from database.transactions.enter_still_captured(transaction, key, timeout_ms)
    yield from database.commits.wait_readable()
    if database.snapshots.has_newer(transaction, captured):
        raise stale(captured)  # Its sum and its events would be based on the rows before that.
    # The rows deleted and inserted so far have the old columns.
    database.transactions.settle(transaction)
    transaction.annotate(annotation)
    return captured


def put_version(
    database: Database,
    transaction: Transaction,
    captured: Captured,
    shape: TableShape,
    ids: tuple[int, ...],
    *,
    summed: bool = True,
) -> None:
    """Make a captured table's next version in the transaction that has altered it.

    Args:
        captured: the table before the change.
        ids: the numbers of its columns now.
        summed: True to recompute its row-hash sum if the columns differ; a caller that writes further events
            recomputes it after them.

    Raises:
        ProgramLimitExceeded: too many of its versions are retained.
        DependentObjects, NotSupported: a stream does not fit the new columns (`_streams_now`).
        WrongState: the table differs from its log (`unlike_error`).
    """
    change = _Change(database, transaction, captured, shape, ids)
    for statement in change.statements(summed=summed):
        transaction.cursor.execute(statement).fetchall()
    transaction.captured(captured.table_id, change.partitions, frozenset())
    show_altered(database, transaction, captured, change.after, shape.name)


def show_altered(
    database: Database, transaction: Transaction, captured: Captured, now: Captured, told: str
) -> None:
    """Make the altered table visible to the transaction now, and in memory after DuckDB's COMMIT.

    Args:
        told: the table's name in its newest version.
    """
    first = now.table_id not in transaction.altered
    transaction.alter(captured, now, told)
    if not first:
        return

    def follow() -> None:
        altered = transaction.altered[now.table_id]
        database.catalog.put_table(altered.before, altered.now)
        database.catalog.version += 1

    transaction.at(CommitStep.MEMORY, follow)


def event_columns(shape: TableShape) -> TableShape:
    """The columns that decide events; UNIQUE constraints are compared separately."""
    return replace(shape, unique=(), unique_expressions=False)


def ids_by_name(old: Captured, shape: TableShape) -> tuple[int, ...]:
    """The column numbers of a table in another's place: columns of the same name keep their number."""
    known = {fold(name): number for number, name in old.present.names.items()}
    fresh = SWAPPED + ((old.version + 1) << PLACES)
    return tuple(known.get(fold(column.name), fresh + i) for i, column in enumerate(shape.stored))


def follows(old: Captured, shape: TableShape) -> bool:
    """True if a table's events can continue those of another one in its place.

    It has the columns of the key and of the partitions, with their types, and at least one common column.
    """
    places = {column.name: shape.position(column.name) for column in old.shape.stored}
    key = old.shape.primary_key
    if shape.primary_key and [fold(name) for name in shape.primary_key] != [fold(name) for name in key]:
        return False
    needed = {*key, *(name for stream in old.streams for name in stream.partition_by)}
    for column in old.shape.stored:
        place = places[column.name]
        if column.name in needed and (place is None or shape.stored[place].type != column.type):
            return False
    return any(place is not None for place in places.values())


def _streams_now(
    cursor: duckdb.DuckDBPyConnection, before: Captured, now: Captured, called: str
) -> tuple[Stream, ...]:
    """The table's streams with the present names of its columns.

    Args:
        called: the user's name of the table.
    """
    was, there = before.present, set(now.present.stored)
    for stream in before.streams:
        ids = {name: number for number, name in was.names.items()}
        lost = next((name for name in stream.partition_by if name not in ids), None)
        if lost is not None:
            raise lost_column(now, stream, lost)
        if any(ids[name] not in now.present.ids for name in stream.partition_by):
            raise _depends(called, "a stream is partitioned by the column")
        if not any(ids[name] in now.present.ids for name in stream.columns):
            raise _depends(called, "a stream has no other column")
    streams = tuple(before.stream_in(stream, now.present) for stream in before.streams)
    same = {number for number, _ in set(was.stored) & there}
    # A column of another type is hidden from filters, as if it were dropped.
    hidden = [now.present.names[i] for i in now.present.ids if i in was.ids and i not in same]
    visible = replace(now.shape, stored=tuple(c for c in now.shape.stored if c.name not in hidden))
    for stream in streams:
        taken = clashing(stream.columns)
        if stream.changes_view and taken is not None:
            raise NotSupported(
                f'a stream of table "{now.shape.name}" cannot carry a column "{taken}"',
                hint="It is one of ENVELOPE CHANGES: call the column otherwise.",
            )
        if stream.filter is None:
            continue
        try:
            check_filter(cursor, visible, stream.filter)
        except DucktailError as error:
            raise _depends(called, "a filter names columns, and may name the table") from error
    return streams


def _depends(table: str, why: str) -> DependentObjects:
    return DependentObjects(
        f'cannot alter table "{table}" because a stream depends on it: {why}',
        hint="SHOW STREAMS lists them. DROP STREAM first, alter the table, and make it again.",
    )


def _carried(captured: Captured) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The numbers of the columns in the streams with lists of columns."""
    ids = {name: number for number, name in captured.present.names.items()}
    listed = (stream for stream in captured.streams if not stream.all_columns)
    return tuple((stream.stream_id, tuple(ids[name] for name in stream.columns)) for stream in listed)


def _ended(transaction: Transaction, captured: Captured) -> TableVersion:
    """The table version that ends with this change, under its last reported name."""
    version, known = captured.present, transaction.altered.get(captured.table_id)
    name = captured.shape.name if known is None else known.told
    table = replace(version.table, shape=replace(version.table.shape, name=name))
    return replace(version, table=table, carried=_carried(captured))


class _Change:
    """A table's next version: its statements, and its effect in memory."""

    def __init__(
        self,
        database: Database,
        transaction: Transaction,
        captured: Captured,
        shape: TableShape,
        ids: tuple[int, ...],
    ) -> None:
        if len(captured.versions) >= VERSIONS_MAX:
            raise ProgramLimitExceeded(
                f'table "{shape.name}" has {len(captured.versions)} versions of which events are '
                "retained, and can have no more",
                hint="Retention drops the oldest: ALTER STREAM ... SET (retention = ...) of its streams.",
            )
        self._database = database
        self._before = captured
        self._altered = [altered.now for altered in transaction.altered.values()]
        self._txid, self._base_lsn = transaction.txid, transaction.next_lsn
        self.partitions = max(stream.partitions for stream in captured.streams)
        version, ended = captured.version + 1, _ended(transaction, captured)
        before, name = shown_table(ended.table.shape), shown_table(shape)
        table = CapturedTable(shape, log_name(captured.table_id, version), captured.table.split_on)
        after = Captured(
            captured.table_id,
            version,
            table,
            first_lsn=self._base_lsn + 1,
            since_us=database.commits.now_us(),
            older=(*captured.older, ended),
            changed_counter=database.snapshots.next_counter,
            column_ids=ids,
            txid=transaction.txid,
            renamed_from=before if before != name else None,
        )
        # A rename is reported from the previous name: the new one belongs to the transaction.
        called = ended.table.shape.name if shape == captured.shape else shape.name
        self.after = after.with_streams(_streams_now(transaction.cursor, captured, after, called))

    def statements(self, *, summed: bool) -> Iterator[str]:
        """The statements that are written besides the user's own."""
        before, now = self._before, self.after
        yield create_log_sql(now.log, now.shape)
        yield (
            f"INSERT INTO {now.log} (lsn, txid, op, key_hash) "
            f"SELECT {now.first_lsn} + i, {self._txid}, 'x', i FROM range({self.partitions}) AS r(i)"
        )
        # Streams may have been created since its row was written, if it has one.
        yield (
            f"DELETE FROM ducktail.schema_catalog WHERE table_id = {now.table_id} "
            f"AND version = {before.version}"
        )
        yield self._row(now.older[-1])
        yield self._row(now.present)
        if now.older[-1].table.shape.name != now.shape.name:
            yield leave_name_sql(now.shape, now.table_id)
        yield (
            f"UPDATE ducktail.table_catalog SET version = {now.version}, "
            f"table_name = {literal(now.shape.name)} WHERE table_id = {now.table_id}"
        )
        for stream in now.streams:
            if stream.is_part:
                yield (
                    f"UPDATE ducktail.stream_tables SET partition_by = {names_sql(stream.partition_by)}, "
                    f"columns = {names_sql(stream.columns)} "
                    f"WHERE stream_id = {stream.stream_id} AND table_id = {now.table_id}"
                )
                continue
            # An older format does not record the existence of a list of columns. The interpretation is
            # stored, because it cannot be derived from the present columns again.
            yield (
                f"UPDATE ducktail.stream_catalog SET columns = {names_sql(stream.columns)}, "
                f"partition_by = {names_sql(stream.partition_by)}, all_columns = {stream.all_columns} "
                f"WHERE stream_id = {stream.stream_id}"
            )
        if before.present.stored != now.present.stored:
            differs = self._database.unlike.get(now.table_id)
            if differs is not None:  # Earlier events are not compared with the new columns.
                raise unlike_error(before.streams[0], now, differs)
            if summed:  # Rows are hashed over other columns from here on.
                yield from take_statements(now, self._base_lsn + self.partitions, ALTERED)
        yield from views_anew(self._database.catalog, now, self._altered)

    def _row(self, version: TableVersion) -> str:
        shape, renamed_from = version.table.shape, version.renamed_from
        kept = KeptVersion(shape, version.ids, version.carried, version.txid, renamed_from)
        return (
            f"INSERT INTO ducktail.schema_catalog VALUES ({self.after.table_id}, {version.version}, "
            f"{version.first_lsn}, make_timestamptz({version.since_us}), {literal(version_json(kept))})"
        )
