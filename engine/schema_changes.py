"""ALTER TABLE of a captured table: the change, its events and the next version's log in one transaction.

A table's versions divide the LSNs: a version owns those from its first one, which is its schema event's, to
the one before the next version's, and has a log of its own. Only the newest one's log is written. What reads
a range of LSNs asks the versions that the range meets, each by its own SELECT (`log.VersionsQuery`).

The first rows of a new version's log say how the table became so: one for each partition of the table's
widest stream, and a stream takes as many of them as it has partitions.

What is allowed is judged by what has become of the table: its shape before and after the statement. So no
spelling of ALTER TABLE can change more than this file knows of. Source: docs/design/schema_changes.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import duckdb

from .asking import ask_maybe
from .capture.capture import CapturedTable
from .changes import clashing, views_anew
from .checking import unlike_error
from .database import Database
from .definitions import commit_sql, names_sql, wait_for_writers
from .duckdb_errors import translated
from .errors import DependentObjects, DucktailError, LockNotAvailable, NotSupported, ProgramLimitExceeded
from .filters import check_filter, plain_division
from .log import create_log_sql, log_name
from .publisher import Note
from .quoting import literal
from .rights import relation
from .rights_changes import Rename, statements_of
from .rights_changes import after as rights_after
from .row_sums import ALTERED, take_statements
from .schema_json import version_json
from .streams import Captured, Stream, TableVersion, fold
from .table import TableShape, read_shape
from .waiting import Wait, Waiting
from .whole import undone

# Numbers of columns that were added begin here, above the places of all that a table can begin with.
ADDED = 1 << 20
# Versions of one table that have logs. What reads all of a stream asks each, and twice as many cost more than
# twice as much: with 60, a change takes a second under the writer lock, and the stream's view two.
VERSIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Alteration:
    """What a user asks for.

    Args:
        text: his statement.
        renamed: the table's new name, where it is to get one.
        annotation: of the session, a JSON object as text, or None.
        retypes: it is to give a column another type.
    """

    text: str
    renamed: str | None
    annotation: str | None
    retypes: bool = False


def not_supported(name: str) -> NotSupported:
    """The error of a change that a captured table cannot take."""
    return NotSupported(
        f'ALTER TABLE of table "{name}" is not supported while it has a stream',
        detail="Outside of transactions ADD, DROP and RENAME COLUMN are, ALTER TYPE, RENAME TO, and SET and "
        "DROP of NOT NULL and DEFAULT.",
        hint="DROP STREAM first, change the table, and make the stream again.",
    )


def alter_table(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    key: tuple[str, ...],
    asked: Alteration,
    timeout_ms: int,
) -> Waiting[None]:
    """Change a captured table; the session is in no transaction.

    Args:
        key: schema and name in small letters.

    Raises:
        NotSupported: 0A000, the columns of its events would be others. ProgramLimitExceeded: 54000, too many
        of its versions are retained. DependentObjects: 2BP01, an index or
        something else depends on the table. LockNotAvailable: 55P03; or its last stream was dropped while
        this waited. DucktailError: what DuckDB said.
    """
    if asked.renamed is None:
        yield from _alter(database, session_id, cursor, key, asked, timeout_ms)
        return
    # Who has planned a write of a table of the new name, which is none of ours, must not meet this one.
    gate, renamed = database.transactions.gate, fold(key[0], asked.renamed)
    while (future := gate.mark(session_id, renamed)) is not None:
        if not (yield Wait(future, timeout_ms / 1000)):
            raise LockNotAvailable(f'table "{asked.renamed}" is getting a stream')
    try:
        yield from wait_for_writers(database, session_id, renamed, timeout_ms)
        yield from _alter(database, session_id, cursor, key, asked, timeout_ms)
    finally:
        gate.unmark(renamed)


def _alter(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    key: tuple[str, ...],
    asked: Alteration,
    timeout_ms: int,
) -> Waiting[None]:
    yield from database.transactions.lock_writer(session_id, timeout_ms)
    try:
        yield from database.commits.wait_readable()
        captured = database.catalog.tables.get(key)
        if captured is None:
            raise LockNotAvailable(f'table "{key[-1]}" has just lost its streams', hint="Try again.")
        with plain_division(cursor) as whole:
            _alter_locked(database, session_id, cursor, captured, asked, whole)
    finally:
        database.transactions.writer_lock.release(session_id)


def _alter_locked(
    database: Database,
    session_id: int,
    cursor: duckdb.DuckDBPyConnection,
    captured: Captured,
    asked: Alteration,
    whole: bool,
) -> None:
    """Under the writer lock: all of it, or nothing."""
    shield = database.sessions.shield(session_id)
    try:
        with undone(cursor):
            cursor.execute("BEGIN")
            if whole:  # What `/` means in the user's own text.
                ask_maybe(cursor, "SET SESSION integer_division = true")
            cursor.execute(asked.text).fetchall()
            if whole:
                ask_maybe(cursor, "SET SESSION integer_division = false")
            shape = read_shape(cursor, captured.shape.schema, asked.renamed or captured.shape.name)
            if _told(shape) == _told(captured.shape):
                cursor.execute("COMMIT")  # As nothing has changed, nothing is to be told.
                return
            change = _Change(database, cursor, captured, shape, asked)
            for statement in change.statements():
                cursor.execute(statement).fetchall()
            database.commits.commit_own(cursor, shield, change.numbers, change.show)
    except duckdb.DependencyException as error:
        raise DependentObjects(
            f'cannot alter table "{captured.shape.name}" because something depends on it',
            detail=translated(error).message,
            hint="Where it is an index: DROP INDEX, alter the table, and CREATE INDEX again.",
        ) from error
    except duckdb.Error as error:
        raise translated(error, asked.text) from error


def _told(shape: TableShape) -> TableShape:
    """A shape without what no event and no capture depends on: what is unique is looked at apart."""
    return replace(shape, unique=(), unique_expressions=False)


def _ids_now(before: Captured, now: TableShape, *, retypes: bool) -> tuple[int, ...]:
    """The numbers of the columns that a table has after a statement.

    Args:
        retypes: it is one that gives a column another type.

    Raises:
        NotSupported: 0A000, they are others than a column more or less, or one that is called otherwise, or
        is of another type, could make; or the type of a column that partitions is another.
    """
    was, ids = before.shape, before.present.ids
    if was.generated != now.generated:
        raise not_supported(was.name)
    old = [(column.name, column.type) for column in was.stored]
    new = [(column.name, column.type) for column in now.stored]
    if len(new) == len(old) - 1:
        place = next((i for i, column in enumerate(new) if column != old[i]), len(new))
        if [*old[:place], *old[place + 1 :]] != new or was.primary_key != now.primary_key:
            raise not_supported(was.name)
        return (*ids[:place], *ids[place + 1 :])
    renamed = {a: b for (a, _), (b, _) in zip(old, new, strict=False) if a != b}
    retyped = [a for (a, type_), (_, other) in zip(old, new, strict=False) if type_ != other]
    added = len(new) - len(old)
    key = tuple(renamed.get(name, name) for name in was.primary_key)
    if added < 0 or len(renamed) + len(retyped) + added > 1 or key != now.primary_key:
        raise not_supported(was.name)
    if retyped and not retypes:
        raise not_supported(was.name)  # A field of a nested column.
    if retyped and any(retyped[0] in stream.partition_by for stream in before.streams):
        raise NotSupported(
            f'column "{retyped[0]}" of table "{was.name}" cannot have another type',
            detail="A stream is partitioned by it: its values would go to other partitions.",
            hint="DROP STREAM first, alter the table, and make it again.",
        )
    # No version adds two columns, so the number is no other column's, of any version.
    return (*ids, ADDED + before.version + 1) if added else ids


def _streams_now(cursor: duckdb.DuckDBPyConnection, before: Captured, now: Captured) -> tuple[Stream, ...]:
    """The table's streams by the names that its columns have now.

    Raises:
        DependentObjects: 2BP01, a filter names what is called otherwise now, is of another type, or is gone;
        a stream is partitioned by what is gone, or has no column left.
        NotSupported: 0A000, a new column has a name of ENVELOPE CHANGES.
    """
    was, there = before.present, set(now.present.stored)
    for stream in before.streams:
        ids = {name: number for number, name in was.names.items()}
        if any(ids[name] not in now.present.ids for name in stream.partition_by):
            raise _depends(before, "a stream is partitioned by the column")
        if not any(ids[name] in now.present.ids for name in stream.columns):
            raise _depends(before, "a stream has no other column")
    streams = tuple(before.stream_in(stream, now.present) for stream in before.streams)
    same = {number for number, _ in set(was.stored) & there}
    # A column of another type is hidden from filters, as if it were gone.
    hidden = [now.present.names[i] for i in now.present.ids if i in was.ids and i not in same]
    visible = replace(now.shape, stored=tuple(c for c in now.shape.stored if c.name not in hidden))
    for stream in streams:
        taken = clashing(stream.columns)
        if stream.changes_view and taken is not None:
            raise NotSupported(
                f'a stream of table "{before.shape.name}" cannot carry a column "{taken}"',
                hint="It is one of ENVELOPE CHANGES: call the column otherwise.",
            )
        if stream.filter is None:
            continue
        try:
            check_filter(cursor, visible, stream.filter)
        except DucktailError as error:
            raise _depends(before, "a filter names columns, and may name the table") from error
    return streams


def _depends(before: Captured, why: str) -> DependentObjects:
    return DependentObjects(
        f'cannot alter table "{before.shape.name}" because a stream depends on it: {why}',
        hint="SHOW STREAMS lists them. DROP STREAM first, alter the table, and make it again.",
    )


def _carried(captured: Captured) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """What the streams with lists of columns carry now, by the columns' numbers."""
    ids = {name: number for number, name in captured.present.names.items()}
    listed = (stream for stream in captured.streams if not stream.all_columns)
    return tuple((stream.stream_id, tuple(ids[name] for name in stream.columns)) for stream in listed)


class _Change:
    """A table's next version: what is written of it, and what memory makes of that."""

    def __init__(
        self,
        database: Database,
        cursor: duckdb.DuckDBPyConnection,
        captured: Captured,
        shape: TableShape,
        asked: Alteration,
    ) -> None:
        if len(captured.versions) >= VERSIONS_MAX:
            raise ProgramLimitExceeded(
                f'table "{captured.shape.name}" has {len(captured.versions)} versions of which events are '
                "retained, and can have no more",
                hint="Retention drops the oldest: ALTER STREAM ... SET (retention = ...) of its streams.",
            )
        commits, ids = database.commits, _ids_now(captured, shape, retypes=asked.retypes)
        self._database = database
        self._before = captured
        self._annotation = asked.annotation
        self._partitions = max(stream.partitions for stream in captured.streams)
        self._base_lsn, self._txid, self._now_us = commits.last_lsn, commits.last_txid + 1, commits.now_us()
        version = captured.version + 1
        table = CapturedTable(shape, log_name(captured.table_id, version), captured.table.split_on)
        after = Captured(
            captured.table_id,
            version,
            table,
            first_lsn=self._base_lsn + 1,
            since_us=self._now_us,
            older=(*captured.older, replace(captured.present, carried=_carried(captured))),
            changed_counter=database.snapshots.next_counter,
            column_ids=ids,
        )
        self._after = after.with_streams(_streams_now(cursor, captured, after))
        old, new = captured.key, self._after.key
        self._rights = [] if old == new else [Rename(relation(*old), relation(*new))]

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Its txid, the last LSN with it, and its commit time."""
        return self._txid, self._base_lsn + self._partitions, self._now_us

    def statements(self) -> Iterator[str]:
        """What is written beside the user's own statement; the line in `commits` last."""
        before, now = self._before, self._after
        yield create_log_sql(now.log, now.shape)
        yield (
            f"INSERT INTO {now.log} (lsn, txid, op, key_hash) "
            f"SELECT {now.first_lsn} + i, {self._txid}, 'x', i FROM range({self._partitions}) AS r(i)"
        )
        # Streams may have come since its line was written, if it has one.
        yield (
            f"DELETE FROM ducktail.schema_catalog WHERE table_id = {now.table_id} "
            f"AND version = {before.version}"
        )
        yield self._row(now.older[-1])
        yield self._row(now.present)
        yield (
            f"UPDATE ducktail.table_catalog SET version = {now.version}, "
            f"table_name = {literal(now.shape.name)} WHERE table_id = {now.table_id}"
        )
        for stream in now.streams:
            # An older format does not say whether there was a list of columns. What it has been taken for is
            # kept: from the columns that are there now it could not be told again.
            yield (
                f"UPDATE ducktail.stream_catalog SET columns = {names_sql(stream.columns)}, "
                f"partition_by = {names_sql(stream.partition_by)}, all_columns = {stream.all_columns} "
                f"WHERE stream_id = {stream.stream_id}"
            )
        if before.present.stored != now.present.stored:
            differs = self._database.unlike.get(now.table_id)
            if differs is not None:  # The events before it are not held against the new columns.
                raise unlike_error(before.streams[0], before, differs)
            # Rows are hashed by other columns from here on.
            yield from take_statements(now, self.numbers[1], ALTERED)
        yield from views_anew(now)
        yield from statements_of(self._rights)
        yield commit_sql(self._txid, self._base_lsn, self._partitions, self._now_us, self._annotation)

    def _row(self, version: TableVersion) -> str:
        return (
            f"INSERT INTO ducktail.schema_catalog VALUES ({self._after.table_id}, {version.version}, "
            f"{version.first_lsn}, make_timestamptz({version.since_us}), "
            f"{literal(version_json(version.table.shape, version.ids, version.carried))})"
        )

    def show(self) -> None:
        """DuckDB has committed: memory follows."""
        database, now = self._database, self._after
        database.rights = rights_after(database.rights, self._rights)
        with database.catalog.mutex:
            database.catalog.put_table(self._before, now)
            database.catalog.version += 1
            database.snapshots.table_altered()
        lsns = (now.first_lsn, self._base_lsn + self._partitions)
        tables = {now.table_id: lsns}
        database.publisher.put(Note(self._txid, *lsns, self._now_us, tables, self._annotation))
