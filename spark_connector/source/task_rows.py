"""The rows of one task: its range of LSNs, window by window, and the thread that fetches them ahead of Spark.

A view returns nothing of a range before it has computed and sorted all of it, and Spark would wait meanwhile.
So a range is read in windows of consecutive LSNs, each a query of its own. The first is small, and each next
one GROWTH times as large, up to one in SHARES of the range: a query over the log costs something for all of
the log (commits, ends of transactions), so there are few. A thread fetches rows while Spark takes earlier
ones, AHEAD_BYTES_MAX at most.

The queries have snapshots of their own. Events never change, so they give the same rows as one query, unless
retention passes the beginning of the range: the task checks that after its last row.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

import psycopg
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..connection import Connection, borrow, borrowed, copy_out, give_back, retrying
from ..errors import ConnectorError
from ..options import Options
from .relation import Task, nullable
from .spark_types import cast_batch, spark_type
from .stream_state import check_range, check_same, look_up

# LSNs of the first window, and what the next ones are of the last one and of the range at most.
FIRST_LSNS, GROWTH, SHARES = 16_384, 4, 4
# Bytes that have been fetched and that Spark has not taken.
AHEAD_BYTES_MAX = 64 * 1024 * 1024
# The longest wait for the cancellation of a query whose rows are not wanted.
CANCEL_S = 5.0


def windows(task: Task) -> Iterator[tuple[int, int]]:
    """The LSNs after which and through which a task's queries read, in order: one at least."""
    after, through = task.after, task.through
    lsns = FIRST_LSNS
    while task.relation.has_windows and through - after > lsns:
        yield after, after + lsns
        after += lsns
        lsns = min(lsns * GROWTH, max(FIRST_LSNS, (through - task.after) // SHARES))
    yield after, through


class Rows:
    """The rows of one task; a broken connection is replaced and the query of a window repeated.

    The connection is the worker's own and is given back once all rows are read and checked. If the owner, a
    node of a cluster, is unreachable, the given gateway is asked for the partition's present owner.

    A task's rows have one order, so a repeated query skips those that Spark already has. A table has no such
    order: its read is repeated only while no row has been returned.

    Args:
        wanted: Spark's schema.
    """

    def __init__(self, options: Options, wanted: StructType, task: Task) -> None:
        self._options = options
        self._relation = task.relation
        self._wanted = wanted
        self._target = to_arrow_schema(wanted, timezone="UTC")
        self._task = task
        self._windows = deque(windows(task))
        # The rows of the first window that have been returned.
        self._given = 0
        self._owner = task.owner
        self._moved = False
        self._stopped = False
        self._connection: Connection | None = None
        self._source: Generator[pa.RecordBatch, None, None] | None = None
        self._skip = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._relation.lsn and self._task.after >= self._task.through:
            return
        try:
            if len(self._windows) == 1:
                yield from self._batches()
            else:
                yield from ReadAhead(self._batches(), self._stop)
            retrying(self._check, self._options["retryTimeout"])
        finally:
            self._close()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := retrying(self._next, self._options["retryTimeout"])) is not None:
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        """The next batch with rows; None at the end."""
        try:
            while True:
                for batch in self._begun():
                    skipped = min(self._skip, batch.num_rows)
                    self._skip -= skipped
                    if skipped == batch.num_rows:
                        continue
                    rows = cast_batch(self._checked(batch.slice(skipped)), self._target)
                    self._given += rows.num_rows
                    return rows
                if len(self._windows) == 1:
                    return None
                self._windows.popleft()
                self._source, self._given = None, 0
        except ConnectorError as error:
            self._close()
            self._moved = self._moved or bool(self._owner.node)
            if (self._given and not self._relation.lsn) or self._stopped:
                error.retryable = False
            raise

    def _begun(self) -> Generator[pa.RecordBatch, None, None]:
        """The batches of the first window that have not been taken."""
        if self._source is None:
            if self._stopped:
                raise ConnectorError(f"{self._relation.doing} was ended: Spark takes no more rows")
            if self._connection is None:
                self._connection = self._connected()
            self._skip = self._given
            relation = self._relation
            query = relation.query(self._wanted, self._task, *self._windows[0])
            doing = f"{relation.doing}{self._owner}"
            self._source = copy_out(self._connection, query, doing, relation.option)
        return self._source

    def _connected(self) -> Connection:
        """A connection to the partition's owner."""
        if self._moved:
            with borrowed(self._options) as given:
                state = look_up(given, self._options)
            check_same(state, self._task.identity, self._options["stream"])
            self._owner, self._moved = state.partitions[self._task.partition].owner, False
        return borrow(self._owner.options(self._options), self._owner.node)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch, whose columns must have the types of the query's schema."""
        for found, field in zip(batch.schema, self._wanted, strict=False):
            if spark_type(found.type) != nullable(field.dataType):
                raise ConnectorError(
                    f"{self._relation.other_type(field, found.type)}: start the query anew for the present "
                    "columns"
                )
        return batch

    def _check(self) -> None:
        """Check after the last row that the stream is the planned one and the range was retained."""
        if not self._relation.lsn:
            return
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connected()
            state = look_up(self._connection, self._options, self._task.partition)
            check_same(state, self._task.identity, self._options["stream"])
            begun = {self._task.partition: self._task.after}
            check_range(self._connection, state, begun, follows=self._task.follows)
            give_back(self._connection, self._owner.options(self._options))
            self._connection = None
        except ConnectorError:
            self._close()
            self._moved = self._moved or bool(self._owner.node)
            raise

    def _stop(self) -> None:
        """End the thread, which may be about to send a query or wait for the rows of one."""
        self._stopped = True
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CANCEL_S)

    def _close(self) -> None:
        connection, source = self._connection, self._source
        self._connection = self._source = None
        if connection is not None:
            connection.close()
        if source is not None:
            # An abandoned COPY fails on its closed connection.
            with suppress(Exception):
                source.close()


class ReadAhead:
    """The batches of an iterator that a thread of its own runs.

    Args:
        stop: makes the iterator end soon; called if its other batches are not wanted.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], stop: Callable[[], None]) -> None:
        self._batches = batches
        self._stop = stop
        self._changed = threading.Condition()
        self._fetched = deque[pa.RecordBatch]()
        self._bytes = 0
        self._ended = self._abandoned = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        thread = threading.Thread(target=self._fetch, name="ducktail-fetch", daemon=True)
        thread.start()
        try:
            while (batch := self._take()) is not None:
                yield batch
            if self._error is not None:
                raise self._error
        finally:
            with self._changed:
                self._abandoned = True
                self._changed.notify()
            if not self._ended:
                self._stop()
            thread.join()

    def _take(self) -> pa.RecordBatch | None:
        """Wait for a batch; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._fetched or self._ended)
            if not self._fetched:
                return None
            batch = self._fetched.popleft()
            self._bytes -= batch.nbytes
            self._changed.notify()
            return batch

    def _fetch(self) -> None:
        try:
            for batch in self._batches:
                with self._changed:
                    self._changed.wait_for(lambda: self._abandoned or self._bytes < AHEAD_BYTES_MAX)
                    if self._abandoned:
                        return
                    self._fetched.append(batch)
                    self._bytes += batch.nbytes
                    self._changed.notify()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()
