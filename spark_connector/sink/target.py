"""The target of a write: a table or topic, its columns, and their form in COPY ... FROM STDIN.

A column is sent unchanged if the table's type holds all its values, otherwise as PostgreSQL's text of its
type (a double for a DECIMAL, a number for a VARCHAR), which the gateway parses. Arrays, structs and maps have
no such text: they are sent as JSON and cast when they are stored. The gateway takes an Arrow IPC stream; a
PostgreSQL takes CSV.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from ..connection import Connection, arrow_schema
from ..errors import ConnectorError, OptionError
from ..options import Name, Options

# Column names of a data frame that is written to a topic.
PAYLOADS = ("value", "payload")
TOPIC_COLUMNS = ("key", *PAYLOADS, "headers")
# A double holds all integers of this many bits.
EXACT_BITS = 32
# The gateway limits the bytes of a batch.
BATCH_BYTES_MAX = 16 * 1024 * 1024
# The end of an Arrow IPC stream.
END = b"\xff\xff\xff\xff\0\0\0\0"
CSV = pyarrow.csv.WriteOptions(include_header=False)
# SQLSTATE of PostgreSQL for FORMAT arrow.
UNKNOWN_FORMAT = "22023"

# Arrow types whose text is the same in Arrow and on the wire.
_SAME_TEXT = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_date,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_timestamp, pa.types.is_time,
)  # fmt: skip
_NESTED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)

# Arrow type -> DuckDB type of a topic's key.
_KEYS = (
    (pa.types.is_string, "VARCHAR"),
    (pa.types.is_large_string, "VARCHAR"),
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_large_binary, "BLOB"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is written.

    Args:
        name: its name in the data frame.
        target: its name in the table or topic.
        nested: sent as JSON.
        type: DuckDB type for a topic's column; "" for a table's, whose type the table defines.
    """

    name: str
    target: str
    nested: bool = False
    type: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A table or topic that is written to.

    Args:
        kind: table or topic, the option that names it.
        mode: append, upsert or overwrite.
        schema: the schema of the stages and marks.
        order: columns that decide which of a key's rows is the last, for upsert.
    """

    kind: str
    name: Name
    mode: str
    schema: str
    columns: tuple[Column, ...]
    order: tuple[str, ...] = ()

    @property
    def identifier(self) -> sql.Identifier:
        """The target's name as SQL."""
        return self.name.identifier

    @property
    def names(self) -> list[str]:
        """The data frame's columns, in order."""
        return [column.name for column in self.columns]

    @property
    def targets(self) -> sql.Composed:
        """The table's or topic's columns as SQL."""
        return sql.SQL(", ").join(sql.Identifier(column.target) for column in self.columns)

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


def target_of(options: Options, schema: pa.Schema, *, overwrite: bool) -> Target:
    """The target for a data frame of this schema.

    Raises:
        OptionError: options and columns do not match; the message names the option.
    """
    topic, table, mode = options["topic"], options["table"], options["writeMode"]
    if (topic is None) == (table is None):
        raise OptionError("one of the options topic and table says where to write")
    staging, order = options["stagingSchema"], tuple(options["orderBy"] or ())
    for field in schema:
        if not can_be_sent(field.type):
            raise OptionError(f'column "{field.name}" cannot be written as it is ({field.type}): cast it')
    if mode != "upsert" and order:
        raise OptionError("option orderBy goes with writeMode upsert")
    if topic is not None:
        if overwrite or mode != "append":
            what = "Spark's mode overwrite (complete)" if overwrite else f'option writeMode "{mode}"'
            raise OptionError(f"{what} cannot be of a topic, which is only appended to: option topic")
        return Target("topic", topic, "append", staging, _topic_columns(schema))
    for field in schema:
        if has_nested_bytes(field.type):
            raise OptionError(
                f'column "{field.name}" cannot be written to a table (option table): it has binary values '
                "within, which JSON has not: cast them, or write hex()"
            )
    columns = tuple(Column(field.name, field.name, is_nested(field.type)) for field in schema)
    if overwrite:
        if mode == "upsert":
            raise OptionError("option writeMode upsert and Spark's mode overwrite exclude each other")
        mode = "overwrite"
    missing = [name for name in order if name.lower() not in {field.name.lower() for field in schema}]
    if missing:
        raise OptionError(f'option orderBy names "{missing[0]}", which the data frame has not')
    return Target("table", table, mode, staging, columns, order)


def _topic_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Payload, key and headers among a data frame's columns."""
    found: dict[str, pa.DataType] = {}
    for field in schema:
        if field.name.lower() not in TOPIC_COLUMNS:
            raise OptionError(
                f'a topic takes the columns value, key and headers, not "{field.name}" (option topic): '
                "SELECT to_json(struct(*)) AS value"
            )
        found[field.name] = field.type
    payloads = [name for name in found if name.lower() in PAYLOADS]
    if len(payloads) != 1:
        raise OptionError("a topic wants one column value (or payload), the events' payload (option topic)")
    columns = []
    for name, type_ in found.items():
        nested = is_nested(type_)
        target, known = name.lower(), "VARCHAR"
        if name in payloads:
            target, known = "payload", payload_type(type_) or ""
        elif target == "key":
            known = key_type(type_) or ""
        elif not (nested or pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            known = ""
        if not known:
            raise OptionError(f'column "{name}" of a topic cannot be of type {type_} (option topic): cast it')
        columns.append(Column(name, target, nested, known))
    return tuple(columns)


def is_nested(type_: pa.DataType) -> bool:
    """True if values of the type are sent as JSON."""
    return any(is_one(type_) for is_one in _NESTED)


def can_be_sent(type_: pa.DataType) -> bool:
    """True if values of the type have a text; intervals have none."""
    if pa.types.is_struct(type_):
        return all(can_be_sent(field.type) for field in type_)
    if pa.types.is_map(type_):
        return can_be_sent(type_.item_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return can_be_sent(type_.value_type)
    others = (pa.types.is_decimal, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_null)
    return any(is_one(type_) for is_one in (*_SAME_TEXT, *others))


def has_nested_bytes(type_: pa.DataType) -> bool:
    """True if lists, structs or maps contain bytes, which in JSON are base64, and no BLOB reads that."""
    if not is_nested(type_):
        return False
    inner = [type_.field(at).type for at in range(type_.num_fields)]
    return any(
        pa.types.is_binary(one) or pa.types.is_large_binary(one) or has_nested_bytes(one) for one in inner
    )


def key_type(type_: pa.DataType) -> str | None:
    """DuckDB type of a topic's key, or None for a type that cannot be a key."""
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz is None else "TIMESTAMPTZ"
    return next((name for is_one, name in _KEYS if is_one(type_)), None)


def payload_type(type_: pa.DataType) -> str | None:
    """DuckDB type of a payload: text or bytes; a nested value is JSON."""
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return "BLOB"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or is_nested(type_):
        return "VARCHAR"
    return None


def convert_batch(batch: pa.RecordBatch, names: list[str], wanted: pa.Schema) -> pa.RecordBatch:
    """Convert columns to types that COPY accepts for columns of the wanted types.

    Args:
        names: the columns that are sent; each `can_be_sent`.
        wanted: the table's columns in that order, in the schema of COPY ... TO STDOUT (FORMAT arrow).
    """
    columns = [
        _convert(batch.column(batch.schema.get_field_index(name)), field.type)
        for name, field in zip(names, wanted, strict=True)
    ]
    return pa.record_batch(columns, names=names)


def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into batches of at most BATCH_BYTES_MAX."""
    if batch.nbytes <= BATCH_BYTES_MAX or batch.num_rows < 2:
        yield batch
        return
    half = batch.num_rows // 2
    yield from split_batch(batch.slice(0, half))
    yield from split_batch(batch.slice(half))


def _convert(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    type_ = column.type
    if is_nested(type_):
        texts = (None if value is None else _json(_plain(value, type_)) for value in column.to_pylist())
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        # The session is in UTC.
        column = column.cast(pa.timestamp("us", "UTC"))
        type_ = column.type
    if _holds(wanted, type_):
        return column
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        values = (None if value is None else "\\x" + value.hex() for value in column.to_pylist())
        return pa.array(values, pa.string())
    return column.cast(pa.string())


def _holds(wanted: pa.DataType, type_: pa.DataType) -> bool:
    """True if COPY accepts values of a type for a column of the wanted type: docs/sql.md, "COPY"."""
    if type_ == wanted or pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return True
    if pa.types.is_null(type_):
        return True
    if pa.types.is_integer(type_):
        exact = pa.types.is_float64(wanted) and type_.bit_width <= EXACT_BITS
        return bool(exact or pa.types.is_integer(wanted) or pa.types.is_decimal(wanted))
    if pa.types.is_decimal(type_) and pa.types.is_decimal(wanted):
        return bool(type_.scale <= wanted.scale)
    return bool(pa.types.is_float32(type_) and pa.types.is_float64(wanted))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_json_scalar)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A nested value with maps as objects; pyarrow returns lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(type_):
        return {str(key): _plain(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_plain(item, type_.value_type) for item in value]
    return value


def _json_scalar(value: Any) -> str:
    """A value without a JSON literal, in the form that DuckDB's casts from JSON read."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise ConnectorError(f"a value of type {type(value).__name__} cannot be written as JSON")


class CopyFormat(Protocol):
    """The encoding of batches as the bytes of one COPY ... FROM STDIN."""

    name: str
    end: bytes

    def encode(self, batch: pa.RecordBatch, *, first: bool) -> Iterator[pa.Buffer]:
        """The bytes of a batch."""


class ArrowFormat:
    """An Arrow IPC stream.

    Args:
        wanted: the stage's columns, in the schema of COPY ... TO STDOUT (FORMAT arrow).
    """

    name = "arrow"
    end = END

    def __init__(self, names: list[str], wanted: pa.Schema) -> None:
        self._names, self._wanted = names, wanted

    def encode(self, batch: pa.RecordBatch, *, first: bool) -> Iterator[pa.Buffer]:
        """The messages of a batch, after that of the schema for the first one."""
        converted = convert_batch(batch, self._names, self._wanted)
        if first:
            yield converted.schema.serialize()
        for part in split_batch(converted):
            yield part.serialize()


class CsvFormat:
    """CSV, each value PostgreSQL's text of its type.

    NULL is an empty field without quotes and an empty text one with quotes, the default of pyarrow and COPY.
    """

    name = "csv"
    end = b""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def encode(self, batch: pa.RecordBatch, *, first: bool) -> Iterator[pa.Buffer]:
        """The lines of a batch."""
        # The type null holds no other: every column is sent as text.
        texts = pa.schema([(name, pa.null()) for name in self._names])
        sink = io.BytesIO()
        pyarrow.csv.write_csv(convert_batch(batch, self._names, texts), sink, CSV)
        yield pa.py_buffer(sink.getvalue())


def copy_format(connection: Connection, stage: sql.Identifier, target: Target) -> CopyFormat:
    """The format that the server accepts for a stage.

    Raises:
        ConnectorError: the stage cannot be read.
    """
    every = sql.SQL("SELECT * FROM {}").format(stage)
    try:
        return ArrowFormat(target.names, arrow_schema(connection, every, f"writing to {target}", target.kind))
    except ConnectorError as error:
        if error.sqlstate != UNKNOWN_FORMAT:
            raise
        return CsvFormat(target.names)
