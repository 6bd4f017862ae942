"""Ready rows in other forms: many at once against the same rows one by one."""

from __future__ import annotations

from itertools import product

import duckdb
import pytest

from ducktail.engine.log.events import copy_rows, rows_in_formats
from ducktail.engine.log.log import EVENT_TYPES
from ducktail.engine.values import datarow
from ducktail.engine.values.copy_rows import CopyForm

ROWS = 600
EVENTS = f"""
    SELECT i, (i % 8)::INTEGER, CASE WHEN i % 3 > 0 THEN 'update' ELSE 'insert' END, 'orders',
        CASE WHEN i % 7 > 0 THEN to_json(i) END::JSON,
        CASE WHEN i % 3 > 0 THEN json_object('a', 'tab' || chr(9) || '"back\\' || i) END::JSON,
        to_json(repeat('é', (i % 5)::INTEGER)),
        make_timestamptz(1700000000000000 + i // 10 * 12345678), i // 4,
        (i % 4)::INTEGER, i % 4 = 3, 1::INTEGER, NULL::JSON
    FROM range({ROWS}) AS numbers (i)
"""
COLUMNS = [None, (0, 6, 2), (12,), (7, 10), (0, 1, 2, 4, 6, 7), (3, 3, 4), (5, 4, 5, 6)]


@pytest.fixture(scope="module")
def ready() -> list[bytes]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        batch = connection.sql(EVENTS).to_arrow_table().combine_chunks().to_batches()[0]
    return datarow.messages(batch, EVENT_TYPES)


@pytest.mark.parametrize(
    ("columns", "zone", "binary"), list(product(COLUMNS, ["UTC", "Asia/Kolkata"], [False, True]))
)
def test_many_rows_are_their_rows(
    ready: list[bytes], columns: tuple[int, ...] | None, zone: str, binary: bool
) -> None:
    formats = (int(binary),) * len(columns or EVENT_TYPES)
    types = EVENT_TYPES if columns is None else [EVENT_TYPES[place] for place in columns]
    each = [rows_in_formats([row], types, columns, formats, zone) for row in ready]
    assert bytes(rows_in_formats(ready, types, columns, formats, zone)) == b"".join(each)
    form = CopyForm("binary") if binary else CopyForm("text")
    copied = [bytes(copy_rows([row], types, columns, form, zone)) for row in ready]
    assert bytes(copy_rows(ready, types, columns, form, zone)) == b"".join(copied)


def test_rows_are_taken_apart(ready: list[bytes]) -> None:
    columns = [list(column) for column in zip(*map(datarow.fields, ready), strict=True)]
    assert [column.to_pylist() for column in datarow.columns(ready, range(len(EVENT_TYPES)))] == columns  # type: ignore[union-attr]
