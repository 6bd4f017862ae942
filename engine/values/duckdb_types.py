"""DuckDB's type names, parsed: `DECIMAL(18,3)`, `STRUCT("a b" INTEGER[], c MAP(VARCHAR, DATE))`.

All code that depends on a type's text parses it here. Accepted are the texts that DuckDB prints
(duckdb_columns(), relation.types) and the common aliases of DDL.
Source: docs/design/values.md, "Types".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import InvalidParameterValue
from ..quoting import ident

# Deepest nesting of a type text that is accepted: DuckDB itself has a lower limit, and a recursive reader
# must not reach Python's limit.
DEPTH_MAX = 64
# Number of parsed types cached; an entry is well under a kilobyte, a database has few distinct types.
TYPES_CACHED = 4096

ALIASES = {
    "BOOL": "BOOLEAN", "LOGICAL": "BOOLEAN",
    "INT1": "TINYINT", "INT2": "SMALLINT", "INT16": "SMALLINT", "SHORT": "SMALLINT",
    "INT": "INTEGER", "INT4": "INTEGER", "INT32": "INTEGER", "SIGNED": "INTEGER", "INTEGRAL": "INTEGER",
    "INT8": "BIGINT", "INT64": "BIGINT", "LONG": "BIGINT", "OID": "BIGINT",
    "INT128": "HUGEINT", "UINT128": "UHUGEINT",
    "UINT8": "UTINYINT", "UINT16": "USMALLINT", "UINT32": "UINTEGER", "UINT64": "UBIGINT",
    "FLOAT4": "FLOAT", "REAL": "FLOAT", "FLOAT8": "DOUBLE", "DOUBLE PRECISION": "DOUBLE",
    "DEC": "DECIMAL", "NUMERIC": "DECIMAL",
    "CHAR": "VARCHAR", "BPCHAR": "VARCHAR", "TEXT": "VARCHAR", "STRING": "VARCHAR", "NVARCHAR": "VARCHAR",
    "BYTEA": "BLOB", "BINARY": "BLOB", "VARBINARY": "BLOB",
    "BITSTRING": "BIT", "GUID": "UUID", "VARINT": "BIGNUM",
    "DATETIME": "TIMESTAMP", "TIMESTAMP_US": "TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "TIMETZ": "TIME WITH TIME ZONE",
    "TIME WITHOUT TIME ZONE": "TIME",
    "ROW": "STRUCT",
}  # fmt: skip

TOKEN = re.compile(r"""\s*(?:"((?:[^"]|"")*)"|'((?:[^']|'')*)'|(\w+)|([()\[\],]))""")


@dataclass(frozen=True, slots=True)
class DuckType:
    """A DuckDB type as a tree.

    Args:
        name: the type's name without arguments, in DuckDB's spelling: INTEGER, DECIMAL, LIST, ARRAY,
            STRUCT, TUPLE, MAP, UNION, ENUM, "NULL" (without quotes) and so on.
        text: the text of the whole type, stripped.
        children: element types (LIST and ARRAY one, MAP key and value, STRUCT and UNION members).
        fields: names of the members of a STRUCT or UNION, the labels of an ENUM.
        numbers: numeric arguments: precision and scale, the length of an ARRAY, the digits of a second, the
            oid of a USER_ENUM or RECORD.
    """

    name: str
    text: str
    children: tuple[DuckType, ...] = ()
    fields: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def nested(self) -> bool:
        """True if values of the type contain other values."""
        return self.name in NESTED

    @property
    def scale(self) -> int:
        """The number of digits after the point of a DECIMAL; 0 for every other type."""
        return self.numbers[1] if self.name == "DECIMAL" else 0


NESTED = frozenset({"LIST", "ARRAY", "STRUCT", "TUPLE", "MAP", "UNION", "VARIANT"})
INTEGERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM"}
    | {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}
)
# Types that have a number of digits for clients, which they have not in DuckDB.
TIME_TYPES = frozenset({"TIME", "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL"})
# DECIMAL without arguments, as DuckDB reads it.
DECIMAL_DEFAULT = (18, 3)
# An enum that CREATE TYPE has made, by its oid for clients: USER_ENUM(16387). DuckDB prints its labels only.
USER_ENUM = "USER_ENUM"
# A record for clients, by the oid of its type, with the types of its fields: RECORD(16391, INTEGER, VARCHAR).
RECORD = "RECORD"
# Types whose numbers are part of the type: VARCHAR(n) is VARCHAR to DuckDB.
_NUMBERED = TIME_TYPES | {"DECIMAL", USER_ENUM, RECORD}


@lru_cache(TYPES_CACHED)
def read_type(text: str) -> DuckType:
    """Read a DuckDB type's text.

    Raises:
        InvalidParameterValue: the text is not a type.

    >>> read_type("DECIMAL(18,3)[]").children[0].numbers
    (18, 3)
    """
    return _TypeReader(text).read()


def with_members(type_: DuckType, members: Sequence[str]) -> str:
    """The text of a nested type like this one, with other member types.

    A tuple, whose members have no names, becomes a struct, to which it can be cast.

    >>> with_members(read_type("MAP(HUGEINT, DATE)"), ["VARCHAR", "DATE"])
    'MAP(VARCHAR, DATE)'
    """
    if type_.name == "LIST":
        return f"{members[0]}[]"
    if type_.name == "ARRAY":
        return f"{members[0]}[{type_.numbers[0]}]"
    if type_.name == "MAP":
        return f"MAP({', '.join(members)})"
    names = type_.fields or tuple(f"element{place}" for place in range(1, len(members) + 1))
    listed = ", ".join(f"{ident(name)} {text}" for name, text in zip(names, members, strict=True))
    return f"{'UNION' if type_.name == 'UNION' else 'STRUCT'}({listed})"


class _TypeReader:
    """A recursive reader over the tokens of one type text."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._tokens: list[tuple[str, str, int, int]] = list(self._read())
        self._place = 0
        self._depth = 0

    def _read(self) -> Iterator[tuple[str, str, int, int]]:
        place = 0
        while place < len(self._text):
            match = TOKEN.match(self._text, place)
            if match is None:
                raise self._bad()
            group = match.lastindex or 0
            kind = ("", "name", "string", "word", "mark")[group]
            value = match.group(group)
            if group in (1, 2):
                quote = '"' if group == 1 else "'"
                value = value.replace(quote * 2, quote)
            yield kind, value, match.start(group), match.end()
            place = match.end()

    def read(self) -> DuckType:
        found = self._type()
        if self._place != len(self._tokens):
            raise self._bad()
        return found

    def _bad(self) -> InvalidParameterValue:
        return InvalidParameterValue(f'not a DuckDB type: "{self._text[:200]}"')

    def _peek(self, value: str) -> bool:
        return self._place < len(self._tokens) and self._tokens[self._place][:2] == ("mark", value)

    def _next(self) -> tuple[str, str]:
        if self._place >= len(self._tokens):
            raise self._bad()
        kind, value, _, _ = self._tokens[self._place]
        self._place += 1
        return kind, value

    def _take(self, value: str) -> None:
        if self._next() != ("mark", value):
            raise self._bad()

    def _type(self) -> DuckType:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._bad()
        start = self._place
        kind, word = self._next()
        if kind not in ("word", "name"):
            raise self._bad()
        found = self._named(word if kind == "name" else self._words(word), start)
        while self._peek("["):
            self._place += 1
            if self._peek("]"):
                self._place += 1
                found = DuckType("LIST", self._since(start), (found,))
            else:
                size = self._number()
                self._take("]")
                found = DuckType("ARRAY", self._since(start), (found,), numbers=(size,))
        self._depth -= 1
        return found

    def _words(self, first: str) -> str:
        """A name of several words: TIMESTAMP WITH TIME ZONE, DOUBLE PRECISION."""
        words = [first.upper()]
        while self._place < len(self._tokens) and self._tokens[self._place][0] == "word":
            words.append(self._next()[1].upper())
        name = " ".join(words)
        return ALIASES.get(name, name)

    def _named(self, name: str, start: int) -> DuckType:
        if not self._peek("("):
            numbers = DECIMAL_DEFAULT if name == "DECIMAL" else ()
            return DuckType(name, self._since(start), numbers=numbers)
        self._take("(")
        children: list[DuckType] = []
        fields: list[str] = []
        numbers_read: list[int] = []
        while not self._peek(")"):
            if name in ("STRUCT", "UNION"):
                fields.append(self._field())
                children.append(self._type())
            elif name in ("MAP", "TUPLE") or (name == RECORD and numbers_read):
                children.append(self._type())
            elif name == "ENUM":
                fields.append(self._label())
            else:
                numbers_read.append(self._number())
            if not self._peek(")"):
                self._take(",")
        self._take(")")
        if name == "DECIMAL" and len(numbers_read) == 1:
            numbers_read.append(0)
        kept = tuple(numbers_read) if name in _NUMBERED else ()
        return DuckType(name, self._since(start), tuple(children), tuple(fields), kept)

    def _since(self, start: int) -> str:
        first, last = self._tokens[start], self._tokens[self._place - 1]
        begin = first[2] - 1 if first[0] in ("name", "string") else first[2]
        return self._text[begin : last[3]]

    def _field(self) -> str:
        kind, value = self._next()
        if kind not in ("word", "name"):
            raise self._bad()
        return value

    def _label(self) -> str:
        kind, value = self._next()
        if kind != "string":
            raise self._bad()
        return value

    def _number(self) -> int:
        kind, value = self._next()
        if kind != "word" or not value.isascii() or not value.isdigit() or len(value) > 10:
            raise self._bad()
        return int(value)
