"""Types and values of MySQL and MariaDB: columns here, and their values from the log and from SELECT.

The binary log has a value in the storage format of its column, without names and mostly without the details
of its type: signed or unsigned, the character set, the texts of an enum. So a table's definition as of a
position of the log is kept with the table (`SourceTable.native`), and what the log says of the types is
compared with it.

A value is given in one form, however it was read: numbers as numbers, decimals, dates and times as text that
DuckDB casts, timestamps as microseconds since 1970 in UTC. These rules are not obvious:

- `tinyint(1)` is TINYINT: it is MySQL's BOOLEAN, but it accepts 2, and a width is no constraint.
- A date that does not exist (`0000-00-00`, `2024-00-10`, `2024-02-31`) is NULL, and thus a column of dates
  may be NULL here even if it is NOT NULL there. In a key, where rows would become equal, it is an error.
- A text is decoded here by the character set of its column, both from the log and from SELECT, so that the
  two never differ. Bytes that have no character there become U+FFFD, where MySQL shows `?`.

Source: docs/sources.md; MySQL Internals, "Table_map_event", "Date and Time Data
Type Representation".
"""

from __future__ import annotations

import codecs
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from ....engine.catalog.source_tables import SourceColumn, SourceTable
from ....engine.errors import CharacterNotInRepertoire, DataError, NotSupported, WrongState
from .mysql_json import decimal_reader, json_text

# A value at a place of a row's bytes, and the place behind it.
Decoder = Callable[[bytes, int], tuple[object, int]]
# A value of SELECT, not NULL, as the same value.
Converter = Callable[[Any], object]

DECIMAL_DIGITS_MAX = 38
# Days, and combinations of a set's values, whose texts are kept for a column.
_CACHED_TEXTS = 4096
# The types of the log by their codes.
TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE, YEAR = 1, 2, 3, 4, 5, 8, 9, 10, 13
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2, JSON, NEWDECIMAL = 15, 16, 17, 18, 19, 245, 246
ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 247, 248, 252, 253, 254, 255
# Bytes of the description of a column in the log, by the type; the others have none.
META_BYTES = {
    FLOAT: 1, DOUBLE: 1, BLOB: 1, GEOMETRY: 1, JSON: 1, TIMESTAMP2: 1, DATETIME2: 1, TIME2: 1,
    VARCHAR: 2, BIT: 2, NEWDECIMAL: 2, STRING: 2, VAR_STRING: 2, ENUM: 2, SET: 2,
}  # fmt: skip
KNOWN_TYPES = frozenset((*META_BYTES, TINY, SHORT, LONG, LONGLONG, INT24, DATE, YEAR))


@dataclass(frozen=True, slots=True)
class _Integer:
    duckdb: str
    arrow: pa.DataType
    code: int
    size: int
    unsigned: bool


_INTEGERS = {
    ("tinyint", False): _Integer("TINYINT", pa.int64(), TINY, 1, False),
    ("tinyint", True): _Integer("UTINYINT", pa.uint64(), TINY, 1, True),
    ("smallint", False): _Integer("SMALLINT", pa.int64(), SHORT, 2, False),
    ("smallint", True): _Integer("USMALLINT", pa.uint64(), SHORT, 2, True),
    ("mediumint", False): _Integer("INTEGER", pa.int64(), INT24, 3, False),
    ("mediumint", True): _Integer("UINTEGER", pa.uint64(), INT24, 3, True),
    ("int", False): _Integer("INTEGER", pa.int64(), LONG, 4, False),
    ("int", True): _Integer("UINTEGER", pa.uint64(), LONG, 4, True),
    ("bigint", False): _Integer("BIGINT", pa.int64(), LONGLONG, 8, False),
    ("bigint", True): _Integer("UBIGINT", pa.uint64(), LONGLONG, 8, True),
}
# Bytes of the length in front of a text or a blob.
_LENGTH_BYTES = {
    "tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4,
    "tinyblob": 1, "blob": 2, "mediumblob": 3, "longblob": 4,
}  # fmt: skip
TEXTS = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
BINARIES = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
GEOMETRIES = frozenset(
    ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
     "geometrycollection", "geomcollection")
)  # fmt: skip
DATES = frozenset(("date", "datetime", "timestamp"))
# MariaDB's types of a fixed size that are kept as bytes.
FIXED = {"uuid": 16, "inet6": 16, "inet4": 4}
# Character set -> Python's codec.
CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "latin1": "cp1252",
    "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "greek": "iso8859_7",
    "hebrew": "iso8859_8", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8_r", "koi8u": "koi8_u",
    "macroman": "mac_roman", "macce": "mac_latin2", "tis620": "tis_620", "ucs2": "utf_16_be",
    "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be", "big5": "big5", "gb2312": "gb2312",
    "gbk": "gbk", "gb18030": "gb18030", "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp",
    "eucjpms": "euc_jp", "euckr": "cp949",
}  # fmt: skip
_MULTIBYTE = frozenset(
    ("utf8mb4", "utf8mb3", "utf8", "ucs2", "utf16", "utf16le", "utf32", "big5", "gb2312", "gbk", "gb18030",
     "sjis", "cp932", "ujis", "eucjpms", "euckr")
)  # fmt: skip
# Bytes that MySQL reads otherwise than Python's codec. Its latin1 is code page 1252 with control characters
# where that has no characters.
_OTHERWISE = {
    "latin1": {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "greek": {0xA1: "\u02bd", 0xA2: "\u02bc"},
    "hebrew": {0xAF: "\u203e"},
    "cp866": {0xFC: "\u207f", 0xFD: "\u00b2"},
    "koi8u": {0x95: "\u2022"},
}
# Character sets in which SELECT, which answers in utf8mb4, cannot differ.
_SAME = frozenset(("utf8mb4", "utf8mb3", "utf8"))


@dataclass(frozen=True, slots=True)
class MysqlColumn:
    """A column there.

    Args:
        type: its type without length and attributes, lower case: "int".
        number: its number, which a rename keeps and no other column of the table has ever had.
        unsigned: True for an unsigned number.
        numbers: the type's numbers: length, or precision and scale, or digits of a second.
        values: the texts of an enum or a set.
        charset: the character set of a text; "" for all other types.
        not_null: True if it cannot be NULL there.
    """

    name: str
    type: str
    number: int = 0
    unsigned: bool = False
    numbers: tuple[int, ...] = ()
    values: tuple[str, ...] = ()
    charset: str = ""
    not_null: bool = False

    @property
    def digits(self) -> int:
        """The digits of a second's fraction."""
        return self.numbers[0] if self.numbers else 0


@dataclass(frozen=True, slots=True)
class MysqlTable:
    """A table there, as it is at one moment.

    Args:
        charset: the character set of columns that are added without one.
        numbers: the numbers that columns have had: the next added one has a higher number.
        key: the columns of its primary key; () if it has none.
        hidden: columns that MariaDB has added at the end for UNIQUE keys of long values, and logs.
    """

    schema: str
    name: str
    charset: str
    numbers: int
    columns: tuple[MysqlColumn, ...]
    key: tuple[str, ...]
    hidden: int = 0

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    def has_shape_of(self, other: MysqlTable) -> bool:
        """True if two definitions differ in the numbers of their columns only."""
        return _unnumbered(self) == _unnumbered(other)

    def source_table(self, fills: Mapping[str, str] = MappingProxyType({})) -> SourceTable:
        """The table for the reader of its changes.

        Args:
            fills: an added column -> SQL of its value in rows that were there before.
        """
        columns = tuple(_source_column(self, column, fills.get(column.name, "")) for column in self.columns)
        return SourceTable(self.schema, self.name, columns, self.key, (True,) * len(columns), self._native())

    def _native(self) -> str:
        columns = [astuple(column) for column in self.columns]
        whole = {"charset": self.charset, "numbers": self.numbers, "hidden": self.hidden, "columns": columns}
        return json.dumps(whole, ensure_ascii=False)


def _unnumbered(table: MysqlTable) -> MysqlTable:
    columns = tuple(replace(column, number=0) for column in table.columns)
    return replace(table, columns=columns, numbers=0)


def table_of(table: SourceTable) -> MysqlTable:
    """The definition that `MysqlTable.source_table` has stored."""
    found = json.loads(table.native)
    columns = tuple(
        MysqlColumn(name, type_, number, unsigned, tuple(numbers), tuple(values), *rest)
        for name, type_, number, unsigned, numbers, values, *rest in found["columns"]
    )
    numbers, hidden = found["numbers"], found["hidden"]
    return MysqlTable(table.schema, table.name, found["charset"], numbers, columns, table.key, hidden)


def _source_column(table: MysqlTable, column: MysqlColumn, fill: str) -> SourceColumn:
    not_null = column.not_null and (column.type not in DATES or column.name in table.key)
    duckdb, arrow = _kept(table, column)
    value = "make_timestamptz({})" if column.type == "timestamp" else ""
    return SourceColumn(column.name, duckdb, not_null, arrow, value, column.number, fill)


def _kept(table: MysqlTable, column: MysqlColumn) -> tuple[str, pa.DataType]:
    """The DuckDB type of a column, and the Arrow type of its values."""
    integer = _INTEGERS.get((column.type, column.unsigned))
    if integer is not None:
        return integer.duckdb, integer.arrow
    if column.type == "decimal":
        precision, scale = column.numbers
        return ("VARCHAR" if precision > DECIMAL_DIGITS_MAX else f"DECIMAL({precision},{scale})"), pa.string()
    if column.type in TEXTS:
        _codec_of(table, column)
        return "VARCHAR", pa.string()
    if column.type in BINARIES or column.type in GEOMETRIES:
        return "BLOB", pa.binary()
    found = _OTHERS.get(column.type)
    if found is None:
        raise NotSupported(
            f'column "{column.name}" of table {table.shown} has type {column.type}, which cannot be read',
            hint="Leave the table out, or change the column's type at the source.",
        )
    return found


_OTHERS: dict[str, tuple[str, pa.DataType]] = {
    "float": ("FLOAT", pa.float64()),
    "double": ("DOUBLE", pa.float64()),
    "bit": ("UBIGINT", pa.uint64()),
    "enum": ("VARCHAR", pa.string()),
    "set": ("VARCHAR", pa.string()),
    # MariaDB's is a text with a check.
    "json": ("JSON", pa.string()),
    "date": ("DATE", pa.string()),
    "datetime": ("TIMESTAMP", pa.string()),
    "timestamp": ("TIMESTAMPTZ", pa.int64()),
    "time": ("INTERVAL", pa.string()),
    "year": ("SMALLINT", pa.int64()),
    "uuid": ("UUID", pa.string()),
    "inet6": ("VARCHAR", pa.string()),
    "inet4": ("VARCHAR", pa.string()),
}


def is_known(type_: str) -> bool:
    """True for the name of a type that can be read."""
    known = (TEXTS, BINARIES, GEOMETRIES, _OTHERS, ("decimal",), (name for name, _ in _INTEGERS))
    return any(type_ in names for names in known)


# Values of SELECT.


def selected(column: MysqlColumn) -> str:
    """The expression of a column in the SELECT of a copy."""
    name = quoted(column.name)
    if column.type == "float":
        # The server shows six digits of a float.
        return f"{name} + 0e0"
    if column.type == "bit":
        return f"CAST({name} AS UNSIGNED)"
    if column.type in TEXTS and column.charset not in _SAME:
        return f"CAST({name} AS BINARY)"
    return name


def quoted(name: str) -> str:
    """An identifier in back quotes."""
    return "`" + name.replace("`", "``") + "`"


def converter(table: MysqlTable, column: MysqlColumn) -> Converter | None:
    """The function from a value of `selected` to the given one; None if they are the same.

    Values of binary types come as bytes, all others as text.
    """
    if (column.type, column.unsigned) in _INTEGERS or column.type in ("bit", "year"):
        return int
    if column.type in ("float", "double"):
        return float
    if column.type in TEXTS and column.charset not in _SAME:
        return _text_decoder(table, column)
    if column.type in ("date", "datetime"):
        missing = _missing(table, column)
        return lambda text: text if _is_day(int(text[:4]), int(text[5:7]), int(text[8:10])) else missing()
    if column.type == "timestamp":
        missing = _missing(table, column)
        return lambda text: missing() if text.startswith("0000") else _microseconds(text)
    if column.type == "decimal" and column.numbers[0] > DECIMAL_DIGITS_MAX:
        return _plain_decimal
    return None


def _plain_decimal(text: str) -> str:
    """A decimal without the leading zeros of ZEROFILL, as the log's decoder gives it."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    digits = digits.lstrip("0")
    return sign + (digits if digits and digits[0] != "." else "0" + digits)


@lru_cache(_CACHED_TEXTS)
def _days_before(year: int, month: int) -> int:
    """The days from 1970 to the first of a month, in the Gregorian calendar."""
    shifted = year - (month <= 2)
    months = (month + 9) % 12
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + (153 * months + 2) // 5 - 719468


def _microseconds(text: str) -> int:
    days = _days_before(int(text[:4]), int(text[5:7])) + int(text[8:10]) - 1
    seconds = (days * 24 + int(text[11:13])) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    return seconds * 1_000_000 + (int(text[20:].ljust(6, "0")) if len(text) > 20 else 0)


# Values of the log.


def decoder(table: MysqlTable, column: MysqlColumn, code: int, meta: bytes) -> Decoder:
    """The decoder of a column's values.

    Args:
        code, meta: the column's type in the log, and its description there.

    Raises:
        WrongState: the type in the log is not that of the definition.
    """
    made = _decoder(table, column, code, meta)
    if made is None:
        raise WrongState(
            f'column "{column.name}" of table {table.shown} is {column.type} in the known definition, '
            f"and has another type in the binary log (code {code}, {meta.hex() or 'no'} description)",
            hint="The table was changed in a way that could not be followed: copy it again.",
        )
    return made


def _decoder(table: MysqlTable, column: MysqlColumn, code: int, meta: bytes) -> Decoder | None:
    base = column.type
    integer = _INTEGERS.get((base, column.unsigned))
    if integer is not None:
        return _integer(integer.size, integer.unsigned) if code == integer.code else None
    if base in _LENGTH_BYTES and code == BLOB and meta[0] == _LENGTH_BYTES[base]:
        return _prefixed(meta[0], _text_decoder(table, column) if base in TEXTS else None)
    if base in ("varchar", "varbinary") and code == VARCHAR:
        size = 2 if int.from_bytes(meta, "little") > 255 else 1
        return _prefixed(size, _text_decoder(table, column) if base == "varchar" else None)
    if base in ("char", "binary", *FIXED) and code == STRING and meta[0] | 0x30 == STRING:
        return _string(table, column, meta)
    if base in ("enum", "set") and code == STRING and meta[0] == (ENUM if base == "enum" else SET):
        return _enum(table, column, meta[1]) if base == "enum" else _set(column, meta[1])
    if base in GEOMETRIES and code == GEOMETRY:
        return _prefixed(meta[0], None)
    maker = _MAKERS.get((base, code))
    return maker(table, column, meta) if maker is not None else None


def _integer(size: int, unsigned: bool) -> Decoder:
    form = {1: "b", 2: "h", 4: "i", 8: "q"}.get(size)
    if form is None:
        return lambda data, at: (
            int.from_bytes(data[at : at + size], "little", signed=not unsigned), at + size
        )  # fmt: skip
    unpack = struct.Struct("<" + (form.upper() if unsigned else form)).unpack_from
    return lambda data, at: (unpack(data, at)[0], at + size)


def _number(form: str) -> Callable[[MysqlTable, MysqlColumn, bytes], Decoder | None]:
    size, unpack = struct.calcsize(form), struct.Struct(form).unpack_from
    return lambda table, column, meta: lambda data, at: (unpack(data, at)[0], at + size)


def _prefixed(length_bytes: int, decode: Callable[[bytes], str] | None) -> Decoder:
    """Values with their length in front."""

    def short(data: bytes, at: int) -> tuple[object, int]:
        end = at + 1 + data[at]
        value = data[at + 1 : end]
        return (value if decode is None else decode(value)), end

    def long(data: bytes, at: int) -> tuple[object, int]:
        begin = at + length_bytes
        end = begin + int.from_bytes(data[at:begin], "little")
        value = data[begin:end]
        return (value if decode is None else decode(value)), end

    return short if length_bytes == 1 else long


def _string(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder:
    """Values of CHAR, BINARY and MariaDB's types of a fixed size, which are logged without padding."""
    # Two bits of the length are in the byte of the type, inverted.
    size = (((meta[0] & 0x30) ^ 0x30) << 4) | meta[1]
    base, length_bytes = column.type, 2 if size > 255 else 1
    if base == "char":
        return _prefixed(length_bytes, _text_decoder(table, column))
    if base == "uuid":
        make: Callable[[bytes], object] = _uuid_text
    elif base in ("inet4", "inet6"):
        make = _address_text
    else:
        make = bytes
    read = _prefixed(length_bytes, None)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        value, end = read(data, at)
        assert isinstance(value, bytes)
        return make(value.ljust(size, b"\0")), end

    return decode


def _uuid_text(stored: bytes) -> str:
    return str(uuid.UUID(bytes=stored))


def _address_text(stored: bytes) -> str:
    """An address as MariaDB shows it, which shortens a single group of zeros as well."""
    dotted = ".".join(str(byte) for byte in stored[-4:])
    if len(stored) == 4:
        return dotted
    groups = struct.unpack(">8H", stored)
    begin = end = 0
    for first in range(8):
        last = first
        while last < 8 and not groups[last]:
            last += 1
        if last - first > end - begin:
            begin, end = first, last
    if begin == 0 and (end == 6 or (end == 5 and groups[5] == 0xFFFF)):
        return f"::{'ffff:' if end == 5 else ''}{dotted}"
    texts = [f"{group:x}" for group in groups]
    return ":".join(texts) if begin == end else f"{':'.join(texts[:begin])}::{':'.join(texts[end:])}"


def _enum(table: MysqlTable, column: MysqlColumn, size: int) -> Decoder:
    # 0 is the value that MySQL stores for an invalid one outside of strict mode.
    values = ("", *column.values)

    def decode(data: bytes, at: int) -> tuple[object, int]:
        number = int.from_bytes(data[at : at + size], "little")
        if number >= len(values):
            raise _unknown_value(table, column, number)
        return values[number], at + size

    return decode


def _unknown_value(table: MysqlTable, column: MysqlColumn, number: int) -> WrongState:
    return WrongState(
        f'column "{column.name}" of table {table.shown} has value number {number} in the binary log, '
        f"and the known definition has {len(column.values)} values",
        hint="The table was changed in a way that could not be followed: copy it again.",
    )


def _set(column: MysqlColumn, size: int) -> Decoder:
    @lru_cache(_CACHED_TEXTS)
    def text(bits: int) -> str:
        return ",".join(value for place, value in enumerate(column.values) if bits >> place & 1)

    return lambda data, at: (text(int.from_bytes(data[at : at + size], "little")), at + size)


def _decimal(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder | None:
    precision, scale = meta
    if column.numbers != (precision, scale):
        return None
    size, text = decimal_reader(precision, scale)
    return lambda data, at: (text(data[at : at + size]), at + size)


def _bit(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder | None:
    bits = meta[1] * 8 + meta[0]
    size = (bits + 7) // 8
    return lambda data, at: (int.from_bytes(data[at : at + size], "big"), at + size)


_MONTH_DAYS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _is_day(year: int, month: int, day: int) -> bool:
    """True for a day of the Gregorian calendar, from the year 0 on."""
    if not (0 < month <= 12 and 0 < day <= _MONTH_DAYS[month]):
        return False
    return month != 2 or day < 29 or (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))


def _missing(table: MysqlTable, column: MysqlColumn) -> Callable[[], None]:
    """The value of a date that does not exist: NULL, or an error in a key."""
    if column.name not in table.key:
        return lambda: None

    def refuse() -> None:
        raise DataError(
            f'column "{column.name}" of the key of table {table.shown} has a date that does not exist, '
            'such as "0000-00-00"',
            hint="Such a date is NULL here, which a key cannot have: correct the row at the source.",
        )

    return refuse


def _date(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder:
    missing = _missing(table, column)

    @lru_cache(_CACHED_TEXTS)
    def text(number: int) -> str | None:
        year, month, day = number >> 9, number >> 5 & 15, number & 31
        return f"{year:04}-{month:02}-{day:02}" if _is_day(year, month, day) else missing()

    return lambda data, at: (text(data[at] | data[at + 1] << 8 | data[at + 2] << 16), at + 3)


# A fraction of one and two digits has one byte, and so on; its number -> microseconds.
_FRACTIONS = (1, 10_000, 100, 1)


def _datetime(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder | None:
    if meta[0] != column.digits:
        return None
    missing = _missing(table, column)
    fraction_bytes = (meta[0] + 1) // 2
    size, shift, factor = 5 + fraction_bytes, 8 * fraction_bytes, _FRACTIONS[fraction_bytes]
    mask, offset = (1 << shift) - 1, 0x8000000000

    def decode(data: bytes, at: int) -> tuple[object, int]:
        packed = int.from_bytes(data[at : at + size], "big")
        number = (packed >> shift) - offset
        months, day = number >> 22, number >> 17 & 31
        year, month = months // 13, months % 13
        if not _is_day(year, month, day):
            return missing(), at + size
        second = f"{number >> 12 & 31:02}:{number >> 6 & 63:02}:{number & 63:02}"
        fraction = f".{(packed & mask) * factor:06}" if shift else ""
        return f"{year:04}-{month:02}-{day:02} {second}{fraction}", at + size

    return decode


def _timestamp(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder | None:
    if meta[0] != column.digits:
        return None
    missing = _missing(table, column)
    fraction_bytes = (meta[0] + 1) // 2
    size, shift, factor = 4 + fraction_bytes, 8 * fraction_bytes, _FRACTIONS[fraction_bytes]
    mask = (1 << shift) - 1

    def decode(data: bytes, at: int) -> tuple[object, int]:
        packed = int.from_bytes(data[at : at + size], "big")
        if not packed:
            return missing(), at + size
        return (packed >> shift) * 1_000_000 + (packed & mask) * factor, at + size

    return decode


def _time(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder | None:
    if meta[0] != column.digits:
        return None
    fraction_bytes = (meta[0] + 1) // 2
    size, shift, factor = 3 + fraction_bytes, 8 * fraction_bytes, _FRACTIONS[fraction_bytes]
    mask, offset = (1 << shift) - 1, 0x800000 << shift

    def decode(data: bytes, at: int) -> tuple[object, int]:
        packed = int.from_bytes(data[at : at + size], "big") - offset
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        number = packed >> shift
        second = f"{number >> 12 & 1023:02}:{number >> 6 & 63:02}:{number & 63:02}"
        fraction = f".{(packed & mask) * factor:06}" if shift else ""
        return f"{sign}{second}{fraction}", at + size

    return decode


def _year(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder:
    return lambda data, at: (data[at] + 1900 if data[at] else 0, at + 1)


def _json(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder:
    size = meta[0]

    def decode(data: bytes, at: int) -> tuple[object, int]:
        begin = at + size
        end = begin + int.from_bytes(data[at:begin], "little")
        return json_text(data[begin:end]), end

    return decode


def _json_of_text(table: MysqlTable, column: MysqlColumn, meta: bytes) -> Decoder | None:
    return _prefixed(4, _text_decoder(table, column)) if meta[0] == 4 else None


_MAKERS: dict[tuple[str, int], Callable[[MysqlTable, MysqlColumn, bytes], Decoder | None]] = {
    ("float", FLOAT): _number("<f"),
    ("double", DOUBLE): _number("<d"),
    ("decimal", NEWDECIMAL): _decimal,
    ("bit", BIT): _bit,
    ("date", DATE): _date,
    ("datetime", DATETIME2): _datetime,
    ("timestamp", TIMESTAMP2): _timestamp,
    ("time", TIME2): _time,
    ("year", YEAR): _year,
    ("json", JSON): _json,
    ("json", BLOB): _json_of_text,
}


# Texts.


def _codec_of(table: MysqlTable, column: MysqlColumn) -> str:
    codec = CODECS.get(column.charset)
    if codec is None:
        raise NotSupported(
            f'column "{column.name}" of table {table.shown} has character set {column.charset}, '
            "which cannot be read",
            hint="Convert the column to utf8mb4 at the source.",
        )
    return codec


def _text_decoder(table: MysqlTable, column: MysqlColumn) -> Callable[[bytes], str]:
    codec = _codec_of(table, column)
    if column.charset not in _MULTIBYTE:
        characters = _characters(column.charset, codec)
        return lambda value: codecs.charmap_decode(value, "strict", characters)[0]
    if codec != "utf-8":
        return lambda value: str(value, codec, "replace")

    def decode(value: bytes) -> str:
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            found = value[error.start : error.end].hex()
            raise CharacterNotInRepertoire(
                f'column "{column.name}" of table {table.shown} has bytes 0x{found}, which are no text in '
                f"character set {column.charset}"
            ) from None

    return decode


def _characters(charset: str, codec: str) -> str:
    """The characters of the bytes 0 to 255; a byte without one is U+FFFD, where the server shows `?`."""
    found = [bytes([byte]).decode(codec, "replace") for byte in range(256)]
    for byte, character in _OTHERWISE.get(charset, {}).items():
        found[byte] = character
    return "".join(found)
