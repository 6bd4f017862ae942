"""What the gateway says of a stream: which one it is, and how far its partitions reach.

The rows of a stream are read from its views (`s`, and `s_changes` for the typed ones): one query of
DuckDB's over the log, whose range of LSNs is a filter. A view gives what is retained and knows no gap; so
whoever reads a range asks afterwards whether retention has passed its beginning meanwhile (`check_range`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from .connection import Connection, failure
from .errors import ConnectorError
from .names import Name
from .options import Options

GAP = "72000"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """How far a partition reaches.

    Args:
        last_lsn: of its last event, 0 where it never had one.
        trimmed_lsn: up to which its events are no longer retained, 0 for none.
        events: how many are retained.
    """

    last_lsn: int
    trimmed_lsn: int
    events: int


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it is now.

    Args:
        made_us: when it was made, microseconds from 1970: two streams of one name differ in it.
        table: the table that it is on; None for a topic.
        partitions: by number, without a hole.
    """

    schema: str
    name: str
    made_us: int
    table: str | None
    partitions: tuple[PartitionState, ...]

    @property
    def identity(self) -> str:
        """What tells it from every other stream, also from one that is made again under its name."""
        return f"{self.schema}.{self.name}@{self.made_us}"

    @property
    def end_lsn(self) -> int:
        """Of its last event."""
        return max(partition.last_lsn for partition in self.partitions)

    @property
    def scan(self) -> sql.Composable:
        """Its name, for STREAM."""
        return sql.Identifier(self.schema, self.name)


_STATE = """
    SELECT s.schema_name, s.stream_name, epoch_us(s.created_at), s.table_name,
           p.partition, p.last_lsn, p.trimmed_through_lsn, p.events
    FROM ducktail.streams AS s JOIN ducktail.partitions AS p USING (schema_name, stream_name)
    WHERE lower(stream_name) = lower(%s) AND lower(schema_name) = lower(%s)
    ORDER BY p.partition
"""


def look_up(connection: Connection, options: Options) -> StreamState:
    """The stream that option stream names.

    Raises:
        ConnectorError: there is none, or none that the user may read.
    """
    stream: Name = options["stream"]
    try:
        rows = connection.execute(_STATE, (stream.name, stream.schema or "main")).fetchall()
    except psycopg.Error as error:
        raise failure(error, f'looking up stream "{stream}"', "stream") from None
    if not rows:
        raise ConnectorError(
            f'option stream: stream "{stream}" does not exist, or user "{options["user"]}" '
            "has no right on it",
            "42704",
        )
    schema, name, made_us, table = rows[0][:4]
    partitions = tuple(
        PartitionState(max(last or 0, trimmed or 0), trimmed or 0, events or 0)
        for _, last, trimmed, events in (row[4:] for row in rows)
    )
    return StreamState(schema, name, made_us, table, partitions)


def check_same(state: StreamState, identity: str, stream: Name) -> None:
    """Offsets of one stream mean nothing to another.

    Args:
        identity: of the stream that a checkpoint, or a query's plan, is of.
        stream: option stream.

    Raises:
        ConnectorError: it is another stream, or the same name made again.
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
    """Nothing that is wanted may have been trimmed.

    Args:
        after: partition -> LSN after which it is read, or has been.
        follows: the group's on_gap says that a read goes on behind a gap.

    Raises:
        ConnectorError: 72000, in the gateway's own words.
    """
    lost = {number: lsn for number, lsn in after.items() if lsn < state.partitions[number].trimmed_lsn}
    if not lost or follows:
        return
    number, lsn = min(lost.items())
    trimmed = state.partitions[number].trimmed_lsn
    query = sql.SQL("SELECT lsn FROM STREAM {} PARTITION {} AFTER {} LIMIT 0").format(
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
