"""One read: a relation and its columns, the range of LSNs of each task, and the rows of a task."""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ..connection import (
    GIVEN,
    Connection,
    Connections,
    Owner,
    arrow_schema,
    borrow,
    borrowed,
    copy_out,
    give_back,
    retrying,
)
from ..errors import ConnectorError, OptionError, listed
from ..options import Options
from .spark_types import cast_batch, spark_schema, spark_type
from .stream_state import CopyState, StreamState, check_range, check_same, look_up, topic_scan

CHANGES, JSON = "changes", "json"
CHANGES_SUFFIX = "_changes"
# SQLSTATEs of a table or view that does not exist, and of a column.
_NO_RELATION, _NO_COLUMN = "42P01", "42703"
_PLAIN_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Relation:
    """A stream's view in one envelope, or a table.

    Args:
        name: schema and name of the view or the table.
        what: its description in messages, such as 'stream "orders_stream"'.
        option: the option that names it.
        lsn, partition: names of these columns; "" for a table.
        tie: the column that orders rows of one LSN; "" if there is one row per LSN.
        scanned: read by TOPIC ... PARTITION instead of a view.
        copied: stream and group, if rows of the group's whole copy, which no view has, are read as well.
    """

    name: tuple[str, ...]
    what: str
    option: str
    lsn: str = ""
    partition: str = ""
    tie: str = ""
    scanned: bool = False
    copied: tuple[str, str] | None = None

    @classmethod
    def of(cls, options: Options, state: StreamState, copy: CopyState | None = None) -> Relation:
        """The relation of a stream in the envelope of the options.

        Raises:
            OptionError: envelope changes of a topic or of a stream over several tables.
        """
        what = f'stream "{state.name}"'
        copied = None if copy is None else (state.name, copy.group)
        if envelope(options, state) == JSON:
            name = (state.schema, state.name)
            return cls(name, what, "stream", "lsn", "partition", scanned=state.placed, copied=copied)
        if state.columns is None:
            kind = "is a topic" if state.table is None else "is over several tables"
            raise OptionError(f'option envelope cannot be changes: "{state.name}" {kind}; take json')
        name = (state.schema, state.name + CHANGES_SUFFIX)
        return cls(name, what, "stream", "_lsn", "_partition", "_change_type", copied=copied)

    @classmethod
    def of_table(cls, options: Options) -> Relation:
        """The relation of a table."""
        return cls(options["table"].parts, f'table "{options["table"]}"', "table")

    @property
    def doing(self) -> str:
        """The activity in messages."""
        return f"reading {self.what}"

    def schema(self, connection: Connection) -> StructType:
        """Its columns as a Spark schema.

        Raises:
            ConnectorError: it does not exist, or a column has a type that Spark does not have.
        """
        return spark_schema(self._described(connection), self.what)

    def check(self, connection: Connection, wanted: StructType) -> None:
        """Check that a query's columns, which schema() may name, are the relation's.

        Raises:
            ConnectorError: it does not exist, or does not have a column, or has it with another type.
        """
        found = self._described(connection)
        types = {field.name.lower(): field.type for field in found}
        for field in wanted:
            type_ = types.get(field.name.lower())
            if type_ is None:
                near = difflib.get_close_matches(field.name.lower(), types, n=1)
                meant = f', perhaps "{near[0]}" is meant' if near else ""
                raise ConnectorError(
                    f'{self.what} has no column "{field.name}"{meant} (schema() or option {self.option}): '
                    f"its columns are {_shown(found)}",
                    _NO_COLUMN,
                )
            if spark_type(type_) != _nullable(field.dataType):
                raise ConnectorError(f"{self.other_type(field, type_)}: its columns are {_shown(found)}")

    def other_type(self, wanted: StructField, found: pa.DataType) -> str:
        """The sentence about a column whose type is not the query's."""
        return (
            f'column "{wanted.name}" of {self.what} is {_spark_name(found)}, and the query has it as '
            f"{wanted.dataType.simpleString()} (schema() or option {self.option})"
        )

    def _described(self, connection: Connection) -> pa.Schema:
        """Its columns as the gateway sends them."""
        every = sql.SQL("SELECT * FROM {}").format(self._source(0))
        try:
            return arrow_schema(connection, every, self.doing, self.option)
        except ConnectorError as error:
            if error.sqlstate != _NO_RELATION or not self.tie:
                raise
            raise ConnectorError(
                f'{self.what} has no typed changes (option envelope): there is no view "{self.name[1]}", as '
                "its table has a column that is named like one of theirs, such as _lsn; take envelope = json",
                error.sqlstate,
            ) from None

    def _source(self, partition: int) -> sql.Composable:
        """The FROM item for a partition."""
        return topic_scan(self.name, [partition]) if self.scanned else sql.Identifier(*self.name)

    def _range(self, task: Task) -> sql.Composable:
        """The FROM item for a task."""
        if self.copied is None:
            return self._source(task.partition)
        stream, group = self.copied
        return sql.SQL("STREAM {} PARTITION {} CONSUMER GROUP {} AFTER {} {}").format(
            sql.Identifier(self.name[0], stream),
            sql.Literal(task.partition),
            sql.Identifier(group),
            sql.Literal(task.after),
            sql.SQL("ENVELOPE CHANGES" if self.tie else ""),
        )

    def query(self, wanted: StructType, task: Task) -> sql.Composed:
        """The query for a task's rows, whose order is always the same."""
        columns = [sql.Identifier(field.name) for field in wanted]
        conditions: list[sql.Composable] = []
        order: sql.Composable = sql.SQL("")
        if self.lsn:
            lsn = sql.Identifier(self.lsn)
            if not self.scanned:
                number = sql.Literal(task.partition)
                conditions.append(sql.SQL("{} = {}").format(sql.Identifier(self.partition), number))
            conditions += [
                sql.SQL("{} > {}").format(lsn, sql.Literal(task.after)),
                sql.SQL("{} <= {}").format(lsn, sql.Literal(task.through)),
            ]
            order = sql.SQL(" ORDER BY {}").format(lsn)
            if self.tie:
                # 'update_preimage' sorts after 'update_postimage'.
                order = sql.SQL(" ORDER BY {}, {} DESC").format(lsn, sql.Identifier(self.tie))
        where: sql.Composable = sql.SQL("")
        if conditions:
            where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions))
        listed = sql.SQL(", ").join(columns)
        return sql.SQL("SELECT {} FROM {}{}{}").format(listed, self._range(task), where, order)


@dataclass
class Task(InputPartition):
    """The input of one Spark task, fixed when it is planned, so that a repeated task reads the same rows.

    Args:
        relation: held by the task because Spark pickles the reader before it plans.
        identity: the identity of the stream for which it was planned; "" for a table.
        partition: the partition of the stream.
        after, through: LSNs; half-open, without `after` and with `through`.
        follows: the group's on_gap lets a read continue after a gap.
        owner: the node from which it is read.
    """

    relation: Relation
    identity: str = ""
    partition: int = 0
    after: int = 0
    through: int = 0
    follows: bool = False
    owner: Owner = GIVEN


def check_source(options: Options) -> None:
    """Check that exactly one of the options stream and table is given.

    Raises:
        OptionError: none or both are given, or envelope with table.
    """
    given = [name for name in ("stream", "table") if options.get(name) is not None]
    if len(given) == 2:
        raise OptionError("options stream and table cannot both be given")
    if not given:
        table = " or table" if "table" in options else ""
        raise OptionError(f"option stream{table} is missing: it names what is read")
    if given == ["table"] and options["envelope"] is not None:
        raise OptionError("option envelope is of a stream, and option table names a table")


def described(options: Options) -> StructType:
    """The columns of the stream or table that the options name, as a Spark schema.

    Raises:
        ConnectorError: there is no such stream or table.
    """
    with Connections(options) as connections:
        if options["table"] is not None:
            return Relation.of_table(options).schema(connections.to())
        state = look_up(connections.to(), options)
        return Relation.of(options, state).schema(connections.to(state.partitions[0].owner))


def envelope(options: Options, state: StreamState) -> str:
    """The envelope of the options, or the stream's default."""
    given = options["envelope"]
    return str(given) if given is not None else (JSON if state.columns is None else CHANGES)


class Rows:
    """The rows of one task; a broken connection is replaced and the query repeated.

    The connection is the worker's own and is given back once all rows are read and checked. If the owner, a
    node of a cluster, is unreachable, the given gateway is asked for the partition's present owner.

    A task's rows have one order, so a repeated query skips those that Spark already has. A table has no such
    order: its read is repeated only while no row has been returned.

    Args:
        wanted: Spark's schema.
    """

    def __init__(self, options: Options, wanted: StructType, task: Task) -> None:
        self._options = options
        relation = self._relation = task.relation
        self._wanted = wanted
        self._target = to_arrow_schema(wanted, timezone="UTC")
        self._task = task
        self._query = relation.query(wanted, task)
        self._given = 0
        self._owner = task.owner
        self._moved = False
        self._connection: Connection | None = None
        self._source: Generator[pa.RecordBatch, None, None] | None = None
        self._skip = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            while (batch := retrying(self._next, self._options["retryTimeout"])) is not None:
                yield batch
            retrying(self._check, self._options["retryTimeout"])
        finally:
            self._close()

    def _next(self) -> pa.RecordBatch | None:
        """The next batch with rows; None at the end."""
        if self._relation.lsn and self._task.after >= self._task.through:
            return None
        try:
            source = self._begun()
            for batch in source:
                skipped = min(self._skip, batch.num_rows)
                self._skip -= skipped
                if skipped == batch.num_rows:
                    continue
                rows = cast_batch(self._checked(batch.slice(skipped)), self._target)
                self._given += rows.num_rows
                return rows
            return None
        except ConnectorError as error:
            self._close()
            self._moved = self._moved or bool(self._owner.node)
            if self._given and not self._relation.lsn:
                error.retryable = False
            raise

    def _begun(self) -> Generator[pa.RecordBatch, None, None]:
        if self._source is None:
            self._connection = self._connected()
            self._skip = self._given
            relation = self._relation
            doing = f"{relation.doing}{self._owner}"
            self._source = copy_out(self._connection, self._query, doing, relation.option)
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
            if spark_type(found.type) != _nullable(field.dataType):
                raise ConnectorError(
                    f"{self._relation.other_type(field, found.type)}: start the query anew for the present "
                    "columns"
                )
        return batch

    def _check(self) -> None:
        """Check after the last row that the stream is the planned one and the range was retained."""
        if not self._relation.lsn or self._task.after >= self._task.through:
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

    def _close(self) -> None:
        connection, source = self._connection, self._source
        self._connection = self._source = None
        if connection is not None:
            connection.close()
        if source is not None:
            # An abandoned COPY fails on its closed connection.
            with suppress(Exception):
                source.close()


def _spark_name(type_: pa.DataType) -> str:
    """Spark's name of a type that the gateway sends."""
    found = spark_type(type_)
    return f"a type that Spark has not ({type_})" if found is None else found.simpleString()


def _shown(schema: pa.Schema) -> str:
    """The columns in the form of schema()."""
    return listed([f"{_column(field.name)} {_spark_name(field.type)}" for field in schema])


def _column(name: str) -> str:
    """A column's name in the form of schema()."""
    return name if _PLAIN_COLUMN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _nullable(type_: DataType) -> DataType:
    """The type with all inner values nullable, as the gateway's columns are."""
    if isinstance(type_, ArrayType):
        return ArrayType(_nullable(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(_nullable(type_.keyType), _nullable(type_.valueType))
    if isinstance(type_, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in type_])
    return type_


def split(tasks: Sequence[Task], least: int | None) -> list[Task]:
    """Split ranges into at least `least` tasks, as far as they have enough LSNs."""
    if least is None or not tasks or len(tasks) >= least:
        return list(tasks)
    pieces = -(-least // len(tasks))
    found = []
    for task in tasks:
        width = task.through - task.after
        count = min(pieces, width)
        edges = [task.after + width * number // count for number in range(count + 1)]
        found += [replace(task, after=low, through=high) for low, high in pairwise(edges)]
    return found
