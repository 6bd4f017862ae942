"""CopyData messages of COPY ... TO STDOUT: one message for each row of an Arrow batch, as in PostgreSQL.

    text:   fields separated by a delimiter, special characters escaped by backslashes, NULL as \\N
    csv:    fields separated by commas, quoted where they must be
    binary: a DataRow with another type byte, between a file header and a trailer
    arrow:  an extension: an Arrow IPC stream (arrow_types.py), split into messages at any byte

Texts are those of a DataRow. A column is searched for special characters as one run of bytes; its values are
examined one by one only if it has some. Source: PostgreSQL documentation, "COPY", "File Formats";
docs/design/values.md, "COPY rows".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import datarow
from .arrow_types import rows_bytes
from .cells import Cell, Cells, Joined, bounds, constant, in_rows, join, row_sizes
from .duckdb_types import DuckType, read_type
from .encoding import BINARY, column_text, text_cells

COPY_DATA = b"d"
# The signature, no flags, no extension.
BINARY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
# Bytes of a message in a format that does not define message boundaries.
PIECE_BYTES_MAX = 4 * 1024 * 1024
BINARY_TRAILER = b"\xff\xff"
_HEAD = struct.Struct("!ci")
# Characters that the text format writes as a backslash and a letter; other control characters stay.
_LETTERS = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v"}
_CONTROL_END = 14
# All characters of these texts: if the format gives one of them a meaning, the slow way writes them.
CELL_CHARACTERS = frozenset(b"0123456789-:+. tf")


@dataclass(frozen=True, slots=True)
class CopyForm:
    """The format of a COPY and its options.

    Args:
        format: `text`, `csv`, `binary` or `arrow`; the last two have no options.
        delimiter, quote, escape: one ASCII character each; quote and escape are used by csv only.
        null: the text of NULL.
        force_quote: positions of the columns whose values are always quoted.
    """

    format: str
    delimiter: str = "\t"
    null: str = "\\N"
    quote: str = '"'
    escape: str = '"'
    force_quote: frozenset[int] = frozenset()

    @property
    def leaves_plain(self) -> bool:
        """True if the characters of numbers and times need no escape in this format."""
        special = {*self.delimiter.encode(), *self.quote.encode(), *self.escape.encode()}
        odd_null = self.null and CELL_CHARACTERS.issuperset(self.null.encode())
        return not (special & CELL_CHARACTERS or odd_null or self.force_quote)

    @property
    def binary(self) -> bool:
        """True for the binary format."""
        return self.format == "binary"

    @property
    def arrow(self) -> bool:
        """True for an Arrow IPC stream."""
        return self.format == "arrow"


def message(body: bytes) -> bytes:
    """One CopyData message."""
    return _HEAD.pack(COPY_DATA, len(body) + 4) + body


def messages(stream: bytes | memoryview) -> bytes:
    """A run of bytes as CopyData messages of a size that clients read in one piece."""
    view = memoryview(stream)
    return b"".join(
        part
        for start in range(0, len(view), PIECE_BYTES_MAX)
        for piece in [view[start : start + PIECE_BYTES_MAX]]
        for part in (_HEAD.pack(COPY_DATA, len(piece) + 4), piece)
    )


def header_line(names: Sequence[str], form: CopyForm) -> bytes:
    """The message with the column names, the first line of text or csv."""
    fields = [_field(name, form, alone=len(names) == 1) for name in names]
    return message(f"{form.delimiter.join(fields)}\n".encode())


def encode(
    batch: pa.RecordBatch, types: Sequence[str], form: CopyForm, timezone: str = "UTC"
) -> bytes | memoryview:
    """The rows of a batch as CopyData messages, one after the other.

    Args:
        batch, types, timezone: as `datarow.encode` takes them.

    Raises:
        ProgramLimitExceeded: a row of 1 GiB or more.
    """
    if form.arrow:
        return messages(rows_bytes(batch))
    if form.binary:
        return datarow.encode(batch, types, (BINARY,), timezone, kind=COPY_DATA)
    read = [read_type(type_) for type_ in types]
    joined = [
        _joined(
            [
                _column(datarow.checked(column, type_), type_, form, timezone)
                for column, type_ in zip(part.columns, read, strict=True)
            ],
            form,
            part.num_rows,
        ).data
        for part in datarow.pieces(batch)
    ]
    return joined[0] if len(joined) == 1 else b"".join(joined)


def encode_texts(columns: Sequence[Sequence[bytes | None] | pa.Array], form: CopyForm) -> bytes | memoryview:
    """Rows of the text or csv format from fields that are texts already, column by column."""
    texts = [column if isinstance(column, pa.Array) else pa.array(column, pa.binary()) for column in columns]
    return _joined(texts, form, len(texts[0])).data


def _column(column: pa.Array, type_: DuckType, form: CopyForm, timezone: str) -> Sequence[Cells] | pa.Array:
    """The fields of a column: as cells in their final form, or as their texts."""
    found = text_cells(column, type_, timezone) if form.leaves_plain else None
    if found is None:
        return column_text(column, type_, timezone)
    cells, valid = found
    if valid is None:
        return [cells]
    null = form.null.encode()
    return [in_rows(cells, valid), *([in_rows(constant(null), ~valid)] if null else ())]


def _joined(columns: Sequence[Sequence[Cells] | pa.Array], form: CopyForm, length: int) -> Joined:
    parts: list[Cells | pa.Array] = []
    for place, column in enumerate(columns):
        if isinstance(column, pa.Array):
            parts.append(_written(column.cast(pa.binary()), form, place, alone=len(columns) == 1))
        else:
            parts += column
        parts.append(constant((form.delimiter if place + 1 < len(columns) else "\n").encode()))
    sizes = row_sizes(parts, length) + _HEAD.size - 1
    if length and sizes.max() > datarow.ROW_BYTES_MAX:
        raise datarow.too_long()
    head = Cells((Cell("V1", COPY_DATA), Cell(">i4", sizes)), _HEAD.size)
    return join([head, *parts], length)


def _written(column: pa.Array, form: CopyForm, place: int, *, alone: bool) -> pa.Array:
    """The fields of a column as bytes, NULL included."""
    if form.format == "text":
        found = _escaped(column, form)
    else:
        found = _quoted(column, form, place in form.force_quote, alone=alone)
    return found.fill_null(form.null.encode()) if column.null_count else found


def _bytes(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of all values of a column, in one run."""
    data = column.buffers()[2]
    if data is None:
        return np.empty(0, np.uint8)
    ends = bounds(column)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _escaped(column: pa.Array, form: CopyForm) -> pa.Array:
    """The fields of the text format. Backslashes are escaped first, because all other escapes add some."""
    data = _bytes(column)
    if not len(data):
        return column
    controls = bool(data.min() < _CONTROL_END)
    marks = ["\\", *(_LETTERS if controls else ())]
    if form.delimiter not in marks:
        marks.append(form.delimiter)
    for mark in marks:
        if (data == ord(mark)).any():
            column = pc.replace_substring(column, mark.encode(), _behind_backslash(mark).encode())
    return column


def _behind_backslash(mark: str) -> str:
    return "\\" + _LETTERS.get(mark, mark)


def _quoted(column: pa.Array, form: CopyForm, force: bool, *, alone: bool) -> pa.Array:
    """The fields of the csv format, quoted where a reader would misread them."""
    quote, escape = form.quote.encode(), form.escape.encode()
    data = _bytes(column)
    special = any((data == ord(mark)).any() for mark in (form.delimiter, form.quote, "\n", "\r"))
    null = form.null.encode()
    if force:
        chosen = pc.is_valid(column)
    else:
        chosen = pc.equal(column, null)
        if alone:
            chosen = pc.or_(chosen, pc.equal(column, b"\\."))
        if special:
            marks = "".join(re.escape(mark) for mark in (form.delimiter, form.quote, "\n", "\r"))
            chosen = pc.or_(chosen, pc.match_substring_regex(column, f"[{marks}]"))
        if not pc.any(chosen).as_py():
            return column
    inner = column
    if escape != quote:
        inner = pc.replace_substring(inner, escape, escape * 2)
    inner = pc.replace_substring(inner, quote, escape + quote)
    return pc.if_else(chosen, pc.binary_join_element_wise(quote, inner, quote, b""), column)


def _field(text: str, form: CopyForm, *, alone: bool) -> str:
    """One field of the header line; FORCE_QUOTE does not apply to it."""
    plain = CopyForm(form.format, form.delimiter, form.null, form.quote, form.escape)
    written = _written(pa.array([text.encode()], pa.binary()), plain, 0, alone=alone)
    value: bytes = written[0].as_py()
    return value.decode()
