"""Statements on streams and topics: CREATE, ALTER, DROP, COMMENT ON, SHOW, DESCRIBE, CHECK.

Each rule begins after its opening words. Source: docs/sql.md, "Streams".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...engine.errors import InvalidParameterValue, NotSupported, SyntaxError_
from .grammar import STRING, Grammar, collected
from .options import CHANGEABLE, Option
from .statements import (
    CheckStream,
    CommentOnStream,
    CreateStream,
    CreateTopic,
    DescribeStream,
    DropStream,
    Fragment,
    Name,
    RenameStream,
    ResyncStream,
    SetStream,
    ShowChanges,
    ShowCreateStream,
    ShowPartitions,
    ShowStreams,
    Statement,
)

_OPERATIONS = {"INSERT": "insert", "UPDATE": "update", "DELETE": "delete"}

# Snowflake's clauses, as options of ours: what TRUE means.
_SNOWFLAKE = ("APPEND_ONLY", "SHOW_INITIAL_ROWS")
_BOOLEANS = {"TRUE": True, "FALSE": False, "ON": True, "OFF": False}


@dataclass(slots=True)
class _Clauses:
    """The clauses of CREATE STREAM that were found so far."""

    operations: tuple[str, ...] | None = None
    where: Fragment | None = None
    options: list[Option] = field(default_factory=list)


def create_stream(g: Grammar) -> Statement:
    """CREATE STREAM [IF NOT EXISTS] s ON [TABLE] t [(column, ...)] [clauses]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name = g.full_name("the name of the stream")
    if not g.accept("ON"):
        raise _not_ours(g, name)
    if g.accept("ALL", "TABLES", "IN", "SCHEMA"):
        schema = g.full_name("the name of a schema")
        return _create(g, name, (), exists, schema=schema)
    if g.peek() == "VIEW" and g.is_name_ahead(1):
        raise NotSupported(
            "a stream on a view is not supported",
            hint="Make the stream on the table behind the view.",
            position=g.position,
        )
    if g.peek() == "TABLE":
        g.take()
    tables = g.listed(lambda: g.full_name("the name of a table"))
    columns = None
    if g.peek() == "(":
        if len(tables) > 1:
            raise SyntaxError_(
                "a stream of several tables takes no column list",
                hint="It carries all columns of each table.",
                position=g.position,
            )
        columns = g.bracketed(lambda: g.simple_name("the name of a column"))
    return _create(g, name, tables, exists, columns=columns)


def _create(
    g: Grammar,
    name: Name,
    tables: tuple[Name, ...],
    exists: bool,
    *,
    schema: Name | None = None,
    columns: tuple[str, ...] | None = None,
) -> Statement:
    clauses, several = _Clauses(), schema is not None or len(tables) > 1
    while not g.at_end:
        if several and g.peek() in ("OPERATIONS", "WHERE", "APPEND_ONLY"):
            raise SyntaxError_(
                f"a stream of several tables takes no {g.peek()}",
                hint="It carries all changes of each table: a stream on one table can be filtered.",
                position=g.position,
            )
        _clause(g, clauses)
    if several and clauses.operations is not None:
        raise SyntaxError_("a stream of several tables takes no APPEND_ONLY")
    return CreateStream(
        name,
        tables,
        schema,
        columns,
        clauses.operations or ("insert", "update", "delete"),
        clauses.where,
        collected(clauses.options),
        exists,
    )


def _clause(g: Grammar, clauses: _Clauses) -> None:
    if g.accept("OPERATIONS"):
        g.none_twice("OPERATIONS", clauses.operations)
        clauses.operations = _operations(g)
    elif g.accept("WHERE"):
        g.none_twice("WHERE", clauses.where)
        clauses.where = g.fragment(("WITH", "OPERATIONS", "WHERE", *_SNOWFLAKE), "a predicate")
    elif g.peek() in _SNOWFLAKE and g.peek(1) == "=":
        _snowflake(g, clauses)
    elif g.accept("WITH"):
        _with(g, clauses)
    else:
        raise g.expected("OPERATIONS, WHERE or WITH (...)")


def _operations(g: Grammar) -> tuple[str, ...]:
    def operation() -> str:
        word = g.accept_one(*_OPERATIONS)
        if word is None:
            raise g.expected("INSERT, UPDATE or DELETE")
        return _OPERATIONS[word]

    given = g.listed(operation)
    return tuple(word for word in _OPERATIONS.values() if word in given)


def _with(g: Grammar, clauses: _Clauses) -> None:
    """WITH (...), where Snowflake's options may stand among ours."""
    g.expect("(")
    while True:
        if g.peek() in _SNOWFLAKE and g.peek(1) == "=":
            _snowflake(g, clauses)
        else:
            clauses.options.append(g.option("stream"))
        if not g.accept(","):
            break
    g.expect(")")


def _snowflake(g: Grammar, clauses: _Clauses) -> None:
    position = g.position
    word = g.take().kind
    g.expect("=")
    value = g.accept_one(*_BOOLEANS)
    if value is None:
        raise g.expected("TRUE or FALSE")
    if not _BOOLEANS[value]:
        return
    if word == "APPEND_ONLY":
        if clauses.operations is not None:
            raise SyntaxError_("APPEND_ONLY and OPERATIONS are the same clause", position=position)
        clauses.operations = ("insert",)
    else:
        clauses.options.append(Option("snapshot", "initial", position))


def _not_ours(g: Grammar, name: Name) -> SyntaxError_:
    """The error for a CREATE STREAM without ON: what ksqlDB and others write there."""
    error = g.unexpected()
    if g.peek() in ("(", "AS", "WITH"):
        hint = (
            f"A stream carries the changes of a table: CREATE TABLE first, then CREATE STREAM {name} ON t."
            " A stream that is fed by publishing is a topic: CREATE TOPIC."
        )
    else:
        hint = f"Expected ON and a table: CREATE STREAM {name} ON t."
    return SyntaxError_(error.message, hint=hint, position=error.position)


def create_topic(g: Grammar) -> Statement:
    """CREATE TOPIC [IF NOT EXISTS] s [WITH (...)]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name = g.full_name("the name of the topic")
    options = g.options("topic") if g.accept("WITH") else []
    return CreateTopic(name, collected(options), exists)


def alter_stream(g: Grammar, topic: bool = False) -> Statement:
    """ALTER STREAM s { SET (...) | RENAME TO s2 | RESYNC }"""
    kind = "topic" if topic else "stream"
    name = g.full_name(f"the name of the {kind}")
    if g.accept("SET"):
        options = collected(g.options(kind))
        for option in options:
            if option.name not in CHANGEABLE:
                raise InvalidParameterValue(
                    f'option "{option.name}" is fixed for the {kind}\'s life',
                    hint=f"These can change: {', '.join(sorted(CHANGEABLE))}. Else make another {kind}.",
                    position=option.position,
                )
        return SetStream(name, options, topic)
    if g.accept("RENAME", "TO"):
        return RenameStream(name, g.simple_name("the new name"), topic)
    if not topic and g.accept("RESYNC"):
        return ResyncStream(name)
    raise g.expected("SET (...) or RENAME TO" + ("" if topic else " or RESYNC"))


def alter_topic(g: Grammar) -> Statement:
    """ALTER TOPIC s { SET (...) | RENAME TO s2 }"""
    return alter_stream(g, topic=True)


def comment_on_stream(g: Grammar, topic: bool = False) -> Statement:
    """COMMENT ON STREAM s IS { '...' | NULL }"""
    name = g.full_name(f"the name of the {'topic' if topic else 'stream'}")
    g.expect("IS")
    if g.accept("NULL"):
        return CommentOnStream(name, None, topic)
    return CommentOnStream(name, g.literal("the comment"), topic)


def comment_on_topic(g: Grammar) -> Statement:
    """COMMENT ON TOPIC s IS { '...' | NULL }"""
    return comment_on_stream(g, topic=True)


def drop_stream(g: Grammar, topic: bool = False) -> Statement:
    """DROP STREAM [IF EXISTS] s [CASCADE | RESTRICT]"""
    exists = g.accept("IF", "EXISTS")
    name = g.full_name(f"the name of the {'topic' if topic else 'stream'}")
    cascade = g.accept_one("CASCADE", "RESTRICT") == "CASCADE"
    return DropStream(name, exists, cascade, topic)


def drop_topic(g: Grammar) -> Statement:
    """DROP TOPIC [IF EXISTS] s [CASCADE | RESTRICT]"""
    return drop_stream(g, topic=True)


def _like(g: Grammar) -> str | None:
    return g.literal("the pattern") if g.accept("LIKE") else None


def show_streams(g: Grammar) -> Statement:
    """SHOW STREAMS [LIKE 'pattern']"""
    return ShowStreams(topics=False, like=_like(g))


def show_topics(g: Grammar) -> Statement:
    """SHOW TOPICS [LIKE 'pattern']"""
    return ShowStreams(topics=True, like=_like(g))


def show_partitions(g: Grammar) -> Statement:
    """SHOW PARTITIONS ON s"""
    return ShowPartitions(g.full_name("the name of a stream"))


def show_create_stream(g: Grammar) -> Statement:
    """SHOW CREATE STREAM s"""
    return ShowCreateStream(g.full_name("the name of a stream"))


def describe_stream(g: Grammar) -> Statement:
    """DESCRIBE STREAM s"""
    return DescribeStream(g.full_name("the name of a stream"))


def check_stream(g: Grammar) -> Statement:
    """CHECK STREAM s"""
    return CheckStream(g.full_name("the name of a stream"))


def show_changes(g: Grammar) -> Statement:
    """SHOW CHANGES FOR t [SINCE { 'timestamp' | milliseconds }] [LIMIT n]"""
    table = g.full_name("the name of a table")
    since = None
    if g.accept("SINCE"):
        since = g.literal("a timestamp") if g.peek() == STRING else g.number("SINCE, in milliseconds")
    limit = g.number("LIMIT") if g.accept("LIMIT") else None
    return ShowChanges(table, since, limit)
