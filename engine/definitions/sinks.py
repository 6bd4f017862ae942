"""Creating, altering and dropping sinks inside the requesting transaction.

A sink is stored beside its consumer group, which is created and dropped with it, so the transaction holds the
writer lock. The catalog in memory and the runners follow at COMMIT. Source: docs/sinks.md.
"""

from __future__ import annotations

from ..catalog.catalog import Catalog
from ..catalog.sinks import Sink
from ..catalog.streams import Group, Stream
from ..database import Database
from ..duck.cursors import ask
from ..errors import ProgramLimitExceeded, SerializationFailure, UndefinedObject
from ..quoting import ident
from ..schema import SINKS
from ..transactions.transaction import CommitStep, Transaction
from .groups import drop_group

_TABLE = f"ducktail.{SINKS}"


def find_sink(catalog: Catalog, group: Group, transaction: Transaction | None) -> Sink | None:
    """The sink of a consumer group, as visible in a transaction; None for a group of another reader."""
    if transaction is not None and group.group_id in transaction.sinks:
        return transaction.sinks[group.group_id]
    return catalog.sinks.get(group.group_id)


def missing_sink(stream: Stream, name: str) -> UndefinedObject:
    """The error for a sink that does not exist."""
    return UndefinedObject(
        f'sink "{name}" of stream "{stream.name}" does not exist',
        hint=f"CREATE SINK {ident(name)} ON {ident(stream.name)} TO WEBHOOK 'https://...' makes it.",
    )


def create_sink(database: Database, transaction: Transaction, sink: Sink) -> None:
    """Create a sink in the transaction that has created its group.

    Raises:
        ProgramLimitExceeded: there are too many sinks.
    """
    assert transaction.has_writer_lock, "what is made has a number"
    most = database.settings.sinks_max
    present = {**database.catalog.sinks, **transaction.sinks}
    if sum(found is not None for found in present.values()) >= most:
        raise ProgramLimitExceeded(
            f"there are {most} sinks, and there can be no more", hint="The setting sinks_max is the bound."
        )
    transaction.cursor.execute(
        f"INSERT INTO {_TABLE} VALUES ($1, $2, $3, $4, $5, $6, $7, $8, make_timestamptz({sink.changed_us}))",
        sink.stored(),
    ).fetchall()
    _change(database, transaction, sink.group_id, sink)


def set_sink(database: Database, transaction: Transaction, changed: Sink) -> None:
    """Replace a sink's definition or state, in a transaction that holds the writer lock.

    Raises:
        SerializationFailure: the transaction's snapshot is older than the sink.
    """
    assert transaction.has_writer_lock, "a change has a number"
    (count,) = ask(
        transaction.cursor,
        f"UPDATE {_TABLE} SET uid = $2, kind = $3, target = $4, options = $5, secrets = $6, state = $7, "
        f"reason = $8, changed_at = make_timestamptz({changed.changed_us}) WHERE group_id = $1",
        changed.stored(),
    )
    if not count:
        raise SerializationFailure(
            "the sink was made after this transaction began to read", hint="Roll back and try again."
        )
    _change(database, transaction, changed.group_id, changed)


def drop_sink(database: Database, transaction: Transaction, group: Group) -> None:
    """Drop a sink with its group, in a transaction that holds the writer lock and has locked the group.

    Raises:
        SerializationFailure: the transaction's snapshot is older than the group.
    """
    drop_group(database, transaction, group)
    transaction.cursor.execute(f"DELETE FROM {_TABLE} WHERE group_id = {group.group_id}").fetchall()
    _change(database, transaction, group.group_id, None)


def _change(database: Database, transaction: Transaction, group_id: int, sink: Sink | None) -> None:
    transaction.defines = True
    transaction.sinks[group_id] = sink

    def follow() -> None:
        if sink is None:
            database.catalog.sinks.pop(group_id, None)
            database.sink_activity.forget([group_id])
        else:
            database.catalog.sinks[group_id] = sink

    transaction.at(CommitStep.MEMORY, follow)
    transaction.at(CommitStep.WAKE, database.sink_activity.changed, about="sinks")
