"""More statements as frozen values: publishing, bookmarks, pipelines, nodes, users and rights.

As in statements.py, where the values are that they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .statements import Fragment, Name, Number, Statement, Text

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
