"""Arrow batches as PostgreSQL DataRow messages, in text or binary form by column.

    DataRow: 'D', Int32 length (itself included), Int16 columns, then each value: Int32 length
    (-1 is NULL) and so many bytes.

A query runs as it is and its batches are encoded a column at a time: each column becomes an Arrow
column of bytes and one of length words, and one C++ join puts the rows together. A short batch
(most results are) is cheaper value by value; both ways give the same bytes.

Some types lose something on their way to Arrow (INTERVAL overflows, TIME WITH TIME ZONE loses its
zone, UHUGEINT its upper half) or are not PostgreSQL's (STRUCT, MAP, UNION, VARIANT, lists of
lists). A query that has such a column, and only such a query, is run as `wrapped(query, types)`,
which turns those columns to text or JSON in DuckDB. A batch of an unwrapped query with them is
refused here: nothing is sent that is not the value.

Source: docs/design/values.md; PostgreSQL's protocol, section 55.7, DataRow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InternalError, ProgramLimitExceeded, ProtocolViolation
from ..quoting import ident
from . import arrow_values as av
from . import binary_form, text_columns
from .duckdb_types import TYPES_CACHED, DuckType, read_type
from .json_images import value_sql
from .pgtypes import is_array

TEXT, BINARY = 0, 1
DATA_ROW = b"D"
HEAD = struct.Struct("!cih")
LENGTH = struct.Struct("!i")
NULL = LENGTH.pack(-1)
# Batches of up to so many rows are encoded value by value: a vectorised column costs some 35 us
# whatever its length, a value some 0.4 us (an event's 13 columns, text form, one core).
SMALL_ROWS_MAX = 80
# Arrow counts a joined column's bytes in 32 bits, and text may be longer than what it is made from (a
# boolean of one bit has five bytes on the wire, a BLOB twice its own): larger batches are halved.
PIECE_VALUES_MAX = 2**24
PIECE_BYTES_MAX = 2**28
# PostgreSQL's own bound of a message is 1 GiB; a row beyond it is 54000.
ROW_BYTES_MAX = 2**30 - 1

# Types whose text, made by DuckDB, is sent or encoded from: Arrow's value of them is not whole.
AS_TEXT = frozenset({"TIME WITH TIME ZONE", "INTERVAL", "UHUGEINT", "BIGNUM", "BIT", "TYPE"})


def wrapped(query: str, types: Sequence[str]) -> str | None:
    """The query with its odd columns turned to text, or None where it can be run as it is.

    Args:
        query: one SELECT (or what may stand in FROM's parentheses), without a semicolon.
        types: the DuckDB types of its columns.
    """
    projection = select_text(types)
    if projection is None:
        return None
    names = ", ".join(ident(f"c{place}") for place in range(len(types)))
    # The line break ends a comment at the query's end.
    return f"SELECT {projection} FROM ({query}\n) AS __ducktail_result({names})"


def select_text(types: Sequence[str]) -> str | None:
    """The select list over columns c0, c1, .. that `wrapped` uses; None where none is needed."""
    items = [_item(ident(f"c{place}"), read_type(type_)) for place, type_ in enumerate(types)]
    if all(changed is None for _, changed in items):
        return None
    return ", ".join(plain if changed is None else f"{changed} AS {plain}" for plain, changed in items)


def _item(column: str, read: DuckType) -> tuple[str, str | None]:
    if read.name in AS_TEXT:
        return column, f"{column}::VARCHAR"
    if is_array(read):
        return column, f"{column}::VARCHAR[]" if read.children[0].name in AS_TEXT else None
    return column, f"{value_sql(column, read.text)}::VARCHAR" if read.nested else None


def encode(
    batch: pa.RecordBatch,
    types: Sequence[str],
    formats: Sequence[int] = (),
    timezone: str = "UTC",
    kind: bytes = DATA_ROW,
) -> bytes | memoryview:
    """The rows of a batch as DataRow messages, one after the other.

    Args:
        batch: of a query, or of the wrapped query where `wrapped` gives one.
        types: the DuckDB types of the query's own columns.
        formats: 0 text, 1 binary: one a column, one for all, or none for text, as in Bind.
        timezone: the session's, for TIMESTAMP WITH TIME ZONE in text.
        kind: the messages' type byte; a row of COPY in binary differs in nothing else.

    Raises:
        ProtocolViolation: formats that fit neither the columns nor the protocol (08P01).
        ProgramLimitExceeded: a row of 1 GiB or more (54000).
    """
    plan = _plan(tuple(types), tuple(formats))
    if _is_small(batch):
        return b"".join(_small(batch, plan, timezone, kind))
    joined = [_joined(part, plan, timezone, kind).data for part in pieces(batch)]
    return joined[0] if len(joined) == 1 else b"".join(joined)


def rows(
    batch: pa.RecordBatch,
    types: Sequence[str],
    formats: Sequence[int] = (),
    timezone: str = "UTC",
) -> list[bytes]:
    """The same, one bytes object a row: what a buffer of events holds."""
    plan = _plan(tuple(types), tuple(formats))
    if _is_small(batch):
        return _small(batch, plan, timezone)
    found: list[bytes] = []
    for part in pieces(batch):
        joined = _joined(part, plan, timezone)
        data = joined.data
        found += [bytes(data[start:end]) for start, end in pairwise(joined.bounds.tolist())]
    return found


def fields(row: bytes | memoryview) -> list[bytes | None]:
    """The values of one DataRow message, NULL as None.

    Raises:
        ProtocolViolation: it is not one whole DataRow (08P01).

    >>> fields(b"D" + bytes([0, 0, 0, 15, 0, 2, 0, 0, 0, 1]) + b"5" + bytes([255] * 4))
    [b'5', None]
    """
    view = memoryview(row)
    try:
        kind, length, count = HEAD.unpack_from(view)
        found: list[bytes | None] = []
        place = HEAD.size
        for _ in range(count):
            (size,) = LENGTH.unpack_from(view, place)
            place += LENGTH.size
            if size >= 0:
                found.append(bytes(view[place : place + size]))
                place += size
            else:
                found.append(None)
    except struct.error as error:
        raise ProtocolViolation("invalid DataRow message") from error
    if kind != DATA_ROW or length != len(view) - 1 or place != len(view):
        raise ProtocolViolation("invalid DataRow message")
    return found


# What is encoded how.


@dataclass(frozen=True, slots=True)
class Plan:
    """The types and formats of a result's columns.

    Args:
        columns: (type, 0 text or 1 binary) of each.
    """

    columns: tuple[tuple[DuckType, int], ...]


@lru_cache(TYPES_CACHED)
def _plan(types: tuple[str, ...], formats: tuple[int, ...]) -> Plan:
    each = formats or (TEXT,)
    if len(each) == 1:
        each *= len(types)
    if len(each) != len(types):
        raise ProtocolViolation(
            f"bind message has {len(formats)} result formats but query has {len(types)} columns"
        )
    for format_ in each:
        if format_ not in (TEXT, BINARY):
            raise ProtocolViolation(f"unsupported format code: {format_}")
    return Plan(tuple((read_type(type_), format_) for type_, format_ in zip(types, each, strict=True)))


def checked(column: pa.Array, type_: DuckType) -> pa.Array:
    """The column, where its Arrow form has the whole value."""
    if not pa.types.is_null(column.type) and not av.is_text(column.type):
        odd = type_.children[0] if is_array(type_) else type_
        holds = column.type.value_type if is_array(type_) else column.type
        if (odd.name in AS_TEXT and not av.is_text(holds)) or (type_.nested and not is_array(type_)):
            raise InternalError(f"a column of type {type_.text} was not wrapped for the wire")
    return column


# Value by value.


def _is_small(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows <= SMALL_ROWS_MAX)


def _small(
    batch: pa.RecordBatch, plan: Plan, timezone: str, kind: bytes = DATA_ROW
) -> list[bytes]:
    count = len(plan.columns)
    if not count:
        return [HEAD.pack(kind, HEAD.size - 1, 0)] * batch.num_rows
    encoded = [
        _values(checked(column, type_), type_, format_, timezone)
        for column, (type_, format_) in zip(batch.columns, plan.columns, strict=True)
    ]
    found = []
    for row in zip(*encoded, strict=True):
        body = b"".join(row)
        if len(body) > ROW_BYTES_MAX:
            raise too_long()
        found.append(HEAD.pack(kind, len(body) + HEAD.size - 1, count) + body)
    return found


def _values(column: pa.Array, type_: DuckType, format_: int, timezone: str) -> list[bytes]:
    """Each value with its length word before it."""
    values: Sequence[bytes | None]
    if format_ == BINARY:
        values = binary_form.values_binary(column, type_)
    else:
        texts = text_columns.values_text(column, type_, timezone)
        values = [None if text is None else text.encode() for text in texts]
    pack = LENGTH.pack
    return [NULL if value is None else pack(len(value)) + value for value in values]


# A column at a time.


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows in one buffer: `bounds` has one more number than there are rows."""

    data: memoryview
    bounds: npt.NDArray[np.int32]


def pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A batch in parts whose rows can be counted in 32 bits."""
    values = batch.num_rows * batch.num_columns
    if batch.num_rows < 2 or (values <= PIECE_VALUES_MAX and batch.nbytes <= PIECE_BYTES_MAX):
        return [batch]
    half = batch.num_rows // 2
    return [*pieces(batch.slice(0, half)), *pieces(batch.slice(half))]


def _joined(batch: pa.RecordBatch, plan: Plan, timezone: str, kind: bytes = DATA_ROW) -> Joined:
    length = batch.num_rows
    parts: list[pa.Array] = []
    sizes = np.full(length, HEAD.size - 1, np.int64)
    for column, (type_, format_) in zip(batch.columns, plan.columns, strict=True):
        new, size = _field(checked(column, type_), type_, format_, timezone)
        parts += new
        sizes += size
    if length and sizes.max() > ROW_BYTES_MAX:
        raise too_long()
    head = np.empty(length, HEAD_TYPE)
    head["kind"], head["length"], head["count"] = kind, sizes, len(plan.columns)
    rows_ = pc.binary_join_element_wise(fixed(head.view(np.uint8), HEAD.size), *parts, EMPTY)
    ends = bounds(rows_)
    return Joined(memoryview(rows_.buffers()[2])[ends[0] : ends[-1]], ends - ends[0])


HEAD_TYPE = np.dtype([("kind", "S1"), ("length", ">i4"), ("count", ">i2")])
EMPTY = pa.scalar(b"", pa.binary())

Sizes = npt.NDArray[np.int64] | int


def _field(column: pa.Array, type_: DuckType, format_: int, timezone: str) -> tuple[list[pa.Array], Sizes]:
    """What is to be joined for one column, and how many bytes that is in each row."""
    if format_ == TEXT:
        return _worded(text_columns.column_text(column, type_, timezone))
    if is_array(type_) or pa.types.is_null(column.type):
        return _worded(pa.array(binary_form.values_binary(column, type_), pa.binary()))
    form = binary_form.form_of(type_)
    if form.matrix is not None:
        return _matrix_field(column, form.matrix(column))
    if form.bytes_column:
        return _worded(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)
    return _worded(pa.array(binary_form.values_binary(column, type_), pa.binary()))


def _matrix_field(column: pa.Array, matrix: binary_form.Matrix) -> tuple[list[pa.Array], Sizes]:
    """Values of one width: the length word goes into the same Arrow column."""
    length, width = matrix.shape
    whole = np.empty((length, LENGTH.size + width), np.uint8)
    whole[:, : LENGTH.size] = np.frombuffer(LENGTH.pack(width), np.uint8)
    whole[:, LENGTH.size :] = matrix
    if not column.null_count:
        return [fixed(whole, whole.shape[1])], whole.shape[1]
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    whole[~valid, : LENGTH.size] = np.frombuffer(NULL, np.uint8)
    sizes = np.where(valid, whole.shape[1], LENGTH.size)
    ends = np.zeros(length + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    kept = np.arange(whole.shape[1]) < sizes[:, None]
    return [_binary(ends, whole[kept])], sizes


def _worded(column: pa.Array) -> tuple[list[pa.Array], Sizes]:
    """Values of any length: an Arrow column of length words, and the values."""
    column = column.cast(pa.binary())
    valid = None
    if column.null_count:
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
        column = column.fill_null(b"")
    sizes = np.diff(bounds(column))
    words = sizes if valid is None else np.where(valid, sizes, -1)
    return [fixed(words.astype(">i4").view(np.uint8), LENGTH.size), column], sizes + LENGTH.size


def bounds(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where the values of a column of bytes begin in its data, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def fixed(data: binary_form.Matrix, width: int) -> pa.Array:
    """An Arrow column of values of one width."""
    return _binary(np.arange(0, data.size + 1, width, dtype=np.int32), data)


def _binary(ends: npt.NDArray[np.int32], data: binary_form.Matrix) -> pa.Array:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def too_long() -> ProgramLimitExceeded:
    """The error for a row that no message holds."""
    return ProgramLimitExceeded(
        "row is too long for the wire",
        detail=f"A row may have {ROW_BYTES_MAX} bytes.",
    )
