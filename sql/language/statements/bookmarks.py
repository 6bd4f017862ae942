"""Statements about bookmarks. Source: docs/sql.md, "CREATE BOOKMARK"."""

from __future__ import annotations

from dataclasses import dataclass

from ....engine.quoting import ident
from .. import clauses
from ..clauses import Name, Text, name_sql
from ..grammar import GROUP, Grammar
from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class CreateBookmark(Statement):
    """CREATE BOOKMARK name ON stream, of a group's position, of a map as JSON text, or of the end."""

    name: str
    stream: Name
    group: Text | None = None
    at: Text | None = None

    def __post_init__(self) -> None:
        assert self.group is None or self.at is None


@dataclass(frozen=True, slots=True)
class DropBookmark(Statement):
    """DROP BOOKMARK name ON stream."""

    name: str
    stream: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowBookmarks(Statement):
    """SHOW BOOKMARKS; `stream` None is all streams."""

    stream: Name | None = None


def create_bookmark(g: Grammar) -> Statement:
    """CREATE BOOKMARK b ON s [CONSUMER GROUP g | AT '{...}']"""
    name = g.simple_name("the name of the bookmark")
    stream = g.on_stream()
    if g.accept("CONSUMER", "GROUP"):
        return CreateBookmark(name, stream, group=g.text_or_name(GROUP))
    return CreateBookmark(name, stream, at=g.positions("AT") if g.accept("AT") else None)


def drop_bookmark(g: Grammar) -> Statement:
    """DROP BOOKMARK [IF EXISTS] b ON s"""
    exists = g.accept("IF", "EXISTS")
    name = g.simple_name("the name of the bookmark")
    return DropBookmark(name, g.on_stream(), exists)


def show_bookmarks(g: Grammar) -> Statement:
    """SHOW BOOKMARKS [ON s]"""
    return ShowBookmarks(g.perhaps_on_stream())


def _create_bookmark_sql(s: CreateBookmark) -> str:
    group = "" if s.group is None else f"CONSUMER GROUP {clauses.named(s.group)}"
    verb = f"CREATE BOOKMARK {ident(s.name)} ON {name_sql(s.stream)}"
    return clauses.words(verb, group, clauses.clause("AT", s.at))


def _drop_bookmark_sql(s: DropBookmark) -> str:
    return clauses.drop("DROP BOOKMARK", s.if_exists, f"{ident(s.name)} ON {name_sql(s.stream)}")


ROWS = (
    Row(
        CreateBookmark,
        "CREATE BOOKMARK",
        Right.CONSUME,
        Effect.WRITES,
        InCluster.OWNER,
        create_bookmark,
        "CREATE BOOKMARK b ON s [CONSUMER GROUP g | AT '{...}']",
        _create_bookmark_sql,
    ),
    Row(
        DropBookmark,
        "DROP BOOKMARK",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        drop_bookmark,
        "DROP BOOKMARK [IF EXISTS] b ON s",
        _drop_bookmark_sql,
    ),
    Row(
        ShowBookmarks,
        "SHOW BOOKMARKS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        show_bookmarks,
        "SHOW BOOKMARKS [ON s]",
        lambda s: clauses.perhaps_on("SHOW BOOKMARKS", s.stream),
        View(
            "bookmarks",
            "schema_name, stream_name, bookmark_name, position, whole, events, trimmed_events, "
            "trimmed, created_at, created_by",
        ),
    ),
)
