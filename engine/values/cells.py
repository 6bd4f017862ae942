"""Rows joined from columns: fields of fixed width side by side, and Arrow columns of any width.

Most parts of a row have a width that is known before their values: length words, separators, binary numbers,
the parts of a date or time in text. These cells of all rows form one array of records, which numpy fills a
field at a time for about a nanosecond a row. One filter then removes the bytes that a row does not have:
leading digits, a fraction, a NULL value. Only texts of any length are columns of their own, and one Arrow
join puts them between the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[Any]
Sizes = npt.NDArray[np.int64] | int
# Layouts of records kept: one for each run of cells of a result's columns.
LAYOUTS_CACHED = 1024
# Not pa.scalar, which imports pandas to check for pandas objects.
EMPTY = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


@dataclass(frozen=True, slots=True)
class Cell:
    """Bytes of one width in each row.

    Args:
        kind: numpy's name of the type: the bytes in memory are sent unchanged.
        value: an array with one value for each row, or one value for all rows.
        kept: the rows that have the cell: None for all, else a bool for each row, or a 1 or 0 for each of its
            bytes (an array of `V<width>`).
    """

    kind: str
    value: Array | bytes | int
    kept: Array | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells side by side, and the number of their bytes in each row."""

    cells: tuple[Cell, ...]
    sizes: Sizes


def constant(data: bytes) -> Cells:
    """The same bytes in each row."""
    return Cells((Cell(f"V{len(data)}", data),), len(data))


def length_word(sizes: Sizes, valid: Array | None = None) -> Cell:
    """The length words of values; -1 for NULL."""
    return Cell(">i4", sizes if valid is None else np.where(valid, sizes, -1))


def behind_length(cells: Cells, valid: Array | None) -> Cells:
    """Cells of values, each with its length word before it; a NULL has the length word alone."""
    width = 4
    if valid is None:
        return Cells((length_word(cells.sizes), *cells.cells), cells.sizes + width)
    sizes = np.where(valid, cells.sizes, 0)
    return Cells((length_word(cells.sizes, valid), *in_rows(cells, valid).cells), sizes + width)


def in_rows(cells: Cells, rows: Array) -> Cells:
    """Cells restricted to some rows (a bool for each); the other rows have no bytes of them."""
    found = tuple(Cell(cell.kind, cell.value, _both(cell, rows)) for cell in cells.cells)
    return Cells(found, np.where(rows, cells.sizes, 0))


def _both(cell: Cell, rows: Array) -> Array:
    if cell.kept is None:
        return rows
    if cell.kept.dtype == np.bool_:
        return cell.kept & rows
    kept = cell.kept.copy()
    kept[~rows] = np.zeros(1, kept.dtype)[0]
    return kept


@lru_cache(64)
def kept_last_table(width: int) -> Array:
    """For each number of trailing bytes that are kept, the mask of a cell's bytes: `V<width>` each."""
    places = np.arange(width)
    marks = places >= width - np.arange(width + 1)[:, None]
    return marks.astype(np.uint8).view(f"V{width}").ravel()


@lru_cache(64)
def kept_first_table(width: int) -> Array:
    """For each number of leading bytes that are kept, the mask of a cell's bytes."""
    marks = np.arange(width) < np.arange(width + 1)[:, None]
    return marks.astype(np.uint8).view(f"V{width}").ravel()


def take(table: Array, places: Array) -> Array:
    """The entries of a table at positions that are all valid."""
    # Checking each position costs more than reading it.
    return table.take(places, mode="clip")


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows in one buffer; `bounds` has one more number than there are rows."""

    data: memoryview
    bounds: npt.NDArray[np.int32]


def row_sizes(parts: Sequence[Cells | pa.Array], length: int) -> npt.NDArray[np.int64]:
    """The number of bytes of each row in these parts."""
    total = np.zeros(length, np.int64)
    for part in parts:
        total += part.sizes if isinstance(part, Cells) else np.diff(bounds(part))
    return total


def join(parts: Sequence[Cells | pa.Array], length: int) -> Joined:
    """Rows from their parts, in order: cells, and Arrow columns of bytes without NULLs."""
    columns: list[pa.Array | pa.Scalar] = []
    run: list[Cells] = []
    for part in parts:
        if isinstance(part, Cells):
            run.append(part)
            continue
        if run:
            columns.append(_records(run, length))
            run = []
        columns.append(part)
    if run:
        columns.append(_records(run, length))
    rows = columns[0]
    if len(columns) > 1:
        rows = pc.binary_join_element_wise(*columns, EMPTY)
    ends = bounds(rows)
    return Joined(memoryview(rows.buffers()[2] or b"")[ends[0] : ends[-1]], ends - ends[0])


def _records(run: Sequence[Cells], length: int) -> pa.Array:
    """A run of cells as an Arrow column of bytes."""
    cells = [cell for part in run for cell in part.cells]
    layout = _layout(tuple(cell.kind for cell in cells))
    records = np.empty(length, layout)
    assert layout.names is not None, "a record has fields"
    for name, cell in zip(layout.names, cells, strict=True):
        records[name] = cell.value
    if all(cell.kept is None for cell in cells):
        return fixed(records.view(np.uint8), layout.itemsize)
    kept = np.ones(length * layout.itemsize, np.uint8)
    marks = kept.view(_marks(layout))
    for name, cell in zip(layout.names, cells, strict=True):
        if cell.kept is None:
            continue
        if cell.kept.dtype == np.bool_:
            width = layout[name].itemsize
            marks[name] = take(kept_last_table(width), cell.kept * width)
        else:
            marks[name] = cell.kept
    ends = np.zeros(length + 1, np.int32)
    np.cumsum(sum(part.sizes for part in run), out=ends[1:])
    bits = pa.py_buffer(np.packbits(kept, bitorder="little"))
    filter_ = pa.Array.from_buffers(pa.bool_(), len(kept), [None, bits])
    data = pa.Array.from_buffers(pa.uint8(), len(kept), [None, pa.py_buffer(records)]).filter(filter_)
    return pa.Array.from_buffers(pa.binary(), length, [None, pa.py_buffer(ends), data.buffers()[1]])


@lru_cache(LAYOUTS_CACHED)
def _layout(kinds: tuple[str, ...]) -> np.dtype[Any]:
    return np.dtype([(str(place), kind) for place, kind in enumerate(kinds)])


@lru_cache(LAYOUTS_CACHED)
def _marks(layout: np.dtype[Any]) -> np.dtype[Any]:
    assert layout.names is not None, "a record has fields"
    return np.dtype([(name, f"V{layout[name].itemsize}") for name in layout.names])


def bounds(column: pa.Array) -> npt.NDArray[np.int32]:
    """The offsets at which the values of a column of bytes begin, and the end of the last one."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def fixed(data: Array, width: int) -> pa.Array:
    """An Arrow column of values of one fixed width."""
    ends = np.arange(0, data.size + 1, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
