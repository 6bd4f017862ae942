"""PARK, RELEASE and DISCARD, and commits that cover released events: the work inside a transaction.

Each runs in a transaction that holds the group, so that no other transaction changes its events; PARK,
RELEASE and DISCARD hold the writer lock as well, like every numbered transaction in `commits`. Checks use the
state in memory; a transaction with an older snapshot fails with 40001. groups/parked.py describes the states
of events.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import duckdb

from ..catalog.copies import Copy
from ..catalog.streams import Group, Stream
from ..database import Database
from ..duck.cursors import ask_maybe
from ..errors import (
    DuplicateObject,
    InvalidParameterValue,
    NotSupported,
    ProgramLimitExceeded,
    SerializationFailure,
    UndefinedObject,
    WrongState,
)
from ..groups.deliveries import DeliveryRange, exhausted, live_ranges
from ..groups.parked import (
    BEHIND,
    NOTHING,
    PARKED,
    PARKED_MAX,
    REASON_CHARS_MAX,
    RELEASED,
    RELEASED_MAX,
    Aside,
    ParkedEvent,
    ParkedOfGroup,
    behind_sql,
    copies_sql,
    read_groups,
    same_key,
    same_key_sql,
)
from ..log.queries import Events, event_query, with_copy
from ..quoting import ident, literal
from ..schema import SCHEMA
from ..transactions.transaction import CommitStep, Transaction
from .start_positions import check_lsns
from .whole_copies import copy_of

TABLE = f"{SCHEMA}.parked_events"
DELIVERIES = f"{SCHEMA}.parked_deliveries"


def parked_of(database: Database, transaction: Transaction | None, group: Group) -> ParkedOfGroup:
    """The events that a group has parked, as visible in a transaction."""
    if transaction is not None and group.group_id in transaction.parked:
        return transaction.parked[group.group_id]
    return database.parked.get(group.group_id) or NOTHING


def park(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    group: Group,
    place: tuple[int, int],
    reason: str | None,
    committed: Mapping[int, int],
    delivery: DeliveryRange | None = None,
) -> None:
    """Park an event for its group; with the group's on_park = 'key', later events of its key go behind it.

    Args:
        place: the event's partition and LSN.
        committed: partition -> committed LSN visible in the transaction.
        delivery: the event's deliveries, if it is parked because of their number.

    Raises:
        InvalidParameterValue: no such event in the partition, or it is committed.
        NotSupported: the event is a schema event.
        DuplicateObject: the event is parked already.
        ProgramLimitExceeded: too many events are parked, or the reason is too long.
        SerializationFailure: the transaction's snapshot is older than the group's state.
    """
    partition, lsn = place
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise ProgramLimitExceeded(
            f"the reason has {len(reason)} characters, and {REASON_CHARS_MAX} are the most",
            hint="Keep what is longer in a table of your own, by LSN.",
        )
    copy = copy_of(database, transaction, group)
    check_lsns(database, stream, {partition: lsn}, copy)
    parked = _held(database, transaction, group)
    known = parked.events.get(lsn)
    if known is not None and known.state == PARKED:
        raise _parked_already(group, lsn)
    query = event_query(database.catalog, stream)
    if copy is not None and copy.left(partition, lsn - 1):
        query = with_copy(database.catalog, stream, query, copy)
    if known is None:
        key, tx_last = _event(database, query, stream, partition, lsn, copy)
    else:
        key, tx_last = known.key, known.tx_last
    if known is None and lsn <= committed[partition]:
        raise InvalidParameterValue(
            f'LSN {lsn} of partition {partition} is behind what consumer group "{group.name}" has '
            f"committed, {committed[partition]}",
            hint="What is committed is done: only an event that is still to come can be set aside.",
        )
    head = parked.head_before(partition, lsn, key)
    if head is not None:
        raise _parked_already(group, lsn, f"It stands behind LSN {head.lsn}, which has its key.")
    if len(parked.of(PARKED)) >= PARKED_MAX:
        raise ProgramLimitExceeded(
            f'consumer group "{group.name}" has {PARKED_MAX} parked events, and can have no more',
            hint="RELEASE those that can be processed now.",
        )
    by_key = group.on_park == "key" and key is not None
    cursor, where = transaction.cursor, f"group_id = {group.group_id}"
    _copy(transaction, query, [lsn] if known is None else [])
    for table in (TABLE, DELIVERIES):
        cursor.execute(f"DELETE FROM {table} WHERE {where} AND lsn = {lsn}").fetchall()
    if delivery is not None:
        cursor.execute(
            f"INSERT INTO {DELIVERIES} VALUES ($1, $2, $3, $4::VARCHAR[])",
            [group.group_id, lsn, delivery.deliveries, list(delivery.members)],
        ).fetchall()
    said = "NULL" if reason is None else literal(reason)
    cursor.execute(
        f"INSERT INTO {TABLE} (group_id, partition, lsn, state, key, by_key, tx_last, reason, parked_at, "
        f"parked_by) VALUES ({group.group_id}, {partition}, {lsn}, '{PARKED}', {_key(key)}, {by_key}, "
        f"{tx_last}, {said}, make_timestamptz({database.clock.now_us()}), "
        f"{literal(transaction.committed_by)})"
    ).fetchall()
    if by_key:
        assert key is not None
        # Later released events of its key are behind it now.
        cursor.execute(
            f"UPDATE {TABLE} SET state = '{BEHIND}' WHERE {where} AND state = '{RELEASED}' "
            f"AND partition = {partition} AND {same_key_sql('key', key)} AND lsn > {lsn}"
        ).fetchall()
    transaction.defines = True
    _follow(database, transaction, group)


def release(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    group: Group,
    place: tuple[int, int | None],
) -> int:
    """Return parked events to their group's reads, with the events behind them.

    Args:
        place: partition, and the LSN of one parked event; None for all of the partition.

    Returns:
        The number of released parked events, without the events behind them.

    Raises:
        UndefinedObject: no such event is parked.
        WrongState: an earlier event of its key is parked.
        ProgramLimitExceeded: too many events would be released.
        SerializationFailure: the transaction's snapshot is older than the group's state.
    """
    partition, lsn = place
    check_lsns(database, stream, {partition: 0})
    parked = _held(database, transaction, group)
    heads, left = _chosen(parked, stream, group, place)
    if lsn is not None:
        of_key = (e for e in left if e.by_key and same_key(e.key, heads[0].key))
        earlier = next((e for e in of_key if e.lsn < lsn), None)
        if earlier is not None:
            raise WrongState(
                f"LSN {lsn} cannot be released: LSN {earlier.lsn}, an earlier event of its key, is parked",
                hint=f"RELEASE PARTITION {partition} AT {earlier.lsn} first: events of a key stay in order.",
            )
    released = len(parked.of(RELEASED))
    for head in heads:
        transaction.cursor.execute(
            f"UPDATE {TABLE} SET state = '{RELEASED}' WHERE group_id = {group.group_id} AND lsn = {head.lsn}"
        ).fetchall()
        released += 1
        if head.by_key:
            until = min((e.lsn for e in left if e.by_key and same_key(e.key, head.key)), default=None)
            released += _release_behind(database, transaction, stream, group, head, until)
    lsns = [head.lsn for head in heads]
    present = (database.parked.get(group.group_id) or NOTHING).events
    counted = database.deliveries.get(group.group_id).get(partition, ())
    dead = [lsn for lsn in lsns if lsn in present and any(c.first_lsn <= lsn <= c.last_lsn for c in counted)]
    if dead:
        # Before the COMMIT, so that no kill comes between: a parked event's count has no use.
        database.deliveries.clear(group.group_id, {partition: dead})
    transaction.at(CommitStep.MEMORY, lambda: database.deliveries.drop(group.group_id, partition, lsns))
    _check_released(group, released)
    transaction.defines = True
    _follow(database, transaction, group)
    return len(heads)


def discard(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    group: Group,
    place: tuple[int, int | None],
    committed_lsn: int,
) -> int:
    """Delete parked events, which their group never receives then, and release the events behind them.

    Args:
        place: partition, and the LSN of one parked event; None for all of the partition.
        committed_lsn: the committed LSN of the partition, as visible in the transaction. A later event would
            be read again once nothing says that it is parked.

    Returns:
        The number of discarded events.

    Raises:
        UndefinedObject: no such event is parked.
        WrongState: the group has not committed past an event.
        ProgramLimitExceeded: too many events would be released.
        SerializationFailure: the transaction's snapshot is older than the group's state.
    """
    check_lsns(database, stream, {place[0]: 0})
    parked = _held(database, transaction, group)
    heads, left = _chosen(parked, stream, group, place)
    ahead = next((e for e in heads if e.lsn > committed_lsn), None)
    if ahead is not None:
        raise WrongState(
            f'LSN {ahead.lsn} cannot be discarded: consumer group "{group.name}" has committed LSN '
            f"{committed_lsn} of partition {place[0]}",
            hint="Reads of the group pass the event: commit past it first.",
        )
    released = len(parked.of(RELEASED))
    for head in heads:
        of_key = [e.lsn for e in left if head.by_key and e.by_key and same_key(e.key, head.key)]
        # Behind an earlier parked event of the key, its events stay in order.
        if head.by_key and not any(lsn < head.lsn for lsn in of_key):
            released += _release_behind(database, transaction, stream, group, head, min(of_key, default=None))
    _check_released(group, released)
    if heads:
        _delete(transaction, group, parked, [head.lsn for head in heads])
    transaction.defines = True
    _follow(database, transaction, group)
    return len(heads)


def _chosen(
    parked: ParkedOfGroup, stream: Stream, group: Group, place: tuple[int, int | None]
) -> tuple[list[ParkedEvent], list[ParkedEvent]]:
    """The parked events of a partition that a statement is about, and the others."""
    partition, lsn = place
    heads = [e for e in parked.of(PARKED, partition) if lsn is None or e.lsn == lsn]
    if lsn is not None and not heads:
        raise UndefinedObject(
            f'consumer group "{group.name}" has no parked event with LSN {lsn} in partition {partition}',
            hint=f"SHOW PARKED ON {ident(stream.name)} CONSUMER GROUP {ident(group.name)} shows what it has.",
        )
    return heads, [e for e in parked.of(PARKED, partition) if e not in heads]


def _check_released(group: Group, released: int) -> None:
    if released > RELEASED_MAX:
        raise ProgramLimitExceeded(
            f'consumer group "{group.name}" would have more than {RELEASED_MAX} released events to read',
            hint="Read and commit what is released, or release less at a time.",
        )


def _release_behind(
    database: Database,
    transaction: Transaction,
    stream: Stream,
    group: Group,
    head: ParkedEvent,
    until: int | None,
) -> int:
    """Release the events behind a parked key up to the stream's end; returns their number.

    An unfinished read may have skipped them, and may still be committed.

    Args:
        until: the LSN of the key's next parked event, which keeps the events behind it; None without one.
    """
    assert head.key is not None
    buffer, query = database.buffers.of(stream), event_query(database.catalog, stream)
    edge, end_lsn = buffer.partitions[head.partition].trimmed_through_lsn, buffer.end_lsn
    behind = f"partition = {head.partition} AND lsn > {head.lsn}"
    if until is not None:
        behind += f" AND lsn < {until}"
    cursor, where = transaction.cursor, f"group_id = {group.group_id} AND {behind}"
    row = ask_maybe(
        cursor,
        f"UPDATE {TABLE} SET state = '{RELEASED}' WHERE {where} AND state = '{BEHIND}' "
        f"AND {same_key_sql('key', head.key)}",
    )
    count = 0 if row is None else int(row[0])
    window = f"lsn > {max(head.lsn, edge)} AND lsn <= {end_lsn}"
    events = query.between(max(head.lsn, edge) + 1, end_lsn).whole_sql(window, window)
    found = _ask_all(
        database,
        f"SELECT lsn, tx_last FROM ({events}) WHERE {behind} AND {same_key_sql('key::VARCHAR', head.key)} "
        f"ORDER BY lsn LIMIT {RELEASED_MAX + 1}",
    )
    known = {lsn for (lsn,) in cursor.execute(f"SELECT lsn FROM {TABLE} WHERE {where}").fetchall()}
    new = [row for row in found if row[0] not in known]
    if new and len(new) <= RELEASED_MAX:
        _copy(transaction, query, [lsn for lsn, _ in new])
        cursor.execute(
            f"INSERT INTO {TABLE} (group_id, partition, lsn, state, key, by_key, tx_last) "
            f"SELECT {group.group_id}, {head.partition}, unnest($1::BIGINT[]), '{RELEASED}', "
            f"{_key(head.key)}, false, unnest($2::BOOLEAN[])",
            [[lsn for lsn, _ in new], [last for _, last in new]],
        ).fetchall()
    return count + len(new)


def cover(database: Database, transaction: Transaction, group: Group, lsns: Collection[int]) -> None:
    """Delete released events that a commit covers, in a transaction that holds the group.

    Raises:
        SerializationFailure: another commit has covered them.
    """
    parked = _held(database, transaction, group)
    released = {event.lsn for event in parked.of(RELEASED)}
    if not released.issuperset(lsns):
        raise covered_meanwhile(group)
    _delete(transaction, group, parked, lsns)
    _follow(database, transaction, group)


def _delete(transaction: Transaction, group: Group, parked: ParkedOfGroup, lsns: Collection[int]) -> None:
    """Delete events of a group, with their deliveries."""
    tables = [TABLE]
    if any(parked.events[lsn].deliveries is not None for lsn in lsns):
        tables.append(DELIVERIES)
    for table in tables:
        transaction.cursor.execute(
            f"DELETE FROM {table} WHERE group_id = {group.group_id} AND lsn IN (SELECT unnest($1::BIGINT[]))",
            [sorted(lsns)],
        ).fetchall()


def covered_meanwhile(group: Group) -> SerializationFailure:
    """The error for a transaction that has read events which another one has committed."""
    return SerializationFailure(
        f'released events of consumer group "{group.name}" have been committed meanwhile',
        hint="Roll back and read again.",
    )


def exhausted_of(
    database: Database, group: Group, partitions: Collection[int]
) -> list[tuple[int, DeliveryRange]]:
    """The partition and deliveries of each event that the next read of a group has to park first."""
    if group.max_deliveries is None:
        return []
    ranges = database.deliveries.get(group.group_id)
    if not ranges:
        return []
    standing = database.offsets.positions(group.group_id)
    committed = {partition: standing[partition].lsn for partition in partitions if partition in standing}
    parked = database.parked.get(group.group_id) or NOTHING
    return exhausted(live_ranges(ranges, committed, parked), group.max_deliveries)


def park_exhausted(
    database: Database, transaction: Transaction, stream: Stream, group: Group, partitions: Collection[int]
) -> list[tuple[int, DeliveryRange]]:
    """Park the events of a group that were delivered too often, in a transaction that may do so.

    A schema event stays, as PARK refuses it; so does an event that is gone, which a read reports.

    Returns:
        The partition and deliveries of each event that was parked.

    Raises:
        ProgramLimitExceeded: too many events are parked.
        SerializationFailure: the event has just been committed.
    """
    done = []
    standing = database.offsets.positions(group.group_id)
    committed = {partition: position.lsn for partition, position in standing.items()}
    for partition, delivery in exhausted_of(database, group, partitions):
        said = f"delivered {delivery.deliveries} times and not committed"
        if delivery.members:
            said += f", the last time to member {literal(delivery.members[-1])}"
        place = partition, delivery.first_lsn
        try:
            park(database, transaction, stream, group, place, said, committed, delivery)
        except (NotSupported, InvalidParameterValue, DuplicateObject):
            continue
        done.append((partition, delivery))
    return done


def passed_over(
    database: Database, stream: Stream, aside: Aside, partition: int, window: tuple[int, int]
) -> int:
    """The number of a partition's events that a read skips in a window of LSNs, whose first is excluded."""
    low, high = window
    heads = [lsn for lsn, at in aside.lsns.items() if at == partition and low < lsn <= high]
    behind = behind_sql(key for key in aside.keys if key[0] == partition and key[1] < high)
    if not behind:
        return len(heads)
    query = event_query(database.catalog, stream).between(low + 1, high)
    events = query.sql(f"lsn > {low} AND lsn <= {high}", "false")
    parked = f"lsn IN ({', '.join(map(str, heads)) or 'NULL'})"
    [(count,)] = _ask_all(
        database,
        f"SELECT count(*) FROM ({events}) WHERE partition = {partition} AND (({parked}) OR {behind})",
    )
    return int(count)


def _held(database: Database, transaction: Transaction, group: Group) -> ParkedOfGroup:
    """The events that a group has parked, in a transaction that holds it and is about to change them."""
    assert group.group_id in transaction.locked_groups, "nobody else may change it"
    if group.group_id in transaction.parked:
        return transaction.parked[group.group_id]
    present = database.parked.get(group.group_id) or NOTHING
    where = f"group_id = {group.group_id}"
    if read_groups(transaction.cursor, where).get(group.group_id, NOTHING) != present:
        raise SerializationFailure(
            f'parked events of consumer group "{group.name}" changed after this transaction began to read',
            hint="Roll back and try again.",
        )
    return present


def _follow(database: Database, transaction: Transaction, group: Group) -> None:
    """Make the transaction see the changes that it has written; memory is updated at COMMIT."""
    where = f"group_id = {group.group_id}"
    now = read_groups(transaction.cursor, where).get(group.group_id, NOTHING)
    first = group.group_id not in transaction.parked
    transaction.parked[group.group_id] = now
    if first:
        transaction.at(
            CommitStep.MEMORY, lambda: database.parked.put(group.group_id, transaction.parked[group.group_id])
        )
        # Waiting readers can read the released events.
        transaction.at(CommitStep.WAKE, lambda: database.polls.look_again(group.stream_id, group.group_id))


def _copy(transaction: Transaction, query: Events, lsns: Collection[int]) -> None:
    """Copy log rows to the table from which retention does not delete."""
    if not lsns:
        return
    cursor, parts = transaction.cursor, query.holding(lsns).parts
    listed = ", ".join(map(str, lsns))
    wanted = f"SELECT unnest([{listed}]::BIGINT[])"
    try:
        for part in parts:
            for statement in copies_sql(part.log, part.parked().log, wanted, part.commits):
                cursor.execute(statement).fetchall()
    except duckdb.CatalogException as error:  # The log of a table version that is not in the snapshot.
        raise _committed_meanwhile() from error
    # Parked rows of a whole copy are stored with those of its version's log.
    sides = dict.fromkeys(part.parked().log for part in parts)
    copies = " UNION ALL ".join(f"SELECT lsn, txid FROM {side}" for side in sides)
    row = ask_maybe(
        cursor,
        f"SELECT count(*) FROM ({copies}) AS l JOIN {SCHEMA}.parked_commits AS c ON c.txid = l.txid "
        f"WHERE l.lsn IN ({wanted})",
    )
    if row is None or int(row[0]) != len(set(lsns)):
        raise _committed_meanwhile()


def _committed_meanwhile() -> SerializationFailure:
    return SerializationFailure(
        "the event was committed after this transaction began to read", hint="Roll back and try again."
    )


def _event(
    database: Database, query: Events, stream: Stream, partition: int, lsn: int, copy: Copy | None
) -> tuple[str | None, bool]:
    """The key and tx_last of the event at an LSN.

    Args:
        copy: the group's whole copy.
    """
    bound = f"(SELECT {{0}} FROM {SCHEMA}.commits WHERE {lsn} BETWEEN first_lsn AND last_lsn)"
    whole = f"lsn BETWEEN {bound.format('max(first_lsn)')} AND {bound.format('max(last_lsn)')}"
    chunk_end = None if copy is None else copy.chunk_end(lsn)
    if chunk_end is not None:
        whole = f"lsn BETWEEN {lsn} AND {chunk_end}"  # Its row of `commits` may be deleted.
    events = query.between(lsn, lsn).whole_sql(f"lsn = {lsn}", whole)
    rows = _ask_all(database, f"SELECT partition, key::VARCHAR, tx_last, op FROM ({events})")
    trimmed = database.buffers.of(stream).partitions[partition].trimmed_through_lsn
    if chunk_end is not None:
        trimmed = 0
    if rows and rows[0][0] == partition and lsn > trimmed:
        if rows[0][3] == "schema":
            raise NotSupported(
                f"LSN {lsn} is a schema event, which cannot be set aside",
                hint="Commit it: ducktail.schema_versions keeps what it says.",
            )
        return rows[0][1], bool(rows[0][2])
    detail = None
    if rows:
        detail = f"It is one of partition {rows[0][0]}." if rows[0][0] != partition else "It is trimmed."
    hint = None
    if not rows and lsn <= database.buffers.of(stream).compacted_lsn:
        hint = "Compaction may have taken it since it was read: reads go on without it."
    raise InvalidParameterValue(
        f'LSN {lsn} is no event of partition {partition} of stream "{stream.name}"', detail=detail, hint=hint
    )


def _ask_all(database: Database, sql: str) -> list[tuple[Any, ...]]:
    """Committed rows, read on a cursor of the engine."""
    cursor: duckdb.DuckDBPyConnection = database.cursor(utc=True)
    try:
        return cursor.execute(sql).fetchall()
    finally:
        cursor.close()


def _key(key: str | None) -> str:
    return "NULL" if key is None else literal(key)


def _parked_already(group: Group, lsn: int, detail: str | None = None) -> DuplicateObject:
    return DuplicateObject(f'LSN {lsn} is parked already for consumer group "{group.name}"', detail=detail)
