"""Definitions of tables in the SQL of MySQL and MariaDB: the server's CREATE TABLE, and the log's statements.

The log has each definition as a statement only. A table's definition as of a place in the log is therefore
computed: what `SHOW CREATE TABLE` has given once, with each later statement applied to it. A statement whose
effect is not certain here is left to the caller (`Unclear`), which reads the definition from the server if it
can prove that no later one is in the log. A statement that changes rows without their being logged, or that
takes the table away, is an error.

Source: docs/sources.md; MySQL Reference Manual, "ALTER TABLE Statement",
"Lexical Structure"; MariaDB, "ALTER TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...engine.errors import NotSupported, WrongState
from .mysql_types import BINARIES, DATES, TEXTS, MysqlColumn, MysqlTable, is_known

WORD, NAME, STRING, NUMBER, BYTES, SIGN = "word", "name", "string", "number", "bytes", "sign"
# Bits of sql_mode in the log.
ANSI_QUOTES, NO_BACKSLASH_ESCAPES, REAL_AS_FLOAT, ORACLE = 1 << 2, 1 << 20, 1 << 0, 1 << 9
# Longer statements are not read in messages.
_SHOWN_CHARS = 80

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


class _Reader:
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


def _items(found: Sequence[Token]) -> Iterator[_Reader]:
    reader = _Reader(found)
    while not reader.ended:
        yield _Reader(reader.item())


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
class _Attributes:
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


def _column(
    reader: _Reader, table: MysqlTable, sql_mode: int, mariadb: bool
) -> tuple[MysqlColumn, _Attributes]:
    """A column's definition, up to FIRST, AFTER or the end."""
    name = reader.name()
    type_ = reader.name().lower()
    attributes = _Attributes()
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
    name: str, type_: str, reader: _Reader, attributes: _Attributes, sql_mode: int, mariadb: bool
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


def _attribute(reader: _Reader, name: str, found: _Attributes) -> bool:
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
        found.charset = _charset(reader.name())
    elif reader.take("COLLATE"):
        charset = _collation_charset(reader.name())
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


def _clause(reader: _Reader, name: str, found: _Attributes) -> None:
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
        inner = _Reader(reader.group())
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


def _default(reader: _Reader) -> list[Token]:
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


def _charset(name: str) -> str:
    return {"utf8": "utf8mb3"}.get(name.lower(), name.lower())


def _collation_charset(name: str) -> str:
    """The character set of a collation, which begins with its name."""
    charset = _charset(name.lower().partition("_")[0])
    if charset == "uca1400":
        return ""  # MariaDB's collations for any Unicode character set
    if charset in ("default", ""):
        raise Unclear
    return charset


# CREATE TABLE as the server shows it.

# Beginnings of members of a CREATE TABLE, and of what ALTER TABLE adds, that are no columns.
_NO_COLUMNS = frozenset(
    ("PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK", "VECTOR")
)


def created(text: str, schema: str, *, mariadb: bool) -> MysqlTable:
    """The definition in the answer to SHOW CREATE TABLE, in an SQL mode without quotes and modes of its own.

    Raises:
        NotSupported: the table cannot be read.
    """
    name = "?"
    try:
        reader = _Reader(tokens(text, mariadb=mariadb))
        reader.expect("CREATE", "TABLE")
        name = reader.name()
        members = reader.group()
        table = MysqlTable(schema, name, _table_charset(reader), 0, (), ())
        for member in _items(members):
            if member.peek().kind == WORD and member.word() in _NO_COLUMNS:
                table = _with_key(table, member)
            else:
                column, _ = _column(member, table, 0, mariadb)
                number = table.numbers + 1
                columns = (*table.columns, replace(column, number=number))
                table = replace(table, columns=columns, numbers=number)
    except Unclear:
        raise NotSupported(
            f"the definition of table {schema}.{name} has parts that cannot be read",
            hint="Tables with system versioning, compressed columns and periods are not supported.",
        ) from None
    return table


def _with_key(table: MysqlTable, member: _Reader) -> MysqlTable:
    """A table with a key that its CREATE TABLE has."""
    words = [token.text.upper() for token in member.rest() if token.kind == WORD]
    if words[0] == "UNIQUE" and words[-2:] == ["USING", "HASH"]:
        return replace(table, hidden=table.hidden + 1)
    return replace(table, key=_primary_key(member) or table.key)


def _primary_key(reader: _Reader) -> tuple[str, ...]:
    """The columns of a primary key; () for another key or constraint."""
    if reader.take("CONSTRAINT") and reader.word() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        reader.name()
    if not reader.take("PRIMARY", "KEY"):
        return ()
    while not reader.ended and reader.word() != "(":
        reader.next()
    return tuple(part.name() for part in _items(reader.group()))


def _table_charset(reader: _Reader) -> str:
    """The default character set among a table's options."""
    charset = ""
    while not reader.ended:
        if reader.take("WITH", "SYSTEM"):
            raise Unclear
        if reader.take("CHARSET", "=") or reader.take("CHARACTER", "SET", "="):
            charset = _charset(reader.name())
        else:
            reader.next()
    if not charset:
        raise Unclear
    return charset


# Statements of the log.


class Truncate(NamedTuple):
    """All rows of a table are deleted."""

    table: TableName


class Define(NamedTuple):
    """A table has another definition from here on.

    Args:
        fills: an added column -> SQL of its value in the rows that are there.
    """

    table: MysqlTable
    fills: Mapping[str, str]


class Reread(NamedTuple):
    """A table has another definition from here on, which is not certain from the statement."""

    table: TableName


Effect = Truncate | Define | Reread


@dataclass(frozen=True, slots=True)
class Dialect:
    """The parts of a server that decide how its statements are read.

    Args:
        lower_names: True if names of databases and tables are the same in upper and lower case.
        logs_foreign_keys: True if changes by the actions of foreign keys are in the log.
    """

    mariadb: bool
    lower_names: bool
    logs_foreign_keys: bool


def effects(
    text: str, database: str, sql_mode: int, tables: Mapping[TableName, MysqlTable], dialect: Dialect
) -> Sequence[Effect]:
    """The effects of a statement on some tables.

    Raises:
        WrongState: it changes or removes one of them in a way that cannot be followed.
    """
    try:
        found = tokens(text, sql_mode, mariadb=dialect.mariadb)
    except Unclear:
        raise WrongState(f"a statement in the binary log cannot be read: {_shown(text)}") from None
    statement = _Statement(text, _Reader(found), database, sql_mode, tables, dialect)
    handler = _STATEMENTS.get(statement.reader.word())
    if handler is not None:
        try:
            return handler(statement)
        except Unclear:
            pass
    for table in statement.named():
        raise statement.refused(table, "has an effect on it that is not known")
    return ()


@dataclass(frozen=True, slots=True)
class _Statement:
    text: str
    reader: _Reader
    database: str
    sql_mode: int
    tables: Mapping[TableName, MysqlTable]
    dialect: Dialect

    def table(self) -> TableName:
        """The next name of a table."""
        return self.reader.table(self.database, lower=self.dialect.lower_names)

    def named(self) -> Iterator[TableName]:
        """The tables whose names are anywhere in the statement."""
        names = {t.text for t in self.reader.whole() if t.kind in (WORD, NAME)}
        if self.dialect.lower_names:
            names = {name.lower() for name in names}
        return (table for table in self.tables if table[1] in names)

    def refused(self, table: TableName, what: str) -> WrongState:
        return WrongState(
            f"table {table[0]}.{table[1]}: a statement at the source {what}: {_shown(self.text)}",
            hint="Copy the table again from now on: DROP STREAM, and create it again.",
        )


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 3] + "..."


def foreign_key_error(table: str, constraint: str) -> NotSupported:
    """The error for a foreign key whose actions change rows of a table."""
    return NotSupported(
        f'foreign key "{constraint}" of table {table} changes its rows by ON DELETE or ON UPDATE, and the '
        "server does not log such changes",
        hint="Use RESTRICT and delete the rows by statements, or accept the loss with "
        "foreign_key_actions=ignore in the URL.",
    )


def _truncate(statement: _Statement) -> Sequence[Effect]:
    statement.reader.expect("TRUNCATE")
    statement.reader.take("TABLE")
    name = statement.table()
    return (Truncate(name),) if name in statement.tables else ()


def _drop(statement: _Statement) -> Sequence[Effect]:
    reader = statement.reader
    reader.expect("DROP")
    if reader.take("DATABASE") or reader.take("SCHEMA"):
        reader.take("IF", "EXISTS")
        schema = reader.name()
        for table in statement.tables:
            if table[0] in (schema, schema.lower() if statement.dialect.lower_names else schema):
                raise statement.refused(table, "drops its database")
        return ()
    if not (reader.take("TABLE") or reader.take("TABLES")):
        return ()  # a temporary table, or no table
    reader.take("IF", "EXISTS")
    while True:
        name = statement.table()
        if name in statement.tables:
            raise statement.refused(name, "drops it")
        if not reader.take(","):
            return ()


def _create(statement: _Statement) -> Sequence[Effect]:
    reader = statement.reader
    reader.expect("CREATE")
    replaces = reader.take("OR", "REPLACE")
    if not reader.take("TABLE"):
        return ()
    keeps = reader.take("IF", "NOT", "EXISTS")
    name = statement.table()
    if name in statement.tables and (replaces or not keeps):
        raise statement.refused(name, "replaces it")
    return ()


# Names that tools for online changes of definitions give to the old and the new table; `{}` is the table.
_ONLINE_CHANGES = (("_{}_old", "_{}_new"), ("_{}_del", "_{}_gho"))


def _rename(statement: _Statement) -> Sequence[Effect]:
    """RENAME TABLE: also the exchange with which pt-online-schema-change and gh-ost end."""
    reader = statement.reader
    reader.expect("RENAME")
    if not (reader.take("TABLE") or reader.take("TABLES")):
        return ()
    reader.take("IF", "EXISTS")
    pairs = []
    while not reader.ended:
        old = statement.table()
        if reader.take("WAIT"):
            reader.next()
        reader.take("NOWAIT")
        reader.expect("TO")
        pairs.append((old, statement.table()))
        if not reader.take(","):
            break
    # Present name -> the name before the statement.
    holders: dict[TableName, TableName] = {name: name for name in statement.tables}
    for old, new in pairs:
        holders[new] = holders.pop(old, old)
    found: list[Effect] = []
    for name in statement.tables:
        holder = holders.get(name)
        if holder == name:
            continue
        moved = next((new for new, before in holders.items() if before == name), None)
        for old_form, new_form in _ONLINE_CHANGES:
            if moved == (name[0], old_form.format(name[1])) and holder == (name[0], new_form.format(name[1])):
                found.append(Reread(name))
                break
        else:
            raise statement.refused(name, "renames it")
    return found


def _changes_rows(statement: _Statement) -> Sequence[Effect]:
    """A change in statement format; only that of all rows, of an engine in memory, can be followed."""
    reader = statement.reader
    first = reader.next().text.upper()
    targets: list[TableName] = []
    if first == "DELETE" and reader.take("FROM"):
        name = statement.table()
        if reader.ended:
            return (Truncate(name),) if name in statement.tables else ()
        reader.at = 1
    if first == "LOAD":
        while not reader.take("INTO", "TABLE"):
            reader.next()
            if reader.ended:
                raise Unclear
        targets = [statement.table()]
    elif first in ("INSERT", "REPLACE"):
        while reader.word() in ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"):
            reader.next()
        targets = [statement.table()]
    elif first in ("UPDATE", "DELETE", "CALL", "SELECT", "WITH", "DO"):
        targets = list(statement.named())
    for name in targets:
        if name in statement.tables:
            raise WrongState(
                f"table {name[0]}.{name[1]} is changed by a statement that is logged without its rows: "
                f"{_shown(statement.text)}",
                hint="A session at the source has set binlog_format to STATEMENT or MIXED. Copy the table "
                "again: DROP STREAM, and create it again.",
            )
    return ()


def _ignored(statement: _Statement) -> Sequence[Effect]:
    return ()


_STATEMENTS: Mapping[str, Callable[[_Statement], Sequence[Effect]]] = {
    "TRUNCATE": _truncate,
    "DROP": _drop,
    "CREATE": _create,
    "RENAME": _rename,
    "ALTER": lambda statement: _alter(statement),
    **dict.fromkeys(
        ("INSERT", "REPLACE", "LOAD", "UPDATE", "DELETE", "CALL", "SELECT", "WITH", "DO"), _changes_rows
    ),
    # None of these changes rows or definitions of columns.
    **dict.fromkeys(
        ("GRANT", "REVOKE", "SET", "FLUSH", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "SAVEPOINT", "RELEASE",
         "BEGIN", "START", "COMMIT", "XA", "INSTALL", "UNINSTALL", "LOCK", "UNLOCK", "PURGE", "RESET",
         "CHANGE"),
        _ignored,
    ),
}  # fmt: skip


# ALTER TABLE.


@dataclass
class _Altered:
    """A table while the parts of an ALTER TABLE are applied.

    Args:
        parts: the number of parts.
        fills: as in `Define`.
        names: the names that columns have got, folded: other parts mean the columns before the statement.
    """

    statement: _Statement
    table: MysqlTable
    parts: int
    fills: dict[str, str]
    names: set[str]

    def place(self, name: str) -> int:
        """The place of a column, whose name is the same in upper and lower case; -1 if there is none."""
        folded = name.casefold()
        return next((i for i, c in enumerate(self.table.columns) if c.name.casefold() == folded), -1)

    def former(self, name: str) -> int:
        """The place of a column that was there before the statement; -1 if there is none."""
        if name.casefold() in self.names:
            raise Unclear
        return self.place(name)

    def column(self, reader: _Reader) -> tuple[MysqlColumn, _Attributes]:
        """The next definition of a column."""
        found = _column(reader, self.table, self.statement.sql_mode, self.statement.dialect.mariadb)
        if not is_known(found[0].type):
            raise Unclear
        self.names.add(found[0].name.casefold())
        return found

    def put(self, column: MysqlColumn, reader: _Reader, place: int) -> None:
        """Put a column at FIRST or AFTER another, or else at a place."""
        columns = list(self.table.columns)
        if reader.take("FIRST"):
            place = 0
        elif reader.take("AFTER"):
            place = self.place(reader.name()) + 1
            if not place:
                raise Unclear
        if not reader.ended:
            raise Unclear
        columns.insert(place, column)
        self.table = replace(self.table, columns=tuple(columns))

    def remove(self, place: int) -> MysqlColumn:
        columns = list(self.table.columns)
        column = columns.pop(place)
        self.table = replace(self.table, columns=tuple(columns))
        return column


def _alter(statement: _Statement) -> Sequence[Effect]:
    reader = statement.reader
    reader.expect("ALTER")
    ignores = False
    while reader.word() in ("ONLINE", "IGNORE"):
        ignores |= reader.next().text.upper() == "IGNORE"
    if not reader.take("TABLE"):
        return ()
    reader.take("IF", "EXISTS")
    name = statement.table()
    if name not in statement.tables:
        return ()
    if ignores:
        raise statement.refused(name, "may remove rows that are not logged")
    if reader.take("WAIT"):
        reader.next()
    reader.take("NOWAIT")
    _check_actions(statement, name)
    table = statement.tables[name]
    try:
        parts = list(_items(reader.rest()))
        altered = _Altered(statement, table, len(parts), {}, set())
        for part in parts:
            _apply(altered, part)
    except Unclear:
        return (Reread(name),)
    if altered.table == table:
        return ()
    return (Define(altered.table, altered.fills),)


def _check_actions(statement: _Statement, name: TableName) -> None:
    """Refuse foreign keys whose actions change rows of the table."""
    if statement.dialect.logs_foreign_keys:
        return
    words = [token.text.upper() if token.kind == WORD else "" for token in statement.reader.rest()]
    for place, word in enumerate(words):
        acts = words[place + 1 : place + 2] in (["DELETE"], ["UPDATE"])
        if word == "ON" and acts and words[place + 2 : place + 3] in (["CASCADE"], ["SET"]):
            raise foreign_key_error(".".join(name), "?")


def _apply(altered: _Altered, part: _Reader) -> None:
    """Apply one part of an ALTER TABLE."""
    if part.ended:
        return
    handler = _PARTS.get(part.word())
    if handler is None:
        raise Unclear
    handler(altered, part)


def _add(altered: _Altered, part: _Reader) -> None:
    part.expect("ADD")
    explicit = part.take("COLUMN")
    if not explicit and part.peek().kind == WORD:
        if part.word() in _NO_COLUMNS:
            key = _primary_key(part)
            if key:
                altered.table = replace(altered.table, key=key)
            return
        if part.word() == "PARTITION":
            return
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            raise Unclear
    unless_there = part.take("IF", "NOT", "EXISTS")
    members = _items(part.group()) if part.word() == "(" else [part]
    for member in members:
        if member.peek().kind == WORD and member.word() in _NO_COLUMNS:
            key = _primary_key(member)
            altered.table = replace(altered.table, key=key or altered.table.key)
            continue
        column, attributes = altered.column(member)
        if altered.place(column.name) >= 0:
            if unless_there:
                continue
            raise Unclear
        number = altered.table.numbers + 1
        altered.table = replace(altered.table, numbers=number)
        altered.put(replace(column, number=number), member, len(altered.table.columns))
        fill = _fill(altered, column, attributes)
        if fill:
            altered.fills[column.name] = fill
        if attributes.key:
            altered.table = replace(altered.table, key=(column.name,))


def _drop_part(altered: _Altered, part: _Reader) -> None:
    part.expect("DROP")
    explicit = part.take("COLUMN")
    if not explicit and part.peek().kind == WORD:
        if part.take("PRIMARY", "KEY"):
            altered.table = replace(altered.table, key=())
            return
        if part.word() == "PARTITION":
            raise altered.statement.refused(_name(altered), "removes rows that are not logged")
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            raise Unclear
        if part.word() in ("INDEX", "KEY", "FOREIGN", "CONSTRAINT", "CHECK"):
            return
    if_there = part.take("IF", "EXISTS")
    place = altered.former(part.name())
    if place < 0:
        if if_there:
            return
        raise Unclear
    column = altered.remove(place)
    altered.fills.pop(column.name, None)
    key = tuple(name for name in altered.table.key if name.casefold() != column.name.casefold())
    altered.table = replace(altered.table, key=key)


def _change(altered: _Altered, part: _Reader) -> None:
    """MODIFY and CHANGE: a column's new definition, with CHANGE under a new name."""
    renames = part.next().text.upper() == "CHANGE"
    part.take("COLUMN")
    if_there = part.take("IF", "EXISTS")
    place = altered.former(part.name() if renames else part.peek().text)
    if place < 0:
        if if_there:
            return
        raise Unclear
    before = altered.table.columns[place]
    column, attributes = altered.column(part)
    if attributes.generated:
        raise altered.statement.refused(_name(altered), "changes values that are not logged")
    altered.remove(place)
    in_key = any(name.casefold() == before.name.casefold() for name in altered.table.key)
    not_null = column.not_null or in_key
    altered.put(replace(column, number=before.number, not_null=not_null), part, place)
    _rename_in_key(altered, before.name, column.name)
    if attributes.key:
        altered.table = replace(altered.table, key=(column.name,))


def _rename_in_key(altered: _Altered, old: str, new: str) -> None:
    key = tuple(new if name.casefold() == old.casefold() else name for name in altered.table.key)
    altered.table = replace(altered.table, key=key)
    if old in altered.fills:
        altered.fills[new] = altered.fills.pop(old)


def _rename_part(altered: _Altered, part: _Reader) -> None:
    part.expect("RENAME")
    if part.word() in ("INDEX", "KEY") and part.peek().kind == WORD:
        return
    if not part.take("COLUMN"):
        raise altered.statement.refused(_name(altered), "renames it")
    if_there = part.take("IF", "EXISTS")
    old = part.name()
    part.expect("TO")
    new = part.name()
    place = altered.former(old)
    altered.names.add(new.casefold())
    if place < 0:
        if if_there:
            return
        raise Unclear
    columns = list(altered.table.columns)
    columns[place] = replace(columns[place], name=new)
    altered.table = replace(altered.table, columns=tuple(columns))
    _rename_in_key(altered, old, new)


def _charset_part(altered: _Altered, part: _Reader) -> None:
    if altered.parts > 1:
        raise Unclear  # columns of other parts get it as well
    part.take("DEFAULT")
    if part.take("CHARACTER", "SET") or part.take("CHARSET"):
        part.take("=")
        charset = _charset(part.name())
    else:
        part.expect("COLLATE")
        part.take("=")
        charset = _collation_charset(part.name()) or altered.table.charset
    if charset == "default":
        raise Unclear
    altered.table = replace(altered.table, charset=charset)
    if not part.ended:
        _apply(altered, _Reader(part.rest()))


def _moves_rows(altered: _Altered, part: _Reader) -> None:
    """Parts that exchange or remove rows; CONVERT TO CHARACTER SET changes types as well."""
    if part.word() == "CONVERT" and part.word(1) == "TO":
        raise Unclear
    raise altered.statement.refused(_name(altered), "exchanges or removes rows that are not logged")


def _name(altered: _Altered) -> TableName:
    return altered.table.schema, altered.table.name


def _keeps(altered: _Altered, part: _Reader) -> None:
    """A part that changes neither rows nor columns."""


_PARTS: Mapping[str, Callable[[_Altered, _Reader], None]] = {
    "ADD": _add,
    "DROP": _drop_part,
    "MODIFY": _change,
    "CHANGE": _change,
    "RENAME": _rename_part,
    **dict.fromkeys(("DEFAULT", "CHARACTER", "CHARSET", "COLLATE"), _charset_part),
    **dict.fromkeys(("TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT", "CONVERT"), _moves_rows),
    **dict.fromkeys(
        ("ALTER", "ENGINE", "AUTO_INCREMENT", "COMMENT", "ROW_FORMAT", "KEY_BLOCK_SIZE", "ALGORITHM", "LOCK",
         "FORCE", "ENABLE", "DISABLE", "ORDER", "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES",
         "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH", "CHECKSUM", "DELAY_KEY_WRITE", "PACK_KEYS", "TABLESPACE",
         "PAGE_COMPRESSED", "ENCRYPTED", "ENCRYPTION", "COMPRESSION", "PARTITION", "REMOVE", "COALESCE",
         "REORGANIZE", "REBUILD", "OPTIMIZE", "CHECK", "REPAIR", "ANALYZE", "WITH", "WITHOUT"),
        _keeps,
    ),
}  # fmt: skip


# Values of added columns in rows that are there.

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FORMS = {
    "date": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "datetime": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?: [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?)?"),
    "time": re.compile(r"-?[0-9]{2,3}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"),
    "year": re.compile(r"(?:19|20|21)[0-9]{2}|0"),
    "uuid": re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
    "inet4": re.compile(r"[0-9]+(?:\.[0-9]+){3}"),
    "inet6": re.compile(r"::"),
}
_INTEGER_TYPES = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint"))
# The value of a column without a default that cannot be NULL.
_IMPLICIT = {
    **dict.fromkeys((*_INTEGER_TYPES, "decimal", "float", "double", "bit", "year"), "0"),
    "time": "00:00:00", "uuid": "00000000-0000-0000-0000-000000000000", "inet4": "0.0.0.0", "inet6": "::",
    "set": "", **dict.fromkeys(TEXTS, ""),
}  # fmt: skip


def _fill(altered: _Altered, column: MysqlColumn, attributes: _Attributes) -> str:
    """SQL of the value that rows get when a column is added; "" for NULL."""
    unknown = altered.statement.refused(
        _name(altered), f'gives rows a value of column "{column.name}" that is not logged'
    )
    if attributes.numbered or attributes.generated:
        raise unknown
    default = attributes.default
    if default is None or [token.text.upper() for token in default] == ["NULL"]:
        if not column.not_null or column.type in ("date", "datetime"):
            return ""
        return _implicit(column, unknown)
    text = _literal(default)
    if text is None:
        raise unknown
    return _fill_of(column, text, unknown)


def _implicit(column: MysqlColumn, unknown: WrongState) -> str:
    if column.type == "enum":
        return _text_sql(column.values[0])
    if column.type in BINARIES:
        size = column.numbers[0] if column.type == "binary" else 0
        return f"from_hex('{'00' * size}')"
    text = _IMPLICIT.get(column.type)
    if text is None:
        raise unknown
    return _fill_of(column, text, unknown)


def _literal(default: Sequence[Token]) -> str | bytes | None:
    """The content of a literal: text, or bytes of a hexadecimal or a bit literal; None for an expression."""
    sign = ""
    if len(default) == 2 and default[0] in (Token(SIGN, "-"), Token(SIGN, "+")):
        sign, default = default[0].text.strip("+"), default[1:]
        if default[0].kind != NUMBER:
            return None
    if len(default) != 1:
        return None
    token = default[0]
    if token.kind == BYTES:
        return bytes.fromhex(token.text)
    if token.kind in (STRING, NUMBER):
        return sign + token.text
    return {"TRUE": "1", "FALSE": "0"}.get(token.text.upper()) if token.kind == WORD else None


def _fill_of(column: MysqlColumn, given: str | bytes, unknown: WrongState) -> str:
    """SQL of a literal as a value of a column."""
    type_ = column.type
    if isinstance(given, bytes):
        if type_ in BINARIES:
            size = column.numbers[0] if type_ == "binary" else 0
            return f"from_hex('{given.ljust(size, bytes(1)).hex()}')"
        if type_ not in _INTEGER_TYPES and type_ != "bit":
            raise unknown
        given = str(int.from_bytes(given, "big"))
    if type_ in TEXTS or type_ == "json":
        return _text_sql(given.rstrip(" ") if type_ == "char" else given)
    if type_ in BINARIES:
        size = column.numbers[0] if type_ == "binary" else 0
        return f"from_hex('{given.encode('utf-8', 'surrogateescape').ljust(size, bytes(1)).hex()}')"
    if type_ in ("enum", "set"):
        return _choice(column, given, unknown)
    if type_ in DATES and given.startswith("0000-00-00"):
        return ""
    if type_ in _INTEGER_TYPES or type_ == "bit":
        fits: re.Pattern[str] | None = _WHOLE
    elif type_ in ("decimal", "float", "double"):
        fits = _DECIMAL
    else:
        # A timestamp is in the time zone of the session, which is not known.
        fits = _FORMS.get(type_)
    if fits is None or fits.fullmatch(given) is None:
        raise unknown
    return _text_sql(given)


def _choice(column: MysqlColumn, given: str, unknown: WrongState) -> str:
    by_folded = {value.casefold(): value for value in column.values}
    parts = given.split(",") if column.type == "set" and given else [given] if given else []
    chosen = {by_folded.get(part.casefold()) for part in parts}
    if None in chosen or (column.type == "enum" and len(chosen) != 1):
        raise unknown
    return _text_sql(",".join(value for value in column.values if value in chosen))


def _text_sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
