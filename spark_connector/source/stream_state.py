"""The state of a stream on the gateway: its identity, and each partition's end, retention and owner.

The rows of a stream are read from its views (`s`, and `s_changes` with typed columns): one DuckDB query
over the log with a range of LSNs as its filter. A topic of a cluster is read by TOPIC ... PARTITION, because
the view covers one node, and a partition may have been moved from another node together with its events.
Both give the retained events and detect no gap; so a reader checks after its last row that retention has not
passed the beginning of its range (`check_range`).

In a cluster a stream on a table is on one node, and a topic's partitions may be on several. LSNs of two nodes
have no common order: LSNs of several partitions are compared within one owner (`by_owner`) only.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from ..connection import GIVEN, Connection, Owner, borrowed, failure
from ..errors import ConnectorError, OptionError
from ..options import Name, Options

GAP = "72000"
# Schema, name, identity, table and columns.
Facts = tuple[str, str, str, str | None, str | None]
# SQLSTATEs of a name that no node knows.
_UNKNOWN_NAME = ("42704", "42P01", "3F000")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The range of a partition.

    Args:
        last_lsn: LSN of its last event, 0 if it never had one.
        trimmed_lsn: LSN of the last event that is no longer retained, 0 for none.
        owner: the node from which it is read.
    """

    last_lsn: int
    trimmed_lsn: int
    owner: Owner = GIVEN


@dataclass(frozen=True, slots=True)
class CopyState:
    """A whole copy of the stream's table, which only its consumer group can read.

    Args:
        group: its consumer group.
        base_lsn: the LSN before its first row.
        last_lsn: the LSN of its last row; `base_lsn` for an empty table.
        ends: partition -> LSN of its last row there, if any; empty once the copy is dropped.
    """

    group: str
    base_lsn: int
    last_lsn: int
    ends: Mapping[int, int]

    def begins(self, number: int, lsn: int) -> bool:
        """True if a reader of a partition after an LSN gets rows of the copy."""
        return self.base_lsn <= lsn < self.ends.get(number, 0)


@dataclass(frozen=True, slots=True)
class StreamState:
    """The present state of a stream.

    Args:
        uid: its identity on every node, which differs between two streams of one name.
        table: its table or tables; None for a topic.
        columns: the table's columns in the stream; None if it has no table, or several.
        partitions: by number, without gaps.
        placed: the stream is a topic of a cluster.
        copy: the whole copy of the query's group, if it has or had one.
    """

    schema: str
    name: str
    uid: str
    table: str | None
    columns: str | None
    partitions: tuple[PartitionState, ...]
    placed: bool = False
    copy: CopyState | None = None

    @property
    def identity(self) -> str:
        """Identity of the stream, which differs from that of a later stream with the same name."""
        return f"{self.schema}.{self.name}@{self.uid}"

    @property
    def end_lsn(self) -> int:
        """LSN of its last event, for a stream in one order."""
        return max(partition.last_lsn for partition in self.partitions)

    @property
    def by_owner(self) -> dict[Owner, list[int]]:
        """Owner -> its partitions, whose LSNs are in one order."""
        found: dict[Owner, list[int]] = {}
        for number, partition in enumerate(self.partitions):
            found.setdefault(partition.owner, []).append(number)
        return found

    def end_of(self, number: int) -> int:
        """LSN of the last event in the order to which a partition belongs."""
        owner, least = self.partitions[number].owner, 0 if self.copy is None else self.copy.last_lsn
        lsns = (partition.last_lsn for partition in self.partitions if partition.owner == owner)
        return max(least, *lsns)

    @property
    def scan(self) -> sql.Composable:
        """The name after STREAM."""
        return sql.Identifier(self.schema, self.name)

    def copied(self, begun: Mapping[int, int]) -> CopyState | None:
        """The copy, if a reader from these positions is within it."""
        copy = self.copy
        return copy if copy is not None and any(copy.begins(*one) for one in begun.items()) else None

    def source(self, partitions: Sequence[int], begun: Mapping[int, int]) -> sql.Composable:
        """The FROM item for the events of some partitions after an offset, on their owner."""
        copy = self.copied(begun)
        if copy is not None:
            position = json.dumps({str(number): lsn for number, lsn in begun.items()})
            return sql.SQL("STREAM {} CONSUMER GROUP {} AFTER {}").format(
                self.scan, sql.Identifier(copy.group), sql.Literal(position)
            )
        if not self.placed:
            return self.scan
        return topic_scan((self.schema, self.name), partitions)

    def check_one_order(self, option: str, instead: str) -> None:
        """Refuse an option that requires one order of all events.

        Raises:
            OptionError: the partitions are on several nodes.
        """
        nodes = self.by_owner
        if len(nodes) > 1:
            raise OptionError(
                f'option {option} cannot be of topic "{self.name}": its partitions are on {len(nodes)} nodes '
                f"of a cluster, whose LSNs and transactions have no common order{instead}"
            )


def topic_scan(name: tuple[str, ...], partitions: Sequence[int]) -> sql.Composable:
    """The FROM item for a topic's retained events in some partitions."""
    numbers = sql.SQL(", ").join(map(sql.Literal, partitions))
    return sql.SQL("TOPIC {} PARTITION ({})").format(sql.Identifier(*name), numbers)


_STATE = """
    SELECT s.schema_name, s.stream_name, s.identity, s.table_name, s.columns,
           p.last_lsn, p.trimmed_through_lsn, p.epoch, p.owner,
           c.group_name, c.first_lsn, c.last_lsn, c.partitions::VARCHAR,
           coalesce(p.owner_local AND p.log = 'here', false)
    FROM ducktail.streams AS s JOIN ducktail.partitions AS p USING (schema_name, stream_name)
    LEFT JOIN ducktail.copies AS c ON c.schema_name = s.schema_name AND c.stream_name = s.stream_name
        AND lower(c.group_name) = lower(%s)
    WHERE lower(stream_name) = lower(%s) AND lower(schema_name) = lower(%s)
    ORDER BY p.partition
"""


_STREAMS = "SELECT schema_name, stream_name FROM ducktail.streams ORDER BY schema_name, stream_name"


def look_up(connection: Connection, options: Options, only: int | None = None) -> StreamState:
    """The state of the stream that option stream names.

    Args:
        only: the one partition whose state is needed; that of the others is undefined then.

    Raises:
        ConnectorError: there is no such stream, or the user may not read it; a node that owns some of its
            partitions is unreachable.
    """
    stream: Name = options["stream"]
    try:
        # A batch read has no option consumerGroup.
        names = (options.get("consumerGroup") or "", stream.name, stream.schema or "main")
        rows = connection.execute(_STATE, names).fetchall()
        if rows and all(here for *_, here in (rows if only is None else rows[only : only + 1])):
            schema, name, uid, table, columns, _, _, epoch, _, group, first, last, spans, _ = rows[0]
            ends = {int(number): int(lsn) for number, lsn in json.loads(spans or "{}").items()}
            copy = None if group is None else CopyState(group, first - 1, last, ends)
            # A partition may end within the copy.
            lasts = [max(row[5] or 0, ends.get(number, 0)) for number, row in enumerate(rows)]
            partitions = tuple(_partition(lsn, row[6]) for lsn, row in zip(lasts, rows, strict=True))
            placed = table is None and epoch > 0
            return StreamState(schema, name, uid, table, columns, partitions, placed, copy)
        given = {row[8] for row in rows if row[-1]}
        return _elsewhere(connection, options, rows[0][:5] if rows else None, given)
    except psycopg.Error as error:
        if error.sqlstate not in _UNKNOWN_NAME:
            raise failure(error, f'looking up stream "{stream}"', "stream") from None
    raise ConnectorError(
        f'option stream: stream "{stream}" does not exist, or user "{options["user"]}" has no right on it'
        f"{_meant(connection, stream)}",
        "42704",
    )


def _meant(connection: Connection, stream: Name) -> str:
    """A hint at a stream of the same name in another schema, or of a similar name."""
    try:
        rows = connection.execute(_STREAMS).fetchall()
    except psycopg.Error:
        return ""
    names = [Name(name, None if schema == "main" else schema) for schema, name in rows]
    near = [str(name) for name in names if name.name.lower() == stream.name.lower()]
    near = near or difflib.get_close_matches(str(stream), map(str, names), n=1)
    return f', perhaps "{near[0]}" is meant' if near else ""


def _elsewhere(connection: Connection, options: Options, known: Facts | None, given: set[str]) -> StreamState:
    """The state of a stream of which other nodes have some partitions or all.

    Args:
        known: schema, name, identity, table and columns, if the connection's node has them.
        given: the name of the connection's node, if it has some partitions.
    """
    stream: Name = options["stream"]
    name = sql.Identifier(stream.schema or "main", stream.name)
    cursor = connection.cursor(row_factory=dict_row)
    partitions = []
    for shown in cursor.execute(sql.SQL("SHOW PARTITIONS ON {}").format(name)):
        here = shown["owner"] in given
        owner = GIVEN if here else Owner(shown["owner"], shown["owner_host"], shown["owner_port"])
        partitions.append(_partition(shown["last_lsn"], shown["trimmed_through_lsn"], owner))
    if known is None:
        # Every node knows all topics, so this is a stream on tables, and one node has all of it and its copy.
        owner = partitions[0].owner
        with borrowed(owner.options(options), owner.node) as there:
            state = look_up(there, options)
        return replace(state, partitions=tuple(replace(one, owner=owner) for one in state.partitions))
    return StreamState(*known, tuple(partitions), placed=known[3] is None)


def _partition(last: int | None, trimmed: int | None, owner: Owner = GIVEN) -> PartitionState:
    return PartitionState(max(last or 0, trimmed or 0), trimmed or 0, owner)


def check_same(state: StreamState, identity: str, stream: Name) -> None:
    """Check that offsets belong to this stream.

    Args:
        identity: the identity of the stream in the checkpoint or in the query's plan.
        stream: option stream.

    Raises:
        ConnectorError: the stream is another one, or a new one with the same name.
    """
    if identity == state.identity:
        return
    was = identity.rpartition("@")[0]
    if was == f"{state.schema}.{state.name}":
        raise ConnectorError(
            f'option stream: stream "{stream}" has been dropped and made again since; offsets of the old one '
            "mean nothing in it: begin anew, with a checkpointLocation of its own"
        )
    raise ConnectorError(
        f'option stream: the checkpoint is of stream "{was}", not of "{stream}": '
        "a query wants a checkpointLocation of its own (option checkpointLocation)"
    )


def check_range(
    connection: Connection, state: StreamState, after: Mapping[int, int], *, follows: bool
) -> None:
    """Check that all events of a range are retained.

    Args:
        after: partition -> LSN after which it is read, or has been read.
        follows: the group's on_gap lets a read continue after a gap.

    Raises:
        ConnectorError: events have been trimmed; the message is the gateway's.
    """
    lost = {number: lsn for number, lsn in after.items() if lsn < state.partitions[number].trimmed_lsn}
    if not lost or follows:
        return
    number, lsn = min(lost.items())
    trimmed = state.partitions[number].trimmed_lsn
    query = sql.SQL("SELECT lsn FROM STREAM {} PARTITION {} AFTER {} LIMIT 1").format(
        state.scan, sql.Literal(number), sql.Literal(max(lsn, 1))
    )
    doing = f'reading partition {number} of stream "{state.name}"'
    try:
        connection.execute(query)
    except psycopg.Error as error:
        raise failure(error, doing, "stream") from None
    raise ConnectorError(
        f"{doing} failed: its events through LSN {trimmed} are no longer retained, and it was read "
        f"after LSN {lsn}",
        GAP,
    )
