"""`spark.read.format("ducktail")`: a range of a stream, or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .connection import Connection, connect, failure
from .errors import OptionError
from .options import Options
from .relation import Relation, Rows, Task, split
from .stream_state import StreamState, check_range, look_up

_BOUNDS = (("startingLsn", "startingTimestamp"), ("endingLsn", "endingTimestamp"))


class BatchReader(DataSourceReader):
    """Plans a read's ranges once, so that a task that is run again reads the same events.

    Args:
        schema: what the query wants: the columns in their order.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_what(options)
        for names in _BOUNDS:
            given = [name for name in names if options.is_given(name)]
            if len(given) > 1:
                raise OptionError(f"options {given[0]} and {given[1]} cannot both be given")
            if given and options["table"] is not None:
                raise OptionError(f"option {given[0]} is of a stream, and option table names a table")
        self._options = options
        self._wanted = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One task a stream's partition, or more by minPartitions; of a table one.

        Raises:
            ConnectorError: the stream is not there, or not the range.
        """
        options = self._options
        if options["table"] is not None:
            return [Task(Relation.of_table(options))]
        with connect(options) as connection:
            state = look_up(connection, options)
            relation = Relation.of(options, state)
            after, through = self._range(connection, state)
        tasks = []
        for number, partition in enumerate(state.partitions):
            # What is retained begins behind what is not, where the read has no beginning of its own.
            begin = after if after else partition.trimmed_lsn
            end = min(through, partition.last_lsn)
            if end > begin:
                tasks.append(Task(relation, state.identity, number, begin, end))
        # Spark wants one task at least: it reads nothing.
        return split(tasks, options["minPartitions"]) or [Task(relation, state.identity)]

    def _range(self, connection: Connection, state: StreamState) -> tuple[int, int]:
        """LSNs: the read is after the first (0 is what is retained), through the second."""
        options = self._options
        after, through = 0, state.end_lsn
        if options["startingLsn"] is not None:
            after = options["startingLsn"] - 1
        elif options["startingTimestamp"] is not None:
            after = _lsn_at(connection, state, "<", options["startingTimestamp"])
        if options["endingLsn"] is not None:
            through = options["endingLsn"]
        elif options["endingTimestamp"] is not None:
            through = _lsn_at(connection, state, "<=", options["endingTimestamp"])
        for name, lsn in (("startingLsn", after + 1), ("endingLsn", through)):
            if options[name] is not None and lsn > state.end_lsn:
                raise OptionError(
                    f'option {name} cannot be {lsn}: stream "{state.name}" ends at LSN {state.end_lsn}'
                )
        if options["startingLsn"] is not None and options["endingLsn"] is not None and after >= through:
            raise OptionError("option endingLsn is before startingLsn")
        if options["startingLsn"] is not None and after:
            check_range(connection, state, dict.fromkeys(range(len(state.partitions)), after), follows=False)
        return after, through

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows."""
        assert isinstance(partition, Task)
        return iter(Rows(self._options, self._wanted, partition))


def check_what(options: Options) -> None:
    """One of options stream and table says what is read.

    Raises:
        OptionError: neither does, or both do.
    """
    given = [name for name in ("stream", "table") if options.get(name) is not None]
    if len(given) == 2:
        raise OptionError("options stream and table cannot both be given")
    if not given:
        table = " or table" if "table" in options else ""
        raise OptionError(f"option stream{table} is missing: it names what is read")
    if given == ["table"] and options["envelope"] is not None:
        raise OptionError("option envelope is of a stream, and option table names a table")


def _lsn_at(connection: Connection, state: StreamState, before: str, moment: str) -> int:
    """The last LSN that was committed before a moment (or at it); 0 where none is retained."""
    operator = sql.SQL("<") if before == "<" else sql.SQL("<=")
    query = sql.SQL("SELECT coalesce(max(lsn), 0) FROM {} WHERE commit_time {} {}::TIMESTAMPTZ").format(
        state.scan, operator, sql.Literal(moment)
    )
    name = "startingTimestamp" if before == "<" else "endingTimestamp"
    try:
        row = connection.execute(query).fetchone()
    except psycopg.Error as error:
        raise failure(error, f'looking up a moment of stream "{state.name}"', name) from None
    assert row is not None
    return int(row[0])
