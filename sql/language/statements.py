"""The statements of the language, as frozen values that cannot be built wrong (and statements.py).

A value that may be given as a parameter is a `Scalar`: an int, a str, or `Parameter(n)` for `$n`;
who executes the statement puts the parameter's value in its place. Names keep their case, and the
engine compares them without it. Positions are in characters of the statement's text: `position`
counts from 1 (as errors do, 0 is unknown), `start` and `end` from 0, half open.
Source: docs/sql.md.

More statements as frozen values: publishing, bookmarks, pipelines, nodes, users and rights.

As in statements.py, where the values are that they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .options import Options


@dataclass(frozen=True, slots=True)
class Parameter:
    """The statement's parameter `$index`, from 1."""

    index: int

    def __post_init__(self) -> None:
        assert self.index >= 1


Number = int | Parameter
Text = str | Parameter
Scalar = int | str | Parameter


@dataclass(frozen=True, slots=True)
class Name:
    """A name with its qualifiers, outermost first: ("main", "orders")."""

    parts: tuple[str, ...]
    position: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        assert self.parts and all(self.parts)

    @property
    def last(self) -> str:
        """The name without its qualifiers."""
        return self.parts[-1]

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of the user's own text, such as a predicate, and where it begins."""

    text: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """`STREAM s` in a FROM clause, with its clauses.

    Args:
        stream: the stream's or topic's name.
        partitions: the partitions of PARTITION, or None for all.
        group: the consumer group, or None for a read without one.
        member: the group's member that reads.
        after: an LSN (int), a map of LSNs by partition as JSON text, or None.
        envelope: 'json' or 'changes'.
        wait: how long to wait for events, an interval as text.
        wait_for: how many events to wait for; None is one.
        topic: whether the word was TOPIC.
        alias: the table alias, as given.
        columns: the alias's column names.
        start, end: the span in the text from STREAM through the alias and its column names.
        away: the other node whose stream it is, where the rest of the query is this node's own.
        typed: name and type of its columns then, in ENVELOPE CHANGES.
    """

    stream: Name
    start: int
    end: int
    partitions: tuple[Number, ...] | None = None
    group: Text | None = None
    member: Text | None = None
    after: Scalar | None = None
    envelope: str = "json"
    wait: Text | None = None
    wait_for: Number | None = None
    topic: bool = False
    alias: str | None = None
    columns: tuple[str, ...] = ()
    away: str | None = None
    typed: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end
        assert self.envelope in ("json", "changes")
        assert self.member is None or self.group is not None
        assert self.wait_for is None or self.wait is not None

    @property
    def kind(self) -> str:
        """What the statement calls what it reads."""
        return "topic" if self.topic else "stream"

    @property
    def visible_name(self) -> str:
        """The name under which the rest of the query knows the scan."""
        return self.alias if self.alias is not None else self.stream.last


@dataclass(frozen=True, slots=True)
class Statement:
    """What all statements of ours are."""


# Streams


@dataclass(frozen=True, slots=True)
class CreateStream(Statement):
    """CREATE STREAM name ON tables.

    Args:
        tables: the source tables; empty with `all_in_schema`.
        all_in_schema: the schema of ALL TABLES IN SCHEMA.
        columns: the columns to carry, or None for all.
        operations: of 'insert', 'update', 'delete', in this order.
        where: the predicate's text, or None.
    """

    name: Name
    tables: tuple[Name, ...]
    all_in_schema: Name | None = None
    columns: tuple[str, ...] | None = None
    operations: tuple[str, ...] = ("insert", "update", "delete")
    where: Fragment | None = None
    options: Options = Options()
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        assert bool(self.tables) != (self.all_in_schema is not None)
        assert self.operations and set(self.operations) <= {"insert", "update", "delete"}
        assert self.columns is None or len(self.tables) == 1


@dataclass(frozen=True, slots=True)
class CreateTopic(Statement):
    """CREATE TOPIC name."""

    name: Name
    options: Options = Options()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetStream(Statement):
    """ALTER STREAM name SET (options)."""

    name: Name
    options: Options
    topic: bool = False


@dataclass(frozen=True, slots=True)
class RenameStream(Statement):
    """ALTER STREAM name RENAME TO new."""

    name: Name
    new: str
    topic: bool = False


@dataclass(frozen=True, slots=True)
class ResyncStream(Statement):
    """ALTER STREAM name RESYNC."""

    name: Name


@dataclass(frozen=True, slots=True)
class CommentOnStream(Statement):
    """COMMENT ON STREAM name IS text; None takes the comment away."""

    name: Name
    text: str | None
    topic: bool = False


@dataclass(frozen=True, slots=True)
class DropStream(Statement):
    """DROP STREAM name."""

    name: Name
    if_exists: bool = False
    cascade: bool = False
    topic: bool = False


@dataclass(frozen=True, slots=True)
class ShowStreams(Statement):
    """SHOW STREAMS, SHOW TOPICS; `like` is a pattern for the name."""

    topics: bool = False
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


# Consumer groups


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a stream: where a group starts, or where SEEK goes.

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
    """ALTER CONSUMER GROUP group ON stream RELEASE PARTITION p; `lsn` None is all that is parked."""

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
class ShowOffsets(Statement):
    """SHOW OFFSETS ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text


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
class ShowReadPosition(Statement):
    """SHOW READ POSITION ON stream CONSUMER GROUP group."""

    stream: Name
    group: Text
    member: Text | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup(Statement):
    """LEAVE CONSUMER GROUP group ON stream MEMBER member."""

    group: Text
    stream: Name
    member: Text


# Committing


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
    """COMMIT OFFSETS ON stream CONSUMER GROUP group; `at` is a map as JSON text, None the read position."""

    stream: Name
    group: Text
    at: Text | None = None
    member: Text | None = None


# Publishing


@dataclass(frozen=True, slots=True)
class Publish(Statement):
    """PUBLISH TO topic.

    Args:
        key, headers: texts of expressions, or None.
        payload: the text of what is published.
        form: 'value' (one expression), 'values' or 'select'.
        producer, sequence: of WITH, both or none; they name the statement, so that a retry is no second one.
    """

    topic: Name
    payload: Fragment
    form: str = "value"
    key: Fragment | None = None
    headers: Fragment | None = None
    producer: Text | None = None
    sequence: Number | None = None

    def __post_init__(self) -> None:
        assert self.form in ("value", "values", "select")
        assert (self.producer is None) == (self.sequence is None)


@dataclass(frozen=True, slots=True)
class Listen(Statement):
    """LISTEN channel."""

    channel: str


@dataclass(frozen=True, slots=True)
class Notify(Statement):
    """NOTIFY channel, payload; '' is none."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Unlisten(Statement):
    """UNLISTEN channel; None is all of them."""

    channel: str | None


# Bookmarks, pipelines and the rest of the catalog


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


@dataclass(frozen=True, slots=True)
class ShowCheckpoints(Statement):
    """SHOW CHECKPOINTS; `stream` None is all streams."""

    stream: Name | None = None


@dataclass(frozen=True, slots=True)
class ShowNodes(Statement):
    """SHOW NODES."""


@dataclass(frozen=True, slots=True)
class ShowPlacement(Statement):
    """SHOW PLACEMENT."""


@dataclass(frozen=True, slots=True)
class InstallPlacement(Statement):
    """INSTALL PLACEMENT text, that of a cluster.toml."""

    text: Text


@dataclass(frozen=True, slots=True)
class ReportPipeline(Statement):
    """REPORT PIPELINE name AS state, a JSON object as text."""

    pipeline: Text
    state: Text


# Users


@dataclass(frozen=True, slots=True)
class CreateUser(Statement):
    """CREATE USER name PASSWORD password."""

    name: str
    password: str = field(repr=False)
    superuser: bool = False


@dataclass(frozen=True, slots=True)
class AlterUser(Statement):
    """ALTER USER name; None leaves a thing as it is.

    Args:
        new: of RENAME TO, which stands alone.
    """

    name: str
    password: str | None = field(default=None, repr=False)
    superuser: bool | None = None
    new: str | None = None


@dataclass(frozen=True, slots=True)
class DropUser(Statement):
    """DROP USER name."""

    name: str
    if_exists: bool = False


PRIVILEGES = ("select", "insert", "update", "delete", "consume", "publish", "create")


@dataclass(frozen=True, slots=True)
class Grant(Statement):
    """GRANT privileges ON object TO user.

    Args:
        kind: 'relation' (a table, stream or topic), 'schema', 'database' or 'group'.
        on: the object; None for the database, if it is not named; of a group its stream.
        group: the consumer group.
    """

    privileges: tuple[str, ...]
    kind: str
    on: Name | None
    user: str
    group: str | None = None

    def __post_init__(self) -> None:
        assert self.privileges and set(self.privileges) <= set(PRIVILEGES)
        assert self.kind in ("relation", "schema", "database", "group")
        assert (self.group is None) == (self.kind != "group")
        assert self.on is not None or self.kind == "database"


@dataclass(frozen=True, slots=True)
class Revoke(Grant):
    """REVOKE privileges ON object FROM user."""
