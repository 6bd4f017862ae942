"""Statements about topics; those that streams have too are parsed as theirs. Source: docs/sql.md,
"Topics"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import clauses
from ..clauses import Name, Options, name_sql
from ..grammar import Grammar, collected
from . import streams
from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class CreateTopic(Statement):
    """CREATE TOPIC name."""

    name: Name
    options: Options = Options()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetTopic(streams.SetStream):
    """ALTER TOPIC name SET (options)."""

    topic: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RenameTopic(streams.RenameStream):
    """ALTER TOPIC name RENAME TO new."""

    topic: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CommentOnTopic(streams.CommentOnStream):
    """COMMENT ON TOPIC name IS text; None removes the comment."""

    topic: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DropTopic(streams.DropStream):
    """DROP TOPIC name."""

    topic: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ShowTopics(Statement):
    """SHOW TOPICS; `like` is a pattern for the name."""

    like: str | None = None


def create_topic(g: Grammar) -> Statement:
    """CREATE TOPIC [IF NOT EXISTS] s [WITH (...)]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    name = g.full_name("the name of the topic")
    options = g.options("topic") if g.accept("WITH") else []
    return CreateTopic(name, collected(options), exists)


def alter_topic(g: Grammar) -> Statement:
    """ALTER TOPIC s { SET (...) | RENAME TO s2 }"""
    name = g.full_name("the name of the topic")
    if g.accept("SET"):
        return SetTopic(name, streams.changeable_options(g, "topic"))
    if g.accept("RENAME", "TO"):
        return RenameTopic(name, g.simple_name("the new name"))
    raise g.expected("SET (...) or RENAME TO")


def comment_on_topic(g: Grammar) -> Statement:
    """COMMENT ON TOPIC s IS { '...' | NULL }"""
    return CommentOnTopic(g.full_name("the name of the topic"), streams.comment(g))


def drop_topic(g: Grammar) -> Statement:
    """DROP TOPIC [IF EXISTS] s [CASCADE | RESTRICT]"""
    exists = g.accept("IF", "EXISTS")
    name = g.full_name("the name of the topic")
    return DropTopic(name, exists, g.accept_one("CASCADE", "RESTRICT") == "CASCADE")


def show_topics(g: Grammar) -> Statement:
    """SHOW TOPICS [LIKE 'pattern']"""
    return ShowTopics(g.like())


_ALTER_FORM = "ALTER TOPIC s { SET (option = value, ...) | RENAME TO s2 }"

ROWS = (
    Row(
        CreateTopic,
        "CREATE TOPIC",
        Right.CREATE_TOPIC,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        create_topic,
        "CREATE TOPIC [IF NOT EXISTS] s [WITH (option = value, ...)]",
        lambda s: clauses.words(
            "CREATE TOPIC",
            clauses.when(s.if_not_exists, "IF NOT EXISTS"),
            name_sql(s.name),
            clauses.options_clause(s.options),
        ),
    ),
    Row(
        SetTopic,
        "ALTER TOPIC",
        Right.OWNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        alter_topic,
        _ALTER_FORM,
        streams.set_sql,
    ),
    Row(
        RenameTopic,
        "ALTER TOPIC",
        Right.OWNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        alter_topic,
        _ALTER_FORM,
        streams.rename_sql,
    ),
    Row(
        CommentOnTopic,
        "COMMENT ON TOPIC",
        Right.OWNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        comment_on_topic,
        "COMMENT ON TOPIC s IS '...'",
        streams.comment_sql,
        tag="COMMENT",
        heading="COMMENT ON",
    ),
    Row(
        DropTopic,
        "DROP TOPIC",
        Right.OWNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE,
        drop_topic,
        "DROP TOPIC [IF EXISTS] s [CASCADE]",
        streams.drop_sql,
    ),
    Row(
        ShowTopics,
        "SHOW TOPICS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ALL_NODES,
        show_topics,
        "SHOW TOPICS [LIKE 'pattern']",
        lambda s: clauses.words("SHOW TOPICS", clauses.clause("LIKE", s.like)),
        View(
            "streams",
            "schema_name, stream_name, partitions, retention, events, bytes, end_lsn, comment",
            "table_name IS NULL",
        ),
    ),
)
