"""Statements in the log of MySQL and MariaDB, and their effects on the definitions of tables.

The log has each definition as a statement only. A table's definition as of a place in the log is therefore
computed: what `SHOW CREATE TABLE` has given once, with each later statement applied to it. A statement whose
effect is not certain here is left to the caller (`Unclear`), which reads the definition from the server if it
can prove that no later one is in the log. A statement that changes rows without their being logged, or that
takes the table away, is an error.

Source: docs/sources.md; MySQL Reference Manual, "ALTER TABLE Statement"; MariaDB, "ALTER TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....engine.errors import NotSupported, WrongState
from .mysql_ddl import (
    BYTES,
    NAME,
    NO_COLUMNS,
    NUMBER,
    SIGN,
    STRING,
    WORD,
    Attributes,
    TableName,
    Token,
    TokenReader,
    Unclear,
    charset_name,
    collation_charset,
    column_definition,
    items,
    primary_key,
    tokens,
)
from .mysql_types import BINARIES, DATES, TEXTS, MysqlColumn, MysqlTable, is_known

# Longer statements are not read in messages.
_SHOWN_CHARS = 80


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
    statement = _Statement(text, TokenReader(found), database, sql_mode, tables, dialect)
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
    reader: TokenReader
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

    def column(self, reader: TokenReader) -> tuple[MysqlColumn, Attributes]:
        """The next definition of a column."""
        found = column_definition(reader, self.table, self.statement.sql_mode, self.statement.dialect.mariadb)
        if not is_known(found[0].type):
            raise Unclear
        self.names.add(found[0].name.casefold())
        return found

    def put(self, column: MysqlColumn, reader: TokenReader, place: int) -> None:
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

    def add_key(self, names: Sequence[str]) -> None:
        """Make columns the primary key, which thus cannot be NULL; () changes nothing."""
        if not names:
            return
        places = [self.place(name) for name in names]
        columns = [replace(c, not_null=c.not_null or i in places) for i, c in enumerate(self.table.columns)]
        key = tuple(columns[place].name for place in places if place >= 0)
        if len(key) < len(names):
            raise Unclear  # a column of a later part
        self.table = replace(self.table, columns=tuple(columns), key=key)

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
        parts = list(items(reader.rest()))
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


def _apply(altered: _Altered, part: TokenReader) -> None:
    """Apply one part of an ALTER TABLE."""
    if part.ended:
        return
    handler = _PARTS.get(part.word())
    if handler is None:
        raise Unclear
    handler(altered, part)


def _add(altered: _Altered, part: TokenReader) -> None:
    part.expect("ADD")
    explicit = part.take("COLUMN")
    if not explicit and part.peek().kind == WORD:
        if part.word() in NO_COLUMNS:
            altered.add_key(primary_key(part))
            return
        if part.word() == "PARTITION":
            return
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            raise Unclear
    unless_there = part.take("IF", "NOT", "EXISTS")
    members = items(part.group()) if part.word() == "(" else [part]
    for member in members:
        if member.peek().kind == WORD and member.word() in NO_COLUMNS:
            altered.add_key(primary_key(member))
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
            altered.add_key((column.name,))


def _drop_part(altered: _Altered, part: TokenReader) -> None:
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


def _change(altered: _Altered, part: TokenReader) -> None:
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
        altered.add_key((column.name,))


def _rename_in_key(altered: _Altered, old: str, new: str) -> None:
    key = tuple(new if name.casefold() == old.casefold() else name for name in altered.table.key)
    altered.table = replace(altered.table, key=key)
    if old in altered.fills:
        altered.fills[new] = altered.fills.pop(old)


def _rename_part(altered: _Altered, part: TokenReader) -> None:
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


def _charset_part(altered: _Altered, part: TokenReader) -> None:
    if altered.parts > 1:
        raise Unclear  # columns of other parts get it as well
    part.take("DEFAULT")
    if part.take("CHARACTER", "SET") or part.take("CHARSET"):
        part.take("=")
        charset = charset_name(part.name())
    else:
        part.expect("COLLATE")
        part.take("=")
        charset = collation_charset(part.name()) or altered.table.charset
    if charset == "default":
        raise Unclear
    altered.table = replace(altered.table, charset=charset)
    if not part.ended:
        _apply(altered, TokenReader(part.rest()))


def _moves_rows(altered: _Altered, part: TokenReader) -> None:
    """Parts that exchange or remove rows; CONVERT TO CHARACTER SET changes types as well."""
    if part.word() == "CONVERT" and part.word(1) == "TO":
        raise Unclear
    raise altered.statement.refused(_name(altered), "exchanges or removes rows that are not logged")


def _name(altered: _Altered) -> TableName:
    return altered.table.schema, altered.table.name


def _keeps(altered: _Altered, part: TokenReader) -> None:
    """A part that changes neither rows nor columns."""


_PARTS: Mapping[str, Callable[[_Altered, TokenReader], None]] = {
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


def _fill(altered: _Altered, column: MysqlColumn, attributes: Attributes) -> str:
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
