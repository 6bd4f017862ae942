"""The partitions of topics whose logs this node has, and the identities of topics and groups in a cluster.

One node at a time has the log of a partition, independent of ownership. A placement defines which node serves
a partition; the log, the groups' committed LSNs and the producers' sequences stay on the old node until the
new owner has received them (`cluster/receive_partition.py`). A node has a row of `partition_holds` for each
partition:

- `none`: it never had the partition;
- `held`: it has the partition, since an epoch;
- `kept`: it has the partition, but a placement has assigned it to another node, which has not received it;
- `given`: it has given the partition to a node, at an epoch, and no longer uses it.

Among all nodes' rows for one partition the one with the highest epoch counts; at equal epochs `given` counts
last: a partition that was given and not yet received is still at the giver. A topic created before its
database joined a cluster has no rows: its node has all of it.

A topic and its groups are defined on every node. The identity of a definition consists of the database in
which it was created first and the object's number there; the other nodes store the identity received with the
definition. Two objects of one name with different identities are different objects, and are reported as such.
Source: docs/design/cluster.md, "Moving".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import duckdb

from ..catalog.streams import Stream
from ..duck.cursors import ask
from ..errors import WrongState
from ..quoting import literal
from .placement import Placement

TABLE = "ducktail.partition_holds"
NONE, HELD, KEPT, GIVEN = "none", "held", "kept", "given"
IDENTITIES = "ducktail.cluster_identities"


@dataclass(frozen=True, slots=True)
class Hold:
    """A row of `partition_holds`.

    Args:
        node: the node to which it was given.
        epoch: the epoch of the placement by which it was taken or given.
    """

    state: str
    node: str = ""
    epoch: int = 0

    @property
    def rank(self) -> tuple[int, bool]:
        """The order of several nodes' rows, of which the highest counts."""
        return (-1, False) if self.state == NONE else (self.epoch, self.here)

    @property
    def here(self) -> bool:
        """True if the node has the log."""
        return self.state in (HELD, KEPT)


class Holds:
    """The node's holds in memory, updated by the engine's commits.

    Args:
        cursor: a cursor of the engine, used here only.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._rows: dict[int, dict[int, Hold]] = {}
        # Cache of the missing partitions of each topic, by placement, rows and definition: every statement
        # reads it.
        self._missing: dict[int, tuple[Placement, dict[int, Hold], Stream, list[int]]] = {}
        for stream_id, partition, state, node, epoch in cursor.execute(
            f"SELECT stream_id, partition, state, node, epoch FROM {TABLE}"
        ).fetchall():
            self._rows.setdefault(stream_id, {})[partition] = Hold(state, node, epoch)

    def of(self, stream_id: int, partition: int) -> Hold:
        """The node's hold of a partition."""
        rows = self._rows.get(stream_id)
        return Hold(HELD) if rows is None else rows.get(partition, Hold(NONE))

    def missing(self, placement: Placement, stream: Stream) -> list[int]:
        """The partitions that this node owns and does not have yet."""
        rows = self._rows.get(stream.stream_id)
        if rows is None or not placement.epoch or not stream.topic:
            return []
        kept = self._missing.get(stream.stream_id)
        if kept is not None and kept[0] is placement and kept[1] is rows and kept[2] is stream:
            return kept[3]
        found = [
            partition
            for partition in owned(placement, stream)
            if rows.get(partition, Hold(NONE)).state != HELD
        ]
        self._missing[stream.stream_id] = (placement, rows, stream, found)
        return found

    def filled(self, stream: Stream, holds: Mapping[int, Hold]) -> dict[int, Hold]:
        """The rows to write; a topic's first rows are completed with HELD for its other partitions."""
        return {**({} if stream.stream_id in self._rows else all_partitions(stream, Hold(HELD))), **holds}

    def put(self, stream_id: int, holds: Mapping[int, Hold]) -> None:
        """Update memory with committed rows."""
        # Concurrent readers see either the old rows or the new ones.
        self._rows[stream_id] = {**self._rows.get(stream_id, {}), **holds}

    def drop(self, stream_id: int) -> None:
        """Remove the rows of a dropped topic."""
        self._rows.pop(stream_id, None)
        self._missing.pop(stream_id, None)


def owned(placement: Placement, stream: Stream) -> list[int]:
    """The partitions of a topic that a placement assigns to this node."""
    found = []
    for partition in range(stream.partitions):
        try:
            if placement.owner(stream.schema, stream.name, partition).name == placement.local.name:
                found.append(partition)
        except WrongState:
            continue  # No node has it.
    return found


def rows_sql(stream_id: int, holds: Mapping[int, Hold]) -> list[str]:
    """The statements that store the rows of a topic's partitions."""
    if not holds:
        return []
    values = ", ".join(
        f"({stream_id}, {partition}, {literal(hold.state)}, {literal(hold.node)}, {hold.epoch})"
        for partition, hold in holds.items()
    )
    return [
        f"DELETE FROM {TABLE} WHERE stream_id = {stream_id} AND partition IN ({listed(holds)})",
        f"INSERT INTO {TABLE} VALUES {values}",
    ]


def all_partitions(stream: Stream, hold: Hold) -> dict[int, Hold]:
    """One hold for all partitions of a topic: partition -> hold."""
    return dict.fromkeys(range(stream.partitions), hold)


def listed(numbers: Iterable[int]) -> str:
    """Numbers as an SQL list."""
    return ", ".join(map(str, sorted(numbers)))


class Identities:
    """The identities of topics and groups in memory, updated by the engine's commits.

    Args:
        cursor: a cursor of the engine, used here only.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        (self._database,) = ask(cursor, "SELECT value FROM ducktail.meta WHERE name = 'identity'")
        rows = cursor.execute(f"SELECT object_id, uid FROM {IDENTITIES}").fetchall()
        self._told: dict[int, str] = dict(rows)

    def of(self, object_id: int) -> str:
        """The identity of a topic or a group by its number here."""
        return self._told.get(object_id, f"{self._database}.{object_id}")

    def told(self, object_id: int, uid: str) -> None:
        """Record the identity of a committed definition from another node."""
        self._told[object_id] = uid


def insert_sql(object_id: int, uid: str) -> str:
    """INSERT of the identity of a definition from another node."""
    return f"INSERT INTO {IDENTITIES} VALUES ({object_id}, {literal(uid)})"
