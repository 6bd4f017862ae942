"""Columns as cells against the same values printed one by one: numbers, dates, times, NULLs."""

from __future__ import annotations

import random
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pytest

from ducktail.engine.values import copy_rows, datarow
from ducktail.engine.values.copy_rows import CopyForm
from ducktail.engine.values.duckdb_types import read_type
from ducktail.engine.values.encoding import text_cells

ROWS = 2000
# Rows of the batches that are encoded value by value.
SMALL = 40
SEED = 20260
SCALES = ((4, 0), (4, 1), (4, 4), (9, 3), (12, 2), (18, 0), (18, 5), (18, 18), (38, 4), (38, 30))

Made = Callable[[random.Random], str]


def decimal(digits: int, scale: int) -> Made:
    def made(chance: random.Random) -> str:
        edges = (0, 1, min(10**scale, 10**digits - 1), 10**digits - 1)
        number = chance.choice((*edges, chance.randrange(10 ** chance.randint(1, digits))))
        text = f"{number:0{scale + 1}}"
        return chance.choice(("", "-")) + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)

    return made


def integer(low: int, high: int) -> Made:
    def made(chance: random.Random) -> str:
        near = chance.randrange(10 ** chance.randint(1, 19))
        return str(chance.choice((low, high, 0, max(low, min(high, near)), max(low, min(high, -near)))))

    return made


def day(low: str, high: str) -> Made:
    return lambda chance: chance.choice(
        (low, high, f"19{chance.randint(10, 99)}-02-{chance.randint(10, 28)}")
    )


def clock(chance: random.Random) -> str:
    fraction = chance.choice(
        ("", ".5", ".000001", ".120000", ".999999", ".001", f".{chance.randrange(10**6):06}")
    )
    return f"{chance.randint(10, 23)}:{chance.randint(10, 59)}:{chance.randint(10, 59)}{fraction}"


def moment(chance: random.Random) -> str:
    return f"{day('1900-01-01', '2099-12-31')(chance)} {clock(chance)}"


def odd_moment(chance: random.Random) -> str:
    return chance.choice((moment(chance), "1899-12-31 23:59:59.999999", "2100-01-01 00:00:00", "infinity"))


COLUMNS: list[tuple[str, Made]] = [
    ("BOOLEAN", lambda chance: chance.choice(("true", "false"))),
    ("TINYINT", integer(-128, 127)),
    ("SMALLINT", integer(-32768, 32767)),
    ("INTEGER", integer(-(2**31), 2**31 - 1)),
    ("BIGINT", integer(-(2**63) + 1, 2**63 - 1)),
    ("BIGINT", integer(-(2**63), 2**63 - 1)),
    ("BIGINT", integer(1000, 9999)),
    ("UTINYINT", integer(0, 255)),
    ("UINTEGER", integer(0, 2**32 - 1)),
    ("UBIGINT", integer(0, 2**64 - 1)),
    ("HUGEINT", integer(-(2**127), 2**127 - 1)),
    ("HUGEINT", integer(-(10**17), 10**17)),
    *((f"DECIMAL({digits},{scale})", decimal(digits, scale)) for digits, scale in SCALES),
    ("DECIMAL(38,4)", decimal(15, 4)),
    ("DOUBLE", lambda chance: repr(chance.uniform(-1, 1) * 10.0 ** chance.randint(-9, 18))),
    ("FLOAT", lambda chance: repr(chance.uniform(-1, 1) * 10.0 ** chance.randint(-9, 18))),
    ("DATE", day("1900-01-01", "2099-12-31")),
    ("DATE", day("1899-12-31", "infinity")),
    ("TIME", clock),
    ("TIME", lambda chance: chance.choice((clock(chance), "24:00:00"))),
    ("TIMESTAMP", moment),
    ("TIMESTAMP", odd_moment),
    ("TIMESTAMP_S", lambda chance: moment(chance)[:19]),
    ("TIMESTAMP_MS", moment),
    ("TIMESTAMP_NS", moment),
    ("TIMESTAMP WITH TIME ZONE", moment),
    ("TIMESTAMP WITH TIME ZONE", odd_moment),
    ("TIMESTAMP WITH TIME ZONE", lambda chance: f"20{moment(chance)[2:]}"),
    ("VARCHAR", lambda chance: chance.choice(("", "a", "\\N", "a\tb", "é" * 9))),
]  # fmt: skip
TYPES = [type_ for type_, _ in COLUMNS]


@pytest.fixture(scope="module", params=["some NULL", "no NULL"])
def batch(request: pytest.FixtureRequest) -> pa.RecordBatch:
    chance = random.Random(SEED)
    nulls = request.param == "some NULL"
    columns = [
        pa.array(
            [None if nulls and chance.random() < 0.2 else made(chance) for _ in range(ROWS)], pa.string()
        )
        for _, made in COLUMNS
    ]
    texts = pa.Table.from_arrays(columns, [f"c{place}" for place in range(len(COLUMNS))])
    items = ", ".join(f"c{place}::{type_}" for place, type_ in enumerate(TYPES))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("texts", texts)
        table = connection.sql(f"SELECT {items} FROM texts").to_arrow_table()
    return table.combine_chunks().to_batches()[0]


def slices(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(start, SMALL) for start in range(0, batch.num_rows, SMALL)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("format_", [0, 1])
def test_cells_are_the_values_one_by_one(batch: pa.RecordBatch, format_: int, zone: str) -> None:
    # Each column between two texts, and all of them side by side.
    last = len(TYPES) - 1
    for places in [*([last, place, last] for place in range(last)), list(range(len(TYPES)))]:
        chosen = [TYPES[place] for place in places]
        columns = [batch.column(place) for place in places]
        part = pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
        one_by_one = [
            row for piece in slices(part) for row in datarow.messages(piece, chosen, [format_], zone)
        ]
        assert datarow.messages(part, chosen, [format_], zone) == one_by_one, chosen
        shifted = datarow.messages(part.slice(777, 901), chosen, [format_], zone)
        assert shifted == one_by_one[777 : 777 + 901], chosen


@pytest.mark.parametrize(
    "form",
    [
        CopyForm("text"),
        CopyForm("text", "|", "nil"),
        CopyForm("text", "1", "0"),
        CopyForm("csv", ",", ""),
        CopyForm("csv", ",", "t"),
        CopyForm("csv", ":", "NULL", "-", "5"),
        CopyForm("csv", ",", "", force_quote=frozenset({0, 20})),
    ],
    ids=lambda form: f"{form.format} {form.delimiter} {form.null} {form.quote}{form.escape}",
)
def test_copied_cells_are_texts_copied(batch: pa.RecordBatch, form: CopyForm) -> None:
    texts = list(zip(*map(datarow.fields, datarow.messages(batch, TYPES)), strict=True))
    assert bytes(copy_rows.encode(batch, TYPES, form)) == bytes(copy_rows.encode_texts(texts, form))


def test_what_is_printed_as_cells(batch: pa.RecordBatch) -> None:
    # Those with a value that has none are printed another way: the tests above must meet both.
    found = [
        text_cells(batch.column(place), read_type(type_), "UTC") is not None
        for place, type_ in enumerate(TYPES)
    ]
    wanted = {
        "UBIGINT": 0,
        "DOUBLE": 0,
        "FLOAT": 0,
        "TIMESTAMP WITH TIME ZONE": 2,
        "VARCHAR": 0,
        "BIGINT": 2,
        "DECIMAL(38,30)": 0,
    }
    for type_ in set(TYPES):
        count = sum(printed for name, printed in zip(TYPES, found, strict=True) if name == type_)
        assert count == wanted.get(type_, 1), type_
