"""PostgreSQL's text form of columns as cells, for the types whose texts have few widths.

The fast way of the fast way: where it says None, `text_columns` prints the column. Source:
docs/design/values.md, "Text form".
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import arrow_values as av
from .cells import Array, Cell, Cells, constant, kept_first_table, take
from .duckdb_types import DuckType
from .moment_cells import DAY_US, SECOND_US, clock_text, date_text, moment_text, within
from .number_cells import number_text
from .text_form import load_zone, offset_text
from .zone_offsets import offsets_s

# Everything that these texts are made of: what has another meaning among them is for others to print.
CHARACTERS = frozenset(b"0123456789-:+. tf")
# A moment that every table has, for where there is none.
IN_RANGE_US = 946_684_800 * SECOND_US


def _bool(column: pa.Array, zone: str) -> Cells:
    return Cells((Cell("u1", np.where(av.ints(column), ord("t"), ord("f"))),), 1)


def _number(column: pa.Array, zone: str) -> Cells | None:
    return number_text(column)


def _date(column: pa.Array, zone: str) -> Cells | None:
    return date_text(av.filled(column, av.ints(column)))


def _time(column: pa.Array, zone: str) -> Cells | None:
    values = av.filled(column, av.microseconds(column))
    return clock_text(values) if values.max() < DAY_US else None


def _timestamp(column: pa.Array, zone: str) -> Cells | None:
    return moment_text(av.filled(column, av.microseconds(column)))


def _timestamptz(column: pa.Array, zone: str) -> Cells | None:
    values = av.filled(column, av.microseconds(column), IN_RANGE_US)
    if load_zone(zone) is datetime.UTC:
        return moment_text(values, constant(b"+00"))
    if not within(values):
        return None
    offsets = offsets_s(values, zone)
    return moment_text(values + offsets * SECOND_US, _offset_cells(offsets))


def _offset_cells(offsets: npt.NDArray[np.int64]) -> Cells:
    distinct = np.unique(offsets)
    texts = [offset_text(offset).encode() for offset in distinct.tolist()]
    if len(texts) == 1:
        return constant(texts[0])
    width = max(map(len, texts))
    codes = np.searchsorted(distinct, offsets)
    kind = f"V{width}"
    sizes = take(np.array(list(map(len, texts))), codes)
    text = take(np.array(texts, f"S{width}").view(kind), codes)
    return Cells((Cell(kind, text, take(kept_first_table(width), sizes)),), sizes)


FORMS: dict[str, Callable[[pa.Array, str], Cells | None]] = {
    "BOOLEAN": _bool,
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), _number),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "HUGEINT", "DECIMAL"), _number),
    "DATE": _date,
    **dict.fromkeys(("TIME", "TIME_NS"), _time),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), _timestamp),
    **dict.fromkeys(("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"), _timestamptz),
}


def text_cells(column: pa.Array, type_: DuckType, zone: str) -> tuple[Cells, Array | None] | None:
    """The texts of a column, and which of them are there (None for all); None where they are no cells.

    Args:
        column, zone: as `text_columns.column_text` takes them.
        type_: its DuckDB type.
    """
    form = FORMS.get(type_.name)
    if form is None or not len(column) or pa.types.is_null(column.type):
        return None
    found = form(column, zone)
    return None if found is None else (found, av.valid(column))
