"""ALTER TABLE of a captured table: the change, its events and the next version's log in one transaction.

It is the user's own transaction: from the ALTER on it holds the writer lock and sees the altered table, while
others see the old one until COMMIT.

The change is checked by comparing the table's shape before and after the statement. So no spelling of ALTER
TABLE can change more than this file allows. Source: docs/design/schema_changes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import duckdb

from ..capture.log_sql import stored_names
from ..catalog.captured_tables import Captured
from ..catalog.filters import plain_division
from ..catalog.streams import key_of
from ..database import Database
from ..definitions.name_locks import claim_name
from ..duck.cursors import ask_maybe
from ..duck.determinism import is_constant
from ..duck.duckdb_errors import depended_on, translated
from ..duck.table_shape import RESERVED_PREFIX, TableShape, read_shape
from ..errors import NotSupported
from ..transactions.transaction import TableKey, Transaction
from ..waiting import Waiting
from .reconcile import reconcile
from .renames import rename, tell_first
from .table_versions import ADDED, enter_to_alter, event_columns, put_version, show_altered

# The table of the rows before they are rewritten.
WAS = f"temp.main.{RESERVED_PREFIX}_was"


@dataclass(frozen=True, slots=True)
class Alteration:
    """A requested ALTER TABLE.

    Args:
        text: the user's statement.
        renamed: the table's new name, or None.
        annotation: the session's annotation, a JSON object as text, or None.
        retypes: True if it changes a column's type.
        rewrites: True if it then computes values that may differ from a cast of the old ones.
    """

    text: str
    renamed: str | None
    annotation: str | None
    retypes: bool = False
    rewrites: bool = False


def not_supported(name: str) -> NotSupported:
    """The error for a change that a captured table does not support."""
    return NotSupported(
        f'ALTER TABLE of table "{name}" is not supported while it has a stream',
        detail="ADD, DROP and RENAME COLUMN are, ALTER TYPE, RENAME TO, and SET and DROP of NOT NULL and "
        "DEFAULT.",
        hint="DROP STREAM first, change the table, and make the stream again.",
    )


def alter_table(
    database: Database, transaction: Transaction, key: TableKey, asked: Alteration, timeout_ms: int
) -> Waiting[None]:
    """Alter a captured table, in a transaction that holds the writer lock from here to its end.

    Args:
        key: schema and name in lower case.

    Raises:
        NotSupported: the change would affect the columns of its events.
        ProgramLimitExceeded: too many of its versions are retained.
        DependentObjects: an index or another object depends on the table.
        LockNotAvailable: the lock was not free in time, or the last stream was dropped meanwhile.
        SerializationFailure: the table was written since the transaction began to read.
        DucktailError: a translated error of DuckDB.
    """
    if asked.renamed is not None:
        yield from claim_name(database, transaction, key_of(key[0], asked.renamed), timeout_ms)
    captured = yield from enter_to_alter(database, transaction, key, asked.annotation, timeout_ms)
    with plain_division(transaction.cursor) as whole:
        _alter(database, transaction, captured, asked, whole)


def _alter(
    database: Database, transaction: Transaction, captured: Captured, asked: Alteration, whole: bool
) -> None:
    """Run the user's statement and write the events of the change; the caller holds the writer lock."""
    cursor, was = transaction.cursor, captured.shape
    try:
        if asked.rewrites:
            names = stored_names(was)
            cursor.execute(f"CREATE TEMP TABLE {WAS} AS SELECT {names} FROM {was.qualified}").fetchall()
        if whole:  # The meaning of `/` in the user's own text.
            ask_maybe(cursor, "SET SESSION integer_division = true")
        cursor.execute(asked.text).fetchall()
        if whole:
            ask_maybe(cursor, "SET SESSION integer_division = false")
        shape = read_shape(cursor, was.schema, asked.renamed or was.name)
        same = event_columns(shape) == event_columns(was)
        if same and not asked.rewrites:
            return  # Without a change there are no events.
        if asked.renamed is None:
            tell_first(database, transaction, captured)
            fresh = _has_values_of_its_own(captured, shape)
            if same:
                now = replace(captured, changed_counter=database.snapshots.next_counter)
                show_altered(database, transaction, captured, now, shape.name)
            else:
                ids = _ids_now(captured, shape, retypes=asked.retypes)
                summed = not (asked.rewrites or fresh)
                put_version(database, transaction, captured, shape, ids, summed=summed)
            now = transaction.altered[captured.table_id].now
            if asked.rewrites:
                reconcile(transaction, captured, now, WAS)
                cursor.execute(f"DROP TABLE {WAS}").fetchall()
            elif fresh:
                # The old columns have their old values.
                reconcile(transaction, captured, now, now.shape.qualified)
        elif event_columns(replace(shape, name=was.name)) == event_columns(was):
            rename(database, transaction, captured, shape)
        else:
            raise not_supported(was.name)
    except duckdb.DependencyException as error:
        hint = "Where it is an index: DROP INDEX, alter the table, and CREATE INDEX again."
        raise depended_on("alter", was.name, error, hint) from error
    except duckdb.TransactionException as error:
        if "outstanding updates" not in str(error) or captured.table_id not in transaction.tables:
            raise translated(error, asked.text) from error
        raise NotSupported(
            f'table "{was.name}" has been updated in this transaction, and then cannot be altered so',
            detail=translated(error).message,
            hint="SET NOT NULL before the UPDATE, or in a transaction of its own.",
        ) from error
    except duckdb.Error as error:
        raise translated(error, asked.text) from error


def _has_values_of_its_own(before: Captured, now: TableShape) -> bool:
    """True if a column was added whose values the owner of a copy cannot compute from its default."""
    there = {column.name for column in before.shape.stored}
    added = [column for column in now.stored if column.name not in there]
    if len(now.stored) == len(before.shape.stored):
        return False  # A column was renamed.
    return any(column.default is not None and not is_constant(column.default) for column in added)


def _ids_now(before: Captured, now: TableShape, *, retypes: bool) -> tuple[int, ...]:
    """The numbers of the columns that a table has after a statement.

    Args:
        retypes: True if the statement changes a column's type.
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
    # No version adds two columns, so no other column of any version has the number.
    return (*ids, ADDED + before.version + 1) if added else ids
