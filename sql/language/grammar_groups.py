"""Statements on consumer groups, offsets and bookmarks.

Each rule begins after its opening words. Source: docs/sql.md, "Consumer groups", "Committing".
"""

from __future__ import annotations

from ...engine.errors import SyntaxError_
from .grammar import NUMBER, STRING, Grammar, collected
from .options import Option
from .position_text import parse_after, require_one_lsn
from .statements import (
    EARLIEST,
    CommitOffset,
    CommitOffsets,
    CreateBookmark,
    CreateGroup,
    DescribeGroup,
    DropBookmark,
    DropGroup,
    LeaveGroup,
    Name,
    Number,
    Park,
    Place,
    Release,
    SeekGroup,
    SetGroup,
    ShowBookmarks,
    ShowGroups,
    ShowMembers,
    ShowOffsets,
    ShowParked,
    ShowReadPosition,
    Statement,
    Text,
)

GROUP = "consumer group"
_PARTITION_MAX = (1 << 31) - 1


def _group_on_stream(g: Grammar) -> tuple[Text, Name]:
    """g ON s"""
    group = g.text_or_name(GROUP)
    g.expect("ON")
    return group, g.full_name("the name of a stream")


def _on_stream(g: Grammar) -> Name:
    """ON s"""
    g.expect("ON")
    return g.full_name("the name of a stream")


def _stream_and_group(g: Grammar) -> tuple[Name, Text]:
    """s CONSUMER GROUP g; ON was taken."""
    stream = g.full_name("the name of a stream")
    g.expect("CONSUMER", "GROUP")
    return stream, g.text_or_name(GROUP)


def _member(g: Grammar) -> Text | None:
    """[ MEMBER 'm' ]"""
    return g.text_or_name("member") if g.accept("MEMBER") else None


def partition_number(g: Grammar) -> Number:
    """A partition's number; whether the stream has it is the engine's to say."""
    return g.number("PARTITION", high=_PARTITION_MAX)


def _timestamp(g: Grammar) -> Place:
    if g.peek() != STRING:
        g.accept_one("TIMESTAMP", "TIMESTAMPTZ")
    return Place("timestamp", g.string("a timestamp"))


def _place(g: Grammar, seek: bool) -> Place:
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


# Words for a place that people bring from elsewhere, and ours.
_ELSEWHERE = {
    **dict.fromkeys(("BEGINNING", "START", "FIRST"), ": the beginning is EARLIEST"),
    **dict.fromkeys(("END", "LAST", "NOW"), ": the end is LATEST"),
    **dict.fromkeys(("OFFSET", "LSN", NUMBER), ": behind an LSN is AFTER lsn"),
    **dict.fromkeys(("TIMESTAMP", "DATE", STRING), ": a time is AT TIMESTAMP '...'"),
}


def create_group(g: Grammar) -> Statement:
    """CREATE CONSUMER GROUP [IF NOT EXISTS] g ON s [START place] [WITH (...)]"""
    exists = g.accept("IF", "NOT", "EXISTS")
    group, stream = _group_on_stream(g)
    start: Place | None = None
    options: list[Option] = []
    while not g.at_end:
        if g.accept("START"):
            g.none_twice("START", start)
            start = _place(g, seek=False)
        elif g.accept("WITH"):
            options += g.options("group")
        else:
            raise g.expected("START or WITH (...)")
    return CreateGroup(group, stream, start or EARLIEST, collected(options), exists)


def alter_group(g: Grammar) -> Statement:
    """ALTER CONSUMER GROUP g ON s { SEEK | SET | PARK | RELEASE } ..."""
    group, stream = _group_on_stream(g)
    if g.accept("SEEK"):
        return _seek(g, group, stream)
    if g.accept("SET"):
        return SetGroup(group, stream, collected(g.options("group")))
    if g.accept("PARK"):
        g.expect("PARTITION")
        partition = partition_number(g)
        g.expect("AT")
        lsn = g.number("AT")
        reason = g.string("the reason") if g.accept("REASON") else None
        return Park(group, stream, partition, lsn, reason)
    if g.accept("RELEASE"):
        g.expect("PARTITION")
        partition = partition_number(g)
        return Release(group, stream, partition, g.number("AT") if g.accept("AT") else None)
    if g.peek() in ("RESET", "SKIP"):
        other = "SEEK TO EARLIEST" if g.peek() == "RESET" else "PARK PARTITION p AT lsn"
        raise g.expected(f"SEEK, SET (...), PARK or RELEASE, here perhaps {other}")
    raise g.expected("SEEK, SET (...), PARK or RELEASE")


def _seek(g: Grammar, group: Text, stream: Name) -> Statement:
    """[TO] [PARTITION p] place [DRY RUN]"""
    g.accept("TO")
    position = g.position
    partition = partition_number(g) if g.accept("PARTITION") else None
    to = _place(g, seek=True)
    if partition is not None and to.kind == "after" and isinstance(to.value, str):
        require_one_lsn(parse_after(to.value), position)
    return SeekGroup(group, stream, to, partition, g.accept("DRY", "RUN"))


def drop_group(g: Grammar) -> Statement:
    """DROP CONSUMER GROUP [IF EXISTS] g ON s"""
    exists = g.accept("IF", "EXISTS")
    group, stream = _group_on_stream(g)
    return DropGroup(group, stream, exists)


def describe_group(g: Grammar) -> Statement:
    """DESCRIBE CONSUMER GROUP g ON s"""
    group, stream = _group_on_stream(g)
    return DescribeGroup(group, stream)


def leave_group(g: Grammar) -> Statement:
    """LEAVE CONSUMER GROUP g ON s MEMBER 'm'"""
    group, stream = _group_on_stream(g)
    member = _member(g)
    if member is None:
        raise g.expected("MEMBER 'm'")
    return LeaveGroup(group, stream, member)


def _perhaps_on_stream(g: Grammar) -> Name | None:
    return g.full_name("the name of a stream") if g.accept("ON") else None


def show_groups(g: Grammar) -> Statement:
    """SHOW CONSUMER GROUPS [ON s]"""
    return ShowGroups(_perhaps_on_stream(g))


def show_offsets(g: Grammar) -> Statement:
    """SHOW OFFSETS ON s CONSUMER GROUP g"""
    return ShowOffsets(*_stream_and_group(g))


def show_members(g: Grammar) -> Statement:
    """SHOW MEMBERS ON s CONSUMER GROUP g"""
    return ShowMembers(*_stream_and_group(g))


def show_parked(g: Grammar) -> Statement:
    """SHOW PARKED ON s CONSUMER GROUP g"""
    return ShowParked(*_stream_and_group(g))


def show_read_position(g: Grammar) -> Statement:
    """SHOW READ POSITION ON s CONSUMER GROUP g [MEMBER 'm']"""
    g.expect("ON")
    stream, group = _stream_and_group(g)
    return ShowReadPosition(stream, group, _member(g))


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
    partition = partition_number(g)
    g.expect("AT")
    lsn = g.number("AT")
    g.expect("ON")
    stream, group = _stream_and_group(g)
    return CommitOffset(stream, group, partition, lsn, _member(g))


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
    stream, group = _stream_and_group(g)
    return CommitOffsets(stream, group, at, _member(g))


def create_bookmark(g: Grammar) -> Statement:
    """CREATE BOOKMARK b ON s [CONSUMER GROUP g | AT '{...}']"""
    name = g.simple_name("the name of the bookmark")
    stream = _on_stream(g)
    if g.accept("CONSUMER", "GROUP"):
        return CreateBookmark(name, stream, group=g.text_or_name(GROUP))
    return CreateBookmark(name, stream, at=g.positions("AT") if g.accept("AT") else None)


def drop_bookmark(g: Grammar) -> Statement:
    """DROP BOOKMARK [IF EXISTS] b ON s"""
    exists = g.accept("IF", "EXISTS")
    name = g.simple_name("the name of the bookmark")
    return DropBookmark(name, _on_stream(g), exists)


def show_bookmarks(g: Grammar) -> Statement:
    """SHOW BOOKMARKS [ON s]"""
    return ShowBookmarks(_perhaps_on_stream(g))
