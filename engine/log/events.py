"""Events in other forms than ready rows: Python values, fewer columns, binary, Arrow.

The buffers hold each event once, as a DataRow in text and in UTC; this module derives the other forms from
it, field by field. An `Event` is a named tuple with the values that a DB-API cursor returns for `SELECT *
FROM STREAM s` (JSON stays text). Many rows are decoded column by column, at a third of the cost of a row at a
time. Source: PostgreSQL's protocol, "Message Formats", DataRow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..values.copy_rows import COPY_DATA, CopyForm, encode_texts
from ..values.datarow import DATA_ROW, encode_fields, field_column, fields, picked
from ..values.datarow import columns as columns_of
from ..values.datarow import field as field_of
from ..values.encoding import BINARY, TEXT, Prefixed, Recoder, recoder
from .log import EVENT_COLUMNS, EVENT_TYPES

_REPEATED = frozenset({"INTEGER", "BOOLEAN", "TIMESTAMP WITH TIME ZONE", "VARCHAR"})
NULL = b"\xff\xff\xff\xff"
# Number of rows from which they are decoded column by column, unless Arrow could not count their bytes.
COLUMNS_ROWS_MIN, COLUMNS_BYTES_MAX = 256, 2**28
# Number of rows up to which a column is read row by row: a call of numpy or Arrow costs as much.
FEW_ROWS = 32
ARROW_TYPES: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
}
_NAMES = [name for name, _ in EVENT_COLUMNS]
_COMMIT_TIME, _TXID = _NAMES.index("commit_time"), _NAMES.index("txid")
EVENT_SCHEMA = pa.schema([(name, ARROW_TYPES[type_]) for name, type_ in EVENT_COLUMNS])


class Event(NamedTuple):
    """One event of a stream. Source: docs/sql.md, "Reading".

    Args:
        lsn: its position in the database's commit order.
        key, before, after, headers: JSON texts, or None.
        commit_time: the commit time of its transaction, in UTC.
    """

    lsn: int
    partition: int
    op: str
    table_name: str
    key: str | None
    before: str | None
    after: str | None
    commit_time: datetime
    txid: int
    tx_seq: int
    tx_last: bool
    schema_version: int
    headers: str | None


@lru_cache(maxsize=4096)
def _time(text: bytes) -> datetime:
    return datetime.fromisoformat(text.decode()).astimezone(UTC)


# The readers of one value and of a column.
_VALUES: dict[str, Callable[[bytes], Any]] = {
    "BIGINT": int,
    "INTEGER": int,
    "BOOLEAN": b"t".__eq__,
    "TIMESTAMP WITH TIME ZONE": _time,
    "VARCHAR": bytes.decode,
    "JSON": bytes.decode,
}


def events_of(rows: Sequence[bytes]) -> list[Event]:
    """The events of ready rows (text DataRows in UTC)."""
    if not rows:
        return []
    taken = list(map(_column, EVENT_TYPES, columns_of(rows, range(len(EVENT_TYPES)))))
    return list(map(Event._make, zip(*taken, strict=True)))


def _column(type_: str, column: Sequence[bytes | None] | pa.Array) -> Sequence[Any]:
    """The Python values of one column."""
    turn = _VALUES[type_]
    if not isinstance(column, pa.Array):
        return [None if value is None else turn(value) for value in column]
    if type_ in _REPEATED:
        # Most of them are the same few.
        coded = column.dictionary_encode()
        values = [turn(value) for value in coded.dictionary.to_pylist()]
        return [None if place is None else values[place] for place in coded.indices.to_pylist()]
    texts = column.cast(pa.string())
    taken: list[Any] = (pc.cast(texts, pa.int64()) if type_ == "BIGINT" else texts).to_pylist()
    return taken


def arrow_of(events: Sequence[Event]) -> pa.RecordBatch:
    """Events as an Arrow batch with all columns."""
    taken = list(zip(*events, strict=True)) or [()] * len(EVENT_SCHEMA)
    arrays = [pa.array(column, type=field.type) for column, field in zip(taken, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


@lru_cache(maxsize=4096)
def time_us(text: bytes) -> int:
    """Microseconds since 1970 of a timestamptz in PostgreSQL's text form, in UTC."""
    moment = datetime.fromisoformat(text.decode())
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


FROM_TEXT: dict[str, Callable[[bytes], object]] = {
    "BIGINT": int,
    "INTEGER": int,
    "BOOLEAN": b"t".__eq__,
    "TIMESTAMP WITH TIME ZONE": time_us,
    "VARCHAR": bytes.decode,
    "JSON": bytes.decode,
}


def datarow_of(values: Sequence[bytes | None], kind: bytes = DATA_ROW) -> bytes:
    """One DataRow message of these fields, or a message that differs in its type byte only."""
    body = b"".join(NULL if value is None else len(value).to_bytes(4, "big") + value for value in values)
    return kind + (len(body) + 6).to_bytes(4, "big") + len(values).to_bytes(2, "big") + body


def projected(rows: Sequence[bytes], columns: Sequence[int]) -> list[bytes]:
    """The rows with only these columns, in this order, in text."""
    found = []
    for row in rows:
        values = fields(row)
        found.append(datarow_of([values[place] for place in columns]))
    return found


def rows_in_formats(
    rows: Sequence[bytes],
    types: Sequence[str],
    columns: Sequence[int] | None,
    formats: Sequence[int],
    timezone: str,
    kind: bytes = DATA_ROW,
) -> bytes | memoryview:
    """The rows as one run of DataRows, each column in the requested format and time zone.

    Args:
        types: the types of the requested columns, in the session's styles.
        columns: positions of these columns, None for all.
        formats: 0 text, 1 binary, one for each requested column.
        kind: the messages' type byte.
    """
    places = tuple(range(len(types)) if columns is None else columns)
    turns = [recoder(type_, format_, timezone) for type_, format_ in zip(types, formats, strict=True)]
    by_column = len(rows) >= COLUMNS_ROWS_MIN and sum(map(len, rows)) <= COLUMNS_BYTES_MAX
    if not any(turns) and kind == DATA_ROW:
        if columns is None:
            return b"".join(rows)
        return picked(rows, places) if by_column else b"".join(projected(rows, places))
    if by_column:
        return encode_fields(list(map(_turned, columns_of(rows, places), turns)), kind)
    found = []
    for row in rows:
        values = fields(row)
        wanted = [values[place] for place in places]
        found.append(
            datarow_of(
                [
                    value if value is None or turn is None else turn(value)
                    for value, turn in zip(wanted, turns, strict=True)
                ],
                kind,
            )
        )
    return b"".join(found)


def _turned(column: Sequence[bytes | None] | pa.Array, turn: Recoder | None) -> pa.Array:
    """A column of fields converted by `turn`; in a loop each distinct value is converted once."""
    values = column if isinstance(column, pa.Array) else pa.array(column, pa.binary())
    if turn is None:
        return values
    if isinstance(turn, Prefixed):
        return turn.column(values)
    coded = values.dictionary_encode()
    turned = [turn(value) for value in coded.dictionary.to_pylist()]
    return pa.array(turned, pa.binary()).take(coded.indices)


def copy_rows(
    rows: Sequence[bytes],
    types: Sequence[str],
    columns: Sequence[int] | None,
    form: CopyForm,
    timezone: str,
) -> bytes | memoryview:
    """The rows as the CopyData messages of a COPY ... TO STDOUT; arguments as in `rows_in_formats`."""
    places = tuple(range(len(types)) if columns is None else columns)
    if form.binary:
        return rows_in_formats(rows, types, columns, (BINARY,) * len(places), timezone, COPY_DATA)
    wanted = []
    for type_, column in zip(types, columns_of(rows, places), strict=True):
        turn = recoder(type_, TEXT, timezone)
        if turn is not None:
            column = _turned(column, turn)
        wanted.append(column)
    return encode_texts(wanted, form)


def commit_times(rows: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The commit times of complete rows, in microseconds since 1970.

    Args:
        rows: an Arrow column of type binary; at most 2 GiB, as Arrow counts bytes in 32 bits.
    """
    if len(rows) <= FEW_ROWS:
        found = [time_us(field_of(row, _COMMIT_TIME) or b"") for row in rows.to_pylist()]
        return np.array(found, np.int64)
    texts = field_column(rows, _COMMIT_TIME)
    return np.asarray(texts.cast(pa.string()).cast(ARROW_TYPES[EVENT_TYPES[_COMMIT_TIME]]).cast(pa.int64()))


def transactions_of(rows: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The txids of complete rows; argument as in `commit_times`."""
    return np.asarray(field_column(rows, _TXID).cast(pa.string()).cast(pa.int64()))


def event_batch(rows: Sequence[bytes]) -> pa.RecordBatch:
    """Ready rows as an Arrow batch with all columns."""
    if len(rows) >= COLUMNS_ROWS_MIN and sum(map(len, rows)) <= COLUMNS_BYTES_MAX:
        found = columns_of(rows, range(len(EVENT_COLUMNS)))
        columns = [
            _cast(values, type_, field.type)
            for values, type_, field in zip(found, EVENT_TYPES, EVENT_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)
    split = [fields(row) for row in rows]
    arrays = []
    for place, (type_, field) in enumerate(zip(EVENT_TYPES, EVENT_SCHEMA, strict=True)):
        turn = FROM_TEXT[type_]
        column = [None if (value := values[place]) is None else turn(value) for values in split]
        arrays.append(pa.array(column, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _cast(values: Sequence[bytes | None] | pa.Array, type_: str, arrow: pa.DataType) -> pa.Array:
    """A column of texts converted to values of the type."""
    texts = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    if type_ == "BOOLEAN":
        return pc.equal(texts, b"t")
    texts = texts.cast(pa.string())
    return texts if arrow == pa.string() else texts.cast(arrow)
