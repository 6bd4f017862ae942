"""`spark.read.format("ducktail")`: reads a range of a stream, or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..connection import Connections, failure, retrying
from ..errors import OptionError
from ..options import Options
from .relation import Relation, Task, check_source, split
from .stream_state import StreamState, check_range, look_up
from .task_rows import Rows

Lsns = dict[int, int]

_BOUNDS = (("startingLsn", "startingTimestamp"), ("endingLsn", "endingTimestamp"))


class BatchReader(DataSourceReader):
    """Plans the ranges of a read once, so that a repeated task reads the same events.

    Args:
        schema: the query's columns in their order.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_source(options)
        for names in _BOUNDS:
            given = [name for name in names if options.is_given(name)]
            if len(given) > 1:
                raise OptionError(f"options {given[0]} and {given[1]} cannot both be given")
            if given and options["table"] is not None:
                raise OptionError(f"option {given[0]} is of a stream, and option table names a table")
        self._options = options
        self._wanted = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One task per partition of a stream, or more with minPartitions; one task for a table.

        Raises:
            ConnectorError: the stream or table does not exist or lacks columns of the query, or the range is
                not available.
        """
        return retrying(self._planned, self._options["retryTimeout"])

    def _planned(self) -> list[Task]:
        options = self._options
        with Connections(options) as connections:
            if options["table"] is not None:
                table = Relation.of_table(options)
                table.check(connections.to(), self._wanted)
                return [Task(table)]
            state = look_up(connections.to(), options)
            relation = Relation.of(options, state)
            relation.check(connections.to(state.partitions[0].owner), self._wanted)
            after, through = self._range(connections, state)
        tasks = [
            Task(relation, state.identity, number, after[number], through[number], owner=partition.owner)
            for number, partition in enumerate(state.partitions)
            if through[number] > after[number]
        ]
        # Spark requires at least one task; this one reads nothing.
        return split(tasks, options["minPartitions"]) or [Task(relation, state.identity)]

    def _range(self, connections: Connections, state: StreamState) -> tuple[Lsns, Lsns]:
        """Two maps from partition to LSN: the read begins after the first and ends with the second."""
        options = self._options
        after = {number: partition.trimmed_lsn for number, partition in enumerate(state.partitions)}
        through = {number: partition.last_lsn for number, partition in enumerate(state.partitions)}
        first, last = options["startingLsn"], options["endingLsn"]
        for name, lsn in (("startingLsn", first), ("endingLsn", last)):
            if lsn is not None:
                state.check_one_order(name, ": say a time (startingTimestamp, endingTimestamp)")
                if lsn > state.end_lsn:
                    raise OptionError(
                        f'option {name} cannot be {lsn}: stream "{state.name}" ends at LSN {state.end_lsn}'
                    )
        if first is not None and last is not None and first > last:
            raise OptionError("option endingLsn is before startingLsn")
        if first is not None and first > 1:
            after = dict.fromkeys(after, first - 1)
            check_range(connections.to(), state, after, follows=False)
        elif options["startingTimestamp"] is not None:
            found = _lsns_at(connections, state, "min", ">=", "startingTimestamp", options)
            after = {number: found[number] - 1 if number in found else through[number] for number in through}
        if last is not None:
            through = {number: min(last, lsn) for number, lsn in through.items()}
        elif options["endingTimestamp"] is not None:
            through = _lsns_at(connections, state, "max", "<=", "endingTimestamp", options)
            through = {number: through.get(number, 0) for number in after}
        return after, through

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, Task)
        return iter(Rows(self._options, self._wanted, partition))


def _lsns_at(
    connections: Connections, state: StreamState, least: str, compared: str, name: str, options: Options
) -> Lsns:
    """Partition -> its first LSN (min) or last one (max) on one side of a timestamp, if it has events there.

    Args:
        compared: operator between the commit time and the timestamp.
        name: the option with the timestamp.
    """
    found: Lsns = {}
    for owner, numbers in state.by_owner.items():
        query = sql.SQL(
            "SELECT partition, {}(lsn) FROM {} WHERE commit_time {} {}::TIMESTAMPTZ GROUP BY partition"
        ).format(sql.SQL(least), state.source(numbers, {}), sql.SQL(compared), sql.Literal(options[name]))
        try:
            found |= dict(connections.to(owner).execute(query).fetchall())
        except psycopg.Error as error:
            doing = f'looking up a moment of stream "{state.name}"{owner}'
            raise failure(error, doing, name) from None
    return found
