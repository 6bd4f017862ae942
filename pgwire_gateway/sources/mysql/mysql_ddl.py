"""Definitions of tables and columns in the SQL of MySQL and MariaDB.

The definition of a table is read from `SHOW CREATE TABLE`, and those of columns in the statements of the log
(`mysql_statements`) by the same functions: there is one reading of types, lengths and character sets.

Source: docs/sources.md; MySQL Reference Manual, "ALTER TABLE Statement",
"Lexical Structure"; MariaDB, "ALTER TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....engine.errors import NotSupported
from .mysql_types import TEXTS, MysqlColumn, MysqlTable

WORD, NAME, STRING, NUMBER, BYTES, SIGN = "word", "name", "string", "number", "bytes", "sign"
# Bits of sql_mode in the log.
ANSI_QUOTES, NO_BACKSLASH_ESCAPES, REAL_AS_FLOAT, ORACLE = 1 << 2, 1 << 20, 1 << 0, 1 << 9

TableName = tuple[str, str]


class Token(NamedTuple):
    """A token; `text` is upper case for a word, and the content of a name or a string."""

    kind: str
    text: str


class Unclear(Exception):
    """The effect of a statement on a table is not certain from its text."""


_TOKEN = re.compile(
    r"""
    (?P<blank>\s+|\#[^\n]*|--(?=\s|$)[^\n]*)
    | (?P<code>/\*(?:!|M!)[0-9]*)
    | (?P<comment>/\*.*?\*/)
    | (?P<end>\*/)
    | (?P<hex>[xX]'[0-9A-Fa-f]*'|0x[0-9A-Fa-f]+)
    | (?P<bits>[bB]'[01]*'|0b[01]+)
    | `(?P<name>(?:[^`]|``)*)`
    | (?P<quote>['"])
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_$]))
    | (?P<word>[0-9A-Za-z_$@\u0080-\uffff]+)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_STRING = {
    (quote, escapes): re.compile(
        (rf"(?:[^{quote}\\]|{quote}{quote}|\\.)*" if escapes else rf"(?:[^{quote}]|{quote}{quote})*") + quote,
        re.DOTALL,
    )
    for quote in "'\""
    for escapes in (True, False)
}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def tokens(text: str, sql_mode: int = 0, *, mariadb: bool = True) -> list[Token]:
    """The tokens of a statement; conditional comments that the server executes are part of it.

    Raises:
        Unclear: a text or a comment does not end.
    """
    found: list[Token] = []
    at, skipped_code = 0, False
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative matches any character"
        kind, at = match.lastgroup, match.end()
        if kind == "code":
            number = int(match["code"].lstrip("/*!M") or 0)
            own = match["code"].startswith("/*M")
            skipped_code = (own and not mariadb) or (not own and mariadb and 50700 <= number <= 99999)
            if skipped_code:
                at = text.find("*/", at) + 2
                if at < 2:
                    raise Unclear
        elif kind == "quote":
            at = _quoted(found, text, match["quote"], at, sql_mode)
        elif kind == "name":
            found.append(Token(NAME, match["name"].replace("``", "`")))
        elif kind == "hex":
            digits = match["hex"].strip("xX'") if "'" in match["hex"] else match["hex"][2:]
            found.append(Token(BYTES, digits if len(digits) % 2 == 0 else "0" + digits))
        elif kind == "bits":
            digits = match["bits"].strip("bB'") if "'" in match["bits"] else match["bits"][2:]
            found.append(Token(BYTES, f"{int(digits or '0', 2):0{(len(digits) + 7) // 8 * 2 or 2}x}"))
        elif kind == "number":
            found.append(Token(NUMBER, match["number"]))
        elif kind == "word":
            found.append(Token(WORD, match["word"]))
        elif kind == "sign":
            found.append(Token(SIGN, match["sign"]))
    return found


def _quoted(found: list[Token], text: str, quote: str, at: int, sql_mode: int) -> int:
    """Append a string, or in the mode ANSI_QUOTES a name; returns the place behind it."""
    is_name = quote == '"' and bool(sql_mode & ANSI_QUOTES)
    escapes = not is_name and not sql_mode & NO_BACKSLASH_ESCAPES
    match = _STRING[quote, escapes].match(text, at)
    if match is None:
        raise Unclear
    content = match[0][:-1].replace(quote * 2, quote)
    if escapes:
        content = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), content)
    last = found[-1] if found else None
    if is_name:
        found.append(Token(NAME, content))
    elif last is not None and last.kind == STRING:
        found[-1] = Token(STRING, last.text + content)
    else:
        if last is not None and last.kind == WORD and (last.text.startswith("_") or last.text in ("N", "n")):
            found.pop()  # the character set of a literal, whose text is decoded here
        found.append(Token(STRING, content))
    return match.end()


class TokenReader:
    """Tokens from the left."""

    def __init__(self, found: Sequence[Token]) -> None:
        self._tokens = found
        self.at = 0

    @property
    def ended(self) -> bool:
        return self.at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self._tokens[place] if place < len(self._tokens) else Token(SIGN, "")

    def word(self, ahead: int = 0) -> str:
        """The word or sign there, upper case; "" for a name, a string and at the end."""
        token = self.peek(ahead)
        return token.text.upper() if token.kind in (WORD, SIGN) else ""

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def take(self, *words: str) -> bool:
        """True if these words are next; they are consumed then."""
        if any(self.word(place) != word for place, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.take(*words):
            raise Unclear

    def name(self) -> str:
        token = self.next()
        if token.kind not in (WORD, NAME):
            raise Unclear
        return token.text

    def table(self, database: str, *, lower: bool) -> TableName:
        """A table's name with its schema, or with the default one."""
        first = self.name()
        schema, name = (first, self.name()) if self.take(".") else (database, first)
        return (schema.lower(), name.lower()) if lower else (schema, name)

    def group(self) -> list[Token]:
        """The tokens between a parenthesis, which is next, and its end."""
        self.expect("(")
        begin, depth = self.at, 1
        while depth:
            if self.ended:
                raise Unclear
            word = self.word()
            depth += (word == "(") - (word == ")")
            self.at += 1
        return list(self._tokens[begin : self.at - 1])

    def whole(self) -> Sequence[Token]:
        """All tokens."""
        return self._tokens

    def rest(self) -> Sequence[Token]:
        """The tokens that are left; none is consumed."""
        return self._tokens[self.at :]

    def item(self) -> list[Token]:
        """The tokens up to the next comma, outside of parentheses, which is consumed."""
        begin = self.at
        while not self.ended and self.word() != ",":
            if self.word() == "(":
                self.group()
            else:
                self.at += 1
        end = self.at
        self.at += 1
        return list(self._tokens[begin:end])


def items(found: Sequence[Token]) -> Iterator[TokenReader]:
    reader = TokenReader(found)
    while not reader.ended:
        yield TokenReader(reader.item())


# Columns.

# Other names of types.
_ALIASES = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "int4": "int",
    "int8": "bigint", "middleint": "mediumint", "bool": "tinyint", "boolean": "tinyint", "dec": "decimal",
    "numeric": "decimal", "fixed": "decimal", "real": "double", "float4": "float", "float8": "double",
    "character": "char", "nchar": "char", "nvarchar": "varchar", "long": "mediumtext",
    "geomcollection": "geometrycollection",
}  # fmt: skip
_SIZED = {
    "text": ("tinytext", "text", "mediumtext", "longtext"),
    "blob": ("tinyblob", "blob", "mediumblob", "longblob"),
}
_SIZES = (255, 65_535, 16_777_215)
# Character sets by the number of bytes of their longest character; all others have 1.
_CHARACTER_BYTES = {"utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "utf8": 3,
                    "ujis": 3, "eucjpms": 3, "ucs2": 2, "big5": 2, "gbk": 2, "gb2312": 2, "sjis": 2,
                    "cp932": 2, "euckr": 2}  # fmt: skip


@dataclass
class Attributes:
    """The part of a column's definition behind its type.

    Args:
        default: the tokens of its default; None for none.
    """

    charset: str = ""
    not_null: bool = False
    key: bool = False
    generated: bool = False
    stored: bool = False
    numbered: bool = False
    default: list[Token] | None = None
    is_json: bool = False


def column_definition(
    reader: TokenReader, table: MysqlTable, sql_mode: int, mariadb: bool
) -> tuple[MysqlColumn, Attributes]:
    """A column's definition, up to FIRST, AFTER or the end."""
    name = reader.name()
    type_ = reader.name().lower()
    attributes = Attributes()
    if type_ == "serial":
        attributes.not_null = attributes.numbered = True
        column = MysqlColumn(name, "bigint", unsigned=True)
    else:
        column = _typed(name, type_, reader, attributes, sql_mode, mariadb)
    unsigned = column.unsigned
    while not reader.ended and reader.word() not in ("FIRST", "AFTER"):
        unsigned = _attribute(reader, name, attributes) or unsigned
    if mariadb and column.type == "longtext" and attributes.is_json:
        column = replace(column, type="json")
    charset = attributes.charset or column.charset or table.charset
    if column.type in TEXTS and charset == "binary":
        others = column.type.replace("text", "blob")
        column = replace(column, type={"char": "binary", "varchar": "varbinary"}.get(column.type, others))
    column = _resized(column, charset)
    not_null = attributes.not_null or attributes.key
    kept = charset if column.type in TEXTS or column.type == "json" else ""
    return replace(column, unsigned=unsigned, charset=kept, not_null=not_null), attributes


def _typed(
    name: str, type_: str, reader: TokenReader, attributes: Attributes, sql_mode: int, mariadb: bool
) -> MysqlColumn:
    """A column of a type with its numbers or values."""
    if sql_mode & ORACLE:
        raise Unclear
    if type_ == "national":
        type_ = "n" + reader.name().lower()
        type_ = {"ncharacter": "nchar"}.get(type_, type_)
    if type_ in ("nchar", "nvarchar"):
        attributes.charset = "utf8mb3"
    if type_ == "real" and sql_mode & REAL_AS_FLOAT:
        type_ = "float"
    base = _ALIASES.get(type_, type_)
    if type_ == "double":
        reader.take("PRECISION")
    if type_ == "long":
        base = "mediumblob" if reader.take("VARBINARY") else base
    if base == "char" and reader.take("VARYING"):
        base = "varchar"
    if type_ == "long":
        reader.take("VARCHAR")
    numbers: tuple[int, ...] = ()
    values: tuple[str, ...] = ()
    if reader.word() == "(":
        group = reader.group()
        if base in ("enum", "set"):
            values = tuple(_value(token) for token in group if token != Token(SIGN, ","))
        else:
            numbers = tuple(int(token.text) for token in group if token.kind == NUMBER)
    if base == "float" and len(numbers) == 1:
        base = "double" if numbers[0] > 24 else "float"
    if base == "decimal":
        numbers = (numbers + (10, 0)[len(numbers) :])[:2]
    elif base in ("char", "binary", "varchar", "varbinary", "bit", "text", "blob"):
        numbers = numbers or ((1,) if base in ("char", "binary", "bit") else ())
    elif base in ("time", "datetime", "timestamp"):
        numbers = tuple(digits for digits in numbers if digits)
    else:
        numbers = ()
    if base == "json":
        attributes.charset = "utf8mb4"
    return MysqlColumn(name, base, numbers=numbers, values=values)


def _value(token: Token) -> str:
    if token.kind != STRING:
        raise Unclear
    return token.text.rstrip(" ")


def _resized(column: MysqlColumn, charset: str) -> MysqlColumn:
    """TEXT(n) and BLOB(n) are the smallest of their types that has room for n characters."""
    if column.type not in _SIZED or not column.numbers:
        return column
    size = column.numbers[0] * (_CHARACTER_BYTES.get(charset, 1) if column.type == "text" else 1)
    rank = sum(size > limit for limit in _SIZES)
    return replace(column, type=_SIZED[column.type][rank], numbers=())


def _attribute(reader: TokenReader, name: str, found: Attributes) -> bool:
    """Read one attribute; True for UNSIGNED, which ZEROFILL implies."""
    word = reader.word()
    if word in ("UNSIGNED", "ZEROFILL"):
        reader.next()
        return True
    if reader.take("NOT", "NULL"):
        found.not_null = True
    elif reader.take("NULL"):
        found.not_null = False
    elif reader.take("CHARACTER", "SET") or reader.take("CHARSET"):
        found.charset = charset_name(reader.name())
    elif reader.take("COLLATE"):
        charset = collation_charset(reader.name())
        found.charset = found.charset or charset
    elif reader.take("ASCII"):
        found.charset = "latin1"
    elif reader.take("UNICODE"):
        found.charset = "ucs2"
    elif reader.take("BYTE"):
        found.charset = "binary"
    elif reader.take("AUTO_INCREMENT"):
        found.numbered = found.not_null = True
    elif reader.take("PRIMARY", "KEY") or reader.take("PRIMARY") or reader.take("KEY"):
        found.key = True
    elif reader.take("UNIQUE"):
        reader.take("KEY")
    elif word in ("DEFAULT", "GENERATED", "AS", "CHECK", "CONSTRAINT", "REFERENCES", "ON"):
        _clause(reader, name, found)
    elif word in _VALUE_ATTRIBUTES:
        reader.next()
        reader.take("=")
        reader.next()
    elif word in _PLAIN_ATTRIBUTES:
        reader.next()
    else:
        raise Unclear
    return False


_VALUE_ATTRIBUTES = frozenset(
    ("COMMENT", "COLUMN_FORMAT", "STORAGE", "SRID", "REF_SYSTEM_ID", "ENGINE_ATTRIBUTE")
)
_PLAIN_ATTRIBUTES = frozenset(("SIGNED", "BINARY", "INVISIBLE", "VISIBLE", "VIRTUAL"))


def _clause(reader: TokenReader, name: str, found: Attributes) -> None:
    """Read an attribute that is several words."""
    if reader.take("DEFAULT"):
        found.default = _default(reader)
    elif reader.take("GENERATED", "ALWAYS", "AS") or reader.take("AS"):
        if reader.word() != "(":
            raise Unclear  # GENERATED ALWAYS AS ROW START
        reader.group()
        found.generated = True
        found.stored = reader.take("STORED") or reader.take("PERSISTENT")
    elif reader.take("ON", "UPDATE"):
        _default(reader)
    elif reader.take("CHECK"):
        inner = TokenReader(reader.group())
        found.is_json |= inner.take("JSON_VALID", "(") and inner.next().text.lower() == name.lower()
    elif reader.take("CONSTRAINT"):
        if reader.word() != "CHECK":
            reader.name()
    elif reader.take("REFERENCES"):
        reader.name()
        if reader.take("."):
            reader.name()
        if reader.word() == "(":
            reader.group()
        while reader.take("ON", "DELETE") or reader.take("ON", "UPDATE") or reader.take("MATCH"):
            reader.next()
            reader.take("ACTION") or reader.take("NULL") or reader.take("DEFAULT")
    else:
        raise Unclear


def _default(reader: TokenReader) -> list[Token]:
    """The tokens of a default, or of the value behind ON UPDATE."""
    if reader.word() == "(":
        return reader.group()
    found = [reader.next()]
    if found[0].kind == SIGN and found[0].text in "+-":
        found.append(reader.next())
    if reader.word() == "(":
        reader.group()
        found.append(Token(SIGN, "("))
    return found


def charset_name(name: str) -> str:
    return {"utf8": "utf8mb3"}.get(name.lower(), name.lower())


def collation_charset(name: str) -> str:
    """The character set of a collation, which begins with its name."""
    charset = charset_name(name.lower().partition("_")[0])
    if charset == "uca1400":
        return ""  # MariaDB's collations for any Unicode character set
    if charset in ("default", ""):
        raise Unclear
    return charset


# CREATE TABLE as the server shows it.

# Beginnings of members of a CREATE TABLE, and of what ALTER TABLE adds, that are no columns.
NO_COLUMNS = frozenset(
    ("PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK", "VECTOR")
)


def created(text: str, schema: str, *, mariadb: bool) -> MysqlTable:
    """The definition in the answer to SHOW CREATE TABLE, in an SQL mode without quotes and modes of its own.

    Raises:
        NotSupported: the table cannot be read.
    """
    name = "?"
    try:
        reader = TokenReader(tokens(text, mariadb=mariadb))
        reader.expect("CREATE", "TABLE")
        name = reader.name()
        members = reader.group()
        table = MysqlTable(schema, name, _table_charset(reader), 0, (), ())
        for member in items(members):
            if member.peek().kind == WORD and member.word() in NO_COLUMNS:
                table = _with_key(table, member)
            else:
                column, _ = column_definition(member, table, 0, mariadb)
                number = table.numbers + 1
                columns = (*table.columns, replace(column, number=number))
                table = replace(table, columns=columns, numbers=number)
    except Unclear:
        raise NotSupported(
            f"the definition of table {schema}.{name} has parts that cannot be read",
            hint="Tables with system versioning, compressed columns and periods are not supported.",
        ) from None
    return table


def _with_key(table: MysqlTable, member: TokenReader) -> MysqlTable:
    """A table with a key that its CREATE TABLE has."""
    words = [token.text.upper() for token in member.rest() if token.kind == WORD]
    if words[0] == "UNIQUE" and words[-2:] == ["USING", "HASH"]:
        return replace(table, hidden=table.hidden + 1)
    return replace(table, key=primary_key(member) or table.key)


def primary_key(reader: TokenReader) -> tuple[str, ...]:
    """The columns of a primary key; () for another key or constraint."""
    if reader.take("CONSTRAINT") and reader.word() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        reader.name()
    if not reader.take("PRIMARY", "KEY"):
        return ()
    while not reader.ended and reader.word() != "(":
        reader.next()
    return tuple(part.name() for part in items(reader.group()))


def _table_charset(reader: TokenReader) -> str:
    """The default character set among a table's options."""
    charset = ""
    while not reader.ended:
        if reader.take("WITH", "SYSTEM"):
            raise Unclear
        if reader.take("CHARSET", "=") or reader.take("CHARACTER", "SET", "="):
            charset = charset_name(reader.name())
        else:
            reader.next()
    if not charset:
        raise Unclear
    return charset
