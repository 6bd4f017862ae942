"""Statements about committed offsets and read positions of groups. Source: docs/sql.md, "Committing"."""

from __future__ import annotations

from dataclasses import dataclass

from ....engine.errors import SyntaxError_
from .. import clauses
from ..clauses import Name, Number, Text, scalar_sql
from ..grammar import Grammar
from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class CommitOffset(Statement):
    """COMMIT OFFSET PARTITION partition AT lsn ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text
    partition: Number
    lsn: Number
    member: Text | None = None


@dataclass(frozen=True, slots=True)
class CommitOffsets(Statement):
    """COMMIT OFFSETS ON stream CONSUMER GROUP group; `at` is a map as JSON text, None the read position.

    Args:
        own_only: True to commit only the reads of the session itself, if other sessions have read as the
            member too.
        seeks: the number of SEEKs of the group when the committed events were read, for a commit of LSNs that
            a SEEK in between refuses; None for one that it does not.
    """

    stream: Name
    group: Text
    at: Text | None = None
    member: Text | None = None
    own_only: bool = False
    seeks: int | None = None


@dataclass(frozen=True, slots=True)
class ShowOffsets(Statement):
    """SHOW OFFSETS ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text


@dataclass(frozen=True, slots=True)
class ShowReadPosition(Statement):
    """SHOW READ POSITION ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text
    member: Text | None = None


def commit_offset(g: Grammar) -> Statement:
    """COMMIT OFFSET PARTITION p AT lsn ON s CONSUMER GROUP g [MEMBER 'm']"""
    if g.peek() != "PARTITION":
        raise SyntaxError_(
            g.unexpected().message,
            hint="An offset is one partition's: COMMIT OFFSET PARTITION p AT lsn ON s CONSUMER GROUP g. "
            "COMMIT OFFSETS ON s CONSUMER GROUP g commits what was read.",
            position=g.position,
        )
    g.expect("PARTITION")
    partition = g.partition()
    g.expect("AT")
    lsn = g.number("AT")
    g.expect("ON")
    stream, group = g.stream_and_group()
    return CommitOffset(stream, group, partition, lsn, g.member())


def commit_offsets(g: Grammar) -> Statement:
    """COMMIT OFFSETS [AT '{...}'] ON s CONSUMER GROUP g [MEMBER 'm']"""
    if g.peek() == "PARTITION":
        raise SyntaxError_(
            g.unexpected().message,
            hint="One partition is committed with COMMIT OFFSET PARTITION p AT lsn ON s CONSUMER GROUP g.",
            position=g.position,
        )
    at = g.positions("AT") if g.accept("AT") else None
    g.expect("ON")
    stream, group = g.stream_and_group()
    return CommitOffsets(stream, group, at, g.member())


def show_offsets(g: Grammar) -> Statement:
    """SHOW OFFSETS ON s CONSUMER GROUP g"""
    return ShowOffsets(*g.stream_and_group())


def show_read_position(g: Grammar) -> Statement:
    """SHOW READ POSITION ON s CONSUMER GROUP g [MEMBER 'm']"""
    g.expect("ON")
    stream, group = g.stream_and_group()
    return ShowReadPosition(stream, group, g.member())


def _commit_offset_sql(s: CommitOffset) -> str:
    verb = f"COMMIT OFFSET PARTITION {scalar_sql(s.partition)} AT {scalar_sql(s.lsn)}"
    return clauses.words(verb, clauses.of_group(s.stream, s.group), clauses.member_clause(s.member))


def _commit_offsets_sql(s: CommitOffsets) -> str:
    at, group = clauses.clause("AT", s.at), clauses.of_group(s.stream, s.group)
    return clauses.words("COMMIT OFFSETS", at, group, clauses.member_clause(s.member))


def _show_read_position_sql(s: ShowReadPosition) -> str:
    group = clauses.of_group(s.stream, s.group)
    return clauses.words("SHOW READ POSITION", group, clauses.member_clause(s.member))


ROWS = (
    Row(
        CommitOffset,
        "COMMIT OFFSET",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        commit_offset,
        "COMMIT OFFSET PARTITION p AT lsn ON s CONSUMER GROUP g [MEMBER 'm']",
        _commit_offset_sql,
        verb="COMMIT OFFSETS",
    ),
    Row(
        CommitOffsets,
        "COMMIT OFFSETS",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        commit_offsets,
        "COMMIT OFFSETS [AT '{\"0\": 17, ...}'] ON s CONSUMER GROUP g [MEMBER 'm']",
        _commit_offsets_sql,
    ),
    Row(
        ShowOffsets,
        "SHOW OFFSETS ON",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNERS,
        show_offsets,
        "SHOW OFFSETS ON s CONSUMER GROUP g",
        lambda s: f"SHOW OFFSETS {clauses.of_group(s.stream, s.group)}",
        View(
            "offsets",
            "partition, committed_lsn, end_lsn, lag_events, lag_seconds, lag_bytes, "
            "headroom_events, headroom_seconds, trimmed_unread, committed_at, committed_by, "
            "member",
        ),
    ),
    Row(
        ShowReadPosition,
        "SHOW READ POSITION",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        show_read_position,
        "SHOW READ POSITION ON s CONSUMER GROUP g [MEMBER 'm']",
        _show_read_position_sql,
    ),
)
