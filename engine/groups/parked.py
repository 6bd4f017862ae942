"""Parked events: events that a group has set aside, and those that it has released to be read again.

A group parks an event that it cannot process and continues. The states of rows of `parked_events`:

- `parked`: the event is set aside. With `by_key` later events of its key in its partition are set aside
  behind it; a read works out which events these are.
- `behind`: such a later event that retention has trimmed, kept so that it is not lost.
- `released`: reads return the event again, although the group's committed LSN may have passed it, or may yet
  pass it by the commit of a read that has skipped it. Reads return it until one of their commits covers it;
  the commit deletes the row.

Each row's event is copied, as a row of its log, into the log's `side_log`, and its transaction's row of
`commits` into `parked_commits`, so that retention does not remove it. Rows and copies change inside
transactions that hold the group (and, except for a commit, the writer lock); memory follows at COMMIT.
Source: docs/groups.md, "Parked events".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import duckdb

from ..catalog.copies import Copy
from ..catalog.streams import Group
from ..quoting import literal
from ..schema import SCHEMA

PARKED, BEHIND, RELEASED = "parked", "behind", "released"

# Limits of one group: a group that parks more has another problem. An event is some hundred bytes in memory.
PARKED_MAX = 1000
RELEASED_MAX = 100_000
# A reason is held in memory with its event; longer texts belong in a table of the user.
REASON_CHARS_MAX = 1000

# A column's name in a key's JSON text.
_NAME = r'([{,])"(?:[^"\\]|\\.)*":'


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """One row of `parked_events` that is cached in memory: a parked or a released event.

    Args:
        key: JSON text of the event's key; None without one.
        by_key: True if later events of its key are set aside behind it.
        tx_last: the event's column `tx_last`.
        deliveries: how often it was delivered, if it was parked for that.
        members: the members to which it went, then.
    """

    partition: int
    lsn: int
    state: str
    key: str | None
    by_key: bool
    tx_last: bool
    reason: str | None
    parked_at_us: int
    parked_by: str | None
    deliveries: int | None = None
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Aside:
    """The parked and released events of a group that a scan meets.

    Args:
        lsns: LSN -> partition of parked events after the scan's starts; the scan skips them.
        keys: partition, LSN and key of parked events; the scan skips later events of the same key.
        released: LSN -> event, rising: released events outside the scan's range, which it also returns:
            events at or before the starts, and rows of a whole copy that SEEK has left.
        partitions: LSN -> partition of all released events that the scan returns, including those after the
            starts.
    """

    lsns: Mapping[int, int]
    keys: tuple[tuple[int, int, str], ...]
    released: Mapping[int, ParkedEvent]
    partitions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ParkedOfGroup:
    """A group's parked and released events, by LSN, rising."""

    events: Mapping[int, ParkedEvent] = field(default_factory=dict)

    def of(self, state: str, partition: int | None = None) -> list[ParkedEvent]:
        """The events of one state, and of one partition if it is given, by LSN."""
        found = (event for event in self.events.values() if event.state == state)
        return [event for event in found if partition is None or event.partition == partition]

    def head_before(self, partition: int, lsn: int, key: str | None) -> ParkedEvent | None:
        """The parked event behind which an event is set aside; None if it is not."""
        heads = (e for e in self.of(PARKED, partition) if e.by_key and same_key(e.key, key) and e.lsn < lsn)
        return next(heads, None)

    def aside(
        self, after: Mapping[int, int], released: Collection[int], copy: Copy | None = None
    ) -> Aside | None:
        """The parked and released events that a scan from these LSNs meets; None without any.

        Args:
            released: the LSNs of released events whose copies can be read.
            copy: the group's whole copy.
        """
        there = frozenset(released)

        def passed(event: ParkedEvent) -> bool:
            start = after[event.partition]
            left = copy is not None and copy.withholds(event.partition, event.lsn, start)
            return event.lsn <= start or left

        parked = [event for event in self.of(PARKED) if event.partition in after]
        lsns = {event.lsn: event.partition for event in parked if event.lsn > after[event.partition]}
        keys = tuple((e.partition, e.lsn, e.key) for e in parked if e.by_key and e.key is not None)
        free = [event for event in self.of(RELEASED) if event.partition in after]
        again = {e.lsn: e for e in free if e.lsn in there and passed(e)}
        given = {e.lsn: e.partition for e in free if e.lsn in again or e.lsn > after[e.partition]}
        return Aside(lsns, keys, again, given) if lsns or keys or given else None


def same_key(one: str | None, other: str | None) -> bool:
    """True if two keys have the same values; the names of their columns may differ."""
    return one is not None and other is not None and _values(one) == _values(other)


def same_key_sql(key: str, other: str) -> str:
    """The comparison of `same_key` in SQL.

    Args:
        key: SQL of a key's text.
        other: another key's text.
    """
    return f"regexp_replace({key}, {literal(_NAME)}, '\\1', 'g') = {literal(_values(other))}"


def _values(key: str) -> str:
    """A key's text without the names of its columns, which RENAME COLUMN changes."""
    return re.sub(_NAME, r"\1", key)


NOTHING = ParkedOfGroup()
_COLUMNS = "partition, lsn, state, key, by_key, tx_last, reason, epoch_us(parked_at), parked_by"


def read_groups(cursor: duckdb.DuckDBPyConnection, where: str = "true") -> dict[int, ParkedOfGroup]:
    """Group id -> its parked and released events in the cursor's MVCC snapshot."""
    found: dict[int, dict[int, ParkedEvent]] = {}
    for group_id, *row, members in cursor.execute(
        f"SELECT group_id, {_COLUMNS}, deliveries, members FROM {SCHEMA}.parked_events "
        f"LEFT JOIN {SCHEMA}.parked_deliveries USING (group_id, lsn) "
        f"WHERE state <> '{BEHIND}' AND ({where}) ORDER BY group_id, lsn"
    ).fetchall():
        event = replace(ParkedEvent(*row), members=tuple(members or ()))
        found.setdefault(group_id, {})[event.lsn] = event
    return {group_id: ParkedOfGroup(events) for group_id, events in found.items()}


class Parked:
    """The parked and released events of all groups: a cache of `parked_events`.

    Only transactions that hold a group change its events.

    Attributes:
        released: the groups that have released events.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._groups = read_groups(cursor)
        self.released = {number for number, parked in self._groups.items() if parked.of(RELEASED)}

    def get(self, group_id: int) -> ParkedOfGroup | None:
        """A group's parked and released events; None without any."""
        return self._groups.get(group_id)

    def put(self, group_id: int, parked: ParkedOfGroup) -> None:
        """Replace a group's events, after the COMMIT of a transaction that has changed them."""
        if parked.of(RELEASED):
            self.released.add(group_id)
        else:
            self.released.discard(group_id)
        if parked.events:
            self._groups[group_id] = parked
        else:
            self._groups.pop(group_id, None)


def released_through(
    parked: ParkedOfGroup, lsns: Mapping[int, int], given: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """The released events that a commit by number covers: those that the committing reader has received.

    Args:
        lsns: partition -> committed LSN.
        given: partition -> released events that the reader's latest reads have returned.
    """
    return frozenset(
        event.lsn
        for event in parked.of(RELEASED)
        if event.lsn <= lsns.get(event.partition, -1) and event.lsn in given.get(event.partition, ())
    )


def behind_sql(keys: Iterable[tuple[int, int, str]]) -> str:
    """SQL condition that an event is behind one of these parked keys; empty without keys.

    Args:
        keys: partition, LSN and key of each.
    """
    return " OR ".join(
        f"(partition = {partition} AND lsn > {lsn} AND {same_key_sql('key::VARCHAR', key)})"
        for partition, lsn, key in keys
    )


# Copies that retention writes.


def kept_behind_sql(
    groups: Collection[Group], parked: Parked, events: str, logs: Collection[tuple[str, str]]
) -> Iterator[str]:
    """The statements that keep events behind parked keys, and their copies, before a trim.

    Args:
        events: the SELECT of the events to be trimmed, with tx_last.
        logs: each log with such events, and its side log.
    """
    for group in groups:
        found = parked.get(group.group_id)
        heads = [e for e in found.of(PARKED) if e.by_key and e.key is not None] if found else []
        if not heads:
            continue
        behind = behind_sql((e.partition, e.lsn, e.key or "") for e in heads)
        known = f"SELECT lsn FROM {SCHEMA}.parked_events WHERE group_id = {group.group_id}"
        yield (
            f"INSERT INTO {SCHEMA}.parked_events (group_id, partition, lsn, state, key, by_key, tx_last) "
            f"SELECT {group.group_id}, partition, lsn, '{BEHIND}', key::VARCHAR, false, tx_last "
            f"FROM ({events}) WHERE ({behind}) AND lsn NOT IN ({known})"
        )
        for log, side in logs:
            yield from copies_sql(log, side, known)


def copies_sql(log: str, side: str, lsns: str, commits: str = f"{SCHEMA}.commits") -> Iterator[str]:
    """The statements that copy log rows and their transactions' rows of `commits`, except those copied
    before.

    Args:
        lsns: a query of the rows' LSNs.
        commits: the relation with the transactions' rows.
    """
    new = f"lsn IN ({lsns}) AND lsn NOT IN (SELECT lsn FROM {side})"
    yield f"CREATE TABLE IF NOT EXISTS {side} AS SELECT * FROM {log} LIMIT 0"
    yield f"INSERT INTO {side} SELECT * FROM {log} WHERE {new}"
    yield (
        f"INSERT INTO {SCHEMA}.parked_commits SELECT txid, first_lsn, last_lsn, commit_time, annotation "
        f"FROM {commits} AS c WHERE txid IN (SELECT txid FROM {side} WHERE lsn IN ({lsns})) "
        f"AND txid NOT IN (SELECT txid FROM {SCHEMA}.parked_commits)"
    )
