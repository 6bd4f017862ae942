"""Records from the JSON of DuckDB's structs: the texts that JSON has in another form than PostgreSQL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ducktail.engine.errors import InvalidBinaryRepresentation, InvalidTextRepresentation
from ducktail.engine.values import parameters
from ducktail.engine.values.duckdb_types import read_type
from ducktail.engine.values.encoding import values_binary, values_text
from ducktail.engine.values.records import read_binary_record, read_record

# DuckDB type, JSON, PostgreSQL's text in Berlin.
FIELDS = [
    ("DATE", '"0044-03-15 (BC)"', '"0044-03-15 BC"'),
    ("DATE", '"-infinity"', "-infinity"),
    ("TIMESTAMP", '"0044-03-15 (BC) 01:02:03.5"', '"0044-03-15 01:02:03.5 BC"'),
    ("TIMESTAMP_NS", '"2026-01-01T10:00:00.123456789"', '"2026-01-01 10:00:00.123456"'),
    ("TIMESTAMP WITH TIME ZONE", '"2026-07-01T10:00:00.5+00:00"', '"2026-07-01 12:00:00.5+02"'),
    ("TIMESTAMP WITH TIME ZONE", '"infinity"', "infinity"),
    ("TIMESTAMPTZ[]", '["2026-07-01T10:00:00+00:00",null]', '"{""2026-07-01 12:00:00+02"",NULL}"'),
    ("TIME_NS", '"10:00:00.100000000"', "10:00:00.1"),
    ("TIME WITH TIME ZONE", '"10:00:00+02"', "10:00:00+02"),
    ("INTERVAL", '"1 year 2 months -3 days 04:05:06.5"', '"1 year 2 mons -3 days +04:05:06.5"'),
    ("DOUBLE", "1e22", "1e+22"),
    ("FLOAT", "0.1", "0.1"),
    ("DOUBLE", '"NaN"', "NaN"),
    ("HUGEINT", "170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
    ("DECIMAL(10,2)", "1.50", "1.50"),
    ("BOOLEAN", "true", "t"),
    ("BLOB", '"\\\\x00ff"', '"\\\\x00ff"'),
    ("JSON", '{"a": [1.50, "x"]}', '"{""a"": [1.50, ""x""]}"'),
    ("STRUCT(a INTEGER)", '{"a":1}', '"{""a"":1}"'),
    ("MAP(VARCHAR, INTEGER)", '{"a":1}', '"{""a"":1}"'),
    ("VARCHAR", '""', '""'),
    ("VARCHAR", '"a\\u0001\\n\\""', '"a\x01\n"""'),
    ("RECORD(2249, INTEGER, VARCHAR)", '[1,"x,"]', '"(1,""x,"")"'),
    ("RECORD(2249, INTEGER)[]", "[[1],null,[null]]", '"{(1),NULL,()}"'),
    ("INTEGER", "null", ""),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "json", "text"), FIELDS)
def test_fields(type_: str, json: str, text: str) -> None:
    for raw in (f"[{json}]", f'{{"a b":{json}}}', f'{{ "a \\" b" : {json} }}'):
        record = read_type(f"RECORD(20000, {type_})")
        assert values_text(pa.array([raw, None]), record, "Europe/Berlin") == [f"({text})", None]
        (binary,) = values_binary(pa.array([raw]), record)
        assert binary is not None
        ((_, value),) = read_binary_record(binary, 1)
        assert (value is None) == (json == "null")


STRUCT = 'STRUCT(a INTEGER, "b c" VARCHAR, l TIMESTAMP[], p STRUCT(x DOUBLE))'


def test_parameters() -> None:
    given = {"a": 1, "b c": 'x "y" \\ ,()', "l": [None], "p": {"x": 0.5}}
    for text in (r'(1,"x ""y"" \\ ,()",{NULL},"(0.5)")', r' ( 1 ,x \"y\" \\ \,(\),"{NULL}","(0.5)") '):
        assert parameters.decode(text.encode(), 0, 0, STRUCT) == given
    (record,) = values_binary(
        pa.array(['{"a":1,"b":"x","l":[null],"p":{"x":0.5}}']),
        read_type("RECORD(20003, INTEGER, VARCHAR, TIMESTAMP[], RECORD(20007, DOUBLE))"),
    )
    assert record is not None
    for oid in (0, 20003):
        assert parameters.decode(record, 1, oid, STRUCT) == given | {"b c": "x"}
    for cut in range(len(record)):
        with pytest.raises((InvalidBinaryRepresentation, InvalidTextRepresentation)):
            parameters.decode(record[:cut] or b"\0", 1, 0, STRUCT)
    assert parameters.decode(b'{"(1,,,)",NULL}', 0, 0, f"{STRUCT}[]") == [
        {"a": 1, "b c": None, "l": None, "p": None}, None,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["(1", "(1,2", '(1,"2)', "(1,2)x", "(1,2,3)", "(1)", "1,2", "()", "(1,2\\"])
def test_malformed_records(text: str) -> None:
    with pytest.raises(InvalidTextRepresentation, match="malformed record literal"):
        read_record(text, 2)


def test_empty_records() -> None:
    assert read_record("()", 1) == [None] and read_record("()", 0) == []
    assert read_record('("")', 1) == [""]
