"""Our statements and scans as SQL again: the text parses to the same value.

For `SHOW CREATE STREAM`, and so that a tree of the dialect round-trips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...engine.quoting import ident, literal
from ...engine.values.dates_times import duration_text
from .options import INTERVALS, RULES, Option, Options, Value
from .statements import (
    AlterUser,
    CheckStream,
    CommentOnStream,
    CommitOffset,
    CommitOffsets,
    CreateBookmark,
    CreateGroup,
    CreateStream,
    CreateTopic,
    CreateUser,
    DescribeGroup,
    DescribeStream,
    DropBookmark,
    DropGroup,
    DropStream,
    DropUser,
    Fragment,
    Grant,
    InstallPlacement,
    LeaveGroup,
    Listen,
    Name,
    Notify,
    Parameter,
    Park,
    Place,
    Publish,
    Release,
    RenameStream,
    ReportPipeline,
    ResyncStream,
    Revoke,
    Scalar,
    Scan,
    SeekGroup,
    SetGroup,
    SetStream,
    ShowBookmarks,
    ShowChanges,
    ShowCheckpoints,
    ShowCreateStream,
    ShowGroups,
    ShowMembers,
    ShowNodes,
    ShowOffsets,
    ShowParked,
    ShowPartitions,
    ShowPlacement,
    ShowReadPosition,
    ShowStreams,
    Statement,
    Unlisten,
)

_ALL_OPERATIONS = ("insert", "update", "delete")
# Options whose value is a length of time in milliseconds.
_INTERVALS = INTERVALS | {"session_timeout"}


def name_sql(name: Name) -> str:
    """A name, quoted, with its qualifiers."""
    return ".".join(ident(part) for part in name.parts)


def scalar_sql(value: Scalar) -> str:
    """A number, a string literal or a parameter."""
    if isinstance(value, Parameter):
        return f"${value.index}"
    return literal(value) if isinstance(value, str) else str(value)


def _named(value: str | Parameter) -> str:
    return ident(value) if isinstance(value, str) else scalar_sql(value)


def _words(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def _if(condition: bool, words: str) -> str:
    return words if condition else ""


def _clause(words: str, value: Scalar | None) -> str:
    return "" if value is None else f"{words} {scalar_sql(value)}"


def _member(member: str | Parameter | None) -> str:
    return "" if member is None else f"MEMBER {_named(member)}"


def _of_group(stream: Name, group: str | Parameter) -> str:
    return f"ON {name_sql(stream)} CONSUMER GROUP {_named(group)}"


def _on(group: str | Parameter, stream: Name) -> str:
    return f"{_named(group)} ON {name_sql(stream)}"


def _columns(names: Iterable[str]) -> str:
    return f"({', '.join(ident(name) for name in names)})"


def _option(option: Option) -> str:
    return f"{option.name} = {_option_value(option.name, option.value)}"


def _option_value(name: str, value: Value) -> str:
    if isinstance(value, tuple):
        return _columns(value)
    if value is None:
        return "'none'"
    if name in _INTERVALS:
        assert isinstance(value, int)
        return literal(duration_text(value * 1000))
    return literal(value) if isinstance(value, str) else str(value)


def _with(options: Options, word: str = "WITH") -> str:
    assert all(option.name in RULES for option in options)
    return f"{word} ({', '.join(_option(option) for option in options)})" if options.given else ""


def _place(place: Place) -> str:
    if place.value is None:
        return place.kind.upper()
    if place.kind == "bookmark":
        return f"BOOKMARK {ident(str(place.value))}"
    return _clause({"after": "AFTER", "timestamp": "AT TIMESTAMP"}[place.kind], place.value)


def render_scan(scan: Scan) -> str:
    """A scan without its alias."""
    partitions = scan.partitions or ()
    listed = ", ".join(scalar_sql(partition) for partition in partitions)
    return _words(
        "TOPIC" if scan.topic else "STREAM",
        name_sql(scan.stream),
        _if(bool(partitions), f"PARTITION {listed}" if len(partitions) == 1 else f"PARTITION ({listed})"),
        "" if scan.group is None else f"CONSUMER GROUP {_named(scan.group)}",
        _member(scan.member),
        _clause("AFTER", scan.after),
        _if(scan.envelope != "json", f"ENVELOPE {scan.envelope.upper()}"),
        _clause("WAIT", scan.wait),
        _clause("FOR", scan.wait_for),
    )


def _create_stream(s: CreateStream) -> str:
    tables = ", ".join(name_sql(table) for table in s.tables)
    source = f"ALL TABLES IN SCHEMA {name_sql(s.all_in_schema)}" if s.all_in_schema else tables
    return _words(
        "CREATE STREAM",
        _if(s.if_not_exists, "IF NOT EXISTS"),
        name_sql(s.name),
        "ON",
        source,
        "" if s.columns is None else _columns(s.columns),
        _if(s.operations != _ALL_OPERATIONS, f"OPERATIONS {', '.join(s.operations).upper()}"),
        "" if s.where is None else f"WHERE {s.where.text}",
        _with(s.options),
    )


def _show_changes(s: ShowChanges) -> str:
    return _words(
        f"SHOW CHANGES FOR {name_sql(s.table)}", _clause("SINCE", s.since), _clause("LIMIT", s.limit)
    )


def _publish(s: Publish) -> str:
    def clause(word: str, fragment: Fragment | None) -> str:
        return "" if fragment is None else f"{word} {fragment.text}"

    return _words(
        f"PUBLISH TO {name_sql(s.topic)}",
        clause("KEY", s.key),
        clause("HEADERS", s.headers),
        s.payload.text,
        _producer(s),
    )


def _producer(s: Publish) -> str:
    if s.producer is None or s.sequence is None:
        return ""
    return f"WITH (producer = {scalar_sql(s.producer)}, sequence = {scalar_sql(s.sequence)})"


def _create_group(s: CreateGroup) -> str:
    start = _if(s.start.kind != "earliest", f"START {_place(s.start)}")
    exists = _if(s.if_not_exists, "IF NOT EXISTS")
    return _words("CREATE CONSUMER GROUP", exists, _on(s.group, s.stream), start, _with(s.options))


def _seek(s: SeekGroup) -> str:
    return _words(
        f"ALTER CONSUMER GROUP {_on(s.group, s.stream)} SEEK TO",
        _clause("PARTITION", s.partition),
        _place(s.to),
        _if(s.dry_run, "DRY RUN"),
    )


def _park(s: Park) -> str:
    words = f"ALTER CONSUMER GROUP {_on(s.group, s.stream)} PARK PARTITION {scalar_sql(s.partition)}"
    return _words(words, _clause("AT", s.lsn), _clause("REASON", s.reason))


def _release(s: Release) -> str:
    words = f"ALTER CONSUMER GROUP {_on(s.group, s.stream)} RELEASE PARTITION {scalar_sql(s.partition)}"
    return _words(words, _clause("AT", s.lsn))


def _commit_offset(s: CommitOffset) -> str:
    words = f"COMMIT OFFSET PARTITION {scalar_sql(s.partition)} AT {scalar_sql(s.lsn)}"
    return _words(words, _of_group(s.stream, s.group), _member(s.member))


def _commit_offsets(s: CommitOffsets) -> str:
    return _words("COMMIT OFFSETS", _clause("AT", s.at), _of_group(s.stream, s.group), _member(s.member))


def _bookmark(s: CreateBookmark) -> str:
    group = "" if s.group is None else f"CONSUMER GROUP {_named(s.group)}"
    return _words(f"CREATE BOOKMARK {ident(s.name)} ON {name_sql(s.stream)}", group, _clause("AT", s.at))


def _grant(s: Grant) -> str:
    verb, word = ("REVOKE", "FROM") if isinstance(s, Revoke) else ("GRANT", "TO")
    kind = {"relation": "", "schema": "SCHEMA", "database": "DATABASE"}[s.kind]
    on = _words(kind, "" if s.on is None else name_sql(s.on))
    return f"{verb} {', '.join(s.privileges).upper()} ON {on} {word} {ident(s.user)}"


def _alter_user(s: AlterUser) -> str:
    superuser = {True: "SUPERUSER", False: "NOSUPERUSER", None: ""}[s.superuser]
    renamed = "" if s.new is None else f"RENAME TO {ident(s.new)}"
    return _words(f"ALTER USER {ident(s.name)}", _clause("PASSWORD", s.password), superuser, renamed)


def _kind(topic: bool) -> str:
    return "TOPIC" if topic else "STREAM"


def _drop(words: str, exists: bool, what: str, cascade: bool = False) -> str:
    return _words(words, _if(exists, "IF EXISTS"), what, _if(cascade, "CASCADE"))


def _show(words: str, stream: Name | None) -> str:
    return words if stream is None else f"{words} ON {name_sql(stream)}"


_RENDERERS: dict[type[Statement], Callable[[Any], str]] = {
    CreateStream: _create_stream,
    CreateTopic: lambda s: _words(
        "CREATE TOPIC", _if(s.if_not_exists, "IF NOT EXISTS"), name_sql(s.name), _with(s.options)
    ),
    SetStream: lambda s: f"ALTER {_kind(s.topic)} {name_sql(s.name)} {_with(s.options, 'SET')}",
    RenameStream: lambda s: f"ALTER {_kind(s.topic)} {name_sql(s.name)} RENAME TO {ident(s.new)}",
    ResyncStream: lambda s: f"ALTER STREAM {name_sql(s.name)} RESYNC",
    CommentOnStream: lambda s: (
        f"COMMENT ON {_kind(s.topic)} {name_sql(s.name)} IS {'NULL' if s.text is None else literal(s.text)}"
    ),
    DropStream: lambda s: _drop(f"DROP {_kind(s.topic)}", s.if_exists, name_sql(s.name), s.cascade),
    ShowStreams: lambda s: _words("SHOW", "TOPICS" if s.topics else "STREAMS", _clause("LIKE", s.like)),
    ShowPartitions: lambda s: f"SHOW PARTITIONS ON {name_sql(s.stream)}",
    ShowCreateStream: lambda s: f"SHOW CREATE STREAM {name_sql(s.stream)}",
    DescribeStream: lambda s: f"DESCRIBE STREAM {name_sql(s.stream)}",
    CheckStream: lambda s: f"CHECK STREAM {name_sql(s.stream)}",
    ShowChanges: _show_changes,
    Publish: _publish,
    Listen: lambda s: f"LISTEN {ident(s.channel)}",
    Notify: lambda s: f"NOTIFY {ident(s.channel)}" + (f", {literal(s.payload)}" if s.payload else ""),
    Unlisten: lambda s: f"UNLISTEN {'*' if s.channel is None else ident(s.channel)}",
    CreateGroup: _create_group,
    SeekGroup: _seek,
    SetGroup: lambda s: f"ALTER CONSUMER GROUP {_on(s.group, s.stream)} {_with(s.options, 'SET')}",
    Park: _park,
    Release: _release,
    DropGroup: lambda s: _drop("DROP CONSUMER GROUP", s.if_exists, _on(s.group, s.stream)),
    DescribeGroup: lambda s: f"DESCRIBE CONSUMER GROUP {_on(s.group, s.stream)}",
    ShowGroups: lambda s: _show("SHOW CONSUMER GROUPS", s.stream),
    ShowOffsets: lambda s: f"SHOW OFFSETS {_of_group(s.stream, s.group)}",
    ShowMembers: lambda s: f"SHOW MEMBERS {_of_group(s.stream, s.group)}",
    ShowParked: lambda s: f"SHOW PARKED {_of_group(s.stream, s.group)}",
    ShowReadPosition: lambda s: _words("SHOW READ POSITION", _of_group(s.stream, s.group), _member(s.member)),
    LeaveGroup: lambda s: f"LEAVE CONSUMER GROUP {_on(s.group, s.stream)} {_member(s.member)}",
    CommitOffset: _commit_offset,
    CommitOffsets: _commit_offsets,
    CreateBookmark: _bookmark,
    DropBookmark: lambda s: _drop("DROP BOOKMARK", s.if_exists, f"{ident(s.name)} ON {name_sql(s.stream)}"),
    ShowBookmarks: lambda s: _show("SHOW BOOKMARKS", s.stream),
    ShowCheckpoints: lambda s: _show("SHOW CHECKPOINTS", s.stream),
    ShowNodes: lambda s: "SHOW NODES",
    ShowPlacement: lambda s: "SHOW PLACEMENT",
    InstallPlacement: lambda s: f"INSTALL PLACEMENT {scalar_sql(s.text)}",
    ReportPipeline: lambda s: f"REPORT PIPELINE {scalar_sql(s.pipeline)} AS {scalar_sql(s.state)}",
    CreateUser: lambda s: _words(
        f"CREATE USER {ident(s.name)} PASSWORD {literal(s.password)}", _if(s.superuser, "SUPERUSER")
    ),
    AlterUser: _alter_user,
    DropUser: lambda s: _drop("DROP USER", s.if_exists, ident(s.name)),
    Grant: _grant,
    Revoke: _grant,
}


def render_statement(statement: Statement) -> str:
    """A statement of ours as SQL."""
    return _RENDERERS[type(statement)](statement)
