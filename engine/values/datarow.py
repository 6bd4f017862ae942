"""PostgreSQL DataRow messages of Arrow batches and of rows of Python values; each column has a format.

    DataRow: 'D', Int32 length (itself included), Int16 columns, then each value: Int32 length
    (-1 is NULL) and so many bytes.

A batch is encoded a column at a time, as cells where values have few widths (cells.py), else as an Arrow
column of bytes behind its length words. A short batch, as most results are, is cheaper value by value. For up
to ten rows an Arrow reader takes longer than the query: rows of DuckDB's Python client are then encoded
directly, if their types keep the whole value in Python. All ways produce the same bytes.

Some types lose something in Arrow (INTERVAL overflows, TIME WITH TIME ZONE loses its zone, UHUGEINT its upper
half) or do not exist in PostgreSQL (STRUCT, MAP, UNION, VARIANT, lists of lists). A query with such a column,
and only such a query, is run as `wrapped(query, types)`, in which DuckDB converts those columns to text or
JSON. A batch of an unwrapped query with such a column is refused.

Source: docs/design/values.md; PostgreSQL's protocol, section 55.7, DataRow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InternalError, ProgramLimitExceeded, ProtocolViolation
from ..quoting import select_from
from . import arrow_values as av
from . import value_types
from .arrays import LENGTH, NULL_LENGTH
from .cells import Cell, Cells, Joined, behind_length, bounds, join, length_word, row_sizes
from .duckdb_types import TYPES_CACHED, DuckType, read_type
from .encoding import BINARY, TEXT, column_text, text_cells, values_binary, values_text
from .json_images import value_sql

DATA_ROW = b"D"
HEAD = struct.Struct("!cih")
# Batches of up to so many rows are encoded value by value: a vectorised column costs some 35 us
# whatever its length, a value some 0.4 us (an event's 13 columns, text form, one core).
SMALL_ROWS_MAX = 80
# Arrow counts a joined column's bytes in 32 bits, and text may be longer than what it is made from (a
# boolean of one bit has five bytes on the wire, a BLOB twice its own): larger batches are halved.
PIECE_VALUES_MAX = 2**24
PIECE_BYTES_MAX = 2**28
# PostgreSQL's limit of a message is 1 GiB; a larger row fails with 54000.
ROW_BYTES_MAX = 2**30 - 1

Row = tuple[object, ...]
Places = npt.NDArray[np.int32]
Encoder = Callable[[av.Raw], bytes]


# Columns that a query casts to text.


def wrapped(query: str, types: Sequence[str]) -> str | None:
    """The query with the columns that Arrow does not carry cast to text; None where no cast is needed.

    Args:
        query: one SELECT (or anything else allowed in FROM's parentheses), without a semicolon.
        types: the DuckDB types of its columns.
    """
    projection = select_text(types)
    return None if projection is None else select_from(query, projection, len(types))


def select_text(types: Sequence[str]) -> str | None:
    """The select list over columns c0, c1, .. that `wrapped` uses; None where none is needed."""
    items = [_item(f"c{place}", read_type(type_)) for place, type_ in enumerate(types)]
    if all(changed is None for _, changed in items):
        return None
    return ", ".join(plain if changed is None else f"{changed} AS {plain}" for plain, changed in items)


def _item(column: str, read: DuckType) -> tuple[str, str | None]:
    if value_types.value_type(read).as_text:
        return column, f"{column}::VARCHAR"
    if value_types.is_array(read):
        return column, f"{column}::VARCHAR[]" if value_types.value_type(read.children[0]).as_text else None
    return column, f"{value_sql(column, read.text)}::VARCHAR" if read.nested else None


# Arrow batches.


def encode(
    batch: pa.RecordBatch,
    types: Sequence[str],
    formats: Sequence[int] = (),
    timezone: str = "UTC",
    kind: bytes = DATA_ROW,
) -> bytes | memoryview:
    """The rows of a batch as DataRow messages, one after the other.

    Args:
        batch: a batch of the query, or of the wrapped query where `wrapped` returns one.
        types: the DuckDB types of the query's own columns.
        formats: 0 text, 1 binary: one for each column, one for all, or none for text, as in Bind.
        timezone: the session's time zone, for TIMESTAMP WITH TIME ZONE in text.
        kind: the messages' type byte, the only difference of a row of binary COPY.

    Raises:
        ProtocolViolation: the number of formats does not fit the columns, or a format is unknown.
        ProgramLimitExceeded: a row of 1 GiB or more.
    """
    plan = encoding_plan(tuple(types), tuple(formats))
    if _is_small(batch):
        return b"".join(_small(batch, plan, timezone, kind))
    joined = [_joined(part, plan, timezone, kind).data for part in pieces(batch)]
    return joined[0] if len(joined) == 1 else b"".join(joined)


def encoded(
    batch: pa.RecordBatch, types: Sequence[str], formats: Sequence[int], timezone: str
) -> tuple[memoryview, list[int]]:
    """The result of `encode`, and where its rows begin and end: one more number than there are rows."""
    if not _is_small(batch) and len(pieces(batch)) == 1:
        joined = _joined(batch, encoding_plan(tuple(types), tuple(formats)), timezone)
        return joined.data, joined.bounds.tolist()
    rows = messages(batch, types, formats, timezone)
    return memoryview(b"".join(rows)), list(accumulate(map(len, rows), initial=0))


def messages(
    batch: pa.RecordBatch,
    types: Sequence[str],
    formats: Sequence[int] = (),
    timezone: str = "UTC",
) -> list[bytes]:
    """The DataRow messages of a batch, one bytes object for each row: the form that event buffers hold."""
    plan = encoding_plan(tuple(types), tuple(formats))
    if _is_small(batch):
        return _small(batch, plan, timezone)
    found: list[bytes] = []
    for part in pieces(batch):
        joined = _joined(part, plan, timezone)
        data = joined.data
        found += [bytes(data[start:end]) for start, end in pairwise(joined.bounds.tolist())]
    return found


@dataclass(frozen=True, slots=True)
class EncodingPlan:
    """The types and formats of a result's columns.

    Args:
        columns: (type, 0 text or 1 binary) of each.
    """

    columns: tuple[tuple[DuckType, int], ...]


@lru_cache(TYPES_CACHED)
def encoding_plan(types: tuple[str, ...], formats: tuple[int, ...]) -> EncodingPlan:
    """The plan of a result, cached for each list of types and formats.

    Raises:
        ProtocolViolation: the number of formats does not fit the columns, or a format is unknown.
    """
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
    return EncodingPlan(
        tuple((read_type(type_), format_) for type_, format_ in zip(types, each, strict=True))
    )


def checked(column: pa.Array, type_: DuckType) -> pa.Array:
    """The column, if its Arrow form holds the whole value."""
    if not pa.types.is_null(column.type) and not av.is_text(column.type):
        odd = type_.children[0] if value_types.is_array(type_) else type_
        holds = column.type.value_type if value_types.is_array(type_) else column.type
        if (value_types.value_type(odd).as_text and not av.is_text(holds)) or (
            type_.nested and not value_types.is_array(type_)
        ):
            raise InternalError(f"a column of type {type_.text} was not wrapped for the wire")
    return column


def _is_small(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows <= SMALL_ROWS_MAX)


def _small(batch: pa.RecordBatch, plan: EncodingPlan, timezone: str, kind: bytes = DATA_ROW) -> list[bytes]:
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
    """Each value of a column behind its length word."""
    values: Sequence[bytes | None]
    if format_ == BINARY:
        values = values_binary(column, type_)
    else:
        texts = values_text(column, type_, timezone)
        values = [None if text is None else text.encode() for text in texts]
    pack = LENGTH.pack
    return [NULL_LENGTH if value is None else pack(len(value)) + value for value in values]


def pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A batch split into parts whose bytes can be counted in 32 bits."""
    values = batch.num_rows * batch.num_columns
    if batch.num_rows < 2 or (values <= PIECE_VALUES_MAX and batch.nbytes <= PIECE_BYTES_MAX):
        return [batch]
    half = batch.num_rows // 2
    return [*pieces(batch.slice(0, half)), *pieces(batch.slice(half))]


def _joined(batch: pa.RecordBatch, plan: EncodingPlan, timezone: str, kind: bytes = DATA_ROW) -> Joined:
    length = batch.num_rows
    parts: list[Cells | pa.Array] = []
    for column, (type_, format_) in zip(batch.columns, plan.columns, strict=True):
        parts += _field(checked(column, type_), type_, format_, timezone)
    return _rows(parts, len(plan.columns), length, kind)


def _field(column: pa.Array, type_: DuckType, format_: int, timezone: str) -> list[Cells | pa.Array]:
    """The parts of a row that one column contributes."""
    if format_ == TEXT:
        found = text_cells(column, type_, timezone)
        if found is not None:
            return [behind_length(*found)]
        return _behind_lengths(column_text(column, type_, timezone))
    if not value_types.is_array(type_) and not pa.types.is_null(column.type):
        form = value_types.value_type(type_).scalar
        cells = form.binary_cells(column) if form.binary_cells is not None and len(column) else None
        if cells is not None:
            return [behind_length(cells, av.valid(column))]
        if form.prefix is not None:
            whole = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            return _behind_lengths(whole, form.prefix)
    return _behind_lengths(pa.array(values_binary(column, type_), pa.binary()))


def encode_fields(fields_: Sequence[pa.Array], kind: bytes = DATA_ROW) -> memoryview:
    """Rows from fields that are encoded already, column by column."""
    parts = [part for column in fields_ for part in _behind_lengths(column)]
    return _rows(parts, len(fields_), len(fields_[0]), kind).data


def _behind_lengths(column: pa.Array, prefix: bytes = b"") -> list[Cells | pa.Array]:
    """Values of any length, preceded by their length words and by the prefix of their binary form."""
    column, valid = column.cast(pa.binary()), av.valid(column)
    if valid is not None:
        column = column.fill_null(b"")
    sizes = np.diff(bounds(column))
    if not prefix:
        return [Cells((length_word(sizes, valid),), LENGTH.size), column]
    width = len(prefix)
    cells = (length_word(sizes + width, valid), Cell(f"V{width}", prefix, valid))
    return [Cells(cells, LENGTH.size + (width if valid is None else np.where(valid, width, 0))), column]


def _rows(parts: Sequence[Cells | pa.Array], count: int, length: int, kind: bytes) -> Joined:
    sizes = row_sizes(parts, length) + HEAD.size - 1
    if length and sizes.max() > ROW_BYTES_MAX:
        raise too_long()
    cells = (Cell("V1", kind), Cell(">i4", sizes), Cell(">i2", count))
    return join([Cells(cells, HEAD.size), *parts], length)


def too_long() -> ProgramLimitExceeded:
    """The error for a row that exceeds the size of a message."""
    return ProgramLimitExceeded(
        "row is too long for the wire",
        detail=f"A row may have {ROW_BYTES_MAX} bytes.",
    )


# Rows of Python values.


def has_raw_values(types: Sequence[str]) -> bool:
    """True if Python values of these DuckDB types can be converted to raw values."""
    return all(value_types.value_type(read_type(type_)).python is not None for type_ in types)


def raw_rows(rows: Sequence[Row], types: Sequence[str]) -> list[Row]:
    """The rows as raw values.

    Args:
        types: the DuckDB types of their columns; `has_raw_values` is true for them.

    Raises:
        AmbiguousValue: a value's Python form may represent another value.
    """
    readers = _readers(tuple(types))
    if not readers:
        return list(rows)
    return [_raw_row(row, readers) for row in rows]


@lru_cache(TYPES_CACHED)
def _readers(types: tuple[str, ...]) -> tuple[tuple[int, value_types.PythonReader], ...]:
    """The positions of the values that Python does not hold raw, with their readers."""
    found = ((place, value_types.value_type(read_type(type_)).python) for place, type_ in enumerate(types))
    return tuple((place, reader) for place, reader in found if reader not in (None, value_types.as_it_is))


def _raw_row(row: Row, readers: tuple[tuple[int, value_types.PythonReader], ...]) -> Row:
    values = list(row)
    for place, reader in readers:
        if values[place] is not None:
            values[place] = reader(values[place])
    return tuple(values)


def encode_raw(rows: Sequence[Row], types: Sequence[str], formats: Sequence[int], timezone: str) -> bytes:
    """Raw rows as DataRow messages, one after the other; the same bytes as `datarow.encode` of them.

    Args:
        formats: 0 text, 1 binary: one for each column, one for all, or none for text, as in Bind.
        timezone: the session's time zone, for TIMESTAMP WITH TIME ZONE in text.

    Raises:
        ProtocolViolation: the number of formats does not fit the columns, or a format is unknown.
        ProgramLimitExceeded: a row of 1 GiB or more.
    """
    return b"".join(raw_messages(rows, types, formats, timezone))


def raw_messages(
    rows: Sequence[Row], types: Sequence[str], formats: Sequence[int] = (), timezone: str = "UTC"
) -> list[bytes]:
    """Raw rows as DataRow messages, one bytes object for each row."""
    encoders = _encoders(tuple(types), tuple(formats), timezone)
    try:
        return [_raw_message(row, encoders) for row in rows]
    except struct.error as error:
        raise InternalError("a value does not fit its type's binary form") from error


def _raw_message(row: Row, encoders: tuple[Encoder, ...]) -> bytes:
    parts = []
    for value, encoder in zip(row, encoders, strict=True):
        if value is None:
            parts.append(NULL_LENGTH)
        else:
            data = encoder(value)
            parts += (LENGTH.pack(len(data)), data)
    body = b"".join(parts)
    if len(body) > ROW_BYTES_MAX:
        raise too_long()
    return HEAD.pack(DATA_ROW, len(body) + HEAD.size - 1, len(encoders)) + body


@lru_cache(TYPES_CACHED)
def _encoders(types: tuple[str, ...], formats: tuple[int, ...], timezone: str) -> tuple[Encoder, ...]:
    return tuple(
        _encoder(type_, format_, timezone) for type_, format_ in encoding_plan(types, formats).columns
    )


def _encoder(type_: DuckType, format_: int, timezone: str) -> Encoder:
    if format_ == BINARY:
        return value_types.value_type(type_).scalar.binary
    form = value_types.value_type(type_)
    text = form.text
    if form.zoned:
        return lambda value: text(value, timezone).encode()
    return lambda value: text(value).encode()


# Fields of whole messages.


def field(row: bytes, index: int) -> bytes | None:
    """One value of a DataRow message produced here, NULL as None.

    >>> field(b"D" + bytes([0, 0, 0, 15, 0, 2, 0, 0, 0, 1]) + b"5" + bytes([255] * 4), 0)
    b'5'
    """
    place = HEAD.size
    for _ in range(index):
        (size,) = LENGTH.unpack_from(row, place)
        place += LENGTH.size + max(size, 0)
    (size,) = LENGTH.unpack_from(row, place)
    place += LENGTH.size
    return row[place : place + size] if size >= 0 else None


def appended(rows: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes]:
    """DataRow messages with one more value each, NULL as None.

    >>> appended([b"D" + bytes([0, 0, 0, 11, 0, 1, 0, 0, 0, 1]) + b"5"], [b"7"])[0][-5:]
    b'\\x00\\x00\\x00\\x017'
    """
    found = []
    for row, value in zip(rows, values, strict=True):
        kind, length, count = HEAD.unpack_from(row)
        last = NULL_LENGTH if value is None else LENGTH.pack(len(value)) + value
        found.append(b"".join((HEAD.pack(kind, length + len(last), count + 1), row[HEAD.size :], last)))
    return found


def fields(row: bytes | memoryview) -> list[bytes | None]:
    """The values of one DataRow message, NULL as None.

    Raises:
        ProtocolViolation: it is not one whole DataRow.

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


def columns(rows_: Sequence[bytes], places: Sequence[int]) -> list[Sequence[bytes | None] | pa.Array]:
    """The values of columns of complete DataRows; Arrow columns if the rows are many.

    Args:
        places: the places of these columns in a row, in any order.
    """
    if len(rows_) <= SMALL_ROWS_MAX or sum(map(len, rows_)) > PIECE_BYTES_MAX:
        split = list(map(fields, rows_))
        return [[row[place] for row in split] for place in places]
    data, ends, starts, words = _starts(rows_, max(places, default=-1) + 1)
    # A row is split at both ends of each value.
    wanted = sorted(set(places))
    cuts = [edge for place in wanted for edge in (starts[place] + LENGTH.size, starts[place + 1])]
    width, cut = _cut(data, cuts, ends)
    found: list[Sequence[bytes | None] | pa.Array] = []
    for place in places:
        values = cut.take(pa.array(np.arange(1 + 2 * wanted.index(place), len(cut), width)))
        valid = words[place] >= 0
        found.append(values if valid.all() else pc.if_else(pa.array(valid), values, None))
    return found


def picked(rows_: Sequence[bytes], places: Sequence[int]) -> memoryview:
    """Complete DataRows with only these columns, in this order, as one run of messages.

    Args:
        rows_: at most PIECE_BYTES_MAX bytes together.
    """
    data, ends, starts, _ = _starts(rows_, max(places) + 1)
    # A row is split where a run of wanted columns begins or ends.
    edges = sorted({edge for place in places for edge in (place, place + 1) if not _within(edge, places)})
    width, cut = _cut(data, [starts[edge] for edge in edges], ends)
    wanted = [1 + edges.index(place) for place in places if place in edges]
    parts = [cut.take(pa.array(np.arange(piece, len(cut), width))) for piece in wanted]
    return _rows(parts, len(places), len(rows_), DATA_ROW).data


def _within(edge: int, places: Sequence[int]) -> bool:
    """True if the columns before and behind an edge always follow one another."""
    before, behind = places.count(edge - 1), places.count(edge)
    pairs = sum(one + 1 == edge == other for one, other in pairwise(places))
    return before == behind == pairs


def _starts(rows_: Sequence[bytes], count: int) -> tuple[bytes, Places, list[Places], list[Places]]:
    """Rows in one run of bytes, and the place where each ends in it; the places of the first fields' length
    words and of the end of the last one, and the length words.
    """
    data = b"".join(rows_)
    words_at = _words_at(data)
    sizes = np.fromiter(map(len, rows_), np.int32, len(rows_))
    ends = np.cumsum(sizes, dtype=np.int32)
    place = ends - sizes + HEAD.size
    starts, lengths = [place], []
    for _ in range(count):
        words = words_at[place].astype(np.int32)
        place = place + LENGTH.size + np.maximum(words, 0)
        starts.append(place)
        lengths.append(words)
    return data, ends, starts, lengths


def _words_at(data: bytes | pa.Buffer) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The length word that begins at each byte, if one does: they overlap."""
    size = max(len(memoryview(data)) - LENGTH.size + 1, 0)
    return np.ndarray((size,), ">i4", data, strides=(1,))


def _cut(data: bytes, places: Sequence[Places], ends: Places) -> tuple[int, pa.Array]:
    """Rows split at these places: the number of pieces of a row, and the pieces."""
    bounds_ = np.column_stack([*places, ends])
    buffers = [None, pa.py_buffer(np.append(np.int32(0), bounds_.ravel())), pa.py_buffer(data)]
    return bounds_.shape[1], pa.Array.from_buffers(pa.binary(), bounds_.size, buffers)


def field_column(rows_: pa.Array, index: int) -> pa.Array:
    """One column of complete DataRows, which must have no NULL there; other columns are not examined.

    Args:
        rows_: an Arrow column of type binary.
    """
    offsets = np.frombuffer(rows_.buffers()[1], np.int32)[rows_.offset : rows_.offset + len(rows_)]
    data = rows_.buffers()[2]
    words = _words_at(data)
    place = offsets.astype(np.int64) + HEAD.size
    for column in range(index + 1):
        sizes = words[place]
        place += LENGTH.size
        if column < index:
            place += np.maximum(sizes, 0)
    ends = np.empty(2 * len(rows_) + 1, np.int32)
    ends[:-1:2], ends[1:-1:2] = place, place + sizes
    ends[-1] = ends[-2] if len(rows_) else 0
    cut = pa.Array.from_buffers(pa.binary(), 2 * len(rows_), [None, pa.py_buffer(ends), data])
    return cut.take(pa.array(np.arange(0, 2 * len(rows_), 2)))
