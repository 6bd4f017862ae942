"""Statements about streams: CREATE, ALTER, COMMENT ON, DROP, SHOW, DESCRIBE, CHECK.

Source: docs/sql.md, "Streams".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ....engine.errors import InvalidParameterValue, NotSupported, SyntaxError_
from ....engine.quoting import ident, literal
from .. import clauses
from ..clauses import CHANGEABLE, Fragment, Name, Number, Option, Options, Scalar, name_sql
from ..grammar import STRING, Grammar, collected
from .row import Effect, InCluster, Right, Row, Statement, View
from .sources import (
    AddSourceTables,
    DropSourceTables,
    SnapshotStream,
    SourceClause,
    altered_sql,
    altered_tables,
    snapshot_sql,
    source_clause,
    source_sql,
)

ALL_OPERATIONS = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class CreateStream(Statement):
    """CREATE STREAM name ON tables, or FROM a source.

    Args:
        tables: the tables, of the source if there is one; empty with `all_in_schema`, and if a schema or a
            publication of the source is selected.
        all_in_schema: the schema of ALL TABLES IN SCHEMA.
        columns: the columns to carry, or None for all.
        operations: of 'insert', 'update', 'delete', in this order.
        where: the predicate's text, or None.
    """

    name: Name
    tables: tuple[Name, ...]
    all_in_schema: Name | None = None
    columns: tuple[str, ...] | None = None
    operations: tuple[str, ...] = ALL_OPERATIONS
    where: Fragment | None = None
    options: Options = Options()
    if_not_exists: bool = False
    source: SourceClause | None = None

    def __post_init__(self) -> None:
        whole = self.all_in_schema is not None
        if self.source is not None:
            whole = self.source.schema is not None or self.source.publication is not None
        assert bool(self.tables) != whole
        assert self.operations and set(self.operations) <= set(ALL_OPERATIONS)
        assert self.columns is None or len(self.tables) == 1


@dataclass(frozen=True, slots=True)
class SetStream(Statement):
    """ALTER STREAM name SET (options)."""

    name: Name
    options: Options
    topic: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class RenameStream(Statement):
    """ALTER STREAM name RENAME TO new."""

    name: Name
    new: str
    topic: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ResyncStream(Statement):
    """ALTER STREAM name RESYNC."""

    name: Name


@dataclass(frozen=True, slots=True)
class CommentOnStream(Statement):
    """COMMENT ON STREAM name IS text; None removes the comment."""

    name: Name
    text: str | None
    topic: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class DropStream(Statement):
    """DROP STREAM name."""

    name: Name
    if_exists: bool = False
    cascade: bool = False
    topic: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ShowStreams(Statement):
    """SHOW STREAMS; `like` is a pattern for the name."""

    like: str | None = None


@dataclass(frozen=True, slots=True)
class ShowPartitions(Statement):
    """SHOW PARTITIONS ON stream."""

    stream: Name


@dataclass(frozen=True, slots=True)
class ShowCreateStream(Statement):
    """SHOW CREATE STREAM stream."""

    stream: Name


@dataclass(frozen=True, slots=True)
class DescribeStream(Statement):
    """DESCRIBE STREAM stream."""

    stream: Name


@dataclass(frozen=True, slots=True)
class CheckStream(Statement):
    """CHECK STREAM stream."""

    stream: Name


@dataclass(frozen=True, slots=True)
class ShowChanges(Statement):
    """SHOW CHANGES FOR table; `since` is a timestamp's text or milliseconds."""

    table: Name
    since: Scalar | None = None
    limit: Number | None = None


_OPERATIONS = {"INSERT": "insert", "UPDATE": "update", "DELETE": "delete"}
# Snowflake's clauses, and the equivalent options for the value TRUE.
_SNOWFLAKE = ("APPEND_ONLY", "SHOW_INITIAL_ROWS")


_BOOLEANS = {"TRUE": True, "FALSE": False, "ON": True, "OFF": False}


@dataclass(slots=True)
class _Clauses:
    """The clauses of CREATE STREAM that were found so far.

    Args:
        owner: the kind of stream whose options are allowed.
    """

    owner: str
    operations: tuple[str, ...] | None = None
    where: Fragment | None = None
    options: list[Option] = field(default_factory=list)


def create_stream(g: Grammar) -> Statement:
    """CREATE STREAM [IF NOT EXISTS] s ON [TABLE] t [(column, ...)] [clauses]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name = g.full_name("the name of the stream")
    if g.accept("FROM"):
        source, tables = source_clause(g)
        return _create(g, name, tables, exists, columns=_columns(g, tables), source=source)
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
    return _create(g, name, tables, exists, columns=_columns(g, tables))


def _columns(g: Grammar, tables: tuple[Name, ...]) -> tuple[str, ...] | None:
    if g.peek() != "(":
        return None
    if len(tables) != 1:
        raise SyntaxError_(
            "a stream of several tables takes no column list",
            hint="It carries all columns of each table.",
            position=g.position,
        )
    return g.bracketed(lambda: g.simple_name("the name of a column"))


def _create(
    g: Grammar,
    name: Name,
    tables: tuple[Name, ...],
    exists: bool,
    *,
    schema: Name | None = None,
    columns: tuple[str, ...] | None = None,
    source: SourceClause | None = None,
) -> Statement:
    clauses, several = _Clauses("stream" if source is None else source.kind), len(tables) != 1
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
        clauses.operations or ALL_OPERATIONS,
        clauses.where,
        collected(clauses.options),
        exists,
        source,
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
    """WITH (...), in which Snowflake's options are allowed too."""
    g.expect("(")
    while True:
        if g.peek() in _SNOWFLAKE and g.peek(1) == "=":
            _snowflake(g, clauses)
        else:
            clauses.options.append(g.option(clauses.owner))
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
    """The error for a CREATE STREAM without ON, as in ksqlDB and other systems."""
    error = g.unexpected()
    if g.peek() in ("(", "AS", "WITH"):
        hint = (
            f"A stream carries the changes of a table: CREATE TABLE first, then CREATE STREAM {name} ON t."
            " A stream that is fed by publishing is a topic: CREATE TOPIC."
        )
    else:
        hint = f"Expected ON and a table: CREATE STREAM {name} ON t."
    return SyntaxError_(error.message, hint=hint, position=error.position)


def alter_stream(g: Grammar) -> Statement:
    """ALTER STREAM s { SET (...) | RENAME TO s2 | RESYNC | SNAPSHOT ... | { ADD | DROP } TABLE t, ... }"""
    name = g.full_name("the name of the stream")
    if g.accept("SET"):
        return SetStream(name, changeable_options(g, "stream"))
    if g.accept("RENAME", "TO"):
        return RenameStream(name, g.simple_name("the new name"))
    if g.accept("RESYNC"):
        return ResyncStream(name)
    if (altered := altered_tables(g, name)) is not None:
        return altered
    raise g.expected("SET (...), RENAME TO, RESYNC, SNAPSHOT, ADD TABLE or DROP TABLE")


def changeable_options(g: Grammar, kind: str) -> Options:
    """(option = value, ...) for an existing stream or topic.

    Raises:
        InvalidParameterValue: an option is fixed for its life.
    """
    options = collected(g.options(kind))
    for option in options:
        if option.name not in CHANGEABLE:
            raise InvalidParameterValue(
                f'option "{option.name}" is fixed for the {kind}\'s life',
                hint=f"These can change: {', '.join(sorted(CHANGEABLE))}. Else make another {kind}.",
                position=option.position,
            )
    return options


def comment_on_stream(g: Grammar) -> Statement:
    """COMMENT ON STREAM s IS { '...' | NULL }"""
    return CommentOnStream(g.full_name("the name of the stream"), comment(g))


def comment(g: Grammar) -> str | None:
    """IS { '...' | NULL }"""
    g.expect("IS")
    return None if g.accept("NULL") else g.literal("the comment")


def drop_stream(g: Grammar) -> Statement:
    """DROP STREAM [IF EXISTS] s [CASCADE | RESTRICT]"""
    exists = g.accept("IF", "EXISTS")
    name = g.full_name("the name of the stream")
    return DropStream(name, exists, g.accept_one("CASCADE", "RESTRICT") == "CASCADE")


def show_streams(g: Grammar) -> Statement:
    """SHOW STREAMS [LIKE 'pattern']"""
    return ShowStreams(g.like())


def show_partitions(g: Grammar) -> Statement:
    """SHOW PARTITIONS ON s"""
    return ShowPartitions(g.stream())


def show_create_stream(g: Grammar) -> Statement:
    """SHOW CREATE STREAM s"""
    return ShowCreateStream(g.stream())


def describe_stream(g: Grammar) -> Statement:
    """DESCRIBE STREAM s"""
    return DescribeStream(g.stream())


def check_stream(g: Grammar) -> Statement:
    """CHECK STREAM s"""
    return CheckStream(g.stream())


def show_changes(g: Grammar) -> Statement:
    """SHOW CHANGES FOR t [SINCE { 'timestamp' | milliseconds }] [LIMIT n]"""
    table = g.full_name("the name of a table")
    since = None
    if g.accept("SINCE"):
        since = g.literal("a timestamp") if g.peek() == STRING else g.number("SINCE, in milliseconds")
    limit = g.number("LIMIT") if g.accept("LIMIT") else None
    return ShowChanges(table, since, limit)


def _create_stream_sql(s: CreateStream) -> str:
    tables = ", ".join(name_sql(table) for table in s.tables)
    on = f"ON ALL TABLES IN SCHEMA {name_sql(s.all_in_schema)}" if s.all_in_schema else f"ON {tables}"
    return clauses.words(
        "CREATE STREAM",
        clauses.when(s.if_not_exists, "IF NOT EXISTS"),
        name_sql(s.name),
        on if s.source is None else source_sql(s.source, s.tables),
        "" if s.columns is None else clauses.columns(s.columns),
        clauses.when(s.operations != ALL_OPERATIONS, f"OPERATIONS {', '.join(s.operations).upper()}"),
        "" if s.where is None else f"WHERE {s.where.text}",
        clauses.options_clause(s.options),
    )


def _show_changes_sql(s: ShowChanges) -> str:
    verb = f"SHOW CHANGES FOR {name_sql(s.table)}"
    return clauses.words(verb, clauses.clause("SINCE", s.since), clauses.clause("LIMIT", s.limit))


def kind(s: SetStream | RenameStream | CommentOnStream | DropStream) -> str:
    """TOPIC or STREAM: the object of a statement that has both forms."""
    return "TOPIC" if s.topic else "STREAM"


def set_sql(s: SetStream) -> str:
    """ALTER { STREAM | TOPIC } s SET (...)"""
    return f"ALTER {kind(s)} {name_sql(s.name)} {clauses.options_clause(s.options, 'SET')}"


def rename_sql(s: RenameStream) -> str:
    """ALTER { STREAM | TOPIC } s RENAME TO s2"""
    return f"ALTER {kind(s)} {name_sql(s.name)} RENAME TO {ident(s.new)}"


def comment_sql(s: CommentOnStream) -> str:
    """COMMENT ON { STREAM | TOPIC } s IS '...'"""
    return f"COMMENT ON {kind(s)} {name_sql(s.name)} IS {'NULL' if s.text is None else literal(s.text)}"


def drop_sql(s: DropStream) -> str:
    """DROP { STREAM | TOPIC } s"""
    return clauses.drop(f"DROP {kind(s)}", s.if_exists, name_sql(s.name), s.cascade)


_ALTER_FORM = (
    "ALTER STREAM s { SET (option = value, ...) | RENAME TO s2 | RESYNC | { ADD | DROP } TABLE t, ... "
    "| SNAPSHOT [TABLE t] [WHERE predicate] }"
)

ROWS = (
    Row(
        CreateStream,
        "CREATE [CHANGE] STREAM",
        Right.CREATE_STREAM,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        create_stream,
        "CREATE STREAM [IF NOT EXISTS] s ON t [(column, ...)] [OPERATIONS INSERT, UPDATE, DELETE]"
        " [WHERE predicate] [WITH (option = value, ...)]",
        _create_stream_sql,
    ),
    Row(
        SetStream,
        "ALTER [CHANGE] STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_stream,
        _ALTER_FORM,
        set_sql,
    ),
    Row(
        RenameStream,
        "ALTER [CHANGE] STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_stream,
        _ALTER_FORM,
        rename_sql,
    ),
    Row(
        ResyncStream,
        "ALTER [CHANGE] STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_stream,
        _ALTER_FORM,
        lambda s: f"ALTER STREAM {name_sql(s.name)} RESYNC",
        heading="ALTER STREAM ... RESYNC",
    ),
    *(
        Row(
            node,
            "ALTER [CHANGE] STREAM",
            Right.OWNER,
            Effect.WRITES,
            InCluster.OWNER,
            alter_stream,
            _ALTER_FORM,
            altered_sql,
            heading=f"ALTER STREAM ... {verb} TABLE",
        )
        for node, verb in ((AddSourceTables, "ADD"), (DropSourceTables, "DROP"))
    ),
    Row(
        SnapshotStream,
        "ALTER [CHANGE] STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_stream,
        _ALTER_FORM,
        snapshot_sql,
        heading="ALTER STREAM ... SNAPSHOT",
    ),
    Row(
        CommentOnStream,
        "COMMENT ON [CHANGE] STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        comment_on_stream,
        "COMMENT ON STREAM s IS '...'",
        comment_sql,
        tag="COMMENT",
        heading="COMMENT ON",
    ),
    Row(
        DropStream,
        "DROP [CHANGE] STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        drop_stream,
        "DROP STREAM [IF EXISTS] s [CASCADE]",
        drop_sql,
    ),
    Row(
        ShowStreams,
        "SHOW [CHANGE] STREAMS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ALL_NODES,
        show_streams,
        "SHOW STREAMS [LIKE 'pattern']",
        lambda s: clauses.words("SHOW STREAMS", clauses.clause("LIKE", s.like)),
        View(
            "streams",
            "schema_name, stream_name, table_name, operations, partitions, events, end_lsn, comment",
            "table_name IS NOT NULL",
        ),
    ),
    Row(
        ShowPartitions,
        "SHOW PARTITIONS ON",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNERS,
        show_partitions,
        "SHOW PARTITIONS ON s",
        lambda s: f"SHOW PARTITIONS ON {name_sql(s.stream)}",
        View(
            "partitions",
            "partition, first_lsn, last_lsn, events, bytes, buffered_from_lsn, trimmed_events, "
            "trimmed_through_lsn, owner, epoch, owner_host, owner_port",
        ),
    ),
    Row(
        ShowCreateStream,
        "SHOW CREATE [CHANGE] STREAM, SHOW CREATE TOPIC",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        show_create_stream,
        "SHOW CREATE STREAM s",
        lambda s: f"SHOW CREATE STREAM {name_sql(s.stream)}",
    ),
    Row(
        DescribeStream,
        "DESCRIBE [CHANGE] STREAM",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        describe_stream,
        "DESCRIBE STREAM s",
        lambda s: f"DESCRIBE STREAM {name_sql(s.stream)}",
        needs_name=True,
    ),
    Row(
        CheckStream,
        "CHECK STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        check_stream,
        "CHECK STREAM s",
        lambda s: f"CHECK STREAM {name_sql(s.stream)}",
    ),
    Row(
        ShowChanges,
        "SHOW CHANGES FOR",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ENTRY_NODE,
        show_changes,
        "SHOW CHANGES FOR t [SINCE 'timestamp'] [LIMIT n]",
        _show_changes_sql,
    ),
)
