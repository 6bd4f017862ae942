"""Users, owners and grants: one immutable value in memory.

While there is no user there are no rights: whoever is let in may do everything. Names are found whatever
their case. What leads from one value to the next is in rights_changes.py. Source: docs/security.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..quoting import fold, literal
from .passwords import Verifier

# What a right can be on. A stream and its views are the relation of the stream's name.
RELATION, SCHEMA, DATABASE, GROUP, BOOKMARK, PIPELINE, SEQUENCE, TYPE, MACRO = (
    "relation", "schema", "database", "group", "bookmark", "pipeline", "sequence", "type", "macro",
)  # fmt: skip
PRIVILEGES = ("select", "insert", "update", "delete", "consume", "publish", "create")
# What of these a right on a schema or the database gives for the relations in it.
INHERITED = frozenset({"select", "insert", "update", "delete", "consume", "publish"})


@dataclass(frozen=True, slots=True)
class Item:
    """Something that has an owner, or that rights are given on; all parts in small letters.

    Args:
        schema: empty for the database and for pipelines.
        name: within the schema; empty for a schema.
        group: of a stream's consumer group, or of its bookmark.
    """

    kind: str
    schema: str = ""
    name: str = ""
    group: str = ""

    @property
    def where(self) -> str:
        """The condition of its rows."""
        parts = (("kind", self.kind), ("schema_name", self.schema), ("object_name", self.name))
        both = (*parts, ("part", self.group))
        return " AND ".join(f"{column} = {literal(value)}" for column, value in both)

    @property
    def values(self) -> str:
        """Its columns, as SQL."""
        return ", ".join(map(literal, (self.kind, self.schema, self.name, self.group)))


def relation(schema: str, name: str) -> Item:
    """A table, view or stream."""
    return Item(RELATION, fold(schema), fold(name))


def schema_item(schema: str) -> Item:
    """A schema."""
    return Item(SCHEMA, fold(schema))


def group_item(schema: str, stream: str, group: str) -> Item:
    """A consumer group."""
    return Item(GROUP, fold(schema), fold(stream), group.lower())


def bookmark_item(schema: str, stream: str, bookmark: str) -> Item:
    """A bookmark."""
    return Item(BOOKMARK, fold(schema), fold(stream), bookmark.lower())


def pipeline_item(pipeline: str) -> Item:
    """A pipeline."""
    return Item(PIPELINE, name=pipeline.lower())


THE_DATABASE = Item(DATABASE)


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may come in.

    Args:
        number: his for as long as this process runs, whatever he is called: of two users who have one name
            after each other, each has another. By it a session knows whose it is.
    """

    name: str
    verifier: Verifier = field(repr=False)
    superuser: bool = False
    number: int = field(default_factory=itertools.count(1).__next__, compare=False)

    @property
    def key(self) -> str:
        """Under which he is found."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Rights:
    """The users, the owners of things, and the privileges that were granted.

    Args:
        users: by their names in small letters.
        owners: the name (in small letters) of who made a thing; what has none is the superusers'.
        grants: privileges by user (in small letters) and thing.
        nonce: a secret of this database; empty until it has its first user.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    owners: Mapping[Item, str] = field(default_factory=dict)
    grants: Mapping[tuple[str, Item], frozenset[str]] = field(default_factory=dict)
    nonce: bytes = field(default=b"", repr=False)

    def privileges(self, user: str, item: Item) -> frozenset[str]:
        """The privileges of a user on exactly this thing."""
        return self.grants.get((user, item), frozenset())

    def has(self, user: str, privilege: str, item: Item) -> bool:
        """True if a user may do this with a relation, schema or the database: as owner, or by a grant."""
        if self.owners.get(item) == user or privilege in self.privileges(user, item):
            return True
        if item.kind != RELATION or privilege not in INHERITED:
            return False
        above = (schema_item(item.schema), THE_DATABASE)
        return any(privilege in self.privileges(user, one) for one in above)

    def sees(self, user: str, item: Item) -> bool:
        """True if a user may know of a thing: it is his, or he has any right on it."""
        if self.owners.get(item) == user or self.privileges(user, item):
            return True
        if item.kind == RELATION:
            above = (schema_item(item.schema), THE_DATABASE)
            return any(self.privileges(user, one) & INHERITED for one in above)
        if item.kind == SCHEMA:
            return self._sees_inside(user, item.schema)
        return False

    def _sees_inside(self, user: str, schema: str) -> bool:
        """True if a user has anything in a schema, or a right on all relations."""
        if self.privileges(user, THE_DATABASE) & INHERITED:
            return True
        owned = any(owner == user and item.schema == schema for item, owner in self.owners.items())
        return owned or any(key == user and item.schema == schema for key, item in self.grants)

    def belongings(self, user: str) -> list[Item]:
        """The things that a user owns or has privileges on."""
        owned = [item for item, owner in self.owners.items() if owner == user]
        return owned + [item for key, item in self.grants if key == user]

    def below(self, schema: str) -> list[Item]:
        """The things in a schema that have an owner or privileges, itself included."""
        items = {*self.owners, *(item for _, item in self.grants)}
        return [item for item in items if item.schema == fold(schema)]

    def about(self, schema: str, name: str) -> list[Item]:
        """Entries of a name in a schema: the thing itself, and a stream's groups and bookmarks."""
        return [item for item in self.below(schema) if item.name == fold(name)]

    def of_stream(self, schema: str, name: str) -> list[Item]:
        """Entries of a stream with its groups and bookmarks; a sequence or a type may have the same name."""
        return [item for item in self.about(schema, name) if item.kind in (RELATION, GROUP, BOOKMARK)]
