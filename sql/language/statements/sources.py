"""Statements about the sources of streams: the clause of CREATE STREAM, PAUSE, RESUME, SHOW SOURCES, and the
tables of a source in ALTER STREAM.

Source: docs/sql.md, "Sources".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....engine.catalog.feeds import MYSQL, POSTGRES
from .. import clauses
from ..clauses import Fragment, Name, name_sql, scalar_sql
from ..grammar import Grammar
from .row import Effect, InCluster, Right, Row, Statement, View

# The kinds of sources, by their words.
KINDS = {"POSTGRES": POSTGRES, "MYSQL": MYSQL}
_TABLE = "the name of a table of the source"


@dataclass(frozen=True, slots=True)
class SourceClause:
    """FROM POSTGRES 'conninfo' ... of CREATE STREAM.

    Args:
        kind: the kind of database.
        address: the conninfo or URL, which may contain a password.
        schema, publication: what selects the tables, if they are not named.
    """

    kind: str
    address: str = field(repr=False)
    schema: Name | None = None
    publication: Name | None = None


@dataclass(frozen=True, slots=True)
class PauseStream(Statement):
    """PAUSE STREAM name."""

    name: Name


@dataclass(frozen=True, slots=True)
class ResumeStream(Statement):
    """RESUME STREAM name."""

    name: Name


@dataclass(frozen=True, slots=True)
class AddSourceTables(Statement):
    """ALTER STREAM name ADD TABLE tables; the tables are those of its source."""

    name: Name
    tables: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class DropSourceTables(Statement):
    """ALTER STREAM name DROP TABLE tables; the tables are those of its source."""

    name: Name
    tables: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class SnapshotStream(Statement):
    """ALTER STREAM name SNAPSHOT [TABLE table] [WHERE predicate].

    Args:
        table: the table of its source to copy; None for all.
        where: the predicate on its rows; None for all rows.
    """

    name: Name
    table: Name | None = None
    where: Fragment | None = None


@dataclass(frozen=True, slots=True)
class ShowSources(Statement):
    """SHOW SOURCES [ON stream]."""

    stream: Name | None = None


@dataclass(frozen=True, slots=True)
class CreateMirror(Statement):
    """CREATE TABLE name MIRROR OF STREAM stream TABLE table."""

    name: Name
    stream: Name
    table: Name
    if_not_exists: bool = False


def source_clause(g: Grammar) -> tuple[SourceClause, tuple[Name, ...]]:
    """{ POSTGRES | MYSQL } '...' { TABLE t, ... | SCHEMA x | PUBLICATION p }; FROM has been read.

    Returns:
        The clause, and the tables that it names.
    """
    word = g.accept_one(*KINDS)
    if word is None:
        raise g.expected(" or ".join(KINDS))
    kind = KINDS[word]
    address = g.literal("the conninfo" if kind == POSTGRES else "the URL of the source")
    if g.accept("TABLE") or g.accept("TABLES"):
        return SourceClause(kind, address), g.listed(lambda: g.full_name("the name of a table"))
    if g.accept("SCHEMA"):
        return SourceClause(kind, address, schema=g.full_name("the name of a schema")), ()
    if kind == POSTGRES and g.accept("PUBLICATION"):
        return SourceClause(kind, address, publication=g.full_name("the name of a publication")), ()
    raise g.expected("TABLE, SCHEMA or PUBLICATION" if kind == POSTGRES else "TABLE or SCHEMA")


def source_sql(source: SourceClause, tables: tuple[Name, ...]) -> str:
    """The clause as SQL, with FROM."""
    word = next(word for word, kind in KINDS.items() if kind == source.kind)
    if source.schema is not None:
        selected = f"SCHEMA {name_sql(source.schema)}"
    elif source.publication is not None:
        selected = f"PUBLICATION {name_sql(source.publication)}"
    else:
        selected = f"TABLE {', '.join(map(name_sql, tables))}"
    return f"FROM {word} {scalar_sql(source.address)} {selected}"


def altered_tables(g: Grammar, name: Name) -> Statement | None:
    """{ ADD | DROP } TABLE t, ... | SNAPSHOT [TABLE t] [WHERE predicate]; None for anything else."""
    if g.accept("SNAPSHOT"):
        table = g.full_name(_TABLE) if g.accept("TABLE") else None
        where = g.fragment((), "a predicate") if g.accept("WHERE") else None
        return SnapshotStream(name, table, where)
    for verb, node in (("ADD", AddSourceTables), ("DROP", DropSourceTables)):
        if g.accept(verb, "TABLE") or g.accept(verb, "TABLES"):
            return node(name, g.listed(lambda: g.full_name(_TABLE)))
    return None


def altered_sql(s: AddSourceTables | DropSourceTables) -> str:
    """ALTER STREAM s { ADD | DROP } TABLE t, ..."""
    verb = "ADD" if isinstance(s, AddSourceTables) else "DROP"
    return f"ALTER STREAM {name_sql(s.name)} {verb} TABLE {', '.join(map(name_sql, s.tables))}"


def snapshot_sql(s: SnapshotStream) -> str:
    """ALTER STREAM s SNAPSHOT [TABLE t] [WHERE predicate]"""
    return clauses.words(
        f"ALTER STREAM {name_sql(s.name)} SNAPSHOT",
        "" if s.table is None else f"TABLE {name_sql(s.table)}",
        "" if s.where is None else f"WHERE {s.where.text}",
    )


def pause_stream(g: Grammar) -> Statement:
    """PAUSE STREAM s"""
    return PauseStream(g.full_name("the name of the stream"))


def resume_stream(g: Grammar) -> Statement:
    """RESUME STREAM s"""
    return ResumeStream(g.full_name("the name of the stream"))


def create_mirror(g: Grammar) -> Statement:
    """CREATE TABLE [IF NOT EXISTS] t MIRROR OF STREAM s TABLE source_table"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name = g.full_name("the name of the table")
    g.expect("MIRROR")
    g.expect("OF")
    g.expect("STREAM")
    stream = g.full_name("the name of the stream")
    g.expect("TABLE")
    return CreateMirror(name, stream, g.full_name(_TABLE), exists)


def show_sources(g: Grammar) -> Statement:
    """SHOW SOURCES [ON s]"""
    return ShowSources(g.perhaps_on_stream())


ROWS = (
    Row(
        PauseStream,
        "PAUSE STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        pause_stream,
        "PAUSE STREAM s",
        lambda s: f"PAUSE STREAM {name_sql(s.name)}",
    ),
    Row(
        ResumeStream,
        "RESUME STREAM",
        Right.OWNER,
        Effect.WRITES,
        InCluster.OWNER,
        resume_stream,
        "RESUME STREAM s",
        lambda s: f"RESUME STREAM {name_sql(s.name)}",
    ),
    Row(
        CreateMirror,
        "CREATE TABLE",
        Right.CREATE_MIRROR,
        Effect.WRITES,
        InCluster.OWNER,
        create_mirror,
        "CREATE TABLE [IF NOT EXISTS] t MIRROR OF STREAM s TABLE source_table",
        lambda s: clauses.words(
            "CREATE TABLE",
            clauses.when(s.if_not_exists, "IF NOT EXISTS"),
            name_sql(s.name),
            f"MIRROR OF STREAM {name_sql(s.stream)} TABLE {name_sql(s.table)}",
        ),
        heading="CREATE TABLE ... MIRROR OF STREAM",
        behind_name="MIRROR OF",
    ),
    Row(
        ShowSources,
        "SHOW SOURCES",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ALL_NODES,
        show_sources,
        "SHOW SOURCES [ON s]",
        lambda s: clauses.perhaps_on("SHOW SOURCES", s.stream),
        View(
            "sources",
            "schema_name, stream_name, kind, source, state, phase, reason, position, source_position, "
            "lag_bytes, lag_seconds, rows_copied, transactions, events, fault, fault_at, next_attempt_at, "
            "slot, tables, changed_at",
        ),
    ),
)
