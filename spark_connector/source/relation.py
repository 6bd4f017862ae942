"""One read: a relation and its columns, and the range of LSNs of each task; task_rows.py reads it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ..connection import (
    GIVEN,
    Connection,
    Connections,
    Owner,
    arrow_schema,
)
from ..errors import ConnectorError, OptionError, listed
from ..options import Options
from .spark_types import spark_schema, spark_type
from .stream_state import CopyState, StreamState, look_up, topic_scan

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
        """The relation's columns as a Spark schema.

        Raises:
            ConnectorError: the relation does not exist, or a column has a type that Spark does not have.
        """
        return spark_schema(self._described(connection), self.what)

    def check(self, connection: Connection, wanted: StructType) -> None:
        """Check that a query's columns, which schema() may name, are the relation's.

        Raises:
            ConnectorError: the relation does not exist, or lacks a column, or has it with another type.
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
            if spark_type(type_) != nullable(field.dataType):
                raise ConnectorError(f"{self.other_type(field, type_)}: its columns are {_shown(found)}")

    def other_type(self, wanted: StructField, found: pa.DataType) -> str:
        """The sentence about a column whose type is not the query's."""
        return (
            f'column "{wanted.name}" of {self.what} is {_spark_name(found)}, and the query has it as '
            f"{wanted.dataType.simpleString()} (schema() or option {self.option})"
        )

    def _described(self, connection: Connection) -> pa.Schema:
        """The relation's columns as the gateway sends them."""
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

    @property
    def has_windows(self) -> bool:
        """True if parts of a range of LSNs can be read one after the other, each as cheaply as by itself."""
        return bool(self.lsn) and not self.scanned and self.copied is None

    def query(self, wanted: StructType, task: Task, after: int, through: int) -> sql.Composed:
        """The query for a task's rows after an LSN, through another one; their order is always the same."""
        columns = [sql.Identifier(field.name) for field in wanted]
        conditions: list[sql.Composable] = []
        order: sql.Composable = sql.SQL("")
        if self.lsn:
            lsn = sql.Identifier(self.lsn)
            if not self.scanned:
                number = sql.Literal(task.partition)
                conditions.append(sql.SQL("{} = {}").format(sql.Identifier(self.partition), number))
            conditions += [
                sql.SQL("{} > {}").format(lsn, sql.Literal(after)),
                sql.SQL("{} <= {}").format(lsn, sql.Literal(through)),
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
        if options.get("table") is not None:
            return Relation.of_table(options).schema(connections.to())
        state = look_up(connections.to(), options)
        return Relation.of(options, state).schema(connections.to(state.partitions[0].owner))


def envelope(options: Options, state: StreamState) -> str:
    """The envelope of the options, or the stream's default."""
    given = options["envelope"]
    return str(given) if given is not None else (JSON if state.columns is None else CHANGES)


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


def nullable(type_: DataType) -> DataType:
    """The type with all inner values nullable, as the gateway's columns are."""
    if isinstance(type_, ArrayType):
        return ArrayType(nullable(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(nullable(type_.keyType), nullable(type_.valueType))
    if isinstance(type_, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in type_])
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
