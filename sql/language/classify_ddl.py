"""CREATE, ALTER, DROP and COMMENT: the object, and the table that changes with it."""

from __future__ import annotations

from ...engine.errors import DucktailError, InsufficientPrivilege, NotSupported
from ...engine.quoting import fold
from ..text.classified import Classified, DdlFacts, Kind, Name, TokenReader, refused

# DuckDB's word for an object -> ducktail's word. Two words form one key.
_OBJECTS = {
    "TABLE": "TABLE",
    "VIEW": "VIEW",
    "INDEX": "INDEX",
    "SCHEMA": "SCHEMA",
    "SEQUENCE": "SEQUENCE",
    "TYPE": "TYPE",
    "MACRO": "MACRO",
    "FUNCTION": "MACRO",
    "TRIGGER": "TRIGGER",
}

# Objects that reach outside the database, or that would write without ducktail's control.
_NOT_ALLOWED = {
    "SECRET": "secrets are not allowed",
    "DATABASE": "changing databases is not allowed",
    "SERVER": "foreign servers are not allowed",
    "EXTENSION": "extensions are not allowed",
}
_NOT_SUPPORTED: dict[str, tuple[str, str | None]] = {
    "MATERIALIZED": (
        "materialized views are not supported",
        "CREATE TABLE ... AS keeps a query's result; a stream keeps it up to date.",
    ),
    "POLICY": ("policies are not supported", None),
    "RULE": ("rules are not supported", None),
    "PUBLICATION": ("publications are not supported", "CREATE STREAM s ON t publishes a table's changes."),
    "PROCEDURE": ("procedures are not supported", None),
    "COLLATION": ("collations are not supported", None),
    "DOMAIN": ("domains are not supported", None),
    "AGGREGATE": ("aggregates are not supported", None),
    "OPERATOR": ("operators are not supported", None),
    "CAST": ("casts are not supported", None),
    "TABLESPACE": ("tablespaces are not supported", None),
    "GROUP": ("groups of users are not supported", None),
    "MASKING": ("masking policies are not supported", None),
}
_TEMPORARY = ("TEMP", "TEMPORARY")
_MODIFIERS = ("UNLOGGED", "UNIQUE", "RECURSIVE", "LOCAL", "GLOBAL", "PERSISTENT")


def _ddl(reader: TokenReader, facts: DdlFacts) -> Classified:
    verb = f"{facts.verb} {facts.object_type}"
    return Classified(Kind.DDL, reader.text, tuple(reader.tokens), verb=verb, ddl=facts)


def _object(reader: TokenReader) -> str | Classified:
    """Read the object's word; return a classification if the object is refused."""
    word = reader.peek()
    if word in _OBJECTS:
        reader.take()
        return _OBJECTS[word]
    error: DucktailError
    if word == "CONSTRAINT" and reader.peek(1) == "TRIGGER":
        error = NotSupported("constraint triggers are not supported")
    elif word in _NOT_ALLOWED:
        hint = "Nothing outside the database can be reached through SQL."
        error = InsufficientPrivilege(_NOT_ALLOWED[word], hint=hint)
    elif word in _NOT_SUPPORTED:
        message, advice = _NOT_SUPPORTED[word]
        error = NotSupported(message, hint=advice)
    else:
        raise reader.unexpected()
    return refused(reader, error)


def create(reader: TokenReader) -> Classified:
    """CREATE [OR REPLACE] [TEMP] { TABLE | VIEW | INDEX | ... } [IF NOT EXISTS] name ..."""
    reader.take()
    or_replace = reader.accept("OR", "REPLACE")
    temporary = False
    while not reader.at_end:
        if reader.accept_one(*_TEMPORARY):
            temporary = True
        elif not reader.accept_one(*_MODIFIERS):
            break
    object_type = _object(reader)
    if isinstance(object_type, Classified):
        return object_type
    if object_type == "INDEX" and reader.peek(1) != "ON":
        reader.accept("CONCURRENTLY")
    if_not_exists = reader.accept("IF", "NOT", "EXISTS")
    table: Name | None = None
    list_offset = query_offset = None
    if object_type == "MACRO":
        reader.accept("TABLE")
    place, table_place = reader.place, None
    name = None if object_type == "INDEX" and reader.peek() == "ON" else reader.qualified()
    if object_type == "INDEX":
        if not reader.accept("ON"):
            raise reader.unexpected()
        _only(reader)
        table_place = reader.place
        table = reader.qualified()
    elif object_type == "TRIGGER":
        while not reader.accept("ON"):
            reader.take()
        table = reader.qualified()
    elif object_type == "TABLE" and name is not None:
        table = name
        temporary = temporary or fold(name[0]) == "temp"
        list_offset = None if reader.at_end else reader.tokens[reader.index].start
        query_offset = _query_offset(reader)
    facts = DdlFacts(
        "CREATE",
        object_type,
        () if name is None else (name,),
        table,
        places=() if name is None else (place,),
        table_place=table_place,
        or_replace=or_replace,
        temporary=temporary,
        if_not_exists=if_not_exists,
        as_select=query_offset is not None,
        query_offset=query_offset,
        list_offset=list_offset,
    )
    return _ddl(reader, facts)


def _only(reader: TokenReader) -> None:
    """Read ONLY before a table's name: a table has no children."""
    if reader.peek() == "ONLY" and reader.index + 1 < len(reader.tokens):
        if reader.tokens[reader.index + 1].is_name:
            reader.take()


def _query_offset(reader: TokenReader) -> int | None:
    """The start of the query of CREATE TABLE ... AS."""
    if reader.peek() == "(" and not reader.at_end:
        reader.brackets()
    while not reader.at_end and reader.peek() != "AS":
        reader.take()
    return reader.rest()[1] if reader.accept("AS") else None


def alter(reader: TokenReader) -> Classified:
    """ALTER { TABLE | VIEW | ... } [IF EXISTS] name ..."""
    reader.take()
    object_type = _object(reader)
    if isinstance(object_type, Classified):
        return object_type
    if_exists = reader.accept("IF", "EXISTS")
    _only(reader)
    places = (reader.place,)
    name = reader.qualified()
    if object_type not in ("TABLE", "VIEW"):
        return _ddl(reader, DdlFacts("ALTER", object_type, (name,), None, places, if_exists=if_exists))
    action, renamed = _action(reader)
    table = name if object_type == "TABLE" else None
    return _ddl(
        reader,
        DdlFacts(
            "ALTER", object_type, (name,), table, places, if_exists=if_exists, action=action, renamed=renamed
        ),
    )


# Words that may follow ALTER TABLE t ADD and DROP, beside a column.
_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN")
# Words that may follow ALTER [COLUMN] c.
_OF_COLUMN = (("SET", "NOT", "NULL"), ("DROP", "NOT", "NULL"), ("SET", "DEFAULT"), ("DROP", "DEFAULT"))


def _action(reader: TokenReader) -> tuple[str, str | None]:
    """The action of ALTER TABLE t or ALTER VIEW v, and the new name."""
    if reader.accept("RENAME", "TO"):
        return "RENAME TO", None if reader.at_end else reader.qualified()[-1]
    if reader.accept("RENAME"):
        return "RENAME COLUMN", None
    if reader.accept("ADD"):
        return ("" if reader.peek() in _CONSTRAINTS else "ADD COLUMN"), None
    if reader.accept("DROP"):
        return ("" if reader.peek() in _CONSTRAINTS else "DROP COLUMN"), None
    if not reader.accept("ALTER"):
        return "", None
    reader.accept("COLUMN")
    if not reader.at_end:
        reader.qualified()
    if reader.accept("TYPE") or reader.accept("SET", "DATA", "TYPE"):
        return "ALTER TYPE", None
    return next((" ".join(words) for words in _OF_COLUMN if reader.accept(*words)), ""), None


def drop(reader: TokenReader) -> Classified:
    """DROP { TABLE | VIEW | ... } [IF EXISTS] name [, ...] [CASCADE]"""
    reader.take()
    temporary = reader.accept_one(*_TEMPORARY) is not None
    object_type = _object(reader)
    if isinstance(object_type, Classified):
        return object_type
    if object_type == "MACRO":
        reader.accept("TABLE")
    if object_type == "INDEX" and reader.peek(1) not in ("", ",", "."):
        reader.accept("CONCURRENTLY")
    if_exists = reader.accept("IF", "EXISTS")
    places, names = [reader.place], [reader.qualified()]
    while reader.accept(","):
        places.append(reader.place)
        names.append(reader.qualified())
    table = names[0] if object_type == "TABLE" else None
    if object_type == "TRIGGER":
        if not reader.accept("ON"):
            raise reader.unexpected()
        table = reader.qualified()
    cascade = any(token.kind == "CASCADE" for token in reader.tokens[reader.index :])
    facts = DdlFacts(
        "DROP",
        object_type,
        tuple(names),
        table,
        tuple(places),
        temporary=temporary,
        if_exists=if_exists,
        cascade=cascade,
    )
    return _ddl(reader, facts)


def comment(reader: TokenReader) -> Classified:
    """COMMENT ON { TABLE | COLUMN | VIEW | ... } name IS ..."""
    reader.take()
    if not reader.accept("ON"):
        raise reader.unexpected()
    if reader.accept("CONSTRAINT"):
        return _comment_on_constraint(reader)
    object_type: str | Classified = "COLUMN" if reader.accept("COLUMN") else _object(reader)
    if isinstance(object_type, Classified):
        return object_type
    places = (reader.place,)
    name = reader.qualified()
    table = {"TABLE": name, "COLUMN": name[:-1]}.get(object_type)
    return _ddl(reader, DdlFacts("COMMENT", object_type, (name,), table, places))


def _comment_on_constraint(reader: TokenReader) -> Classified:
    """COMMENT ON CONSTRAINT name ON table IS ..."""
    reader.identifier()
    if not reader.accept("ON"):
        raise reader.unexpected()
    if reader.peek() == "DOMAIN" and reader.peek(1) != "IS":
        raise NotSupported("domains are not supported", position=reader.place + 1)
    place, table = reader.place, reader.qualified()
    return _ddl(reader, DdlFacts("COMMENT", "CONSTRAINT", (table,), table, (place,)))
