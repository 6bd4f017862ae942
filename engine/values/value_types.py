"""The table of types: a row for each PostgreSQL type, and a row for each DuckDB type.

A PostgreSQL row holds the facts of pg_type, the writer of the binary form, and the readers of text and
binary parameters. A DuckDB row names the PostgreSQL type that its values are sent as, and holds the writers
of their text and JSON and the readers of values from Arrow and from DuckDB's Python client.

The PostgreSQL type is the one in RowDescription and ParameterDescription, by which clients decode. It holds
all values of the DuckDB type: UBIGINT is numeric, not int8. Types that PostgreSQL does not have (STRUCT,
MAP, UNION, VARIANT, lists of these, and lists of lists, which may be ragged) are json, in the form of
json_images.py. JSON itself is jsonb, because its values can be compared and grouped, as jsonb's can and
json's cannot. A list of scalars is the PostgreSQL array of its element type.

A row has a writer of one value and, where another algorithm is faster, a writer of a column; a test compares
their bytes. Source: docs/design/values.md; OIDs: PostgreSQL's pg_type.dat.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from functools import lru_cache

import pyarrow as pa

from . import arrow_values as av
from . import date_styles as ds
from . import dates_times as dt
from . import numbers as num
from . import strings as st
from . import temporal_input as ti
from .cells import Cells
from .duckdb_types import RECORD, TIME_TYPES, TYPES_CACHED, USER_ENUM, DuckType, read_type

# The type modifier of a type that has none.
NO_MODIFIER = -1
# The fields of an interval in its modifier: all of them.
INTERVAL_FIELDS = 0x7FFF << 16
# The digits of a second that a type of DuckDB's has.
DIGITS = {"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3}
# PostgreSQL's VARHDRSZ, which is added to the packed modifier of varchar, numeric and bit.
MODIFIER_OFFSET = 4

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26
JSON, FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR = 114, 700, 701, 705, 1042, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ = 1082, 1083, 1114, 1184, 1186, 1266
BIT, VARBIT, NUMERIC, UUID, JSONB = 1560, 1562, 1700, 2950, 3802
INT2VECTOR, OIDVECTOR, XID, ANY_RECORD = 22, 30, 28, 2249

PythonReader = Callable[[object], av.Raw]


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A PostgreSQL type that is not an array.

    Args:
        name, oid, length, array_oid: pg_type.typname, oid, typlen (-1 where the size varies) and typarray.
        duckdb: the DuckDB type that a parameter declared with it becomes. None for numeric: DECIMAL without
            digits is DECIMAL(18,3) to DuckDB and would round; a Decimal carries its own digits.
        read: the reader of a parameter's text, None where parameters are not read.
        receive: the reader of a binary parameter; raises struct.error or ValueError for invalid bytes.
        binary: the writer of one raw value (arrow_values.py) in binary form.
        binary_cells: the writer of a nonempty column in binary form, with any bytes for NULLs. It returns
            None for a column whose values it cannot write. None where there is no such function.
        own: the reader of a text written by this package, as a raw value; None where the text is the value.
        prefix: the bytes before the value's own in the binary form; None where the form has other bytes.
    """

    name: str
    oid: int
    length: int
    array_oid: int
    duckdb: str | None = None
    read: Callable[[str], object] | None = None
    receive: Callable[[bytes], object] = bytes
    binary: Callable[[av.Raw], bytes] = st.refuse_binary
    binary_cells: Callable[[pa.Array], Cells | None] | None = None
    own: Callable[[str], av.Raw] | None = None
    prefix: bytes | None = None


_SCALARS = (
    ScalarType(
        "bool", BOOL, 1, 1000, "BOOLEAN", num.read_bool, num.receive_bool,
        num.packer("!?"), num.fixed_cells(">u1"), "t".__eq__,
    ),
    ScalarType(
        "bytea", BYTEA, -1, 1001, "BLOB", st.read_bytea, bytes, bytes, own=st.raw_bytes, prefix=b"",
    ),
    # One byte, always.
    ScalarType(
        "char", CHAR, 1, 1002, "VARCHAR", str, st.utf8, lambda value: st.string_binary(value)[:1] or b"\0",
    ),
    ScalarType("name", NAME, 64, 1003, "VARCHAR", str, st.utf8, st.string_binary),
    ScalarType(
        "int8", INT8, 8, 1016, "BIGINT", num.integer_reader(64, "bigint"), num.receiver("!q"),
        num.packer("!q"), num.fixed_cells(">i8"), int,
    ),
    ScalarType(
        "int2", INT2, 2, 1005, "SMALLINT", num.integer_reader(16, "smallint"), num.receiver("!h"),
        num.packer("!h"), num.fixed_cells(">i2"), int,
    ),
    ScalarType(
        "int4", INT4, 4, 1007, "INTEGER", num.integer_reader(32, "integer"), num.receiver("!i"),
        num.packer("!i"), num.fixed_cells(">i4"), int,
    ),
    ScalarType("text", TEXT, -1, 1009, "VARCHAR", str, st.utf8, st.string_binary, prefix=b""),
    ScalarType("oid", OID, 4, 1028, "UINTEGER", num.read_oid, num.receiver("!I"), num.packer("!I")),
    ScalarType(
        "json", JSON, -1, 199, "JSON", st.read_json, st.receive_json, st.string_binary, prefix=b"",
    ),
    ScalarType(
        "float4", FLOAT4, 4, 1021, "FLOAT", num.read_float, num.receiver("!f"),
        num.packer("!f"), num.fixed_cells(">f4"), float,
    ),
    ScalarType(
        "float8", FLOAT8, 8, 1022, "DOUBLE", num.read_float, num.receiver("!d"),
        num.packer("!d"), num.fixed_cells(">f8"), float,
    ),
    ScalarType("bpchar", BPCHAR, -1, 1014, "VARCHAR", str, st.utf8, st.string_binary),
    ScalarType("varchar", VARCHAR, -1, 1015, "VARCHAR", str, st.utf8, st.string_binary),
    ScalarType(
        "date", DATE, 4, 1182, "DATE", ti.read_date, ti.receive_date,
        dt.date_binary, dt.date_binary_cells, dt.raw_date,
    ),
    ScalarType(
        "time", TIME, 8, 1183, "TIME", ti.read_time, ti.receive_time,
        num.packer("!q"), dt.time_binary_cells, dt.clock_us,
    ),
    ScalarType(
        "timestamp", TIMESTAMP, 8, 1115, "TIMESTAMP",
        ti.read_timestamp, ti.timestamp_receiver("TIMESTAMP", None),
        dt.timestamp_binary, dt.timestamp_binary_cells, dt.raw_timestamp,
    ),
    ScalarType(
        "timestamptz", TIMESTAMPTZ, 8, 1185, ti.TIMESTAMPTZ,
        lambda text: ti.read_timestamptz(text, None), ti.timestamp_receiver(ti.TIMESTAMPTZ, UTC),
        dt.timestamp_binary, dt.timestamp_binary_cells, dt.raw_timestamp,
    ),
    ScalarType(
        "interval", INTERVAL, 16, 1187, "INTERVAL", ti.read_interval, ti.receive_interval,
        dt.interval_binary, own=dt.raw_interval,
    ),
    ScalarType(
        "timetz", TIMETZ, 12, 1270, "TIME WITH TIME ZONE",
        ti.read_timetz, ti.receive_timetz, dt.timetz_binary,
    ),
    ScalarType("bit", BIT, -1, 1561, "BIT", st.read_bits, st.receive_bits, st.bits_binary),
    ScalarType("varbit", VARBIT, -1, 1563, "BIT", st.read_bits, st.receive_bits, st.bits_binary),
    ScalarType(
        "numeric", NUMERIC, -1, 1231, None, num.read_numeric, num.receive_numeric,
        num.numeric_binary, num.numeric_binary_cells,
    ),
    ScalarType(
        "uuid", UUID, 16, 2951, "UUID", st.read_uuid, st.receive_uuid, st.uuid_binary, own=uuid.UUID,
    ),
    ScalarType(
        "jsonb", JSONB, -1, 3807, "JSON", st.read_json, st.receive_jsonb, st.jsonb_binary,
        prefix=st.JSONB_PREFIX,
    ),
)  # fmt: skip
# The types of the catalog's columns, which no DuckDB type has. Values of int2vector, oidvector and the reg*
# types are the texts that PostgreSQL shows; the binary form of a name would be an oid, which is not known.
_CATALOG_ONLY = (
    ScalarType("xid", XID, 4, 1011, binary=num.packer("!I")),
    ScalarType("regproc", 24, 4, 1008),
    ScalarType("regclass", 2205, 4, 2210),
    ScalarType("regtype", 2206, 4, 2211),
    ScalarType("regprocedure", 2202, 4, 2207),
    ScalarType("regnamespace", 4089, 4, 4090),
    ScalarType("regrole", 4096, 4, 4097),
    ScalarType("int2vector", INT2VECTOR, -1, 1006, binary=st.vector_binary(INT2, "!ih")),
    ScalarType("oidvector", OIDVECTOR, -1, 1013, binary=st.vector_binary(OID, "!iI")),
    ScalarType("pg_node_tree", 194, -1, 0),
    ScalarType("aclitem", 1033, 12, 1034),
    ScalarType("inet", 869, -1, 1041),
    ScalarType("pg_lsn", 3220, 8, 3221),
    ScalarType("anyarray", 2277, -1, 0),
    ScalarType("record", ANY_RECORD, -1, 2287),
)
SCALARS: dict[int, ScalarType] = {row.oid: row for row in (*_SCALARS, *_CATALOG_ONLY)}
# oid of an array type -> oid of its elements, of those whose parameters are read.
ELEMENT_OF: dict[int, int] = {row.array_oid: row.oid for row in _SCALARS}
ARRAY_OF: dict[int, int] = {row.oid: row.array_oid for row in SCALARS.values()}

# PostgreSQL's first oid for a user's object. The last bits of the oid of a user's type, which is an enum, or
# of an array of one, say which of the two it is (pgwire_gateway/catalog/oids.py).
USER_OID_FIRST = 16384
USER_OID_KINDS = 4
USER_TYPE, USER_ARRAY = 3, 1
# pg_type.typlen of an enum.
ENUM_LENGTH = 4


def array_of(oid: int) -> int:
    """The oid of the array type of a user's type, or of record."""
    return ARRAY_OF[oid] if oid < USER_OID_FIRST else oid - USER_TYPE + USER_ARRAY


def element_of(oid: int) -> int:
    """The oid of a user's type, also from that of its array type."""
    return oid + USER_TYPE - USER_ARRAY if oid % USER_OID_KINDS == USER_ARRAY else oid


def known(oid: int) -> int:
    """The oid itself; for a user's type text, whose binary form an enum has too, or an array of it."""
    if oid < USER_OID_FIRST:
        return oid
    return ARRAY_OF[TEXT] if oid % USER_OID_KINDS == USER_ARRAY else TEXT


def as_it_is(value: object) -> av.Raw:
    """The value itself, for types whose raw value is Python's."""
    return value


@dataclass(frozen=True, slots=True)
class ValueType:
    """A DuckDB type that is not a list.

    Args:
        name: the same as DuckType.name.
        oid: the oid of the PostgreSQL type in which its values are sent.
        raw: the raw values of an Arrow column.
        text: the text of one raw value (and the session's time zone, where `zoned`).
        texts: the writer of a whole column as texts. It returns None for a column with values that only
            `text` prints correctly (infinities, years before 1 or after 9999). None where there is no such
            function.
        cells: the writer of a column's texts as cells, for types whose texts have few widths; None as in
            `texts`.
        python: the reader of a value of DuckDB's Python client, as a raw value; None where the client loses
            information.
        json: SQL that makes to_json print the value in our form, with SQL of the value as `{x}`.
        arrow: the Arrow type in which COPY passes values to DuckDB; None where it passes texts.
        bounds: the least and the largest value of an integer type.
        zoned: the text depends on the session's time zone.
        plain: the text never needs quotes inside an array.
        as_text: DuckDB writes the text, because Arrow's value is incomplete.
        styled: the text is in a style that is not the default (date_styles.py).
    """

    name: str
    oid: int
    raw: Callable[[pa.Array], list[av.Raw]] = av.raw_objects
    text: Callable[..., str] = str
    texts: Callable[[pa.Array, str], pa.Array | None] | None = st.string_texts
    cells: Callable[[pa.Array, str], Cells | None] | None = None
    python: PythonReader | None = None
    json: str = "{x}"
    arrow: pa.DataType | None = None
    bounds: tuple[int, int] | None = None
    zoned: bool = False
    plain: bool = False
    as_text: bool = False
    styled: bool = False

    @property
    def scalar(self) -> ScalarType:
        """The PostgreSQL type in which values are sent."""
        return SCALARS[self.oid]


def _integer(
    name: str, oid: int, bits: int, *, signed: bool = True, arrow: pa.DataType | None = None
) -> ValueType:
    high = 2 ** (bits - 1) if signed else 2**bits
    return ValueType(
        name, oid, texts=num.cast_texts, cells=num.number_cells, python=as_it_is, arrow=arrow,
        bounds=(-high if signed else 0, high - 1), plain=True,
    )  # fmt: skip


_TIME = ValueType("TIME", TIME, av.raw_microseconds, dt.time_text, dt.time_texts, dt.time_cells, plain=True)
# ISO 8601, but a year before Christ keeps DuckDB's text. Planning time counts as much as the work for a row:
# a CASE over the years would double it.
_ISO_JSON = "replace(replace({text}, ' ', 'T'), 'T(BC)T', ' (BC) ')"
_TIMESTAMP = ValueType(
    "TIMESTAMP", TIMESTAMP, av.raw_microseconds, dt.timestamp_text, dt.timestamp_texts, dt.timestamp_cells,
    json=_ISO_JSON.format(text="{x}::VARCHAR"),
)  # fmt: skip
# From its microseconds, so that the session's zone has no effect; epoch_us is NULL for the infinities.
_UTC_JSON = f"coalesce({_ISO_JSON} || '+00:00', {{{{x}}}}::VARCHAR)"
_TIMESTAMPTZ = ValueType(
    ti.TIMESTAMPTZ, TIMESTAMPTZ, av.raw_microseconds, dt.timestamptz_text, dt.timestamptz_texts,
    dt.timestamptz_cells, json=_UTC_JSON.format(text="make_timestamp(epoch_us({x}))::VARCHAR"), zoned=True,
)  # fmt: skip
# NULL takes the last branch and remains NULL.
_FLOAT_JSON = (
    "CASE WHEN isfinite({{x}}) THEN to_json({number}) WHEN isnan({{x}}) THEN to_json('NaN') "
    "ELSE to_json(replace({{x}}::VARCHAR, 'inf', 'Infinity')) END"
)

_ENUM = ValueType("ENUM", TEXT, python=as_it_is)

_DUCKDB = (
    ValueType("NULL", TEXT),
    ValueType(
        "BOOLEAN", BOOL, text=num.bool_text, texts=num.bool_texts, cells=num.bool_cells, python=as_it_is,
        arrow=pa.bool_(), plain=True,
    ),
    _integer("TINYINT", INT2, 8, arrow=pa.int8()),
    _integer("SMALLINT", INT2, 16, arrow=pa.int16()),
    _integer("INTEGER", INT4, 32, arrow=pa.int32()),
    _integer("BIGINT", INT8, 64, arrow=pa.int64()),
    replace(_integer("HUGEINT", NUMERIC, 128), text=num.decimal_text, python=num.python_hugeint),
    _integer("UTINYINT", INT2, 8, signed=False, arrow=pa.uint8()),
    _integer("USMALLINT", INT4, 16, signed=False, arrow=pa.uint16()),
    _integer("UINTEGER", INT8, 32, signed=False, arrow=pa.uint32()),
    replace(_integer("UBIGINT", NUMERIC, 64, signed=False, arrow=pa.uint64()), cells=None),
    ValueType("UHUGEINT", NUMERIC, bounds=(0, 2**128 - 1), as_text=True),
    ValueType("BIGNUM", NUMERIC, as_text=True),
    ValueType(
        "DECIMAL", NUMERIC, text=num.decimal_text, texts=num.decimal_texts, cells=num.number_cells,
        python=as_it_is, plain=True,
    ),
    ValueType(
        "FLOAT", FLOAT4, text=num.float4_text, texts=num.float_texts(1e5, num.float4_text), python=as_it_is,
        # Through its text: otherwise 0.1 would show the digits of its nearest double.
        json=_FLOAT_JSON.format(number="{x}::VARCHAR::DOUBLE"), plain=True,
    ),
    ValueType(
        "DOUBLE", FLOAT8, text=num.float8_text, texts=num.float_texts(1e9, num.float8_text), python=as_it_is,
        json=_FLOAT_JSON.format(number="{x}"), arrow=pa.float64(), plain=True,
    ),
    ValueType("VARCHAR", TEXT, python=as_it_is, arrow=pa.string()),
    _ENUM,
    ValueType("TYPE", TEXT, as_text=True),
    ValueType(
        "BLOB", BYTEA, text=st.blob_text, texts=st.blob_texts, python=as_it_is,
        json="'\\x' || lower(hex({x}))", arrow=pa.binary(),
    ),
    ValueType("GEOMETRY", BYTEA, text=st.blob_text, texts=st.blob_texts, json="{x}::VARCHAR"),
    ValueType("BIT", VARBIT, as_text=True),
    ValueType("UUID", UUID, python=str),
    ValueType("JSON", JSONB, python=as_it_is),
    ValueType("DATE", DATE, av.raw_ints, dt.date_text, dt.date_texts, dt.date_cells, dt.python_date),
    _TIME,
    replace(_TIME, name="TIME_NS"),
    ValueType("TIME WITH TIME ZONE", TIMETZ, as_text=True),
    replace(_TIMESTAMP, python=dt.python_timestamp),
    replace(_TIMESTAMP, name="TIMESTAMP_S"),
    replace(_TIMESTAMP, name="TIMESTAMP_MS"),
    replace(_TIMESTAMP, name="TIMESTAMP_NS"),
    replace(_TIMESTAMPTZ, python=dt.python_timestamptz),
    replace(
        _TIMESTAMPTZ, name="TIMESTAMPTZ_NS",
        json=_UTC_JSON.format(text="make_timestamp_ns(epoch_ns({x}))::VARCHAR"),
    ),
    ValueType("INTERVAL", INTERVAL, dt.raw_intervals, dt.interval_text, texts=None, as_text=True),
    ValueType("STRUCT", JSON),
    ValueType("TUPLE", JSON),
    ValueType("MAP", JSON),
    ValueType("UNION", JSON),
    ValueType("VARIANT", JSON),
)  # fmt: skip
# DuckDB type -> oid of the PostgreSQL type that its values are sent as.
OIDS: dict[str, int] = {row.name: row.oid for row in _DUCKDB}

# The types with an oid of their own, in results (sql/pipeline/user_types.py).
_USERS = (replace(_ENUM, name=USER_ENUM), ValueType(RECORD, ANY_RECORD, texts=None))
# The PostgreSQL types of catalog columns, which get names of their own among DuckDB's types.
_CATALOG = (*(SCALARS[oid] for oid in (OID, NAME, CHAR, VARCHAR, BPCHAR)), *_CATALOG_ONLY)
# PostgreSQL's name of such a type, or of its array type -> its name among the types here.
CATALOG_TYPES: dict[str, str] = {row.name: f"PG_{row.name.upper()}" for row in _CATALOG} | {
    f"_{row.name}": f"PG_{row.name.upper()}[]" for row in _CATALOG if row.array_oid
}
VALUE_TYPES: dict[str, ValueType] = {row.name: row for row in (*_DUCKDB, *_USERS)} | {
    CATALOG_TYPES[row.name]: ValueType(CATALOG_TYPES[row.name], row.oid, texts=num.cast_texts)
    for row in _CATALOG
}
# PostgreSQL's types whose texts depend on DateStyle -> the makers of their writers.
_DATES: dict[int, Callable[[str], Callable[..., str]]] = {
    DATE: ds.date_writer,
    TIMESTAMP: ds.timestamp_writer,
    TIMESTAMPTZ: ds.timestamptz_writer,
}


def _styled_rows(row: ValueType) -> Iterator[ValueType]:
    """The rows of a type whose texts depend on DateStyle or IntervalStyle, one for each style."""
    writers: Mapping[str, Callable[..., str]] = ds.INTERVALS if row.oid == INTERVAL else {}
    if row.oid in _DATES:
        writers = {style: _DATES[row.oid](style) for style in ds.DATES}
    for style, text in writers.items():
        yield replace(row, name=f"{row.name} {style}", text=text, texts=None, cells=None, styled=True)


VALUE_TYPES |= {styled.name: styled for row in _DUCKDB for styled in _styled_rows(row)}
# A type that is not in the table: values arrive as text and are sent unchanged.
_OTHER = ValueType("", TEXT)


def value_type(type_: DuckType) -> ValueType:
    """The row of a type that is not a list."""
    return VALUE_TYPES.get(type_.name, _OTHER)


def is_array(type_: DuckType) -> bool:
    """True if values of the type are sent as a PostgreSQL array."""
    return type_.name in ("LIST", "ARRAY") and not type_.children[0].nested


@dataclass(frozen=True, slots=True)
class Styles:
    """The styles of a session's dates and intervals: suffixes of types' names, None for the defaults."""

    dates: str | None
    intervals: str | None

    @staticmethod
    def of(settings: Mapping[str, str]) -> Styles | None:
        """The styles of a session's settings; None where both are the defaults."""
        dates = ds.suffix_of_dates(settings["DateStyle"])
        intervals = ds.suffix_of_intervals(settings["IntervalStyle"])
        return None if dates is None and intervals is None else Styles(dates, intervals)

    def type_text(self, type_: str) -> str:
        """The type whose row writes texts in these styles: `DATE GERMAN[]` for `DATE[]`."""
        read = read_type(type_)
        element = read.children[0] if is_array(read) else read
        oid = value_type(element).oid
        style = self.intervals if oid == INTERVAL else self.dates if oid in _DATES else None
        return type_ if style is None else f"{element.name} {style}{read.text[len(element.text) :]}"


@dataclass(frozen=True, slots=True)
class PgType:
    """A PostgreSQL type with the fields of RowDescription.

    Args:
        oid: pg_type.oid.
        length: pg_type.typlen in bytes, -1 where the size varies.
        modifier: pg_attribute.atttypmod, -1 without one.
        name: pg_type.typname.
    """

    oid: int
    length: int
    modifier: int
    name: str


@lru_cache(TYPES_CACHED)
def pg_type(duckdb_type: str) -> PgType:
    """The PostgreSQL type of a DuckDB type; text for one that is unknown.

    Raises:
        InvalidParameterValue: the text is not a type.

    >>> pg_type("DECIMAL(18,3)")
    PgType(oid=1700, length=-1, modifier=1179655, name='numeric')
    >>> pg_type("INTEGER[]").name
    '_int4'
    """
    return pg_type_of(read_type(duckdb_type))


def pg_type_of(read: DuckType) -> PgType:
    """The PostgreSQL type of a parsed DuckDB type."""
    in_array = is_array(read)
    element = read.children[0] if in_array else read
    if element.name in _OF_USERS:
        oid, length, name = element.numbers[0], *_OF_USERS[element.name]
        return (
            PgType(array_of(oid), -1, NO_MODIFIER, f"_{name}")
            if in_array
            else PgType(oid, length, NO_MODIFIER, name)
        )
    scalar = SCALARS[JSON] if element.name in ("LIST", "ARRAY") else value_type(element).scalar
    if in_array:
        return PgType(scalar.array_oid, -1, _modifier(element), f"_{scalar.name}")
    return PgType(scalar.oid, scalar.length, _modifier(element), scalar.name)


# Types with an oid of their own: pg_type.typlen, and a name.
_OF_USERS = {USER_ENUM: (ENUM_LENGTH, "enum"), RECORD: (-1, "record")}


def oid_without_users(duckdb_type: str) -> int:
    """The oid of a DuckDB type where no type of a user is known: enums are text, records json."""
    read = read_type(duckdb_type)
    element = read.children[0] if is_array(read) else read
    return JSON if element.name == RECORD else known(pg_type_of(read).oid)


def _modifier(read: DuckType) -> int:
    if read.name in TIME_TYPES and read.numbers:
        return read.numbers[0] | (INTERVAL_FIELDS if read.name == "INTERVAL" else 0)
    if read.name != "DECIMAL":
        return DIGITS.get(read.name, NO_MODIFIER)
    precision, scale = read.numbers
    return ((precision << 16) | scale) + MODIFIER_OFFSET


def duckdb_type(oid: int) -> str | None:
    """The DuckDB type of a parameter declared with this oid; None for 0, numeric and unknown oids.

    >>> duckdb_type(1007)
    'INTEGER[]'
    """
    if oid in ELEMENT_OF:
        element = SCALARS[ELEMENT_OF[oid]].duckdb
        return None if element is None else f"{element}[]"
    return SCALARS[oid].duckdb if oid in SCALARS else None
