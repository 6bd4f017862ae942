"""`spark.readStream.format("ducktail")`: micro-batches of a stream, and the consumer group that follows them.

An offset is a map from partition to the last LSN that has been read, with the stream's identity beside it.
Its keys are sorted, because Spark compares offsets as text. Within a whole copy it also holds the copy's end
in each partition that has not passed it, because a query must not continue after the copy without it. Spark's
checkpoint is authoritative: a restart reads the ranges in it, and the rows of a range of LSNs never change.

    initialOffset   called more than once: the same answer, or one that only retention moves
    latestOffset    `start` is in Spark's commit log: the group is moved to it; then waits for an event
    partitions      one task per partition with new events
    read            on executors, each task on a connection of its own

The consumer group's committed LSNs are never ahead of Spark's checkpoint. They show Spark's progress in
SHOW OFFSETS and in the lag views, and they hold the beginning of a query that starts at the end of a stream:
Spark asks for the first offset more than once, and again after a crash before the first batch is committed.

Source: docs/spark/source.md, "Offsets".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.rows import dict_row
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..connection import Connection, Connections, Owner, failure, retrying
from ..errors import ConnectorError, OptionError
from ..options import Options
from .relation import Relation, Task, check_source, split
from .stream_state import GAP, StreamState, check_range, check_same, look_up
from .task_rows import Rows

# Key of the stream's identity in an offset, beside the partitions.
STREAM = "stream"
# Key of the ends of the whole copy that the query is within.
COPY = "copy"
# The search for a batch's end begins with this many LSNs per event: a database has other streams too.
REACH = 4

Offset = dict[str, Any]
Lsns = dict[int, int]
T = TypeVar("T")

_OPTION = "consumerGroup"
_START = {word: sql.SQL(word.upper()) for word in ("earliest", "latest", "snapshot")}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query; Spark pickles it for the tasks, without its connections.

    Args:
        schema: the query's columns in their order.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_source(options)
        if options["startingOffsets"] in ("latest", "group", "snapshot") and options["consumerGroup"] is None:
            raise OptionError(
                f"option startingOffsets = {options['startingOffsets']} wants option consumerGroup: a group "
                "on the gateway keeps where the query began"
            )
        self._options = options
        self._wanted = schema
        group = options["consumerGroup"]
        self._group = None if group is None else ConsumerGroup(group)
        self._target: Lsns | None = None
        self._checked = False
        self._connections = Connections(options)
        # The state that latestOffset saw last: for the progress, and for the plan of the next batch.
        self._seen: StreamState | None = None
        self._to_plan: StreamState | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": Connections(self._options), "_seen": None, "_to_plan": None}

    # Called by Spark.

    def initialOffset(self) -> Offset:
        """The beginning of a query without a checkpoint."""
        return self._retried(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of option maxEventsPerTrigger."""
        most = self._options["maxEventsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; `start` if there are no new events."""
        begun = _lsns(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None

        def latest(connection: Connection) -> Offset:
            state = self._state(connection, start)
            self._check_start(connection, state, begun)
            if self._group is not None:
                self._group.follow(connection, state, begun)
            ends = self._ends(state, begun)
            if ends == begun and self._target is None and self._options["pollTimeout"]:
                self._wait(connection, state, begun)
                state = self._state(connection, start)
                ends = self._ends(state, begun)
            self._seen = self._to_plan = state
            if ends != begun and (most is not None or self._options["wholeTransactions"]):
                ends = self._cut(state, begun, ends, most)
            return _offset(state, ends)

        return self._retried(latest)

    def reportLatestOffset(self) -> Offset | None:
        """The stream's end as of the last `latestOffset`, for the query's progress."""
        return None if self._seen is None else _offset(self._seen, _last(self._seen))

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to the events that are there now."""
        self._target = self._retried(self._present)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch.

        Raises:
            ConnectorError: the offsets belong to another stream or go backwards, or their events are gone.
        """
        begun, ended = _lsns(start), _lsns(end)
        if start[STREAM] != end[STREAM]:
            raise ConnectorError("the checkpoint's offsets are of two streams (option checkpointLocation)")
        back = [number for number in ended if ended[number] < begun.get(number, 0)]
        if back:
            raise ConnectorError(
                f"offsets go backwards in partition {back[0]}, from LSN {begun[back[0]]} to "
                f"{ended[back[0]]}: events that the query was to begin with have been trimmed before its "
                "first batch, or its checkpoint was changed (options startingOffsets, checkpointLocation)"
            )

        def plan(connection: Connection) -> list[Task]:
            state, self._to_plan = self._to_plan, None
            if state is None or state.identity != start[STREAM] or _past(state, ended):
                state = self._state(connection, start)
            past = _past(state, ended)
            if past:
                raise self._past_end(state, past[0], ended[past[0]])
            self._check_start(connection, state, begun)
            relation = Relation.of(self._options, state, state.copied(begun))
            follows = self._follows(connection, state)
            return [
                Task(
                    relation,
                    state.identity,
                    number,
                    begun[number],
                    ended[number],
                    follows,
                    state.partitions[number].owner,
                )
                for number in sorted(ended)
                if ended[number] > begun[number]
            ]

        return split(self._retried(plan), self._options["minPartitions"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, Task)
        return iter(Rows(self._options, self._wanted, partition))

    def commit(self, end: Offset) -> None:
        """Do nothing: `latestOffset` moves the group, to its `start`."""

    def stop(self) -> None:
        """Close the connections."""
        self._connections.close()

    # Internals.

    def _present(self, connection: Connection) -> Lsns:
        """The stream's present end, including the whole copy with which the query begins."""
        state = look_up(connection, self._options)
        self._check_columns(state)
        if self._options["startingOffsets"] == "snapshot" and self._group is not None and state.copy is None:
            self._group.ensure(connection, state, "snapshot")
            state = look_up(connection, self._options)
        return _last(state)

    def _initial(self, connection: Connection) -> Offset:
        state = look_up(connection, self._options)
        self._check_columns(state)
        starting = self._options["startingOffsets"]
        if isinstance(starting, dict):
            return _offset(state, self._mapped(state, starting))
        if self._group is None:
            return _offset(state, _earliest(state))
        if starting == "group":
            found = self._group.committed(connection, state)
            if found is None:
                raise ConnectorError(
                    f'option consumerGroup: consumer group "{self._group.name}" on stream "{state.name}" '
                    "does not exist, and startingOffsets = group wants its committed LSNs",
                    "42704",
                )
            return _offset(state, found)
        if starting == "snapshot":
            look = partial(look_up, connection, self._options)
            return _offset(*self._group.at_copy(connection, state, look))
        self._group.ensure(connection, state, "latest" if starting == "latest" else "earliest")
        if starting == "earliest":
            return _offset(state, _earliest(state))
        return _offset(state, self._group.committed(connection, state) or _earliest(state))

    def _mapped(self, state: StreamState, given: Lsns) -> Lsns:
        """startingOffsets given as a map; other partitions begin at their first retained event."""
        for number, lsn in given.items():
            if number >= len(state.partitions):
                raise OptionError(
                    f'option startingOffsets: stream "{state.name}" has no partition {number}, its '
                    f"partitions are 0 to {len(state.partitions) - 1}"
                )
            if lsn > state.end_of(number):
                raise self._past_end(state, number, lsn)
        return {**_earliest(state), **given}

    def _past_end(self, state: StreamState, number: int, lsn: int) -> OptionError:
        return OptionError(
            f'LSN {lsn} of partition {number} is past the end of stream "{state.name}", which is '
            f"{state.end_of(number)} (options startingOffsets, checkpointLocation): the database is another "
            "one, or was restored from before it"
        )

    def _state(self, connection: Connection, offset: Offset) -> StreamState:
        """The state of the stream, checked against an offset's identity and whole copy."""
        state = look_up(connection, self._options)
        check_same(state, str(offset[STREAM]), self._options["stream"])
        self._check_columns(state)
        ends = {} if state.copy is None else state.copy.ends
        lost = [number for number, lsn in offset.get(COPY, {}).items() if ends.get(int(number)) != lsn]
        if lost:
            raise ConnectorError(
                f'the whole copy of stream "{state.name}" is gone that the query was reading in partition '
                f"{lost[0]} after LSN {offset[lost[0]]}: its group was moved by SEEK or dropped, or is "
                "another one (option consumerGroup); begin anew, with another checkpointLocation and group",
                GAP,
            )
        return state

    def _check_columns(self, state: StreamState) -> None:
        """Check, once, that the stream has the query's columns: before there is a task to fail."""
        if self._checked:
            return
        owner = state.partitions[0].owner
        Relation.of(self._options, state).check(self._connections.to(owner), self._wanted)
        self._checked = True

    def _check_start(self, connection: Connection, state: StreamState, begun: Lsns) -> None:
        past = _past(state, begun)
        if past:
            raise self._past_end(state, past[0], begun[past[0]])
        if any(lsn < state.partitions[number].trimmed_lsn for number, lsn in begun.items()):
            check_range(connection, state, begun, follows=self._follows(connection, state))

    def _follows(self, connection: Connection, state: StreamState) -> bool:
        return self._group is not None and self._group.follows_gaps(connection, state)

    def _ends(self, state: StreamState, begun: Lsns) -> Lsns:
        """The largest end of a batch: the stream's end, limited by Trigger.AvailableNow."""
        last = _last(state)
        if self._target is not None:
            last = {number: min(lsn, self._target.get(number, 0)) for number, lsn in last.items()}
        return {number: max(lsn, last[number]) for number, lsn in begun.items()}

    def _wait(self, connection: Connection, state: StreamState, begun: Lsns) -> None:
        """Wait for an event, at most for pollTimeout."""
        length = f"{max(1, round(self._options['pollTimeout'] * 1000))} ms"
        query = sql.SQL("SELECT lsn FROM STREAM {} AFTER {} WAIT {} LIMIT 1").format(
            state.scan, sql.Literal(_position(begun)), sql.Literal(length)
        )
        try:
            connection.execute(query)
        except psycopg.Error as error:
            raise failure(error, f'waiting for events of stream "{state.name}"', "stream") from None

    def _cut(self, state: StreamState, begun: Lsns, ends: Lsns, most: int | None) -> Lsns:
        """The end of a batch of at most `most` events.

        These are the first events in LSN order over all partitions; if a topic's partitions are on several
        nodes, each owner gets a fair share of the number.
        """
        if self._options["wholeTransactions"]:
            state.check_one_order("wholeTransactions", "")
        owners = {
            owner: new
            for owner, numbers in state.by_owner.items()
            if (new := [number for number in numbers if ends[number] > begun[number]])
        }
        shares: dict[Owner, int | None] = dict.fromkeys(owners, most)
        if most is not None and len(owners) > 1:
            found = []
            for owner, numbers in owners.items():
                last = max(ends[number] for number in numbers)
                query = sql.SQL("SELECT min(commit_time), count(*) FROM (SELECT commit_time {} LIMIT {})")
                events = query.format(_events(state, numbers, begun, last), sql.Literal(most))
                ((first, count),) = self._rows(owner, events, state)
                if count:
                    found.append((first, owner, count))
            found.sort(key=lambda one: (one[0], one[1].node))
            shares = {**shared_out({owner: count for _, owner, count in found}, most)}
        cut = dict(begun)
        for owner, share in shares.items():
            if share != 0:
                cut |= self._cut_at(owner, owners[owner], state, begun, ends, share)
        return cut

    def _cut_at(
        self, owner: Owner, numbers: list[int], state: StreamState, begun: Lsns, ends: Lsns, most: int | None
    ) -> Lsns:
        """The end of a batch in one owner's partitions.

        With wholeTransactions it is moved back to a transaction's last event, or forward to the first one.
        """
        end = through = max(ends[number] for number in numbers)
        if most is not None:
            through = self._nth(owner, numbers, state, begun, through, most)
        if self._options["wholeTransactions"]:
            events = _events(state, numbers, begun, through)
            last = self._one(owner, sql.SQL("SELECT max(lsn) {} AND tx_last").format(events), state)
            if last is None:
                beyond = _events(state, numbers, begun, end)
                last = self._one(owner, sql.SQL("SELECT min(lsn) {} AND tx_last").format(beyond), state)
            # None: the only transaction is not fully published yet.
            through = 0 if last is None else last
        query = sql.SQL("SELECT partition, max(lsn) {} GROUP BY partition").format(
            _events(state, numbers, begun, min(through, end))
        )
        found = dict(self._rows(owner, query, state))
        return {number: max(begun[number], found.get(number, 0)) for number in numbers}

    def _nth(
        self, owner: Owner, numbers: list[int], state: StreamState, begun: Lsns, through: int, most: int
    ) -> int:
        """The LSN of the batch's `most`th event, or `through` if there are fewer."""
        low, width = min(begun[number] for number in numbers), REACH * most
        while True:
            reach = min(low + width, through)
            query = sql.SQL("SELECT lsn {} ORDER BY lsn LIMIT 1 OFFSET {}").format(
                _events(state, numbers, begun, reach), sql.Literal(most - 1)
            )
            found = self._one(owner, query, state)
            if found is not None:
                return found
            if reach == through:
                return through
            width *= REACH

    def _one(self, owner: Owner, query: sql.Composed, state: StreamState) -> int | None:
        rows = self._rows(owner, query, state)
        return rows[0][0] if rows else None

    def _rows(self, owner: Owner, query: sql.Composed, state: StreamState) -> list[tuple[Any, ...]]:
        try:
            return self._connections.to(owner).execute(query).fetchall()
        except psycopg.Error as error:
            raise failure(error, f'counting events of stream "{state.name}"{owner}', "stream") from None

    def _once(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with the driver's connection to the given gateway."""
        try:
            return work(self._connections.to())
        except ConnectorError:
            self.stop()
            raise

    def _retried(self, work: Callable[[Connection], T]) -> T:
        """Call `work` like `_once`, with retries for retryTimeout."""
        return retrying(lambda: self._once(work), self._options["retryTimeout"])


class ConsumerGroup:
    """The consumer group of one query.

    Args:
        name: option consumerGroup.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._followed: dict[int, int] | None = None

    def ensure(self, connection: Connection, state: StreamState, start: str) -> None:
        """Create the group if it does not exist, with `start` earliest, latest or snapshot."""
        text = sql.SQL("CREATE CONSUMER GROUP IF NOT EXISTS {} ON {} START {}")
        made = text.format(sql.Identifier(self.name), state.scan, _START[start])
        self._run(connection, made, "making")

    def at_copy(
        self, connection: Connection, state: StreamState, look: Callable[[], StreamState]
    ) -> tuple[StreamState, dict[int, int]]:
        """The stream with its whole copy, and the group's committed LSNs, at the copy's beginning.

        The group is created, with a copy, if it does not exist.

        Args:
            look: returns the stream's present state.

        Raises:
            ConnectorError: the group exists and is not at the beginning of a copy.
        """
        self.ensure(connection, state, "snapshot")
        copied, committed = look(), self.committed(connection, state) or {}
        copy = copied.copy
        if copy is None or any(lsn != copy.base_lsn for lsn in committed.values()):
            raise ConnectorError(
                f'option startingOffsets = snapshot: group "{self.name}" on stream "{state.name}" is there '
                "already, and not at the beginning of a whole copy of its own: drop it, or name a group that "
                f"is not there yet (option {_OPTION})"
            )
        return copied, committed

    def committed(self, connection: Connection, state: StreamState) -> dict[int, int] | None:
        """The committed LSNs by partition; None if the group does not exist."""
        query = sql.SQL("SHOW OFFSETS ON {} CONSUMER GROUP {}").format(state.scan, sql.Identifier(self.name))
        rows = self._shown(connection, query)
        return None if rows is None else {row["partition"]: row["committed_lsn"] for row in rows}

    def follows_gaps(self, connection: Connection, state: StreamState) -> bool:
        """True if the group's on_gap lets a read continue after trimmed events."""
        query = sql.SQL("DESCRIBE CONSUMER GROUP {} ON {}").format(sql.Identifier(self.name), state.scan)
        rows = self._shown(connection, query)
        return rows is not None and {"property": "on_gap", "value": "earliest"} in rows

    def follow(self, connection: Connection, state: StreamState, offsets: Mapping[int, int]) -> None:
        """Commit the offsets that are in Spark's commit log.

        Raises:
            ConnectorError: the group is ahead of them: it has another reader, or the checkpoint is old.
        """
        if self._followed == offsets:
            return
        if self._followed is None:
            self.ensure(connection, state, "earliest")
        standing = self.committed(connection, state) or {}
        ahead = {number: lsn for number, lsn in standing.items() if lsn > offsets[number]}
        if ahead:
            number, lsn = min(ahead.items())
            raise ConnectorError(
                f'option {_OPTION}: group "{self.name}" has committed LSN {lsn} in partition {number}, and '
                f"this query's checkpoint is at {offsets[number]}: somebody else commits in it, or the query "
                "begins anew. Give the query a group of its own, begin with startingOffsets = group, or "
                "ALTER CONSUMER GROUP ... SEEK"
            )
        if standing != dict(offsets):
            position = json.dumps({str(number): lsn for number, lsn in offsets.items()})
            text = sql.SQL("COMMIT OFFSETS AT {} ON {} CONSUMER GROUP {}").format(
                sql.Literal(position), state.scan, sql.Identifier(self.name)
            )
            self._run(connection, text, "committing the offsets of")
        self._followed = dict(offsets)

    def _shown(self, connection: Connection, text: sql.Composed) -> list[dict[str, Any]] | None:
        """The rows of a SHOW or DESCRIBE by column name; None if there is no group."""
        try:
            return connection.cursor(row_factory=dict_row).execute(text).fetchall()
        except psycopg.errors.UndefinedObject:
            return None
        except psycopg.Error as error:
            raise failure(error, f'looking up consumer group "{self.name}"', _OPTION) from None

    def _run(self, connection: Connection, text: sql.Composed, doing: str) -> list[tuple[Any, ...]]:
        try:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise failure(error, f'{doing} consumer group "{self.name}"', _OPTION) from None


class InvalidReader(DataSourceStreamReader):
    """A placeholder for a reader with invalid options; it raises their error at its first call.

    Spark hides an error in the creation of a stream reader behind its own UnboundLocalError.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> Offset:
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Raise the error, in a query with a checkpoint."""
        raise self._error

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Raise the error, in a query with a batch to repeat."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error; never called, as nothing is planned."""
        raise self._error


def _lsns(offset: Offset) -> Lsns:
    """The LSNs of an offset by partition."""
    return {int(key): int(lsn) for key, lsn in offset.items() if key not in (STREAM, COPY)}


def _offset(state: StreamState, lsns: Mapping[int, int]) -> Offset:
    """An offset, its keys sorted as text."""
    made: Offset = {str(number): lsns[number] for number in sorted(lsns, key=str)}
    copy = state.copied(lsns)
    if copy is not None:
        made[COPY] = {
            number: copy.ends[int(number)] for number in made if copy.begins(int(number), made[number])
        }
    return {**made, STREAM: state.identity}


def _last(state: StreamState) -> Lsns:
    return {number: partition.last_lsn for number, partition in enumerate(state.partitions)}


def _earliest(state: StreamState) -> Lsns:
    """The position before the first retained event."""
    return {number: partition.trimmed_lsn for number, partition in enumerate(state.partitions)}


def _past(state: StreamState, lsns: Lsns) -> list[int]:
    """The partitions whose LSN is after the stream's end."""
    return [number for number, lsn in lsns.items() if lsn > state.end_of(number)]


def _position(lsns: Lsns) -> str:
    return json.dumps({str(number): lsn for number, lsn in lsns.items()})


def _events(state: StreamState, numbers: Sequence[int], begun: Lsns, through: int) -> sql.Composable:
    """FROM and WHERE of the events of an owner's partitions after an offset, through an LSN."""
    starts = sql.SQL(", ").join(sql.Literal(begun[number]) for number in sorted(begun))
    source, least = state.source(numbers, begun), min(begun[number] for number in numbers)
    return sql.SQL("FROM {} WHERE lsn > {} AND lsn <= {} AND lsn > [{}][partition + 1]").format(
        source, sql.Literal(least), sql.Literal(through), starts
    )


def shared_out(counts: Mapping[Owner, int], most: int) -> dict[Owner, int]:
    """Split `most` events among owners as evenly as their counts allow; earlier owners first."""
    shares = dict.fromkeys(counts, 0)
    left = most
    while left and (more := [owner for owner, count in counts.items() if shares[owner] < count]):
        each = max(1, left // len(more))
        for owner in more:
            taken = min(each, counts[owner] - shares[owner], left)
            shares[owner] += taken
            left -= taken
    return shares
