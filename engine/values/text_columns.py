"""PostgreSQL's text form of whole Arrow columns.

Each type has the function of engine/values/text_form.py that prints one value, and may have a vectorised
one that is right for ordinary values and gives None where the column holds others (infinities,
years before 1 or after 9999): then the first is used, value by value.
Source: docs/design/values.md, "Text form".
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import arrow_values as av
from .duckdb_types import DuckType
from .pgtypes import CATALOG_TYPES, is_array
from .text_form import (
    DATE_MAX,
    DATE_MIN,
    DAY_US,
    QUOTED_ELEMENT,
    SECOND_US,
    blob_text,
    bool_text,
    date_text,
    decimal_text,
    element_text,
    float4_text,
    float8_text,
    interval_text,
    load_zone,
    offset_text,
    time_text,
    timestamp_text,
    timestamptz_text,
)
from .zone_offsets import offsets_s

# Column lengths up to which repeated values are not looked for: finding them costs more than it saves.
REPEATS_ROWS_MIN = 1024
# Rows that tell whether values repeat.
SAMPLE_ROWS = 256

Vector = Callable[[pa.Array, str], "pa.Array | None"]


def _cast_vector(column: pa.Array, zone: str) -> pa.Array | None:
    return column.cast(pa.string())


def _bool_vector(column: pa.Array, zone: str) -> pa.Array | None:
    return pc.if_else(column, "t", "f")


def _float_vector(below: float, text: Callable[[av.Raw], str]) -> Vector:
    def vector(column: pa.Array, zone: str) -> pa.Array | None:
        sizes = np.abs(av.filled(column, av.ints(column)))
        # NaN fails both comparisons, and with them all().
        ordinary = ((sizes >= 1e-4) & (sizes < below)) | (sizes == 0)
        texts = column.cast(pa.string())
        if ordinary.all():
            return texts
        odd = pa.array(~ordinary)
        return pc.replace_with_mask(
            texts, odd, pa.array([text(value) for value in column.filter(odd).to_pylist()], pa.string())
        )

    return vector


def _decimal_vector(column: pa.Array, zone: str) -> pa.Array | None:
    texts = column.cast(pa.string())
    if column.type.scale > 6 and pc.any(pc.match_substring(texts, "E")).as_py():
        return None
    return texts


def _text_vector(column: pa.Array, zone: str) -> pa.Array | None:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def _blob_vector(column: pa.Array, zone: str) -> pa.Array | None:
    column = column.cast(pa.binary())
    if not len(column) or column.buffers()[2] is None:
        return None
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    first, last = int(bounds[0]), int(bounds[-1])
    if last - first > BLOB_HEX_BYTES_MAX:
        return None
    digits = memoryview(column.buffers()[2])[first:last].hex().encode()
    doubled = pa.py_buffer(((bounds - first) * 2).astype(np.int32))
    texts = pa.Array.from_buffers(pa.string(), len(column), [None, doubled, pa.py_buffer(digits)])
    texts = pc.binary_join_element_wise("\\x", texts, "")
    return pc.if_else(pc.is_valid(column), texts, None) if column.null_count else texts


# Bytes of a BLOB column that are turned to hex at once: twice as many must be counted in 32 bits.
BLOB_HEX_BYTES_MAX = 2**30 - 1


def _date_vector(column: pa.Array, zone: str) -> pa.Array | None:
    bounds = pc.min_max(column.cast(pa.int32()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < DATE_MIN or high > DATE_MAX):
        return None
    return column.cast(pa.string())


def _trimmed(texts: pa.Array) -> pa.Array:
    """Times that Arrow printed with all digits of a fraction, without the zeros at its end."""
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")


def _time_vector(column: pa.Array, zone: str) -> pa.Array | None:
    if av.filled(column, av.microseconds(column)).max() >= DAY_US:
        return None
    return _trimmed(column.cast(pa.time64("us"), safe=False).cast(pa.string()))


def _timestamp_vector(column: pa.Array, zone: str) -> pa.Array | None:
    return _moments(column, lambda values: _print_moments(values, ""))


def _timestamptz_vector(column: pa.Array, zone: str) -> pa.Array | None:
    if load_zone(zone) is datetime.UTC:
        return _moments(column, lambda values: _print_moments(values, "+00"))
    return _moments(column, lambda values: _print_in_zone(values, zone))


def _moments(column: pa.Array, print_: Callable[[av.Ints], pa.Array]) -> pa.Array | None:
    """Timestamps as text; repeated ones (an event's commit time) are printed once."""
    values = av.filled(column, av.microseconds(column))
    if values.min() < MOMENT_MIN or values.max() > MOMENT_MAX:
        return None
    if len(values) >= REPEATS_ROWS_MIN and len(np.unique(values[:SAMPLE_ROWS])) < SAMPLE_ROWS // 4:
        coded = pa.array(values).dictionary_encode()
        texts = print_(coded.dictionary.to_numpy()).take(coded.indices)
    else:
        texts = print_(values)
    return pc.if_else(pc.is_valid(column), texts, None) if column.null_count else texts


# A day inside what Arrow prints, so that no zone's offset leads out of it.
MOMENT_MIN, MOMENT_MAX = (DATE_MIN + 1) * DAY_US, DATE_MAX * DAY_US


def _print_moments(values: av.Ints, suffix: str) -> pa.Array:
    if not (values % SECOND_US).any():
        texts = pa.array(values // SECOND_US, pa.timestamp("s")).cast(pa.string())
    else:
        texts = _trimmed(pa.array(values, pa.timestamp("us")).cast(pa.string()))
    return pc.binary_join_element_wise(texts, suffix, "") if suffix else texts


def _print_in_zone(values: av.Ints, zone: str) -> pa.Array:
    offsets = offsets_s(values, zone)
    local = _print_moments(values + offsets * SECOND_US, "")
    distinct, codes = np.unique(offsets, return_inverse=True)
    suffixes = pa.array([offset_text(offset) for offset in distinct.tolist()], pa.string())
    return pc.binary_join_element_wise(local, suffixes.take(pa.array(codes)), "")


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a DuckDB type's values are printed.

    Args:
        raw: the raw values of a column.
        text: the text of one raw value (and the session's time zone, where `zoned`).
        vector: the texts of a whole column, or None where there is no faster way.
        zoned: whether the text depends on the session's time zone.
        plain: whether an array's element of this type never needs quotes.
    """

    raw: Callable[[pa.Array], list[av.Raw]]
    text: Callable[..., str]
    vector: Vector | None = None
    zoned: bool = False
    plain: bool = False


WORDS = TextForm(av.raw_objects, str, _text_vector)
WHOLE = TextForm(av.raw_objects, str, _cast_vector, plain=True)
TIMESTAMP_FORM = TextForm(av.raw_microseconds, timestamp_text, _timestamp_vector)
TIMESTAMPTZ_FORM = TextForm(av.raw_microseconds, timestamptz_text, _timestamptz_vector, zoned=True)
FLOAT4_FORM = TextForm(av.raw_objects, float4_text, _float_vector(1e5, float4_text), plain=True)
FLOAT8_FORM = TextForm(av.raw_objects, float8_text, _float_vector(1e9, float8_text), plain=True)
TIME_FORM = TextForm(av.raw_microseconds, time_text, _time_vector, plain=True)

# DuckDB type -> form; every other type arrives as text (a wrapped query) and is sent as it is.
FORMS: dict[str, TextForm] = {
    "BOOLEAN": TextForm(av.raw_objects, bool_text, _bool_vector, plain=True),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), WHOLE),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"), WHOLE),
    "HUGEINT": TextForm(av.raw_objects, decimal_text, _cast_vector, plain=True),
    "DECIMAL": TextForm(av.raw_objects, decimal_text, _decimal_vector, plain=True),
    "FLOAT": FLOAT4_FORM,
    "DOUBLE": FLOAT8_FORM,
    "BLOB": TextForm(av.raw_objects, blob_text, _blob_vector),
    "GEOMETRY": TextForm(av.raw_objects, blob_text, _blob_vector),
    "DATE": TextForm(av.raw_ints, date_text, _date_vector),
    "TIME": TIME_FORM,
    "TIME_NS": TIME_FORM,
    "TIMESTAMP": TIMESTAMP_FORM,
    "TIMESTAMP_S": TIMESTAMP_FORM,
    "TIMESTAMP_MS": TIMESTAMP_FORM,
    "TIMESTAMP_NS": TIMESTAMP_FORM,
    "TIMESTAMP WITH TIME ZONE": TIMESTAMPTZ_FORM,
    "TIMESTAMPTZ_NS": TIMESTAMPTZ_FORM,
    "INTERVAL": TextForm(av.raw_intervals, interval_text),
    # The catalog's own: numbers, or the texts that PostgreSQL shows.
    **dict.fromkeys(CATALOG_TYPES.values(), TextForm(av.raw_objects, str, _cast_vector)),
}


def form_of(type_: DuckType) -> TextForm:
    """The form of a type that is no array."""
    return FORMS.get(type_.name, WORDS)


def values_text(column: pa.Array, type_: DuckType, zone: str) -> list[str | None]:
    """The text of each value, one by one; for short columns, and right for every value."""
    if is_array(type_):
        return _arrays_text(column, type_.children[0], zone)
    form = form_of(type_)
    text = form.text
    if form.zoned:
        return [None if value is None else text(value, zone) for value in form.raw(column)]
    return [None if value is None else text(value) for value in form.raw(column)]


def _arrays_text(column: pa.Array, element: DuckType, zone: str) -> list[str | None]:
    plain = form_of(element).plain

    def elements(child: pa.Array) -> list[av.Raw]:
        texts = values_text(child, element, zone)
        return ["NULL" if t is None else t if plain else element_text(t) for t in texts]

    rows = av.raw_list(column, elements)
    return [None if row is None else f"{{{','.join(row)}}}" for row in rows]


def column_text(column: pa.Array, type_: DuckType, zone: str) -> pa.Array:
    """The texts of a whole column as an Arrow column of strings, NULL where it is NULL.

    Args:
        column: as DuckDB gives it (of a wrapped query where datarow.wrapped gives one).
        type_: its DuckDB type.
        zone: the session's time zone, an IANA name.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if is_array(type_):
        return _array_column(column, type_.children[0], zone)
    form = form_of(type_)
    texts = form.vector(column, zone) if form.vector is not None and len(column) else None
    if texts is None:
        return pa.array(values_text(column, type_, zone), pa.string())
    return texts


def _array_column(column: pa.Array, element: DuckType, zone: str) -> pa.Array:
    bounds, child = av.list_parts(column)
    texts = column_text(child, element, zone)
    if texts.type != pa.string():
        texts = texts.cast(pa.string())
    if not form_of(element).plain:
        texts = _quoted(texts)
    texts = texts.fill_null("NULL")
    rows = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), texts)
    joined = pc.binary_join_element_wise("{", pc.binary_join(rows, ","), "}", "")
    return pc.if_else(pc.is_valid(column), joined, None) if column.null_count else joined


def _quoted(texts: pa.Array) -> pa.Array:
    odd = pc.match_substring_regex(texts, QUOTED_ELEMENT)
    if not pc.any(odd).as_py():
        return texts
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(odd, pc.binary_join_element_wise('"', escaped, '"', ""), texts)
