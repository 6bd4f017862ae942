"""The name of a captured table, which its streams follow: at COMMIT the table with the name is captured.

dbt, pandas and others rebuild a table by giving a new table the name of the old one, which is renamed or
dropped in the same transaction. So RENAME and DROP TABLE inside a transaction only change the captured
table's name there; at COMMIT the owner of the old name decides:

    none, renamed     the streams go with the table: its next version, with the new name
    none, dropped     2BP01: the streams have no table; streams over a whole schema continue without it
    another table     a swap: that table is the captured one from here on

Two or more captured tables may exchange their names: the streams of each follow the table with its name. A
captured table whose own name becomes unused does not take another table's streams.

A swapped-in table gets the primary key of the old one, if it has none. If its columns differ, it is the next
version. Then the difference between the rows of the two is written to the log (`difference.py`); the table
itself is not changed. Until then a dropped table is kept under a name of ours, because its rows are read.

Source: docs/design/schema_changes.md, "Swaps".
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import duckdb

from ..capture.difference import check_key
from ..capture.log_sql import stored_names
from ..catalog.captured_tables import Captured
from ..catalog.filters import plain_division
from ..catalog.rights import relation
from ..catalog.streams import key_of
from ..database import Database
from ..definitions.name_locks import claim_name, refuse_hidden
from ..definitions.stream_spec import create_sql
from ..duck.cursors import ask, ask_maybe
from ..duck.duckdb_errors import depended_on, translated
from ..duck.identities import drop_statements
from ..duck.table_shape import RELATIONS, RESERVED_PREFIX, TableShape, indexes_of, read_shape
from ..errors import DependentObjects, NotSupported, SerializationFailure
from ..log.envelope_changes import views_anew
from ..quoting import folded_sql, ident, shown_name
from ..rights_changes import Rename, add
from ..transactions.transaction import Altered, CommitStep, TableKey, Transaction
from ..waiting import Waiting
from .reconcile import reconcile
from .schema_tables import look_at_last, retire, set_aside
from .table_versions import enter_to_alter, event_columns, follows, ids_by_name, put_version, show_altered


def claim_table(
    database: Database, transaction: Transaction, key: TableKey, renamed: str, timeout_ms: int
) -> Waiting[None]:
    """Exclude other writers of a table without a stream that is renamed and may be swapped in.

    Args:
        key: schema and name in lower case.
        renamed: its new name.

    Raises:
        LockNotAvailable: another writer did not end in time.
        SerializationFailure: the table was written since the transaction began to read, so that the
            difference would be incomplete.
    """
    name = key_of(key[0], renamed)
    # Its writers are registered under its earlier names.
    names = transaction.renamed.pop(key, set()) | {key}
    transaction.renamed[name] = names
    if not any(altered.before.key == name for altered in transaction.altered.values()):
        return
    for one in sorted(names):
        yield from claim_name(database, transaction, one, timeout_ms)
    if any(database.transactions.gate.written_since(one, transaction.plain_ends) for one in names):
        raise SerializationFailure(
            f'table "{key[-1]}" was written after this transaction began to read',
            hint="Roll back and try again.",
        )


def rename(database: Database, transaction: Transaction, captured: Captured, shape: TableShape) -> None:
    """Record the new name of a captured table.

    Args:
        shape: its present shape.
    """
    now = _called(database, transaction, captured, shape)
    add(database, transaction, Rename(relation(*captured.key), relation(*now.key)))


def _called(database: Database, transaction: Transaction, captured: Captured, shape: TableShape) -> Captured:
    now = replace(captured, table=replace(captured.table, shape=shape))
    known = transaction.altered.get(captured.table_id)
    show_altered(database, transaction, captured, now, captured.shape.name if known is None else known.told)
    number = captured.table_id
    transaction.at(CommitStep.NAMES, partial(settle, database, transaction, number), about=number)
    return now


def _aside(captured: Captured) -> str:
    """The name that a dropped table has until COMMIT."""
    return f"{RESERVED_PREFIX}_aside_{captured.table_id}"


def drop(
    database: Database, transaction: Transaction, key: TableKey, annotation: str | None, timeout_ms: int
) -> Waiting[Captured]:
    """Drop a captured table, for another one that has its name at COMMIT.

    Args:
        key: schema and name in lower case.
        annotation: the session's annotation, a JSON object as text, or None.

    Returns:
        The table before the drop.

    Raises:
        LockNotAvailable, SerializationFailure: as in `enter_to_alter`.
        DependentObjects: an object depends on it.
    """
    captured = yield from enter_to_alter(database, transaction, key, annotation, timeout_ms)
    put_aside(database, transaction, captured)
    if database.catalog.over_schema(key[0]):
        # A table created with the name, which the streams may not follow.
        look_at_last(database, transaction, key)
    return captured


def put_aside(database: Database, transaction: Transaction, captured: Captured) -> None:
    """Rename a captured table to a name of ours and drop its indexes, as DROP TABLE would.

    DuckDB records the foreign keys of a table by its original name: if it were dropped under another name,
    the referenced tables could not be dropped. So a table with foreign keys is dropped now; its rows are
    kept.

    Raises:
        DependentObjects: an object depends on it.
    """
    shape, cursor = captured.shape, transaction.cursor
    aside = replace(shape, name=_aside(captured))
    if _has_foreign_keys(cursor, shape):
        names = stored_names(shape)
        statements = [
            create_sql(replace(aside, primary_key=())),
            f"INSERT INTO {aside.qualified} ({names}) SELECT {names} FROM {shape.qualified}",
            *drop_statements(cursor, shape.schema, shape.name),
        ]
    else:
        statements = [
            *(
                f"DROP INDEX {ident(shape.schema)}.{ident(index.name)}"
                for index in indexes_of(cursor, shape.schema, shape.name)
            ),
            f"ALTER TABLE {shape.qualified} RENAME TO {ident(aside.name)}",
        ]
    try:
        for statement in statements:
            cursor.execute(statement).fetchall()
    except duckdb.Error as error:
        found = translated(error)
        if isinstance(found, DependentObjects):
            raise depended_on("drop", shape.name, error) from error
        raise found from error
    _called(database, transaction, captured, aside)


def _has_foreign_keys(cursor: duckdb.DuckDBPyConnection, shape: TableShape) -> bool:
    (count,) = ask(
        cursor,
        "SELECT count(*) FROM system.main.duckdb_constraints() WHERE database_name = current_database() "
        "AND schema_name = $1 AND table_name = $2 AND constraint_type = 'FOREIGN KEY'",
        [shape.schema, shape.name],
    )
    return bool(count)


def settle(
    database: Database, transaction: Transaction, table_id: int, within: frozenset[int] = frozenset()
) -> None:
    """Find the table with a captured table's name at COMMIT, and act by the rules of this module.

    Args:
        within: the tables to be settled after this one, which has their names.

    Raises:
        DependentObjects: the streams would have no table, or an object depends on it.
        NotSupported: the new table does not fit the streams.
        UniqueViolation, NotNullViolation: its rows violate the primary key.
        duckdb.Error: DuckDB failed.
    """
    altered = transaction.altered[table_id]
    now, before = altered.now, altered.before
    if now.key == before.key and now.shape.name == altered.told:
        return
    if now.ours:
        return  # It was dropped.
    refuse_hidden(transaction, (before.key, now.key), now.streams)
    swapped = now.key != before.key and _has_name(database, transaction, altered)
    aside = now.shape.name == _aside(now)
    if swapped and now.may_go:
        shape = read_shape(transaction.cursor, before.shape.schema, before.shape.name)
        if not follows(now, shape):  # It was dropped or renamed, and the other one is new.
            swapped = False
            look_at_last(database, transaction, before.key)
    _tell_holder(database, transaction, altered, before.key if swapped else now.key, within)
    if swapped:
        with plain_division(transaction.cursor):
            _swap(database, transaction, altered)
            if not aside:
                set_aside(database, transaction, now.key)
    elif aside and now.may_go:
        with plain_division(transaction.cursor):
            retire(database, transaction, now)
    elif aside:
        raise DependentObjects(
            f'cannot drop table "{before.shape.name}" because it has streams',
            detail="No table has its name at the end of the transaction.",
            hint="DROP TABLE ... CASCADE, in autocommit, drops them with it; SHOW STREAMS lists them.",
        )
    elif now.shape.name != altered.told:
        with plain_division(transaction.cursor):
            put_version(database, transaction, now, now.shape, now.present.ids)


def tell_first(database: Database, transaction: Transaction, captured: Captured) -> None:
    """Report the leaving of the present holder of a name before an ALTER reports the table's new name.

    Args:
        captured: the table in the transaction.

    Raises:
        NotSupported: the order of renames cannot be reported; other errors as in `settle`.
    """
    altered = transaction.altered.get(captured.table_id)
    if altered is not None and altered.now.shape.name != altered.told:
        _tell_holder(database, transaction, altered, captured.key, frozenset())


def _tell_holder(
    database: Database, transaction: Transaction, altered: Altered, key: TableKey, within: frozenset[int]
) -> None:
    """Report the previous holder of a name first, if a stream covers all tables of a schema.

    So a reader that keeps copies by table name never has two with one name.

    Args:
        altered: the table to be reported with the name.
        key: the name, with its schema, in lower case.
    """
    number = altered.now.table_id
    if not database.catalog.over_schema(key[0]):
        return
    others = (other for other in transaction.altered.values() if other.now.table_id != number)
    holder = next((other for other in others if key_of(other.now.shape.schema, other.told) == key), None)
    if holder is None or holder.now.ours:
        return
    if holder.now.table_id in within:
        raise NotSupported(
            f'tables "{altered.before.shape.name}" and "{holder.before.shape.name}" cannot change their '
            "names in one transaction: a stream is on all tables of their schema",
            hint="Make it two transactions.",
        )
    settle(database, transaction, holder.now.table_id, within | {number})


def _has_name(database: Database, transaction: Transaction, altered: Altered) -> bool:
    """True if a table has the former name of a captured one.

    It may be another captured table, if its own streams also have a table of their name to follow.
    """
    before = altered.before
    other = transaction.captured_tables(database.catalog).get(before.key)
    if other is not None and other.may_go and altered.now.may_go:
        return False  # Each is in the stream separately: one leaves, the other has its name.
    if other is not None:
        was = transaction.altered[other.table_id].before
        if _kind_of(transaction, was) is None:
            why = f'No table is called "{was.shape.name}" at the end of the transaction.'
        elif database.catalog.over_schema(before.key[0]):
            why = "A stream is on all tables of their schema."
        else:
            return True
        names = ", ".join(shown_name(stream.name) for stream in other.streams)
        raise NotSupported(
            f'table "{was.shape.name}" has streams ({names}), and cannot be swapped with table '
            f'"{before.shape.name}", which has streams too',
            detail=why,
            hint="DROP STREAM on one of them first; or DELETE and INSERT in one transaction, which replaces "
            "a table's rows.",
        )
    kind = _kind_of(transaction, before)
    if kind == "view" and altered.now.may_go:
        return False
    if kind == "view":
        raise DependentObjects(
            f'"{before.shape.name}" cannot be a view, because the table of that name has streams',
            hint="DROP STREAM first.",
        )
    return kind is not None


def _kind_of(transaction: Transaction, named: Captured) -> str | None:
    """The kind of relation with a captured table's name in the transaction: 'table', 'view' or none."""
    found = ask_maybe(
        transaction.cursor,
        f"SELECT kind FROM {RELATIONS} WHERE database_name = current_database() "
        f"AND {folded_sql('schema_name')} = $1 AND {folded_sql('table_name')} = $2",
        list(named.key),
    )
    return None if found is None else str(found[0])


def _swap(database: Database, transaction: Transaction, altered: Altered) -> None:
    """Make the table with the name the captured one, and write the difference as events."""
    old, cursor = altered.now, transaction.cursor
    shape = read_shape(cursor, old.shape.schema, altered.before.shape.name)
    _check_columns(old, shape)
    shape = _with_key(cursor, old, shape)
    ids = ids_by_name(old, shape)
    same = event_columns(shape) == event_columns(replace(old.shape, name=altered.told))
    if same:
        table = replace(old.table, shape=shape)
        now = replace(old, table=table, changed_counter=database.snapshots.next_counter)
        show_altered(database, transaction, old, now, shape.name)
        others = [altered.now for altered in transaction.altered.values()]
        # If these changed since the rename, the views of streams over several tables have the other name.
        for statement in views_anew(database.catalog, now, others) if len(others) > 1 else ():
            cursor.execute(statement).fetchall()
    else:
        put_version(database, transaction, old, shape, ids, summed=False)
        now = transaction.altered[old.table_id].now
    reconcile(transaction, old, now, old.shape.qualified)
    if old.shape.name == _aside(old):
        for statement in drop_statements(cursor, old.shape.schema, old.shape.name):
            cursor.execute(statement).fetchall()


def _check_columns(old: Captured, shape: TableShape) -> None:
    """Check that the columns that identify and partition rows exist with their types."""
    name = shape.name
    if not old.shape.primary_key and not old.may_go:
        raise NotSupported(
            f'table "{name}" has streams and no primary key: another table cannot take its place',
            detail="Which of its rows are others could not be told.",
            hint="TRUNCATE and INSERT in one transaction replace its rows.",
        )
    needed = {*old.shape.primary_key, *(name for stream in old.streams for name in stream.partition_by)}
    for column in old.shape.stored:
        place = shape.position(column.name)
        if column.name not in needed:
            continue
        if place is None:
            raise NotSupported(
                f'the new table "{name}" has no column "{column.name}"',
                detail="The primary key of the table before has it, or a stream is partitioned by it.",
                hint="Give the new table the column; or DROP STREAM first.",
            )
        if shape.stored[place].type != column.type:
            raise NotSupported(
                f'column "{column.name}" of the new table "{name}" has another type: '
                f"{shape.stored[place].type}, and not {column.type}",
                detail="The primary key of the table before has it, or a stream is partitioned by it.",
                hint="Cast it to that type where the new table is made; or DROP STREAM first.",
            )


def _with_key(cursor: duckdb.DuckDBPyConnection, old: Captured, shape: TableShape) -> TableShape:
    """The new table with the primary key of the old one."""
    key = tuple(shape.stored[shape.place(name)].name for name in old.shape.primary_key)
    if shape.primary_key == key:
        return shape
    if shape.primary_key:
        raise NotSupported(
            f'the new table "{shape.name}" has another primary key: '
            f"({', '.join(shape.primary_key)}), and not ({', '.join(key)})",
            hint="Make it with the same key, or with none; or DROP STREAM first.",
        )
    columns = ", ".join(map(ident, key))
    indexes = indexes_of(cursor, shape.schema, shape.name)  # DuckDB does not alter a table with an index.
    for index in indexes:
        cursor.execute(f"DROP INDEX {ident(shape.schema)}.{ident(index.name)}").fetchall()
    # DuckDB checks the transaction's own rows only at COMMIT, after their difference is written.
    check_key(cursor, shape.qualified, replace(shape, primary_key=key))
    cursor.execute(f"ALTER TABLE {shape.qualified} ADD PRIMARY KEY ({columns})").fetchall()
    for index in indexes:
        cursor.execute(index.sql).fetchall()
    return read_shape(cursor, shape.schema, shape.name)
