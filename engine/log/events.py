"""Events as Python values, made of ready rows.

An `Event` is a tuple with names: what a cursor of the DB-API gives for `SELECT * FROM STREAM s`, value for
value (JSON stays text). Many rows are taken apart column by column, which costs a third of a row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..values.datarow import columns
from .event_rows import EVENT_SCHEMA
from .log import EVENT_TYPES


class Event(NamedTuple):
    """One event of a stream. Source: docs/sql.md, "Reading".

    Args:
        lsn: its place in the database's commit order.
        key, before, after, headers: JSON texts, or None.
        commit_time: of its transaction, in UTC.
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


# How one value is read, and how a column of them is.
_VALUES: dict[str, Callable[[bytes], Any]] = {
    "BIGINT": int,
    "INTEGER": int,
    "BOOLEAN": b"t".__eq__,
    "TIMESTAMP WITH TIME ZONE": _time,
    "VARCHAR": bytes.decode,
    "JSON": bytes.decode,
}
_REPEATED = frozenset({"INTEGER", "BOOLEAN", "TIMESTAMP WITH TIME ZONE", "VARCHAR"})


def events_of(rows: Sequence[bytes]) -> list[Event]:
    """The events of ready rows (text DataRows in UTC)."""
    if not rows:
        return []
    taken = list(map(_column, EVENT_TYPES, columns(rows, len(EVENT_TYPES))))
    return list(map(Event._make, zip(*taken, strict=True)))


def _column(type_: str, column: Sequence[bytes | None] | pa.Array) -> Sequence[Any]:
    """The values of one column."""
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
    """Events as Arrow, all columns."""
    taken = list(zip(*events, strict=True)) or [()] * len(EVENT_SCHEMA)
    arrays = [pa.array(column, type=field.type) for column, field in zip(taken, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
