"""Statements about consumer groups and their members. Source: docs/sql.md, "Consumer groups"."""

from __future__ import annotations

from dataclasses import dataclass

from ....engine.quoting import ident
from .. import clauses
from ..clauses import Name, Number, Option, Options, Scalar, Text, scalar_sql
from ..grammar import NUMBER, STRING, Grammar, collected
from ..position_text import parse_after, require_one_lsn
from .row import Effect, InCluster, Right, Row, Statement, View


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a stream: the start of a group, or the target of SEEK.

    Args:
        kind: 'earliest', 'latest', 'after', 'timestamp', 'snapshot' or 'bookmark'.
        value: the LSN or map of AFTER, the timestamp's text, the bookmark's name; else None.
    """

    kind: str
    value: Scalar | None = None

    def __post_init__(self) -> None:
        assert self.kind in ("earliest", "latest", "after", "timestamp", "snapshot", "bookmark")
        assert (self.value is not None) == (self.kind in ("after", "timestamp", "bookmark"))


EARLIEST = Place("earliest")


@dataclass(frozen=True, slots=True)
class CreateGroup(Statement):
    """CREATE CONSUMER GROUP group ON stream."""

    group: Text
    stream: Name
    start: Place = EARLIEST
    options: Options = Options()
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        assert self.start.kind != "bookmark"


@dataclass(frozen=True, slots=True)
class SeekGroup(Statement):
    """ALTER CONSUMER GROUP group ON stream SEEK; `partition` None is all of them."""

    group: Text
    stream: Name
    to: Place
    partition: Number | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        assert self.to.kind != "snapshot"


@dataclass(frozen=True, slots=True)
class SetGroup(Statement):
    """ALTER CONSUMER GROUP group ON stream SET (options)."""

    group: Text
    stream: Name
    options: Options


@dataclass(frozen=True, slots=True)
class Park(Statement):
    """ALTER CONSUMER GROUP group ON stream PARK PARTITION p AT lsn."""

    group: Text
    stream: Name
    partition: Number
    lsn: Number
    reason: Text | None = None


@dataclass(frozen=True, slots=True)
class Release(Statement):
    """ALTER CONSUMER GROUP group ON stream RELEASE PARTITION p; `lsn` None is all parked events."""

    group: Text
    stream: Name
    partition: Number
    lsn: Number | None = None


@dataclass(frozen=True, slots=True)
class Discard(Statement):
    """ALTER CONSUMER GROUP group ON stream DISCARD PARTITION p; `lsn` None is all parked events."""

    group: Text
    stream: Name
    partition: Number
    lsn: Number | None = None


@dataclass(frozen=True, slots=True)
class DropGroup(Statement):
    """DROP CONSUMER GROUP group ON stream."""

    group: Text
    stream: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DescribeGroup(Statement):
    """DESCRIBE CONSUMER GROUP group ON stream."""

    group: Text
    stream: Name


@dataclass(frozen=True, slots=True)
class ShowGroups(Statement):
    """SHOW CONSUMER GROUPS; `stream` None is all streams."""

    stream: Name | None = None


@dataclass(frozen=True, slots=True)
class ShowMembers(Statement):
    """SHOW MEMBERS ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text


@dataclass(frozen=True, slots=True)
class ShowParked(Statement):
    """SHOW PARKED ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text


@dataclass(frozen=True, slots=True)
class LeaveGroup(Statement):
    """LEAVE CONSUMER GROUP group ON stream MEMBER member."""

    group: Text
    stream: Name
    member: Text


def _timestamp(g: Grammar) -> Place:
    if g.peek() != STRING:
        g.accept_one("TIMESTAMP", "TIMESTAMPTZ")
    return Place("timestamp", g.string("a timestamp"))


def start_place(g: Grammar, seek: bool = False) -> Place:
    """EARLIEST | LATEST | AFTER lsn | AT TIMESTAMP 'ts', and SNAPSHOT or BOOKMARK b"""
    if g.accept("EARLIEST"):
        return EARLIEST
    if g.accept("LATEST"):
        return Place("latest")
    if g.accept("AFTER"):
        return Place("after", g.lsn_or_positions("AFTER"))
    if g.accept("AT"):
        if g.peek() not in ("TIMESTAMP", "TIMESTAMPTZ"):
            raise g.expected("TIMESTAMP '...'")
        return _timestamp(g)
    if not seek and g.accept("SNAPSHOT"):
        return Place("snapshot")
    if seek and g.accept("BOOKMARK"):
        return Place("bookmark", g.simple_name("the name of a bookmark"))
    last = "BOOKMARK b" if seek else "SNAPSHOT"
    said = _ELSEWHERE.get(g.peek(), "")
    raise g.expected(f"EARLIEST, LATEST, AFTER lsn, AT TIMESTAMP '...' or {last}{said}")


# Words for a position in other systems, and ducktail's equivalents.
_ELSEWHERE = {
    **dict.fromkeys(("BEGINNING", "START", "FIRST"), ": the beginning is EARLIEST"),
    **dict.fromkeys(("END", "LAST", "NOW"), ": the end is LATEST"),
    **dict.fromkeys(("OFFSET", "LSN", NUMBER), ": behind an LSN is AFTER lsn"),
    **dict.fromkeys(("TIMESTAMP", "DATE", STRING), ": a time is AT TIMESTAMP '...'"),
}


def create_group(g: Grammar) -> Statement:
    """CREATE CONSUMER GROUP [IF NOT EXISTS] g ON s [START place] [WITH (...)]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    group, stream = g.group_on_stream()
    start: Place | None = None
    options: list[Option] = []
    while not g.at_end:
        if g.accept("START"):
            g.none_twice("START", start)
            start = start_place(g)
        elif g.accept("WITH"):
            options += g.options("group")
        else:
            raise g.expected("START or WITH (...)")
    return CreateGroup(group, stream, start or EARLIEST, collected(options), exists)


def alter_group(g: Grammar) -> Statement:
    """ALTER CONSUMER GROUP g ON s { SEEK | SET | PARK | RELEASE | DISCARD } ..."""
    group, stream = g.group_on_stream()
    if g.accept("SEEK"):
        return _seek(g, group, stream)
    if g.accept("SET"):
        return SetGroup(group, stream, collected(g.options("group")))
    if g.accept("PARK"):
        g.expect("PARTITION")
        partition = g.partition()
        g.expect("AT")
        lsn = g.number("AT")
        reason = g.string("the reason") if g.accept("REASON") else None
        return Park(group, stream, partition, lsn, reason)
    for word, kind in (("RELEASE", Release), ("DISCARD", Discard)):
        if g.accept(word):
            g.expect("PARTITION")
            partition = g.partition()
            return kind(group, stream, partition, g.number("AT") if g.accept("AT") else None)
    if g.peek() in ("RESET", "SKIP"):
        other = "SEEK TO EARLIEST" if g.peek() == "RESET" else "PARK PARTITION p AT lsn"
        raise g.expected(f"SEEK, SET (...), PARK, RELEASE or DISCARD, here perhaps {other}")
    raise g.expected("SEEK, SET (...), PARK, RELEASE or DISCARD")


def _seek(g: Grammar, group: Text, stream: Name) -> Statement:
    """[TO] [PARTITION p] place [DRY RUN]"""
    g.accept("TO")
    position = g.position
    partition = g.partition() if g.accept("PARTITION") else None
    to = start_place(g, seek=True)
    if partition is not None and to.kind == "after" and isinstance(to.value, str):
        require_one_lsn(parse_after(to.value), position)
    return SeekGroup(group, stream, to, partition, g.accept("DRY", "RUN"))


def drop_group(g: Grammar) -> Statement:
    """DROP CONSUMER GROUP [IF EXISTS] g ON s"""
    exists = g.accept("IF", "EXISTS")
    group, stream = g.group_on_stream()
    return DropGroup(group, stream, exists)


def describe_group(g: Grammar) -> Statement:
    """DESCRIBE CONSUMER GROUP g ON s"""
    group, stream = g.group_on_stream()
    return DescribeGroup(group, stream)


def leave_group(g: Grammar) -> Statement:
    """LEAVE CONSUMER GROUP g ON s MEMBER 'm'"""
    group, stream = g.group_on_stream()
    member = g.member()
    if member is None:
        raise g.expected("MEMBER 'm'")
    return LeaveGroup(group, stream, member)


def show_groups(g: Grammar) -> Statement:
    """SHOW CONSUMER GROUPS [ON s]"""
    return ShowGroups(g.perhaps_on_stream())


def show_members(g: Grammar) -> Statement:
    """SHOW MEMBERS ON s CONSUMER GROUP g"""
    return ShowMembers(*g.stream_and_group())


def show_parked(g: Grammar) -> Statement:
    """SHOW PARKED ON s CONSUMER GROUP g"""
    return ShowParked(*g.stream_and_group())


def place_sql(place: Place) -> str:
    """A position in START or SEEK."""
    if place.value is None:
        return place.kind.upper()
    if place.kind == "bookmark":
        return f"BOOKMARK {ident(str(place.value))}"
    return clauses.clause({"after": "AFTER", "timestamp": "AT TIMESTAMP"}[place.kind], place.value)


def _create_group_sql(s: CreateGroup) -> str:
    return clauses.words(
        "CREATE CONSUMER GROUP",
        clauses.when(s.if_not_exists, "IF NOT EXISTS"),
        clauses.group_on_stream(s.group, s.stream),
        clauses.when(s.start.kind != "earliest", f"START {place_sql(s.start)}"),
        clauses.options_clause(s.options),
    )


def _alter_sql(s: SeekGroup | SetGroup | Park | Release | Discard, *words: str) -> str:
    return clauses.words(f"ALTER CONSUMER GROUP {clauses.group_on_stream(s.group, s.stream)}", *words)


def _seek_sql(s: SeekGroup) -> str:
    partition = clauses.clause("PARTITION", s.partition)
    return _alter_sql(s, "SEEK TO", partition, place_sql(s.to), clauses.when(s.dry_run, "DRY RUN"))


def _park_sql(s: Park) -> str:
    partition, lsn = clauses.clause("PARK PARTITION", s.partition), clauses.clause("AT", s.lsn)
    return _alter_sql(s, partition, lsn, clauses.clause("REASON", s.reason))


def _parked_sql(word: str, s: Release | Discard) -> str:
    return _alter_sql(s, f"{word} PARTITION {scalar_sql(s.partition)}", clauses.clause("AT", s.lsn))


def _leave_group_sql(s: LeaveGroup) -> str:
    group = clauses.group_on_stream(s.group, s.stream)
    return clauses.words("LEAVE CONSUMER GROUP", group, clauses.member_clause(s.member))


_ALTER_FORM = "ALTER CONSUMER GROUP g ON s { SEEK place | SET (...) | PARK ... | RELEASE ... | DISCARD ... }"

ROWS = (
    Row(
        CreateGroup,
        "CREATE CONSUMER GROUP",
        Right.CONSUME,
        Effect.WRITES,
        InCluster.ENTRY_NODE_FOR_TOPICS,
        create_group,
        "CREATE CONSUMER GROUP [IF NOT EXISTS] g ON s "
        "[START { EARLIEST | LATEST | AFTER lsn | AT TIMESTAMP 'ts' }] [WITH (...)]",
        _create_group_sql,
    ),
    Row(
        SeekGroup,
        "ALTER CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_group,
        _ALTER_FORM,
        _seek_sql,
        heading="ALTER CONSUMER GROUP ... SEEK",
    ),
    Row(
        SetGroup,
        "ALTER CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE_FOR_TOPICS,
        alter_group,
        _ALTER_FORM,
        lambda s: _alter_sql(s, clauses.options_clause(s.options, "SET")),
        heading="ALTER CONSUMER GROUP ... SET",
    ),
    Row(
        Park,
        "ALTER CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_group,
        _ALTER_FORM,
        _park_sql,
        heading="ALTER CONSUMER GROUP ... PARK",
    ),
    Row(
        Release,
        "ALTER CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_group,
        _ALTER_FORM,
        lambda s: _parked_sql("RELEASE", s),
        heading="ALTER CONSUMER GROUP ... RELEASE",
    ),
    Row(
        Discard,
        "ALTER CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.OWNER,
        alter_group,
        _ALTER_FORM,
        lambda s: _parked_sql("DISCARD", s),
        heading="ALTER CONSUMER GROUP ... DISCARD",
    ),
    Row(
        DropGroup,
        "DROP CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.WRITES,
        InCluster.ENTRY_NODE_FOR_TOPICS,
        drop_group,
        "DROP CONSUMER GROUP [IF EXISTS] g ON s",
        lambda s: clauses.drop(
            "DROP CONSUMER GROUP", s.if_exists, clauses.group_on_stream(s.group, s.stream)
        ),
    ),
    Row(
        DescribeGroup,
        "DESCRIBE CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        describe_group,
        "DESCRIBE CONSUMER GROUP g ON s",
        lambda s: f"DESCRIBE CONSUMER GROUP {clauses.group_on_stream(s.group, s.stream)}",
    ),
    Row(
        ShowGroups,
        "SHOW CONSUMER GROUPS",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.ALL_NODES,
        show_groups,
        "SHOW CONSUMER GROUPS [ON s]",
        lambda s: clauses.perhaps_on("SHOW CONSUMER GROUPS", s.stream),
        View(
            "consumer_groups",
            "schema_name, stream_name, group_name, start, on_gap, session_timeout, created_at, "
            "lag_events, members",
        ),
    ),
    Row(
        ShowMembers,
        "SHOW MEMBERS ON",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNER,
        show_members,
        "SHOW MEMBERS ON s CONSUMER GROUP g",
        lambda s: f"SHOW MEMBERS {clauses.of_group(s.stream, s.group)}",
        View(
            "members",
            "member_name, epoch, partitions, state, lag_events, joined_at, last_heartbeat, "
            "last_read_at, last_commit_at, user_name",
        ),
    ),
    Row(
        ShowParked,
        "SHOW PARKED ON",
        Right.CHECKED_BY_RUNNER,
        Effect.READS,
        InCluster.OWNERS,
        show_parked,
        "SHOW PARKED ON s CONSUMER GROUP g",
        lambda s: f"SHOW PARKED {clauses.of_group(s.stream, s.group)}",
        View(
            "parked",
            "partition, lsn, state, key, behind, reason, parked_at, parked_by, op, before, "
            "after, commit_time, txid, deliveries, members",
        ),
    ),
    Row(
        LeaveGroup,
        "LEAVE CONSUMER GROUP",
        Right.CHECKED_BY_RUNNER,
        Effect.TRANSIENT,
        InCluster.OWNER,
        leave_group,
        "LEAVE CONSUMER GROUP g ON s MEMBER 'm'",
        _leave_group_sql,
    ),
)
